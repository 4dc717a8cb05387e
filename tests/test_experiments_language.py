"""The experiments on language models at toy sizes, on a CPU: rows, and numbers against other ways to get them."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from cells_support import make_file, make_table
from ematrace.bench import Timing
from ematrace.experiments import (
    EXPERIMENTS,
    Context,
    Point,
    Row,
    spen_model,
    spen_prefill,
    spen_streaming,
    spen_training,
)
from ematrace.experiments.base import merged
from ematrace.experiments.decoding import (
    Agreement,
    EagerSpen,
    GreedySpen,
    LibraryGPT2,
    LoopGPT2,
    build_gpt2,
    build_spen,
)
from ematrace.ledger import load_claims
from ematrace.results import read_file
from ematrace.spen import PGHU, SpenConfig, SpenForCausalLM, SpenStream

TOY = {"vocab_size": 500, "d_model": 32, "d_ff": 64, "n_layers": 2, "k": 8, "bos_token_id": 0, "eos_token_id": 0}
STREAMING = {"overrides": TOY, "heads": 2, "streams": [1, 4], "context": 32, "dtype": "float32", "repetitions": 3}
RECORDED = Path(__file__).resolve().parents[1] / "results"


def measure(name: str, folder: Path, settings: dict, data: str | None = None, **factors: str) -> list[Row]:
    """One point of an experiment at these settings."""
    experiment = EXPERIMENTS[name]
    resolved = experiment.resolve_settings(Point(factors), merged(experiment.settings, settings))
    shares: list[float] = []
    ctx = Context(settings=resolved, data=data, progress=shares.append, scratch=folder)
    rows = list(experiment.measure(ctx, **factors))
    assert shares == sorted(shares)
    assert 0 <= min(shares) <= max(shares) <= 1.0
    assert list(folder.iterdir()) == []  # nothing temporary is left
    return rows


def shape_of(rows: list[Row], kept: tuple[str, ...]) -> dict[str, set[str]]:
    """The names of metrics by the factors of their rows, without the values of the factors but for `kept`."""
    found: dict[str, set[str]] = {}
    for row in rows:
        key = json.dumps({name: value if name in kept else "" for name, value in sorted(row.factors.items())})
        found.setdefault(key, set()).update(row.metrics)
    return found


def units_of(rows: list[Row]) -> dict[str, tuple[str, str | None]]:
    return {name: (m.unit, m.better) for row in rows for name, m in row.metrics.items()}


def check_against_recorded(name: str, rows: list[Row], file: str, kept: tuple[str, ...] = ()) -> None:
    """The same factors, metrics and units as the recorded run at full size."""
    recorded = read_file(RECORDED / name / file).cells
    assert shape_of(rows, kept) == shape_of(recorded, kept)
    assert units_of(rows) == units_of(recorded)


def check_claims(name: str, rows: list[Row], **factors: str) -> None:
    """What claims select is there."""
    table = make_table(make_file(*rows, experiment=name, factors=factors))
    needed = {s for claim in load_claims() for s in claim.selectors if s.experiment == name}
    assert needed
    assert {selector for selector in needed if table.select(selector) is None} == set()


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def text(tmp_path) -> str:
    path = tmp_path / "cats.txt"
    path.write_text("the cat sat on the mat and the dog sat on the cat. " * 60)
    return str(path)


@pytest.fixture
def scratch(tmp_path) -> Path:
    (tmp_path / "scratch").mkdir()
    return tmp_path / "scratch"


def test_spen_model_measures_what_was_recorded(scratch):
    rows = measure("spen_model", scratch, {"tokens": 8192, "positions": 64}, "builtin")
    check_against_recorded("spen_model", rows, "seed-0_cpu.json", ("model", "lag", "precision", "ffn"))
    check_claims("spen_model", rows)
    by = {json.dumps(row.factors): row.metrics for row in rows}
    assert by['{"model": "spen-130m"}']["parameters"].value == 130_629_888
    for lag in (50, 200):
        kept = by[f'{{"lag": {lag}}}']["retention"].value
        assert kept == pytest.approx((1 - 0.02) ** lag, rel=1e-5)  # the slow trace forgets a fiftieth a step
    parallel = {name: by[name]["perplexity_parallel"].value for name in by if "precision" in name}
    topk64, dense, topk32 = (
        parallel[f'{{"precision": "{precision}", "ffn": "{ffn}"}}']
        for precision, ffn in (("float64", "topk"), ("float32", "dense"), ("float32", "topk"))
    )
    assert topk32 == pytest.approx(topk64, rel=1e-5)
    assert abs(dense / topk32 - 1) > 1e-4  # another layer, the same weights


def test_the_dense_variant_is_a_model_that_was_configured_so():
    model = SpenForCausalLM(SpenConfig(**TOY)).eval()
    dense = spen_model.variants(model)["float32", "dense"]
    built = SpenForCausalLM(SpenConfig(**TOY, ffn="dense")).eval()
    built.load_state_dict(model.state_dict())
    ids = torch.arange(12).unsqueeze(0)
    with torch.no_grad():
        torch.testing.assert_close(dense.eval()(ids).logits, built(ids).logits, rtol=0, atol=0)
        assert not torch.allclose(dense(ids).logits, model(ids).logits)
    assert model.config.ffn == "topk"


def test_spen_training_measures_what_was_recorded(scratch, text, monkeypatch):
    monkeypatch.setattr("ematrace.text.corpora.BUILTIN_BYTES", 400_000)
    settings = {"tokens": 2048, "sequences": 2, "length": 64, "texts": {"wikitext2": text}}
    for preset, recorded in (("spen-tiny", "spen-130m"), ("gpt2-tiny", "gpt2-130m")):
        rows = measure("spen_training", scratch, settings, "builtin", preset=preset)
        check_against_recorded("spen_training", rows, f"preset-{recorded}_seed-0_gpu.json")
        whole = rows[0].metrics
        assert (whole["steps"].value, whole["tokens"].value) == (16, 2048)
        slow, median, fast = (whole[f"{name}tokens_per_second"].value for name in ("slowest_", "", "fastest_"))
        assert 0 < slow <= median <= fast
        of_text = rows[1].metrics
        assert rows[1].factors == {"text": "wikitext2"}
        assert of_text["perplexity"].value == pytest.approx(math.exp(of_text["cross_entropy"].value))
    check_claims("spen_training", rows, preset="spen-130m")


def test_settings_of_training_say_the_whole_recipe():
    experiment = EXPERIMENTS["spen_training"]
    points = experiment.points("gpu", 1)
    assert [point.factors["preset"] for point in points] == ["spen-130m", "gpt2-130m"]
    recorded = read_file(RECORDED / "spen_training/preset-spen-130m_seed-0_gpu.json").settings
    settings = experiment.resolve_settings(points[0], experiment.settings)
    same = ("tokens", "sequences", "length", "micro_batch", "lr", "final_lr", "warmup", "validation_sequences")
    assert {name: settings[name] for name in same} == {name: recorded[name] for name in same}


def test_speed_leaves_out_the_steps_that_compile(tmp_path, scratch):
    class Summary:
        out = tmp_path
        flops_per_token, matmul_flops_per_second = 10.0, 4000.0
        peak_memory_bytes, parameters, steps, tokens, seconds = 2**30, 7, 9, 900, 1.5
        validation_cross_entropy, unigram_cross_entropy = None, 2.0

    speeds = [1, 1, 1, 1, 1, 300, 100, 200, 150]
    lines = [json.dumps({"tokens_per_second": speed}) for speed in speeds]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    found = {name: m.value for name, m in spen_training.training_metrics(Summary()).items()}
    assert found["tokens_per_second"] == 175
    assert (found["slowest_tokens_per_second"], found["fastest_tokens_per_second"]) == (100, 300)
    assert found["mfu"] == 175 * 10 / 4000
    Summary.matmul_flops_per_second = 1000.0  # measured while the machine was busy
    assert spen_training.training_metrics(Summary())["mfu"].value is None
    assert found["peak_memory_gib"] == 1.0
    assert "validation_cross_entropy" not in found


def test_spen_streaming_measures_what_was_recorded(scratch):
    rows = measure("spen_streaming", scratch, STREAMING)
    check_against_recorded("spen_streaming", rows, "seed-0_gpu.json", ("model",))
    assert [row.factors["streams"] for row in rows if row.factors["model"] == "spen_eager"] == [1]
    renamed = [Row({**row.factors, "streams": {1: 1, 4: 1024}[row.factors["streams"]]}, row.metrics) for row in rows]
    check_claims("spen_streaming", renamed)
    for row in rows:
        speed = row.metrics["tokens_per_second"]
        assert len(speed.repetitions) == 3
        assert speed.value == pytest.approx(np.mean(speed.repetitions))


def test_spen_prefill_measures_what_claims_look_for(scratch):
    rows = measure("spen_prefill", scratch, {**STREAMING, "lengths": [4, 8], "repetitions": 2})
    renamed = [Row({**r.factors, "tokens": {4: 2048, 8: 16384}[r.factors["tokens"]]}, r.metrics) for r in rows]
    check_claims("spen_prefill", renamed)
    assert all(row.metrics["tokens_per_second"].value > 0 for row in rows)


def test_spen_reads_a_whole_sequence_as_it_reads_token_by_token():
    model = build_spen(SpenConfig(**TOY), "cpu")
    ids = torch.randint(0, 500, (1, 12), generator=torch.Generator().manual_seed(0))
    stream = SpenStream(model, decoder=None)
    for token in ids[0]:
        last = stream.step(token)
    torch.testing.assert_close(spen_prefill.read_in_parallel(model, ids, torch.float32)[:, -1], last)
    adapted = SpenStream(model, pghu=PGHU(), decoder=None)
    for token in ids[0]:
        last = adapted.step(token)
    torch.testing.assert_close(spen_prefill.read_with_pghu(model, ids)[:, -1], last)


def test_eager_spen_reads_what_the_stream_puts_first():
    model = build_spen(SpenConfig(**TOY), "cpu")
    eager, stream = EagerSpen(model), SpenStream(model, decoder=None)
    token = torch.zeros(1, dtype=torch.int64)
    for _ in range(5):
        token = stream.step(token).argmax(-1)
    eager(5)
    assert eager.ids.tolist() == token.tolist()


def test_tokens_per_second_by_hand():
    speed = spen_streaming.tokens_per_second(Timing((0.5, 0.25)), tokens=100)
    assert (speed.value, speed.repetitions, speed.unit) == (300.0, (200.0, 400.0), "tokens/s")


def test_a_decoder_that_is_wrong_is_not_timed(scratch, monkeypatch):
    right = spen_streaming.compare_decoder
    worse = {"logits": 0.01, "state": 0.1, "perplexity": -0.03}
    for name, error in worse.items():
        wrong = lambda *args, changes={name: error}: replace(right(*args), **changes)  # noqa: E731
        monkeypatch.setattr(spen_streaming, "compare_decoder", wrong)
        with pytest.raises(ValueError, match="more than rounding explains"):
            EXPERIMENTS["spen_streaming"].measure(Context(settings=STREAMING | {"preset": "spen-130m"}))


@pytest.mark.parametrize(
    ("found", "exact", "expected"),
    [
        (Agreement(1e-6, 1e-6, 1e-6, 9), True, True),
        (Agreement(0.3, 0.3, 0.01, 5), False, True),
        (Agreement(0.3, 1e-6, 1e-6, 9), True, False),
        (Agreement(1e-6, 0.3, 1e-6, 9), True, False),
        (Agreement(1e-6, 1e-6, 0.03, 9), False, False),
    ],
)
def test_what_counts_as_rounding(found, exact, expected):
    assert spen_streaming.agrees(found, exact) == expected


def test_greedy_spen_reads_what_the_stream_puts_first():
    model = build_spen(SpenConfig(**TOY), "cpu")
    greedy = GreedySpen(model, 2, torch.float32)
    greedy(5)
    stream = SpenStream(model, decoder=None)
    logits = stream.step(torch.zeros(2, dtype=torch.int64))
    for _ in range(5):
        logits = stream.step(logits.argmax(-1))
    torch.testing.assert_close(greedy.logits, logits, rtol=1e-4, atol=1e-5)


def test_weights_of_the_streamed_model_are_whole_bfloat16_numbers():
    model = build_spen(SpenConfig(**TOY), "cpu")
    for name, weight in model.named_parameters():
        if weight.ndim == 2:
            assert torch.equal(weight, weight.bfloat16().float()), name
    block = model.model.layers[0]
    weights = dict(block.named_parameters())
    W_e, W_pred = (next(w for n, w in weights.items() if n.endswith(f"{part}.weight")) for part in ("W_e", "W_pred"))
    product = W_e.double() @ W_pred.double()
    assert torch.equal(product, product.bfloat16().double())


@torch.no_grad()
def test_both_gpt2_give_the_logits_of_the_model_at_a_full_context():
    """The loop and transformers' static cache, each at its last place, against each other, step after step."""
    config = SpenConfig(**TOY)
    gpt2 = build_gpt2(config, 32, "cpu", torch.float32, heads=2)
    loop, library = LoopGPT2(gpt2, 3, 32), LibraryGPT2(gpt2, 3, 32)
    for _ in range(3):
        torch.testing.assert_close(loop.step(), library.step(), rtol=1e-4, atol=1e-5)
        assert torch.equal(loop.ids, library.ids[:, 0])
