"""AdamW with decay on matrices only."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ematrace.train.config import TrainConfig


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Matrices and embeddings decay; norms and biases, which have one dimension, do not. Tied weights count once."""
    trained = [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in trained if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for p in trained if p.dim() < 2], "weight_decay": 0.0},
    ]


def build_optimiser(model: nn.Module, config: TrainConfig, device: torch.device) -> torch.optim.AdamW:
    groups = [group for group in parameter_groups(model, config.weight_decay) if group["params"]]
    # The learning rate is set before each update.
    return torch.optim.AdamW(groups, lr=0.0, betas=config.betas, eps=1e-8, fused=device.type == "cuda")
