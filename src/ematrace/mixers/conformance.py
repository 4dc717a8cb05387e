"""Whether a mixer keeps the promises of `Mixer`: checks for any class, yours too.

>>> all(result.passed for result in check_mixer("none"))
True

Comparisons are made in float64 with random parameters, so that a difference is a mistake and no rounding, and what is
initialised with zeros takes part. States are opaque: two are compared by what the mixer returns when it continues.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import torch
from safetensors.torch import load, save
from torch import Tensor
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from ematrace.mixers._registry import build_mixer, check_class
from ematrace.mixers.base import Mixer, State, flatten_state, map_state, state_tensors, unflatten_state

LENGTH = 70  # more than one chunk of every mixer here
EXACT = 1e-9  # in float64, of the largest number compared
SINGLE = 2e-4  # float32 against float64


class CheckResult(NamedTuple):
    name: str
    passed: bool
    message: str
    """Empty when passed, else one line: what differs, and what to do."""


class CheckFailed(Exception):
    """What a check found, and what to do about it."""


@dataclass
class Subject:
    """A mixer class with its options, and inputs for it."""

    make: Callable[..., Mixer]
    d_model: int = 16
    options: dict[str, Any] = field(default_factory=dict)
    device: str = "cpu"

    def mixer(self, dtype: torch.dtype = torch.float64) -> Mixer:
        """The same one each time but for its dtype."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            mixer = self.make(self.d_model, **self.options).double()
            with torch.no_grad():
                for p in mixer.parameters():
                    p.add_(0.1 * torch.randn_like(p))
        return mixer.to(self.device, dtype)

    def input(self, *shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(*shape, self.d_model, generator=generator, dtype=torch.float64).to(self.device, dtype)


def check_mixer(
    mixer: type[Mixer] | str, *, d_model: int = 16, device: str = "cpu", **options: Any
) -> list[CheckResult]:
    """Run all checks on a class or a name, as `build_mixer` takes it, built with these options."""
    subject = subject_of(mixer, d_model, device, options)
    return [run_check(name, subject) for name in CHECKS]


def subject_of(mixer: type[Mixer] | str, d_model: int, device: str, options: dict[str, Any]) -> Subject:
    if isinstance(mixer, str):
        name = mixer
        return Subject(lambda d, **o: build_mixer(name, d, **o), d_model, options, device)
    check_class(mixer.__name__, mixer)
    return Subject(mixer, d_model, options, device)


def run_check(name: str, subject: Subject) -> CheckResult:
    """One check; an error raised inside is a failure too."""
    try:
        with torch.no_grad():
            CHECKS[name](subject)
    except CheckFailed as failure:
        return CheckResult(name, False, _one_line(failure))
    except Exception as error:
        return CheckResult(name, False, _one_line(f"{type(error).__name__}: {error}"))
    return CheckResult(name, True, "")


def interface(subject: Subject) -> None:
    """forward returns y in the shape of x and a state of tensors whose first dimension is the batch."""
    mixer, x = subject.mixer(), subject.input(3, 5)
    result = mixer(x)
    if not isinstance(result, tuple) or len(result) != 2:
        raise CheckFailed(f"forward returned {type(result).__name__}; return a pair (y, state)")
    y, state = result
    if y.shape != x.shape:
        raise CheckFailed(f"y is {list(y.shape)} for x {list(x.shape)}; return y in the shape of x")
    for tensor in flatten_state(state)[0].values():
        if tensor.ndim == 0 or tensor.shape[0] != 3:
            raise CheckFailed(f"state holds {list(tensor.shape)} for 3 rows; make the batch dimension 0 of each tensor")


def steps(subject: Subject) -> None:
    """One pass equals token after token."""
    _pieces(subject, [1] * LENGTH, "token by token")


def uneven_pieces(subject: Subject) -> None:
    """One pass equals pieces of any lengths."""
    _pieces(subject, [3, 1, 17, 2, LENGTH - 23], "in uneven pieces")


def _pieces(subject: Subject, lengths: Sequence[int], how: str) -> None:
    mixer, x = subject.mixer(), subject.input(2, LENGTH)
    whole, end = mixer(x)
    state, parts = None, []
    for piece in x.split(list(lengths), dim=1):
        y, state = mixer(piece, state)
        parts.append(y)
    hint = "check what the state holds and how a call starts from it"
    _agree(torch.cat(parts, 1), whole, f"y {how} differs from y in one pass", hint)
    more = subject.input(2, 4, seed=1)
    _agree(mixer(more, state)[0], mixer(more, end)[0], f"the state after going {how} differs", hint)


def packed(subject: Subject) -> None:
    """Packed sequences equal separate ones, the state of an empty one too."""
    _packed(subject, carried=False)


def packed_with_state(subject: Subject) -> None:
    """The same when each sequence continues an earlier call."""
    _packed(subject, carried=True)


def _packed(subject: Subject, carried: bool) -> None:
    mixer, lengths = subject.mixer(), (5, 1, 0, 60, 19, 0)
    x, N = subject.input(1, sum(lengths)), len(lengths)
    offsets = [0, *accumulate(lengths)]
    before = mixer(subject.input(N, 7, seed=1))[1] if carried else None
    y, state = mixer(x, before, cu_seqlens=torch.tensor(offsets, device=x.device))
    more = subject.input(N, 4, seed=2)
    continued, _ = mixer(more, state)
    for n, (start, end) in enumerate(pairwise(offsets)):
        own = _row(before, n)
        if end > start:
            alone, own = mixer(x[:, start:end], own)
            hint = "nothing may pass from one sequence to the next, and each starts from its own state"
            _agree(y[:, start:end], alone, f"packed sequence {n} differs from the same alone", hint)
        what = "state of the empty sequence" if end == start else "state after packed sequence"
        hint = "return the state of each sequence at its end, or the one given if it is empty"
        _agree(continued[n : n + 1], mixer(more[n : n + 1], own)[0], f"{what} {n} differs", hint)


def padded(subject: Subject) -> None:
    """Left-padded rows equal the same rows alone."""
    _padded(subject, carried=False)


def padded_with_state(subject: Subject) -> None:
    """The same when each row continues an earlier call."""
    _padded(subject, carried=True)


def _padded(subject: Subject, carried: bool) -> None:
    mixer, padding = subject.mixer(), (0, 3, LENGTH - 1, LENGTH)
    B = len(padding)
    x = subject.input(B, LENGTH)
    mask = torch.arange(LENGTH, device=x.device) >= torch.tensor(padding, device=x.device).unsqueeze(1)
    before = mixer(subject.input(B, 7, seed=1))[1] if carried else None
    y, state = mixer(x, before, mask=mask)
    if not y.isfinite().all():
        raise CheckFailed("y is not finite at padding, which would spoil gradients; return any finite number there")
    more = subject.input(B, 4, seed=2)
    continued, _ = mixer(more, state)
    for b, start in enumerate(padding):
        own = _row(before, b)
        if start < LENGTH:
            alone, own = mixer(x[b : b + 1, start:], own)
            _agree(y[b : b + 1, start:], alone, f"a row behind {start} steps of padding differs", "leave padding out")
        hint = "padding must leave the state as it was"
        _agree(
            continued[b : b + 1], mixer(more[b : b + 1], own)[0], f"state of a row with padding {start} differs", hint
        )


def causal(subject: Subject) -> None:
    """A change at step t changes nothing before t."""
    mixer, x = subject.mixer(), subject.input(1, LENGTH)
    y, _ = mixer(x)
    for t in (1, LENGTH // 2, LENGTH - 1):
        changed = x.clone()
        changed[:, t:] = subject.input(1, LENGTH - t, seed=1)
        hint = "y_t may depend on x_0 ... x_t only"
        _agree(mixer(changed)[0][:, :t], y[:, :t], f"a change of x from step {t} on changes y before", hint)


def rows_independent(subject: Subject) -> None:
    """Rows of a batch do not see each other, and states follow their rows when these are reordered."""
    mixer, x, more = subject.mixer(), subject.input(3, LENGTH), subject.input(3, 4, seed=1)
    y, state = mixer(x)
    continued, _ = mixer(more, state)
    for b in range(3):
        alone, own = mixer(x[b : b + 1])
        hint = "no sums or norms over the batch"
        _agree(y[b : b + 1], alone, f"row {b} of a batch differs from the same row alone", hint)
        _agree(continued[b : b + 1], mixer(more[b : b + 1], own)[0], f"row {b} of a state differs", hint)
    order = torch.tensor([2, 0, 0], device=x.device)
    reordered, _ = mixer(more[order], map_state(lambda t: t.index_select(0, order), state))
    _agree(reordered, continued[order], "reordered rows of the state differ", "keep the batch in dimension 0")


def inputs_untouched(subject: Subject) -> None:
    """x and the given state are not changed in place: beams and streams use them again."""
    mixer, x = subject.mixer(), subject.input(2, 6)
    _, state = mixer(subject.input(2, 5, seed=1))
    given, kept = state_tensors(state), [t.clone() for t in state_tensors(state)]
    copy_of_x = x.clone()
    mixer(x, state)
    same = all(torch.equal(t, k) for t, k in zip(given, kept, strict=True))
    if not (same and torch.equal(x, copy_of_x)):
        raise CheckFailed(f"forward changed {'x' if same else 'the state'} in place; make a new tensor instead")


@torch.enable_grad()
def gradients(subject: Subject) -> None:
    """Every parameter has a finite gradient."""
    mixer, x = subject.mixer(torch.float32), subject.input(2, LENGTH, dtype=torch.float32)
    y, _ = mixer(x)
    if not y.requires_grad and any(True for _ in mixer.parameters()):
        raise CheckFailed("y has no gradient; do not detach it or compute it under no_grad")
    if y.requires_grad:
        y.backward(subject.input(2, LENGTH, seed=1, dtype=torch.float32))
    for name, p in mixer.named_parameters():
        if p.grad is None:
            raise CheckFailed(f"parameter {name} has no gradient; use it in forward, without detach, or remove it")
        if not p.grad.isfinite().all():
            raise CheckFailed(f"the gradient of parameter {name} is not finite; look for 0/0, log 0 and overflow")


@torch.enable_grad()
def gradcheck(subject: Subject) -> None:
    """Gradients of x and parameters, also through a carried state, equal finite differences.

    In one random direction for each tensor: two passes each instead of two for each number in it.
    """
    mixer, more, weights = subject.mixer(), subject.input(2, 3, seed=1), subject.input(2, LENGTH + 3, seed=2)
    inputs = {"x": subject.input(2, LENGTH)} | {name: p.detach() for name, p in mixer.named_parameters()}
    start = torch.zeros((), dtype=torch.float64, device=subject.device, requires_grad=True)
    for seed, (name, value) in enumerate(inputs.items()):
        noise = torch.randn(value.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        direction = (noise / noise.norm()).to(subject.device)

        def along(t: Tensor, name: str = name, direction: Tensor = direction) -> Tensor:
            values = inputs | {name: inputs[name] + t * direction}
            x = values.pop("x")
            y, state = functional_call(mixer, values, (x,))
            continued, _ = functional_call(mixer, values, (more, state))
            return (weights * torch.cat([y, continued], 1)).sum()

        if not torch.autograd.gradcheck(along, start, atol=1e-6, rtol=1e-5, raise_exception=False):
            hint = "detach nothing, the state neither, and compute in float64 for x in float64"
            raise CheckFailed(f"the gradient of {name} differs from finite differences; {hint}")


def float32(subject: Subject) -> None:
    """float32 agrees with float64."""
    x, more = subject.input(2, LENGTH), subject.input(2, 4, seed=1)
    results = []
    for dtype in (torch.float64, torch.float32):
        mixer = subject.mixer(dtype)
        y, state = mixer(x.to(dtype))
        results.append(torch.cat([y, mixer(more.to(dtype), state)[0]], 1).double())
    hint = "look for cancellation and products that underflow"
    _agree(results[1], results[0], "y in float32 differs from y in float64", hint, SINGLE)


def dtypes(subject: Subject) -> None:
    """y has the dtype of x; what sums up the past is at least float32, under autocast too."""
    grows = subject.mixer().state_size(2 * LENGTH) > subject.mixer().state_size(LENGTH)
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        mixer, x = subject.mixer(dtype), subject.input(2, 6, dtype=dtype)
        y, state = mixer(x)
        y, state = mixer(x, state)
        if y.dtype != dtype:
            raise CheckFailed(f"y is {y.dtype} for x in {dtype}; return y in the dtype of x")
        _check_state_dtype(state, dtype, grows)
    mixer, x = subject.mixer(torch.float32), subject.input(2, 6, dtype=torch.float32)
    with torch.autocast(torch.device(subject.device).type, dtype=torch.bfloat16):
        _check_state_dtype(mixer(x, mixer(x)[1])[1], torch.float32, grows)


def _check_state_dtype(state: State, dtype: torch.dtype, grows: bool) -> None:
    least = 64 if dtype == torch.float64 else 0 if grows else 32  # a cache that grows holds copies, and sums nothing
    for t in state_tensors(state):
        if t.is_floating_point() and torch.finfo(t.dtype).bits < least:
            raise CheckFailed(f"the state is {t.dtype} for x in {dtype}; sum up in float{least} with autocast disabled")


def saved_state(subject: Subject) -> None:
    """A state saved with safetensors and read back continues bit for bit."""
    mixer, x, more = subject.mixer(torch.float32), subject.input(2, LENGTH), subject.input(2, 6, seed=1)
    _, state = mixer(x.float())
    expected, _ = mixer(more.float(), state)
    fresh = subject.mixer(torch.float32)  # nothing kept in the mixer itself helps
    tensors, form = flatten_state(state)
    read = load(save({name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}))
    restored = unflatten_state({name: t.to(x.device) for name, t in read.items()}, form)
    if not torch.equal(fresh(more.float(), restored)[0], expected):
        raise CheckFailed("a saved and restored state continues differently; keep all of it in contiguous tensors")


def state_size(subject: Subject) -> None:
    """state_size tells the numbers that the memory of a state holds."""
    mixer = subject.mixer(torch.float32)
    for T in (24, LENGTH):
        x = subject.input(2, T, dtype=torch.float32)
        state = None
        for x_t in x.split(1, dim=1):
            _, state = mixer(x_t, state)
        for how, end in (("one pass", mixer(x)[1]), ("single steps", state)):
            held, told = _numbers_held(end) / 2, mixer.state_size(T)
            if held != told:
                raise CheckFailed(
                    f"after {T} tokens in {how} the state holds {held:g} numbers per sequence, state_size says {told}; "
                    "correct state_size, or clone slices that keep a larger tensor alive"
                )


def flops(subject: Subject) -> None:
    """flops tells what torch counts."""
    mixer = subject.mixer(torch.float32)
    for T in (24, LENGTH, 2 * LENGTH):
        x = subject.input(2, T, dtype=torch.float32)
        # Fused attention on a CPU is not counted; written out it counts as the fused kernels of a GPU do.
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            mixer(x)
        counted, told = counter.get_total_flops() / x[..., 0].numel(), mixer.flops(T)
        if abs(counted - told) > 1e-6 * max(counted, 1.0):
            raise CheckFailed(
                f"FlopCounterMode counts {counted:g} per token over {T} tokens, flops says {told:g}; correct flops"
            )


CHECKS: dict[str, Callable[[Subject], None]] = {
    check.__name__: check
    for check in (
        interface,
        steps,
        uneven_pieces,
        packed,
        packed_with_state,
        padded,
        padded_with_state,
        causal,
        rows_independent,
        inputs_untouched,
        gradients,
        gradcheck,
        float32,
        dtypes,
        saved_state,
        state_size,
        flops,
    )
}


def _agree(got: Tensor, expected: Tensor, what: str, hint: str, tolerance: float = EXACT) -> None:
    if got.shape != expected.shape:
        raise CheckFailed(f"{what}: {list(got.shape)} instead of {list(expected.shape)}; {hint}")
    if got.numel() == 0:
        return
    difference, scale = (got - expected).abs().max().item(), expected.abs().max().item()
    if not difference <= tolerance * scale:  # also catches NaN
        raise CheckFailed(f"{what} by {difference:.1e} of {scale:.1e}; {hint}")


def _row(state: State, n: int) -> State:
    return map_state(lambda t: t[n : n + 1], state)


def _numbers_held(state: State) -> int:
    """Floating-point numbers in the memory behind a state's tensors, of which a slice shows only a part."""
    storages = {t.untyped_storage().data_ptr(): t for t in state_tensors(state) if t.is_floating_point()}
    return sum(t.untyped_storage().nbytes() // t.element_size() for t in storages.values())


def _one_line(text: object) -> str:
    return " ".join(str(text).split())
