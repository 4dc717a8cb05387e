"""The command `ematrace reproduce`: from experiments and claims to results, ledger and page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import tyro
from rich.console import Console
from rich.text import Text

from ematrace.cli.results import Ledger, Report, show_ledger, write_page
from ematrace.experiments.runner.request import ROBUSTNESS, Request

if TYPE_CHECKING:
    from ematrace.ledger import Claims


@dataclass(frozen=True)
class Reproduce(Request):
    """Run experiments and judge the paper's claims on what they measured.

    With no names it runs everything that bears on a claim and can run here, prints the ledger and writes the page.
    What was measured before with the same settings is not measured again.
    Examples: `ematrace reproduce`, `ematrace reproduce C09`, `ematrace reproduce trace_probe --seeds 20`,
    `ematrace reproduce ./my_experiment.py --dry-run`.
    """

    names: tyro.conf.Positional[tuple[str, ...]] = field(
        default=(),
        metadata={
            "help": "Experiments (trace_probe, ...), claims (C01 ... F5), robustness (drawn grammars), or your own "
            "experiments (./mine.py, package.mine, package.mine:NAME); nothing means all that bear on claims."
        },
    )
    report: Path | None = field(
        default=Path("report.html"), metadata={"help": "Where the page goes; `None` for no page."}
    )


def reproduce(command: Reproduce, console: Console, error_console: Console) -> None:
    from ematrace.experiments.runner import make_plan, run
    from ematrace.ledger import load_claims
    from ematrace.report.progress import unit_bars

    claims = load_claims()
    all_claims = claims | own_claims(command.names)  # a claim that is wrong is found out before anything runs
    plan = make_plan(replace(command, names=experiments_for(command.names, claims)))
    if not command.names:
        plan = plan.without_missing()
    if command.dry_run:
        console.print(plan.describe(command.names), soft_wrap=True, markup=False, highlight=False)
        return
    if plan.missing and command.names:
        raise ValueError(plan.needs_text(command.names))
    if plan.missing:
        error_console.print(f"left out: {plan.needs_text(())}", soft_wrap=True, markup=False, highlight=False)
    failed = {}
    if plan.to_run:
        with unit_bars({unit: unit.seconds for unit in plan.to_run}, console) as progress:
            failed = run(plan.to_run, command.out, engine=command.engine, jobs=command.jobs, progress=progress)
    for unit, why in failed.items():
        error_console.print(Text.assemble(("failed: ", "red"), f"{unit.label}: {why}"), soft_wrap=True)
    show_ledger(Ledger(local=command.out), console, error_console, all_claims)
    if command.report is not None:
        write_page(Report(out=command.report, local=command.out), console, error_console, all_claims)
    if failed:
        raise SystemExit(1)


def experiments_for(names: Sequence[str], claims: Claims) -> tuple[str, ...]:
    """The experiments behind a list of experiments and claims; all that bear on claims for an empty list."""
    from ematrace.experiments import EXPERIMENTS
    from ematrace.experiments.discovery import is_own

    if not names:
        bearing = {name for claim in claims for name in claim.experiments}
        return (*(name for name in EXPERIMENTS if name in bearing), ROBUSTNESS)
    found: list[str] = []
    for name in names:
        if name in EXPERIMENTS or name == ROBUSTNESS or is_own(name):
            found.append(name)
        elif name.upper() in claims:
            found += _experiments_of(name.upper(), claims)
        else:
            known = f"experiments: {', '.join([*EXPERIMENTS, ROBUSTNESS])}; claims: C01 to F5"
            raise ValueError(f"unknown experiment or claim {name!r}; {known}; your own: ./file.py or package.module")
    return tuple(dict.fromkeys(found))


def _experiments_of(id: str, claims: Claims) -> tuple[str, ...]:
    from ematrace.experiments import EXPERIMENTS

    claim = claims[id]
    if claim.not_testable:
        raise ValueError(f"{id} is not testable here: {claim.not_testable}")
    if not claim.experiments:
        raise ValueError(f"no experiment tests {id} yet: it is open in the ledger")
    for name in claim.experiments:
        if name not in EXPERIMENTS:
            raise ValueError(f"{id} rests on the benchmark {name}: ematrace bench {name}")
    return claim.experiments


def own_claims(names: Sequence[str]) -> Claims:
    """The claims that the user's own experiments bring along."""
    from ematrace.experiments import find_experiment
    from ematrace.experiments.discovery import is_own
    from ematrace.ledger import Claims, parse_claims

    claims = Claims(())
    for name in names:
        if is_own(name) and (text := find_experiment(name).claims):
            found = parse_claims(text, name)
            own = tuple(replace(claim, command=f"ematrace reproduce {name}") for claim in found)
            claims |= replace(found, claims=own)
    return claims
