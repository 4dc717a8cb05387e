"""Decoders: one token of a stream at a time, with the weights laid out once for just that.

cpu.py   CpuDecoder, compiled by numba (cpu_kernels.py, simd.py)
gpu.py   GpuDecoder, Triton and CUDA graphs (gpu_kernels.py and gpu_topk.py for one stream, gpu_batch_kernels.py)
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from ematrace.kernels import cpu_kernels_are_on, gpu_kernels_are_on
from ematrace.spen.decode.weights import obstacle_to_decoding
from ematrace.spen.modeling import SpenForCausalLM

CPU_STREAMS = 8
"""Most streams that the CPU's decoder takes by itself: it multiplies one stream at a time, a matmul all at once."""

__all__ = ["Decoder", "applicable_decoder", "build_decoder"]


class Decoder(Protocol):
    """One token for each of B streams, with the weights that the model had at the time; static predictor only.

    >>> import torch
    >>> from ematrace.spen import SpenConfig, SpenForCausalLM
    >>> model = SpenForCausalLM(SpenConfig(vocab_size=32, d_model=16, d_ff=32, n_layers=2, k=4))
    >>> decoder = build_decoder(model)
    >>> state = torch.zeros(2, 3, 1, 16)  # blocks, traces, streams, channels
    >>> logits = decoder.step(torch.tensor([3]), state)
    >>> torch.allclose(logits, model(torch.tensor([[3]])).logits[:, -1], atol=1e-5)
    True
    """

    n_streams: int | None
    """The number of streams it was built for, or None for any."""

    def step(self, ids: Tensor, state: Tensor) -> Tensor:
        """ids [B] int64 and state [n_layers, A, B, D] float32, which is updated in place, to logits [B, vocabulary].

        The logits are float32 and hold until the next call.
        """


def build_decoder(model: SpenForCausalLM, n_streams: int = 1, dtype: torch.dtype | None = None) -> Decoder:
    """The decoder of the device that the model is on; ValueError where there is none.

    `dtype` is that of its weights: by default float32 on a CPU, so that its tokens are the model's, and bfloat16 on a
    GPU, where it is the faster by as much as the weights are smaller.

    >>> import torch
    >>> from ematrace.spen import SpenConfig, SpenForCausalLM, SpenStream
    >>> model = SpenForCausalLM(SpenConfig(vocab_size=32, d_model=16, d_ff=32, n_layers=2, k=4))
    >>> stream = SpenStream(model, decoder=build_decoder(model))
    >>> stream.step(3).shape
    torch.Size([1, 32])
    """
    if model.device.type == "cuda":
        from ematrace.spen.decode.gpu import GpuDecoder

        return GpuDecoder(model, n_streams) if dtype is None else GpuDecoder(model, n_streams, dtype)
    if model.device.type == "cpu":
        from ematrace.spen.decode.cpu import CpuDecoder

        return CpuDecoder(model) if dtype is None else CpuDecoder(model, dtype)
    raise ValueError(f"there are decoders for cpu and cuda; the model is on {model.device.type}")


def applicable_decoder(model: SpenForCausalLM, n_streams: int = 1) -> Decoder | None:
    """The decoder that computes what the model does, but for rounding, or None where the model has to run itself.

    That is with an attention predictor, replaced or hooked layers, kernels switched off, in float64, with many streams
    on a CPU, or on a device for which there is no decoder.

    >>> from ematrace.spen import SpenConfig, SpenForCausalLM
    >>> config = SpenConfig(vocab_size=32, d_model=16, d_ff=32, n_layers=2, n_heads=2, k=4, predictor="softmax")
    >>> applicable_decoder(SpenForCausalLM(config)) is None  # an attention predictor
    True
    """
    where = model.device.type
    kernels_on = {"cpu": cpu_kernels_are_on, "cuda": gpu_kernels_are_on}.get(where)
    if kernels_on is None or not kernels_on() or (where == "cpu" and n_streams > CPU_STREAMS):
        return None
    if model.dtype == torch.float64 or obstacle_to_decoding(model) is not None:
        return None
    return build_decoder(model, n_streams)
