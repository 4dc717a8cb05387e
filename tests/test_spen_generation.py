"""SPEN in the hands of transformers: saved folders, generation with a recurrent state, Trainer, pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
    pipeline,
)

import ematrace
from ematrace.spen import SpenConfig, SpenForCausalLM, SpenModel
from spen_support import EXACT, PREDICTORS, ROWS, V, build, draw, each_predictor, pad

# Files.


def test_saved_and_read_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = build("linear", "inputs", residual="direct").float()
    model.save_pretrained(tmp_path)
    written = {"config.json", "generation_config.json", "model.safetensors", "modeling_ematrace.py", "README.md"}
    assert {file.name for file in tmp_path.iterdir()} == written
    ids = draw(2, 9)
    for read in (SpenForCausalLM.from_pretrained(tmp_path), AutoModelForCausalLM.from_pretrained(tmp_path)):
        assert type(read) is SpenForCausalLM
        assert read.lm_head.weight is read.model.embed_tokens.weight
        assert torch.equal(read(ids).logits, model(ids).logits)
    assert type(AutoConfig.from_pretrained(tmp_path)) is SpenConfig
    backbone = AutoModel.from_pretrained(tmp_path)
    assert type(backbone) is SpenModel
    assert torch.equal(backbone(ids).last_hidden_state, model.model(ids).last_hidden_state)
    assert not [r for r in caplog.records if r.levelname in ("WARNING", "ERROR")]


def test_nothing_is_missing_or_left_over_in_the_file(tmp_path: Path) -> None:
    for predictor, reads in PREDICTORS:
        build(predictor, reads).save_pretrained(tmp_path / f"{predictor}-{reads}")
        _, info = SpenForCausalLM.from_pretrained(tmp_path / f"{predictor}-{reads}", output_loading_info=True)
        assert not any(info.values())


def test_a_folder_of_shards_and_another_dtype(tmp_path: Path) -> None:
    model = build()
    model.save_pretrained(tmp_path, max_shard_size="5KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    assert torch.equal(SpenForCausalLM.from_pretrained(tmp_path)(draw(1, 4)).logits, model(draw(1, 4)).logits)
    assert SpenForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16).dtype == torch.bfloat16


def test_no_pickle_anywhere() -> None:
    """But for numba's cache of machine code, which is pickled by numba and made on this machine."""
    for file in Path(ematrace.__file__).parent.rglob("*.py"):
        if file.name == "jit.py":
            continue
        text = file.read_text(encoding="utf-8")
        unsafe = ("torch.save(", "torch.load(", "import pickle", "joblib.dump", "joblib.load")
        assert not [word for word in unsafe if word in text], file


# Generation.


def greedy(model: SpenForCausalLM, ids: Tensor, n: int) -> Tensor:
    """The oracle: a full pass for every token."""
    ids = ids[None]
    for _ in range(n):
        ids = torch.cat([ids, model(ids, use_cache=False).logits[:, -1:].argmax(-1)], 1)
    return ids[0]


@each_predictor
def test_generate_is_a_loop_of_full_passes(predictor: str, reads: str) -> None:
    model = build(predictor, reads)
    rows = ROWS[:3]
    expected = [greedy(model, row, 8) for row in rows]
    for row, wanted in zip(rows, expected, strict=True):
        assert torch.equal(model.generate(row[None], max_new_tokens=8, do_sample=False)[0], wanted)
        uncached = model.generate(row[None], max_new_tokens=8, do_sample=False, use_cache=False)[0]
        assert torch.equal(uncached, wanted)
    ids, mask = pad(rows, "left")
    for use_cache in (True, False):
        out = model.generate(ids, attention_mask=mask, max_new_tokens=8, do_sample=False, use_cache=use_cache)
        for i, (row, wanted) in enumerate(zip(rows, expected, strict=True)):
            assert torch.equal(out[i, -8 - len(row) :], wanted)


def test_generate_from_embeddings() -> None:
    model = build()
    embedded = model.get_input_embeddings()(ROWS[0][None])
    for use_cache in (True, False):
        out = model.generate(inputs_embeds=embedded, max_new_tokens=6, do_sample=False, use_cache=use_cache)
        assert torch.equal(out[0], greedy(model, ROWS[0], 6)[len(ROWS[0]) :])


def test_generate_runs_each_token_once() -> None:
    model = build()
    lengths: list[int] = []
    model.model.register_forward_pre_hook(lambda module, args: lengths.append(args[0].shape[1]))
    model.generate(ROWS[0][None], max_new_tokens=5, do_sample=False)
    assert lengths == [9, 1, 1, 1, 1]


@each_predictor
def test_generate_continues_from_a_returned_state(predictor: str, reads: str) -> None:
    model = build(predictor, reads)
    prompt = ROWS[0][None]
    wanted = greedy(model, ROWS[0], 10)
    half = model.generate(prompt, max_new_tokens=5, do_sample=False, return_dict_in_generate=True)
    rest = model.generate(half.sequences, past_key_values=half.past_key_values, max_new_tokens=5, do_sample=False)
    assert torch.equal(rest[0], wanted)


@each_predictor
def test_beam_search_with_and_without_the_cache(predictor: str, reads: str) -> None:
    model = build(predictor, reads)
    ids, mask = pad(ROWS[:2], "left")
    arguments = {"attention_mask": mask, "max_new_tokens": 6, "num_beams": 3, "do_sample": False}
    arguments |= {"return_dict_in_generate": True, "output_scores": True}
    cached, uncached = (model.generate(ids, use_cache=use, **arguments) for use in (True, False))
    assert torch.equal(cached.sequences, uncached.sequences)
    torch.testing.assert_close(cached.sequences_scores, uncached.sequences_scores, **EXACT)


def test_beam_search_scores_are_log_probabilities() -> None:
    model = build()
    prompt = ROWS[1]
    out = model.generate(
        prompt[None], max_new_tokens=4, num_beams=4, do_sample=False, length_penalty=0.0,
        return_dict_in_generate=True, output_scores=True,
    )  # fmt: skip
    log_p = model(out.sequences).logits.log_softmax(-1)[0].detach()
    n = len(prompt)
    total = sum(log_p[t - 1, out.sequences[0, t]] for t in range(n, n + 4))
    assert out.sequences_scores.item() == pytest.approx(float(total), abs=1e-5)


def test_sampling_follows_the_seed() -> None:
    model = build(initializer_range=0.05)
    ids, mask = pad(ROWS[:2], "left")

    def sample(seed: int, **arguments: Any) -> Tensor:
        torch.manual_seed(seed)
        return model.generate(ids, attention_mask=mask, max_new_tokens=12, do_sample=True, **arguments)

    assert torch.equal(sample(1), sample(1))
    assert not torch.equal(sample(1), sample(2))
    assert torch.equal(sample(1), sample(1, use_cache=False))
    several = sample(3, num_return_sequences=3)
    assert several.shape[0] == 6
    assert not torch.equal(several[0], several[1])


def test_generation_stops_at_the_end_of_text() -> None:
    model = build()
    eos = int(greedy(model, ROWS[0], 3)[-1])
    out = model.generate(ROWS[0][None], max_new_tokens=20, do_sample=False, eos_token_id=eos, pad_token_id=0)
    assert out.shape[1] <= 9 + 3
    assert out[0, -1] == eos


# Trainer and pipeline.


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    words = {"<|endoftext|>": 0, **{chr(96 + i): i for i in range(1, 27)}}
    inner = Tokenizer(models.WordLevel(words, unk_token="<|endoftext|>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token="<|endoftext|>", pad_token="<|endoftext|>", padding_side="left"
    )


def test_trainer_learns(tmp_path: Path) -> None:
    model = build(initializer_range=0.02).float()
    data = [{"input_ids": row, "labels": row} for row in (np.arange(8) + i for i in range(8))]
    before = model(torch.arange(8)[None], labels=torch.arange(8)[None]).loss.item()
    arguments = TrainingArguments(
        output_dir=str(tmp_path), max_steps=12, per_device_train_batch_size=4, gradient_accumulation_steps=2,
        learning_rate=0.02, report_to=[], use_cpu=True, disable_tqdm=True, save_strategy="no",
        eval_strategy="steps", eval_steps=6,
    )  # fmt: skip
    trainer = Trainer(model, arguments, train_dataset=data, eval_dataset=data[:3])
    result = trainer.train()
    assert np.isfinite(result.training_loss)
    after = model.eval()(torch.arange(8)[None], labels=torch.arange(8)[None]).loss.item()
    assert after < 0.8 * before
    reported = trainer.evaluate()["eval_loss"]  # without label_names: the Trainer finds out by itself
    inputs = torch.tensor(np.stack([row["labels"] for row in data[:3]]))
    assert reported == pytest.approx(model(inputs, labels=inputs).loss.item(), rel=1e-5)
    assert reported < before
    predicted = trainer.predict(data)
    assert predicted.predictions.shape == (8, 8, V)
    assert predicted.label_ids.shape == (8, 8)


def test_pipeline_generates_text(tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    model = build().float()
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    generate = pipeline("text-generation", model=str(tmp_path), device="cpu")
    prompts = ["a b c", "d"]
    texts = generate(prompts, max_new_tokens=4, do_sample=False, batch_size=2, return_full_text=False)
    for prompt, text in zip(prompts, texts, strict=True):
        ids = torch.tensor(tokenizer(prompt)["input_ids"])
        wanted = greedy(model, ids, 4)[len(ids) :]
        assert text[0]["generated_text"].split() == tokenizer.decode(wanted, skip_special_tokens=True).split()
