"""Greedy decoding, token after token, of SPEN and of a GPT-2 of its size, without Python between steps on a GPU.

The contenders of `spen_streaming` and of benchmarks/streaming_gpu.py. GPT-2 stands at a full context: its static KV
cache is full, and each step writes the last place again. It is there twice, through transformers and as the same
weights in a plain loop of fused attention without a mask, which is faster.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, StaticCache

from ematrace.mixers.base import state_tensors
from ematrace.spen import SpenConfig, SpenForCausalLM, SpenStream
from ematrace.spen.decode import Decoder, build_decoder


def build_spen(config: SpenConfig, device: torch.device | str) -> SpenForCausalLM:
    """A SPEN in float32 whose weights are whole bfloat16 numbers, so that a bfloat16 decoder has the same weights.

    So is the matmul W_e W_pred that decoders compute beforehand: of whole numbers below 256, scaled.
    """
    torch.manual_seed(0)
    model = SpenForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.copy_(parameter.bfloat16())
        for name, parameter in model.named_parameters():
            if name.endswith(("W_e.weight", "W_pred.weight")):
                parameter.copy_(parameter.sign() / 64)
    built: SpenForCausalLM = model.to(device)
    return built


def build_gpt2(
    config: SpenConfig, context: int, device: torch.device | str, dtype: torch.dtype, heads: int = 12
) -> GPT2LMHeadModel:
    """A GPT-2 of the width, depth and vocabulary of a SPEN."""
    torch.manual_seed(0)
    sizes = {"n_embd": config.d_model, "n_layer": config.n_layers, "n_head": heads}
    model = GPT2LMHeadModel(
        GPT2Config(**sizes, vocab_size=config.vocab_size, n_positions=context, bos_token_id=0, eos_token_id=0)
    )
    built: GPT2LMHeadModel = model.eval().to(device, dtype)
    return built


class Graphed:
    """Work on memory that stays where it is, captured in a CUDA graph and replayed; on a CPU simply called."""

    def __init__(self, work: Callable[[], object], device: torch.device) -> None:
        self._work = self._memory = work  # which the graph does not keep alive by itself
        if device.type != "cuda":
            return
        with torch.no_grad():
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(2):
                    work()
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                work()
        self._work = graph.replay

    @torch.no_grad()
    def __call__(self, steps: int) -> None:
        for _ in range(steps):
            self._work()


class GreedySpen:
    """Reads the likeliest token of each stream, again and again, with the decoder of the model's device."""

    def __init__(self, model: SpenForCausalLM, n_streams: int, dtype: torch.dtype) -> None:
        config = model.config
        self.decoder: Any = build_decoder(model, n_streams, dtype)
        shape = (config.n_layers, len(config.alphas), n_streams, config.d_model)
        self.state = torch.zeros(shape, device=model.device)
        self.logits = self.decoder.step(torch.zeros(n_streams, dtype=torch.int64, device=model.device), self.state)

    def __call__(self, steps: int) -> None:
        if hasattr(self.decoder, "read_on"):  # a chain of CUDA graphs
            self.decoder.read_on(steps, self.state)
            return
        for _ in range(steps):
            self.logits = self.decoder.step(self.logits.argmax(-1), self.state)


class EagerSpen:
    """Reads the likeliest token of one stream through the model itself, from Python: no decoder, no CUDA graph."""

    def __init__(self, model: SpenForCausalLM) -> None:
        self.stream = SpenStream(model, decoder=None)
        self.ids = torch.zeros(1, dtype=torch.int64, device=model.device)

    def __call__(self, steps: int) -> None:
        for _ in range(steps):
            self.ids = self.stream.step(self.ids).argmax(-1)


def _draw_cache(keys: Tensor, values: Tensor) -> None:
    """The same numbers every time: what they are does not matter, but zeros would make it too easy."""
    draw = torch.Generator(keys.device).manual_seed(0)
    keys.normal_(std=0.5, generator=draw)
    values.normal_(std=0.5, generator=draw)


class LoopGPT2:
    """Greedy steps of GPT-2 at a full context: the model's weights, one fused attention a block, no mask needed."""

    def __init__(self, model: GPT2LMHeadModel, n_streams: int, context: int) -> None:
        config, weight = model.config, model.lm_head.weight
        self.model, self.heads, self.context = model, config.n_head, context
        shape = (config.n_layer, 2, n_streams, config.n_head, context, config.n_embd // config.n_head)
        self.cache = torch.empty(shape, dtype=weight.dtype, device=weight.device)
        self.ids = torch.zeros(n_streams, dtype=torch.int64, device=weight.device)
        # A head whose width is a multiple of 64 keeps the matmul on the fast path.
        self.head = F.pad(weight.detach(), (0, 0, 0, -len(weight) % 64))
        self.fill_cache()

    def fill_cache(self) -> None:
        self.ids.zero_()
        for keys, values in self.cache:
            _draw_cache(keys, values)

    def step(self) -> Tensor:
        transformer = self.model.transformer
        x = transformer.wte(self.ids) + transformer.wpe.weight[self.context - 1]
        for block, (keys, values) in zip(transformer.h, self.cache, strict=True):
            q, k, v = (
                part.unflatten(-1, (self.heads, -1)) for part in block.attn.c_attn(block.ln_1(x)).chunk(3, dim=-1)
            )
            keys[:, :, -1], values[:, :, -1] = k, v
            mixed = F.scaled_dot_product_attention(q.unsqueeze(2), keys, values)
            x = x + block.attn.c_proj(mixed.flatten(1))
            x = x + block.mlp(block.ln_2(x))
        logits: Tensor = (transformer.ln_f(x) @ self.head.T)[:, : self.model.config.vocab_size]
        torch.argmax(logits, -1, out=self.ids)
        return logits


class LibraryGPT2:
    """The same through transformers' forward and StaticCache."""

    def __init__(self, model: GPT2LMHeadModel, n_streams: int, context: int) -> None:
        device = model.device
        self.model, self.last = model, context - 1
        self.cache = StaticCache(config=model.config, max_cache_len=context)
        self.ids = torch.zeros(n_streams, 1, dtype=torch.int64, device=device)
        self.position = torch.full((1, 1), self.last, dtype=torch.int64, device=device)
        self.mask = torch.ones(n_streams, 1, 1, context, dtype=torch.bool, device=device)
        self._hold_position()
        self.step()  # which lays out the cache
        self.fill_cache()

    def fill_cache(self) -> None:
        self.ids.zero_()
        for layer in self.cache.layers:
            _draw_cache(layer.keys, layer.values)

    def _hold_position(self) -> None:
        for layer in self.cache.layers:  # newer versions count in the cache, older ones go by cache_position
            counted = getattr(layer, "cumulative_length", None)
            if isinstance(counted, Tensor):
                counted.fill_(self.last)

    @torch.no_grad()
    def step(self) -> Tensor:
        output = self.model(
            self.ids, past_key_values=self.cache, use_cache=True, attention_mask=self.mask,
            position_ids=self.position, cache_position=self.position[0],
        )  # fmt: skip
        self._hold_position()
        logits: Tensor = output.logits[:, -1]
        self.ids.copy_(logits.argmax(-1, keepdim=True))
        return logits


@dataclass(frozen=True)
class Agreement:
    """A decoder against the float32 model on the same tokens."""

    logits: float
    """Median over tokens of ||difference|| / ||logits||."""
    state: float
    """||difference|| / ||state|| after the last token."""
    perplexity: float
    """Relative change."""
    same_tokens: int
    """Positions at which both put the same token first."""


@torch.no_grad()
def compare_decoder(model: SpenForCausalLM, decoder: Decoder, n_streams: int, n_tokens: int) -> Agreement:
    """Random tokens through both.

    In a random SPEN a rounding error that swaps two units of nearly equal value grows to half of the logits in twelve
    blocks, so with bfloat16 activations only the perplexity can be held to anything.
    """
    draw = torch.Generator().manual_seed(1)
    ids = torch.randint(0, model.config.vocab_size, (n_tokens + 1, n_streams), generator=draw).to(model.device)
    reference, decoded = SpenStream(model, decoder=None), SpenStream(model, decoder=decoder)
    same, errors, nats = 0, [], torch.zeros(2, dtype=torch.float64)
    for now, then in itertools.pairwise(ids):
        expected, got = reference.step(now).float(), decoded.step(now).float()
        same += int((expected.argmax(-1) == got.argmax(-1)).sum())
        errors.append((got - expected).norm(dim=1) / expected.norm(dim=1))
        nats += torch.stack([F.cross_entropy(logits, then).double() for logits in (expected, got)]).cpu()
    expected, got = (
        torch.cat([t.flatten() for block in stream.cache.blocks for t in state_tensors(block)])
        for stream in (reference, decoded)
    )
    return Agreement(
        logits=float(torch.cat(errors).median()),
        state=float((got - expected).norm() / expected.norm()),
        perplexity=float(((nats[1] - nats[0]) / n_tokens).exp() - 1),
        same_tokens=same,
    )
