"""`CpuDecoder`: lays a model's weights out once, then steps through compiled kernels on a few threads."""

from __future__ import annotations

import mmap
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ematrace.spen.decode import cpu_kernels as kernels
from ematrace.spen.decode.weights import FoldedWeights, check_ids, folded_weights
from ematrace.spen.modeling import SpenForCausalLM

DTYPES = (torch.float32, torch.bfloat16)
HUGE_PAGE = 2**21


class CpuDecoder:
    """Steps any number of streams, fastest for one; see `decode.Decoder`. One step at a time: it holds work buffers.

    dtype    of the matrices: float32, or bfloat16 for half the bytes (sums, norms and traces are float32 in both)
    threads  default: as many as torch uses now

    After an operation on more than 32,768 numbers torch's own threads spin for some milliseconds, and while they do, a
    step shares the processors with them; OMP_WAIT_POLICY=passive in the environment prevents that.
    """

    n_streams: int | None = None

    def __init__(self, model: SpenForCausalLM, dtype: torch.dtype = torch.float32, threads: int | None = None) -> None:
        if dtype not in DTYPES:
            raise ValueError(f"CpuDecoder holds weights in float32 or bfloat16, not in {dtype}")
        self.dtype = dtype
        self.threads = torch.get_num_threads() if threads is None else threads
        if self.threads < 1:
            raise ValueError(f"CpuDecoder needs at least one thread, got {threads}")
        config, folded = model.config, folded_weights(model)
        self._weights, head, embedding = _laid_out(folded, dtype)
        norms = [(block.norm_weight, block.norm_bias) for block in folded.blocks]
        norms.append((folded.norm_weight, folded.norm_bias))
        self._norms = torch.stack([torch.stack(pair) for pair in norms]).numpy()
        self._rates = np.array(config.alphas, np.float32)
        self._layout = kernels.Layout(
            n_layers=config.n_layers,
            n_rates=len(config.alphas),
            d=config.d_model,
            d_ff=config.d_ff,
            k=config.k,
            vocabulary=config.vocab_size,
            head=head,
            embedding=embedding,
            dense=config.ffn == "dense",
            direct=config.residual == "direct",
            epsilon=config.layer_norm_epsilon,
        )
        self._others = ThreadPoolExecutor(self.threads - 1) if self.threads > 1 else None
        self._prepare(1)

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights that one step reads: all of M, W_up and the head, the active rows of W_down."""
        sizes = self._layout
        active = sizes.d_ff if sizes.dense else sizes.k
        per_block = (sizes.n_rates + 2) * sizes.d + sizes.d_ff + active
        return (sizes.n_layers * per_block + sizes.vocabulary) * sizes.d * self._weights.itemsize

    def step(self, ids: Tensor, state: Tensor) -> Tensor:
        """ids [B], state [n_layers, A, B, D] float32, updated in place; logits [B, vocabulary], new at each call."""
        self._check(ids, state)
        if len(ids) != len(self._shared.z):
            self._prepare(len(ids))
        self._shared.claimed.fill(0)
        self._shared.finished.fill(0)
        logits = torch.empty(len(ids), self._layout.vocabulary)
        # Contiguous, else numba would compile the kernel a second time for strides.
        numbers = ids.contiguous().numpy(), state.numpy(), logits.numpy()
        others = (
            [] if self._others is None else [self._others.submit(self._run, p, *numbers) for p in self._private[1:]]
        )
        try:
            self._run(self._private[0], *numbers)
        finally:
            for other in others:
                other.result()
        return logits

    def _run(
        self,
        private: kernels.Private,
        ids: npt.NDArray[np.int64],
        state: npt.NDArray[np.float32],
        logits: npt.NDArray[np.float32],
    ) -> None:
        """What each thread does in a step."""
        kernels.step(self._weights, self._norms, self._rates, self._layout, ids, state, self._shared, private, logits)

    def _prepare(self, n_streams: int) -> None:
        self._shared = kernels.new_shared(self._layout, n_streams)
        self._private = [kernels.new_private(self._layout, n_streams) for _ in range(self.threads)]

    def _check(self, ids: Tensor, state: Tensor) -> None:
        sizes = self._layout
        if ids.ndim != 1 or ids.dtype != torch.int64 or not len(ids):
            raise ValueError(f"ids must be [B] int64 with at least one stream, got {list(ids.shape)} {ids.dtype}")
        check_ids(ids, sizes.vocabulary)
        expected = (sizes.n_layers, sizes.n_rates, len(ids), sizes.d)
        if state.shape != expected or state.dtype != torch.float32 or not state.is_contiguous() or not state.is_cpu:
            raise ValueError(
                f"state must be {list(expected)} float32, contiguous, on the CPU; got {list(state.shape)} {state.dtype}"
            )


def _laid_out(folded: FoldedWeights, dtype: torch.dtype) -> tuple[npt.NDArray[np.generic], int, int]:
    """All matrices in one flat array in the order in which a step reads them, and where head and embedding begin."""
    matrices = [m for block in folded.blocks for m in (block.M, block.W_up, block.W_down_T)] + [folded.head]
    if folded.embedding is not folded.head:
        matrices.append(folded.embedding)
    ends = np.cumsum([matrix.numel() for matrix in matrices])
    flat = _allocated(int(ends[-1]), dtype)
    for matrix, end in zip(matrices, ends, strict=True):
        flat[end - matrix.numel() : end] = matrix.flatten()  # rounds to nearest
    tied = folded.embedding is folded.head
    head = int(ends[-1 if tied else -2]) - folded.head.numel()
    embedding = head if tied else int(ends[-1]) - folded.embedding.numel()
    as_numbers = flat if dtype == torch.float32 else flat.view(torch.uint16)  # numpy has no bfloat16
    return as_numbers.numpy(), head, embedding


def _allocated(numel: int, dtype: torch.dtype) -> Tensor:
    """Memory in huge pages where the system has them: a step touches all of it, and every page is looked up."""
    size = numel * dtype.itemsize
    memory = mmap.mmap(-1, size + HUGE_PAGE)
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    skip = -whole.data_ptr() % HUGE_PAGE
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return whole[skip : skip + size].view(dtype)
