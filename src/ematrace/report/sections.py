"""The sections of the page, in order.

A section says what is asked and how to read the answer, never what the answer is: that is for the figures.
"""

from __future__ import annotations

from ematrace.report import spcn_sections, spen_sections
from ematrace.report.section import Section

NO_CLAIM = r"(?!)"  # matches nothing

SECTIONS = (
    Section(
        "representations",
        "Which representation carries roles",
        "A ridge probe reads the grammatical role of each word from the activation of the lowest level, from the "
        "traces, and from both. The controls are read by the same probe; the BiGRU is trained on the labels.",
        r"(trace_probe|supervised)/[^.]+\.(within|transfer|deep)$",
        ("trace_probe", "controls", "supervised"),
        spcn_sections.representations,
    ),
    Section(
        "dimension",
        "Not dimensionality",
        "Traces have twice the dimensions of the activation. Here Gaussian projections bring them down to as many, "
        "and to half as many.",
        "dimension_control/",
        ("dimension_control", "controls", "supervised"),
        spcn_sections.dimension,
    ),
    Section(
        "roles",
        "Against supervision, role by role",
        "Accuracy on grammar B, whose content words were never seen, for each role. The paper does not say how its "
        "BiGRU codes unseen words; three codings stand side by side. A star marks the roles that the paper reports.",
        r".*\.transfer\.role\.",
        ("trace_probe", "supervised"),
        spcn_sections.by_role,
    ),
    Section(
        "ablations",
        "Ablations and levels",
        "What is left when parts of the network are taken away, and what the traces of higher levels carry.",
        "ablations/",
        ("ablations", "controls", "supervised"),
        spcn_sections.ablations,
    ),
    Section(
        "rules",
        "Learning the feed-forward weights",
        "Four Hebbian rules against frozen random weights. A participation ratio of 1 is a collapse to one dimension.",
        "feedforward_rules/",
        ("feedforward_rules", "controls", "supervised"),
        spcn_sections.rules,
    ),
    Section(
        "lag",
        "What the trace keeps of words",
        "The word k steps back, read from a trace by a linear probe, and by peeling: taking off one word after another "
        "with known codes. The control peels traces of one-hot words. The thick line is the accuracy on the role.",
        "lag_decoding/",
        ("lag_decoding",),
        spcn_sections.lag_decoding,
    ),
    Section(
        "distances",
        "Distances",
        "How far pairwise distances are from being kept, by the random projection alone and after the top-k, beside "
        "the ε that the Johnson-Lindenstrauss lemma gives for so many points in so many dimensions.",
        "distances/",
        ("distances",),
        spcn_sections.distances,
    ),
    Section(
        "position",
        "Position",
        "What the first word of a sentence is, and how much of the role the position alone tells.",
        "position/",
        ("position",),
        spcn_sections.position,
    ),
    Section(
        "shortcuts",
        "Shortcuts",
        "Does the BiGRU read the word or its context? Content words on which one of the two is hidden or exchanged.",
        "shortcuts/",
        ("shortcuts",),
        spcn_sections.shortcuts,
    ),
    Section(
        "spread",
        "Seed spread",
        "A seed draws new sentences and new weights. If tokens were all that varied, 95% of the ticks would lie in "
        "their grey band, which is the kind of interval that the paper reports.",
        NO_CLAIM,
        ("trace_probe", "controls", "supervised"),
        spcn_sections.seed_spread,
    ),
    Section(
        "robustness",
        "Robustness over drawn grammars",
        "The same directions on randomly drawn grammars: template shares, noun bias, adjective rate and object "
        "relatives differ in each. A direction holds in a draw if it holds at point estimates.",
        NO_CLAIM,
        ("robustness",),
        spcn_sections.robustness,
    ),
    Section(
        "spen-training",
        "SPEN and a transformer of its size",
        "Both trained by one loop on the same tokens, with the paper's batch on one GPU, each in a run of its own; "
        "commits and machines are below the tables. A step is everything from the data to the optimiser. Perplexity is "
        "on text that neither was trained on; so few tokens per parameter say little about where training ends.",
        "spen_training/",
        ("spen_training", "gpt2_training"),
        spen_sections.training,
    ),
    Section(
        "spen-model",
        "SPEN streamed and in parallel",
        "A small SPEN trained on text that comes with Python, then read both ways over held-out text. With top-k a "
        "unit that nearly ties can flip by rounding; blocks are compared on identical inputs.",
        "spen_model/",
        ("spen_model",),
        spen_sections.model,
    ),
)
