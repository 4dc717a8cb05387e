"""docs/objections.md: the described network beside the locked one, and the BiGRU under every coding of words."""

from __future__ import annotations

import math
from collections.abc import Sequence

from doc_tables.blocks import (
    ACCURACIES,
    NOT_RECORDED,
    difference,
    markdown_table,
    mean_text,
    means,
    seeds_of,
    select,
    table,
)
from ematrace.ledger import tolerance_band
from ematrace.report.data import ReportData
from ematrace.report.formatting import number
from ematrace.results import Factors, Selection, Selector
from ematrace.results.schema import Factor

FROZEN, LEARNED = "frozen W_ff", "learned W_ff"
HALF, QUARTER = "half_passives", "quarter_passives"
GRAMMARS = {QUARTER: "quarter passives", HALF: "half passives"}
NETWORKS = ("locked", "described")
RULES = ("frozen", "sanger", "foldiak", "pghu", "forward_forward")
STEPS = (1, 3)

SUPERVISED = ("supervised", "supervised_models", "supervised_epochs")
CODINGS = {"untrained": "untrained rows", "zero": "zeros", "mean": "mean row", "unk": "unknown word"}
HARD_ROLE = "verb_rel"
SHOWN: tuple[tuple[str, Factors], ...] = (
    ("transfer", {}),
    ("role_transfer", {"role": "det_agent"}),
    ("role_transfer", {"role": HARD_ROLE}),
)


def of(network: str, grammar: str = HALF, part: str = FROZEN) -> Factors:
    return {"network": network, "grammar": grammar, "part": part}


@table("diagnosis", "networks")
def diagnosis(data: ReportData, _: str) -> str:
    columns = {
        "drive_feedforward": "share of the drive that is the input's",
        "input_share": "share of the state's power along its input's code",
        "to_previous": "cosine to the state before",
        "units_used": "units ever active",
        "precision_in_range": "precision in range",
    }
    levels = data.cells.values_of("networks", "level", **of("described"), diagnosis="forward")
    top = max(map(int, levels), default=3)
    lines, used = [], []
    for level in range(top + 1):
        cells = []
        for metric in columns:
            where: Factors = {"diagnosis": "forward", "level": level}
            found = [select(data.cells, "networks", metric, {**of(network), **where}) for network in NETWORKS]
            used += found
            shown = [mean_text(s, NOT_RECORDED) for s in found]
            predicted = level < top or metric != "precision_in_range"
            cells.append(" → ".join(shown) if predicted else "nothing predicts it")
        lines.append((f"L{level}", *cells))
    return markdown_table(("locked → described", *columns.values()), lines) + f"\n{seeds_of(used)}\n"


@table("pghu", "networks")
def pghu(data: ReportData, _: str) -> str:
    """What learning adds: the full representation, minus the same of the network whose feedback stays zero."""
    lines = []
    for grammar, label in GRAMMARS.items():
        for network in NETWORKS:
            full, without = (
                [select(data.cells, "networks", m, {**of(network, grammar), "variant": name}) for m in ACCURACIES]
                for name in ("full", "no_feedback")
            )
            differences = [difference(a, b) for a, b in zip(full, without, strict=True)]
            lines.append((f"{network}, {label}", *differences, seeds_of(full).removesuffix(".") or "–"))
    return markdown_table(("network", "within", "transfer", "deep", "seeds"), lines)


@table("networks", "networks")
def networks(data: ReportData, _: str) -> str:
    slow: Factors = {"reader": "probe", "trace": "slow"}

    def peeled(trace: str) -> list[Factors]:
        return [{"reader": "peel", "codes": "network", "trace": trace, "lag": k} for k in STEPS]

    rows: list[tuple[str, Sequence[str], list[Factors], str]] = [
        ("activation + traces, W/T/D", ACCURACIES, [{"variant": "full"}], "/"),
        ("activation, W/T/D", ACCURACIES, [{"variant": "activation"}], "/"),
        ("traces, W/T/D", ACCURACIES, [{"variant": "traces"}], "/"),
        ("C13 forward only, W/T", ("within", "transfer"), [{"variant": "forward_only"}], "/"),
        ("C14 no SPA, no slow traces, W", ("within",), [{"variant": "no_spa_no_slow"}], "/"),
        ("C15 traces of L0, L1, L2, W", ("within",), [{"level": level} for level in range(3)], ", "),
        ("C17 det_patient at position 0", ("first_word_share",), [{"role": "det_patient"}], "/"),
        ("C17 position alone, W", ("within",), [{"features": "position"}], "/"),
        ("C18 role from the slow trace", ("role_accuracy",), [slow], "/"),
        ("C18 noun 1 and 3 back, linear probe", ("noun_accuracy",), [{**slow, "lag": k} for k in STEPS], ", "),
        ("C18 word 1 and 3 back, linear probe", ("word_accuracy",), [{**slow, "lag": k} for k in STEPS], ", "),
        ("C18 the same peeled from the network's fast trace", ("word_accuracy",), peeled("fast"), ", "),
        ("C18 the same peeled from its slow trace", ("word_accuracy",), peeled("slow"), ", "),
        ("without SPA, W/T/D", ACCURACIES, [{"variant": "no_spa"}], "/"),
        ("W_fb = 0, W/T/D", ACCURACIES, [{"variant": "no_feedback"}], "/"),
    ]
    lines = []
    for label, metrics, wheres, separator in rows:
        cells = [in_paper(data, metrics, wheres, separator)]
        for grammar in GRAMMARS:
            for network in NETWORKS:
                one = of(network, grammar)
                shown = [means(data.cells, "networks", metrics, {**one, **where}) for where in wheres]
                cells.append(NOT_RECORDED if NOT_RECORDED in shown else separator.join(shown))
        lines.append((label, *cells))
    full = {"variant": "full"}
    used = [select(data.cells, "networks", "within", {**of(n, g), **full}) for g in GRAMMARS for n in NETWORKS]
    heads = ("", "paper", *(f"{network}, {label}" for label in GRAMMARS.values() for network in NETWORKS))
    return markdown_table(heads, lines) + f"\n{seeds_of(used)}\n"


def in_paper(data: ReportData, metrics: Sequence[str], wheres: Sequence[Factors], separator: str) -> str:
    """The paper's figures, by the cells that the claims give for them."""
    representations = {"full": "l0+traces", "activation": "l0", "traces": "traces"}

    def paper(metric: str, where: Factors) -> float | None:
        if metric == "first_word_share":
            return data.paper(Selector("position", metric, where))
        if (name := representations.get(str(where.get("variant")))) is not None:
            return data.paper(Selector("trace_probe", metric, {"representation": name}))
        return data.paper(Selector("ablations", metric, where)) if {*where} <= {"variant", "level"} else None

    found = [paper(metric, where) for where in wheres for metric in metrics]
    return "–" if None in found else separator.join(map(number, found))


@table("rules-by-network")
def rules_by_network(data: ReportData, _: str) -> str:
    """C16: the described network is that of `feedforward_rules`."""
    lines = []
    where: dict[str, tuple[str, Factors]] = {
        "locked": ("networks", of("locked", part=LEARNED)),
        "described": ("feedforward_rules", {"grammar": HALF}),
    }
    for rule in RULES:
        cells = []
        for experiment, factors in where.values():
            one = {**factors, "rule": rule}
            cells += [means(data.cells, experiment, ACCURACIES, one), means(data.cells, experiment, ("code_pr",), one)]
        lines.append((rule, *cells))
    heads = ("rule", *(f"{name}{what}" for name in where for what in (", W/T/D", ": participation ratio of codes")))
    used = [select(data.cells, e, "within", {**f, "rule": "frozen"}) for e, f in where.values()]
    return markdown_table(heads, lines) + f"\n{seeds_of(used)}\n"


@table("supervised-models", *SUPERVISED[1:])
def supervised_models(data: ReportData, _: str) -> str:
    """Each cell: transfer / det_agent / verb_rel on transfer."""
    lines = []
    used, hard = [], {}
    for experiment in SUPERVISED:
        for model, factors in models_of(data, experiment):
            epochs = epochs_of(select(data.table, experiment, "within", {**factors, "unseen": "untrained"}))
            cells = []
            for coding in CODINGS:
                one = {**factors, "unseen": coding}
                found = [select(data.table, experiment, metric, {**one, **more}) for metric, more in SHOWN]
                used += found
                shown = "–" if None in found else " / ".join(number(s.sample.mean) for s in found if s is not None)
                cells.append(shown)
                if found[-1] is not None:
                    hard[f"{model}, {epochs} epochs, {CODINGS[coding]}"] = found[-1].sample.mean
            within = means(data.table, experiment, ("within",), {**factors, "unseen": "untrained"})
            lines.append((model, epochs, within, *cells))
    heads = ("model", "epochs", "W", *CODINGS.values())
    return f"{markdown_table(heads, lines)}\n{seeds_of(used)} {nearest(data, hard)}\n"


def epochs_of(selection: Selection | None) -> str:
    """`supervised` has them beside the numbers of sentences."""
    settings = {} if selection is None else selection.cells[0].cell.settings
    return str(settings.get("epochs", settings.get("sentences", {}).get("bigru_epochs", "–")))


def models_of(data: ReportData, experiment: str) -> list[tuple[str, Factors]]:
    """What stands in the first column, and the factors of it."""
    if experiment == "supervised":
        return [("gru, embedding 64", {})]
    names = ("model", "embedding", "word_dropout")
    found = {}
    for stored in data.table.evidence.get(experiment, ()):
        factors = {name: stored.cell.factors[name] for name in names}
        dropout = f", word dropout {number(float(factors['word_dropout']), 1)}" if factors["word_dropout"] else ""
        width = "one-hot" if factors["embedding"] == "onehot" else f"embedding {factors['embedding']}"
        found[f"{factors['model']}, {width}{dropout}"] = factors
    return sorted(found.items(), key=lambda item: [_natural(item[1][name]) for name in names])


def _natural(value: Factor) -> tuple[float, str]:
    """Numbers by size, before words."""
    return (math.inf, value) if isinstance(value, str) else (float(value), "")


def nearest(data: ReportData, hard: dict[str, float]) -> str:
    """Which of them has the paper's figure of verb_rel, within the ledger's tolerance."""
    paper = data.paper(Selector("supervised", "role_transfer", {"unseen": "untrained", "role": HARD_ROLE}))
    if paper is None or not hard:
        return ""
    low, high = tolerance_band(paper, "accuracy")
    inside = [name for name, value in hard.items() if low <= value <= high]
    lowest = min(hard, key=lambda name: hard[name])
    which = f": {'; '.join(inside)}" if inside else ""
    return (
        f"`{HARD_ROLE}` lies within the tolerance of the paper's {number(paper)} in {len(inside)} of {len(hard)} "
        f"cases{which}. The lowest is {number(hard[lowest])} ({lowest})."
    )
