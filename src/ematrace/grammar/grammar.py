"""Grammars: word classes, templates of slots, and the sampler."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

_BLOCK = 4096  # sentences per block of random numbers; bounds memory, does not change what is drawn


@dataclass(frozen=True, slots=True)
class Sentence:
    """Words with one role each, and the name of the structure that made them.

    >>> sentence = load_grammar("A").sample(1, seed=0)[0]
    >>> sentence.structure, " ".join(sentence.words)
    ('intransitive', 'the big tiger sleeps')
    >>> sentence.roles
    ('det_agent', 'adj_agent', 'noun_agent', 'verb_intrans')
    """

    words: tuple[str, ...]
    roles: tuple[str, ...]
    structure: str

    def __post_init__(self) -> None:
        if len(self.words) != len(self.roles):
            raise ValueError(f"a sentence of {len(self.words)} words has {len(self.roles)} roles")


@dataclass(frozen=True, slots=True)
class Slot:
    """One position of a template: its role, and the class of its word."""

    role: str
    word_class: str
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Variant:
    """One template of a structure, used with probability `weight` within it."""

    name: str
    weight: float
    slots: tuple[Slot, ...]


@dataclass(frozen=True, slots=True)
class Structure:
    """A sentence structure, used with probability `share`; variant weights sum to 1."""

    name: str
    share: float
    variants: tuple[Variant, ...]


@dataclass(frozen=True)
class Grammar:
    """One side of a grammar file; make it with `load_grammar` or `draw_full_grammar_pair`.

    >>> from ematrace.grammar import load_grammar
    >>> grammar = load_grammar("A")
    >>> len(grammar.words), len(grammar.roles), grammar.word_class["cat"]
    (77, 20, 'noun')
    """

    name: str
    file: str
    roles: tuple[str, ...] = field(repr=False)
    deep_roles: tuple[str, ...] = field(repr=False)
    function_classes: dict[str, tuple[str, ...]] = field(repr=False, hash=False)
    content_classes: dict[str, tuple[str, ...]] = field(repr=False, hash=False)
    structures: tuple[Structure, ...] = field(repr=False)
    adjective_rate: float
    noun_bias: float
    biased_class: str = field(repr=False)
    first_half_roles: tuple[str, ...] = field(repr=False)
    drawn_seed: int | None = None
    word_order: str | None = None
    """Of a grammar whose templates and words were drawn, too."""

    @cached_property
    def function_words(self) -> tuple[str, ...]:
        return _unique(self.function_classes)

    @cached_property
    def content_words(self) -> tuple[str, ...]:
        return _unique(self.content_classes)

    @property
    def words(self) -> tuple[str, ...]:
        """This side's vocabulary: the shared function words, then its own content words, in file order."""
        return self.function_words + self.content_words

    @cached_property
    def word_class(self) -> dict[str, str]:
        """The class of each word; an ambiguous word has the first of its classes."""
        classes: dict[str, str] = {}
        for name, words in (self.function_classes | self.content_classes).items():
            for word in words:
                classes.setdefault(word, name)
        return classes

    @property
    def settings(self) -> dict[str, Any]:
        """The parameters of the sampler as JSON-serialisable data, with templates and class sizes if drawn."""
        settings: dict[str, Any] = {
            "file": self.file,
            "drawn_seed": self.drawn_seed,
            "shares": {s.name: s.share for s in self.structures},
            "variant_weights": {
                s.name: {v.name: v.weight for v in s.variants} for s in self.structures if len(s.variants) > 1
            },
            "adjective_rate": self.adjective_rate,
            "noun_bias": self.noun_bias,
        }
        if self.word_order is not None:
            variants = {f"{s.name}.{v.name}": v.slots for s in self.structures for v in s.variants}
            classes = self.function_classes | self.content_classes
            settings |= {
                "word_order": self.word_order,
                "templates": {
                    name: " ".join(f"{slot.role}{'?' * slot.optional}" for slot in slots)
                    for name, slots in variants.items()
                },
                "class_sizes": {name: len(words) for name, words in classes.items()},
            }
        return settings

    def sample(self, n: int, seed: int) -> list[Sentence]:
        """Draw `n` sentences, the same ones for the same grammar and seed on every machine.

        The random stream is keyed by the seed and the side's name, so A and B with one seed are independent.
        A longer sample begins with the shorter one: held-out sentences need another seed, not a larger `n`.
        """
        n, seed = non_negative_int(n, "n"), non_negative_int(seed, "seed")
        key = zlib.crc32(self.name.encode())
        rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(key,)))
        variants = [(structure.name, variant) for structure in self.structures for variant in structure.variants]
        plans = [(name, [(slot, *self._pools(slot)) for slot in variant.slots]) for name, variant in variants]
        edges = np.cumsum([s.share * v.weight for s in self.structures for v in s.variants])
        edges /= edges[-1]
        # Every sentence uses equally many random numbers: one for its template, three for each possible slot.
        width = 1 + 3 * max(len(plan) for _, plan in plans)

        sentences: list[Sentence] = []
        for start in range(0, n, _BLOCK):
            u = rng.random((min(_BLOCK, n - start), width))
            templates = np.searchsorted(edges, u[:, 0], side="right").tolist()
            for template, row in zip(templates, u.tolist(), strict=True):
                structure, plan = plans[template]
                words, roles = [], []
                for (slot, pool, other), i in zip(plan, range(1, width, 3), strict=False):
                    if slot.optional and row[i] >= self.adjective_rate:
                        continue
                    if row[i + 1] >= self.noun_bias:
                        pool = other
                    words.append(pool[int(row[i + 2] * len(pool))])
                    roles.append(slot.role)
                sentences.append(Sentence(tuple(words), tuple(roles), structure))
        return sentences

    def _pools(self, slot: Slot) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The preferred words of a slot, and the others; the same words twice if the class has no bias."""
        words = (self.function_classes | self.content_classes)[slot.word_class]
        if slot.word_class != self.biased_class:
            return words, words
        first, second = words[: (len(words) + 1) // 2], words[len(words) // 2 :]
        return (first, second) if slot.role in self.first_half_roles else (second, first)


def position_shares(sentences: Iterable[Sentence], position: int = 0) -> dict[str, float]:
    """Share of each role at `position`, over the sentences that are long enough; most common first.

    >>> sentences = load_grammar("A").sample(1000, seed=0)
    >>> {role: round(share, 2) for role, share in position_shares(sentences, position=0).items()}
    {'det_agent': 0.74, 'det_patient': 0.26}
    """
    position = non_negative_int(position, "position")
    counts = Counter(s.roles[position] for s in sentences if len(s.roles) > position)
    return {role: count / counts.total() for role, count in counts.most_common()}


def non_negative_int(value: object, name: str) -> int:
    """`value` as an int, or a ValueError that names it; numpy integers pass, booleans and floats do not."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 0:
        raise ValueError(f"{name} must be a non-negative integer, not {value!r}")
    return int(value)


def _unique(classes: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(word for words in classes.values() for word in words))
