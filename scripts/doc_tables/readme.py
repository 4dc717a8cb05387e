"""docs/results.md: what the small scale finds; README.md: how many claims have which verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from doc_tables.blocks import ACCURACIES, drawn_difference, drawn_values, markdown_table, mean, mean_text, select, table
from doc_tables.small_scale import SPCN
from ematrace.ledger.verdicts import Verdict
from ematrace.report.data import ReportData
from ematrace.results import Factors

SAID: Mapping[Verdict, str] = {
    "reproduced": "{n} reproduced",
    "direction only": "{n} in direction only",
    "not reproduced": "{n} not reproduced",
    "undecided": "{n} undecided",
    "answered: yes": "{n} answered yes",
    "answered: no": "{n} answered no",
    "answered: mixed": "{n} answered in part",
    "not testable here": "{n} not testable here",
    "open": "{n} open",
}


@table("roles", "trace_probe", "controls", "supervised")
def roles(data: ReportData, _: str) -> str:
    read: tuple[tuple[str, str, Factors], ...] = (
        ("SPCN: activation", "trace_probe", {"representation": "l0"}),
        ("SPCN: activation and traces", *SPCN),
        ("the same network, nothing learned", "controls", {"features": "no_feedback"}),
        ("EMA of one-hot words, no network", "controls", {"features": "ema_onehot"}),
        ("one-hot window of three words on each side", "controls", {"features": "window3"}),
        ("BiGRU, trained on labels", "supervised", {"unseen": "untrained"}),
    )
    heads = ("roles are read from", "within the grammar", "on unseen words", "deep roles")
    table = markdown_table(
        heads,
        ((label, *(mean(data.table, name, metric, where) for metric in ACCURACIES)) for label, name, where in read),
    )
    words: Factors = {"features": "ema_onehot"}
    ahead = [
        drawn_difference(drawn_values(data, SPCN[0], m, SPCN[1]), drawn_values(data, "controls", m, words))
        for m in ACCURACIES
    ]
    return (
        f"{table}\nOn drawn grammars, SPCN minus that EMA: {', '.join(ahead)} (mean and 95% interval over grammars).\n"
    )


@table("nouns", "lag_decoding")
def nouns(data: ReportData, _: str) -> str:
    """At one, two and three words back."""

    def at(metric: str, **where: str) -> str:
        found = [select(data.table, "lag_decoding", metric, {**where, "lag": lag}) for lag in (1, 2, 3)]
        return ", ".join(map(mean_text, found))

    read, guessed = at("noun_accuracy", reader="probe", trace="slow"), at("noun_accuracy", reader="role")
    untold = at("noun_among_words_accuracy", reader="probe", trace="slow")
    return (
        "Told that a noun stood one, two or three words back, a linear probe of the slow trace names it in "
        f"{read} of cases. Not told, and choosing among all words, it is right in {untold}; a guess from the noun's "
        f"role alone is right in {guessed} (C18).\n"
    )


@table("readme-counts")
def counts(data: ReportData, _: str) -> str:
    """Those of the small-scale claims, and those of the others."""
    found: dict[bool, Counter[Verdict]] = {True: Counter(), False: Counter()}
    for row in data.rows:
        found[data.claims[row.id].part == "small"][row.verdict] += 1
    least = min((row.n_seeds or 0 for row in data.rows if data.claims[row.id].part == "small"), default=0)
    small, large = (_listed(found[part]) for part in (True, False))
    drawn = max((row.robustness.all.conditions for row in data.rows if row.robustness), default=0)
    tried = sum(row.robustness is not None for row in data.rows)
    which = "all" if tried == found[True].total() else str(tried)
    on_drawn = f" ({which} of them also on {drawn} grammars drawn at random, one network each)" if drawn else ""
    seeds = f"over {least} model seeds or more"
    return (
        f"Of the paper's {found[True].total()} small-scale claims, {seeds}{on_drawn}: **{small}.** "
        f"Of the {found[False].total()} about language models and future work: **{large}.**\n"
    )


def _listed(verdicts: Counter[Verdict]) -> str:
    return ", ".join(text.format(n=verdicts[name]) for name, text in SAID.items() if verdicts[name])
