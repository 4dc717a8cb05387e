"""Models and stream states that version 0.1 saved: they load, and every number that it computed comes out again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from ematrace.models import upgrade_names
from ematrace.spen import SpenConfig, SpenForCausalLM, SpenStream
from ematrace.spen.modeling import name_in_v0_1
from spen_support import PREDICTORS

FOLDER = Path(__file__).parent / "data" / "spen_v0.1"
each_variant = pytest.mark.parametrize("variant", sorted(path.name for path in FOLDER.iterdir() if path.is_dir()))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As when the numbers were recorded: the order of a sum may depend on the number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def arithmetic() -> Tensor:
    """Torch's own operators, as the models call them, on fixed numbers."""
    draw = torch.Generator().manual_seed(0)
    x, W_h, W_up = (torch.randn(*shape, generator=draw) for shape in ((2, 24, 48), (16, 48), (32, 16)))
    y = F.linear(x, W_h)
    z = F.gelu(F.linear(F.layer_norm(y, (16,)), W_up))
    heads = y.unflatten(-1, (2, -1)).transpose(1, 2)
    attended = F.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
    return torch.cat([part.flatten() for part in (y, z, attended, z.log_softmax(-1), y @ y.mT)])


@pytest.fixture(scope="module")
def bitwise() -> bool:
    """Whether torch here, on this processor, rounds as it did where the numbers were recorded."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    same = torch.equal(arithmetic(), load_file(FOLDER / "arithmetic.safetensors")["results"])
    torch.set_num_threads(before)
    return same


def assert_same(got: Tensor, expected: Tensor, bitwise: bool) -> None:
    if bitwise:
        assert torch.equal(got, expected)
    else:
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def recorded(variant: str) -> tuple[SpenForCausalLM, dict[str, Tensor]]:
    model = SpenForCausalLM.from_pretrained(FOLDER / variant).eval()
    return model, load_file(FOLDER / variant / "expected.safetensors")


@each_variant
@torch.no_grad()
def test_logits(variant: str, bitwise: bool) -> None:
    model, expected = recorded(variant)
    ids = expected["ids"]
    assert_same(model(ids).logits, expected["logits"], bitwise)
    assert_same(model(ids, attention_mask=expected["mask"]).logits, expected["logits_padded"], bitwise)
    assert_same(model(ids[:1], cu_seqlens=expected["cu_seqlens"]).logits, expected["logits_packed"], bitwise)
    assert_same(model.double()(ids).logits, expected["logits_float64"], bitwise)


@each_variant
def test_loss_and_gradients(variant: str, bitwise: bool) -> None:
    model, expected = recorded(variant)
    out = model.train()(expected["ids"], labels=expected["ids"])
    out.loss.backward()
    assert_same(out.loss.detach(), expected["loss"], bitwise)
    assert_same(out.cross_entropy.detach(), expected["cross_entropy"], bitwise)
    assert_same(model.model.embed_tokens.weight.grad, expected["grad_embedding"], bitwise)
    assert_same(model.model.layers[0].ffn.W_up.weight.grad, expected["grad_W_up"], bitwise)


@each_variant
def test_stream_states(variant: str, bitwise: bool) -> None:
    model, expected = recorded(variant)
    stream = SpenStream(model, decoder=None).load(FOLDER / variant / "stream.safetensors")
    assert stream.cache.seen_tokens == 12
    got = torch.stack([stream.step(expected["ids"][:, t]) for t in range(12, 24)], 1)
    assert_same(got, expected["logits_streamed"], bitwise)


@each_variant
def test_every_way_to_load(variant: str, tmp_path: Path) -> None:
    """from_pretrained, the Auto class and load_state_dict; what is saved again loads as well."""
    model, expected = recorded(variant)
    assert not any(SpenForCausalLM.from_pretrained(FOLDER / variant, output_loading_info=True)[1].values())
    with torch.no_grad():
        logits = model(expected["ids"]).logits
    plain = SpenForCausalLM(model.config)
    keys = plain.load_state_dict(load_file(FOLDER / variant / "model.safetensors"), strict=False)
    assert keys.missing_keys == ["lm_head.weight"]  # tied, so saved once
    assert not keys.unexpected_keys
    model.save_pretrained(tmp_path)
    others = [plain, *(AutoModelForCausalLM.from_pretrained(folder) for folder in (FOLDER / variant, tmp_path))]
    for other in others:
        with torch.no_grad():
            assert torch.equal(other.eval()(expected["ids"]).logits, logits)


@each_variant
def test_names_of_checkpoints(variant: str) -> None:
    """Weights, and an optimiser's averages, whose names have a prefix; today's names stay as they are."""
    model, _ = recorded(variant)
    today = {name for name, _ in model.named_parameters()}
    tensors = load_file(FOLDER / variant / "model.safetensors")
    assert upgrade_names(model, tensors).keys() == today
    assert upgrade_names(model, dict.fromkeys(today)).keys() == today
    averages = {f"exp_avg.{name}": tensor for name, tensor in tensors.items()}
    assert upgrade_names(model, averages).keys() == {f"exp_avg.{name}" for name in today}
    assert upgrade_names(torch.nn.Linear(1, 1), averages) == averages


@pytest.mark.parametrize(("predictor", "reads"), PREDICTORS)
def test_a_seed_draws_the_same_first_weights(predictor: str, reads: str) -> None:
    torch.manual_seed(7)
    config = SpenConfig.preset("spen-tiny", predictor=predictor, predictor_reads=reads, vocab_size=100)
    digest = hashlib.sha256()
    parameters = {name_in_v0_1(name): parameter for name, parameter in SpenForCausalLM(config).named_parameters()}
    for name, parameter in sorted(parameters.items()):
        digest.update(name.encode())
        digest.update(parameter.detach().view(torch.uint8).numpy().data)
    expected = json.loads((FOLDER / "first_weights.json").read_text())
    assert digest.hexdigest() == expected[f"{predictor}-{reads}"]
