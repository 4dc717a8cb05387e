"""Perplexity against direct computation: documents, windows, domains, positions, intervals."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from ematrace.baselines.language import Unigram
from ematrace.evaluation import (
    BLOCK,
    LEAST_DOCUMENTS,
    Evaluation,
    Score,
    as_json,
    difference,
    evaluate,
    first_tokens,
    model_folder,
    score_rows,
    target_nats,
)
from ematrace.intervals import seed_interval
from ematrace.spen import SpenConfig, SpenForCausalLM
from ematrace.text import Document, DocumentEncoder, train_bpe

WORDS = [
    "the",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "a",
    "lazy",
    "dog",
    "and",
    "then",
    "sleeps",
    "for",
    "hours",
    "under",
    "old",
    "trees",
]


def prose(n_words: int, seed: int) -> str:
    return " ".join(np.random.default_rng(seed).choice(WORDS, n_words))


@pytest.fixture(scope="module")
def documents() -> list[Document]:
    sizes = [1, 3, 40, 7, 90, 12]
    texts = [prose(n, i) + " à l'œil nu" * (i == 3) for i, n in enumerate(sizes)]  # more bytes than characters
    return [Document(text, f"d{i}", "even" if i % 2 == 0 else "odd") for i, text in enumerate(texts)]


@pytest.fixture(scope="module")
def tokenizer(documents: list[Document]) -> Any:
    return train_bpe(documents, 300)


@pytest.fixture(scope="module")
def spen(tokenizer: Any) -> SpenForCausalLM:
    torch.manual_seed(0)
    config = SpenConfig.preset("spen-tiny", vocab_size=len(tokenizer), d_model=16, d_ff=64, k=4, initializer_range=0.1)
    return SpenForCausalLM(config).double()


def nats_by_hand(model: Any, ids: np.ndarray, eos: int) -> np.ndarray:
    """Token t from end-of-text and the tokens before it, each by a forward pass of its own."""
    nats = []
    with torch.no_grad():
        for t in range(len(ids)):
            context = torch.tensor([[eos, *ids[:t]]])
            nats.append(-float(model(context).logits[0, -1].log_softmax(-1)[ids[t]]))
    return np.array(nats)


def test_every_token_of_every_document_is_scored_once(
    spen: Any, tokenizer: Any, documents: list[Document], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ematrace.evaluation.RECURRENT_STEPS", 16)  # the longest go through in several parts
    monkeypatch.setattr("ematrace.evaluation.DOCUMENTS_SORTED", 4)
    encoder = DocumentEncoder(tokenizer)
    by_hand = {
        d.id: nats_by_hand(spen.eval(), ids, encoder.eos_id)
        for d, ids in zip(documents, encoder.encode([d.text for d in documents]), strict=True)
    }
    result = evaluate(spen, tokenizer, documents, batch_tokens=40)
    everything = np.concatenate(list(by_hand.values()))
    assert result.total.tokens == len(everything)
    assert result.total.cross_entropy == pytest.approx(everything.mean(), abs=1e-9)
    for domain, score in result.domains.items():
        own = np.concatenate([by_hand[d.id] for d in documents if d.domain == domain])
        assert score.nats == pytest.approx(own.sum(), abs=1e-8)
    for start, score in result.positions.items():
        own = np.concatenate([nats[start : max(2 * start, 1)] for nats in by_hand.values()])
        assert (score.tokens, score.nats) == (len(own), pytest.approx(own.sum(), abs=1e-8))
    n_bytes = sum(len(d.text.encode()) for d in documents)
    assert result.bits_per_byte == pytest.approx(everything.sum() / math.log(2) / n_bytes)


def test_a_limited_context_slides_by_half(tokenizer: Any) -> None:
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=300, n_positions=16, n_embd=8, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
    model = GPT2LMHeadModel(config).double().eval()
    ids = np.random.default_rng(0).integers(1, 300, 53)
    scores = score_rows(model, [ids, ids[:20]], eos_id=0)
    inputs = np.concatenate([[0], ids])

    def seen(t: int, context: int) -> float:
        window = torch.from_numpy(inputs[t + 1 - context : t + 1]).unsqueeze(0)
        with torch.no_grad():
            return -float(model(window).logits[0, -1].log_softmax(-1)[ids[t]])

    for t, score in enumerate(scores[0]):
        most = min(t + 1, 16)
        possible = [seen(t, context) for context in range(min(most, 9), most + 1)]  # at least half the window
        assert min(abs(score - p) for p in possible) < 1e-9
    assert [len(s) for s in scores] == [53, 20]
    shorter = score_rows(model, [ids], eos_id=0, context=4)[0]
    assert shorter[0] == pytest.approx(scores[0][0])
    assert not np.allclose(shorter[8:], scores[0][8:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_nats_of_targets_are_those_of_a_softmax_in_float64(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    logits = (2 * torch.randn(2, 20, 50_257)).to(dtype)
    targets = torch.randint(0, 50_257, (2, 21))[:, 1:]  # as of windows: not contiguous
    wanted = -logits.double().log_softmax(-1).gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    found = target_nats(logits, targets)
    assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    torch.testing.assert_close(found.double(), wanted, atol=1e-12 if dtype == torch.float64 else 5e-6, rtol=0)


@pytest.mark.parametrize("steps", [1, 16, 40, 1000])
def test_scores_do_not_depend_on_how_much_goes_through_at_once(spen: Any, steps: int) -> None:
    """Windows by the rule of the module's docstring, each by itself; a carried state by one pass over everything."""
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=300, n_positions=16, n_embd=8, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
    gpt2 = GPT2LMHeadModel(config).double().eval()
    ids = np.random.default_rng(0).integers(1, 250, (2, 75))
    inputs = torch.from_numpy(np.concatenate([np.zeros((2, 1), dtype=int), ids[:, :-1]], 1))

    def log_p(model: Any, start: int, stop: int) -> np.ndarray:
        with torch.no_grad():
            found = model(inputs[:, start:stop]).logits.log_softmax(-1)
        return np.take_along_axis(found.numpy(), ids[:, start:stop, None], 2)[..., 0]

    wanted = log_p(gpt2, 0, 16)
    while wanted.shape[1] < 75:
        start = min(wanted.shape[1] - 8, 75 - 16)
        wanted = np.concatenate([wanted, log_p(gpt2, start, start + 16)[:, wanted.shape[1] - start :]], 1)
    passes = []
    gpt2.register_forward_pre_hook(lambda *_: passes.append(1))
    found = score_rows(gpt2, [ids[0], ids[1, :30]], eos_id=0, steps=steps)
    np.testing.assert_allclose(found[0], -wanted[0], atol=1e-12)
    np.testing.assert_allclose(found[1], -wanted[1, :30], atol=1e-12)
    assert len(passes) == math.ceil(9 / max(1, steps // 16))  # windows start at 0, 8, ..., 56 and 59
    found = score_rows(spen.eval(), list(ids), eos_id=0, steps=steps)
    np.testing.assert_allclose(found, -log_p(spen, 0, 75), atol=1e-9)


def test_a_model_in_training_mode_is_evaluated_without_dropout(tokenizer: Any, documents: list[Document]) -> None:
    torch.manual_seed(0)
    sizes = {"n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 64, "bos_token_id": 0, "eos_token_id": 0}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), embd_pdrop=0.5, **sizes)).train()
    first, second = (evaluate(model, tokenizer, documents).total.nats for _ in range(2))
    model.eval()
    ids = DocumentEncoder(tokenizer).encode([d.text for d in documents])
    expected = sum(float(nats.sum()) for row in ids for nats in score_rows(model, [row], eos_id=0))
    assert first == second == pytest.approx(expected, rel=1e-6)


def test_baselines_are_scored_on_the_same_tokens(spen: Any, tokenizer: Any, documents: list[Document]) -> None:
    encoder = DocumentEncoder(tokenizer)
    ids = np.concatenate(encoder.encode([d.text for d in documents]))
    unigram = Unigram(np.bincount(ids, minlength=len(tokenizer)))
    result = evaluate(spen, tokenizer, documents, unigram=unigram)
    assert result.baselines["unigram"].perplexity == pytest.approx(math.exp(unigram.nll(ids) / len(ids)))
    assert result.baselines["uniform"].perplexity == pytest.approx(len(tokenizer))


def test_max_tokens_cuts_the_last_document(spen: Any, tokenizer: Any, documents: list[Document]) -> None:
    result = evaluate(spen, tokenizer, documents, max_tokens=25)
    assert result.total.tokens == 25
    assert result.n_bytes < sum(len(d.text) for d in documents)


def test_progress_counts_tokens(spen: Any, tokenizer: Any, documents: list[Document]) -> None:
    steps: list[int] = []
    result = evaluate(spen, tokenizer, documents, progress=steps.append)
    assert sum(steps) == result.total.tokens


def test_nothing_to_evaluate_and_foreign_vocabularies_are_refused(spen: Any, tokenizer: Any) -> None:
    with pytest.raises(ValueError, match="no tokens to evaluate on"):
        evaluate(spen, tokenizer, [])
    with pytest.raises(ValueError, match=r"the unigram has 7 entries, the tokenizer \d+"):
        evaluate(spen, tokenizer, [], unigram=Unigram(np.ones(7, dtype=np.int64)))
    small = SpenForCausalLM(SpenConfig.preset("spen-tiny", vocab_size=5, d_model=8, d_ff=8, k=2))
    with pytest.raises(ValueError, match=r"the tokenizer has \d+ entries, the model 5"):
        evaluate(small, tokenizer, [])


def test_interval_is_that_of_documents() -> None:
    """Documents of equal length: the ratio estimator's interval is the ordinary one of their means."""
    rng = np.random.default_rng(0)
    means = rng.normal(3.0, 0.2, 50)
    score = Score()
    for mean in means:
        score.add(mean * 10, 10)
    low, high = score.interval
    assert (low, high) == pytest.approx(seed_interval(means))
    assert score.interval_over == "50 documents"
    alone = Score()
    alone.add(30.0, 10)
    assert all(math.isnan(bound) for bound in alone.interval)


def test_interval_of_documents_of_unequal_length_is_the_bootstraps() -> None:
    """Longer documents are easier here, so that the two are not independent."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(5, 50, 200)
    nats = tokens * (4.0 - 0.03 * tokens + rng.normal(0, 0.1, 200))
    score = Score()
    for pair in zip(nats, tokens, strict=True):
        score.add(*pair)
    draws = rng.integers(0, 200, (4000, 200))
    resampled = nats[draws].sum(1) / tokens[draws].sum(1)
    low, high = score.interval
    assert (high - low) / 2 == pytest.approx(1.96 * resampled.std(), rel=0.05)


def test_few_documents_have_an_interval_over_blocks() -> None:
    nats = np.random.default_rng(0).normal(3.0, 1.0, 10 * BLOCK)
    score = Score()
    score.add_tokens(nats)
    means = nats.reshape(10, BLOCK).mean(1)
    assert score.interval == pytest.approx(seed_interval(means))
    assert score.interval_over == f"10 blocks of {BLOCK} tokens"
    for _ in range(LEAST_DOCUMENTS - 1):
        score.add_tokens(nats[:7])
    assert score.interval_over == f"{LEAST_DOCUMENTS} documents"


def evaluation_of(lengths: list[int], shift: float, tokenizer: str = "one") -> Evaluation:
    """Documents whose difficulty varies much more than the models do."""
    result = Evaluation(tokenizer)
    for i, length in enumerate(lengths):
        hard = np.random.default_rng(i).normal(5.0, 2.0, length)
        noise = np.random.default_rng((i, round(1000 * shift))).normal(0.0, 0.01, length)
        document = Document("x" * 3 * length, f"d{i}", "d")
        result.add(document, np.zeros(length, dtype=int), hard + shift + noise, {}, number=i)
    return result


@pytest.mark.parametrize("lengths", [[3000], list(range(20, 60))])
def test_a_paired_difference_is_sharper_than_the_scores_are(lengths: list[int]) -> None:
    better, worse = evaluation_of(lengths, 0.0), evaluation_of(lengths, 0.05)
    found = difference(better, worse)
    assert found.mean == pytest.approx(better.total.cross_entropy - worse.total.cross_entropy)
    assert found.unit == "nats per token"
    assert found.interval[0] < -0.05 < found.interval[1] < 0
    low, high = better.total.interval
    assert high - low > 10 * (found.interval[1] - found.interval[0])  # alone they could not be told apart
    assert found.over == better.total.interval_over


def test_a_difference_over_documents_is_that_of_their_means() -> None:
    ours, theirs = evaluation_of([50] * 30, 0.0), evaluation_of([50] * 30, 0.2)
    means = [(ours.scored[i].blocks.sum() - theirs.scored[i].blocks.sum()) / 50 for i in range(30)]
    assert difference(ours, theirs).interval == pytest.approx(seed_interval(means))


def test_models_of_two_tokenizers_are_compared_by_byte() -> None:
    ours, theirs = evaluation_of([50] * 30, 0.0), evaluation_of([50] * 30, 0.2, "another")
    found = difference(ours, theirs)
    assert found.unit == "bits per byte"
    assert found.mean == pytest.approx(ours.bits_per_byte - theirs.bits_per_byte)
    alone = difference(evaluation_of([500], 0.0), evaluation_of([400 + 100], 0.2, "another"))
    assert all(math.isnan(bound) for bound in alone.interval)
    with pytest.raises(ValueError, match="not evaluated on the same documents"):
        difference(ours, evaluation_of([50] * 29, 0.0))


def test_documents_are_known_by_their_number_whatever_the_order_of_scoring(
    spen: Any, tokenizer: Any, documents: list[Document]
) -> None:
    result = evaluate(spen, tokenizer, documents)
    assert [result.scored[i].n_bytes for i in range(len(documents))] == [len(d.text.encode()) for d in documents]
    cut = first_tokens(documents, tokenizer, 25)
    assert sum(len(ids) for ids in DocumentEncoder(tokenizer).encode([d.text for d in cut])) <= 26  # and an end


def test_a_run_stands_for_its_model(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    assert model_folder(str(tmp_path)) == str(tmp_path / "model")
    assert model_folder("gpt2") == "gpt2"
    assert model_folder(str(tmp_path / "model")) == str(tmp_path / "model")


def test_a_run_without_a_model_names_its_last_checkpoint(tmp_path: Path) -> None:
    for step in (100, 9, 20):
        (tmp_path / "checkpoints" / f"step-{step:08d}").mkdir(parents=True)
    (tmp_path / "checkpoints" / ".step-00000200.part").mkdir()
    with pytest.raises(ValueError, match=r"no model yet; its last checkpoint is .*step-00000100$"):
        model_folder(str(tmp_path))


def test_json_has_settings_scores_and_provenance(spen: Any, tokenizer: Any, documents: list[Document]) -> None:
    result = evaluate(spen, tokenizer, documents)
    record = json.loads(json.dumps(as_json(result, seconds=1.5, model="m", context=None)))
    assert (record["model"], record["context"]) == ("m", None)
    assert record["cross_entropy"] == result.total.cross_entropy
    assert record["domains"]["odd"]["tokens"] + record["domains"]["even"]["tokens"] == record["tokens"]
    assert record["provenance"]["seconds"] == 1.5
    assert {"date", "commit", "hardware", "versions"} <= record["provenance"].keys()
