"""All trials: what each needs first, in which order they run, how many there are of each."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fault_trials import disk, kills, pipes, reading
from fault_trials.outcomes import HARMLESS, Outcome
from fault_trials.sandbox import Trial

SLOW = ("report", "reproduce", "check", "bench")
PIPED = tuple(pipes.commands(Path()))


@dataclass(frozen=True)
class Share:
    """Trials of one target, a part of all."""

    kind: str
    target: str
    part: float
    make: Callable[[Path, int], Trial]
    slow: bool = False
    """Not in the short form."""

    @property
    def name(self) -> str:
        return f"{self.kind}/{self.target}"


def shares() -> list[Share]:
    """Slow ones first, so that nothing long is left for the end."""
    reproduce = [Share(kills.KIND, "reproduce", 0.003, _kill("reproduce"), slow=True)]
    killed = {"train": 0.03, "stream_state": 0.02, "spcn_save": 0.01, "pack": 0.02}
    return [
        *reproduce,
        *(Share(kills.KIND, name, part, _kill(name)) for name, part in killed.items()),
        *(Share(disk.KIND, name, 0.01, _disk(name), slow=name in SLOW) for name in disk.DISKS),
        *(Share(pipes.KIND, name, 0.01, _pipe(name), slow=name in SLOW) for name in PIPED),
        *(Share(reading.KIND, t.name, t.part, _damage(t)) for t in reading.TARGETS),
    ]


def select(only: str, short: bool = False) -> list[Share]:
    return [share for share in shares() if only in share.name and not (short and share.slow)]


def trials(root: Path, chosen: list[Share], n: int) -> Iterator[Trial]:
    """About n, at least one of each."""
    whole = sum(share.part for share in chosen)
    for share in chosen:
        for index in range(max(1, round(n * share.part / whole))):
            yield share.make(root, index)


def baselines(root: Path, chosen: list[Share]) -> Iterator[Trial]:
    """What comes out without a fault, into `<root>/expected`."""
    names = {share.name for share in chosen}
    for target in reading.TARGETS:
        if f"{reading.KIND}/{target.name}" in names or (target.name == "packed" and names & {"kill/pack", "disk/pack"}):
            yield from target.baseline(root)
    if names & {"kill/train", "disk/train"}:
        yield Trial("baseline", "train", 0, lambda: _write(root, "kill-train", kills.train_undisturbed(root)))


def _write(root: Path, name: str, text: str) -> Outcome:
    (root / "expected" / name).write_text(text)
    return Outcome(HARMLESS)


def _draw(kind: str, name: str, index: int) -> random.Random:
    return random.Random(f"{kind}/{name}:{index}")


def _kill(name: str) -> Callable[[Path, int], Trial]:
    expected = {"train": "kill-train", "pack": "packed-open"}

    def make(root: Path, index: int) -> Trial:
        def run() -> Outcome:
            text = (root / "expected" / expected[name]).read_text() if name in expected else ""
            return kills.KILLS[name](root, text, _draw(kills.KIND, name, index))

        return Trial(kills.KIND, name, index, run, seconds=180)

    return make


def _disk(name: str) -> Callable[[Path, int], Trial]:
    return lambda root, index: Trial(
        disk.KIND, name, index, lambda: disk.run_disk(name, root, _draw(disk.KIND, name, index))
    )


def _pipe(name: str) -> Callable[[Path, int], Trial]:
    return lambda root, index: Trial(
        pipes.KIND, name, index, lambda: pipes.run_pipe(name, root, _draw(pipes.KIND, name, index), index)
    )


def _damage(target: reading.Target) -> Callable[[Path, int], Trial]:
    return target.trial
