"""What a run has done is not lost: damaged curves, checkpoints that are whole but wrong, files of other kinds."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from ematrace.train import DamagedCheckpoint, TrainConfig, build_model, train
from ematrace.train.checkpoints import MANIFEST, verify, write_folder
from ematrace.train.metrics import MetricsFile
from ematrace.train.resume import starting_point
from train_support import VOCABULARY, Events, curve, digest, no_file_larger_than, tiny_config, write_text

LAST = "step-00000020"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrainConfig]:
    """A run of 20 steps with checkpoints at 15 and 20."""
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EMATRACE_CACHE", str(folder / "cache"))
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        config = tiny_config(write_text(folder), folder / "run")
        train(config)
        yield config
        torch.set_num_threads(threads)


@pytest.fixture
def config(whole: TrainConfig, tmp_path: Path) -> TrainConfig:
    """A copy of it to be resumed, as if it had been killed before its model was written."""
    shutil.copytree(whole.out, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "model")
    return replace(whole, out=tmp_path / "run", resume="auto")


def test_one_bad_byte_costs_one_line_and_no_byte(config: TrainConfig) -> None:
    path = config.out / "metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    lines[6] = lines[6].replace(b":", b"\xff", 1)
    path.write_bytes(b"".join(lines))
    shutil.rmtree(config.out / "checkpoints" / LAST)  # goes on at 15
    events = Events()
    train(config, display=events)
    assert [step for (step,) in curve(config.out, "step")] == [n for n in range(1, 21) if n != 7]
    (event,) = [text for text in events.texts if "metrics.jsonl" in text]
    assert "1 damaged" in event
    assert (config.out / "metrics.jsonl.1").read_bytes() == b"".join(lines)


@pytest.mark.parametrize("bad", [b"[1]\n", b"\n", b'{"step": "7"}\n', b"[" * 5000 + b"\n", b'{"step": 1e400}\n'])
def test_lines_that_are_no_steps_are_left_out_and_kept_aside(tmp_path: Path, bad: bytes) -> None:
    path, told = tmp_path / "metrics.jsonl", []
    good = b"".join(json.dumps({"step": n, "loss": 1.0 / n}).encode() + b"\n" for n in range(1, 10))
    (tmp_path / "metrics.jsonl.1").write_bytes(b"an earlier one")
    path.write_bytes(bad + good)
    MetricsFile(path, after_step=9, warn=told.append).close()
    assert path.read_bytes() == good
    assert (tmp_path / "metrics.jsonl.2").read_bytes() == bad + good
    assert len(told) == 1
    MetricsFile(path, after_step=9, warn=told.append).close()
    assert len(told) == 1  # nothing left to say


def test_a_run_whose_checkpoints_are_gone_keeps_its_curve_aside(config: TrainConfig) -> None:
    before = (config.out / "metrics.jsonl").read_bytes()
    shutil.rmtree(config.out / "checkpoints")
    events = Events()
    train(config, display=events)
    assert (config.out / "metrics.jsonl.1").read_bytes() == before
    assert any("a run without a checkpoint" in text for text in events.texts)


@pytest.mark.parametrize("kind", ["a file", "a link that leads nowhere"])
def test_checkpoints_that_are_no_folder_are_an_error(config: TrainConfig, kind: str) -> None:
    folder = config.out / "checkpoints"
    shutil.rmtree(folder)
    if kind == "a file":
        folder.write_bytes(b"")
    else:
        folder.symlink_to("nowhere")
    before = (config.out / "metrics.jsonl").read_bytes()
    with pytest.raises(OSError, match="checkpoints: not a folder"):
        train(config)
    assert (config.out / "metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "3", "null", '{"a": 1} x', "[" * 1000 + "]" * 1000, '{"seed": ' + "9" * 5000 + "}", '{"lr": NaN}'],
)
def test_settings_of_another_kind_are_one_line(config: TrainConfig, content: str) -> None:
    (config.out / "config.json").write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=r"config\.json: ") as caught:
        train(config)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("field", ["tokens", "precision", "vocab_size", "lr", "validation_share"])
def test_settings_of_another_type_are_named(config: TrainConfig, field: str) -> None:
    path = config.out / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {field: [1]}), encoding="utf-8")
    unset = replace(config, validation=None) if field == "validation_share" else replace(config, **{field: None})
    with pytest.raises(ValueError, match=rf"config\.json: field '{field}'"):
        train(unset)


def rewrite_manifest(folder: Path) -> None:
    """The checkpoint is whole by its checksums again."""
    (folder / MANIFEST).unlink()
    files = {p.name: p.read_bytes() for p in folder.iterdir()}
    write_folder(folder, lambda part: [(part / name).write_bytes(content) for name, content in files.items()] and None)
    verify(folder)


def change_state(**changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "state.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes), encoding="utf-8")

    return change


def change_tensor(file: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        tensors = load_file(folder / file)
        name = max(tensors, key=lambda name: tensors[name].numel())
        save_file(tensors | {name: change(tensors[name])}, folder / file, {"format": "pt"})

    return apply


def another_run(folder: Path) -> None:
    record = json.loads((folder / "state.json").read_text())
    change_state(config=record["config"] | {"seed": 5})(folder)


def test_a_run_of_an_earlier_version_goes_on_with_its_documents_held_out(whole: TrainConfig, tmp_path: Path) -> None:
    """It recorded neither a share nor tails: 1% of the documents by the hash of their names, however few those are."""
    config = replace(whole, out=tmp_path / "run", validation=None, validation_share=0.01, length=8)
    train(replace(config, checkpoint_every=5), display=Events(at_step=4))
    new = ("validation_share", "held_out_tails")
    settings = json.loads((config.out / "config.json").read_text(encoding="utf-8"))
    assert [settings[name] for name in new] == [0.01, False]
    earlier = {name: value for name, value in settings.items() if name not in new} | {"vocab_size": 4096}
    (config.out / "config.json").write_text(json.dumps(earlier), encoding="utf-8")
    (checkpoint,) = (config.out / "checkpoints").iterdir()
    change_state(config=earlier)(checkpoint)
    rewrite_manifest(checkpoint)
    with pytest.raises(ValueError, match=r"field 'validation_share': the run has 0\.01"):
        train(replace(config, resume="auto", validation_share=0.2))
    assert train(replace(config, resume="auto", validation_share=None)).step == 40
    assert json.loads((config.out / "config.json").read_text(encoding="utf-8"))["validation_share"] == 0.01


WRONG: dict[str, Callable[[Path], None]] = {
    "a list as its state": lambda folder: (folder / "state.json").write_text("[]") and None,
    "a step that is text": change_state(step="20"),
    "a step of another": change_state(step=15),
    "a step past the end": change_state(step=21),
    "no random state": change_state(random={"torch": "zz"}),
    "a random state of another type": change_state(random=[]),
    "no data position": change_state(data_position=None),
    "settings of another run": another_run,
    "no settings": change_state(config=None),
    "weights that are not finite": change_tensor("model.safetensors", lambda t: t * float("nan")),
    "weights of another model": change_tensor("model.safetensors", lambda t: t[:-1].contiguous()),
    "averages that are not finite": change_tensor("optimizer.safetensors", lambda t: t * float("inf")),
    "averages of another model": change_tensor("optimizer.safetensors", lambda t: t[:-1].contiguous()),
    "no weights": lambda folder: (folder / "model.safetensors").write_bytes(b""),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_checkpoint_that_is_whole_but_wrong_gives_way_to_the_one_before_it(config: TrainConfig, name: str) -> None:
    folder = config.out / "checkpoints" / LAST
    WRONG[name](folder)
    rewrite_manifest(folder)
    passes_over_the_last(config)


@pytest.mark.parametrize("what", ["model.safetensors", "state.json", "manifest.json"])
def test_a_file_that_is_a_link_is_refused(config: TrainConfig, tmp_path: Path, what: str) -> None:
    path = config.out / "checkpoints" / LAST / what
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    passes_over_the_last(config)


def test_a_file_is_no_checkpoint(config: TrainConfig) -> None:
    folder = config.out / "checkpoints" / LAST
    shutil.rmtree(folder)
    folder.write_bytes(b"a file")
    passes_over_the_last(config)


def passes_over_the_last(config: TrainConfig) -> None:
    told: list[str] = []
    saved = json.loads((config.out / "checkpoints" / "step-00000015" / "state.json").read_text(encoding="utf-8"))
    model = build_model(config.preset, VOCABULARY, 0, config.overrides, length=16)
    chosen = starting_point(config, saved["config"], saved["data_fingerprints"], 20, model, told.append)
    assert chosen is not None
    assert chosen.name == "step-00000015"
    one_line_about_the_last(told)


def one_line_about_the_last(told: list[str]) -> None:
    (refused,) = [text for text in told if "refused" in text]
    assert refused.startswith("checkpoint refused, using step-00000015: ")
    assert LAST in refused
    assert "\n" not in refused


def test_a_run_goes_on_past_a_link_and_ends_as_if_nothing_had_happened(
    whole: TrainConfig, config: TrainConfig, tmp_path: Path
) -> None:
    folder = config.out / "checkpoints" / LAST
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    events = Events()
    train(config, display=events)
    one_line_about_the_last(events.texts)
    assert digest(config.out) == digest(whole.out)
    verify(folder)
    verify(tmp_path / "elsewhere")  # what the link led to is untouched


def test_a_checkpoint_that_was_asked_for_by_name_is_not_replaced_by_another(config: TrainConfig) -> None:
    folder = config.out / "checkpoints" / LAST
    change_state(random={})(folder)
    rewrite_manifest(folder)
    with pytest.raises(DamagedCheckpoint, match=r"state\.json: field 'random'"):
        train(replace(config, resume=str(folder)))


def test_a_full_disk_is_named_by_its_file_and_costs_one_line(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    file = MetricsFile(path, after_step=0)
    file.write({"step": 1, "loss": 0.5})
    with no_file_larger_than(30), pytest.raises(OSError, match=r"metrics\.jsonl"):
        file.write({"step": 2, "loss": 0.25})
    file.close()
    again = MetricsFile(path, after_step=1)
    again.write({"step": 2, "loss": 0.25})
    again.close()
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2]


def test_a_full_disk_names_the_checkpoint_and_leaves_it_as_it_was(tmp_path: Path) -> None:
    target = tmp_path / "step-00000001"
    write_folder(target, lambda part: (part / "a").write_text("1") and None)
    with no_file_larger_than(100), pytest.raises(OSError, match="File too large") as caught:
        write_folder(target, lambda part: (part / "a").write_bytes(bytes(1000)) and None)
    assert str(target) in str(caught.value)
    assert ".part" not in str(caught.value)
    assert (target / "a").read_text() == "1"
    assert [path.name for path in tmp_path.iterdir()] == [target.name]
