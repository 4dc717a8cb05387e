"""A saved SPEN in the evaluation harness, through its standard `hf` route, on tasks made of local files."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from ematrace.spen import SpenConfig, SpenForCausalLM

pytest.importorskip("lm_eval")

QUESTIONS = [
    {"question": "The sky is", "choices": [" blue", " a very old and heavy stone", " seven"], "answer": 0},
    {"question": "Two and two make", "choices": [" nothing at all", " four", " red"], "answer": 1},
    {"question": "A cat says", "choices": [" moo", " the", " meow"], "answer": 2},
]
PAGES = ["A trace forgets the past a little at every step.", "Größe, naïve, 猫: bytes beyond ASCII.", "One."]

MULTIPLE_CHOICE = """
task: ematrace_choice
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: question
doc_to_choice: choices
doc_to_target: answer
target_delimiter: ""
metric_list: [{{metric: acc}}]
metadata: {{version: 1.0}}
"""
PERPLEXITY = """
task: ematrace_pages
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: page
metric_list: [{{metric: word_perplexity}}, {{metric: byte_perplexity}}, {{metric: bits_per_byte}}]
metadata: {{version: 1.0}}
"""

# What `lm_eval` runs, without the index of the harness's own 14,000 tasks, which takes longer than all the rest, and
# without the list of all that is installed, which it asks pip for.
HARNESS = """
import sys
from functools import partial

import lm_eval.tasks
import torch.utils.collect_env
from lm_eval.__main__ import cli_evaluate

torch.utils.collect_env.get_pip_packages = lambda run: ("pip", "")
lm_eval.tasks.TaskManager = partial(lm_eval.tasks.TaskManager, include_defaults=False)
sys.exit(cli_evaluate())
"""


def train_tokenizer() -> PreTrainedTokenizerFast:
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator([q["question"] for q in QUESTIONS] + PAGES, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<|endoftext|>", model_max_length=64)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """model/ holds a SPEN and its tokenizer, tasks/ two tasks and their data."""
    folder = tmp_path_factory.mktemp("harness")
    tokenizer = train_tokenizer()
    torch.manual_seed(0)
    config = SpenConfig.preset("spen-tiny", vocab_size=len(tokenizer), initializer_range=0.2)
    SpenForCausalLM(config).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    tasks = folder / "tasks"
    tasks.mkdir()
    for name, rows, task in (
        ("choice", QUESTIONS, MULTIPLE_CHOICE),
        ("pages", [{"page": page} for page in PAGES], PERPLEXITY),
    ):
        file = tasks / f"{name}.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        (tasks / f"{name}.yaml").write_text(task.format(file=file), encoding="utf-8")
    return folder


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As HF_HUB_OFFLINE=1, which is read when the libraries are imported."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "datasets")
    monkeypatch.setattr("torch.utils.collect_env.get_pip_packages", lambda run: ("pip", ""))


def log_likelihood(model: SpenForCausalLM, context: list[int], continuation: list[int]) -> float:
    ids = torch.tensor([context + continuation])
    with torch.no_grad():
        log_p = model(ids).logits[0].double().log_softmax(-1)
    return float(sum(log_p[len(context) + i - 1, token] for i, token in enumerate(continuation)))


def expected(folder: Path) -> tuple[list[list[float]], list[float]]:
    """Log-likelihoods of each question's choices, and of each page, from the model's own logits."""
    model = SpenForCausalLM.from_pretrained(folder / "model").eval()
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder / "model")
    choices = []
    for q in QUESTIONS:
        context = tokenizer(q["question"])["input_ids"]
        whole = [tokenizer(q["question"] + choice)["input_ids"] for choice in q["choices"]]
        assert all(ids[: len(context)] == context for ids in whole)
        choices.append([log_likelihood(model, context, ids[len(context) :]) for ids in whole])
    pages = [log_likelihood(model, [tokenizer.eos_token_id], tokenizer(page)["input_ids"]) for page in PAGES]
    return choices, pages


def check(results: dict[str, dict[str, float]], folder: Path) -> None:
    choices, pages = expected(folder)
    right = [int(np.argmax(values)) == q["answer"] for values, q in zip(choices, QUESTIONS, strict=True)]
    assert results["ematrace_choice"]["acc,none"] == pytest.approx(np.mean(right))
    n_bytes = sum(len(page.encode()) for page in PAGES)
    n_words = sum(len(page.split()) for page in PAGES)
    assert results["ematrace_pages"]["bits_per_byte,none"] == pytest.approx(
        -sum(pages) / n_bytes / math.log(2), rel=1e-5
    )
    assert results["ematrace_pages"]["word_perplexity,none"] == pytest.approx(math.exp(-sum(pages) / n_words), rel=1e-4)


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("batch_size", [1, 4])
def test_harness_sees_the_models_own_likelihoods(folder: Path, batch_size: int) -> None:
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    results = simple_evaluate(
        model="hf",
        model_args={"pretrained": str(folder / "model"), "dtype": "float32"},
        tasks=["ematrace_choice", "ematrace_pages"],
        task_manager=TaskManager(include_path=str(folder / "tasks"), include_defaults=False),
        device="cpu",
        batch_size=batch_size,
        bootstrap_iters=0,
    )
    check(results["results"], folder)
    choices, pages = expected(folder)
    for sample, values in zip(results["samples"]["ematrace_choice"], choices, strict=True):
        assert [r[0][0] for r in sample["resps"]] == pytest.approx(values, rel=1e-4)
    for sample, value in zip(results["samples"]["ematrace_pages"], pages, strict=True):
        assert sample["resps"][0][0] == pytest.approx(value, rel=1e-4)


@pytest.mark.slow
def test_command_line_of_the_harness(folder: Path, tmp_path: Path) -> None:
    """A process of its own that has never heard of ematrace; the folder says where the classes are."""
    environment = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(tmp_path / "home"),
        "HF_DATASETS_CACHE": str(tmp_path / "datasets"),
        "OMP_NUM_THREADS": "1",
    }
    arguments = [
        *("--model", "hf", "--model_args", f"pretrained={folder / 'model'},trust_remote_code=True,dtype=float32"),
        *("--tasks", "ematrace_choice,ematrace_pages", "--include_path", str(folder / "tasks")),
        *("--device", "cpu", "--batch_size", "2", "--output_path", str(tmp_path / "out")),
    ]
    done = subprocess.run(
        [sys.executable, "-c", HARNESS, *arguments], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (written,) = (tmp_path / "out").rglob("results*.json")
    check(json.loads(written.read_text())["results"], folder)
