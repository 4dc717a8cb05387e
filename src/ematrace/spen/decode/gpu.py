"""Streaming on a GPU: one stream in one kernel per token, many streams as matmuls with little between them.

Everything a token needs lies in memory that stays where it is, so a step is one CUDA graph, and greedy reading-on is a
chain of them without the CPU in between.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol

import torch
import torch.nn.functional as F
import triton
from torch import Tensor

from ematrace.ops import gelu_topk
from ematrace.spen.configuration import SpenConfig
from ematrace.spen.decode import gpu_batch_kernels, gpu_kernels
from ematrace.spen.decode.weights import FoldedWeights, check_ids, folded_weights
from ematrace.spen.modeling import SpenForCausalLM

Path = Literal["auto", "one_kernel", "matmuls"]
GRAPHED_TOKENS = 16
"""Tokens of greedy reading-on in one CUDA graph."""


class Engine(Protocol):
    """One way to read a token; logits and the memory that it works in are its own."""

    logits: Tensor
    memory: tuple[Tensor, ...]
    """What a run changes and the next one needs, apart from the state."""

    def advance(self, ids: Tensor, state: Tensor) -> None:
        """Read ids [B]."""

    def advance_greedily(self, ids: Tensor, state: Tensor) -> None:
        """Read the tokens that the last logits put first."""

    def begin_history(self) -> None:
        """Nothing before this is asked for."""

    def history(self, n: int) -> Tensor:
        """The last n tokens that the logits put first, [B, n]."""


class GpuDecoder:
    """One token for each of `n_streams`, weights in `dtype`, sums in float32.

    path "one_kernel" is for one stream and bfloat16, "matmuls" for any number; "auto" takes the faster one. `options`
    go to the engine: `programs` of OneKernel, `split` of Matmuls.
    """

    def __init__(
        self,
        model: SpenForCausalLM,
        n_streams: int = 1,
        dtype: torch.dtype = torch.bfloat16,
        path: Path = "auto",
        **options: int,
    ) -> None:
        if n_streams < 1:
            raise ValueError(f"n_streams must be at least 1, got {n_streams}")
        config, device = model.config, model.device
        if device.type != "cuda" and not gpu_kernels.INTERPRETED:
            raise ValueError(f"GpuDecoder needs a model on a GPU, got one on {device}")
        weights = folded_weights(model)
        whole = n_streams == 1 and dtype == torch.bfloat16 and config.d_model % 8 == config.d_ff % 8 == 0
        if path == "one_kernel" and not whole:
            raise ValueError(
                f"path 'one_kernel' needs one stream, bfloat16 and sizes that 8 divides; got {n_streams}, {dtype}, "
                f"d_model = {config.d_model}, d_ff = {config.d_ff}"
            )
        self.n_streams: int | None = n_streams
        self._given = torch.zeros(n_streams, dtype=torch.int64, device=device)
        self._ids = torch.zeros_like(self._given)
        self._vocabulary = config.vocab_size
        self._shape = (config.n_layers, len(config.alphas), n_streams, config.d_model)
        self._graphs: dict[str, torch.cuda.CUDAGraph] = {}
        self._bound: Tensor | None = None
        self.engine: Engine
        if path == "one_kernel" or (path == "auto" and whole):
            self.engine = OneKernel(weights, config, device, **options)
        else:
            self.engine = Matmuls(weights, config, device, n_streams, dtype, **options)

    def new_state(self) -> Tensor:
        """The state of streams that have read nothing."""
        return torch.zeros(self._shape, device=self._ids.device)

    @torch.no_grad()
    def step(self, ids: Tensor, state: Tensor) -> Tensor:
        """ids [B] and state [n_layers, A, B, D] float32, updated in place, to logits [B, vocabulary] float32.

        The logits hold until the next call. The graph works in the memory of `state`: hand over the same tensor again.
        Ids on the CPU that are not in the vocabulary are refused; those on the GPU, which would have to be waited for,
        make the logits and the traces of their streams NaN, and so all that follows.
        """
        if ids.device.type == "cpu":
            check_ids(ids, self._vocabulary)
        self._bind(state)
        self._given.copy_(ids)
        self._run("step", lambda: self._advance(state))
        return self.engine.logits

    def _advance(self, state: Tensor) -> None:
        torch.clamp(self._given, 0, self._vocabulary - 1, out=self._ids)  # nothing is read outside of the embedding
        self.engine.advance(self._ids, state)
        wrong = (self._given != self._ids).unsqueeze(1)  # [B, 1]
        self.engine.logits.masked_fill_(wrong, torch.nan)
        state.masked_fill_(wrong, torch.nan)  # [n_layers, A, B, D]: a stream that read a wrong token is lost

    @torch.no_grad()
    def generate_greedy(self, ids: Tensor, n: int, state: Tensor) -> Tensor:
        """Read ids [B], then n - 1 times the token that is most likely next: all n such tokens, [B, n]."""
        self.engine.begin_history()
        self.step(ids, state)
        self.read_on(n - 1, state)
        return self.engine.history(n)

    @torch.no_grad()
    def read_on(self, n: int, state: Tensor) -> None:
        """Read the most likely token n times, without waiting for the GPU."""
        self._bind(state)

        def once() -> None:
            self.engine.advance_greedily(self._ids, state)

        def often() -> None:
            for _ in range(GRAPHED_TOKENS):
                once()

        for _ in range(n // GRAPHED_TOKENS):
            self._run("often", often)
        for _ in range(n % GRAPHED_TOKENS):
            self._run("once", once)

    def _bind(self, state: Tensor) -> None:
        if self._bound is state:
            return
        if state.shape != self._shape or state.dtype != torch.float32 or not state.is_contiguous():
            raise ValueError(f"state must be contiguous float32 {self._shape}, got {state.dtype} {tuple(state.shape)}")
        if self._bound is None or self._bound.data_ptr() != state.data_ptr():
            self._graphs.clear()
        self._bound = state  # held, so that its memory stays its own as long as the graphs point there

    def _run(self, name: str, work: Callable[[], None]) -> None:
        if not self._ids.is_cuda:
            work()
            return
        if name not in self._graphs:
            self._graphs[name] = self._captured(work)
        self._graphs[name].replay()

    def _captured(self, work: Callable[[], None]) -> torch.cuda.CUDAGraph:
        """Kernels are compiled and libraries set up by a run on the side whose effect on the state is undone."""
        assert self._bound is not None
        kept = [(t, t.clone()) for t in (self._bound, self._ids, *self.engine.memory)]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            work()
        torch.cuda.current_stream().wait_stream(side)
        for tensor, before in kept:
            tensor.copy_(before)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
        return graph


class OneKernel:
    """One stream: `gpu_kernels.decode_token`, launched once for each token."""

    HISTORY = 1 << 16

    def __init__(
        self,
        weights: FoldedWeights,
        config: SpenConfig,
        device: torch.device,
        programs: int = 0,
        warps: int = 8,
        head_rows: int = 32,
    ) -> None:
        """`programs` share the work, at most one for each multiprocessor (0: as many as fit); each has `warps` warps.

        Without effect on the result: rows of the head that are fetched at a time (`head_rows`).
        """
        self.warps = warps
        d, d_ff, n_layers, n_rates = config.d_model, config.d_ff, config.n_layers, len(config.alphas)
        if not programs:
            on_gpu = device.type == "cuda"
            programs = torch.cuda.get_device_properties(device).multi_processor_count if on_gpu else 1
        self.programs = _usable_programs(programs, d, d_ff)
        rates = torch.tensor(config.alphas, dtype=torch.float64, device=device)

        def empty_words(*shape: int) -> Tensor:
            return torch.full(shape, gpu_kernels.EMPTY.value, dtype=torch.int32, device=device)

        def packed(matrices: list[Tensor], parts: int = 1) -> Tensor:
            return torch.stack([gpu_kernels.pack_pairs(matrix, parts) for matrix in matrices])

        blocks = weights.blocks
        # LN(c) = (c - mean) / deviation * weight + bias: weight and bias go into W_up, the rest follows the matmul.
        up = [(block.W_up * block.norm_weight).bfloat16() for block in blocks]
        up_sums = [
            torch.stack([scaled.double().sum(1), block.W_up.double() @ block.norm_bias.double()]).float()
            for scaled, block in zip(up, blocks, strict=True)
        ]
        embedding = gpu_kernels.pack_pairs(weights.embedding)
        self.logits = torch.empty(1, config.vocab_size, device=device)
        self.clock = torch.zeros(1, dtype=torch.int32, device=device)
        self.status = torch.zeros(1, dtype=torch.int32, device=device)
        self.best = torch.full((2,), gpu_kernels.SMALLEST.value, dtype=torch.int64, device=device)
        self.read = torch.zeros(self.HISTORY, dtype=torch.int64, device=device)
        self.hints = torch.ones(2, n_layers, device=device)
        self.words = empty_words(2, n_layers, gpu_kernels.words_of_a_block(d, d_ff))
        self.memory: tuple[Tensor, ...] = (self.clock, self.best, self.hints, self.words)
        self._tensors = {
            "rates_ptr": torch.stack([1 - rates, rates]).float(),
            "embedding_ptr": embedding,
            "mix_ptr": packed([block.M for block in blocks], n_rates + 2),
            "up_ptr": packed(up),
            "up_sums_ptr": torch.stack(up_sums),
            "down_ptr": packed([block.W_down_T.T for block in blocks]),
            "norm_ptr": torch.stack([weights.norm_weight, weights.norm_bias]),
            "head_ptr": embedding if weights.head is weights.embedding else gpu_kernels.pack_pairs(weights.head),
            "logits_ptr": self.logits,
            "clock_ptr": self.clock,
            "status_ptr": self.status,
            "best_ptr": self.best,
            "history_ptr": self.read,
            "hints_ptr": self.hints,
            "words_ptr": self.words,
        }
        rows_d, rows_ff, rows_head = (-(-n // self.programs) for n in (d, d_ff, config.vocab_size))
        # Vectors of at least 4 numbers a thread: what several threads held they might see at different times.
        least = 4 * 32 * self.warps
        self._sizes = {
            "A": n_rates, "D": d, "D_FF": d_ff, "VOCABULARY": config.vocab_size,
            "K": config.k if config.ffn == "topk" else 0, "DIRECT": config.residual == "direct",
            "HISTORY": self.HISTORY, "ROWS_D": rows_d, "ROWS_FF": rows_ff, "ROWS_HEAD": rows_head,
            "BLOCK_ROWS_D": triton.next_power_of_2(rows_d),
            "BLOCK_ROWS_FF": max(triton.next_power_of_2(rows_ff), self.warps),
            "BLOCK_ROWS_HEAD": max(head_rows, self.warps),
            "BLOCK_MIX": max(triton.next_power_of_2((n_rates + 2) * d // 2), least),
            "BLOCK_DOWN": max(triton.next_power_of_2(d_ff // 2), least),
            "BLOCK_D": max(triton.next_power_of_2(d), least),
            "CHUNK": 128, "WARPS": self.warps,
        }  # fmt: skip
        self._eps, self._n_layers = config.layer_norm_epsilon, n_layers

    def advance(self, ids: Tensor, state: Tensor) -> None:
        self.launch(ids, state)

    def advance_greedily(self, ids: Tensor, state: Tensor) -> None:
        self.launch(ids, state, greedy=True)

    def launch(
        self,
        ids: Tensor,
        state: Tensor,
        greedy: bool = False,
        parts: int = gpu_kernels.WHOLE,
        layer: int | None = None,
        next_state: Tensor | None = None,
    ) -> None:
        """A token, or with `parts` and `layer` some of it."""
        layers = (0, self._n_layers) if layer is None else (layer, layer + 1)
        gpu_kernels.decode_token[(self.programs,)](
            ids_ptr=ids, state_ptr=state, next_state_ptr=state if next_state is None else next_state, eps=self._eps,
            greedy=int(greedy), first_layer=layers[0], last_layer=layers[1], n_layers=self._n_layers,
            **self._tensors, **self._sizes, PARTS=parts, num_warps=self.warps,
        )  # fmt: skip

    def begin_history(self) -> None:
        """The clock counts tokens, and the kernel files what it reads under it."""

    def history(self, n: int) -> Tensor:
        if int(self.status):
            raise RuntimeError("programs waited for each other in vain: not all of them fit on the GPU at once")
        if n > self.HISTORY:
            raise ValueError(f"at most {self.HISTORY} tokens are kept, asked for {n}")
        clock = int(self.clock)
        at = torch.arange(clock - n + 1, clock, device=self.read.device) % self.HISTORY
        last = 0x7FFFFFFF - (self.best[(clock - 1) % 2] & 0x7FFFFFFF)
        return torch.cat([self.read[at], last.reshape(1)]).unsqueeze(0)


def _usable_programs(limit: int, d: int, d_ff: int) -> int:
    """The largest number of programs of which each has rows of every matrix: what has none might miss an exchange."""

    def all_have_some(n: int) -> bool:
        return all((n - 1) * -(-rows // n) < rows for rows in (d, d_ff))

    return next(n for n in range(min(limit, d, d_ff), 0, -1) if all_have_some(n))


class Matmuls:
    """Any number of streams: three matmuls per block, and what lies between them in three kernels.

    With few streams the context's matmul and W_down's have fewer tiles than the GPU has multiprocessors; `split`
    divides their sums into that many parts, which the following kernel adds.
    """

    HISTORY = 4096

    def __init__(
        self,
        weights: FoldedWeights,
        config: SpenConfig,
        device: torch.device,
        n_streams: int,
        dtype: torch.dtype,
        split: int = 1,
    ) -> None:
        d, n_rates, B = config.d_model, len(config.alphas), n_streams
        if ((n_rates + 2) * d) % split or config.d_ff % split:
            raise ValueError(f"split must divide {(n_rates + 2) * d} and {config.d_ff}, got {split}")
        self._config, self._split = config, split
        rates = torch.tensor(config.alphas, dtype=torch.float64, device=device)
        self._rates = torch.stack([1 - rates, rates]).float()
        self._blocks = [
            (b.M.to(dtype), b.norm_weight, b.norm_bias, b.W_up.to(dtype), b.W_down_T.T.to(dtype).contiguous())
            for b in weights.blocks
        ]
        self._norm = (weights.norm_weight, weights.norm_bias)
        self._embedding = weights.embedding.to(dtype)
        # A head whose width is a multiple of 64 keeps the matmul on the fast path; the added columns are never read.
        self._head = F.pad(weights.head.to(dtype), (0, 0, 0, -config.vocab_size % 64))
        self._x = torch.empty(B, d, device=device)
        self._added = torch.empty(split, B, d, device=device)
        self._v = torch.empty(B, (n_rates + 2) * d, device=device, dtype=dtype)
        self._n = torch.empty(B, d, device=device, dtype=dtype)
        self._u = torch.empty(B, config.d_ff, device=device, dtype=dtype)
        self._padded_logits = torch.empty(B, len(self._head), device=device)
        self.logits = self._padded_logits[:, : config.vocab_size]
        self._history = torch.zeros(B, self.HISTORY, dtype=torch.int64, device=device)
        self._position = torch.zeros(1, dtype=torch.int64, device=device)
        self.memory: tuple[Tensor, ...] = (self._position, self._padded_logits)

    def advance(self, ids: Tensor, state: Tensor) -> None:
        config = self._config
        for i, (M, norm_weight, norm_bias, W_up, W_down) in enumerate(self._blocks):
            self._mix_inputs(ids, state[i], first=i == 0)
            _multiply(self._v, M, self._added)
            self._add_norm(norm_weight, norm_bias, keep=config.residual == "direct")
            torch.mm(self._n, W_up.T, out=self._u)
            z = gelu_topk(self._u, config.k) if config.ffn == "topk" else F.gelu(self._u)
            _multiply(z, W_down, self._added)
        self._add_norm(*self._norm, keep=False)
        _multiply(self._n, self._head, self._padded_logits.unsqueeze(0))

    def advance_greedily(self, ids: Tensor, state: Tensor) -> None:
        torch.argmax(self.logits, -1, out=ids)
        self._history.index_copy_(1, self._position, ids.unsqueeze(1))
        self._position.add_(1).remainder_(self.HISTORY)
        self.advance(ids, state)

    def begin_history(self) -> None:
        self._position.zero_()

    def history(self, n: int) -> Tensor:
        if n > self.HISTORY:
            raise ValueError(f"at most {self.HISTORY} tokens are kept, asked for {n}")
        return torch.cat([self._history[:, : n - 1], self.logits.argmax(-1, keepdim=True)], 1)

    def _mix_inputs(self, ids: Tensor, state: Tensor, first: bool) -> None:
        n_rates, B, d = state.shape
        gpu_batch_kernels.mix_inputs[(B,)](
            ids, self._embedding, self._x, self._added, state, self._rates, self._v, B,
            D=d, A=n_rates, SPLIT=0 if first else self._split, BLOCK=triton.next_power_of_2(d), num_warps=4,
        )  # fmt: skip

    def _add_norm(self, weight: Tensor, bias: Tensor, keep: bool) -> None:
        B, d = self._x.shape
        gpu_batch_kernels.add_norm[(B,)](
            self._x, self._added, weight, bias, self._n, B, self._config.layer_norm_epsilon,
            D=d, SPLIT=self._split, KEEP=keep, BLOCK=triton.next_power_of_2(d), num_warps=4,
        )  # fmt: skip


def _multiply(a: Tensor, W: Tensor, out: Tensor) -> None:
    """a [B, K] times W [N, K] transposed, summed in float32 into out [split, B, N], which add up to the result."""
    split = len(out)
    if split == 1:
        if a.dtype == torch.float32:
            torch.mm(a, W.T, out=out[0])
        elif a.is_cuda:
            torch.mm(a, W.T, out_dtype=torch.float32, out=out[0])
        else:
            torch.mm(a.float(), W.float().T, out=out[0])
        return
    a = a.unflatten(1, (split, -1)).transpose(0, 1)
    W = W.unflatten(1, (split, -1)).permute(1, 2, 0)
    if a.dtype == torch.float32:
        torch.bmm(a, W, out=out)
    elif a.is_cuda:
        torch.bmm(a, W, out_dtype=torch.float32, out=out)
    else:
        torch.bmm(a.float(), W.float(), out=out)
