"""The skeleton around every mixer: padded, packed, carried, saved or compiled, it is one full pass of its equations."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from ematrace.mixers import MIXERS, Mixer, _registry, register_mixer
from ematrace.mixers.base import state_tensors
from ematrace.models import MixerCache, SkeletonConfig, SkeletonForCausalLM, SkeletonModel
from ematrace.train import load_model
from spen_support import EXACT, ROWS, V, draw, pad

SMALL = {"vocab_size": V, "d_model": 16, "d_ff": 24, "n_layers": 2, "k": 6, "initializer_range": 0.3}
SMALL |= {"bos_token_id": 0, "eos_token_id": None, "pad_token_id": 0}
each_mixer = pytest.mark.parametrize("mixer", sorted(MIXERS))
LEARNED = {"positions": "learned", "max_positions": 80}


def build(mixer: str = "ema", **changes: Any) -> SkeletonForCausalLM:
    torch.manual_seed(0)
    return SkeletonForCausalLM(SkeletonConfig(**{**SMALL, "mixer": mixer, **changes})).double().eval()


# The block's equations, switch by switch.


@pytest.mark.parametrize("norm", ["pre", "algorithm1"])
@pytest.mark.parametrize("residual", ["direct", "ffn"])
@pytest.mark.parametrize("ffn", ["dense", "topk"])
@torch.no_grad()
def test_a_block_is_its_equations(norm: str, residual: str, ffn: str) -> None:
    model = build("attention", norm=norm, residual=residual, ffn=ffn)
    ids = draw(2, 9)
    x = model.model.embed_tokens(ids)
    for block in model.model.layers:
        y, _ = block.mixer(block.mixer_norm(x) if norm == "pre" else x)
        c = x + y
        z = F.gelu(block.norm(c) @ block.ffn.W_up.weight.T)
        if ffn == "topk":
            z = z * (z >= z.topk(6).values[..., -1:])
        x = (c if residual == "direct" else x) + z @ block.ffn.W_down.weight.T
    torch.testing.assert_close(model(ids).logits, model.model.norm(x) @ model.lm_head.weight.T, **EXACT)
    assert isinstance(model.model.layers[0].mixer_norm, nn.LayerNorm) == (norm == "pre")


def test_learned_positions_are_added() -> None:
    model = build("none", **LEARNED)
    ids = draw(1, 7)
    entered = model.model(ids, output_hidden_states=True).hidden_states[0]
    expected = model.model.embed_tokens(ids) + model.model.embed_positions(torch.arange(7))
    torch.testing.assert_close(entered, expected, **EXACT)
    assert build("none").model.embed_positions is None


def test_more_tokens_than_learned_positions_are_refused() -> None:
    model = build("none", **LEARNED | {"max_positions": 8})
    for ids, mask in ((draw(1, 9), None), (draw(1, 9), torch.ones(1, 9))):
        with pytest.raises(ValueError, match="a sequence of 9 tokens; the model has 8 learned positions"):
            model(ids, attention_mask=mask)
    cache = model(draw(1, 8), use_cache=True).past_key_values
    with pytest.raises(ValueError, match="a sequence of 9 tokens"):
        model(draw(1, 1), past_key_values=cache)
    model(draw(1, 12), attention_mask=torch.tensor([[0] * 4 + [1] * 8]))  # padding does not count
    model(draw(1, 12), cu_seqlens=torch.tensor([0, 8, 12]))


# Whichever way it is run.


def whole_row(model: SkeletonForCausalLM, row: Tensor) -> Tensor:
    return model(row[None], use_cache=False).logits[0]


@each_mixer
@pytest.mark.parametrize("positions", [{}, LEARNED], ids=["no positions", "learned positions"])
@torch.no_grad()
def test_padded_packed_and_carried_are_one_pass(mixer: str, positions: dict[str, Any]) -> None:
    model = build(mixer, **positions)
    then = draw(len(ROWS), 3, seed=99)
    alone = [whole_row(model, row) for row in ROWS]
    continued = torch.stack([whole_row(model, torch.cat([row, then[i]]))[-3:] for i, row in enumerate(ROWS)])
    for side in ("left", "right"):
        ids, mask = pad(ROWS, side)
        out = model(ids, attention_mask=mask, use_cache=True)
        for i, logits in enumerate(alone):
            torch.testing.assert_close(out.logits[i, mask[i].bool()], logits, **EXACT)
        torch.testing.assert_close(model(then, past_key_values=out.past_key_values).logits, continued, **EXACT)
    offsets = torch.tensor([0, *itertools.accumulate(len(row) for row in ROWS)])
    out = model(torch.cat(ROWS)[None], cu_seqlens=offsets, use_cache=True)
    torch.testing.assert_close(out.logits[0], torch.cat(alone), **EXACT)
    packed = model(then.reshape(1, -1), past_key_values=out.past_key_values, cu_seqlens=torch.arange(0, 15, 3))
    torch.testing.assert_close(packed.logits.view(4, 3, V), continued, **EXACT)
    cache, steps = None, []
    for token in ROWS[0]:
        out = model(token.view(1, 1), past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        steps.append(out.logits[0, 0])
    torch.testing.assert_close(torch.stack(steps), alone[0], **EXACT)


@each_mixer
@torch.no_grad()
def test_states_are_copied_repeated_and_chosen(mixer: str) -> None:
    ids, then = draw(2, 7), draw(2, 3, seed=1)
    model = build(mixer, **LEARNED)
    wanted = model(torch.cat([ids, then], 1)).logits[:, -3:]
    cache = model(ids, use_cache=True).past_key_values
    copy = cache.copy()
    for tensor in state_tensors(cache.blocks):
        tensor.zero_()
    assert copy.get_seq_length() == 7
    for rows, change in (
        ([0, 0, 1, 1], lambda state: state.batch_repeat_interleave(2)),
        ([1], lambda state: state.batch_select_indices(torch.tensor([1]))),
        ([1, 0], lambda state: state.reorder_cache(torch.tensor([1, 0]))),
    ):
        changed = copy.copy()
        change(changed)
        torch.testing.assert_close(model(then[rows], past_key_values=changed).logits, wanted[rows], **EXACT)
    with pytest.raises(ValueError, match="cannot be cropped"):
        copy.crop(3)
    numbers = model.model.layers[0].mixer.state_size(7)
    assert copy.n_bytes() == 2 * 2 * numbers * 8
    copy.reset()
    torch.testing.assert_close(model(then, past_key_values=copy).logits, model(then).logits, **EXACT)


def greedy(model: SkeletonForCausalLM, ids: Tensor, n: int) -> Tensor:
    """The oracle: a full pass for every token."""
    for _ in range(n):
        ids = torch.cat([ids, whole_row(model, ids)[-1:].argmax(-1)])
    return ids


@each_mixer
def test_generation(mixer: str) -> None:
    model = build(mixer, **LEARNED)
    rows = ROWS[:3]
    ids, mask = pad(rows, "left")
    out = model.generate(ids, attention_mask=mask, max_new_tokens=6, do_sample=False)
    for i, row in enumerate(rows):
        assert torch.equal(out[i, -6 - len(row) :], greedy(model, row, 6))
    arguments = {"attention_mask": mask, "max_new_tokens": 5, "num_beams": 3, "do_sample": False}
    cached, uncached = (model.generate(ids, use_cache=use, **arguments) for use in (True, False))
    assert torch.equal(cached, uncached)


@each_mixer
def test_gradient_checkpointing_and_loss(mixer: str) -> None:
    model = build(mixer, ffn="topk").train()
    ids, mask = pad(ROWS[:2], "left")
    results = []
    for checkpointing in (False, True):
        if checkpointing:
            model.gradient_checkpointing_enable()
        model.zero_grad()
        out = model(ids, attention_mask=mask, labels=ids.masked_fill(mask == 0, -100))
        out.loss.backward()
        assert out.logits is None
        torch.testing.assert_close(out.loss, out.cross_entropy + 0.01 * out.aux_loss)
        # Nothing depends on the norm before a mixer that is none.
        results.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, **EXACT)
    shifted = F.pad(ids[:, 1:].masked_fill(mask[:, 1:] == 0, -100), (0, 1), value=-100)
    logits = model.eval()(ids, attention_mask=mask).logits
    torch.testing.assert_close(out.cross_entropy, F.cross_entropy(logits.flatten(0, 1), shifted.flatten()), **EXACT)


@pytest.mark.parametrize("mixer", ["ema", "attention", "none"])
def test_compiles_without_graph_breaks(mixer: str) -> None:
    model = build(mixer, n_layers=1, **LEARNED).train()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    ids = draw(2, 40)
    results = []
    for f in (compiled, model):
        model.zero_grad()
        loss = f(ids, labels=ids, use_cache=False).loss
        loss.backward()
        results.append([loss.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, **EXACT)


# Files.


@each_mixer
def test_saved_and_read_again(mixer: str, tmp_path: Path) -> None:
    model = build(mixer, **LEARNED, residual="ffn").float()
    model.save_pretrained(tmp_path)
    written = {"config.json", "generation_config.json", "model.safetensors", "modeling_ematrace.py", "README.md"}
    assert {file.name for file in tmp_path.iterdir()} == written
    ids = draw(2, 9)
    read, info = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values())
    assert type(read) is SkeletonForCausalLM
    assert read.lm_head.weight is read.model.embed_tokens.weight
    assert torch.equal(read(ids).logits, model(ids).logits)
    assert type(AutoModel.from_pretrained(tmp_path)) is SkeletonModel
    config = AutoConfig.from_pretrained(tmp_path)
    assert type(config) is SkeletonConfig
    assert config.to_diff_dict() == model.config.to_diff_dict()


class Shifted(Mixer):
    """y_t = x_{t-1} w, with a table that is not saved."""

    def __init__(self, d_model: int, scale: float = 1.0) -> None:
        super().__init__(d_model)
        self.w = nn.Parameter(torch.ones(d_model))
        self.register_buffer("table", scale * torch.arange(1.0, d_model + 1), persistent=False)

    def forward(
        self, x: Tensor, state: Any = None, *, mask: Tensor | None = None, cu_seqlens: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        before = torch.zeros_like(x[:, :1]) if state is None else state
        return torch.cat([before, x[:, :-1]], 1) * self.w * self.table, x[:, -1:]

    def state_size(self, seq_len: int) -> int:
        return self.d_model

    def flops(self, seq_len: int) -> float:
        return 0.0


def test_buffers_that_are_not_saved_are_there_again(tmp_path: Path) -> None:
    register_mixer("tests.models:Shifted", Shifted)
    model = build("tests.models:Shifted", mixer_options={"scale": 0.25}).float()
    model.save_pretrained(tmp_path)
    read = SkeletonForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(read(draw(2, 9)).logits, model(draw(2, 9)).logits)
    assert read.model.layers[1].mixer.table[3] == 1.0


# A name in a config is data.


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model whose mixer is in a file here, which this process does not know any more."""
    source = Path(__file__).read_text(encoding="utf-8")
    definition = source[source.index("class Shifted") : source.index("def test_buffers")]
    imports = ["from typing import Any", "import torch", "from torch import Tensor, nn"]
    head = "\n".join([*imports, "from ematrace.mixers import Mixer\n\n\n"])
    (tmp_path / "outside_mixer.py").write_text(head + definition)
    monkeypatch.chdir(tmp_path)
    register_mixer("outside_mixer:Shifted")
    model = build("outside_mixer:Shifted").float()
    model.save_pretrained(tmp_path / "model")
    monkeypatch.delitem(_registry._registered, "outside_mixer:Shifted")
    monkeypatch.delitem(sys.modules, "outside_mixer")
    return tmp_path / "model"


def test_a_mixer_from_outside_is_refused_until_it_is_registered(saved: Path) -> None:
    message = r"^mixer 'outside_mixer:Shifted' is not part of ematrace; if you trust it, name it: --mixer outside_mixer"
    for load in (SkeletonForCausalLM.from_pretrained, AutoModelForCausalLM.from_pretrained):
        with pytest.raises(ValueError, match=message) as refused:
            load(saved)
        assert "\n" not in str(refused.value)
    with pytest.raises(ValueError, match=r"config\.json: mixer 'outside_mixer:Shifted' is not part of ematrace"):
        load_model(saved)
    assert "outside_mixer" not in sys.modules
    register_mixer("outside_mixer:Shifted")
    assert type(SkeletonForCausalLM.from_pretrained(saved).model.layers[0].mixer).__module__ == "outside_mixer"


def test_spens_mixer_says_which_import_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(_registry._registered, "spen", raising=False)
    with pytest.raises(ValueError, match=r"^mixer 'spen' comes with ematrace\.spen; import that first$"):
        SkeletonForCausalLM(SkeletonConfig.preset("skeleton-tiny", mixer="spen"))


@pytest.mark.parametrize("mixer", ["os:system", "outside.nowhere:X", "evil", "../x", "", 3, None])
def test_names_that_are_no_mixer(mixer: Any, saved: Path) -> None:
    config = json.loads((saved / "config.json").read_text())
    (saved / "config.json").write_text(json.dumps(config | {"mixer": mixer}))
    with pytest.raises(ValueError, match=r"is not part of ematrace|SkeletonConfig\.mixer is") as refused:
        SkeletonForCausalLM.from_pretrained(saved)
    assert "\n" not in str(refused.value)
    assert "outside_mixer" not in sys.modules


# Settings.


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"norm": "post"}, r"SkeletonConfig\.norm is 'post'; it must be one of pre, algorithm1"),
        ({"positions": "rope"}, r"SkeletonConfig\.positions is 'rope'; it must be one of none, learned"),
        ({"max_positions": 0}, r"SkeletonConfig\.max_positions is 0;"),
        ({"k": 25}, r"SkeletonConfig\.k is 25; top-k keeps between 1 and d_ff = 24 units"),
        ({"ffn": "moe"}, r"SkeletonConfig\.ffn is 'moe';"),
        ({"mixer_options": [1]}, r"SkeletonConfig\.mixer_options is \[1\]; it must be a mapping"),
        ({"mixer_options": {"d_model": 3}}, r"name and d_model are not options of a mixer"),
        ({"mixer_options": {"alphas": {1, 2}}}, r"its values must be plain JSON"),
    ],
)
def test_settings_that_contradict_themselves_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        SkeletonConfig(**{**SMALL, **fields})
    assert "\n" not in str(error.value)


def test_options_reach_the_mixer() -> None:
    assert build("ema", mixer_options={"alphas": [0.3]}).model.layers[1].mixer.state_size(5) == 16
    with pytest.raises(ValueError, match="mixer 'ema' has no option 'rates'"):
        build("ema", mixer_options={"rates": [0.3]})


@pytest.mark.parametrize(("size", "expected"), [("130m", 124_439_808), ("7m", 6_960_768)])
def test_presets_are_about_as_large_as_gpt2(size: str, expected: int) -> None:
    with torch.device("meta"):
        model = SkeletonForCausalLM(SkeletonConfig.preset(f"skeleton-{size}"))
    assert sum(p.numel() for p in model.parameters()) == pytest.approx(expected, rel=0.07)
    assert (model.config.mixer, model.config.ffn, model.config.norm) == ("ema", "dense", "pre")


def test_an_empty_cache_is_no_past() -> None:
    model = build("attention")
    ids = draw(1, 4)
    assert torch.equal(model(ids, past_key_values=MixerCache.empty(2)).logits, model(ids).logits)
    assert model(ids, use_cache=False).past_key_values is None
