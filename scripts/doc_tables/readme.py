"""README.md: what the small scale finds, and how many claims have which verdict."""

from __future__ import annotations

from collections import Counter

from doc_tables.blocks import ACCURACIES, markdown, mean, select, table
from doc_tables.small_scale import SPCN
from ematrace.report.data import ReportData
from ematrace.report.formatting import number
from ematrace.results import Factors

SAID = {
    "reproduced": "{n} reproduced",
    "direction only": "{n} in direction only",
    "not reproduced": "{n} not reproduced",
    "undecided": "{n} undecided",
    "answered: yes": "{n} answered yes",
    "answered: no": "{n} answered no",
    "not testable here": "{n} not testable here",
    "open": "{n} open",
}


@table("readme-roles", "trace_probe", "controls", "supervised")
def roles(data: ReportData, _: str) -> str:
    read: tuple[tuple[str, str, Factors], ...] = (
        ("SPCN: activation", "trace_probe", {"representation": "l0"}),
        ("SPCN: activation and traces", *SPCN),
        ("the same network, nothing learned", "controls", {"features": "no_feedback"}),
        ("EMA of one-hot words, no network", "controls", {"features": "ema_onehot"}),
        ("BiGRU, trained on labels", "supervised", {"unseen": "untrained"}),
    )
    heads = ("roles are read from", "within the grammar", "on unseen words", "deep roles")
    return markdown(
        heads,
        ((label, *(mean(data.table, name, metric, where) for metric in ACCURACIES)) for label, name, where in read),
    )


@table("readme-nouns", "lag_decoding")
def nouns(data: ReportData, _: str) -> str:
    """At one, two and three words back."""

    def at(**where: str) -> list[str]:
        found = [select(data.table, "lag_decoding", "noun_accuracy", {**where, "lag": lag}) for lag in (1, 2, 3)]
        return ["–" if one is None else number(one.sample.mean) for one in found]

    read, guessed = at(reader="probe", trace="slow"), at(reader="role")
    return (
        "A linear probe of the slow trace that is told where a noun stood, one, two or three words back, names it in "
        f"{', '.join(read)} of cases; a guess that knows its role, in {', '.join(guessed)} (C18).\n"
    )


@table("readme-counts")
def counts(data: ReportData, _: str) -> str:
    """Those of the small-scale claims, and those of the others."""
    found: dict[bool, Counter[str]] = {True: Counter(), False: Counter()}
    for row in data.rows:
        found[data.claims[row.id].part == "small"][row.verdict] += 1
    small, large = (_listed(found[part]) for part in (True, False))
    drawn = max((row.robustness.all.conditions for row in data.rows if row.robustness), default=0)
    on_drawn = f" and {drawn} grammars drawn at random" if drawn else ""
    return (
        f"Of the paper's {found[True].total()} small-scale claims, over 20 model seeds or more{on_drawn}: **{small}.** "
        f"Of the {found[False].total()} about language models and future work: **{large}.**\n"
    )


def _listed(verdicts: Counter[str]) -> str:
    return ", ".join(text.format(n=verdicts[name]) for name, text in SAID.items() if verdicts[name])
