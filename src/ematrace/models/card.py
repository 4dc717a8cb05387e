"""The model card of a saved model: what it is, its sizes, how to load it, how it was trained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TITLES = {"spen": "SPEN language model", "ematrace": "Language model with a {mixer} mixer"}
SUMMARIES = {
    "spen": "A SPEN: all its context is exponential moving averages of each block's input, at a few rates.",
    "ematrace": "Blocks of a mixer over time ({mixer}) and a feed-forward layer.",
}
SIZES = ("vocab_size", "d_model", "d_ff", "n_layers", "ffn", "k", "residual")
OPTIONS = {
    "spen": ("alphas", "predictor", "predictor_reads"),
    "ematrace": ("mixer", "mixer_options", "norm", "positions"),
}
TRAINING = ("preset", "tokens", "sequences", "length", "lr", "warmup", "seed", "precision")


def model_card(config: Any, n_parameters: int, training: Mapping[str, Any] | None = None) -> str:
    """Markdown with the hub's metadata. `training` are the settings of a run; paths in them are left out."""
    kind, package = config.model_type, config._package
    names = {"mixer": getattr(config, "mixer", "")}
    rows = {name: getattr(config, name) for name in (*SIZES, *OPTIONS[kind]) if name != "k" or config.ffn == "topk"}
    parts = [
        "---",
        "library_name: transformers",
        "pipeline_tag: text-generation",
        "tags:",
        "- ematrace",
        f"- {kind}",
        "---",
        "",
        f"# {TITLES[kind].format(**names)}, {n_parameters:,} parameters",
        "",
        SUMMARIES[kind].format(**names),
        "",
        *_table(rows),
        "",
        "## Use",
        "",
        "In plain torch, with the code in this folder (`modeling_ematrace.py`; read it before you trust it):",
        "",
        "```python",
        "from transformers import AutoModelForCausalLM, AutoTokenizer",
        "",
        'model = AutoModelForCausalLM.from_pretrained("THIS FOLDER", trust_remote_code=True)',
        'tokenizer = AutoTokenizer.from_pretrained("THIS FOLDER")',
        "```",
        "",
        f"With ematrace installed, which is faster, after `import {package}` and without `trust_remote_code`; or as",
        '`ematrace generate "THIS FOLDER" "a prompt"`. Nothing in the folder runs then.',
        "",
    ]
    if training:
        known = {name: training[name] for name in TRAINING if training.get(name) is not None}
        parts += ["## Training", "", *_table(known), ""]
    return "\n".join(parts)


def _table(rows: Mapping[str, Any]) -> list[str]:
    cells = [f"| {name} | {str(value).replace('|', '/')} |" for name, value in rows.items()]
    return ["| setting | value |", "|---|---|", *cells]
