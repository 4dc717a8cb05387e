"""Decoding one sequence token by token on 2 cores: SPEN-130M against a GPT-2 of its size with its KV cache.

Timed is greedy decoding after a context of 128, 1,024 and 8,192 tokens. SPEN goes through its CPU decoder with float32
and with bfloat16 weights and, for comparison, through the model's own step (eager). The peer is transformers' GPT-2 in
float32 (n_positions raised) with its default, growing cache and with a static one of exactly the size that is needed.
In bfloat16 torch runs GPT-2 at a twentieth of that speed on a CPU whose AMX cannot be used, so that is not timed.
Weights are random: their values do not matter to time, since top-k keeps exactly k.

Floor: each weight is read once per token. SPEN reads 416 MB in float32 and 208 MB in bfloat16, with 184 of 3,072 rows
of each W_down, whatever the context; GPT-2 494 MB and 73.7 KB more for each token of the context. The ceiling is the
bandwidth of reading a large tensor, measured in the same run.

    python benchmarks/streaming_cpu.py --record results
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, GPT2LMHeadModel, StaticCache

from ematrace.bench import Case, Comparison, ceiling_row, finish, parser, read_bandwidth, time_cases
from ematrace.models.flops import flops_per_token
from ematrace.results import Factors, Metric
from ematrace.spen import SpenForCausalLM, SpenStream
from ematrace.spen.decode.cpu import CpuDecoder
from ematrace.train.models import build_model

NEEDS = "cpu"
THREADS = 2
CONTEXTS, QUICK_CONTEXTS = (128, 1024, 8192), (8, 32)
TOKENS, QUICK_TOKENS = 24, 4  # in one call that is timed
REPETITIONS, QUICK_REPETITIONS = 7, 2
PREFILL = 1024  # tokens of GPT-2's context that are read at once
DTYPES = (torch.float32, torch.bfloat16)


class GPT2Stream:
    """transformers' GPT-2 after a context, to which it returns after each call."""

    def __init__(self, model: Any, cache: DynamicCache | StaticCache, read: DynamicCache, ids: Tensor) -> None:
        """`read` holds keys and values of a longer text that begins with ids."""
        self.model, self.cache, self.context = model, cache, ids.shape[1] - 1
        self.last = ids[:, -1:]
        for i, layer in enumerate(read.layers):
            cache.update(*(t[:, :, : self.context].clone() for t in (layer.keys, layer.values)), i)

    @torch.no_grad()
    def read_on(self, n_tokens: int) -> Tensor:
        ids = self.last
        for _ in range(n_tokens):
            logits: Tensor = self.model(ids, past_key_values=self.cache, use_cache=True).logits[:, -1]
            ids = logits.argmax(-1, keepdim=True)
        if isinstance(self.cache, StaticCache):
            for layer in self.cache.layers:
                layer.cumulative_length.fill_(self.context)
        else:
            self.cache.crop(-n_tokens)
        return logits

    def cache_bytes(self) -> int:
        return sum(int(t.nbytes) for layer in self.cache.layers for t in (layer.keys, layer.values))


class SpenAfter:
    """A SPEN stream after a context, to which it returns after each call."""

    def __init__(self, stream: SpenStream, state: Any, ids: Tensor) -> None:
        self.stream, self.state, self.last = stream, state, ids[:, -1]

    def read_on(self, n_tokens: int) -> Tensor:
        self.stream.restore(self.state)
        ids = self.last
        for _ in range(n_tokens):
            logits = self.stream.step(ids)
            ids = logits.argmax(-1)
        return logits


class Decoding:
    """Both models, and the cases at each context."""

    def __init__(self, size: str, vocabulary: int, longest: int, tokens: int) -> None:
        self.tokens = tokens
        self.spen: SpenForCausalLM = build_model(f"spen-{size}", vocabulary).eval()
        self.gpt2: GPT2LMHeadModel = build_model(f"gpt2-{size}", vocabulary, length=longest + tokens).eval()
        self.ids = torch.randint(vocabulary, (1, longest), generator=torch.Generator().manual_seed(0))
        self.decoders = {dtype: CpuDecoder(self.spen, dtype) for dtype in DTYPES}
        self.streams = {dtype: SpenStream(self.spen, decoder=decoder) for dtype, decoder in self.decoders.items()}
        self.eager = SpenStream(self.spen, decoder=None)
        self.reader, self.seen = SpenStream(self.spen, decoder=None), 0
        self.read = gpt2_reads(self.gpt2, self.ids)

    def case(self, factors: Factors, model: Any, stream: Any, context: int, weight_bytes: float, state: int) -> Case:
        """A step reads the weights and the state; SPEN also writes its state, which is as large."""
        moved = weight_bytes + state * (2 if model is self.spen else 1)
        steps = range(context, context + self.tokens)
        return Case(
            {**factors, "context": context},
            partial(stream.read_on, self.tokens),
            bytes=self.tokens * moved,
            operations=sum(flops_per_token(model, n, backward=False) for n in steps),
            tokens=self.tokens,
            others={"state_bytes": Metric(float(state), "bytes", better="low")},
        )

    def spen_cases(self, context: int) -> list[Case]:
        """Call it with growing contexts: each is read on from the last."""
        self.reader.feed(self.ids[:, self.seen : context - 1], keep=1)
        self.seen, state = context - 1, self.reader.snapshot()
        cases = []
        for stream, decoder, dtype in (
            *((self.streams[dtype], "compiled", dtype) for dtype in DTYPES),
            (self.eager, "eager", torch.float32),
        ):
            factors = {"contender": "spen", "decoder": decoder, "dtype": str(dtype).removeprefix("torch.")}
            after = SpenAfter(stream, state, self.ids[:, :context])
            reads = self.decoders[dtype].weight_bytes
            cases.append(self.case(factors, self.spen, after, context, reads, self.reader.state_bytes()))
        return cases

    def gpt2_cases(self, context: int, check_alone: bool) -> tuple[list[Case], str]:
        prompt = self.ids[:, :context]
        caches = {
            "dynamic": DynamicCache(config=self.gpt2.config),
            "static": StaticCache(config=self.gpt2.config, max_cache_len=context + self.tokens),
        }
        peers = {name: GPT2Stream(self.gpt2, cache, self.read, prompt) for name, cache in caches.items()}
        line = check_peers(self.gpt2, peers, prompt if check_alone else None, self.tokens)
        weights = 4.0 * gpt2_weights(self.gpt2)
        cases = [
            self.case(
                {"contender": "gpt2", "cache": name, "dtype": "float32"},
                self.gpt2,
                peer,
                context,
                weights,
                peer.cache_bytes(),
            )
            for name, peer in peers.items()
        ]
        return cases, line


def comparisons(contexts: tuple[int, ...]) -> list[Comparison]:
    decoder = {"contender": "spen", "decoder": "compiled"}
    return [
        *(
            Comparison({"contender": "gpt2", "cache": cache, "dtype": "float32"}, {**decoder, "dtype": dtype})
            for dtype in ("float32", "bfloat16")
            for cache in ("dynamic", "static")
        ),
        Comparison({"context": contexts[-1]}, {"context": contexts[0]}, where=decoder),
    ]


def main() -> None:
    arguments = parser(__doc__, quick="tiny models").parse_args()
    quick: bool = arguments.quick
    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    contexts, tokens = (QUICK_CONTEXTS, QUICK_TOKENS) if quick else (CONTEXTS, TOKENS)
    repetitions = QUICK_REPETITIONS if quick else REPETITIONS
    size, vocabulary = ("tiny", 1000) if quick else ("130m", 50257)
    models = Decoding(size, vocabulary, max(contexts), tokens)
    checks = [
        check_decoder(models.spen, models.decoders[torch.float32], models.ids),
        check_bfloat16(models.spen, models.ids),
    ]
    cases = []
    for context in contexts:
        peers, line = models.gpt2_cases(context, check_alone=context == contexts[0])
        checks.append(line)
        cases += [*models.spen_cases(context), *peers]
    cells = time_cases(cases, repetitions)
    finish(
        "streaming_cpu",
        "Decoding one sequence token by token on a CPU",
        [*cells, ceiling_row("read", read_bandwidth(torch.device("cpu")))],
        scale="cpu",
        checks=checks,
        comparisons=comparisons(contexts),
        settings={"threads": THREADS, "tokens": tokens, "repetitions": repetitions, "size": size},
        quick=quick,
        to=arguments.record,
        force=arguments.force,
    )


@torch.no_grad()
def gpt2_reads(model: Any, ids: Tensor) -> DynamicCache:
    cache = DynamicCache(config=model.config)
    for part in ids.split(PREFILL, 1):
        model(part, past_key_values=cache, use_cache=True, logits_to_keep=1)
    return cache


def gpt2_weights(model: Any) -> int:
    """Weights that a token reads: all of the blocks and the tied head; of each embedding one row, not counted."""
    return sum(int(p.numel()) for p in [*model.transformer.h.parameters(), model.lm_head.weight])


@torch.no_grad()
def check_decoder(model: SpenForCausalLM, decoder: CpuDecoder, ids: Tensor, what: str = "float32 decoder") -> str:
    """Against the model's own step. Rounding may now and then exchange units that nearly tie."""
    ids = ids[:, :32]
    own, ours = SpenStream(model, decoder=None), SpenStream(model, decoder=decoder)
    expected, decoded = (torch.cat([stream.step(i) for i in ids[0]]).double() for stream in (own, ours))
    difference = (decoded - expected).abs().amax(-1)
    nats = [-logits[:-1].log_softmax(-1).gather(-1, ids[0, 1:, None]).mean() for logits in (expected, decoded)]
    change = abs(float((nats[1] - nats[0]).expm1()))
    close = float((difference < 1e-3).double().mean())
    line = (
        f"{what} against the model's own step, {len(difference)} tokens: median of the largest difference of logits "
        f"{float(difference.median()):.1e}, {close:.0%} of tokens within 1e-3, perplexity within {change:.1e}"
    )
    if close < 0.8 or change > 1e-3:
        raise SystemExit(f"{line}: not the same")
    return line


@torch.no_grad()
def check_bfloat16(model: SpenForCausalLM, ids: Tensor) -> str:
    """On a model whose weights are exact in bfloat16, with W_pred = 0, the decoder has nothing to round."""
    exact = SpenForCausalLM(model.config).eval()
    for name, parameter in exact.named_parameters():
        parameter.copy_(0 * parameter if "W_pred" in name else dict(model.named_parameters())[name].bfloat16())
    return check_decoder(exact, CpuDecoder(exact, torch.bfloat16), ids, "bfloat16 decoder")


def check_peers(model: Any, peers: dict[str, GPT2Stream], prompt: Tensor | None, tokens: int) -> str:
    """Both caches, twice from the same context, give the same logits; with a prompt, those of GPT-2 without a cache."""
    logits = [peer.read_on(tokens) for peer in peers.values() for _ in range(2)]
    difference = max(float((other - logits[0]).abs().max()) for other in logits[1:])
    context = next(iter(peers.values())).context + 1
    line = f"GPT-2 with both caches at context {context}: largest difference of logits {difference:.1e}"
    if prompt is not None:
        with torch.no_grad():
            alone = model(prompt).logits[:, -1]
        first = max(float((peer.read_on(1) - alone).abs().max()) for peer in peers.values())
        line += f", {first:.1e} to those without a cache"
        difference = max(difference, first)
    if not difference < 1e-3:
        raise SystemExit(f"{line}: not the same")
    return line


if __name__ == "__main__":
    main()
