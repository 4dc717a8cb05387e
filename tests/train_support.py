"""What the tests of training share: a small text with its tokenizer, tiny models, runs in processes of their own."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from ematrace.text import train_bpe
from ematrace.train import TrainConfig
from ematrace.train.checkpoints import list_checkpoints

HERE = Path(__file__).parent
WORDS = ("see", "the", "cat", "a", "dog", "runs", "and", "then", "sleeps", "under", "that", "tree", "far", "away")
VOCABULARY = 290
GPT2 = ("n_embd=16", "n_layer=1", "n_head=2")
SPEN = ("d_model=16", "d_ff=32", "n_layers=2", "k=4", "n_heads=2")


def write_text(folder: Path) -> Path:
    """train.jsonl, validation.jsonl and tokenizer/ in `folder`: a Markov chain over a few words, in short documents."""
    rng = np.random.default_rng(0)

    def documents(n: int) -> list[str]:
        made = []
        for _ in range(n):
            steps = rng.integers(1, 4, rng.integers(10, 60))
            made.append(" ".join(WORDS[i] for i in np.cumsum(steps) % len(WORDS)))
        return made

    parts = {"train": documents(200), "validation": documents(30)}
    for name, texts in parts.items():
        rows = (json.dumps({"text": text, "id": f"{name}-{i}"}) + "\n" for i, text in enumerate(texts))
        (folder / f"{name}.jsonl").write_text("".join(rows), encoding="utf-8")
    train_bpe(parts["train"], VOCABULARY).save_pretrained(folder / "tokenizer")
    return folder


def write_prose(n_characters: int, seed: int = 0) -> str:
    """Sentences of a few words, a Markov chain as above, cut to length."""
    rng = np.random.default_rng(seed)
    sentences, made = [], 0
    while made < n_characters:
        sentences.append(" ".join(WORDS[i] for i in np.cumsum(rng.integers(1, 4, rng.integers(5, 15))) % len(WORDS)))
        made += len(sentences[-1]) + 2
    return ".\n".join(sentences)[:n_characters]


class Events:
    """A display that keeps what it was told, and can raise a signal at a step."""

    def __init__(self, at_step: int | None = None, number: int = signal.SIGTERM) -> None:
        self.texts: list[str] = []
        self.at_step, self.number = at_step, number

    def on_start(self, total_steps: int) -> None: ...

    def on_step(self, metrics: Mapping[str, Any]) -> None:
        if metrics["step"] == self.at_step:
            signal.raise_signal(self.number)

    def on_event(self, text: str) -> None:
        self.texts.append(text)

    def close(self) -> None: ...


@contextmanager
def no_file_larger_than(n_bytes: int) -> Iterator[None]:
    """An error instead of a signal: like a disk that fills up."""
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


def tiny_config(text: Path, out: Path, **changes: Any) -> TrainConfig:
    """20 steps of 4 sequences of 16 tokens in two micro-batches, a checkpoint every 5."""
    settings: dict[str, Any] = {
        "preset": "gpt2-tiny",
        "overrides": SPEN if changes.get("preset", "").startswith("spen") else GPT2,
        "data": str(text / "train.jsonl"),
        "validation": str(text / "validation.jsonl"),
        "tokenizer": str(text / "tokenizer"),
        "out": out,
        "tokens": 20 * 4 * 16,
        "sequences": 4,
        "length": 16,
        "micro_batch": 2,
        "validation_sequences": 6,
        "validate_every": 10,
        "checkpoint_every": 5,
        "device": "cpu",
    }
    return TrainConfig(**settings | changes)


def curve(out: Path, *names: str) -> list[tuple[Any, ...]]:
    """Fields of metrics.jsonl, by default all that do not depend on the clock, as they stand in the file."""
    chosen = names or ("step", "tokens", "loss", "cross_entropy", "lr", "grad_norm", "validation_cross_entropy")
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [tuple(line.get(name) for name in chosen) for line in lines]


def digest(out: Path) -> str:
    """SHA-256 of the final weights, of the optimiser's last averages and of the curve: equal only if bitwise equal."""
    sha = hashlib.sha256(repr(curve(out)).encode())
    last = list_checkpoints(out / "checkpoints")[-1]
    for path in (out / "model" / "model.safetensors", last / "optimizer.safetensors"):
        for name, tensor in sorted(load_file(path).items()):
            sha.update(name.encode() + tensor.tobytes())
    return sha.hexdigest()


def as_json(config: TrainConfig) -> str:
    return json.dumps(asdict(config) | {"out": str(config.out)})


def from_json(text: str) -> TrainConfig:
    record = json.loads(text)
    lists = {name: tuple(record[name]) for name in ("overrides", "betas")}
    return TrainConfig(**record | lists | {"out": Path(record["out"])})


def environment(**extra: str) -> dict[str, str]:
    fixed = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    return {**os.environ, **fixed, **extra}


def start(script: str, *arguments: str, processes: int = 1, env: Mapping[str, str] = {}) -> subprocess.Popen[str]:
    """A script of this folder in a process of its own, or in several under torchrun."""
    launcher: Sequence[str] = ()
    if processes > 1:
        launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes))
    command = [sys.executable, *launcher, str(HERE / script), *arguments]
    return subprocess.Popen(
        command,
        env=environment(**env),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=HERE,
        start_new_session=True,  # so that a launcher that hangs is ended with its children
    )


def finish(process: subprocess.Popen[str], timeout: float = 120) -> tuple[int, str, str]:
    try:
        out, err = process.communicate(timeout=timeout)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    return process.returncode, out, err
