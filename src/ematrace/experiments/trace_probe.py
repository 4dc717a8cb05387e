"""Table 1: what the activation, the traces and both carry about roles (C01 to C04), role by role (C09 to C12)."""

from __future__ import annotations

from typing import Any

from ematrace.experiments.base import Context, accuracy, number
from ematrace.experiments.grammar_task import (
    FULL,
    QUICK_DRAWS,
    GrammarTask,
    grammar_experiment,
    grammar_task,
)
from ematrace.probes import control_labels, label_weights, selectivity
from ematrace.results import Row

REPRESENTATIONS = ("l0", "traces", "l0+traces")


def measure(ctx: Context, **grammar: Any) -> list[Row]:
    task = grammar_task(ctx, **grammar)
    model, gram, label_of = task.spcn(), task.by_role_gram(task.token_gram), control_task(task)
    control_gram = task.by_word_gram(task.token_gram, label_of)
    columns = {name: model.columns(name, FULL) for name in REPRESENTATIONS}
    probes = {name: task.solve(gram, columns[name]) for name in REPRESENTATIONS}
    controls = {f"control {name}": task.solve(control_gram, columns[name]) for name in REPRESENTATIONS}
    within = task.predict(probes | controls, model, task.within)
    transfer = task.predict(probes, model, task.transfer)
    labels = [label_of[word] for s in task.within for word in s.words]
    rows = []
    for name in REPRESENTATIONS:
        probed = task.judge(within[name], transfer[name])
        guesses = [task.roles[code] for code in within[f"control {name}"]]
        on_control = sum(g == label for g, label in zip(guesses, labels, strict=True)) / len(labels)
        metrics = {
            **task.accuracies(probed),
            "control_task": accuracy(on_control, len(labels), better=None),
            "selectivity": number(selectivity(probed.within.accuracy, on_control)),
        }
        rows += [Row({"representation": name}, metrics), *task.by_role(probed, {"representation": name})]
    return rows


def control_task(task: GrammarTask) -> dict[str, str]:
    """A random role for every word, drawn as often as roles occur (Hewitt and Liang 2019)."""
    weights = label_weights([role for s in task.train for role in s.roles], task.roles)
    labels = control_labels(task.vocabulary, task.roles, task.seed, weights)
    return dict(zip(task.vocabulary, labels, strict=True))


EXPERIMENT = grammar_experiment(
    "trace_probe", "Which representation carries roles", measure, quick_draws=QUICK_DRAWS, seconds=8
)
