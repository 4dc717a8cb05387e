"""Damaged files: every file that the project reads, damaged in every way, and used as a user would."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fault_trials.commands import Refused, run_command
from fault_trials.material import EVERY, KILLED_AT, PROMPT, STEPS, config_of, run_kernel, sentences, streamed
from fault_trials.mutations import DELETED, damage
from fault_trials.outcomes import CHANGED, HARMLESS, LOST, RECOVERED, SILENT, Ended, Outcome
from fault_trials.sandbox import Trial, digest, refusal, unexpected

KIND = "damage"
Use = Callable[[Path], str]


@dataclass(frozen=True)
class Target:
    """Files below a folder of the material, and the ways to use them; each returns a digest of its output."""

    name: str
    folder: str
    part: float
    """Of all trials."""
    uses: Mapping[str, Use]
    checked: bool
    """Whether the files carry a checksum: other output than without the damage is a failure."""
    same: str = HARMLESS
    """The outcome if the output is the same."""
    optional: bool = False
    """Whether a missing file means a fresh start, as the state of a stream does."""

    sealed: bool = False
    """Whether the manifest beside a damaged file is brought up to date: whoever made the file made it so."""

    arbitrary: tuple[str, ...] = ()
    """Files that may hold anything of their format, so that only a checksum could tell: other output is no failure."""

    unread: tuple[str, ...] = ()
    """Folders that are not read, whose damage would prove nothing."""

    pattern: str = "*"

    def files(self, root: Path) -> list[Path]:
        """Files and folders."""
        found = sorted(p for p in (root / self.folder).rglob(self.pattern) if p.name != ".lock")
        return [p.relative_to(root) for p in found if not any(name in p.parts for name in self.unread)]

    def trial(self, root: Path, index: int) -> Trial:
        files, uses = self.files(root), list(self.uses)
        path, use = files[index % len(files)], uses[index // len(files) % len(uses)]

        def run() -> Outcome:
            copy(root, self.folder)
            names = {"standard input", *((path.name,) if path.is_file() else (str(path), f"{path.name}/"))}
            if path.name == "manifest.json":  # what it says of another file is wrong: that file is named
                names |= {other.name for other in path.parent.iterdir()}
            if self.sealed:  # made by somebody, not damaged: what is wrong may show anywhere in the folder
                names |= {str(path.parent), *(other.name for other in self.files(root) if (root / other).is_file())}
            what = damage(path, random.Random(f"{self.name}:{index}"))
            if self.sealed:
                seal(path)
            what = f"{use}; {what}"
            try:
                found = self.uses[use](root)
            except (Refused, ValueError, OSError) as error:
                outcome = refusal(str(error), names)
            except Ended as ended:
                whole = path.suffix == "" and what.endswith(DELETED)  # all checkpoints: nothing to go on from
                outcome = Outcome(CHANGED) if whole and ended.outcome.name == LOST else ended.outcome
            except Exception as error:
                outcome = unexpected(error)
            else:
                gone = self.optional and what.endswith(DELETED)
                other = SILENT if self.checked and not gone and path.name not in self.arbitrary else CHANGED
                outcome = Outcome(self.same if found == expected_of(root, self.name, use) else other)
            return Outcome(outcome.name, f"{what}: {outcome.detail}" if outcome.detail else what)

        return Trial(KIND, self.name, index, run)

    def baseline(self, root: Path) -> list[Trial]:
        """A trial for each use that writes what comes out without damage to `<root>/expected`."""

        def of(use: str) -> Callable[[], Outcome]:
            def run() -> Outcome:
                copy(root, self.folder)
                (root / "expected" / f"{self.name}-{use}").write_text(self.uses[use](root))
                return Outcome(HARMLESS)

            return run

        return [Trial("baseline", self.name, i, of(use)) for i, use in enumerate(self.uses)]


def seal(path: Path) -> None:
    """Write size and checksum of the damaged file into its manifest."""
    manifest = path.parent / "manifest.json"
    if path == manifest or not (path.is_file() and manifest.is_file()):
        return
    listed = json.loads(manifest.read_bytes())
    data = path.read_bytes()
    listed["files"][path.name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    manifest.write_text(json.dumps(listed))


def copy(root: Path, folder: str) -> None:
    shutil.copytree(root / folder, folder)
    os.environ["EMATRACE_CACHE"] = str(Path("cache").absolute())


def stream(model: str) -> Use:
    return lambda root: digest(run_command(["stream", model, "--format", "tsv"], PROMPT.encode()))


def generate(model: str) -> Use:
    return lambda root: digest(run_command(["generate", model, "the cat", "--max-new-tokens", "6"]))


def evaluate(model: str) -> Use:
    def use(root: Path) -> str:
        output = run_command(["eval", model, "--data", str(root / "text" / "validation.jsonl"), "--json"])
        record = json.loads(output)
        return digest(json.dumps({k: v for k, v in record.items() if k not in ("provenance", "seconds")}))

    return use


def continue_stream(folder: str, *options: str) -> Use:
    """What comes out, and the state that is written at the end."""

    def use(root: Path) -> str:
        state = Path(folder, "state.safetensors")
        model = str(root / "run" / "model")
        output = run_command(["stream", model, "--state", str(state), "--format", "tsv", *options], PROMPT.encode())
        return digest(output, state.read_bytes())

    return use


def load_spcn(path: str) -> Use:
    def use(root: Path) -> str:
        from ematrace.spcn import SPCN

        model = SPCN.load(path)
        try:
            features = model.transform(sentences(5, seed=9))
            more = model.partial_fit(sentences(3, seed=10)).transform(sentences(5, seed=9))
        except ValueError as error:  # words that are not in its vocabulary: about the sentences, not the file
            return str(error)
        return digest(*(part.tobytes() for part in (*features, *more)))

    return use


class Recorder:
    """Where a resumed run began."""

    def __init__(self) -> None:
        self.first: int | None = None

    def on_start(self, total_steps: int) -> None: ...
    def on_event(self, text: str) -> None: ...
    def close(self) -> None: ...

    def on_step(self, metrics: Mapping[str, Any]) -> None:
        if self.first is None:
            self.first = int(metrics["step"])


def resume(name: str, change: Callable[[Any], Any] = lambda config: config) -> Use:
    """Continue the killed run. It may go back by one checkpoint, and no whole line of its history may be lost."""

    def use(root: Path) -> str:
        from ematrace.train import train

        history = (root / name / "metrics.jsonl").read_bytes().splitlines()
        found = Path(name, "metrics.jsonl")
        present = found.read_bytes().splitlines() if found.is_file() else []
        recorder = Recorder()
        train(change(config_of(root, name)), display=recorder)
        newest = KILLED_AT // EVERY * EVERY
        if recorder.first is not None and recorder.first <= newest - EVERY:
            raise Ended(LOST, f"went back to step {recorder.first - 1}; checkpoints were at {newest - EVERY}, {newest}")
        after = found.read_bytes().splitlines()
        begun = recorder.first or STEPS + 1
        intact = [line for line in history if line in present and json.loads(line)["step"] < begun]
        if lost := [line for line in intact if line not in after]:
            raise Ended(LOST, f"{len(lost)} of {len(history)} lines of metrics.jsonl")
        return run_digest(Path(name))

    return use


def run_digest(out: Path) -> str:
    """Of the last weights and of the optimiser's last averages."""
    from safetensors.numpy import load_file

    last = out / "checkpoints" / f"step-{STEPS:08d}"
    parts: list[bytes] = []
    for path in (out / "model" / "model.safetensors", last / "optimizer.safetensors"):
        for name, tensor in sorted(load_file(path).items()):
            parts += [name.encode(), tensor.tobytes()]
    return digest(*parts)


def open_pack(root: Path) -> str:
    from ematrace.text import load_tokenizer, pack

    tokenizer = load_tokenizer(root / "text" / "tokenizer")
    parts = []
    for name in ("train", "validation"):
        tokens = pack(str(root / "text" / f"{name}.jsonl"), tokenizer)
        parts += [tokens.tokens(0, tokens.n_tokens).tobytes(), tokens.document_starts(0, 64).tobytes()]
    return digest(*parts)


def ledger(root: Path) -> str:
    return digest(run_command(["ledger", "--json", "--local", "none", "--recorded", "cells"]))


def report(root: Path) -> str:
    run_command(["report", "--local", "none", "--recorded", "cells"])
    return digest(Path("report.html").read_bytes())


def sample_grammar(root: Path) -> str:
    from ematrace.grammar import load_grammar

    grammar = load_grammar("A", path="grammar/mine.toml")
    return digest(*(f"{s.words} {s.roles}" for s in grammar.sample(40, seed=0)))


def read_text(root: Path) -> str:
    from ematrace.text import open_source

    return digest(*(f"{d.id} {d.domain} {d.text}" for d in open_source("own/*.*")))


def pipe_text(root: Path) -> str:
    data = Path("own/piped")
    return digest(run_command(["stream", str(root / "run" / "model"), "--format", "json"], data.read_bytes()))


def load_tokenizer_folder(root: Path) -> str:
    from ematrace.text import load_tokenizer

    return digest(str(load_tokenizer("text/tokenizer")(PROMPT).input_ids))


def model_uses(folder: str) -> dict[str, Use]:
    return {"stream": stream(folder), "generate": generate(folder), "eval": evaluate(folder)}


TARGETS = (
    Target("model", "run/model", 0.16, model_uses("run/model"), checked=True),
    Target("model_sealed", "run/model", 0.1, model_uses("run/model"), checked=False, sealed=True),
    Target("model_without_manifest", "plain/model", 0.06, model_uses("plain/model"), checked=False),
    Target("state", "states/frozen", 0.05, {"stream": continue_stream("states/frozen")}, checked=True, optional=True),
    Target(
        "adapting_state",
        "states/adapting",
        0.05,
        {"stream": continue_stream("states/adapting", "--adapt")},
        checked=True,
        optional=True,
    ),
    Target("old_state", "old_state", 0.03, {"stream": continue_stream("old_state")}, checked=False),
    Target("spcn", "spcn", 0.04, {"load": load_spcn("spcn/model.safetensors")}, checked=True),
    Target("old_spcn", "old_spcn", 0.04, {"load": load_spcn("old_spcn/model.safetensors")}, checked=False),
    Target("run", "killed", 0.12, {"resume": resume("killed")}, checked=True, same=RECOVERED),
    Target(
        "run_sealed",
        "killed",
        0.06,
        {"resume": resume("killed")},
        checked=True,
        same=RECOVERED,
        sealed=True,
        arbitrary=("model.safetensors", "optimizer.safetensors"),
        unread=("step-00000003", "step-00000006"),
    ),
    Target("streamed", "streamed", 0.03, {"resume": resume("streamed", streamed)}, checked=True, same=RECOVERED),
    Target("packed", "cache", 0.05, {"open": open_pack}, checked=True, same=RECOVERED),
    Target(
        "machine_code",
        "kernels",
        0.02,
        {"run": lambda root: digest(run_kernel(Path("kernels")))},
        checked=True,
        same=RECOVERED,
        pattern="*.nb?",
    ),
    Target("cells", "cells", 0.04, {"ledger": ledger, "report": report}, checked=False),
    Target("grammar", "grammar", 0.03, {"sample": sample_grammar}, checked=False),
    Target("text", "own", 0.05, {"read": read_text, "stream": pipe_text}, checked=False),
    Target("tokenizer", "text/tokenizer", 0.02, {"load": load_tokenizer_folder}, checked=False),
)


def expected_of(root: Path, target: str, use: str) -> str:
    return (root / "expected" / f"{target}-{use}").read_text()
