"""What a context is worth, and where traces fall behind attention: for page and docs."""

from __future__ import annotations

from ematrace.analysis.gap_context import (
    PARTS,
    RECALLED,
    RecallPart,
    Worth,
    build_recall_parts,
    build_worth,
)
from ematrace.report.data import ReportData
from ematrace.report.formatting import Rows, listed, number, with_interval
from ematrace.report.gap import GapData, percent, share_text, text_name

TRACES, UNORDERED = "EMA traces", "attention without positions"
MISSING = ("–", "–")
TOKENS = {"all": "all tokens", "recall": "tokens that repeat a pair", "other": "all other tokens"}
RECALL_NAMES = {
    "recall": "all",
    "rare_recall": "at most 1,250 times in training (Zoology's bound, for 10B tokens)",
    "rare_here_recall": "as rare in proportion to the tokens trained on here",
    "distance 1-16": "last seen 1 to 16 tokens back",
    "distance 17-64": "17 to 64",
    "distance 65-256": "65 to 256",
    "distance 257+": "257 and more",
}


def context_rows(data: ReportData) -> Rows | None:
    """Nats that each context saves over none, and the part of them on tokens that repeat a pair."""
    if (by_text := _worth(data)) is None:
        return None
    heads = ["context", *(head for text in by_text for head in (text_name(text), "of these, on repeated pairs"))]
    first = next(iter(by_text.values()))
    rows = [
        [name, *(cell for of in by_text.values() for cell in _saved(of[name])), str(len(first[name].seeds))]
        for name in first
        if all(name in of for of in by_text.values())
    ]
    return Rows([*heads, "seeds"], rows)


def context_share_rows(data: ReportData) -> Rows | None:
    """Of what attention with RoPE saves over no context: what traces save, and attention without positions."""
    by_text = _worth(data) or {}
    names = [name for name in (TRACES, UNORDERED) if by_text and all(name in of for of in by_text.values())]
    rows = [
        [name, tokens, *(share_text(of[name].of_attention[part]) for of in by_text.values())]
        for name in names
        for part, tokens in TOKENS.items()
    ]
    return Rows(["context", "tokens", *map(text_name, by_text)], rows) if rows else None


def recall_part_rows(data: ReportData) -> Rows | None:
    """Where on repeated pairs traces are behind attention with RoPE: by count in training, and by distance."""
    scores = data.derived(GapData).scores
    by_text = {} if scores.is_toy else {text: build_recall_parts(scores, text) for text in scores.texts}
    heads = ["repeated pairs", "share of tokens"]
    heads += [head for text in by_text for head in (f"{text_name(text)}, nats of the gap", "per such token")]
    rows = []
    for part in RECALLED:
        found = [of.get(part) for of in by_text.values()]
        if any(found):
            tokens = listed(["–" if one is None else f"{one.tokens:.1%}" for one in found])
            rows.append([RECALL_NAMES[part], tokens, *(cell for one in found for cell in _behind(one))])
    return Rows(heads, rows) if rows else None


def recall_saved_rows(data: ReportData) -> Rows | None:
    """What traces save on the same tokens: a deficit alone does not show whether they fade, since attention saves less
    at a distance as well."""
    scores = data.derived(GapData).scores
    by_text = {} if scores.is_toy else {text: build_recall_parts(scores, text) for text in scores.texts}
    heads = ["repeated pairs"]
    heads += [head for text in by_text for head in (f"{text_name(text)}, nats saved per such token", "share")]
    rows = []
    for part in RECALLED:
        found = [_of_saving(of.get(part)) for of in by_text.values()]
        if any(cells != MISSING for cells in found):
            rows.append([RECALL_NAMES[part], *(cell for cells in found for cell in cells)])
    return Rows(heads, rows) if rows else None


def context_sentence(data: ReportData) -> str:
    """Of what attention with RoPE saves over no context, what traces save; empty where an arm is missing on a text."""
    by_text = _worth(data) or {}
    found = [of[TRACES] for of in by_text.values() if TRACES in of]
    if not found or len(found) < len(by_text):
        return ""
    whole, recall, other = (listed([percent(worth.of_attention[part]) for worth in found]) for part in PARTS)
    return (
        f"With a dense layer, traces save {whole} of the nats that attention with RoPE saves over no context "
        f"({listed([text_name(text) for text in by_text])}): {recall} on tokens that repeat a pair of tokens from "
        f"earlier in the window, {other} on the others."
    )


def _worth(data: ReportData) -> dict[str, dict[str, Worth]] | None:
    """By text and context; None of toys, or where nothing is recorded."""
    scores = data.derived(GapData).scores
    found = {text: {worth.name: worth for worth in build_worth(scores, text)} for text in scores.texts}
    return None if scores.is_toy or not any(found.values()) else found


def _saved(worth: Worth) -> tuple[str, str]:
    return with_interval(worth.nats["all"]), number(worth.nats["recall"].mean, 3)


def _of_saving(part: RecallPart | None) -> tuple[str, str]:
    if part is None or part.saved is None or part.of_attention is None:
        return MISSING
    return with_interval(part.saved, 2), share_text(part.of_attention)


def _behind(part: RecallPart | None) -> tuple[str, str]:
    return MISSING if part is None else (with_interval(part.nats), number(part.each.mean, 2))
