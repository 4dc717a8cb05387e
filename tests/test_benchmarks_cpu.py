"""The CPU benchmarks at toy size: they run, check before they time, and leave the cells they promise."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from ematrace.bench import Run
from ematrace.models.flops import flops_per_token
from ematrace.results import read_file

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
    sys.modules[module.__name__] = module  # dataclasses look there
    spec.loader.exec_module(module)
    module.THREADS = 1  # type: ignore[attr-defined]
    return module


def run(module: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    name = module.__name__.removeprefix("benchmark_")
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--quick", "--record", str(folder)])
    module.main()
    path = folder / "quick" / name / "seed-0_cpu.json"
    return Run.of_file(read_file(path), path)


def test_streaming(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = run(load("streaming_cpu"), tmp_path, monkeypatch)
    cells = {cell.label: cell for cell in found.timed}
    assert set(cells) == {
        f"{contender} context={context}"
        for contender in (
            "spen decoder=compiled dtype=float32",
            "spen decoder=compiled dtype=bfloat16",
            "spen decoder=eager dtype=float32",
            "gpt2 cache=dynamic dtype=float32",
            "gpt2 cache=static dtype=float32",
        )
        for context in (8, 32)
    }
    half, whole = (cells[f"spen decoder=compiled dtype={dtype} context=8"] for dtype in ("bfloat16", "float32"))
    assert half.bytes < 0.51 * whole.bytes
    assert half.operations == whole.operations
    state = {
        context: found.figures[f"state bytes: spen decoder=eager dtype=float32 context={context}"]
        for context in (8, 32)
    }
    assert state[8] == state[32]
    static = "gpt2 cache=static dtype=float32 context={}"
    assert cells[static.format(32)].bytes > cells[static.format(8)].bytes
    # two dtypes, two caches, two contexts; and what the longer context costs with either dtype
    assert len(found.ratios) == 2 * 2 * 2 + 2


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
    found = run(load("traces_cpu"), tmp_path, monkeypatch)
    assert len(found.timed) == 2 * 2 * 4
    assert "cumsum / ematrace, forward+backward tokens=200" in found.ratios
    assert len(found.about.checks) == 8
    forward, both = (
        next(c for c in found.timed if c.factors == {"contender": "loop", "pass": way, "tokens": 50})
        for way in ("forward", "forward+backward")
    )
    assert (forward.bytes, both.bytes) == (16 * 4 * 50 * 256, 32 * 4 * 50 * 256)


def test_a_scan_in_one_piece_would_overflow() -> None:
    """Which is why the contender works in blocks: 2^-t for t = 128 is out of float32's range upside down."""
    module = load("traces_cpu")
    module.BLOCK = 256
    x = torch.ones(1, 256, 1)
    assert not module.cumsum_scan(x).isfinite().all()
    module.BLOCK = 64
    torch.testing.assert_close(module.cumsum_scan(x), module.loop(x), rtol=0, atol=1e-6)


def test_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = run(load("training_cpu"), tmp_path, monkeypatch)
    assert {cell.label for cell in found.timed} == {
        f"{who} tokens={n}" for who in ("spen ffn=topk", "spen ffn=dense", "gpt2") for n in (32, 64)
    }
    assert {cell.tokens for cell in found.timed} == {16 * 32}  # the same number for all
    assert "gpt2 / spen ffn=topk, tokens=32" in found.ratios


def test_training_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    module = load("training_small_gpu")
    monkeypatch.setattr(sys, "stdin", ["0.01"])
    module.worker(module.QUICK_SIZES["small"], torch.device("cpu"), tmp_path)
    ready, answer = capsys.readouterr().out.splitlines()[-2:]
    # What one says in this process stands for two others: each would take seconds to start.
    others = [SimpleNamespace(stdin=StringIO(), stdout=StringIO(f"{ready}\n{answer}\n{answer}\n")) for _ in range(2)]
    monkeypatch.setattr(module, "workers", lambda n, arguments: nullcontext(others[:n]))
    found = run(module, tmp_path, monkeypatch)
    for size in ("2m", "130m"):
        assert found.figures[f"largest difference: pair=steps size={size} compiled=false"] == 0.0
        (timed,) = (t for t in found.timed if t.factors["size"] == size and t.factors["graphed"])
        assert len(timed.timing.seconds) == 6
    one, two = (found.figures[f"tokens per second: cores={n}"] for n in (1, 2))
    assert two == 2 * (one or 0.0) > 0


def test_spcn_without_its_peer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.setenv(variable, "1")  # as the script does, and for this test only
    module, find = load("spcn"), importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "reservoirpy" else find(name))
    found = run(module, tmp_path, monkeypatch)
    assert {timed.factors["contender"] for timed in found.timed} == {"spcn"}
    assert found.about.notes == ["reservoirpy is not timed: it is not installed (pip install -e '.[bench]')."]
    assert list(found.ratios) == ["cores=1 / cores=2, spcn task=encode"]


class Obedient:
    """A worker of `busy_cpu` that answers at once."""

    def __init__(self, waiting: str, quick: bool) -> None:
        self.waiting, self.ended = waiting, False

    def ask(self, steps: int) -> str:
        return "the same weights"

    def end(self) -> None:
        self.ended = True


def test_beside_other_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module, begun = load("busy_cpu"), []
    monkeypatch.setattr(module, "Worker", Obedient)
    monkeypatch.setattr(module, "busy_loops", lambda n: nullcontext(begun.append(n)))
    monkeypatch.setattr(module, "processors", lambda: 2)
    found = run(module, tmp_path, monkeypatch)
    assert begun == [0, 2, 8]
    assert {(t.factors["waiting"], t.factors["load"]) for t in found.timed} == {
        (waiting, load) for waiting in ("spinning", "asleep", "shared") for load in (0, 2, 8)
    }
    assert "waiting=spinning / waiting=shared, spen load=2" in found.ratios
    assert "load=2 / load=0, spen waiting=shared" in found.ratios
    monkeypatch.setattr(Obedient, "ask", lambda self, steps: self.waiting)
    with pytest.raises(SystemExit, match="different weights"):
        run(module, tmp_path, monkeypatch)


def test_a_worker_trains_as_often_as_it_is_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = load("busy_cpu")
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    monkeypatch.setattr(module, "processors", lambda: 1)
    for lines in (["1", "1"], ["2"]):
        monkeypatch.setattr(sys, "stdin", lines)
        module.work(quick=True)
    ready, first, second, again, both = capsys.readouterr().out.splitlines()
    assert ready == again == "ready"
    assert first != second == both


def test_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = run(load("length_cpu"), tmp_path, monkeypatch)
    names = {cell.label for cell in found.timed}
    read = "size=7m read=parallel dtype=float32"
    assert {f"spen {read} tokens=64", f"spen {read} tokens=256", f"gpt2 {read} tokens=64"} <= names
    assert f"gpt2 {read} tokens=256" not in names
    assert len({found.figures[f"state bytes: spen {read} tokens={n}"] for n in (64, 256)}) == 1
    assert "read=streamed dtype=bfloat16 / read=parallel dtype=float32, spen size=tiny tokens=32" in found.ratios
    assert f"tokens=256 / tokens=64, spen {read}, per token" in found.ratios


@pytest.mark.parametrize("at_once", [1, 4])
def test_operations_of_reading_in_pieces(at_once: int) -> None:
    """Against torch's counter, which sees the head's matmul once for each piece."""
    module = load("length_cpu")
    model = module.build_model("gpt2-tiny", 100, length=6).eval()
    ids = torch.zeros(1, 6, dtype=torch.int64)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:  # torch counts no fused one on a CPU
        module.gpt2_prefill(model, ids, at_once)
    repeated = (-(-6 // at_once) - 1) * flops_per_token(model.lm_head, 1, backward=False)
    assert counter.get_total_flops() == module.parallel_operations(model, 6, at_once) + repeated
    if at_once == 1:
        assert counter.get_total_flops() == module.streamed_operations(model, 6)


def test_operations_of_the_plain_transformer(monkeypatch: pytest.MonkeyPatch) -> None:
    module = load("training_gpu")
    model = module.PlainTransformer(vocabulary=60, d=16, blocks=2, heads=2)
    monkeypatch.setattr(module, "linear_cross_entropy", lambda x, head, targets: (x @ head.T).sum())
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(torch.zeros(3, 13, dtype=torch.int64))
    assert counter.get_total_flops() == 3 * 12 * flops_per_token(model, 12, backward=False)
