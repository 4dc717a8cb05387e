"""The trace operator: the loop, matmuls over chunks, and the kernels."""

from __future__ import annotations

from typing import Any

from defects.planting import defect, with_arguments, with_result, wrap


@defect("traces.chunked", "test_traces_operator.py", "carrying_the_state and chunked")
def state_decays_one_step_too_little(chunked: Any) -> None:
    """The state given enters the first step without decay."""
    wrap(
        chunked,
        "ema_chunked",
        lambda original: (
            lambda x, rates, state, cu: original(
                x, rates, None if state is None else state / (1 - rates).unsqueeze(1), cu
            )
        ),
    )


@defect("traces.chunked", "test_traces_operator.py", "three_levels")
def packed_sequences_leak(chunked: Any) -> None:
    """A packed sequence sees the one before it."""
    with_result(chunked, "segment_of", lambda segment: segment * 0)


@defect("traces.chunked", "test_traces_operator.py", "not_finite_reaches and chunked")
def nan_forgotten(chunked: Any) -> None:
    """A step that is not finite is taken for 0."""
    with_result(chunked, "_undefined", lambda undefined: undefined.nan_to_num(0.0))


@defect("traces.module", "test_traces_module.py", "as_if")
def padding_moves_the_state(module: Any) -> None:
    """The mask is not looked at."""
    with_arguments(module.EMATraces, "forward", mask=lambda mask: None if mask is None else mask | True)


@defect("traces.numba_scan", "test_traces_operator.py", "gradcheck and False-False-numba")
def gradient_of_the_last_state_dropped(numba_scan: Any) -> None:
    """Nothing flows back from the state that a call returns."""
    with_arguments(numba_scan, "backward", G=lambda G: G.__imul__(0))


@defect("traces.triton_kernels", "test_kernels_edges.py", "error_does_not_grow")
def rounding_error_not_carried_on(triton_kernels: Any) -> None:
    """The state is summed without its compensation: the error grows with the number of tiles."""
    with_result(triton_kernels, "_carried", lambda found: (found[0], found[1] * 0.0))
