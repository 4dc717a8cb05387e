"""Streaming decode: token after token with a state that does not grow, or a whole prompt in parallel."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from ematrace.files import write_atomically
from ematrace.spen.cache import BlockState, SpenCache
from ematrace.spen.decoder import Decoder, require_static_predictor
from ematrace.spen.fast_weights import PGHU, FastWeights
from ematrace.spen.modeling import SpenForCausalLM
from ematrace.traces import ema_traces

FORMAT = "ematrace-stream-1"
PARALLEL_STEPS = 2048
"""Tokens of a long text that go through the model at once."""
SCORED_STEPS = 256
"""Tokens whose logits are held at once while surprise is measured."""


@dataclass
class Surprise:
    """What a stream made of some tokens."""

    nats: Tensor
    """[B, T] -log p of each token given all before it; NaN for a token that nothing was there to predict."""
    uncertainty: Tensor | None
    """[B, T] U_t = mean(1 / pi) over dimensions and blocks, after the token; only with PGHU."""
    predicted: Tensor
    """[B, vocabulary] logits of the token that comes next; hand it to the next call."""


class SpenStream:
    """A SPEN that reads on. State per block: the traces, O(d); with PGHU also the fast weights, O(d^2).

    With a decoder (`decoder.build_decoder(model)`) `step` goes through it; `feed` and `surprise` stay with the model,
    which reads many tokens in parallel, and the state passes between the two.

    >>> stream = SpenStream(model)                   # doctest: +SKIP
    >>> logits = stream.feed(prompt_ids)[:, -1]      # doctest: +SKIP
    >>> logits = stream.step(logits.argmax(-1))      # doctest: +SKIP
    """

    def __init__(self, model: SpenForCausalLM, pghu: PGHU | None = None, decoder: Decoder | None = None) -> None:
        if pghu is not None and model.config.predictor != "static":
            raise ValueError(f"PGHU adapts the static predictor; this model's is {model.config.predictor!r}")
        if decoder is not None:
            require_static_predictor(model)
            if pghu is not None:
                raise ValueError("pghu and decoder exclude each other: a decoder's weights do not adapt")
        self.model = model.eval()
        self.pghu = pghu
        self.decoder = decoder
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self.cache = SpenCache.empty(self.model.config.n_layers)
        self.fast_weights: list[FastWeights] = []
        self._decoding: tuple[SpenCache, Tensor] | None = None

    def snapshot(self) -> tuple[SpenCache, list[FastWeights]]:
        """The state as it is now. Reading on makes new tensors and leaves these alone, so nothing is copied."""
        self._decoding = None  # a decoder works in place: its next step begins with a copy
        return SpenCache(list(self.cache.blocks), self.cache.seen_tokens), list(self.fast_weights)

    def restore(self, snapshot: tuple[SpenCache, list[FastWeights]]) -> None:
        cache, fast_weights = snapshot
        self.cache, self.fast_weights = SpenCache(list(cache.blocks), cache.seen_tokens), list(fast_weights)

    @torch.no_grad()
    def step(self, ids: Tensor | list[int] | int) -> Tensor:
        """One token for each of B streams, ids [B] (or a number); returns the logits of the next, [B, vocabulary]."""
        ids = torch.as_tensor(ids, device=self.model.device).reshape(-1, 1)
        if self.decoder is not None:
            return self._decode(self.decoder, ids[:, 0])
        hidden, _ = self._advance(ids)
        logits: Tensor = self.model.lm_head(hidden[:, -1])
        return logits

    @torch.no_grad()
    def feed(self, ids: Tensor | list[int], keep: int = 0) -> Tensor:
        """Many tokens, ids [B, T] or [T], in parallel unless PGHU makes each depend on the last.

        Returns logits [B, T, vocabulary], or only those of the last `keep` tokens: a long prompt needs just one.
        """
        ids = self._as_batch(ids)
        hidden = torch.cat([self._advance(part)[0][:, -keep:] for part in ids.split(PARALLEL_STEPS, 1)], 1)
        logits: Tensor = self.model.lm_head(hidden[:, -keep:])
        return logits

    @torch.no_grad()
    def surprise(self, ids: Tensor | list[int], predicted: Tensor | None = None) -> Surprise:
        """Read ids [B, T] or [T] and say how surprising each was; never holds the logits of more than a few hundred."""
        ids = self._as_batch(ids)
        nats, uncertainty = [], []
        for part in ids.split(SCORED_STEPS, 1):
            hidden, part_uncertainty = self._advance(part)
            logits = self.model.lm_head(hidden)
            before = torch.full_like(logits[:, 0], torch.nan) if predicted is None else predicted
            scored = torch.cat([before.unsqueeze(1).to(logits), logits[:, :-1]], 1)
            nats.append(-F.log_softmax(scored.double(), -1).gather(-1, part.unsqueeze(-1)).squeeze(-1))
            predicted = logits[:, -1]
            if part_uncertainty is not None:
                uncertainty.append(part_uncertainty)
        assert predicted is not None
        return Surprise(torch.cat(nats, 1), torch.cat(uncertainty, 1) if uncertainty else None, predicted)

    def state_bytes(self) -> int:
        """Memory of the state; without PGHU it is n_layers x len(alphas) x d_model x 4 for each stream."""
        fast = [t for w in self.fast_weights for t in (w.base_scale, w.delta, w.variance)]
        return self.cache.n_bytes() + sum(t.numel() * t.element_size() for t in fast)

    def save(self, path: str | Path) -> Path:
        """Write the state as safetensors, whole or not at all."""
        tensors: dict[str, Tensor] = {}
        for i, block in enumerate(self.cache.blocks):
            if block.traces is not None:
                tensors[f"{i}.traces"] = block.traces
            tensors |= {f"{i}.predictor.{j}": t for j, t in enumerate(block.predictor or ())}
        for i, weights in enumerate(self.fast_weights):
            tensors |= {f"{i}.fast.{name}": t for name, t in vars(weights).items()}
        metadata = {
            "format": FORMAT,
            "model": fingerprint(self.model),
            "seen_tokens": str(self.cache.seen_tokens),
            "pghu": json.dumps(None if self.pghu is None else asdict(self.pghu)),
        }
        return write_atomically(path, save({k: t.contiguous().cpu() for k, t in tensors.items()}, metadata))

    def load(self, path: str | Path) -> SpenStream:
        """Continue where the saved stream stopped. The file must come from this very model and PGHU setting."""
        metadata, tensors = _read(path, self.model.device)
        expected = {
            "format": FORMAT,
            "model": fingerprint(self.model),
            "pghu": json.dumps(None if self.pghu is None else asdict(self.pghu)),
        }
        for field, value in expected.items():
            if metadata.get(field) != value:
                raise ValueError(f"{path}: {field} is {metadata.get(field)}, this stream's is {value}")
        blocks = []
        for i in range(self.model.config.n_layers):
            n_past = sum(name.startswith(f"{i}.predictor.") for name in tensors)
            past = tuple(tensors[f"{i}.predictor.{j}"] for j in range(n_past))
            blocks.append(BlockState(tensors.get(f"{i}.traces"), past or None))
        fast = range(sum(name.endswith(".fast.delta") for name in tensors))
        names = ("base_scale", "delta", "variance")
        self.cache = SpenCache(blocks, int(metadata["seen_tokens"]))
        self.fast_weights = [FastWeights(**{name: tensors[f"{i}.fast.{name}"] for name in names}) for i in fast]
        return self

    def _as_batch(self, ids: Tensor | list[int]) -> Tensor:
        ids = torch.as_tensor(ids, device=self.model.device)
        if ids.ndim == 1:
            ids = ids.unsqueeze(0)
        if ids.ndim != 2 or not ids.shape[1]:
            raise ValueError(f"a stream takes ids [batch, time] with at least one token, got {tuple(ids.shape)}")
        return ids

    def _decode(self, decoder: Decoder, ids: Tensor) -> Tensor:
        """`step` through a decoder. While it runs, the blocks of the cache are views of the tensor it updates."""
        self._check_streams(ids)
        if decoder.n_streams not in (None, len(ids)):
            raise ValueError(f"this decoder was built for {decoder.n_streams} streams, got ids for {len(ids)}")
        if self._decoding is None or self._decoding[0] is not self.cache:  # begun, fed, restored or loaded since
            config = self.model.config
            size = (len(config.alphas), len(ids), config.d_model)
            traces = [ids.new_zeros(size) if b.traces is None else b.traces for b in self.cache.blocks]
            state = torch.stack([t.float() for t in traces])
            self.cache = SpenCache([BlockState(t) for t in state], self.cache.seen_tokens)
            self._decoding = self.cache, state
        logits = decoder.step(ids, self._decoding[1])
        self.cache.seen_tokens += 1
        return logits.clone() if logits.is_cuda else logits  # decoders of a GPU write to the same place again

    def _check_streams(self, ids: Tensor) -> None:
        held = next((block.traces.shape[1] for block in self.cache.blocks if block.traces is not None), len(ids))
        if len(ids) != held:
            raise ValueError(f"this stream carries {held} sequences, got ids for {len(ids)}")

    def _advance(self, ids: Tensor) -> tuple[Tensor, Tensor | None]:
        """Final hidden states [B, T, D] and, with PGHU, uncertainty [B, T]; the state moves on."""
        self._check_streams(ids)
        if self.pghu is None:
            output = self.model.model(ids, past_key_values=self.cache, use_cache=True)
            self.cache = output.past_key_values
            return output.last_hidden_state, None
        steps = [self._adapt(self.pghu, ids[:, t : t + 1]) for t in range(ids.shape[1])]
        return torch.cat([hidden for hidden, _ in steps], 1), torch.stack([u for _, u in steps], 1)

    def _adapt(self, rule: PGHU, ids: Tensor) -> tuple[Tensor, Tensor]:
        """One token through all blocks, each of which predicts with its fast weights and then updates them."""
        backbone = self.model.model
        x = backbone.embed_tokens(ids)
        if not self.fast_weights:
            bases = [block.predictor.W_pred.weight for block in backbone.layers]
            self.fast_weights = [FastWeights.fresh(rule, W_base, len(ids)) for W_base in bases]
        for i, block in enumerate(backbone.layers):
            traces, state = ema_traces(x, self.model.config.alphas, self.cache.blocks[i].traces)
            slow = traces[-1, :, 0]
            x_hat = self.fast_weights[i].predict(block.predictor.W_pred.weight, slow)
            self.fast_weights[i] = self.fast_weights[i].update(rule, x[:, 0] - x_hat, slow)
            x, _, _ = block.respond(x, block.context(x, traces, x_hat.to(x.dtype).unsqueeze(1)))
            self.cache.blocks[i] = BlockState(state)
        self.cache.seen_tokens += 1
        uncertainty = torch.stack([weights.uncertainty(rule) for weights in self.fast_weights]).mean(0)
        return backbone.norm(x), uncertainty


def fingerprint(model: SpenForCausalLM) -> str:
    """sha256 over settings and weights: a state continues exactly only with the model that made it."""
    digest = hashlib.sha256(json.dumps(model.config.to_diff_dict(), sort_keys=True, default=str).encode())
    for name, parameter in sorted(model.named_parameters()):
        digest.update(name.encode())
        digest.update(parameter.detach().cpu().contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _read(path: str | Path, device: torch.device) -> tuple[dict[str, str], dict[str, Tensor]]:
    if not Path(path).is_file():
        raise FileNotFoundError(f"{path}: no such file")
    try:
        with safe_open(path, framework="pt", device=str(device)) as file:
            metadata: dict[str, Any] = file.metadata() or {}
            return metadata, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{path}: not a whole safetensors file ({error})") from None
