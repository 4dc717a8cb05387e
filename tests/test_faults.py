"""The project broken on purpose, in short; and the campaign itself notices each kind of failure."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"
sys.path.insert(0, str(SCRIPTS))

from fault_trials import mutations, reading, sandbox  # noqa: E402
from fault_trials.outcomes import FAILURES, GOOD, Ended, Outcome  # noqa: E402


def test_short_campaign_has_no_failure() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / "faults.py"), "--short"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "\n0 failures in " in done.stdout


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


@pytest.mark.parametrize("name", ["a.json", "b.jsonl", "c.safetensors", "d.bin"])
def test_every_mutation_changes_the_file(name: str, tmp_path: Path) -> None:
    import random

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
