"""Operators that a language model needs and that no library offers in this form; they know nothing of models."""

from ematrace.ops.cross_entropy import linear_cross_entropy
from ematrace.ops.load_balance import gelu_topk_balanced, load_balance_loss
from ematrace.ops.topk import gelu_topk, topk_mask

__all__ = ["gelu_topk", "gelu_topk_balanced", "linear_cross_entropy", "load_balance_loss", "topk_mask"]
