"""The report: one HTML page that needs no network, made from cells and verdicts alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path

from markupsafe import Markup

from ematrace import __version__
from ematrace.bench.cells import is_benchmark
from ematrace.files import write_atomically
from ematrace.ledger import Claims, LedgerRow
from ematrace.report.commands import Command, command_for
from ematrace.report.compact import compact, compact_script, compact_style
from ematrace.report.data import ReportData
from ematrace.report.factor_tables import experiment_tables
from ematrace.report.overview import QUESTION, TITLE, Overview
from ematrace.report.parts import Content, templates
from ematrace.report.provenance import provenance_parts
from ematrace.report.sections import FAULTS, SECTIONS, Section
from ematrace.report.sections.base import about
from ematrace.report.speed import LEDE, speed_parts
from ematrace.report.verdicts import LOOKS, Look
from ematrace.results import Store


def write_report(store: Store, out: str | Path, *, claims: Claims | None = None, made: datetime | None = None) -> Path:
    """Write the page to `out`, whole or not at all; returns its path. `claims` are the package's by default.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> from ematrace.results import Store
    >>> with TemporaryDirectory() as folder:
    ...     page = write_report(Store(recorded=None, local=Path(folder)), f"{folder}/report.html")
    ...     page.read_text()[:15]
    '<!doctype html>'
    """
    return write_page(ReportData.load(store, claims), out, made)


def write_page(data: ReportData, out: str | Path, made: datetime | None = None) -> Path:
    """The same of data that are loaded; `data.problems` then says what the page could not show."""
    text = render_report(data, made)
    path = Path(out)
    path.parent.mkdir(parents=True, exist_ok=True)
    return write_atomically(path, text.encode())


def render_report(data: ReportData, made: datetime | None = None) -> str:
    """The page as text; `made` is the date at its foot, now by default.

    >>> from pathlib import Path
    >>> from ematrace.report.data import ReportData
    >>> from ematrace.results import Store
    >>> page = render_report(ReportData.load(Store(recorded=None, local=Path("nowhere"))))
    >>> page[:15], "http://" in page
    ('<!doctype html>', False)
    """
    benchmarks = {name for name, cells in data.table.evidence.items() if is_benchmark(cells[0].cell)}
    known = {name for section in SECTIONS for name in section.experiments}
    others = [name for name in data.table.experiments if name not in known and name not in benchmarks]
    sections = [build_section(section, data) for section in (*SECTIONS, *map(other_section, others))]
    page = (
        templates()
        .get_template("page.html.j2")
        .render(
            title=TITLE,
            question=QUESTION,
            overview=Overview(data),
            sections=sections,
            speed=speed_parts(data.cells) if benchmarks else [],
            speed_lede=LEDE,
            provenance=provenance_parts(data),
            date=(made or datetime.now(UTC)).astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            version=__version__,
            style=Markup(compact_style(_asset("style.css"))),
            script=Markup(compact_script(_asset("page.js"))),
        )
    )
    return compact(page)


def _asset(name: str) -> Markup:
    """A file of ours that is put into the page as it is."""
    return Markup(resources.files("ematrace.report").joinpath("templates", name).read_text(encoding="utf-8"))


def title_of(experiment: str) -> str:
    """The experiment's own title; its name if it is not one of the package's."""
    from ematrace.experiments import EXPERIMENTS  # here: brings torch

    return EXPERIMENTS[experiment].title if experiment in EXPERIMENTS else experiment


@dataclass(frozen=True)
class SectionView:
    """A section with everything that its template shows."""

    id: str
    title: str
    lede: str
    claims: Sequence[tuple[LedgerRow, Look]]
    parts: Sequence[Content]
    missing: Sequence[tuple[str, Command | None]] = ()
    sources: Sequence[str] = ()


def build_section(section: Section, data: ReportData) -> SectionView:
    present = [name for name in section.experiments if name in data.table.experiments]
    missing = [name for name in section.experiments if name not in data.table.experiments]
    parts = section.build(data) if present or not section.experiments else ()
    return SectionView(
        section.id,
        section.title,
        section.lede,
        [(row, LOOKS[row.verdict]) for row in data.claims_about(section.about)],
        [part for part in parts if part is not None],
        [(name, command_for([name], data)) for name in missing],
        present,
    )


ABRIDGED = {"networks": "diagnosis"}
"""Experiments with many cells, and the factor of those that are shown; docs/objections.md has the others."""


def other_section(experiment: str) -> Section:
    """An experiment this page knows nothing of: all its cells."""
    if experiment in FAULTS.experiments:
        return FAULTS

    def build(data: ReportData) -> Sequence[Content]:
        return experiment_tables(data, experiment, ABRIDGED.get(experiment))

    return Section(f"experiment-{experiment}", title_of(experiment), "", (experiment,), build, about(experiment))
