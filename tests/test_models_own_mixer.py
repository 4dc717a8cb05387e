"""A mixer in a user's own file: trained by name, refused as data, loaded when the user names it again."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from cli_support import exit_status
from ematrace.mixers import Mixer, register_mixer
from ematrace.models import SkeletonConfig, SkeletonForCausalLM
from ematrace.train import build_model

MIXER = '''
import torch
from torch import nn
from ematrace.mixers import Mixer


class Mine(Mixer):
    """y_t = W (x_0 + ... + x_t)."""

    def __init__(self, d_model, scale=0.1):
        super().__init__(d_model)
        self.scale = scale
        self.W = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x, state=None, *, mask=None, cu_seqlens=None):
        self.check_call(x, state, mask, cu_seqlens)
        x = x if mask is None else x * mask.unsqueeze(-1)
        before = torch.zeros_like(x[:, 0]) if state is None else state
        sums = before.unsqueeze(1) + x.cumsum(1)
        return self.W(self.scale * sums), sums[:, -1].clone()

    def state_size(self, seq_len):
        return self.d_model

    def flops(self, seq_len):
        return 2.0 * self.W.weight.numel()
'''
TRAIN = [
    *(
        "train",
        "--preset",
        "skeleton-tiny",
        "--data",
        "text.txt",
        "--out",
        "run",
        "--tokens",
        "2048",
        "--validation",
        "text.txt",
        "--device",
        "cpu",
    ),
    *("--sequences", "4", "--length", "64", "--tokenizer", "bpe", "--vocab-size", "300"),
    *("--overrides", "mixer=summixer:Mine", 'mixer_options={"scale": 0.2}', "d_model=16", "d_ff=32", "k=4"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained run beside the file of its mixer."""
    here = tmp_path_factory.mktemp("own")
    (here / "summixer.py").write_text(MIXER)
    (here / "text.txt").write_text("the cat sat on the mat and looked at the moon\n" * 400)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.chdir(here)
        monkeypatch.setenv("EMATRACE_CACHE", str(here / "cache"))
        assert exit_status(monkeypatch, *TRAIN) == 0
    return here


ONE_AFTER_THE_OTHER = """
import sys
from ematrace import cli

evaluate = ["ematrace", "eval", "run", "--data", "text.txt", "--device", "cpu", "--json"]
for sys.argv in (evaluate, [*evaluate, "--mixer", "summixer:Mine"]):
    code = 0
    try:
        cli.main()
    except SystemExit as ended:
        code = ended.code or 0
    print(f"exit code {code}", file=sys.stderr, flush=True)
"""


def test_the_config_names_it(folder: Path) -> None:
    config = json.loads((folder / "run" / "model" / "config.json").read_text())
    assert (config["model_type"], config["mixer"], config["mixer_options"]) == (
        "ematrace",
        "summixer:Mine",
        {"scale": 0.2},
    )
    lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]
    assert len(losses) == 8
    assert losses[-1] < losses[0]


def test_a_command_loads_it_only_when_it_is_named(folder: Path) -> None:
    """In a process that has never heard of it."""
    environment = os.environ | {"EMATRACE_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", ONE_AFTER_THE_OTHER],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    error, found, rest = " ".join(done.stderr.split()).partition("exit code 2")
    assert found, done.stderr
    assert "mixer 'summixer:Mine' is not part of ematrace; if you trust it, name it: --mixer summixer:Mine" in error
    assert "Traceback" not in error
    assert rest.endswith("exit code 0"), rest
    assert 1 < json.loads(done.stdout)["perplexity"] < 300  # better than no idea at all


def test_the_other_commands_take_its_name(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(folder)
    options = ("--device", "cpu", "--mixer", "summixer:Mine")
    assert exit_status(monkeypatch, "generate", "run", "the cat", "--max-new-tokens", "3", *options) == 0
    assert capsys.readouterr().out.startswith("the cat")
    assert exit_status(monkeypatch, "generate", "run", "the cat", *options[:-1], "summixer:Yours") == 2
    assert "summixer has no class Yours" in " ".join(capsys.readouterr().err.split())
    assert exit_status(monkeypatch, "stream", "run", "--device", "cpu") == 2
    assert "only a SPEN has a state to stream with" in " ".join(capsys.readouterr().err.split())
    assert exit_status(monkeypatch, *TRAIN, "--resume", "auto") == 0


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("mixer=summixer:Yours",), "summixer has no class Yours"),
        (("mixer=nomodule:X",), "cannot import nomodule"),
        (("mixer=unheard_of",), "no mixer 'unheard_of'; there are: attention"),
        (("mixer=3",), "SkeletonConfig.mixer is 3; it must be the name of a mixer"),
        (("mixer=summixer:Mine", 'mixer_options={"size": 3}'), "has no option 'size'"),
        (("mixers=ema",), "field 'mixers': the configuration of skeleton-tiny has no such field"),
    ],
)
def test_what_cannot_be_built_is_one_line(
    folder: Path, overrides: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(ValueError, match=re.escape(message)) as refused:
        build_model("skeleton-tiny", 300, 0, overrides)
    assert "\n" not in str(refused.value)


def test_its_author_s_initial_weights_are_kept() -> None:
    class Zeros(Mixer):
        def __init__(self, d_model: int) -> None:
            super().__init__(d_model)
            self.norm = nn.LayerNorm(d_model, bias=False)
            self.W = nn.Linear(d_model, d_model, bias=False)
            nn.init.zeros_(self.W.weight)

        def forward(self, x: Any, state: Any = None, *, mask: Any = None, cu_seqlens: Any = None) -> Any:
            return self.W(self.norm(x)), None

        def state_size(self, seq_len: int) -> int:
            return 0

        def flops(self, seq_len: int) -> float:
            return 2.0 * self.W.weight.numel()

    register_mixer("own:Zeros", Zeros)
    model = SkeletonForCausalLM(SkeletonConfig.preset("skeleton-tiny", mixer="own:Zeros", vocab_size=32))
    assert not any(block.mixer.W.weight.any() for block in model.model.layers)
    assert model.model.layers[0].ffn.W_up.weight.any()  # ours are drawn as ever
