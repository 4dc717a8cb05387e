"""One file per table or figure of the paper: a workbench in, figures out. Nothing here prints."""

from ematrace.experiments import (
    ablations,
    choices,
    controls,
    dimension_control,
    distances,
    feedforward_rules,
    lag_decoding,
    position,
    shortcuts,
    spen_model,
    supervised,
    trace_probe,
)
from ematrace.experiments.base import Experiment

EXPERIMENTS: dict[str, Experiment] = {
    module.EXPERIMENT.name: module.EXPERIMENT
    for module in (
        trace_probe,
        controls,
        dimension_control,
        ablations,
        position,
        lag_decoding,
        distances,
        feedforward_rules,
        supervised,
        shortcuts,
        spen_model,
        choices,
    )
}

__all__ = ["EXPERIMENTS", "Experiment"]
