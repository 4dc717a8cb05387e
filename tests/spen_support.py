"""Small SPENs in float64, and token ids to feed them, for the tests that run one in several ways."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from ematrace.spen import SpenConfig, SpenForCausalLM

PREDICTORS = [
    ("static", "traces_now"),
    *itertools.product(("linear", "softmax"), ("traces_now", "trace_sequence", "inputs")),
]
each_predictor = pytest.mark.parametrize(("predictor", "reads"), PREDICTORS)
V = 31
EXACT = {"rtol": 1e-10, "atol": 1e-10}


def build(predictor: str = "static", reads: str = "traces_now", **changes: Any) -> SpenForCausalLM:
    torch.manual_seed(0)
    fields = {"vocab_size": V, "d_model": 16, "d_ff": 32, "n_layers": 2, "k": 8, "n_heads": 2, "gamma": 0.95}
    fields |= {"bos_token_id": 0, "eos_token_id": None, "pad_token_id": 0, "initializer_range": 0.3}
    config = SpenConfig(**{**fields, "predictor": predictor, "predictor_reads": reads, **changes})
    return SpenForCausalLM(config).double().eval()


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(1, V, shape, generator=torch.Generator().manual_seed(seed))


def pad(rows: list[Tensor], side: str) -> tuple[Tensor, Tensor]:
    """Padding holds a real token, so that it shows when it is not masked."""
    length = max(len(row) for row in rows)
    ids = torch.full((len(rows), length), 5)
    mask = torch.zeros(len(rows), length, dtype=torch.long)
    for i, row in enumerate(rows):
        at = slice(length - len(row), None) if side == "left" else slice(0, len(row))
        ids[i, at], mask[i, at] = row, 1
    return ids, mask


ROWS = [draw(n, seed=n) for n in (9, 4, 1, 70)]
