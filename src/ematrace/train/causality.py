"""Whether a model sees what it is to predict.

A mixer from outside the package may read later tokens by mistake, and the loss of such a model looks very good. Those
of the package are held to more than this by the conformance checks.
"""

from __future__ import annotations

from typing import Any

import torch

from ematrace.mixers import MIXERS

LENGTH = 16
CLOSE = 1e-4  # of the largest logit: rounding


def refuse_leaks(model: Any) -> None:
    """ValueError where the logits of a token change with a later one; a fresh model on a CPU, left in training mode."""
    mixer = getattr(model.config, "mixer", None)
    if mixer is None or mixer in MIXERS:
        return
    entries = model.config.vocab_size
    ids = torch.randint(entries, (1, LENGTH), generator=torch.Generator().manual_seed(0))
    changed = ids.clone()
    changed[0, -1] = (ids[0, -1] + 1) % entries
    model.eval()
    with torch.no_grad():
        before, after = (model(input_ids=of, use_cache=False).logits[0, :-1] for of in (ids, changed))
    model.train()
    if (before - after).abs().max() > CLOSE * before.abs().max():
        raise ValueError(
            f"mixer '{mixer}' reads later tokens: the logits of a token change with the one after it, so that the loss "
            f"would mean nothing; `ematrace check {mixer}` says more"
        )
