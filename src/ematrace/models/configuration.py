"""Settings of the models: what all of them share, and the skeleton's own."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from numbers import Real
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from transformers import PretrainedConfig

from ematrace.files import write_atomically
from ematrace.models.standalone import modeling_code

Norm = Literal["pre", "algorithm1"]
Positions = Literal["none", "learned"]


@dataclass(frozen=True)
class Skeleton:
    """What makes one model out of the skeleton, apart from sizes and the feed-forward layer; see `SkeletonConfig`."""

    mixer: str
    mixer_options: Mapping[str, Any]
    norm: Norm
    positions: Positions = "none"
    max_positions: int = 0


class ModelConfig(PretrainedConfig):
    """Fields of every model in this package, and their checks.

    >>> SkeletonConfig.preset("skeleton-tiny", d_ff=32, k=64)
    Traceback (most recent call last):
        ...
    ValueError: SkeletonConfig.k is 64; top-k keeps between 1 and d_ff = 32 units
    """

    keys_to_ignore_at_inference = ["past_key_values", "cross_entropy", "aux_loss"]  # noqa: RUF012 - must be a list
    attribute_map = {  # noqa: RUF012 - the name and type that transformers asks for
        "hidden_size": "d_model",
        "intermediate_size": "d_ff",
        "num_hidden_layers": "n_layers",
    }
    _choices: ClassVar[dict[str, tuple[str, ...]]] = {
        "ffn": ("topk", "dense"),
        "topk_grad": ("ste", "masked", "ste_weights", "ste_through"),
        "residual": ("ffn", "direct"),
    }
    _sizes: ClassVar[tuple[str, ...]] = ("vocab_size", "d_model", "d_ff", "n_layers", "k")
    presets: ClassVar[dict[str, dict[str, Any]]]
    _package: ClassVar[str]
    """Where the classes of a saved model are imported from."""
    _classes: ClassVar[dict[str, str]]
    """Config, language model and backbone, by the Auto class that finds them."""

    vocab_size: int = 50257
    d_model: int = 768
    d_ff: int = 3072
    n_layers: int = 12
    ffn: Literal["topk", "dense"] = "topk"
    k: int = 184
    topk_grad: Literal["ste", "masked", "ste_weights", "ste_through"] = "ste"
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
        super().__post_init__(**kwargs)
        self.auto_map = {auto: f"modeling_ematrace.{name}" for auto, name in self._classes.items()}
        self._check()

    def skeleton(self) -> Skeleton:
        """The mixer and how it is built in."""
        raise NotImplementedError

    def _check(self) -> None:
        for field, allowed in self._choices.items():
            if getattr(self, field) not in allowed:
                self._refuse(field, f"it must be one of {', '.join(allowed)}")
        for field in self._sizes:
            value = getattr(self, field)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                self._refuse(field, "it must be a whole number, at least 1")
        for field in ("load_balance", "initializer_range", "layer_norm_epsilon"):
            value = getattr(self, field)
            if isinstance(value, bool) or not (isinstance(value, Real) and 0 <= float(value) < math.inf):
                self._refuse(field, "it must be a number, at least 0")
        if self.ffn == "topk" and self.topk_grad in ("ste_weights", "ste_through") and self.load_balance > 0:
            self._refuse("topk_grad", f"it needs load_balance 0, not {self.load_balance:g}")
        if self.k > self.d_ff:
            self._refuse("k", f"top-k keeps between 1 and d_ff = {self.d_ff} units")

    def _refuse(self, field: str, rule: str) -> None:
        raise ValueError(f"{type(self).__name__}.{field} is {getattr(self, field)!r}; {rule}")

    def save_pretrained(self, save_directory: str | Path, push_to_hub: bool = False, **kwargs: Any) -> None:
        """Writes the model's code as well: with trust_remote_code=True, transformers finds its classes there, whether
        ematrace is installed or not."""
        Path(save_directory).mkdir(parents=True, exist_ok=True)
        write_atomically(Path(save_directory) / "modeling_ematrace.py", modeling_code(self).encode())
        super().save_pretrained(save_directory, push_to_hub=push_to_hub, **kwargs)

    @classmethod
    def register_for_auto_class(cls, auto_class: str = "AutoConfig") -> None:
        """Nothing: transformers would copy the file of this class into saved folders, which have their code."""

    @classmethod
    def preset(cls, name: str, **overrides: Any) -> Self:
        """The settings of that name, with `overrides` in place of some of them."""
        if name not in cls.presets:
            raise ValueError(f"no preset {name!r}; there are {', '.join(cls.presets)}")
        unknown = set(overrides) - {field.name for field in fields(cls)} - set(cls.attribute_map)
        if unknown:
            raise ValueError(f"{cls.__name__} has no field {', '.join(sorted(unknown))}")
        return cls(**{**cls.presets[name], **overrides})


class SkeletonConfig(ModelConfig):
    """Settings of a language model around any mixer.

    Fields:
        vocab_size, d_model, d_ff, n_layers: sizes.
        mixer: name of the context mechanism, see `ematrace.mixers`. A name from outside the package is only data: the
            model is built once `ematrace.mixers.register_mixer` was called with it.
        mixer_options: keyword arguments of the mixer, as JSON has them.
        norm: "pre" (the mixer reads LN(x)) or "algorithm1" (it reads x, as in the paper's block; LN only before the
            feed-forward layer).
        residual: "direct" (x' = c + z) or "ffn" (x' = x + z, as in the paper: the context reaches the stream through
            the feed-forward layer alone), with c = x + mixer(norm(x)) and z = ffn(norm(c)).
        ffn: "dense" or "topk" (the `k` largest of a token's d_ff units are kept).
        topk_grad: gradient of the units that top-k drops, "ste" (straight-through) or "masked" (none); or half of the
            former: "ste_weights" (their weights in W_up learn, but nothing passes through them to what is below) or
            "ste_through" (it passes, but their weights do not learn), both with load_balance 0.
        load_balance: weight of the loss that penalises unequal use of the units (training mode, ffn "topk").
        positions: "none" or "learned" (an embedding of `max_positions` positions is added to that of the tokens).
        residual_in_fp32: keep the residual stream in float32 under autocast; otherwise it has autocast's dtype.
        initializer_range: standard deviation of the initial weights; W_down's is divided by sqrt(n_layers).

    >>> config = SkeletonConfig.preset("skeleton-tiny", mixer="attention")
    >>> config.d_model, config.norm, config.positions
    (64, 'pre', 'none')
    """

    model_type = "ematrace"
    _choices: ClassVar[dict[str, tuple[str, ...]]] = {
        **ModelConfig._choices,
        "norm": ("pre", "algorithm1"),
        "positions": ("none", "learned"),
    }
    _sizes: ClassVar[tuple[str, ...]] = (*ModelConfig._sizes, "max_positions")
    # Widths and depths are those of SPEN's presets.
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "skeleton-130m": {},
        "skeleton-7m": {"d_model": 128, "d_ff": 512, "n_layers": 2, "k": 30},
        "skeleton-tiny": {
            **{"vocab_size": 4096, "d_model": 64, "d_ff": 256, "n_layers": 2, "k": 16},
            **{"bos_token_id": 0, "eos_token_id": 0},  # as in the tokenizer that is trained on the spot
        },
    }
    _package: ClassVar[str] = "ematrace.models"
    _classes: ClassVar[dict[str, str]] = {
        "AutoConfig": "SkeletonConfig",
        "AutoModel": "SkeletonModel",
        "AutoModelForCausalLM": "SkeletonForCausalLM",
    }

    mixer: str = "ema"
    mixer_options: dict[str, Any] | None = None
    norm: Norm = "pre"
    ffn: Literal["topk", "dense"] = "dense"
    residual: Literal["ffn", "direct"] = "direct"
    positions: Positions = "none"
    max_positions: int = 1024

    def __post_init__(self, **kwargs: Any) -> None:
        self.mixer_options = {} if self.mixer_options is None else self.mixer_options
        super().__post_init__(**kwargs)

    def skeleton(self) -> Skeleton:
        return Skeleton(self.mixer, self.mixer_options or {}, self.norm, self.positions, self.max_positions)

    @property
    def max_position_embeddings(self) -> int | None:
        """The longest sequence, under the name that transformers has for it; None without a limit."""
        return self.max_positions if self.positions == "learned" else None

    def _check(self) -> None:
        super()._check()
        if not (isinstance(self.mixer, str) and self.mixer):
            self._refuse("mixer", "it must be the name of a mixer")
        options: Any = self.mixer_options
        if not isinstance(options, dict) or not all(isinstance(name, str) for name in options):
            self._refuse("mixer_options", "it must be a mapping from names to values")
        if {"name", "d_model"} & options.keys():
            self._refuse("mixer_options", "name and d_model are not options of a mixer")
        try:
            json.dumps(options)
        except (TypeError, ValueError):
            self._refuse("mixer_options", "its values must be plain JSON")
