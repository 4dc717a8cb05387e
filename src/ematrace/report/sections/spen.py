"""SPEN's sections: training beside a transformer, and a small model read both ways."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ematrace.bench.tables import count
from ematrace.report.charts import Axis, Series, dot_chart, linear_axis, log_axis
from ematrace.report.data import ReportData
from ematrace.report.parts import Content
from ematrace.report.sections.accuracy import papers_of, samples_of
from ematrace.report.tables import Header, measure_table, measured_rows, metric_columns, value_table
from ematrace.results import Factors, Selector

PRESETS = {"spen-130m": "SPEN-130M", "gpt2-130m": "GPT-2-size transformer"}
SPEED = metric_columns(
    {
        "tokens_per_second": "tokens/s (median)",
        "slowest_tokens_per_second": "slowest step",
        "fastest_tokens_per_second": "fastest step",
        "mfu": "of the matmul rate",
        "peak_memory_gib": "GiB",
        "parameters": "parameters",
    }
)
AT_130M: Mapping[str, Factors] = {
    "SPEN, Algorithm 1": {"context": "ema_error", "ffn": "topk_ste"},
    "SPEN, masked gradient": {"context": "ema_error", "ffn": "topk_masked"},
    "SPEN, dense": {"context": "ema_error", "ffn": "dense"},
    "EMA, dense": {"context": "ema"},
    "attention, dense": {"context": "attention", "positions": "rope", "ffn": "dense"},
    "attention, masked top-k": {"context": "attention", "positions": "rope", "ffn": "topk_masked"},
    "GPT-2, SPEN's parameters": {"block": "gpt2", "width": "matched"},
    "GPT-2 small": {"block": "gpt2", "width": "fixed"},
}
BUDGETS_130M = {"tokens": "", "flops": ", SPEN's FLOPs"}
HELD_OUT = [
    Header("tokens trained on", metric="tokens"),
    *(
        Header(f"{label}, {state}", metric=metric, where={"text": text, "state": state})
        for text, label, metric in (
            ("validation", "held-out nats", "cross_entropy"),
            ("wikitext2", "WikiText-2 ppl", "perplexity"),
            ("c4", "C4 ppl", "perplexity"),
        )
        for state in ("reset", "carried")
    ),
    Header("unigram, WikiText-2", metric="unigram_perplexity", where={"text": "wikitext2"}),
    Header("unigram, C4", metric="unigram_perplexity", where={"text": "c4"}),
    Header("first pass, nats", metric="pass_end_nats", where={"pass": 1}),
    Header("second pass, nats", metric="pass_end_nats", where={"pass": 2}),
]
PARITY = metric_columns(
    {
        "max_difference": "largest difference of logits",
        "block_difference": "of a block's output",
        "flipped_share": "block positions that flip",
        "perplexity_parallel": "perplexity, parallel",
        "perplexity_ratio": "streamed / parallel",
    }
)
PRECISIONS = [
    Header("float64", "spen_model", where={"precision": "float64", "ffn": "topk"}),
    Header("float32, dense feed-forward", "spen_model", where={"precision": "float32", "ffn": "dense"}),
    Header("float32, top-k", "spen_model", where={"precision": "float32", "ffn": "topk"}),
]
RATE = Header("tokens/s", metric="tokens_per_second")
STREAMS = [
    Header(f"{label}, {text}", "spen_streaming", where={"model": model, "streams": streams})
    for streams, text in ((1, "one stream"), (1024, "1,024 streams"))
    for model, label in (("spen", "SPEN"), ("gpt2", "GPT-2"))
]
STREAMS.append(
    Header("SPEN from Python, one stream", "spen_streaming", where={"model": "spen_eager", "streams": 1}, group=1)
)
PREFILL = [
    Header(f"{label}, {tokens:,} tokens", "spen_prefill", where={"model": model, "pghu": pghu, "tokens": tokens})
    for tokens in (2048, 16384)
    for model, pghu, label in (("spen", False, "SPEN"), ("gpt2", False, "GPT-2"), ("spen", True, "SPEN with PGHU"))
]


def training(data: ReportData) -> Sequence[Content | None]:
    presets = data.table.values_of("spen_training", "preset")
    labels = PRESETS | {str(name): str(name) for name in presets if name not in PRESETS}
    rows = [Header(label, "spen_training", where={"preset": preset}) for preset, label in labels.items()]
    median, slowest = SPEED[0], SPEED[1]
    rows = measured_rows(data, rows, [median])
    if not rows:
        return []
    series = [
        Series("median of the steps", samples_of(data, rows, median), papers_of(data, rows, median)),
        Series("slowest step", samples_of(data, rows, slowest)),
    ]
    return [
        dot_chart(
            "Speed of training",
            [row.label for row in rows],
            series,
            x_title="tokens per second",
            axis=speed_axis(series),
        ),
        measure_table(data, rows, SPEED, "Speed of training", "model"),
    ]


def held_out(data: ReportData) -> Sequence[Content | None]:
    rows = [
        Header(f"{label}{note}", "gap_130m", where={**where, "size": "130m", "budget": budget})
        for budget, note in BUDGETS_130M.items()
        for label, where in AT_130M.items()
    ]
    return [measure_table(data, rows, HELD_OUT, "Loss at 130M parameters", "model")]


def speed_axis(series: Sequence[Series]) -> Axis:
    """From 0, so that lengths can be compared."""
    means = [f.mean for one in series for f in one.samples if f is not None and f.known]
    papers = [paper for one in series for paper in one.papers if paper is not None]
    return linear_axis(0.0, 1.05 * max([*means, *papers], default=1.0), count)


def streaming(data: ReportData) -> Sequence[Content | None]:
    rows = measured_rows(data, STREAMS, [RATE])
    labels = [row.label for row in rows]
    series = [Series("ours", samples_of(data, rows, RATE), papers_of(data, rows, RATE))]
    known = [f.mean for f in series[0].samples if f is not None and f.known]
    prefill = measure_table(data, PREFILL, [RATE], "Speed of reading one whole sequence", "model")
    if not known:
        return [prefill]
    papers = [paper for paper in series[0].papers if paper is not None]
    axis = log_axis(min([*known, *papers]) / 1.5, 1.5 * max(known), count)
    return [
        dot_chart("Speed of streaming", labels, series, x_title="tokens per second", axis=axis),
        measure_table(data, rows, [RATE], "Speed of streaming", "model"),
        prefill,
    ]


def model(data: ReportData) -> Sequence[Content | None]:
    tiny = {"model": "spen-tiny"}
    selectors = {
        "parameters of the paper's model": Selector("spen_model", "parameters", {"model": "spen-130m"}),
        "left of a token in the slow trace after 50 steps": Selector("spen_model", "retention", {"lag": 50}),
        "after 200 steps": Selector("spen_model", "retention", {"lag": 200}),
        "small SPEN, held-out nats per token": Selector("spen_model", "validation_cross_entropy", tiny),
        "unigram": Selector("spen_model", "unigram_cross_entropy", tiny),
        "uniform": Selector("spen_model", "uniform_cross_entropy", tiny),
    }
    if not any(data.select(selector) for selector in selectors.values()):
        return []
    return [
        value_table(data, selectors, "Size, retention and a small model"),
        measure_table(data, PRECISIONS, PARITY, "Streamed against parallel", "precision"),
    ]
