"""Mixers by name: what is found, what is refused, and that a name in a config imports nothing."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from ematrace import mixers
from ematrace.mixers import MIXERS, Mixer, build_mixer, register_mixer, registered_mixer
from ematrace.mixers.base import flatten_state, map_state, state_tensors, unflatten_state
from mixers_support import Decay

DEFAULT_OPTIONS = {
    "none": [],
    "ema": ["alphas"],
    "ema_learned": ["alphas", "per_channel"],
    "hgrn": ["lower_bound"],
    "linear_attention": ["n_heads", "feature_map", "normalizer"],
    "gla": ["n_heads", "expand_k", "expand_v", "gate_rank", "gate_temperature"],
    "gated_delta": ["n_heads", "expand_v", "conv_size"],
    "attention": ["n_heads", "positions", "rope_theta"],
    "ema_attention": ["alphas", "n_heads", "positions"],
}


@pytest.fixture(autouse=True)
def _nothing_registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("ematrace.mixers._registry._registered", {})
    modules = set(sys.modules)
    yield
    for name in set(sys.modules) - modules:
        if name.startswith("my"):
            del sys.modules[name]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a module in it that leaves a mark when it is imported."""
    (tmp_path / "mymodule.py").write_text(
        "import pathlib\npathlib.Path('imported').touch()\n"
        "from mixers_support import Decay\nclass Mine(Decay):\n    pass\n"
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_one_for_each_file_that_defines_one() -> None:
    assert set(MIXERS) == set(DEFAULT_OPTIONS)
    assert len(MIXERS) == len(DEFAULT_OPTIONS)
    for name, cls in MIXERS.items():
        assert issubclass(cls, Mixer)
        assert cls.__module__ == f"ematrace.mixers.{name}"
    for name in ("base", "conformance", "_chunks", "_registry", "os", "", 3):
        assert name not in MIXERS
    with pytest.raises(TypeError):
        MIXERS["mine"] = Decay  # type: ignore[index]


@pytest.mark.parametrize("name", DEFAULT_OPTIONS)
def test_options_are_never_dropped(name: str) -> None:
    options = ", ".join(DEFAULT_OPTIONS[name]) or "none"
    with pytest.raises(ValueError, match=f"^mixer '{name}' has no option 'n_haeds'; it has: {options}$"):
        build_mixer(name, d_model=16, n_haeds=4)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("none", {"d_model": 0}, "d_model must be a positive integer, got 0"),
        ("ema", {"alphas": [1.5]}, "alphas must lie in"),
        ("ema_learned", {"alphas": [1.0]}, "alphas must lie between 0 and 1 to be learned"),
        ("hgrn", {"lower_bound": 1.0}, "lower_bound must lie in"),
        ("hgrn", {"lower_bound": "0"}, "lower_bound must lie in"),
        ("linear_attention", {"feature_map": "exp"}, "feature_map must be one of elu, relu, identity, got 'exp'"),
        ("linear_attention", {"normalizer": None}, "normalizer must be one of sum, rms, none, got None"),
        ("linear_attention", {"n_heads": 3}, "n_heads must divide d_model, got 3 heads for 16 channels"),
        ("gla", {"expand_k": 0.3}, "n_heads must divide expand_k"),
        ("gla", {"expand_v": -1}, "expand_v must be a positive number, got -1"),
        ("gla", {"gate_rank": 0}, "gate_rank must be a positive integer, got 0"),
        ("gla", {"gate_temperature": float("nan")}, "gate_temperature must be positive"),
        ("gated_delta", {"conv_size": 1}, "conv_size must be 0"),
        ("gated_delta", {"n_heads": True}, "n_heads must be a positive integer, got True"),
        ("attention", {"positions": "alibi"}, "positions must be one of rope, none, got 'alibi'"),
        ("attention", {"n_heads": 16}, "rope needs an even number of channels per head, got 1"),
        ("attention", {"rope_theta": 0}, "rope_theta must be positive, got 0"),
    ],
)
def test_options_that_make_no_sense(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        build_mixer(name, **{"d_model": 16} | options)
    assert "\n" not in str(caught.value)


def test_options_are_json() -> None:
    """What a config file holds builds the same mixer."""
    options = json.loads(json.dumps({"alphas": (0.5, 0.25)}))
    assert build_mixer("ema", d_model=4, **options).state_size(1) == 8


def test_no_biases() -> None:
    for name in MIXERS:
        for part in build_mixer(name, d_model=16).modules():
            assert getattr(part, "bias", None) is None


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("emma", r"^no mixer 'emma'; there are: attention, ema, .*, none, and yours .*; did you mean ema\?$"),
        ("base", r"^no mixer 'base'; there are: "),
        ("../mymodule:Mine", r"^mixer '../mymodule:Mine': a path must be package.module:Class$"),
        ("mymodule:", r"a path must be package.module:Class$"),
        ("mymodule:Mine:Mine", r"a path must be package.module:Class$"),
        ("mynothing:Mine", r"^mixer 'mynothing:Mine': cannot import mynothing: ModuleNotFoundError: No module named"),
        ("mybroken:Mine", r"^mixer 'mybroken:Mine': cannot import mybroken: SyntaxError: "),
        ("mymodule:Yours", r"^mixer 'mymodule:Yours': mymodule has no class Yours$"),
        ("mymodule:pathlib", r"^mixer 'mymodule:pathlib' must be a class derived from ematrace.mixers.Mixer, got "),
        ("mymodule2:Half", r"^mixer 'mymodule2:Half': class Half lacks state_size, flops$"),
        ("mymodule2:Layer", r"^mixer 'mymodule2:Layer': class Layer lacks forward, state_size, flops$"),
    ],
)
def test_names_that_are_none(name: str, message: str, folder: Path) -> None:
    (folder / "mybroken.py").write_text("class Mine\n  (")
    (folder / "mymodule2.py").write_text(
        "from torch import nn\nfrom ematrace.mixers import Mixer\nclass Layer(nn.Module):\n    pass\n"
        "class Half(Mixer):\n    def forward(self, x, state=None, **arguments):\n        return x, None\n"
    )
    with pytest.raises(ValueError, match=message) as caught:
        build_mixer(name, d_model=4)
    assert "\n" not in str(caught.value)


def test_a_class_of_ones_own(folder: Path) -> None:
    path = list(sys.path)
    mine = build_mixer("mymodule:Mine", d_model=4)
    assert sys.path == path
    assert type(mine).__name__ == "Mine"
    assert registered_mixer("mymodule:Mine") is type(mine)
    with pytest.raises(ValueError, match="has no option 'keep'; it has: none"):
        build_mixer("mymodule:Mine", d_model=4, keep=1)


def test_a_name_in_a_config_imports_nothing(folder: Path) -> None:
    name = "mymodule:Mine"
    with pytest.raises(ValueError, match="is not part of ematrace") as caught:
        registered_mixer(name)
    assert str(caught.value) == (
        "mixer 'mymodule:Mine' is not part of ematrace; if you trust it, name it: --mixer mymodule:Mine, "
        "or ematrace.mixers.register_mixer('mymodule:Mine')"
    )
    for other in ("mymodule", "mymodule.Mine", "base", "_registry", "conformance", "ematrace.mixers.ema", ""):
        with pytest.raises(ValueError, match="is not part of ematrace"):
            registered_mixer(other)
    with pytest.raises(ValueError, match="must be a string"):
        registered_mixer(["mymodule:Mine"])  # type: ignore[arg-type]
    assert not (folder / "imported").exists()
    register_mixer(name)
    assert (folder / "imported").exists()
    assert registered_mixer(name).__name__ == "Mine"
    assert registered_mixer("ema") is MIXERS["ema"]


def test_register_a_class() -> None:
    assert register_mixer("decay", Decay) is Decay
    assert isinstance(build_mixer("decay", d_model=4), Decay)
    assert registered_mixer("decay") is Decay
    assert "decay" not in MIXERS
    with pytest.raises(ValueError, match="mixer 'ema' is part of ematrace; register yours under another name"):
        register_mixer("ema", Decay)
    with pytest.raises(ValueError, match="there are: attention, decay, ema"):
        build_mixer("emma", d_model=4)


def test_entry_point(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed package announces a mixer; it is imported when a user names it, not when a config does."""
    info = folder / "mypackage-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mypackage\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[ematrace.mixers]\nannounced = mymodule:Mine\n")
    monkeypatch.syspath_prepend(folder)
    with pytest.raises(ValueError, match="is not part of ematrace"):
        registered_mixer("announced")
    with pytest.raises(ValueError, match="there are: announced, attention"):
        build_mixer("emma", d_model=4)
    assert not (folder / "imported").exists()
    assert type(build_mixer("announced", d_model=4)).__name__ == "Mine"
    assert registered_mixer("announced").__name__ == "Mine"


def test_any_keyword_is_the_class_s_own_business() -> None:
    class Any_(Decay):
        def __init__(self, d_model: int, **options: Any) -> None:
            super().__init__(d_model)
            self.options = options

    register_mixer("any", Any_)
    assert build_mixer("any", d_model=4, depth=2).options == {"depth": 2}


@pytest.mark.parametrize("name", DEFAULT_OPTIONS)
@pytest.mark.parametrize(
    ("shape", "arguments", "message"),
    [
        ((2, 5, 8), {}, r"x must be \[B, T, 16\]"),
        ((2, 5, 16), {"mask": torch.ones(2, 4, dtype=torch.bool)}, r"mask must be bool \[2, 5\]"),
        ((2, 5, 16), {"mask": torch.ones(2, 5)}, r"mask must be bool \[2, 5\]"),
        ((1, 5, 16), {"mask": torch.ones(1, 5) > 0, "cu_seqlens": torch.tensor([0, 5])}, "exclude each other"),
        ((2, 5, 16), {"cu_seqlens": torch.tensor([0, 5])}, "needs B = 1, got B = 2"),
        ((1, 5, 16), {"cu_seqlens": torch.tensor([0, 4])}, "must rise from 0 to T = 5"),
        ((1, 5, 16), {"cu_seqlens": torch.tensor([0, 4, 3, 5])}, "must rise from 0 to T = 5"),
        ((1, 5, 16), {"cu_seqlens": torch.tensor([0.0, 5.0])}, "must be .* int32 or int64"),
    ],
)
def test_calls_that_do_not_fit(name: str, shape: tuple[int, ...], arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_mixer(name, d_model=16)(torch.randn(*shape), **arguments)


@pytest.mark.parametrize("name", [name for name in DEFAULT_OPTIONS if name != "none"])
def test_state_of_another_batch(name: str) -> None:
    mixer = build_mixer(name, d_model=16)
    _, state = mixer(torch.randn(3, 4, 16))
    with pytest.raises(ValueError, match="state holds 3 sequences, the input 2"):
        mixer(torch.randn(2, 4, 16), state)
    with pytest.raises(ValueError, match="state holds 3 sequences, the input 2"):
        mixer(torch.randn(1, 4, 16), state, cu_seqlens=torch.tensor([0, 1, 4]))


@pytest.mark.parametrize("name", DEFAULT_OPTIONS)
def test_no_steps_change_nothing(name: str) -> None:
    mixer, more = build_mixer(name, d_model=16), torch.randn(2, 3, 16)
    _, state = mixer(torch.randn(2, 9, 16))
    y, after = mixer(torch.randn(2, 0, 16), state)
    assert y.shape == (2, 0, 16)
    assert torch.equal(mixer(more, after)[0], mixer(more, state)[0])


def test_states_are_taken_apart_and_put_together() -> None:
    state = [torch.zeros(2), (None, {"k": torch.ones(2, 3)})]
    tensors, form = flatten_state(state)
    assert json.loads(json.dumps(form)) == form
    again = unflatten_state(tensors, form)
    assert isinstance(again, list)
    assert again[1][0] is None
    assert [t is u for t, u in zip(state_tensors(state), state_tensors(again), strict=True)] == [True, True]
    assert [t.sum().item() for t in state_tensors(map_state(lambda t: t + 1, state))] == [2.0, 12.0]
    with pytest.raises(ValueError, match="got set"):
        map_state(lambda t: t, {1, 2})
    with pytest.raises(ValueError, match="got set"):
        flatten_state({1, 2})
    for hostile in ("9", 3, {"tuple": "0"}, {"dict": []}, {"set": []}, {"tuple": [], "list": []}, ["0"]):
        with pytest.raises(ValueError, match="not the form of a state"):
            unflatten_state(tensors, hostile)


def test_public_names() -> None:
    assert set(mixers.__all__) <= set(dir(mixers)) | {"Mixer", "State"}
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        mixers.nothing  # noqa: B018
