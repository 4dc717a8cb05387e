"""The gap's gradients: the true one against finite differences, the straight-through one where it must be the same."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ematrace.analysis.gap_design import SPEN, UNBALANCED
from ematrace.experiments import gap_all_units, gap_gradients, gap_halves, gap_halves_2m, gap_straight_through
from ematrace.experiments.base import Context, Point
from ematrace.experiments.gap_gradients import (
    MEASURED,
    at_steps,
    compare_gradients,
    cosine,
    evenly,
    gradient,
    length,
    model_after,
    steps_per_part,
)
from ematrace.experiments.gap_task import train_arm
from ematrace.experiments.gap_text import tokenizer_folder
from ematrace.experiments.recall import Ids
from ematrace.models.block import Block
from ematrace.results import Row
from ematrace.spen import SpenConfig, SpenForCausalLM
from ematrace.text import load_tokenizer
from test_gap import TINY

WINDOWS = np.random.default_rng(0).integers(0, 29, (4, 13))


def build(**changes: Any) -> SpenForCausalLM:
    """In float64, with weights large enough that dropped units matter."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 29, "d_model": 8, "d_ff": 20, "n_layers": 2, "k": 3, "bos_token_id": 0, "eos_token_id": 0}
    return (
        SpenForCausalLM(SpenConfig(**sizes | {"initializer_range": 0.3, "load_balance": 0.0} | changes)).double().eval()
    )


def loss_and_kept(model: Any) -> tuple[float, list[torch.Tensor]]:
    kept: list[torch.Tensor] = []
    blocks = [module for module in model.modules() if isinstance(module, Block)]
    hooks = [b.ffn.W_down.register_forward_pre_hook(lambda _, inputs: kept.append(inputs[0] != 0)) for b in blocks]
    ids = torch.from_numpy(WINDOWS)
    with torch.no_grad():
        logits = model(ids[:, :-1]).logits
    for hook in hooks:
        hook.remove()
    return float(torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())), kept


def slope(model: Any, direction: dict[str, torch.Tensor], step: float = 1e-6) -> float:
    """Of the loss along a direction, by central differences; no unit may enter or leave the top-k on the way."""
    losses, kept = [], []
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for sign in (1, -2):
            for name, d in direction.items():
                parameters[name].add_(sign * step * d)
            loss, of_units = loss_and_kept(model)
            losses.append(loss)
            kept.append(of_units)
        for name, d in direction.items():
            parameters[name].add_(step * d)
    assert all(torch.equal(a, b) for a, b in zip(*kept, strict=True))
    return (losses[0] - losses[1]) / (2 * step)


def test_the_masked_gradient_is_the_loss_function_s_own() -> None:
    model = build()
    true, ste = gradient(model, WINDOWS, "masked"), gradient(model, WINDOWS, "ste")
    for seed in range(3):
        drawn = torch.Generator().manual_seed(seed)
        direction = {name: torch.randn(g.shape, generator=drawn, dtype=g.dtype) for name, g in true.items()}
        found = slope(model, direction)
        assert float(sum((true[n] * d).sum() for n, d in direction.items())) == pytest.approx(found, rel=1e-5)
        assert float(sum((ste[n] * d).sum() for n, d in direction.items())) != pytest.approx(found, rel=1e-2)


def rows_by(rows: list[Row], part: str = "all", **factors: Any) -> dict[str, float]:
    (row,) = [row for row in rows if row.factors == {"part": part, **factors}]
    return {name: metric.value for name, metric in row.metrics.items() if metric.value is not None}


def test_with_all_units_kept_both_gradients_are_the_same() -> None:
    rows = compare_gradients(build(k=20), WINDOWS)
    for row in rows:
        assert row.metrics["cosine"].value == pytest.approx(1, abs=1e-12)
        assert row.metrics["norm_ratio"].value == pytest.approx(1, abs=1e-12)
    assert rows_by(rows)["dead_units"] == 0
    assert rows_by(rows)["masked_cosine_of_halves"] == pytest.approx(rows_by(rows)["ste_cosine_of_halves"])


def test_they_differ_only_below_a_selection() -> None:
    """In a single block W_down comes after the only selection, everything else before it."""
    model = build(n_layers=1)
    rows = compare_gradients(model, WINDOWS)
    assert rows_by(rows, part="W_down")["cosine"] == pytest.approx(1, abs=1e-12)
    assert rows_by(rows, part="W_up")["cosine"] < 0.99
    assert rows_by(rows, part="W_h")["cosine"] < 0.99
    assert rows_by(rows, part="block_0")["cosine"] < 0.99
    kinds = {"embedding", "W_pred", "W_h", "W_e", "W_up", "W_down", "norms"}
    assert {row.factors["part"] for row in rows} == kinds | {"all", "block_0"}
    squares = sum((row.metrics["true_norm"].value or 0) ** 2 for row in rows if row.factors["part"] in kinds)
    assert squares == pytest.approx(rows_by(rows)["true_norm"] ** 2)  # every parameter is of one kind
    assert rows_by(rows)["nats"] == pytest.approx(loss_and_kept(model)[0], rel=1e-6)


def test_gradients_are_those_of_the_cross_entropy_of_all_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = gradient(build(), WINDOWS, "ste")
    balanced = build(load_balance=5.0)
    for found in (gradient(balanced, WINDOWS, "ste"), gradient(balanced.train(), WINDOWS, "ste")):
        for name, g in plain.items():
            torch.testing.assert_close(found[name], g)
    monkeypatch.setattr(gap_gradients, "SCORED_AT_ONCE", 3 * WINDOWS.shape[1])  # batches of 3 windows and 1
    in_parts = gradient(build(), WINDOWS, "ste")
    for name, g in plain.items():
        torch.testing.assert_close(in_parts[name], g)


def test_looking_at_a_model_changes_nothing() -> None:
    model = build(topk_grad="masked")
    before = {name: p.clone() for name, p in model.named_parameters()}
    compare_gradients(model, WINDOWS)
    assert model.config.topk_grad == "masked"
    assert all(torch.equal(before[name], p) and p.grad is None for name, p in model.named_parameters())


def test_cosine_and_length_are_those_of_one_long_vector() -> None:
    rng = np.random.default_rng(1)
    a, b = ({"x": rng.normal(size=(3, 2)), "y": rng.normal(size=4)} for _ in range(2))
    u, v = (np.concatenate([part.ravel() for part in of.values()]) for of in (a, b))
    one, other = ({name: torch.from_numpy(part) for name, part in of.items()} for of in (a, b))
    assert length(one) == pytest.approx(np.linalg.norm(u))
    assert cosine(one, other) == pytest.approx(u @ v / np.linalg.norm(u) / np.linalg.norm(v))
    assert np.isnan(cosine(one, {name: 0 * part for name, part in other.items()}))


@pytest.mark.parametrize(
    ("windows", "most", "taken"), [(127, 64, 64), (10, 5, 4), (7, 64, 6), (64, 64, 64), (200, 64, 64)]
)
def test_windows_are_spread_over_all_in_two_halves_of_the_same_size(windows: int, most: int, taken: int) -> None:
    found = evenly(np.arange(windows)[:, None], most).ravel()
    assert len(found) == taken
    gaps = np.diff([*found, windows + found[0]])  # also after the last
    assert gaps.max() - gaps.min() <= 1


def context(tmp_path: Path, **changes: Any) -> Context:
    data = tmp_path / "text.txt"
    data.write_text("\n".join("the cat sat on the mat while one dog ran after it" for _ in range(400)))
    return Context(seed=3, data=str(data), settings=TINY | {"validation": str(data), "batch": 4} | changes)


def test_step_0_is_the_model_that_training_begins_with(tmp_path: Path) -> None:
    trained = train_arm(context(tmp_path), UNBALANCED, "toy", 1e-30, tmp_path / "run", checkpoint_every=1, keep=9)
    first, start = model_after(1, trained).state_dict(), model_after(0, trained).state_dict()
    assert first.keys() == start.keys()
    torch.testing.assert_close(dict(first), dict(start), rtol=0, atol=1e-20)


def test_an_arm_is_measured_while_it_trains(tmp_path: Path) -> None:
    arm = replace(SPEN, ffn="topk_masked").__dict__
    rows = gap_straight_through.measure(context(tmp_path), size="toy", lr=1e-2, **arm)
    cells = [tuple(row.factors.items()) for row in rows]
    assert len(cells) == len(set(cells))
    assert not {"block", "size", "lr", *arm} & {name for row in rows for name in row.factors}  # or it is not written
    assert sorted({row.factors["step"] for row in rows}) == [0, 1, 2, 4]
    nats = [rows_by(rows, step=step)["nats"] for step in (0, 1, 2, 4)]
    assert nats == sorted(set(nats), reverse=True)  # the model of each step, not the same one four times
    assert 0 < rows_by(rows, step=4)["cosine"] < 1


def test_the_last_step_is_measured_on_the_text_that_was_named(tmp_path: Path) -> None:
    other = tmp_path / "other.txt"
    other.write_text("\n".join("birds of many kinds fly over rivers and hills" for _ in range(400)))
    ctx = context(tmp_path, tokens=8 * 32 * 30, validation=str(other))
    tokenizer = load_tokenizer(tokenizer_folder(str(ctx.data), ctx.settings["vocab_size"]))

    def look(model: Any, windows: Ids) -> list[Row]:
        text = tokenizer.decode(windows.ravel())
        assert "rivers" in text
        assert "cat" not in text
        return [Row({}, {})]

    chosen = (i * steps_per_part(ctx.settings) for i in MEASURED)
    rows = at_steps(ctx, UNBALANCED, "toy", 1e-3, chosen, look)
    assert [row.factors["step"] for row in rows] == [*MEASURED, 30]


def test_a_gradient_is_of_fewer_windows_in_a_toy() -> None:
    for experiment in (gap_straight_through.EXPERIMENT, gap_all_units.EXPERIMENT):
        for size, batch in {"toy": 16, "small": 64, "2m": 64}.items():
            point = Point({"size": size})
            assert experiment.resolve_settings(point, experiment.settings)["batch"] == batch
            assert experiment.resolve_settings(point, {**experiment.settings, "batch": 4})["batch"] == 4


def test_the_network_with_all_units_on_is_the_dense_one() -> None:
    """The same weights in a dense model have its gradient and loss; the top-k is as before afterwards."""
    model, dense = build(), build(ffn="dense")
    dense.load_state_dict(model.state_dict())
    with gap_all_units.all_units_on(model):
        found = gradient(model, WINDOWS, "masked")
        assert loss_and_kept(model)[0] == pytest.approx(loss_and_kept(dense)[0], abs=1e-12)
        for name, g in gradient(dense, WINDOWS, "masked").items():
            torch.testing.assert_close(found[name], g)
    assert model.config.k == 3
    ste, true = (gradient(model, WINDOWS, kind) for kind in ("ste", "masked"))
    rows = gap_all_units.compare_networks(model, WINDOWS, WINDOWS)
    expected = {
        "to_true": cosine(ste, true), "to_all_on": cosine(ste, found), "true_to_all_on": cosine(true, found),
        "nats": loss_and_kept(model)[0], "nats_all_on": loss_and_kept(dense)[0],
    }  # fmt: skip
    assert rows_by(rows) == pytest.approx(expected, rel=1e-6)
    assert len(set(expected.values())) == 5
    of_part = [name for name in ste if "W_up" in name]
    ste, found = ({name: of[name] for name in of_part} for of in (ste, found))
    assert rows_by(rows, part="W_up")["to_all_on"] == pytest.approx(cosine(ste, found))


def test_the_three_gradients_are_measured_while_two_arms_train(tmp_path: Path) -> None:
    points = gap_all_units.EXPERIMENT.points("cpu", 5)
    assert {(p.factors["ffn"], p.factors["lr"], p.seed) for p in points} == {
        (ffn, 0.016, seed) for ffn in ("topk_ste", "topk_masked") for seed in range(5)
    }
    resolved = gap_all_units.EXPERIMENT.resolve_settings(points[0], gap_all_units.EXPERIMENT.settings)
    halves = gap_halves.EXPERIMENT.resolve_settings(points[0], gap_halves.EXPERIMENT.settings)
    assert resolved == {**halves, "batch": 64}  # the same models
    ends = []
    for ffn in gap_all_units.FFNS:
        rows = gap_all_units.measure(context(tmp_path), size="toy", lr=1e-2, **replace(UNBALANCED, ffn=ffn).__dict__)
        assert sorted({row.factors["step"] for row in rows}) == [0, 1, 2, 3, 4]
        start, end = (rows_by(rows, step=step, part="all") for step in (0, 4))
        assert end["nats"] < start["nats"]
        ends.append((start["nats"], end["nats"]))
    assert ends[0][0] == ends[1][0]  # the same first weights
    assert ends[0][1] != ends[1][1]


def test_halves_are_four_gradients_of_one_block() -> None:
    for module, size, tokens in ((gap_halves_2m, "2m", 117_440_512), (gap_halves, "small", 1_638_400)):
        points = module.EXPERIMENT.points(module.EXPERIMENT.scale("gpu"), 3)
        resolved = module.EXPERIMENT.resolve_settings(points[0], module.EXPERIMENT.settings)
        assert resolved["tokens"] == tokens
        assert len(points) == 4 * 3 * 3
        assert {point.factors["size"] for point in points} == {size}
        fixed = {name: value for name, value in asdict(UNBALANCED).items() if name != "ffn"}
        assert all(fixed.items() <= point.factors.items() for point in points)
        assert {(p.factors["ffn"], p.factors["lr"], p.seed) for p in points} == {
            (f"topk_{grad}", lr, seed)
            for grad in ("masked", "ste", "ste_weights", "ste_through")
            for lr in (0.004, 0.016, 0.032)
            for seed in range(3)
        }


def test_halves_are_trained_with_their_own_gradient(tmp_path: Path) -> None:
    """The four models start from the same weights and are scored by the same function, and end apart."""
    ctx, whole = context(tmp_path), {"text": "validation", "slice": "all"}
    found = set()
    for ffn in gap_halves.GRADIENTS:
        rows = gap_halves.EXPERIMENT.measure(ctx, **asdict(replace(UNBALANCED, ffn=ffn)), size="toy", lr=0.004)
        found.add(next(row.metrics["nats"].value for row in rows if row.factors == whole))
    assert len(found) == len(gap_halves.GRADIENTS)
    rows = gap_halves.EXPERIMENT.measure(
        ctx, **asdict(replace(UNBALANCED, ffn=gap_halves.GRADIENTS[0])), size="toy", lr=0.016
    )
    assert next(row.metrics["nats"].value for row in rows if row.factors == whole) not in found  # at another rate
