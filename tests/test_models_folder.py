"""Model folders that are damaged or hostile: refused in one line that names the file, before anything is built."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel

from ematrace.models import SkeletonConfig, SkeletonForCausalLM
from ematrace.spen import SpenConfig, SpenForCausalLM
from ematrace.text import train_bpe
from ematrace.train import load_model
from ematrace.train.checkpoints import write_folder
from ematrace.train.model_folder import check_model_folder

V0_1 = Path(__file__).parent / "data" / "spen_v0.1"
SIZES = {"vocab_size": 260, "d_model": 8, "d_ff": 16, "n_layers": 2, "k": 4, "bos_token_id": 0, "eos_token_id": 0}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    models = {
        "spen": SpenForCausalLM(SpenConfig(**SIZES, n_heads=2)),
        "skeleton": SkeletonForCausalLM(SkeletonConfig(**SIZES, mixer="attention", mixer_options={"n_heads": 2})),
        "gpt2": GPT2LMHeadModel(GPT2Config(vocab_size=260, n_embd=8, n_layer=2, n_head=2, n_positions=16)),
    }
    tokenizer = train_bpe(["some text"], 258)
    for name, model in models.items():

        def fill(part: Path, model: Any = model) -> None:
            model.save_pretrained(part)
            tokenizer.save_pretrained(part)

        write_folder(folder / name, fill)
    return folder


def copy(saved: Path, tmp_path: Path, name: str = "spen", manifest: bool = False) -> Path:
    folder = Path(shutil.copytree(saved / name, tmp_path / name))
    if not manifest:
        (folder / "manifest.json").unlink()
    return folder


def change(path: Path, **fields: Any) -> None:
    content = json.loads(path.read_text())
    for name, value in fields.items():
        content.pop(name) if value is ... else content.update({name: value})
    path.write_text(json.dumps(content))


@pytest.mark.parametrize("name", ["spen", "skeleton", "gpt2"])
@pytest.mark.parametrize("manifest", [True, False])
def test_an_intact_folder_loads(name: str, manifest: bool, saved: Path, tmp_path: Path) -> None:
    model, tokenizer = load_model(copy(saved, tmp_path, name, manifest))
    expected = load_file(saved / name / "model.safetensors")
    weights = dict(model.named_parameters())
    assert all(torch.equal(weights[name], tensor) for name, tensor in expected.items() if name in weights)
    assert tokenizer.decode(tokenizer("some text").input_ids) == "some text"


def test_a_flipped_bit_is_found_in_every_file(saved: Path, tmp_path: Path) -> None:
    folder = copy(saved, tmp_path, manifest=True)
    for path in sorted(folder.iterdir()):
        content = path.read_bytes()
        at = len(content) // 2
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        with pytest.raises(ValueError, match=r"SHA-256|manifest\.json: ") as refusal:
            load_model(folder)
        assert path.name in str(refusal.value)
        path.write_bytes(content)
    load_model(folder)


def test_a_file_that_the_manifest_does_not_list_is_not_read(saved: Path, tmp_path: Path) -> None:
    folder = copy(saved, tmp_path, manifest=True)
    (folder / "notes.txt").write_text("mine")
    load_model(folder)
    (folder / "added_tokens.json").write_text('{"x": 5}')
    with pytest.raises(ValueError, match=r"added_tokens\.json: not in manifest\.json"):
        load_model(folder)


NESTED = {"model_type": "gemma3"}  # a config of configs


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("spen", {"k": ...}, "config.json: field 'k': missing"),
        ("skeleton", {"mixer": ...}, "config.json: field 'mixer': missing"),
        ("spen", {"n_layers": 10**12}, "config.json: field 'n_layers': 1000000000000"),
        ("spen", {"num_hidden_layers": 10**12}, "config.json: field 'num_hidden_layers'"),
        ("spen", {"n_layers": 1}, "the model has no tensor 'model.layers.1"),
        ("spen", {"n_layers": 3}, "the weights have no tensor 'model.layers.2"),
        ("spen", {"d_ff": 10**12}, "but config.json asks for [1000000000000, 8]"),
        ("spen", {"vocab_size": 10**15}, "config.json"),
        ("spen", {"n_layers": True}, "config.json: SpenConfig.n_layers is True"),
        ("spen", {"k": "4"}, "config.json"),
        ("spen", {"k": 99}, "config.json: SpenConfig.k is 99"),
        ("spen", {"gamma": float("nan")}, "config.json: SpenConfig.gamma is nan"),
        ("spen", {"load_balance": float("inf")}, "config.json: SpenConfig.load_balance is inf"),
        ("spen", {"gamma": -0.5}, "config.json: SpenConfig.gamma is -0.5"),
        ("spen", {"alphas": [0.5, 7]}, "config.json: SpenConfig.alphas"),
        ("spen", {"tie_word_embeddings": False}, "the weights have no tensor 'lm_head.weight'"),
        ("spen", {"model_type": "gpt2"}, "config.json"),
        ("spen", {"model_type": ["spen"]}, "config.json"),
        ("spen", {"dtype": "evil"}, "config.json"),
        ("spen", {"_attn_implementation": "evil/kernels"}, "needs custom code of the folder (evil/kernels)"),
        ("skeleton", {"mixer": "evil.module:Mixer"}, "is not part of ematrace"),
        ("skeleton", {"mixer_options": {"n_heads": 10**12}}, "config.json"),
        ("gpt2", {"n_layer": 10**12}, "config.json: field 'n_layer'"),
        ("gpt2", {"n_embd": 10**7}, "config.json: asks for"),
        ("gpt2", {"n_positions": 32}, "wpe.weight': [16, 8], but config.json asks for [32, 8]"),
        ("gpt2", {"num_labels": 10**9}, "config.json: field 'num_labels'"),
        ("gpt2", NESTED | {"text_config": {"num_hidden_layers": 5000}}, "field 'text_config.num_hidden_layers': 5000"),
        ("gpt2", NESTED | {"vision_config": {"depths": [2, 5000]}}, "field 'vision_config.depths': 5000"),
        ("gpt2", NESTED | {"text_config": {"num_experts": 5000}}, "field 'text_config.num_experts': 5000"),
        ("gpt2", NESTED | {"text_config": {"layer_types": ["x"] * 5000}}, "'text_config.layer_types': 5000 entries"),
        ("gpt2", NESTED | {"vision_config": {"num_labels": 2 * 10**6}}, "field 'vision_config.num_labels': 2000000"),
        ("gpt2", {"auto_map": {"AutoModelForCausalLM": "evil.M"}}, "needs custom code of the folder (evil.M)"),
    ],
)
def test_settings_are_checked_against_the_tensors(
    name: str, fields: dict[str, Any], message: str, saved: Path, tmp_path: Path
) -> None:
    folder = copy(saved, tmp_path, name)
    change(folder / "config.json", **fields)
    with pytest.raises((ValueError, OSError)) as refusal:
        load_model(folder)
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_sizes_and_short_lists_are_no_counts(saved: Path, tmp_path: Path) -> None:
    folder = copy(saved, tmp_path, "gpt2")
    change(folder / "config.json", block_size=10**5, extra={"expert_capacity": 10**5, "layer_types": ["x"] * 1000})
    load_model(folder)


def without_a_tensor(tensors: dict[str, torch.Tensor]) -> None:
    del tensors["model.norm.bias"]


def with_another(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.extra"] = torch.zeros(3)


def with_nan(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.norm.bias"][3] = torch.nan


def with_integers(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.norm.bias"] = tensors["model.norm.bias"].long()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (without_a_tensor, "the weights have no tensor 'model.norm.bias'"),
        (with_another, "the model has no tensor 'model.extra'"),
        (with_nan, "tensor 'model.norm.bias': holds numbers that are not finite"),
        (with_integers, "tensor 'model.norm.bias': its type is I64"),
    ],
)
def test_weights_are_checked(
    damage: Callable[[dict[str, torch.Tensor]], None], message: str, saved: Path, tmp_path: Path
) -> None:
    folder = copy(saved, tmp_path)
    tensors = load_file(folder / "model.safetensors")
    damage(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=r"model\.safetensors: ") as refusal:
        load_model(folder)
    assert message in str(refusal.value)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"[" * 5000, b"\xff", b"{}", b'{"model": {}}'])
@pytest.mark.parametrize("file", ["tokenizer.json", "config.json", "tokenizer_config.json", "generation_config.json"])
def test_damaged_json_is_named(file: str, content: bytes, saved: Path, tmp_path: Path) -> None:
    if content.startswith(b"{") and b"}" in content and file not in ("tokenizer.json", "config.json"):
        return  # a few settings that are all optional
    folder = copy(saved, tmp_path)
    (folder / file).write_bytes(content)
    with pytest.raises((ValueError, OSError)) as refusal:
        load_model(folder)
    assert file in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("file", ["config.json", "model.safetensors", "tokenizer.json"])
def test_what_is_no_file_is_named(file: str, saved: Path, tmp_path: Path) -> None:
    folder = copy(saved, tmp_path)
    (folder / file).unlink()
    for make in (lambda path: path.mkdir(), lambda path: path.symlink_to("/dev/zero"), lambda path: None):
        make(folder / file)
        with pytest.raises((ValueError, OSError), match=file.replace(".", r"\.")):
            load_model(folder)
        if (folder / file).is_symlink():
            (folder / file).unlink()
        elif (folder / file).is_dir():
            (folder / file).rmdir()


@pytest.mark.parametrize("variant", sorted(path.name for path in V0_1.iterdir() if path.is_dir()))
def test_folders_of_version_0_1_pass(variant: str, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(V0_1 / variant, tmp_path / variant))
    (folder / "tokenizer.json").write_text("{}")  # it is not in the recorded folders
    check_model_folder(folder)


def test_a_bad_tokenizer_config_is_named(saved: Path, tmp_path: Path) -> None:
    folder = copy(saved, tmp_path)
    for fields in ({"bos_token": [[]]}, {"model_max_length": [1]}, {"padding_side": 3}):
        shutil.copy(saved / "spen" / "tokenizer_config.json", folder)
        change(folder / "tokenizer_config.json", **fields)
        with pytest.raises(ValueError, match=r"tokenizer_config\.json: "):
            load_model(folder)


def test_a_token_that_the_model_does_not_know_is_refused(saved: Path, tmp_path: Path) -> None:
    folder = copy(saved, tmp_path)
    train_bpe(["some other text"], 264).save_pretrained(folder)
    with pytest.raises(ValueError, match=r"tokenizer_config\.json: has a token 26\d"):
        load_model(folder)


def test_a_file_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("{}")
    with pytest.raises(ValueError, match=r"mine\.txt: a file; give a model's folder"):
        load_model(tmp_path / "mine.txt")
