"""The gap's arms and its recall slices, against counting by hand."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import asdict
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ematrace.analysis.gap_design import ARMS, CHAIN, FACTORIAL, SPEN, Arm
from ematrace.analysis.rates import Sweep, sweeps_of
from ematrace.experiments import EXPERIMENTS, gap, gap_rates, gap_task
from ematrace.experiments.base import Context
from ematrace.experiments.chosen_rates import arm_key, chosen_rate
from ematrace.experiments.gap_task import matched_width, measure_arm
from ematrace.experiments.recall import (
    RARE,
    PairCounts,
    distance_to_last,
    in_own_document,
    pair_codes,
    recall_rows,
    stretch_rows,
)
from ematrace.results import Cell, Metric, Row, collect_provenance, read_file
from ematrace.spen import SpenForCausalLM
from ematrace.train.models import build_model
from ematrace.train.run import NonFiniteLoss

TINY: dict[str, Any] = {
    **gap_rates.EXPERIMENT.settings,
    **{"vocab_size": 300, "tokens": 8 * 32 * 4, "sequences": 8, "length": 32, "warmup": 1, "windows": 32},
}


def test_distances_and_counts_are_those_of_a_loop() -> None:
    rng = np.random.default_rng(0)
    windows, text = rng.integers(0, 7, (4, 60)), rng.integers(1, 6, 500)  # which has no 0 and no 6
    codes = pair_codes(windows, 7)
    distance = distance_to_last(codes)
    parts = (text[start : start + 100 + 1] for start in range(0, 499, 100))
    count = PairCounts.of(parts, 7).look_up(codes)
    in_text: dict[tuple[int, int], int] = defaultdict(int)
    for pair in pairwise(text):
        in_text[pair] += 1
    for row, window in enumerate(windows):
        last: dict[tuple[int, int], int] = {}
        for t, pair in enumerate(pairwise(window)):
            assert distance[row, t] == (t - last[pair] if pair in last else 0)
            assert count[row, t] == in_text[pair]
            last[pair] = t


def test_a_pair_of_another_document_is_none_of_this_one() -> None:
    rng = np.random.default_rng(3)
    windows = rng.integers(0, 6, (20, 40))
    distance = distance_to_last(pair_codes(windows, 6))
    found = in_own_document(windows, distance, end_of_text=0)
    for row, t in np.ndindex(*distance.shape):
        between = windows[row, t - distance[row, t] + 1 : t + 2]  # behind the first token of the earlier pair
        assert found[row, t] == (distance[row, t] > 0 and 0 not in between)


def test_slices_cover_every_target_once() -> None:
    rng = np.random.default_rng(1)
    nats, distance = rng.random((3, 400)), rng.integers(0, 400, (3, 400))
    count = rng.integers(0, 2 * RARE, (3, 400))
    context_seen, own_document = (distance > 0) | (rng.random((3, 400)) < 0.5), rng.random((3, 400)) < 0.5
    others = {"unigram_nats": 2 * nats}
    rows = recall_rows(nats, distance, count, context_seen, own_document, {"rare": RARE}, others)
    rows += stretch_rows(nats, distance)

    def total(metric: str, **factors: str) -> tuple[float, int]:
        of = [row.metrics[metric] for row in rows if metric in row.metrics and factors.items() <= row.factors.items()]
        return sum((m.value or 0) * (m.n or 0) for m in of), sum(m.n or 0 for m in of)

    everything = pytest.approx((nats.sum(), nats.size))
    assert total("nats", slice="all") == everything
    for one, other in (("recall", "other"), ("rare_recall", "rare_rest")):
        assert tuple(map(sum, zip(total("nats", slice=one), total("nats", slice=other), strict=True))) == everything
    assert total("recall_nats_by_distance") == pytest.approx(total("nats", slice="recall"))
    assert (
        tuple(sum(total("nats", slice=s)[i] for s in ("recall", "miss", "new_context")) for i in (0, 1)) == everything
    )
    assert total("nats_in_stretch") == everything
    assert total("recall_nats_in_stretch") == pytest.approx(total("nats", slice="recall"))
    in_document = (distance > 0) & own_document
    assert total("nats", slice="recall_in_document") == pytest.approx((nats[in_document].sum(), in_document.sum()))
    for name in ("recall", "other"):
        assert total(f"{name}_nats_by_count") == pytest.approx(total("nats", slice=name))
    assert total("unigram_nats", slice="all")[0] == pytest.approx(2 * nats.sum())
    rare = (distance > 0) & (count <= RARE)
    assert total("nats", slice="rare_recall") == pytest.approx((nats[rare].sum(), rare.sum()))


def test_arms_have_as_many_parameters() -> None:
    wanted = gap_task._parameters(SPEN, "2m", 512, 8192, 512)
    assert wanted == 1_901_824
    for arm in (arm for arm in ARMS if arm.width == "matched"):
        found = gap_task._parameters(arm, "2m", matched_width(arm, "2m", 8192, 512), 8192, 512)
        assert abs(found / wanted - 1) < 0.01, arm


def test_the_design_is_the_plans() -> None:
    assert len(FACTORIAL) == 21
    assert len(ARMS) == len({tuple(asdict(arm).items()) for arm in ARMS}) == 35
    for before, after in pairwise(CHAIN):
        changed = [name for name in asdict(before) if getattr(before, name) != getattr(after, name)]
        assert len(changed) == 1, (before, after)
    assert isinstance(built(SPEN), SpenForCausalLM)
    gpt2 = built(CHAIN[-1])
    assert type(gpt2).__module__.startswith("transformers.models.gpt2")
    assert gpt2.config.resid_pdrop == gpt2.config.attn_pdrop == gpt2.config.embd_pdrop == 0


def built(arm: Arm) -> Any:
    d_ff = matched_width(arm, "toy", 300, 32)
    overrides = [f"{name}={json.dumps(value)}" for name, value in arm.overrides("toy", d_ff).items()]
    return build_model(arm.preset(), 300, 0, overrides, length=32)


@pytest.mark.parametrize("arm", ARMS, ids=lambda arm: "-".join(map(str, asdict(arm).values())))
def test_an_arm_is_what_its_factors_say(arm: Arm) -> None:
    """Each factor is read off the built model, not off its overrides."""
    torch.manual_seed(0)
    model = built(arm).eval()
    ids = torch.arange(8)[None]
    changed = ids.clone()
    changed[0, 2] = 9
    with torch.no_grad():
        sees_past = not torch.equal(model(ids).logits[0, -1], model(changed).logits[0, -1])
    assert sees_past == (arm.context != "none")
    assert any("position" in name or "wpe" in name for name, _ in model.named_parameters()) == (
        arm.positions == "learned"
    )
    if arm.block == "gpt2":
        return
    block = model.model.layers[0]
    assert block.config.residual == arm.residual
    assert block.config.load_balance == arm.load_balance
    assert block.config.d_ff == 128 or arm.width == "matched"
    assert isinstance(block.mixer_norm, torch.nn.LayerNorm) == (arm.norm == "pre")
    with gap_task.count_units(model) as usage, torch.no_grad():
        model(ids)
    assert bool(usage) == (arm.ffn != "dense")
    for counts in usage:
        assert int(counts.sum()) <= ids.numel() * block.config.k == ids.numel() * round(0.06 * block.config.d_ff)
    if arm.ffn != "dense":
        assert block.config.topk_grad == arm.ffn.removeprefix("topk_")


@pytest.mark.parametrize("arm", [SPEN, CHAIN[-1]], ids=["spen", "gpt2"])
def test_scores_are_those_of_a_softmax_in_float64(arm: Arm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gap_task, "SCORED_AT_ONCE", 3 * 33)  # windows; the last batch has one
    torch.manual_seed(0)
    model = built(arm).eval()
    model.get_input_embeddings().weight.data.mul_(50)  # as sharp as after training
    windows = np.random.default_rng(0).integers(0, 300, (7, 33))
    nats, usage = gap_task.score(model, windows)
    ids = torch.from_numpy(windows)
    with torch.no_grad(), gap_task.count_units(model) as whole:
        log_p = model(ids[:, :-1]).logits.double().log_softmax(-1)
    wanted = -log_p.gather(-1, ids[:, 1:, None])[..., 0].numpy()
    assert wanted.std() > 1
    assert nats.dtype == np.float64
    np.testing.assert_allclose(nats, wanted, atol=1e-5)
    assert (usage is not None) == (arm is SPEN)
    if usage is not None:
        assert torch.equal(usage, torch.stack(whole))


def test_an_arm_is_trained_and_scored(tmp_path: Any) -> None:
    data = tmp_path / "text.txt"
    data.write_text("\n".join("the cat sat on the mat while one dog ran after it" for _ in range(400)))
    context = Context(seed=0, data=str(data), settings=TINY | {"validation": str(data)})
    rows = measure_arm(context, SPEN, "toy", 3e-3)
    cells = [tuple(row.factors.items()) for row in rows]
    assert len(cells) == len(set(cells))  # or the file would be refused, after the training
    found = {name: metric.value for row in rows for name, metric in row.metrics.items()}
    everything = next(row.metrics for row in rows if row.factors == {"text": "validation", "slice": "all"})
    assert (everything["nats"].n or 0) % 32 == 0
    assert 0 < (everything["nats"].value or 0) < 2 * np.log(300)
    assert found["train_nats"] is not None
    assert (found["passes"] or 0) > 0
    both = (found["selection_nats"] or 0) + (everything["nats"].value or 0)  # of one half of the windows each
    assert both / 2 == pytest.approx(everything["nats"].value, rel=0.2)
    assert 0 <= (found["dead_units"] or 0) < 1
    assert 0 < (found["usage_entropy"] or 0) <= 1
    assert {"text", "stretch"} in [row.factors.keys() for row in rows]


def test_chosen_rates_are_those_of_the_recorded_sweeps() -> None:
    """By a loop over the files: lowest mean, inside the grid, five rates."""
    nats: dict[str, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for path in (Path(__file__).parent.parent / "results" / "gap_rates").glob("*.json"):
        file = json.loads(path.read_text())
        arm = {name: value for name, value in file["factors"].items() if name != "lr"}
        value = next(c["metrics"]["selection_nats"]["value"] for c in file["cells"] if not c["factors"])
        nats[arm_key(arm)][file["factors"]["lr"]].append(value)
    assert nats
    for arm, curve in nats.items():
        best, *others = (lr for _, lr in sorted((sum(values) / len(values), lr) for lr, values in curve.items()))
        found = chosen_rate("gap_rates", json.loads(arm))
        assert found in (best, None)
        if len(curve) < 5 or not min(curve) < best < max(curve):
            assert found is None
        if found is None and len(curve) >= 5 and min(curve) < best < max(curve):  # one seed said too little
            assert any(len(curve[lr]) < 3 for lr in (best, *others[:2]))


@pytest.fixture(scope="module")
def recorded_rates() -> list[Cell]:
    paths = (Path(__file__).parent.parent / "results" / "gap_rates").glob("*.json")
    return [cell for path in paths for cell in read_file(path).unpack()]


def test_only_settled_rates_are_chosen(recorded_rates: list[Cell]) -> None:
    for sweep in sweeps_of(recorded_rates):
        assert chosen_rate("gap_rates", sweep.factors) == (sweep.best if sweep.obstacle is None else None)


def test_what_is_repeated_has_the_best_three_rates(recorded_rates: list[Cell]) -> None:
    """Wherever one seed says too little; a rate that was best on one seed alone may have been repeated, too."""
    found = {arm_key(s.factors): s for s in sweeps_of(recorded_rates)}
    assert sum(sweep.jumps for sweep in found.values()) > 1
    planned: dict[str, set[tuple[float, int]]] = defaultdict(set)
    points = list(gap_rates.grid("gpu", 1))
    assert len(points) == len({(arm_key(point.factors), point.seed) for point in points})
    for point in points:
        factors = {name: value for name, value in point.factors.items() if name != "lr"}
        planned[arm_key(factors)].add((float(str(point.factors["lr"])), point.seed))
    for arm, sweep in found.items():
        assert {(rate, seed) for rate, seeds in sweep.curve.items() for seed in seeds} <= planned[arm]
        if sweep.jumps and sweep.best in sorted(sweep.curve)[1:-1] and len(sweep.curve) >= 5:
            assert {(rate, seed) for rate in sweep.best_three for seed in (1000, 1001, 1002)} <= planned[arm]


def test_other_settings_are_no_part_of_a_sweep() -> None:
    provenance = collect_provenance(1.0)
    cells = [
        Cell("gap_rates", {"size": "2m", "lr": lr}, 1000, {"selection_nats": Metric(nats)}, settings, provenance)
        for lr, nats, settings in ((1e-3, 4.2, {"tokens": 2}), (2e-3, 4.1, {"tokens": 2}), (4e-3, 3.0, {"tokens": 9}))
    ]
    (sweep,) = sweeps_of(cells)
    assert sorted(sweep.curve) == [1e-3, 2e-3]


def test_a_rate_at_which_training_breaks_down_is_the_worst(monkeypatch: pytest.MonkeyPatch) -> None:
    def break_down(ctx: Context, arm: Arm, size: str, lr: float, by_stretch: bool) -> None:
        assert (arm, size, lr) == (SPEN, "2m", 0.064)
        assert not by_stretch  # which would be most of a sweep's cells
        raise NonFiniteLoss("step 7: the loss is nan")

    monkeypatch.setattr(gap_task, "measure_arm", break_down)
    (row,) = gap_rates.EXPERIMENT.measure(Context(), **asdict(SPEN), size="2m", lr=0.064)
    assert isinstance(row, Row)
    assert row.metrics["selection_nats"].value is None
    cells = [
        Cell("a_sweep", {"lr": lr}, 1000, metrics, {}, collect_provenance(1.0))
        for lr, metrics in (
            (0.016, {"selection_nats": Metric(5.0)}),
            (0.032, {"selection_nats": Metric(4.0)}),
            (0.064, row.metrics),
        )
    ]
    (sweep,) = sweeps_of(cells)
    assert sweep.best == 0.032
    assert sweep.means[0.064] == np.inf


def test_a_loss_that_rises_while_it_is_trained_on_is_noticed() -> None:
    curve = {0.001 * 2**i: {0: nats} for i, nats in enumerate((4.9, 4.85, 4.9))}
    assert not Sweep({}, curve, rises={0.002: 0.04}).jumps
    assert Sweep({}, curve, rises={0.004: 0.06}).jumps
    assert Sweep({}, curve, rises={0.004: 0.06}).obstacle is not None
    assert Sweep({}, {lr: dict.fromkeys(range(3), *nats.values()) for lr, nats in curve.items()}).obstacle is None


TRAIN_ARMS = [name for name in EXPERIMENTS if "arm_experiment" in vars(import_module(f"ematrace.experiments.{name}"))]


@pytest.mark.parametrize("name", TRAIN_ARMS)
def test_every_point_trains_the_arm_of_its_factors(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With all of them: an arm of another class would be one model under several names."""
    trained: list[dict[str, Any]] = []

    def train(ctx: Context, arm: Arm, size: str, lr: float, *_: Any, **options: Any) -> list[Row]:
        trained.append({**asdict(arm), "size": size, "lr": lr})
        return []

    monkeypatch.setattr(gap_task, "measure_arm", train)
    points = [point for scale in ("cpu", "gpu") for point in EXPERIMENTS[name].points(scale, 1)]
    for point in points:
        EXPERIMENTS[name].measure(Context(), **point.factors)
    of_settings = ("tokens", "vocabulary") if name == "gap_sizes" else ()
    assert trained == [{k: v for k, v in point.factors.items() if k not in of_settings} for point in points]


def test_seeds_that_rates_were_chosen_on_are_not_published() -> None:
    swept = {point.seed for point in gap_rates.EXPERIMENT.points("gpu", 1)}
    points = gap.EXPERIMENT.points("gpu", gap.EXPERIMENT.seeds)
    assert points
    assert not swept & {point.seed for point in points}
    assert len({json.dumps([p.factors, p.seed]) for p in points}) == len(points)


@pytest.mark.parametrize(
    ("nats", "jumps"),
    [
        ((5.0, 4.9, 4.85, 4.9), False),
        ((5.0, 4.8, 4.9, 4.7), True),  # falls, rises, falls
        ((5.0, 4.8, 4.9, 4.84), True),
        ((5.0, 4.99, 4.8, 4.85), True),  # a cliff
        ((4.8, 4.89, 5.0, 5.2), False),
    ],
)
def test_a_curve_that_jumps_is_noticed(nats: tuple[float, ...], jumps: bool) -> None:
    curve = {0.001 * 2**i: {0: value} for i, value in enumerate(nats)}
    assert Sweep({}, curve).jumps is jumps


def test_a_loss_that_is_not_finite_is_no_figure() -> None:
    """A run that diverged must not pass for recorded, so that the next round would skip it; no tokens are no loss."""
    windows = np.array([[1, 2, 1, 2]])
    distance = distance_to_last(pair_codes(windows, 10))
    of = {"distance": distance, "count": np.zeros_like(distance), "context_seen": distance > 0}
    of |= {"own_document": distance > 0, "bounds": {}, "others": {}}
    with pytest.raises(ValueError, match="not a finite number"):
        recall_rows(np.array([[1.0, np.nan, 1.0]]), **of)
    found = {row.factors.get("distance"): row.metrics for row in recall_rows(np.ones((1, 3)), **of)}
    assert found["257+"]["recall_nats_by_distance"].value is None
