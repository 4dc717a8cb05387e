"""SPEN as a transformers model: whichever way it is run, padded, packed, carried or compiled, it is one full pass."""

from __future__ import annotations

import itertools
import shutil
import weakref
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ematrace.spen import SpenCache, SpenForCausalLM
from spen_support import EXACT, PREDICTORS, ROWS, V, build, draw, each_predictor, pad

# Padded, packed, carried: the same logits.


@each_predictor
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_nothing(predictor: str, reads: str, side: str) -> None:
    model = build(predictor, reads)
    ids, mask = pad(ROWS, side)
    out = model(ids, attention_mask=mask, use_cache=True)
    for i, row in enumerate(ROWS):
        torch.testing.assert_close(out.logits[i, mask[i].bool()], model(row[None]).logits[0], **EXACT)
    # and the state is the one after each row's last token
    then = draw(len(ROWS), 3, seed=99)
    continued = model(then, past_key_values=out.past_key_values).logits
    for i, row in enumerate(ROWS):
        whole = model(torch.cat([row, then[i]])[None]).logits[0, -3:]
        torch.testing.assert_close(continued[i], whole, **EXACT)


def test_a_row_of_padding_alone_does_no_harm() -> None:
    for predictor, reads in PREDICTORS:
        model = build(predictor, reads)
        ids, mask = draw(2, 6), torch.tensor([[1] * 6, [0] * 6])
        logits = model(ids, attention_mask=mask).logits
        assert logits.isfinite().all()
        torch.testing.assert_close(logits[0], model(ids[:1]).logits[0], **EXACT)


def test_gradients_with_padding_are_those_without() -> None:
    for predictor, reads in PREDICTORS:
        model = build(predictor, reads).train()
        ids, mask = pad(ROWS[:3], "right")
        labels = ids.masked_fill(mask == 0, -100)
        model(ids, attention_mask=mask, labels=labels, num_items_in_batch=11).cross_entropy.backward()
        padded = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        model.zero_grad()
        for row in ROWS[:3]:
            model(row[None], labels=row[None], num_items_in_batch=11).cross_entropy.backward()
        for name, p in model.named_parameters():
            torch.testing.assert_close(padded[name], p.grad, **EXACT)


@each_predictor
def test_packed_sequences_are_separate_ones(predictor: str, reads: str) -> None:
    model = build(predictor, reads)
    rows = [ROWS[0], draw(0), *ROWS[1:], draw(0)]
    cu_seqlens = torch.tensor([0, *itertools.accumulate(len(row) for row in rows)])
    packed = torch.cat(rows)[None]
    out = model(packed, labels=packed, cu_seqlens=cu_seqlens)
    separate = [model(row[None]).logits[0] for row in rows if len(row)]
    torch.testing.assert_close(out.logits[0], torch.cat(separate), **EXACT)
    targets = torch.cat([row[1:] for row in rows if len(row)])
    predictions = torch.cat([logits[:-1] for logits in separate])
    torch.testing.assert_close(out.loss, F.cross_entropy(predictions, targets), **EXACT)


@each_predictor
def test_packing_carries_its_state(predictor: str, reads: str) -> None:
    model = build(predictor, reads)
    rows, then = [*ROWS[:3], draw(0)], draw(4, 4, seed=7)
    cu_seqlens = torch.tensor([0, *itertools.accumulate(len(row) for row in rows)])
    cache = model(torch.cat(rows)[None], cu_seqlens=cu_seqlens, use_cache=True).past_key_values
    continued = model(then, past_key_values=cache).logits
    again = model(then.reshape(1, -1), past_key_values=cache, cu_seqlens=torch.arange(0, 20, 4)).logits
    for i, row in enumerate(rows):
        whole = model(torch.cat([row, then[i]])[None]).logits[0, -4:]
        torch.testing.assert_close(continued[i], whole, **EXACT)
        torch.testing.assert_close(again[0, 4 * i : 4 * i + 4], whole, **EXACT)


@each_predictor
@pytest.mark.parametrize("seed", range(3))
def test_carrying_over_any_split_is_one_pass(predictor: str, reads: str, seed: int) -> None:
    model = build(predictor, reads)
    ids = draw(2, 90)
    cuts = np.random.default_rng(seed).choice([0, 1, 2, 3, 20, 63, 64, 65, 89, 90], size=4).tolist()
    cache, parts = None, []
    for start, end in itertools.pairwise([0, *sorted(cuts), 90]):
        out = model(ids[:, start:end], past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        parts.append(out.logits)
    assert cache is not None
    assert cache.get_seq_length() == 90
    torch.testing.assert_close(torch.cat(parts, 1), model(ids).logits, **EXACT)


@each_predictor
def test_nothing_at_all(predictor: str, reads: str) -> None:
    model = build(predictor, reads)
    out = model(draw(2, 0), use_cache=True)
    assert out.logits.shape == (2, 0, V)
    then = draw(2, 5)
    torch.testing.assert_close(model(then, past_key_values=out.past_key_values).logits, model(then).logits, **EXACT)
    assert model(draw(1, 0), cu_seqlens=torch.tensor([0, 0])).logits.shape == (1, 0, V)
    assert model(draw(0, 5)).logits.shape == (0, 5, V)
    one = model.train()(draw(2, 1), labels=draw(2, 1))  # one token has nothing to predict
    assert one.cross_entropy == 0
    assert one.loss.isfinite()


@each_predictor
def test_token_by_token_is_one_pass(predictor: str, reads: str) -> None:
    model = build(predictor, reads)
    ids = draw(2, 20)
    cache, parts = None, []
    for t in range(20):
        out = model(ids[:, t : t + 1], past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        parts.append(out.logits)
    torch.testing.assert_close(torch.cat(parts, 1), model(ids).logits, **EXACT)


def test_the_cache_that_was_given_is_left_as_it_was() -> None:
    for predictor, reads in PREDICTORS:
        model = build(predictor, reads)
        cache = model(draw(1, 5), use_cache=True).past_key_values
        first = model(draw(1, 3, seed=1), past_key_values=cache).logits
        second = model(draw(1, 3, seed=1), past_key_values=cache).logits
        assert torch.equal(first, second)
        assert cache.seen_tokens == 5


@torch.no_grad()
def test_states_are_copied_repeated_and_chosen() -> None:
    ids, then = draw(2, 7), draw(2, 3, seed=1)
    for predictor, reads in PREDICTORS:
        model = build(predictor, reads)
        wanted = model(torch.cat([ids, then], 1)).logits[:, -3:]
        cache = model(ids, use_cache=True).past_key_values
        copy = cache.copy()
        for state in cache.blocks:
            for tensor in state:
                tensor.zero_()
        torch.testing.assert_close(model(then, past_key_values=copy).logits, wanted, **EXACT)
        for rows, change in (
            ([0, 0, 1, 1], lambda state: state.batch_repeat_interleave(2)),
            ([1], lambda state: state.batch_select_indices(torch.tensor([1]))),
            ([1, 0], lambda state: state.reorder_cache(torch.tensor([1, 0]))),
        ):
            changed = copy.copy()
            change(changed)
            torch.testing.assert_close(model(then[rows], past_key_values=changed).logits, wanted[rows], **EXACT)
        copy.reset()
        assert copy.get_seq_length() == 0
        torch.testing.assert_close(model(then, past_key_values=copy).logits, model(then).logits, **EXACT)


def test_size_of_the_state() -> None:
    """The traces alone, 4 bytes each in float32, however long the context; softmax keeps keys and values."""
    for length in (3, 50):
        cache = build().float()(draw(2, length), use_cache=True).past_key_values
        assert cache.n_bytes() == 2 * 2 * 3 * 16 * 4
    linear = build("linear", "inputs").float()(draw(2, 50), use_cache=True).past_key_values
    assert linear.n_bytes() == 2 * 2 * (3 * 16 + 16 * 16) * 4
    softmax = build("softmax", "inputs").float()(draw(2, 50), use_cache=True).past_key_values
    assert softmax.n_bytes() == 2 * 2 * (3 * 16 * 4 + 50 * (2 * 16 * 4 + 1))


def test_padding_after_a_carried_state_and_with_packing_is_refused() -> None:
    model = build()
    cache = model(draw(1, 5), use_cache=True).past_key_values
    with pytest.raises(ValueError, match="attention_mask has padding after a carried state"):
        model(draw(1, 2), past_key_values=cache, attention_mask=torch.tensor([[0, 1]]))
    model(draw(1, 2), past_key_values=cache, attention_mask=torch.ones(1, 7))  # no padding: as generate() sends it
    with pytest.raises(ValueError, match="attention_mask with padding and cu_seqlens exclude each other"):
        model(draw(1, 4), cu_seqlens=torch.tensor([0, 4]), attention_mask=torch.tensor([[0, 1, 1, 1]]))
    with pytest.raises(ValueError, match="attention_mask covers 3 steps, the input has 4"):
        model(draw(1, 4), attention_mask=torch.ones(1, 3))
    with pytest.raises(ValueError, match="exactly one of input_ids and inputs_embeds"):
        model()


# Loss.


def test_labels_are_shifted_inside() -> None:
    model = build()
    ids = draw(3, 12)
    labels = ids.clone()
    labels[0, 3:6] = -100
    out = model(ids, labels=labels)
    shifted = F.pad(labels[:, 1:], (0, 1), value=-100)
    expected = F.cross_entropy(model(ids).logits.flatten(0, 1), shifted.flatten())
    torch.testing.assert_close(out.loss, expected, **EXACT)
    torch.testing.assert_close(model(ids, shift_labels=shifted).loss, expected, **EXACT)
    summed = expected * (shifted != -100).sum()
    torch.testing.assert_close(model(ids, labels=labels, num_items_in_batch=50).loss, summed / 50, **EXACT)
    by_tensor = model(ids, labels=labels, num_items_in_batch=torch.tensor(50)).loss
    torch.testing.assert_close(by_tensor, summed / 50, **EXACT)


def test_all_labels_ignored_is_no_loss() -> None:
    model = build().train()
    out = model(draw(2, 5), labels=torch.full((2, 5), -100))
    assert out.cross_entropy == 0
    out.loss.backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_logits_are_left_out_where_training_does_not_need_them() -> None:
    model = build().train()
    ids = draw(2, 5)
    assert model(ids, labels=ids).logits is None
    assert model(ids, labels=ids, skip_logits=False).logits.shape == (2, 5, V)
    assert model(ids).logits.shape == (2, 5, V)
    assert model.eval()(ids, labels=ids).logits.shape == (2, 5, V)
    assert model(ids, labels=ids, skip_logits=True).logits is None


def test_logits_to_keep() -> None:
    model = build()
    ids = draw(2, 9)
    logits = model(ids).logits
    torch.testing.assert_close(model(ids, logits_to_keep=2).logits, logits[:, -2:], **EXACT)
    torch.testing.assert_close(model(ids, logits_to_keep=torch.tensor([0, 4])).logits, logits[:, [0, 4]], **EXACT)


# What transformers expects of a model.


def test_outputs() -> None:
    model = build()
    ids = draw(2, 9)
    out = model(ids, output_hidden_states=True, use_cache=False)
    assert out.past_key_values is None
    assert len(out.hidden_states) == 3
    torch.testing.assert_close(model.lm_head(out.hidden_states[-1]), out.logits, **EXACT)
    assert torch.equal(out.hidden_states[0], model.model.embed_tokens(ids))
    assert torch.equal(model.model(ids).last_hidden_state, out.hidden_states[-1])
    loss, logits, cache = model(ids, labels=ids, return_dict=False)[:3]
    assert loss.ndim == 0
    assert torch.equal(logits, out.logits)
    assert isinstance(cache, SpenCache)
    model.config.return_dict = False
    assert torch.equal(model(ids)[0], out.logits)


def test_hidden_states_are_in_the_order_of_the_input() -> None:
    model = build()
    ids, mask = pad(ROWS[:2], "right")
    states = model(ids, attention_mask=mask, output_hidden_states=True).hidden_states
    alone = model(ROWS[1][None], output_hidden_states=True).hidden_states
    for padded, unpadded in zip(states, alone, strict=True):
        torch.testing.assert_close(padded[1, :4], unpadded[0], **EXACT)


def test_hidden_states_are_kept_only_for_who_asks() -> None:
    """What enters a block is free again while the next one runs, unless it was asked for."""
    model = build(n_layers=4)
    entered: list[weakref.ref[Tensor]] = []
    held: list[int] = []

    def look(module: object, args: tuple[Tensor, ...]) -> None:
        held.append(sum(x() is not None for x in entered))
        entered.append(weakref.ref(args[0]))

    for layer in model.model.layers:
        layer.register_forward_pre_hook(look)
    for asked, expected in ((False, [0, 0, 0, 0]), (None, [0, 0, 0, 0]), (True, [0, 1, 2, 3])):
        entered.clear()
        held.clear()
        with torch.no_grad():
            model(draw(2, 9), output_hidden_states=asked)
        assert held == expected
    model.config.output_hidden_states = True
    assert len(model(draw(2, 9)).hidden_states) == 5


def test_embeddings_in_the_place_of_ids() -> None:
    model = build()
    ids = draw(2, 9)
    out = model(inputs_embeds=model.get_input_embeddings()(ids), labels=ids)
    torch.testing.assert_close(out.logits, model(ids).logits, **EXACT)
    assert out.loss == model(ids, labels=ids).loss


def test_resizing_the_vocabulary_keeps_the_head_tied() -> None:
    model = build()
    ids = draw(1, 6)
    before = model(ids).logits
    model.resize_token_embeddings(V + 5, mean_resizing=False)
    assert model.config.vocab_size == V + 5
    assert model.lm_head.weight is model.model.embed_tokens.weight
    after = model(ids).logits
    assert after.shape == (1, 6, V + 5)
    torch.testing.assert_close(after[..., :V], before, **EXACT)


@pytest.mark.parametrize("load_balance", [0.0, 0.1])
def test_gradient_checkpointing_gives_the_same_gradients(load_balance: float) -> None:
    for predictor, reads in PREDICTORS:
        model = build(predictor, reads, load_balance=load_balance).train()
        ids, mask = pad(ROWS[:2], "left")
        gradients = []
        for checkpointing in (False, True):
            if checkpointing:
                model.gradient_checkpointing_enable()
                assert model.is_gradient_checkpointing
            model.zero_grad()
            model(ids, attention_mask=mask, labels=ids).loss.backward()
            gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
        for a, b in zip(*gradients, strict=True):
            torch.testing.assert_close(a, b, **EXACT)


def loss_and_gradients(f: Any, model: SpenForCausalLM, ids: Tensor) -> list[Tensor]:
    model.zero_grad()
    loss = f(ids, labels=ids, use_cache=False).loss
    loss.backward()
    return [loss.detach(), *(p.grad.clone() for p in model.parameters())]


@pytest.mark.parametrize(
    ("predictor", "reads"), [("static", "traces_now"), ("linear", "inputs"), ("softmax", "trace_sequence")]
)
def test_compiles_without_graph_breaks(predictor: str, reads: str) -> None:
    model = build(predictor, reads, n_layers=1).train()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    ids = draw(2, 40)
    for a, b in zip(*(loss_and_gradients(f, model, ids) for f in (compiled, model)), strict=True):
        torch.testing.assert_close(a, b, **EXACT)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
@pytest.mark.usefixtures("inductor")
def test_compiled_by_inductor_is_the_same() -> None:
    model = build(n_layers=1).train()
    ids = draw(2, 40)
    compiled = torch.compile(model, fullgraph=True)
    for a, b in zip(*(loss_and_gradients(f, model, ids) for f in (compiled, model)), strict=True):
        torch.testing.assert_close(a, b, **EXACT)


def test_reduced_precision() -> None:
    """bfloat16 has 8 bits; the tolerance is wide because top-k may choose other units, the dense model's is not."""
    ids = draw(2, 30)
    for (predictor, reads), ffn in itertools.product(PREDICTORS, ("topk", "dense")):
        model = build(predictor, reads, ffn=ffn, initializer_range=0.1).float().train()
        exact = model(ids, labels=ids).loss
        for fp32_stream in (False, True):
            model.config.residual_in_fp32 = fp32_stream
            model.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                out = model(ids, labels=ids)
            out.loss.backward()
            assert out.loss.dtype == torch.float32
            assert out.loss.item() == pytest.approx(exact.item(), rel=0.01)
            assert all(p.grad.isfinite().all() and p.grad.dtype == torch.float32 for p in model.parameters())
        half = model.bfloat16().eval()
        out = half(ids, labels=ids, use_cache=True)
        assert out.logits.dtype == torch.bfloat16
        assert out.loss.item() == pytest.approx(exact.item(), rel=0.02)
        assert all(state[0].dtype == torch.float32 for state in out.past_key_values.blocks)
        assert half(ids[:, :1], past_key_values=out.past_key_values).logits.isfinite().all()


def test_float16_gradients_survive_padding() -> None:
    ids, mask = pad(ROWS[:2], "left")
    for predictor, reads in PREDICTORS:
        model = build(predictor, reads, initializer_range=0.05).float().train()
        with torch.autocast("cpu", torch.float16):
            out = model(ids, attention_mask=mask, labels=ids)
        (out.loss * 128).backward()
        assert all(p.grad.isfinite().all() for p in model.parameters())
