"""Every snippet and command of README.md runs: small, in a folder of its own, in this process.

What takes minutes is asked for with its own `--dry-run` or `make -n`; what needs a network, several GPUs or a shell is
compared with the files that it names. A command that none of the rules below covers fails.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from cli_support import exit_status
from ematrace.cli.app import COMMANDS
from ematrace.cli.parsing import parse

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PROGRAMS = ("ematrace", "make", "pip", "python", "source", "torchrun", "lm_eval")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


def commands() -> list[str]:
    """Those of the blocks, line by line, and those in the text."""
    lines = [line for block in blocks("sh") for line in block.splitlines() if line.strip()]
    prose = re.sub(r"^```.*?^```", "", README, flags=re.DOTALL | re.MULTILINE)
    quoted = [text for text in re.findall(r"`([^`]+)`", prose) if text.split()[0] in PROGRAMS and " " in text]
    mentioned = {f"ematrace {name}" for name in COMMANDS}  # by name only, with nothing to run
    return [re.sub(r"\s+#.*$", "", line) for line in lines] + [
        command for text in quoted if (command := " ".join(text.split())) not in mentioned
    ]


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that the commands read; what they make stays for those that follow."""
    folder = tmp_path_factory.mktemp("readme")
    (folder / "README.md").write_text(README[:300], encoding="utf-8")
    (folder / "mine.txt").write_text(README * 3, encoding="utf-8")
    # All recorded results take seconds: tests/test_ledger_verdicts.py has their ledger, test_one_file.py their page.
    for experiment in ("position", "trace_probe"):
        (folder / "recorded" / experiment).mkdir(parents=True)
        for path in sorted((ROOT / "results" / experiment).glob("*.json"))[:3]:
            shutil.copy(path, folder / "recorded" / experiment)
    (folder / "examples").mkdir()
    shutil.copy(ROOT / "examples" / "running_sum.py", folder / "examples")
    return folder


@pytest.fixture
def run(here: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    monkeypatch.chdir(here)
    monkeypatch.setenv("EMATRACE_CACHE", str(here / "cache"))
    monkeypatch.setenv("EMATRACE_RESULTS", str(here / "recorded"))
    monkeypatch.setattr("ematrace.text.corpora.BUILTIN_BYTES", 400_000)
    monkeypatch.setattr(sys, "path", [str(here), *sys.path])

    def call(arguments: list[str], stdin: str | None) -> None:
        with (here / (stdin or "README.md")).open(encoding="utf-8") as file:
            monkeypatch.setattr(sys, "stdin", file)
            code = exit_status(monkeypatch, *arguments)
            assert code == 0, f"ematrace {shlex.join(arguments)}: exit code {code}"

    return call


def smaller(arguments: list[str]) -> list[str]:
    """The same command with less to do."""
    match arguments[0]:
        case "train":
            sizes = "--tokens 512 --sequences 4 --length 32 --vocab-size 300 --device cpu --validation-sequences 2"
            return [*arguments, *sizes.split()]
        case "eval":
            return [*arguments, "--max-tokens", "100"]
        case "reproduce" if "--dry-run" not in arguments:
            return [*arguments, "--dry-run"]
    return arguments


def check_installation(words: list[str]) -> None:
    """The files that pip is given are there, and so are the extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert words[:3] == ["pip", "install", "-c"]
    assert (ROOT / words[3].removeprefix("path/to/checkout/")).is_file()
    what = words[-1].removeprefix("path/to/checkout") or "."
    extras = re.fullmatch(r"\.(?:\[(\w+)\])?", what)
    assert extras is not None, what
    assert extras[1] is None or extras[1] in project["optional-dependencies"]


def test_commands_run(run: Callable[..., None], here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unknown = []
    for line in commands():
        words = shlex.split(line)
        match words:
            case ["ematrace", *arguments] if "…" not in arguments:
                stdin = arguments[arguments.index("<") + 1] if "<" in arguments else None
                given = arguments[: arguments.index("<")] if stdin else arguments
                run(smaller(given), stdin)
                assert capsys.readouterr().out.strip(), f"{line}: prints nothing"
            case ["ematrace", "eval", *arguments]:  # two models that nobody has
                assert parse(COMMANDS["eval"][0], "ematrace eval", arguments).data == "…"
            case ["torchrun", "--nproc_per_node", "8", "-m", "ematrace", "train", "…"]:
                pass  # tests/test_train_distributed.py runs two processes
            case ["lm_eval", "--model", "hf", "--model_args", options, "--tasks", "…"]:
                assert options == "pretrained=run/model,trust_remote_code=True"  # as tests/test_spen_lm_eval.py has it
            case ["make", *targets]:
                subprocess.run(["make", "-n", "-C", str(ROOT), *targets], check=True, capture_output=True)
            case ["pip", *_]:
                check_installation(words)
            case ["python", "scripts/faults.py"]:
                pass  # tests/test_faults.py runs its short form
            case ["python", "scripts/write_tables.py"]:
                pass  # tests/test_docs_tables.py checks what it writes
            case ["source", ".venv/bin/activate"]:
                pass
            case _:
                unknown.append(line)
    assert unknown == [], "no test runs these"
    assert (here / "my-spen" / "config.json").is_file()
    assert (here / "state.safetensors").is_file()


def test_snippets_run_and_print(run: Callable[..., None], here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One after the other in one namespace, after the command that trains their model."""
    if not (here / "run").is_dir():
        run(smaller(shlex.split("train --preset spen-tiny --data builtin --out run")), None)
        capsys.readouterr()
    namespace: dict[str, object] = {}
    printed = []
    for block in blocks("python"):
        text = block.replace("sample(2000,", "sample(100,").replace("sample(500,", "sample(40,")
        exec(compile(text, "README.md", "exec"), namespace)
        printed.append(capsys.readouterr().out)
    traces, mixers, spen, spcn = printed
    assert "0.5000" in traces
    listed = re.search(r"print\(\*MIXERS\)  # (.+)", README)
    assert listed is not None
    assert listed[1] in mixers
    assert "---" in spen
    assert "<|endoftext|>" not in spen
    assert re.search(r"\.\d{3} of roles, 95% interval", spcn)


def test_what_the_examples_make_is_ignored_by_git(here: Path) -> None:
    made = ["run/x", "run-hgrn/x", "run-mine/x", "my-spen/x", "state.safetensors", "spcn.safetensors", "report.html"]
    done = subprocess.run(["git", "check-ignore", *made], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode == 128:
        pytest.skip("no git repository here")
    assert done.stdout.split() == made


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert target.startswith("http") or (ROOT / target).exists(), target
