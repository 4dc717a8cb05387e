"""Which decoder a stream takes by itself, when it takes none, and tokens drawn from it: those of transformers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from ematrace.spen import PGHU, SpenConfig, SpenForCausalLM, SpenStream
from ematrace.spen.decode import CPU_STREAMS, applicable_decoder
from ematrace.spen.generation import generate

pytest.importorskip("numba")

from ematrace.spen.decode.cpu import CpuDecoder

V = 61


def make_model(**settings: Any) -> SpenForCausalLM:
    torch.manual_seed(0)
    sizes = {"vocab_size": V, "d_model": 24, "d_ff": 96, "k": 6, "n_heads": 4, "initializer_range": 0.2}
    return SpenForCausalLM(SpenConfig.preset("spen-tiny", **{**sizes, **settings})).eval()


def tokens(*shape: int) -> Tensor:
    return torch.randint(1, V, shape, generator=torch.Generator().manual_seed(1))


def steps(stream: SpenStream, ids: Tensor) -> Tensor:
    return torch.stack([stream.step(ids[:, t]) for t in range(ids.shape[1])], 1)


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Lengths of the parts that go through the model itself."""
    lengths: list[int] = []
    forward = SpenForCausalLM.model_class.forward

    def noted(self: Any, ids: Tensor, *arguments: Any, **keywords: Any) -> Any:
        lengths.append(ids.shape[1])
        return forward(self, ids, *arguments, **keywords)

    monkeypatch.setattr(SpenForCausalLM.model_class, "forward", noted)
    return lengths


def test_a_stream_decodes_by_itself(passes: list[int]) -> None:
    model, ids = make_model(), tokens(2, 20)
    stream = SpenStream(model)
    logits = steps(stream, ids)
    assert isinstance(stream.decoder, CpuDecoder)
    assert stream.decoder.dtype == torch.float32
    assert passes == []
    assert torch.equal(logits, steps(SpenStream(model, decoder=CpuDecoder(model)), ids))
    torch.testing.assert_close(logits, steps(SpenStream(model, decoder=None), ids), rtol=0, atol=1e-4)
    assert passes == [1] * 20


def test_long_parts_go_through_the_model_and_short_ones_through_the_decoder(
    passes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ematrace.spen.stream.DECODED_STEPS", {"cpu": 3})
    model, ids = make_model(ffn="dense"), tokens(2, 20)
    expected = SpenStream(model, decoder=None).feed(ids)
    passes.clear()
    stream = SpenStream(model)
    parts = [stream.feed(ids[:, :3]), stream.feed(ids[:, 3:12]), stream.feed(ids[:, 12:15]), stream.feed(ids[:, 15:])]
    assert passes == [9, 5]
    torch.testing.assert_close(torch.cat(parts, 1), expected, rtol=0, atol=1e-4)
    stream.reset()
    first = stream.surprise(ids[:, :2])
    rest = stream.surprise(ids[:, 2:], first.predicted)
    assert passes == [9, 5, 18]
    nats = SpenStream(model, decoder=None).surprise(ids).nats
    torch.testing.assert_close(torch.cat([first.nats, rest.nats], 1), nats, rtol=0, atol=1e-4, equal_nan=True)
    assert SpenStream(model).feed(ids[:, :2], keep=1).shape == (2, 1, V)


def hooked() -> SpenForCausalLM:
    model = make_model()
    model.model.layers[0].register_forward_hook(lambda *call: None)
    return model


def replaced() -> SpenForCausalLM:
    model = make_model()
    model.lm_head = torch.nn.Linear(24, V)
    return model


@pytest.mark.parametrize(
    ("model", "n_streams"),
    [
        pytest.param(lambda: make_model(predictor="linear"), 1, id="attention predictor"),
        pytest.param(lambda: make_model(predictor="softmax", predictor_reads="inputs"), 1, id="sequence predictor"),
        pytest.param(lambda: make_model().double(), 1, id="float64"),
        pytest.param(hooked, 1, id="hooked block"),
        pytest.param(replaced, 1, id="replaced head"),
        pytest.param(make_model, CPU_STREAMS + 1, id="many streams"),
    ],
)
def test_where_no_decoder_applies_the_model_reads(model: Any, n_streams: int, passes: list[int]) -> None:
    model, ids = model(), tokens(n_streams, 5)
    assert applicable_decoder(model, n_streams) is None
    stream = SpenStream(model)
    logits = steps(stream, ids)
    assert stream.decoder is None
    assert passes == [1] * 5
    assert torch.equal(logits, steps(SpenStream(model, decoder=None), ids))


def test_no_decoder_without_kernels_and_with_fast_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = make_model(), tokens(1, 5)
    adapting = SpenStream(model, PGHU())
    steps(adapting, ids)
    assert adapting.decoder is None
    monkeypatch.setenv("EMATRACE_KERNELS", "0")
    stream = SpenStream(model)
    steps(stream, ids)
    assert stream.decoder is None
    with pytest.raises(ValueError, match="decoder is 'fast'; it must be 'auto', None or a Decoder"):
        SpenStream(model, decoder="fast")


def test_reset_notices_other_weights() -> None:
    model, ids = make_model(), tokens(1, 4)
    stream = SpenStream(model)
    before = steps(stream, ids)
    stream.reset()
    assert torch.equal(steps(stream, ids), before)
    model.model.embed_tokens.weight.data.mul_(0.5)  # a change that leaves no trace
    stream.reset()
    halved = steps(stream, ids)
    torch.testing.assert_close(halved, steps(SpenStream(model, decoder=None), ids), rtol=0, atol=1e-4)
    assert not torch.allclose(halved, before, rtol=0, atol=1e-3)
    model.model.layers[0].mixer.W_h.register_forward_hook(lambda module, args, output: 2 * output)
    stream.reset()
    torch.testing.assert_close(steps(stream, ids), steps(SpenStream(model, decoder=None), ids), rtol=0, atol=0)


def test_another_number_of_streams_after_reset() -> None:
    stream = SpenStream(make_model())
    stream.step([1, 2])
    stream.reset()
    assert stream.step([1, 2, 3]).shape == (3, V)


# Tokens.


@pytest.mark.parametrize("decoder", ["auto", None])
def test_greedy_tokens_are_those_of_transformers(decoder: Any) -> None:
    model = make_model()
    for n in (1, 2, 9):
        prompt = tokens(1, n)
        expected = model.generate(prompt, max_new_tokens=40, do_sample=False, eos_token_id=None)[0, n:]
        assert list(generate(SpenStream(model, decoder=decoder), prompt, 40, temperature=0)) == expected.tolist()


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.7, 0.9), (1.5, 0.5), (1.0, 0.3)])
def test_drawn_tokens_are_those_of_transformers(temperature: float, top_p: float) -> None:
    model, prompt = make_model(), tokens(1, 6)
    seen = set()
    for seed in range(3):
        torch.manual_seed(seed)
        drawn = {"do_sample": True, "temperature": temperature, "top_p": top_p, "top_k": 0}
        expected = model.generate(prompt, max_new_tokens=30, eos_token_id=None, **drawn)[0, 6:].tolist()
        assert list(generate(SpenStream(model), prompt[0], 30, temperature, top_p, seed)) == expected
        seen.add(tuple(expected))
    assert len(seen) == 3


def test_it_stops_after_the_end_of_text() -> None:
    model, prompt = make_model(), tokens(1, 3)
    whole = list(generate(SpenStream(model), prompt, 30, temperature=0))
    eos = whole[4]
    assert list(generate(SpenStream(model), prompt, 30, temperature=0, eos=eos)) == whole[: whole.index(eos) + 1]


def test_the_stream_can_go_on_after_the_last_token() -> None:
    """The last token was drawn, not read."""
    model, prompt = make_model(), tokens(1, 3)
    stream = SpenStream(model)
    drawn = list(generate(stream, prompt, 5, temperature=0))
    assert stream.cache.seen_tokens == 3 + 4
    assert list(generate(stream, [drawn[-1]], 4, temperature=0)) == list(
        generate(SpenStream(model), [*prompt[0].tolist(), *drawn], 4, temperature=0)
    )
