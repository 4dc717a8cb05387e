"""Whether a predictor predicts: measured against numpy, and the plan's rules on cells made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cells_support import make_file, make_row, make_table
from ematrace.analysis.gap_predictions import build_predictions, worth_of
from ematrace.experiments import gap_predictions, gap_text
from ematrace.experiments.gap_predictions import predictions
from ematrace.experiments.gap_predictors import ABLATION, NOTHING, PredictorArm
from ematrace.experiments.gap_task import build_arm, matched_width, score
from ematrace.experiments.gap_text import training_text
from ematrace.ledger import build_ledger, load_claims
from ematrace.report.data import ReportData
from ematrace.report.gap_predictions import context_rows, prediction_rows, worth_rows
from ematrace.report.page import render_report
from ematrace.results import CellFile, Row, Sample, Table
from ematrace.traces import ema_traces
from test_gap_gradients import context

STATIC_DENSE = next(arm for arm in ABLATION if (arm.ffn, arm.predictor) == ("dense", "static"))


def built(arm: PredictorArm) -> Any:
    torch.manual_seed(0)
    return build_arm(arm, "toy", matched_width(arm, "toy", 300, 32), 300, 32).eval()


def windows(n: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 300, (n, 33))


def test_the_design_is_the_plans() -> None:
    points = list(gap_predictions.grid("cpu", 5))
    assert len(points) == len({(tuple(p.factors.items()), p.seed) for p in points}) == 3 * 4 * 5
    assert {p.factors["width"] for p in points} == {"fixed"}
    arms = {(p.factors["context"], p.factors["predictor"], p.factors["reads"]) for p in points}
    assert arms == {
        ("ema_error", "static", "traces_now"),
        ("ema_error", "softmax", "traces_now"),
        ("ema_error", "softmax", "trace_sequence"),
        ("ema", "nothing", "nothing"),
    }
    assert {(p.factors["ffn"], p.factors["load_balance"], p.factors["lr"]) for p in points} == {
        ("topk_ste", 0.01, 0.016), ("topk_masked", 0.0, 0.016), ("dense", 0.0, 0.016)
    }  # fmt: skip


@pytest.mark.parametrize("layer", [0, 1])
def test_what_is_left_over_is_that_of_numpy(layer: int) -> None:
    """Algorithm 1 reads the residual stream itself."""
    model, fitted, scored = built(STATIC_DENSE), windows(40, 1), windows(7, 2)
    rows = predictions(model, fitted, scored)
    assert [row.factors for row in rows] == [{}, {"layer": 0}, {"layer": 1}]
    mixer = model.model.layers[layer].mixer

    def seen(ids: np.ndarray) -> tuple[np.ndarray, ...]:
        with torch.no_grad():
            x = model.model(torch.from_numpy(ids[:, :-1]), output_hidden_states=True).hidden_states[layer].double()
        traces = ema_traces(x, mixer.alphas)[0].numpy()
        slow = traces[-1] / np.linalg.norm(traces[-1], axis=-1, keepdims=True)
        return tuple(u.reshape(-1, u.shape[-1]) for u in (x.numpy(), slow, np.concatenate(list(traces), -1)))

    (fit_x, *fit_read), (x, *read) = seen(fitted), seen(scored)
    W_pred = mixer.predictor.W_pred.weight.detach().double().numpy()
    found = {name: metric.value for name, metric in rows[1 + layer].metrics.items()}
    x_hat = read[0] @ W_pred.T
    expected = {"unexplained": (x, x_hat)}
    for name, fit, held in zip(("possible", "possible_from_traces"), fit_read, read, strict=True):
        expected[name] = x, held @ np.linalg.lstsq(fit, fit_x, rcond=None)[0]
    W_e = mixer.W_e.weight.detach().double().numpy()
    expected["context_unexplained"] = x @ W_e.T, x_hat @ W_e.T
    direct = np.linalg.lstsq(fit_read[0], fit_x @ W_e.T, rcond=None)[0]  # of W_e x itself
    expected["context_possible"] = x @ W_e.T, read[0] @ direct
    late = [u.reshape(7, 32, -1)[:, 16:].reshape(7 * 16, -1) for u in (x, x_hat, read[0])]
    fit_late = [u.reshape(40, 32, -1)[:, 16:].reshape(40 * 16, -1) for u in (fit_x, fit_read[0])]
    expected["unexplained_late"] = late[0], late[1]
    expected["possible_late"] = late[0], late[2] @ np.linalg.lstsq(fit_late[1], fit_late[0], rcond=None)[0]
    for name, (of, predicted) in expected.items():
        assert found[name] == pytest.approx(((of - predicted) ** 2).sum() / (of**2).sum(), rel=1e-4), name
    error = (x - x_hat) @ W_e.T
    cosine = (error * (x @ W_e.T)).sum() / np.linalg.norm(error) / np.linalg.norm(x @ W_e.T)
    assert found["context_cosine"] == pytest.approx(cosine, rel=1e-4)
    size = np.linalg.norm(x_hat @ W_e.T) / np.linalg.norm(x @ W_e.T)
    assert found["context_size"] == pytest.approx(size, rel=1e-4)
    assert {*found} == {*expected, "context_cosine", "context_size", "nats_skipped"}
    assert found["possible_from_traces"] < found["possible"] < 1
    assert not any(module._forward_hooks for module in model.modules())


def test_without_predictions_is_a_predictor_of_zeros() -> None:
    model, scored = built(STATIC_DENSE), windows(7, 2)
    for layer in model.model.layers:
        layer.mixer.predictor.W_pred.weight.data.mul_(3000)  # so that it matters
    (losses, *_) = predictions(model, windows(40, 1), scored)
    assert losses.metrics["nats"].value == pytest.approx(score(model, scored)[0].mean(), abs=1e-6)
    for layer in model.model.layers:
        layer.mixer.predictor.W_pred.weight.data.zero_()
    without = score(model, scored)[0].mean()
    assert losses.metrics["nats_without"].value == pytest.approx(without, abs=1e-5)
    assert losses.metrics["nats"].value != pytest.approx(without, abs=1e-3)


class Constant(torch.nn.Module):
    def __init__(self, x_hat: torch.Tensor) -> None:
        super().__init__()
        self.x_hat = x_hat

    def forward(self, x: torch.Tensor, *_: Any) -> tuple[torch.Tensor, None]:
        return self.x_hat.expand_as(x), None


def test_the_mean_is_that_of_the_windows_of_least_squares() -> None:
    model, fitted, scored = built(STATIC_DENSE), windows(40, 1), windows(7, 2)
    for layer in model.model.layers:
        layer.mixer.predictor.W_pred.weight.data.mul_(3000)
    (losses, *_) = predictions(model, fitted, scored)
    with torch.no_grad():
        streams = model.model(torch.from_numpy(fitted[:, :-1]), output_hidden_states=True).hidden_states
        for layer, x in zip(model.model.layers, streams, strict=False):
            slow = ema_traces(x, layer.mixer.alphas)[0][-1]
            x_hat, _ = layer.mixer.predictor(x, slow[None])
            layer.mixer.predictor = Constant(x_hat.mean((0, 1)))
    assert losses.metrics["nats_mean"].value == pytest.approx(score(model, scored)[0].mean(), abs=1e-5)
    for other in ("nats", "nats_without"):
        assert losses.metrics["nats_mean"].value != pytest.approx(losses.metrics[other].value, abs=1e-3)


def test_least_squares_is_fitted_to_the_training_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a trained model of either kind is measured, whole."""
    asked: list[tuple[Any, np.ndarray]] = []
    texts: list[tuple[str, int]] = []

    def keep(model: Any, fitted: np.ndarray, scored: np.ndarray) -> list[Row]:
        asked.append((model, fitted))
        return predictions(model, fitted, scored)

    def read(data: str, split: Any, tokenizer: str) -> Any:
        text = training_text(data, split, tokenizer)
        texts.append((split, text.n_windows(32)))
        return text

    monkeypatch.setattr(gap_predictions, "predictions", keep)
    monkeypatch.setattr(gap_text, "training_text", read)
    for arm, validation, n_rows in ((STATIC_DENSE, None, 3), (NOTHING[-1], str(context(tmp_path).data), 3)):
        ctx = context(tmp_path)
        ctx = replace(ctx, settings={**ctx.settings, "validation": validation})
        rows = gap_predictions.measure(ctx, size="toy", lr=3e-3, **asdict(replace(arm, width="fixed")))
        assert len(rows) == n_rows
        model, fitted = asked.pop()
        assert not model.training
        split, available = texts[0]
        texts.clear()
        assert split == ("train" if validation is None else "all")
        assert len(fitted) == min(256, available // 2 * 2) > 100


def test_a_model_without_predictor_has_losses_alone() -> None:
    rows = predictions(built(NOTHING[-1]), windows(4, 1), windows(4, 2))
    assert [row.factors for row in rows] == [{}, {"layer": 0}, {"layer": 1}]
    assert [set(row.metrics) for row in rows] == [{"nats"}, {"nats_skipped"}, {"nats_skipped"}]


@pytest.mark.parametrize("layer", [0, 1])
def test_a_block_is_skipped_as_if_its_units_gave_nothing(layer: int) -> None:
    """Context enters the residual stream through them alone."""
    model, scored = built(STATIC_DENSE), windows(7, 2)
    model.model.layers[layer].ffn.W_down.weight.data.mul_(1000)  # so that it matters
    rows = predictions(model, windows(4, 1), scored)
    model.model.layers[layer].ffn.W_down.weight.data.zero_()
    skipped = score(model, scored)[0].mean()
    assert rows[1 + layer].metrics["nats_skipped"].value == pytest.approx(skipped, abs=1e-5)
    assert rows[0].metrics["nats"].value != pytest.approx(skipped, abs=1e-3)


def runs(
    unexplained: Sequence[Sequence[float]],
    predictor: tuple[str, str] = ("static", "traces_now"),
    nats: Sequence[float] | None = None,
    in_context: float = 0.5,
    **changes: Any,
) -> list[CellFile]:
    """By seed and block of the model; .6 would be possible, in the context .2."""
    files = []
    for seed, by_layer in enumerate(unexplained):
        loss = 3.0 + seed if nats is None else nats[seed]
        losses = {"nats": loss, "nats_without": loss + 0.2 + 0.001 * seed, "nats_mean": loss - 0.2 - 0.001 * seed}
        rows = [make_row(losses)]
        for layer, left in enumerate(by_layer):
            shares = {"unexplained": left, "possible": 0.6 + 0.01 * layer, "possible_from_traces": 0.1}
            shares |= {"unexplained_late": 0.85, "possible_late": 0.65}
            shares |= {"context_unexplained": in_context, "context_possible": 0.2}
            shares |= {"context_size": 0.5, "context_cosine": 0.95, "nats_skipped": loss + 1.0 - layer}
            rows.append(make_row(shares, layer=layer))
        kind, reads = predictor
        factors = {"ffn": "dense", "predictor": kind, "reads": reads, "size": "small", "lr": 0.016}
        files.append(make_file(*rows, experiment="gap_predictions", seed=seed, factors=factors, **changes))
    return files


@pytest.mark.parametrize(
    ("unexplained", "expected"),
    [
        ([(0.9, 1.1)] * 3, "does not predict"),
        ([(0.7, 0.75)] * 3, "predicts"),
        ([(0.9, 0.75)] * 3, "in part"),
        ([(0.9, 0.9), (0.9, 0.9), (0.9, 0.79)], "in part"),
        ([(0.9, 0.805)] * 3, "does not predict"),  # the middle is .805 in the second block: not below it
        ([(0.9, 0.9)] * 2, "too few seeds"),
    ],
)
def test_the_rule_for_predicting(unexplained: Sequence[Sequence[float]], expected: str) -> None:
    found = build_predictions(make_table(*runs(unexplained)), "dense", "static", "traces_now")
    assert found is not None
    assert [sample.values for sample in found.shares["unexplained"]] == list(zip(*unexplained, strict=True))
    assert found.predicts == expected
    assert found.predicts_in_context == ("predicts" if len(unexplained) > 2 else "too few seeds")
    larger = build_predictions(make_table(*runs(unexplained, in_context=0.7)), "dense", "static", "traces_now")
    assert larger is not None
    assert larger.predicts_in_context == ("does not predict" if len(unexplained) > 2 else "too few seeds")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((0.06, 0.061, 0.06), "something"),
        ((0.04, 0.041, 0.04), "nothing"),
        ((-0.04, -0.041, -0.04), "nothing"),
        ((-0.06, -0.061, -0.06), "harmful"),
        ((0.05, 0.06, 0.05), "undecided"),
        ((-0.05, -0.06, -0.05), "undecided"),
        ((0.0, 0.0), "too few seeds"),
    ],
)
def test_the_rule_for_what_it_is_worth(values: Sequence[float], expected: str) -> None:
    assert worth_of(Sample(tuple(values))) == expected


def test_models_without_predictions_are_of_the_same_block_and_settings() -> None:
    static = runs([(0.9, 0.9)] * 3)
    nothing = ("nothing", "nothing")

    def found(*files: CellFile) -> bool:
        built = build_predictions(make_table(*static, *files), "dense", "static", "traces_now")
        assert built is not None
        return built.trained_without is not None

    assert found(*runs([()] * 3, nothing))
    assert not found(*[replace_factors(file, ffn="topk_ste") for file in runs([()] * 3, nothing)])
    assert not found(*runs([()] * 3, nothing, settings={"tokens": 99}))
    assert not found(*runs([()] * 3, nothing)[1:])


def test_a_seed_that_lacks_a_block_leaves_nothing_to_say() -> None:
    files = runs([(0.9, 0.9)] * 3)
    files[1].cells.pop()
    assert build_predictions(make_table(*files), "dense", "static", "traces_now") is None


def replace_factors(file: CellFile, **changes: Any) -> CellFile:
    file.factors.update(changes)
    return file


def data_of(table: Table) -> ReportData:
    claims = load_claims()
    return ReportData(table, claims, tuple(build_ledger(table, claims)))


def test_page_and_docs_have_the_tables() -> None:
    nothing = runs([()] * 3, ("nothing", "nothing"), nats=(3.01, 4.01, 5.0))
    data = data_of(make_table(*runs([(0.9, 1.1)] * 3, in_context=0.9), *nothing))
    left, in_context, worth = prediction_rows(data), context_rows(data), worth_rows(data)
    assert left is not None
    assert in_context is not None
    assert worth is not None
    assert dict(zip(left[0], left[1][0], strict=True)) == {
        "block": "dense",
        "predictor": "static",
        "input left over": ".90, 1.10",
        "least squares, slow trace": ".60, .61",
        "least squares, all traces": ".10, .10",
        "left over, second half": ".85, .85",
        "least squares, second half": ".65, .65",
        "under the plan's rule": "does not predict",
        "seeds": "3",
    }
    assert in_context[1] == [
        ["dense", "static", ".90, .90", ".20, .20", ".50, .50", ".95, .95", "does not predict", "1.00, .00"],
    ]
    assert worth[1] == [
        [
            *("dense", "static", "+.201 (.199–.203)", "something", "−.201 (−.203 to −.199)", "harmful"),
            *("+.007 (−.008 to .021)", "nothing", "3"),
        ]
    ]  # means .201 and .00667; 4.303 times .001 and .00577 over the root of 3
    page = render_report(data)
    for text in ("does not predict", "+.201", "cosine of the error"):
        assert text in page
    fewer = worth_rows(data_of(make_table(*runs([(0.9, 1.1)] * 3), *nothing[1:])))
    assert fewer is not None
    assert fewer[1][0][-3:] == ["–", "–", "3"]  # a seed is missing
    for rows in (prediction_rows, context_rows, worth_rows):
        assert rows(data_of(make_table())) is None
