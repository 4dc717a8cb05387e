"""The trace operator: the loop, matmuls over chunks, and the kernels."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np

from defects.planting import defect, with_arguments, with_result, wrap


@defect("traces.reference", "test_traces_operator.py", "closed_form and reference")
def rate_weighs_the_past(reference: Any) -> None:
    """h = a h + (1 - a) x."""
    with_arguments(reference, "ema_reference", rates_AG=lambda a: 1 - a)


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


@defect("traces.chunked", "test_traces_operator.py", "slow_trace")
def powers_in_float32(chunked: Any) -> None:
    """1 - a is rounded before its powers are taken: slow traces drift."""
    with_arguments(chunked, "powers", base_AG=lambda base: base.float().to(base.dtype))


@defect("traces.operator", "test_traces_operator.py", "autocast")
def autocast_reaches_the_traces(operator: Any) -> None:
    """Sums over time are rounded to bfloat16 under autocast."""
    with_result(operator, "no_autocast", lambda context: nullcontext())


@defect("traces.module", "test_traces_module.py", "as_if")
def padding_moves_the_state(module: Any) -> None:
    """The mask is not looked at."""
    with_arguments(module.EMATraces, "forward", mask=lambda mask: None if mask is None else mask | True)


@defect("traces.module", "test_traces_module.py", "half_lives")
def half_life_in_nats(module: Any) -> None:
    """A trace falls to 1/e, not to a half, in its half-life."""
    with_arguments(
        module.EMATraces, "from_half_life", half_lives=lambda h: (np.asarray(h, np.float64) * np.log(2)).tolist()
    )


@defect("traces.numba_scan", "test_traces_operator.py", "gradcheck and False-False-numba")
def gradient_of_the_last_state_dropped(numba_scan: Any) -> None:
    """Nothing flows back from the state that a call returns."""
    with_arguments(numba_scan, "backward", G=lambda G: G.__imul__(0))


@defect("traces.triton_scan", "test_kernels_edges.py", "traces_at_the_borders and 16-64-False")
def powers_of_a_tile_in_reverse(triton_scan: Any) -> None:
    """What came before a tile decays least at its end."""
    with_result(triton_scan, "_powers", lambda found: (found[0], tuple(row[::-1] for row in found[1]), found[2]))


@defect("traces.triton_scan", "test_kernels_edges.py", "error_does_not_grow")
def rounding_error_not_carried_on(triton_scan: Any) -> None:
    """The state is summed without its compensation: the error grows with the number of tiles."""
    with_result(triton_scan, "_carried", lambda found: (found[0], found[1] * 0.0))
