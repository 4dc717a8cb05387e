"""The files that trials damage: a finished run, a killed one, stream states, an SPCN, packed tokens, cells, text."""

from __future__ import annotations

import gzip
import importlib.util
import json
import lzma
import os
import random
import shutil
import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

STEPS, EVERY, KILLED_AT = 12, 3, 11
MODEL = ("d_model=16", "d_ff=32", "n_layers=2", "k=4", "n_heads=2")
WORDS = ["see", "the", "cat", "a", "dog", "runs", "and", "then", "sleeps", "under", "that", "tree", "far", "away"]
PROMPT = "see the cat and then\nthe dog runs under a tree\n"
TREEBANK = "1\tsee\tsee\tVERB\t_\t_\t0\troot\t_\t_\n2\tcats\tcat\tNOUN\t_\t_\t1\tobj\t_\t_\n\n"


def sentences(n: int, seed: int = 0) -> list[list[str]]:
    draw = random.Random(seed)
    return [draw.choices(WORDS, k=draw.randint(4, 30)) for _ in range(n)]


def config_of(root: Path, out: str) -> Any:
    """A run of a few steps. Its text has one place, because a run may not go on with text from elsewhere."""
    from ematrace.train import TrainConfig

    text = root / "text"
    return TrainConfig(
        preset="spen-tiny",
        overrides=MODEL,
        data=str(text / "train.jsonl"),
        validation=str(text / "validation.jsonl"),
        tokenizer=str(text / "tokenizer"),
        out=Path(out),
        tokens=STEPS * 4 * 16,
        sequences=4,
        length=16,
        micro_batch=2,
        validation_sequences=4,
        validate_every=6,
        checkpoint_every=EVERY,
        keep=3,
        device="cpu",
        resume="auto",
    )


def streamed(config: Any) -> Any:
    """The same with text that is read while training, whose held-out part is kept in the run's folder."""
    return replace(config, data=f"hf:json:{config.data}", validation=None)


class KillAt:
    """Kills its own process with SIGKILL after a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_start(self, total_steps: int) -> None: ...
    def on_event(self, text: str) -> None: ...
    def close(self) -> None: ...

    def on_step(self, metrics: Mapping[str, Any]) -> None:
        if metrics["step"] == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def build(root: Path) -> None:
    """Everything under `root`, which is the working directory."""
    os.environ["EMATRACE_CACHE"] = str(root / "cache")
    write_text(root / "text")
    train_models(root)
    write_states(root)
    write_spcn(root / "spcn")
    write_old_formats(root)
    write_kernel(root / "kernels")
    write_cells(root / "cells")
    from ematrace.grammar import reader

    (root / "grammar").mkdir()
    shutil.copy(Path(reader.__file__).with_name("default.toml"), root / "grammar" / "mine.toml")


def write_text(folder: Path) -> None:
    from ematrace.text import train_bpe

    folder.mkdir()
    parts = {
        name: [" ".join(s) for s in sentences(n, seed)] for name, n, seed in (("train", 120, 1), ("validation", 30, 2))
    }
    for name, texts in parts.items():
        rows = [json.dumps({"text": text, "id": f"{name}-{i}"}) + "\n" for i, text in enumerate(texts)]
        (folder / f"{name}.jsonl").write_text("".join(rows))
    train_bpe(parts["train"], 290).save_pretrained(folder / "tokenizer")
    own, plain = folder.parent / "own", "\n".join(parts["validation"]).encode()
    own.mkdir()
    (own / "a.txt").write_bytes(plain)
    (own / "b.jsonl").write_bytes((folder / "validation.jsonl").read_bytes())
    (own / "c.txt.gz").write_bytes(gzip.compress(plain, mtime=0))
    (own / "d.jsonl.xz").write_bytes(lzma.compress((folder / "validation.jsonl").read_bytes()))
    (own / "e.conllu").write_text(TREEBANK * 3)
    (own / "piped").write_bytes(plain[:400])


def train_models(root: Path) -> None:
    """`run` finished; `killed` and `streamed` were killed with SIGKILL in the middle."""
    from ematrace.train import train

    train(config_of(root, "run"))
    shutil.copytree("run/model", "plain/model")
    Path("plain/model/manifest.json").unlink()
    for config in (config_of(root, "killed"), streamed(config_of(root, "streamed"))):
        child = os.fork()
        if child == 0:
            train(config, display=KillAt(KILLED_AT))
            os._exit(1)
        os.waitpid(child, 0)


def write_states(root: Path) -> None:
    from ematrace.spen import PGHU, SpenStream
    from ematrace.train import load_model

    model, tokenizer = load_model(root / "run" / "model")
    for name, pghu in (("frozen", None), ("adapting", PGHU())):
        stream = SpenStream(model.eval(), pghu)
        stream.surprise(tokenizer(PROMPT).input_ids)
        folder = root / "states" / name
        folder.mkdir(parents=True)
        stream.save(folder / "state.safetensors")


KERNEL = """
from ematrace.jit import compiled


@compiled()
def total(x, out):
    for i in range(x.size):
        out[0] += x[i] * i
"""


def write_kernel(folder: Path) -> None:
    """A function of one's own, compiled as the package's are, with its machine code in a cache beside it."""
    folder.mkdir()
    (folder / "kernel.py").write_text(KERNEL)
    run_kernel(folder)


def run_kernel(folder: Path) -> bytes:
    import numpy as np

    spec = importlib.util.spec_from_file_location("kernel", folder / "kernel.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    out = np.zeros(1)
    module.total(np.arange(20.0), out)
    return out.tobytes()


def new_spcn(seed: int) -> Any:
    """A small one, so that its file has a few kilobytes."""
    from ematrace.spcn import SPCN

    return SPCN(vocabulary=tuple(WORDS), widths=(40, 30, 20), random_state=seed)


def write_spcn(folder: Path) -> None:
    folder.mkdir()
    new_spcn(0).fit(sentences(40)).save(folder / "model.safetensors")


def write_old_formats(root: Path) -> None:
    """An SPCN and a state of version 0.1: without checksums, so that what is wrong in them must be found elsewhere."""
    from safetensors import safe_open
    from safetensors.numpy import load_file, save_file

    for name, old, changes in (
        ("spcn/model.safetensors", "old_spcn", {}),
        ("states/frozen/state.safetensors", "old_state", {"format": "ematrace-stream-1"}),
    ):
        with safe_open(root / name, framework="numpy") as file:
            metadata = {key: text for key, text in file.metadata().items() if key != "sha256"} | changes
        if "config" in metadata:
            metadata["config"] = json.dumps(json.loads(metadata["config"]) | {"version": 1})
        tensors = {key: t for key, t in load_file(root / name).items() if key != "predicted"}
        (root / old).mkdir()
        save_file(tensors, root / old / Path(name).name, metadata)


def write_cells(folder: Path) -> None:
    """A few of the recorded results: those of the experiment with the smallest files."""
    from ematrace.results import checkout_root

    root = checkout_root()
    assert root is not None
    for experiment in ("position", "trace_probe"):
        (folder / experiment).mkdir(parents=True)
        for path in sorted((root / "results" / experiment).glob("*.json"))[:3]:
            shutil.copy(path, folder / experiment)
