"""Every mixer passes every conformance check, and every check notices the mistakes it is there for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from ematrace.mixers import MIXERS
from ematrace.mixers.conformance import CHECKS, check_mixer, run_check, subject_of
from mixers_support import MISTAKES, Decay, mistakes

VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in MIXERS),
    ("ema", {"alphas": [0.3]}),
    ("ema_learned", {"per_channel": False}),
    ("hgrn", {"lower_bound": 0.5}),
    ("linear_attention", {"feature_map": "identity", "normalizer": "rms"}),
    ("linear_attention", {"feature_map": "relu", "normalizer": "none", "n_heads": 2}),
    ("gla", {"expand_k": 1.0, "expand_v": 2.0, "gate_rank": 3, "gate_temperature": 0.2}),
    ("gated_delta", {"conv_size": 4, "expand_v": 2.0}),
    ("gated_delta", {"conv_size": 2, "n_heads": 1}),
    ("attention", {"positions": "none", "n_heads": 1}),
]
DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """At these sizes a second thread only waits."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def named(variant: tuple[str, dict[str, Any]]) -> str:
    name, options = variant
    return "-".join([name, *(f"{option}={value}" for option, value in options.items())])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("variant", VARIANTS, ids=named)
def test_mixer(variant: tuple[str, dict[str, Any]], check: str, device: str) -> None:
    name, options = variant
    result = run_check(check, subject_of(name, 16, device, options))
    assert result.passed, result.message


def test_plain_mixer_passes_all() -> None:
    results = check_mixer(Decay)
    assert [result.name for result in results] == list(CHECKS)
    assert [result for result in results if not result.passed] == []


@pytest.mark.parametrize(("check", "cls"), mistakes())
def test_mistake_is_noticed(check: str, cls: type[Decay]) -> None:
    result = run_check(check, subject_of(cls, 8, "cpu", {}))
    assert not result.passed
    assert result.message
    assert "\n" not in result.message


def test_every_check_has_a_mistake() -> None:
    assert list(MISTAKES) == list(CHECKS)


@pytest.mark.parametrize(
    ("mistake", "failing"),
    [
        ("LeaksAcrossPacked", {"packed", "packed_with_state"}),
        ("PaddingErases", {"padded_with_state"}),
        ("ForgetsAMatmul", {"flops"}),
        ("UnderstatesState", {"state_size"}),
        ("StateInAutocast", {"dtypes", "flops"}),
        ("DetachedState", {"gradcheck"}),
        ("EmptyIsZero", {"packed_with_state"}),
    ],
)
def test_no_other_check_blames_it(mistake: str, failing: set[str]) -> None:
    cls = next(cls for _, cls in mistakes() if cls.__name__ == mistake)
    assert {result.name for result in check_mixer(cls, d_model=8) if not result.passed} == failing


def test_messages_say_what_to_do() -> None:
    by_name = {result.name: result for result in check_mixer(MISTAKES["state_size"][0], d_model=8)}
    assert by_name["state_size"].message == (
        "after 24 tokens in one pass the state holds 8 numbers per sequence, state_size says 4; correct state_size, or "
        "clone slices that keep a larger tensor alive"
    )


def test_a_file_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mymixer.py").write_text(MY_MIXER)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ematrace.mixers._registry._registered", {})
    results = check_mixer("mymixer:Mine", d_model=8, keep=0.5)
    assert [result for result in results if not result.passed] == []


MY_MIXER = """
import torch
from torch import nn

from ematrace.mixers import Mixer
from ematrace.traces import ema_traces


class Mine(Mixer):
    def __init__(self, d_model, keep=0.9):
        super().__init__(d_model)
        self.keep = keep
        self.W = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x, state=None, *, mask=None, cu_seqlens=None):
        if mask is None:
            h, last = ema_traces(x, 1 - self.keep, None if state is None else state.unsqueeze(0), cu_seqlens)
            return self.W(h[0]), last[0].clone()
        h, last = x.new_zeros(len(x), self.d_model) if state is None else state, []
        for x_t, real in zip(x.unbind(1), mask.unbind(1)):
            h = torch.where(real.unsqueeze(1), self.keep * h + (1 - self.keep) * x_t, h)
            last.append(h)
        return self.W(torch.stack(last, 1)), h

    def state_size(self, seq_len):
        return self.d_model

    def flops(self, seq_len):
        return 2 * self.d_model**2
"""
