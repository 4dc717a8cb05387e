"""One runner for all experiments: which points to measure, where, and what to keep.

A unit is one point of an experiment's grid on one seed, and one file of results. Units run on this machine's cores, in
several processes that share a GPU, or on a Ray cluster; each file is written the moment its unit is done. A later run
skips the units whose file is there with the same settings.
"""

from ematrace.experiments.runner.loop import run
from ematrace.experiments.runner.plan import Plan, make_plan
from ematrace.experiments.runner.request import ROBUSTNESS, Request
from ematrace.experiments.runner.units import Unit

__all__ = ["ROBUSTNESS", "Plan", "Request", "Unit", "make_plan", "run"]
