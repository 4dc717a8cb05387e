"""The parts of training against closed forms: schedule, batches, gradients, groups, presets, files, bad input."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from ematrace.ops import linear_cross_entropy
from ematrace.text import PackedTokens, load_tokenizer, pack
from ematrace.text.order import window_order
from ematrace.train import PRESETS, TrainConfig, build_model, defaults_for, load_model, train
from ematrace.train.batches import PackedBatches
from ematrace.train.config import FIXED_FIELDS, Recipe, resolve_recipe
from ematrace.train.data import prepare
from ematrace.train.distributed import World
from ematrace.train.loss import LanguageModelLoss
from ematrace.train.metrics import MetricsFile
from ematrace.train.models import GPT2_SIZES, model_presets
from ematrace.train.optimiser import build_optimiser, parameter_groups
from ematrace.train.schedule import learning_rate
from ematrace.train.state import random_state, restore_random_state
from train_support import GPT2, SPEN, VOCABULARY, curve, tiny_config, write_text


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text(tmp_path_factory.mktemp("text"))


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMATRACE_CACHE", str(tmp_path_factory.getbasetemp() / "ematrace-cache"))


@pytest.fixture
def packed(text: Path) -> PackedTokens:
    return pack(str(text / "train.jsonl"), load_tokenizer(text / "tokenizer"))


def test_schedule_is_a_line_up_and_a_half_cosine_down() -> None:
    rates = [learning_rate(n, steps=110, lr=6e-4, final_lr=6e-5, warmup=10) for n in range(1, 111)]
    for n in range(1, 11):
        assert rates[n - 1] == pytest.approx(6e-4 * n / 10)
    for n in range(10, 111):  # cos^2 form of the same curve
        assert rates[n - 1] == pytest.approx(6e-5 + 5.4e-4 * math.cos(math.pi / 2 * (n - 10) / 100) ** 2)
    assert rates[-1] == pytest.approx(6e-5)
    assert learning_rate(1, steps=1, lr=1.0, final_lr=0.5, warmup=0) == 0.5


def test_rate_of_every_step_is_the_schedules(text: Path, tmp_path: Path) -> None:
    config = tiny_config(text, tmp_path / "run", lr=1e-2, final_lr=1e-3, warmup=2)
    train(config)
    expected = [learning_rate(n, steps=20, lr=1e-2, final_lr=1e-3, warmup=2) for n in range(1, 21)]
    assert [rate for (rate,) in curve(config.out, "lr")] == expected


def test_paper_settings_are_the_default_of_the_130m_preset() -> None:
    recipe = resolve_recipe(TrainConfig(preset="spen-130m", data="x", out=Path("x")))
    assert recipe == Recipe(
        tokens=8_000_000_000,
        sequences=224,
        length=2048,
        micro_batch=56,
        lr=6e-4,
        final_lr=6e-5,
        warmup=1000,
        checkpoint_every=recipe.checkpoint_every,
        validate_every=recipe.validate_every,
        validation_sequences=recipe.validation_sequences,
    )
    assert recipe.steps == 17_438
    assert recipe.tokens_per_step == 458_752
    config = TrainConfig(preset="spen-130m", data="x", out=Path("x"))
    assert (config.betas, config.weight_decay, config.clip) == ((0.9, 0.95), 0.1, 1.0)


def test_recipe_follows_the_configuration() -> None:
    config = TrainConfig(preset="spen-tiny", data="x", out=Path("x"), tokens=4096 * 50, lr=1e-2)
    recipe = resolve_recipe(config)
    assert recipe.warmup == 5  # a tenth of 50 steps
    assert recipe.final_lr == pytest.approx(1e-3)  # the preset's ratio
    longer = resolve_recipe(replace(config, length=1024))
    assert longer.micro_batch * 1024 == recipe.micro_batch * 256
    assert resolve_recipe(replace(config, sequences=15)).micro_batch == 5
    assert resolve_recipe(replace(config, sequences=7)).micro_batch == 7


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"preset": "spen-1t"}, "preset is 'spen-1t'"),
        ({"micro_batch": 3}, "micro_batch is 3; it must divide sequences = 4"),
        ({"tokens": 63}, r"tokens is 63; one step takes 4 x 16 = 64"),
        ({"lr": -1.0}, "lr is -1.0"),
        ({"lr": math.nan}, "lr is nan"),
        ({"lr": 0.0}, r"lr is 0\.0; it must be positive"),
        ({"warmup": -1}, "warmup is -1; it must be at least 0"),
        ({"final_lr": 1.0}, "final_lr is 1.0; it must not exceed lr"),
        ({"precision": "float16"}, "precision is 'float16'"),
        ({"parallel": "pipeline"}, "parallel is 'pipeline'"),
        ({"betas": (0.9, 1.0)}, "betas is"),
        ({"keep": 0}, "keep is 0"),
        ({"device": "abacus"}, "device is 'abacus'"),
        ({"cuda_graphs": True}, "cuda_graphs: the device is cpu"),
        ({"reset_at_documents": True}, "reset_at_documents: gpt2-tiny"),
        ({"reset_at_documents": True, "compile": True}, "compile: with reset_at_documents"),
        ({"overrides": ("n_emb=16",)}, "field 'n_emb'"),
        ({"overrides": (*GPT2, "vocab_size=100")}, "the model has 100 entries, the tokenizer 290"),
        ({"length": 100_000, "tokens": 10_000_000}, "do not fit in a corpus of"),
        ({"data": "nowhere.txt"}, "nowhere.txt"),
    ],
)
def test_bad_input_is_one_line_and_leaves_no_run(
    text: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    config = tiny_config(text, tmp_path / "run", **changes)
    with pytest.raises((ValueError, OSError), match=message) as caught:
        train(config)
    assert "\n" not in str(caught.value)
    assert not (config.out / "config.json").exists()
    assert not (config.out / "checkpoints").exists()


def test_k_beyond_d_ff_is_refused(text: Path, tmp_path: Path) -> None:
    config = tiny_config(text, tmp_path / "run", preset="spen-tiny", overrides=(*SPEN[:3], "k=64"))
    with pytest.raises(ValueError, match="k is 64"):
        train(config)


@given(step=st.integers(0, 400), micro_batch=st.sampled_from([1, 2, 3, 6]), processes=st.sampled_from([1, 2]))
def test_batches_depend_on_seed_and_step_alone(step: int, micro_batch: int, processes: int) -> None:
    length, n = 4, 10

    class Numbers:
        """Window i is i, i, i, ...; documents begin at its second input."""

        n_tokens = vocab_size = eos_id = 0
        fingerprint = ""

        def n_windows(self, length: int) -> int:
            return n

        def window(self, i: int, length: int) -> np.ndarray:
            return np.full(length + 1, i, dtype=np.int64)

        def document_starts(self, i: int, length: int) -> list[int]:
            return [1]

        def counts(self) -> np.ndarray:
            return np.zeros(0, dtype=np.int64)

    made = PackedBatches(Numbers(), sequences=6, length=length, micro_batch=micro_batch, seed=3, reset=True)
    seen, total = [], 6 // micro_batch
    for rank in range(processes):
        if total % processes:
            with pytest.raises(ValueError, match=f"{processes} processes cannot share {total}"):
                World(rank, processes, torch.device("cpu")).share(total, "micro-batches", "")
            return
        share = World(rank, processes, torch.device("cpu")).share(total, "micro-batches", "")
        for micro in made.micro_batches(step, share):
            assert micro.ids.shape == (micro_batch, length + 1)
            assert micro.cu_seqlens is not None
            rows = [row * length + p for row in range(micro_batch) for p in (0, 1)]
            assert micro.cu_seqlens.tolist() == [*rows, micro_batch * length]
            seen += micro.ids[:, 0].tolist()
    positions = range(step * 6, step * 6 + 6)
    assert seen == [int(window_order(n, 3, p // n)[p % n]) for p in positions]
    assert made.position() == {"sequences": step * 6 + 6}


def test_loss_of_a_transformer_is_its_own_loss(packed: PackedTokens) -> None:
    model = build_model("gpt2-tiny", VOCABULARY, 0, GPT2, length=16).eval()
    ids = torch.from_numpy(packed.windows(range(3), 16))
    loss, cross_entropy = LanguageModelLoss(model)(ids)
    logits = model(ids[:, :-1]).logits
    expected = nn.functional.cross_entropy(logits.reshape(-1, VOCABULARY), ids[:, 1:].reshape(-1))
    torch.testing.assert_close(loss, expected)
    assert cross_entropy is loss


def test_loss_of_spen_has_its_balance_and_its_cross_entropy(packed: PackedTokens) -> None:
    model = build_model("spen-tiny", VOCABULARY, 0, (*SPEN, "load_balance=0.5"))
    ids = torch.from_numpy(packed.windows(range(3), 16))
    loss, cross_entropy = LanguageModelLoss(model.train())(ids)
    hidden = model.model(ids[:, :-1]).last_hidden_state
    expected = linear_cross_entropy(hidden.reshape(-1, 16), model.lm_head.weight, ids[:, 1:].reshape(-1))
    torch.testing.assert_close(cross_entropy, expected)
    assert loss > cross_entropy


def test_reset_keeps_documents_apart(text: Path, packed: PackedTokens) -> None:
    torch.manual_seed(0)
    loss = LanguageModelLoss(build_model("spen-tiny", VOCABULARY, 0, (*SPEN, "ffn=dense", "initializer_range=0.5")))
    loss.eval().requires_grad_(False)
    made = PackedBatches(packed, sequences=4, length=64, micro_batch=4, seed=0, reset=True)
    (micro,) = made.micro_batches(0, range(1))
    together = loss(micro.ids, micro.cu_seqlens)[1]
    assert micro.cu_seqlens is not None
    flat, targets = micro.ids[:, :-1].reshape(-1), micro.ids[:, 1:].reshape(-1)
    apart = 0.0
    for begin, end in zip(micro.cu_seqlens[:-1], micro.cu_seqlens[1:], strict=True):
        piece = torch.cat([flat[begin:end], targets[end - 1 : end]])[None]
        apart += float(loss(piece)[1]) * int(end - begin)
    assert len(micro.cu_seqlens) > 5  # more than the four windows
    assert float(together) == pytest.approx(apart / 256, rel=1e-5)
    assert float(together) != pytest.approx(float(loss(micro.ids)[1]), rel=1e-4)


def test_reset_trains(text: Path, tmp_path: Path) -> None:
    config = tiny_config(text, tmp_path / "run", preset="spen-tiny", reset_at_documents=True)
    assert train(config).step == 20


def test_accumulated_gradients_are_those_of_the_whole_batch(text: Path, tmp_path: Path) -> None:
    """Same global batch in 1, 2 or 4 micro-batches: same curve, as the loss is a mean of means over equal parts."""
    curves = []
    for micro_batch in (4, 2, 1):
        config = tiny_config(text, tmp_path / str(micro_batch), micro_batch=micro_batch)
        train(config)
        curves.append(curve(config.out, "loss", "grad_norm"))
    np.testing.assert_allclose(curves[1], curves[0], rtol=2e-5)
    np.testing.assert_allclose(curves[2], curves[0], rtol=2e-5)


def test_one_update_is_adamw_of_the_clipped_mean_gradient(text: Path, tmp_path: Path) -> None:
    """The first update in float64 by hand: with bias correction it is lr * g / (|g| + eps), after decay by lr * 0.1."""
    config = tiny_config(text, tmp_path / "run", tokens=64, lr=0.01, final_lr=0.01, clip=0.05, overrides=GPT2)
    train(config)
    torch.manual_seed(0)
    model = build_model("gpt2-tiny", VOCABULARY, 0, GPT2, length=16).double()
    packs = pack(config.data, load_tokenizer(text / "tokenizer"))
    windows = window_order(packs.n_windows(16), 0, 0)[:4]
    ids = torch.from_numpy(packs.windows(windows, 16))
    logits = model(ids[:, :-1]).logits
    nn.functional.cross_entropy(logits.reshape(-1, VOCABULARY), ids[:, 1:].reshape(-1)).backward()
    norm = math.sqrt(sum(float(p.grad.square().sum()) for p in model.parameters()))
    assert curve(config.out, "grad_norm")[0][0] == pytest.approx(norm, rel=1e-4)
    trained = dict(load_model(config.out / "model")[0].named_parameters())
    for name, p in model.named_parameters():
        g = p.grad * 0.05 / norm
        decay = 0.1 if p.dim() >= 2 else 0.0
        expected = p * (1 - 0.01 * decay) - 0.01 * g / (g.abs() + 1e-8)
        clear = g.abs() > 1e-6  # where eps and rounding do not decide the sign
        torch.testing.assert_close(trained[name].double()[clear], expected[clear], rtol=1e-3, atol=1e-5)


def test_decay_spares_norms_and_biases() -> None:
    for preset, overrides in (("gpt2-tiny", GPT2), ("spen-tiny", SPEN)):
        model = build_model(preset, VOCABULARY, 0, overrides, length=16)
        config = TrainConfig(preset=preset, data="x", out=Path("x"))
        optimiser = build_optimiser(model, config, torch.device("cpu"))
        decays = {id(p): g["weight_decay"] for g in optimiser.param_groups for p in g["params"]}
        assert len(decays) == sum(1 for _ in model.parameters())  # each once, tied weights included
        for name, p in model.named_parameters():
            is_vector = name.endswith("bias") or "norm" in name or "ln_" in name
            assert decays[id(p)] == (0.0 if is_vector else 0.1), name
        assert all(g["betas"] == (0.9, 0.95) and g["eps"] == 1e-8 for g in optimiser.param_groups)
        assert not parameter_groups(nn.LayerNorm(3), 0.1)[0]["params"]


def test_summary_and_model_folder(text: Path, tmp_path: Path) -> None:
    config = tiny_config(text, tmp_path / "run", preset="spen-tiny", tokens=200 * 64, lr=1e-2, checkpoint_every=100)
    result = train(config)
    record = json.loads((config.out / "summary.json").read_text(encoding="utf-8"))
    assert record["validation_cross_entropy"] == result.validation_cross_entropy
    assert result.uniform_cross_entropy == pytest.approx(math.log(VOCABULARY))
    # By hand: the loaded model on the same windows.
    model, tokenizer = load_model(config.out / "model")
    held_out = pack(str(text / "validation.jsonl"), tokenizer)
    n = held_out.n_windows(16)
    ids = torch.from_numpy(held_out.windows(np.linspace(0, n - 1, 6).round(), 16))
    with torch.no_grad():
        logits = model.eval()(ids[:, :-1]).logits
    expected = nn.functional.cross_entropy(logits.reshape(-1, VOCABULARY), ids[:, 1:].reshape(-1))
    assert result.validation_cross_entropy == pytest.approx(float(expected), rel=1e-5)
    p = (pack(config.data, tokenizer).counts() + 1.0) / (pack(config.data, tokenizer).counts() + 1.0).sum()
    assert result.unigram_cross_entropy == pytest.approx(float(-np.log(p[ids[:, 1:].numpy()]).mean()))
    assert result.validation_cross_entropy < result.unigram_cross_entropy < result.uniform_cross_entropy
    assert record["mfu"] == pytest.approx(
        record["tokens_per_second"] * record["flops_per_token"] / record["matmul_flops_per_second"]
    )
    assert record["provenance"]["versions"]["torch"]
    checkpoint = config.out / "checkpoints" / "step-00000200"
    for name, p in load_model(checkpoint)[0].named_parameters():  # a checkpoint is a model folder too
        assert torch.equal(p, dict(model.named_parameters())[name])


def test_validation_is_a_mean_over_tokens_without_dropout(text: Path, tmp_path: Path) -> None:
    """Five windows in micro-batches of two, so that the last one counts half as much."""
    overrides = (*GPT2, "resid_pdrop=0.5", "embd_pdrop=0.5")
    config = tiny_config(text, tmp_path / "run", overrides=overrides, tokens=64, validation_sequences=5)
    result = train(config)
    model, tokenizer = load_model(config.out / "model")
    held_out = pack(str(text / "validation.jsonl"), tokenizer)
    chosen = np.linspace(0, held_out.n_windows(16) - 1, 5).round()
    ids = torch.from_numpy(held_out.windows(chosen, 16))
    with torch.no_grad():
        logits = model.eval()(ids[:, :-1]).logits
    expected = nn.functional.cross_entropy(logits.reshape(-1, VOCABULARY), ids[:, 1:].reshape(-1))
    assert result.validation_cross_entropy == pytest.approx(float(expected), rel=1e-6)


def test_after_a_validation_training_goes_on_in_training_mode(text: Path, tmp_path: Path) -> None:
    changes: dict[str, Any] = {"preset": "spen-tiny", "overrides": (*SPEN, "load_balance=0.5")}
    config = tiny_config(text, tmp_path / "run", tokens=6 * 64, validate_every=2, **changes)
    train(config)
    balance = [loss - cross_entropy for loss, cross_entropy in curve(config.out, "loss", "cross_entropy")]
    assert len(balance) == 6
    assert min(balance) > 0.1  # half of about 1, and only in training mode


def test_held_out_documents_are_not_trained_on(text: Path, tmp_path: Path) -> None:
    config = tiny_config(text, tmp_path / "run", validation=None)
    world = World(0, 1, torch.device("cpu"))
    data = prepare(config, resolve_recipe(config), world, begun=False, notify=lambda _: None)
    assert isinstance(data.batches, PackedBatches)

    def documents(tokens: Any) -> set[tuple[int, ...]]:
        ids = tokens.tokens(0, tokens.n_tokens)
        return {tuple(part[:-1]) for part in np.split(ids, np.flatnonzero(ids == tokens.eos_id) + 1) if len(part)}

    read, held_out = documents(data.batches.tokens), documents(data.validation)
    texts = [json.loads(line)["text"] for line in (text / "train.jsonl").read_text(encoding="utf-8").splitlines()]
    assert held_out
    assert not read & held_out
    assert read | held_out == {tuple(ids) for ids in data.tokenizer(texts)["input_ids"]}


def test_transformers_match_the_spen_presets_in_width_and_depth() -> None:
    from ematrace.spen import SpenConfig

    for name, (width, blocks, heads) in GPT2_SIZES.items():
        spen = SpenConfig.preset(name.replace("gpt2", "spen"))
        assert (spen.d_model, spen.n_layers) == (width, blocks)
        assert width % heads == 0
    assert set(PRESETS) == {
        *(f"{family}-{size}" for family in ("spen", "gpt2", "skeleton") for size in ("130m", "7m", "tiny")),
        "spen-130m-masked",
    }
    assert defaults_for("gpt2-130m") == defaults_for("spen-130m") == defaults_for("spen-130m-masked")
    assert set(PRESETS) == set(model_presets())


def test_metrics_file_drops_what_is_done_again(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n{"step": 3}\n{"ste', encoding="utf-8")
    file = MetricsFile(path, after_step=2)
    file.write({"step": 3, "loss": 0.1 + 0.2})
    file.close()
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert lines == [{"step": 1}, {"step": 2}, {"step": 3, "loss": 0.30000000000000004}]


def test_random_generators_go_on_where_they_were() -> None:
    import random

    saved = json.loads(json.dumps(random_state(torch.device("cpu"))))
    drawn = [torch.rand(3).tolist(), np.random.rand(3).tolist(), random.random()]  # noqa: NPY002
    restore_random_state(saved, torch.device("cpu"))
    assert [torch.rand(3).tolist(), np.random.rand(3).tolist(), random.random()] == drawn  # noqa: NPY002


def test_tensorboard_gets_the_curve_or_says_what_is_missing(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_config(text, tmp_path / "run", tensorboard=True, tokens=3 * 64)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "torch.utils.tensorboard", None)
        with pytest.raises(ValueError, match=r"ematrace\[tensorboard\]"):
            train(config)
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train(replace(config, out=tmp_path / "other"))
    events = EventAccumulator(str(tmp_path / "other" / "tensorboard"))
    events.Reload()
    plotted = [(e.step, e.value) for e in events.Scalars("train/loss")]
    np.testing.assert_allclose(plotted, curve(tmp_path / "other", "step", "loss"), rtol=1e-6)


def test_settings_that_resuming_compares_exist() -> None:
    assert set(FIXED_FIELDS) <= {field.name for field in fields(TrainConfig)}
    assert {field.name for field in fields(Recipe)} <= {field.name for field in fields(TrainConfig)}


def test_model_that_is_not_there_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for name in ("nobody/no-such-model", str(tmp_path)):
        with pytest.raises((ValueError, OSError), match=name) as caught:
            load_model(name)
        assert "\n" not in str(caught.value)


def test_a_file_is_no_folder_for_a_run(tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.write_text("mine")
    with pytest.raises(ValueError, match="taken: a file; --out is a folder"):
        train(TrainConfig(preset="spen-tiny", data="builtin", out=taken, tokenizer="bpe", device="cpu"))
    assert taken.read_text() == "mine"
