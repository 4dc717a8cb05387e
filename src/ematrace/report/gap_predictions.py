"""Whether SPEN's predictors predict, and what that is worth: for page and docs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ematrace.analysis.gap_predictions import Predictions, build_predictions, worth_of
from ematrace.report.data import ReportData
from ematrace.report.formatting import Rows, number, with_interval
from ematrace.results import Sample

BLOCKS = {"topk_ste": "Algorithm 1's block", "topk_masked": "true gradient", "dense": "dense"}
PREDICTORS = {
    ("static", "traces_now"): "static",
    ("linear", "inputs"): "linear attention",
    ("softmax", "traces_now"): "softmax, traces now",
    ("softmax", "trace_sequence"): "softmax, trace sequence",
    ("softmax", "inputs"): "softmax, inputs",
}


def prediction_rows(data: ReportData) -> Rows | None:
    """What is left over of the input, by block of the model, first one first; None where nothing is recorded."""
    columns = {
        "input left over": "unexplained",
        "least squares, slow trace": "possible",
        "least squares, all traces": "possible_from_traces",
        "left over, second half": "unexplained_late",
        "least squares, second half": "possible_late",
    }
    rows = [
        [*names, *(_by_layer(found, share) for share in columns.values()), found.predicts, str(len(found.seeds))]
        for names, found in _recorded(data)
    ]
    return Rows(["block", "predictor", *columns, "under the plan's rule", "seeds"], rows) if rows else None


def context_rows(data: ReportData) -> Rows | None:
    """The same of W_e x, which is all that the block gets of the input here."""
    columns = {
        "W_e x left over": "context_unexplained",
        "least squares, slow trace": "context_possible",
        "W_e x̂ over W_e x": "context_size",
        "cosine of the error to W_e x": "context_cosine",
    }
    rows = [
        [*names, *(_by_layer(f, share) for share in columns.values()), f.predicts_in_context, _means(f.blocks)]
        for names, f in _recorded(data)
    ]
    heads = ["block", "predictor", *columns, "under the plan's rule", "nats lost without the block"]
    return Rows(heads, rows) if rows else None


def worth_rows(data: ReportData) -> Rows | None:
    """Nats lost without predictions, in the trained model and by training without them."""
    heads = ["block", "predictor"]
    for without in ("x̂ set to 0", "x̂ set to its mean", "trained with x̂ = 0"):
        heads += [f"nats lost, {without}", "worth"]
    rows = []
    for names, found in _recorded(data):
        rows.append([*names])
        for nats in (found.worth, found.worth_of_input, found.trained_without):
            rows[-1] += _judged(nats)
        rows[-1].append(str(len(found.seeds)))
    return Rows([*heads, "seeds"], rows) if rows else None


def _recorded(data: ReportData) -> Iterator[tuple[tuple[str, str], Predictions]]:
    for ffn, block in BLOCKS.items():
        for predictor, name in PREDICTORS.items():
            if (found := build_predictions(data.table, ffn, *predictor)) is not None:
                yield (block, name), found


def _by_layer(found: Predictions, share: str) -> str:
    return _means(found.shares[share])


def _means(samples: Sequence[Sample]) -> str:
    return ", ".join(number(sample.mean, 2) for sample in samples)


def _judged(nats: Sample | None) -> tuple[str, str]:
    return ("–", "–") if nats is None else (with_interval(nats, signed=True), worth_of(nats))
