"""Decoding on a GPU against the model's own steps in float64; the kernels are interpreted where there is no GPU."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

# As in conftest.py, which GPU machines do without.
if not any(Path("/dev").glob("nvidia[0-9]*")):
    os.environ.setdefault("TRITON_INTERPRET", "1")

from ematrace.ops.topk import topk_mask
from ematrace.spen import SpenConfig, SpenForCausalLM, SpenStream

gpu = pytest.importorskip("ematrace.spen.decode.gpu")
gpu_kernels = pytest.importorskip("ematrace.spen.decode.gpu_kernels")
gpu_topk = pytest.importorskip("ematrace.spen.decode.gpu_topk")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
triton = pytest.importorskip("triton")
tl = triton.language
pytestmark = pytest.mark.skipif(
    DEVICE == "cpu" and not gpu_kernels.INTERPRETED, reason="neither a GPU nor TRITON_INTERPRET=1"
)
on_gpu = pytest.mark.skipif(DEVICE == "cpu", reason="programs that wait for each other need a GPU")

CLOSE = {"rtol": 1e-4, "atol": 1e-4}
V = 43


def build(**changes: Any) -> SpenForCausalLM:
    """Weights that bfloat16 holds exactly, also the product W_e W_pred: what differs from float64 is the arithmetic."""
    torch.manual_seed(0)
    fields = {"vocab_size": V, "d_model": 24, "d_ff": 40, "n_layers": 3, "k": 7, "initializer_range": 0.3}
    fields |= {"bos_token_id": 0, "eos_token_id": None}
    model = SpenForCausalLM(SpenConfig(**{**fields, **changes})).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("norm.weight"):  # times a power of two, W_up stays exact
                parameter.copy_(2.0 ** torch.randint(-1, 2, parameter.shape))
            elif name.endswith("norm.bias"):
                parameter.copy_(torch.randn_like(parameter) / 10)
            else:
                parameter.copy_(parameter.bfloat16())
        for block in model.model.layers:
            for weight in (block.mixer.W_e.weight, block.mixer.predictor.W_pred.weight):
                weight.copy_((weight / 0.3).round().clamp(-1, 1) / 4)
    return model


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(0, V, shape, generator=torch.Generator().manual_seed(seed))


def reference(model: SpenForCausalLM, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Logits [T, B, V] and state [n_layers, A, B, D] after ids [T, B], by the model in float64."""
    stream = SpenStream(SpenForCausalLM(model.config).double())
    stream.model.load_state_dict({k: v.double().cpu() for k, v in model.state_dict().items()})
    logits = torch.stack([stream.step(row) for row in ids])
    return logits, torch.stack([state[0].transpose(0, 1) for state in stream.cache.blocks])


def assert_same(model: SpenForCausalLM, decoder: Any, ids: Tensor, **tolerance: float) -> None:
    expected, expected_state = reference(model, ids)
    state = decoder.new_state()
    for row, logits in zip(ids, expected, strict=True):
        got = decoder.step(row.to(DEVICE), state)
        torch.testing.assert_close(got.double().cpu(), logits, **(tolerance or CLOSE))
    torch.testing.assert_close(state.double().cpu(), expected_state.double(), **(tolerance or CLOSE))


CONFIGS: dict[str, dict[str, Any]] = {
    "paper": {},
    "direct": {"residual": "direct"},
    "dense": {"ffn": "dense"},
    "two rates": {"alphas": (0.3, 0.05), "n_layers": 1},
    "one rate, all units": {"alphas": (0.1,), "k": 40, "n_layers": 1},
    "untied": {"tie_word_embeddings": False, "n_layers": 1},
}


@pytest.mark.parametrize("name", CONFIGS)
def test_one_kernel_alone_equals_the_model(name: str) -> None:
    model = build(**CONFIGS[name]).to(DEVICE)
    decoder = gpu.GpuDecoder(model, path="one_kernel", programs=1)
    assert_same(model, decoder, draw(5, 1))
    assert not int(decoder.engine.status)


@pytest.mark.parametrize("options", [{"head_rows": 8}, {"warps": 4, "head_rows": 16}])
def test_tuning_changes_nothing(options: dict[str, int]) -> None:
    model = build(n_layers=2).to(DEVICE)
    assert_same(model, gpu.GpuDecoder(model, path="one_kernel", programs=1, **options), draw(3, 1))


@pytest.mark.parametrize("programs", [2, 5, 8])
def test_programs_share_the_rows(programs: int) -> None:
    """One part of the token after the other, so that no program has to wait; odd shares leave rows and words over."""
    model = build(n_layers=2).to(DEVICE)
    engine = gpu.GpuDecoder(model, path="one_kernel", programs=programs).engine
    assert engine.programs == programs
    ids = draw(3, 1)
    expected, expected_state = reference(model, ids)
    state = torch.zeros(2, 3, 1, 24, device=DEVICE)
    for row, logits in zip(ids, expected, strict=True):
        changed = state.clone()
        token = row.to(DEVICE)
        for layer in range(2):
            for part in (gpu_kernels.CONTEXT, gpu_kernels.UNITS, gpu_kernels.OUTPUT):
                engine.launch(token, state, parts=part, layer=layer, next_state=changed)
        engine.logits.fill_(torch.nan)
        engine.launch(token, state, parts=gpu_kernels.HEAD)
        state = changed
        torch.testing.assert_close(engine.logits.double().cpu(), logits, **CLOSE)
    torch.testing.assert_close(state.double().cpu(), expected_state.double(), **CLOSE)


@pytest.mark.parametrize("n_streams", [1, 3])
@pytest.mark.parametrize("name", ["paper", "direct", "dense", "untied"])
def test_matmuls_equal_the_model(name: str, n_streams: int) -> None:
    model = build(**CONFIGS[name]).to(DEVICE)
    decoder = gpu.GpuDecoder(model, n_streams, torch.float32, path="matmuls")
    assert_same(model, decoder, draw(5, n_streams))


def test_matmuls_in_parts_and_bfloat16() -> None:
    """bfloat16 between the matmuls; dense, since rounding may change which units are kept."""
    model = build(ffn="dense").to(DEVICE)
    whole, parts = (gpu.GpuDecoder(model, 4, path="matmuls", split=n) for n in (1, 4))
    ids = draw(3, 4)
    assert_same(model, whole, ids, rtol=0.05, atol=0.1)
    assert_same(model, parts, ids, rtol=0.05, atol=0.1)


@pytest.mark.parametrize("path", ["one_kernel", "matmuls"])
def test_greedy_reading_on_is_argmax_and_step(path: str) -> None:
    model = build(n_layers=1).to(DEVICE)
    options = {"programs": 1} if path == "one_kernel" else {}
    decoder = gpu.GpuDecoder(model, path=path, **options)
    start = torch.tensor([3], device=DEVICE)
    state, stepped = decoder.new_state(), decoder.new_state()
    decoder.step(start, state)  # a first token, so that the clock does not start at 0
    stepped.copy_(state)
    tokens = decoder.generate_greedy(start, 20, state)
    logits, expected = decoder.step(start, stepped), []
    for _ in range(20):
        expected.append(logits.argmax(-1))
        logits = decoder.step(expected[-1], stepped)
    assert tokens.tolist() == [[int(token) for token in expected]]


@pytest.mark.parametrize("path", ["one_kernel", "matmuls"])
@pytest.mark.parametrize("token", [-1, 10**6])
def test_ids_outside_the_vocabulary(path: str, token: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused on the CPU; on a GPU, where nobody looks at them, NaN from there on, and nothing outside is read."""
    model = build(n_layers=1).to(DEVICE)
    decoder = gpu.GpuDecoder(model, path=path, **({"programs": 1} if path == "one_kernel" else {}))
    with pytest.raises(ValueError, match=f"token {token} is not in a vocabulary of"):
        decoder.step(torch.tensor([token]), decoder.new_state())
    monkeypatch.setattr(gpu, "check_ids", lambda *ids: None)  # as if they were on a GPU
    state = decoder.new_state()
    assert decoder.step(torch.tensor([token], device=DEVICE), state).isnan().all()
    assert decoder.step(torch.tensor([3], device=DEVICE), state).isnan().all()
    assert decoder.step(torch.tensor([3], device=DEVICE), decoder.new_state()).isfinite().all()


def test_a_wrong_id_spoils_no_other_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(n_layers=2).to(DEVICE)
    decoder = gpu.GpuDecoder(model, 3, torch.float32, path="matmuls")
    monkeypatch.setattr(gpu, "check_ids", lambda *ids: None)  # as if they were on a GPU
    state, expected_state = decoder.new_state(), decoder.new_state()
    for wrong, right in (([3, -1, 5], [3, 4, 5]), ([6, 7, 8], [6, 7, 8])):
        expected = decoder.step(torch.tensor(right, device=DEVICE), expected_state).clone()
        logits = decoder.step(torch.tensor(wrong, device=DEVICE), state)
        assert logits[1].isnan().all()
        assert torch.equal(logits[[0, 2]], expected[[0, 2]])
    assert state[:, :, 1].isnan().all()
    assert torch.equal(state[:, :, [0, 2]], expected_state[:, :, [0, 2]])


def test_state_can_be_replaced() -> None:
    """Another tensor is another stream; the same one goes on."""
    model = build(n_layers=1).to(DEVICE)
    decoder = gpu.GpuDecoder(model, programs=1)
    ids = draw(4, 1).to(DEVICE)
    one, other = decoder.new_state(), decoder.new_state()
    first = decoder.step(ids[0], one).clone()
    decoder.step(ids[1], one)
    torch.testing.assert_close(decoder.step(ids[0], other), first, rtol=0, atol=0)
    assert not torch.equal(one, other)


def test_errors_in_one_line() -> None:
    model = build(n_layers=1).to(DEVICE)
    with pytest.raises(ValueError, match="one_kernel"):
        gpu.GpuDecoder(model, 2, path="one_kernel")
    decoder = gpu.GpuDecoder(model, programs=1)
    with pytest.raises(ValueError, match=r"state must be contiguous float32 \(1, 3, 1, 24\)"):
        decoder.step(torch.tensor([1]), torch.zeros(1, 3, 2, 24))
    with pytest.raises(ValueError, match="static predictor"):
        gpu.GpuDecoder(SpenForCausalLM(SpenConfig.preset("spen-tiny", predictor="linear")).to(DEVICE))


def test_every_program_has_rows() -> None:
    for limit in (1, 7, 100, 132):
        for d, d_ff in ((768, 3072), (24, 40), (10, 9)):
            n = gpu._usable_programs(limit, d, d_ff)
            assert 1 <= n <= limit
            assert all((n - 1) * -(-rows // n) < rows for rows in (d, d_ff))
    assert gpu._usable_programs(132, 768, 3072) == 128


@triton.jit
def topk_kernel(z_ptr, kept_ptr, hint_ptr, HALF: tl.constexpr, BLOCK: tl.constexpr, K: tl.constexpr):
    at = tl.arange(0, BLOCK)
    inside = at < HALF
    low = tl.load(z_ptr + at, mask=inside, other=0.0)
    high = tl.load(z_ptr + HALF + at, mask=inside, other=0.0)
    low, high, threshold = gpu_topk.keep_topk(low, high, at, inside, HALF, K, tl.load(hint_ptr))
    tl.store(kept_ptr + at, low, mask=inside)
    tl.store(kept_ptr + HALF + at, high, mask=inside)
    tl.store(hint_ptr, threshold)


SPECIAL: dict[str, Callable[[Tensor], Tensor]] = {
    "smooth": lambda z: z,
    "ties": lambda z: (8 * z).round() / 8,
    "all equal": lambda z: torch.full_like(z, 0.3),
    "infinities": lambda z: torch.where(torch.arange(len(z)) % 7 == 0, torch.inf, z),
    "NaN": lambda z: torch.where(torch.arange(len(z)) % 9 == 0, torch.nan, z),
    "mostly zeros of both signs": lambda z: torch.where(torch.arange(len(z)) % 50 == 0, z, z.sign() * 0.0),
    "negative": lambda z: -z.abs(),
    "denormal": lambda z: z * 1e-42,
}


@pytest.mark.parametrize("name", SPECIAL)
@pytest.mark.parametrize(("n", "k"), [(3072, 184), (40, 7), (40, 1), (40, 39)])
def test_kept_units_are_those_of_the_reference(name: str, n: int, k: int) -> None:
    """From any hint: none, that of other values, and nonsense."""
    torch.manual_seed(0)
    hint = torch.ones(1, device=DEVICE)
    for scale in (1.0, 1.2, 100.0):
        z = SPECIAL[name](F.gelu(scale * torch.randn(n)))
        kept = torch.full((n,), 7.0, device=DEVICE)
        topk_kernel[(1,)](z.to(DEVICE), kept, hint, HALF=n // 2, BLOCK=2048, K=k, num_warps=8)
        expected = torch.where(topk_mask(z, k), z, 0.0)
        torch.testing.assert_close(kept.cpu(), expected, rtol=0, atol=0, equal_nan=True)
        if scale == 1.2:
            hint.fill_(torch.nan)


@on_gpu
@pytest.mark.parametrize("programs", [2, 24, 0])
def test_programs_that_wait_for_each_other(programs: int) -> None:
    model = build().to(DEVICE)
    assert_same(model, gpu.GpuDecoder(model, path="one_kernel", programs=programs), draw(40, 1))


@on_gpu
def test_a_full_size_block_gives_the_same_every_time() -> None:
    torch.manual_seed(0)
    model = SpenForCausalLM(SpenConfig.preset("spen-130m", n_layers=3)).eval().to(DEVICE)
    decoder = gpu.GpuDecoder(model)
    start, runs = torch.tensor([7], device=DEVICE), []
    for _ in range(3):
        state = decoder.new_state()
        runs.append((decoder.generate_greedy(start, 100, state), state))
    for tokens, state in runs[1:]:
        assert torch.equal(tokens, runs[0][0])
        assert torch.equal(state, runs[0][1])
