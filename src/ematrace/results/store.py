"""The folders that results are kept in: recorded ones that come with the code, and those of this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ematrace.results.provenance import checkout_root
from ematrace.results.schema import Cell, ResultError, read_file

RESULTS_VARIABLE = "EMATRACE_RESULTS"
LOCAL = Path("results") / "local"


@dataclass(frozen=True)
class StoredCell:
    """A cell, the file it was read from, and whether this machine made it.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> file = CellFile(2, "gap", "cpu", 0, {}, {}, collect_provenance(1.5), [Row({}, {"nats": Metric(3.5)})])
    >>> with TemporaryDirectory() as folder:
    ...     path = write_file(file, folder)
    ...     stored = Store(recorded=None, local=Path(folder)).load()[0]
    >>> stored.path == path, stored.local, stored.cell.metrics["nats"].value
    (True, True, 3.5)
    """

    cell: Cell
    path: Path
    local: bool


@dataclass(frozen=True)
class Store:
    """`recorded` is None where there are none: an installed wheel brings no results.

    >>> from tempfile import TemporaryDirectory
    >>> file = CellFile(2, "gap", "cpu", 0, {}, {}, collect_provenance(1.5), [Row({}, {"nats": Metric(3.5)})])
    >>> with TemporaryDirectory() as folder:
    ...     path = write_file(file, folder)
    ...     cells = Store.open(recorded=folder).load()
    >>> [(stored.path.name, stored.local) for stored in cells]
    [('seed-0_cpu.json', False)]
    """

    recorded: Path | None
    local: Path

    @classmethod
    def open(cls, recorded: str | Path | None = None, local: str | Path | None = None) -> Store:
        """Recorded: the path given, else $EMATRACE_RESULTS, else the checkout's; local: `./results/local`."""
        folder: Path | None
        chosen = recorded or os.environ.get(RESULTS_VARIABLE)
        if chosen:
            folder = Path(chosen)
            if not folder.is_dir():
                name = "results folder" if recorded else f"results folder (from {RESULTS_VARIABLE})"
                raise ResultError(f"{folder}: no such {name}")
        else:
            root = checkout_root()
            folder = root / "results" if root is not None else None
        return cls(folder, Path(local) if local is not None else LOCAL)

    def files(self) -> Iterator[tuple[Path, bool]]:
        """`<folder>/<experiment>/*.json` of both folders, recorded first, by name; whether each is this machine's."""
        folders = [(self.local, True)]
        if self.recorded is not None and self.recorded.resolve() != self.local.resolve():
            folders.insert(0, (self.recorded, False))
        local = self.local.resolve()
        for folder, is_local in folders:
            for path in sorted(folder.glob("*/*.json")):
                if is_local or path.parent.resolve() != local:  # ./results/local lies inside ./results
                    yield path, is_local

    def load(self) -> list[StoredCell]:
        """Every cell of both folders. A file that breaks the schema, or is not where it belongs, is an error."""
        cells: list[StoredCell] = []
        for path, is_local in self.files():
            file = read_file(path)
            # A copy under another name would count twice, or hide the run that it was copied from.
            if (file.experiment, file.name) != (path.parent.name, path.name):
                raise ResultError(f"{path}: holds what belongs in {file.experiment}/{file.name}")
            cells += (StoredCell(cell, path, is_local) for cell in file.unpack())
        return cells
