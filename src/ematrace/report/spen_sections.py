"""SPEN's sections of the page: tables and plots of language models, from names of figures alone."""

from __future__ import annotations

from collections.abc import Sequence

from ematrace.report.plots import BLUE, GREY, Series, dot_plot
from ematrace.report.section import Part
from ematrace.report.sources import Sources
from ematrace.report.tables import Line, figure_table, measure_table, measured_lines

MODELS = {
    "spen_training/spen-130m": "SPEN-130M",
    "gpt2_training/gpt2-130m": "GPT-2-size transformer",
}
SPEED = {
    "tokens_per_second": "tokens/s (median)",
    "tokens_per_second.slowest": "slowest step",
    "tokens_per_second.fastest": "fastest step",
    "mfu": "of the matrix-product rate",
    "peak_memory_gib": "GiB",
    "parameters": "parameters",
}
HELD_OUT = {
    "tokens": "tokens trained on",
    "validation_cross_entropy": "held-out nats",
    "unigram_cross_entropy": "unigram nats",
    "wikitext2.perplexity": "WikiText-2 ppl",
    "wikitext2.unigram_perplexity": "unigram",
    "c4.perplexity": "C4 ppl",
    "c4.unigram_perplexity": "unigram",
}
PARITY = {
    "max_difference": "largest difference of logits",
    "block_difference": "of a block's output",
    "flipped_share": "block positions that flip",
    "perplexity_parallel": "perplexity, parallel",
    "perplexity_ratio": "streamed / parallel",
}


def training(sources: Sources) -> Sequence[Part]:
    lines = [Line(label, key) for key, label in MODELS.items()]
    lines = measured_lines(sources, lines, ["tokens_per_second"])
    if not lines:
        return []
    refs = [f"{line.key}.tokens_per_second" for line in lines]
    series = [
        Series("median", BLUE, "circle", [sources.figure(r) for r in refs], [sources.paper(r) for r in refs]),
        Series("slowest step", GREY, "line-ns-open", [sources.figure(f"{r}.slowest") for r in refs], []),
    ]
    alt = "Dot plot: tokens trained on per second, the median of all steps and the slowest."
    labels = [line.label for line in lines]
    return [
        dot_plot("plot-spen-training", labels, series, alt, x_title="tokens per second", x_range=None),
        measure_table(sources, lines, SPEED, "Speed of training"),
        measure_table(sources, lines, HELD_OUT, "Perplexity on held-out text"),
    ]


def model(sources: Sources) -> Sequence[Part]:
    names = {
        "parameters": "parameters of the paper's model",
        "retention.50": "left of a token in the slow trace after 50 steps",
        "retention.200": "after 200 steps",
        "trained.validation_cross_entropy": "small SPEN, held-out nats a token",
        "trained.unigram_cross_entropy": "unigram",
        "trained.uniform_cross_entropy": "uniform",
    }
    refs = {label: f"spen_model/{name}" for name, label in names.items()}
    if not any(sources.figure(ref) for ref in refs.values()):
        return []
    variants = {"float64": "float64", "float32_dense": "float32, dense feed-forward", "float32": "float32, top-k"}
    lines = [Line(label, f"spen_model/parity.{name}") for name, label in variants.items()]
    return [
        figure_table(sources, refs, "Size, retention and a small model"),
        measure_table(sources, lines, PARITY, "Streamed against parallel"),
    ]
