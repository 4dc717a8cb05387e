"""SPEN's settings: the paper's by default, every open choice and every switch of its ablation by name."""

from __future__ import annotations

import math
from dataclasses import fields
from numbers import Real
from pathlib import Path
from typing import Any, Literal

from transformers import PretrainedConfig

from ematrace.files import write_atomically

Predictor = Literal["static", "linear", "softmax"]
PredictorReads = Literal["traces_now", "trace_sequence", "inputs"]

CHOICES: dict[str, tuple[str, ...]] = {
    "predictor": ("static", "linear", "softmax"),
    "predictor_reads": ("traces_now", "trace_sequence", "inputs"),
    "ffn": ("topk", "dense"),
    "topk_grad": ("ste", "masked"),
    "residual": ("ffn", "direct"),
}

PRESETS: dict[str, dict[str, Any]] = {
    "spen-130m": {},
    "spen-7m": {"d_model": 128, "d_ff": 512, "n_layers": 2, "k": 30, "n_heads": 4},
    "spen-tiny": {
        **{"vocab_size": 4096, "d_model": 64, "d_ff": 256, "n_layers": 2, "k": 16, "n_heads": 2},
        **{"bos_token_id": 0, "eos_token_id": 0},  # as in the tokenizer that is trained on the spot
    },
}

SHIM = b"from ematrace.spen import SpenConfig, SpenForCausalLM, SpenModel\n"
AUTO_MAP = {
    "AutoConfig": "modeling_ematrace.SpenConfig",
    "AutoModel": "modeling_ematrace.SpenModel",
    "AutoModelForCausalLM": "modeling_ematrace.SpenForCausalLM",
}


class SpenConfig(PretrainedConfig):
    """Settings of a SPEN language model (Algorithm 1 of the paper).

    Fields:
        vocab_size, d_model, d_ff, n_layers: sizes; the defaults are the paper's 130M model.
        alphas: rates of the traces, fastest first; the last one is the slow trace that predicts.
        k: units kept by the top-k (6% of d_ff in the paper).
        predictor: "static" (W_pred on the normalised slow trace, the paper's model), "linear" (causal linear attention
            with decay `gamma`), "softmax" (multi-head attention with `n_heads`).
        predictor_reads: what an attention predictor looks at: "traces_now" (the trace vectors of this step),
            "trace_sequence" (the traces of all earlier steps) or "inputs" (the residual stream of all earlier steps).
            The static predictor reads "traces_now".
        ffn: "topk" or "dense".
        topk_grad: "ste" (straight-through) or "masked" (only kept units).
        residual: "ffn" (x' = x + W_down z, the paper) or "direct" (x' = c + W_down z: the context reaches the stream).
        load_balance: weight of the loss that penalises unequal use of the units (training mode, ffn "topk").
        residual_in_fp32: keep the residual stream in float32 under autocast; otherwise it has autocast's dtype.
        initializer_range: standard deviation of the initial weights; W_down's is divided by sqrt(n_layers).
    """

    model_type = "spen"
    keys_to_ignore_at_inference = ["past_key_values", "cross_entropy", "aux_loss"]  # noqa: RUF012 - must be a list
    attribute_map = {  # noqa: RUF012 - the name and type that transformers asks for
        "hidden_size": "d_model",
        "intermediate_size": "d_ff",
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
    }

    vocab_size: int = 50257
    d_model: int = 768
    d_ff: int = 3072
    n_layers: int = 12
    alphas: tuple[float, ...] = (0.5, 0.1, 0.02)
    k: int = 184
    predictor: Predictor = "static"
    predictor_reads: PredictorReads = "traces_now"
    n_heads: int = 12
    gamma: float = 0.999
    ffn: Literal["topk", "dense"] = "topk"
    topk_grad: Literal["ste", "masked"] = "ste"
    residual: Literal["ffn", "direct"] = "ffn"
    load_balance: float = 0.01
    residual_in_fp32: bool = False
    initializer_range: float = 0.02
    layer_norm_epsilon: float = 1e-5
    use_cache: bool = True
    tie_word_embeddings: bool = True
    bos_token_id: int | None = 50256
    eos_token_id: int | None = 50256
    pad_token_id: int | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        alphas: Any = self.alphas
        self.alphas = tuple(alphas) if isinstance(alphas, list) else alphas  # JSON has lists only
        super().__post_init__(**kwargs)
        self.auto_map = dict(AUTO_MAP)
        self._check()

    def _check(self) -> None:
        for field, allowed in CHOICES.items():
            if getattr(self, field) not in allowed:
                raise ValueError(
                    f"SpenConfig.{field} is {getattr(self, field)!r}; it must be one of {', '.join(allowed)}"
                )
        for field in ("vocab_size", "d_model", "d_ff", "n_layers", "n_heads", "k"):
            value = getattr(self, field)
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"SpenConfig.{field} is {value!r}; it must be a whole number, at least 1")
        for field in ("load_balance", "initializer_range", "layer_norm_epsilon"):
            value = getattr(self, field)
            if not (_is_number(value) and 0 <= value < math.inf):
                raise ValueError(f"SpenConfig.{field} is {value!r}; it must be a number, at least 0")
        if self.k > self.d_ff:
            raise ValueError(f"SpenConfig.k is {self.k}; top-k keeps between 1 and d_ff = {self.d_ff} units")
        rates: Any = self.alphas
        if not (isinstance(rates, tuple) and rates and all(_is_number(a) and 0 <= a <= 1 for a in rates)):
            raise ValueError(f"SpenConfig.alphas is {rates!r}; it must hold rates between 0 and 1")
        if not (_is_number(self.gamma) and 0 < self.gamma <= 1):
            raise ValueError(f"SpenConfig.gamma is {self.gamma!r}; it must lie in (0, 1]")
        if self.predictor == "static" and self.predictor_reads != "traces_now":
            raise ValueError(
                f"SpenConfig.predictor_reads is {self.predictor_reads!r}; the static predictor reads only 'traces_now'"
            )
        if self.predictor == "softmax" and self.d_model % self.n_heads:
            raise ValueError(f"SpenConfig.n_heads is {self.n_heads}, which does not divide d_model = {self.d_model}")

    def save_pretrained(self, save_directory: str | Path, push_to_hub: bool = False, **kwargs: Any) -> None:
        """Writes a module of one line as well: with trust_remote_code=True, any program that knows only transformers
        (lm_eval, for one) finds the classes through it, as long as ematrace is installed."""
        Path(save_directory).mkdir(parents=True, exist_ok=True)
        write_atomically(Path(save_directory) / "modeling_ematrace.py", SHIM)
        super().save_pretrained(save_directory, push_to_hub=push_to_hub, **kwargs)

    @classmethod
    def register_for_auto_class(cls, auto_class: str = "AutoConfig") -> None:
        """Nothing: transformers would copy this file into saved folders, where the line that imports it is enough."""

    @classmethod
    def preset(cls, name: str, **overrides: Any) -> SpenConfig:
        """spen-130m (the paper's model), spen-7m (its ablation's), spen-tiny (for tests and laptops)."""
        if name not in PRESETS:
            raise ValueError(f"no preset {name!r}; there are {', '.join(PRESETS)}")
        unknown = set(overrides) - {field.name for field in fields(cls)} - set(cls.attribute_map)
        if unknown:
            raise ValueError(f"SpenConfig has no field {', '.join(sorted(unknown))}")
        return cls(**{**PRESETS[name], **overrides})


def _is_number(value: Any) -> bool:
    return isinstance(value, Real)
