"""The text that arms of the gap are trained and scored on, in the tokens that all arms share."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from ematrace.baselines.language import Unigram
from ematrace.experiments.base import Context
from ematrace.experiments.recall import Ids, PairCounts, distance_to_last, pair_codes
from ematrace.files import write_atomically
from ematrace.text import PackedTokens, load_tokenizer, open_source, pack, train_bpe
from ematrace.text.held_out import choose_held_out
from ematrace.text.packing import cache_folder
from ematrace.train.checkpoints import write_folder
from ematrace.train.data import is_streamed

GPT2_ENTRIES = 50_257  # of its tokenizer; a vocabulary of any other size is trained on the text
COUNTED_AT_ONCE = 2**22


def tokenizer_folder(data: str, vocab_size: int) -> Path:
    """A BPE of the training text, trained once on a machine; GPT-2's where its number of entries is asked for."""
    gpt2 = vocab_size == GPT2_ENTRIES
    key = "gpt2" if gpt2 else json.dumps([open_source(data).identity(), vocab_size], sort_keys=True)
    folder = cache_folder() / "tokenizers" / hashlib.sha256(key.encode()).hexdigest()[:32]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_suffix(".lock")):
        if not folder.is_dir():
            made = load_tokenizer("gpt2") if gpt2 else train_bpe(open_source(data), vocab_size)
            write_folder(folder, lambda part: made.save_pretrained(part))
    return folder


def text_to_score(ctx: Context, source: str | None, tokenizer: Path) -> ScoredText:
    """Windows of a text; None is what training holds out of its own."""
    settings = ctx.settings
    trained_on = _trained_on(settings)
    return scored_text(str(ctx.data), trained_on, source, str(tokenizer), settings["length"], settings["windows"])


def text_of_training(ctx: Context, tokenizer: Path) -> PackedTokens:
    return training_text(str(ctx.data), _trained_on(ctx.settings), str(tokenizer))


def _trained_on(settings: Mapping[str, Any]) -> Literal["train", "all"]:
    return "train" if settings["validation"] is None else "all"


@dataclass(frozen=True)
class ScoredText:
    """Windows [N, T+1] of a text, and of each target how far back its pair occurred and how often in training."""

    windows: Ids
    distance: Ids
    count: Ids
    unigram: NDArray[np.float64]
    """Nats of a model that knows the training text's token counts alone."""

    def every_second(self) -> ScoredText:
        """Beginning with the second window."""
        return ScoredText(self.windows[1::2], self.distance[1::2], self.count[1::2], self.unigram[1::2])


@cache
def scored_text(
    data: str, trained_on: Literal["train", "all"], source: str | None, tokenizer: str, length: int, most: int
) -> ScoredText:
    """At most that many windows of `source`, evenly spaced; None is what training holds out of `data`.

    Counts are those of the split `trained_on` of `data`.
    """
    train = training_text(data, trained_on, tokenizer)
    text = pack(source, load_tokenizer(tokenizer)) if source else training_text(data, "validation", tokenizer)
    available = text.n_windows(length)
    chosen = np.unique(np.linspace(0, available - 1, min(most, available)).round().astype(int))
    windows = text.windows(chosen, length)
    codes = pair_codes(windows, text.vocab_size)
    unigram = -Unigram(train.counts()).log_probs[windows[:, 1:]]
    return ScoredText(windows, distance_to_last(codes), pairs_in(train).look_up(codes), unigram)


def pairs_in(text: PackedTokens) -> PairCounts:
    """Counted once on a machine, and kept in the cache."""
    path = cache_folder() / "pairs" / f"{text.fingerprint[:32]}.npz"
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_suffix(".lock")):  # of several processes that want them, one counts
        if (kept := _kept_pairs(path)) is not None and kept.counts.sum() == text.n_tokens - 1:
            return kept
        pairs = PairCounts.of(stretches(text), text.vocab_size)
        file = BytesIO()
        np.savez(file, **pairs._asdict())
        with suppress(OSError):  # a full disk is no reason to lose what was trained
            write_atomically(path, file.getvalue())
    return pairs


def _kept_pairs(path: Path) -> PairCounts | None:
    """What the file holds; None where there is none, or it is damaged: the arrays of an .npz have checksums."""
    try:
        with np.load(path) as file:
            return PairCounts(file["codes"], file["counts"])
    except Exception:  # which one depends on where the damage is; pairs can be counted again
        return None


def training_text(data: str, split: Literal["train", "all", "validation"], tokenizer: str) -> PackedTokens:
    """`all` where the validation text is another one; else the parts that training makes of its text."""
    source = open_source(data)
    if split != "all" and not is_streamed(data):
        choose_held_out(source).apply(source)  # as training does
    return pack(source, load_tokenizer(tokenizer), split=split)


def stretches(tokens: PackedTokens) -> Iterator[Ids]:
    """All tokens, in parts that overlap by one, so that no pair is lost."""
    for start in range(0, tokens.n_tokens - 1, COUNTED_AT_ONCE):
        yield tokens.tokens(start, min(start + COUNTED_AT_ONCE + 1, tokens.n_tokens))
