"""The project broken on purpose, in short; and the campaign itself notices each kind of failure."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from ematrace.results import read_file
from fork_support import run_forked

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"
sys.path.insert(0, str(SCRIPTS))

import faults  # noqa: E402
from fault_trials import disk, mutations, reading, sandbox  # noqa: E402
from fault_trials.outcomes import FAILURES, GOOD, SKIPPED, Ended, Outcome  # noqa: E402


def test_short_campaign_has_no_failure() -> None:
    code, out, err = run_forked(SCRIPTS / "faults.py", "--short")
    assert code == 0, out[-4000:] + err[-2000:]
    assert "\n0 failures in " in out


def outcome_of(work: Callable[[], Outcome], folder: Path, seconds: float = 20) -> Outcome:
    ((_, outcome),) = sandbox.run_trials([sandbox.Trial("test", "one", 0, work, seconds)], folder, 1)
    return outcome


def test_sandbox_tells_failures_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "MEMORY_BYTES", 100 * 2**20)

    def grow() -> Outcome:
        held = bytearray(os.urandom(2**20)) * 200
        time.sleep(20)
        return Outcome("harmless", str(len(held)))

    def crash() -> Outcome:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError

    def known() -> Outcome:
        raise Ended("lost", "three steps")

    assert outcome_of(lambda: Outcome("refused", "x"), tmp_path) == Outcome("refused", "x")
    assert outcome_of(lambda: Outcome(str(1 // 0)), tmp_path).name == "traceback"
    assert outcome_of(crash, tmp_path) == Outcome("traceback", "died of signal 9")
    assert outcome_of(known, tmp_path) == Outcome("lost", "three steps")
    assert outcome_of(grow, tmp_path).name == "memory"
    assert outcome_of(lambda: time.sleep(30) or Outcome("harmless"), tmp_path, seconds=0.2).name == "hang"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("use", "checked", "expected"),
    [
        (lambda root: "as before", True, "harmless"),
        (lambda root: "other", True, "silent"),
        (lambda root: "other", False, "changed"),
        (lambda root: str(1 // 0), True, "traceback"),
        (lambda root: (_ for _ in ()).throw(ValueError("things/a.json: broken")), True, "refused"),
        (lambda root: (_ for _ in ()).throw(ValueError("broken")), True, "unclear"),
        (lambda root: (_ for _ in ()).throw(OSError("things/a.json:\nbroken")), True, "unclear"),
    ],
)
def test_damage_is_judged_by_what_comes_out(
    use: reading.Use, checked: bool, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    material, here = tmp_path / "material", tmp_path / "here"
    for folder in (material / "things", material / "expected", here):
        folder.mkdir(parents=True)
    (material / "things" / "a.json").write_text('{"a": 1}')
    (material / "expected" / "mine-use").write_text("as before")
    monkeypatch.chdir(here)
    monkeypatch.setenv("EMATRACE_CACHE", "")
    target = reading.Target("mine", "things", 1.0, {"use": use}, checked=checked)
    outcome = target.trial(material, 3).run()
    assert outcome.name == expected
    assert outcome.failed == (expected in FAILURES) == (expected not in GOOD)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("this run cannot be read", "unclear"),
        ("config.json.part: broken", "unclear"),
        ("my-config.json: broken", "unclear"),
        ("config.json: broken", "refused"),
        ("/somewhere/run/model/config.json: broken", "refused"),
        ("vocab.json does not fit", "refused"),
        ("run/model: not a model", "refused"),
        ("run/models: not a model", "unclear"),
    ],
)
def test_a_refusal_names_a_file(message: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    material, here = tmp_path / "material", tmp_path / "here"
    for folder in (material / "run" / "model", here):
        folder.mkdir(parents=True)
    for name in ("config.json", "vocab.json"):
        (material / "run" / "model" / name).write_text("{}")
    monkeypatch.chdir(here)
    monkeypatch.setenv("EMATRACE_CACHE", "")

    def refuse(root: Path) -> str:
        raise ValueError(message)

    target = reading.Target("mine", "run/model", 1.0, {"use": refuse}, checked=False, sealed=True)
    assert target.trial(material, 0).run().name == expected


def test_arbitrary_content_is_no_failure_and_other_files_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    material = tmp_path / "material"
    for folder in (material / "run", material / "expected"):
        folder.mkdir(parents=True)
    for name in ("a.json", "b.bin"):
        (material / "run" / name).write_text("{}")
    (material / "expected" / "mine-use").write_text("as before")
    monkeypatch.setenv("EMATRACE_CACHE", "")
    target = reading.Target("mine", "run", 1.0, {"use": lambda root: "other"}, checked=True, arbitrary=("b.bin",))
    ended = []
    for index in range(2):
        here = tmp_path / f"here-{index}"
        here.mkdir()
        monkeypatch.chdir(here)
        ended.append(target.trial(material, index).run().name)
    assert ended == ["silent", "changed"]


@pytest.mark.parametrize(
    ("full", "after", "expected"),
    [
        ("right", "right", "harmless"),
        (OSError("small/x: no space left"), "right", "refused"),
        (OSError("the disk is small"), "right", "unclear"),
        ("wrong", "right", "silent"),
        ("right", "wrong", "silent"),
        (OSError("small/x: no space left"), "wrong", "silent"),
    ],
)
def test_tokens_after_a_full_disk_are_compared(
    full: str | OSError, after: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "expected").mkdir()
    (tmp_path / "expected" / "packed-open").write_text("right")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EMATRACE_CACHE", "")
    opened = iter((full, after))

    def open_pack(root: Path) -> str:
        found = next(opened)
        if isinstance(found, OSError):
            raise found
        return found

    monkeypatch.setattr(disk, "open_pack", open_pack)
    monkeypatch.setattr(disk, "mount", lambda size, flags=0: None)
    assert disk.run_disk("pack", tmp_path, random.Random(0)).name == expected


def test_what_was_skipped_is_no_trial(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    counts = Counter({("disk", "pack", SKIPPED): 5, ("disk", "train", "refused"): 2, ("disk", "train", "lost"): 1})
    faults.show(counts, 1.0)
    out = capsys.readouterr().out
    assert "disk/pack: 5 skipped" in out
    assert "1 failures in 3 trials, 1 s\n5 more could not be made" in out
    rows = {row.factors["target"]: row.metrics for row in read_file(faults.record(counts, 1.0, tmp_path)).cells}
    assert (rows["pack"]["trials"].value, rows["pack"]["skipped"].value) == (0, 5)
    assert (rows["train"]["trials"].value, rows["train"]["failures"].value) == (3, 1)
    assert SKIPPED not in GOOD + FAILURES


@pytest.mark.parametrize("name", ["a.json", "b.jsonl", "c.safetensors", "d.bin"])
def test_every_mutation_changes_the_file(name: str, tmp_path: Path) -> None:
    header = b'{"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}'
    contents = {
        "a.json": b'{"a": [1, 2, {"b": null}], "c": "text"}',
        "b.jsonl": b'{"a": 1}\n{"a": 2}\n',
        "c.safetensors": len(header).to_bytes(8, "little") + header + bytes(range(8)),
        "d.bin": bytes(range(200)),
    }
    path, seen = tmp_path / name, set()
    for seed in range(150):
        path.write_bytes(contents[name])
        what = mutations.damage(path, random.Random(seed))
        seen.add(what.split(": ")[1].split(" = ")[0])
        same = path.is_file() and not path.is_symlink() and path.read_bytes() == contents[name]
        assert not same or "zeroed" in what or " = " in what, what
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        path.unlink(missing_ok=True)
    assert len(seen) >= len(mutations.BYTES) + len(mutations.PLACES)
