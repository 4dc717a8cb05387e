"""Which part of the network comes out, chosen by name.

A name is parts joined by "+". A part is [lN.]KIND[@DIRECTION]: level N (default 0), KIND one of activation, fast,
slow, traces (fast and slow) or all, DIRECTION forward or backward (default: both that the model has). `l0`, `l1`, ...
alone are the activation of that level. Examples: "l0+traces" (the paper's), "traces", "l1.traces", "l0.slow@forward".
"""

from __future__ import annotations

import re
from dataclasses import dataclass

KINDS = ("activation", "fast", "slow")
DIRECTIONS = ("forward", "backward")
_ALIASES = {"traces": ("fast", "slow"), "all": KINDS, **{kind: (kind,) for kind in KINDS}}
_PART = re.compile(r"(?:l(?P<level>\d+)(?:\.(?P<of_level>[a-z]+))?|(?P<kind>[a-z]+))(?:@(?P<direction>[a-z]+))?")


@dataclass(frozen=True, order=True)
class Block:
    """One contiguous group of features: a kind of signal of one level in one direction."""

    direction: str
    level: int
    kind: str

    def __str__(self) -> str:
        return f"l{self.level}.{self.kind}@{self.direction}"


def parse_representation(name: str, levels: int, directions: tuple[str, ...]) -> tuple[Block, ...]:
    """The blocks a name asks for, in the order: direction, level, then activation, fast, slow."""
    wanted: set[Block] = set()
    for part in name.split("+"):
        match = _PART.fullmatch(part.strip())
        if match is None:
            raise ValueError(f"representation: {part!r} in {name!r} is not of the form [lN.]KIND[@DIRECTION]")
        level = int(match["level"] or 0)
        kind = match["kind"] or match["of_level"] or "activation"
        if kind not in _ALIASES:
            raise ValueError(f"representation: unknown kind {kind!r} in {name!r}; there are {', '.join(_ALIASES)}")
        if level >= levels:
            raise ValueError(f"representation: {name!r} asks for level {level}, the model has levels 0 to {levels - 1}")
        sides = (match["direction"],) if match["direction"] else directions
        for side in sides:
            if side not in directions:
                raise ValueError(
                    f"representation: {name!r} asks for {side!r}, the model has {' and '.join(directions)}"
                )
            wanted.update(Block(side, level, k) for k in _ALIASES[kind])
    return tuple(sorted(wanted, key=lambda b: (DIRECTIONS.index(b.direction), b.level, KINDS.index(b.kind))))
