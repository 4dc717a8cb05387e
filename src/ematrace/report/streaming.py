"""Streamed tokens in the terminal, with the surprise of each."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

if TYPE_CHECKING:
    from ematrace.spen import SpenStream, Surprise

LONGEST_CHARACTER = 4  # bytes in UTF-8, and so tokens
CALM, STARTLED = 1.0, 12.0  # nats between which a token's colour goes from green to red
SURPRISING, VERY_SURPRISING = 6.0, 9.0  # nats from which a token is underlined, and bold as well


def has_colour(console: Console) -> bool:
    return console.color_system is not None and not console.no_color


def marked_token(text: str, nats: float, colour: bool) -> Text:
    """A token as it stands in the text, marked by its surprise: a colour and a line under it, or [brackets]."""
    if math.isnan(nats):
        return Text(text, style="dim")
    level = (nats >= SURPRISING) + (nats >= VERY_SURPRISING)
    if not colour:
        word = text.strip()
        return Text(text.replace(word, "[" * level + word + "]" * level, 1) if word else text)
    share = min(max((nats - CALM) / (STARTLED - CALM), 0.0), 1.0)
    red, green = round(80 + 175 * share), round(200 - 140 * share)
    return Text(text, style=f"{('', 'underline ', 'bold underline ')[level]}rgb({red},{green},80)")


def legend(console: Console) -> Text:
    """What the marks mean, one of each."""
    ranges = {
        f"below {SURPRISING:g}": CALM,
        f"from {SURPRISING:g}": SURPRISING,
        f"from {VERY_SURPRISING:g}": STARTLED,
    }
    marked = [marked_token(words, nats, has_colour(console)) for words, nats in ranges.items()]
    return Text.assemble("surprise of each token in nats: ", Text(", ").join(marked))


class StreamPrinter:
    """Tokens as they are streamed: marked text, or a line for each with its surprise and uncertainty."""

    def __init__(self, console: Console, layout: str, tokenizer: Any) -> None:
        self.console, self.layout, self.tokenizer = console, layout, tokenizer
        self._unfinished: list[tuple[int, float]] = []  # tokens, with their nats, that make up part of a character
        self.tokens, self.nats, self.uncertainty = 0, 0.0, 0.0
        if layout == "tsv":
            print("token\tnats\tuncertainty", flush=True)

    def show(self, ids: Sequence[int], surprise: Surprise) -> None:
        uncertainty = [None] * len(ids) if surprise.uncertainty is None else surprise.uncertainty[0].tolist()
        for token, nats, doubt in zip(ids, surprise.nats[0].tolist(), uncertainty, strict=True):
            if not math.isnan(nats):
                self.tokens += 1
                self.nats += nats
                self.uncertainty += doubt or 0.0
            text = self.tokenizer.decode([token])
            if self.layout == "text":
                self._print(token, nats)
            elif self.layout == "json":
                print(json.dumps({"token": text, "nats": None if math.isnan(nats) else nats, "uncertainty": doubt}))
            else:
                quoted = json.dumps(text, ensure_ascii=False)
                print(f"{quoted}\t{nats:.4f}\t{'' if doubt is None else f'{doubt:.6f}'}")
        sys.stdout.flush()

    def _print(self, token: int, nats: float) -> None:
        """A character whose bytes are several tokens appears with the last of them, coloured by their sum."""
        self._unfinished.append((token, nats))
        text = self.tokenizer.decode([token for token, _ in self._unfinished])
        if text.endswith("\ufffd") and len(self._unfinished) < LONGEST_CHARACTER:
            return
        whole = math.fsum(nats for _, nats in self._unfinished)
        self._unfinished.clear()
        self.console.print(marked_token(text, whole, has_colour(self.console)), end="", soft_wrap=True)

    def close(self, stream: SpenStream, errors: Console) -> None:
        """A summary on standard error, so that a program that reads the tokens does not see it."""
        if not self.tokens:
            return
        if self.layout == "text":
            self.console.print()
        mean = self.nats / self.tokens
        doubt = f", mean uncertainty {self.uncertainty / self.tokens:.4f}" if stream.pghu is not None else ""
        state = f"state {stream.state_bytes():,} bytes"
        errors.print(f"{self.tokens:,} tokens, perplexity {math.exp(min(mean, 700)):,.1f}{doubt}, {state}")
