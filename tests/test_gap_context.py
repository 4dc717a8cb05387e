"""What a context is worth, on cells with planted nats."""

from __future__ import annotations

import re

import pytest

from cells_support import make_table
from ematrace.analysis.gap_context import (
    CONTEXTS,
    NO_CONTEXT,
    NO_CONTEXT_SPARSE,
    build_recall_parts,
    build_worth,
)
from ematrace.analysis.gap_design import ATTENTION, EMA, SPEN, TRUE_GRADIENT, UNBALANCED, WITHOUT_POSITIONS, Arm
from ematrace.analysis.gap_scores import GapScores, load_scores
from ematrace.ledger import load_claims
from ematrace.report.data import ReportData
from ematrace.report.gap_context import (
    context_rows,
    context_sentence,
    context_share_rows,
    recall_part_rows,
    recall_saved_rows,
)
from ematrace.results import CellFile, Metric, Row
from gap_support import RECALL, TOKENS, run, sweep

SHARE = RECALL / TOKENS
NATS = {  # on repeated pairs, on other tokens
    NO_CONTEXT: (6.0, 5.0),
    NO_CONTEXT_SPARSE: (6.3, 5.1),
    EMA: (5.0, 4.1),
    WITHOUT_POSITIONS: (4.9, 4.4),
    ATTENTION: (2.0, 4.0),
    SPEN: (5.9, 4.8),
    UNBALANCED: (5.8, 4.7),
    TRUE_GRADIENT: (5.5, 4.6),
}
DISTANCES = {"1-16": 3.1, "17-64": 2.4, "65-256": 1.7, "257+": 0.9}  # nats by which attention is ahead


def scores_of(*arms: Arm, seeds: int = 3) -> GapScores:
    shift = (0.0, 0.01, -0.02)  # of a seed, the same in all arms: pairs do not see it
    files = [planted(arm, seed, shift[seed]) for arm in arms for seed in range(seeds)]
    return load_scores(make_table(*files, *sweep(arms)), "2m")


def planted(arm: Arm, seed: int, shift: float = 0.0, size: str = "2m") -> CellFile:
    """With a quarter of the repeated pairs at each distance."""
    recall, other = NATS[arm]
    file = run(arm, seed, other + shift, recall + shift, size=size)
    file.cells[:] = [row for row in file.cells if "distance" not in row.factors]
    for distance, ahead in DISTANCES.items():
        nats = 6.0 + shift - (ahead if arm == ATTENTION else 0.0)
        of_pairs = {"recall_nats_by_distance": Metric(nats, "nats", RECALL // len(DISTANCES))}
        file.cells.append(Row({"text": "validation", "distance": distance}, of_pairs))
    return file


@pytest.fixture(scope="module")
def scores() -> GapScores:
    return scores_of(*NATS)


def test_worth_is_what_is_saved_over_no_context(scores: GapScores) -> None:
    found = {worth.name: worth for worth in build_worth(scores, "c4")}
    assert list(found) == [name for name, (arm, _) in CONTEXTS.items() if arm in NATS]  # those that are recorded
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


def test_spens_block_is_also_compared_with_no_context_in_its_own_layer(scores: GapScores) -> None:
    found = {worth.name: worth.nats["all"].mean for worth in build_worth(scores, "c4")}
    assert found["SPEN's block"] == pytest.approx(SHARE * 0.1 + (1 - SHARE) * 0.2)
    sparse = "SPEN's block, over no context with its top-k and gradient"
    assert found[sparse] == pytest.approx(SHARE * 0.4 + (1 - SHARE) * 0.3)
    assert found["the same, no load-balance loss"] == pytest.approx(SHARE * 0.5 + (1 - SHARE) * 0.4)


def test_a_part_of_the_repeated_pairs_is_a_part_of_the_gap(scores: GapScores) -> None:
    """Half of them are rare, and none are as rare as in proportion to the tokens."""
    expected = {"recall": (SHARE, 3.0), "rare_recall": (SHARE / 2, 3.0)}
    expected |= {f"distance {name}": (SHARE / 4, ahead) for name, ahead in DISTANCES.items()}
    parts = build_recall_parts(scores, "validation")
    assert set(parts) == set(expected)
    for name, (share, ahead) in expected.items():
        assert parts[name].tokens == pytest.approx(share)
        assert parts[name].each.values == pytest.approx([ahead] * 3)
        assert parts[name].nats.values == pytest.approx([ahead * share] * 3)
    assert set(build_recall_parts(scores, "c4")) == {"recall", "rare_recall"}  # of which only slices are recorded


def test_what_traces_save_there_is_over_no_context(scores: GapScores) -> None:
    """A deficit that stays level would hide it: attention may save less at a distance, too."""
    part = build_recall_parts(scores, "wikitext2")["recall"]
    assert part.saved is not None
    assert part.of_attention is not None
    assert part.saved.values == pytest.approx([6.0 - 5.0] * 3)
    assert part.of_attention.share == pytest.approx((6.0 - 5.0) / (6.0 - 2.0))
    alone = build_recall_parts(scores_of(EMA, ATTENTION), "wikitext2")["recall"]
    assert alone.saved is alone.of_attention is None
    assert alone.each.mean == pytest.approx(3.0)


def test_nothing_without_what_is_compared_with() -> None:
    assert build_worth(scores_of(EMA, ATTENTION), "c4") == []
    without_traces = scores_of(NO_CONTEXT, ATTENTION)
    assert [worth.name for worth in build_worth(without_traces, "c4")] == ["attention with RoPE"]
    assert build_recall_parts(without_traces, "c4") == {}


def report_data(*made: CellFile) -> ReportData:
    """Rates are swept in models of a real size."""
    table = make_table(*made, *(sweep(list(NATS)) if made else []))
    return ReportData(table, load_claims(), ())


@pytest.fixture(scope="module")
def data() -> ReportData:
    return report_data(*(planted(arm, seed) for arm in NATS for seed in range(3)))


class TestRows:
    """As page and docs show them."""

    def test_a_row_for_each_context_that_is_recorded(self, data: ReportData) -> None:
        heads, rows = context_rows(data) or ((), ())
        texts = ("held-out text", "WikiText-2", "C4")
        of_texts = [head for text in texts for head in (text, "of these, on repeated pairs")]
        assert list(heads) == ["context", *of_texts, "seeds"]
        assert {row[-1] for row in rows} == {"3"}
        assert [(row[0], row[1].split(" ")[0], row[2]) for row in rows] == [
            ("EMA traces", ".920", ".200"),
            ("attention without positions", ".700", ".220"),
            ("attention with RoPE", "1.600", ".800"),
            ("SPEN's block", ".180", ".020"),
            ("SPEN's block, over no context with its top-k and gradient", ".320", ".080"),
            ("the same, no load-balance loss", ".420", ".100"),
            ("SPEN's block, no load-balance loss, true gradient", ".420", ".100"),
        ]

    def test_shares_by_slice(self, data: ReportData) -> None:
        _, rows = context_share_rows(data) or ((), ())
        shares = {(name, tokens): on_c4.split("%")[0] for name, tokens, *_, on_c4 in rows}
        assert shares["EMA traces", "tokens that repeat a pair"] == "25.0"
        assert shares["EMA traces", "all other tokens"] == "90.0"
        assert shares["attention without positions", "all other tokens"] == "60.0"
        sentence = context_sentence(data)
        assert re.search(r"traces save (5[78]%[, and]*){3} of the nats", sentence)  # .92 of 1.6
        assert "25%, 25% and 25% on tokens that repeat a pair of tokens" in sentence
        assert sentence.endswith("90%, 90% and 90% on the others.")

    def test_repeated_pairs_by_distance_and_count(self, data: ReportData) -> None:
        _, rows = recall_part_rows(data) or ((), ())
        by_name = {name: cells for name, *cells in rows}
        assert by_name["all"][0] == "20.0%, 20.0% and 20.0%"
        names = ("last seen 1 to 16 tokens back", "17 to 64", "65 to 256", "257 and more")
        assert [by_name[name][2:] for name in names] == [[each, *["–"] * 4] for each in ("3.10", "2.40", "1.70", ".90")]

    def test_what_traces_save_on_repeated_pairs(self, data: ReportData) -> None:
        _, rows = recall_saved_rows(data) or ((), ())
        by_name = {name: [cell.split(" ")[0] for cell in cells] for name, *cells in rows}
        assert by_name["all"] == ["1.00", "25.0%"] * 3
        assert by_name["257 and more"][2:] == ["–"] * 4  # ranges of one text alone are planted

    def test_nothing_of_toys_and_of_nothing(self) -> None:
        toys = (planted(arm, seed, size="toy") for arm in NATS for seed in range(3))
        for data in (report_data(*toys), report_data()):
            assert (
                context_rows(data)
                is context_share_rows(data)
                is recall_part_rows(data)
                is recall_saved_rows(data)
                is None
            )
            assert context_sentence(data) == ""
