"""docs/results.md: verdicts at small scale, and the figures behind them."""

from __future__ import annotations

from statistics import fmean

from doc_tables.blocks import (
    ACCURACIES,
    NOT_RECORDED,
    ROLES,
    cells_of,
    difference,
    drawn_difference,
    drawn_values,
    markdown_table,
    mean,
    mean_text,
    means,
    seeds_of,
    select,
    table,
    with_brackets,
)
from ematrace.analysis.equivalence import MARGIN, compare_by_k
from ematrace.ledger import Claim, LedgerRow
from ematrace.report.data import ReportData
from ematrace.report.formatting import number, plural
from ematrace.report.verdicts import LETTERS, checks_line, ours_lines, short_names
from ematrace.results import Factors, Selector

MOST_NAMED = 2  # directions that fail on drawn grammars and are named
SPCN: tuple[str, Factors] = ("trace_probe", {"representation": "l0+traces"})
CODINGS = {"untrained": "untrained rows", "zero": "zeros", "mean": "mean of the trained rows"}

COMMIT_BEFORE = "e0e4aa2"
# What build_ledger made of the results at that commit, the last before claims were tested by what their sentences say;
# its small-scale cells were of the locked network and a quarter of passives.
_OF = {
    "direction only": "C01 C02 C03 C04 C05 C06 C07 C11 C12 C14 C15 C17",
    "reproduced": "C08 C13 C22",
    "not reproduced": "C10 C16 C18 C40 C41 C42 C43 C46",  # also two of the large scale
    "undecided": "C09",
}
BEFORE = {id: verdict for verdict, ids in _OF.items() for id in ids.split()}
TO_BE_WRITTEN = "cause to be written"


def small_rows(data: ReportData) -> list[tuple[LedgerRow, Claim]]:
    return [(row, data.claims[row.id]) for row in data.rows if data.claims[row.id].part == "small"]


@table("verdicts-small")
def verdicts(data: ReportData, _: str) -> str:
    heads = ("claim", "ours", "paper", "verdict", "drawn grammars", "seeds")
    return markdown_table(
        heads,
        (
            (
                f"{row.id} {claim.title}",
                ours(row, claim),
                " ".join(row.paper.split()),
                f"{row.verdict}{' (fitted)' if row.fitted and row.verdict == 'reproduced' else ''}",
                on_drawn(row, claim),
                "–" if row.n_seeds is None else str(row.n_seeds),
            )
            for row, claim in small_rows(data)
        ),
    )


def ours(row: LedgerRow, claim: Claim) -> str:
    """The numbers that the paper has, too; where there are none, how many predicates hold."""
    if not row.ours:
        return NOT_RECORDED
    values = {name.replace("level ", "L"): value for name, value, _ in ours_lines(row, claim)}
    for name in list(values):
        system, _, letter = name.rpartition(" ")
        triple = [f"{system} {each}" for each in "WTD"]
        if system and letter == "W" and values.keys() >= set(triple):  # traces .939/.507/.694
            values[system] = "/".join(values.pop(each) for each in triple)
    return ", ".join(f"{name} {value}" for name, value in values.items()) or checks_line(row) or NOT_RECORDED


def on_drawn(row: LedgerRow, claim: Claim) -> str:
    """`18/24 (T fails in 6)`."""
    if row.robustness is None:
        return "–"
    share = row.robustness.all
    lefts = list(dict.fromkeys(d.left for d in claim.direction))
    names = dict(zip(lefts, short_names(lefts), strict=True))
    missed: dict[str, int] = {}
    for direction, (_, each) in zip(claim.direction, row.robustness.each, strict=True):
        if each.holds < each.conditions and len(lefts) > 1:
            name = names[direction.left]
            missed[name] = max(missed.get(name, 0), each.conditions - each.holds)
    named = ", ".join(f"{name} fails in {count}" for name, count in missed.items())
    return f"{share.holds}/{share.conditions}" + (f" ({named})" if 0 < len(missed) <= MOST_NAMED else "")


@table("verdicts-changed")
def changed_verdicts(data: ReportData, block: str) -> str:
    """The last column is written by hand, and kept as long as the verdict is the same."""
    causes = {(cells[0].split()[0], cells[-2]): cells[-1] for cells in cells_of(block)}
    rows = []
    for row in data.rows:
        if row.verdict == BEFORE.get(row.id, row.verdict):
            continue
        waits = any(check.missing for check in row.checks)
        written = causes.get((row.id, row.verdict), "")
        if written in ("", NOT_RECORDED, TO_BE_WRITTEN):
            written = NOT_RECORDED if waits else TO_BE_WRITTEN
        rows.append((f"{row.id} {data.claims[row.id].title}", BEFORE[row.id], row.verdict, written))
    return markdown_table(("claim", f"verdict at {COMMIT_BEFORE}", "verdict now", "cause"), rows) if rows else "None.\n"


@table("controls", "trace_probe", "controls", "ablations")
def controls(data: ReportData, _: str) -> str:
    rows: tuple[tuple[str, str, Factors], ...] = (
        ("SPCN, activation + traces", *SPCN),
        ("the same, nothing learned (W_fb = 0)", "controls", {"features": "no_feedback"}),
        ("the same without SPA", "ablations", {"variant": "no_spa"}),
        ("the same without SPA and lateral weights", "controls", {"features": "no_spa_no_lateral"}),
        ("nothing learned, without SPA", "controls", {"features": "no_feedback_no_spa"}),
        ("nothing learned, without SPA and lateral weights", "controls", {"features": "no_feedback_no_spa_no_lateral"}),
        ("EMA of one-hot words and the word itself, no network", "controls", {"features": "ema_onehot"}),
        ("the same, content words merged to one symbol", "controls", {"features": "ema_merged"}),
        ("one-hot window of ±3 words", "controls", {"features": "window3"}),
        ("untrained BiGRU, same probe", "controls", {"features": "untrained_bigru"}),
        ("BiGRU, supervised", "supervised", {"unseen": "untrained"}),
    )
    full = {metric: select(data.table, SPCN[0], metric, SPCN[1]) for metric in ACCURACIES}
    lines = []
    for label, experiment, where in rows:
        found = {metric: select(data.table, experiment, metric, where) for metric in ACCURACIES}
        less = [difference(full[m], found[m]) for m in ACCURACIES] if (experiment, where) != SPCN else ["–"] * 3
        seeds = seeds_of(found.values()).removesuffix(".").split()[0] if any(found.values()) else "–"
        lines.append((label, means(data.table, experiment, ACCURACIES, where), *less, seeds))
    table = markdown_table(("features", "W/T/D", "SPCN minus these: W", "T", "D", "seeds"), lines)
    novel = means(data.table, SPCN[0], ("within_novel", "deep_novel"), SPCN[1], " and ")
    return f"{table}\nOn test sentences that are none of the training sentences SPCN has W and D of {novel}.\n"


@table("controls-drawn", "trace_probe", "controls", "ablations")
def drawn_controls(data: ReportData, _: str) -> str:
    """One network on each drawn grammar."""
    rows: tuple[tuple[str, str, Factors], ...] = (
        ("nothing learned (W_fb = 0)", "controls", {"features": "no_feedback"}),
        ("without SPA", "ablations", {"variant": "no_spa"}),
        ("nothing learned, without SPA", "controls", {"features": "no_feedback_no_spa"}),
        ("nothing learned, without SPA and lateral weights", "controls", {"features": "no_feedback_no_spa_no_lateral"}),
        ("EMA of one-hot words and the word itself, no network", "controls", {"features": "ema_onehot"}),
        ("the same, content words merged to one symbol", "controls", {"features": "ema_merged"}),
        ("one-hot window of ±3 words", "controls", {"features": "window3"}),
    )
    full = {metric: drawn_values(data, SPCN[0], metric, SPCN[1]) for metric in ACCURACIES}
    lines = [
        (label, *(drawn_difference(full[m], drawn_values(data, experiment, m, where)) for m in ACCURACIES))
        for label, experiment, where in rows
    ]
    found = "/".join(number(fmean(values.values())) for values in full.values() if values)
    table = markdown_table(("SPCN minus", "W", "T", "D"), lines)
    return f"{table}\nSPCN has {found or NOT_RECORDED} there; {plural(len(full['within']), 'grammar')}.\n"


@table("bigru", "trace_probe", "supervised")
def bigru(data: ReportData, _: str) -> str:
    """The paper's two systems beside ours."""
    systems: dict[str, tuple[str, Factors]] = {"SPCN": SPCN, "BiGRU": ("supervised", {"unseen": "untrained"})}
    columns: list[tuple[str, Factors]] = [(metric, {}) for metric in ACCURACIES]
    columns += [("role_transfer", {"role": role}) for role in ROLES]
    lines = []
    for label, (experiment, where) in systems.items():
        figures = [data.paper(Selector(experiment, metric, {**where, **more})) for metric, more in columns]
        lines.append((f"{label}, the paper", *map(number, figures)))
    ours = {"SPCN": SPCN, **{f"BiGRU, {text}": ("supervised", {"unseen": c}) for c, text in CODINGS.items()}}
    for label, (experiment, where) in ours.items():
        cells = [mean(data.table, experiment, metric, {**where, **more}) for metric, more in columns]
        lines.append((f"{label}, ours", *cells))
    used = [select(data.table, *system) for system in ((e, "within", w) for e, w in ours.values())]
    heads = ("system, unseen words as", "W", "T", "D", *(f"{role}, T" for role in ROLES))
    return markdown_table(heads, lines) + f"\n{seeds_of(used)}\n"


@table("rules", "feedforward_rules")
def rules(data: ReportData, _: str) -> str:
    """C16."""
    names = ("frozen", "sanger", "foldiak", "pghu", "forward_forward")
    frozen = {m: select(data.table, "feedforward_rules", m, {"rule": "frozen"}) for m in ACCURACIES}
    lines = []
    for name in names:
        where: Factors = {"rule": name}
        found = {m: select(data.table, "feedforward_rules", m, where) for m in ACCURACIES}
        less = ["–"] * 2 if name == "frozen" else [difference(found[m], frozen[m]) for m in ("within", "transfer")]
        rate = "–" if name == "frozen" else mean(data.table, "feedforward_rules", "rate", where)
        ratios = [mean(data.table, "feedforward_rules", metric, where) for metric in ("code_pr", "weight_pr")]
        lines.append((name, rate, means(data.table, "feedforward_rules", ACCURACIES, where), *less, *ratios))
    heads = ("rule", "rate", "W/T/D", "minus frozen: W", "T", "participation ratio of codes", "of weights")
    return markdown_table(heads, lines) + f"\n{seeds_of(frozen.values())}\n"


@table("lags", "lag_decoding")
def lags(data: ReportData, _: str) -> str:
    """C18."""
    probe: Factors = {"reader": "probe", "trace": "slow"}
    readers: tuple[tuple[str, str, Factors], ...] = (
        ("which noun, linear probe", "noun_accuracy", probe),
        ("which noun, a guess that knows its role", "noun_accuracy", {"reader": "role"}),
        ("which noun, by the probe for all words", "noun_among_words_accuracy", probe),
        ("its role, linear probe", "lagged_role_accuracy", probe),
        ("its role, the commonest", "lagged_role_accuracy", {"reader": "majority"}),
        ("which word, linear probe", "word_accuracy", probe),
        ("which word, the commonest", "word_accuracy", {"reader": "majority"}),
        *(
            (f"which word, peeled from the {trace} trace{text}", "word_accuracy", {**peel, "trace": trace})
            for codes, text in {"network": "", "plain": ", codes that no context changes"}.items()
            for peel in ({"reader": "peel", "codes": codes},)
            for trace in ("slow", "fast")
        ),
    )
    steps = (0, 1, 2, 3, 6)
    lines = [
        (label, *(mean(data.table, "lag_decoding", metric, {**where, "lag": lag}) for lag in steps))
        for label, metric, where in readers
    ]
    used = select(data.table, "lag_decoding", "word_accuracy", {**probe, "lag": 1})
    return markdown_table(("words back", *map(str, steps)), lines) + f"\n{seeds_of([used])}\n"


@table("distances", "distances")
def distances(data: ReportData, _: str) -> str:
    """C42."""
    points = {"words": "words", "l0_states": "states of L0", "contexts": "contexts, which nothing projects"}
    metrics = ("max_distortion", "share_within_epsilon", "spearman")
    lines = []
    for name, label in points.items():
        epsilon = mean(data.table, "distances", "jl_epsilon", {"points": name})
        for code, after in {"linear": "W_ff", "topk": "W_ff and top-k"}.items():
            where: Factors = {"points": name, "code": code}
            found = [select(data.table, "distances", metric, where) for metric in metrics]
            missing = "–" if any(found) else NOT_RECORDED
            shown = [mean_text(s, missing) for s in found]
            lines.append((label, after, epsilon, *shown))
    heads = ("points", "after", "ε of the lemma", "largest distortion", "share of pairs within ε", "rank correlation")
    used = select(data.table, "distances", "max_distortion", {"points": "words", "code": "linear"})
    return markdown_table(heads, lines) + f"\n{seeds_of([used])}\n"


@table("shortcuts", "shortcuts")
def shortcuts(data: ReportData, _: str) -> str:
    """C43. Hidden words are no input of SPCN's probe."""
    inputs = {
        "intact": "as it is",
        "novel": "another word of its class, never seen",
        "swapped": "another known word of its class",
        "other_class": "a known word of another class",
        "context_only": "hidden",
        "word_only": "alone, everything else hidden",
    }
    rows: list[tuple[str, Factors, str]] = [
        (label, {"input": name}, "content_accuracy") for name, label in inputs.items()
    ]
    other: Factors = {"input": "other_class"}
    rows += [
        ("of another class: follows the context, over chance", other, "context_over_chance"),
        ("of another class: follows the word, over chance", other, "word_over_chance"),
    ]
    lines = []
    for label, where, metric in rows:
        ours = mean(data.table, "shortcuts", metric, where)
        probe = select(data.table, "shortcuts", f"spcn_{metric}", where)
        missing = NOT_RECORDED if ours == NOT_RECORDED else "–"
        lines.append((label, ours, mean_text(probe, missing)))
    used = select(data.table, "shortcuts", "content_accuracy", {"input": "intact"})
    return markdown_table(("the word is", "BiGRU", "SPCN's probe"), lines) + f"\n{seeds_of([used])}\n"


@table("by-k", "k_by_grammar")
def by_k(data: ReportData, _: str) -> str:
    """SPCN minus an EMA of one-hot words: a row for each k."""
    lines = []
    for grammar, label in {"half_passives": "half passives", "fully_drawn": "drawn"}.items():
        found = compare_by_k(data.cells, grammar)
        for k in dict.fromkeys(c.where["k"] for c in found):
            of_k = {c.metric: c for c in found if c.where["k"] == k}
            cells = [
                f"{with_brackets(of_k[m].difference, of_k[m].interval)} {of_k[m].outcome}" if m in of_k else "–"
                for m in ACCURACIES
            ]
            lines.append((label, f"{float(k):.0%}", *cells, str(max(c.seeds for c in of_k.values()))))
    heads = ("grammar", "k", *(LETTERS[m] for m in ACCURACIES), "seeds")
    margin = f"The margin of *same* is ±{number(MARGIN, 2)}; p-values are corrected by Holm over the rows of a grammar."
    return markdown_table(heads, lines) + f"\n{margin}\n"
