"""The simplest context there is: a sum of everything so far."""

import torch
import torch.nn.functional as F
from torch import nn

from ematrace.mixers import Mixer


class RunningSum(Mixer):
    """s_t = s_{t-1} + x_t and y_t = W s_t / |s_t|. The state is s, [B, D]."""

    def __init__(self, d_model):
        super().__init__(d_model)
        self.W = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x, state=None, *, mask=None, cu_seqlens=None):
        self.check_call(x, state, mask, cu_seqlens)
        if mask is not None:  # padding adds nothing
            x = x.masked_fill(~mask.unsqueeze(-1), 0)
        total = x.to(torch.promote_types(x.dtype, torch.float32)).cumsum(1)
        if cu_seqlens is None:
            s = total if state is None else total + state.unsqueeze(1)
            last = s[:, -1].clone()  # a slice would keep all of s in memory
        else:  # N sequences end to end: take away what was summed before each began
            before = F.pad(total[0], (0, 0, 1, 0))
            start, end = cu_seqlens[:-1], cu_seqlens[1:]
            offset = (0 if state is None else state) - before[start]
            s = total + offset.repeat_interleave(end - start, 0)
            last = offset + before[end]
        return self.W(F.normalize(s, dim=-1).to(x.dtype)), last

    def state_size(self, seq_len):
        return self.d_model

    def flops(self, seq_len):
        return 2.0 * self.d_model**2
