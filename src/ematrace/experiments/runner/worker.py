"""Measuring one unit, in a process that may live on another machine."""

from __future__ import annotations

import inspect
import sys
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from ematrace.experiments.base import Context, rows_of
from ematrace.experiments.discovery import describe_error, find_experiment
from ematrace.experiments.runner.units import Unit
from ematrace.memory import kept_memory
from ematrace.results import CellFile, collect_provenance
from ematrace.results.schema import SCHEMA, encode_file

PEERS = ("transformers", "triton")  # whose versions matter where they are in use

_group = ""
_memo: dict[Hashable, Any] = {}


@dataclass(frozen=True)
class Failure:
    """Why a unit has no result, in one line."""

    why: str


def measure_unit(
    unit: Unit, progress: Callable[[float], None] = lambda share: None, scratch: str | None = None
) -> CellFile | Failure:
    """The unit's file, checked but not written. What units of a group share is kept for the next of them."""
    global _group, _memo
    if unit.group != _group:
        _group, _memo = unit.group, {}
    started, source = time.monotonic(), None
    try:
        experiment = find_experiment(unit.reference, unit.folder)
        source = inspect.getsourcefile(experiment.measure)
        ctx = Context(
            seed=unit.seed,
            scale=unit.scale,
            device=unit.device,
            data=unit.data,
            settings=unit.settings,
            progress=progress,
            scratch=Path(scratch) if scratch else None,
            memo=_memo,
        )
        with kept_memory():
            rows = rows_of(experiment.measure(ctx, **unit.factors))
        peers = [name for name in PEERS if name in sys.modules]
        provenance = collect_provenance(time.monotonic() - started, command=unit.command, packages=peers)
        if (unit.scale, unit.device) == ("gpu", "cpu"):  # a GPU that the machine has was not used
            hardware = {name: value for name, value in provenance.hardware.items() if name != "gpu"}
            provenance = msgspec.structs.replace(provenance, hardware=hardware)
        file = CellFile(
            schema=SCHEMA,
            experiment=unit.experiment,
            scale=unit.scale,
            seed=unit.seed,
            factors=dict(unit.factors),
            settings=dict(unit.settings),
            provenance=provenance,
            cells=rows,
        )
        encode_file(file)  # what cannot be written fails here, where the others go on
    except Exception as error:
        return Failure(describe_error(error, source))
    return file
