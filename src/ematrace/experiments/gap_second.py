"""The decisive arms written a second time: plain torch in float32, no kernels, none of the package's model code.

If `gap` and this differ by more than .05 nats (docs/analysis-plan.md), one of them is wrong. What both share is not
under test: the text, its windows and their order, the number of units, and how nats are put into slices. The model, its
initial weights and loss are written here, optimiser, schedule and clipping in `simple_training`.

Traces are a matmul with the matrix of weights a (1 - a)^(t - s), and attention is the softmax of a T x T matrix, as the
equations have them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from ematrace.analysis.gap_design import ATTENTION, EMA, MASKED, SIZES, SPEN, WITHOUT_POSITIONS, Arm
from ematrace.experiments.base import Context, Device, Experiment, Point, cross_entropy, number
from ematrace.experiments.gap_task import (
    SCORED_AT_ONCE,
    SETTINGS,
    arm_points,
    budget_of,
    matched_width,
    scored_rows,
    seconds_of,
    steps_of,
)
from ematrace.experiments.gap_text import text_of_training, tokenizer_folder
from ematrace.experiments.recall import Ids
from ematrace.experiments.simple_training import minimise
from ematrace.results import Row
from ematrace.text import load_tokenizer
from ematrace.text.order import sequences_at

TRACES = (0.5, 0.1, 0.02)  # rates
STD = 0.02  # of the initial weights
KEPT = 0.06  # share of the units that top-k keeps
EMA_TOPK = (replace(EMA, ffn="topk_ste"), replace(EMA, ffn="topk_masked"))
ARMS = (EMA, *EMA_TOPK, WITHOUT_POSITIONS, ATTENTION, SPEN, MASKED)


def traces(x: Tensor) -> list[Tensor]:
    """h_t = Σ_{s≤t} a (1 - a)^(t-s) x_s for each rate a, the fastest first."""
    time = torch.arange(x.shape[1], device=x.device)
    lag = (time[:, None] - time[None, :]).clamp(min=0).to(x.dtype)
    return [torch.tril(a * (1 - a) ** lag) @ x for a in TRACES]


class Ema(nn.Module):
    """y = W_h [h_f; h_m; h_s] of the three traces."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.W_h = nn.Linear(len(TRACES) * d, d, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.W_h(torch.cat(traces(x), -1))
        return out


class Attention(nn.Module):
    """y_t = W_o Σ_{s≤t} softmax_s(q_t · k_s / √d_head) v_s for each head; with RoPE, q_t and k_s turn by t and s."""

    def __init__(self, d: int, heads: int, rope: bool) -> None:
        super().__init__()
        self.heads, self.rope = heads, rope
        self.W_q, self.W_k, self.W_v, self.W_o = (nn.Linear(d, d, bias=False) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        B, T, d = x.shape
        q, k, v = (W(x).view(B, T, self.heads, -1).transpose(1, 2) for W in (self.W_q, self.W_k, self.W_v))
        if self.rope:
            q, k = turn(q), turn(k)
        scores = q @ k.transpose(-1, -2) / math.sqrt(d // self.heads)
        future = torch.ones(T, T, dtype=torch.bool, device=x.device).triu(1)
        o = scores.masked_fill(future, -torch.inf).softmax(-1) @ v
        out: Tensor = self.W_o(o.transpose(1, 2).reshape(B, T, d))
        return out


def turn(u: Tensor) -> Tensor:
    """Channels i and i + half as a complex number, times exp(i t 10000^(-i / half))."""
    half = u.shape[-1] // 2
    angle = torch.arange(u.shape[-2], device=u.device)[:, None] * 10000.0 ** (
        -torch.arange(half, device=u.device) / half
    )
    turned = torch.complex(u[..., :half], u[..., half:]) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat([turned.real, turned.imag], -1)


def keep(z: Tensor, k: int, straight_through: bool) -> Tensor:
    """The k largest of z, the others 0. Straight-through, the gradient is that of z itself."""
    kept = torch.zeros_like(z).scatter(-1, z.topk(k, -1).indices, 1.0) * z
    return z + (kept - z).detach() if straight_through else kept


def balance_loss(u: Tensor, z: Tensor) -> Tensor:
    """n Σ_i f_i P_i over n units: f_i is unit i's share of all that z keeps, P_i the mean of softmax(u)_i over tokens.

    It is 1 if all units are used equally.
    """
    kept = (z != 0).flatten(0, -2).sum(0)
    f, P = kept / kept.sum(), u.softmax(-1).flatten(0, -2).mean(0)
    return u.shape[-1] * (f * P).sum()


class Block(nn.Module):
    """c = x + mixer(LN(x)), x' = c + W_down z, z = GELU(W_up LN(c)) or the 6% of it that are largest.

    Returns x' and 0: these arms have no load-balance loss.
    """

    def __init__(self, d: int, d_ff: int, mixer: nn.Module, ffn: str) -> None:
        super().__init__()
        self.ffn, self.k = ffn, round(KEPT * d_ff)
        self.mixer, self.mixer_norm, self.norm = mixer, nn.LayerNorm(d), nn.LayerNorm(d)
        self.W_up, self.W_down = nn.Linear(d, d_ff, bias=False), nn.Linear(d_ff, d, bias=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        c = x + self.mixer(self.mixer_norm(x))
        z = F.gelu(self.W_up(self.norm(c)))
        if self.ffn != "dense":
            z = keep(z, self.k, straight_through=self.ffn == "topk_ste")
        return c + self.W_down(z), x.new_zeros(())


class Algorithm1(nn.Module):
    """The paper's block, with traces of x itself. Returns x' and the load-balance loss."""

    def __init__(self, d: int, d_ff: int, straight_through: bool) -> None:
        super().__init__()
        self.straight_through, self.k = straight_through, round(KEPT * d_ff)
        self.W_pred, self.W_e = nn.Linear(d, d, bias=False), nn.Linear(d, d, bias=False)
        self.W_h, self.norm = nn.Linear(len(TRACES) * d, d, bias=False), nn.LayerNorm(d)
        self.W_up, self.W_down = nn.Linear(d, d_ff, bias=False), nn.Linear(d_ff, d, bias=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h_f, h_m, h_s = traces(x)
        x_hat = self.W_pred(h_s / h_s.norm(dim=-1, keepdim=True))  # Alg. 1 lines 1 and 2
        e = x - x_hat  # line 3
        c = x + self.W_h(torch.cat([h_f, h_m, h_s], -1)) + self.W_e(e)  # line 4
        u = self.W_up(self.norm(c))
        z = keep(F.gelu(u), self.k, self.straight_through)  # lines 5 and 6
        return x + self.W_down(z), balance_loss(u, z)  # line 7


class LanguageModel(nn.Module):
    """Embedding, blocks, norm, and the embedding again as the head: logits, and the blocks' mean load-balance loss."""

    def __init__(self, arm: Arm, vocab_size: int, d: int, d_ff: int, n_layers: int, heads: int) -> None:
        super().__init__()
        self.load_balance = arm.load_balance
        self.embedding = nn.Embedding(vocab_size, d)

        def block() -> nn.Module:
            if arm in (SPEN, MASKED):
                return Algorithm1(d, d_ff, straight_through=arm.ffn == "topk_ste")
            mixer = Ema(d) if arm.context == "ema" else Attention(d, heads, arm.positions == "rope")
            return Block(d, d_ff, mixer, arm.ffn)

        self.blocks = nn.ModuleList(block() for _ in range(n_layers))
        self.norm = nn.LayerNorm(d)
        for name, p in self.named_parameters():
            if p.ndim == 2:
                nn.init.normal_(p, std=STD / math.sqrt(n_layers) if "W_down" in name else STD)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        x, balance = self.embedding(ids), []
        for block in self.blocks:
            x, of_block = block(x)
            balance.append(of_block)
        return F.linear(self.norm(x), self.embedding.weight), torch.stack(balance).mean()

    def losses(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """What training minimises, cross-entropy + weight * load-balance loss; and the cross-entropy alone."""
        logits, balance = self(ids[:, :-1])
        cross_entropy = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        return cross_entropy + self.load_balance * balance, cross_entropy


def grid(scale: str, seeds: int) -> Iterable[Point]:
    """Without a GPU toys, which show that it runs."""
    if scale != "gpu":
        yield from arm_points((EMA, SPEN), "toy", 0)
        return
    for seed in range(seeds):
        yield from arm_points(ARMS, "2m", seed)


def measure(ctx: Context, *, size: str, lr: float, **factors: Any) -> list[Row]:
    settings, of, arm = ctx.settings, SIZES[size], Arm(**factors)
    tokenizer = tokenizer_folder(str(ctx.data), settings["vocab_size"])
    entries = len(load_tokenizer(tokenizer))
    d_ff = matched_width(arm, size, entries, settings["length"])
    torch.manual_seed(ctx.seed)
    model = LanguageModel(arm, entries, of["d_model"], d_ff, of["n_layers"], of["n_heads"]).to(ctx.device)
    steps = steps_of(settings)
    curve = minimise(ctx, model, model.losses, batches(ctx, tokenizer, steps), steps, settings["warmup"], lr)
    of_model = {"parameters": number(sum(p.numel() for p in model.parameters())), "d_ff": number(d_ff)}
    of_model["train_nats"] = cross_entropy(float(np.mean(curve[-len(curve) // 10 :])))
    scored = scored_rows(ctx, tokenizer, lambda windows: (score(model, windows), None))
    return [Row({}, of_model | scored[0].metrics), *scored[1:]]


def batches(ctx: Context, tokenizer: Any, steps: int) -> Iterator[Tensor]:
    """The windows [B, T+1] that `gap` has at each step of this seed."""
    settings = ctx.settings
    text, length = text_of_training(ctx, tokenizer), settings["length"]
    for step in range(steps):
        chosen = sequences_at(step, settings["sequences"], text.n_windows(length), ctx.seed)
        yield torch.from_numpy(text.windows(chosen, length)).to(ctx.device)


@torch.no_grad()
def score(model: LanguageModel, windows: Ids) -> NDArray[np.float64]:
    """Nats of every target [N, T]."""
    at_once = max(1, SCORED_AT_ONCE // windows.shape[1])
    nats = []
    for start in range(0, len(windows), at_once):
        ids = torch.from_numpy(windows[start : start + at_once]).to(model.embedding.weight.device)
        log_p = model(ids[:, :-1])[0].log_softmax(-1)
        nats.append(-log_p.gather(-1, ids[:, 1:, None])[..., 0].cpu())
    return torch.cat(nats).double().numpy()


def seconds_in_float32(point: Point, settings: Mapping[str, Any], device: Device, sharing: int) -> float:
    """Without kernels, an arm takes about four times as long."""
    return 4 * seconds_of(point, settings, device, sharing)


EXPERIMENT = Experiment(
    "gap_second",
    "Arms of the gap in a second implementation",
    grid=grid,
    measure=measure,
    needs="any",
    data="builtin",
    seeds=5,
    settings=SETTINGS,
    derived=budget_of,
    seconds=6,
    seconds_of=seconds_in_float32,
)
