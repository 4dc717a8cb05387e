"""The CPU decoder: the same function as the model's own step, in float32 and with bfloat16 weights, state included."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from ematrace.ops.topk import gelu_rank, topk_mask
from ematrace.spen import PGHU, SpenConfig, SpenForCausalLM, SpenStream
from ematrace.spen.decode import applicable_decoder, build_decoder
from ematrace.spen.decode.weights import FoldedWeights, folded_weights

pytest.importorskip("numba")

from ematrace.spen.decode import cpu_kernels as kernels
from ematrace.spen.decode.cpu import CpuDecoder

VOCABULARY = 61


def make_model(seed: int = 0, **settings: Any) -> SpenForCausalLM:
    """Weights three times the usual size, norms that are not 1 and 0: every part has a say in the logits."""
    torch.manual_seed(seed)
    sizes = {"vocab_size": VOCABULARY, "d_model": 24, "d_ff": 96, "k": 6, "n_layers": 2, "initializer_range": 0.06}
    model = SpenForCausalLM(SpenConfig.preset("spen-tiny", **{**sizes, "n_heads": 1, **settings})).eval()
    with torch.no_grad():
        for norm in [*(block.norm for block in model.model.layers), model.model.norm]:
            norm.weight.uniform_(0.5, 1.5)
            norm.bias.uniform_(-0.5, 0.5)
    return model


def tokens(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randint(VOCABULARY, shape, generator=torch.Generator().manual_seed(seed))


def zero_state(model: SpenForCausalLM, n_streams: int = 1) -> torch.Tensor:
    config = model.config
    return torch.zeros(config.n_layers, len(config.alphas), n_streams, config.d_model)


def decoded(decoder: CpuDecoder, state: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return torch.stack([decoder.step(ids[:, t].contiguous(), state) for t in range(ids.shape[1])], 1)


def stepped(model: SpenForCausalLM, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and state of the model's own step."""
    stream = SpenStream(model, decoder=None)
    logits = torch.stack([stream.step(ids[:, t]) for t in range(ids.shape[1])], 1)
    return logits, torch.stack([state[0].transpose(0, 1) for state in stream.cache.blocks])


def perplexity(logits: torch.Tensor, ids: torch.Tensor) -> float:
    log_p = logits[:, :-1].double().log_softmax(-1)
    return float(log_p.gather(-1, ids[:, 1:, None]).mean().neg().exp())


def by_hand(folded: FoldedWeights, config: SpenConfig, ids: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """The regrouped block in float64 numpy, one token at a time: logits [T, vocabulary] and state [L, A, d]."""

    def layer_norm(v: np.ndarray, weight: torch.Tensor, bias: torch.Tensor) -> np.ndarray:
        v = (v - v.mean()) / np.sqrt(v.var() + config.layer_norm_epsilon)
        return v * weight.double().numpy() + bias.double().numpy()

    exact = [{name: t.double().numpy() for name, t in vars(block).items()} for block in folded.blocks]
    h = np.zeros((config.n_layers, len(config.alphas), config.d_model))
    alphas = np.array(config.alphas)[:, None]
    logits = []
    for token in ids:
        x = folded.embedding[token].double().numpy()
        for i, block in enumerate(exact):
            h[i] = (1 - alphas) * h[i] + alphas * x
            length = np.linalg.norm(h[i, -1])
            unit = h[i, -1] / length if length else np.zeros_like(x)
            c = x + block["M"] @ np.concatenate([h[i].ravel(), x, unit])
            u = block["W_up"] @ layer_norm(c, folded.blocks[i].norm_weight, folded.blocks[i].norm_bias)
            z = u * 0.5 * (1 + np.vectorize(math.erf)(u / math.sqrt(2)))
            if config.ffn == "topk":
                z[np.argsort(-z, kind="stable")[config.k :]] = 0
            x = (x if config.residual == "ffn" else c) + z @ block["W_down_T"]
        logits.append(folded.head.double().numpy() @ layer_norm(x, folded.norm_weight, folded.norm_bias))
    return np.array(logits), h


def rounded(folded: FoldedWeights) -> FoldedWeights:
    """Every matrix rounded to bfloat16, the folded product after folding; norms as they are."""

    def cut(t: torch.Tensor) -> torch.Tensor:
        return t.bfloat16().float() if t.ndim == 2 else t

    blocks = tuple(type(block)(**{name: cut(t) for name, t in vars(block).items()}) for block in folded.blocks)
    norms = {"norm_weight": folded.norm_weight, "norm_bias": folded.norm_bias}
    return FoldedWeights(blocks, embedding=cut(folded.embedding), head=cut(folded.head), **norms)


SWITCHES: dict[str, dict[str, Any]] = {
    "paper": {},
    "dense": {"ffn": "dense"},
    "direct": {"residual": "direct"},
    "dense_direct": {"ffn": "dense", "residual": "direct"},
    "one_rate": {"alphas": (0.3,)},
    "five_rates": {"alphas": (1.0, 0.7, 0.2, 0.05, 0.0)},  # the last never moves: ĥ stays 0
    "odd_width": {"d_model": 67, "d_ff": 131, "k": 13},
    "wide": {"d_model": 160, "d_ff": 352, "k": 21, "n_layers": 3},
    "narrow": {"d_model": 5, "d_ff": 7, "k": 1},
    "all_units": {"k": 96},
    "epsilon": {"layer_norm_epsilon": 0.1},
    "untied": {"tie_word_embeddings": False},
}


@pytest.mark.parametrize("switch", SWITCHES)
def test_it_equals_its_equations(switch: str) -> None:
    model = make_model(**SWITCHES[switch])
    ids, state = tokens(1, 40), zero_state(model)
    expected, h = by_hand(folded_weights(model), model.config, ids[0].tolist())
    logits = decoded(CpuDecoder(model), state, ids)
    np.testing.assert_allclose(logits[0].numpy(), expected, rtol=0, atol=2e-5)
    np.testing.assert_allclose(state[:, :, 0].numpy(), h, rtol=0, atol=2e-6)


@pytest.mark.parametrize("switch", SWITCHES)
def test_bfloat16_rounds_the_weights_and_nothing_else(switch: str) -> None:
    model = make_model(**SWITCHES[switch])
    ids, state = tokens(1, 40), zero_state(model)
    folded = folded_weights(model)
    expected, h = by_hand(rounded(folded), model.config, ids[0].tolist())
    logits = decoded(CpuDecoder(model, torch.bfloat16), state, ids)
    np.testing.assert_allclose(logits[0].numpy(), expected, rtol=0, atol=2e-5)
    np.testing.assert_allclose(state[:, :, 0].numpy(), h, rtol=0, atol=2e-6)
    unrounded, _ = by_hand(folded, model.config, ids[0].tolist())
    assert np.abs(expected - unrounded).max() > 1e-4  # else this could not tell the two apart


def test_folding_keeps_the_function() -> None:
    """W_h, W_e and W_pred apart, in float64, against M; float32's rounding of M is all that may differ."""
    model = make_model()
    h, x = torch.randn(3, 24, dtype=torch.float64), torch.randn(24, dtype=torch.float64)
    for block, folded in zip(model.model.layers, folded_weights(model).blocks, strict=True):
        unit = h[2] / h[2].norm()
        mixer = block.mixer
        e = x - mixer.predictor.W_pred.weight.double() @ unit
        expected = mixer.W_h.weight.double() @ h.flatten() + mixer.W_e.weight.double() @ e
        got = folded.M.double() @ torch.cat([h.flatten(), x, unit])
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-6)
        assert torch.equal(folded.W_down_T.T, block.ffn.W_down.weight)


@pytest.mark.parametrize("n_streams", [1, 3])
@pytest.mark.parametrize("switch", [{}, {"residual": "direct"}, {"tie_word_embeddings": False}], ids=str)
def test_a_dense_model_steps_as_its_own_step_does(n_streams: int, switch: dict[str, Any]) -> None:
    model = make_model(ffn="dense", **switch)
    ids, state = tokens(n_streams, 400), zero_state(model, n_streams)
    expected, traces = stepped(model, ids)
    torch.testing.assert_close(decoded(CpuDecoder(model), state, ids), expected, rtol=0, atol=1e-4)
    torch.testing.assert_close(state, traces, rtol=0, atol=1e-5)


@pytest.mark.parametrize("n_streams", [1, 3])
def test_with_topk_few_steps_differ_and_perplexity_is_the_same(n_streams: int) -> None:
    """A rounding difference can let a unit in that nearly tied, so a few steps may differ; most may not."""
    model = make_model(d_model=64, d_ff=512, k=31)
    ids = tokens(n_streams, 400)
    expected, _ = stepped(model, ids)
    got = decoded(CpuDecoder(model), zero_state(model, n_streams), ids)
    close = ((got - expected).abs().amax(-1) < 1e-4).double().mean()
    assert close > 0.9
    assert perplexity(got, ids) == pytest.approx(perplexity(expected, ids), rel=1e-3)


def test_a_model_of_either_gradient_streams_bitwise_the_same() -> None:
    """topk_grad is of the backward pass alone: spen-130m-masked has the decoder, and so the speed, of spen-130m."""
    straight_through, masked = make_model(topk_grad="ste"), make_model(topk_grad="masked")
    ids = tokens(1, 20)
    found = []
    for model in (straight_through, masked):
        decoder = applicable_decoder(model, n_streams=1)
        assert isinstance(decoder, CpuDecoder)
        found.append((decoded(decoder, zero_state(model), ids), model(ids).logits))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


def test_streams_do_not_touch_each_other() -> None:
    model = make_model()
    decoder, ids = CpuDecoder(model), tokens(3, 20)
    together = decoded(decoder, zero_state(model, 3), ids)
    alone = torch.cat([decoded(decoder, zero_state(model), row[None]) for row in ids])
    assert torch.equal(together, alone)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("piece", [1, 500, 10**9])
def test_threads_and_pieces_of_work_change_nothing(dtype: torch.dtype, piece: int) -> None:
    """More threads than processors, and than pieces; pieces of one row, of a few, of all."""
    model, ids = make_model(), tokens(2, 30)
    results = []
    for threads in (1, 2, 5):
        decoder, state = CpuDecoder(model, dtype, threads), zero_state(model, 2)
        decoder._layout = decoder._layout._replace(piece=piece)
        results.append((decoded(decoder, state, ids), state))
    expected, traces = by_hand(
        folded_weights(model) if dtype == torch.float32 else rounded(folded_weights(model)),
        model.config,
        ids[1].tolist(),
    )
    for logits, state in results:
        assert torch.equal(logits, results[0][0])
        assert torch.equal(state, results[0][1])
        np.testing.assert_allclose(logits[1].numpy(), expected, rtol=0, atol=2e-5)
        np.testing.assert_allclose(state[:, :, 1].numpy(), traces, rtol=0, atol=2e-6)


def test_threads_that_come_late_find_the_work_done() -> None:
    """The second thread runs when the first has finished the step alone, and must leave everything as it is."""
    model = make_model()
    decoder, state, ids = CpuDecoder(model, threads=2), zero_state(model), tokens(1)
    expected, after = CpuDecoder(model, threads=1), zero_state(model)
    logits = expected.step(ids, after)
    late = torch.full_like(logits, torch.nan)
    for private in decoder._private:
        decoder._run(private, ids.numpy(), state.numpy(), late.numpy())
    assert torch.equal(late, logits)
    assert torch.equal(state, after)


def test_tied_units_are_those_of_the_model() -> None:
    """All units of a block are equal and tie; the first k are kept: the columns of W_down tell which those were."""
    model = make_model()
    with torch.no_grad():
        for block in model.model.layers:
            block.ffn.W_up.weight[:] = block.ffn.W_up.weight[:1]
    ids = tokens(1, 10)
    expected, _ = stepped(model, ids)
    torch.testing.assert_close(decoded(CpuDecoder(model), zero_state(model), ids), expected, rtol=0, atol=1e-5)


def test_a_zero_trace_predicts_nothing() -> None:
    model = make_model()
    with torch.no_grad():
        model.model.embed_tokens.weight[7] = 0
    ids = torch.full((1, 3), 7)
    expected, _ = stepped(model, ids)
    got = decoded(CpuDecoder(model), zero_state(model), ids)
    assert got.isfinite().all()
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)


def test_a_broken_state_stays_visible() -> None:
    model = make_model()
    state = zero_state(model)
    state[0, 0, 0, 3] = torch.nan
    assert CpuDecoder(model).step(tokens(1), state).isnan().all()


# The kernels by themselves


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_of_every_length(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(400, generator=generator).to(dtype)
    vector = torch.randn(400, generator=generator)
    flat = weights.numpy() if dtype == torch.float32 else weights.view(torch.uint16).numpy()
    for n in [*range(1, 140), 255, 256, 257]:
        got = kernels.dot(flat, 3, vector.numpy(), 5, n)
        expected = weights[3 : 3 + n].double() @ vector[5 : 5 + n].double()
        assert got == pytest.approx(float(expected), abs=1e-5), n


def test_gelu_is_torchs() -> None:
    values = torch.cat([torch.linspace(-12, 12, 20_001), torch.tensor([0.0, -0.0, 1e-30, 1e30, torch.inf, torch.nan])])
    got = torch.tensor([kernels.gelu(np.float32(v)) for v in values.tolist()])
    expected = torch.nn.functional.gelu(values.double()).float()
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-6, equal_nan=True)
    assert math.isnan(kernels.gelu(np.float32(-math.inf)))  # as torch's: -inf · 0


def largest(u: torch.Tensor, k: int) -> torch.Tensor:
    rank = np.array([[kernels.order(v, np.float32(kernels.gelu(v))) for v in u.numpy()]], np.int32)
    active = np.zeros(len(u) + 1, np.int64)
    assert kernels.largest(rank, 0, len(u), k, active) == k
    return torch.zeros(len(u), dtype=torch.bool).index_fill(0, torch.from_numpy(active[:k]), True)


@pytest.mark.parametrize(
    "values",
    [
        pytest.param(torch.randn(200), id="random"),
        pytest.param(torch.randint(-3, 4, (200,)).float(), id="ties"),
        pytest.param(torch.randint(-1, 1, (200,)).float() * -0.0, id="zeros of both signs"),
        pytest.param(
            torch.tensor([1.0, torch.inf, -torch.inf, torch.nan, 2.0, torch.inf, -torch.nan]), id="not finite"
        ),
        pytest.param(torch.full((9,), torch.nan), id="all NaN"),
        pytest.param(-torch.rand(50) * 1e-38, id="denormal"),
        pytest.param(torch.tensor([-3.0e38, 3.0e38, -1e-45, 1e-45, 0.0]), id="extremes"),
        pytest.param(torch.full((30,), 3.0) * (1 + torch.arange(30) * 2**-23), id="neighbours with equal GELU"),
        pytest.param(torch.tensor([4.0]), id="one"),
    ],
)
def test_the_largest_are_those_of_the_operator(values: torch.Tensor) -> None:
    for k in sorted({1, 2, 3, len(values) // 2, len(values) - 1, len(values)}):
        if 1 <= k <= len(values):
            assert torch.equal(largest(values, k), topk_mask(gelu_rank(values[None]), k)[0]), k


# Within a stream


@pytest.mark.parametrize("n_streams", [1, 3])
def test_a_stream_prefills_in_parallel_decodes_and_prefills_again(n_streams: int) -> None:
    model = make_model(ffn="dense")
    ids = tokens(n_streams, 90)
    stream, plain = SpenStream(model, decoder=CpuDecoder(model)), SpenStream(model, decoder=None)
    for first, end in ((0, 30), (30, 60)):
        torch.testing.assert_close(stream.feed(ids[:, first:end]), plain.feed(ids[:, first:end]), rtol=0, atol=1e-4)
        for t in range(end, end + 10):
            torch.testing.assert_close(stream.step(ids[:, t]), plain.step(ids[:, t]), rtol=0, atol=1e-4)
        assert stream.cache.seen_tokens == plain.cache.seen_tokens
        assert stream.state_bytes() == plain.state_bytes()
        for block, other in zip(stream.cache.blocks, plain.cache.blocks, strict=True):
            torch.testing.assert_close(block[0], other[0], rtol=0, atol=1e-5)


def test_a_stream_steps_through_its_decoder() -> None:
    """With bfloat16 weights the decoder's logits are not the model's, and the stream's are the decoder's."""
    model = make_model()
    decoder, ids = CpuDecoder(model, torch.bfloat16), tokens(1, 8)
    stream = SpenStream(model, decoder=decoder)
    got = torch.stack([stream.step(int(i)) for i in ids[0]], 1)
    assert torch.equal(got, decoded(decoder, zero_state(model), ids))
    assert not torch.allclose(got, stepped(model, ids)[0], atol=1e-4)


def test_logits_of_a_stream_are_kept() -> None:
    model = make_model()
    stream = SpenStream(model, decoder=CpuDecoder(model))
    first = stream.step(3)
    before = first.clone()
    stream.step(4)
    assert torch.equal(first, before)


def test_a_snapshot_is_untouched_by_decoding() -> None:
    model, ids = make_model(), tokens(1, 20)
    stream = SpenStream(model, decoder=CpuDecoder(model))

    def read(part: torch.Tensor) -> torch.Tensor:
        return torch.stack([stream.step(i) for i in part[0]], 1)

    read(ids[:, :8])
    kept = stream.snapshot()
    expected = read(ids[:, 8:])
    for _ in range(2):  # a snapshot can be used more than once
        stream.restore(kept)
        assert stream.cache.seen_tokens == 8
        assert torch.equal(read(ids[:, 8:]), expected)
    fed = SpenStream(model)
    fed.restore(kept)
    torch.testing.assert_close(fed.feed(ids[:, 8:]), expected, rtol=0, atol=1e-4)


def test_a_saved_stream_goes_on_with_and_without_a_decoder(tmp_path: Any) -> None:
    model, ids = make_model(), tokens(2, 24)
    decoder = CpuDecoder(model)
    stream = SpenStream(model, decoder=decoder)
    for t in range(12):
        stream.step(ids[:, t])
    path = stream.save(tmp_path / "state.safetensors")
    expected = torch.stack([stream.step(ids[:, t]) for t in range(12, 24)], 1)
    loaded = SpenStream(model, decoder=decoder).load(path)
    assert loaded.cache.seen_tokens == 12
    assert torch.equal(torch.stack([loaded.step(ids[:, t]) for t in range(12, 24)], 1), expected)
    plain = SpenStream(model).load(path)
    torch.testing.assert_close(plain.feed(ids[:, 12:]), expected, rtol=0, atol=1e-4)


def test_reset_forgets_what_was_decoded() -> None:
    model = make_model()
    stream = SpenStream(model, decoder=CpuDecoder(model))
    first = stream.step(3)
    stream.step(4)
    stream.reset()
    assert torch.equal(stream.step(3), first)
    stream.reset()
    assert stream.step([3, 4, 5]).shape == (3, VOCABULARY)  # another number of streams


def test_float64_models_are_decoded_in_float32() -> None:
    model = make_model().double()
    stream, ids = SpenStream(model, decoder=CpuDecoder(model)), tokens(1, 12)
    stream.feed(ids[:, :5])
    got = torch.stack([stream.step(i) for i in ids[0, 5:]], 1)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), SpenStream(model).feed(ids)[:, 5:], rtol=0, atol=1e-4)


def test_the_weights_are_those_at_building() -> None:
    model = make_model()
    decoder, ids = CpuDecoder(model), tokens(1, 5)
    before = decoded(decoder, zero_state(model), ids)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert torch.equal(decoded(decoder, zero_state(model), ids), before)


def test_the_device_chooses_the_decoder() -> None:
    model = make_model()
    assert isinstance(build_decoder(model), CpuDecoder)
    chosen = build_decoder(model, n_streams=3, dtype=torch.bfloat16)
    assert isinstance(chosen, CpuDecoder)
    assert chosen.dtype == torch.bfloat16
    with pytest.raises(ValueError, match="the model is on meta"):
        build_decoder(model.to("meta"))


def test_weight_bytes_are_those_that_a_step_reads() -> None:
    model = SpenForCausalLM(SpenConfig.preset("spen-tiny"))
    expected = (2 * (5 * 64 + 256 + 16) + 4096) * 64  # 2 blocks of M, W_up and 16 rows of W_down, then the head
    assert CpuDecoder(model).weight_bytes == expected * 4
    assert CpuDecoder(model, torch.bfloat16).weight_bytes == expected * 2


def test_models_and_settings_it_cannot_run_are_refused() -> None:
    model = make_model()
    linear = make_model(predictor="linear")
    with pytest.raises(ValueError, match=r"SpenConfig.predictor is 'linear'"):
        CpuDecoder(linear)
    with pytest.raises(ValueError, match=r"SpenConfig.predictor is 'linear'"):
        SpenStream(linear, decoder=CpuDecoder(model))
    observed = make_model()
    observed.model.layers[0].ffn.W_up.register_forward_hook(lambda *call: None)
    with pytest.raises(ValueError, match=r"calls no layers, but model.layers.0.ffn.W_up was replaced or hooked"):
        CpuDecoder(observed)
    with pytest.raises(ValueError, match="pghu and decoder exclude each other"):
        SpenStream(model, PGHU(), CpuDecoder(model))
    with pytest.raises(ValueError, match=r"float32 or bfloat16, not in torch.float16"):
        CpuDecoder(model, torch.float16)
    with pytest.raises(ValueError, match="at least one thread, got 0"):
        CpuDecoder(model, threads=0)


def test_wrong_ids_and_states_are_refused_and_change_nothing() -> None:
    model = make_model()
    decoder, state = CpuDecoder(model), zero_state(model)
    for ids in (torch.tensor([VOCABULARY]), torch.tensor([-1])):
        with pytest.raises(ValueError, match=rf"token {ids.item()} is not in a vocabulary of {VOCABULARY}"):
            decoder.step(ids, state)
    with pytest.raises(ValueError, match=r"ids must be \[B\] int64"):
        decoder.step(torch.tensor([1], dtype=torch.int32), state)
    for wrong in (state.double(), zero_state(model, 2), state.transpose(0, 1)):
        with pytest.raises(ValueError, match="state must be"):
            decoder.step(torch.tensor([1]), wrong)
    assert not state.any()
    stream = SpenStream(model, decoder=decoder)
    stream.step([1, 2])
    with pytest.raises(ValueError, match="carries 2 sequences, got ids for 3"):
        stream.step([1, 2, 3])


def test_a_decoder_for_other_streams_is_refused() -> None:
    model = make_model()
    decoder = CpuDecoder(model)
    decoder.n_streams = 4
    with pytest.raises(ValueError, match="built for 4 streams, got ids for 1"):
        SpenStream(model, decoder=decoder).step(3)
