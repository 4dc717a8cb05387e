"""The trace operator."""

from __future__ import annotations

from defects.defect import Defect

LOOP, CHUNKED, OPERATOR = "traces/reference.py", "traces/chunked.py", "traces/operator.py"
TRACES_MODULE = "traces/module.py"
T_OPERATOR, T_TRACES = "test_traces_operator.py", "test_traces_module.py"

DEFECTS = (
    Defect("loop: the rate weighs the past", LOOP, T_OPERATOR, "whole_chunks",
           "torch.lerp(h, x_t.expand_as(h), a)",
           "torch.lerp(x_t.expand_as(h), h, a)"),
    Defect("chunked: state decays one step too little", CHUNKED, T_OPERATOR, "whole_chunks",
           "steps_T, state = time_T + 1, state.unsqueeze(2)",
           "steps_T, state = time_T, state.unsqueeze(2)"),
    Defect("chunked: packed sequences leak within a chunk", CHUNKED, T_OPERATOR, "three_levels",
           "weights = weights * (segment_KC.unsqueeze(-1) == segment_KC.unsqueeze(-2))",
           "pass"),
    Defect("chunked: packed sequences leak between chunks", CHUNKED, T_OPERATOR, "three_levels",
           "enters = enters * (segment_KC[1:] == before_K.unsqueeze(1))[:, :, None, None]",
           "pass"),
    Defect("chunked: empty sequence takes its neighbour's state", CHUNKED, T_OPERATOR, "closed_form",
           "cu_seqlens[1:] <= cu_seqlens[:-1]",
           "cu_seqlens[1:] < cu_seqlens[:-1]"),
    Defect("chunked: powers in float32", CHUNKED, T_OPERATOR, "slow_trace",
           "base_AG.unsqueeze(-1) ** exponents_T.to(base_AG.dtype)",
           "base_AG.float().unsqueeze(-1) ** exponents_T.float()"),
    Defect("chunked: carry never enters", CHUNKED, T_OPERATOR, "whole_chunks",
           "enters, carry)], dim=2)",
           "enters * 0, carry)], dim=2)"),
    Defect("chunked: TF32 allowed", CHUNKED, T_OPERATOR, "fewer_bits",
           'torch.get_float32_matmul_precision() == "highest"',
           "True"),
    Defect("autocast reaches the traces", OPERATOR, T_OPERATOR, "autocast",
           "torch.autocast(x.device.type, enabled=False)",
           "nullcontext()"),
    Defect("state in the dtype of x", OPERATOR, T_OPERATOR, "rounds_once",
           "return torch.float64 if x.dtype == torch.float64 else torch.float32",
           "return x.dtype"),
    Defect("rates not checked", OPERATOR, T_OPERATOR, "bad_arguments",
           "if not 0.0 <= a <= 1.0:",
           "if False:"),
    Defect("padding moves the state", TRACES_MODULE, T_TRACES, "as_if",
           "torch.where(mask_BT.unsqueeze(-1), x, 0)",
           "torch.nan_to_num(x, 1.0)"),
    Defect("padding counts as steps", TRACES_MODULE, T_TRACES, "as_if",
           "steps_BT = mask_BT.cumsum(1)",
           "steps_BT = torch.ones_like(mask_BT).cumsum(1)"),
    Defect("half-life in nats", TRACES_MODULE, T_TRACES, "half_lives",
           "-math.expm1(-math.log(2) / half_life)",
           "-math.expm1(-1 / half_life)"),
)  # fmt: skip
