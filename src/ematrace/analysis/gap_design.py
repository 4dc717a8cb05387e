"""The arms of the gap and how they are joined, as data (docs/analysis-plan.md)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from itertools import accumulate
from typing import Any

from ematrace.results.schema import Factor


@dataclass(frozen=True)
class Arm:
    """A point of the design: the factors of its cells beside size and learning rate, and the model of these."""

    context: str = "ema"
    positions: str = "none"
    ffn: str = "dense"
    residual: str = "direct"
    norm: str = "pre"
    block: str = "skeleton"
    load_balance: float = 0.0
    width: str = "matched"
    """Of the feed-forward layer: `matched` in parameters to SPEN, or `fixed` at SPEN's own."""

    @classmethod
    def of(cls, factors: Mapping[str, Factor]) -> Arm | None:
        """The arm that a cell is of; None for a cell without these factors."""
        names = [field.name for field in fields(cls)]
        return cls(**{name: factors[name] for name in names}) if set(names) <= set(factors) else None  # type: ignore[arg-type]

    @property
    def text(self) -> str:
        """What sets it apart from the simplest arm.

        >>> Arm("attention", positions="rope", ffn="topk_ste").text
        'attention, rope, topk_ste'
        """
        named = {"residual": "residual {}", "norm": "norm {}", "load_balance": "load balance {:g}", "width": "{} width"}
        if self.context == "none":
            return replace(self, context="no context").text
        plain = asdict(replace(Arm(), context=""))
        values = {name: value for name, value in asdict(self).items() if value != plain.get(name)}
        return ", ".join(named.get(name, "{}").format(value) for name, value in values.items())

    @property
    def plain(self) -> Arm:
        """Without the factors that a subclass adds."""
        return Arm(*(getattr(self, field.name) for field in fields(Arm)))

    def swept_as(self) -> Arm:
        """The arm whose sweep at `2m` decides on this one's rate: the one without load balance, and of matched width,
        unless it was swept itself."""
        arm = self.plain
        return arm if arm in ARMS else replace(arm, load_balance=0.0, width="matched")

    def preset(self) -> str:
        if self.block == "gpt2":
            return "gpt2-7m"
        return "spen-7m" if self.context == "ema_error" else "skeleton-7m"

    def overrides(self, size: str, d_ff: int) -> dict[str, Any]:
        """Fields of the model's config."""
        of = SIZES[size]
        if self.block == "gpt2":
            return {"n_embd": of["d_model"], "n_layer": of["n_layers"], "n_head": of["n_heads"], "n_inner": d_ff}
        fields: dict[str, Any] = {"d_model": of["d_model"], "n_layers": of["n_layers"], "d_ff": d_ff}
        fields |= {"ffn": self.ffn.partition("_")[0], "residual": self.residual, "k": kept_units(d_ff)}
        fields |= {"load_balance": self.load_balance, "residual_in_fp32": True}  # as GPT-2 has it under autocast
        if self.ffn != "dense":
            fields["topk_grad"] = self.ffn.partition("_")[2]
        if self.context == "ema_error":
            return fields | {"n_heads": of["n_heads"]}
        learned = {"positions": "learned"} if self.positions == "learned" else {}
        return fields | learned | {"mixer": self.context, "norm": self.norm, "mixer_options": self._mixer_options(of)}

    def own_width(self, size: str) -> int | None:
        """d_ff, where it is not matched."""
        return SIZES[size]["d_ff"] if self.width == "fixed" else None

    def _mixer_options(self, of: Mapping[str, int]) -> dict[str, Any]:
        if "attention" not in self.context:
            return {}
        return {"n_heads": of["n_heads"], "positions": "rope" if self.positions == "rope" else "none"}


SIZES: Mapping[str, Mapping[str, int]] = {
    "toy": {"d_model": 32, "n_layers": 2, "d_ff": 128, "n_heads": 2},  # shows that it runs, and nothing else
    "small": {"d_model": 64, "n_layers": 3, "d_ff": 256, "n_heads": 4},  # what a CPU trains in a minute or two
    "ablation": {"d_model": 128, "n_layers": 2, "d_ff": 512, "n_heads": 4},  # the paper's, of predictors
    "2m": {"d_model": 128, "n_layers": 4, "d_ff": 512, "n_heads": 4},
    "7m": {"d_model": 256, "n_layers": 6, "d_ff": 1024, "n_heads": 8},
    "30m": {"d_model": 512, "n_layers": 8, "d_ff": 2048, "n_heads": 8},
    "130m": {"d_model": 768, "n_layers": 12, "d_ff": 3072, "n_heads": 12},  # the paper's
}

KEPT = 0.06  # share of the units that the paper's top-k keeps


def kept_units(units: int, share: float = KEPT) -> int:
    """
    >>> kept_units(3072)  # the paper's
    184
    """
    return max(1, round(share * units))


def over_width(at_2m: float, size: str) -> float:
    """A rate of `2m` for the width of another size, to three digits.

    >>> over_width(0.006, "130m")
    0.001
    """
    return float(f"{at_2m * SIZES['2m']['d_model'] / SIZES[size]['d_model']:.3g}")


SPEN = Arm("ema_error", ffn="topk_ste", residual="ffn", norm="algorithm1", load_balance=0.01)


@dataclass(frozen=True)
class Change:
    """From one arm of the chain to the next: a factor that takes another value."""

    name: str
    factor: str
    value: Factor


CHANGES = (
    Change("load-balance loss off", "load_balance", 0.0),
    Change("true gradient of the top-k, not straight-through", "ffn", "topk_masked"),
    Change("all units, not 6%", "ffn", "dense"),
    Change("context into the residual", "residual", "direct"),
    Change("no prediction error as input", "context", "ema"),
    Change("norm before the mixer", "norm", "pre"),
    Change("attention, not traces", "context", "attention"),
    Change("learned positions", "positions", "learned"),
    Change("GPT-2's details", "block", "gpt2"),
)
# Attention without positions tells order from the mask alone, so neither half is a fair step: they count as one, and
# the halves are shown as a detail of it.
JOINED, JOINED_NAME = (CHANGES[6], CHANGES[7]), "attention with learned positions, not traces"
START, END = "SPEN, Algorithm 1's block", "GPT-2's block"
CHAIN: tuple[Arm, ...] = tuple(
    accumulate(CHANGES, lambda arm, change: replace(arm, **{change.factor: change.value}), initial=SPEN)  # type: ignore[arg-type]
)
_, UNBALANCED, TRUE_GRADIENT, DENSE, DIRECT, NO_ERROR, EMA, WITHOUT_POSITIONS, LEARNED, GPT2 = CHAIN
HALVES = (EMA, WITHOUT_POSITIONS, LEARNED)  # arms of the joined step
STEP_ENDS = tuple(arm for arm in CHAIN if arm != WITHOUT_POSITIONS)


def step_name(before: Arm, after: Arm) -> str:
    """Every change between two arms of the chain.

    >>> step_name(UNBALANCED, DENSE)
    'true gradient of the top-k, not straight-through; all units, not 6%'
    >>> step_name(EMA, LEARNED), step_name(EMA, WITHOUT_POSITIONS)
    ('attention with learned positions, not traces', 'attention, not traces')
    """
    changes = CHANGES[CHAIN.index(before) : CHAIN.index(after)]
    if not set(JOINED) <= set(changes):
        return "; ".join(change.name for change in changes)
    names = [JOINED_NAME if change == JOINED[0] else change.name for change in changes if change != JOINED[1]]
    return "; ".join(names)


def arm_name(arm: Arm) -> str:
    """By its place in the chain, or by its factors.

    >>> arm_name(SPEN), arm_name(UNBALANCED), arm_name(ATTENTION)
    ("SPEN, Algorithm 1's block", 'the arm after “load-balance loss off”', 'attention, rope')
    """
    if arm not in CHAIN:
        return arm.text
    at = CHAIN.index(arm)
    return START if at == 0 else END if arm == CHAIN[-1] else f"the arm after “{CHANGES[at - 1].name}”"


# Where each player of the factorial starts, and where it ends.
PLAYERS: Mapping[str, tuple[Mapping[str, str], Mapping[str, str]]] = {
    "context": ({"context": "ema", "positions": "none"}, {"context": "attention", "positions": "rope"}),
    "ffn": ({"ffn": "topk_ste"}, {"ffn": "dense"}),
    "residual": ({"residual": "ffn"}, {"residual": "direct"}),
}
PLAYER_NAMES = {
    "context": "context: EMA to attention with RoPE",
    "ffn": "feed-forward: 6% straight-through to dense",
    "residual": "residual: through the feed-forward only, to direct",
}
# ffn's value is split between these two steps.
STRAIGHT_THROUGH, BETWEEN = "topk_ste", "topk_masked"
SPLIT_NAMES = {
    "gradient": "of which the gradient, to the true one",
    "selection": "of which the selection, to all units",
}

ATTENTION = Arm("attention", positions="rope")
MASKED = replace(SPEN, ffn="topk_masked")
"""SPEN under the true gradient, with its load balance, which TRUE_GRADIENT lacks: the preset spen-130m-masked."""
DECISIVE = (SPEN, GPT2, MASKED, DENSE, EMA, ATTENTION, replace(ATTENTION, ffn="topk_masked"))
"""Those of larger models."""
EMA_AT_FIXED_WIDTH, ATTENTION_AT_FIXED_WIDTH = (Arm(name, width="fixed") for name in ("ema", "attention"))
NO_ERROR_AT_FIXED_WIDTH = replace(NO_ERROR, width="fixed")
"""Twin of the arm after "no prediction error as input", a step that also widens d_ff from 512 to 640."""

FFNS = ("dense", "topk_masked", "topk_ste")
FACTORIAL = (
    *(Arm("none", ffn=ffn) for ffn in FFNS),
    *(
        Arm(context, positions, ffn, residual)
        for context, positions in (("ema", "none"), ("attention", "rope"), ("ema_attention", "rope"))
        for residual in ("direct", "ffn")
        for ffn in FFNS
    ),
)
BESIDE = (
    Arm("ema", positions="learned"),
    *(Arm("none", width="fixed"), EMA_AT_FIXED_WIDTH, ATTENTION_AT_FIXED_WIDTH, NO_ERROR_AT_FIXED_WIDTH),
)
ARMS = tuple(dict.fromkeys((*CHAIN, *FACTORIAL, *BESIDE)))
"""Those of the main size, each with a sweep of its own."""


def corner(changed: Iterable[str], **other: str) -> Arm:
    """The arm of the factorial in which these players have moved.

    >>> corner({"context", "ffn"}).text
    'attention, rope, residual ffn'
    """
    moved = set(changed)
    levels = {factor: value for name, ends in PLAYERS.items() for factor, value in ends[name in moved].items()}
    return Arm(**{**levels, **other})  # type: ignore[arg-type]
