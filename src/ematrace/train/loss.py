"""The loss of any causal language model, whose logits are never in memory as a whole."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ematrace.models import SkeletonForCausalLM
from ematrace.ops import linear_cross_entropy


class LanguageModelLoss(nn.Module):
    """ids [B, T+1] to (loss to minimise, cross-entropy in nats per token); one module, for DDP and FSDP to wrap.

    Models of this package compute their own loss. Of others, transformers' GPT-2 for one, the hidden states and the
    head's weight are used.
    """

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model: Any = model
        self.has_own_loss = self.packs_documents = isinstance(model, SkeletonForCausalLM)

    def forward(self, ids: Tensor, cu_seqlens: Tensor | None = None) -> tuple[Tensor, Tensor]:
        inputs, targets = ids[:, :-1], ids[:, 1:]
        if cu_seqlens is not None:  # all sequences end to end in one row, the boundaries in cu_seqlens
            inputs, targets = inputs.reshape(1, -1), targets.reshape(1, -1)
        if self.has_own_loss:
            output = self.model(
                input_ids=inputs, shift_labels=targets, cu_seqlens=cu_seqlens, use_cache=False, skip_logits=True
            )
            return output.loss, output.cross_entropy
        hidden = self.model.base_model(input_ids=inputs, use_cache=False).last_hidden_state
        head = self.model.get_output_embeddings().weight
        loss = linear_cross_entropy(hidden.reshape(-1, hidden.shape[-1]), head, targets.reshape(-1))
        return loss, loss


def refuse_packing(loss: LanguageModelLoss, name: str) -> None:
    if not loss.packs_documents:
        raise ValueError(f"reset_at_documents: {name} cannot start anew inside a sequence")
