"""The commands that show results: ledger and report."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.console import Console

from ematrace.results.store import LOCAL, Store

if TYPE_CHECKING:
    from ematrace.ledger import Claims


@dataclass(frozen=True)
class Ledger:
    """Every claim of the paper with its verdict, from the recorded results and those of this machine."""

    as_json: Annotated[bool, tyro.conf.arg(name="json")] = False
    """For machines: a list of {id, paper, ours, interval, n_seeds, direction, figure, verdict, ...}."""
    local: Path = LOCAL
    """Folder with this machine's results."""
    recorded: Path | None = None
    """Folder with recorded results (default: those of the checkout)."""


@dataclass(frozen=True)
class Report:
    """Write one self-contained HTML page with verdicts, tables and plots."""

    out: Path = Path("report.html")
    """The page."""
    local: Path = LOCAL
    """Folder with this machine's results."""
    recorded: Path | None = None
    """Folder with recorded results (default: those of the checkout)."""


def show_ledger(command: Ledger, console: Console, error_console: Console, claims: Claims | None = None) -> None:
    """`claims` are the paper's by default."""
    from ematrace.ledger import build_ledger
    from ematrace.results import Table

    store = Store.open(recorded=command.recorded, local=command.local)
    rows = build_ledger(Table(store.load()), claims)
    if command.as_json:
        print(json.dumps([row.to_json() for row in rows], ensure_ascii=False, indent=1))
        return
    from ematrace.report.terminal import ledger_table

    console.print(ledger_table(rows, claims))


def write_page(command: Report, console: Console, error_console: Console, claims: Claims | None = None) -> None:
    from ematrace.report.page import write_report

    path = write_report(Store.open(recorded=command.recorded, local=command.local), command.out, claims=claims)
    console.print(f"page: {path}", soft_wrap=True)
