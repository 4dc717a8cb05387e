"""Steps: the graphed one, with a stand-in for the capture, goes through the same numbers as the plain one.

The stand-in runs the work that a graph would hold, on a CPU, with the fused AdamW that a GPU uses. What it cannot show,
that the kernels can be captured, is in test_train_cuda.py.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ematrace.train import NonFiniteLoss, TrainConfig, train
from ematrace.train import loop as training_loop
from ematrace.train import run as training_run
from ematrace.train.batches import MicroBatch, read_ahead
from ematrace.train.checkpoints import list_checkpoints
from ematrace.train.compile_check import refuse_miscompiled
from ematrace.train.distributed import World
from ematrace.train.optimiser import parameter_groups
from ematrace.train.step import AHEAD, Gradients, GraphedStep, PlainStep, _Slot, build_step, graph_obstacle
from train_support import GPT2, curve, digest, tiny_config, write_text

SHAPE = (2, 3, 5)  # micro-batches, sequences, tokens + 1
ALONE = World(0, 1, torch.device("cpu"))
BAD = 7  # a token whose loss is not a number


def warmed_up(work: Callable[[], None]) -> Callable[[], None]:
    """Stands in for `cuda_graph`: the runs that come before a capture, then the work itself at every replay."""
    work()
    work()
    return work


class Bigrams(nn.Module):
    """A small language model with dropout, so that the state of the random generator matters."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Embedding(8, 8)
        self.bias = nn.Parameter(torch.zeros(8))

    def forward(self, ids: Tensor, cu_seqlens: Tensor | None) -> tuple[Tensor, Tensor]:
        logits = nn.functional.dropout(self.rows(ids[:, :-1]), 0.2) + self.bias
        cross_entropy = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        return cross_entropy + torch.where(ids == BAD, torch.nan, 0.0).sum(), cross_entropy


def gradients(*, clip: float = 0.5) -> Gradients:
    torch.manual_seed(0)
    model = Bigrams()
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.0, weight_decay=0.1, fused=True)
    return Gradients(model, model, optimiser, clip, bfloat16=False, world=ALONE)


def batches(n: int, *, bad: int | None = None) -> list[list[MicroBatch]]:
    draw = torch.Generator().manual_seed(1)
    ids = torch.randint(BAD, (n, *SHAPE), generator=draw)
    if bad is not None:
        ids[bad, 1, 2, 0] = BAD
    return [[MicroBatch(micro, None) for micro in step] for step in ids]


def weights(of: Gradients) -> list[Tensor]:
    """Parameters and AdamW's state."""
    states = [of.optimiser.state[p] for p in of.model.parameters()]
    kept = [state[name] for state in states for name in ("step", "exp_avg", "exp_avg_sq")]
    return [t.detach().clone() for t in (*of.model.parameters(), *kept)]


def rates(n: int) -> list[float]:
    return [0.1 / (1 + i) for i in range(n)]


def plain(n: int) -> tuple[list[Any], list[Tensor]]:
    of = gradients()
    step, results = PlainStep(of), []
    for batch, lr in zip(batches(n), rates(n), strict=True):
        step.launch(batch, lr)
        results.append(step.finish(0))
    return results, weights(of)


@pytest.mark.parametrize("ahead", [0, 1, AHEAD])
def test_graphed_step_is_the_plain_step_to_the_bit(ahead: int) -> None:
    """However many are launched before the first is read, each result is that of its own step."""
    expected, expected_weights = plain(12)
    of = gradients()
    step = GraphedStep(of, SHAPE, warmed_up)
    results = []
    for i, (batch, lr) in enumerate(zip(batches(12), rates(12), strict=True)):
        step.launch(batch, lr)
        if i >= ahead:
            results.append(step.finish(0))
    results += [step.finish(0) for _ in range(ahead)]
    assert results == expected
    assert all(map(torch.equal, weights(of), expected_weights))
    assert len({result.losses[0] for result in results}) == 12


def test_preparing_a_graph_changes_nothing() -> None:
    """Warm-up runs leave weights, AdamW's state and the random generator as they were."""
    of = gradients()
    before, generator = [p.detach().clone() for p in of.model.parameters()], torch.get_rng_state()
    GraphedStep(of, SHAPE, warmed_up)
    assert all(map(torch.equal, of.model.parameters(), before))
    assert not any(t.any() for t in weights(of)[len(before) :])  # made, and zero
    assert torch.equal(torch.get_rng_state(), generator)
    assert all(p.grad is None for p in of.model.parameters())


@pytest.mark.parametrize("ahead", [0, 2, AHEAD])
def test_steps_queued_behind_a_failure_change_nothing(ahead: int) -> None:
    _, expected = plain(3)
    of = gradients()
    step = GraphedStep(of, SHAPE, warmed_up)
    results = []
    for i, (batch, lr) in enumerate(zip(batches(4 + ahead, bad=3), rates(4 + ahead), strict=True)):
        step.launch(batch, lr)
        if i >= ahead:
            results.append(step.finish(0))
    assert [result.not_finite() is None for result in results] == [True, True, True, False]
    name, value = results[-1].not_finite()
    assert name == "loss"
    assert np.isnan(value)
    assert all(map(torch.equal, weights(of), expected))  # step counts included


def test_after_draining_nothing_is_in_flight() -> None:
    """What was launched has run; the next result is that of the next launch."""
    expected, _ = plain(3)
    step = GraphedStep(gradients(), SHAPE, warmed_up)
    first, second, third = batches(3)
    step.launch(first, rates(3)[0])
    step.launch(second, rates(3)[1])
    step.drain()
    step.launch(third, rates(3)[2])
    assert step.finish(0) == expected[2]


def test_a_queued_step_is_timed_by_the_device_from_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU may read it late, or two at once; a step that follows a pause has none before it."""
    ends: dict[int, float] = {}
    monkeypatch.setattr(_Slot, "record", lambda slot: ends.update({id(slot): float(len(launched) ** 2)}))
    monkeypatch.setattr(_Slot, "seconds_since", lambda slot, earlier: ends[id(slot)] - ends[id(earlier)])
    step, launched, seconds = GraphedStep(gradients(), SHAPE, warmed_up), [], []
    for pause, batch in enumerate(batches(3 * (AHEAD + 2))):
        launched.append(batch)
        step.launch(batch, 0.1)
        if pause % (AHEAD + 2) > 1:
            seconds.append(step.finish(0).seconds)
        if pause % (AHEAD + 2) == AHEAD + 1:
            seconds += [step.finish(0).seconds for _ in range(2)]
    n = len(launched)
    expected = [None if (i - 1) % (AHEAD + 2) == 0 else i**2 - (i - 1) ** 2 for i in range(1, n + 1)]
    assert seconds == expected


def test_plain_step_leaves_the_weights_alone_when_the_loss_is_not_finite() -> None:
    of = gradients()
    before = [p.detach().clone() for p in of.model.parameters()]
    step = PlainStep(of)
    step.launch(batches(1, bad=0)[0], 0.1)
    assert step.finish(0).not_finite() is not None
    assert all(map(torch.equal, of.model.parameters(), before))


def test_clipped_gradient_is_the_mean_over_micro_batches() -> None:
    """AdamW's first average is (1 - beta1) g; g by hand from all sequences at once."""
    of = gradients(clip=0.01)
    model = Bigrams()
    model.load_state_dict(of.model.state_dict())
    torch.manual_seed(5)
    step = GraphedStep(of, SHAPE, warmed_up)
    step.launch(batches(1)[0], 0.1)
    result = step.finish(0)
    torch.manual_seed(5)
    losses = [model(micro.ids, None)[0] for micro in batches(1)[0]]
    (sum(losses) / len(losses)).backward()
    norm = torch.cat([p.grad.flatten() for p in model.parameters()]).norm()
    assert result.losses == pytest.approx([float(loss.detach()) for loss in losses])
    assert result.grad_norm == pytest.approx(float(norm))
    for ours, theirs in zip(of.model.parameters(), model.parameters(), strict=True):
        average = of.optimiser.state[ours]["exp_avg"]
        torch.testing.assert_close(average, 0.1 * theirs.grad * 0.01 / norm, rtol=1e-4, atol=1e-9)


def test_model_that_cannot_be_captured_falls_back_or_is_refused() -> None:
    def refuse(work: Callable[[], None]) -> Callable[[], None]:
        work()
        raise RuntimeError("called a synchronizing operation\nhere")

    of, told = gradients(), []
    build = partial(build_step, of, SHAPE, graphed=True, notify=told.append, capture=refuse)
    with pytest.raises(ValueError, match="cuda_graphs: the step cannot be captured: called a synchronizing") as caught:
        build(required=True)
    assert "\n" not in str(caught.value)
    of = gradients()
    step = build_step(of, SHAPE, graphed=True, required=False, notify=told.append, capture=refuse)
    assert isinstance(step, PlainStep)
    assert told == ["no CUDA graph, the step runs kernel by kernel: called a synchronizing operation"]
    expected, expected_weights = plain(2)
    gradients()  # the same state of the random generator
    results = []
    for batch, lr in zip(batches(2), rates(2), strict=True):
        step.launch(batch, lr)
        results.append(step.finish(0))
    assert results == expected
    assert all(map(torch.equal, weights(of), expected_weights))


def test_what_stands_in_the_way_of_a_graph() -> None:
    assert graph_obstacle(ALONE, packed=False) == "the device is cpu"
    gpu = torch.device("cuda", 0)
    assert graph_obstacle(World(0, 2, gpu), packed=False) == "there are 2 processes"
    assert "reset_at_documents" in str(graph_obstacle(World(0, 1, gpu), packed=True))
    assert graph_obstacle(World(0, 1, gpu), packed=False) is None


class Counted:
    """Batches whose position is the number of steps assembled, which fail at one of them."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.done, self.fails_at = 0, fails_at

    def micro_batches(self, step: int, share: range) -> Iterator[MicroBatch]:
        if step == self.fails_at:
            raise OSError(f"step {step}: no such file")
        yield from (MicroBatch(torch.tensor([[step, m]]), None) for m in share)
        self.done = step + 1

    def position(self) -> dict[str, Any]:
        return {"done": self.done}

    def restore(self, position: Any) -> None:
        self.done = position["done"]


def test_reading_ahead_keeps_the_order_and_the_position_of_each_step() -> None:
    source = Counted()
    read = list(read_ahead(source, range(3, 9), range(2)))
    rows = [(batch.position, [micro.ids.tolist() for micro in batch.micro_batches]) for batch in read]
    assert rows == [({"done": n + 1}, [[[n, 0]], [[n, 1]]]) for n in range(3, 9)]


def test_an_error_in_the_background_comes_at_its_own_step() -> None:
    ahead = read_ahead(Counted(fails_at=2), range(9), range(1))
    assert [next(ahead).position["done"], next(ahead).position["done"]] == [1, 2]
    with pytest.raises(OSError, match="step 2: no such file"):
        next(ahead)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text(tmp_path_factory.mktemp("text"))


@pytest.fixture
def fused(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The optimiser of a GPU."""
    monkeypatch.setenv("EMATRACE_CACHE", str(tmp_path_factory.getbasetemp() / "ematrace-cache"))

    def build(model: nn.Module, config: TrainConfig, device: torch.device) -> torch.optim.AdamW:
        groups = parameter_groups(model, config.weight_decay)
        return torch.optim.AdamW(groups, lr=0.0, betas=config.betas, eps=1e-8, fused=True)

    monkeypatch.setattr(training_loop, "build_optimiser", build)


@pytest.fixture
def graphs(fused: None, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Called, it lets the runs that follow replay their steps."""

    def turn_on() -> None:
        def build(of: Gradients, shape: tuple[int, int, int], **_: Any) -> GraphedStep:
            return GraphedStep(of, shape, warmed_up)

        monkeypatch.setattr(training_run, "build_step", build)

    return turn_on


class StopAt:
    """A display that raises SIGTERM when it is shown a step, and keeps the steps that it was shown."""

    def __init__(self, step: int | None = None) -> None:
        self.step, self.shown = step, list[int]()

    def on_start(self, total_steps: int) -> None: ...

    def on_step(self, metrics: Any) -> None:
        self.shown.append(metrics["step"])
        if metrics["step"] == self.step:
            signal.raise_signal(signal.SIGTERM)

    def on_event(self, text: str) -> None: ...
    def close(self) -> None: ...


OVERRIDES = (*GPT2, "resid_pdrop=0.3")


def test_a_run_of_replayed_steps_is_the_plain_run(text: Path, tmp_path: Path, graphs: Callable[[], None]) -> None:
    """Curve, validation, weights and the optimiser's averages, to the bit, dropout included."""
    config = tiny_config(text, tmp_path / "plain", overrides=OVERRIDES, validate_every=7)
    train(config)
    graphs()
    display = StopAt()
    replayed = replace(config, out=tmp_path / "graphed")
    train(replayed, display=display)
    assert digest(replayed.out) == digest(config.out)
    assert display.shown == list(range(1, 21))
    assert [p.name for p in list_checkpoints(replayed.out / "checkpoints")] == ["step-00000015", "step-00000020"]
    positions = [json.loads((p / "state.json").read_text())["data_position"] for p in _checkpoints(replayed)]
    assert positions == [{"sequences": 60}, {"sequences": 80}]


def _checkpoints(config: TrainConfig) -> Sequence[Path]:
    return list_checkpoints(config.out / "checkpoints")


def test_replayed_steps_stop_and_resume_to_the_same_run(text: Path, tmp_path: Path, graphs: Callable[[], None]) -> None:
    config = tiny_config(text, tmp_path / "plain", overrides=OVERRIDES, checkpoint_every=1000, validate_every=1000)
    train(config)
    graphs()
    stopped = replace(config, out=tmp_path / "stopped")
    display = StopAt(7)
    summary = train(stopped, display=display)
    # Those that were queued when the signal came are finished, and the last of them is saved.
    assert (summary.stopped, summary.step) == ("SIGTERM", 7 + AHEAD)
    assert display.shown == list(range(1, 8 + AHEAD))
    assert [p.name for p in _checkpoints(stopped)] == [f"step-{7 + AHEAD:08d}"]
    train(replace(stopped, resume="auto"))
    assert digest(stopped.out) == digest(config.out)


def test_a_replayed_run_stops_before_an_update_that_is_not_finite(
    text: Path, tmp_path: Path, graphs: Callable[[], None]
) -> None:
    graphs()
    # The first update throws the weights to 1e30, the second finds a loss that is not a number.
    config = tiny_config(text, tmp_path / "run", lr=1e30, warmup=0, checkpoint_every=1000, validate_every=1000)
    with pytest.raises(NonFiniteLoss, match=r"step 2: the .* is .*; stopped before the update, there is no checkpoint"):
        train(config)
    assert [step for (step,) in curve(config.out, "step")] == [1]


class Miscompiled(Bigrams):
    """The gradient of its bias alone is `factor` times as large where a compiler reads the code."""

    factor = 1.0

    def forward(self, ids: Tensor, cu_seqlens: Tensor | None) -> tuple[Tensor, Tensor]:
        bias = self.bias
        if torch.compiler.is_compiling():
            bias = bias.detach() + self.factor * (bias - bias.detach())  # the same loss
        logits = nn.functional.dropout(self.rows(ids[:, :-1]), 0.2, self.training) + bias
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        return loss, loss


def compiled(model: Any, **changes: Any) -> Gradients:
    model.compile(backend="eager")
    optimiser = torch.optim.AdamW(model.parameters())
    return replace(gradients(), loss=model, model=model, optimiser=optimiser, **changes)


@pytest.mark.parametrize("factor", [1.0, 5.0, 0.0, torch.nan])
def test_a_model_whose_gradient_changes_when_it_is_compiled_is_refused(factor: float) -> None:
    """With a clip that would hide the scale of the whole, and with dropout, which differs between the two."""
    model = Miscompiled()
    model.factor = factor
    of = compiled(model, clip=1e-3)
    before, drawn = [p.clone() for p in model.parameters()], torch.get_rng_state()
    if factor == 1.0:
        refuse_miscompiled(of, sequences=64, length=16, entries=8)
    else:
        with pytest.raises(ValueError, match=r"^compile: torch .* wrongly: the gradient of bias .*--compile False$"):
            refuse_miscompiled(of, sequences=64, length=16, entries=8)
    assert all(map(torch.equal, model.parameters(), before))
    assert torch.equal(torch.get_rng_state(), drawn)
    assert all(p.grad is None for p in model.parameters())


def test_weights_that_are_not_finite_are_not_the_compilers_fault() -> None:
    model = Miscompiled()
    nn.init.constant_(model.bias, torch.nan)
    refuse_miscompiled(compiled(model), sequences=16, length=4, entries=8)
