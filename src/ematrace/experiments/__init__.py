"""One file per table or figure: a grid of factors and `measure()`. Nothing here plots or prints.

>>> from ematrace.experiments import EXPERIMENTS
>>> EXPERIMENTS["position"].title
'Position alone'
"""

from ematrace.experiments.base import (
    NO_DEFAULT,
    Context,
    Experiment,
    Grid,
    Measured,
    Point,
    accuracy,
    cross_entropy,
    factorial,
    number,
    perplexity,
)
from ematrace.experiments.discovery import EXPERIMENTS, find_experiment
from ematrace.results import Metric, Row

__all__ = [
    "EXPERIMENTS",
    "NO_DEFAULT",
    "Context",
    "Experiment",
    "Grid",
    "Measured",
    "Metric",
    "Point",
    "Row",
    "accuracy",
    "cross_entropy",
    "factorial",
    "find_experiment",
    "number",
    "perplexity",
]
