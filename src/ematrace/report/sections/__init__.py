"""The sections of the page, in order.

A section says what is asked and how to read the answer, never what the answer is: that is for the numbers.
"""

from __future__ import annotations

from ematrace.report.sections import (
    accuracy,
    choices,
    content,
    faults,
    gap_controls,
    robustness,
    roles,
    spen,
    supervised,
    trace_tokens,
)
from ematrace.report.sections.base import Section, about
from ematrace.report.sections.gap import gap_parts

ROLE_METRICS = ("role_within", "role_transfer")

SECTIONS = (
    Section(
        "gap",
        "What the gap between SPEN and a transformer is made of",
        "SPEN's block differs from GPT-2's in more than its context. Here one thing is changed at a time, from one to "
        "the other; every model has as many parameters, sees the same text in the same order and has its own learning "
        "rate. docs/analysis-plan.md was written before any of it ran.",
        ("gap", "gap_sizes", "gap_second"),
        gap_parts,
        about("gap", "gap_sizes", "gap_130m"),
    ),
    Section(
        "gap-predictors",
        "Predictors in SPEN's block",
        "The paper's ablation, after its 500 steps and after the whole budget, with Algorithm 1's gradient, with the "
        "true one and with a dense layer. A model that is no better than the unigram has learned nothing that a "
        "predictor could use.",
        ("gap_predictors", "gap_predictions"),
        gap_controls.predictors,
        about("gap_predictors"),
    ),
    Section(
        "gap-made-pairs",
        "Recall in made-up text",
        "In every window each symbol has a successor of its own, so that recall is all there is, and the best loss is "
        "known. Recalled is the share of what can be gained over counting the symbols of the window, on symbols after "
        "one that was there before.",
        ("gap_made_pairs",),
        gap_controls.made_text,
    ),
    Section(
        "gap-sparsity",
        "Units kept, and the straight-through gradient",
        "How many units the top-k keeps, how evenly they are used, and how the straight-through gradient stands to the "
        "true one at the same weights on the same text.",
        (
            *("gap_sparsity", "gap_units", "gap_kept", "gap_halves", "gap_halves_2m", "gap_start", "gap_first_steps"),
            *("gap_straight_through", "gap_all_units"),
        ),
        gap_controls.sparsity,
    ),
    Section(
        "representations",
        "Which representation carries roles",
        "A ridge probe reads the grammatical role of each word from the activation of the lowest level, from the "
        "traces, and from both. The BiGRU is trained on the labels.",
        ("trace_probe", "controls", "supervised"),
        accuracy.representations,
        about("trace_probe", "supervised", metrics=("within", "transfer", "deep")),
    ),
    Section(
        "controls",
        "Controls",
        "What the same probe reads without the network or with parts of it switched off, and the BiGRU under three "
        "codings of unseen words. The first of them to ask for, the EMA of one-hot words, is repeated in the tables "
        "of the other sections.",
        ("controls", "supervised"),
        accuracy.controls,
    ),
    Section(
        "dimension",
        "Not dimensionality",
        "Traces have twice the dimensions of the activation. Here Gaussian projections bring them down to as many, "
        "and to half as many.",
        ("dimension_control", "controls"),
        accuracy.dimension,
        about("dimension_control"),
    ),
    Section(
        "roles",
        "Against supervision, role by role",
        "Accuracy on grammar B, whose content words were never seen, for each role. The paper does not say how its "
        "BiGRU codes unseen words; three codings stand side by side. A star marks the roles that the paper reports.",
        ("trace_probe", "supervised"),
        roles.by_role,
        about("trace_probe", "supervised", metrics=ROLE_METRICS),
    ),
    Section(
        "ablations",
        "Ablations and levels",
        "Accuracy without parts of the network, and from the traces of higher levels.",
        ("ablations", "controls"),
        accuracy.ablations,
        about("ablations"),
    ),
    Section(
        "rules",
        "Learning the feed-forward weights",
        "Four Hebbian rules against frozen random weights. A participation ratio of 1 is a collapse to one dimension.",
        ("feedforward_rules", "controls"),
        accuracy.rules,
        about("feedforward_rules"),
    ),
    Section(
        "lag",
        "What the trace keeps of words",
        "The word k steps back, read from a trace by a linear probe, and by peeling: subtracting one word after "
        "another with known codes. The control peels traces of one-hot words. The dashed line is the accuracy on the "
        "role of the current word.",
        ("lag_decoding",),
        content.lag_decoding,
        about("lag_decoding"),
    ),
    Section(
        "trace-tokens",
        "What the trace keeps of tokens, in trained language models",
        "The token k steps back, read from traces, from their sequence, and from a transformer's states, by readers "
        "trained for it. The gain is over a reader that knows the window's other tokens, but not their places. Each "
        "row says whether it reads one vector or a sequence.",
        ("trace_decoding",),
        trace_tokens.decoded_tokens,
        about("trace_decoding"),
    ),
    Section(
        "distances",
        "Distances",
        "Distortion of pairwise distances by the random projection alone and after the top-k: of words and of "
        "states of L0, which W_ff of L0 and L1 read, and of contexts, which none reads; beside the ε that the "
        "Johnson-Lindenstrauss lemma gives for this many points and dimensions.",
        ("distances",),
        content.distances,
        about("distances"),
    ),
    Section(
        "position",
        "Position",
        "The role of the first word of a sentence, and how well the position alone predicts roles.",
        ("position",),
        roles.position,
        about("position"),
    ),
    Section(
        "shortcuts",
        "Shortcuts",
        "Does the BiGRU read the word or its context? Content words with one of the two hidden, or the word exchanged: "
        "a shortcut from words to roles survives another word of the class, not a new one or one of another class.",
        ("shortcuts",),
        roles.shortcuts,
        about("shortcuts"),
    ),
    Section(
        "supervised-models",
        "Supervised models, strong and weak",
        "The paper gives neither the width of the BiGRU's embedding nor the coding of words that training never saw. "
        "Each model is trained on SPCN's sentences of the same seed, for 15 epochs or for the paper's 150.",
        ("supervised_models", "supervised_epochs"),
        supervised.supervised_models,
        about("supervised_models", "supervised_epochs"),
    ),
    Section(
        "network-by-k",
        "The network against an EMA of one-hot words, by k",
        'Both on the same sentences, seed by seed. "Same" means that two one-sided tests show a difference of less '
        "than .03, the ledger's tolerance; p-values are corrected by Holm over the rows of a table.",
        ("k_by_grammar",),
        supervised.network_by_k,
        about("k_by_grammar"),
    ),
    Section(
        "spread",
        "Seed spread",
        "A seed draws new sentences and new weights. The last column is the interval that the tokens of one run "
        "would give, which is the kind that the paper reports.",
        ("trace_probe", "controls", "supervised"),
        robustness.seed_spread,
    ),
    Section(
        "robustness",
        "Robustness over drawn grammars",
        "The same directions on randomly drawn grammars. A direction holds in a draw if it holds at point estimates. "
        "They differ in word order, templates, class sizes, words and shares, and have one k.",
        (),
        robustness.robustness,
    ),
    Section(
        "choices",
        "What our own choices matter",
        "The paper leaves much open. Here one choice at a time is made otherwise; docs/deviations.md says why each "
        "was made.",
        ("choices",),
        choices.choices,
        about("choices"),
    ),
    Section(
        "spen-training",
        "SPEN and a transformer of its size: speed",
        "Both trained by one loop on the same tokens, with the paper's batch on one GPU, each in a run of its own; "
        "commits and machines are below the tables. A step includes everything from the data to the optimiser.",
        ("spen_training",),
        spen.training,
        about("spen_training"),
    ),
    Section(
        "spen-130m",
        "SPEN and transformers of its size: loss",
        "Trained on the same tokens, or on as many as take the same FLOPs as SPEN. Every window of 2,048 tokens starts "
        "from nothing (reset), or the state is carried through the text; a transformer then reads overlapping windows. "
        "The loss of a pass over the training text is that of its last tenth (docs/training.md).",
        ("gap_130m",),
        spen.held_out,
        about("gap_130m"),
    ),
    Section(
        "spen-model",
        "SPEN streamed and in parallel",
        "A small SPEN trained on text that comes with Python, then run token by token and in parallel over held-out "
        "text. With top-k a unit that nearly ties can flip by rounding; blocks are compared on identical inputs.",
        ("spen_model",),
        spen.model,
        about("spen_model"),
    ),
    Section(
        "spen-streaming",
        "SPEN's speed token by token",
        "Greedy decoding on one GPU, SPEN-130M beside a GPT-2 of its size at a context of 1,024 tokens, each in CUDA "
        "graphs and bfloat16: one stream alone, and 1,024 together; and one sequence that is there as a whole.",
        ("spen_streaming", "spen_prefill"),
        spen.streaming,
        about("spen_streaming", "spen_prefill"),
    ),
)
FAULTS = Section(
    "experiment-faults",
    "What happens when things go wrong",
    "Faults made on purpose. A failure is a traceback, a hang, memory that grows, a refusal that does not name the "
    "file, a damaged file taken without a word, bytes that are lost, or a process that is left behind.",
    (faults.EXPERIMENT,),
    faults.faults,
)
"""Shown where it was recorded: no `ematrace reproduce` measures it."""

__all__ = ["FAULTS", "SECTIONS", "Section"]
