"""The loss of any causal language model, without its logits ever standing in memory as a whole."""

from __future__ import annotations

import inspect
from typing import Any

from torch import Tensor, nn

from ematrace.ops import linear_cross_entropy


class LanguageModelLoss(nn.Module):
    """ids [B, T+1] to (loss to descend, cross-entropy in nats a token); one module, for DDP and FSDP to wrap."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model: Any = model
        accepts = inspect.signature(model.forward).parameters
        self.has_own_loss = "skip_logits" in accepts  # SPEN's, to which targets go as shift_labels
        self.packs_documents = "cu_seqlens" in accepts

    def forward(self, ids: Tensor, cu_seqlens: Tensor | None = None) -> tuple[Tensor, Tensor]:
        inputs, targets = ids[:, :-1], ids[:, 1:]
        if cu_seqlens is not None:  # all sequences end to end in one row, the boundaries in cu_seqlens
            inputs, targets = inputs.reshape(1, -1), targets.reshape(1, -1)
        if self.has_own_loss:
            packs = {} if cu_seqlens is None else {"cu_seqlens": cu_seqlens}
            output = self.model(input_ids=inputs, shift_labels=targets, use_cache=False, skip_logits=True, **packs)
            return output.loss, output.cross_entropy
        hidden = self.model.base_model(input_ids=inputs, use_cache=False).last_hidden_state
        head = self.model.get_output_embeddings().weight
        loss = linear_cross_entropy(hidden.reshape(-1, hidden.shape[-1]), head, targets.reshape(-1))
        return loss, loss


def refuse_packing(loss: LanguageModelLoss, name: str) -> None:
    if not loss.packs_documents:
        raise ValueError(
            f"reset_at_documents: {name} cannot start anew inside a sequence (no cu_seqlens in its forward)"
        )
