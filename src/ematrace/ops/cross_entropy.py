"""Cross-entropy of a linear head without ever holding all logits.

The vocabulary makes the logits the largest tensor of a language model: 56 x 2048 tokens x 50,257 words are 11.5 GB in
bfloat16 and twice that in float32, and autograd would keep several. Here a slice of rows goes through the head at a
time; its loss and, when somebody will ask for it, its gradient are taken at once, so nothing is recomputed backward.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ematrace.kernels import cpu_kernels_are_on, gpu_kernels_are_on

LOGITS_PER_SLICE = 2**28
"""Logits held at a time: 512 MB in bfloat16. Smaller slices make the products of the head inefficient."""
LOGITS_IN_CACHE = 2**19
"""The same on a CPU: 2 MB in float32, which stay in its cache from one pass over them to the next."""
ROWS_OF_A_PRODUCT = 128
"""But no fewer rows than these, whatever the vocabulary: a product reads the whole head for however few there are."""


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    ignore_index: int = -100,
    reduction: Literal["mean", "sum"] = "mean",
) -> Tensor:
    """Cross-entropy of softmax(hidden @ weight.T) against targets, in nats: a float32 scalar (float64 for float64).

    hidden [..., D], weight [V, D], targets [...] with the same leading shape. Under autocast the products run in its
    dtype while the gradient of the weight is still summed in float32 (on a CPU, over slices of rows). With no target
    left after `ignore_index` the mean is 0, not NaN.

    >>> import torch
    >>> linear_cross_entropy(torch.zeros(1, 2), torch.ones(4, 2), torch.tensor([3]))  # ln 4
    tensor(1.3863)
    """
    if hidden.shape[:-1] != targets.shape:
        raise ValueError(f"hidden {tuple(hidden.shape)} and targets {tuple(targets.shape)} disagree")
    if weight.ndim != 2 or weight.shape[1] != hidden.shape[-1]:
        raise ValueError(f"hidden {tuple(hidden.shape)} and weight {tuple(weight.shape)} disagree")
    if reduction not in ("mean", "sum"):
        raise ValueError(f"reduction must be 'mean' or 'sum', got {reduction!r}")
    device = hidden.device.type
    if torch.is_autocast_enabled(device) and hidden.dtype != torch.float64:  # which autocast leaves alone
        hidden = hidden.to(torch.get_autocast_dtype(device))
    targets = targets.reshape(-1)
    needs_gradient = torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad)
    with torch.autocast(device, enabled=False):
        loss: Tensor = _loss_and_gradients(
            hidden.reshape(-1, hidden.shape[-1]), weight, targets, ignore_index, needs_gradient
        )[0]
        return loss if reduction == "sum" else loss / (targets != ignore_index).sum().clamp(min=1)


@torch.library.custom_op("ematrace::linear_cross_entropy", mutates_args=())
def _loss_and_gradients(
    hidden: Tensor, weight: Tensor, targets: Tensor, ignore_index: int, needs_gradient: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The summed loss and its gradients with respect to hidden and weight (empty when nobody needs them)."""
    exact = torch.float64 if hidden.dtype == torch.float64 else torch.float32
    vocabulary = weight.shape[0]
    # A head whose width is a multiple of 64 keeps the products on the fast path; the added columns are never read.
    head = F.pad(weight.to(hidden.dtype), (0, 0, 0, -vocabulary % 64)) if hidden.is_cuda else weight.to(hidden.dtype)
    rows = LOGITS_PER_SLICE // head.shape[0]
    if not hidden.is_cuda:
        rows = min(rows, max(LOGITS_IN_CACHE // head.shape[0], ROWS_OF_A_PRODUCT))
    rows = max(1, min(rows, len(hidden)))
    # A CPU takes as long to get fresh memory for a slice as to take its softmax.
    logits = hidden.new_empty(rows, head.shape[0])
    memory = None if hidden.is_cuda or _compiled_for_cpu(hidden) else torch.empty_like(logits, dtype=exact)
    loss = hidden.new_zeros((), dtype=exact)
    grad_hidden = torch.empty_like(hidden if needs_gradient else hidden[:0])
    grad_head = torch.zeros_like(head if needs_gradient else head[:0], dtype=exact)
    for start in range(0, len(hidden), rows):
        part = slice(start, start + rows)
        x, y = hidden[part], targets[part]
        z = torch.mm(x, head.T, out=logits[: len(x)])
        part_loss, grad_z = _softmax_loss(z, y, vocabulary, ignore_index, needs_gradient, memory)
        loss += part_loss
        if needs_gradient:
            torch.mm(grad_z, head, out=grad_hidden[part])
            _add_product(grad_head, grad_z.T, x)
    return loss, grad_hidden, grad_head[:vocabulary].to(weight.dtype, copy=True)


def _softmax_loss(
    logits: Tensor,
    targets: Tensor,
    vocabulary: int,
    ignore_index: int,
    needs_gradient: bool,
    memory: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Summed loss and its gradient softmax(logits) - onehot(target); rows with an ignored target are zero.

    The logits may be lost. Plain torch makes the gradient in `memory`, of their shape with as many rows or more.
    """
    if logits.is_cuda and logits.dtype != torch.float64 and gpu_kernels_are_on():
        from ematrace.ops.cross_entropy_triton import LARGEST, softmax_loss

        if logits.shape[1] <= LARGEST:
            return softmax_loss(logits, targets, vocabulary, ignore_index, needs_gradient)
    if _compiled_for_cpu(logits):
        from ematrace.ops.cross_entropy_cpu import softmax_loss

        return softmax_loss(logits, targets, vocabulary, ignore_index, needs_gradient)
    counted = targets != ignore_index
    target = torch.where(counted, targets, 0).unsqueeze(1)
    exact = torch.float64 if logits.dtype == torch.float64 else torch.float32
    out = None if memory is None else memory[: len(logits)]
    log_p = torch.log_softmax(logits[:, :vocabulary], -1, dtype=exact, out=out)
    loss = torch.where(counted, -log_p.gather(1, target).squeeze(1), 0.0).sum()
    if not needs_gradient:
        return loss, logits
    grad = log_p.exp_().scatter_add_(1, target, -torch.ones_like(target, dtype=exact))
    if logits.is_cuda or not counted.all():  # all of them is the rule, but a GPU would have to be waited for
        grad.masked_fill_(~counted.unsqueeze(1), 0.0)
    grad, padding = grad.to(logits.dtype), logits.shape[1] - vocabulary
    return loss, F.pad(grad, (0, padding)) if padding else grad


def _compiled_for_cpu(logits: Tensor) -> bool:
    return logits.is_cpu and logits.dtype != torch.float64 and cpu_kernels_are_on()


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a @ b, summed in total's dtype whatever that of a and b is (but see bfloat16 on a CPU)."""
    if a.dtype == total.dtype:
        total.addmm_(a, b)
    elif a.is_cuda:
        torch.addmm(total, a, b, out_dtype=total.dtype, out=total)
    elif a.dtype == torch.bfloat16:  # a CPU has no such product, and is four times slower in float32:
        total += torch.mm(a, b)  # the product of a slice is rounded, the sum over slices is not
    else:
        total.addmm_(a.to(total.dtype), b.to(total.dtype))


@_loss_and_gradients.register_fake
def _(
    hidden: Tensor, weight: Tensor, targets: Tensor, ignore_index: int, needs_gradient: bool
) -> tuple[Tensor, Tensor, Tensor]:
    exact = torch.float64 if hidden.dtype == torch.float64 else torch.float32
    empty = slice(None) if needs_gradient else slice(0)
    return hidden.new_empty((), dtype=exact), torch.empty_like(hidden[empty]), torch.empty_like(weight[empty])


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    ctx.save_for_backward(*output[1:])


def _backward(ctx: Any, grad: Tensor, *_: Tensor | None) -> tuple[Tensor | None, Tensor | None, None, None, None]:
    if torch.is_grad_enabled():  # create_graph=True: what is saved would pass for constants
        raise RuntimeError("linear_cross_entropy has no second derivative")
    grad_hidden, grad_weight = ctx.saved_tensors
    return (grad * grad_hidden).to(grad_hidden.dtype), (grad * grad_weight).to(grad_weight.dtype), None, None, None


_loss_and_gradients.register_autograd(_backward, setup_context=_setup_context)
