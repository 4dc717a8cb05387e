"""The arms of the gap and how they are joined, as data (docs/analysis-plan.md)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from itertools import accumulate

from ematrace.results.schema import Factor


@dataclass(frozen=True)
class ArmFactors:
    """A point of the design: the factors of its cells, beside size and learning rate."""

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
    def of(cls, factors: Mapping[str, Factor]) -> ArmFactors | None:
        """The arm that a cell is of; None for a cell without these factors."""
        names = [field.name for field in fields(cls)]
        return cls(**{name: factors[name] for name in names}) if set(names) <= set(factors) else None  # type: ignore[arg-type]

    @property
    def text(self) -> str:
        """What sets it apart from the simplest arm.

        >>> ArmFactors("attention", positions="rope", ffn="topk_ste").text
        'attention, rope, topk_ste'
        """
        named = {"residual": "residual {}", "norm": "norm {}", "load_balance": "load balance {:g}", "width": "{} width"}
        if self.context == "none":
            return replace(self, context="no context").text
        plain = asdict(replace(ArmFactors(), context=""))
        values = {name: value for name, value in asdict(self).items() if value != plain.get(name)}
        return ", ".join(named.get(name, "{}").format(value) for name, value in values.items())


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


SPEN = ArmFactors("ema_error", ffn="topk_ste", residual="ffn", norm="algorithm1", load_balance=0.01)


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
CHAIN: tuple[ArmFactors, ...] = tuple(
    accumulate(CHANGES, lambda arm, change: replace(arm, **{change.factor: change.value}), initial=SPEN)  # type: ignore[arg-type]
)
WITHOUT_POSITIONS, LEARNED = CHAIN[7:9]
HALVES = CHAIN[6:9]  # arms of the joined step
STEP_ENDS = tuple(arm for arm in CHAIN if arm != WITHOUT_POSITIONS)


def step_name(before: ArmFactors, after: ArmFactors) -> str:
    """Every change between two arms of the chain.

    >>> step_name(CHAIN[1], CHAIN[3])
    'true gradient of the top-k, not straight-through; all units, not 6%'
    >>> step_name(CHAIN[6], CHAIN[8]), step_name(CHAIN[6], CHAIN[7])
    ('attention with learned positions, not traces', 'attention, not traces')
    """
    changes = CHANGES[CHAIN.index(before) : CHAIN.index(after)]
    if not set(JOINED) <= set(changes):
        return "; ".join(change.name for change in changes)
    names = [JOINED_NAME if change == JOINED[0] else change.name for change in changes if change != JOINED[1]]
    return "; ".join(names)


def arm_name(arm: ArmFactors) -> str:
    """By its place in the chain, or by its factors.

    >>> arm_name(CHAIN[0]), arm_name(CHAIN[1]), arm_name(ATTENTION)
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
    "context": "context: EMA to attention with rope",
    "ffn": "feed-forward: 6% straight-through to dense",
    "residual": "residual: through the feed-forward only, to direct",
}
# ffn's value is split between these two steps.
STRAIGHT_THROUGH, BETWEEN = "topk_ste", "topk_masked"
SPLIT_NAMES = {
    "gradient": "of which the gradient, to the true one",
    "selection": "of which the selection, to all units",
}

EMA, ATTENTION = ArmFactors("ema"), ArmFactors("attention", positions="rope")
EMA_AT_FIXED_WIDTH, ATTENTION_AT_FIXED_WIDTH = (ArmFactors(name, width="fixed") for name in ("ema", "attention"))
NO_ERROR_AT_FIXED_WIDTH = replace(CHAIN[5], width="fixed")
"""Twin of the arm after "no prediction error as input", a step that also widens d_ff from 512 to 640."""


def corner(changed: Iterable[str], **other: str) -> ArmFactors:
    """The arm of the factorial in which these players have moved.

    >>> corner({"context", "ffn"}).text
    'attention, rope, residual ffn'
    """
    moved = set(changed)
    levels = {factor: value for name, ends in PLAYERS.items() for factor, value in ends[name in moved].items()}
    return ArmFactors(**{**levels, **other})  # type: ignore[arg-type]
