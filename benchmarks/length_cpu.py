"""Cost against length on 2 cores: reading 256 to 131,072 tokens, and prompts in parallel against token by token (C46).

First, spen-7m reads a text of T tokens in parallel (`SpenStream.feed`, 2,048 tokens at a time) and is left with logits
for the next token and a state to continue from. The peer is transformers' GPT-2 of that width and depth doing the same
with its KV cache, 2,048 tokens at a time, up to 16,384 tokens: the time of its attention grows with T². Both are
float32; the size of state and cache is recorded.

Then the 130M models read a prompt of 2,048 tokens, in parallel and, for an eighth of it, token by token, scaled up:
SPEN through its decoder at the same cost at every position, GPT-2 where its cache is still short. The paper calls
streaming inherently less parallel than attention over chunks; that holds only for tokens that are not known yet.

Floor: the operations of `ematrace.models.flops` (in parallel, the head's only for the last token) against the rate of a
plain matmul. Token by token, every weight is read for each token.

    python benchmarks/length_cpu.py --record results
"""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from ematrace.bench import Case, Comparison, ceiling_row, finish, matmul_rate, parser, read_bandwidth, time_cases
from ematrace.models.flops import flops_per_token
from ematrace.results import Factors, Metric, Row
from ematrace.spen import SpenForCausalLM, SpenStream
from ematrace.spen.decode.cpu import CpuDecoder
from ematrace.spen.stream import PARALLEL_STEPS
from ematrace.train.models import build_model

NEEDS = "cpu"
THREADS = 2
LENGTHS, QUICK_LENGTHS = (256, 1024, 4096, 16_384, 65_536, 131_072), (64, 256)
PEER_UP_TO, QUICK_PEER_UP_TO = 16_384, 64
PROMPT, QUICK_PROMPT = 2048, 32
REPETITIONS, QUICK_REPETITIONS = 5, 2
PROMPT_REPETITIONS = 3
SCALED = 8  # so many times the tokens that are read one by one
TOLERANCE = 1e-3
SPEN, GPT2 = {"contender": "spen"}, {"contender": "gpt2"}


@torch.no_grad()
def gpt2_prefill(model: Any, ids: Tensor, at_once: int = PARALLEL_STEPS) -> tuple[Tensor, DynamicCache]:
    cache = DynamicCache(config=model.config)
    for part in ids.split(at_once, 1):
        logits: Tensor = model(part, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[:, -1]
    return logits, cache


def spen_prefill(stream: SpenStream, ids: Tensor) -> Tensor:
    stream.reset()
    return stream.feed(ids, keep=1)[:, -1]


def spen_token_by_token(stream: SpenStream, ids: Tensor) -> Tensor:
    stream.reset()
    return [stream.step(i) for i in ids[0]][-1]


def parallel_operations(model: Any, n_tokens: int, at_once: int = PARALLEL_STEPS) -> float:
    """Of reading in pieces, each of which attends to all tokens so far; the head is needed once."""
    head = flops_per_token(model.lm_head, 1, backward=False)
    ends = [*range(at_once, n_tokens, at_once), n_tokens]
    total = head
    for begin, end in itertools.pairwise([0, *ends]):
        total += (end - begin) * (flops_per_token(model, end, backward=False) - head)
    return total


def streamed_operations(model: Any, n_tokens: int) -> float:
    """Of reading token by token, each of which attends to all tokens so far."""
    return sum(flops_per_token(model, n, backward=False) for n in range(1, n_tokens + 1))


def check(spen: SpenForCausalLM, gpt2: Any, ids: Tensor) -> list[str]:
    """The same logits in pieces and at once, token by token and in parallel."""
    ids = ids[:, : min(ids.shape[1], 192)]
    with torch.no_grad():
        at_once, peer_at_once = spen(ids).logits[:, -1], gpt2(ids).logits[:, -1]
    pieces = SpenStream(spen, decoder=None)
    for part in ids.split(50, 1):
        fed = pieces.feed(part, keep=1)[:, -1]
    errors = {
        "spen-7m in pieces": fed - at_once,
        "spen-7m token by token": spen_token_by_token(SpenStream(spen, decoder=None), ids) - at_once,
        "spen-7m through its decoder": spen_token_by_token(SpenStream(spen, decoder=CpuDecoder(spen)), ids) - at_once,
        "gpt2-7m in pieces": gpt2_prefill(gpt2, ids, 50)[0] - peer_at_once,
        "gpt2-7m token by token": gpt2_prefill(gpt2, ids, 1)[0] - peer_at_once,
    }
    lines = []
    for name, error in errors.items():
        lines.append(
            f"{name} against {ids.shape[1]} tokens at once: largest difference of logits {error.abs().max():.1e}"
        )
        if not float(error.abs().max()) < TOLERANCE:
            raise SystemExit(f"{lines[-1]}: more than {TOLERANCE}")
    return lines


def texts(spen: SpenForCausalLM, gpt2: Any, ids: Tensor, lengths: tuple[int, ...], peer_up_to: int) -> list[Case]:
    """Reading the first T tokens in parallel; each case has run once when it is returned."""
    stream = SpenStream(spen, decoder=None)

    def case(contender: Factors, model: Any, length: int, call: Any, state: int) -> Case:
        return Case(
            {**contender, "size": "7m", "read": "parallel", "dtype": "float32", "tokens": length},
            call,
            operations=parallel_operations(model, length),
            tokens=length,
            others={"state_bytes": Metric(float(state), "bytes", better="low")},
        )

    cases = []
    for length in lengths:
        text = ids[:, :length]
        spen_prefill(stream, text)
        cases.append(case(SPEN, spen, length, partial(spen_prefill, stream, text), stream.state_bytes()))
        if length <= peer_up_to:
            _, cache = gpt2_prefill(gpt2, text)
            cases.append(case(GPT2, gpt2, length, partial(gpt2_prefill, gpt2, text), cache_bytes(cache)))
    return cases


def prompts(size: str, vocabulary: int, ids: Tensor) -> list[Case]:
    """One prompt by the 130M models, in parallel and token by token."""
    length, part = ids.shape[1], ids[:, : max(ids.shape[1] // SCALED, 1)]
    spen: SpenForCausalLM = build_model(f"spen-{size}", vocabulary).eval()
    gpt2 = build_model(f"gpt2-{size}", vocabulary, length=length).eval()
    scale = length / part.shape[1]

    def case(factors: Factors, model: Any, read: str, call: Any, weight_bytes: float = 0) -> Case:
        dtype = factors.get("dtype", "float32")
        streamed = read == "streamed"
        return Case(
            {"contender": factors["contender"], "size": size, "read": read, "dtype": dtype, "tokens": length},
            call,
            bytes=weight_bytes * length,
            operations=scale * streamed_operations(model, part.shape[1])
            if streamed
            else parallel_operations(model, length),
            tokens=length,
            scale=scale if streamed else 1.0,
        )

    plain = SpenStream(spen, decoder=None)
    spen_prefill(plain, part)  # warm up on a short text
    cases = [case(SPEN, spen, "parallel", partial(spen_prefill, plain, ids))]
    for dtype in (torch.bfloat16, torch.float32):
        decoder = CpuDecoder(spen, dtype)
        stream = SpenStream(spen, decoder=decoder)
        spen_token_by_token(stream, part)
        factors = {**SPEN, "dtype": str(dtype).removeprefix("torch.")}
        call = partial(spen_token_by_token, stream, part)
        cases.append(case(factors, spen, "streamed", call, decoder.weight_bytes))
    weights = sum(int(p.numel()) for p in [*gpt2.transformer.h.parameters(), gpt2.lm_head.weight])
    cases.append(case(GPT2, gpt2, "parallel", partial(gpt2_prefill, gpt2, ids)))
    cases.append(case(GPT2, gpt2, "streamed", partial(gpt2_prefill, gpt2, part, 1), 4.0 * weights))
    return cases


def comparisons(lengths: tuple[int, ...]) -> list[Comparison]:
    middle, last = lengths[len(lengths) // 2 - 1], lengths[-1]
    streamed, parallel = {"read": "streamed"}, {"read": "parallel"}
    return [
        Comparison(GPT2, SPEN, where=parallel),
        Comparison({**streamed, "dtype": "bfloat16"}, {**parallel, "dtype": "float32"}, where=SPEN),
        Comparison(streamed, parallel, where={**SPEN, "dtype": "float32"}),
        Comparison({**GPT2, **streamed}, {**SPEN, **parallel}),
        Comparison({"tokens": last}, {"tokens": middle}, where={**SPEN, "size": "7m"}, per="tokens"),
    ]


def main() -> None:
    arguments = parser(__doc__, quick="short texts and small models").parse_args()
    quick: bool = arguments.quick
    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    lengths = QUICK_LENGTHS if quick else LENGTHS
    peer_up_to, prompt = (QUICK_PEER_UP_TO, QUICK_PROMPT) if quick else (PEER_UP_TO, PROMPT)
    repetitions = QUICK_REPETITIONS if quick else REPETITIONS
    vocabulary = 1000 if quick else 50257
    ids = torch.randint(vocabulary, (1, lengths[-1]), generator=torch.Generator().manual_seed(0))
    spen: SpenForCausalLM = build_model("spen-7m", vocabulary).eval()
    gpt2 = build_model("gpt2-7m", vocabulary, length=max(peer_up_to, 192)).eval()
    checks = check(spen, gpt2, ids)
    cells: list[Row] = time_cases(texts(spen, gpt2, ids, lengths, peer_up_to), repetitions, warmup=0)
    cells += time_cases(prompts("tiny" if quick else "130m", vocabulary, ids[:, :prompt]), PROMPT_REPETITIONS, warmup=0)
    cells.append(ceiling_row("matmul", matmul_rate(torch.device("cpu"), torch.float32)))
    cells.append(ceiling_row("read", read_bandwidth(torch.device("cpu"))))
    finish(
        "length_cpu",
        "Cost against length on a CPU",
        cells,
        scale="cpu",
        checks=checks,
        comparisons=comparisons(lengths),
        notes=[f"Streamed: {prompt // SCALED} tokens were read, and their time scaled up to {prompt}."],
        settings={
            **{"threads": THREADS, "at_once": PARALLEL_STEPS, "peer_up_to": peer_up_to, "prompt": prompt},
            **{"repetitions": repetitions, "prompt_repetitions": PROMPT_REPETITIONS},
        },
        quick=quick,
        to=arguments.record,
        force=arguments.force,
    )


def cache_bytes(cache: Any) -> int:
    return sum(int(t.nbytes) for layer in cache.layers for t in (layer.keys, layer.values))


if __name__ == "__main__":
    main()
