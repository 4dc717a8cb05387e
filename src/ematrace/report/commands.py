"""Commands that the page offers: only such as run, with what they need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ematrace.analysis.gap_scores import TOY
from ematrace.bench.cells import is_benchmark
from ematrace.ledger import Claim
from ematrace.report.data import ReportData
from ematrace.results import Selector


@dataclass(frozen=True)
class Command:
    text: str
    needs: str = ""
    """What a machine has to have for it."""


def command_for(experiments: Sequence[str], data: ReportData) -> Command | None:
    """None for experiments of which this version does not have one."""
    return _command(" ".join(experiments), experiments, data)


def command_of(claim: Claim, data: ReportData) -> Command | None:
    """None where nothing tests the claim."""
    if claim.not_testable is not None or not claim.experiments:
        return None
    if claim.command:
        return Command(claim.command)
    return _command(claim.id, claim.experiments, data, claim.selectors)


def _command(
    name: str, experiments: Sequence[str], data: ReportData, selectors: Sequence[Selector] = ()
) -> Command | None:
    """`selectors` are those of a claim, which a run has to find cells for."""
    from ematrace.experiments import EXPERIMENTS

    known = set(EXPERIMENTS)  # names alone: a look at one of them imports torch
    others = [experiment for experiment in experiments if experiment not in known]
    if others:
        run = all(is_benchmark(cells[0].cell) for o in others if (cells := data.table.evidence.get(o)))
        measured = all(other in data.table.evidence for other in others)
        return Command(f"ematrace bench {' '.join(others)}") if run and measured else None
    gpu, text = (any(flags) for flags in zip(*(_needs(e, data) for e in experiments), strict=True))
    gpu |= any(_finds_toys(selector) for selector in selectors if data.select(selector) is None)
    options = (" --scale gpu" if gpu else "") + (" --data SOURCE" if text else "")
    needs = [*(["a CUDA GPU"] if gpu else []), *(["text of yours as SOURCE"] if text else [])]
    return Command(f"ematrace reproduce {name}{options}", " and ".join(needs))


def _needs(experiment: str, data: ReportData) -> tuple[bool, bool]:
    """Whether it needs a GPU, and a source of text. A run that is there shows it."""
    if cells := data.table.evidence.get(experiment):
        cell = cells[0].cell
        return cell.scale == "gpu", "--data" in cell.provenance.command
    from ematrace.experiments import EXPERIMENTS
    from ematrace.experiments.base import NO_DEFAULT

    found = EXPERIMENTS[experiment]
    only_toys = found.needs == "any" and all(p.factors.get("size") == TOY for p in found.points("cpu", 1))
    return found.needs == "gpu" or only_toys, found.data == NO_DEFAULT


def _finds_toys(selector: Selector) -> bool:
    """Whether the experiment measures something else than this without a GPU."""
    from ematrace.experiments import EXPERIMENTS

    return EXPERIMENTS[selector.experiment].is_toy_for(selector.where)
