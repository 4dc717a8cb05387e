"""Which token stood k steps back, read from what a trained language model holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from markupsafe import Markup

from ematrace.report.data import ReportData
from ematrace.report.parts import Content, Fold, Paragraph, code
from ematrace.report.sections.gap_controls import decoding
from ematrace.report.tables import Header, measure_table
from ematrace.results import Factors

EXPERIMENT = "trace_decoding"
MODELS = {"ema_error": "SPEN, Algorithm 1", "ema": "EMA, dense", "attention": "attention, dense"}
REPRESENTATIONS = {
    "slow": "slow trace, one vector",
    "traces": "three traces, one vector",
    "state": "traces of all blocks, one vector",
    "sequence": "slow traces, sequence",
    "keys": "keys and values, sequence",
}
READERS = {"linear": "linear", "mlp": "hidden layer"}
SEQUENCES = ("sequence", "keys")
REST = Paragraph(
    Markup(
        "Readers of one vector are given what the window's other tokens tell; those of a sequence nothing else. All "
        "vectors that they read are in float32. Other readers, and vectors in bfloat16: {}."
    ).format(code("results/trace_decoding/")),
    "tag",
)
BASELINES: Mapping[str, str] = {"topic": "the window's other tokens as counts", "unigram": "commonest token"}


def decoded_tokens(data: ReportData) -> Sequence[Content | None]:
    found = data.table.values_of(EXPERIMENT, "lag")
    lags = sorted(lag for lag in found if isinstance(lag, int))
    sizes = [size for size in data.table.values_of(EXPERIMENT, "size") if size != "toy"]
    panels, *_ = decoding(data)
    tables = [
        part for size in sizes for model in MODELS for part in _model(data, {"context": model, "size": size}, lags)
    ]
    return [panels, *tables, REST] if any(tables) else [panels]


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
    yield measure_table(data, [*baselines, *read], by_lag["accuracy"], f"{name}: accuracy of the token k steps back")
    parts: list[Content] = [part for part in (gains, line, allowed) if part is not None]
    if parts:
        yield Fold(f"{name}: nats", parts)


def _rows(names: Mapping[str, str], of: Factors) -> list[Header]:
    return [Header(label, EXPERIMENT, where={**of, "reader": reader}) for reader, label in names.items()]


def _readers(data: ReportData, of: Factors) -> Iterator[Header]:
    """Each says one vector or sequence, and the reader."""
    hidden: dict[str, Factors] = {
        f"residual stream after block {block}, one vector": {"representation": "hidden", "after_block": block}
        for block in sorted(b for b in data.table.values_of(EXPERIMENT, "after_block") if isinstance(b, int))
    }
    held: dict[str, Factors] = {label: {"representation": name} for name, label in REPRESENTATIONS.items()}
    for label, where in {**held, **hidden}.items():
        given = "nothing" if where["representation"] in SEQUENCES else "topic"
        for reader, reader_name in READERS.items():
            factors = {**of, **where, "number_format": "float32", "given": given, "reader": reader}
            yield Header(f"{label}, {reader_name}", EXPERIMENT, where=factors)


def _bound(of: Factors) -> Iterator[Header]:
    for name in ("slow", "traces", "sequence"):
        for number_format in ("float32", "bfloat16"):
            factors = {**of, "representation": name, "number_format": number_format, "reader": "gaussian"}
            yield Header(f"{REPRESENTATIONS[name]}, {number_format}", EXPERIMENT, where=factors)
