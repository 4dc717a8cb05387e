"""Recall beyond ordinary context, and traces and attention together, on cells with planted nats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from cells_support import make_provenance, make_table, recorded_cells
from ematrace.analysis.gap_context import NO_CONTEXT
from ematrace.analysis.gap_design import ATTENTION, EMA, LEARNED, WITHOUT_POSITIONS, Arm
from ematrace.analysis.gap_recall_beyond import ALL, Beyond, build_beyond
from ematrace.analysis.gap_scores import load_scores
from ematrace.analysis.gap_together import CONTEXTS, REFERENCE, Trial, build_trials
from ematrace.ledger import load_claims
from ematrace.report.data import ReportData
from ematrace.report.gap_recall_beyond import beyond_count_rows, beyond_distance_rows, beyond_rows, together_rows
from ematrace.results import CellFile, Metric, Row, Table
from gap_support import run, sweep

REPEATED, OTHER = {"0": 50, "1-9": 150}, {"0": 500, "1-9": 300}  # tokens by count: 200 that repeat a pair, 800 others
BY_COUNT = {  # nats of counts 0 and 1-9, on repeated pairs and on others
    NO_CONTEXT: ((10.0, 6.0), (10.0, 6.0)),
    EMA: ((9.0, 4.6), (9.4, 5.2)),
    WITHOUT_POSITIONS: ((9.2, 4.4), (9.8, 5.4)),
    LEARNED: ((5.0, 3.0), (9.2, 5.2)),
    ATTENTION: ((4.0, 2.0), (9.0, 5.0)),
}
BY_DISTANCE = {  # on 100 repeated pairs each: 1 to 16 tokens back, 65 to 256
    NO_CONTEXT: (7.0, 7.0),
    EMA: (5.0, 6.0),
    WITHOUT_POSITIONS: (5.5, 5.7),
    LEARNED: (2.5, 4.0),
    ATTENTION: (1.5, 3.0),
}
SCATTER = (-0.1, 0.0, 0.1)  # of traces on repeated pairs, by seed


def planted(arm: Arm, seed: int, size: str = "2m") -> CellFile:
    """With counts and distances on two of the three texts."""
    more = SCATTER[seed] if arm == EMA else 0.0
    repeated, others = ([nats + of for nats in part] for part, of in zip(BY_COUNT[arm], (more, 0.0), strict=True))
    whole = (_weighted(others, OTHER), _weighted(repeated, REPEATED))
    file = run(arm, seed, *whole, size=size)
    file.cells[:] = [row for row in file.cells if not {"distance", "pair_count"} & row.factors.keys()]
    for text in ("validation", "c4"):
        for count, nats, other in zip(REPEATED, repeated, others, strict=True):
            of = {"recall_nats_by_count": _mean(nats, REPEATED[count])}
            of["other_nats_by_count"] = _mean(other, OTHER[count])
            file.cells.append(Row({"text": text, "pair_count": count}, of))
        none = {"recall_nats_by_count": _mean(0.0, 0), "other_nats_by_count": _mean(3.0, 9)}
        file.cells.append(Row({"text": text, "pair_count": "1251+"}, none))
        for distance, nats in zip(("1-16", "65-256"), BY_DISTANCE[arm], strict=True):
            at = {"recall_nats_by_distance": _mean(nats + more, 100)}
            file.cells.append(Row({"text": text, "distance": distance}, at))
    return file


def _weighted(nats: Sequence[float], tokens: Mapping[str, int]) -> float:
    return float(np.average(nats, weights=list(tokens.values())))


def _mean(nats: float, n: int) -> Metric:
    return Metric(nats if n else None, "nats", n)


def beyond(*files: CellFile, text: str = "c4") -> dict[str, Beyond]:
    return build_beyond(load_scores(make_table(*files, *sweep(list(BY_COUNT))), "2m"), text)


def files(arms: Sequence[Arm] = tuple(BY_COUNT), size: str = "2m") -> list[CellFile]:
    return [planted(arm, seed, size) for arm in arms for seed in range(3)]


@pytest.fixture(scope="module")
def found() -> dict[str, Beyond]:
    return beyond(*files())


def test_others_are_weighted_by_the_counts_of_repeated_pairs(found: dict[str, Beyond]) -> None:
    """By their own, traces would save .675 on them instead of .75."""
    traces = found["EMA traces"]
    assert traces.seeds == (0, 1, 2)
    assert traces.other.values == pytest.approx([(50 * 0.6 + 150 * 0.8) / 200] * 3)
    whole = traces.by_count[ALL]
    assert whole.tokens == pytest.approx(0.2)
    assert whole.saved.values == pytest.approx([1.3 + 0.1, 1.3, 1.3 - 0.1])  # (50 * 1 + 150 * 1.4) / 200
    assert whole.beyond.values == pytest.approx([1.4 - 0.75, 1.3 - 0.75, 1.2 - 0.75])
    assert found["attention without positions"].by_count[ALL].beyond.values == pytest.approx([1.4 - 0.5] * 3)
    assert found["attention with learned positions"].by_count[ALL].beyond.values == pytest.approx([3.5 - 0.8] * 3)
    assert found["attention with RoPE"].by_count[ALL].beyond.values == pytest.approx([4.5 - 1.0] * 3)


def test_intervals_are_over_seeds(found: dict[str, Beyond]) -> None:
    """Student's, 4.303 s / 3**.5; Fieller's is the same over a distance that is the same on all seeds."""
    whole, half = found["EMA traces"].by_count[ALL], 4.3027 * 0.1 / 3**0.5
    assert whole.beyond.interval == pytest.approx((0.55 - half, 0.55 + half), abs=1e-4)
    assert whole.of_attention.share == pytest.approx(0.55 / 3.5)
    assert whole.of_attention.interval == pytest.approx(((0.55 - half) / 3.5, (0.55 + half) / 3.5), abs=1e-4)


def test_a_count_is_compared_with_others_of_that_count(found: dict[str, Beyond]) -> None:
    traces = found["EMA traces"].by_count
    assert list(traces) == [ALL, "0", "1-9"]  # the last count has no repeated pairs
    assert [traces[count].beyond.mean for count in ("0", "1-9")] == pytest.approx([1.0 - 0.6, 1.4 - 0.8])
    assert [traces[count].of_attention.share for count in ("0", "1-9")] == pytest.approx([0.4 / 5.0, 0.6 / 3.0])
    assert [traces[count].tokens for count in ("0", "1-9")] == pytest.approx([0.05, 0.15])


def test_at_a_distance_the_same_is_subtracted(found: dict[str, Beyond]) -> None:
    traces = found["EMA traces"]
    assert [of.saved.mean for of in traces.by_distance.values()] == pytest.approx([2.0, 1.0])
    assert [of.beyond.mean for of in traces.by_distance.values()] == pytest.approx([1.25, 0.25])
    assert [of.of_attention.share for of in traces.by_distance.values()] == pytest.approx([1.25 / 4.5, 0.25 / 3.0])
    assert traces.left["saved"].share == pytest.approx(1.0 / 2.0)
    assert traces.left["beyond"].share == pytest.approx(0.25 / 1.25)
    assert found["attention with RoPE"].left["beyond"].share == pytest.approx(3.0 / 4.5)


def test_nothing_without_what_it_is_compared_with() -> None:
    assert beyond(*files((EMA, ATTENTION))) == beyond(*files((NO_CONTEXT, EMA))) == {}
    assert list(beyond(*files((NO_CONTEXT, ATTENTION)))) == ["attention with RoPE"]
    assert beyond(*files(), text="wikitext2") == {}  # which has no counts here
    assert beyond() == {}


def test_nothing_where_a_count_has_no_others() -> None:
    made = files()
    for file in made:
        for row in file.cells:
            if row.factors.get("pair_count") == "0":
                row.metrics["other_nats_by_count"] = _mean(0.0, 0)
    assert beyond(*made) == {}


BOTH = Arm("ema_attention")
SELECTED = {0.004: 3.7, 0.008: 3.66, 0.016: 3.65}


def trial(arm: Arm, lr: float, selection: float, recall: float = 2.0, **changes: Any) -> CellFile:
    """One model of a sweep."""
    fields = {"seed": 1000, "experiment": "gap_rates", **changes}
    file = run(arm, other=4.0, recall=recall, lr=lr, **fields)
    (of_model,) = (row for row in file.cells if "selection_nats" in row.metrics)
    of_model.metrics.update(selection_nats=Metric(selection), d_ff=Metric(384.0))
    return file


def together(lr: float, selection: float, recall: float = 1.3, predictor: str = "mixer") -> CellFile:
    file = trial(BOTH, lr, selection, recall, experiment="gap_predictor_rates")
    file.factors["predictor"] = predictor
    return file


def reference(**changes: Any) -> list[CellFile]:
    """Attention with RoPE, whose settings count; best at the second rate."""
    rates = zip(SELECTED, (3.2, 3.1, 3.2), strict=True)
    return [trial(ATTENTION, lr, nats, **changes) for lr, nats in rates]


def trials(*made: CellFile) -> list[Trial]:
    """Of the others."""
    return [one for one in build_trials(make_table(*made, *reference())) if one.name != REFERENCE]


class TestTogether:
    def test_the_best_rate_and_beside_the_end_of_the_grid_the_one_before(self) -> None:
        made = [together(lr, nats, recall=1 + lr) for lr, nats in SELECTED.items()]
        made += [trial(EMA, lr, nats, recall=2 + lr) for lr, nats in zip(SELECTED, (4.0, 3.9, 4.0), strict=True)]
        found = [(t.name, t.lr, t.at_end, t.repeated["c4"]) for t in trials(*made)]
        name = "EMA traces plus attention, without positions"
        assert found == [("EMA traces", 0.008, False, 2.008), (name, 0.016, True, 1.016), (name, 0.008, False, 1.008)]

    def test_the_first_rate_is_an_end_too(self) -> None:
        made = [trial(EMA, lr, nats) for lr, nats in zip(SELECTED, (3.8, 3.9, 4.0), strict=True)]
        assert [(t.lr, t.at_end) for t in trials(*made)] == [(0.004, True), (0.008, False)]

    def test_nats_are_those_of_the_texts_not_of_the_half_that_rates_are_chosen_on(self) -> None:
        (one,) = trials(*(trial(EMA, lr, 9.0 + abs(lr - 0.008)) for lr in SELECTED))
        assert one.nats["validation"] == pytest.approx(0.2 * 2.0 + 0.8 * 4.0)
        assert one.units == 384.0

    def test_other_seeds_predictors_and_settings_do_not_count(self) -> None:
        made = [trial(EMA, lr, nats) for lr, nats in SELECTED.items()]
        made += [trial(EMA, 0.032, 3.0, seed=1001), trial(EMA, 0.064, 3.0, settings={"tokens": 1, "vocab_size": 8192})]
        made += [together(lr, 3.0, predictor="static") for lr in SELECTED]
        assert [(t.name, t.lr) for t in trials(*made)] == [
            ("EMA traces", 0.016),
            ("EMA traces", 0.008),
        ]

    def test_the_settings_are_those_of_attention_however_few_have_them(self) -> None:
        other = {"settings": {"tokens": 1, "vocab_size": 8192}}
        made = [trial(arm, lr, 3.0 + lr, **other) for arm in (EMA, WITHOUT_POSITIONS) for lr in SELECTED]
        assert {t.name for t in build_trials(make_table(*made, *reference()))} == {REFERENCE}
        assert {t.name for t in build_trials(make_table(*made, *reference(**other)))} == {
            "EMA traces", "attention without positions", REFERENCE,
        }  # fmt: skip
        assert build_trials(make_table(*made)) == []
        assert build_trials(make_table(*made, reference()[0], *reference(**other)[1:])) == []

    def test_what_a_gpu_trained_does_not_stand_beside_what_cores_trained(self) -> None:
        on_gpu = make_provenance(hardware={"cpu": "x", "gpu": "y"})
        made = [trial(EMA, lr, 3.0 + lr, provenance=on_gpu) for lr in SELECTED]
        assert trials(*made) == []
        assert {t.name for t in build_trials(make_table(*made, *reference(provenance=on_gpu)))} == {
            "EMA traces",
            REFERENCE,
        }

    def test_what_is_recorded_has_every_context(self) -> None:
        """None was recorded anew with other settings."""
        assert {t.name for t in build_trials(Table(recorded_cells()))} == CONTEXTS.keys()


def report_data(*made: CellFile) -> ReportData:
    return ReportData(make_table(*made, *(sweep(list(BY_COUNT)) if made else [])), load_claims(), ())


@pytest.fixture(scope="module")
def data() -> ReportData:
    return report_data(*files(), *reference(), *(together(lr, nats) for lr, nats in SELECTED.items()))


class TestRows:
    """As page and docs show them."""

    def test_every_context_on_every_text_that_has_counts(self, data: ReportData) -> None:
        _, rows = beyond_rows(data) or ((), ())
        assert [row[0] for row in rows] == ["held-out text"] * 4 + ["C4"] * 4
        assert rows[0][1:] == [
            "EMA traces", "1.300", ".750", ".550 (.302–.798)", "15.7% (8.6 to 22.8%)",
            # Traces scatter at both distances alike, so (x - e) / (y - e): the ends solve |x - r y| = .2484 (1 - r).
            *("50.0% (42.9 to 55.5%)", "20.0% (.2 to 33.3%)"),
        ]  # fmt: skip
        assert rows[2][1:5] == ["attention with learned positions", "3.500", ".800", "2.700"]
        assert rows[3][1:6] == ["attention with RoPE", "4.500", "1.000", "3.500", ""]

    def test_by_distance(self, data: ReportData) -> None:
        _, rows = beyond_distance_rows(data) or ((), ())
        assert [row[1] for row in rows] == ["1 to 16 tokens back", "65 to 256"] * 2
        assert [[cell.split(" ")[0] for cell in row[2:]] for row in rows[:2]] == [
            ["1.25", "1.00", "4.50", "27.8%"],
            [".25", ".80", "3.00", "8.3%"],
        ]

    def test_by_count_and_attention_without_positions_minus_traces(self, data: ReportData) -> None:
        heads, rows = beyond_count_rows(data) or ((), ())
        assert len(heads) == len(rows[0])
        assert [row[1] for row in rows[:3]] == ["all", "never", "1 to 9 times"]
        shown = [[cell.split(" ")[0] for cell in row[2:]] for row in rows[:3]]
        assert shown[0] == ["20.0%", "+.100", "+.350", ".55", "3.50", "15.7%"]
        assert shown[1] == ["5.0%", "\N{MINUS SIGN}.200", "+.200", ".40", "5.00", "8.0%"]  # .8 - 1; .6 - .4
        assert shown[2] == ["15.0%", "+.200", "+.400", ".60", "3.00", "20.0%"]

    def test_together(self, data: ReportData) -> None:
        heads, rows = together_rows(data) or ((), ())
        assert len(heads) == len(rows[0])
        by_name = [row for row in rows if row[0].startswith("EMA traces plus")]
        assert [row[1:4] for row in by_name] == [["0.016, end of its grid", "384", "1.300"], ["0.008", "384", "1.300"]]

    def test_nothing_of_toys_and_of_nothing(self) -> None:
        for data in (report_data(*files(size="toy")), report_data()):
            assert beyond_rows(data) is beyond_distance_rows(data) is beyond_count_rows(data) is None
            assert together_rows(data) is None
