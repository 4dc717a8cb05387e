"""What every command says before it does anything: help, version, suggestions; its end by Ctrl-C or a closed pipe."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from cli_support import exit_status
from ematrace import __version__, cli

COMMANDS = ("reproduce", "ledger", "report", "train", "eval", "generate", "stream", "check", "bench")
HELP_OF_ALL = """
import sys
from ematrace.cli.app import COMMANDS, run

for name in COMMANDS:
    try:
        run([name, "--help"])
    except SystemExit as stop:
        assert not stop.code, name
    for module in ("torch", "transformers", "sklearn", "scipy", "numba", "datasets"):
        assert module not in sys.modules, (name, module)
print(*COMMANDS)
"""


@pytest.fixture
def call(monkeypatch, capsys, tmp_path):
    """Run the command in this process: (exit status, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")

    def run(*arguments: str) -> tuple[int, str, str]:
        return exit_status(monkeypatch, *arguments), *capsys.readouterr()

    return run


def ematrace_process(*arguments: str, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "ematrace", *arguments], text=True, check=False, **options)


def test_help_of_every_command_imports_nothing_heavy():
    """What makes it fast; in one process, as each import stays."""
    done = subprocess.run([sys.executable, "-c", HELP_OF_ALL], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert set(COMMANDS) <= set(done.stdout.splitlines()[-1].split())


def test_the_commands_are_listed_in_lines_that_fit(call):
    status, out, err = call("--help")
    assert (status, err) == (0, "")
    assert [name for name in COMMANDS if f"\n  {name} " in out] == list(COMMANDS)
    assert max(map(len, out.splitlines())) <= 80
    assert call() == (2, "", out)


def test_the_version(call):
    status, out, _ = call("--version")
    assert status == 0
    assert out.startswith(f"ematrace {__version__} (Python ")


@pytest.mark.parametrize(
    ("command", "usage"),
    [
        ("generate", "MODEL PROMPT"),
        ("stream", "MODEL"),
        ("check", "MIXER"),
        ("ledger", "[IDS]"),
        ("reproduce", "[NAMES]"),
    ],
)
def test_positional_arguments_have_names(call, command, usage):
    _, out, _ = call(command, "--help")
    (line,) = [line for line in out.splitlines() if line.startswith("usage: ")]
    assert usage in line
    assert "] STR" not in line


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("ledgr",), "no command 'ledgr'; did you mean ledger?"),
        (("--versoin",), "no option '--versoin'; did you mean --version?"),
        (("banana",), "no command 'banana'; `ematrace --help` lists the commands"),
    ],
)
def test_an_unknown_command_is_one_line_with_a_suggestion(call, arguments, expected):
    status, out, err = call(*arguments)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert expected in err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("ledger", "--jsno"), "no option --jsno; did you mean --json?"),
        (("train", "--dat", "builtin"), "no option --dat; did you mean --data?"),  # not only that --data is missing
        (("stream", "m", "--pghu.eat=1"), "no option --pghu.eat; did you mean --pghu.eta?"),
        (("ledger", "--banana"), "no option --banana; `ematrace ledger --help` explains the command"),
        (("check", "ema", "gla"), "'gla': more than the command takes; `ematrace check --help` explains the command"),
        (("generate",), "MODEL and PROMPT are missing; `ematrace generate --help` explains the command"),
        (("train",), "--data is missing; `ematrace train --help` explains the command"),
        (("train", "--data"), "--data: its value is missing; `ematrace train --help` explains the command"),
        (("reproduce", "--seeds", "many"), "--seeds: 'many' is not a whole number"),
        (("generate", "m", "p", "--top-p", "high"), "--top-p: 'high' is not a number"),
        (("generate", "m", "p", "--top-p", "2"), "--top-p is 2; it must be in (0, 1]"),
        (("generate", "m", "p", "--temperature", "-1"), "--temperature is -1; it must not be negative or infinite"),
        (("generate", "m", "p", "--max-new-tokens", "0"), "--max-new-tokens is 0; it must be at least 1"),
        (
            ("eval", "m", "--data", "x", "--max-tokens", "abc"),
            "--max-tokens: 'abc' is not a number; write 5000, 1e6 or 20M",
        ),
        (("reproduce", "--scale", "xpu"), "--scale: 'xpu' is none of cpu, gpu"),
        (("stream", "m", "--format", "jsn"), "--format: 'jsn' is none of auto, text, tsv, json; did you mean json?"),
    ],
)
def test_a_bad_option_is_one_line_that_names_it(call, arguments, expected):
    assert call(*arguments) == (2, "", f"error: {expected}\n")


def test_ctrl_c_while_modules_are_imported_is_no_traceback(call, monkeypatch):
    class Interrupted:
        def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
            if name == "ematrace.cli.app":
                raise KeyboardInterrupt
            return None

    monkeypatch.delitem(sys.modules, "ematrace.cli.app", raising=False)
    monkeypatch.delattr(cli, "app", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupted(), *sys.meta_path])
    status, out, err = call("stream", "--help")
    assert (status, out) == (130, "")
    assert err == "\nstopped; what was finished is kept, nothing else was written\n"


def test_output_that_nobody_reads_is_no_traceback():
    read, write = os.pipe()
    os.close(read)
    try:
        done = ematrace_process("ledger", "--help", stdout=write, stderr=subprocess.PIPE)
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


WRITES_WHEN_ALL_IS_SAID = """
from ematrace.cli import app, main

def answer(command, console, error_console):
    console.print("a line")
    console.print("another")
    command.out.write_text("a model")

for name, (kind, _) in app.COMMANDS.items():
    app.COMMANDS[name] = (kind, answer)
main()
"""


@pytest.mark.parametrize(
    ("arguments", "is_written"),
    [
        (("train", "--data", "x", "--out", "there"), True),
        (("reproduce", "C17", "--out", "there"), True),
        (("report", "--out", "there"), False),
    ],
)
def test_what_writes_files_goes_on_when_nobody_reads_along(tmp_path, arguments, is_written):
    read, write = os.pipe()
    os.close(read)
    try:
        command = [sys.executable, "-c", WRITES_WHEN_ALL_IS_SAID, *arguments]
        done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "there").exists() == is_written


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="needs /dev/full")
def test_a_full_disk_is_one_line():
    with Path("/dev/full").open("w") as full:
        done = ematrace_process("--version", stdout=full, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (2, "error: standard output: No space left on device\n")
