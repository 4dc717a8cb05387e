"""What the straight-through gradient costs by units and by size, on cells made by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import unescape
from typing import Any

import pytest
from scipy.stats import ttest_ind

from cells_support import make_file, make_provenance, make_table
from ematrace.analysis.gap_design import CHAIN, Arm, kept_units
from ematrace.analysis.gap_scores import admit, runs_of
from ematrace.analysis.gap_trend import CONTRASTS, GRADIENT
from ematrace.analysis.gradient_cost import (
    GradientCost,
    costs_at_one_width,
    costs_by_size,
    judge_kept,
    judge_training,
    judge_units,
)
from ematrace.ledger import build_ledger, load_claims
from ematrace.report.data import ReportData
from ematrace.report.findings import gap_finding
from ematrace.report.gradient_cost import (
    gradient_rows,
    gradient_sentence,
    gradient_share_rows,
    share_sentence,
    start_rows,
    verdict_lines,
)
from ematrace.report.page import render_report
from ematrace.results import CellFile, Metric, Row, Sample
from gap_support import ARMS, run, sweep

SPEN, MASKED = CONTRASTS[GRADIENT]
SWEPT = sweep((SPEN, CHAIN[2]))  # the masked arm takes the rate of the one without load balance
COSTS = {512: (0.8, 0.9, 1.0), 1536: (0.4, 0.41, 0.42), 3072: (0.1, 0.2, 0.1)}


def pair(costs: Sequence[float], base: float = 4.0, **changes: Any) -> list[CellFile]:
    """Both arms on seeds 0, 1, ...; the nats are those of all tokens."""
    files = []
    for seed, cost in enumerate(costs):
        true = base + 0.01 * seed
        files += [run(MASKED, seed, true, true, **changes), run(SPEN, seed, true + cost, true + cost, **changes)]
    return files


def of_units(costs: Mapping[int, Sequence[float]] = COSTS) -> list[CellFile]:
    """More units have more parameters; they are in files of their own."""
    return [
        file
        for units, values in costs.items()
        for file in pair(values, 5.0 - units / 1e4, experiment="gap_units", units=units, parameters=1e6 + 1e3 * units)
    ]


def data_of(*files: CellFile) -> ReportData:
    table, claims = make_table(*files), load_claims()
    return ReportData(table, claims, tuple(build_ledger(table, claims)))


def cost(units: int, values: Sequence[float], seeds: Sequence[int] = (0, 1, 2)) -> GradientCost:
    return GradientCost("gap_units", 1e6, 128, units, kept_units(units), 60.0, Sample(tuple(values)), tuple(seeds))


@pytest.mark.parametrize("text", ["validation", "wikitext2", "c4"])
def test_costs_are_paired_by_seed_and_kept_apart_by_units(text: str) -> None:
    found = costs_at_one_width(make_table(*of_units(), *SWEPT), text)
    assert {one.units: one.nats.values for one in found} == {
        units: pytest.approx(values) for units, values in COSTS.items()
    }
    assert [(one.kept, one.width, one.parameters) for one in found] == [
        (31, 128, 1.512e6), (92, 128, 2.536e6), (184, 128, 4.072e6)
    ]  # fmt: skip


def test_two_seeds_or_another_rate_are_not_enough() -> None:
    two = of_units({**COSTS, 1536: (0.4, 0.41)})
    assert [one.units for one in costs_at_one_width(make_table(*two, *SWEPT), "validation")] == [512, 3072]
    assert costs_at_one_width(make_table(*of_units()), "validation") == []  # not swept
    faster = [file for units in COSTS for file in pair((0.1,) * 3, experiment="gap_units", units=units, lr=0.008)]
    assert costs_at_one_width(make_table(*faster, *SWEPT), "validation") == []


def test_sizes_are_those_beyond_the_main_one_at_their_own_rates() -> None:
    larger = pair((0.3, 0.32, 0.31), 3.0, size="7m", experiment="gap_sizes", parameters=7e6)
    own = sweep((SPEN, MASKED), experiment="gap_size_rates", size="7m")
    largest = pair((-0.04,), 2.0, size="130m", experiment="gap_130m", parameters=130e6, lr=0.000667)
    found = costs_by_size(make_table(*largest, *larger, *of_units(), *SWEPT, *own), "validation")
    assert [(one.experiment, one.width, one.units, one.kept, one.seeds) for one in found] == [
        ("gap_sizes", 256, 1024, 61, (0, 1, 2)),
        ("gap_130m", 768, 3072, 184, (0,)),
    ]
    assert [one.nats.values for one in found] == [pytest.approx((0.3, 0.32, 0.31)), pytest.approx((-0.04,))]


@pytest.mark.parametrize(
    ("most", "outcome"),
    [
        ((0.1, 0.2, 0.1), "units"),  # .3, .25 and .4 below half
        ((0.2, 0.45, 0.45), "undecided"),
        ((0.6, 0.6, 0.65), "not units"),
        ((0.32, 0.38, 0.41), "near"),  # .08, .07 and .09 below it: the plan has rates swept first
        ((0.41, 0.455, 0.51), "near"),  # .01, .005 and .01 above it
    ],
)
def test_the_rule_is_about_half_of_the_cost_seed_by_seed(most: Sequence[float], outcome: str) -> None:
    verdict = judge_units([cost(512, COSTS[512]), cost(1536, (9.0, 9.0, 9.0)), cost(3072, most)])
    assert verdict is not None
    assert verdict.outcome == outcome
    assert verdict.fall.values == pytest.approx([few - many for few, many in zip(COSTS[512], most, strict=True)])


def test_the_rule_compares_the_plans_two_numbers_of_units() -> None:
    assert judge_units([cost(1536, COSTS[512]), cost(3072, COSTS[3072])]) is None
    assert judge_units([cost(512, COSTS[512]), cost(1536, COSTS[3072])]) is None


def test_the_number_kept_is_that_of_the_cells() -> None:
    few, many = (
        pair(values, experiment="gap_kept", units=units, k=kept, parameters=1e6 + 1e3 * units)
        for units, kept, values in ((3072, 31, (0.7, 0.8, 0.9)), (512, 184, (0.2, 0.0, 0.1)))
    )
    data = data_of(*few, *many, *of_units(), *SWEPT)
    found = gradient_rows(data)
    assert found is not None
    assert [(row[2], row[4].split(" ")[0]) for row in found[1]] == [
        ("31 of 512", ".900"), ("92 of 1,536", ".410"), ("184 of 3,072", ".133"), ("184 of 512", ".100"),
        ("31 of 3,072", ".800"),
    ]  # fmt: skip
    assert verdict_lines(data)[:3] == verdict_lines(data_of(*of_units(), *SWEPT))
    assert [line.removeprefix("On held-out text, with ") for line in verdict_lines(data)[3:5]] == [
        "31 of 3,072 units kept the cost is .667 (.380\u2013.954) nats higher than with 184 of 3,072: under the plan's "
        "rule, what is kept, at equal parameters and tokens, matters.",  # .6, .6 and .8: 4.303 * .1155 / 3 ** .5
        "184 of 512 units kept the cost is .033 (\u2212.346 to .413) nats lower than with 184 of 3,072: whether the "
        "share kept, beside the number, matters is undecided.",  # -.1, .2 and 0
    ]
    assert "; .10 with 184 of 512 (3 seeds); .80 with 31 of 3,072 (3 seeds)" in gradient_sentence(data)


@pytest.mark.parametrize(
    ("costs", "outcome"),
    [
        ((2.0, 2.1, 2.0), "matters"),
        ((-0.05, 0.05, -0.05), "below"),  # by .15 on every seed
        ((0.11, 0.2, 0.1), "does not matter"),
        ((0.4, 0.1, 0.2), "undecided"),
        ((0.13, 0.27, 0.17), "undecided"),  # .03, .07 and .07 above: the interval ends at .114
        ((0.07, 0.13, 0.03), "undecided"),  # as far below
        ((2.0, 2.1), "too few seeds"),
        ((2.0,), "too few seeds"),
    ],
)
def test_other_numbers_kept_are_compared_with_as_many_units_and_as_many_kept(
    costs: Sequence[float], outcome: str
) -> None:
    usual, seeds = cost(3072, COSTS[3072]), tuple(range(len(costs)))
    for name, units, kept in (("kept", 3072, 31), ("share", 512, 184)):
        other = GradientCost("gap_kept", 1e6, 128, units, kept, 60.0, Sample(tuple(costs)), seeds)
        found = judge_kept([cost(512, (9.0, 9.0, 9.0)), usual, other])
        assert list(found) == [name]
        # A lower cost counts for the share alone: the plan asks whether fewer kept cost more.
        assert found[name].outcome == (
            {"kept": "undecided", "share": "matters"}[name] if outcome == "below" else outcome
        )
        rises = [x - y for x, y in zip(costs, COSTS[3072], strict=False)]
        assert found[name].rise.values == pytest.approx(rises)
    assert judge_kept([other]) == {}
    apart = GradientCost("gap_kept", 1e6, 128, 512, 184, 60.0, Sample((0.1,)), (7,))
    assert judge_kept([usual, apart]) == {}


def test_two_seeds_of_other_numbers_kept_are_shown_without_an_interval() -> None:
    few = pair((2.0, 2.2), experiment="gap_kept", units=3072, k=31, parameters=1e6 + 1e3 * 3072)
    one_seed = gradient_rows(data_of(*few[:2], *of_units(), *SWEPT))
    assert one_seed is not None
    assert one_seed[1][-1][-2:] == ["2.000", "1"]
    data = data_of(*few, *of_units(), *SWEPT)
    found = gradient_rows(data)
    assert found is not None
    assert found[1][-1][2:] == ["31 of 3,072", "60", *["2.100"] * 3, "2"]
    assert verdict_lines(data)[3] == (
        "On held-out text, with 31 of 3,072 units kept the cost is 1.950 nats higher than with 184 of 3,072: the plan "
        "judges it from 3 seeds on."
    )


def flat(arm: Arm, nats: float, **changes: Any) -> list[CellFile]:
    """An arm on three seeds, with these nats on all tokens; SPEN's rise a little, so that there is an interval."""
    values = [nats + 0.001 * seed * (arm == SPEN) for seed in range(3)]
    return [run(arm, seed, value, value, **changes) for seed, value in enumerate(values)]


def test_the_gradients_share_of_the_distance_at_each_size() -> None:
    """At the main size the true gradient is that of `gap_units` with SPEN's units, and SPEN is the one of `gap`."""
    gpt2 = CHAIN[-1]
    main = [*flat(SPEN, 5.0), *flat(gpt2, 4.0), *sweep((SPEN, CHAIN[2], gpt2))]
    assert gradient_share_rows(data_of(*main)) is None
    of_units = [
        *flat(MASKED, 4.4, experiment="gap_units", units=512),
        *flat(SPEN, 8.0, experiment="gap_units", units=512),
        *flat(MASKED, 9.0, experiment="gap_units", units=3072),
    ]
    larger = sweep((SPEN, MASKED, gpt2), experiment="gap_size_rates", size="7m")
    for arm, nats in ((SPEN, 4.0), (MASKED, 3.9), (gpt2, 3.5)):
        larger += flat(arm, nats, size="7m", experiment="gap_sizes", parameters=7e6)
    found = gradient_share_rows(data_of(*main, *of_units, *larger))
    assert found is not None
    heads, rows = found
    assert heads[3:7] == ["text", "SPEN's block to GPT-2's", "the gradient's cost", "share"]
    assert heads[7:] == ["left with the true gradient", "seeds"]
    assert {row[1] for row in rows} == {"8,192"}
    assert [(row[0], row[3], *(cell.split(" ")[0] for cell in row[4:])) for row in rows] == [
        *(("1.9M", text, "1.001", ".601", "60.0%", ".400", "3") for text in ("held-out text", "WikiText-2", "C4")),
        *(("7.0M", text, ".501", ".101", "20.2%", ".400", "3") for text in ("held-out text", "WikiText-2", "C4")),
    ]
    sentence = (
        "In SPEN's own block, at equal tokens, the straight-through gradient is 60%, 60% and 60% at 1.9M parameters "
        "(62 tokens for each); 20%, 20% and 20% at 7.0M parameters (17 tokens for each) of the distance to GPT-2's: "
        "held-out text, WikiText-2 and C4."
    )
    assert share_sentence(data_of(*main, *of_units, *larger)) == sentence
    more: list[CellFile] = []  # tokens: another row, and not in the sentence
    for arm, nats in ((SPEN, 6.0), (MASKED, 5.9), (gpt2, 5.0)):
        more += flat(arm, nats, experiment="gap_sizes", settings={"tokens": 234_881_024, "vocab_size": 8192})
    data = data_of(*main, *of_units, *larger, *more)
    assert share_sentence(data) == sentence
    assert [row[2] for row in (gradient_share_rows(data) or ([], []))[1][::3]] == ["124", "62", "17"]
    assert "The straight-through gradient's part of the distance" in unescape(render_report(data))
    # Seeds that only two of the three arms have do not count, neither in the distance.
    fourth = [run(SPEN, 3, 50.0, 50.0), run(gpt2, 3, 1.0, 1.0)]
    with_more = gradient_share_rows(data_of(*main, *of_units, *larger, *fourth))
    assert with_more is not None
    assert with_more[1][0][4:] == rows[0][4:]
    # Where the true gradient is recorded twice at the main size, the one beside more units counts.
    twice = flat(MASKED, 4.9, experiment="gap_sizes")
    both = gradient_share_rows(data_of(*main, *of_units, *larger, *twice))
    assert both is not None
    assert both[1][0][4:] == rows[0][4:]
    assert share_sentence(data_of(*main, *of_units)) == ""  # nothing to compare it with


def test_unpaired_by_welch() -> None:
    verdict = judge_units([cost(512, COSTS[512]), cost(3072, COSTS[3072])])
    assert verdict is not None
    expected = ttest_ind([x / 2 for x in COSTS[512]], COSTS[3072], equal_var=False).confidence_interval()
    assert verdict.unpaired == pytest.approx(tuple(expected))


def test_only_seeds_in_common_count() -> None:
    few, many = cost(512, (0.8, 0.9, 1.0, 7.0), (0, 1, 2, 3)), cost(3072, (9.0, 0.1, 0.2, 0.1), (7, 0, 1, 2))
    verdict = judge_units([few, many])
    assert verdict is not None
    assert verdict.below_half.values == pytest.approx((0.3, 0.25, 0.4))
    assert judge_units([few, cost(3072, (0.1, 0.2, 0.1), (1, 2, 8))]) is None
    assert judge_units([few]) is None


def test_table_sentence_and_verdicts_say_the_same() -> None:
    data = data_of(*of_units(), *SWEPT)
    found = gradient_rows(data)
    assert found is not None
    heads, rows = found
    assert heads == [
        *("parameters", "width", "units kept", "tokens per parameter"),
        *("held-out text", "WikiText-2", "C4", "seeds"),
    ]
    assert rows[0] == ["1.5M", "128", "31 of 512", "60", *[".900 (.652\u20131.148)"] * 3, "3"]  # 4.303 * .1 / 3 ** .5
    assert gradient_sentence(data) == (
        "The straight-through gradient costs .90, .41 and .13 nats with 31 of 512, 92 of 1,536 and 184 of 3,072 units "
        "kept at one width (under the plan's rule, more units at the same width halve the cost) (held-out text)."
    )
    assert [line.split(",")[0] for line in verdict_lines(data)] == ["On held-out text", "On WikiText-2", "On C4"]
    assert all(line.endswith("more units at the same width halve the cost.") for line in verdict_lines(data))
    nothing = data_of(*SWEPT)
    assert (gradient_rows(nothing), gradient_sentence(nothing), verdict_lines(nothing)) == (None, "", [])


def test_the_page_says_it_after_the_parts_and_larger_models_with_enough_seeds() -> None:
    """7M has three seeds, 130M one: that is in the table, and in its own sentence."""
    chain = [
        run(arm, seed, 3 + 2 * (arm.ffn == "topk_ste") + (arm.context != "attention") + 0.001 * (i % 3) * seed, 3.0)
        for i, arm in enumerate(ARMS)
        for seed in range(3)
    ]
    larger = pair((0.3, 0.32, 0.31), 3.0, size="7m", experiment="gap_sizes", parameters=7e6)
    own = sweep((SPEN, MASKED), experiment="gap_size_rates", size="7m")
    largest = pair((-0.04,), 2.0, size="130m", experiment="gap_130m", parameters=130e6, lr=0.000667)
    data = data_of(*chain, *sweep(ARMS), *of_units(), *larger, *own, *largest)
    finding = gap_finding(data)
    assert finding is not None
    starts = ["The paper says", "The gradient of SPEN's", "With a dense layer", "At 130.0M parameters"]
    starts.append("The straight-through gradient")
    assert [point[: len(start)] for point, start in zip(finding.points, starts, strict=True)] == starts
    assert "; .31 at 7M parameters, which keep 61 (held-out text)." in finding.points[4]
    assert "-.04 at 130M" not in finding.points[4].replace("\u2212", "-")
    page = unescape(render_report(data))
    assert [line for line in verdict_lines(data) if line not in page] == []
    found = gradient_rows(data)
    assert found is not None
    assert [row[2] for row in found[1]] == ["31 of 512", "92 of 1,536", "184 of 3,072", "61 of 1,024", "184 of 3,072"]
    assert found[1][-1][4:] == ["\u2212.040"] * 3 + ["1"]


def test_the_main_size_is_not_among_the_larger_ones() -> None:
    main = pair((0.5, 0.6, 0.7), experiment="gap_sizes")
    assert costs_by_size(make_table(*main, *of_units(), *SWEPT), "validation") == []


def test_before_training_beside_the_cost_after_it() -> None:
    """By share, then by units; where nothing was trained there is no cost."""
    cosines = {(512, 31): (0.5, 0.52, 0.54), (3072, 184): (0.4, 0.4, 0.43), (3072, 31): (0.1, 0.1, 0.13)}
    start = [
        make_file(
            Row({"part": "all"}, {"cosine": Metric(value), "norm_ratio": Metric(1 / value)}),
            Row({"part": "W_up"}, {"cosine": Metric(0.9), "norm_ratio": Metric(9.0)}),
            experiment="gap_start", seed=seed, factors={"units": units, "k": k},
        )
        for (units, k), values in cosines.items()
        for seed, value in enumerate(values)
    ]  # fmt: skip
    wider = pair((-0.04,), 2.0, size="130m", experiment="gap_130m", parameters=130e6, lr=0.000667)  # keeps 184, too
    found = start_rows(data_of(*start, *of_units(), *wider, *SWEPT))
    assert found is not None
    heads, rows = found
    assert heads[:2] == ["units kept", "share"]
    page = render_report(data_of(*start, *of_units(), *SWEPT))
    assert "Straight-through and true gradient before training, by the units kept" in page
    assert [(row[0], row[1], row[2].split(" ")[0], row[4].split(" ")[0]) for row in rows] == [
        ("31 of 3,072", "1%", ".110", "\u2013"),
        ("31 of 512", "6%", ".520", ".900"),
        ("184 of 3,072", "6%", ".410", ".133"),
    ]
    assert start_rows(data_of(*of_units(), *SWEPT)) is None


GPU = {"provenance": make_provenance(hardware={"cpu": "x", "gpu": "y"})}
QUARTER = {"tokens": 29_360_128, "vocab_size": 8192}  # 15 tokens for each of 1.9M parameters


def at_equal_training(
    shorter: Sequence[float], larger: Sequence[float], start: float = 0.0, on_gpu: bool = False, **changes: Any
) -> list[CellFile]:
    """SPEN's block under both gradients: the main size on a quarter of the tokens, on cores, and a larger one on all.

    `start` is how far the first steps of the true gradient's last seed are off on cores, on the schedule of all tokens.
    """
    first = {(arm, seed): 8.0 + seed - 0.5 * (arm == MASKED) for arm in (SPEN, MASKED) for seed in range(3)}
    whole = {SPEN: {"experiment": "gap"}, MASKED: {"experiment": "gap_units", "units": 512}}
    files = [run(arm, s, 5.0, 5.0, curve={128: x, 256: 0.0}, **whole[arm], **GPU) for (arm, s), x in first.items()]
    files += [
        run(arm, seed, 9.0, 9.0, experiment="gap_first_steps", curve={128: x + start * ((arm, seed) == (MASKED, 2))})
        for (arm, seed), x in first.items()
    ]
    of_both = {"experiment": "gap_sizes", "settings": QUARTER, **(GPU if on_gpu else {}), **changes}
    for seed, cost in enumerate(shorter):
        files.append(run(SPEN, seed, 5.5 + cost, 5.5 + cost, curve={128: 1.0}, **of_both))
        files.append(run(MASKED, seed, 5.5, 5.5, curve={128: 1.0}, **of_both))
    more = pair(larger, 3.0, size="7m", experiment="gap_sizes", parameters=7.2e6, **GPU)
    own = sweep((SPEN, MASKED), experiment="gap_size_rates", size="7m")
    return [*files, *more, *own, *SWEPT]


@pytest.mark.parametrize(
    ("shorter", "larger", "outcome"),
    [
        ((0.41, 0.43, 0.42), (0.40, 0.41, 0.42), "training"),
        ((0.36, 0.36, 0.37), (0.40, 0.41, 0.42), "training"),  # above 0 or below, within .1
        ((0.70, 0.72, 0.71), (0.40, 0.41, 0.42), "size"),
        ((0.50, 0.52, 0.51), (0.40, 0.41, 0.42), "size"),  # .10 and its interval reaches beyond .1
        ((0.2, 0.7, 0.5), (0.40, 0.41, 0.42), "undecided"),
        ((0.10, 0.12, 0.11), (0.40, 0.41, 0.42), "undecided"),  # less in the smaller model is for neither
    ],
)
def test_size_or_tokens_per_parameter(shorter: Sequence[float], larger: Sequence[float], outcome: str) -> None:
    verdict = judge_training(make_table(*at_equal_training(shorter, larger)), "c4")
    assert verdict is not None
    assert (verdict.outcome, verdict.start) == (outcome, 0.0)
    expected = ttest_ind(shorter, larger, equal_var=False).confidence_interval()
    assert verdict.interval == pytest.approx((expected.low, expected.high))
    assert verdict.excess == pytest.approx(sum(shorter) / 3 - sum(larger) / 3)


def test_cores_that_train_other_models_decide_nothing() -> None:
    """One arm on one seed is enough; and none may be missing."""
    costs = (0.41, 0.43, 0.42), (0.40, 0.41, 0.42)
    for start, outcome in ((-0.049, "training"), (0.051, "another device")):
        files = at_equal_training(*costs, start=start)
        verdict = judge_training(make_table(*files), "validation")
        assert verdict is not None
        assert (verdict.outcome, verdict.start) == (outcome, pytest.approx(abs(start)))
        assert verdict_lines(data_of(*files))[-1].endswith("decide nothing.") == (outcome == "another device")
    compared = [file for file in at_equal_training(*costs) if file.experiment == "gap_first_steps"]
    for missing in (compared[-1:], compared):
        files = [file for file in at_equal_training(*costs) if file not in missing]
        verdict = judge_training(make_table(*files), "validation")
        assert verdict is not None
        assert (verdict.outcome, verdict.start) == ("another device", None)
        assert verdict_lines(data_of(*files))[-1].endswith("first steps were not compared with a GPU's.")


def test_only_the_runs_behind_the_costs_are_compared_and_only_on_one_schedule() -> None:
    costs = (0.41, 0.43, 0.42), (0.40, 0.41, 0.42)
    quarter = {"experiment": "gap_sizes", "settings": QUARTER}
    beside = [run(SPEN, 3, 9.0, 9.0, **quarter), run(SPEN, 0, 9.0, 9.0, lr=0.016, **quarter)]
    verdict = judge_training(make_table(*at_equal_training(*costs), *beside), "validation")
    assert verdict is not None
    assert (verdict.outcome, verdict.start) == ("training", 0.0)
    for changes in ({"settings": {"tokens": 117_440_512, "vocab_size": 8192, "warmup": 9}}, GPU):
        files = [
            CellFile(**{**vars_of(file), **changes}) if file.experiment == "gap_first_steps" else file
            for file in at_equal_training(*costs)
        ]
        verdict = judge_training(make_table(*files), "validation")
        assert verdict is not None
        assert verdict.start is None


def test_cores_are_not_compared_with_cores() -> None:
    files = [
        CellFile(**{**vars_of(file), "provenance": make_provenance()}) if file.experiment == "gap_units" else file
        for file in at_equal_training((0.41, 0.43, 0.42), (0.40, 0.41, 0.42))
    ]
    verdict = judge_training(make_table(*files), "validation")
    assert verdict is not None
    assert (verdict.outcome, verdict.start) == ("another device", None)


def vars_of(file: CellFile) -> dict[str, Any]:
    return {name: getattr(file, name) for name in file.__struct_fields__}


def test_cores_and_a_gpu_do_not_stand_side_by_side() -> None:
    """What most runs have decides; the others are left out, and it is said why."""
    files = pair((0.3, 0.32, 0.31), 3.0, size="7m", experiment="gap_sizes", parameters=7e6, **GPU)
    own = sweep((SPEN, MASKED), experiment="gap_size_rates", size="7m")
    other = run(SPEN, 3, 3.5, 3.5, size="7m", experiment="gap_sizes", parameters=7e6)
    scores = admit(runs_of(make_table(*files, other, *own), "gap_sizes", "7m"), "7m", lambda arm, rates: rates[0])
    assert sorted(scores.arms[SPEN]) == [0, 1, 2]
    assert scores.dropped[0].endswith("trained on cores")


def test_more_in_the_larger_model_is_said_as_such() -> None:
    data = data_of(*at_equal_training((0.10, 0.12, 0.11), (0.40, 0.41, 0.42)))
    assert ", .300 (.277\u2013.323) more: whether" in verdict_lines(data)[-2]


def test_on_a_gpu_nothing_has_to_be_compared() -> None:
    files = at_equal_training((0.41, 0.43, 0.42), (0.40, 0.41, 0.42), on_gpu=True)
    data = data_of(*(file for file in files if file.experiment != "gap_first_steps"))
    verdict = judge_training(data.cells, "validation")
    assert verdict is not None
    assert verdict.outcome == "training"
    assert "cores" not in "".join(verdict_lines(data))


def test_size_or_training_takes_three_seeds_and_as_many_tokens_per_parameter() -> None:
    costs = (0.4, 0.4, 0.5), (0.4, 0.4, 0.3)
    assert judge_training(make_table(*at_equal_training(costs[0][:2], costs[1])), "validation") is None
    half = {"tokens": 58_720_256, "vocab_size": 8192}
    assert judge_training(make_table(*at_equal_training(*costs, settings=half)), "validation") is None
    # GPT-2's vocabulary makes the main size as large as the other, on all tokens: that is no other training.
    entries = {"tokens": 117_440_512, "vocab_size": 50_257}
    large = at_equal_training(*costs, settings=entries, parameters=7.3e6)
    assert judge_training(make_table(*large), "validation") is None


def test_size_or_training_on_the_page() -> None:
    data = data_of(*at_equal_training((0.70, 0.72, 0.71), (0.40, 0.41, 0.42)), *of_units())
    found = gradient_rows(data)
    assert found is not None
    assert [row[:5] for row in found[1]][-2:] == [
        ["1.9M", "128", "31 of 512", "15", ".710 (.685\u2013.735)"],
        ["7.2M", "256", "61 of 1,024", "16", ".410 (.385\u2013.435)"],
    ]
    size = "under the plan's rule, it costs less in a larger model at equal tokens per parameter as well"
    assert verdict_lines(data)[-2:] == [
        "On C4, the gradient costs .710 (.685\u2013.735) nats at 1.9M parameters (15 tokens for each) and .410 "
        f"(.385\u2013.435) nats at 7.2M parameters (16 tokens for each), .300 (.277\u2013.323) less: {size}.",
        "The shorter runs were trained on cores. On the schedule of the recorded runs, the first 128 steps there and "
        "on a GPU differ by at most .000 nats of training loss, by arm and seed; the plan allows .05.",
    ]
