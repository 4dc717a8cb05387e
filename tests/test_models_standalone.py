"""Models that travel: their code in plain torch, without ematrace, computes what the package computes."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from ematrace.mixers import MIXERS
from ematrace.models import SkeletonConfig, SkeletonForCausalLM
from ematrace.models.standalone import modeling_code
from ematrace.spen import SpenConfig, SpenForCausalLM
from spen_support import PREDICTORS

SIZES = {"vocab_size": 40, "d_model": 16, "d_ff": 32, "n_layers": 2, "k": 5, "bos_token_id": 0, "eos_token_id": 0}
SKELETONS = {name: SkeletonConfig(**SIZES, mixer=name, ffn="topk", positions="learned") for name in MIXERS}
SPENS = {
    f"spen-{predictor}-{reads}": SpenConfig(**SIZES, n_heads=2, predictor=predictor, predictor_reads=reads)
    for predictor, reads in PREDICTORS
}
CONFIGS = {**SKELETONS, **SPENS}


def model_of(config: Any) -> Any:
    torch.manual_seed(0)
    return (SpenForCausalLM if isinstance(config, SpenConfig) else SkeletonForCausalLM)(config).eval()


def module_of(config: Any, tmp_path: Path) -> Any:
    path = tmp_path / "modeling_ematrace.py"
    path.write_text(modeling_code(config))
    name = f"standalone_{tmp_path.name}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # transformers looks there for a class's annotations
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", CONFIGS)
def test_the_code_of_each_model_computes_the_same(name: str, tmp_path: Path) -> None:
    config = CONFIGS[name]
    model = model_of(config)
    module = module_of(config, tmp_path)
    assert "ematrace" not in {line.split()[1].partition(".")[0] for line in imports(modeling_code(config))}
    other_config = getattr(module, type(config).__name__)(**config.to_dict())
    other = getattr(module, type(model).__name__)(other_config).eval()
    other.load_state_dict(model.state_dict())
    ids = torch.randint(40, (2, 40), generator=torch.Generator().manual_seed(1))
    mask = torch.ones(2, 40, dtype=torch.long)
    mask[1, :7] = 0
    with torch.no_grad():
        for inputs in ({"input_ids": ids}, {"input_ids": ids, "attention_mask": mask}):
            torch.testing.assert_close(other(**inputs).logits, model(**inputs).logits, rtol=0, atol=2e-5)
    if name in ("ema", "spen-static-traces_now"):
        losses = [m.train()(ids, labels=ids).loss for m in (model, other)]
        for loss in losses:
            loss.backward()
        torch.testing.assert_close(losses[1], losses[0])
        gradients = [{n: p.grad for n, p in m.named_parameters()} for m in (model, other)]
        torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-4, atol=1e-6)
        other.eval().save_pretrained(tmp_path / "again")  # and travels on
        assert (tmp_path / "again" / "modeling_ematrace.py").read_text() == modeling_code(config)


def imports(source: str) -> list[str]:
    return [line for line in source.splitlines() if line.startswith(("import ", "from "))]


# What a user without ematrace does; any import of the package fails, and so would numba's and Triton's.
ELSEWHERE = """
import sys
for name in ("ematrace", "numba", "triton"):
    sys.modules[name] = None
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
results = {}
for name in sys.argv[2:]:
    model = AutoModelForCausalLM.from_pretrained(f"{sys.argv[1]}/{name}", trust_remote_code=True).eval()
    ids = load_file(f"{sys.argv[1]}/ids.safetensors")["ids"]
    with torch.no_grad():
        results[name] = model(ids).logits
        results[name + ".drawn"] = model.generate(ids[:1], max_new_tokens=4, do_sample=False)
    model.save_pretrained(f"{sys.argv[1]}/{name}-again")
save_file(results, f"{sys.argv[1]}/results.safetensors")
"""


def test_a_saved_model_loads_where_ematrace_is_not_installed(tmp_path: Path) -> None:
    ids = torch.randint(40, (2, 20), generator=torch.Generator().manual_seed(1))
    save_file({"ids": ids}, tmp_path / "ids.safetensors")
    models = {name: model_of(CONFIGS[name]) for name in ("spen-static-traces_now", "gla")}
    for name, model in models.items():
        model.save_pretrained(tmp_path / name)
    environment = {**os.environ, "HF_MODULES_CACHE": str(tmp_path / "modules"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE, str(tmp_path), *models],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    results = load_file(tmp_path / "results.safetensors")
    for name, model in models.items():
        with torch.no_grad():
            torch.testing.assert_close(results[name], model(ids).logits, rtol=0, atol=2e-5)
            drawn = model.generate(ids[:1], max_new_tokens=4, do_sample=False)
        assert torch.equal(results[f"{name}.drawn"], drawn)
        first, again = tmp_path / name, tmp_path / f"{name}-again"  # saved there, it travels on with the same code
        assert {path.name for path in first.iterdir()} == {path.name for path in again.iterdir()}
        for file in ("config.json", "modeling_ematrace.py"):
            assert (first / file).read_text() == (again / file).read_text()


def test_the_card_says_what_the_model_is(tmp_path: Path) -> None:
    model = model_of(CONFIGS["gla"])
    model.save_pretrained(tmp_path)
    card = (tmp_path / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: transformers\n")
    assert f"{model.num_parameters():,} parameters" in card
    assert "| mixer | gla |" in card
    (tmp_path / "README.md").write_text("mine")
    model.save_pretrained(tmp_path)
    assert (tmp_path / "README.md").read_text() == "mine"
