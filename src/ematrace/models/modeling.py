"""The skeleton as a transformers model: backbone, language-model head, generation."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedModel
from transformers import initialization as init
from transformers.utils import ModelOutput

from ematrace.files import write_atomically
from ematrace.models.block import Block, mixer_of
from ematrace.models.cache import MixerCache
from ematrace.models.card import model_card
from ematrace.models.configuration import ModelConfig, SkeletonConfig
from ematrace.models.padding import padding_order, positions_of
from ematrace.ops import linear_cross_entropy

T = TypeVar("T")
Output = TypeVar("Output", bound=ModelOutput)


@dataclass
class BackboneOutput(ModelOutput):
    last_hidden_state: Tensor | None = None
    past_key_values: MixerCache | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    aux_loss: Tensor | None = None


@dataclass
class CausalLMOutput(ModelOutput):
    loss: Tensor | None = None
    """What training minimises: cross-entropy, plus load_balance x aux_loss in training mode."""
    logits: Tensor | None = None
    """[B, T, vocabulary]; None when a loss was asked for in training mode, where they are never held whole."""
    past_key_values: MixerCache | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    cross_entropy: Tensor | None = None
    aux_loss: Tensor | None = None


class SkeletonPreTrainedModel(PreTrainedModel):
    config_class = SkeletonConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["Block"]  # noqa: RUF012
    _is_stateful = True
    renamed: ClassVar[Mapping[str, str]] = {}
    """Parameters that had other names in earlier versions: regular expressions, and what takes their place."""

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        std = self.config.initializer_range
        if isinstance(module, nn.Linear | nn.Embedding):
            init.normal_(module.weight, mean=0.0, std=std * getattr(module, "initial_scale", 1.0))
        elif isinstance(module, nn.LayerNorm):
            if module.weight is not None:
                init.ones_(module.weight)
            if module.bias is not None:
                init.zeros_(module.bias)

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
        """As in transformers; files of earlier versions load as well, and are saved with today's names."""
        loaded = super().from_pretrained(*args, **{"key_mapping": dict(cls.renamed) or None, **kwargs})
        model = loaded[0] if isinstance(loaded, tuple) else loaded
        model._weight_conversions = []  # what was renamed on loading would be renamed back on saving
        model._restore_buffers()
        return loaded

    def save_pretrained(self, save_directory: str | Path, *args: Any, **kwargs: Any) -> None:
        """As in transformers, with the model's code and, unless there is one, a model card."""
        card = Path(save_directory) / "README.md"
        if not card.exists() and kwargs.get("is_main_process", True):
            card.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(card, model_card(self.config, self.num_parameters()).encode())
        super().save_pretrained(save_directory, *args, **kwargs)

    def _restore_buffers(self) -> None:
        """transformers leaves buffers that are not saved (tables that `__init__` computes) without values."""
        for block in (module for module in self.modules() if isinstance(module, Block)):
            names = _unsaved_buffers(block.mixer)
            fresh = dict(mixer_of(self.config).named_buffers()) if names else {}
            for name in names:
                block.mixer.get_buffer(name).copy_(fresh[name])

    def _as_asked(self, output: Output, return_dict: bool | None) -> Output | tuple[Any, ...]:
        by_name = self.config.return_dict if return_dict is None else return_dict
        parts: tuple[Any, ...] = output.to_tuple()
        return output if by_name else parts

    @classmethod
    def upgrade_names(cls, tensors: Mapping[str, T]) -> dict[str, T]:
        """Tensors under the names that they have today, whichever version named them."""
        return {_substituted(name, cls.renamed): tensor for name, tensor in tensors.items()}


class SkeletonModel(SkeletonPreTrainedModel):
    """Token embedding, blocks, final norm.

    >>> import torch
    >>> model = SkeletonModel(SkeletonConfig.preset("skeleton-tiny", mixer="attention"))
    >>> model(torch.tensor([[1, 2, 3]])).last_hidden_state.shape
    torch.Size([1, 3, 64])
    """

    block_class: ClassVar[type[Block]] = Block

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        skeleton = config.skeleton()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.d_model)
        learned = skeleton.positions == "learned"
        self.embed_positions = nn.Embedding(skeleton.max_positions, config.d_model) if learned else None
        self.layers = nn.ModuleList(self.block_class(config) for _ in range(config.n_layers))
        self.norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_epsilon)
        self.gradient_checkpointing = False
        if self.renamed:
            self.register_load_state_dict_pre_hook(_rename)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.embed_tokens

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        self.embed_tokens = value

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: MixerCache | None = None,
        inputs_embeds: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> BackboneOutput | tuple[Any, ...]:
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("exactly one of input_ids and inputs_embeds must be given")
        x = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        cache = past_key_values if past_key_values is not None else MixerCache.empty(self.config.n_layers)
        mask, order = padding_order(attention_mask, x, cache.seen_tokens, cu_seqlens)
        if order is not None:
            x = x.gather(1, order.unsqueeze(-1).expand_as(x))
        lengths = None
        if self.embed_positions is not None:
            limit = self.embed_positions.num_embeddings
            positions, lengths = positions_of(x, mask, cu_seqlens, cache.lengths, cache.seen_tokens, limit)
            x = x + self.embed_positions(positions)
        if torch.is_autocast_enabled(x.device.type) and not self.config.residual_in_fp32:
            x = x.to(torch.get_autocast_dtype(x.device.type))

        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        hidden_states, balance, states = [], [], []
        for layer, state in zip(self.layers, cache.blocks, strict=True):
            if output_hidden_states:
                hidden_states.append(x)
            x, state, layer_balance = layer(x, state, mask, cu_seqlens)
            states.append(state)
            if layer_balance is not None:
                balance.append(layer_balance)
        hidden_states.append(self.norm(x))
        if order is not None:
            back = order.argsort(1)
            hidden_states = [h.gather(1, back.unsqueeze(-1).expand_as(h)) for h in hidden_states]

        use_cache = self.config.use_cache if use_cache is None else use_cache
        output = BackboneOutput(
            last_hidden_state=hidden_states[-1],
            past_key_values=MixerCache(states, cache.seen_tokens + x.shape[1], lengths) if use_cache else None,
            hidden_states=tuple(hidden_states) if output_hidden_states else None,
            aux_loss=torch.stack(balance).mean() if balance else None,
        )
        return self._as_asked(output, return_dict)


class SkeletonForCausalLM(SkeletonPreTrainedModel, GenerationMixin):
    """The skeleton with a head tied to the embedding.

    >>> import torch
    >>> model = SkeletonForCausalLM(SkeletonConfig.preset("skeleton-tiny", mixer="ema"))
    >>> model(torch.tensor([[1, 2, 3]])).logits.shape
    torch.Size([1, 3, 4096])
    """

    model_class: ClassVar[type[SkeletonModel]] = SkeletonModel
    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.model = self.model_class(config)
        self.lm_head = nn.Linear(config.d_model, config.vocab_size, bias=False)
        self.post_init()

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False  # the model makes its own recurrent cache

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: MixerCache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        skip_logits: bool | None = None,
        num_items_in_batch: int | Tensor | None = None,
        **kwargs: Any,
    ) -> CausalLMOutput | tuple[Any, ...]:
        """Next-token logits, and a loss when targets are given.

        `labels` has the shape of the input and is shifted inside; a keyword `shift_labels` is shifted already; both
        ignore -100. The latter has no parameter of its own: transformers' Trainer takes every parameter with "label" in
        its name for one that evaluation data must have, and would report no loss.
        A loss in training mode leaves `logits` out, unless skip_logits=False. `cu_seqlens` packs sequences along time
        with batch 1.
        """
        output = self.model(
            input_ids, attention_mask, past_key_values, inputs_embeds, cu_seqlens, use_cache, output_hidden_states, True
        )
        hidden = output.last_hidden_state
        shift_labels: Tensor | None = kwargs.pop("shift_labels", None)
        if labels is not None and shift_labels is None:
            shift_labels = _shifted(labels, cu_seqlens)
        if skip_logits is None:
            skip_logits = self.training and shift_labels is not None
        logits = None
        if not skip_logits:
            kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
            logits = self.lm_head(hidden[:, kept])
        loss = cross_entropy = None
        if shift_labels is not None:
            cross_entropy = self._cross_entropy(hidden, shift_labels, num_items_in_batch)
            loss = cross_entropy
            if output.aux_loss is not None:
                loss = loss + self.config.load_balance * output.aux_loss
        result = CausalLMOutput(
            loss=loss,
            logits=logits,
            past_key_values=output.past_key_values,
            hidden_states=output.hidden_states,
            cross_entropy=cross_entropy,
            aux_loss=output.aux_loss,
        )
        return self._as_asked(result, return_dict)

    def _cross_entropy(self, hidden: Tensor, targets: Tensor, n_targets: int | Tensor | None) -> Tensor:
        if n_targets is None:
            return linear_cross_entropy(hidden, self.lm_head.weight, targets)
        # The trainer accumulates gradients and knows how many targets the whole batch has.
        return linear_cross_entropy(hidden, self.lm_head.weight, targets, reduction="sum") / n_targets

    def prepare_inputs_for_generation(
        self, input_ids: Tensor, inputs_embeds: Tensor | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        inputs: dict[str, Any] = super().prepare_inputs_for_generation(input_ids, inputs_embeds=inputs_embeds, **kwargs)
        if kwargs.get("past_key_values") is not None:  # padding was dealt with when the state was made
            inputs["attention_mask"] = None
        return inputs


def upgrade_names(model: nn.Module, tensors: Mapping[str, T]) -> dict[str, T]:
    """A file's tensors under the names that the model has for them today, for any model; prefixes stay as they are.

    >>> from ematrace.spen import SpenConfig, SpenModel
    >>> model = SpenModel(SpenConfig.preset("spen-tiny"))
    >>> list(upgrade_names(model, {"layers.0.W_up.weight": None}))  # a name of version 0.1
    ['layers.0.ffn.W_up.weight']
    """
    return model.upgrade_names(tensors) if isinstance(model, SkeletonPreTrainedModel) else dict(tensors)


def _rename(module: SkeletonModel, state_dict: dict[str, Tensor], prefix: str, *rest: Any) -> None:
    """Before `load_state_dict` looks at them."""
    for name in [name for name in state_dict if name.startswith(prefix)]:
        state_dict[_substituted(name, module.renamed)] = state_dict.pop(name)


def _substituted(name: str, renamed: Mapping[str, str]) -> str:
    for pattern, replacement in renamed.items():
        name = re.sub(pattern, replacement, name)
    return name


def _unsaved_buffers(module: nn.Module) -> Iterable[str]:
    saved = module.state_dict().keys()
    return [name for name, _ in module.named_buffers() if name not in saved]


def _shifted(labels: Tensor, cu_seqlens: Tensor | None) -> Tensor:
    """The label of position t moves to t - 1; the last position of each sequence has no target."""
    shifted = torch.full_like(labels, -100)
    shifted[:, :-1] = labels[:, 1:]
    if cu_seqlens is not None:
        shifted[:, cu_seqlens[1:].long() - 1] = -100  # -1, of an empty first sequence, is the last position: -100 too
    return shifted
