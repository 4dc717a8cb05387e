"""Streaming decode: token after token with a state that does not grow, or a whole prompt in parallel."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from ematrace.models import MixerCache
from ematrace.pghu import PGHU
from ematrace.spen import stream_files
from ematrace.spen.decode import Decoder, applicable_decoder
from ematrace.spen.decode.weights import check_ids, obstacle_to_decoding
from ematrace.spen.fast_weights import FastPredictor, FastWeights
from ematrace.spen.mixer import SpenBlock
from ematrace.spen.modeling import SpenForCausalLM
from ematrace.spen.stream_files import StreamState

PARALLEL_STEPS = 2048
"""Tokens of a long text that go through the model at once."""
SCORED_STEPS = 256
"""Tokens whose logits are held at once while surprise is measured."""
DECODED_STEPS = {"cpu": 1, "cuda": 32}
"""Longest part that goes through a decoder rather than through the model in parallel.

A pass of the 130M model keeps a GPU waiting for the CPU that launches its kernels, 9 to 12 ms whatever the length; a
step of the decoder takes 0.16 ms for one stream and 0.5 ms for 64. On a CPU both are bound by reading the weights,
which a pass over two tokens does once.
"""


@dataclass
class Surprise:
    """What a stream made of some tokens.

    >>> model = SpenForCausalLM(SpenConfig(vocab_size=32, d_model=16, d_ff=32, n_layers=2, k=4))
    >>> surprise = SpenStream(model, pghu=PGHU(), decoder=None).surprise([3, 1, 4])
    >>> surprise.nats.isnan().tolist()  # nothing was there to predict the first token
    [[True, False, False]]
    >>> surprise.uncertainty.shape, surprise.predicted.shape
    (torch.Size([1, 3]), torch.Size([1, 32]))
    """

    nats: Tensor
    """[B, T] -log p of each token given all before it; NaN for a token that nothing was there to predict."""
    uncertainty: Tensor | None
    """[B, T] U_t = mean(1 / pi) over dimensions and blocks, after the token; only with PGHU."""
    predicted: Tensor
    """[B, vocabulary] logits of the token that comes next."""


class SpenStream:
    """A SPEN that reads on. State per block: the traces, O(d); with PGHU also the fast weights, O(d^2).

    decoder  "auto": `step` goes through `decode.build_decoder(model)` where that applies (static predictor, no PGHU, no
             layer replaced or hooked), and so do short parts in `feed` and `surprise`. None: the model itself, always.
             Or a decoder that you have built.

    A decoder and the model differ by rounding; on a GPU the decoder's weights are bfloat16. It keeps the weights that
    the model had when it was built, at the first step; after a change of weights, call `reset`.

    >>> from ematrace.spen import SpenConfig
    >>> model = SpenForCausalLM(SpenConfig(vocab_size=32, d_model=16, d_ff=32, n_layers=2, n_heads=2, k=4))
    >>> stream = SpenStream(model, decoder=None)
    >>> logits = stream.feed([3, 1, 4])[:, -1]
    >>> stream.step(logits.argmax(-1)).shape
    torch.Size([1, 32])
    >>> stream.state_bytes()  # 2 blocks x 3 traces x 16 channels x 4 bytes, however long the text
    384
    """

    def __init__(
        self, model: SpenForCausalLM, pghu: PGHU | None = None, decoder: Decoder | Literal["auto"] | None = "auto"
    ) -> None:
        if pghu is not None and model.config.predictor != "static":
            raise ValueError(f"PGHU adapts the static predictor; this model's is {model.config.predictor!r}")
        self.model = model.eval()
        self.pghu = pghu
        self.decoder: Decoder | None = None
        self._automatic = isinstance(decoder, str)
        if isinstance(decoder, str):
            if decoder != "auto":
                raise ValueError(f"decoder is {decoder!r}; it must be 'auto', None or a Decoder")
        elif decoder is not None:
            obstacle = obstacle_to_decoding(model)
            if obstacle is not None:
                raise ValueError(obstacle)
            if pghu is not None:
                raise ValueError("pghu and decoder exclude each other: a decoder's weights do not adapt")
            self.decoder = decoder
        self._chosen_for: int | None = None
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self.cache = MixerCache.empty(self.model.config.n_layers)
        self.fast_weights: list[FastWeights] = []
        self.predicted: Tensor | None = None
        self._decoding: tuple[MixerCache, Tensor] | None = None
        self._chosen_for = None  # weights may have changed, layers may have been hooked

    def snapshot(self) -> StreamState:
        """The state as it is now. Reading on makes new tensors and leaves these alone, so nothing is copied."""
        self._decoding = None  # a decoder works in place: its next step begins with a copy
        cache = MixerCache(list(self.cache.blocks), self.cache.seen_tokens)
        return StreamState(cache, list(self.fast_weights), self.predicted)

    def restore(self, state: StreamState) -> None:
        self.cache = MixerCache(list(state.cache.blocks), state.cache.seen_tokens)
        self.fast_weights, self.predicted = list(state.fast_weights), state.predicted

    @torch.no_grad()
    def step(self, ids: Tensor | list[int] | int) -> Tensor:
        """One token for each of B streams, ids [B] (or a number); returns the logits of the next, [B, vocabulary]."""
        ids = self._as_batch(torch.as_tensor(ids).reshape(-1, 1))
        self._check_streams(ids)
        decoder = self._decoder_for(ids)
        logits = self._read(ids)[0][:, -1] if decoder is None else self._decode(decoder, ids[:, 0])
        self.predicted = logits.clone()  # the caller's may be changed in place
        return logits

    @torch.no_grad()
    def feed(self, ids: Tensor | list[int], keep: int = 0) -> Tensor:
        """Many tokens, ids [B, T] or [T], in parallel unless PGHU makes each depend on the last.

        Returns logits [B, T, vocabulary], or only those of the last `keep` tokens: a long prompt needs just one.
        """
        ids = self._as_batch(ids)
        wanted = keep or ids.shape[1]
        parts = list(ids.split(PARALLEL_STEPS, 1))
        after = [sum(part.shape[1] for part in parts[i + 1 :]) for i in range(len(parts))]
        logits = [self._read(part, max(wanted - later, 0))[0] for part, later in zip(parts, after, strict=True)]
        self.predicted = logits[-1][:, -1].clone()  # a view would keep all of them in memory
        return torch.cat(logits, 1)

    @torch.no_grad()
    def surprise(self, ids: Tensor | list[int], predicted: Tensor | None = None) -> Surprise:
        """Read ids [B, T] or [T] and say how surprising each was; never holds the logits of more than a few hundred.

        `predicted` are the logits of the first token, by default those after the last token that the stream read. In a
        new stream there are none, and the first surprise is nan; `ematrace stream` feeds an end-of-text token before.
        """
        ids = self._as_batch(ids)
        predicted = self.predicted if predicted is None else predicted
        nats, uncertainty = [], []
        for part in ids.split(SCORED_STEPS, 1):
            logits, part_uncertainty = self._read(part)
            before = torch.full_like(logits[:, 0], torch.nan) if predicted is None else predicted
            scored = torch.cat([before.unsqueeze(1).to(logits), logits[:, :-1]], 1)
            nats.append(-F.log_softmax(scored.double(), -1).gather(-1, part.unsqueeze(-1)).squeeze(-1))
            self.predicted = predicted = logits[:, -1].clone()
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
        return stream_files.save_state(path, self.model, self.pghu, self.snapshot())

    def load(self, path: str | Path) -> SpenStream:
        """Continue where the saved stream stopped. The file must come from this very model and PGHU setting."""
        self.restore(stream_files.load_state(path, self.model, self.pghu))
        return self

    def _as_batch(self, ids: Tensor | list[int]) -> Tensor:
        ids = torch.as_tensor(ids)
        if ids.ndim == 1:
            ids = ids.unsqueeze(0)
        if ids.ndim != 2 or not ids.numel():
            raise ValueError(f"a stream takes ids [batch, time] with at least one token, got {tuple(ids.shape)}")
        if ids.device.type == "cpu":  # on a GPU, where they would have to be waited for, nobody looks at them
            check_ids(ids, self.model.config.vocab_size)
        return ids.to(self.model.device)

    def _check_streams(self, ids: Tensor) -> None:
        held = next((len(state[0]) for state in self.cache.blocks if state is not None), len(ids))
        if len(ids) != held:
            raise ValueError(f"this stream carries {held} sequences, got ids for {len(ids)}")

    def _read(self, ids: Tensor, keep: int | None = None) -> tuple[Tensor, Tensor | None]:
        """Read ids [B, T]: logits of the last `keep` of them (default: all) and, with PGHU, uncertainty [B, T]."""
        self._check_streams(ids)
        keep = ids.shape[1] if keep is None else keep
        decoder = self._decoder_for(ids)
        if decoder is not None:
            decoded = torch.stack([self._decode(decoder, token) for token in ids.T.contiguous()], 1)
            return decoded[:, decoded.shape[1] - keep :], None
        if self.pghu is not None:
            adapted = [self._adapt(self.pghu, token) for token in ids.split(1, 1)]
            hidden, uncertainty = (torch.cat(parts, 1) for parts in zip(*adapted, strict=True))
        else:
            output = self.model.model(ids, past_key_values=self.cache, use_cache=True)
            self.cache, hidden, uncertainty = output.past_key_values, output.last_hidden_state, None
        logits: Tensor = self.model.lm_head(hidden[:, hidden.shape[1] - keep :])
        return logits, uncertainty

    def _decoder_for(self, ids: Tensor) -> Decoder | None:
        """The decoder to read ids [B, T] with, or None for the model itself."""
        n_streams, n_steps = ids.shape
        if n_steps > DECODED_STEPS.get(ids.device.type, 1):
            return None
        if self._automatic and self.pghu is None:
            known = self._chosen_for == n_streams
            if not known:
                self.decoder = applicable_decoder(self.model, n_streams)
                self._chosen_for = n_streams
        return self.decoder

    def _decode(self, decoder: Decoder, ids: Tensor) -> Tensor:
        """A token through a decoder. While it runs, the blocks of the cache are views of the tensor it updates."""
        if decoder.n_streams not in (None, len(ids)):
            raise ValueError(f"this decoder was built for {decoder.n_streams} streams, got ids for {len(ids)}")
        if self._decoding is None or self._decoding[0] is not self.cache:  # begun, fed, restored or loaded since
            config = self.model.config
            size = (len(ids), len(config.alphas), config.d_model)
            traces = [ids.new_zeros(size) if state is None else state[0] for state in self.cache.blocks]
            state = torch.stack([t.float().transpose(0, 1) for t in traces])  # [n_layers, A, B, D]
            self.cache = MixerCache([(t.transpose(0, 1),) for t in state], self.cache.seen_tokens)
            self._decoding = self.cache, state
        logits = decoder.step(ids, self._decoding[1])
        self.cache.seen_tokens += 1
        return logits.clone() if logits.is_cuda else logits  # decoders of a GPU write to the same place again

    def _adapt(self, rule: PGHU, ids: Tensor) -> tuple[Tensor, Tensor]:
        """One token through all blocks, each of which predicts with its fast weights and then updates them.

        Returns hidden states [B, 1, D] and uncertainty [B, 1].
        """
        backbone = self.model.model
        blocks = [cast(SpenBlock, block) for block in backbone.layers]
        bases = [block.mixer.static_predictor.W_pred.weight for block in blocks]
        if not self.fast_weights:
            self.fast_weights = [FastWeights.fresh(rule, W_base, len(ids)) for W_base in bases]
        x = backbone.embed_tokens(ids)
        for i, (block, W_base) in enumerate(zip(blocks, bases, strict=True)):
            predictor = FastPredictor(rule, W_base, self.fast_weights[i])
            x, _, self.cache.blocks[i] = block.algorithm1(x, self.cache.blocks[i], predictor)
            self.fast_weights[i] = predictor.weights
        self.cache.seen_tokens += 1
        uncertainty = torch.stack([weights.uncertainty(rule) for weights in self.fast_weights]).mean(0)
        return backbone.norm(x), uncertainty.unsqueeze(1)
