"""SPEN against Algorithm 1 written as a loop over tokens in float64 numpy; every switch against its own definition."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.special import erf
from torch import Tensor, nn

from ematrace.mixers.conformance import CHECKS, run_check, subject_of
from ematrace.models import SkeletonConfig, SkeletonForCausalLM
from ematrace.ops import load_balance_loss
from ematrace.spen import SpenConfig, SpenForCausalLM, SpenMixer, predictors
from ematrace.spen import mixer as mixer_module
from ematrace.spen.mixer import SpenBlock
from ematrace.traces import ema_traces

PREDICTORS = [
    ("static", "traces_now"),
    *itertools.product(("linear", "softmax"), ("traces_now", "trace_sequence", "inputs")),
]
OF_SEQUENCES = [pair for pair in PREDICTORS if pair[1] != "traces_now"]
SMALL = {"vocab_size": 29, "d_model": 8, "d_ff": 20, "n_layers": 2, "k": 6, "n_heads": 2, "gamma": 0.9}
SMALL |= {"bos_token_id": None, "eos_token_id": None}


def build(seed: int = 0, **changes: Any) -> SpenForCausalLM:
    """Weights large enough that every term of the algorithm shows in the logits."""
    torch.manual_seed(seed)
    config = SpenConfig(**{**SMALL, "initializer_range": 0.4, **changes})
    model = SpenForCausalLM(config).double().eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "norm" in name:
                p.add_(0.3 * torch.randn_like(p))
    return model


def unit(v: np.ndarray) -> np.ndarray:
    length = np.sqrt((v**2).sum())
    return v / length if length > 0 else np.zeros_like(v)


def rms(v: np.ndarray) -> np.ndarray:
    return unit(v) * np.sqrt(v.size)


def softmax(v: np.ndarray) -> np.ndarray:
    e = np.exp(v - v.max())
    return e / e.sum()


class Oracle:
    """Algorithm 1 of the paper, token by token; the ablation's predictors from their definitions."""

    def __init__(self, model: SpenForCausalLM) -> None:
        self.config = model.config
        self.weights = {name: p.detach().numpy() for name, p in model.named_parameters()}

    def logits(self, ids: list[int]) -> np.ndarray:
        embedding = self.weights["model.embed_tokens.weight"]
        xs = [embedding[i] for i in ids]
        for layer in range(self.config.n_layers):
            xs = self.block(f"model.layers.{layer}.", xs)
        return np.array([embedding @ self.layer_norm("model.norm.", x) for x in xs])

    def layer_norm(self, prefix: str, c: np.ndarray) -> np.ndarray:
        scaled = (c - c.mean()) / np.sqrt(c.var() + self.config.layer_norm_epsilon)
        return scaled * self.weights[prefix + "weight"] + self.weights[prefix + "bias"]

    def block(self, prefix: str, xs: list[np.ndarray]) -> list[np.ndarray]:
        W = {name.removesuffix(".weight").rpartition(".")[2]: w for name, w in self.weights.items() if prefix in name}
        W_f, W_m, W_s = np.split(W["W_h"], 3, axis=1)
        hs: list[np.ndarray] = []
        out = []
        h = np.zeros((3, self.config.d_model))
        for t, x in enumerate(xs):
            h = np.array([(1 - alpha) * h_a + alpha * x for alpha, h_a in zip(self.config.alphas, h, strict=True)])
            hs.append(h)
            h_f, h_m, h_s = h
            x_hat = self.predict(W, t, xs, hs)
            e = x - x_hat
            c = x + W_f @ h_f + W_m @ h_m + W_s @ h_s + W["W_e"] @ e
            u = W["W_up"] @ self.layer_norm(prefix + "norm.", c)
            z = u * 0.5 * (1 + erf(u / np.sqrt(2)))
            if self.config.ffn == "topk":
                dropped = np.argsort(-z, kind="stable")[self.config.k :]
                z[dropped] = 0
            out.append((x if self.config.residual == "ffn" else c) + W["W_down"] @ z)
        return out

    def predict(self, W: dict[str, np.ndarray], t: int, xs: list[np.ndarray], hs: list[np.ndarray]) -> np.ndarray:
        config = self.config
        slow = hs[t][2]
        if config.predictor == "static":
            return W["W_pred"] @ unit(slow)
        scale = unit if config.predictor == "linear" else rms
        q = W["W_q"] @ scale(slow)
        if config.predictor_reads == "traces_now":
            read, values = list(hs[t]), list(hs[t])
        else:
            read = [hs[s].reshape(-1) if config.predictor_reads == "trace_sequence" else xs[s] for s in range(t)]
            values = xs[:t] if config.predictor == "linear" else read
        keys = [W["W_k"] @ scale(r) for r in read]
        values = [W["W_v"] @ v for v in values]
        if config.predictor == "linear":
            decay = config.gamma if config.predictor_reads != "traces_now" else 1.0
            x_hat = np.zeros(config.d_model)
            for s, (k, v) in enumerate(zip(keys, values, strict=True)):
                x_hat += decay ** (t - 1 - s if decay < 1 else 0) * (q @ k) * v
            return x_hat
        if not keys:
            return np.zeros(config.d_model)
        heads = []
        for part in np.split(np.arange(config.d_model), config.n_heads):
            weights = softmax(np.array([q[part] @ k[part] for k in keys]) / np.sqrt(len(part)))
            heads.append(sum(w * v[part] for w, v in zip(weights, values, strict=True)))
        return W["W_o"] @ np.concatenate(heads)


def assert_is_the_oracle(model: SpenForCausalLM, length: int, tolerance: float = 1e-9) -> None:
    ids = torch.randint(model.config.vocab_size, (2, length), generator=torch.Generator().manual_seed(length))
    with torch.no_grad():
        logits = model(ids).logits.numpy()
    oracle = Oracle(model)
    expected = np.stack([oracle.logits(row) for row in ids.tolist()])
    assert np.abs(expected).max() > 1
    np.testing.assert_allclose(logits, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("ffn", ["topk", "dense"])
@pytest.mark.parametrize("residual", ["ffn", "direct"])
@pytest.mark.parametrize("length", [1, 3, 50])
def test_is_algorithm_1(ffn: str, residual: str, length: int) -> None:
    assert_is_the_oracle(build(ffn=ffn, residual=residual), length)


@pytest.mark.parametrize(("predictor", "reads"), PREDICTORS)
@pytest.mark.parametrize("length", [1, 2, 70])
def test_predictors_are_their_definitions(
    monkeypatch: pytest.MonkeyPatch, predictor: str, reads: str, length: int
) -> None:
    monkeypatch.setattr("ematrace.spen.predictors.CHUNK", 16)  # several chunks, the last not full
    assert_is_the_oracle(build(predictor=predictor, predictor_reads=reads), length)


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize(("predictor", "reads"), PREDICTORS)
def test_the_mixer_keeps_the_promises_of_mixers(
    monkeypatch: pytest.MonkeyPatch, predictor: str, reads: str, check: str
) -> None:
    monkeypatch.setattr("ematrace.spen.predictors.CHUNK", 4)  # packed and padded sequences have several chunks
    options = {"predictor": predictor, "predictor_reads": reads, "n_heads": 2, "gamma": 0.9}
    assert run_check(check, subject_of(SpenMixer, 16, "cpu", options)).message == ""


@pytest.mark.parametrize(("predictor", "reads"), PREDICTORS)
@pytest.mark.parametrize("switches", [{}, {"ffn": "dense", "residual": "direct"}])
def test_spen_is_a_configuration_of_the_skeleton(predictor: str, reads: str, switches: dict[str, Any]) -> None:
    """The same weights under the same names; only the order of one sum differs."""
    spen = build(predictor=predictor, predictor_reads=reads, **switches)
    names = {"ffn", "residual", *SMALL} - {"n_heads", "gamma"}
    shared = {name: getattr(spen.config, name) for name in names}
    parts = spen.config.skeleton()
    skeleton = SkeletonForCausalLM(
        SkeletonConfig(mixer="spen", mixer_options=dict(parts.mixer_options), norm=parts.norm, **shared)
    )
    assert skeleton.double().eval().load_state_dict(spen.state_dict())
    ids = torch.randint(29, (2, 20), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(skeleton(ids).logits, spen(ids).logits, rtol=1e-11, atol=1e-11)


def test_other_rates_and_their_number() -> None:
    model = build(alphas=(0.9, 0.3, 0.0))
    assert_is_the_oracle(model, 9)
    for alphas in ((0.1,), (0.9, 0.5, 0.2, 0.1, 0.01)):
        model = build(alphas=alphas, predictor="softmax", predictor_reads="trace_sequence")
        assert model(torch.arange(10)[None]).logits.shape == (1, 10, 29)
        assert model.model.layers[0].mixer.W_h.in_features == 8 * len(alphas)


def test_normalising_nothing_gives_nothing_and_no_gradient() -> None:
    h = torch.tensor([[0.0, 0.0], [3.0, -4.0], [3e-15, 4e-15]], requires_grad=True)
    normalised = predictors.unit(h)
    torch.testing.assert_close(normalised, torch.tensor([[0.0, 0.0], [0.6, -0.8], [0.6, 0.8]]))
    (grad,) = torch.autograd.grad(normalised[:2, 0].sum(), h)
    torch.testing.assert_close(grad, torch.tensor([[0.0, 0.0], [0.128, 0.096], [0.0, 0.0]]))


def predictor_of(config: SpenConfig) -> nn.Module:
    return SpenMixer(config.d_model, **config.skeleton().mixer_options).predictor


def drawn(config: SpenConfig, length: int = 12) -> tuple[Tensor, Tensor]:
    x = torch.randn(1, length, config.d_model, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return x, ema_traces(x, config.alphas)[0]


@pytest.mark.parametrize(("predictor", "reads"), OF_SEQUENCES)
def test_sequence_predictors_see_the_strict_past(predictor: str, reads: str) -> None:
    """Keys and values of step t first count at t + 1. The query is the slow trace of t, as in the paper."""
    config = SpenConfig(**SMALL, predictor=predictor, predictor_reads=reads)
    predict = predictor_of(config).double()
    x, traces = drawn(config)
    before, _ = predict(x, traces)
    assert not before[:, 0].any()
    t = 5
    if reads == "trace_sequence":
        traces = traces.clone()
        traces[:-1, :, t] += 1  # all but the slow one, from which the query comes
        changed, _ = predict(x, traces)
    else:
        x = x.clone()
        x[:, t] += 1
        changed, _ = predict(x, traces)
    torch.testing.assert_close(changed[:, : t + 1], before[:, : t + 1], rtol=0, atol=0)
    assert (changed[:, t + 1] != before[:, t + 1]).all()


@pytest.mark.parametrize("predictor", ["linear", "softmax"])
def test_each_predictor_reads_what_it_says(predictor: str) -> None:
    """Those that read traces do not look at the inputs; "inputs" does not look at the faster traces."""
    for reads in ("traces_now", "trace_sequence", "inputs"):
        config = SpenConfig(**SMALL, predictor=predictor, predictor_reads=reads)
        predict = predictor_of(config).double()
        x, traces = drawn(config)
        other = traces.clone()
        other[:-1] = 0
        by_x = not torch.equal(predict(x, traces)[0], predict(x + 1, traces)[0])
        by_fast_traces = not torch.equal(predict(x, traces)[0], predict(x, other)[0])
        values_are_inputs = predictor == "linear" and reads == "trace_sequence"  # the paper's own choice of values
        assert by_x == (reads == "inputs" or values_are_inputs)
        assert by_fast_traces == (reads != "inputs")


SWITCHES = list(
    itertools.product(PREDICTORS, ("topk", "dense"), ("ffn", "direct"), ("ste", "masked"), ((0.5, 0.1, 0.02), (0.3,)))
)


@pytest.mark.parametrize("reads", PREDICTORS, ids="-".join)
def test_no_combination_of_switches_sees_the_future(reads: tuple[str, str]) -> None:
    ids = torch.randint(29, (1, 14), generator=torch.Generator().manual_seed(3))
    for _, ffn, residual, topk_grad, alphas in (s for s in SWITCHES if s[0] == reads):
        model = build(
            predictor=reads[0], predictor_reads=reads[1], ffn=ffn, residual=residual, topk_grad=topk_grad, alphas=alphas
        )
        with torch.no_grad():
            before = model(ids).logits
            for t in (1, 7, 13):
                changed = ids.clone()
                changed[:, t:] = (changed[:, t:] + 1) % 29
                after = model(changed).logits
                torch.testing.assert_close(after[:, :t], before[:, :t], rtol=1e-12, atol=1e-12)
                assert not torch.allclose(after[:, t], before[:, t], atol=1e-3)


# Each switch changes one line and nothing else.


def test_switches_of_the_block_leave_the_weights_alone() -> None:
    names = set(build().state_dict())
    for change in ({"ffn": "dense"}, {"residual": "direct"}, {"topk_grad": "masked"}, {"load_balance": 0.0}):
        assert set(build(**change).state_dict()) == names
    for predictor, reads in PREDICTORS:
        other = set(build(predictor=predictor, predictor_reads=reads).state_dict())
        assert {n for n in names ^ other if ".predictor." not in n} == set()


def block_and_input(**changes: Any) -> tuple[SpenBlock, Tensor]:
    model = build(**changes)
    x = torch.randn(2, 9, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    return model.model.layers[0], x


def test_topk_of_all_units_is_dense() -> None:
    (dense, x), (topk, _) = block_and_input(ffn="dense"), block_and_input(k=20)
    assert torch.equal(dense(x)[0], topk(x)[0])


def test_direct_residual_adds_the_context() -> None:
    (ffn, x), (direct, _) = block_and_input(), block_and_input(residual="direct")
    traces, _ = ema_traces(x, ffn.config.alphas)
    x_hat, _ = ffn.mixer.predictor(x, traces)
    mixed = ffn.mixer.W_h(traces.permute(1, 2, 0, 3).flatten(-2)) + ffn.mixer.W_e(x - x_hat)
    difference = direct(x)[0] - ffn(x)[0]
    torch.testing.assert_close(difference, mixed, rtol=1e-12, atol=1e-12)


def folding_block(monkeypatch: pytest.MonkeyPatch) -> tuple[SpenBlock, Tensor]:
    """A block that folds wherever it may, by the interpreted kernel if there is no GPU."""
    scan = pytest.importorskip("ematrace.traces.triton_scan")
    if not (torch.cuda.is_available() or scan.INTERPRETED):
        pytest.skip("neither a GPU nor TRITON_INTERPRET=1")
    monkeypatch.setattr(mixer_module, "can_fuse_columns", lambda x: True)
    monkeypatch.setattr(mixer_module, "FOLDED_FROM", 0)
    block, x = block_and_input()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return block.float().to(device), x.float().to(device)


def test_folded_context_is_the_context(monkeypatch: pytest.MonkeyPatch) -> None:
    """One product of the columns side by side, forward and backward, against the three of Algorithm 1 in float64."""
    block, x = folding_block(monkeypatch)
    assert block.mixer.folds(x)
    exact, exact_x = block_and_input()
    results = []
    for one, y in ((block, x.requires_grad_()), (exact, exact_x.requires_grad_())):
        monkeypatch.setattr(mixer_module, "can_fuse_columns", lambda y, folded=one is block: folded)
        out, state, _ = one(y)
        weights = torch.linspace(-1, 1, out.numel(), dtype=out.dtype, device=out.device).view_as(out)
        results.append((out, state[0], *torch.autograd.grad((out * weights).sum(), [y, *one.parameters()])))
    for ours, expected in zip(*results, strict=True):
        torch.testing.assert_close(ours.cpu().double(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("how", ["padded", "packed", "carried"])
def test_folded_context_of_padded_packed_and_carried_sequences(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    block, x = folding_block(monkeypatch)
    mask = torch.ones(2, 9, dtype=torch.bool, device=x.device).index_fill_(
        1, torch.tensor([0, 1], device=x.device), False
    )
    arguments: dict[str, Any] = {}
    if how == "padded":
        arguments["mask"] = mask
    elif how == "packed":
        x, arguments["cu_seqlens"] = x.reshape(1, 18, -1), torch.tensor([0, 5, 5, 18], device=x.device)
    else:
        arguments["state"] = block(x)[1]
    folded, state, _ = block(x, **arguments)
    monkeypatch.setattr(mixer_module, "can_fuse_columns", lambda y: False)
    expected, expected_state, _ = block(x, **arguments)
    torch.testing.assert_close(folded, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(state[0], expected_state[0], rtol=1e-5, atol=1e-6)


def test_few_tokens_are_not_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    block, x = folding_block(monkeypatch)
    monkeypatch.setattr(mixer_module, "FOLDED_FROM", 2)
    assert block.mixer.folds(x[:, :8])  # 2 x 8 tokens of 8 channels
    assert not block.mixer.folds(x[:, :7])


def test_exchanged_and_observed_layers_are_called(monkeypatch: pytest.MonkeyPatch) -> None:
    block, x = folding_block(monkeypatch)
    heard = []
    handle = block.mixer.W_e.register_forward_hook(lambda *call: heard.append(call))
    assert not block.mixer.folds(x)
    block(x)
    assert len(heard) == 1
    handle.remove()
    assert block.mixer.folds(x)

    class Adapted(nn.Linear):
        pass

    class Quantised(Tensor):
        pass

    plain = block.mixer.W_h
    wrapped, quantised = (nn.Linear(plain.in_features, plain.out_features, bias=False) for _ in range(2))
    wrapped.forward = lambda h: 0 * plain(h)
    quantised.weight = nn.Parameter(plain.weight.detach().as_subclass(Quantised))
    others = (
        Adapted(plain.in_features, plain.out_features, bias=False),
        nn.Linear(plain.in_features, plain.out_features),
        wrapped,
        quantised,
    )
    for other in others:
        block.mixer.W_h = other
        assert not block.mixer.folds(x)
    other_block, _ = block_and_input(predictor="linear")
    assert not other_block.mixer.folds(x)


@pytest.mark.parametrize("topk_grad", ["ste", "masked"])
def test_gradient_through_the_selection(topk_grad: str) -> None:
    """Straight-through is dense GELU plus a constant; masked is GELU times a constant: both are plain autograd."""
    block, x = block_and_input(topk_grad=topk_grad)
    x.requires_grad_()
    weights = torch.randn(2, 9, 8, dtype=torch.float64)
    inputs = [x, *block.parameters()]
    ours = torch.autograd.grad((block(x)[0] * weights).sum(), inputs)

    traces, _ = ema_traces(x, block.config.alphas)
    mixer, ffn = block.mixer, block.ffn
    e = x - mixer.predictor.W_pred(traces[-1] / traces[-1].norm(dim=-1, keepdim=True))
    c = x + mixer.W_h(traces.permute(1, 2, 0, 3).flatten(-2)) + mixer.W_e(e)
    dense = F.gelu(ffn.W_up(block.norm(c)))
    kept = dense >= dense.topk(6, dim=-1).values[..., -1:]
    z = dense + (dense * kept - dense).detach() if topk_grad == "ste" else dense * kept
    expected = torch.autograd.grad(((x + ffn.W_down(z)) * weights).sum(), inputs)
    for a, b in zip(ours, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(("topk_grad", "of_weights", "of_input"), [
    ("ste_weights", "ste", "masked"), ("ste_through", "masked", "ste"),
])  # fmt: skip
def test_halves_of_the_straight_through_gradient(topk_grad: str, of_weights: str, of_input: str) -> None:
    """W_up has one of the two gradients, and everything below the other one; W_down's is the same in both."""

    def gradients(kind: str) -> tuple[Tensor, dict[str, Tensor]]:
        block, x = block_and_input(topk_grad=kind, load_balance=0.0)
        x.requires_grad_()
        parameters = dict(block.named_parameters(), x=x)
        out = block.train()(x)[0]
        found = torch.autograd.grad((out * out.detach().cos()).sum(), list(parameters.values()))
        return out, dict(zip(parameters, found, strict=True))

    out, ours = gradients(topk_grad)
    (expected, of_w), (_, of_x) = gradients(of_weights), gradients(of_input)
    torch.testing.assert_close(out, expected, rtol=0, atol=0)
    for name, found in ours.items():
        torch.testing.assert_close(found, (of_w if "W_up" in name else of_x)[name], rtol=1e-12, atol=1e-14)
    assert not torch.allclose(of_w["ffn.W_up.weight"], of_x["ffn.W_up.weight"])
    assert not torch.allclose(of_w["x"], of_x["x"])


# Load-balance loss.


def test_load_balance_counts_in_training_only() -> None:
    ids = torch.randint(29, (2, 10), generator=torch.Generator().manual_seed(0))
    model = build(load_balance=0.5)
    out = model(ids, labels=ids)
    assert out.aux_loss is None
    assert torch.equal(out.loss, out.cross_entropy)
    out = model.train()(ids, labels=ids)
    assert out.aux_loss is not None
    assert out.loss.item() == pytest.approx(out.cross_entropy.item() + 0.5 * out.aux_loss.item())
    grads = torch.autograd.grad(out.aux_loss, [layer.ffn.W_up.weight for layer in model.model.layers])
    assert all(g.abs().max() > 0 for g in grads)
    for change in ({"load_balance": 0.0}, {"ffn": "dense"}):
        out = build(**change).train()(ids, labels=ids)
        assert out.aux_loss is None
        assert torch.equal(out.loss, out.cross_entropy)


def test_load_balance_is_the_mean_over_blocks_of_what_their_units_do() -> None:
    model = build().train()
    before: list[Tensor] = []
    kept: list[Tensor] = []
    for layer in model.model.layers:
        layer.ffn.W_up.register_forward_hook(lambda module, inputs, output: before.append(output))
        layer.ffn.W_down.register_forward_hook(lambda module, inputs, output: kept.append(inputs[0]))
    out = model(torch.arange(10)[None], labels=torch.arange(10)[None])
    expected = torch.stack([load_balance_loss(u, z) for u, z in zip(before, kept, strict=True)]).mean()
    torch.testing.assert_close(out.aux_loss, expected)


def test_padding_does_not_count_for_load_balance() -> None:
    model = build().train()
    ids = torch.randint(29, (1, 7), generator=torch.Generator().manual_seed(0))
    padded = torch.cat([torch.zeros(1, 5, dtype=torch.long), ids], 1)
    mask = torch.tensor([[0] * 5 + [1] * 7])
    aux = model(padded, attention_mask=mask, labels=padded).aux_loss
    torch.testing.assert_close(aux, model(ids, labels=ids).aux_loss, rtol=1e-6, atol=0)


# Size, head, settings.


@pytest.mark.parametrize(
    ("preset", "low", "high"),
    [
        ("spen-130m", 130_629_888, 130_629_888),
        ("spen-130m-masked", 130_629_888, 130_629_888),
        ("spen-7m", 6.5e6, 7.5e6),
    ],
)
def test_parameters_of_the_presets(preset: str, low: float, high: float) -> None:
    with torch.device("meta"):
        model = SpenForCausalLM(SpenConfig.preset(preset))
    n_parameters = sum(p.numel() for p in model.parameters())  # a tied head counts once
    assert low <= n_parameters <= high
    assert not [name for name, p in model.named_parameters() if name.endswith("bias") and "norm" not in name]


def test_presets_are_the_papers() -> None:
    big, small = SpenConfig.preset("spen-130m"), SpenConfig.preset("spen-7m")
    assert (big.d_model, big.d_ff, big.n_layers, big.vocab_size, big.k) == (768, 3072, 12, 50257, 184)
    assert big.alphas == (0.5, 0.1, 0.02)
    assert (big.gamma, big.load_balance, big.topk_grad) == (0.999, 0.01, "ste")
    assert (small.d_model, small.n_layers, small.k) == (128, 2, 30)
    masked = SpenConfig.preset("spen-130m-masked").to_dict()
    assert {name: v for name, v in masked.items() if big.to_dict()[name] != v} == {"topk_grad": "masked"}
    assert SpenConfig.preset("spen-tiny", k=3).k == 3
    with pytest.raises(
        ValueError, match="no preset 'spen-1b'; there are spen-130m, spen-130m-masked, spen-7m, spen-tiny"
    ):
        SpenConfig.preset("spen-1b")
    with pytest.raises(ValueError, match=r"SpenConfig has no field n_layer$"):
        SpenConfig.preset("spen-tiny", n_layer=3)


def test_head_is_tied() -> None:
    model = build()
    assert model.lm_head.weight is model.model.embed_tokens.weight
    model(torch.arange(5)[None], labels=torch.arange(5)[None]).loss.backward()
    assert model.lm_head.weight.grad is model.model.embed_tokens.weight.grad


def test_initial_weights() -> None:
    torch.manual_seed(0)
    model = SpenForCausalLM(SpenConfig.preset("spen-tiny", n_layers=4, initializer_range=0.05))
    for name, p in model.named_parameters():
        if "norm" in name:
            assert (p == (1.0 if name.endswith("weight") else 0.0)).all()
        else:
            assert p.std().item() == pytest.approx(0.025 if "W_down" in name else 0.05, rel=0.05)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"k": 21}, r"SpenConfig\.k is 21; top-k keeps between 1 and d_ff = 20 units"),
        ({"k": 0}, r"SpenConfig\.k is 0;"),
        ({"k": "6"}, r"SpenConfig\.k is '6';"),
        ({"k": 6.5}, r"SpenConfig\.k is 6\.5;"),
        ({"n_layers": 0}, r"SpenConfig\.n_layers is 0;"),
        ({"vocab_size": None}, r"SpenConfig\.vocab_size is None;"),
        ({"predictor": "mlp"}, r"SpenConfig\.predictor is 'mlp'; it must be one of static, linear, softmax"),
        ({"predictor_reads": "future"}, r"SpenConfig\.predictor_reads is 'future'; it must be one of"),
        ({"predictor_reads": "inputs"}, r"SpenConfig\.predictor_reads is 'inputs'; the static predictor reads only"),
        ({"ffn": "moe"}, r"SpenConfig\.ffn is 'moe';"),
        ({"topk_grad": "soft"}, r"SpenConfig\.topk_grad is 'soft';"),
        ({"topk_grad": "ste_weights"}, r"SpenConfig\.topk_grad is 'ste_weights'; it needs load_balance 0, not 0.01"),
        ({"topk_grad": "ste_through"}, r"SpenConfig\.topk_grad is 'ste_through'; it needs load_balance 0, not 0.01"),
        ({"residual": "none"}, r"SpenConfig\.residual is 'none';"),
        ({"alphas": ()}, r"SpenConfig\.alphas is \(\);"),
        ({"alphas": (0.5, 1.1)}, r"SpenConfig\.alphas is \(0\.5, 1\.1\);"),
        ({"alphas": [math.nan]}, r"SpenConfig\.alphas is \(nan,\);"),
        ({"alphas": 0.5}, r"SpenConfig\.alphas is 0\.5;"),
        ({"gamma": 0.0}, r"SpenConfig\.gamma is 0\.0;"),
        ({"load_balance": -1}, r"SpenConfig\.load_balance is -1;"),
        ({"initializer_range": math.nan}, r"SpenConfig\.initializer_range is nan;"),
        ({"predictor": "softmax", "n_heads": 3}, r"SpenConfig\.n_heads is 3, which does not divide d_model = 8"),
    ],
)  # fmt: skip
def test_settings_that_contradict_themselves_are_refused(fields: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message) as error:
        SpenConfig(**{**SMALL, **fields})
    assert "\n" not in str(error.value)
    written = SpenConfig(**SMALL).to_dict() | fields
    (tmp_path / "config.json").write_text(json.dumps(written))
    with pytest.raises(ValueError, match=r"SpenConfig\."):
        SpenConfig.from_pretrained(tmp_path)


def test_settings_survive_json(tmp_path: Path) -> None:
    config = SpenConfig(**SMALL, predictor="linear", predictor_reads="inputs", alphas=[0.25, 1e-3], residual="direct")
    config.save_pretrained(tmp_path)
    read = SpenConfig.from_pretrained(tmp_path)
    assert read.to_diff_dict() == config.to_diff_dict()
    assert read.alphas == (0.25, 1e-3)
    assert SpenConfig.from_dict(json.loads(config.to_json_string())).to_diff_dict() == config.to_diff_dict()
