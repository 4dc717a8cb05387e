"""train, eval, generate and stream as a user calls them, on text of a few kilobytes."""

from __future__ import annotations

import io
import json
import math
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file, save_file

from cli_support import exit_status
from ematrace.cli.language import Stream, lines_of, stream_text
from ematrace.cli.train import parse_count
from ematrace.evaluation import evaluate
from ematrace.report.streaming import StreamPrinter
from ematrace.spen import PGHU, SpenStream
from ematrace.spen.decode import applicable_decoder
from ematrace.text import open_source
from ematrace.train import load_model

TRAIN = [
    *("train", "--preset", "spen-tiny", "--data", "builtin", "--tokens", "4096", "--sequences", "4", "--length", "128"),
    *("--vocab-size", "300", "--device", "cpu", "--overrides", "d_model=16", "d_ff=64", "k=4"),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "out"
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("EMATRACE_CACHE", str(folder.parent / "cache"))
        monkeypatch.setattr("ematrace.text.corpora.BUILTIN_BYTES", 300_000)
        assert exit_status(monkeypatch, *TRAIN, "--out", str(folder)) == 0
    return folder


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("def main():\n    return 1\n\nnaïve café <|endoftext|> end\n", encoding="utf-8")
    return path


def test_training_leaves_what_the_other_commands_need(run: Path) -> None:
    assert {p.name for p in run.iterdir()} >= {"config.json", "metrics.jsonl", "summary.json", "model", "checkpoints"}
    names = {p.name for p in (run / "model").iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "training.json", "unigram.safetensors"} <= names
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 8


def test_a_second_run_in_the_same_folder_is_refused(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {p: p.stat().st_mtime_ns for p in run.rglob("*")}
    assert exit_status(monkeypatch, *TRAIN, "--out", str(run)) == 2
    error = capsys.readouterr().err.strip()
    assert "a run is in this folder" in error
    assert "--resume auto" in error
    assert before == {p: p.stat().st_mtime_ns for p in run.rglob("*")}


def test_eval_prints_what_evaluate_finds(
    run: Path, text: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_status(monkeypatch, "eval", str(run), "--data", str(text), "--device", "cpu", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    model, tokenizer = load_model(run / "model")
    expected = evaluate(model, tokenizer, open_source(str(text)))
    assert told["perplexity"] == pytest.approx(expected.total.perplexity)
    assert told["tokens"] == expected.total.tokens
    assert told["split"] == "all"
    assert told["baselines"]["unigram"]["perplexity"] > 1
    assert told["provenance"]["versions"]["torch"] == torch.__version__


def test_eval_keeps_to_the_held_out_part_of_the_training_text(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("ematrace.text.corpora.BUILTIN_BYTES", 300_000)
    assert (
        exit_status(monkeypatch, "eval", str(run), "--data", "builtin", "--device", "cpu", "--max-tokens", "500") == 0
    )
    out = capsys.readouterr().out
    assert "on builtin, the validation part" in out
    assert "unigram" in out
    assert "uniform" in out


def test_the_training_text_is_known_by_any_of_its_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    lines = [json.dumps({"text": f"document {i} " * 40, "id": f"d{i}"}) for i in range(300)]
    (corpus / "texts.jsonl").write_text("\n".join(lines))
    monkeypatch.setenv("EMATRACE_CACHE", str(tmp_path / "cache"))
    settings = ("--tokenizer", "bpe", "--vocab-size", "300", "--tokens", "256", "--sequences", "2", "--length", "32")
    small = ("--overrides", "d_model=8", "d_ff=16", "k=4")
    train = ("train", "--preset", "spen-tiny", "--data", str(corpus), "--out", str(tmp_path / "run"))
    assert exit_status(monkeypatch, *train, *settings, "--device", "cpu", *small) == 0
    capsys.readouterr()
    for data in (str(corpus / "*.jsonl"), str(corpus) + "/"):
        assert exit_status(monkeypatch, "eval", str(tmp_path / "run"), "--data", data, "--device", "cpu", "--json") == 0
        assert json.loads(capsys.readouterr().out)["split"] == "validation"


def test_eval_writes_a_file(run: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "figures.json"
    assert exit_status(monkeypatch, "eval", str(run), "--data", str(text), "--device", "cpu", "--out", str(target)) == 0
    assert json.loads(target.read_text())["documents"] == 1


def test_generate_continues_the_prompt_and_obeys_its_seed(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    outputs = []
    for seed in ("1", "1", "2"):
        options = ("--max-new-tokens", "12", "--temperature", "1.5", "--seed", seed, "--device", "cpu")
        assert exit_status(monkeypatch, "generate", str(run), "def main(", *options) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0].startswith("def main(")
    assert outputs[0] == outputs[1] != outputs[2]


def test_generate_without_temperature_is_greedy(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--max-new-tokens", "5", "--temperature", "0", "--device", "cpu")
    assert exit_status(monkeypatch, "generate", str(run), "import", *options) == 0
    model, tokenizer = load_model(run / "model")
    ids = tokenizer("import", return_tensors="pt").input_ids
    logits = SpenStream(model).feed(ids)[:, -1]
    stream = SpenStream(model)
    stream.feed(ids)
    picked = []
    for _ in range(5):
        picked.append(int(logits.argmax()))
        logits = stream.step(picked[-1])
    assert capsys.readouterr().out.strip() == ("import" + tokenizer.decode(picked, skip_special_tokens=True)).strip()


def test_generate_uses_the_decoder_unless_told_not_to(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    built = []

    def noted(model: Any, n_streams: int = 1) -> Any:
        built.append(n_streams)
        return applicable_decoder(model, n_streams)

    monkeypatch.setattr("ematrace.spen.stream.applicable_decoder", noted)
    texts = []
    for decoder in ("auto", "eager"):
        options = ("--max-new-tokens", "20", "--seed", "3", "--decoder", decoder, "--device", "cpu")
        assert exit_status(monkeypatch, "generate", str(run), "def main(", *options) == 0
        texts.append(capsys.readouterr().out)
        assert built == [1]
    assert texts[0] == texts[1]


def stream(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], content: bytes, *arguments: str
) -> tuple[int, list[dict[str, Any]], str]:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
    code = exit_status(monkeypatch, "stream", *arguments, "--format", "json", "--device", "cpu")
    captured = capsys.readouterr()
    return code, [json.loads(line) for line in captured.out.splitlines()], captured.err


def test_stream_tells_the_surprise_of_each_token(
    run: Path, text: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, rows, error = stream(monkeypatch, capsys, text.read_bytes(), str(run))
    assert code == 0
    assert "".join(row["token"] for row in rows if "\ufffd" not in row["token"]).startswith("def main():\n")
    assert all(row["uncertainty"] is None for row in rows)
    model, tokenizer = load_model(run / "model")
    ids = [
        i
        for line in text.read_text().splitlines(keepends=True)
        for i in tokenizer(line, split_special_tokens=True).input_ids
    ]
    logits = SpenStream(model).feed([tokenizer.eos_token_id, *ids])[0]
    expected = [-float(logits[t].log_softmax(-1)[i]) for t, i in enumerate(ids)]
    assert [row["nats"] for row in rows] == pytest.approx(expected, abs=1e-4)
    perplexity = math.exp(sum(expected) / len(expected))
    assert f"{len(ids)} tokens, perplexity {perplexity:,.1f}" in error


def test_stream_without_the_decoder_says_the_same(
    run: Path, text: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("ematrace.spen.stream.DECODED_STEPS", {"cpu": 64})  # as on a GPU: lines are decoded
    _, rows, _ = stream(monkeypatch, capsys, text.read_bytes(), str(run))
    monkeypatch.setattr("ematrace.spen.stream.applicable_decoder", lambda *model: pytest.fail("asked for a decoder"))
    code, eager, _ = stream(monkeypatch, capsys, text.read_bytes(), str(run), "--decoder", "eager")
    assert code == 0
    assert [row["token"] for row in rows] == [row["token"] for row in eager]
    assert [row["nats"] for row in rows] == pytest.approx([row["nats"] for row in eager], abs=1e-4)


def test_a_stream_goes_on_from_its_state_file(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    state = str(tmp_path / "state.safetensors")
    adapt = ("--adapt", "--pghu.eta", "0.01")
    whole = stream(monkeypatch, capsys, b"import os\nimport sys\n", str(run), *adapt)[1]
    first = stream(monkeypatch, capsys, b"import os\n", str(run), *adapt, "--state", state)[1]
    second = stream(monkeypatch, capsys, b"import sys\n", str(run), *adapt, "--state", state)[1]
    assert all(row["uncertainty"] > 0 for row in whole)
    assert first + second == whole  # with the first token's surprise: the state holds what was predicted


def test_ctrl_c_keeps_the_lines_that_were_read(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Feed(io.BytesIO):
        """Two lines, then the user has seen enough."""

        def __next__(self) -> bytes:
            line = self.readline()
            if not line:
                raise KeyboardInterrupt
            return line

    interrupted, ended = tmp_path / "interrupted.safetensors", tmp_path / "ended.safetensors"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(Feed(b"import os\nimport sys\n")))
    assert exit_status(monkeypatch, "stream", str(run), "--state", str(interrupted), "--device", "cpu") == 130
    capsys.readouterr()
    assert stream(monkeypatch, capsys, b"import os\nimport sys\n", str(run), "--state", str(ended))[0] == 0
    assert same_state(interrupted, ended)


def same_state(ours: Path, expected: Path) -> bool:
    tensors = [load_file(path) for path in (ours, expected)]
    return tensors[0].keys() == tensors[1].keys() and all(torch.equal(t, tensors[1][n]) for n, t in tensors[0].items())


def test_a_stream_keeps_its_state_when_a_line_is_not_utf8(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken, whole = tmp_path / "broken.safetensors", tmp_path / "whole.safetensors"
    code, _, error = stream(monkeypatch, capsys, b"import os\n\xff\n", str(run), "--state", str(broken))
    assert code == 2
    assert "not UTF-8 at byte 10" in error
    assert stream(monkeypatch, capsys, b"import os\n", str(run), "--state", str(whole))[0] == 0
    assert same_state(broken, whole)


def test_a_stream_keeps_its_state_when_the_reader_goes_away(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was shown is kept, the line that nobody read is not."""
    left, whole = tmp_path / "left.safetensors", tmp_path / "whole.safetensors"
    show = StreamPrinter.show

    def gone(self: StreamPrinter, ids: Any, surprise: Any) -> None:
        if self.tokens:
            raise BrokenPipeError
        show(self, ids, surprise)

    with monkeypatch.context() as patched:
        patched.setattr(StreamPrinter, "show", gone)
        patched.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"import os\nimport sys\n")))
        command = Stream(str(run), state=left, format="json", device="cpu")
        with pytest.raises(BrokenPipeError):
            stream_text(command, Console(), Console(stderr=True))
    assert stream(monkeypatch, capsys, b"import os\n", str(run), "--state", str(whole))[0] == 0
    assert same_state(left, whole)


def test_a_diverging_stream_leaves_its_last_good_state(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "state.safetensors"
    options = (str(run), "--adapt", "--pghu.eta", "1e30", "--state", str(state))
    assert stream(monkeypatch, capsys, b"", *options)[0] == 0
    good = state.read_bytes()
    code, _, error = stream(monkeypatch, capsys, b"import os\nimport sys\n", *options)
    assert code == 2
    assert "state.safetensors: not written" in error.replace("\n", "")
    assert state.read_bytes() == good


@pytest.mark.parametrize("name", ["stdin", "stdout"])
def test_a_closed_standard_stream_is_named(name: str, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(sys, name, None)
        with pytest.raises(ValueError, match=r"standard (input|output) is closed"):
            stream_text(Stream(str(run)), Console(file=io.StringIO()), Console(file=io.StringIO()))


def test_stream_on_a_terminal_says_that_it_waits_and_what_its_marks_mean(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.TextIOWrapper):
        def isatty(self) -> bool:
            return True

    out, errors = (Console(file=io.StringIO(), width=200) for _ in range(2))
    monkeypatch.setattr("sys.stdin", Terminal(io.BytesIO(b"import os\n")))
    stream_text(Stream(str(run), format="text", device="cpu"), out, errors)
    said = errors.file.getvalue()  # type: ignore[attr-defined]
    assert said.index("[from 6], [[from 9]]") < said.index("Ctrl-D") < said.index("tokens, perplexity")
    assert "import os" in out.file.getvalue().replace("[", "").replace("]", "")  # type: ignore[attr-defined]


@pytest.mark.parametrize("eta", ["0.5", str(PGHU().eta)])
def test_settings_of_adaptation_without_adapt_are_refused(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], eta: str
) -> None:
    """Also those that are the defaults."""
    code, _, error = stream(monkeypatch, capsys, b"a\n", str(run), "--pghu.eta", eta)
    assert code == 2
    assert "--adapt, which is not given" in error


def test_a_state_of_another_setting_is_refused(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "state.safetensors"
    assert stream(monkeypatch, capsys, b"a\n", str(run), "--state", str(state))[0] == 0
    before = state.read_bytes()
    code, _, error = stream(monkeypatch, capsys, b"a\n", str(run), "--adapt", "--state", str(state))
    assert code == 2
    assert "state.safetensors: pghu is null" in error.replace("\n", "")
    assert state.read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("eval", "nowhere", "--data", "builtin"), "nowhere"),
        (("eval", "{run}", "--data", "missing*.txt"), "missing*.txt"),
        (("eval", "{run}", "--data", "{text}", "--context=-3"), "context is -3"),
        (("eval", "{run}", "--data", "{text}", "--max-tokens=-5"), "max_tokens is -5"),
        (("eval", "{run}", "--data", "{text}", "--device", "mps"), "device is 'mps'"),
        (("eval", "{run}", "--data", "nowhere", "--out", "{tmp}"), "a folder"),
        (("stream", "{run}", "--state", "{tmp}"), "a folder"),
        (("generate", "{run}", "x", "--temperature", "-1"), "--temperature"),
        (("train", "--preset", "spen-huge", "--data", "builtin", "--out", "{tmp}/x"), "spen-huge"),
        (
            ("train", "--preset", "spen-tiny", "--data", "builtin", "--out", "{tmp}/x", "--overrides", "k=999"),
            "k is 999",
        ),
    ],
)
def test_bad_input_is_one_line_and_exit_2(
    arguments: tuple[str, ...],
    message: str,
    run: Path,
    text: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    filled = [a.format(run=run, text=text, tmp=tmp_path) for a in arguments]
    assert exit_status(monkeypatch, *filled) == 2
    error = capsys.readouterr().err.strip()
    assert message in error
    assert "\n" not in error


def test_settings_of_the_rule_are_checked_with_the_other_arguments(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_status(monkeypatch, "stream", str(run), "--adapt", "--pghu.eta", "-1") == 2
    assert "eta is -1" in capsys.readouterr().err


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:1000])


def without_a_tensor(path: Path) -> None:
    tensors = load_file(path)
    del tensors["model.norm.weight"]
    save_file(tensors, path, {"format": "pt"})


@pytest.mark.parametrize(
    ("damage", "file", "message"),
    [
        (cut_short, "model.safetensors", "model.safetensors: "),
        (without_a_tensor, "model.safetensors", "model.safetensors: the weights have no tensor 'model.norm.weight'"),
        (lambda path: path.write_text("{"), "training.json", "training.json: not JSON"),
    ],
)
def test_a_damaged_model_is_refused(
    damage: Callable[[Path], Any],
    file: str,
    message: str,
    run: Path,
    text: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shutil.copytree(run / "model", tmp_path / "model", ignore=shutil.ignore_patterns("manifest.json"))
    damage(tmp_path / "model" / file)
    assert exit_status(monkeypatch, "eval", str(tmp_path / "model"), "--data", str(text), "--device", "cpu") == 2
    error = capsys.readouterr().err.strip()
    assert message in error
    assert "Traceback" not in error


HOSTILE_CODE = {
    "model": {
        "config.json": {
            "model_type": "unheard_of",
            "auto_map": {"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.M"},
        }
    },
    "tokenizer": {
        "tokenizer_config.json": {"tokenizer_class": "EvilTokenizer", "auto_map": {"AutoTokenizer": ["evil.T", None]}}
    },
    "both, as ours": {"config.json": {}, "modeling_ematrace.py": {}},
    "generation": {"custom_generate/generate.py": {}},
}


@pytest.mark.parametrize("kind", HOSTILE_CODE)
@pytest.mark.parametrize("command", ["stream", "eval", "generate"])
def test_code_in_a_model_folder_is_never_run(
    command: str, kind: str, run: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """transformers would ask on standard input, where a "y" of the text to read would pass for consent."""
    hostile, mark = tmp_path / "hostile", tmp_path / "was_run"
    shutil.copytree(run / "model", hostile, ignore=shutil.ignore_patterns("manifest.json"))
    evil = f"open({str(mark)!r}, 'w').close()\n"
    (hostile / "evil.py").write_text(evil)
    for file, fields in HOSTILE_CODE[kind].items():
        path = hostile / file
        path.parent.mkdir(exist_ok=True)
        path.write_text(evil if path.suffix == ".py" else json.dumps(json.loads(path.read_text()) | fields))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"y\n" * 9)))
    more = {"stream": [], "eval": ["--data", str(text)], "generate": ["y", "--max-new-tokens", "1"]}[command]
    code = exit_status(monkeypatch, command, str(hostile), *more, "--device", "cpu")
    assert not mark.exists()
    if kind == "both, as ours":  # ematrace's own classes are used, not the code in the folder
        assert code == 0
    else:
        assert code == 2
        refused_first = command == "stream" and kind == "model"  # by its type
        reason = "only a SPEN" if refused_first else "needs custom code"
        assert reason in " ".join(capsys.readouterr().err.split())


def test_code_of_a_folder_runs_only_on_request(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, mark = tmp_path / "custom", tmp_path / "was_run"
    shutil.copytree(run / "model", folder, ignore=shutil.ignore_patterns("manifest.json"))
    (folder / "mine.py").write_text(f"open({str(mark)!r}, 'w').close()\n")
    config = json.loads((folder / "config.json").read_text()) | HOSTILE_CODE["model"]["config.json"]
    (folder / "config.json").write_text(json.dumps(config).replace("evil.", "mine."))
    options = ("generate", str(folder), "a", "--device", "cpu")
    assert exit_status(monkeypatch, *options) == 2
    assert not mark.exists()
    assert exit_status(monkeypatch, *options, "--trust-remote-code") == 2  # it runs, but defines nothing
    assert mark.exists()


def test_export_writes_a_folder_to_share(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "shared"
    assert exit_status(monkeypatch, "export", str(run), "--out", str(out)) == 0
    assert "trust_remote_code=True" in capsys.readouterr().out
    assert {"README.md", "modeling_ematrace.py", "manifest.json", "tokenizer.json"} <= {p.name for p in out.iterdir()}
    card = (out / "README.md").read_text()
    assert "| preset | spen-tiny |" in card
    assert card == (run / "model" / "README.md").read_text()
    for path in (p for p in out.iterdir() if p.suffix in (".md", ".json", ".py")):
        assert str(run.parent) not in path.read_text()  # nothing of this machine
    ours, shared = (load_model(folder)[0].state_dict() for folder in (run / "model", out))
    assert all(torch.equal(ours[name], tensor) for name, tensor in shared.items())
    assert exit_status(monkeypatch, "export", str(run), "--out", str(out)) == 2
    assert "exists already" in capsys.readouterr().err


def test_a_run_that_has_no_model_yet_names_its_last_checkpoint(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(run, tmp_path / "run", ignore=shutil.ignore_patterns("model"))
    assert exit_status(monkeypatch, "generate", str(tmp_path / "run"), "x") == 2
    told = capsys.readouterr().err.split("its last checkpoint is ")[1].strip()
    assert exit_status(monkeypatch, "generate", told, "x", "--max-new-tokens", "1", "--device", "cpu") == 0


def test_figures_go_to_a_folder_that_is_not_there_yet(
    run: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "new" / "figures.json"
    assert exit_status(monkeypatch, "eval", str(run), "--data", str(text), "--device", "cpu", "--out", str(target)) == 0
    assert target.is_file()


def test_a_prompt_need_not_be_utf8(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert exit_status(monkeypatch, "generate", str(run), "\udcff", "--max-new-tokens", "1", "--device", "cpu") == 0


@pytest.mark.parametrize(
    ("text", "count"),
    [("20000", 20_000), ("54_132_736", 54_132_736), ("1e6", 10**6), ("1.13M", 1_130_000), ("8b", 8 * 10**9)],
)
def test_counts_are_written_as_people_write_them(text: str, count: int) -> None:
    assert parse_count(text) == count


@pytest.mark.parametrize("text", ["", "M", "1.5", "1e-3", "nan", "inf", "1e400", "12x", "1e3M"])
def test_what_is_no_whole_number_is_no_count(text: str) -> None:
    with pytest.raises(ValueError, match="not"):
        parse_count(text)


def test_tokens_of_a_run_and_of_an_evaluation_may_be_counts(
    run: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [*TRAIN, "--out", str(tmp_path / "run"), "--tokenizer", str(run / "tokenizer")]
    del options[options.index("--vocab-size") : options.index("--vocab-size") + 2]  # the tokenizer has its own
    options[options.index("--tokens") + 1] = "0.001M"
    assert exit_status(monkeypatch, *options) == 0
    assert json.loads((tmp_path / "run" / "config.json").read_text())["tokens"] == 1000
    capsys.readouterr()
    arguments = ("eval", str(run), "--data", str(text), "--device", "cpu", "--json", "--max-tokens", "1e1")
    assert exit_status(monkeypatch, *arguments) == 0
    assert json.loads(capsys.readouterr().out)["tokens"] == 10


def test_text_that_is_not_utf8_is_refused_with_its_place() -> None:
    lines = lines_of(io.BytesIO(b"fine\nthen \xff\n"), "standard input")
    assert next(lines) == "fine\n"
    with pytest.raises(ValueError, match="standard input: not UTF-8 at byte 10"):
        next(lines)


@pytest.fixture
def limited(tmp_path: Path, run: Path) -> Path:
    """A transformer that sees 8 tokens."""
    from transformers import GPT2Config, GPT2LMHeadModel

    _, tokenizer = load_model(run / "model")
    config = GPT2Config(vocab_size=300, n_embd=8, n_layer=1, n_head=1, n_positions=8, bos_token_id=0, eos_token_id=0)
    GPT2LMHeadModel(config).save_pretrained(tmp_path / "gpt2")
    tokenizer.save_pretrained(tmp_path / "gpt2")
    return tmp_path / "gpt2"


def test_a_limited_context_is_not_outgrown(
    limited: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_status(monkeypatch, "generate", str(limited), "x", "--max-new-tokens", "7", "--device", "cpu") == 0
    assert exit_status(monkeypatch, "generate", str(limited), "x", "--max-new-tokens", "8", "--device", "cpu") == 2
    assert "sees at most 8 tokens" in capsys.readouterr().err


def test_only_a_spen_streams(limited: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    code, _, error = stream(monkeypatch, capsys, b"a\n", str(limited))
    assert code == 2
    assert "only a SPEN has a state" in error.replace("\n", " ")


@pytest.mark.parametrize("option", ["--trust-remote-code", "--mixer"])
def test_stream_runs_no_code_of_others(option: str, run: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """It would run only to be refused: nothing but a SPEN streams."""
    assert exit_status(monkeypatch, "stream", "--help") == 0
    assert option not in capsys.readouterr().out
    assert exit_status(monkeypatch, "generate", "--help") == 0
    assert option in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("runn", "runn: no such folder; did you mean run?"),
        ("./nope", "./nope: no such folder"),
        ("/a/b", "/a/b: no such"),
    ],
)
def test_a_mistyped_folder_is_not_looked_for_on_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, why: str
) -> None:
    (tmp_path / "run").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ematrace.train.models.hub_is_reachable", lambda: pytest.fail("asked the hub"))
    with pytest.raises(FileNotFoundError) as refused:
        load_model(name)
    assert str(refused.value).startswith(why)
