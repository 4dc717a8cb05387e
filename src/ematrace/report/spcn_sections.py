"""SPCN's sections of the page: for each experiment its tables and plots, from names of figures alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ematrace.ledger import Figure, Share
from ematrace.report.markup import Html, el, join
from ematrace.report.plots import (
    BLUE,
    GREEN,
    GREY,
    PURPLE,
    VERMILION,
    Curve,
    Plot,
    Series,
    condition_scatter,
    curves,
    dot_plot,
    share_bars,
    strips,
)
from ematrace.report.section import Part
from ematrace.report.sources import Sources, over_seeds, over_tokens
from ematrace.report.tables import Line, RefOf, dotted, figure_table, measure_table, measured_lines, plain_table
from ematrace.report.wording import decimals_for, interval, number, share

ACCURACIES = {
    "within": "within A (W)",
    "transfer": "transfer to B (T)",
    "deep": "deep roles (D)",
    "deep_strict": "D without rel_pron",
}
MARKS = {"within": (BLUE, "circle"), "transfer": (VERMILION, "square"), "deep": (GREEN, "diamond")}

REPRESENTATIONS = {"l0": "L0 activation", "traces": "traces", "l0+traces": "L0 + traces"}
NETWORK_CONTROLS = {"no_feedback": "no learned feedback", "no_spa_no_lateral": "no SPA, no lateral"}
ONE_HOT_CONTROLS = {
    "majority": "majority role",
    "position": "position",
    "onehot": "the word",
    "window1": "words ±1",
    "window2": "words ±2",
    "window3": "words ±3",
    "ema_onehot": "EMA of one-hots",
    "ema_merged": "EMA, content merged",
}
SUPERVISED = {"bigru": "BiGRU", "bigru_zero": "BiGRU, unseen 0", "bigru_mean": "BiGRU, unseen mean"}
# Every SPCN table has all controls and the BiGRU below it; plots after the first have these only.
BRIEF_CONTROLS = ("majority", "onehot", "ema_onehot", "ema_merged")


def lines_of(
    sources: Sources, experiment: str, labels: Mapping[str, str], group: int = 0, known: Sequence[str] = ()
) -> list[Line]:
    """A row per label, and one for every other name with an accuracy, so that a new condition is not lost."""
    others = [name.removesuffix(".within") for name in sources.names(experiment) if name.endswith(".within")]
    names = dict(labels) | {n: n for n in others if n not in labels and n not in known}
    return [Line(label, f"{experiment}/{name}", group) for name, label in names.items()]


def brief_control_lines(group: int) -> list[Line]:
    return [Line(ONE_HOT_CONTROLS[name], f"controls/{name}", group) for name in BRIEF_CONTROLS]


def control_lines(sources: Sources, group: int) -> list[Line]:
    """Everything that belongs beside SPCN: parts of it switched off, features without a network, the BiGRU."""
    known = (*NETWORK_CONTROLS, *ONE_HOT_CONTROLS, "untrained_bigru")
    return [
        *(Line(label, f"controls/{name}", group) for name, label in NETWORK_CONTROLS.items()),
        *lines_of(sources, "controls", ONE_HOT_CONTROLS, group + 1, known),
        Line("untrained BiGRU", "controls/untrained_bigru", group + 2),
        *lines_of(sources, "supervised", SUPERVISED, group + 2),
    ]


def figures_of(sources: Sources, lines: Sequence[Line], measure: str, ref_of: RefOf = dotted) -> list[Figure | None]:
    return [sources.figure(ref_of(line.key, measure)) for line in lines]


def papers_of(sources: Sources, lines: Sequence[Line], measure: str, ref_of: RefOf = dotted) -> list[float | None]:
    return [sources.paper(ref_of(line.key, measure)) for line in lines]


def accuracy_plot(sources: Sources, id: str, lines: Sequence[Line], what: str) -> Plot | None:
    lines = measured_lines(sources, lines, list(MARKS))
    if not lines:
        return None
    series = [
        Series(ACCURACIES[m], *MARKS[m], figures_of(sources, lines, m), papers_of(sources, lines, m)) for m in MARKS
    ]
    alt = f"Dot plot: accuracy within, on transfer and on deep roles, by {what}. The table has the numbers."
    return dot_plot(id, [line.label for line in lines], series, alt, groups=[line.group for line in lines])


def representations(sources: Sources) -> Sequence[Part]:
    lines = [*lines_of(sources, "trace_probe", REPRESENTATIONS), *control_lines(sources, 1)]
    task = {"control_task": "accuracy on random labels", "selectivity": "selectivity (W minus that)"}
    selective = measure_table(sources, lines, task, "Control task and selectivity")
    note = el(
        "p",
        "The control task gives every word a random role; a probe that does well on it memorises words "
        "(Hewitt and Liang 2019).",
    )
    return [
        accuracy_plot(sources, "plot-representations", lines, "representation, with controls and BiGRU"),
        measure_table(sources, lines, ACCURACIES, "Accuracy by representation, controls and BiGRU"),
        note if selective else None,
        selective,
    ]


def dimension(sources: Sources) -> Sequence[Part]:
    labels = {
        "l0": "L0 activation, 1024-d",
        "traces_1024": "traces to 1024-d",
        "traces_512": "traces to 512-d",
        "l0_512": "L0 to 512-d",
    }
    lines = lines_of(sources, "dimension_control", labels)
    if "dimension_control" not in sources.chosen:
        return []
    return [
        accuracy_plot(sources, "plot-dimension", [*lines, *brief_control_lines(1)], "representation and dimension"),
        measure_table(sources, [*lines, *control_lines(sources, 1)], ACCURACIES, "Accuracy by dimension"),
        measure_table(sources, lines, {"parameters": "parameters of the probe"}, "Parameters of the probe"),
    ]


def by_role(sources: Sources) -> Sequence[Part]:
    systems = {
        "trace_probe/l0+traces": "SPCN, L0 + traces",
        "supervised/bigru": "BiGRU, unseen words untrained",
        "supervised/bigru_zero": "BiGRU, unseen words 0",
        "supervised/bigru_mean": "BiGRU, unseen words mean",
    }
    marks = [(BLUE, "circle"), (VERMILION, "square"), (PURPLE, "triangle-up"), (GREEN, "diamond")]

    def ref_of(role: str, system: str) -> str:
        return f"{system}.transfer.role.{role}"

    roles = {
        name.partition(".transfer.role.")[2]: None
        for experiment in ("trace_probe", "supervised")
        for name in sources.names(experiment)
        if ".transfer.role." in name
    }
    marked = {role for role in roles if any(sources.paper(ref_of(role, s)) is not None for s in systems)}

    def ours(role: str) -> float:
        figure = sources.figure(ref_of(role, "trace_probe/l0+traces"))
        return figure.mean if figure is not None and figure.known else -math.inf

    order = sorted(roles, key=lambda role: -ours(role))
    lines = [Line(f"★ {role}" if role in marked else role, role) for role in order]
    if not lines:
        return []
    series = [
        Series(label, *mark, figures_of(sources, lines, s, ref_of), papers_of(sources, lines, s, ref_of))
        for (s, label), mark in zip(systems.items(), marks, strict=True)
    ]
    alt = "Dot plot: transfer accuracy by role, SPCN beside the BiGRU under three codings of unseen words."
    return [
        dot_plot("plot-roles", [line.label for line in lines], series, alt, x_title="accuracy on transfer"),
        measure_table(sources, lines, systems, "Transfer accuracy by role", ref_of),
    ]


def ablations(sources: Sources) -> Sequence[Part]:
    labels = {
        "full": "full (L0 + traces)",
        "forward_only": "forward only",
        "backward_only": "backward only",
        "fast_only": "fast traces only",
        "slow_only": "slow traces only",
        "no_spa": "no SPA",
        "no_spa_no_slow": "no SPA, no slow",
    }
    names = [n.removesuffix(".within") for n in sources.names("ablations") if n.endswith(".within")]
    level_names = sorted(n for n in names if n.startswith("level") and n[5:].isdigit())
    if not names:
        return []
    parts = lines_of(sources, "ablations", labels, 0, level_names)
    levels = [Line(f"traces of L{n[5:]}", f"ablations/{n}", 1) for n in level_names]
    return [
        accuracy_plot(sources, "plot-ablations", [*parts, *brief_control_lines(2)], "what is left of the network"),
        accuracy_plot(sources, "plot-levels", levels, "level of the hierarchy"),
        measure_table(
            sources, [*parts, *levels, *control_lines(sources, 2)], ACCURACIES, "Accuracy by ablation and level"
        ),
    ]


def rules(sources: Sources) -> Sequence[Part]:
    labels = {
        "frozen": "frozen random",
        "sanger": "Sanger",
        "foldiak": "Földiák",
        "pghu": "PGHU",
        "forward_forward": "forward-forward",
    }
    spread = {
        "weight_pr": "participation ratio, weights",
        "code_pr": "participation ratio, codes",
        "weight_rank": "effective rank, weights",
        "code_rank": "effective rank, codes",
    }
    lines = lines_of(sources, "feedforward_rules", labels)
    if not measured_lines(sources, lines, [*ACCURACIES, *spread]):
        return []
    shown = measured_lines(sources, lines, ["weight_pr", "code_pr"])
    series = [
        Series(name, *mark, figures_of(sources, shown, m), papers_of(sources, shown, m))
        for (m, name), mark in zip(list(spread.items())[:2], [(PURPLE, "circle"), (GREY, "square")], strict=True)
    ]
    alt = "Dot plot: participation ratio of weights and codes by learning rule, on a logarithmic axis."
    ratio = dot_plot(
        "plot-rules-pr", [x.label for x in shown], series, alt, x_title="participation ratio (1 = collapsed)", log=True
    )
    return [
        accuracy_plot(sources, "plot-rules", [*lines, *brief_control_lines(1)], "feed-forward rule"),
        ratio if shown else None,
        measure_table(sources, [*lines, *control_lines(sources, 1)], ACCURACIES, "Accuracy by feed-forward rule"),
        measure_table(sources, lines, spread, "Participation ratio and effective rank by feed-forward rule"),
    ]


def lag_decoding(sources: Sources) -> Sequence[Part]:
    lags = [int(n.rpartition("lag")[2]) for n in sources.names("lag_decoding") if n.rpartition("lag")[2].isdigit()]
    if not lags:
        return []

    def points(name: str) -> list[tuple[int, Figure]]:
        found = ((lag, sources.figure(f"lag_decoding/{name}.lag{lag}")) for lag in sorted(set(lags)))
        return [(lag, f) for lag, f in found if f is not None and f.known]

    panels = []
    for trace, title in (("fast", "fast trace"), ("slow", "slow trace"), ("traces", "both traces")):
        lines = [
            Curve("linear probe", BLUE, "solid", "circle", points(trace)),
            Curve("peeling", VERMILION, "dash", "square", points(f"peel_{trace}")),
            Curve("peeling, one code a word", GREEN, "dash", "diamond", points(f"peel_plain_{trace}")),
            Curve("peeling, one-hots", PURPLE, "dot", "triangle-up", points(f"peel_onehot_{trace}")),
            Curve("commonest word", GREY, "dashdot", "x", points("majority")),
        ]
        role = sources.figure(f"lag_decoding/{trace}.role")
        level = ("role of the word now", role) if role is not None and role.known else None
        alt = f"Line plot: accuracy of reading the word k steps back from the {title}, against k."
        panels.append(curves(f"plot-lag-{trace}", [x for x in lines if x.points], level, alt, caption=title))
    labels = {
        "fast": "linear, fast",
        "slow": "linear, slow",
        "traces": "linear, both",
        "peel_fast": "peeling, fast",
        "peel_slow": "peeling, slow",
        "peel_plain_fast": "peeling, one code a word, fast",
        "peel_plain_slow": "peeling, one code a word, slow",
        "peel_onehot_fast": "peeling one-hots, fast",
        "peel_onehot_slow": "peeling one-hots, slow",
        "majority": "commonest word",
    }
    rows = [Line(label, f"lag_decoding/{name}") for name, label in labels.items()]
    columns = {f"lag{lag}": f"lag {lag}" for lag in sorted(set(lags))} | {"role": "role"}
    return [tuple(panels), measure_table(sources, rows, columns, "Accuracy of reading words back, by lag")]


def distances(sources: Sources) -> Sequence[Part]:
    rows = {
        "words.linear": "words, projection",
        "words.topk": "words, with top-k",
        "contexts.linear": "contexts, projection",
        "contexts.topk": "contexts, with top-k",
    }
    measures = {
        "max_distortion": "largest distortion",
        "jl_epsilon": "ε of the lemma",
        "share_within_epsilon": "share within ε",
        "spearman": "rank correlation",
    }

    def ref_of(row: str, measure: str) -> str:
        return f"distances/{row.partition('.')[0] if measure == 'jl_epsilon' else row}.{measure}"

    lines = [Line(label, key) for key, label in rows.items()]
    lines = measured_lines(sources, lines, ["max_distortion"], ref_of)
    if not lines:
        return []
    series = [
        Series(measures[m], *mark, figures_of(sources, lines, m, ref_of), papers_of(sources, lines, m, ref_of))
        for m, mark in (("max_distortion", (BLUE, "circle")), ("jl_epsilon", (GREY, "line-ns-open")))
    ]
    alt = "Dot plot: largest distortion of pairwise distances beside the lemma's bound."
    labels = [line.label for line in lines]
    return [
        dot_plot("plot-distances", labels, series, alt, x_title="relative distortion", x_range=None),
        measure_table(sources, lines, measures, "Distortion of distances", ref_of),
    ]


def position(sources: Sources) -> Sequence[Part]:
    names = {
        "position0.det_agent": "position 0 is det_agent",
        "position0.det_patient": "position 0 is det_patient",
        "position_only.within": "position only, W",
        "position_only.transfer": "position only, T",
        "position_only.deep": "position only, D",
    }
    lines = [Line(label, f"position/{name}") for name, label in names.items()]
    lines = [line for line in lines if sources.figure(line.key) is not None]
    if not lines:
        return []
    figures = [sources.figure(line.key) for line in lines]
    series = [Series("ours", BLUE, "circle", figures, [sources.paper(line.key) for line in lines])]
    alt = "Dot plot: shares of roles at position 0, and accuracy from the position alone."
    return [
        dot_plot("plot-position", [line.label for line in lines], series, alt, x_title="share or accuracy"),
        figure_table(sources, {line.label: line.key for line in lines}, "Position alone"),
    ]


def shortcuts(sources: Sources) -> Sequence[Part]:
    conditions = {
        "intact": "intact",
        "context_only": "word hidden",
        "word_only": "context hidden",
        "swapped": "word swapped",
    }
    marks = [(BLUE, "circle"), (GREEN, "diamond"), (VERMILION, "square"), (PURPLE, "triangle-up")]
    roles = dict.fromkeys(n.partition(".role.")[2] for n in sources.names("shortcuts") if ".role." in n)
    lines = [Line("all content words", "content"), *(Line(role, f"role.{role}", 1) for role in roles)]

    def ref_of(row: str, condition: str) -> str:
        return f"shortcuts/{condition}.{row}"

    lines = measured_lines(sources, lines, list(conditions), ref_of)
    if not lines:
        return []
    series = [
        Series(name, *mark, figures_of(sources, lines, c, ref_of), papers_of(sources, lines, c, ref_of))
        for (c, name), mark in zip(conditions.items(), marks, strict=True)
    ]
    alt = "Dot plot: accuracy of the BiGRU on content words, intact, with the word or its context hidden, and swapped."
    groups = [line.group for line in lines]
    return [
        dot_plot("plot-shortcuts", [line.label for line in lines], series, alt, groups=groups),
        measure_table(sources, lines, conditions, "Shortcuts of the BiGRU", ref_of),
    ]


def seed_spread(sources: Sources) -> Sequence[Part]:
    systems = {
        **{f"trace_probe/{name}": label for name, label in REPRESENTATIONS.items()},
        "controls/ema_onehot": ONE_HOT_CONTROLS["ema_onehot"],
        "supervised/bigru": SUPERVISED["bigru"],
    }
    wanted = [
        (f"{label}, {letter}", f"{system}.{m}")
        for system, label in systems.items()
        for m, letter in (("within", "W"), ("transfer", "T"), ("deep", "D"))
    ]
    found = [(label, f) for label, ref in wanted if (f := sources.figure(ref)) and f.known and len(f.values) > 1]
    if not found:
        return [el("p", "No figure has more than one seed yet.", class_="missing")] if sources.chosen else []
    alt = "Strip plot: each seed's accuracy less the mean, over the band that the number of tokens explains."
    rows = []
    for label, f in found:
        decimals = decimals_for(f.mean)
        spread = [number(f.mean, decimals), number(f.sd), interval((min(f.values), max(f.values)), decimals)]
        rows.append([label, *spread, interval(over_seeds(f), decimals), interval(over_tokens(f), decimals)])
    heads = ["figure", "mean", "sd over seeds", "least–most", "95% of the mean", "95% by tokens, one run"]
    return [
        strips("plot-spread", [label for label, _ in found], [f for _, f in found], alt),
        plain_table(heads, rows, "Spread over seeds"),
    ]


def robustness(sources: Sources) -> Sequence[Part]:
    judged = [(row, row.robustness) for row in sources.rows if row.robustness is not None]
    stored = sources.chosen.get("robustness")
    parts: list[Part] = []
    if judged:
        shares = [(r.all.holds, r.all.conditions) for _, r in judged]
        alt = "Bar chart: share of drawn grammars in which all directions of a claim hold, by claim."
        texts = [f"{row.id}: {row.claim}" for row, _ in judged]
        parts.append(share_bars("plot-shares", [row.id for row, _ in judged], shares, texts, alt))
        rows = [[row.id, row.claim, el("span", share(r.all), class_="whole"), _weakest(r.each)] for row, r in judged]
        heads = ["id", "claim", "all directions hold", "the predicate that holds least often"]
        parts.append(plain_table(heads, rows, "Claims over drawn grammars", "words"))
    if stored is not None and stored.result.conditions:
        parts += _conditions(sources, [flatten(c) for c in stored.result.conditions])
    return parts


def _weakest(each: Sequence[tuple[str, Share]]) -> Html:
    text, least = min(each, key=lambda pair: pair[1].holds / pair[1].conditions)
    return join(el("code", text), " ", el("span", share(least), class_="whole"))


def _conditions(sources: Sources, conditions: Sequence[Mapping[str, Any]]) -> list[Part]:
    """Accuracy against each number that was drawn, and the table of all draws."""
    names = list(dict.fromkeys(name for c in conditions for name in c))
    columns: dict[str, list[float | None]] = {}
    for name in names:
        values = [_as_number(c.get(name)) for c in conditions]
        if not name.endswith("seed") and len({v for v in values if v is not None}) > 1:
            columns[name] = values
    if "k" in columns:
        columns = {"k": columns["k"]} | columns
    wanted = {
        "L0 + traces, W": "trace_probe/l0+traces.within",
        "L0 + traces, T": "trace_probe/l0+traces.transfer",
        "L0, W": "trace_probe/l0.within",
        "L0, T": "trace_probe/l0.transfer",
    }
    result = sources.chosen["robustness"].result
    series = [(label, result.figures[name]) for label, name in wanted.items() if name in result.figures]
    series = [(label, f) for label, f in series if len(f.values) == len(conditions)]
    parts: list[Part] = []
    if columns and series:
        alt = "Scatter plot: accuracy of the activation with and without traces against a parameter of the grammar."
        parts.append(condition_scatter("plot-conditions", columns, series, alt))
    rows = []
    for i, c in enumerate(conditions):
        drawn = [_show(c.get(name)) for name in names]
        rows.append([drawn[0], *drawn[1:], *(number(f.values[i]) for _, f in series)])
    table = plain_table([*names, *(label for label, _ in series)], rows, "Drawn grammars")
    parts.append(el("details", el("summary", f"All {len(conditions)} draws"), table, class_="fold"))
    return parts


def flatten(record: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """`{"shares": {"passive": .5}}` to `{"shares.passive": .5}`."""
    flat: dict[str, Any] = {}
    for name, value in record.items():
        flat |= flatten(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return flat


def _as_number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _show(value: object) -> str:
    return number(value) if isinstance(value, float) else "–" if value is None else str(value)
