"""What traces keep of the words themselves: decoding by lag, and distances."""

from __future__ import annotations

from collections.abc import Sequence

from ematrace.report.data import ReportData
from ematrace.report.parts import Content
from ematrace.report.plots import BLUE, GREEN, GREY, PURPLE, VERMILION, Curve, Panels, Plot, curves, dot_plot
from ematrace.report.sections.accuracy import column_series
from ematrace.report.tables import Header, measure_table, measured_rows
from ematrace.results import Factors, Sample, Selector

TRACES = {"fast": "fast trace", "slow": "slow trace", "traces": "both traces"}
MAJORITY: Factors = {"reader": "majority"}


def _probe(trace: str) -> Factors:
    return {"reader": "probe", "trace": trace}


def _peel(codes: str, trace: str) -> Factors:
    return {"reader": "peel", "codes": codes, "trace": trace}


def lag_decoding(data: ReportData) -> Sequence[Content | None]:
    lags = sorted(lag for lag in data.table.values_of("lag_decoding", "lag") if isinstance(lag, int))
    if not lags:
        return []
    panels = [_lag_panel(data, trace, title, lags) for trace, title in TRACES.items()]
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
    return [Panels(panels), measure_table(data, rows, columns, "Accuracy of reading words back, by lag")]


def _lag_panel(data: ReportData, trace: str, title: str, lags: Sequence[int]) -> Plot:
    def points(where: Factors) -> list[tuple[int, Sample]]:
        found = ((k, data.sample(Selector("lag_decoding", "word_accuracy", {**where, "lag": k}))) for k in lags)
        return [(lag, sample) for lag, sample in found if sample is not None and sample.known]

    lines = [
        Curve("linear probe", BLUE, "solid", "circle", points(_probe(trace))),
        Curve("peeling", VERMILION, "dash", "square", points(_peel("network", trace))),
        Curve("peeling, one code a word", GREEN, "dash", "diamond", points(_peel("plain", trace))),
        Curve("peeling, one-hots", PURPLE, "dot", "triangle-up", points(_peel("onehot", trace))),
        Curve("commonest word", GREY, "dashdot", "x", points(MAJORITY)),
    ]
    role = data.sample(Selector("lag_decoding", "role_accuracy", _probe(trace)))
    level = ("role of the word now", role) if role is not None and role.known else None
    alt = f"Line plot: accuracy of reading the word k steps back from the {title}, against k."
    return curves(f"plot-lag-{trace}", [line for line in lines if line.points], level, alt, caption=title)


def distances(data: ReportData) -> Sequence[Content | None]:
    codes = {"linear": "projection", "topk": "with top-k"}
    rows = [
        Header(f"{points}, {label}", "distances", where={"points": points, "code": code})
        for points in ("words", "contexts")
        for code, label in codes.items()
    ]
    largest = Header("largest distortion", metric="max_distortion")
    # The lemma knows the number of points and of dimensions, not the code.
    epsilon = Header("ε of the lemma", metric="jl_epsilon", without=("code",))
    others = [Header("share within ε", metric="share_within_epsilon"), Header("rank correlation", metric="spearman")]
    rows = measured_rows(data, rows, [largest])
    if not rows:
        return []
    series = column_series(data, rows, [largest, epsilon], [(BLUE, "circle"), (GREY, "line-ns-open")])
    alt = "Dot plot: largest distortion of pairwise distances beside the lemma's bound."
    labels = [row.label for row in rows]
    return [
        dot_plot("plot-distances", labels, series, alt, x_title="relative distortion", x_range=None),
        measure_table(data, rows, [largest, epsilon, *others], "Distortion of distances"),
    ]
