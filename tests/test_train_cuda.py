"""Training steps on a GPU: a step captured as one CUDA graph is the plain step, and whole runs are the same run."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ematrace.train import NonFiniteLoss, TrainConfig, build_model, train
from ematrace.train.batches import MicroBatch
from ematrace.train.compile_check import refuse_miscompiled
from ematrace.train.distributed import World, distribute
from ematrace.train.loss import LanguageModelLoss
from ematrace.train.optimiser import build_optimiser
from ematrace.train.step import AHEAD, Gradients, GraphedStep, PlainStep, build_step
from train_support import GPT2, SPEN, digest, tiny_config, write_text

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
VOCABULARY, STEPS = 300, 10
SHAPE = (2, 8, 129)  # micro-batches, sequences, tokens + 1: enough tokens for SPEN's fused columns
MODELS = {
    "spen": ("spen-tiny", ()),
    "spen, dense": ("spen-tiny", ("ffn=dense",)),
    "spen, float32 stream": ("spen-tiny", ("residual_in_fp32=true",)),
    "linear attention": ("skeleton-tiny", ("mixer=linear_attention",)),
}


@pytest.fixture(autouse=True)
def _fresh_compiler() -> None:
    torch._dynamo.reset()


def gradients(model: Any, *, bfloat16: bool = True, compiled: bool = False) -> Gradients:
    world = World(0, 1, torch.device("cuda", torch.cuda.current_device()))
    config = TrainConfig(preset="spen-tiny", data="x", out=Path("x"))
    loss: Any = LanguageModelLoss(model.to(world.device)).train()
    if compiled:
        loss.compile()
    return Gradients(loss, model, build_optimiser(model, config, world.device), 1.0, bfloat16, world)


def batches() -> list[list[MicroBatch]]:
    ids = torch.randint(VOCABULARY, (STEPS, *SHAPE), generator=torch.Generator().manual_seed(1))
    return [[MicroBatch(micro, None) for micro in step] for step in ids]


def trained(
    name: str, *, graphed: bool, bfloat16: bool = True, compiled: bool = False
) -> tuple[list[Any], list[Tensor]]:
    """Results of ten steps, read as late as possible, and the weights after them."""
    torch.manual_seed(0)
    preset, overrides = MODELS[name]
    of = gradients(build_model(preset, VOCABULARY, 0, overrides, length=128), bfloat16=bfloat16, compiled=compiled)
    step: Any = GraphedStep(of, SHAPE) if graphed else PlainStep(of)
    results = []
    for i, batch in enumerate(batches()):
        step.launch(batch, 3e-3 / (1 + i))
        if i >= step.ahead:
            results.append(step.finish(0))
    results += [step.finish(0) for _ in range(step.ahead)]
    return results, [p.detach().clone() for p in of.model.parameters()]


@pytest.mark.parametrize("bfloat16", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_graphed_step_is_the_plain_step_to_the_bit(name: str, bfloat16: bool) -> None:
    ours, our_weights = trained(name, graphed=True, bfloat16=bfloat16)
    expected, weights = trained(name, graphed=False, bfloat16=bfloat16)
    assert ours == expected
    assert all(map(torch.equal, our_weights, weights))


def test_compiled_and_graphed_follows_the_compiled_step() -> None:
    """The compiler sums the embedding's gradient in any order, so its own runs differ in the last bits."""
    ours, our_weights = trained("spen, dense", graphed=True, compiled=True)
    expected, weights = trained("spen, dense", graphed=False, compiled=True)
    for mine, theirs in zip(ours, expected, strict=True):
        assert mine.losses == pytest.approx(theirs.losses, rel=1e-3)
        assert mine.grad_norm == pytest.approx(theirs.grad_norm, rel=1e-2)
    for mine, theirs in zip(our_weights, weights, strict=True):
        assert float((mine - theirs).norm()) < 0.02 * float(theirs.norm()) + 1e-3


class Waits(nn.Module):
    """A model that asks the GPU for a number in the middle of its forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Embedding(VOCABULARY, VOCABULARY)

    def forward(self, ids: Tensor, cu_seqlens: Tensor | None) -> tuple[Tensor, Tensor]:
        logits = nn.functional.dropout(self.rows(ids[:, :-1]), 0.1)
        scale = float(logits.detach().abs().max())
        loss = nn.functional.cross_entropy(logits.flatten(0, 1) / max(scale, 1.0), ids[:, 1:].flatten())
        return loss, loss


def test_a_model_that_waits_for_the_gpu_is_trained_without_a_graph() -> None:
    model = Waits().cuda()
    of = replace(gradients(build_model("spen-tiny", VOCABULARY, 0)), loss=model, model=model)
    of = replace(of, optimiser=torch.optim.AdamW(model.parameters(), fused=True))
    with pytest.raises(ValueError, match="cuda_graphs: the step cannot be captured"):
        build_step(of, SHAPE, graphed=True, required=True, notify=print)
    told: list[str] = []
    step = build_step(of, SHAPE, graphed=True, required=False, notify=told.append)
    assert isinstance(step, PlainStep)
    assert len(told) == 1
    for batch in batches()[:3]:  # dropout still works: the generator is not stuck in a capture
        step.launch(batch, 1e-2)
        assert step.finish(0).not_finite() is None


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EMATRACE_CACHE", str(tmp_path / "cache"))
    return write_text(tmp_path)


class StopAt:
    """A display that raises SIGTERM when it is shown a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_start(self, total_steps: int) -> None: ...

    def on_step(self, metrics: Any) -> None:
        if metrics["step"] == self.step:
            signal.raise_signal(signal.SIGTERM)

    def on_event(self, text: str) -> None: ...
    def close(self) -> None: ...


@pytest.mark.parametrize("overrides", [SPEN, (*SPEN, "ffn=dense")])
def test_a_graphed_run_stops_and_resumes_to_the_plain_run(
    text: Path, tmp_path: Path, overrides: tuple[str, ...]
) -> None:
    settings: dict[str, Any] = {"preset": "spen-tiny", "overrides": overrides, "device": "cuda", "compile": False}
    plain = tiny_config(text, tmp_path / "plain", cuda_graphs=False, **settings)
    graphed = replace(plain, out=tmp_path / "graphed", cuda_graphs=True, checkpoint_every=1000)
    train(plain)
    stopped = train(graphed, display=StopAt(4))
    assert 4 < stopped.step <= 5 + AHEAD
    train(replace(graphed, resume="auto"))
    assert digest(graphed.out) == digest(plain.out)


def test_a_graphed_run_stops_before_an_update_that_is_not_finite(text: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"preset": "spen-tiny", "overrides": SPEN, "device": "cuda", "compile": False}
    config = tiny_config(text, tmp_path / "run", cuda_graphs=True, lr=1e30, warmup=0, **settings)
    with pytest.raises(NonFiniteLoss, match=r"step 2: the .*stopped before the update"):
        train(config)


def test_defaults_compile_and_capture(text: Path, tmp_path: Path) -> None:
    """What `ematrace train` does on a GPU, for a transformer with dropout, ends in a model that has learnt."""
    config = tiny_config(text, tmp_path / "run", overrides=(*GPT2, "resid_pdrop=0.1"), device="cuda", tokens=100 * 64)
    result = train(replace(config, lr=1e-2, checkpoint_every=1000))
    assert result.step == 100
    assert result.validation_cross_entropy is not None
    assert result.uniform_cross_entropy is not None
    assert result.validation_cross_entropy < result.uniform_cross_entropy


@pytest.mark.parametrize(
    ("preset", "overrides"),
    [("gpt2-tiny", ("n_inner=3368",)), ("skeleton-tiny", ("mixer=attention", "ffn=dense", "d_ff=3368"))],
)
def test_rows_that_a_compiler_would_pad_have_their_gradients(preset: str, overrides: tuple[str, ...]) -> None:
    """Rows of more than 1,024 elements that are no multiple of 128 bytes."""
    torch.manual_seed(0)
    of = replace(gradients(build_model(preset, VOCABULARY, 0, overrides, length=128)), clip=1e30)
    batch = [micro.to(of.world.device) for micro in batches()[0]]
    found = []
    for compiled in (False, True):
        distribute(of.loss, of.world, "ddp", bfloat16=True, compiled=compiled)
        of.optimiser.zero_grad(set_to_none=True)
        of.compute(batch)
        found.append([p.grad.clone() for p in of.model.parameters() if p.grad is not None])
    for expected, ours in zip(*found, strict=True):
        assert float((ours - expected).norm()) < 0.05 * float(expected.norm()) + 1e-6
    refuse_miscompiled(of, sequences=SHAPE[1], length=SHAPE[2] - 1, entries=VOCABULARY)
