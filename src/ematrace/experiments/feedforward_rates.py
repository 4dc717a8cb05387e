"""The learning rate of each Hebbian rule for W_ff (C16), swept on seeds that no published figure uses.

`scripts/choose_rates.py` writes the chosen rates to `feedforward_rates.json` beside this file, from which
`feedforward_rules` takes them. The rule was fixed before the first sweep: of the rates at which neither weights nor
codes collapse on any seed, the one with the highest sum of W and T; of all rates where all collapse. That is the rate
at which the claim is hardest on itself. A rate without a value on any of its seeds is out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from ematrace.experiments.base import Context, Experiment, Point, number
from ematrace.experiments.grammar_task import FULL, GRAMMAR, SETTINGS, GrammarTask, follow_from, grammar_task
from ematrace.files import read_json
from ematrace.probes import effective_rank, participation_ratio
from ematrace.results import Cell, Metric, Row
from ematrace.spcn.feedforward import DEFAULT_ETA

FILE = Path(__file__).with_suffix(".json")
SEEDS = (1000, 1001)
FACTORS = (1 / 9, 1 / 3, 1.0, 3.0)  # of the default rate
COLLAPSED = 2.0  # participation ratio below which weights or codes count as rank 1
CODED_SENTENCES = 1000


def grid(scale: str, seeds: int) -> Iterable[Point]:
    """However many seeds are asked for, those of the sweep."""
    return [Point({"grammar": GRAMMAR}, seed) for seed in SEEDS]


def measure(ctx: Context, **grammar: Any) -> list[Row]:
    task = grammar_task(ctx, **grammar)
    tried = [(rule, eta * factor) for rule, eta in DEFAULT_ETA.items() for factor in FACTORS]
    rows = [Row({"rule": "frozen", "rate": 0.0}, measure_rule(task, "frozen", None))]
    for done, (rule, rate) in enumerate(tried, start=1):
        try:
            rows.append(Row({"rule": rule, "rate": rate}, measure_rule(task, rule, rate)))
        except FloatingPointError:  # at this rate the weights are not finite
            rows.append(Row({"rule": rule, "rate": rate}, dict.fromkeys(METRICS, number(float("nan")))))
        ctx.progress(done / len(tried))
    return rows


METRICS = ("within", "transfer", "weight_pr", "code_pr")


def measure_rule(task: GrammarTask, rule: str, rate: float | None) -> dict[str, Metric]:
    """Accuracies of the full representation, and how many dimensions weights and codes have."""
    model = task.spcn(ff_rule=rule) if rate is None else task.spcn(ff_rule=rule, ff_eta=rate)
    seen = [i for i, word in enumerate(task.vocabulary) if word in set(task.A.words)]
    W = np.asarray(model.W_ff()[0])[:, seen].T  # one row per word that the rule could learn from
    codes = model.encode(task.within[:CODED_SENTENCES], "l0.activation@forward")
    return {
        **task.accuracies(task.probe([FULL], model)[FULL]),
        "weight_pr": number(participation_ratio(W)),
        "weight_rank": number(effective_rank(W)),
        "code_pr": number(participation_ratio(codes)),
        "code_rank": number(effective_rank(codes)),
    }


def choose(cells: Iterable[Cell]) -> dict[str, float]:
    """The rate of each rule that was swept, by the rule at the top of this file."""
    found: dict[str, dict[float, list[Cell]]] = defaultdict(lambda: defaultdict(list))
    for cell in cells:
        if cell.factors["rule"] != "frozen":
            found[str(cell.factors["rule"])][float(cell.factors["rate"])].append(cell)

    def is_known(runs: list[Cell]) -> bool:
        return all(run.metrics[name].value is not None for run in runs for name in METRICS)

    def collapses(runs: list[Cell]) -> bool:
        return min(_value(run, name) for run in runs for name in ("weight_pr", "code_pr")) < COLLAPSED

    def accuracy(runs: list[Cell]) -> float:
        return fmean(_value(run, "within") + _value(run, "transfer") for run in runs)

    chosen = {}
    for rule, of_rule in sorted(found.items()):
        by_rate = {rate: runs for rate, runs in of_rule.items() if is_known(runs)}
        if not by_rate:
            continue
        whole = {rate: runs for rate, runs in by_rate.items() if not collapses(runs)} or by_rate
        chosen[rule] = max(whole, key=lambda rate: (accuracy(whole[rate]), -rate))
    return chosen


def _value(cell: Cell, name: str) -> float:
    value = cell.metrics[name].value
    assert value is not None
    return value


@cache
def chosen_rates() -> Mapping[str, float]:
    """By rule; none before the first sweep was recorded."""
    return read_json(FILE) if FILE.is_file() else {}


EXPERIMENT = Experiment(
    "feedforward_rates",
    "Learning rates of the feed-forward rules",
    grid=grid,
    measure=measure,
    group="rules",
    settings=dict(SETTINGS),
    derived=follow_from,
    seconds=300,
)
