"""SPEN as a transformers model: backbone, language-model head, generation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedModel
from transformers import initialization as init
from transformers.utils import ModelOutput

from ematrace.ops import linear_cross_entropy
from ematrace.spen.block import SpenBlock
from ematrace.spen.cache import SpenCache
from ematrace.spen.configuration import SpenConfig


@dataclass
class SpenModelOutput(ModelOutput):
    last_hidden_state: Tensor | None = None
    past_key_values: SpenCache | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    aux_loss: Tensor | None = None


@dataclass
class SpenCausalLMOutput(ModelOutput):
    loss: Tensor | None = None
    """What training minimises: cross-entropy, plus load_balance x aux_loss in training mode."""
    logits: Tensor | None = None
    """[B, T, vocabulary]; None when a loss was asked for in training mode, where they are never held whole."""
    past_key_values: SpenCache | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    cross_entropy: Tensor | None = None
    aux_loss: Tensor | None = None


class SpenPreTrainedModel(PreTrainedModel):
    config_class = SpenConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["SpenBlock"]  # noqa: RUF012
    _is_stateful = True

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        std = self.config.initializer_range
        if isinstance(module, nn.Linear | nn.Embedding):
            init.normal_(module.weight, mean=0.0, std=std * getattr(module, "initial_scale", 1.0))
        elif isinstance(module, nn.LayerNorm):
            init.ones_(module.weight)
            init.zeros_(module.bias)


class SpenModel(SpenPreTrainedModel):
    """Token embedding, blocks, final norm. No position embedding: order enters through the traces alone."""

    def __init__(self, config: SpenConfig) -> None:
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.d_model)
        self.layers = nn.ModuleList(SpenBlock(config) for _ in range(config.n_layers))
        self.norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_epsilon)
        self.gradient_checkpointing = False
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.embed_tokens

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        self.embed_tokens = value

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: SpenCache | None = None,
        inputs_embeds: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> SpenModelOutput | tuple[Any, ...]:
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("exactly one of input_ids and inputs_embeds must be given")
        x = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        if torch.is_autocast_enabled(x.device.type) and not self.config.residual_in_fp32:
            x = x.to(torch.get_autocast_dtype(x.device.type))
        cache = past_key_values if past_key_values is not None else SpenCache.empty(self.config.n_layers)
        past_is_lost = cu_seqlens is not None and self.config.predictor_reads != "traces_now"
        if past_is_lost and cache.seen_tokens:
            raise ValueError(
                "past_key_values and cu_seqlens: an attention predictor carries no past of packed sequences"
            )
        mask, order = self._padding(attention_mask, x, cache, cu_seqlens)
        if order is not None:
            x = x.gather(1, order.unsqueeze(-1).expand_as(x))

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

        use_cache = (self.config.use_cache if use_cache is None else use_cache) and not past_is_lost
        output = SpenModelOutput(
            last_hidden_state=hidden_states[-1],
            past_key_values=SpenCache(states, cache.seen_tokens + x.shape[1]) if use_cache else None,
            hidden_states=tuple(hidden_states) if output_hidden_states else None,
            aux_loss=torch.stack(balance).mean() if balance else None,
        )
        return_dict = self.config.return_dict if return_dict is None else return_dict
        return output if return_dict else output.to_tuple()

    @staticmethod
    def _padding(
        attention_mask: Tensor | None, x: Tensor, cache: SpenCache, cu_seqlens: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None]:
        """Mask and order that put the padding of each row before its first token, or (None, None) without padding.

        Left-padded rows stay as they are; with padding elsewhere the state at the end is still that of the last token.
        """
        if attention_mask is None:
            return None, None
        if attention_mask.ndim != 2:
            raise ValueError(f"attention_mask must be [batch, time], got {tuple(attention_mask.shape)}")
        length = x.shape[1]
        if attention_mask.shape[1] < length:
            raise ValueError(f"attention_mask covers {attention_mask.shape[1]} steps, the input has {length}")
        mask = attention_mask[
            :, attention_mask.shape[1] - length :
        ].bool()  # generate() sends the mask of the past along
        if not torch.compiler.is_compiling() and bool(mask.all()):
            return None, None
        if cu_seqlens is not None:
            raise ValueError(
                "attention_mask with padding and cu_seqlens exclude each other: packed sequences have no padding"
            )
        if cache.seen_tokens:
            raise ValueError(
                "attention_mask has padding after a carried state; pad only the first call, before the first token"
            )
        order = mask.to(torch.int8).argsort(dim=1, stable=True)
        return mask.gather(1, order), order


class SpenForCausalLM(SpenPreTrainedModel, GenerationMixin):
    """SPEN with a head tied to the embedding."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012

    def __init__(self, config: SpenConfig) -> None:
        super().__init__(config)
        self.model = SpenModel(config)
        self.lm_head = nn.Linear(config.d_model, config.vocab_size, bias=False)
        self.post_init()

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False  # the model makes its own recurrent cache

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: SpenCache | None = None,
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
    ) -> SpenCausalLMOutput | tuple[Any, ...]:
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
            if num_items_in_batch is None:
                cross_entropy = linear_cross_entropy(hidden, self.lm_head.weight, shift_labels)
            else:  # the trainer accumulates gradients and knows how many targets the whole batch has
                total = linear_cross_entropy(hidden, self.lm_head.weight, shift_labels, reduction="sum")
                cross_entropy = total / num_items_in_batch
            loss = cross_entropy
            if output.aux_loss is not None:
                loss = loss + self.config.load_balance * output.aux_loss
        result = SpenCausalLMOutput(
            loss=loss,
            logits=logits,
            past_key_values=output.past_key_values,
            hidden_states=output.hidden_states,
            cross_entropy=cross_entropy,
            aux_loss=output.aux_loss,
        )
        return_dict = self.config.return_dict if return_dict is None else return_dict
        return result if return_dict else result.to_tuple()

    def prepare_inputs_for_generation(
        self, input_ids: Tensor, inputs_embeds: Tensor | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        inputs: dict[str, Any] = super().prepare_inputs_for_generation(input_ids, inputs_embeds=inputs_embeds, **kwargs)
        if kwargs.get("past_key_values") is not None:  # padding was dealt with when the state was made
            inputs["attention_mask"] = None
        return inputs

    def n_matrix_parameters(self) -> int:
        """Parameters in matrix products, the tied head once: 2 FLOPs each per token forward, 4 backward."""
        inside = sum(p.numel() for p in self.model.layers.parameters() if p.ndim == 2)
        return inside + self.lm_head.weight.numel()


def _shifted(labels: Tensor, cu_seqlens: Tensor | None) -> Tensor:
    """The label of position t moves to t - 1; the last position of each sequence has no target."""
    shifted = torch.full_like(labels, -100)
    shifted[:, :-1] = labels[:, 1:]
    if cu_seqlens is not None:
        shifted[:, cu_seqlens[1:].long() - 1] = -100  # -1, of an empty first sequence, is the last position: -100 too
    return shifted
