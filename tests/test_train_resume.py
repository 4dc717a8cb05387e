"""A run that was stopped, killed or damaged and resumed goes through the same numbers as one that never was."""

from __future__ import annotations

import errno
import json
import shutil
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

import ematrace.spen  # noqa: F401  registers SPEN with the Auto classes
from ematrace.evaluation import model_folder
from ematrace.train import DamagedCheckpoint, NonFiniteLoss, TrainConfig, build_model, train
from ematrace.train.checkpoints import list_checkpoints, newest, prune, verify, write_folder
from ematrace.train.state import AVERAGES, model_tensors, optimiser_tensors, read_model, read_optimiser
from fork_support import run_forked
from train_support import (
    GPT2,
    VOCABULARY,
    Events,
    as_json,
    curve,
    digest,
    environment,
    no_file_larger_than,
    tiny_config,
    write_text,
)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text(tmp_path_factory.mktemp("text"))


@pytest.fixture(autouse=True)
def one_thread(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("EMATRACE_CACHE", str(tmp_path_factory.getbasetemp() / "ematrace-cache"))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def whole(text: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainConfig:
    """A run of 20 steps that nothing disturbed."""
    config = tiny_config(text, tmp_path_factory.mktemp("whole") / "run")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EMATRACE_CACHE", str(tmp_path_factory.getbasetemp() / "ematrace-cache"))
        train(config)
    torch.set_num_threads(threads)
    return config


def copy_of(config: TrainConfig, out: Path, **changes: object) -> TrainConfig:
    shutil.copytree(config.out, out)
    return replace(config, out=out, resume="auto", **changes)


@pytest.mark.parametrize("preset", ["gpt2-tiny", "spen-tiny"])
def test_stopped_and_resumed_is_bitwise_the_run_that_was_not(text: Path, tmp_path: Path, preset: str) -> None:
    straight = tiny_config(text, tmp_path / "straight", preset=preset)
    train(straight)
    broken = replace(straight, out=tmp_path / "broken", checkpoint_every=1000)
    stopped = train(broken, display=Events(at_step=9))
    assert stopped.stopped == "SIGTERM"
    assert stopped.step == 10  # raised after step 9 was shown: the next one is finished, then saved
    assert [p.name for p in list_checkpoints(broken.out / "checkpoints")] == ["step-00000010"]
    torch.rand(7)  # whatever happens to the generators in between
    resumed = train(replace(broken, resume="auto"))
    assert resumed.stopped is None
    assert curve(broken.out) == curve(straight.out)
    assert len(curve(broken.out)) == 20
    assert digest(broken.out) == digest(straight.out)


def test_dropout_goes_on_where_it_was(text: Path, tmp_path: Path) -> None:
    straight = tiny_config(text, tmp_path / "straight", overrides=(*GPT2, "resid_pdrop=0.3"))
    train(straight)
    broken = replace(straight, out=tmp_path / "broken")
    train(broken, display=Events(at_step=7))
    train(replace(broken, resume="auto"))
    assert digest(broken.out) == digest(straight.out)


def test_streamed_text_resumes_bitwise(text: Path, tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    spec = f"hf:json:{text / 'train.jsonl'}"
    straight = tiny_config(text, tmp_path / "straight", data=spec)
    train(straight)
    broken = replace(straight, out=tmp_path / "broken")
    train(broken, display=Events(at_step=7))
    train(replace(broken, resume="auto"))
    assert digest(broken.out) == digest(straight.out)


@pytest.fixture(scope="module")
def disturbed(text: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Runs in processes of their own that were killed, or asked to stop."""
    folder = tmp_path_factory.mktemp("disturbed")
    config = tiny_config(text, folder / "unused", tokens=16 * 64, checkpoint_every=2)
    killer = Path(__file__).with_name("train_killer.py")
    code, out, err = run_forked(killer, as_json(config), str(folder), "20", "0", env=environment())
    assert code == 0, err
    return folder, json.loads(out.splitlines()[-1])


@pytest.mark.slow
def test_twenty_kills_lead_to_the_same_weights(disturbed: tuple[Path, dict[str, Any]]) -> None:
    (expected, _, _), *killed = disturbed[1]["killed"]
    assert sum(kills for _, kills, _ in killed) >= 20
    assert sum(torn for _, _, torn in killed) >= 1, "no kill fell into the writing of a checkpoint"
    assert {digest for digest, _, _ in killed} == {expected}


@pytest.mark.slow
def test_sigterm_and_ctrl_c_save_and_exit(disturbed: tuple[Path, dict[str, Any]]) -> None:
    folder, found = disturbed
    codes = {signal.SIGTERM: 0, signal.SIGINT: 130}
    assert found["stopped"] == {str(int(number)): code for number, code in codes.items()}
    for number in codes:
        out = folder / number.name
        (checkpoint,) = list_checkpoints(out / "checkpoints")
        verify(checkpoint)
        assert len(curve(out)) == int(checkpoint.name.removeprefix("step-"))
        assert not (out / "model").exists()


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json", "manifest.json"])
@pytest.mark.parametrize("damage", ["truncated", "tampered", "missing"])
def test_damaged_checkpoint_is_named_and_the_one_before_it_used(
    whole: TrainConfig, tmp_path: Path, name: str, damage: str
) -> None:
    config = copy_of(whole, tmp_path / "run")
    path = config.out / "checkpoints" / "step-00000020" / name
    content = path.read_bytes()
    if damage == "truncated":
        path.write_bytes(content[: len(content) // 2])
    elif damage == "tampered":
        middle = len(content) // 2
        path.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
    else:
        path.unlink()
    events: list[str] = []
    chosen = newest(config.out / "checkpoints", verify, events.append)
    assert chosen is not None
    assert chosen.name == "step-00000015"
    (event,) = events
    assert "step-00000020" in event
    if not (name == "manifest.json" and damage == "tampered"):  # then it is another file that does not match
        assert str(path) in event
    assert "\n" not in event


def test_resume_past_damage_ends_in_the_same_run(whole: TrainConfig, tmp_path: Path) -> None:
    config = copy_of(whole, tmp_path / "run")
    (config.out / "checkpoints" / "step-00000020" / "model.safetensors").write_bytes(b"")
    shutil.rmtree(config.out / "model")
    display = Events()
    train(config, display=display)
    assert any("refused" in t and "step-00000020/model.safetensors" in t for t in display.texts)
    assert curve(config.out) == curve(whole.out)
    assert digest(config.out) == digest(whole.out)
    verify(config.out / "checkpoints" / "step-00000020")


def test_a_checkpoint_that_could_not_be_read_is_kept_aside(
    whole: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system that fails for a moment does not cost the newest checkpoint; `keep` counts the others."""
    config = copy_of(whole, tmp_path / "run", keep=2)
    folder = config.out / "checkpoints"
    unreadable = folder / "step-00000020" / "optimizer.safetensors"
    before = unreadable.read_bytes()
    opened = Path.open

    def fail(path: Path, *arguments: Any, **more: Any) -> Any:
        if path == unreadable and unreadable.stat().st_ino == inode:
            raise OSError(errno.EIO, "Input/output error", str(path))
        return opened(path, *arguments, **more)

    inode = unreadable.stat().st_ino
    monkeypatch.setattr(Path, "open", fail)
    display = Events()
    train(config, display=display)
    (line,) = [text for text in display.texts if "refused" in text]
    assert line.endswith("Input/output error; kept as step-00000020.refused")
    assert (folder / "step-00000020.refused" / unreadable.name).read_bytes() == before
    assert [p.name for p in list_checkpoints(folder)] == ["step-00000015", "step-00000020"]
    (folder / "step-00000020" / "state.json").unlink()
    newest(folder, verify, display.on_event)
    assert display.texts[-1].endswith("kept as step-00000020.2.refused")
    shutil.rmtree(config.out / "model")
    with pytest.raises(ValueError, match=r"its last checkpoint is .*step-00000015$"):
        model_folder(str(config.out))


def test_nothing_whole_is_an_error(whole: TrainConfig, tmp_path: Path) -> None:
    config = copy_of(whole, tmp_path / "run")
    for checkpoint in list_checkpoints(config.out / "checkpoints"):
        (checkpoint / "state.json").unlink()
    with pytest.raises(DamagedCheckpoint, match="no intact checkpoint"):
        train(config)


def test_a_folder_with_a_run_is_not_overwritten(whole: TrainConfig, tmp_path: Path) -> None:
    config = replace(copy_of(whole, tmp_path / "run"), resume="never")
    before = sorted((p, p.stat().st_mtime_ns) for p in config.out.rglob("*"))
    with pytest.raises(ValueError, match="--resume auto"):
        train(config)
    assert sorted((p, p.stat().st_mtime_ns) for p in config.out.rglob("*")) == before


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("seed", 1),
        ("preset", "spen-tiny"),
        ("tokens", 30 * 64),
        ("sequences", 8),
        ("length", 8),
        ("lr", 1e-3),
        ("micro_batch", 4),
    ],
)
def test_contradicting_settings_are_refused_by_name(
    whole: TrainConfig, tmp_path: Path, field: str, value: object
) -> None:
    of_the_preset = {"overrides": ()} if field == "preset" else {}
    config = copy_of(whole, tmp_path / "run", **{field: value}, **of_the_preset)
    with pytest.raises(ValueError, match=f"field '{field}'"):
        train(config)


def test_other_text_under_the_same_name_is_refused(text: Path, whole: TrainConfig, tmp_path: Path) -> None:
    config = copy_of(whole, tmp_path / "run")
    path = text / "train.jsonl"
    before = path.read_text(encoding="utf-8")
    try:
        path.write_text(before + json.dumps({"text": "one more dog", "id": "new"}) + "\n", encoding="utf-8")
        with pytest.raises(ValueError, match="data_fingerprints"):
            train(config)
    finally:
        path.write_text(before, encoding="utf-8")


def test_what_is_only_written_down_may_change(whole: TrainConfig, tmp_path: Path) -> None:
    config = copy_of(whole, tmp_path / "run", checkpoint_every=7, keep=5, log_every=2)
    assert train(config).step == 20


def test_resume_from_a_checkpoint_by_its_path(whole: TrainConfig, tmp_path: Path) -> None:
    branch = replace(whole, out=tmp_path / "branch", resume=str(whole.out / "checkpoints" / "step-00000015"))
    train(branch)
    assert curve(branch.out) == curve(whole.out)[15:]
    with pytest.raises(ValueError, match="another run"):
        train(branch)
    with pytest.raises(ValueError, match="not auto, never"):
        train(replace(branch, resume="newest", out=tmp_path / "other"))


def test_non_finite_loss_stops_before_the_update(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    updates: list[int] = []
    update = torch.optim.AdamW.step
    monkeypatch.setattr(torch.optim.AdamW, "step", lambda *a, **k: (updates.append(1), update(*a, **k)))
    # The first update throws the weights to 1e30, the second finds a loss that is not a number.
    config = tiny_config(text, tmp_path / "run", lr=1e30, warmup=0, checkpoint_every=1)
    with pytest.raises(NonFiniteLoss, match=r"step 2: the (loss|gradient norm) is .*step-00000001") as caught:
        train(config)
    assert "\n" not in str(caught.value)
    assert len(updates) == 1
    (checkpoint,) = list_checkpoints(config.out / "checkpoints")
    verify(checkpoint)
    assert len(curve(config.out)) == 1


def test_full_disk_leaves_the_checkpoints_before_it(text: Path, tmp_path: Path) -> None:
    config = tiny_config(text, tmp_path / "run", checkpoint_every=5)
    train(replace(config, tokens=20 * 64), display=Events(at_step=4))
    before = {p: p.read_bytes() for p in (config.out / "checkpoints").rglob("*") if p.is_file()}
    assert before

    with no_file_larger_than(20_000), pytest.raises(OSError, match=r"not written|File too large") as caught:
        train(replace(config, resume="auto"))
    assert "step-00000010" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert {p: p.read_bytes() for p in (config.out / "checkpoints").rglob("*") if p.is_file()} == before
    assert train(replace(config, resume="auto")).step == 20


def test_old_checkpoints_are_pruned_and_so_is_an_abandoned_future(tmp_path: Path) -> None:
    for step in (5, 10, 15, 20, 25):
        (tmp_path / f"step-{step:08d}").mkdir()
    prune(tmp_path, step=20, keep=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-00000015", "step-00000020"]
    prune(tmp_path, step=15)
    assert [p.name for p in tmp_path.iterdir()] == ["step-00000015"]


def test_checkpoint_that_lacks_a_tensor_or_has_another_is_refused_by_its_name(tmp_path: Path) -> None:
    """Files that are whole by their checksums and still not of this model."""
    model = build_model("gpt2-tiny", VOCABULARY, 0, GPT2, length=16)
    optimiser = torch.optim.AdamW(model.parameters())
    model(torch.arange(9)[None]).logits.square().mean().backward()
    optimiser.step()
    tensors, averages = model_tensors(model), optimiser_tensors(model, optimiser)
    bias = "transformer.h.0.mlp.c_fc.bias"
    for broken, complaint in (
        ({n: t for n, t in tensors.items() if n != bias}, f"has no tensor '{bias}'"),
        (tensors | {"extra": torch.zeros(1)}, "has a tensor 'extra' that the model lacks"),
        (tensors | {bias: torch.zeros(3)}, rf"tensor '{bias}': \[3\] there, \[64\] in the model"),
    ):
        save_file(broken, tmp_path / "model.safetensors")
        with pytest.raises(DamagedCheckpoint, match=complaint):
            read_model(model, tmp_path)
    for broken in (
        {n: t for n, t in averages.items() if n != f"exp_avg_sq.{bias}"},
        averages | {f"exp_avg_sq.{bias}": torch.zeros(3)},
    ):
        save_file(broken, tmp_path / "optimizer.safetensors")
        with pytest.raises(DamagedCheckpoint, match=f"tensor 'exp_avg_sq.{bias}': missing or of another shape"):
            read_optimiser(model, optimiser, tmp_path)


def test_checkpoint_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    """Version 0.1 had SPEN's layers in the block itself: weights and averages still find their parameters."""
    saved = Path(__file__).parent / "data" / "spen_v0.1" / "static"
    old = load_file(saved / "model.safetensors")
    assert "model.layers.0.W_h.weight" in old
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(saved))
    optimiser = torch.optim.AdamW(model.parameters())
    save_file(old, tmp_path / "model.safetensors")
    averages = {f"{average}.{name}": 2 * tensor for name, tensor in old.items() for average in AVERAGES}
    save_file(averages | {"step": torch.tensor(3.0)}, tmp_path / "optimizer.safetensors")
    read_model(model, tmp_path)
    read_optimiser(model, optimiser, tmp_path)
    for name, parameter in model.named_parameters():
        before = old[name.replace("mixer.", "").replace("ffn.", "")]
        assert torch.equal(parameter, before)
        assert torch.equal(optimiser.state[parameter]["exp_avg_sq"], 2 * before)
        assert optimiser.state[parameter]["step"] == 3


def test_folder_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    def good(part: Path) -> None:
        (part / "a").write_text("1", encoding="utf-8")

    def bad(part: Path) -> None:
        (part / "a").write_text("2", encoding="utf-8")
        raise OSError("no space left")

    write_folder(tmp_path / "x", good)
    with pytest.raises(OSError, match="no space"):
        write_folder(tmp_path / "x", bad)
    assert (tmp_path / "x" / "a").read_text(encoding="utf-8") == "1"
    assert [p.name for p in tmp_path.iterdir()] == ["x"]
