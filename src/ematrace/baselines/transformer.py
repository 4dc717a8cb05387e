"""A small transformer encoder as a tagger: another supervised model beside the BiGRU, trained in the same way."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ematrace.baselines.bigru import BiGRUSettings, BiGRUTagger, Network

LONGEST = 64  # words of a sentence


@dataclass(frozen=True)
class TransformerSettings(BiGRUSettings):
    """`embedding` is the width of all layers, `hidden` that of their feed-forward part.

    >>> TransformerSettings(layers=1).embedding
    64
    """

    layers: int = 2
    heads: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.one_hot:
            raise ValueError("one_hot: a transformer encoder adds positions to an embedding")
        if self.layers < 1 or self.heads < 1 or self.embedding % self.heads:
            raise ValueError(f"heads must divide embedding {self.embedding}, got {self.heads} in {self.layers} layers")


class TransformerNetwork(nn.Module):
    """word and position -> embedding -> pre-norm encoder layers -> linear readout of roles."""

    def __init__(self, n_words: int, n_roles: int, settings: TransformerSettings) -> None:
        super().__init__()
        width = settings.embedding
        self.embedding = nn.Embedding(n_words, width)
        self.position = nn.Embedding(LONGEST, width)
        # Dropout is applied to the states, as in the BiGRU: it has a generator of its own there.
        layer = nn.TransformerEncoderLayer(width, settings.heads, settings.hidden, dropout=0.0, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, settings.layers, nn.LayerNorm(width), enable_nested_tensor=False)
        self.readout = nn.Linear(width, n_roles)

    def states(self, ids_TB: Tensor, embedding_VE: Tensor) -> Tensor:
        """[T, B, width]"""
        if len(ids_TB) > LONGEST:
            raise ValueError(f"a sentence has {len(ids_TB)} words, and positions end at {LONGEST}")
        place = self.position(torch.arange(len(ids_TB), device=ids_TB.device))
        states: Tensor = self.encoder(F.embedding(ids_TB, embedding_VE) + place.unsqueeze(1))
        return states


class TransformerTagger(BiGRUTagger):
    """As `BiGRUTagger`, with an encoder that attends to all words at once.

    >>> from ematrace.grammar import load_grammar
    >>> grammar = load_grammar("A")
    >>> sentences = grammar.sample(40, seed=0)
    >>> words, roles = [s.words for s in sentences], [s.roles for s in sentences]
    >>> settings = TransformerSettings(hidden=32, embedding=32, layers=1, epochs=20, lr=0.02, batch_size=8)
    >>> tagger = TransformerTagger(settings).fit(words, roles, grammar.words)
    >>> tagger.predict([["the", "cat", "sleeps"]])
    [('det_agent', 'noun_agent', 'verb_intrans')]
    """

    settings: TransformerSettings

    def __init__(self, settings: TransformerSettings | None = None, random_state: int = 0) -> None:
        super().__init__(settings or TransformerSettings(), random_state)

    def _network(self, n_words: int, n_roles: int) -> Network:
        return TransformerNetwork(n_words, n_roles, self.settings)
