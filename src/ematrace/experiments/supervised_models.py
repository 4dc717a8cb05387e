"""The supervised model as strong and as weak as it can be made: how words are coded, seen and unseen (C07 to C12).

The paper gives neither the embedding nor the coding of words that training never saw. Each combination is trained on
the sentences that SPCN has on the same seed, for fewer epochs than the paper's: after 15 the loss is below .003 nats.
`supervised_epochs` trains the GRUs for all 150.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from ematrace.baselines.bigru import BiGRUSettings, BiGRUTagger
from ematrace.baselines.transformer import TransformerSettings, TransformerTagger
from ematrace.experiments.base import Context, Experiment, Point, cross_entropy, number
from ematrace.experiments.grammar_task import (
    GRAMMAR,
    GrammarTask,
    Sizes,
    follow_from,
    grammar_pair,
    words_of,
)
from ematrace.experiments.supervised import UNSEEN, judge_tagger
from ematrace.results import Row

ONE_HOT = "onehot"
EMBEDDINGS: tuple[int | str, ...] = (64, 128, 256, ONE_HOT)
WORD_DROPOUT = (0.0, 0.1)
MODELS = (*(("gru", embedding) for embedding in EMBEDDINGS), ("transformer", 64))


def points(scale: str, seeds: int) -> Iterable[Point]:
    for seed in range(seeds):
        for model, embedding in MODELS:
            for dropout in WORD_DROPOUT:
                factors = {"grammar": GRAMMAR, "model": model, "embedding": embedding, "word_dropout": dropout}
                yield Point(factors, seed)


def measure(ctx: Context, grammar: str, model: str, embedding: int | str, word_dropout: float) -> list[Row]:
    """Unseen words also as the unknown word, where word dropout trained it."""
    task = GrammarTask(ctx.seed, grammar_pair(grammar, ctx.seed), sizes=Sizes(**ctx.settings["sentences"]))
    tagger = make_tagger(task.seed, model, embedding, epochs=ctx.settings["epochs"], word_dropout=word_dropout)
    tagger.fit(
        words_of(task.train),
        [s.roles for s in task.train],
        vocabulary=task.vocabulary,
        progress=lambda epoch, epochs, loss: ctx.progress(epoch / epochs),
    )
    parameters = sum(p.numel() for p in tagger.network_.parameters() if p.requires_grad)
    trained = {
        "train_nats": cross_entropy(tagger.history_[-1].loss),
        "parameters": number(parameters, unit="parameters"),
    }
    return [Row({}, trained), *judge_tagger(task, tagger, (*UNSEEN, "unk") if word_dropout else UNSEEN)]


def make_tagger(seed: int, model: str, embedding: int | str, **settings: Any) -> BiGRUTagger:
    width: dict[str, Any] = {"one_hot": True} if embedding == ONE_HOT else {"embedding": embedding}
    if model == "transformer":
        return TransformerTagger(TransformerSettings(**width, **settings), random_state=seed)
    return BiGRUTagger(BiGRUSettings(**width, **settings), random_state=seed)


EXPERIMENT = Experiment(
    "supervised_models",
    "Supervised models, strong and weak",
    grid=points,
    measure=measure,
    # `sentences` as in every other grammar experiment: it says which results have the same ones.
    settings={"sentences": asdict(Sizes()), "epochs": 15},
    derived=follow_from,
    seconds=18,
)
