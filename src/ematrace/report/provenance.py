"""Where the numbers of the page come from: result files, taken together where they belong together."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from ematrace.bench.cells import is_benchmark
from ematrace.files import show_path
from ematrace.names import consecutive_runs
from ematrace.report.data import ReportData
from ematrace.report.formatting import commit_of, fold_paths, hardware_of, plural
from ematrace.report.parts import (
    MAX_DEPTH,
    Content,
    DataTable,
    Fold,
    Paragraph,
    Values,
    code,
    plain_table,
    value_text,
)
from ematrace.results import Provenance, StoredCell, Table

MOST_VALUES = 6  # of a setting that differs from file to file
MOST_COMMANDS = 1  # the others differ in the seed or in one factor
LONG_SETTING = 20  # characters, that are not said again


@dataclass(frozen=True)
class Files:
    """Result files of one origin and one scale; `cells` has a cell of each."""

    cells: tuple[StoredCell, ...]

    @classmethod
    def of(cls, cells: Iterable[StoredCell]) -> Files:
        by_path = {stored.path: stored for stored in cells}
        return cls(tuple(by_path.values()))

    @property
    def runs(self) -> list[Provenance]:
        """Files that say the same of where they come from are of one run."""
        return list({_run_key(s.cell.provenance): s.cell.provenance for s in self.cells}.values())

    @property
    def seeds(self) -> list[int]:
        return sorted({stored.cell.seed for stored in self.cells})

    @property
    def origin(self) -> str:
        return "this machine" if self.cells[0].local else "recorded"

    @property
    def scale(self) -> str:
        return self.cells[0].cell.scale

    @property
    def paths(self) -> list[str]:
        return fold_paths(show_path(stored.path) for stored in self.cells)

    @property
    def commits(self) -> str:
        return _some(commit_of(run) for run in self.runs)

    @property
    def hardware(self) -> str:
        return _some(hardware_of(run) for run in self.runs)

    @property
    def days(self) -> str:
        return _first_to_last(run.date[:10] for run in self.runs)

    @property
    def seconds(self) -> float:
        return sum(run.seconds for run in self.runs)


def _run_key(run: Provenance) -> str:
    return json.dumps([run.date, run.seconds, run.command, run.commit])


def _some(texts: Iterable[str], most: int = MOST_VALUES) -> str:
    """Different texts, the first few in full."""
    distinct = list(dict.fromkeys(texts))
    more = len(distinct) - most
    return ", ".join(distinct[:most]) + (f" and {more} more" if more > 0 else "")


def _first_to_last(dates: Iterable[str]) -> str:
    """
    >>> _first_to_last(["2026-11-16 07:29", "2026-11-16 07:18"]), _first_to_last(["2026-11-16", "2026-11-15"])
    ('2026-11-16 07:18 to 07:29', '2026-11-15 to 2026-11-16')
    """
    first, *_, last = ordered if len(ordered := sorted(dates)) > 1 else ordered * 2
    day, _, time = last.partition(" ")
    return first if first == last else f"{first} to {time if time and first.startswith(day) else last}"


def _runs_of(numbers: Sequence[int]) -> str:
    """
    >>> _runs_of([0, 1, 2, 3, 7, 8])
    '0 to 3, 7, 8'
    """
    runs = consecutive_runs(numbers)
    return ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)


def merged_settings(settings: Sequence[Mapping[str, Any]], depth: int = 0) -> dict[str, Any]:
    """Settings of several files as one: a value that differs is given as the values it takes.

    >>> merged_settings([{"k": 0.02, "seed": 1}, {"k": 0.04, "seed": 1}])
    {'k': '0.02, 0.04', 'seed': 1}
    """
    merged: dict[str, Any] = {}
    for name in dict.fromkeys(name for one in settings for name in one):
        values = [one[name] for one in settings if name in one]
        if all(isinstance(value, Mapping) for value in values) and depth < MAX_DEPTH:
            merged[name] = merged_settings(values, depth + 1)
        elif all(value == values[0] for value in values):
            merged[name] = values[0]
        else:
            merged[name] = _some(value_text(value) for value in values)
    return merged


def source_line(data: ReportData, experiment: str, said: dict[str, tuple[str, Any]]) -> Fold:
    """Where the numbers of an experiment come from, in one line that opens to its settings. `said` has the long ones
    by name, as the first experiment has them: those of others are told by what differs."""
    files = Files.of(data.table.evidence[experiment])
    summary = Markup("<strong>{}</strong> · {} · {}, {} · {} · {}").format(
        experiment, plural(len(files.seeds), "seed"), files.origin, files.scale, files.days, files.hardware
    )
    return Fold(
        summary,
        [*_also_here(data, experiment, files), _about(files, experiment, said)],
        "source",
        f"source-{experiment}",
    )


def _about(files: Files, experiment: str, said: dict[str, tuple[str, Any]]) -> Values:
    settings = merged_settings([stored.cell.settings for stored in files.cells])
    elsewhere: dict[str, list[str]] = {}
    for name, value in list(settings.items()):
        if len(value_text(value)) <= LONG_SETTING:
            continue
        first, known = said.setdefault(name, (experiment, value))
        if value == known and first != experiment:
            elsewhere.setdefault(f"as for {first}", []).append(name)
            del settings[name]
        elif isinstance(value, Mapping) and isinstance(known, Mapping) and value.keys() >= known.keys():
            other = {key: one for key, one in value.items() if key not in known or one != known[key]}
            settings[name] = f"as for {first}, but {value_text(other)}" if first != experiment else value
    settings |= {where: ", ".join(names) for where, names in elsewhere.items()}
    return Values(
        {
            "files": ", ".join(files.paths),
            "commit": files.commits.replace("commit ", ""),
            "command": _some((run.command for run in files.runs), MOST_COMMANDS),
            "seeds": _runs_of(files.seeds),
            "seconds": f"{files.seconds:,.0f}",
            "settings": settings,
        }
    )


def _also_here(data: ReportData, experiment: str, evidence: Files) -> list[Content]:
    """This machine's own run, where another is the evidence."""
    own = data.own.evidence.get(experiment, ())
    if not own or evidence.cells[0].local:
        return []
    files = Files.of(own)
    line = Markup("Also run on this machine: {}, {}, {}").format(
        plural(len(files.seeds), "seed"), files.days, Markup(" ").join(map(code, files.paths))
    )
    return [Paragraph(line)]


def provenance_parts(data: ReportData) -> list[Content]:
    """A line for each experiment, which opens to its evidence, and a row for other files that share experiment, origin,
    scale, default factors and commit.

    A benchmark's file is named with its times, and so are its hardware and versions.
    """
    if not data.cells.cells:
        return [Paragraph(Markup("There are no results yet: {}").format(code("ematrace reproduce")), "missing")]
    groups: dict[str, list[StoredCell]] = {}
    for stored in (s for s in data.cells.cells if not is_benchmark(s.cell)):
        cell, run = stored.cell, stored.cell.provenance
        varied = {name: cell.factors[name] for name in data.claims.defaults if name in cell.factors}
        key = json.dumps([str(stored.path.parent), stored.local, cell.scale, varied, run.commit, run.dirty])
        groups.setdefault(key, []).append(stored)
    files = [Files.of(cells) for cells in groups.values()]
    shown = {id(stored) for cells in data.table.evidence.values() for stored in cells}
    others = [group for group in files if not any(id(stored) in shown for stored in group.cells)]
    table = _files_table(data, others)
    said: dict[str, tuple[str, Any]] = {}
    return [
        *(Paragraph(problem, "missing") for problem in data.problems),
        *(
            source_line(data, name, said)
            for name, cells in data.table.evidence.items()
            if not is_benchmark(cells[0].cell)
        ),
        *([Fold("Other result files, those on drawn grammars among them", [table], "source")] if others else []),
        *([Fold("Hardware and versions", _environments(files), "source")] if files else []),
    ]


def _files_table(data: ReportData, groups: Sequence[Files]) -> DataTable:
    evidence = {id(s) for table in _tables_in_force(data) for cells in table.evidence.values() for s in cells}
    rows = []
    for files in groups:
        used = "evidence" if any(id(stored) in evidence for stored in files.cells) else "beside it"
        factors = files.cells[0].cell.factors
        varied = [f"{name}={factors[name]}" for name in data.claims.defaults if name in factors]
        memory = max((run.peak_memory_mb for run in files.runs if run.peak_memory_mb is not None), default=None)
        rows.append(
            [
                " ".join([*files.paths, *varied]),
                f"{files.origin}, {used}",
                files.scale,
                plural(len(files.seeds), "seed"),
                files.commits.replace("commit ", ""),
                _first_to_last(run.date[:16].replace("T", " ") for run in files.runs),
                f"{files.seconds:,.0f} s",
                "–" if memory is None else f"{memory:,.0f} MB",
            ]
        )
    heads = ("files", "origin", "scale", "seeds", "commit", "date", "time", "memory")
    return plain_table(heads, rows, "Result files", "words")


def _tables_in_force(data: ReportData) -> list[Table]:
    return [data.table, *data.draws.values()]


def _environments(groups: Sequence[Files]) -> list[Content]:
    """Hardware and versions, once for all files that share them."""
    shared: dict[str, list[StoredCell]] = {}
    for stored in (s for files in groups for s in files.cells):
        run = stored.cell.provenance
        versions = {name: version for name, version in run.versions.items() if version}
        text = f"{value_text(run.hardware)}; {value_text(versions)}"
        shared.setdefault(text, []).append(stored)
    return [Paragraph(f"{', '.join(Files.of(cells).paths)}: {text}.") for text, cells in shared.items()]
