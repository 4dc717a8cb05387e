"""Operations per token against torch's own counter, for every preset and every mixer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from ematrace.mixers import MIXERS, build_mixer
from ematrace.models import SkeletonConfig, SkeletonForCausalLM
from ematrace.models.flops import flops_per_token
from ematrace.train import PRESETS, build_model

BATCH = 2


def counted(forward: Any, tokens: int) -> float:
    """By torch, per token. Its kernel for attention on CPUs is not in the counter's table; plain matmuls are."""
    counter = FlopCounterMode(display=False)
    with counter, sdpa_kernel(SDPBackend.MATH):
        forward()
    return counter.get_total_flops() / tokens


@pytest.mark.parametrize("T", [1, 5, 70])
@pytest.mark.parametrize("name", sorted(MIXERS))
def test_mixer(name: str, T: int) -> None:
    mixer = build_mixer(name, d_model=16)
    x = torch.randn(BATCH, T, 16)
    assert mixer.flops(T) == pytest.approx(counted(lambda: mixer(x), BATCH * T))
    assert flops_per_token(mixer, T, backward=False) == mixer.flops(T)


def check(model: Any, T: int, *, backward_is_double: bool = True) -> None:
    """Forward, and forward with backward, through all logits."""
    ids = torch.zeros(BATCH, T, dtype=torch.int64)

    def forward() -> torch.Tensor:
        logits: torch.Tensor = model(ids, use_cache=False).logits
        return nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten())

    assert flops_per_token(model, T, backward=False) == pytest.approx(counted(forward, BATCH * T))
    with_backward = counted(lambda: forward().backward(), BATCH * T)
    assert flops_per_token(model, T) == pytest.approx(with_backward, rel=1e-6 if backward_is_double else 0.06)


@pytest.mark.parametrize("preset", PRESETS)
def test_preset(preset: str) -> None:
    T = 5
    with FakeTensorMode(allow_non_fake_inputs=True):  # shapes without memory
        check(build_model(preset, 1000, 0, length=T), T)


@pytest.mark.parametrize("name", sorted(MIXERS))
def test_skeleton_around_a_mixer(name: str) -> None:
    model = SkeletonForCausalLM(SkeletonConfig.preset("skeleton-tiny", mixer=name, vocab_size=300))
    # The backward pass of gated_delta's triangular inverse has other matmuls than twice those of the forward pass.
    check(model, 40, backward_is_double=name != "gated_delta")


READS = ("traces_now", "trace_sequence", "inputs")
SWITCHES = [("ffn=dense",), *((f"predictor={p}", f"predictor_reads={r}") for p in ("linear", "softmax") for r in READS)]


@pytest.mark.parametrize("overrides", SWITCHES, ids=" ".join)
def test_spen_switches(overrides: tuple[str, ...]) -> None:
    model = build_model("spen-tiny", 300, 0, overrides, length=40)
    # The first memory of linear attention over a sequence needs no gradient, and nothing reads the last one.
    over_sequence = "predictor=linear" in overrides and "predictor_reads=traces_now" not in overrides
    check(model, 40, backward_is_double=not over_sequence)


def test_130m_by_hand() -> None:
    """768 wide, 12 blocks, 50,257 words: 5 d^2 for the context and 8 d^2 for the feed-forward layer, and the head."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        spen, gpt2 = (build_model(f"{family}-130m", 50257, 0, length=2048) for family in ("spen", "gpt2"))
    d, blocks, head = 768, 12, 768 * 50257
    assert flops_per_token(spen, 2048) == 6 * (blocks * 13 * d**2 + head)
    assert flops_per_token(gpt2, 2048) == 6 * (blocks * 12 * d**2 + head) + 12 * blocks * 2048 * d


def test_length_that_is_none() -> None:
    with pytest.raises(ValueError, match="seq_len is 0"):
        flops_per_token(nn.Linear(2, 2), 0)
