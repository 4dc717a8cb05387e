"""Defects to plant, one file for each part of the package."""

from defects import (
    analysis,
    bench,
    experiments,
    grammar,
    helpers,
    ledger,
    mixers,
    models,
    ops,
    probes,
    report,
    results,
    spcn,
    spen,
    text,
    traces,
    train,
)
from defects.planting import DEFECTS, Defect

__all__ = [
    "DEFECTS", "Defect", "analysis", "bench", "experiments", "grammar", "helpers", "ledger", "mixers", "models", "ops",
    "probes", "report", "results", "spcn", "spen", "text", "traces", "train",
]  # fmt: skip
