"""Predictors and sparsity of the gap: each arm is what its factors say, and what it is matched in."""

from __future__ import annotations

from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ematrace.analysis.gap_design import ARMS, CHAIN, SPEN, Arm
from ematrace.experiments import (
    chosen_rates,
    gap_kept,
    gap_predictor_rates,
    gap_predictors,
    gap_rates,
    gap_sparsity,
    gap_straight_through,
    gap_task,
    gap_units,
)
from ematrace.experiments.chosen_rates import arm_key, rate_at
from ematrace.experiments.gap_predictors import (
    ABLATION,
    INSIDE,
    MIXERS,
    NOTHING,
    STATIC_DIRECT,
    SWEPT,
    SWITCHED,
    WAY,
    WIDE,
    WIDE_DENSE,
    PredictorArm,
    contributions,
)
from ematrace.experiments.gap_task import build_arm, matched_width
from ematrace.experiments.gap_text import ScoredText
from ematrace.mixers.conformance import CHECKS, run_check, subject_of
from ematrace.spen import SpenForCausalLM, SpenMixer
from ematrace.spen.predictors import build_predictor
from ematrace.traces import ema_traces
from test_gap_gradients import context

ALL = tuple(dict.fromkeys((*ABLATION, *WAY, *WIDE, *WIDE_DENSE, *NOTHING)))


def built(arm: Arm) -> Any:
    torch.manual_seed(0)
    return build_arm(arm, "toy", matched_width(arm, "toy", 300, 32), 300, 32).eval()


def test_the_design_is_the_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (gap_predictors, chosen_rates):
        monkeypatch.setattr(module, "chosen_rate", lambda sweep, factors: 6e-3 if factors["size"] != "130m" else None)
    assert len(ABLATION) == len(set(ABLATION)) == 15
    assert len(SWITCHED) == len(set(SWITCHED)) == 8
    assert SWITCHED[0] == INSIDE
    assert {arm.plain for arm in ABLATION if arm.predictor == "static"} <= set(ARMS)  # the chain has swept their rates
    assert STATIC_DIRECT.plain in ARMS
    for arm in ALL:
        decides = arm.swept_as()
        assert decides in SWEPT or decides.plain in ARMS
        assert decides.ffn == arm.ffn
        assert decides.predictor == arm.predictor.replace("nothing", "static")
    points = list(gap_predictors.grid("gpu", 5))
    assert len(points) == len({(tuple(p.factors.items()), p.seed) for p in points}) == 5 * (26 + 19) + 3 * 10 + 3 * 3
    assert {p.seed for p in points} == set(range(5))
    assert {p.factors["size"]: p.factors["lr"] for p in points} == {"2m": 6e-3, "ablation": 6e-3, "130m": 1e-3}
    sweep = list(gap_predictor_rates.grid("gpu", 1))
    assert {p.seed for p in sweep} <= {1000, 1001, 1002}
    assert len({(tuple(p.factors.items()), p.seed) for p in sweep}) == len(sweep) >= 3 * (len(SWEPT) + len(ABLATION))


def test_an_arm_has_the_rate_of_the_sweep_that_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a sweep would be asked for is in its grid; an arm without a rate is not measured."""
    asked: list[tuple[str, str]] = []
    for module in (chosen_rates, gap_predictors):
        monkeypatch.setattr(module, "chosen_rate", lambda sweep, factors: asked.append((sweep, arm_key(factors))))
    for module in (gap_predictors, gap_sparsity, gap_straight_through):
        assert list(module.grid("gpu", 5)) == []
    swept = {
        (module.__name__.rpartition(".")[2], arm_key({k: v for k, v in point.factors.items() if k != "lr"}))
        for module in (gap_rates, gap_predictor_rates)
        for point in module.grid("gpu", 1)
    }
    assert {(sweep, key) for sweep, key in asked if sweep != "gap_size_rates"} <= swept
    assert {key for sweep, key in swept if sweep == "gap_predictor_rates"} <= {key for _, key in asked}  # none in vain


def test_a_larger_models_rate_is_rounded_as_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (gap_predictors, chosen_rates):
        monkeypatch.setattr(module, "chosen_rate", lambda sweep, factors: 4e-3 if factors["size"] == "2m" else None)
    assert gap_predictors.rate_of(ABLATION[0], "130m") == rate_at(SPEN, "130m") == 6.67e-4


def test_at_130m_parameters_it_is_the_papers_ablation(monkeypatch: pytest.MonkeyPatch) -> None:
    """500 steps, and one rate whatever the predictor; settings of the user's own come first."""
    rates = {("2m", 0.01): 8e-3, ("2m", 0.0): 32e-3}  # SPEN's own, and that of the same without load balance
    monkeypatch.setattr(chosen_rates, "chosen_rate", lambda sweep, f: rates.get((f["size"], f["load_balance"])))
    largest = [p for p in gap_predictors.grid("gpu", 5) if p.factors["size"] == "130m"]
    assert {(p.factors["predictor"], p.factors["reads"]) for p in largest} == {
        ("static", "traces_now"), ("linear", "inputs"), ("softmax", "traces_now")
    }  # fmt: skip
    assert {(p.factors["lr"], p.factors["ffn"], p.factors["load_balance"]) for p in largest} == {
        (1.33e-3, "topk_ste", 0.01)
    }
    experiment = gap_predictors.EXPERIMENT
    found = experiment.resolve_settings(largest[0], experiment.settings)
    assert (found["tokens"], found["warmup"], found["vocab_size"]) == (500 * 16 * 2048, 50, 50257)
    assert found["windows"] == 128
    assert found["sequences"] * found["length"] == 64 * 512  # as at 2M parameters
    shorter = experiment.resolve_settings(largest[0], {**experiment.settings, "tokens": 65536})
    assert (shorter["tokens"], shorter["warmup"]) == (65536, 50)
    smaller = experiment.resolve_settings(largest[0], {**experiment.settings, "sequences": 8})
    assert smaller["tokens"] == 500 * 8 * 2048
    assert experiment.resolve_settings(largest[0], {**experiment.settings, "windows": 7})["windows"] == 7
    at_2m = next(p for p in gap_predictors.grid("gpu", 1) if p.factors["size"] == "2m")
    assert experiment.resolve_settings(at_2m, experiment.settings)["tokens"] == 3584 * 64 * 512


def test_predictors_are_matched_in_parameters() -> None:
    wanted = gap_task._parameters(SPEN, "2m", 512, 8192, 512)
    width = {}
    for arm in (arm for arm in ALL if arm.ffn == "dense"):  # top-k has no parameters
        d_ff = matched_width(arm, "2m", 8192, 512)
        found = gap_task._parameters(arm, "2m", d_ff, 8192, 512)
        if arm.width == "matched":
            assert abs(found / wanted - 1) < 0.01, arm
            width[arm.predictor, arm.reads] = d_ff
        else:
            assert d_ff == 512
            assert (found > wanted) == (arm.predictor != "nothing")
    found = [width[pair] for pair in gap_predictors.PREDICTORS]
    assert found == [512, 384, 320, 64, 320]  # as the plan says


@pytest.mark.parametrize("arm", ALL, ids=lambda arm: "-".join(map(str, asdict(arm).values())))
def test_an_arm_is_what_its_factors_say(arm: PredictorArm) -> None:
    """Read off the built model."""
    model = built(arm)
    block = model.model.layers[0]
    assert block.config.residual == arm.residual
    assert block.config.ffn == arm.ffn.partition("_")[0]
    assert arm.ffn == "dense" or block.config.topk_grad == arm.ffn.partition("_")[2]
    assert block.config.load_balance == arm.load_balance
    assert block.config.residual_in_fp32
    assert isinstance(block.mixer_norm, torch.nn.LayerNorm) == (arm.norm == "pre")
    if arm.predictor == "mixer":
        assert block.mixer.attention.positions == "none"
        return
    if arm.predictor == "nothing":
        assert not hasattr(block.mixer, "predictor")
        return
    assert isinstance(model, SpenForCausalLM) or arm.has_switches
    predict = block.mixer.predictor
    x = torch.randn(1, 6, 32, generator=torch.Generator().manual_seed(0))
    traces, _ = ema_traces(x, (0.5, 0.1, 0.02))
    t = 3

    def depends_on(at: int, what: str) -> bool:
        """Whether the prediction at t depends on the input, or on the faster traces or the slow one, of a step."""
        changed_x, changed = x.clone(), traces.clone()
        (changed_x if what == "input" else changed[:-1] if what == "fast" else changed[-1])[..., at, :] += 1.0
        return not torch.equal(predict(changed_x, changed)[0][0, t], predict(x, traces)[0][0, t])

    reads_inputs = arm.reads == "inputs"
    assert depends_on(1, "input") == reads_inputs
    assert depends_on(1, "fast") == (arm.reads == "trace_sequence")
    assert depends_on(t, "fast") == (arm.reads == "traces_now" and arm.predictor != "static")
    assert depends_on(t, "input") == (arm.query == "input")
    assert depends_on(t, "slow") == (arm.query == "slow_trace")
    if (arm.predictor, arm.reads) == ("softmax", "inputs"):
        twice = torch.allclose(predict(2 * x, 2 * traces)[0], 2 * predict(x, traces)[0], rtol=1e-4)
        assert twice == (arm.values == "as_read")


@pytest.mark.parametrize("query", ["slow_trace", "input"])
@pytest.mark.parametrize("values", ["as_read", "normalised"])
def test_switches_of_the_softmax_are_their_definition(query: str, values: str) -> None:
    torch.manual_seed(0)
    predict = build_predictor(8, 3, "softmax", "inputs", n_heads=2, query=query, values=values).double()
    x = torch.randn(1, 7, 8, dtype=torch.float64)
    traces, _ = ema_traces(x, (0.5, 0.1, 0.02))
    W_q, W_k, W_v, W_o = (getattr(predict, name).weight.detach().numpy() for name in ("W_q", "W_k", "W_v", "W_o"))

    def rms(v: np.ndarray) -> np.ndarray:
        return v / np.sqrt((v**2).mean())

    xs, slow = x[0].numpy(), traces[-1, 0].numpy()
    expected = np.zeros((7, 8))
    for t in range(1, 7):
        q = W_q @ rms(xs[t] if query == "input" else slow[t])
        heads = []
        for head in (slice(0, 4), slice(4, 8)):
            scores = np.exp([q[head] @ (W_k @ rms(xs[s]))[head] / 2 for s in range(t)])
            read = [(W_v @ (rms(xs[s]) if values == "normalised" else xs[s]))[head] for s in range(t)]
            heads.append(sum(a * v for a, v in zip(scores / scores.sum(), read, strict=True)))
        expected[t] = W_o @ np.concatenate(heads)
    with torch.no_grad():
        np.testing.assert_allclose(predict(x, traces)[0][0].numpy(), expected, atol=1e-10)


@pytest.mark.parametrize("check", CHECKS)
def test_the_mixer_with_switches_keeps_the_promises_of_mixers(check: str) -> None:
    options = {"predictor": "softmax", "predictor_reads": "inputs", "n_heads": 2}
    options |= {"predictor_query": "input", "predictor_values": "normalised"}
    assert run_check(check, subject_of(SpenMixer, 16, "cpu", options)).message == ""


def test_switches_without_effect_are_refused() -> None:
    for predictor, reads in (("static", "traces_now"), ("linear", "inputs"), ("softmax", "traces_now")):
        with pytest.raises(ValueError, match="predictor_query and predictor_values are switches of the softmax over"):
            build_predictor(8, 3, predictor, reads, query="input")
    with pytest.raises(ValueError, match="predictor_query must be one of slow_trace, input, got 'x'"):
        build_predictor(8, 3, "softmax", "inputs", query="x")


def text_of(model: Any) -> ScoredText:
    windows = np.random.default_rng(0).integers(0, model.config.vocab_size, (3, 17))
    return ScoredText(windows, windows, windows, windows.astype(float))


@pytest.mark.parametrize("arm", [ABLATION[0], INSIDE, SWITCHED[-1]], ids=["static", "inside", "switched"])
def test_contributions_are_those_of_algorithm_1(arm: PredictorArm) -> None:
    model = built(arm)
    text = text_of(model)
    rows = contributions(model, text)
    assert [row.factors for row in rows] == [{"layer": 0}, {"layer": 1}]
    x = model.model.embed_tokens(torch.from_numpy(text.windows[:, :-1])).detach()
    for block, row in zip(model.model.layers, rows, strict=True):
        mixer = block.mixer
        with torch.no_grad():
            traces, _ = ema_traces(x, mixer.alphas)
            x_hat, _ = mixer.predictor(x, traces)
            added, of_traces = mixer.W_e(x_hat), mixer.W_h(traces.permute(1, 2, 0, 3).flatten(-2))
            of_x, error = mixer.W_e(x), mixer.W_e(x - x_hat)
        found = {name: metric.value for name, metric in row.metrics.items()}
        assert found["over_traces"] == pytest.approx(float(added.norm() / of_traces.norm()), rel=1e-4)
        assert found["unexplained"] == pytest.approx(float(((x - x_hat) ** 2).sum() / (x**2).sum()), rel=1e-4)
        assert found["context_unexplained"] == pytest.approx(float((error**2).sum() / (of_x**2).sum()), rel=1e-4)
        assert found["context_size"] == pytest.approx(float(added.norm() / of_x.norm()), rel=1e-4)
        cosine = torch.nn.functional.cosine_similarity(error.flatten(), of_x.flatten(), dim=0)
        assert found["context_cosine"] == pytest.approx(float(cosine), rel=1e-4)
        x = block(x)[0].detach()
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.parametrize("arm", NOTHING, ids=lambda arm: arm.ffn)
def test_without_predictions_it_is_spen_that_predicts_0(arm: PredictorArm) -> None:
    """W_h h + W_e x, by a mixer that has no predictor."""
    with_predictor, without = built(arm.swept_as()), built(arm)
    spen = with_predictor.state_dict()
    for name in [name for name in spen if name.endswith("W_pred.weight")]:
        with_predictor.get_parameter(name).data.zero_()
    for name in without.state_dict():
        parts = [spen[name], spen[name.replace("W_h", "W_e")]] if "W_h" in name else [spen[name]]
        without.get_parameter(name).data.copy_(torch.cat(parts, dim=1) if len(parts) > 1 else parts[0])
    ids = torch.from_numpy(text_of(without).windows)
    with torch.no_grad():
        torch.testing.assert_close(without(input_ids=ids).logits, with_predictor(input_ids=ids).logits)
    assert contributions(without, text_of(without)) == []
    assert gap_predictors.rate_of(arm, "2m") == gap_predictors.rate_of(arm.swept_as(), "2m") is not None


def test_contributions_of_attention_as_a_mixer() -> None:
    model = built(MIXERS[-1])
    text = text_of(model)
    (found, _) = contributions(model, text)
    block = model.model.layers[0]
    with torch.no_grad():
        x = block.mixer_norm(model.model.embed_tokens(torch.from_numpy(text.windows[:, :-1])))
        ratio = block.mixer.attention(x)[0].norm() / block.mixer.ema(x)[0].norm()
        assert found.metrics["over_traces"].value == pytest.approx(float(ratio), rel=1e-4)
        block.mixer.attention.W_o.weight.zero_()
        assert contributions(model, text)[0].metrics["over_traces"].value == 0


def test_a_predictor_is_trained_and_looked_at(tmp_path: Path) -> None:
    arm = asdict(SWITCHED[-1])
    rows = gap_predictors.EXPERIMENT.measure(context(tmp_path), size="toy", lr=3e-3, **arm)
    cells = [tuple(row.factors.items()) for row in rows]
    assert len(cells) == len(set(cells))  # or the file would be refused, after the training
    assert not {"size", "lr", *arm} & {name for row in rows for name in row.factors}
    assert [row.factors["layer"] for row in rows if "layer" in row.factors] == [0, 1]


def test_sparsity_keeps_what_it_says() -> None:
    assert len(gap_sparsity.ARMS) == len(set(gap_sparsity.ARMS)) == 16
    assert {arm.swept_as() for arm in gap_sparsity.ARMS} == set(CHAIN[:4])
    assert all(arm.swept_as().ffn == arm.ffn for arm in gap_sparsity.ARMS if arm.kept < 0.5)
    kept = {}
    for arm in gap_sparsity.ARMS:
        assert matched_width(arm, "2m", 8192, 512) == 512
        model = build_arm(arm, "toy", 512, 300, 32).eval()
        with gap_task.count_units(model) as usage, torch.no_grad():
            model(torch.arange(8)[None])
        block = model.model.layers[0]
        assert (block.config.topk_grad, block.config.load_balance) == (arm.ffn.removeprefix("topk_"), arm.load_balance)
        kept[arm.kept] = int(usage[0].sum()) / 8
    assert kept == {0.03: 15, 0.06: 31, 0.12: 61, 0.25: 128, 0.5: 256, 1.0: 512}


def test_more_units_at_one_width_keep_6_percent_of_them() -> None:
    points = list(gap_units.grid("gpu", 1))
    arms = [gap_units.WideArm(**{k: v for k, v in p.factors.items() if k not in ("size", "lr")}) for p in points]
    assert len(set(arms)) == len(arms) == 6
    assert {(arm.ffn, arm.load_balance) for arm in arms} == {("topk_ste", 0.01), ("topk_masked", 0.01)}
    kept = {}
    for arm in arms:
        d_ff = matched_width(arm, "2m", 8192, 512)
        model = build_arm(arm, "2m", d_ff, 300, 32)
        config = model.config
        assert (config.d_model, config.topk_grad) == (128, arm.ffn.removeprefix("topk_"))
        kept[config.d_ff] = config.k
        assert {block.ffn.W_up.out_features for block in model.model.layers} == {d_ff}
    assert kept == {512: 31, 1536: 92, 3072: 184}


def test_few_of_many_units_and_many_of_few() -> None:
    """Beside `gap_units`, whose models they are but for k."""
    kept = {}
    for point in gap_kept.grid("gpu", 1):
        arm = gap_kept.KeptArm(**{k: v for k, v in point.factors.items() if k not in ("size", "lr")})
        d_ff = matched_width(arm, "2m", 8192, 512)
        config = build_arm(arm, "2m", d_ff, 300, 32).config
        assert (config.d_model, config.topk_grad, config.load_balance) == (128, arm.ffn.removeprefix("topk_"), 0.01)
        kept[config.d_ff, config.topk_grad] = config.k, point.factors["lr"]
    rates = {p.factors["ffn"]: p.factors["lr"] for p in gap_units.grid("gpu", 1)}
    ste, masked = rates["topk_ste"], rates["topk_masked"]
    assert kept == {
        (3072, "ste"): (31, ste), (3072, "masked"): (31, masked),
        (512, "ste"): (184, ste), (512, "masked"): (184, masked),
    }  # fmt: skip


def test_all_units_kept_is_the_dense_arm() -> None:
    """The same function and the same gradient: what differs between these cells is noise."""
    everything = [arm for arm in gap_sparsity.ARMS if arm.kept == 1]
    ids = torch.arange(20)[None] % 7
    outcomes = []
    for arm in (*everything, replace(everything[0].plain, ffn="dense")):
        model = built(arm)
        model(input_ids=ids, labels=ids).loss.backward()
        outcomes.append({name: p.grad for name, p in model.named_parameters()})
    for one, other in pairwise(outcomes):
        torch.testing.assert_close(one, other)
