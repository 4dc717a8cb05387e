"""What a context is worth, on cells with planted nats."""

from __future__ import annotations

import pytest

from cells_support import make_table
from ematrace.analysis.gap_context import (
    CONTEXTS,
    NO_CONTEXT,
    build_recall_parts,
    build_worth,
    recall_without_positions,
)
from ematrace.analysis.gap_design import ATTENTION, EMA, WITHOUT_POSITIONS, ArmFactors
from ematrace.analysis.gap_scores import GapScores, load_scores
from gap_support import RECALL, TOKENS, run, sweep

SHARE = RECALL / TOKENS
NATS = {  # on repeated pairs, on other tokens
    NO_CONTEXT: (6.0, 5.0),
    EMA: (5.0, 4.1),
    WITHOUT_POSITIONS: (4.9, 4.4),
    ATTENTION: (2.0, 4.0),
}


def scores_of(*arms: ArmFactors, seeds: int = 3) -> GapScores:
    shift = (0.0, 0.01, -0.02)  # of a seed, the same in all arms: pairs do not see it
    files = [
        run(arm, seed, NATS[arm][1] + shift[seed], NATS[arm][0] + shift[seed]) for arm in arms for seed in range(seeds)
    ]
    return load_scores(make_table(*files, *sweep(arms)), "2m")


@pytest.fixture(scope="module")
def scores() -> GapScores:
    return scores_of(*NATS)


def test_worth_is_what_is_saved_over_no_context(scores: GapScores) -> None:
    found = {worth.name: worth for worth in build_worth(scores, "c4")}
    assert list(found) == [name for name, arm in CONTEXTS.items() if arm in NATS]  # those that are recorded
    traces = found["EMA traces"]
    assert traces.seeds == (0, 1, 2)
    assert traces.nats["recall"].values == pytest.approx([SHARE * 1.0] * 3)
    assert traces.nats["other"].values == pytest.approx([(1 - SHARE) * 0.9] * 3)
    assert traces.nats["all"].mean == pytest.approx(traces.nats["recall"].mean + traces.nats["other"].mean)


def test_shares_are_of_what_attention_saves_on_the_same_tokens(scores: GapScores) -> None:
    (traces,) = (worth for worth in build_worth(scores, "validation") if worth.name == "EMA traces")
    assert traces.of_attention["recall"].share == pytest.approx(1 / 4)
    assert traces.of_attention["other"].share == pytest.approx(0.9 / 1.0)
    assert traces.of_attention["all"].share == pytest.approx((SHARE + (1 - SHARE) * 0.9) / (SHARE * 4 + (1 - SHARE)))


def test_attention_without_positions_against_traces_on_repeated_pairs(scores: GapScores) -> None:
    apart = recall_without_positions(scores, "wikitext2")
    assert apart is not None
    assert apart.values == pytest.approx([-0.1 * SHARE] * 3)


def test_a_part_of_the_repeated_pairs_is_a_part_of_the_gap(scores: GapScores) -> None:
    """Half of them are rare, and none are as rare as in proportion to the tokens; all lie 1 to 16 tokens back."""
    parts = build_recall_parts(scores, "validation")
    assert set(parts) == {"recall", "rare_recall", "distance 1-16"}
    for name, share in {"recall": SHARE, "rare_recall": SHARE / 2, "distance 1-16": SHARE}.items():
        assert parts[name].tokens == pytest.approx(share)
        assert parts[name].each.values == pytest.approx([3.0] * 3)
        assert parts[name].nats.values == pytest.approx([3.0 * share] * 3)
    assert "distance 1-16" not in build_recall_parts(scores, "c4")  # of which only slices are recorded


def test_nothing_without_what_is_compared_with() -> None:
    assert build_worth(scores_of(EMA, ATTENTION), "c4") == []
    without_traces = scores_of(NO_CONTEXT, ATTENTION)
    assert [worth.name for worth in build_worth(without_traces, "c4")] == ["attention with RoPE"]
    assert recall_without_positions(without_traces, "c4") is None
    assert build_recall_parts(without_traces, "c4") == {}
