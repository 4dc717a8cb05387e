"""The paper's predictor ablation past the point where there is something to predict, and why attention fails in it.

Five predictors in Algorithm 1's block, with its straight-through top-k, with the true gradient and with a dense layer,
after the paper's 500 steps and after the whole budget; the paper's three also after 500 steps of a model with 130M
parameters. Beside them are models without predictions, x̂ = 0, after the whole budget. Attention over the inputs sees
every past token and yet may not help: from there, switches lead to attention as a mixer. The query comes from the input
instead of the slow trace, the values are normalised, the context reaches the residual stream directly; each alone and
all together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ematrace.analysis.gap_design import DENSE, DIRECT, SPEN, TRUE_GRADIENT, Arm
from ematrace.experiments.base import Point, number
from ematrace.experiments.chosen_rates import chosen_rate, rate_at
from ematrace.experiments.gap_task import BUDGETS, SCORED_AT_ONCE, arm_experiment, arm_points, budget_of
from ematrace.experiments.gap_text import ScoredText
from ematrace.experiments.hooks import recorded
from ematrace.mixers.ema import ALPHAS
from ematrace.mixers.ema_attention import EmaAttentionMixer
from ematrace.models.block import Block
from ematrace.results import Row
from ematrace.spen.mixer import SpenMixer


@dataclass(frozen=True)
class PredictorArm(Arm):
    predictor: str = "static"
    """static, linear or softmax; mixer, attention beside the traces instead of a predictor; or nothing, x̂ = 0."""
    reads: str = "traces_now"
    query: str = "slow_trace"
    values: str = "as_read"

    @property
    def has_switches(self) -> bool:
        """Which a SpenConfig does not have: the model is then the skeleton around the same mixer."""
        return (self.query, self.values) != ("slow_trace", "as_read")

    def preset(self) -> str:
        return "skeleton-7m" if self.has_switches else super().preset()

    def overrides(self, size: str, d_ff: int) -> dict[str, Any]:
        fields = super().overrides(size, d_ff)
        if self.predictor == "mixer":
            return fields
        if self.predictor == "nothing":  # W_h h + W_e x: a trace of rate 1 is the input
            return fields | {"mixer_options": {"alphas": (*ALPHAS, 1.0)}}
        options = {"predictor": self.predictor, "predictor_reads": self.reads}
        if not self.has_switches:
            return fields | options
        options |= {"predictor_query": self.query, "predictor_values": self.values, "n_heads": fields.pop("n_heads")}
        return fields | {"mixer": "spen", "norm": self.norm, "mixer_options": options}

    def swept_as(self) -> PredictorArm:
        """Its own arm, or the nearest that a sweep has."""
        arm = replace(self, width="matched")
        if arm.predictor == "nothing":
            return replace(arm, context="ema_error", predictor="static", reads="traces_now")
        return INSIDE if arm in SWITCHED and arm not in SWEPT else arm


BLOCKS = (SPEN, TRUE_GRADIENT, DENSE)
OF_THE_PAPER = (
    ("static", "traces_now"),
    ("linear", "inputs"),  # its equation: values from the input, queries from the slow trace
    ("softmax", "traces_now"),
)
PREDICTORS = (*OF_THE_PAPER, ("softmax", "trace_sequence"), ("softmax", "inputs"))
ABLATION = tuple(
    PredictorArm(**asdict(block), predictor=predictor, reads=reads)
    for block in BLOCKS
    for predictor, reads in PREDICTORS
)
INSIDE = PredictorArm(**asdict(DENSE), predictor="softmax", reads="inputs")
SWITCHED = tuple(
    replace(INSIDE, query=query, values=values, residual=residual)
    for query, values, residual in product(("slow_trace", "input"), ("as_read", "normalised"), ("ffn", "direct"))
)
ALL_SWITCHED = replace(INSIDE, query="input", values="normalised", residual="direct")
MIXERS = tuple(
    PredictorArm(
        "ema_attention", residual=residual, predictor="mixer", reads="inputs", query="input", values="normalised"
    )
    for residual in ("ffn", "direct")
)
STATIC_DIRECT = PredictorArm(**asdict(DIRECT))
WAY = (STATIC_DIRECT, *(arm for arm in SWITCHED if arm != INSIDE), *MIXERS)
"""From INSIDE, which is one of the ablation's, to attention as a mixer; and the static predictor to compare with."""


def _at_fixed_width(block: Arm) -> tuple[PredictorArm, ...]:
    """A block's arms of the ablation with d_ff as it is: matched in parameters, a large predictor leaves the layer few
    units. The static predictor's width is that of SPEN in any case."""
    found = (arm for arm in ABLATION if arm.plain == block and arm.predictor != "static")
    return tuple(replace(arm, width="fixed") for arm in found)


WIDE, WIDE_DENSE = _at_fixed_width(SPEN), _at_fixed_width(DENSE)
"""The second at `2m` alone."""
NOTHING = tuple(
    PredictorArm(**asdict(replace(block, context="ema", width="fixed")), predictor="nothing", reads="nothing")
    for block in BLOCKS
)
"""Trained without predictions, with d_ff as it is: what the block is worth if x̂ is 0 from the first step on."""
SWEPT = (*(arm for arm in ABLATION if arm.predictor != "static"), ALL_SWITCHED, *MIXERS)
"""At `2m`; the static predictor's rates are the chain's."""
FEWER_SEEDS = 3  # for what is beside the ablation itself
STEPS = 500  # of the paper's ablation
WINDOWS_AT_130M = 128  # scored of each text: all models are scored on the same


def rate_of(arm: PredictorArm, size: str) -> float | None:
    """None as long as the sweep that decides has not settled it. At 130M, SPEN's for all predictors."""
    if size in ("toy", "130m"):
        return rate_at(SPEN, size)
    swept = arm.swept_as()
    if swept.predictor == "static" and size == "2m":
        return rate_at(swept.plain, size)
    return chosen_rate("gap_predictor_rates", {**asdict(swept), "size": size})


def grid(scale: str, seeds: int) -> Iterable[Point]:
    """Arms whose rate was chosen; without a GPU two toys, which show that it runs."""
    if scale != "gpu":
        yield from arm_points((INSIDE, ALL_SWITCHED), "toy", 0)
        return
    for seed in range(seeds):
        yield from arm_points((*ABLATION, *WIDE, *WIDE_DENSE, *NOTHING), "2m", seed, rate_of)
        yield from arm_points((*ABLATION, *WIDE), "ablation", seed, rate_of)
    for seed in range(min(seeds, FEWER_SEEDS)):
        yield from arm_points(WAY, "2m", seed, rate_of)
    papers = [arm for arm in ABLATION if arm.plain == SPEN and (arm.predictor, arm.reads) in OF_THE_PAPER]
    for seed in range(min(seeds, FEWER_SEEDS)):
        yield from arm_points(papers, "130m", seed, rate_of)


def budget(point: Point, settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """That of the size; at 130M parameters the paper's 500 steps, each with as many tokens as those of `ablation`."""
    found = dict(budget_of(point, settings))
    if point.factors["size"] == "130m":
        of = BUDGETS["ablation"]
        ablation = {"sequences": of["sequences"] * of["length"] // found["length"], "warmup": of["warmup"]}
        ablation["windows"] = WINDOWS_AT_130M
        found |= {name: value for name, value in ablation.items() if settings.get(name) is None}
        if settings.get("tokens") is None:
            found["tokens"] = STEPS * found["sequences"] * found["length"]
    return found


@torch.no_grad()
def contributions(model: Any, text: ScoredText) -> list[Row]:
    """For each block, what the predictor (or attention) adds to the context against what the traces add.

    `over_traces` is the ratio of their root mean squares, |W_e x̂| / |W_h h|. `unexplained` is |x - x̂|² / |x|²: 1 for a
    prediction of 0. `shares_in_context` adds the same as the context has it. A block without either has no row.
    """
    at_once = max(1, SCORED_AT_ONCE // text.windows.shape[1])
    ids = torch.from_numpy(text.windows[:at_once, :-1]).to(model.device)
    blocks = [module for module in model.modules() if isinstance(module, Block)]
    mixers = {at: b.mixer for at, b in enumerate(blocks) if isinstance(b.mixer, SpenMixer | EmaAttentionMixer)}
    traces = [mixer.W_h if isinstance(mixer, SpenMixer) else mixer.ema for mixer in mixers.values()]
    others = [mixer.predictor if isinstance(mixer, SpenMixer) else mixer.attention for mixer in mixers.values()]
    with recorded(traces) as of_traces, recorded(others) as of_others:
        model(input_ids=ids, use_cache=False, logits_to_keep=1)
    rows = []
    for (layer, mixer), (_, h), ((x, *_), (added, *_)) in zip(mixers.items(), of_traces, of_others, strict=True):
        if isinstance(mixer, SpenMixer):
            x, x_hat = x.float(), added.float()
            W_e_x, W_e_x_hat = (F.linear(u, mixer.W_e.weight.float()) for u in (x, x_hat))
            metrics = {"over_traces": float(W_e_x_hat.norm() / h.float().norm()), "unexplained": left_over(x, x_hat)}
            metrics |= shares_in_context(W_e_x, W_e_x_hat)
        else:
            metrics = {"over_traces": float(added.float().norm() / h[0].float().norm())}
        rows.append(Row({"layer": layer}, {name: number(value) for name, value in metrics.items()}))
    return rows


def left_over(x: Tensor, x_hat: Tensor) -> float:
    """|x - x̂|² / |x|²: 1 for a prediction of 0."""
    return float((x - x_hat).square().sum() / x.square().sum())


def shares_in_context(W_e_x: Tensor, W_e_x_hat: Tensor) -> dict[str, float]:
    """Of a prediction as the context has it: all that the block gets of either is W_e x - W_e x̂."""
    error = W_e_x - W_e_x_hat
    return {
        "context_unexplained": left_over(W_e_x, W_e_x_hat),
        "context_size": float(W_e_x_hat.norm() / W_e_x.norm()),
        "context_cosine": float((error * W_e_x).sum() / error.norm() / W_e_x.norm()),
    }


EXPERIMENT = arm_experiment(
    "gap_predictors",
    "Predictors in SPEN's block, and the way from there to attention as a mixer",
    grid,
    PredictorArm,
    look=contributions,
    derived=budget,
    seeds=5,
)
