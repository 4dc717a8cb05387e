"""Top-k of GELU, the load-balance loss and the cross-entropy."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import numpy as np

from defects.planting import defect, with_arguments, with_result, wrap


@defect("ops.topk", "test_ops_topk.py", "test_keeps_the_first_k")
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


@defect("ops.cross_entropy_cpu", "test_ops_cross_entropy_cpu.py", "rounded_to_nearest")
def bfloat16_cut_off(cross_entropy_cpu: Any) -> None:
    """The lower half of a float32 is dropped, so that every gradient is too small."""
    wrap(cross_entropy_cpu, "narrowed", lambda original: lambda x, shift: x.view("uint32") >> shift)


@defect("ops.cross_entropy_cpu", "test_ops_cross_entropy_cpu.py", "large_logits")
def largest_logit_not_taken_away(cross_entropy_cpu: Any) -> None:
    """Exponentials of the logits as they are."""
    with_result(cross_entropy_cpu, "number", lambda largest: largest * 0)


@defect("ops.cross_entropy_cpu", "test_ops_cross_entropy_cpu.py", "row_that_is_not_finite")
def nan_has_no_probability(cross_entropy_cpu: Any) -> None:
    """exp(NaN) is 0."""
    with_result(cross_entropy_cpu, "exp", lambda e: np.float32(np.nan_to_num(e)))


@defect("ops.cross_entropy_cpu", "test_ops_cross_entropy_cpu.py", "nearly_certain")
def small_probabilities_dropped(cross_entropy_cpu: Any) -> None:
    """What is less than 10^-4 of the largest counts for nothing."""
    with_result(cross_entropy_cpu, "exp", lambda e: np.float32(0) if e < 1e-4 else e)


@defect("ops.cross_entropy_cpu", "test_ops_cross_entropy_cpu.py", "share_scratch")
def scratch_of_the_softmax_shared_by_all_threads(cross_entropy_cpu: Any) -> None:
    """A thread overwrites the exponentials of another one's row."""
    wrap(cross_entropy_cpu, "split", _with_one_array)


@defect("ops.topk_cpu", "test_ops_topk_cpu.py", "share_scratch")
def scratch_of_top_k_shared_by_all_threads(topk_cpu: Any) -> None:
    """A thread overwrites the ranks of another one's row."""
    wrap(topk_cpu, "split", _with_one_array)


@defect("ops.cross_entropy_cpu", "test_ops_cross_entropy_cpu.py", "logits_stay")
def logits_always_overwritten(cross_entropy_cpu: Any) -> None:
    """The gradient takes the place of logits that are still of use."""
    with_arguments(cross_entropy_cpu, "softmax_rows", needs_gradient=lambda needs: True)


def _with_one_array(original: Any) -> Any:
    """The first array that a thread makes stands for those of all others."""

    def split(*args: Any) -> None:
        made: dict[Any, Any] = {}
        empty = np.empty
        with patch.object(np, "empty", lambda *shape: made.setdefault(shape, empty(*shape))):
            original(*args)

    return split
