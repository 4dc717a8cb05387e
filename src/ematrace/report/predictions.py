"""Whether SPEN's predictors predict, and what that is worth: for page and docs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ematrace.analysis.gap_predictions import Predictions, build_predictions, worth_of
from ematrace.report.data import ReportData
from ematrace.report.formatting import number
from ematrace.report.gap import with_interval
from ematrace.results import Sample

BLOCKS = {"topk_ste": "Algorithm 1's block", "topk_masked": "true gradient", "dense": "dense"}
PREDICTORS = {
    ("static", "traces_now"): "static",
    ("linear", "inputs"): "linear attention",
    ("softmax", "traces_now"): "softmax, traces now",
    ("softmax", "trace_sequence"): "softmax, trace sequence",
    ("softmax", "inputs"): "softmax, inputs",
}
Rows = tuple[list[str], list[list[str]]]


def prediction_rows(data: ReportData) -> Rows | None:
    """What is left over of the input, by block of the model, first one first; None where nothing is recorded."""
    heads = ["block", "predictor", "of the input left over", "least squares, slow trace", "least squares, all traces"]
    rows = [
        [*names, *map(_by_layer, (f.unexplained, f.possible, f.possible_from_traces)), f.predicts, str(len(f.seeds))]
        for names, f in _recorded(data)
    ]
    return ([*heads, "under the plan's rule", "seeds"], rows) if rows else None


def worth_rows(data: ReportData) -> Rows | None:
    """Nats lost without predictions, in the trained model and by training without them."""
    heads = ["block", "predictor", "nats lost with x̂ set to 0", "worth", "nats lost if trained with x̂ = 0", "worth"]
    rows = [
        [*names, *_judged(found.worth), *_judged(found.trained_without), str(len(found.seeds))]
        for names, found in _recorded(data)
    ]
    return ([*heads, "seeds"], rows) if rows else None


def _recorded(data: ReportData) -> Iterator[tuple[tuple[str, str], Predictions]]:
    for ffn, block in BLOCKS.items():
        for predictor, name in PREDICTORS.items():
            if (found := build_predictions(data.table, ffn, *predictor)) is not None:
                yield (block, name), found


def _by_layer(samples: Sequence[Sample]) -> str:
    return ", ".join(number(sample.mean, 2) for sample in samples)


def _judged(nats: Sample | None) -> tuple[str, str]:
    return ("–", "–") if nats is None else (with_interval(nats, 3, signed=True), worth_of(nats))
