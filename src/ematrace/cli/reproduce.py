"""The command `ematrace reproduce`: from experiments and claims to results, verdicts and page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import tyro
from rich.console import Console
from rich.text import Text

from ematrace.cli.results import Report, show_cards, write_page
from ematrace.experiments.runner.request import ROBUSTNESS, Request
from ematrace.names import did_you_mean
from ematrace.results.store import Store

if TYPE_CHECKING:
    from ematrace.experiments.runner import Plan, Unit
    from ematrace.ledger import Claim, Claims

MOST_CARDS = 3
SHOWN = ("gap",)  # The page opens with it, also where no claim can rest on it.


@dataclass(frozen=True)
class Reproduce(Request):
    """Run experiments and judge the paper's claims on what they measured.

    With no names it runs everything that bears on a claim and can run here, and shows all verdicts; with names, those
    that they bear on. What was measured before with the same settings is not measured again, unless with `--fresh`.
    It ends with the page. Examples: `ematrace reproduce`, `ematrace reproduce C09`,
    `ematrace reproduce trace_probe --seeds 20`, `ematrace reproduce ./my_experiment.py --dry-run`.
    """

    names: tyro.conf.Positional[tuple[str, ...]] = field(
        default=(),
        metadata={
            "help": "Experiments (trace_probe, ...), claims (C01, F5, ...), robustness (drawn grammars), or your own "
            "experiments (./mine.py, package.mine, package.mine:NAME); nothing means all that bear on claims."
        },
    )
    report: Path | None = field(
        default=Path("report.html"), metadata={"help": "Where the page goes; `None` for no page."}
    )


def reproduce(command: Reproduce, console: Console, error_console: Console) -> None:
    from ematrace.experiments.runner import make_plan
    from ematrace.ledger import load_claims

    claims = all_claims(load_claims(), command)  # a claim that is wrong is found out before anything runs
    request = replace(command, names=experiments_for(command.names, claims, command.scale))
    named = [claim for name in command.names if (claim := claims.get(name)) is not None]
    only_claims = named and len(named) == len(command.names)
    plan = make_plan(request, partial(bears_on_any, named)) if only_claims else make_plan(request)
    if not command.names:
        plan = plan.without_missing()
    if command.dry_run:
        width = console.width if console.is_terminal else None
        console.print(plan.describe(command.names, width), soft_wrap=True, markup=False, highlight=False)
        return
    if plan.missing and command.names:
        raise ValueError(plan.needs_text(command.names))
    if plan.missing:
        error_console.print(f"left out: {plan.needs_text(())}", soft_wrap=True, markup=False, highlight=False)
    console.print(plan.summary(), soft_wrap=True, highlight=False)
    failed = run_units(plan, command, console, error_console)
    keep_own_claims(command)
    show_verdicts(plan, command, claims, console)
    if command.report is not None:
        write_page(Report(out=command.report, local=command.out), console, error_console)
    if failed:
        raise SystemExit(1)


def run_units(plan: Plan, command: Reproduce, console: Console, error_console: Console) -> dict[Unit, str]:
    from ematrace.experiments.runner import run
    from ematrace.report.progress import unit_bars

    if not plan.to_run:
        return {}

    def lost(unit: Unit, why: str) -> None:
        line = Text.assemble(("lost: ", "red"), f"{unit.label}: {why}; it runs again")
        console.print(line, soft_wrap=True)

    def failing(unit: Unit, why: str) -> None:
        error_console.print(Text.assemble(("failed: ", "red"), f"{unit.label}: {why}"), soft_wrap=True)

    expected = {unit: unit.seconds for unit in plan.to_run}
    with unit_bars(expected, plan.expected_seconds, console, error_console) as progress:
        return run(
            plan.to_run,
            command.out,
            engine=command.engine,
            jobs=command.jobs,
            per_gpu=command.per_gpu,
            progress=progress,
            lost=lost,
            failing=failing,
        )


def show_verdicts(plan: Plan, command: Reproduce, claims: Claims, console: Console) -> None:
    """Of the claims that were asked for, a card each; of the experiments, the claims that they bear on."""
    from ematrace.ledger import build_ledger
    from ematrace.report.gap_terminal import chain_view
    from ematrace.report.terminal import VerdictList, claims_table
    from ematrace.results import Table

    cells = Table(Store.open(local=command.out).load())
    if any(unit.experiment in SHOWN for unit in plan.units) and (view := chain_view(cells)) is not None:
        console.print("", view, sep="\n", highlight=False)
    rows = build_ledger(cells, claims)
    if not command.names:
        console.print("", VerdictList(rows, claims), sep="\n")
        return
    named = [claim.id for name in command.names if (claim := claims.get(name)) is not None]
    run = {unit.experiment for unit in plan.units}
    touched = [claim.id for claim in claims if run & {*claim.experiments}]
    only_claims = len(named) == len(command.names)
    shown = named if only_claims else touched
    if not shown:
        folders = sorted({str(command.out / unit.experiment) for unit in plan.units})
        console.print(f"no claim rests on these experiments; their results: {', '.join(folders)}", soft_wrap=True)
    elif len(shown) <= (MOST_CARDS if only_claims else 1):
        console.print()
        show_cards(shown, rows, claims, cells, console)
    else:
        table = claims_table([row for row in rows if row.id in shown], claims)
        console.print("", table, f"ematrace ledger {shown[0]} shows one of them alone", sep="\n", highlight=False)


def experiments_for(names: Sequence[str], claims: Claims, scale: str = "cpu") -> tuple[str, ...]:
    """The experiments behind a list of experiments and claims; all that bear on claims for an empty list.

    Toys, which some experiments train without a GPU, bear on none.
    """
    from ematrace.experiments import EXPERIMENTS
    from ematrace.experiments.discovery import is_own

    if not names:
        bearing = {name for claim in claims for name in claim.experiments if _bears_on(name, claim, scale)}
        return (*(name for name in EXPERIMENTS if name in bearing or name in SHOWN), ROBUSTNESS)
    found: list[str] = []
    for name in names:
        if name in EXPERIMENTS or name == ROBUSTNESS or is_own(name):
            found.append(name)
        elif claims.get(name) is not None:
            found += _experiments_of(name, claims, scale)
        else:
            known = [*EXPERIMENTS, ROBUSTNESS]
            hint = did_you_mean(name, [*known, *(claim.id for claim in claims)])
            others = f"; experiments: {', '.join(known)}; claims: {claims.ids}; your own: ./file.py or package.module"
            raise ValueError(f"unknown experiment or claim {name!r}{hint or others}")
    return tuple(dict.fromkeys(found))


def bears_on_any(claims: Sequence[Claim], unit: Unit) -> bool:
    """Whether some claim, or its control, speaks of cells that this unit may have.

    Factors that only rows have do not count. Of controls, only those in the claims' own experiments run.
    """
    selectors = [s for claim in claims for s in (*claim.selectors, *(claim.control.of if claim.control else ()))]
    wheres = [selector.where for selector in selectors if selector.experiment == unit.experiment]
    return any(all(unit.factors.get(name, value) == value for name, value in where.items()) for where in wheres)


def _bears_on(experiment: str, claim: Claim, scale: str) -> bool:
    """Whether cells of this scale can be what the claim speaks of."""
    from ematrace.experiments import EXPERIMENTS

    if experiment not in EXPERIMENTS or scale == "gpu":
        return experiment in EXPERIMENTS
    wheres = [selector.where for selector in claim.selectors if selector.experiment == experiment]
    return any(not EXPERIMENTS[experiment].is_toy_for(where) for where in wheres)


def _experiments_of(name: str, claims: Claims, scale: str) -> tuple[str, ...]:
    from ematrace.experiments import EXPERIMENTS

    claim = claims.find(name)
    if claim.command:  # which runs a file of the user's, so it has to be named
        raise ValueError(f"{claim.id} is tested by: {claim.command}")
    if claim.not_testable:
        raise ValueError(f"{claim.id} is not testable here: {claim.not_testable}")
    if not claim.experiments:
        raise ValueError(f"no experiment tests {claim.id} yet: it is open in the ledger")
    for experiment in claim.experiments:
        if experiment not in EXPERIMENTS:
            raise ValueError(f"{claim.id} rests on the benchmark {experiment}: ematrace bench {experiment}")
        if not _bears_on(experiment, claim, scale):
            command = f"ematrace reproduce {claim.id} --scale gpu --data SOURCE"
            raise ValueError(f"{claim.id} needs a GPU, since {experiment} trains only toys without one: {command}")
    return claim.experiments


def all_claims(paper: Claims, command: Reproduce) -> Claims:
    """The paper's, those kept from the user's earlier experiments, and those of the ones that are named now."""
    from ematrace.ledger import with_kept_claims, with_own_claims

    own = own_experiments(command)
    claims = with_kept_claims(paper, command.out, but=[experiment for experiment, _ in own.values()])
    for name, (_, text) in own.items():
        claims = with_own_claims(claims, text, name, _command(name))
    return claims


def keep_own_claims(command: Reproduce) -> None:
    from ematrace.ledger import keep_claims

    for name, (experiment, text) in own_experiments(command).items():
        keep_claims(text, command.out, experiment, _command(name))


def own_experiments(command: Reproduce) -> dict[str, tuple[str, str]]:
    """The user's own among the names: what they are called in results, and the claims they bring along."""
    from ematrace.experiments import find_experiment
    from ematrace.experiments.discovery import is_own

    found = {name: find_experiment(name) for name in command.names if is_own(name)}
    return {name: (experiment.name, experiment.claims) for name, experiment in found.items()}


def _command(name: str) -> str:
    return f"ematrace reproduce {name}"
