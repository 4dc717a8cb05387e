"""Training on a user's own text with nothing but --data: what is chosen, what is said, what is refused at once."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cli_support import exit_status
from ematrace.text import train_bpe
from ematrace.text.held_out import TRAINING
from ematrace.train import TrainConfig, train
from ematrace.train.config import RECIPES, resolve_recipe
from ematrace.train.data import fit_to_text
from train_support import GPT2, SPEN, Events, write_prose

SMALL = ("--overrides", *SPEN, "--device", "cpu")


@pytest.fixture(autouse=True)
def a_machine_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without GPT-2's tokenizer, without anything in the cache, and with little patience."""
    monkeypatch.setenv("EMATRACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("ematrace.train.data.local_gpt2", lambda: None)
    monkeypatch.setattr("ematrace.train.data.EPOCHS", 4)
    monkeypatch.chdir(tmp_path)


def settings_of(run: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((run / "config.json").read_text(encoding="utf-8"))
    return record


def test_one_file_is_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("mine.txt").write_text(write_prose(5_000), encoding="utf-8")
    assert exit_status(monkeypatch, "train", "--data", "mine.txt", *SMALL) == 0
    said = capsys.readouterr().out
    assert "tokenizer: GPT-2's is not on this machine, so one is trained on the text" in said
    assert "the last 10% of each document" in said
    assert "warning: little to judge by; --validation-share or --validation gives more" in said
    held_out, sample = said.index("held-out loss in nats per token"), said.index("a sample:")
    assert held_out < said.index("token frequencies alone") < sample < said.index("next:")
    assert said[sample:].split("next:")[0].strip() != "a sample:"
    for line in (line.strip() for line in said[said.index("next:") :].splitlines()[1:]):
        assert line.startswith(("ematrace eval run --data mine.txt", "ematrace generate run", "echo "))
    # What it tells to type next works, on the part that was held out, with the same figures.
    assert exit_status(monkeypatch, "eval", "run", "--data", "mine.txt", "--device", "cpu", "--json") == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["split"] == "validation"
    assert figures["bytes"] < 0.2 * 5_000
    assert f"{figures['cross_entropy']:.3f} ± {(figures['interval'][1] - figures['interval'][0]) / 2:.3f}" in said
    assert exit_status(monkeypatch, "generate", "run", "The", "--max-new-tokens", "3", "--device", "cpu") == 0


def test_a_transformer_has_a_sample_too_however_few_its_positions(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("mine.txt").write_text(write_prose(5_000), encoding="utf-8")
    short = ("--length", "16", "--tokens", "512", "--overrides", *GPT2, "--device", "cpu")
    assert exit_status(monkeypatch, "train", "--preset", "gpt2-tiny", "--data", "mine.txt", *short) == 0
    said = capsys.readouterr().out
    assert said[said.index("a sample:") :].split("next:")[0].strip() != "a sample:"
    assert "stream" not in said


def test_a_run_goes_on_without_its_settings_and_with_its_split(tmp_path: Path) -> None:
    folder = tmp_path / "docs"
    folder.mkdir()
    for i in range(60):
        (folder / f"{i}.txt").write_text(write_prose(300, i), encoding="utf-8")
    config = TrainConfig(data=str(folder), out=tmp_path / "run", overrides=SPEN, device="cpu", sequences=4)
    first = train(config, display=Events(at_step=5))
    assert first.stopped == "SIGTERM"
    before = settings_of(config.out)
    assert 0.1 < before["validation_share"] < 0.3
    assert before["held_out_tails"] is False
    with pytest.raises(ValueError, match="field 'validation_share'"):
        train(replace(config, resume="auto", validation_share=0.5))
    train(replace(config, resume="auto", sequences=None))
    assert settings_of(config.out) == before | {"resume": "auto"}
    recorded = json.loads((config.out / "model" / TRAINING).read_text(encoding="utf-8"))
    assert recorded["validation_share"] == before["validation_share"]


def test_gpt2s_tokenizer_is_taken_where_the_machine_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at_hand = train_bpe(["as if it were GPT-2's"], 270)
    monkeypatch.setattr("ematrace.train.data.local_gpt2", lambda: at_hand)
    Path("mine.txt").write_text(write_prose(5_000), encoding="utf-8")
    config = TrainConfig(data="mine.txt", out=tmp_path / "a", overrides=SPEN, device="cpu", tokens=1024, length=32)
    events = Events()
    train(config, display=events)
    assert f"tokenizer: GPT-2's, {len(at_hand)} entries; --tokenizer bpe trains one on the text" in events.texts
    assert json.loads((tmp_path / "a" / "model" / "config.json").read_text())["vocab_size"] == len(at_hand)
    train(replace(config, out=tmp_path / "b", vocab_size=290))  # whoever names a size wants one trained
    assert json.loads((tmp_path / "b" / "model" / "config.json").read_text())["vocab_size"] == 290


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--data", "missing.txt"), "missing.txt: no such file or folder"),
        (("--data", "missing.txt", "--tokenizer", "gpt2"), "missing.txt: no such file or folder"),
        (("--data", "empty.txt"), "empty.txt: empty corpus, no document has any text"),
        (("--data", "line.txt"), "line.txt: too little text: 7 bytes, and at least 170 are needed"),
        (("--data", "mine.txt", "--preset", "skeleton-tiny", "--overrides", "mixer=nope"), "nope"),
        (("--data", "mine.txt", "--overrides", "n_layer=3"), "field 'n_layer'"),
        (("--data", "mine.txt", "--preset", "gpt2-tiny", "--reset-at-documents"), "reset_at_documents"),
        (("--data", "mine.txt", "--cuda-graphs", "True"), "cuda_graphs"),
        (("--data", "mine.txt", "--tokenizer", "gpt2", "--vocab-size", "300"), "vocab_size: "),
        (("--data", "mine.txt", "--validation", "mine.txt", "--validation-share", "0.1"), "validation_share: "),
        (("--data", "mine.txt", "--validation-share", "1.5"), "validation_share is 1.5"),
    ],
)
def test_what_cannot_work_is_refused_before_any_work(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    message: str,
) -> None:
    Path("mine.txt").write_text(write_prose(5_000), encoding="utf-8")
    Path("empty.txt").touch()
    Path("line.txt").write_text("a line\n", encoding="utf-8")
    before = sorted(tmp_path.iterdir())
    monkeypatch.setattr("ematrace.train.data.train_bpe", lambda *_: pytest.fail("a tokenizer was trained"))
    assert exit_status(monkeypatch, "train", *arguments, "--device", "cpu") == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert message in line
    assert [path for path in sorted(tmp_path.iterdir()) if path.name != "cache"] == before


def test_several_models_are_compared_on_the_same_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("mine.txt").write_text(write_prose(5_000), encoding="utf-8")
    common = {"data": "mine.txt", "overrides": SPEN, "device": "cpu", "length": 32}
    train(TrainConfig(**common, tokens=2048, out=Path("a")))
    train(TrainConfig(**common, tokens=8192, out=Path("b")))
    train(TrainConfig(**common, tokens=2048, out=Path("other"), vocab_size=280))
    capsys.readouterr()
    monkeypatch.setenv("COLUMNS", "80")
    evaluated = ("--data", "mine.txt", "--device", "cpu")
    assert exit_status(monkeypatch, "eval", "a", "b", *evaluated, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    (difference,) = told["differences"]
    ours, theirs = (model["cross_entropy"] for model in told["models"])
    assert difference["mean"] == pytest.approx(theirs - ours)
    assert difference["interval"][0] < difference["mean"] < difference["interval"][1] < 0  # four times the training
    assert difference["unit"] == "nats per token"
    assert exit_status(monkeypatch, "eval", "a", "b", "other", *evaluated, "--max-tokens", "100") == 0
    table = capsys.readouterr().out
    assert "bits per byte" in table
    assert max(len(line) for line in table.splitlines()) <= 80
    for wrong, message in ((("a", "a"), "a is given twice"), ((), "give a run's folder")):
        assert exit_status(monkeypatch, "eval", *wrong, *evaluated) == 2
        assert message in capsys.readouterr().err


def test_a_model_that_held_nothing_out_is_not_said_to_be_scored_on_held_out_text(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("mine.txt").write_text(write_prose(5_000), encoding="utf-8")
    Path("other.txt").write_text(write_prose(3_000), encoding="utf-8")
    common = {"data": "mine.txt", "overrides": SPEN, "device": "cpu", "length": 32, "tokens": 1024, "vocab_size": 280}
    train(TrainConfig(**common, out=Path("a")))
    train(TrainConfig(**common, out=Path("b"), validation="other.txt"))
    capsys.readouterr()
    for models, data, more, warned in (
        (("a", "b"), "mine.txt", (), True),
        (("b",), "mine.txt", (), True),
        (("b",), "mine.txt", ("--split", "train"), False),  # asked for
        (("a",), "mine.txt", (), False),
        (("a", "b"), "other.txt", (), False),
    ):
        assert exit_status(monkeypatch, "eval", *models, "--data", data, "--device", "cpu", "--json", *more) == 0
        lines = [line for line in capsys.readouterr().err.splitlines() if "warning" in line]
        expected = "warning: b/model was trained on all of mine.txt, so its figures are of its training text"
        assert lines == ([expected] if warned else []), (models, data)


def test_a_small_text_gets_shorter_sequences_and_fewer_steps_unless_they_are_given() -> None:
    config = TrainConfig(data="mine.txt", preset="spen-tiny")
    recipe = resolve_recipe(config)
    assert fit_to_text(config, recipe, 2_000_000, 20_000) == recipe
    small = fit_to_text(config, recipe, 1_500, 200)
    assert small.length == 32
    assert small.tokens == 20 * 16 * 32
    assert fit_to_text(replace(config, length=256, tokens=10**6), recipe, 1_500, 200) == recipe


def test_the_help_has_the_presets_values() -> None:
    for size, recipe in RECIPES.items():
        (row,) = [line.split() for line in (TrainConfig.__doc__ or "").splitlines() if line.split()[:1] == [size]]
        assert int(float(row[1].replace("M", "e6").replace("B", "e9"))) == recipe.tokens
        assert [row[2], row[4]] == [str(recipe.sequences), str(recipe.length)]
        assert [float(row[5]), int(row[6]), int(row[7])] == [recipe.lr, recipe.warmup, recipe.checkpoint_every]
