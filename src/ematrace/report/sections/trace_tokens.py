"""Which token stood k steps back, read from what a trained language model holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from markupsafe import Markup

from ematrace.analysis.gap_scores import MAIN
from ematrace.report.charts import Line, line_chart, measured_points
from ematrace.report.data import ReportData
from ematrace.report.parts import Block, Content, DataTable, Fold, Paragraph, code
from ematrace.report.tables import Header, measure_table
from ematrace.results import Factors, Selector

EXPERIMENT = "trace_decoding"
MODELS = {"ema_error": "SPEN, Algorithm 1", "ema": "EMA, dense", "attention": "attention, dense"}
REPRESENTATIONS = {
    "slow": "slow trace, one vector",
    "traces": "three traces, one vector",
    "state": "traces of all blocks, one vector",
    "sequence": "slow traces, sequence",
    "keys": "keys and values, sequence",
}
CHARTED_MODELS = {**MODELS, "ema_error": "SPEN"}
CHARTED = {
    "slow": "slow trace",
    "traces": "three traces",
    "state": "traces of all blocks",
    "sequence": "two slow traces in sequence",
    "keys": "keys and values",
}
READERS = {"linear": "linear", "mlp": "hidden layer"}
BEST = "mlp"
SEQUENCES = ("sequence", "keys")
REST = Paragraph(
    Markup(
        "Readers of one vector are given what the window's other tokens tell; those of a sequence nothing else. All "
        "vectors that they read are in float32. Every gain is a lower bound: readers that are given the vector alone "
        "may gain more, and {} shows the best. Those, other blocks, and vectors in bfloat16: {}."
    ).format(code("docs/gap-content.md"), code("results/trace_decoding/")),
    "tag",
)
BASELINES: Mapping[str, str] = {"topic": "the window's other tokens as counts", "unigram": "commonest token"}


def decoded_tokens(data: ReportData) -> Sequence[Content | None]:
    found = data.table.values_of(EXPERIMENT, "lag")
    lags = sorted(lag for lag in found if isinstance(lag, int))
    sizes = [size for size in data.table.values_of(EXPERIMENT, "size") if size != "toy"]
    panels = decoding_charts(data, lags)
    tables = [
        part for size in sizes for model in MODELS for part in _model(data, {"context": model, "size": size}, lags)
    ]
    return [panels, *tables, REST] if any(tables) else [panels]


def decoding_charts(data: ReportData, lags: Sequence[int]) -> Content | None:
    """By model: the best reader's gain over the topic of the window, by lag."""
    panels: list[Content] = []
    for context, model in CHARTED_MODELS.items():
        lines = []
        for held, name in CHARTED.items():
            where: Factors = {"size": MAIN, "context": context, "representation": held, "number_format": "float32"}
            best: Factors = {**where, "reader": BEST, "given": "nothing" if held in SEQUENCES else "topic"}
            points = measured_points(data, {k: Selector(EXPERIMENT, "gain_nats", {**best, "lag": k}) for k in lags})
            lines += [Line(name, points)] if points else []
        if lines:
            panels.append(line_chart(f"Nats gained on the token k back: {model}", lines, "tokens back", "nats"))
    return Block(panels, "panels") if panels else None


def _model(data: ReportData, of: Factors, lags: Sequence[int]) -> Iterator[Content | None]:
    name = MODELS[str(of["context"])]
    read, baselines, bound = list(_readers(data, of)), _rows(BASELINES, of), list(_bound(of))
    by_lag = {
        metric: [Header(f"{lag} back", metric=metric, where={"lag": lag}) for lag in lags]
        for metric in ("accuracy", "gain_nats", "nats_all")
    }
    gains = measure_table(data, read, by_lag["gain_nats"], f"{name}: nats gained over the window's other tokens")
    allowed = measure_table(data, bound, by_lag["nats_all"], f"{name}: nats that Gaussian inputs would allow")
    decay = [
        Header("R² of an exponential, lags 1 to 64", metric="decay_r2"),
        Header("per token", metric="decay_per_step"),
        Header("shape (exponential: 1)", metric="decay_shape"),
    ]
    line = measure_table(data, read, decay, f"{name}: is the loss exponential?")
    accuracy = measure_table(
        data, [*baselines, *read], by_lag["accuracy"], f"{name}: accuracy on the token k steps back"
    )
    yield from _titled(accuracy)
    parts = [part for table in (gains, line, allowed) for part in _titled(table)]
    if parts:
        yield Fold(f"{name}: nats", parts)


def _titled(table: DataTable | None) -> list[Content]:
    """With its name above it: the tables of all models have the same rows."""
    return [] if table is None else [Paragraph(table.label), table]


def _rows(names: Mapping[str, str], of: Factors) -> list[Header]:
    return [Header(label, EXPERIMENT, where={**of, "reader": reader}) for reader, label in names.items()]


def _readers(data: ReportData, of: Factors) -> Iterator[Header]:
    """Each says one vector or sequence, and the reader. The slow trace, which claims are about, has both readers."""
    held: dict[str, Factors] = {label: {"representation": name} for name, label in REPRESENTATIONS.items()}
    blocks = [block for block in data.table.values_of(EXPERIMENT, "after_block", **of) if isinstance(block, int)]
    if blocks:
        held["residual stream at the end, one vector"] = {"representation": "hidden", "after_block": max(blocks)}
    for label, where in held.items():
        given = "nothing" if where["representation"] in SEQUENCES else "topic"
        for reader, reader_name in READERS.items():
            if reader == BEST or where["representation"] == "slow":
                factors = {**of, **where, "number_format": "float32", "given": given, "reader": reader}
                yield Header(f"{label}, {reader_name}", EXPERIMENT, where=factors)


def _bound(of: Factors) -> Iterator[Header]:
    for name in ("slow", "traces", "sequence"):
        for number_format in ("float32", "bfloat16"):
            factors = {**of, "representation": name, "number_format": number_format, "reader": "gaussian"}
            yield Header(f"{REPRESENTATIONS[name]}, {number_format}", EXPERIMENT, where=factors)
