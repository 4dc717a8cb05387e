"""Top-k of GELU, the load-balance loss and the cross-entropy."""

from __future__ import annotations

from typing import Any

from defects.planting import defect, replaced, with_arguments, with_result, wrap


@defect("ops.topk", "test_ops_topk.py", "first_k_of_a_stable_sort and float64")
def one_unit_too_many(topk: Any) -> None:
    """k + 1 units are kept."""
    wrap(topk, "topk_mask", lambda original: lambda z, k: original(z, min(k + 1, z.shape[-1])))


@defect("ops.topk", "test_ops_topk.py", "equal_values")
def ties_to_the_highest_index(topk: Any) -> None:
    """Of equal units the last are kept."""
    wrap(topk, "topk_mask", lambda original: lambda z, k: original(z.flip(-1), k).flip(-1))


@defect("ops.topk", "test_ops_topk.py", "straight_through_gradient")
def straight_through_gradient_masked(topk: Any) -> None:
    """Units that are not kept learn nothing."""
    with_arguments(topk, "gelu_topk", grad=lambda grad: "masked")


@defect("ops.topk", "test_ops_topk.py", "masked_gradient")
def masked_gradient_reaches_all(topk: Any) -> None:
    """The gradient passes the selection as if it were not there, also where it was asked not to."""
    with_arguments(topk, "gelu_topk", grad=lambda grad: "ste")


@defect("ops.topk_cpu", "test_ops_topk_cpu.py", "keeps_what")
def no_tie_is_kept(topk_cpu: Any) -> None:
    """The CPU kernel leaves out all units at the threshold."""
    with_result(topk_cpu, "cut", lambda found: (found[0], 0))


@defect("ops.topk_triton", "test_kernels_edges.py", "top_k_at_the_borders")
def one_tie_too_few(topk_triton: Any) -> None:
    """The GPU kernel keeps k - 1 where units tie."""
    with_arguments(topk_triton, "_drop_late_ties", room=lambda room: room - 1)


@defect("ops.load_balance", "test_ops_load_balance.py", "padding")
def padding_counts_as_load(load_balance: Any) -> None:
    """Rows of padding enter the mean."""
    with_arguments(load_balance, "_weights", mask=lambda mask: None)


@defect("ops.load_balance", "test_ops_load_balance.py", "balanced_top_k_is")
def balance_ignores_its_weight(load_balance: Any) -> None:
    """The gradient of the loss is the same whatever it is multiplied with."""
    with_arguments(load_balance._BalancedTopk, "backward", grad_loss=lambda grad: grad * 0 + 1)


@defect("ops.cross_entropy", "test_ops_cross_entropy.py", "equals_torch and mean")
def ignored_targets_in_the_mean(cross_entropy: Any) -> None:
    """The sum over counted targets is divided by the number of all."""

    def broken(original: Any) -> Any:
        def loss(hidden: Any, weight: Any, targets: Any, ignore_index: int = -100, reduction: str = "mean") -> Any:
            total = original(hidden, weight, targets, ignore_index, "sum")
            return total if reduction == "sum" else total / max(1, targets.numel())

        return loss

    wrap(cross_entropy, "linear_cross_entropy", broken)


@defect("ops.cross_entropy", "test_ops_cross_entropy.py", "equals_torch")
def gradient_of_the_last_slice_only(cross_entropy: Any) -> None:
    """The gradient of the head is not summed over slices of rows."""
    replaced(cross_entropy, "_add_product", lambda total, a, b: total.copy_(a.to(total.dtype) @ b.to(total.dtype)))


@defect("ops.cross_entropy_triton", "test_ops_cross_entropy.py", "kernel_equals")
def padding_columns_count(cross_entropy_triton: Any) -> None:
    """The columns that fill up the head take part in the softmax."""
    wrap(
        cross_entropy_triton,
        "softmax_loss",
        lambda original: lambda logits, targets, vocabulary, *rest: original(logits, targets, logits.shape[1], *rest),
    )
