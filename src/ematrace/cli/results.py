"""The commands that show results: ledger and report."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.console import Console

from ematrace.results.store import LOCAL, Store

if TYPE_CHECKING:
    from ematrace.ledger import Claim, Claims, LedgerRow
    from ematrace.results import Table


@dataclass(frozen=True)
class Ledger:
    """The paper's claims and the verdict on each, from the recorded results and those of this machine.

    Without ids, a screen of all claims by verdict; with ids, each of those claims alone: the paper's figure, ours with
    its interval, every predicate, the control, the evidence and the command.
    Examples: `ematrace ledger`, `ematrace ledger C10`, `ematrace ledger --long`.
    """

    ids: tyro.conf.Positional[tuple[str, ...]] = field(default=(), metadata={"help": "Claims to show: C10, f5, ..."})
    long: bool = False
    """All claims in one long table, with the paper's figures and ours."""
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


def show_ledger(command: Ledger, console: Console, error_console: Console) -> None:
    from ematrace.ledger import build_ledger, load_claims, with_kept_claims
    from ematrace.results import Table

    if command.long and (command.as_json or command.ids):
        raise ValueError(f"--long: has no effect with {'--json' if command.as_json else 'ids'}")
    store = Store.open(recorded=command.recorded, local=command.local)
    claims = with_kept_claims(load_claims(), store.local)
    chosen = [find_claim(text, claims).id for text in command.ids]
    cells = Table(store.load())
    rows = build_ledger(cells, claims)
    if command.as_json:
        shown = [row for row in rows if not chosen or row.id in chosen]
        print(json.dumps([row.to_json() for row in shown], ensure_ascii=False, indent=1))
    elif chosen:
        show_cards(chosen, rows, claims, cells, console)
    else:
        from ematrace.report.terminal import VerdictList, ledger_table

        console.print(ledger_table(rows, claims) if command.long else VerdictList(rows, claims))


def find_claim(text: str, claims: Claims) -> Claim:
    """An experiment's name, which `reproduce` would take, is answered with the claims that rest on it."""
    if (claim := claims.get(text)) is not None:
        return claim
    from ematrace.experiments import EXPERIMENTS

    if text in EXPERIMENTS:
        resting = ", ".join(claim.id for claim in claims if text in claim.experiments) or "none"
        raise ValueError(
            f"{text!r} is an experiment, not a claim; `ematrace reproduce {text}` runs it, and the claims that rest on "
            f"it are: {resting}"
        )
    return claims.find(text)


def show_cards(ids: Sequence[str], rows: Sequence[LedgerRow], claims: Claims, cells: Table, console: Console) -> None:
    from ematrace.report.card import claim_card

    of_id, evidence = {row.id: row for row in rows}, claims.choose(cells)
    for i, id in enumerate(dict.fromkeys(ids)):
        console.print(*([""] if i else []), claim_card(of_id[id], claims[id], evidence), sep="\n")


def write_page(command: Report, console: Console, error_console: Console) -> None:
    from ematrace.ledger import load_claims, with_kept_claims
    from ematrace.report import page
    from ematrace.report.data import ReportData

    store = Store.open(recorded=command.recorded, local=command.local)
    data = ReportData.load(store, with_kept_claims(load_claims(), store.local))
    path = page.write_page(data, command.out)
    for problem in data.problems:
        error_console.print(problem, soft_wrap=True, markup=False, highlight=False)
    console.print(f"page: {path}", soft_wrap=True)
