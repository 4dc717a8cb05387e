"""The learning rate as a function of the update's number alone: there is nothing to save or to restore."""

from __future__ import annotations

import math


def learning_rate(n: int, *, steps: int, lr: float, final_lr: float, warmup: int) -> float:
    """Rate of update n = 1 ... steps: a line up to `lr` at n = warmup, a half cosine down to `final_lr` at n = steps.

    >>> [learning_rate(n, steps=4, lr=1.0, final_lr=0.0, warmup=2) for n in (1, 2, 4)]
    [0.5, 1.0, 0.0]
    """
    if n <= warmup:
        return lr * n / warmup
    progress = min(1.0, (n - warmup) / (steps - warmup))
    return final_lr + (lr - final_lr) * 0.5 * (1.0 + math.cos(math.pi * progress))
