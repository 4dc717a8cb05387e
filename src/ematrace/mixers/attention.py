"""Multi-head softmax attention, with rotary positions or none: the mechanism that keeps all of the past."""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ematrace.mixers.base import Mixer, State, accumulation_dtype, check_choice, head_width, is_number
from ematrace.traces.chunked import segment_of

POSITIONS = ("rope", "none")


class AttentionMixer(Mixer):
    """For each head, with q, k, v = W_q x, W_k x, W_v x and, with "rope", q_t and k_t rotated by their position:

        o_t = Σ_{s≤t} softmax_s(q_t · k_s / √d_head) v_s,    y_t = W_o [o of all heads]

    n_heads     divides d_model
    positions   "rope" (Su et al. 2021, arXiv 2104.09864; channels i and i + d_head/2 rotate together) or "none"
    rope_theta  the slowest pair turns by 1 radian in about this many steps

    The state is keys (rotated) and values, [B, H, S, d_head] each. Where rows may differ in length, after padding or
    packing, tokens stand at the end of S and a third tensor [B] counts them. `flops` counts the whole T x T square.
    """

    def __init__(self, d_model: int, n_heads: int = 4, positions: str = "rope", rope_theta: float = 10000.0) -> None:
        super().__init__(d_model)
        check_choice("positions", positions, POSITIONS)
        self.n_heads, self.d_head = n_heads, head_width(d_model, n_heads)
        if positions == "rope" and self.d_head % 2:
            raise ValueError(f"rope needs an even number of channels per head, got {self.d_head}")
        if not is_number(rope_theta) or not rope_theta > 0:
            raise ValueError(f"rope_theta must be positive, got {rope_theta!r}")
        self.positions, self.rope_theta = positions, rope_theta
        self.W_qkv = nn.Linear(d_model, 3 * d_model, bias=False)  # W_q, W_k and W_v, one below the other
        self.W_o = nn.Linear(d_model, d_model, bias=False)

    def forward(
        self, x: Tensor, state: State = None, *, mask: Tensor | None = None, cu_seqlens: Tensor | None = None
    ) -> tuple[Tensor, State]:
        self.check_call(x, state, mask, cu_seqlens)
        q, k, v = self.W_qkv(x).unflatten(-1, (3, self.n_heads, self.d_head)).transpose(1, 3).unbind(2)  # B H T d
        if self.positions == "rope":
            position = _positions(x, state, mask, cu_seqlens)
            q, k = rotate(q, position, self.rope_theta), rotate(k, position, self.rope_theta)
        if cu_seqlens is not None:
            o, state = _attend_packed(q, k, v, state, cu_seqlens)
        elif mask is not None or (state is not None and len(state) == 3):
            o, state = _attend_ragged(q, k, v, state, mask)
        else:
            if state is not None:
                k, v = (torch.cat([old.to(new.dtype), new], 2) for old, new in zip(state, (k, v), strict=True))
            o, state = attend(q, k, v), (k.contiguous(), v.contiguous())
        y: Tensor = self.W_o(o.transpose(1, 2).flatten(-2))
        return y, state

    def state_size(self, seq_len: int) -> int:
        return 2 * self.d_model * seq_len

    def flops(self, seq_len: int) -> float:
        return 2.0 * (self.W_qkv.weight.numel() + self.W_o.weight.numel()) + 4.0 * self.d_model * seq_len


def rotate(u_BHTd: Tensor, position: Tensor, theta: float = 10000.0) -> Tensor:
    """(u_i, u_{i+d/2}) turned by the angle position · theta^(-2i/d); position [T] or [B, T]."""
    d, dtype = u_BHTd.shape[-1], accumulation_dtype(u_BHTd)
    rate = theta ** (-torch.arange(0, d, 2, dtype=dtype, device=u_BHTd.device) / d)
    angle = position.to(dtype).unsqueeze(-1) * rate
    if position.ndim == 2:
        angle = angle.unsqueeze(1)  # the same for all heads
    cos, sin = angle.cos(), angle.sin()
    first, second = u_BHTd.to(dtype).chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(u_BHTd.dtype)


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention of the last steps of k and v, which are those of q."""
    T, S = q.shape[2], k.shape[2]
    if T == S:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=None if T == 1 else _causal(T, S, q.device))


def _causal(T: int, S: int, device: torch.device) -> Tensor:
    """[T, S], True where one of the last T of S steps sees an earlier one or itself."""
    return torch.ones(T, S, dtype=torch.bool, device=device).tril(S - T)


def _positions(x: Tensor, state: State, mask: Tensor | None, cu_seqlens: Tensor | None) -> Tensor:
    """How many tokens of its sequence stand before each step, [T] or [B, T]; anything at padding."""
    time_T = torch.arange(x.shape[1], device=x.device)
    before: int | Tensor = 0 if state is None else _lengths(state)
    if cu_seqlens is not None:
        segment_T = segment_of(time_T, cu_seqlens)
        return time_T - cu_seqlens[segment_T] + (before[segment_T] if isinstance(before, Tensor) else before)
    if isinstance(before, Tensor):
        before = before.unsqueeze(1)
    return before + (time_T if mask is None else mask.cumsum(1) - 1)


def _lengths(state: State) -> int | Tensor:
    """Tokens held: the same number for all rows, or [B]."""
    length: int | Tensor = state[2] if len(state) == 3 else state[0].shape[2]
    return length


def _attend_ragged(q: Tensor, k: Tensor, v: Tensor, state: State, mask: Tensor | None) -> tuple[Tensor, State]:
    """Rows of different lengths: past and new steps both stand at the end of theirs, padding before them."""
    B, _, T, _ = q.shape
    new_BT = torch.ones(B, T, dtype=torch.bool, device=q.device) if mask is None else mask
    length_B = new_BT.sum(1)
    valid_BS, S = new_BT, T
    if state is not None:
        held, S = state[0].shape[2], state[0].shape[2] + T
        past_B = torch.as_tensor(_lengths(state), device=q.device).expand(B)
        past_BS = torch.arange(held, device=q.device) >= held - past_B.unsqueeze(1)
        valid_BS, length_B = torch.cat([past_BS, new_BT], dim=1), length_B + past_B
        k, v = (torch.cat([old.to(new.dtype), new], 2) for old, new in zip(state, (k, v), strict=False))
    # Padding that sees nothing is 0/0 in some kernels: it sees itself.
    itself = torch.eye(S, dtype=torch.bool, device=q.device)[S - T :]
    visible = _causal(T, S, q.device) & valid_BS[:, None, None, :] | itself
    o = F.scaled_dot_product_attention(q, k, v, attn_mask=visible)
    if state is not None and mask is not None:  # padding between past and new steps moves to the front
        order = valid_BS.to(torch.uint8).argsort(dim=1, stable=True)[:, None, :, None]
        k, v = k.take_along_dim(order, 2), v.take_along_dim(order, 2)
    return o, (k.contiguous(), v.contiguous(), length_B)


def _attend_packed(q: Tensor, k: Tensor, v: Tensor, state: State, cu_seqlens: Tensor) -> tuple[Tensor, State]:
    """One sequence after the other: a mask over all of them would cost the square of their total length."""
    out, keys, values = [q[:, :, :0]], [], []
    N = cu_seqlens.shape[0] - 1
    past = [0] * N if state is None else torch.as_tensor(_lengths(state)).expand(N).tolist()
    for n, (start, end) in enumerate(pairwise(cu_seqlens.tolist())):
        k_n, v_n = k[:, :, start:end], v[:, :, start:end]
        if past[n]:
            k_n, v_n = (
                torch.cat([old[n : n + 1, :, -past[n] :].to(new.dtype), new], 2)
                for old, new in zip(state, (k_n, v_n), strict=False)
            )
        if end > start:
            out.append(attend(q[:, :, start:end], k_n, v_n))
        keys.append(k_n)
        values.append(v_n)
    lengths = [k_n.shape[2] for k_n in keys]
    k, v = (torch.cat([F.pad(u, (0, 0, max(lengths) - u.shape[2], 0)) for u in parts]) for parts in (keys, values))
    return torch.cat(out, dim=2), (k, v, torch.tensor(lengths, device=q.device))
