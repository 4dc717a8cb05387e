"""What traces give of what attention gives, for the page's opening."""

from __future__ import annotations

from ematrace.analysis.gap_context import PARTS, Worth, build_worth
from ematrace.report.gap import GapData, listed, percent, text_name

TRACES = "EMA traces"


def context_sentence(gap: GapData) -> str:
    """Of what attention with rope saves over no context: on all tokens, on those that repeat a pair, on the others.
    Empty where an arm is missing on a text."""
    found = [_traces(build_worth(gap.scores, text)) for text in gap.scores.texts]
    known = [worth for worth in found if worth is not None]
    if not known or len(known) < len(found):
        return ""
    whole, recall, other = (listed([percent(worth.of_attention[part]) for worth in known]) for part in PARTS)
    return (
        f"With a dense layer, traces save {whole} of the nats that attention with rope saves over no context on "
        f"{listed([text_name(text) for text in gap.scores.texts])}: {other} on most tokens, {recall} on those that repeat "
        "a pair of tokens from earlier in the window."
    )


def _traces(found: list[Worth]) -> Worth | None:
    return next((worth for worth in found if worth.name == TRACES), None)
