"""Text from a stream, token by token, with transformers' own rules for drawing one."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from transformers import LogitsProcessorList, TemperatureLogitsWarper, TopPLogitsWarper

from ematrace.spen.stream import SpenStream


def generate(
    stream: SpenStream,
    ids: Tensor | list[int],
    max_new_tokens: int,
    temperature: float = 1.0,
    top_p: float = 1.0,
    seed: int = 0,
    eos: int | None = None,
) -> Iterator[int]:
    """Read ids [T] or [1, T], then yield up to `max_new_tokens` tokens as they are drawn; after `eos` it stops.

    temperature  below 1 sharpens the distribution; 0 takes the likeliest token
    top_p        draw from the likeliest tokens that make up this much probability

    The tokens are those of `model.generate(do_sample=True, top_k=0, ...)` after `torch.manual_seed(seed)`, as far as
    decoder and model agree: on a CPU to float32 rounding, on a GPU to that of bfloat16.
    """
    device = stream.model.device
    warpers = LogitsProcessorList()
    if temperature not in (0.0, 1.0):
        warpers.append(TemperatureLogitsWarper(float(temperature)))
    if top_p < 1.0:
        warpers.append(TopPLogitsWarper(top_p))
    generator = torch.Generator(device).manual_seed(seed)
    logits = stream.feed(ids, keep=1)[:, -1]
    for left in reversed(range(max_new_tokens)):
        if temperature == 0:
            drawn = logits.argmax(-1)
        else:
            probabilities = warpers(None, logits.float()).softmax(-1)
            drawn = torch.multinomial(probabilities, 1, generator=generator)[:, 0]
        token = int(drawn)
        yield token
        if token == eos or not left:
            return
        logits = stream.step(drawn)
