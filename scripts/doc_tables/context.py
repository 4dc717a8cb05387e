"""docs/gap.md: what a context is worth, and where traces fall behind attention."""

from __future__ import annotations

from doc_tables.blocks import table
from ematrace.analysis.gap_context import (
    RECALLED,
    RecallPart,
    build_recall_parts,
    build_worth,
    recall_without_positions,
)
from ematrace.experiments.recall import RARE, ZOOLOGY_TOKENS
from ematrace.report.data import ReportData
from ematrace.report.formatting import markdown_table, number
from ematrace.report.gap import GapData, listed, share_text, text_name, with_interval
from ematrace.results import Sample

SLICES = {"all": "all tokens", "recall": "tokens that repeat a pair", "other": "all other tokens"}
RECALL_NAMES = {
    "recall": "all",
    "rare_recall": "at most 1,250 times in training (Zoology's bound, for 10B tokens)",
    "rare_here_recall": "at most {rare_here} times in training (the same share of these tokens)",
    "distance 1-16": "last seen 1 to 16 tokens back",
    "distance 17-64": "17 to 64",
    "distance 65-256": "65 to 256",
    "distance 257+": "257 and more",
}


@table("gap-context", "gap")
def context(data: ReportData, _: str) -> str:
    """Nats that each context saves over none, and the part of them on tokens that repeat a pair."""
    scores = data.derived(GapData).scores
    by_text = {text: {worth.name: worth for worth in build_worth(scores, text)} for text in scores.texts}
    heads = ["context", *(head for text in by_text for head in (text_name(text), "of these, on repeated pairs"))]
    rows = [
        [name, *(cell for of in by_text.values() for cell in _saved(of[name].nats["all"], of[name].nats["recall"]))]
        for name in next(iter(by_text.values()))
    ]
    return markdown_table(heads, rows)


def _saved(whole: Sample, recall: Sample) -> tuple[str, str]:
    return with_interval(whole), number(recall.mean, 3)


@table("gap-context-shares", "gap")
def context_shares(data: ReportData, _: str) -> str:
    """Of what attention with RoPE saves over no context, by slice; and attention without positions beside traces."""
    scores = data.derived(GapData).scores
    rows = []
    for name in ("EMA traces", "attention without positions"):
        found = [{worth.name: worth for worth in build_worth(scores, text)}[name] for text in scores.texts]
        for part, tokens in SLICES.items():
            rows.append([name, tokens, *(share_text(worth.of_attention[part]) for worth in found)])
    lines = markdown_table(["context", "tokens", *map(text_name, scores.texts)], rows)
    apart = [recall_without_positions(scores, text) for text in scores.texts]
    nats = listed([with_interval(sample, signed=True) for sample in apart if sample is not None])
    return f"{lines}\nOn repeated pairs, attention without positions minus traces: {nats} nats per token of the text.\n"


@table("gap-recall-parts", "gap")
def recall_parts(data: ReportData, _: str) -> str:
    """Where on repeated pairs traces are behind attention with RoPE: by count in training, and by distance."""
    scores = data.derived(GapData).scores
    by_text = {text: build_recall_parts(scores, text) for text in scores.texts}
    settings = next(iter(next(iter(scores.arms.values())).values())).settings
    rare_here = round(RARE * settings["tokens"] / ZOOLOGY_TOKENS)
    heads = ["repeated pairs", "share of tokens"]
    heads += [head for text in by_text for head in (f"{text_name(text)}, nats of the gap", "per such token")]
    rows = []
    for part in RECALLED:
        if any(part in of for of in by_text.values()):
            found = [of.get(part) for of in by_text.values()]
            tokens = listed(["–" if one is None else f"{one.tokens:.1%}" for one in found])
            nats = [_behind(one) for one in found]
            rows.append([RECALL_NAMES[part].format(rare_here=rare_here), tokens, *(cell for of in nats for cell in of)])
    return markdown_table(heads, rows)


def _behind(part: RecallPart | None) -> tuple[str, str]:
    return ("–", "–") if part is None else (with_interval(part.nats), number(part.each.mean, 2))
