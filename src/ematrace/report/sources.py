"""What the page is made from: the results in force, this machine's own beside them, and the paper's numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ematrace.bench import RecordFile, read_records
from ematrace.ledger import Claim, Figure, LedgerRow, Store, StoredResult, build_ledger, choose_evidence, load_claims
from ematrace.ledger.results import Interval

BENCHMARKS = "benchmarks"  # the folder, beside the results, that holds records of speed


@dataclass(frozen=True)
class StoredRecord:
    """A benchmark's record, the file it was read from, and whether this machine made it."""

    path: Path
    file: RecordFile
    local: bool


@dataclass(frozen=True)
class Sources:
    """`chosen` is the evidence per experiment; `here` this machine's runs that are not the evidence."""

    claims: tuple[Claim, ...]
    rows: tuple[LedgerRow, ...]
    stored: tuple[StoredResult, ...]
    chosen: Mapping[str, StoredResult]
    here: Mapping[str, StoredResult]
    papers: Mapping[str, float]
    speed: tuple[StoredRecord, ...] = ()

    @classmethod
    def read(cls, store: Store, claims: Sequence[Claim] | None = None) -> Sources:
        known = tuple(load_claims() if claims is None else claims)
        stored = tuple(store.load())
        chosen = choose_evidence(stored)
        own = choose_evidence(s for s in stored if s.local)
        return cls(
            claims=known,
            rows=tuple(build_ledger(store, known)),
            stored=stored,
            chosen=chosen,
            here={name: s for name, s in own.items() if chosen[name] is not s},
            papers={f.of: f.paper for claim in known for f in claim.figure if f.minus is None and f.over is None},
            speed=tuple(_records(store)),
        )

    def figure(self, ref: str) -> Figure | None:
        """The figure in force under `experiment/name`."""
        return _lookup(self.chosen, ref)

    def figure_here(self, ref: str) -> Figure | None:
        """The same figure of this machine's run, where another run is the evidence."""
        return _lookup(self.here, ref)

    def paper(self, ref: str) -> float | None:
        return self.papers.get(ref)

    def names(self, experiment: str) -> list[str]:
        """All figures of an experiment, in the order of its file."""
        return list(self.chosen[experiment].result.figures) if experiment in self.chosen else []

    def claims_about(self, pattern: str) -> list[LedgerRow]:
        """The rows of the claims that say something of a figure like this, not only compare with it."""
        said = {c.id: [d.left for d in c.direction] + [f.of for f in c.figure] for c in self.claims}
        return [row for row in self.rows if any(re.match(pattern, ref) for ref in said[row.id])]


def _records(store: Store) -> list[StoredRecord]:
    """Recorded ones first; a folder that serves as both counts once, as this machine's."""
    folders = [(store.local / BENCHMARKS, True)]
    if store.recorded is not None and store.recorded.resolve() != store.local.resolve():
        folders.insert(0, (store.recorded / BENCHMARKS, False))
    return [StoredRecord(path, file, local) for folder, local in folders for path, file in read_records(folder)]


def _lookup(results: Mapping[str, StoredResult], ref: str) -> Figure | None:
    experiment, _, name = ref.partition("/")
    stored = results.get(experiment)
    return None if stored is None else stored.result.figures.get(name)


def over_seeds(figure: Figure) -> Interval | None:
    """The interval over seeds; None for a single one, and for a figure that no seed changes."""
    return figure.interval if len(set(figure.values)) > 1 else None


def over_tokens(figure: Figure) -> Interval | None:
    """The Wilson interval that one run with the mean accuracy would have, as the paper gives it."""
    return Figure((figure.mean,), figure.n).interval if figure.known else None


def show_path(path: Path) -> str:
    """Relative to the working directory if the file is under it."""
    full, here = path.resolve(), Path.cwd().resolve()
    return full.relative_to(here).as_posix() if full.is_relative_to(here) else str(full)
