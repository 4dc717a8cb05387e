"""The lowest perplexity that a model without context can have on a text: that of the text's own token counts (C24).

No other shares of the tokens do better on the same tokens, whatever text they were counted on. It grows with the length
of the text, because a short one does not need most of the vocabulary.

    ematrace reproduce unigram_floor --data wiki.valid.raw.xz --settings texts.c4=c4_sample.jsonl.xz
"""

from __future__ import annotations

import numpy as np

from ematrace.experiments.base import Context, Experiment, factorial, perplexity
from ematrace.experiments.recall import Ids
from ematrace.results import Metric, Row
from ematrace.text import load_tokenizer, open_source, pack, train_bpe

LENGTHS = (12_500, 25_000, 50_000, 100_000)


def measure(ctx: Context) -> list[Row]:
    tokenizer = train_bpe(open_source("builtin")) if ctx.data == "builtin" else load_tokenizer("gpt2")
    rows = []
    for name, source in {ctx.settings["name"]: str(ctx.data), **ctx.settings["texts"]}.items():
        packed = pack(source, tokenizer)
        tokens = packed.tokens(0, packed.n_tokens)
        rows.append(Row({"text": name}, {"own_counts_perplexity": own_counts_perplexity(tokens)}))
        for first in [length for length in LENGTHS if length < len(tokens)]:
            metrics = {"own_counts_perplexity": own_counts_perplexity(tokens[:first])}
            rows.append(Row({"text": name, "first_tokens": first}, metrics))
    return rows


def own_counts_perplexity(tokens: Ids) -> Metric:
    """exp of the entropy of the shares of the tokens.

    >>> own_counts_perplexity(np.array([0, 1, 2, 3] * 5)).value
    4.0
    """
    counts = np.bincount(tokens)
    shares = counts[counts > 0] / len(tokens)
    return perplexity(float(np.exp(-shares @ np.log(shares))), len(tokens))


EXPERIMENT = Experiment(
    "unigram_floor",
    "The best that token counts can do",
    grid=factorial(),
    measure=measure,
    data="builtin",
    settings={"name": "data", "texts": {}},  # of `data`; name: source of others
    seconds=10,
)
