"""Table 1: what the activation, the traces and both carry about roles (C01 to C04), role by role (C09 to C12)."""

from __future__ import annotations

from ematrace.experiments.base import Experiment
from ematrace.experiments.workbench import FULL, LAMBDA, Figures, Probed, Workbench
from ematrace.probes import control_labels, label_weights, selectivity

REPRESENTATIONS = ("l0", "traces", "l0+traces")


def measure(bench: Workbench) -> Figures:
    model, gram, label_of = bench.spcn(), bench.by_role_gram(bench.token_gram), control_task(bench)
    control_gram = bench.by_word_gram(bench.token_gram, label_of)
    columns = {name: model.columns(name, FULL) for name in REPRESENTATIONS}
    probes = {name: gram.solve(LAMBDA, columns[name]) for name in REPRESENTATIONS}
    controls = {f"control {name}": control_gram.solve(LAMBDA, columns[name]) for name in REPRESENTATIONS}
    within = bench.predict(probes | controls, model, bench.within)
    transfer = bench.predict(probes, model, bench.transfer)
    labels = [label_of[word] for s in bench.within for word in s.words]
    figures: Figures = {}
    for name in REPRESENTATIONS:
        probed = Probed(bench.right(within[name], bench.within), bench.right(transfer[name], bench.transfer))
        figures |= bench.accuracies(name, probed) | bench.by_role(name, probed)
        guesses = [bench.roles[code] for code in within[f"control {name}"]]
        accuracy = sum(g == label for g, label in zip(guesses, labels, strict=True)) / len(labels)
        figures[f"{name}.control_task"] = (accuracy, len(labels))
        figures[f"{name}.selectivity"] = (selectivity(probed.within.accuracy, accuracy), None)
    return figures


def control_task(bench: Workbench) -> dict[str, str]:
    """A random role for every word, drawn as often as roles occur (Hewitt and Liang 2019)."""
    weights = label_weights([role for s in bench.train for role in s.roles], bench.roles)
    labels = control_labels(bench.vocabulary, bench.roles, bench.seed, weights)
    return dict(zip(bench.vocabulary, labels, strict=True))


EXPERIMENT = Experiment("trace_probe", "Which representation carries roles", measure)
