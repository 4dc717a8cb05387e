"""Mixers against their equations: loops and closed forms in float64, and transformers' own attention."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ematrace.mixers import MIXERS, build_mixer
from ematrace.mixers._chunks import before, chunks_of, linear_scan, recurrence
from ematrace.mixers.attention import rotate
from ematrace.mixers.base import state_tensors
from ematrace.mixers.gated_delta import gated_delta, gated_delta_recurrence
from ematrace.mixers.gla import gla, gla_recurrence
from ematrace.mixers.hgrn import hgrn_recurrence
from ematrace.mixers.linear_attention import linear_attention, linear_attention_recurrence
from traces_oracle import closed_form

D = 16


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # at these sizes a second thread only waits
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)


def built(name: str, dtype: torch.dtype = torch.float64, **options: Any) -> Any:
    return build_mixer(name, d_model=D, **options).to(dtype)


def inputs(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def close(ours: Tensor, expected: Tensor, tolerance: float = 1e-10) -> None:
    torch.testing.assert_close(ours, expected, rtol=tolerance, atol=tolerance)


def rms(u: Tensor) -> Tensor:
    return u / (u.square().mean(-1, keepdim=True) + 1e-6).sqrt()


@pytest.mark.parametrize("T", [1, 2, 3, 4, 7, 8, 33])
def test_scan_is_the_loop(T: int) -> None:
    a, b = inputs(2, T, 3, 1), inputs(2, T, 3, 4)
    h, expected = torch.zeros(2, 3, 4, dtype=torch.float64), []
    for t in range(T):
        h = a[:, t] * h + b[:, t]
        expected.append(h)
    close(linear_scan(a, b), torch.stack(expected, 1))


def test_scan_is_stable() -> None:
    """Gates from 0 to 1: products underflow in float32, and what divides by them would be NaN."""
    f = torch.rand(2, 500, 4).pow(8)
    f[:, ::50], f[:, 10::60] = 0.0, 1.0
    b = torch.randn(2, 500, 4)
    close(linear_scan(f, b).double(), linear_scan(f.double(), b.double()), 1e-5)


def test_recurrence_before_and_after() -> None:
    a, b, state = inputs(1, 9, 2), inputs(1, 9, 2), inputs(4, 2)
    cu = torch.tensor([0, 4, 4, 9, 9])
    h, last = recurrence(a, b, state, cu)
    close(h, a * before(h, state, cu) + b)
    close(last, torch.stack([h[0, 3], state[1], h[0, 8], state[3]]))


def test_chunks_of_packed_sequences_keep_apart() -> None:
    cu = torch.tensor([0, 5, 5, 6, 20])
    chunks = chunks_of(20, 4, cu)
    x = torch.arange(1.0, 21).view(1, 20, 1)
    places = chunks.split(x)[0, :, :, 0].tolist()
    assert places[:7] == [
        [1, 2, 3, 4],
        [5, 0, 0, 0],
        [6, 0, 0, 0],  # after an empty sequence, which has no chunk
        *([n, n + 1, n + 2, n + 3] for n in (7, 11, 15)),
        [19, 20, 0, 0],
    ]
    assert not any(any(chunk) for chunk in places[7:])
    assert torch.equal(chunks.merge_heads(chunks.split_heads(x.unsqueeze(-1))), x.unsqueeze(-1))


def test_none_is_zero() -> None:
    y, state = built("none")(inputs(2, 5, D))
    assert state is None
    assert torch.equal(y, torch.zeros_like(y))


@pytest.mark.parametrize(
    ("name", "options"), [("ema", {}), ("ema_learned", {}), ("ema_learned", {"per_channel": False})]
)
def test_ema_is_the_closed_form(name: str, options: dict[str, Any]) -> None:
    mixer, x, state = built(name, alphas=(0.7, 0.05), **options), inputs(3, 40, D), inputs(3, 2, D)
    if name == "ema_learned":
        assert mixer.traces.logits.shape == ((2, D) if options == {} else (2,))
        with torch.no_grad():
            mixer.traces.logits += 0.3 * torch.randn_like(mixer.traces.logits)
    h, last = closed_form(x, mixer.traces.alphas, state.transpose(0, 1))
    y, after = mixer(x, state)
    W_f, W_s = mixer.W_h.weight.chunk(2, 1)
    close(y, h[0] @ W_f.T + h[1] @ W_s.T)
    close(after, last.transpose(0, 1))


def test_learned_rates_start_as_the_fixed_ones_and_move() -> None:
    fixed, learned, x = built("ema"), built("ema_learned"), inputs(2, 20, D)
    learned.W_h = fixed.W_h
    close(learned(x)[0], fixed(x)[0], 1e-6)
    before_step = learned.traces.alphas.detach().clone()
    learned(x)[0].square().sum().backward()
    torch.optim.SGD(learned.parameters(), lr=0.1).step()
    assert ((learned.traces.alphas - before_step).abs() > 0).all()


@pytest.mark.parametrize("lower_bound", [0.0, 0.6])
def test_hgrn(lower_bound: float) -> None:
    mixer, x, state = built("hgrn", lower_bound=lower_bound), inputs(2, 37, D), inputs(2, D)
    W_i, W_f, W_g = mixer.W_ifg.weight.chunk(3)
    f = lower_bound + (1 - lower_bound) / (1 + (-x @ W_f.T).exp())
    i = x @ W_i.T
    h = hgrn_recurrence(f, i / (1 + (-i).exp()), state)
    y, last = mixer(x, state)
    close(y, (rms(h) / (1 + (-x @ W_g.T).exp())) @ mixer.W_o.weight.T)
    close(last, h[:, -1])


def heads(u: Tensor, n: int) -> Tensor:
    """[B, T, D] to [B, H, T, d]."""
    return u.unflatten(-1, (n, -1)).transpose(1, 2)


@pytest.mark.parametrize("feature_map", ["elu", "relu", "identity"])
@pytest.mark.parametrize("normalizer", ["sum", "rms", "none"])
def test_linear_attention_is_a_sum_over_the_past(feature_map: str, normalizer: str) -> None:
    if (feature_map, normalizer) == ("identity", "sum"):
        with pytest.raises(ValueError, match="not negative"):
            built("linear_attention", feature_map=feature_map, normalizer=normalizer)
        return
    mixer, x = built("linear_attention", feature_map=feature_map, normalizer=normalizer), inputs(2, 150, D)
    phi: Callable[[Tensor], Tensor] = {
        "elu": lambda u: torch.where(u > 0, u + 1, u.exp()),
        "relu": lambda u: u.clamp(min=0),
        "identity": lambda u: u,
    }[feature_map]
    q, k, v = (heads(x @ W.T, 4) for W in mixer.W_qkv.weight.chunk(3))
    weights = (phi(q) @ phi(k).mT).tril()
    o = weights @ v
    if normalizer == "sum":
        o = o / weights.sum(-1, keepdim=True).clamp(min=1e-6)
    o = rms(o) if normalizer == "rms" else o / 2 if normalizer == "none" else o  # d_head is 4
    close(mixer(x)[0], o.transpose(1, 2).flatten(-2) @ mixer.W_o.weight.T)


def test_gla() -> None:
    mixer, x = built("gla", n_heads=2), inputs(2, 37, D)
    W_q, W_k, W_v, W_r = mixer.W_qkvr.weight.split([8, 8, 16, 16])
    log_a = ((x @ mixer.W_a1.weight.T) @ mixer.W_a2.weight.T).sigmoid().log() / 16
    q, k, v, log_a = (u.unflatten(-1, (2, -1)) for u in (x @ W_q.T / 2, x @ W_k.T, x @ W_v.T, log_a))
    o, S = gla_recurrence(q, k, v, log_a, torch.zeros(2, 2, 4, 8, dtype=torch.float64))
    y, last = mixer(x)
    r = x @ W_r.T
    close(y, (r * r.sigmoid() * rms(o).flatten(-2)) @ mixer.W_o.weight.T)
    close(last, S)


@pytest.mark.parametrize("conv_size", [0, 3])
def test_gated_delta(conv_size: int) -> None:
    mixer, x = built("gated_delta", n_heads=2, conv_size=conv_size), inputs(2, 37, D)
    u = x @ mixer.W_qkv.weight.T
    if conv_size:
        kernel = mixer.conv.weight.flip(0).T.unsqueeze(1)  # as torch's convolution has it: the latest step last
        u = F.conv1d(F.pad(u.mT, (2, 0)), kernel, groups=3 * D).mT
    q, k, v = (u * u.sigmoid()).unflatten(-1, (3, 2, 8)).unbind(2)
    q, k = (t / (t.square().sum(-1, keepdim=True) + 1e-6).sqrt() for t in (q, k))
    a, b = (x @ mixer.W_ab.weight.T).chunk(2, -1)
    log_a = -mixer.A_log.exp() * (1 + (a + mixer.dt_bias).exp()).log()
    o, S = gated_delta_recurrence(q, k, v, log_a, b.sigmoid(), torch.zeros(2, 2, 8, 8, dtype=torch.float64))
    y, last = mixer(x)
    g = x @ mixer.W_g.weight.T
    close(y, (rms(o).flatten(-2) * g * g.sigmoid()) @ mixer.W_o.weight.T)
    close(last if conv_size == 0 else last[0], S)


def unit_keys(*shape: int) -> Tensor:
    return F.normalize(inputs(*shape), dim=-1)


def problem(kind: str, T: int, decay: float) -> tuple[list[Tensor], Tensor, Any, Any]:
    """Arguments, a state, the chunked form and the loop."""
    B, H, d_k, d_v = 2, 2, 3, 4
    q, v = inputs(B, T, H, d_k), inputs(B, T, H, d_v)
    if kind == "linear_attention":
        return [q, inputs(B, T, H, d_k), v], inputs(B, H, d_k, d_v), linear_attention, linear_attention_recurrence
    if kind == "gla":
        log_a = -decay * torch.rand(B, T, H, d_k, dtype=torch.float64)
        return [q, inputs(B, T, H, d_k), v, log_a], inputs(B, H, d_k, d_v), gla, gla_recurrence
    log_a = -decay * torch.rand(B, T, H, dtype=torch.float64)
    b = torch.rand(B, T, H, dtype=torch.float64)
    arguments = [q, unit_keys(B, T, H, d_k), v, log_a, b]
    return arguments, inputs(B, H, d_v, d_k), gated_delta, gated_delta_recurrence


CASES = [("linear_attention", 0.0), *((kind, decay) for kind in ("gla", "gated_delta") for decay in (0.05, 3.0, 1e4))]


@pytest.mark.parametrize("T", [1, 15, 64, 150])
@pytest.mark.parametrize(("kind", "decay"), CASES)
def test_chunks_are_the_loop(kind: str, decay: float, T: int) -> None:
    """Also their gradients, for decays that underflow within a chunk."""
    arguments, state, chunked, loop = problem(kind, T, decay)
    results = []
    for form in (chunked, loop):
        leaves = [t.clone().requires_grad_() for t in (*arguments, state)]
        o, last = form(*leaves)
        loss = (o * torch.linspace(-1, 1, o.numel(), dtype=o.dtype).view_as(o)).sum() + last.square().sum()
        results.append([o, last, *torch.autograd.grad(loss, leaves)])
    for ours, expected in zip(*results, strict=True):
        close(ours, expected, 1e-9)


@pytest.mark.parametrize(("kind", "decay"), CASES)
def test_chunks_in_float32_are_the_loop_in_float64(kind: str, decay: float) -> None:
    arguments, state, chunked, loop = problem(kind, 300, decay)
    o, last = chunked(*(t.float() for t in (*arguments, state)))
    expected, expected_last = loop(*arguments, state)
    scale = expected.abs().max().item()
    torch.testing.assert_close(o.double(), expected, rtol=0, atol=1e-5 * scale)
    torch.testing.assert_close(last.double(), expected_last, rtol=0, atol=1e-5 * scale)


def test_delta_rule_overwrites() -> None:
    """Without decay, b = 1 replaces what a key held: reading it gives the value written last, whatever came before."""
    keys = torch.eye(4, dtype=torch.float64)
    order = torch.randint(4, (100,))
    v = inputs(1, 100, 1, 5)
    zeros, ones = torch.zeros(1, 100, 1, dtype=torch.float64), torch.ones(1, 100, 1, dtype=torch.float64)
    k = keys[order].view(1, 100, 1, 4)
    _, S = gated_delta(k, k, v, zeros, ones, None)
    for i in range(4):
        close(S[0, 0, :, i], v[0, int((order == i).nonzero()[-1]), 0])


def test_gated_delta_starts_with_slow_and_fast_heads() -> None:
    mixer = built("gated_delta", n_heads=16)
    rate, step = mixer.A_log.exp(), F.softplus(mixer.dt_bias)
    assert ((rate >= 1) & (rate <= 16)).all()
    assert ((step >= 0.99e-3) & (step <= 0.101)).all()
    assert (rate * step).max() > 10 * (rate * step).min()


def test_rope_is_that_of_llama() -> None:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

    config = LlamaConfig(
        hidden_size=32, num_attention_heads=4, rope_parameters={"rope_type": "default", "rope_theta": 500.0}
    )
    q, k = torch.randn(2, 4, 60, 8), torch.randn(2, 4, 60, 8)
    position = torch.stack([torch.arange(60), torch.arange(60) + 1000])
    cos, sin = LlamaRotaryEmbedding(config)(q, position)
    expected = apply_rotary_pos_emb(q, k, cos, sin)
    for ours, theirs in zip((rotate(q, position, 500.0), rotate(k, position, 500.0)), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-4)  # their angles are float32: 1000 rad to 6e-5
    torch.testing.assert_close(rotate(q, torch.arange(60), 500.0)[0], expected[0][0], rtol=1e-5, atol=1e-5)


def test_attention_is_that_of_llama() -> None:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaAttention, LlamaRotaryEmbedding

    config = LlamaConfig(hidden_size=D, num_attention_heads=4, num_key_value_heads=4, attn_implementation="eager")
    theirs, ours, x = LlamaAttention(config, layer_idx=0), built("attention", torch.float32), torch.randn(2, 30, D)
    with torch.no_grad():
        for layer, W in zip((theirs.q_proj, theirs.k_proj, theirs.v_proj), ours.W_qkv.weight.chunk(3), strict=True):
            layer.weight.copy_(W)
        theirs.o_proj.weight.copy_(ours.W_o.weight)
        angles = LlamaRotaryEmbedding(config)(x, torch.arange(30).unsqueeze(0))
        future = torch.full((30, 30), -math.inf).triu(1)
        expected, _ = theirs(x, position_embeddings=angles, attention_mask=future)
        torch.testing.assert_close(ours(x)[0], expected, rtol=1e-5, atol=1e-6)


def test_attention_without_positions_is_a_masked_softmax() -> None:
    mixer, x = built("attention", positions="none", n_heads=2), inputs(2, 30, D)
    q, k, v = (heads(x @ W.T, 2) for W in mixer.W_qkv.weight.chunk(3))
    scores = (q @ k.mT / math.sqrt(8)).masked_fill(torch.ones(30, 30, dtype=torch.bool).triu(1), -math.inf)
    y = (scores.softmax(-1) @ v).transpose(1, 2).flatten(-2) @ mixer.W_o.weight.T
    close(mixer(x)[0], y)


def test_ema_attention_is_the_sum_of_its_parts() -> None:
    x = torch.randn(2, 7, 8, dtype=torch.float64)
    both: Any = build_mixer("ema_attention", d_model=8, n_heads=2, alphas=[0.3]).double()
    y, state = both(x)
    of_ema, of_attention = both.ema(x), both.attention(x)
    torch.testing.assert_close(y, of_ema[0] + of_attention[0], rtol=0, atol=0)
    torch.testing.assert_close(both(x, state)[0], both.ema(x, of_ema[1])[0] + both.attention(x, of_attention[1])[0])


@pytest.mark.parametrize("name", MIXERS)
def test_gradients_of_packed_and_padded_rows(name: str) -> None:
    """The gradient of x is that of the sequences alone, and none comes from padding."""
    mixer, lengths = built(name), (5, 40, 1)
    rows = [inputs(1, n, D).requires_grad_() for n in lengths]
    weights = [inputs(1, n, D) for n in lengths]

    def gradients(outputs: list[Tensor]) -> list[Tensor | None]:
        total = sum(((y * w).sum() for y, w in zip(outputs, weights, strict=True)), torch.zeros(()))
        if not total.requires_grad:
            assert name == "none"
            return [torch.zeros_like(x) for x in rows]
        return list(torch.autograd.grad(total, rows))

    alone = gradients([mixer(x)[0] for x in rows])
    offsets = torch.tensor([0, 5, 45, 46], dtype=torch.int32)
    packed = mixer(torch.cat(rows, 1), cu_seqlens=offsets)[0].split(lengths, dim=1)
    batch = torch.cat([F.pad(x, (0, 0, 40 - n, 0), value=3.0) for x, n in zip(rows, lengths, strict=True)])
    mask = torch.arange(40) >= 40 - torch.tensor(lengths).unsqueeze(1)
    padded = mixer(batch, mask=mask)[0]
    for outputs in (list(packed), [padded[b : b + 1, 40 - n :] for b, n in enumerate(lengths)]):
        for ours, expected in zip(gradients(outputs), alone, strict=True):
            close(ours, expected)


class Rounded(nn.Module):
    """What a linear layer gives under autocast, in float64."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.weight = layer.weight

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x.bfloat16(), self.weight.bfloat16()).double()


@pytest.mark.parametrize("name", ["ema", "ema_learned", "hgrn", "linear_attention", "gla", "gated_delta"])
def test_autocast_rounds_projections_only(name: str) -> None:
    """What follows them, and the state, is as exact as in float32."""
    mixer, x = built(name, torch.float32), torch.randn(2, 200, D)
    exact = copy.deepcopy(mixer)
    for part, layer in list(mixer.named_children()):
        if isinstance(layer, nn.Linear):
            last = part in ("W_o", "W_h")
            setattr(mixer, part, nn.Identity() if last else layer)
            setattr(exact, part, nn.Identity() if last else Rounded(layer))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, state = mixer(x)
    expected, expected_state = exact(x.double())
    close(y.double(), expected, 1e-5)
    close(state.double(), expected_state, 1e-5)


@pytest.mark.parametrize("name", MIXERS)
def test_compiles_in_one_graph(name: str) -> None:
    mixer = built(name, torch.float32)
    x = torch.randn(2, 70, D)
    torch._dynamo.reset()
    compiled = torch.compile(mixer, backend="eager", fullgraph=True)
    y, state = compiled(x)
    expected, expected_state = mixer(x)
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(state_tensors(state), state_tensors(expected_state))
    torch._dynamo.reset()
