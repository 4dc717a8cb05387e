"""What traces keep of the words themselves: decoding by lag, and distances."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ematrace.report.charts import Axis, Line, LineChart, Point, dot_chart, linear_axis
from ematrace.report.data import ReportData
from ematrace.report.parts import Block, Content
from ematrace.report.sections.accuracy import column_series
from ematrace.report.tables import Header, measure_table, measured_rows
from ematrace.results import Factors, Selector

TRACES = {"fast": "fast trace", "slow": "slow trace", "traces": "both traces"}
MAJORITY: Factors = {"reader": "majority"}
READERS = {
    "probe": "linear probe",
    "peel": "peeling",
    "peel_plain": "peeling, one code a word",
    "peel_onehot": "peeling, one-hots",
    "majority": "commonest word",
}
ROLE: Factors = {"reader": "role"}


def _probe(trace: str) -> Factors:
    return {"reader": "probe", "trace": trace}


def _peel(codes: str, trace: str) -> Factors:
    return {"reader": "peel", "codes": codes, "trace": trace}


def lags_of(data: ReportData) -> list[int]:
    return sorted(lag for lag in data.table.values_of("lag_decoding", "lag") if isinstance(lag, int))


def lag_decoding(data: ReportData) -> Sequence[Content | None]:
    lags = lags_of(data)
    if not lags:
        return []
    panels = [lag_chart(data, trace, READERS, title) for trace, title in TRACES.items()]
    readers: dict[str, Factors] = {
        "linear, fast": _probe("fast"),
        "linear, slow": _probe("slow"),
        "linear, both": _probe("traces"),
        "peeling, fast": _peel("network", "fast"),
        "peeling, slow": _peel("network", "slow"),
        "peeling, one code a word, fast": _peel("plain", "fast"),
        "peeling, one code a word, slow": _peel("plain", "slow"),
        "peeling one-hots, fast": _peel("onehot", "fast"),
        "peeling one-hots, slow": _peel("onehot", "slow"),
        "commonest word": MAJORITY,
    }
    rows = [Header(label, "lag_decoding", where=where) for label, where in readers.items()]
    columns = [Header(f"lag {lag}", metric="word_accuracy", where={"lag": lag}) for lag in lags]
    columns.append(Header("role", metric="role_accuracy"))
    with_guess = [*rows, Header("guess from the noun's role", "lag_decoding", where=ROLE)]
    nouns, among, roles = (
        [Header(f"lag {lag}", metric=metric, where={"lag": lag}) for lag in lags]
        for metric in ("noun_accuracy", "noun_among_words_accuracy", "lagged_role_accuracy")
    )
    return [
        Block(panels, "panels"),
        measure_table(data, rows, columns, "Accuracy of reading words back, by lag"),
        measure_table(data, with_guess, nouns, "Accuracy of telling nouns apart, where one stood there, by lag"),
        measure_table(data, rows, among, "Accuracy of the probe for all words, where a noun stood there, by lag"),
        measure_table(data, rows, roles, "Accuracy of reading roles back, by lag"),
    ]


def lag_chart(
    data: ReportData,
    trace: str,
    readers: Mapping[str, str],
    caption: str,
    metric: str = "word_accuracy",
    probe_metrics: Mapping[str, str] | None = None,
) -> LineChart:
    """The word k steps back by each of these `readers`, other metrics of the probe, and as a level the role of the word
    now."""
    lags = lags_of(data)
    ways = {
        "probe": _probe(trace),
        "peel": _peel("network", trace),
        "peel_plain": _peel("plain", trace),
        "peel_onehot": _peel("onehot", trace),
        "majority": MAJORITY,
        "role": ROLE,
    }
    shown = [(name, metric, ways[way]) for way, name in readers.items()]
    shown += [(name, other, ways["probe"]) for other, name in (probe_metrics or {}).items()]
    lines = []
    for name, measured, where in shown:
        found = {k: data.sample(Selector("lag_decoding", measured, {**where, "lag": k})) for k in lags}
        points = [Point(k, f.mean, f.interval) for k, f in found.items() if f is not None and f.known]
        lines += [Line(name, points)] if points else []
    role = data.sample(Selector("lag_decoding", "role_accuracy", _probe(trace)))
    if role is not None and role.known:
        ends = [Point(k, role.mean) for k in (min(lags), max(lags))]
        lines.append(Line("role of the word now", ends, marks=False))
    x_axis = Axis(min(lags), max(lags), lags, label="{:g}".format)
    return LineChart(caption, lines, x_axis, linear_axis(0.0, 1.0), "words back", "accuracy")


def distances(data: ReportData) -> Sequence[Content | None]:
    codes = {"linear": "projection", "topk": "with top-k"}
    names = {"words": "words", "l0_states": "states of L0", "contexts": "contexts"}
    rows = [
        Header(f"{name}, {label}", "distances", where={"points": points, "code": code})
        for points, name in names.items()
        for code, label in codes.items()
    ]
    largest = Header("largest distortion", metric="max_distortion")
    # The lemma knows the number of points and of dimensions, not the code.
    epsilon = Header("ε of the lemma", metric="jl_epsilon", without=("code",))
    others = [Header("share within ε", metric="share_within_epsilon"), Header("rank correlation", metric="spearman")]
    rows = measured_rows(data, rows, [largest])
    if not rows:
        return []
    labels = [row.label for row in rows]
    series = column_series(data, rows, [largest, epsilon])
    axis = linear_axis(0.0, max((f.mean for one in series for f in one.samples if f and f.known), default=1.0))
    return [
        dot_chart("Largest distortion of distances", labels, series, x_title="relative distortion", axis=axis),
        measure_table(data, rows, [largest, epsilon, *others], "Distortion of distances"),
    ]
