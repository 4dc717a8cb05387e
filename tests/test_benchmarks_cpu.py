"""The CPU benchmarks at toy size: they run, check before they time, and leave a record with the rows they promise."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from ematrace.bench import BenchmarkRecord, read_record

pytest.importorskip("numba")

FOLDER = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.THREADS = 1  # type: ignore[attr-defined]
    return module


def run(module: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> BenchmarkRecord:
    name = module.__name__.removeprefix("benchmark_")
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--quick", "--record", str(folder)])
    module.main()
    return read_record(folder / f"{name}.json").record


def test_streaming(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = run(load("streaming_cpu"), tmp_path, monkeypatch)
    contenders = {row.name.partition(" context=")[0] for row in record.rows}
    assert {"SPEN float32", "SPEN bfloat16", "GPT-2 default cache", "GPT-2 static cache"} <= contenders
    assert len(record.rows) == 2 * len(contenders)
    assert "SPEN bfloat16 against GPT-2 static cache at 32" in record.ratios
    by_name = {row.name: row for row in record.rows}
    half, whole = by_name["SPEN bfloat16 context=8"], by_name["SPEN float32 context=8"]
    assert half.bytes < 0.51 * whole.bytes
    assert half.operations == whole.operations
    assert record.figures["SPEN state, MB at context 8"] == record.figures["SPEN state, MB at context 32"]
    assert by_name["GPT-2 static cache context=32"].bytes > by_name["GPT-2 static cache context=8"].bytes


def test_streaming_refuses_a_decoder_that_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = load("streaming_cpu")
    step = module.CpuDecoder.step

    def forgetful(self: Any, ids: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        state.zero_()
        return step(self, ids, state)

    monkeypatch.setattr(module.CpuDecoder, "step", forgetful)
    with pytest.raises(SystemExit, match="not the same"):
        run(module, tmp_path, monkeypatch)
    assert not list(tmp_path.iterdir())


def test_traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = run(load("traces_cpu"), tmp_path, monkeypatch)
    assert len(record.rows) == 2 * 2 * 4
    assert "ematrace forward and backward T=200 against cumsum in blocks" in record.ratios
    assert len(record.checks) == 8


def test_a_scan_in_one_piece_would_overflow() -> None:
    """Which is why the contender works in blocks: 2^-t for t = 128 is out of float32's range upside down."""
    module = load("traces_cpu")
    module.BLOCK = 256
    x = torch.ones(1, 256, 1)
    assert not module.cumsum_scan(x).isfinite().all()
    module.BLOCK = 64
    torch.testing.assert_close(module.cumsum_scan(x), module.loop(x), rtol=0, atol=1e-6)


def test_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = run(load("training_cpu"), tmp_path, monkeypatch)
    assert {row.name for row in record.rows} >= {"spen-tiny T=32", "gpt2-tiny T=64"}
    assert len({row.tokens for row in record.rows}) == 1  # the same number for all
    assert "spen-tiny against gpt2-tiny at 32" in record.ratios


def test_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = run(load("length_cpu"), tmp_path, monkeypatch)
    names = {row.name for row in record.rows}
    assert {"spen-7m T=64", "spen-7m T=256", "gpt2-7m T=64", "spen-tiny in parallel T=32"} <= names
    assert "gpt2-7m T=256" not in names
    assert record.figures["state of spen-7m, bytes at T=64"] == record.figures["state of spen-7m, bytes at T=256"]
    assert "spen-tiny in parallel against spen-tiny token by token, bfloat16 at T=32" in record.ratios
