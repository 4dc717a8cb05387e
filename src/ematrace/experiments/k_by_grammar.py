"""k crossed with grammars: does what holds at one k hold at others, and is SPCN the same as an EMA of one-hots?

What looked like a dependence on the grammar in drawn conditions with a k of their own was k.
"""

from __future__ import annotations

from typing import Any

from ematrace.baselines import onehot
from ematrace.experiments import dimension_control
from ematrace.experiments.base import Context, Experiment, factorial
from ematrace.experiments.grammar_task import DRAWN, FULL, GRAMMAR, KS, SETTINGS, follow_from, grammar_task, words_of
from ematrace.results import Row
from ematrace.results.schema import Factor


def measure(ctx: Context, **condition: Any) -> list[Row]:
    """The activation and projected traces of C05, all of SPCN, and traces of words without a network."""
    task = grammar_task(ctx, **condition)
    probed = {"ema_onehot": task.probe_features(lambda s: onehot.ema_of_onehots(words_of(s), task.vocabulary))}
    ctx.progress(0.2)
    probed |= {{FULL: "spcn"}.get(name, name): found for name, found in task.probe([FULL, "traces"]).items()}
    ctx.progress(0.6)
    rows = [Row({"features": name}, task.accuracies(found)) for name, found in probed.items()]
    return [
        *rows,
        *(Row({"features": _name(row.factors)}, row.metrics) for row in dimension_control.measure(ctx, **condition)),
    ]


def _name(factors: dict[str, Factor]) -> str:
    return f"{factors['representation']}_to_{factors['dimensions']}" if factors["projected"] else "l0"


EXPERIMENT = Experiment(
    "k_by_grammar",
    "k crossed with grammars",
    grid=factorial(grammar=(GRAMMAR, DRAWN), k=KS),
    measure=measure,
    group="k",
    settings=dict(SETTINGS),
    derived=follow_from,
    seconds=20,
)
