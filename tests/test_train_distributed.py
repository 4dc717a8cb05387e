"""Several processes and one see the same micro-batches, so they draw the same curve."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from ematrace.train import TrainConfig, train
from train_support import SPEN, as_json, curve, finish, start, tiny_config, write_text

pytestmark = pytest.mark.slow

DENSE = (*SPEN, "ffn=dense")
MODELS = {
    "dense": {"preset": "spen-tiny", "overrides": DENSE},
    "topk": {"preset": "spen-tiny"},
    "gpt2": {"preset": "gpt2-tiny"},
}
WAYS = ("ddp", "fsdp")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module", autouse=True)
def own_cache(folder: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EMATRACE_CACHE", str(folder / "cache"))
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        yield
        torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def alone(folder: Path) -> dict[str, TrainConfig]:
    """12 steps of 4 micro-batches in one process."""
    (folder / "text").mkdir()
    text = write_text(folder / "text")
    short = {"tokens": 12 * 64, "validate_every": 6, "checkpoint_every": 4, "micro_batch": 1}
    configs = {n: tiny_config(text, folder / "alone" / n, **short, **m) for n, m in MODELS.items()}
    for config in configs.values():
        train(config)
    return configs


@pytest.fixture(scope="module")
def together(folder: Path, alone: dict[str, TrainConfig]) -> dict[str, TrainConfig]:
    """The same in two processes, either way; a run taken over from one process; and one that is asked to stop."""
    runs = {f"{way} {n}": replace(c, parallel=way) for way in WAYS for n, c in alone.items()}
    step_8 = str(checkpoint(alone["dense"], 8))
    runs |= {f"{way} taken over": replace(alone["dense"], parallel=way, resume=step_8) for way in WAYS}
    runs |= {"ddp stopped": alone["dense"]}
    often = ("taken over", "stopped")  # the tests look at these runs' checkpoints
    runs = {n: replace(r, out=folder / n, checkpoint_every=2 if n.endswith(often) else 12) for n, r in runs.items()}
    arguments = [f for name, run in runs.items() for f in (["stop=4"] * (name == "ddp stopped") + [as_json(run)])]
    code, _, err = finish(start("train_worker.py", *arguments, processes=2), timeout=300)
    assert code == 0, err
    return runs


def checkpoint(config: TrainConfig, step: int) -> Path:
    return config.out / "checkpoints" / f"step-{step:08d}"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("model", MODELS)
def test_two_processes_draw_the_curve_of_one(
    alone: dict[str, TrainConfig], together: dict[str, TrainConfig], way: str, model: str
) -> None:
    ours, theirs = together[f"{way} {model}"].out, alone[model].out
    # Gradients are summed in another order; with top-k a near-tie can then fall the other way.
    relative = 1e-3 if model == "topk" else 1e-5
    names = ("step", "tokens", "loss", "cross_entropy", "lr", "grad_norm")
    np.testing.assert_allclose(curve(ours, *names), curve(theirs, *names), rtol=relative)
    assert len(curve(ours)) == 12
    validation = [[v for (v,) in curve(out, "validation_cross_entropy") if v is not None] for out in (ours, theirs)]
    np.testing.assert_allclose(*validation, rtol=relative)
    assert len(validation[0]) == 2
    weights, expected = (load_file(out / "model" / "model.safetensors") for out in (ours, theirs))
    assert weights.keys() == expected.keys()
    if model != "topk":
        for name, tensor in weights.items():
            np.testing.assert_allclose(tensor, expected[name], rtol=1e-3, atol=2e-5)


@pytest.mark.parametrize("way", WAYS)
def test_a_checkpoint_moves_from_one_process_to_two_and_back(
    alone: dict[str, TrainConfig], together: dict[str, TrainConfig], folder: Path, way: str
) -> None:
    theirs, ours = alone["dense"], together[f"{way} taken over"]
    names = ("step", "loss", "grad_norm")
    np.testing.assert_allclose(curve(ours.out, *names), curve(theirs.out, *names)[8:], rtol=1e-5)
    back = replace(theirs, out=folder / f"{way} back", resume=str(checkpoint(ours, 10)))
    train(back)
    np.testing.assert_allclose(curve(back.out, *names), curve(theirs.out, *names)[10:], rtol=1e-5)


def test_all_processes_stop_when_one_is_asked_to(
    alone: dict[str, TrainConfig], together: dict[str, TrainConfig]
) -> None:
    out = together["ddp stopped"].out
    assert [p.name for p in sorted((out / "checkpoints").iterdir())] == ["step-00000004", "step-00000005"]
    np.testing.assert_allclose(curve(out, "step", "loss"), curve(alone["dense"].out, "step", "loss")[:5], rtol=1e-5)
    assert not (out / "model").exists()
