"""Recalled shares, the rules on them and the switches' effects, on cells with planted losses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

import msgspec
import numpy as np
import pytest

from cells_support import make_file, make_table
from ematrace.analysis.gap_made_pairs import (
    BESIDE,
    CONTEXTS,
    EXPERIMENT,
    FOURTH,
    LONGER,
    PARTS,
    RECALLS,
    TRACES,
    UNORDERED,
    build_contexts,
    build_switch_recall,
    fading,
    lack_of_attention,
    lack_of_traces,
)
from ematrace.experiments.gap_made_pairs import ARMS, PairsArm
from ematrace.experiments.gap_made_pairs_long import ARMS as LONG_ARMS
from ematrace.ledger import load_claims
from ematrace.report.data import ReportData
from ematrace.report.gap_made_pairs import made_pairs, switch_recall_tables
from ematrace.results import CellFile, Metric, Row, Table

COUNTING, BAYES = 3.0, 1.8
PLANTED = {"query": 0.5, "values": 0.05, "residual": 0.2}
SEEDS = range(3)


def planted(arm: PairsArm) -> float:
    """The recalled share of an arm at its best rate."""
    if arm.predictor == "mixer":
        by_context = {"none": -0.3, "ema": 0.1, "attention": 0.15, "ema_attention": 0.9}
        return by_context[arm.context] + 0.3 * arm.fourth_trace + 0.5 * (arm.positions != "none")
    if arm.predictor == "static":
        return 0.1
    on = {"query": arm.query == "input", "values": arm.values == "normalised", "residual": arm.residual == "direct"}
    return 0.05 + sum(PLANTED[name] for name, is_on in on.items() if is_on)


def run(arm: PairsArm, seed: int, lr: float, share: float, selection: float | None, **settings: int) -> CellFile:
    def metrics(of: float) -> dict[str, Metric]:
        nats = COUNTING - of * (COUNTING - BAYES)
        return {"nats": Metric(nats), "counting_nats": Metric(COUNTING), "bayes_nats": Metric(BAYES)}

    rows = [Row({}, {"selection_nats": Metric(selection), **metrics(share)}), Row({"slice": "new"}, metrics(0.0))]
    rows += [Row({"slice": part}, metrics(share - 0.1 * i)) for i, part in enumerate(PARTS)]
    factors = {**asdict(arm), "size": "small", "lr": lr}
    return make_file(*rows, experiment=EXPERIMENT, seed=seed, factors=factors, settings={"steps": 1000, **settings})


def noise(arm: PairsArm, seed: int) -> float:
    """Another one for every arm, so that nothing cancels that is not paired."""
    return 0.01 * np.random.default_rng([ARMS.index(arm), seed]).normal()


def cells(share_of: Callable[[PairsArm], float] = planted, seeds: range = SEEDS, spread: float = 1.0) -> Table:
    """4e-3 is the best rate: the others recall more on the half that figures are of, and less on the other."""
    files = []
    for arm in ARMS:
        for seed in seeds:
            share = share_of(arm) + spread * noise(arm, seed)
            for lr, more in ((0.002, 0.3), (0.004, 0.0), (0.008, 0.3)):
                files.append(run(arm, seed, lr, share + more, 2.0 + more))
    return make_table(*files)


def test_the_share_is_of_what_bayes_gains_over_counting_at_the_rate_that_the_other_half_chooses() -> None:
    found = build_contexts(cells())
    assert tuple(found) == tuple(CONTEXTS)
    for name, share in {TRACES: 0.1, FOURTH: 0.4, UNORDERED: 0.15, BESIDE: 0.9, "attention with RoPE": 0.65}.items():
        assert found[name].shares["seen"].mean == pytest.approx(share, abs=0.02), name
        assert found[name].shares["seen 5-16"].mean == pytest.approx(share - 0.2, abs=0.02), name
        assert (found[name].lr, found[name].at_end, found[name].seeds) == (0.004, False, (0, 1, 2))
    outcomes = {name: one.outcome for name, one in found.items()}
    assert outcomes["attention with RoPE"] == outcomes[BESIDE] == "recalls"
    assert outcomes[TRACES] == outcomes["no context"] == "does not"
    assert outcomes[FOURTH] == "in part"


def test_a_rate_at_the_end_is_named_and_one_that_broke_down_is_none() -> None:
    arm = ARMS[1]
    broken = [run(arm, 0, 0.002, 0.9, 2.0), run(arm, 0, 0.004, 0.5, None)]
    found = build_contexts(make_table(*broken))[TRACES]
    assert (found.lr, found.at_end, found.outcome) == (0.002, True, "too few seeds")


def test_a_rate_that_broke_down_counts_among_the_ends() -> None:
    arm = ARMS[1]
    files = [run(arm, seed, lr, 0.5, 2.0) for seed in SEEDS for lr in (0.002, 0.004)]
    broken = [run(arm, seed, 0.008, 0.5, None) for seed in SEEDS]
    found = build_contexts(make_table(*files, *broken))[TRACES]
    assert (found.lr, found.at_end) == (0.002, True)
    better = [run(arm, seed, 0.004, 0.5, 1.9) for seed in SEEDS]
    assert not build_contexts(make_table(*files[::2], *better, *broken))[TRACES].at_end


def test_rates_are_compared_on_the_seeds_that_all_have() -> None:
    """One of fewer seeds may be the best one; one of too few is not compared."""
    arm = ARMS[1]
    many = [run(arm, seed, 0.002, 0.05, 2.0 if seed < 3 else 0.1) for seed in range(5)]
    few = [run(arm, seed, 0.004, 0.9, 1.5) for seed in SEEDS]
    one = [run(arm, 0, 0.008, 0.5, 1.0)]
    found = build_contexts(make_table(*many, *few, *one))[TRACES]
    assert (found.lr, found.seeds, found.outcome) == (0.004, (0, 1, 2), "recalls")


def test_runs_of_other_settings_do_not_stand_beside_the_others() -> None:
    files = [run(ARMS[0], seed, 0.004, 0.5, 2.0) for seed in SEEDS]
    files += [run(ARMS[1], seed, 0.004, 0.5, 2.0, steps=30) for seed in SEEDS]
    assert tuple(build_contexts(make_table(*files))) == ("no context",)


def test_differences_are_between_the_same_seeds() -> None:
    """The fourth trace has seeds 1 to 4, in which all arms are better from seed to seed."""
    traces, fourth = (arm for arm in ARMS if arm.context == "ema")
    files = [run(traces, seed, 0.004, 0.1 * seed, 2.0) for seed in range(4)]
    files += [run(fourth, seed, 0.004, 0.1 * seed + 0.2, 2.0) for seed in range(1, 5)]
    added, outcome = fading(build_contexts(make_table(*files)))
    assert added.values == pytest.approx([0.2] * 3)
    assert outcome == "for"


def test_intervals_decide_and_not_means() -> None:
    """With seeds that differ as much as the rules' distances."""
    loud = build_contexts(cells(spread=30.0))
    assert loud[BESIDE].shares["seen"].mean > RECALLS
    assert {loud[BESIDE].outcome, loud["attention with RoPE"].outcome} == {"in part"}
    assert fading(loud)[1] == "undecided"
    in_block = [arm for arm in ARMS if arm.predictor == "softmax"]
    unsure = (0.3, -0.2, 0.4)  # by seed: .17 on average, which is more than .1
    files = [run(a, s, 0.004, 0.05 + (a.query == "input") * unsure[s], 2.0) for a in in_block for s in SEEDS]
    switched = build_switch_recall(make_table(*files))
    assert switched is not None
    assert switched.effects["query"].mean == pytest.approx(0.5 / 3)
    assert switched.causes == ()


def test_rules_of_the_plan() -> None:
    found = build_contexts(cells())
    assert (lack_of_traces(found), lack_of_attention(found)) == ("for", "for")
    added, outcome = fading(found)
    assert (added.mean, outcome) == (pytest.approx(0.3, abs=0.02), "for")

    recalling = build_contexts(cells(lambda arm: 0.8 if arm.context in ("ema", "attention") else planted(arm)))
    assert (lack_of_traces(recalling), lack_of_attention(recalling)) == ("against", "against")
    assert fading(recalling)[1] == "against"
    for share, is_open in ((0.8, False), (0.1, True)):  # a fourth trace adds nothing to either
        said = made_pairs(data(cells(lambda arm, of=share: of if arm.context == "ema" else planted(arm))))  # type: ignore[misc]
        assert ("leaves fading open" in said.rules) == is_open  # type: ignore[union-attr]
    nobody = build_contexts(cells(lambda arm: 0.1))
    assert (lack_of_traces(nobody), lack_of_attention(nobody)) == ("undecided", "undecided")
    partly = build_contexts(cells(lambda arm: 0.35 if arm.context == "ema" else planted(arm)))
    assert lack_of_traces(partly) == "undecided"
    few = build_contexts(cells(seeds=range(2)))
    assert (lack_of_traces(few), fading(few)[1]) == ("too few seeds", "too few seeds")


def test_effects_of_switches_are_averages_over_the_others() -> None:
    found = build_switch_recall(cells())
    assert found is not None
    for name, effect in PLANTED.items():
        assert found.effects[name].mean == pytest.approx(effect, abs=0.02)
    assert found.causes == ("query", "residual")  # the third is real and too small
    assert found.settings["input", "as_read", "ffn"].outcome == "recalls"
    assert found.settings["slow_trace", "as_read", "ffn"].outcome == "does not"
    assert found.mixers["direct"].shares["seen"].mean == pytest.approx(0.9, abs=0.02)
    assert found.static["ffn"].shares["seen"].mean == pytest.approx(0.1, abs=0.02)


def test_nothing_is_said_where_an_arm_is_missing() -> None:
    settings = {"predictor": "softmax", "query": "input", "values": "as_read", "residual": "ffn"}
    without = [s for s in cells().cells if not settings.items() <= s.cell.factors.items()]
    assert build_switch_recall(Table(without)).effects == {}  # type: ignore[union-attr]
    assert build_switch_recall(Table([])) is None
    assert build_contexts(Table([])) == {}
    assert made_pairs(data(Table([]))) is None
    assert switch_recall_tables(data(Table(without))) is None
    some = [s for s in cells().cells if s.cell.factors["context"] != "ema_attention"]
    found = made_pairs(data(Table(some)))
    assert found is not None
    assert found.rules == ""
    assert len(found.contexts.rows) == len(CONTEXTS) - 1


def data(table: Table) -> ReportData:
    return ReportData(table, load_claims(), ())


def test_the_tables_say_what_was_found() -> None:
    contexts, switched = made_pairs(data(cells())), switch_recall_tables(data(cells()))
    assert contexts is not None
    assert switched is not None
    assert contexts.contexts.rows[1] == [
        "EMA traces",
        ".10 (.08–.12)",
        ".00",
        "−.10",
        "−.20",
        "0.004",
        "does not",
        "3",
        "–",
    ]
    assert contexts.rules == (
        "Is selection what traces lack: for. Is order what attention without positions lacks: for. Is fading what "
        "traces lack: for; a fourth trace that hardly fades adds +.306 (.251–.362) to the share."
    )
    named = {row[0]: row[1] for row in switched.arms.rows}
    assert named["static predictor, context into the residual"].startswith(".10 (")
    assert named["attention over the inputs, query from the input and context into the residual"].startswith(".75 (")
    assert [row[0] for row in switched.effects.rows] == [
        "query from the input",
        "values of unit scale",
        "context into the residual",
    ]
    assert switched.causes.endswith("query from the input and context into the residual.")


def longer(seeds: range, share_of: Callable[[PairsArm], float]) -> list[CellFile]:
    files = [run(arm, seed, 0.002, share_of(arm), 2.0, steps=4000) for arm in LONG_ARMS for seed in seeds]
    return [msgspec.structs.replace(file, experiment=LONGER) for file in files]


def test_four_times_the_steps_stand_beside_and_are_judged_from_three_seeds_on() -> None:
    def learned(arm: PairsArm) -> float:
        return 0.8 if arm.positions != "none" else planted(arm)

    slow = cells(lambda arm: 0.1 if arm.positions != "none" else planted(arm))
    assert made_pairs(data(slow)).rules.endswith("which has selection and order, does not recall here.")  # type: ignore[union-attr]
    for seeds, of_rope, ending, causes in (
        (range(1), ".80, 1 seed", "undecided whether attention with positions recalls here.", "too few seeds"),
        (
            SEEDS,
            ".80, recalls (slow), 3 seeds",
            "adds +.300 to the share.",
            "query from the input and context into the residual",
        ),
    ):
        both = data(Table([*slow.cells, *make_table(*longer(seeds, learned)).cells]))
        contexts, switched = made_pairs(both), switch_recall_tables(both)
        assert contexts is not None
        assert switched is not None
        later = {row[0]: row[-1] for row in contexts.contexts.rows}
        assert later["attention with RoPE"] == of_rope
        assert later["no context"] == "–"
        assert contexts.rules.endswith(ending)
        verdict = "too few seeds" if len(seeds) == 1 else "for"
        assert f"With four times the steps: Is selection what traces lack: {verdict}." in contexts.rules
        assert switched.effects.heads == ["switch", "added to the share", "four times the steps"]
        assert switched.effects.rows[0][2] == "+.500"
        assert switched.causes.endswith(f"four times the steps: {causes}.")


def test_settings_that_have_more_steps_are_shown_before_all_have() -> None:
    slow = cells()
    some = [
        f for f in longer(range(1), planted) if f.factors["predictor"] != "softmax" or f.factors["query"] == "input"
    ]
    switched = switch_recall_tables(data(Table([*slow.cells, *make_table(*some).cells])))
    assert switched is not None
    later = {row[0]: row[-1] for row in switched.arms.rows}
    assert later["attention over the inputs, query from the input"] == ".55, 1 seed"
    assert later["attention over the inputs"] == "–"
    assert switched.effects.heads == ["switch", "added to the share"]
    assert switched.causes.endswith("query from the input and context into the residual.")
