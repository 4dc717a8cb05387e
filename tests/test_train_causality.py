"""A mixer from outside the package that reads later tokens is refused before anything is trained."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from ematrace.train import TrainConfig, train
from ematrace.train.causality import refuse_leaks
from ematrace.train.models import build_model

MIXER = '''
import torch
from ematrace.mixers import Mixer

class Mean(Mixer):
    """The mean of the window, or of what came before."""

    def __init__(self, d_model, leaks):
        super().__init__(d_model)
        self.leaks = leaks

    def forward(self, x, state=None, *, mask=None, cu_seqlens=None):
        n = torch.arange(1, x.shape[1] + 1).view(1, -1, 1)
        return (x.mean(1, keepdim=True).expand_as(x) if self.leaks else x.cumsum(1) / n), None

    def state_size(self, seq_len):
        return self.d_model

    def flops(self, seq_len):
        return 1.0
'''


@pytest.fixture
def mean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "window_mean.py").write_text(MIXER)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "window_mean", raising=False)
    return "window_mean:Mean"


def model_with(mixer: str, *options: str):
    return build_model("skeleton-tiny", 64, overrides=[f"mixer={mixer}", *options], length=32)


def test_what_reads_later_tokens_is_refused(mean: str) -> None:
    with pytest.raises(ValueError, match=f"mixer '{mean}' reads later tokens.*`ematrace check {mean}`"):
        refuse_leaks(model_with(mean, 'mixer_options={"leaks": true}'))


def test_what_reads_the_past_alone_is_not_and_nothing_is_drawn(mean: str) -> None:
    model = model_with(mean, 'mixer_options={"leaks": false}')
    before = torch.get_rng_state()
    refuse_leaks(model)
    assert model.training
    assert torch.equal(torch.get_rng_state(), before)  # a run with the check has the numbers of one without


def test_training_does_not_begin(mean: str, tmp_path: Path) -> None:
    overrides = (f"mixer={mean}", 'mixer_options={"leaks": true}')
    text = tmp_path / "tale.txt"
    text.write_text("the cat sees the dog " * 2000)
    out = tmp_path / "run"
    config = TrainConfig(
        str(text),
        preset="skeleton-tiny",
        overrides=overrides,
        out=out,
        tokenizer="bpe",
        tokens=640,
        sequences=2,
        length=64,
    )
    with pytest.raises(ValueError, match="reads later tokens"):
        train(config)
    assert not out.exists()
