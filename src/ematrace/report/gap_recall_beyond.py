"""Recall beyond ordinary context, and traces and attention together: for page and docs."""

from __future__ import annotations

from ematrace.analysis.gap_recall_beyond import (
    ALL,
    COUNTS,
    DISTANCES,
    ROPE,
    TRACES,
    UNORDERED,
    Beyond,
    Part,
    build_beyond,
)
from ematrace.analysis.gap_together import build_trials
from ematrace.analysis.plan import TEXTS
from ematrace.report.data import ReportData
from ematrace.report.formatting import Rows, number, with_interval
from ematrace.report.gap import GapData, share_text, text_name

COMPARED = (TRACES, UNORDERED, ROPE)
DISTANCE_NAMES = dict(zip(DISTANCES, ("1 to 16 tokens back", "17 to 64", "65 to 256", "257 and more"), strict=True))
COUNT_NAMES = dict(zip(COUNTS, ("never", "1 to 9 times", "10 to 99", "100 to 1,250", "more often"), strict=True))


def beyond_rows(data: ReportData) -> Rows | None:
    """Of every context, what it saves on repeated pairs, on others of the same counts, and the difference."""
    by_text = _by_text(data)
    heads = ["text", "context", "saved on repeated pairs", "on others of these counts", "beyond that"]
    heads += ["share of that of RoPE", "65 to 256 tokens back over 1 to 16, saved", "beyond"]
    rows = [
        [text_name(text), name, *_whole(found), *(_left(found, of) for of in ("saved", "beyond"))]
        for text, of_text in by_text.items()
        for name, found in of_text.items()
    ]
    return Rows(heads, rows) if rows else None


def beyond_distance_rows(data: ReportData) -> Rows | None:
    """The same by distance to the last occurrence: traces, attention without positions and with RoPE."""
    rows = []
    for text, of_text in _by_text(data, COMPARED).items():
        by_distance = [of_text[context].by_distance for context in COMPARED]
        for distance in (of for of in DISTANCES if of in by_distance[0]):
            parts = [of[distance] for of in by_distance]
            nats = [with_interval(part.beyond, 2) for part in parts]
            rows.append([text_name(text), DISTANCE_NAMES[distance], *nats, share_text(parts[0].of_attention)])
    heads = ["text", "last seen", *COMPARED, "share of traces in that of RoPE"]
    return Rows(heads, rows) if rows else None


def beyond_count_rows(data: ReportData) -> Rows | None:
    """The same by count in training, and how attention without positions compares with traces."""
    rows = []
    for text, of_text in _by_text(data, COMPARED).items():
        by_count = [of_text[context].by_count for context in COMPARED]
        for count in (of for of in (ALL, *COUNTS) if of in by_count[0]):
            traces, unordered, rope = (of[count] for of in by_count)
            shown = _against_traces(traces, unordered, rope)
            rows.append([text_name(text), COUNT_NAMES.get(count, ALL), f"{traces.tokens:.1%}", *shown])
    heads = ["text", "in training", "share of tokens", "saved, attention without positions minus traces"]
    heads += ["beyond, the same difference", "beyond, traces", "beyond, RoPE", "share of traces in that of RoPE"]
    return Rows(heads, rows) if rows else None


def together_rows(data: ReportData) -> Rows | None:
    """Traces and attention alone and together, on one seed."""
    trials = [] if data.derived(GapData).scores.is_toy else build_trials(data.cells)
    heads = ["context", "learning rate", "units"]
    heads += [head for text in TEXTS for head in (f"{text_name(text)}, repeated pairs", "all tokens")]
    rows = [
        [
            trial.name,
            f"{trial.lr:g}{', end of its grid' if trial.at_end else ''}",
            number(trial.units),
            *(number(nats[text], 3) for text in TEXTS for nats in (trial.repeated, trial.nats)),
        ]
        for trial in trials
    ]
    return Rows(heads, rows) if rows else None


def _by_text(data: ReportData, needed: tuple[str, ...] = ()) -> dict[str, dict[str, Beyond]]:
    """By text and context; of texts that have all that are needed. Empty of toys."""
    scores = data.derived(GapData).scores
    found = {} if scores.is_toy else {text: build_beyond(scores, text) for text in scores.texts}
    return {text: of for text, of in found.items() if of and set(needed) <= of.keys()}


def _whole(found: Beyond) -> tuple[str, ...]:
    part = found.by_count[ALL]
    saved, other = (number(sample.mean, 3) for sample in (part.saved, found.other))
    return saved, other, with_interval(part.beyond), "" if found.name == ROPE else share_text(part.of_attention)


def _left(found: Beyond, of: str) -> str:
    return share_text(found.left[of]) if of in found.left else "–"


def _against_traces(traces: Part, unordered: Part, rope: Part) -> tuple[str, ...]:
    differences = (unordered.saved - traces.saved, unordered.beyond - traces.beyond)
    beyond = (with_interval(part.beyond, 2) for part in (traces, rope))
    return *(with_interval(sample, signed=True) for sample in differences), *beyond, share_text(traces.of_attention)
