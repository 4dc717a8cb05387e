"""The gap at other sizes, at 130M parameters and in a second implementation, against other ways to the same numbers."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.stats import entropy

from ematrace.analysis.gap_design import ARMS, ATTENTION, DECISIVE, DENSE, GPT2, MASKED, SIZES, SPEN, TRUE_GRADIENT, Arm
from ematrace.analysis.rates import SWEEP_SEED
from ematrace.baselines.language import UNIGRAM, Unigram
from ematrace.experiments import (
    chosen_rates,
    gap,
    gap_130m,
    gap_second,
    gap_size_rates,
    gap_sizes,
    gap_task,
    gap_text,
    gap_units,
    simple_training,
    unigram_floor,
)
from ematrace.experiments.base import Context, Experiment, Point, perplexity
from ematrace.experiments.chosen_rates import rate_at
from ematrace.experiments.gap_task import arm_experiment, build_arm, matched_width
from ematrace.experiments.gap_text import ScoredText
from ematrace.experiments.language_task import metrics_lines
from ematrace.ledger import load_claims
from ematrace.report.sections.spen import HELD_OUT
from ematrace.results import Metric, Row
from ematrace.text import load_tokenizer
from ematrace.train import batches as training_batches
from ematrace.train.schedule import learning_rate
from ematrace.train.state import seed_everything

TINY: dict[str, Any] = {"tokens": 8 * 32 * 4, "sequences": 8, "length": 32, "warmup": 1, "vocab_size": 300}


@pytest.fixture(autouse=True, scope="module")
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tokenizers and packed text of these tests stay out of the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EMATRACE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("\n".join(f"the cat sat on mat {i} while {i * i} dogs ran after it" for i in range(400)))
    return str(path)


def measured(experiment: Experiment, text: str, **factors: Any) -> list[Row]:
    settings = {**experiment.settings, "windows": 10_000, "validation": text, "texts": {"wikitext2": text, "c4": text}}
    point = Point(factors, 0)
    settings |= {name: value for name, value in TINY.items() if name in settings}
    resolved = experiment.resolve_settings(point, settings)
    rows = experiment.measure(Context(seed=0, data=text, settings=resolved), **factors)
    cells = [json.dumps(row.factors, sort_keys=True) for row in rows]
    assert len(cells) == len(set(cells))  # or the file would be refused, after the training
    return rows


def value(rows: list[Row], metric: str, **factors: Any) -> float:
    found = [row.metrics[metric].value for row in rows if row.factors == factors and metric in row.metrics]
    assert len(found) == 1
    assert found[0] is not None
    return found[0]


def test_decisive_arms_are_the_plans() -> None:
    assert len(set(DECISIVE)) == 7
    exact, masked, dense = SPEN, MASKED, DENSE
    assert {name for name in asdict(exact) if getattr(exact, name) != getattr(masked, name)} == {"ffn"}
    assert replace(dense, load_balance=0.01) == replace(exact, ffn="dense")  # no top-k, nothing to balance
    for size, vocabulary in (("7m", 8192), ("30m", 8192), ("130m", 50257), ("2m", 50257)):
        length = gap_task.BUDGETS[size]["length"]
        wanted = gap_task._parameters(SPEN, size, SIZES[size]["d_ff"], vocabulary, length)
        for arm in DECISIVE:
            d_ff = matched_width(arm, size, vocabulary, length)
            assert abs(gap_task._parameters(arm, size, d_ff, vocabulary, length) / wanted - 1) < 0.01, (arm, size)
    assert wanted == 7_286_144


def test_an_arm_that_was_swept_has_its_own_rate() -> None:
    """The others that of the same without load balance, in which SPEN is the exception."""
    assert [arm for arm in ARMS if arm.swept_as() != arm] == []
    assert MASKED.swept_as() == replace(MASKED, load_balance=0.0) == TRUE_GRADIENT
    assert replace(GPT2, width="fixed").swept_as() == GPT2
    assert gap_units.WideArm(**asdict(MASKED), units=1536).swept_as() == TRUE_GRADIENT
    assert [rate_at(arm, "toy") for arm in (SPEN, MASKED)] == [0.004, 0.004]


def test_rates_of_larger_models_are_swept_on_a_seed_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = {("gap_rates", arm, "2m"): 8e-3 for arm in ARMS}

    def chosen_rate(sweep: str, factors: dict[str, Any]) -> float | None:
        arm = Arm(**{name: factors[name] for name in asdict(SPEN)})
        return chosen.get((sweep, arm, factors["size"]))

    monkeypatch.setattr(chosen_rates, "chosen_rate", chosen_rate)
    monkeypatch.setattr(chosen_rates, "_points", dict)  # no sweep has gone on yet
    unswept = list(gap_sizes.grid("gpu", 1))
    assert {p.factors["size"] for p in unswept} == {"2m"}  # larger ones wait for their sweep
    chosen |= {("gap_size_rates", arm, "7m"): 4e-3 for arm in DECISIVE}
    chosen |= {("gap_size_rates", arm, "30m"): 1e-3 for arm in DECISIVE}
    published = [*gap_sizes.grid("gpu", 3), *gap_130m.grid("gpu", 2)]
    swept = list(gap_size_rates.grid("gpu", 1))
    assert len(published) == len({(json.dumps(point.factors), point.seed) for point in published})
    assert len(swept) == 3 * (7 + 5 + 7)  # fewer arms at 30m, which takes the longest
    at_30m = {
        (p.factors["context"], p.factors["ffn"], p.factors["block"]) for p in published if p.factors["size"] == "30m"
    }
    assert at_30m == {
        *(("ema_error", ffn, "skeleton") for ffn in ("topk_ste", "topk_masked")),
        *(("attention", "dense", block) for block in ("skeleton", "gpt2")),
        ("ema", "dense", "skeleton"),
    }
    other_words = [p for p in published if p.factors.get("vocabulary") == gap_sizes.GPT2_ENTRIES]
    assert sorted((p.factors["block"], p.factors["ffn"], p.seed) for p in other_words) == [
        *(("gpt2", "dense", seed) for seed in range(3)),
        *(("skeleton", ffn, seed) for ffn in ("topk_masked", "topk_ste") for seed in range(3)),
    ]
    assert {p.seed for p in swept} == {SWEEP_SEED}
    assert {p.seed for p in published} == {0, 1, 2}
    for point in published:  # one rate for each, and it is one of those that were tried
        arm = {name: v for name, v in point.factors.items() if name in (*asdict(SPEN), "size")}
        rates = sorted(p.factors["lr"] for p in swept if (arm | {"width": "matched"}).items() <= p.factors.items())
        assert point.factors["lr"] in rates or point.factors["size"] == "2m"
        assert not rates or rates[2] / rates[0] == pytest.approx(4, rel=0.01)
    assert {p.factors["lr"] for p in published if p.factors["size"] == "130m"} == {float(f"{8e-3 / 6:.3g}")}
    chosen |= {("gap_size_rates", GPT2, "130m"): 5e-4}
    assert rate_at(gap_130m.GPT2_SMALL, "130m") == 5e-4
    chosen.pop(("gap_rates", Arm("ema"), "2m"))
    assert {p.factors["context"] for p in gap_130m.grid("gpu", 1)} == {"ema_error", "attention"}


def test_at_130m_transformers_are_also_trained_at_spens_flops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chosen_rates, "chosen_rate", lambda sweep, factors: 8e-3)
    gpt2_small = replace(GPT2, width="fixed")
    arms = [(arm, "tokens") for arm in (*DECISIVE, gpt2_small)]
    arms += [(arm, "flops") for arm in (GPT2, ATTENTION, gpt2_small)]
    points = list(gap_130m.grid("gpu", 1))
    assert len(points) == len(arms)
    assert {(Arm.of(point.factors), point.factors["budget"]) for point in points} == set(arms)


def test_a_size_is_trained_with_the_points_budget(text: str) -> None:
    factors = {**asdict(Arm("ema")), "size": "toy", "tokens": 8 * 32 * 3, "vocabulary": 290, "lr": 1e-3}
    rows = measured(gap_sizes.EXPERIMENT, text, **factors)
    assert [row.factors["step"] for row in rows if "step" in row.factors] == [3]
    assert value(rows, "nats", text="c4", slice="all") < 2 * math.log(290)


def test_flops_at_130m_are_those_that_the_plan_compares() -> None:
    """Against a count by hand; a causal mask leaves half of attention's square."""
    d, d_ff, n, T, entries = 768, 3072, 12, 2048, 50257
    spen = 6 * (n * (5 * d * d + 2 * d * d_ff) + entries * d)
    gpt2 = 6 * (n * (4 * d * d + 2 * d * d_ff) + entries * d) + 3 * n * 2 * T * d
    assert gap_130m.flops_of(SPEN, "130m", entries, T) == spen == pytest.approx(784e6, rel=1e-3)
    assert gap_130m.flops_of(gap_130m.GPT2_SMALL, "130m", entries, T) == gpt2 == pytest.approx(854e6, rel=1e-3)
    factors = {**asdict(gap_130m.GPT2_SMALL), "size": "130m", "budget": "flops", "lr": 1e-3}
    found = gap_130m.EXPERIMENT.resolve_settings(Point(factors, 0), gap_130m.EXPERIMENT.settings)
    assert found["tokens"] == int(1600 * 32 * 2048 * spen / gpt2)
    as_many = gap_130m.EXPERIMENT.resolve_settings(
        Point(factors | {"budget": "tokens"}, 0), gap_130m.EXPERIMENT.settings
    )
    assert as_many["tokens"] == 1600 * 32 * 2048
    assert as_many["tokens"] > 50e6
    assert 32_000 < as_many["sequences"] * as_many["length"] < 66_000


@pytest.mark.parametrize("arm", [SPEN, Arm("attention", "rope")], ids=["spen", "attention"])
def test_a_carried_state_is_that_of_the_whole_text(arm: Arm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gap_130m, "SCORED_AT_ONCE", 40)  # tokens: the text takes three passes, or windows go in pairs
    torch.manual_seed(0)
    model = build_arm(arm, "toy", 64, 50, 16).eval()
    ids = torch.randint(0, 50, (16 * 6 + 1,)).numpy()
    windows = np.stack([ids[i * 16 : i * 16 + 17] for i in range(6)])
    nothing = np.zeros((6, 16), dtype=np.int64)
    text = ScoredText(windows, nothing, nothing, np.zeros((6, 16)))
    context = None if arm is SPEN else 16
    found = gap_130m.carried(model, text, 0, context).ravel()
    inputs = torch.from_numpy(np.concatenate([[0], ids[:-1]]))[None]  # end-of-text, then the text
    with torch.no_grad():
        whole = F.cross_entropy(model(inputs).logits[0], torch.from_numpy(ids), reduction="none")[1:].numpy()
    if arm is SPEN:
        np.testing.assert_allclose(found, whole, atol=1e-4)
    else:  # the first window is the same, later ones see less, but never less than half
        np.testing.assert_allclose(found[:15], whole[:15], atol=1e-4)
        assert np.abs(found[16:] - whole[16:]).max() > 1e-4
    with pytest.raises(ValueError, match="windows"):
        gap_130m.carried(model, ScoredText(windows[::2], nothing, nothing, np.zeros((6, 16))), 0, context)


def test_a_text_is_read_from_the_tokenizers_own_end_of_text(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = load_tokenizer(gap_text.tokenizer_folder(text, 300))
    tokenizer.add_special_tokens({"eos_token": "<|end|>"})
    tokenizer.save_pretrained(tmp_path)
    monkeypatch.setattr(gap_task, "tokenizer_folder", lambda data, vocab_size: tmp_path)
    begun_with = []

    def carried(model: Any, scored: ScoredText, eos_id: int, context: int | None) -> np.ndarray:
        begun_with.append(eos_id)
        return np.zeros(scored.distance.shape)

    monkeypatch.setattr(gap_130m, "carried", carried)
    measured(gap_130m.EXPERIMENT, text, **asdict(SPEN), size="toy", budget="tokens", lr=1e-3)
    assert set(begun_with) == {len(tokenizer) - 1}


def test_first_pass_and_repeated_tokens_are_apart(tmp_path: Path) -> None:
    lines = [{"step": s, "cross_entropy": float(s)} for s in range(1, 11)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(json.dumps(line) for line in lines))
    Unigram(np.array([4 * 2 * 10 + 4 + 1])).save(tmp_path / UNIGRAM)  # 21 windows of 4: a pass is 10.5 steps of 2
    summary: Any = SimpleNamespace(out=tmp_path, model=tmp_path)

    def rows(windows: int) -> dict[Any, tuple[float | None, int | None]]:
        Unigram(np.array([4 * windows + 1])).save(tmp_path / UNIGRAM)
        found = gap_130m.pass_rows(summary, {"length": 4, "sequences": 2})
        return {row.factors["pass"]: (row.metrics["pass_nats"].value, row.metrics["pass_nats"].n) for row in found}

    assert rows(windows=8) == {1: (2.5, 4), 2: (6.5, 4), 3: (9.5, 2)}
    assert rows(windows=9) == {1: (2.5, 4), 2: (np.mean([6, 7, 8, 9]), 4), 3: (10, 1)}  # step 5 is of both


def test_an_arm_of_130m_is_trained_and_scored(text: str) -> None:
    factors = {**asdict(SPEN), "size": "toy", "budget": "tokens", "lr": 1e-3}
    rows = measured(gap_130m.EXPERIMENT, text, **factors)
    reset = value(rows, "cross_entropy", text="c4", state="reset")
    assert reset == value(rows, "nats", text="c4", slice="all")
    assert value(rows, "perplexity", text="c4", state="reset") == pytest.approx(math.exp(reset))
    assert value(rows, "cross_entropy", text="validation", state="carried") < 2 * math.log(300)
    assert value(rows, "unigram_perplexity", text="c4") < value(rows, "uniform_perplexity") <= 300
    assert value(rows, "pass_nats", **{"pass": 1}) > 0
    assert value(rows, "held_out_nats", step=4) == value(rows, "validation_cross_entropy")
    has = {(metric, json.dumps(row.factors, sort_keys=True)) for row in rows for metric in row.metrics}
    columns = [(column.metric, column.where) for column in HELD_OUT if column.where.get("pass") != 2]
    selectors = [s for claim in load_claims() for s in claim.selectors if s.experiment == "gap_130m"]
    assert len(selectors) > 10
    for metric, where in [*columns, *((s.metric, s.where) for s in selectors)]:  # what page and ledger look for
        of_row = {name: v for name, v in where.items() if name not in factors}
        assert (metric, json.dumps(of_row, sort_keys=True)) in has, (metric, where)


def weights_of(second: gap_second.LanguageModel) -> Iterator[tuple[str, torch.Tensor]]:
    """The second implementation's weights under the package's names."""
    yield "model.embed_tokens.weight", second.embedding.weight
    yield from ((f"model.norm.{name}", p) for name, p in second.norm.named_parameters())
    for i, block in enumerate(second.blocks):
        at = f"model.layers.{i}"
        for norm in ("mixer_norm", "norm"):
            if hasattr(block, norm):
                yield from ((f"{at}.{norm}.{name}", p) for name, p in getattr(block, norm).named_parameters())
        yield from ((f"{at}.ffn.{name}.weight", getattr(block, name).weight) for name in ("W_up", "W_down"))
        if isinstance(block, gap_second.Algorithm1):
            of_mixer = {"W_h": block.W_h, "W_e": block.W_e, "predictor.W_pred": block.W_pred}
            yield from ((f"{at}.mixer.{name}.weight", layer.weight) for name, layer in of_mixer.items())
        elif isinstance(mixer := block.mixer, gap_second.Ema):
            yield f"{at}.mixer.W_h.weight", mixer.W_h.weight
        else:
            yield f"{at}.mixer.W_qkv.weight", torch.cat([W.weight for W in (mixer.W_q, mixer.W_k, mixer.W_v)])
            yield f"{at}.mixer.W_o.weight", mixer.W_o.weight


@pytest.mark.parametrize("arm", gap_second.ARMS, ids=lambda arm: f"{arm.context}-{arm.ffn}-{arm.positions}")
def test_both_implementations_are_one_function(arm: Arm) -> None:
    """Logits, both losses and the gradient of every weight, from the same weights."""
    d_ff, of = matched_width(arm, "toy", 50, 16), SIZES["toy"]
    torch.manual_seed(0)
    second = gap_second.LanguageModel(arm, 50, of["d_model"], d_ff, of["n_layers"], of["n_heads"])
    first = build_arm(arm, "toy", d_ff, 50, 16)
    fresh = {name: float(p.detach().std()) for name, p in first.named_parameters() if p.ndim == 2}
    copied = dict(weights_of(second))
    for name, std in fresh.items():  # drawn from the same distribution
        assert float(copied[name].detach().std()) == pytest.approx(std, rel=0.1), name
    assert {*copied, "lm_head.weight"} == set(first.state_dict())
    first.load_state_dict(copied | {"lm_head.weight": second.embedding.weight})
    ids = torch.randint(0, 50, (2, 17))
    ours = first.train()(ids[:, :-1], shift_labels=ids[:, 1:], skip_logits=False)
    logits, balance = second(ids[:, :-1])
    torch.testing.assert_close(ours.logits, logits, atol=1e-5, rtol=1e-4)
    assert (ours.aux_loss is None) == (arm.load_balance == 0)
    assert balance.item() == pytest.approx(0.0 if ours.aux_loss is None else ours.aux_loss.item(), rel=1e-5)
    loss, cross_entropy = second.losses(ids)
    torch.testing.assert_close((ours.loss, ours.cross_entropy), (loss, cross_entropy), atol=0, rtol=1e-6)
    ours.loss.backward()
    loss.backward()
    with torch.no_grad():
        for p in second.parameters():
            p.copy_(p.grad)
    theirs = dict(weights_of(second))  # their gradients, under the package's names
    for name, p in first.named_parameters():
        torch.testing.assert_close(
            p.grad, theirs[name], atol=1e-6, rtol=1e-4, msg=lambda text, of=name: f"{of}: {text}"
        )
    assert sum(p.numel() for p in first.parameters()) == sum(p.numel() for p in second.parameters())


def test_the_second_implementation_reads_the_same_windows_at_the_same_rate(text: str, tmp_path: Path) -> None:
    settings = {**TINY, "validation": text}
    tokenizer = gap_text.tokenizer_folder(text, 300)
    packed = gap_text.training_text(text, "all", str(tokenizer))
    theirs = training_batches.PackedBatches(packed, sequences=8, length=32, micro_batch=8, seed=3, reset=False)
    ours = gap_second.batches(Context(seed=3, data=text, settings=settings), tokenizer, 2)
    for step, ids in enumerate(ours):
        (micro,) = theirs.micro_batches(step, range(1))
        assert torch.equal(ids, micro.ids)
    for step in (1, 5, 10, 37, 100):
        wanted = learning_rate(step, steps=100, lr=3e-3, final_lr=3e-4, warmup=10)
        assert simple_training.rate(step, 100, 10, 3e-3) == pytest.approx(wanted)


WITHOUT_ROPE = [arm for arm in gap_second.ARMS if arm.positions == "none"]


@pytest.mark.parametrize("arm", WITHOUT_ROPE, ids=lambda arm: f"{arm.context}-{arm.ffn}")
def test_both_implementations_have_one_curve_from_the_same_weights(arm: Arm, text: str, tmp_path: Path) -> None:
    settings = {**TINY, "tokens": 8 * 32 * 30, "warmup": 2, "validation": text}
    ctx = Context(seed=1, data=text, settings=settings)
    trained = gap_task.train_arm(ctx, arm, "toy", 1e-2, tmp_path / "run")
    wanted = [line["cross_entropy"] for line in metrics_lines(trained.summary.out)]
    entries, of = len(load_tokenizer(trained.tokenizer)), SIZES["toy"]
    seed_everything(1)
    initial = build_arm(arm, "toy", trained.d_ff, entries, 32).state_dict()
    second = gap_second.LanguageModel(arm, entries, of["d_model"], trained.d_ff, of["n_layers"], of["n_heads"])
    with torch.no_grad():
        for name, target in weights_of(second):
            target.copy_(initial[name])
        for i, block in enumerate(second.blocks):
            if isinstance(getattr(block, "mixer", None), gap_second.Attention):
                parts = initial[f"model.layers.{i}.mixer.W_qkv.weight"].chunk(3)
                for part, layer in zip(parts, ("W_q", "W_k", "W_v"), strict=True):
                    getattr(block.mixer, layer).weight.copy_(part)
    read = gap_second.batches(ctx, trained.tokenizer, 30)
    found = simple_training.minimise(ctx, second, second.losses, read, 30, warmup=2, lr=1e-2)
    np.testing.assert_allclose(found, wanted, atol=2e-3)
    assert found[-1] < found[0] - 1


def test_the_second_implementation_is_scored_as_the_first(text: str) -> None:
    factors = {**asdict(Arm("ema")), "size": "toy", "lr": 3e-3}
    second, first = (measured(e, text, **factors) for e in (gap_second.EXPERIMENT, gap.EXPERIMENT))
    of_texts = [[row.factors for row in rows if "text" in row.factors] for rows in (second, first)]
    assert of_texts[0] == of_texts[1]
    assert value(second, "nats", text="c4", slice="all") < 2 * math.log(300)
    assert value(second, "parameters") == value(first, "parameters")


def test_no_unigram_beats_the_texts_own_counts(text: str) -> None:
    tokenizer = gap_text.tokenizer_folder(text, 300)
    packed = gap_text.training_text(text, "all", str(tokenizer))
    tokens = packed.tokens(0, packed.n_tokens)
    floor = unigram_floor.own_counts_perplexity(tokens).value or 0
    shares = packed.counts() / packed.n_tokens
    assert math.log(floor) == pytest.approx(entropy(shares))
    for tilt in (0.9, 1.1):
        other = (packed.counts() + 0.1) ** tilt
        assert float(np.exp(-np.log(other / other.sum())[tokens].mean())) > floor


def test_a_mean_that_is_not_finite_is_no_figure_and_no_perplexity_of_one() -> None:
    """A model that diverged at 130M must not be written as a perfect one, nor pass for recorded."""
    with pytest.raises(ValueError, match="not a finite number"):
        gap_130m.mean_of([math.nan, 1.0])
    assert gap_130m.perplexity_of(Metric(None, n=8)).value is None
    assert gap_130m.perplexity_of(Metric(2.0, n=8)) == perplexity(math.exp(2.0), 8)


def test_a_factor_that_no_arm_has_is_refused() -> None:
    """Else models of several widths would be one model under several names."""
    (toy,) = gap_units.EXPERIMENT.points("cpu", 1)[:1]
    without = arm_experiment("x", "title", gap_units.grid)
    with pytest.raises(TypeError, match="units"):
        without.measure(Context(seed=0), **toy.factors)
