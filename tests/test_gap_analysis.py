"""The gap taken apart: on cells with planted effects, against brute force, simulation and another library."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise, permutations
from typing import Any

import numpy as np
import pytest
from scipy import stats

from cells_support import make_table
from ematrace.analysis import gap_design
from ematrace.analysis.gap import (
    Chain,
    Step,
    _sign_doubts,
    build_chain,
    build_recall,
    build_shares,
    doubts,
    factorial_arms,
    judge_traces,
    ratio,
)
from ematrace.analysis.gap_closure import Closure, build_closure
from ematrace.analysis.gap_design import (
    ATTENTION,
    CHAIN,
    EMA,
    LEARNED,
    NO_ERROR_AT_FIXED_WIDTH,
    PLAYERS,
    STEP_ENDS,
    WITHOUT_POSITIONS,
    Arm,
    corner,
    step_name,
)
from ematrace.analysis.gap_scores import SWEEP, Absence, load_scores, published_rate, runs_of, sweeps
from ematrace.analysis.rates import Sweep
from ematrace.analysis.shapley import shapley_value
from ematrace.intervals import crossed_interval, fieller_interval, holm_adjusted, mean_p_value
from ematrace.results import Metric, Row, Sample, Table
from gap_support import ARMS, NATS, RATE, RECALL, TOKENS, run, sweep


def table(
    nats: Mapping[Arm, float] | Callable[[Arm], float],
    recall: Callable[[Arm], float] = lambda arm: 4.0,
    *,
    seeds: int = 5,
    noise: float = 0.003,
    **changes: Any,
) -> Table:
    """Arms with these nats on other tokens and on recall tokens; a seed shifts all arms, and each a little more."""
    of = nats if callable(nats) else nats.__getitem__
    arms = ARMS if callable(nats) else tuple(nats)
    rng = np.random.default_rng(0)
    shifts = rng.normal(0, 0.02, seeds)
    files = [
        run(arm, seed, of(arm) + shifts[seed] + noise * rng.normal(), recall(arm) + shifts[seed], **changes)
        for seed in range(seeds)
        for arm in arms
    ]
    return make_table(*files, *([] if changes.get("size") == "toy" else sweep(arms)))


def test_the_design_is_that_of_the_experiments() -> None:
    assert set(ARMS) <= set(gap_design.ARMS)  # which are measured
    assert len(factorial_arms()) == 12  # eight corners, and four between them
    assert CHAIN[-1] == Arm("attention", "learned", block="gpt2")
    assert Arm("attention") == WITHOUT_POSITIONS
    assert Arm("ema", norm="algorithm1", width="fixed") == NO_ERROR_AT_FIXED_WIDTH


class TestChain:
    def test_planted_steps_are_found_and_add_up(self) -> None:
        recall = {arm: 4.0 - 0.5 * (arm.context == "attention") for arm in CHAIN}
        chain = build_chain(load_scores(table(NATS, recall.__getitem__), "2m"), "validation")
        assert chain is not None
        assert [step.name for step in chain.steps] == [step_name(*ends) for ends in pairwise(STEP_ENDS)]
        for step in chain.steps:
            joined = step.name == "attention with learned positions, not traces"
            planted, other = (0.5 * RECALL / TOKENS, 0.16) if joined else (0.0, 0.08)
            assert step.recall.mean == pytest.approx(planted, abs=1e-9)
            assert step.other.mean == pytest.approx(other, abs=0.01)
            assert step.nats.mean == pytest.approx(step.recall.mean + step.other.mean)
            low, high = step.nats.interval or (0.0, 0.0)
            assert low < planted + other < high
            assert step.p_value is not None
            assert step.p_value < 0.05
        assert chain.whole.nats.mean == pytest.approx(chain.start.mean - chain.end.mean)
        assert sum(step.nats.mean for step in chain.steps) == pytest.approx(chain.whole.nats.mean)
        assert chain.seeds == (0, 1, 2, 3, 4)

    def test_attention_and_positions_are_one_step_and_its_halves_a_detail(self) -> None:
        """Without positions attention gains nothing here, and with them .2: whose step that is depends on the order."""
        nats = {**NATS, WITHOUT_POSITIONS: NATS[CHAIN[6]]}
        whole = build_chain(load_scores(table(nats, noise=0.0), "2m"), "validation")
        assert whole is not None
        assert len(whole.steps) == 8
        assert [half.name for half in whole.halves] == ["attention, not traces", "learned positions"]
        assert [half.nats.mean for half in whole.halves] == pytest.approx([0.0, 0.16])
        assert [half.p_value for half in whole.halves] == [None, None]
        del nats[WITHOUT_POSITIONS]
        without = build_chain(load_scores(table(nats, noise=0.0), "2m"), "validation")
        assert without is not None
        assert (without.halves, set(without.missing)) == ((), {WITHOUT_POSITIONS})
        assert [step.nats.mean for step in without.steps] == pytest.approx([step.nats.mean for step in whole.steps])

    def test_intervals_are_paired(self) -> None:
        """Seeds move all arms together by .02: an unpaired interval would be ten times as wide."""
        chain = build_chain(load_scores(table(NATS), "2m"), "validation")
        assert chain is not None
        for step in chain.steps:
            low, high = step.nats.interval or (0.0, 1.0)
            assert high - low < 0.02

    def test_an_interval_for_other_text_beside_it(self) -> None:
        """The last step is worth .1 in one half of the text and .3 in the other, on every seed."""
        halves = dict.fromkeys(CHAIN, (5.0, 5.0)) | {CHAIN[-1]: (4.9, 4.7)}
        made = [
            run(arm, seed, np.mean(halves[arm]) + 0.001 * seed * i, 5.0, stretches={"validation": halves[arm]})
            for i, arm in enumerate(CHAIN)
            for seed in range(3)
        ]
        chain = build_chain(load_scores(make_table(*made, *sweep(CHAIN)), "2m"), "validation")
        assert chain is not None
        last = chain.steps[-1]
        assert last.nats.interval is not None
        assert last.nats.interval[1] - last.nats.interval[0] < 0.01
        assert last.over_text == pytest.approx(crossed_interval(np.array([[0.1, 0.3]] * 3)))
        assert last.over_text is not None
        assert last.over_text[1] - last.over_text[0] > 0.1
        other = build_chain(load_scores(make_table(*made, *sweep(CHAIN)), "2m"), "c4")
        assert other is not None
        assert other.steps[-1].over_text is None  # not kept of this text

    def test_p_values_are_holms(self) -> None:
        flat = {arm: 5.0 - 0.004 * i for i, arm in enumerate(CHAIN)}
        chain = build_chain(load_scores(table(flat), "2m"), "validation")
        assert chain is not None
        plain = [float(stats.ttest_1samp(step.nats.values, 0).pvalue) for step in chain.steps]
        assert [step.p_value for step in chain.steps] == pytest.approx(holm_adjusted(plain))
        assert plain != pytest.approx(holm_adjusted(plain))

    def test_a_missing_arm_joins_its_steps_and_is_named(self) -> None:
        without = {arm: nats for arm, nats in NATS.items() if arm != CHAIN[3]}
        scores = load_scores(table(without), "2m")
        chain = build_chain(scores, "validation")
        assert chain is not None
        assert chain.missing == {CHAIN[3]: Absence("its learning rates were not swept", SWEEP)}
        assert chain.steps[2].name == "all units, not 6%; context into the residual"
        assert len(chain.steps) == 7

    @pytest.mark.parametrize("end", [0, -1])
    def test_without_an_end_there_is_no_chain(self, end: int) -> None:
        without = {arm: nats for arm, nats in NATS.items() if arm != CHAIN[end]}
        assert build_chain(load_scores(table(without), "2m"), "validation") is None

    def without(self, *lacking: tuple[Arm, int]) -> Chain:
        cells = (s for s in table(NATS).cells if (Arm.of(s.cell.factors), s.cell.seed) not in lacking)
        chain = build_chain(load_scores(Table(cells), "2m"), "validation")
        assert chain is not None
        return chain

    def test_an_arm_that_lacks_a_seed_is_left_out_and_not_the_seed(self) -> None:
        chain = self.without((CHAIN[4], 2))
        assert chain.seeds == (0, 1, 2, 3, 4)
        assert chain.missing == {CHAIN[4]: Absence("it lacks seed 2, which the others have")}
        assert len(chain.steps) == 7
        assert [len(step.nats.values) for step in chain.steps] == [5] * 7

    def test_without_half_of_its_positions_the_joined_step_has_no_halves(self) -> None:
        chain = self.without((WITHOUT_POSITIONS, 3))
        assert (len(chain.steps), chain.halves, list(chain.missing)) == (8, (), [WITHOUT_POSITIONS])

    def test_a_seed_that_few_arms_have_does_not_count(self) -> None:
        """A recording that ended in the middle of a seed, and one of which an end of the chain lacks a seed."""
        ended = self.without(*((arm, 4) for arm in CHAIN[3:]))
        assert (ended.seeds, ended.missing) == ((0, 1, 2, 3), {})
        assert self.without((CHAIN[-1], 2)).seeds == (0, 1, 3, 4)

    def test_slices_that_do_not_add_up_are_refused(self) -> None:
        files = [run(arm, seed, nats, 4.0) for arm, nats in NATS.items() for seed in range(2)]
        broken = next(row for row in files[-1].cells if row.factors.get("slice") == "recall")
        at = files[-1].cells.index(broken)
        files[-1].cells[at] = Row(broken.factors, {**broken.metrics, "nats": Metric(3.0, "nats", RECALL)})
        scores = load_scores(make_table(*files, *sweep(CHAIN)), "2m")
        with pytest.raises(ValueError, match=r"\.json: recall and other tokens of 'validation' do not add up to all"):
            build_chain(scores, "validation")

    def test_one_seed_has_no_interval(self) -> None:
        chain = build_chain(load_scores(table(NATS, seeds=1), "2m"), "validation")
        assert chain is not None
        assert {step.p_value for step in chain.steps} == {None}
        assert chain.whole.nats.interval is None


class TestWhatMayBePublished:
    @pytest.mark.parametrize(("name", "value", "usual"), [("tokens", 1, 117440512), ("vocab_size", 50257, 8192)])
    def test_other_settings_are_left_out_and_named(self, name: str, value: int, usual: int) -> None:
        settings = {"tokens": 117_440_512, "vocab_size": 8192, name: value}
        odd = [run(CHAIN[2], seed, 4.8, 4.0, settings=settings) for seed in range(5)]
        rest = [run(arm, seed, n, 4.0) for arm, n in NATS.items() if arm != CHAIN[2] for seed in range(5)]
        scores = load_scores(make_table(*rest, *odd, *sweep(CHAIN)), "2m")
        assert scores.absence(CHAIN[2]) == Absence(f"of other settings: {name} {value} instead of {usual}")
        assert len(scores.dropped) == 5
        chain = build_chain(scores, "validation")
        assert chain is not None
        assert list(chain.missing) == [CHAIN[2]]

    def test_one_seed_of_other_settings_leaves_the_arm_without_it(self) -> None:
        made = [
            run(arm, seed, n, 4.0, **({"settings": {"tokens": 1}} if (arm, seed) == (CHAIN[2], 1) else {}))
            for arm, n in NATS.items()
            for seed in range(3)
        ]
        chain = build_chain(load_scores(make_table(*made, *sweep(CHAIN)), "2m"), "validation")
        assert chain is not None
        assert chain.missing == {CHAIN[2]: Absence("it lacks seed 1, which the others have")}

    def test_an_arm_with_more_parameters_is_left_out(self) -> None:
        def of(arm: Arm, share: float) -> Absence | None:
            more = {"parameters": 1_901_824 * share}
            made = [run(one, 0, n, 4.0, **(more if one == arm else {})) for one, n in all_arms.items()]
            return load_scores(make_table(*made, *sweep(tuple(all_arms))), "2m").absence(arm)

        all_arms = {**NATS, NO_ERROR_AT_FIXED_WIDTH: 4.0}
        assert of(CHAIN[5], 1.005) is None
        assert of(CHAIN[5], 1.02) == Absence("has 1,939,860 parameters, the others 1,901,824")
        assert of(NO_ERROR_AT_FIXED_WIDTH, 0.9) is None  # unmatched on purpose

    def test_a_run_without_a_score_is_left_out_and_named(self) -> None:
        files = [run(arm, seed, n, 4.0) for arm, n in NATS.items() for seed in range(3)]
        broken = files[4]
        broken.cells[:] = [
            Row(r.factors, {**r.metrics, "nats": Metric(None, "nats", TOKENS)})
            if r.factors.get("slice") == "all"
            else r
            for r in broken.cells
        ]
        scores = load_scores(make_table(*files, *sweep(CHAIN)), "2m")
        assert len(scores.dropped) == 1
        assert scores.dropped[0].endswith("its nats on 'validation' are not known")
        chain = build_chain(scores, "validation")
        assert chain is not None
        assert chain.missing == {CHAIN[1]: Absence("it lacks seed 1, which the others have")}

    def test_other_tokens_are_left_out(self) -> None:
        files = [run(arm, 0, n, 4.0) for arm, n in NATS.items()]
        other = [Row(r.factors, {**r.metrics, "unigram_nats": Metric(7.1, "nats", TOKENS)}) for r in files[3].cells]
        files[3] = run(CHAIN[3], 0, 4.7, 4.0)
        files[3].cells[:] = other
        scores = load_scores(make_table(*files, *sweep(CHAIN)), "2m")
        assert scores.absence(CHAIN[3]) == Absence("of other settings: scored on other tokens")

    def test_an_arm_with_its_best_rate_at_the_end_is_not_published(self) -> None:
        files = [run(arm, seed, n, 4.0) for arm, n in NATS.items() for seed in range(2)]
        swept = [*sweep(CHAIN[:-1]), *sweep(CHAIN[-1:], rates=(0.0005, 0.001, 0.002, 0.003, RATE))]
        scores = load_scores(make_table(*files, *swept), "2m")
        assert scores.absence(CHAIN[-1]) == Absence("its best rate, 0.004, is at the end of the grid", SWEEP)
        assert build_chain(scores, "validation") is None

    @pytest.mark.parametrize(
        ("rates", "curve", "expected"),
        [
            ([0.002], {0.002: 5.0, 0.004: 4.9, 0.008: 5.0}, Absence("its cells are at 0.002, the best rate is 0.004")),
            ([0.004], {}, Absence("its learning rates were not swept", SWEEP)),
            ([0.002, 0.004], {0.002: 5.0, 0.004: 4.9, 0.008: 5.0}, 0.004),
        ],
    )
    def test_cells_count_at_the_best_rate_only(
        self, rates: list[float], curve: dict[float, float], expected: float | Absence
    ) -> None:
        swept = Sweep({}, {rate: {0: nats} for rate, nats in curve.items()}) if curve else None
        assert published_rate(rates, swept, "2m") == expected

    def test_an_arm_without_cells_waits_for_cells_or_for_its_rate(self) -> None:
        edge = sweep(CHAIN[4:5], rates=(0.0005, 0.001, 0.002, 0.003, RATE))
        scores = load_scores(make_table(*sweep(CHAIN[3:4]), *edge), "2m")
        assert [scores.absence(arm) for arm in CHAIN[3:6]] == [
            Absence("no cells"),
            Absence("its best rate, 0.004, is at the end of the grid", SWEEP),
            Absence("its learning rates were not swept", SWEEP),
        ]

    def test_toys_are_never_those_of_another_size(self) -> None:
        cells = table(NATS, size="toy")
        assert load_scores(cells, "2m").arms == {}
        toy = load_scores(cells, "toy")
        assert toy.is_toy
        assert build_chain(toy, "validation") is not None

    def test_a_table_keeps_the_results_of_each_function_apart(self) -> None:
        cells = make_table(*sweep(CHAIN[:1]))
        assert set(sweeps(cells, "2m", SWEEP)) == {CHAIN[0]}
        assert runs_of(cells, "2m", SWEEP) == ()  # the same arguments, here of an experiment called "2m"

    def test_without_cells_nothing_is_there(self) -> None:
        scores = load_scores(make_table(), "2m")
        assert scores.texts == ()
        assert scores.absence(EMA) == Absence("no cells")


def brute_force(worth: Callable[[frozenset[str]], float]) -> dict[str, float]:
    """The mean over all orders of what a player adds when its turn comes."""
    total = dict.fromkeys(PLAYERS, 0.0)
    orders = list(permutations(PLAYERS))
    for order in orders:
        moved = [frozenset(order[:i]) for i in range(len(order) + 1)]
        for player, (before, after) in zip(order, pairwise(moved), strict=True):
            total[player] += (worth(after) - worth(before)) / len(orders)
    return total


class TestShares:
    def test_values_are_those_of_all_orders(self) -> None:
        rng = np.random.default_rng(3)
        loss: dict[frozenset[str], float] = {}

        def worth(moved: frozenset[str]) -> float:
            return loss.setdefault(moved, float(rng.normal()))

        expected = brute_force(worth)
        for player in PLAYERS:
            value = shapley_value(player, list(PLAYERS), lambda moved: np.array([worth(moved)]))
            assert value == pytest.approx([expected[player]])

    def test_planted_effects_with_an_interaction(self) -> None:
        """Context .3, ffn .4 (.1 of it the gradient), residual .2, and .12 more where context and residual meet."""

        def nats(arm: Arm) -> float:
            context, residual = "attention" in arm.context, arm.residual == "direct"
            ffn = {"topk_ste": 0.0, "topk_masked": 0.1, "dense": 0.4}[arm.ffn]
            return 6.0 - 0.3 * context - ffn - 0.2 * residual - 0.12 * (context and residual)

        scale = 1 - RECALL / TOKENS
        shares = build_shares(load_scores(table(nats, noise=0.0), "2m"), "validation")
        assert shares is not None
        assert shares.whole.mean == pytest.approx(1.02 * scale)
        for player, value in {"context": 0.36, "ffn": 0.40, "residual": 0.26}.items():
            found = shares.players[player]
            assert found.part.mean == pytest.approx(value * scale)
            assert found.share == pytest.approx(value / 1.02)
        assert shares.split["gradient"].part.mean == pytest.approx(0.1 * scale)
        assert shares.split["selection"].part.mean == pytest.approx(0.3 * scale)
        assert sum(found.part.mean for found in shares.players.values()) == pytest.approx(shares.whole.mean)

    def test_the_split_adds_up_where_corners_differ(self) -> None:
        rng = np.random.default_rng(5)
        found: dict[Arm, float] = {}
        shares = build_shares(
            load_scores(table(lambda arm: found.setdefault(arm, 5 + rng.random())), "2m"), "validation"
        )
        assert shares is not None
        assert sum(part.part.mean for part in shares.split.values()) == pytest.approx(shares.players["ffn"].part.mean)

    def test_no_share_of_less_than_a_tenth_of_a_nat(self) -> None:
        small = ratio(np.array([0.05, 0.06, 0.05]), np.array([0.09, 0.10, 0.11]))
        assert (small.share, small.interval) == (None, None)
        assert small.part.mean == pytest.approx(0.16 / 3)
        assert ratio(np.array([0.1]), np.array([0.9])).share is None  # one seed has no interval

    def test_without_a_corner_there_are_none(self) -> None:
        missing = corner({"ffn"})
        nats = {arm: 5.0 for arm in ARMS if arm != missing}
        assert build_shares(load_scores(table(nats), "2m"), "validation") is None

    @pytest.mark.parametrize(("context", "outcome"), [(0.9, "for"), (0.2, "against"), (0.6, "mixed")])
    def test_is_the_whole_gap_the_traces(self, context: float, outcome: str) -> None:
        def nats(arm: Arm) -> float:
            return 6.0 - context * ("attention" in arm.context) - (1 - context) * (arm.ffn == "dense")

        scores = load_scores(table(nats), "2m")
        shares = [found for text in scores.texts if (found := build_shares(scores, text)) is not None]
        assert len(shares) == 3
        assert judge_traces(shares) == outcome
        assert judge_traces([]) is None

    @pytest.mark.parametrize(
        ("first", "last", "outcome"),
        [
            (0.95, 0.9, "for"),
            (0.1, 0.3, "against"),
            (1.0, 0.45, "depends"),
            (0.3, 0.55, "depends"),
            (0.7, 0.6, "mixed"),
        ],
    )
    def test_first_and_last_must_be_on_one_side_of_a_half(self, first: float, last: float, outcome: str) -> None:
        """Of a nat, context is worth `first` with the sparse layer and `last` with a dense one."""

        def nats(arm: Arm) -> float:
            worth = last if arm.ffn == "dense" else first
            return 6.0 - worth * ("attention" in arm.context) - (1 - last) * (arm.ffn == "dense")

        scores = load_scores(table(nats), "2m")
        shares = [found for text in scores.texts if (found := build_shares(scores, text)) is not None]
        assert judge_traces(shares) == outcome
        for found in shares:
            context = found.first["context"], found.players["context"], found.last["context"]
            assert [part.share for part in context] == pytest.approx([first, (first + last) / 2, last], abs=0.01)
            assert all(part.interval is not None for part in context)

    def test_every_text_counts(self) -> None:
        """On C4 alone context is worth little: then neither word is given."""

        def shares_of(context: float) -> Any:
            scores = load_scores(
                table(lambda arm: 6.0 - context * ("attention" in arm.context) - (1 - context) * (arm.ffn == "dense")),
                "2m",
            )
            return build_shares(scores, "validation")

        most, little = shares_of(0.9), shares_of(0.2)
        assert judge_traces([most, most]) == "for"
        assert judge_traces([most, little]) == "depends"


class TestFieller:
    def test_ends_are_where_students_test_stops_rejecting(self) -> None:
        """The definition: r is inside exactly when the mean of a - r b is not told from 0."""
        rng = np.random.default_rng(2)
        b = rng.normal(1.0, 0.1, 6)
        a = 0.4 * b + rng.normal(0, 0.05, 6)
        for confidence in (0.8, 0.95):
            for end in fieller_interval(a, b, confidence):
                assert stats.ttest_1samp(a - end * b, 0).pvalue == pytest.approx(1 - confidence, rel=1e-6)

    def test_it_covers_the_ratio_as_often_as_it_says(self) -> None:
        rng = np.random.default_rng(7)
        covered = 0
        for _ in range(400):
            a, b = rng.multivariate_normal([0.3, 1.0], [[0.04, 0.02], [0.02, 0.09]], 5).T
            low, high = fieller_interval(a, b)
            covered += bool(np.isnan(low) or low <= 0.3 <= high)  # nan: everything is inside
        assert stats.binomtest(covered, 400, 0.95).pvalue > 0.001

    def test_a_denominator_that_may_be_zero_has_none(self) -> None:
        assert np.isnan(fieller_interval([1.0, 1.1], [0.1, -0.1])).all()
        assert np.isnan(fieller_interval([1.0], [2.0])).all()
        with pytest.raises(ValueError, match="equal length"):
            fieller_interval([1.0, 2.0], [1.0])

    def test_an_exact_ratio(self) -> None:
        assert fieller_interval([0.5, 1.0, 1.5], [1.0, 2.0, 3.0], 0.5) == pytest.approx((0.5, 0.5))


def test_p_value_of_a_mean() -> None:
    x = [0.1, 0.2, -0.05, 0.3]
    assert mean_p_value(x) == pytest.approx(stats.ttest_1samp(x, 0).pvalue)
    assert (mean_p_value([0.2, 0.2]), mean_p_value([0.0, 0.0])) == (0.0, 1.0)


class TestRecall:
    def test_the_share_is_that_of_the_summed_difference(self) -> None:
        """EMA is .25 worse on others and 1.5 worse on recall tokens, a fifth of all: .3 of .5 nats."""

        def recall(arm: Arm) -> float:
            return 2.0 + 1.5 * (arm.context == "ema")

        nats = {EMA: 5.25, ATTENTION: 5.0}
        scores = load_scores(table(nats, recall, noise=0.0), "2m")
        found = build_recall(scores, "validation", "pair")
        assert found is not None
        assert found.gap.mean == pytest.approx(0.5)
        assert found.recall.share == pytest.approx(0.6)
        assert found.tokens == pytest.approx(RECALL / TOKENS)
        (ema, _), (attention, _) = found.nats["EMA"], found.nats["attention"]
        assert ema is not None
        assert attention is not None
        assert ema.mean - attention.mean == pytest.approx(1.5)
        rare = build_recall(scores, "validation", "rare")
        assert rare is not None
        assert rare.recall.share == pytest.approx(0.3)  # half as many tokens

    def test_misses_count_for_retrieval(self) -> None:
        """Attention gains 1.0 on a fifth of tokens and loses .5 where the copy is wrong, on three tenths: .05 of .2."""
        made = [
            *(run(EMA, seed, 5.0, 4.0, miss=5.0) for seed in range(3)),
            *(run(ATTENTION, seed, 5.0, 3.0, miss=5.5) for seed in range(3)),
        ]
        scores = load_scores(make_table(*made, *sweep((EMA, ATTENTION))), "2m")
        pair, retrieval = (build_recall(scores, "validation", name) for name in ("pair", "retrieval"))
        assert pair is not None
        assert retrieval is not None
        assert pair.recall.share == pytest.approx(1.0)
        assert retrieval.recall.share == pytest.approx(0.05 / 0.2)
        assert retrieval.tokens == pytest.approx(0.5)

    def test_without_rope_the_chains_own_attention(self) -> None:
        scores = load_scores(table(NATS), "2m")
        assert build_recall(scores, "validation", "pair") is None
        found = build_recall(scores, "validation", "pair", LEARNED)
        assert found is not None
        assert found.gap.mean == pytest.approx(0.16, abs=0.01)

    def test_no_share_where_there_is_no_gap(self) -> None:
        found = build_recall(load_scores(table({EMA: 5.0, ATTENTION: 5.02}), "2m"), "validation", "pair")
        assert found is not None
        assert found.recall.share is None


def test_what_would_make_us_doubt_is_said() -> None:
    quiet = load_scores(table(lambda arm: 5.0), "2m")
    assert doubts(quiet, []) == []
    apart = load_scores(table({**dict.fromkeys(CHAIN, 5.0), CHAIN[-1]: 4.8}), "2m")
    assert doubts(apart, []) == [
        f"GPT-2's block and the skeleton with its parts are 0.16 nats apart on {text}." for text in apart.texts
    ]
    fixed = {Arm(name, width="fixed"): nats for name, nats in (("ema", 4.9), ("attention", 5.0))}
    wide = load_scores(table({EMA: 5.0, Arm("attention"): 4.9, **fixed}), "2m")
    assert any("d_ff is not matched" in doubt for doubt in doubts(wide, []))
    twins = {CHAIN[4]: 5.0, CHAIN[5]: 4.9, NO_ERROR_AT_FIXED_WIDTH: 5.1}
    [doubt] = doubts(load_scores(table(twins), "2m"), [])
    assert doubt.startswith("No prediction error changes sign where d_ff is not matched")
    assert doubts(load_scores(table({**twins, NO_ERROR_AT_FIXED_WIDTH: 4.95}), "2m"), []) == []
    name = "the arm after “norm before the mixer”"
    noisy = load_scores(table({EMA: 5.0}, noise=0.2), "2m")
    here, *elsewhere = doubts(noisy, [])
    assert here.startswith(f"Seeds differ by more than 0.05 nats on validation: {name} (0.")
    assert elsewhere == [f"So do those of 1 of 1 arms on {text}." for text in noisy.texts[1:]]
    broken = [run(EMA, seed, 5.0, 4.0, curve={1: 5.0, 2: 4.0, 3: 4.0 + 0.06 * seed}) for seed in range(2)]
    diverged, few = doubts(load_scores(make_table(*broken, *sweep((EMA,))), "2m"), [])
    assert diverged == f"The training loss rose by 0.05 nats or more on some seeds: {name} (1 of 2)."
    assert few == f"Fewer seeds than the plan's 5: {name} (2)."


class TestClosure:
    """The ends .8 * .9 = .72 nats apart, and again on the seeds of the sweep."""

    def closure(self, again: Sequence[float], **changes: Any) -> Closure | None:
        cells = table(NATS, noise=0.01)
        ends = CHAIN[:: len(CHAIN) - 1]
        changes = {"experiment": "gap_rates", "lr": RATE, **changes}
        swept = [
            run(arm, 1000 + i, 5.0 - gap / 0.8 * (arm == CHAIN[-1]), 4.0, **changes)
            for i, gap in enumerate(again)
            for arm in ends
        ]
        replaced = {f.name for f in swept}
        kept = [s for s in cells.cells if s.path.name not in replaced or s.cell.experiment != "gap_rates"]
        whole = Table([*kept, *make_table(*swept).cells])
        scores = load_scores(cells, "2m")
        chain = build_chain(scores, "validation")
        assert chain is not None
        return build_closure(whole, scores, chain)

    @pytest.mark.parametrize(
        ("again", "verdict"),
        [
            ((0.71, 0.72, 0.73), "closes"),
            ((0.91, 0.92, 0.93), "does not close"),
            ((0.51, 0.52, 0.53), "does not close"),
            ((0.6, 0.72, 0.84), "undecided"),
            ((0.72,), "not checked"),
        ],
    )
    def test_it_can_fail(self, again: tuple[float, ...], verdict: str) -> None:
        found = self.closure(again)
        assert found is not None
        assert found.verdict == verdict
        assert found.seeds == tuple(range(1000, 1000 + len(again)))
        assert found.distance.values == pytest.approx(again)
        assert found.difference == pytest.approx(0.72 - np.mean(again), abs=0.01)

    def test_no_other_rate_and_no_other_settings(self) -> None:
        assert self.closure((0.71, 0.72, 0.73), settings={"tokens": 1}) is None
        other = self.closure((0.71, 0.72, 0.73), lr=0.002)
        assert other is not None
        assert other.seeds == (1000,)  # of the sweep itself


def test_a_training_loss_that_is_not_finite_counts_as_diverged() -> None:
    """It is stored as unknown; the other seed is fine."""
    files = [run(EMA, seed, 4.0, 3.0, curve={10: 5.0, 20: None if seed else 4.5}) for seed in (0, 1)]
    assert load_scores(make_table(*files, *sweep((EMA,))), "2m").diverged(EMA) == (1,)


def test_a_step_of_opposite_signs_on_two_texts_is_a_doubt() -> None:
    def chain(text: str, *steps: tuple[float, ...]) -> Chain:
        made = [Sample(values) for values in steps]
        named = tuple(Step(f"step {i}", nats, nats, nats, None) for i, nats in enumerate(made))
        return Chain(text, made[0], made[0], named, named[0], (0, 1, 2), {})

    one = chain("validation", (0.10, 0.11, 0.12), (0.10, 0.11, 0.12), (-0.2, 0.0, 0.3))
    other = chain("c4", (0.20, 0.21, 0.22), (-0.10, -0.11, -0.12), (0.10, 0.11, 0.12))
    assert _sign_doubts([one, other]) == ["The step “step 1” changes sign between texts."]
