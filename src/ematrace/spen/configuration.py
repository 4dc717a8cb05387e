"""SPEN's settings: the paper's by default, every open choice and every switch of its ablation by name."""

from __future__ import annotations

from numbers import Real
from typing import Any, ClassVar, Literal

from ematrace.models.configuration import ModelConfig, Skeleton


class SpenConfig(ModelConfig):
    """Settings of a SPEN language model (Algorithm 1 of the paper), a configuration of `ematrace.models`.

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
        topk_grad: "ste" (straight-through) or "masked" (only kept units); for studies also "ste_weights" and
            "ste_through", halves of "ste" (see `SkeletonConfig`).
        residual: "ffn" (x' = x + W_down z, the paper) or "direct" (x' = c + W_down z: the context reaches the stream).
        load_balance: weight of the loss that penalises unequal use of the units (training mode, ffn "topk").
        residual_in_fp32: keep the residual stream in float32 under autocast; otherwise it has autocast's dtype.
        initializer_range: standard deviation of the initial weights; W_down's is divided by sqrt(n_layers).

    Presets: spen-130m (the paper's model), spen-130m-masked (trained with top-k's true gradient instead of the
    straight-through one; it computes the same function), spen-7m (the paper's ablation's), spen-tiny (for tests and
    laptops).

    >>> config = SpenConfig.preset("spen-tiny", predictor="linear")
    >>> config.d_model, config.alphas, config.predictor
    (64, (0.5, 0.1, 0.02), 'linear')
    >>> SpenConfig(k=4000)
    Traceback (most recent call last):
        ...
    ValueError: SpenConfig.k is 4000; top-k keeps between 1 and d_ff = 3072 units
    """

    model_type = "spen"
    attribute_map = {**ModelConfig.attribute_map, "num_attention_heads": "n_heads"}  # noqa: RUF012
    _choices: ClassVar[dict[str, tuple[str, ...]]] = {
        "predictor": ("static", "linear", "softmax"),
        "predictor_reads": ("traces_now", "trace_sequence", "inputs"),
        **ModelConfig._choices,
    }
    _sizes: ClassVar[tuple[str, ...]] = (*ModelConfig._sizes, "n_heads")
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "spen-130m": {},
        "spen-130m-masked": {"topk_grad": "masked"},
        "spen-7m": {"d_model": 128, "d_ff": 512, "n_layers": 2, "k": 30, "n_heads": 4},
        "spen-tiny": {
            **{"vocab_size": 4096, "d_model": 64, "d_ff": 256, "n_layers": 2, "k": 16, "n_heads": 2},
            **{"bos_token_id": 0, "eos_token_id": 0},  # as in the tokenizer that is trained on the spot
        },
    }
    _package: ClassVar[str] = "ematrace.spen"
    _classes: ClassVar[dict[str, str]] = {
        "AutoConfig": "SpenConfig",
        "AutoModel": "SpenModel",
        "AutoModelForCausalLM": "SpenForCausalLM",
    }

    alphas: tuple[float, ...] = (0.5, 0.1, 0.02)
    predictor: Literal["static", "linear", "softmax"] = "static"
    predictor_reads: Literal["traces_now", "trace_sequence", "inputs"] = "traces_now"
    n_heads: int = 12
    gamma: float = 0.999

    def __post_init__(self, **kwargs: Any) -> None:
        alphas: Any = self.alphas
        self.alphas = tuple(alphas) if isinstance(alphas, list) else alphas  # JSON has lists only
        super().__post_init__(**kwargs)

    def skeleton(self) -> Skeleton:
        options = ("alphas", "predictor", "predictor_reads", "n_heads", "gamma")
        return Skeleton("spen", {name: getattr(self, name) for name in options}, norm="algorithm1")

    def _check(self) -> None:
        super()._check()
        rates: Any = self.alphas
        if not (isinstance(rates, tuple) and rates and all(_within_unit(a) for a in rates)):
            self._refuse("alphas", "it must hold rates between 0 and 1")
        if not (_within_unit(self.gamma) and self.gamma > 0):
            self._refuse("gamma", "it must lie in (0, 1]")
        if self.predictor == "static" and self.predictor_reads != "traces_now":
            self._refuse("predictor_reads", "the static predictor reads only 'traces_now'")
        if self.predictor == "softmax" and self.d_model % self.n_heads:
            raise ValueError(f"SpenConfig.n_heads is {self.n_heads}, which does not divide d_model = {self.d_model}")


def _within_unit(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, Real) and 0 <= float(value) <= 1
