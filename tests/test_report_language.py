"""Perplexity tables and streamed tokens on terminals, narrow ones and such that read Japanese."""

from __future__ import annotations

import io
import math
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from ematrace.evaluation import Evaluation
from ematrace.report.language import evaluation_tables
from ematrace.report.streaming import StreamPrinter, legend, marked_token
from ematrace.spen import Surprise
from ematrace.text import Document, train_bpe


def shown(renderable: Any, width: int) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(renderable)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return text


@pytest.mark.parametrize("width", [60, 80, 120])
def test_figures_are_whole_on_narrow_terminals(width: int) -> None:
    result = Evaluation()
    rng = np.random.default_rng(0)
    for _ in range(3):
        nats = rng.normal(5.0, 1.0, 40_000)
        result.add(Document("some text", "id", "domain"), np.zeros(len(nats), int), nats, {})
    text = shown(evaluation_tables(result, "a-run"), width)
    assert "…" not in text
    low, high = result.total.interval
    assert f"{result.total.cross_entropy:.3f} ± {(high - low) / 2:.3f}" in text
    assert "32,768 to 65,535" in text
    assert f"{result.positions[32_768].tokens:,}" in text


def test_bars_are_as_long_as_the_cross_entropy() -> None:
    result = Evaluation()
    result.add(Document("ab", "id", "domain"), np.zeros(2, int), np.array([8.0, 4.0]), {})
    bars = [line.count("█") for line in shown(evaluation_tables(result, "a-run"), 100).splitlines() if "█" in line]
    assert bars == [16, 8]


def surprise_of(nats: list[float]) -> Surprise:
    return Surprise(torch.tensor([nats]), None, torch.zeros(1, 1))


def test_a_character_of_several_tokens_is_shown_whole() -> None:
    tokenizer = train_bpe(["plain"], 260)
    console = Console(file=io.StringIO(), width=80)
    printer = StreamPrinter(console, "text", tokenizer)
    ids = tokenizer("naïve 日本語 🙂 end").input_ids
    for token in ids:  # each arrives by itself
        printer.show([token], surprise_of([1.0]))
    assert console.file.getvalue() == "naïve 日本語 🙂 end"  # type: ignore[attr-defined]
    assert printer.tokens == len(ids)


def test_bytes_that_never_make_a_character_are_shown_as_such() -> None:
    tokenizer = train_bpe(["plain"], 260)
    console = Console(file=io.StringIO(), width=80)
    printer = StreamPrinter(console, "text", tokenizer)
    broken = [*tokenizer("日").input_ids[:2], *tokenizer("abc").input_ids]
    printer.show(broken, surprise_of([math.nan] * len(broken)))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert shown.strip("\ufffd") == "abc"


def test_surprise_is_marked_without_colour_too() -> None:
    plain = [marked_token(" word\n", nats, colour=False).plain for nats in (5.9, 6.0, 8.9, 9.0, math.nan)]
    assert plain == [" word\n", " [word]\n", " [word]\n", " [[word]]\n", " word\n"]
    assert marked_token("\n", 20.0, colour=False).plain == "\n"
    calm, startled = (marked_token("word", nats, colour=True) for nats in (1.0, 12.0))
    assert calm.plain == startled.plain == "word"
    assert "underline" not in str(calm.style)
    assert "bold underline" in str(startled.style)  # for who cannot tell green from red


def test_the_legend_shows_the_marks_that_the_terminal_has() -> None:
    words = "surprise of each token in nats: below 6, "
    assert legend(Console(file=io.StringIO())).plain == words + "[from 6], [[from 9]]"
    assert (
        legend(Console(file=io.StringIO(), force_terminal=True, color_system="256")).plain == words + "from 6, from 9"
    )
