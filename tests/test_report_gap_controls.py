"""Predictors, sparsity, gradients and decoding on the page: on made-up cells at every point of their grids."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cells_support import make_file
from ematrace.experiments import EXPERIMENTS, chosen_rates
from ematrace.report.data import ReportData
from ematrace.report.sections import gap_controls, trace_tokens
from ematrace.results import CellFile, Metric, Row, Store, write_file

SCORED = [{"text": text, "slice": "all"} for text in ("validation", "wikitext2")]
MODEL = ("parameters", "dead_units", "usage_entropy")
GRADIENTS = ("cosine", "norm_ratio", "masked_cosine_of_halves", "dead_units", "usage_entropy", "nats")


def value(*of: Any) -> Metric:
    return Metric(zlib.crc32(repr(of).encode()) % 1000 / 1000)


def rows_of(experiment: str, factors: dict[str, Any], seed: int) -> Iterator[Row]:
    if experiment == "gap_straight_through":
        for step in (0, 128, 256, 512):
            yield Row({"step": step, "part": "all"}, {name: value(factors, seed, step, name) for name in GRADIENTS})
    elif experiment == "trace_decoding":
        for reader in ("linear", "mlp"):
            of: dict[str, Any] = {"representation": "slow", "number_format": "float32", "reader": reader}
            of["given"] = "topic"
            for lag in (1, 64, 256):
                yield Row({**of, "lag": lag}, {name: value(seed, lag, name) for name in ("accuracy", "gain_nats")})
            yield Row(of, {"decay_r2": value(seed, reader)})
        yield Row({"reader": "topic", "lag": 64}, {"accuracy": value(seed)})
    else:
        yield Row({}, {name: value(factors, seed, name) for name in MODEL})
        for scored in SCORED:
            yield Row(dict(scored), {name: value(factors, seed, scored, name) for name in ("nats", "unigram_nats")})


def made_up(experiment: str) -> list[CellFile]:
    """One file for each point of the grid on a GPU, as if every arm had a rate."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chosen_rates, "_table", lambda: SimpleNamespace(get=lambda arm: 0.004))
        points = EXPERIMENTS[experiment].points("gpu", 2)
    return [
        make_file(
            *rows_of(experiment, dict(p.factors), p.seed),
            experiment=experiment,
            scale="gpu",
            seed=p.seed,
            factors=dict(p.factors),
        )
        for p in points
    ]


def shown(build: Any, folder: Path, *experiments: str) -> str:
    """The text of a section."""
    for experiment in experiments:
        for file in made_up(experiment):
            write_file(file, folder)
    parts = build(ReportData.load(Store(folder, folder / "none")))
    html = "".join(part if isinstance(part, str) else part.__html__() for part in parts if part is not None)
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", html)).split())


def test_every_predictor_is_in_the_table_and_the_switches_below(tmp_path: Path) -> None:
    text = shown(gap_controls.predictors, tmp_path, "gap_predictors")
    for block in gap_controls.BLOCKS.values():
        for name in gap_controls.PREDICTORS.values():
            assert f"{block}: {name} " in text
    assert "Algorithm 1's block: linear attention, d_ff as it is" in text
    assert "as a predictor, query from the input and context into the residual" in text
    assert "2 seeds: the plan judges the switches from 3 on." in text


def test_units_kept_and_gradients(tmp_path: Path) -> None:
    text = shown(gap_controls.sparsity, tmp_path, "gap_sparsity", "gap_units", "gap_straight_through")
    for units in ("512", "1,536", "3,072"):
        assert f"{units} units, straight-through" in text
        assert f"{units} units, true gradient" in text
    for share in ("3%", "6%", "12%", "25%", "50%", "100%"):
        assert f"{share} of units, straight-through" in text
    assert "load balance 1, true gradient" in text
    assert text.count("Under the plan's test the straight-through gradient is") == 3


def test_decoded_tokens_are_charts_and_a_table_for_each_model(tmp_path: Path) -> None:
    text = shown(trace_tokens.decoded_tokens, tmp_path, "trace_decoding")
    for model in ("SPEN", "EMA, dense", "attention, dense"):
        assert f"Nats gained on the token k back: {model} slow trace" in " ".join(
            text.replace("tokens back", "").split()
        )
    assert text.count("slow trace, one vector, linear") == 3 * 3  # accuracy, nats, decay
    assert "bfloat16: results/trace_decoding/" in text


@pytest.mark.parametrize("build", [gap_controls.predictors, gap_controls.sparsity, trace_tokens.decoded_tokens])
def test_nothing_without_cells(build: Any, tmp_path: Path) -> None:
    assert shown(build, tmp_path) == ""
