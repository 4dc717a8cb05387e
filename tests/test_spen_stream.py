"""Streaming: the same logits as in parallel, states that can be put away, fast weights against their equations."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from ematrace.spen import PGHU, SpenConfig, SpenForCausalLM, SpenStream
from ematrace.spen.parity import parity
from ematrace.traces import ema_traces

VOCABULARY = 61


def make_model(dtype: torch.dtype = torch.float64, seed: int = 0, **settings: Any) -> SpenForCausalLM:
    """Weights three times the usual size, so that every part of the block has a say in the logits."""
    torch.manual_seed(seed)
    sizes = {"vocab_size": VOCABULARY, "d_model": 24, "d_ff": 96, "k": 6, "n_layers": 2, "initializer_range": 0.06}
    config = SpenConfig.preset("spen-tiny", **{**sizes, "n_heads": 4, **settings})
    return SpenForCausalLM(config).to(dtype).eval()


def tokens(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randint(VOCABULARY, shape, generator=torch.Generator().manual_seed(seed))


def streamed_logits(stream: SpenStream, ids: torch.Tensor) -> torch.Tensor:
    return torch.stack([stream.step(ids[:, t]) for t in range(ids.shape[1])], 1)


def test_float64_agrees_with_parallel_at_every_one_of_4096_positions() -> None:
    model = make_model()
    ids = tokens(1, 4096)
    with torch.no_grad():
        parallel = model(ids).logits
    assert (streamed_logits(SpenStream(model), ids) - parallel).abs().amax() < 1e-6


def test_float32_with_a_dense_feed_forward_agrees_to_1e_4() -> None:
    model = make_model(torch.float32, ffn="dense")
    ids = tokens(2, 1024)
    with torch.no_grad():
        parallel = model(ids).logits
    assert (streamed_logits(SpenStream(model), ids) - parallel).abs().amax() < 1e-4


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_parity_counts_what_differs(dtype: torch.dtype) -> None:
    got = parity(make_model(dtype), tokens(1, 200))
    bound = 1e-10 if dtype == torch.float64 else 1e-4
    assert got.block_difference < bound
    assert got.perplexity_ratio == pytest.approx(1, abs=1e-3)
    if dtype == torch.float64:
        assert got.max_difference < bound
        assert got.flipped_share == 0


def test_parity_notices_a_stream_that_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = make_model(), tokens(1, 50)
    step = SpenStream.step

    def forgetful(self: SpenStream, ids: torch.Tensor) -> torch.Tensor:
        if self.cache.seen_tokens == 25:
            self.reset()
        return step(self, ids)

    monkeypatch.setattr(SpenStream, "step", forgetful)
    got = parity(model, ids)
    assert got.max_difference > 1e-3
    assert got.perplexity_streamed != got.perplexity_parallel


def test_parity_perplexity_is_that_of_the_next_token() -> None:
    model, ids = make_model(), tokens(1, 60)
    got = parity(model, ids)
    with torch.no_grad():
        expected = model(ids, labels=ids).loss.exp().item()
    assert got.perplexity_parallel == pytest.approx(expected)
    assert got.perplexity_streamed == pytest.approx(expected)


def test_parity_counts_the_positions_where_other_units_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """At one position of each block the streamed traces are turned round, and nowhere else."""
    steps = 50
    calls = 0

    def turned_once(x: torch.Tensor, *arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
        nonlocal calls
        traces, state = ema_traces(x, *arguments)
        calls += x.shape[1] == 1
        return (-9 * traces if x.shape[1] == 1 and calls % steps == 7 else traces), state

    monkeypatch.setattr("ematrace.traces.module.ema_traces", turned_once)
    got = parity(make_model(), tokens(1, steps))
    assert got.flipped_share == 1 / steps
    assert got.block_difference < 1e-10  # over the other positions


def test_float32_with_topk_flips_only_near_ties() -> None:
    """Block by block on the same inputs: a unit changes sides only where it nearly tied."""
    model = make_model(torch.float32, d_model=64, d_ff=512, k=31)
    ids = tokens(1, 1024)
    with torch.no_grad():
        inputs = model(ids, output_hidden_states=True).hidden_states
        flips = 0
        for block, x in zip(model.model.layers, inputs, strict=False):
            units = []
            for backend in ("chunked", "reference"):
                block.mixer.traces.backend = backend
                units.append(block.algorithm1(x)[1])
            parallel, streamed = units
            flipped = (parallel != 0) != (streamed != 0)
            flips += int(flipped.any(-1).sum())
            smallest_kept = parallel.masked_fill(parallel == 0, math.inf).amin(-1, keepdim=True)
            changed = torch.maximum(parallel, streamed)
            assert ((changed - smallest_kept).abs()[flipped] < 1e-5).all()
            assert ((parallel - streamed).abs()[~flipped] < 1e-5).all()
    assert flips <= 0.4 * 2 * 1024


def test_float32_topk_perplexity_is_the_same_within_a_tenth_of_a_percent() -> None:
    model = make_model(torch.float32, d_model=64, d_ff=512, k=31)
    ids = tokens(1, 1024)
    stream, predicted, nats = SpenStream(model), None, []
    for t in range(1024):
        got = stream.surprise(ids[:, t : t + 1], predicted)
        predicted = got.predicted
        nats.append(got.nats)
    streamed = torch.cat(nats, 1)[0, 1:].mean().exp()
    parallel = SpenStream(model).surprise(ids).nats[0, 1:].mean().exp()
    assert streamed == pytest.approx(parallel.item(), rel=1e-3)


@pytest.mark.parametrize(
    ("predictor", "reads"),
    [("static", "traces_now"), ("linear", "inputs"), ("softmax", "trace_sequence"), ("softmax", "traces_now")],
)
def test_feeding_in_pieces_equals_feeding_at_once(predictor: str, reads: str) -> None:
    model = make_model(predictor=predictor, predictor_reads=reads)
    ids = tokens(3, 50)
    whole = SpenStream(model).feed(ids)
    stream = SpenStream(model)
    pieces = [stream.feed(ids[:, :17]), stream.step(ids[:, 17]).unsqueeze(1), stream.feed(ids[:, 18:])]
    torch.testing.assert_close(torch.cat(pieces, 1), whole, rtol=0, atol=1e-11)
    torch.testing.assert_close(SpenStream(model).feed(ids, keep=1), whole[:, -1:], rtol=0, atol=1e-11)


def test_long_prompts_go_through_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = make_model(), tokens(2, 40)
    whole = SpenStream(model).feed(ids)
    monkeypatch.setattr("ematrace.spen.stream.PARALLEL_STEPS", 7)
    torch.testing.assert_close(SpenStream(model).feed(ids), whole, rtol=0, atol=1e-11)
    torch.testing.assert_close(SpenStream(model).feed(ids, keep=3), whole[:, -3:], rtol=0, atol=1e-11)


def test_state_is_the_traces_and_does_not_grow() -> None:
    model = make_model(torch.float32)
    stream = SpenStream(model)
    stream.step(3)
    expected = model.config.n_layers * len(model.config.alphas) * model.config.d_model * 4
    assert stream.state_bytes() == expected
    stream.feed(tokens(1, 500))
    assert stream.state_bytes() == expected


def test_surprise_is_minus_log_probability(monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = make_model(), tokens(2, 30)
    with torch.no_grad():
        log_p = model(ids).logits.log_softmax(-1)
    expected = -log_p[:, :-1].gather(-1, ids[:, 1:, None]).squeeze(-1)
    monkeypatch.setattr("ematrace.spen.stream.SCORED_STEPS", 8)
    stream = SpenStream(model)
    first = stream.surprise(ids[:, :11])
    rest = stream.surprise(ids[:, 11:], first.predicted)
    nats = torch.cat([first.nats, rest.nats], 1)
    assert nats[:, 0].isnan().all()
    torch.testing.assert_close(nats[:, 1:], expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("predictor", "reads", "pghu"),
    [("static", "traces_now", None), ("softmax", "inputs", None), ("static", "traces_now", PGHU(eta=0.05))],
)
def test_a_saved_stream_continues_exactly(tmp_path: Any, predictor: str, reads: str, pghu: PGHU | None) -> None:
    model = make_model(torch.float32, predictor=predictor, predictor_reads=reads)
    ids = tokens(2, 24)
    stream = SpenStream(model, pghu)
    stream.feed(ids[:, :12])
    path = stream.save(tmp_path / "state.safetensors")
    expected = streamed_logits(stream, ids[:, 12:])
    loaded = SpenStream(model, pghu).load(path)
    assert loaded.cache.seen_tokens == 12
    assert torch.equal(streamed_logits(loaded, ids[:, 12:]), expected)


def test_a_loaded_state_lies_in_memory_as_a_fresh_one(tmp_path: Path) -> None:
    """Matmuls may round in another order where memory is aligned otherwise: a PGHU state went on with other logits."""
    for seed in range(5):
        model, rule, ids = make_model(torch.float32, seed=seed, d_model=16), PGHU(eta=0.05), tokens(1, 16, seed=seed)
        stream = SpenStream(model, rule)
        stream.feed(ids[:, :12])
        loaded = SpenStream(model, rule).load(stream.save(tmp_path / "state.safetensors"))
        states = [t for block in loaded.cache.blocks for t in block]
        fast = [t for weights in loaded.fast_weights for t in (weights.delta, weights.variance)]
        assert all(t.data_ptr() % 64 == 0 and t.is_contiguous() for t in (*states, *fast))
        assert torch.equal(streamed_logits(loaded, ids[:, 12:]), streamed_logits(stream, ids[:, 12:]))


@pytest.mark.parametrize("pghu", [None, PGHU()])
def test_a_loaded_stream_knows_what_it_predicted(tmp_path: Path, pghu: PGHU | None) -> None:
    model, ids = make_model(), tokens(2, 12)
    whole = SpenStream(model, pghu).surprise(ids).nats
    stream = SpenStream(model, pghu)
    first = stream.surprise(ids[:, :5]).nats
    rest = SpenStream(model, pghu).load(stream.save(tmp_path / "state.safetensors")).surprise(ids[:, 5:]).nats
    torch.testing.assert_close(torch.cat([first, rest], 1), whole, rtol=0, atol=1e-10, equal_nan=True)
    for t in range(5):  # the same after single steps
        stream.step(ids[:, t])
    assert not stream.surprise(ids[:, 5:]).nats.isnan().any()


@pytest.mark.parametrize("decoder", ["auto", None])
def test_a_bfloat16_stream_continues_exactly(tmp_path: Path, decoder: Any) -> None:
    """Its own logits are bfloat16, those of a decoder float32; the file keeps what there is."""
    model, ids = make_model(torch.bfloat16), tokens(1, 9)
    stream = SpenStream(model, decoder=decoder)
    for read in (lambda: stream.feed(ids[:, :3]), lambda: stream.step(ids[:, 3])):
        read()
        loaded = SpenStream(model, decoder=decoder).load(stream.save(tmp_path / "state.safetensors"))
        assert loaded.predicted.dtype == stream.predicted.dtype
        assert torch.equal(loaded.predicted, stream.predicted)
    assert stream.predicted.dtype == (torch.bfloat16 if decoder is None else torch.float32)
    assert torch.equal(loaded.surprise(ids[:, 4:6]).nats, stream.surprise(ids[:, 4:6]).nats)
    assert torch.equal(streamed_logits(loaded, ids[:, 6:]), streamed_logits(stream, ids[:, 6:]))


def test_a_state_that_would_be_refused_is_not_written(tmp_path: Path) -> None:
    stream, path = SpenStream(make_model(torch.float32), PGHU()), tmp_path / "state.safetensors"
    stream.feed(tokens(1, 4))
    good = stream.save(path).read_bytes()
    stream.fast_weights[1].delta[0, 2, 3] = torch.inf
    with pytest.raises(ValueError, match=r"state\.safetensors: not written: tensor '1\.fast\.delta' .* not finite$"):
        stream.save(path)
    assert path.read_bytes() == good


def test_changing_logits_in_place_leaves_the_prediction_alone() -> None:
    model, ids = make_model(), tokens(1, 3)
    expected = SpenStream(model).surprise(ids).nats[0, 2]
    stream = SpenStream(model, decoder=None)
    for t in range(2):
        stream.step(ids[:, t]).div_(0.1)
    torch.testing.assert_close(stream.surprise(ids[:, 2:]).nats[0, 0], expected)


def rewritten(path: Path, metadata: dict[str, str], tensors: dict[str, torch.Tensor]) -> Path:
    """A state file with other content, of the format without checksum unless `metadata` says otherwise."""
    with safe_open(path, "pt") as file:
        kept = {name: text for name, text in file.metadata().items() if name != "sha256"}
    content = {name: t for name, t in {**load_file(path), **tensors}.items() if t.numel()}
    save_file(content, path, {**kept, "format": "ematrace-stream-1", **metadata})
    return path


@pytest.mark.parametrize(
    ("metadata", "tensors", "message"),
    [
        ({}, {"0.traces": torch.full((3, 1, 24), torch.nan)}, "tensor '0.traces': holds numbers that are not finite"),
        ({}, {"0.traces": torch.zeros(3, 1, 25)}, r"tensor '0.traces': torch.float32 \[3, 1, 25\], should be"),
        ({}, {"0.traces": torch.zeros(3, 1, 24, dtype=torch.int64)}, "tensor '0.traces': torch.int64"),
        ({}, {"1.traces": torch.zeros(0)}, "tensor '1.traces': missing"),
        ({}, {"9.traces": torch.zeros(3, 1, 24)}, "tensor '9.traces': unknown"),
        ({}, {"1.fast.delta": torch.zeros(1, 24, 23)}, "tensor '1.fast.delta'"),
        ({}, {"predicted": torch.zeros(1, 3)}, "tensor 'predicted'"),
        ({"seen_tokens": "-3"}, {}, "seen_tokens is '-3'"),
        ({"seen_tokens": "9" * 5000}, {}, "seen_tokens is '999"),
        ({"seen_tokens": "0"}, {}, "tensor '0.fast.base_scale': unknown"),
        ({"format": "x"}, {}, "format is 'x'"),
        ({"format": "ematrace-stream-with-checksum-2"}, {}, "does not match its checksum"),
        ({"model": "x"}, {}, "written by another model"),
    ],
)
def test_hostile_states_are_refused(
    metadata: dict[str, str], tensors: dict[str, torch.Tensor], message: str, tmp_path: Path
) -> None:
    model = make_model(torch.float32)
    stream = SpenStream(model, PGHU())
    stream.feed(tokens(1, 5))
    path = rewritten(stream.save(tmp_path / "state.safetensors"), metadata, tensors)
    with pytest.raises(ValueError, match=message) as refusal:
        SpenStream(model, PGHU()).load(path)
    assert str(refusal.value).startswith(f"{path}: ")
    assert "\n" not in str(refusal.value)


def test_no_byte_of_a_state_can_change_unnoticed(tmp_path: Path) -> None:
    model = make_model(torch.float32, d_model=4, d_ff=8, n_layers=1, n_heads=2, vocab_size=8, k=2)
    stream = SpenStream(model)
    stream.feed([1, 2, 3])
    path = stream.save(tmp_path / "state.safetensors")
    content = path.read_bytes()
    for at in range(len(content)):
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        with pytest.raises(ValueError, match=r"^.*state\.safetensors: "):
            SpenStream(model).load(path)
    path.write_bytes(content)
    SpenStream(model).load(path)


@pytest.mark.parametrize("pghu", [None, PGHU(eta=0.05)])
def test_a_snapshot_is_untouched_by_reading_on(pghu: PGHU | None) -> None:
    model, ids = make_model(), tokens(1, 20)
    stream = SpenStream(model, pghu)
    stream.feed(ids[:, :8])
    kept = stream.snapshot()
    expected = stream.feed(ids[:, 8:])
    stream.restore(kept)
    assert torch.equal(stream.feed(ids[:, 8:]), expected)
    stream.restore(kept)  # a snapshot can be used more than once
    assert torch.equal(stream.feed(ids[:, 8:]), expected)


def test_a_fresh_stream_can_be_saved(tmp_path: Any) -> None:
    model, ids = make_model(), tokens(1, 5)
    loaded = SpenStream(model).load(SpenStream(model).save(tmp_path / "fresh.safetensors"))
    assert torch.equal(loaded.feed(ids), SpenStream(model).feed(ids))


def test_foreign_and_broken_states_are_refused_by_name(tmp_path: Any) -> None:
    model = make_model()
    stream = SpenStream(model)
    stream.feed(tokens(1, 5))
    path = stream.save(tmp_path / "state.safetensors")
    with pytest.raises(ValueError, match=r"state.safetensors: written by another model"):
        SpenStream(make_model(seed=1)).load(path)
    with pytest.raises(ValueError, match=r"state.safetensors: pghu is null"):
        SpenStream(model, PGHU()).load(path)
    broken = tmp_path / "cut.safetensors"
    broken.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ValueError, match=r"cut.safetensors: not a whole safetensors file"):
        SpenStream(model).load(broken)
    with pytest.raises(FileNotFoundError, match=r"nowhere: no such file"):
        SpenStream(model).load(tmp_path / "nowhere")
    save_file(load_file(path), tmp_path / "plain.safetensors")
    with pytest.raises(ValueError, match=r"plain.safetensors: format is None"):
        SpenStream(model).load(tmp_path / "plain.safetensors")


def test_a_refused_state_leaves_the_stream_as_it_was(tmp_path: Any) -> None:
    model, ids = make_model(), tokens(1, 9)
    foreign = SpenStream(make_model(seed=1))
    foreign.feed(ids)
    path = foreign.save(tmp_path / "foreign.safetensors")
    stream, other = SpenStream(model), SpenStream(model)
    for s in (stream, other):
        s.feed(ids)
    with pytest.raises(ValueError, match="written by another model"):
        stream.load(path)
    assert torch.equal(stream.step(3), other.step(3))


def test_wrong_batches_are_refused() -> None:
    stream = SpenStream(make_model())
    with pytest.raises(ValueError, match="at least one token"):
        stream.feed(torch.zeros(1, 0, dtype=torch.long))
    stream.feed(tokens(2, 4))
    with pytest.raises(ValueError, match="carries 2 sequences, got ids for 3"):
        stream.feed(tokens(3, 4))
    stream.reset()
    assert stream.feed(tokens(3, 4)).shape == (3, 4, VOCABULARY)


@pytest.mark.parametrize("token", [-1, VOCABULARY])
@pytest.mark.parametrize("read", ["step", "feed", "surprise"])
def test_ids_are_checked_before_they_leave_the_cpu(read: str, token: int) -> None:
    """The meta device, like a GPU, cannot be asked about them."""
    stream = SpenStream(make_model(torch.float32).to("meta"))
    for ids in ([token], torch.tensor([token]), *([token] if read == "step" else [])):
        with pytest.raises(ValueError, match=f"token {token} is not in a vocabulary of {VOCABULARY}"):
            getattr(stream, read)(ids)


def pghu_by_hand(model: SpenForCausalLM, rule: PGHU, ids: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """The module's equations and Algorithm 1 in numpy, one block and token at a time."""
    P = {name: p.detach().numpy() for name, p in model.named_parameters()}
    config = model.config

    def layer_norm(v: np.ndarray, prefix: str) -> np.ndarray:
        v = (v - v.mean()) / np.sqrt(v.var() + config.layer_norm_epsilon)
        return v * P[f"{prefix}.weight"] + P[f"{prefix}.bias"]

    n, d = config.n_layers, config.d_model
    W_base = [P[f"model.layers.{i}.mixer.predictor.W_pred.weight"] * (rule.base == "predictor") for i in range(n)]
    W, h, var = [w.copy() for w in W_base], np.zeros((n, 3, d)), np.ones((n, d))
    logits, uncertainty = [], []
    for token in ids:
        x = P["model.embed_tokens.weight"][token]
        inverse_pi = []
        for i in range(n):
            for a, alpha in enumerate(config.alphas):
                h[i, a] = (1 - alpha) * h[i, a] + alpha * x
            unit = h[i, 2] / np.linalg.norm(h[i, 2])
            e = x - W[i] @ unit
            var[i] = (1 - rule.variance_rate) * var[i] + rule.variance_rate * e**2
            pi = np.clip(1 / var[i], rule.pi_min, rule.pi_max)
            inverse_pi.append((1 / pi).mean())
            anchor = W_base[i] if rule.decay_to == "base" else 0.0
            W[i] = W[i] + rule.eta * np.outer(pi * e, unit) - rule.decay * (W[i] - anchor)
            block = f"model.layers.{i}"
            c = x + P[f"{block}.mixer.W_h.weight"] @ h[i].ravel() + P[f"{block}.mixer.W_e.weight"] @ e
            u = P[f"{block}.ffn.W_up.weight"] @ layer_norm(c, f"{block}.norm")
            z = u * 0.5 * (1 + np.vectorize(math.erf)(u / math.sqrt(2)))
            z[np.argsort(-z, kind="stable")[config.k :]] = 0
            x = x + P[f"{block}.ffn.W_down.weight"] @ z
        logits.append(P["model.embed_tokens.weight"] @ layer_norm(x, "model.norm"))
        uncertainty.append(np.mean(inverse_pi))
    return np.array(logits), np.array(uncertainty)


@pytest.mark.parametrize(
    "rule",
    [
        PGHU(eta=0.1, pi_max=2.0, pi_min=1.5, decay=0.05, variance_rate=0.2),
        PGHU(eta=0.1, decay=0.1, decay_to="zero", variance_rate=0.1),
        PGHU(eta=0.05, base="zero", decay=0.01),
    ],
)
def test_pghu_equals_its_equations(rule: PGHU) -> None:
    model, ids = make_model(), tokens(1, 40)
    logits, uncertainty = pghu_by_hand(model, rule, ids[0].tolist())
    stream = SpenStream(model, rule)
    got = stream.surprise(ids)
    assert got.uncertainty is not None
    np.testing.assert_allclose(got.uncertainty[0].numpy(), uncertainty, rtol=1e-10)
    np.testing.assert_allclose(SpenStream(model, rule).feed(ids)[0].numpy(), logits, atol=1e-9)
    plain = SpenStream(model).feed(ids)[0].numpy()
    assert np.abs(logits - plain).max() > 1e-3  # the rule does something


def test_pghu_that_never_learns_is_the_plain_stream() -> None:
    model, ids = make_model(), tokens(2, 30)
    still = SpenStream(model, PGHU(eta=0.0, decay=0.0)).feed(ids)
    torch.testing.assert_close(still, SpenStream(model).feed(ids), rtol=0, atol=1e-11)


def test_without_the_base_the_error_is_the_input() -> None:
    """C31's failure case: with nothing learned yet it is the model whose W_pred is zero."""
    model, ids = make_model(), tokens(1, 30)
    bare = SpenStream(model, PGHU(eta=0.0, base="zero")).feed(ids)
    for block in model.model.layers:
        torch.nn.init.zeros_(block.mixer.predictor.W_pred.weight)
    torch.testing.assert_close(bare, SpenStream(model).feed(ids), rtol=0, atol=1e-11)


def test_streams_adapt_independently() -> None:
    model, ids, rule = make_model(), tokens(3, 20), PGHU(eta=0.1)
    together = SpenStream(model, rule).feed(ids)
    alone = torch.cat([SpenStream(model, rule).feed(row) for row in ids])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-11)


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"eta": -1.0}, "eta"),
        ({"pi_min": 2.0, "pi_max": 1.0}, "pi_min"),
        ({"decay": 1.5}, "decay"),
        ({"base": "x"}, "base"),
    ],
)
def test_pghu_settings_are_checked(settings: dict[str, Any], field: str) -> None:
    with pytest.raises(ValueError, match=rf"PGHU\.{field} is"):
        PGHU(**settings)


def test_pghu_needs_the_static_predictor() -> None:
    with pytest.raises(ValueError, match="static predictor"):
        SpenStream(make_model(predictor="linear"), PGHU())


def test_state_file_says_what_it_is(tmp_path: Any) -> None:
    path = SpenStream(make_model(), PGHU(eta=0.5)).save(tmp_path / "state.safetensors")
    header = path.read_bytes()[8:]
    metadata = json.JSONDecoder().raw_decode(header.decode("utf-8", errors="ignore"))[0]["__metadata__"]
    assert json.loads(metadata["pghu"])["eta"] == 0.5
