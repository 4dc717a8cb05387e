"""Cells of the gap made by hand: arms with given nats, and sweeps of their rates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from cells_support import make_file
from ematrace.analysis.gap import factorial_arms
from ematrace.analysis.gap_design import ATTENTION, CHAIN, EMA, Arm
from ematrace.results import CellFile, Metric, Row

TOKENS, RECALL, MISS = 1000, 200, 300
ARMS = tuple(dict.fromkeys((*CHAIN, *factorial_arms(), EMA, ATTENTION)))
RATE = 0.004
NATS = {arm: 5.0 - 0.1 * i for i, arm in enumerate(CHAIN)}


def run(arm: Arm, seed: int, other: float, recall: float, size: str = "2m", **changes: Any) -> CellFile:
    """A model with these nats on recall tokens and on others; `miss` on others where copying would fail."""
    miss, rest = changes.pop("miss", other), TOKENS - RECALL - MISS
    whole = (RECALL * recall + (TOKENS - RECALL) * other) / TOKENS
    slices = {"all": (whole, TOKENS), "recall": (recall, RECALL), "other": (other, TOKENS - RECALL)}
    slices |= {"miss": (miss, MISS), "new_context": (((TOKENS - RECALL) * other - MISS * miss) / rest, rest)}
    for name, n in (("rare", RECALL // 2), ("rare_here", 0)):
        slices |= {
            f"{name}_recall": (recall, n),
            f"{name}_rest": ((TOKENS * whole - n * recall) / (TOKENS - n), TOKENS - n),
        }
    rows = [
        Row({"text": text, "slice": name}, {"nats": _mean(nats, n), "unigram_nats": _mean(7.0, n)})
        for text in ("validation", "wikitext2", "c4")
        for name, (nats, n) in slices.items()
    ]
    rows.append(Row({"text": "validation", "distance": "1-16"}, {"recall_nats_by_distance": _mean(recall, RECALL)}))
    counted = {"recall_nats_by_count": _mean(recall, RECALL), "other_nats_by_count": _mean(other, TOKENS - RECALL)}
    rows.append(Row({"text": "validation", "pair_count": "10-99"}, counted))
    for text, parts in changes.pop("stretches", {}).items():
        rows += [Row({"text": text, "stretch": i}, {"nats_in_stretch": _mean(x, 10)}) for i, x in enumerate(parts)]
    parameters, curve = changes.pop("parameters", 1_901_824.0), changes.pop("curve", {})
    units, k = changes.pop("units", None), changes.pop("k", None)  # as `gap_units` and `gap_kept` have them
    of_units = {"d_ff": Metric(float(units)), "tokens_per_parameter": Metric(60.0)} if units else {}
    rows.append(Row({}, {"parameters": Metric(parameters), "selection_nats": Metric(whole), **of_units}))
    rows += [Row({"step": step}, {"train_nats": Metric(nats, "nats")}) for step, nats in curve.items()]
    lr = changes.pop("lr", RATE)
    fields = {"experiment": "gap", "scale": "gpu", "settings": {"tokens": 117_440_512, "vocab_size": 8192}, **changes}
    more = {name: value for name, value in {"units": units, "k": k}.items() if value}
    factors = {**asdict(arm), "size": size, "lr": lr, **more}
    return make_file(*rows, seed=seed, factors=factors, **fields)


def _mean(nats: float, n: int) -> Metric:
    return Metric(nats if n else None, "nats", n)


def sweep(
    arms: Sequence[Arm],
    rates: Sequence[float] = (0.001, 0.002, RATE, 0.008, 0.016),
    best: float = RATE,
    **changes: Any,
) -> list[CellFile]:
    fields = {"experiment": "gap_rates", **changes}
    return [
        run(arm, 1000, 5.0 + 0.1 * abs(np.log(rate / best)), 4.0, lr=rate, **fields) for arm in arms for rate in rates
    ]
