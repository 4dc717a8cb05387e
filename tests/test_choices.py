"""The experiment `choices` at toy size: a unit for each choice, and the figures of claims as their own experiments
measure them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_limits

from cells_support import make_file, make_row, make_table
from ematrace.analysis.choices import CLAIMS, DEFAULT, SHOWN, change_of, hold_under, under_choice
from ematrace.experiments import EXPERIMENTS, Context, Point, dimension_control
from ematrace.experiments.choices import CHOICES, PROBES
from ematrace.experiments.distances import sparse_code
from ematrace.experiments.grammar_task import SETTINGS, GrammarTask, grammar_task
from ematrace.experiments.runner import Request, make_plan
from ematrace.experiments.runner.units import jobs_of
from ematrace.experiments.runner.worker import measure_unit
from ematrace.ledger import load_claims
from ematrace.probes import GramMatrix
from ematrace.report.sections.choices import comparisons_of, failing_text, figures_of
from ematrace.results import CellFile, Selector, Table, read_file

ROOT = Path(__file__).resolve().parents[1]
NAMES = [*CHOICES, *PROBES]
CLAIMS_OF_PAPER = load_claims()
GRAMMAR = dict(CLAIMS_OF_PAPER.defaults)
OWN = ("trace_probe", "ablations", "dimension_control", "lag_decoding", "distances", "shortcuts")
WIDTH = 64  # of L0, for the paper's 512
TINY = (
    *("sentences.train=40", "sentences.within=20", "sentences.transfer=20", "sentences.bigru_epochs=1"),
    f"spcn.widths=[{WIDTH}, 16, 8, 8]",
)


@pytest.fixture(scope="module", autouse=True)
def toy():
    """One thread as in the runner's workers, so that sums come in the same order; projections as small as L0."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    small = [(part, size and size * WIDTH // 512) for part, size in dimension_control.CONDITIONS]
    with threadpool_limits(1), pytest.MonkeyPatch.context() as patch:
        patch.setattr(dimension_control, "CONDITIONS", small)
        yield
    torch.set_num_threads(threads)


def at_toy_size(selector: Selector) -> Selector:
    where = dict(selector.where)
    if "dimensions" in where:
        where["dimensions"] = int(where["dimensions"]) * WIDTH // 512
    return Selector(selector.experiment, selector.metric, where)


def run(name: str, *only: str, settings: Sequence[str] = ()) -> CellFile:
    (unit,) = make_plan(Request((name,), only=only, settings=(*TINY, *settings))).units
    file = measure_unit(unit)
    assert isinstance(file, CellFile), file
    return file


@pytest.fixture(scope="module", params=[("default", ()), ("k 16%", ("spcn.k=0.16",)), ("ridge 1", ("ridge_lambda=1",))])
def measured(request) -> tuple[str, Table]:
    """A choice, and the claims' own experiments with that setting, on the same seed."""
    choice, settings = request.param
    own = [run(name, settings=settings) for name in OWN]
    return choice, make_table(run("choices", f"choice={choice}"), *own)


def test_a_unit_and_a_process_for_each_choice_on_each_seed():
    units = make_plan(Request(("choices",), seeds=2)).units
    assert [(u.seed, u.factors["choice"]) for u in units] == [(seed, name) for seed in (0, 1) for name in NAMES]
    assert len(NAMES) == len(set(NAMES)) == 23
    assert len(jobs_of(units)) == len({u.file_name for u in units}) == 46


@pytest.mark.parametrize("name", NAMES)
def test_a_choice_changes_its_setting_and_no_other(name):
    experiment = EXPERIMENTS["choices"]
    settings = experiment.resolve_settings(Point({**GRAMMAR, "choice": name}), experiment.settings)
    task, default = (grammar_task(Context(settings=s), **GRAMMAR) for s in (settings, SETTINGS))

    def everything(task: GrammarTask) -> dict[str, Any]:
        probe = {"ridge_lambda": task.ridge_lambda, "fit_intercept": task.fit_intercept}
        return {**task.spcn_settings, **probe, "sizes": task.sizes, "grammar": task.A.settings}

    changed = {key: value for key, value in everything(task).items() if value != everything(default)[key]}
    expected = {**CHOICES, **PROBES}[name]
    assert changed == {key: tuple(value) if isinstance(value, list) else value for key, value in expected.items()}
    assert settings["grammar"] == task.A.settings


def test_a_task_without_intercept_has_none():
    gram = GramMatrix(2, ("a", "b"))
    gram.update(np.array([[1.0, 3.0], [2.0, 5.0], [4.0, 4.0]]), ["a", "b", "b"])
    assert np.all(GrammarTask(0, fit_intercept=False).solve(gram).intercept == 0)
    assert np.all(GrammarTask(0).solve(gram).intercept != 0)


@pytest.mark.parametrize("claim", CLAIMS)
def test_a_choice_has_the_figures_of_the_claims_own_experiments(measured, claim):
    """Which measure the same network on the same sentences: equal, and there."""
    choice, table = measured
    selectors = [at_toy_size(s) for s in CLAIMS_OF_PAPER[claim].selectors]
    again = {s: under for s in selectors if (under := under_choice(s, choice)) is not None}
    assert again
    for selector, under in again.items():
        ours, own = table.select(under), table.select(selector)
        assert ours is not None, under
        assert own is not None, selector
        assert ours.sample.values == pytest.approx(own.sample.values, rel=1e-12), under


@pytest.mark.parametrize(
    ("claim", "own", "again"),
    [
        ("C01", "trace_probe/deep{representation=l0}", "choices/deep{choice=x, variant=activation}"),
        ("C02", "trace_probe/transfer{representation=traces}", "choices/transfer{choice=x, variant=traces}"),
        ("C03", "trace_probe/within{representation=l0+traces}", "choices/within{choice=x, variant=full}"),
        ("C04", "trace_probe/deep{representation=l0+traces}", "choices/deep{choice=x, variant=full}"),
        (
            "C05",
            "dimension_control/transfer{representation=traces, dimensions=1024}",
            "choices/transfer{choice=x, representation=traces, dimensions=1024}",
        ),
        (
            "C06",
            "dimension_control/deep{representation=traces, dimensions=512}",
            "choices/deep{choice=x, representation=traces, dimensions=512}",
        ),
        ("C07", "supervised/within{unseen=untrained}", None),
        ("C08", "trace_probe/within{representation=l0+traces}", "choices/within{choice=x, variant=full}"),
        (
            "C09",
            "trace_probe/role_transfer{representation=l0+traces, role=det_agent}",
            "choices/role_transfer{choice=x, variant=full, role=det_agent}",
        ),
        (
            "C12",
            "trace_probe/role_transfer{representation=l0+traces, role=noun_patient}",
            "choices/role_transfer{choice=x, variant=full, role=noun_patient}",
        ),
        ("C13", "ablations/within{variant=forward_only}", "choices/within{choice=x, variant=forward_only}"),
        ("C15", "ablations/within{level=2}", "choices/within{choice=x, level=2}"),
        ("C17", "position/within{features=position}", None),
        (
            "C18",
            "lag_decoding/noun_accuracy{reader=probe, trace=slow, lag=3}",
            "choices/noun_accuracy{choice=x, reader=probe, trace=slow, lag=3}",
        ),
        ("C18", "lag_decoding/noun_accuracy{reader=role, lag=3}", None),
        (
            "C42",
            "distances/max_distortion{points=l0_states, code=topk}",
            "choices/max_distortion{choice=x, points=l0_states, code=topk}",
        ),
        ("C42", "distances/jl_epsilon{points=words}", "choices/jl_epsilon{choice=x, points=words}"),
        (
            "C43",
            "shortcuts/spcn_content_accuracy{input=novel}",
            "choices/spcn_content_accuracy{choice=x, input=novel}",
        ),
        ("C43", "shortcuts/content_accuracy{input=novel}", None),
    ],
)
def test_cells_of_a_claim_under_a_choice(claim, own, again):
    selector = Selector.parse(own)
    assert selector in CLAIMS_OF_PAPER[claim].selectors
    assert under_choice(selector, "x") == (None if again is None else Selector.parse(again))


@pytest.mark.parametrize("claim", SHOWN)
def test_what_is_shown_in_the_place_of_figures_is_what_the_claim_compares(claim):
    needed = CLAIMS_OF_PAPER[claim].selectors
    assert {s for quantity in SHOWN[claim] for s in quantity.selectors} <= set(needed)


def test_what_is_not_measured_again_does_not_depend_on_the_network():
    """The BiGRU, position and guesses: all else that these claims need, `choices` has."""
    rest = {s for id in CLAIMS for s in CLAIMS_OF_PAPER[id].selectors if under_choice(s, DEFAULT) is None}
    assert {s.experiment for s in rest} == {"supervised", "controls", "position", "lag_decoding", "shortcuts"}
    assert {s.where["features"] for s in rest if s.experiment == "controls"} == {"majority"}
    assert {s.where["reader"] for s in rest if s.experiment == "lag_decoding"} == {"role", "majority"}
    assert not any(s.metric.startswith("spcn_") for s in rest)


def made(bigru: dict[int, float]) -> Table:
    """W of SPCN on seeds 0 and 1 by choice, and that of the BiGRU on these seeds."""
    of_choice = {"default": (0.8, 0.9), "worse": (0.5, 0.6)}
    cells = [
        make_file(
            make_row({"within": values[seed]}, variant="full"),
            experiment="choices",
            seed=seed,
            factors={"choice": name},
        )
        for name, values in of_choice.items()
        for seed in (0, 1)
    ]
    own = [
        make_file(make_row({"within": w}, representation="l0+traces"), experiment="trace_probe", seed=seed)
        for seed, w in enumerate((0.8, 0.9, 1.0))
    ]
    supervised = [
        make_file(make_row({"within": w}, unseen="untrained"), experiment="supervised", seed=seed)
        for seed, w in bigru.items()
    ]
    return make_table(*cells, *own, *supervised)


def test_a_ratio_to_what_does_not_change_is_taken_on_the_same_seeds():
    """C08: seed 2 of the BiGRU, which no choice has, only counts for the scatter."""
    table = made({0: 1.0, 1: 0.5, 2: 0.25})
    (ratio,) = figures_of(CLAIMS_OF_PAPER["C08"])
    change = change_of(table, "worse", ratio)
    assert change is not None
    assert change.value == pytest.approx(np.mean([0.5 / 1.0, 0.6 / 0.5]))
    assert change.difference == pytest.approx(np.mean([0.5 - 0.8, (0.6 - 0.9) / 0.5]))
    assert change.scatter == pytest.approx(2 * np.std([0.8, 0.9 / 0.5, 1.0 / 0.25], ddof=1))
    assert change_of(made({2: 0.25}), "worse", ratio) is None


def test_directions_with_margins_and_ratios_are_judged_as_in_the_ledger():
    """C08 holds above .9 of the BiGRU; C07 where the BiGRU is better than SPCN."""
    compared = comparisons_of(CLAIMS_OF_PAPER)
    assert {c.claim for c in compared} == set(CLAIMS)
    for bigru, by_default, worse in (
        ({0: 0.9, 1: 0.95}, {"C07": True, "C08": True}, {"C07": True, "C08": False}),
        ({0: 0.5, 1: 0.5}, {"C07": False, "C08": True}, {"C07": False, "C08": True}),
    ):
        table = made(bigru)
        assert [hold_under(table, name, compared) for name in ("default", "worse")] == [by_default, worse]
    assert hold_under(made({}), "worse", compared) == {}


def test_directions_that_fail_are_named_where_they_differ_from_the_default():
    by_default = {"C01": True, "C10": False, "C18": False}
    assert failing_text(by_default, {}) == "C10, C18"
    assert failing_text({"C01": True}, {"C01": True}) == "none"
    assert failing_text({"C01": False}, {"C01": True}) == "C01"
    assert failing_text(by_default, by_default) == "the same"
    assert failing_text({"C01": False, "C10": True, "C18": False}, by_default) == "also C01, not C10"
    assert failing_text({"C01": False}, by_default) == "also C01"  # of C10 and C18 nothing is known
    assert failing_text({}, by_default) == "–"


def test_codes_follow_the_choice_of_top_k_and_of_relu():
    drive = np.array([[3.0, -4.0, 0.5]])
    np.testing.assert_allclose(sparse_code(drive, 2, by_magnitude=True), [[1.0, 0.0, 0.0]])
    np.testing.assert_allclose(sparse_code(drive, 2, by_magnitude=True, rectify=False), [[0.6, -0.8, 0.0]])
    below = np.array([[-3.0, -4.0, -5.0]])
    np.testing.assert_allclose(sparse_code(below, 2, rectify=False), [[-0.6, -0.8, 0.0]])
    np.testing.assert_array_equal(sparse_code(below, 2), 0.0)


def test_recorded_choices_have_the_settings_of_today():
    """Same settings, same name: seeds that are added stand beside the recorded ones."""
    experiment = EXPERIMENTS["choices"]
    files = [read_file(path) for path in sorted((ROOT / "results" / "choices").glob("*.json"))]
    assert files
    for file in files:
        if "choice" in file.factors:  # the first recording had all choices in one file
            expected = experiment.resolve_settings(Point(file.factors, file.seed), experiment.settings)
            assert file.settings == json.loads(json.dumps(expected))
