"""SPEN's sections: training beside a transformer, and a small model read both ways."""

from __future__ import annotations

from collections.abc import Sequence

from ematrace.report.data import ReportData
from ematrace.report.parts import Content
from ematrace.report.plots import BLUE, GREY, Series, dot_plot
from ematrace.report.sections.accuracy import papers_of, samples_of
from ematrace.report.tables import Header, measure_table, measured_rows, metric_columns, value_table
from ematrace.results import Selector

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
HELD_OUT = [
    *metric_columns(
        {
            "tokens": "tokens trained on",
            "validation_cross_entropy": "held-out nats",
            "unigram_cross_entropy": "unigram nats",
        }
    ),
    Header("WikiText-2 ppl", metric="perplexity", where={"text": "wikitext2"}),
    Header("unigram", metric="unigram_perplexity", where={"text": "wikitext2"}),
    Header("C4 ppl", metric="perplexity", where={"text": "c4"}),
    Header("unigram", metric="unigram_perplexity", where={"text": "c4"}),
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


def training(data: ReportData) -> Sequence[Content | None]:
    presets = data.table.values_of("spen_training", "preset")
    labels = PRESETS | {str(name): str(name) for name in presets if name not in PRESETS}
    rows = [Header(label, "spen_training", where={"preset": preset}) for preset, label in labels.items()]
    median, slowest = SPEED[0], SPEED[1]
    rows = measured_rows(data, rows, [median])
    if not rows:
        return []
    series = [
        Series("median", BLUE, "circle", samples_of(data, rows, median), papers_of(data, rows, median)),
        Series("slowest step", GREY, "line-ns-open", samples_of(data, rows, slowest), []),
    ]
    alt = "Dot plot: tokens trained on per second, the median of all steps and the slowest."
    labels_of_rows = [row.label for row in rows]
    return [
        dot_plot("plot-spen-training", labels_of_rows, series, alt, x_title="tokens per second", x_range=None),
        measure_table(data, rows, SPEED, "Speed of training"),
        measure_table(data, rows, HELD_OUT, "Perplexity on held-out text"),
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
        measure_table(data, PRECISIONS, PARITY, "Streamed against parallel"),
    ]
