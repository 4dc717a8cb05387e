"""The claims file: the paper's claims as they were written, and one line for every mistake in it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cells_support import recorded_cells
from ematrace.experiments import EXPERIMENTS, chosen_rates
from ematrace.ledger import (
    Claim,
    Claims,
    ClaimsError,
    Direction,
    PaperFigure,
    keep_claims,
    load_claims,
    parse_claims,
    with_kept_claims,
    with_own_claims,
)
from ematrace.results import Selector, Table

IDS = [f"C{i:02d}" for i in range(1, 19)] + [f"C{i}" for i in range(20, 47)] + [f"F{i}" for i in range(1, 6)]
HEAD = '[C01]\npart = "small"\nclaim = "c"\npaper = "p"\n'
parse = Selector.parse
# test_experiments.py and test_experiments_language.py find every selector of the claims in the rows of toys.
MEASURED_IN_TESTS = ("lag_decoding", "distances", "shortcuts", "feedforward_rules", "spen_streaming", "spen_prefill")


def test_every_claim_is_there_in_order() -> None:
    claims = load_claims()
    assert [claim.id for claim in claims] == IDS
    assert len(claims) == 50
    assert "C18" in claims
    assert "C19" not in claims
    assert [claims[id].part for id in ("C18", "C20", "C46", "F1")] == ["small", "large", "large", "extension"]


def test_titles_are_short_and_tell_claims_apart() -> None:
    titles = [claim.title for claim in load_claims()]
    assert all(1 <= len(title) <= 31 for title in titles)
    assert len(set(titles)) == len(titles)


def test_ids_are_found_as_people_type_them() -> None:
    claims = load_claims()
    assert [claims.find(text).id for text in ("c9", "C09", "f05", "C46")] == ["C09", "C09", "F5", "C46"]
    assert claims.ids == "C01 to C18, C20 to C46, F1 to F5"
    for text in ("C19", "nine", "", "C9999999999"):
        with pytest.raises(ClaimsError, match=r"no claim .* there are C01 to C18, C20 to C46, F1 to F5"):
            claims.find(text)


def test_predicates_are_read_as_written() -> None:
    claims = load_claims()
    together = parse("trace_probe/within{representation=l0+traces}")
    bigru = parse("supervised/within{unseen=untrained}")
    assert claims["C08"].direction == (Direction(together, ">", 0.9, over=bigru),)
    slow = parse("lag_decoding/noun_accuracy{reader=probe, trace=slow, lag=2}")
    role = parse("lag_decoding/noun_accuracy{reader=role, lag=2}")
    assert claims["C18"].direction[1] == Direction(slow, "<", role, by=0.01, against=0.05)
    sanger = claims["C16"].direction[0]
    assert (sanger.by, sanger.against, claims["C16"].holm) == (0.01, 0.03, True)
    collapse = sanger.unless
    assert collapse is not None
    assert collapse.text == "feedforward_rules/code_pr{rule=sanger} < 2 or feedforward_rules/weight_pr{rule=sanger} < 2"
    assert {d.interval for d in claims["C40"].direction} == {"tokens"}
    assert claims["C09"].direction[0].paired
    l0 = parse("trace_probe/within{representation=l0}")
    assert claims["C04"].figure[0] == PaperFigure(together, 0.165, "accuracy", minus=l0)
    assert claims["C01"].fitted
    assert not claims["C16"].fitted
    assert claims["C08"].selectors == (together, bigru)
    assert claims["C08"].experiments == ("trace_probe", "supervised")
    assert claims.defaults == {"grammar": "half_passives"}
    assert claims.robustness == {"grammar": "fully_drawn"}
    assert claims.unpublished.seed == 1000
    gap = claims["C25"].figure[0]
    assert (gap.band, claims["C25"].seeds, claims["C24"].seeds) == ((1.87, 2.29), 3, 2)
    assert [(d.op, d.by) for d in claims["C27"].direction] == [("within", 0.05)] * 20  # five pairs, in four cases
    assert [(d.op, d.by) for d in claims["C30"].direction] == [("within", 0.02)] * 25
    assert [(bool(d.group), d.refutes) for d in claims["C30"].direction[::5]] == [
        *((True, True), (True, True), (False, False), (True, True), (True, True))
    ]


def test_every_selector_finds_recorded_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    """A misspelt factor would leave its claim open for ever."""
    monkeypatch.setattr(
        chosen_rates, "_table", lambda: SimpleNamespace(get=lambda arm: 0.004)
    )  # also arms without a rate
    claims = load_claims()
    table = Table(recorded_cells())
    chosen = claims.choose(table)
    controls = {s for claim in claims if claim.control for s in claim.control.of}
    missing = [s for s in {*controls, *(s for c in claims for s in c.selectors)} if chosen.select(s) is None]
    assert [str(s) for s in missing if not will_be_measured(s)] == []


def test_every_claim_quotes_a_line_of_the_paper() -> None:
    for claim in load_claims():
        assert claim.quote, claim.id
        assert 1 <= (claim.line or 0) <= 663, claim.id


def test_every_claim_with_predicates_says_when_they_were_written() -> None:
    assert [c.id for c in load_claims() if bool(c.written) != bool(c.direction or c.figure)] == []


def test_c40_judges_every_reported_difference_with_the_papers_sign() -> None:
    """Also those that fail; that C09 and C10 judge two of them is said, and does not make them vanish."""
    claims = load_claims()
    judged = {(d.left, d.op, d.right) for d in claims["C40"].direction}
    assert len(judged) == len(claims["C40"].direction) == 23
    assert {(d.left, d.op, d.right) for id in ("C09", "C10") for d in claims[id].direction} < judged
    assert "C09 and C10" in claims["C40"].note


def test_c42_judges_codes_after_top_k_as_the_projection() -> None:
    judged = {(d.left.where["points"], d.left.where["code"], d.op) for d in load_claims()["C42"].direction}
    assert judged == {(points, code, "<=") for points in ("words", "l0_states") for code in ("linear", "topk")}


def will_be_measured(selector: Selector) -> bool:
    """Whether the experiment has a point with these factors, but for those that only rows have.

    Rows of the formal grammar, and those of speeds, are looked for where these are measured at toy sizes.
    """
    if selector.experiment in MEASURED_IN_TESTS:
        return True
    of_rows: dict[str, tuple[Any, ...]] = {
        **{"slice": ("all",), "text": ("validation", "wikitext2", "c4"), "representation": ("slow",)},
        **{
            "number_format": ("float32",),
            "reader": ("linear", "mlp", "topic"),
            "lag": (32, 64, 128, 256),
            "given": ("topic",),
        },
    }
    where = dict(selector.where)
    if any(where.pop(name, values[0]) not in values for name, values in of_rows.items()):
        return False
    return any(where.items() <= point.factors.items() for point in EXPERIMENTS[selector.experiment].points("gpu", 1))


@pytest.mark.parametrize(
    ("direction", "text"),
    [
        (Direction(parse("a/b{k=1}"), ">", parse("c/d")), "a/b{k=1} > c/d"),
        (Direction(parse("a/b"), "<", 0.5, over=parse("c/d")), "a/b / c/d < 0.5"),
        (Direction(parse("a/b"), "not >", parse("c/d"), by=0.1), "a/b not > c/d + 0.1"),
        (Direction(parse("a/b"), "<", parse("c/d"), by=-0.1), "a/b < c/d - 0.1"),
        (Direction(parse("a/b"), "within", parse("c/d"), by=0.1), "a/b within c/d ± 0.1"),
    ],
)
def test_text_of_a_direction(direction: Direction, text: str) -> None:
    assert direction.text == text


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ('direction = [{ left = "a/b", op = "=>", right = 1 }]', "Invalid enum value '=>' - at `$.direction[0].op`"),
        ('direction = [{ left = "a/b", op = ">", right = 1, typo = 1 }]', "unknown field `typo` - at `$.direction[0]`"),
        ('direction = [{ left = "a/b", op = ">" }]', "missing required field `right`"),
        ('direction = [{ left = "ab", op = ">", right = 1 }]', "'left': 'ab' is not of the form experiment/metric"),
        ('direction = [{ left = "a/b{c}", op = ">", right = 1 }]', "'left': 'a/b{c}': 'c' does not start with factor="),
        ('direction = [{ left = "a/b", op = ">", right = "c" }]', "'right': 'c' is not of the form"),
        ('direction = [{ left = "a/b", over = "c", op = ">", right = 1 }]', "'over': 'c' is not of the form"),
        ('direction = [{ left = 5, op = ">", right = 1 }]', "Expected `str`, got `int` - at `$.direction[0].left`"),
        (
            'direction = [{ left = { experiment = "a", metric = "b" }, op = ">", right = 1 }]',
            "Expected `str`, got `object` - at `$.direction[0].left`",
        ),
        (
            'direction = [{ left = "a/b", op = ">", right = { experiment = "a", metric = "b" } }]',
            "Expected `float | str`, got `object` - at `$.direction[0].right`",
        ),
        ('direction = { left = "ab" }', "Expected `array`, got `object` - at `$.direction`"),
        ('left = "ab"', "Object contains unknown field `left`"),
        ('id = "C02"', "Object contains unknown field `id`"),
        ('command = "c"', "Object contains unknown field `command`"),
        (
            'requires = [{ left = "a/b", op = ">", right = 1, why = "w", unless = { left = "c" } }]',
            "'left': 'c' is not of the form experiment/metric{factor=value, ...} - at `$.requires[0].unless`",
        ),
        (
            'direction = [{ left = "a/b", op = ">", right = true }]',
            "Expected `float | str`, got `bool` - at `$.direction[0].right`",
        ),
        ('direction = [{ left = "a/b", op = ">", right = nan }]', "'right': nan is not a finite number"),
        ('direction = [{ left = "a/b", op = ">", right = 1, by = inf }]', "'by': inf is not a finite number"),
        (f'direction = [{{ left = "a/b", op = ">", right = 1{"0" * 400} }}]', "$.direction[0].right"),
        ('direction = [{ left = "a/b", op = "<=", right = 1, by = 0.1 }]', "'by' has no meaning with op '<='"),
        (
            'figure = [{ of = "a/b", paper = 1, kind = "acuracy" }]',
            "Invalid enum value 'acuracy' - at `$.figure[0].kind`",
        ),
        ('figure = [{ of = "a/b", paper = "1", kind = "speed" }]', "$.figure[0].paper"),
        ('figure = [{ of = "b", paper = 1, kind = "speed" }]', "'of': 'b' is not of the form"),
        ('figure = [{ of = "a/b", paper = 1, kind = "speed", minus = "c" }]', "'minus': 'c' is not of the form"),
        ('figure = [{ of = "a/b", paper = 1, kind = "speed", minus = "a/c", over = "a/d" }]', "exclude each other"),
        ('figure = [{ of = ["a/b"], paper = 1, kind = "speed" }]', "Expected `str`, got `array` - at `$.figure[0].of`"),
        ('figure = [{ of = "a/b", paper = 1, kind = "speed", minus = 2 }]', "got `int` - at `$.figure[0].minus`"),
        ("figure = 3", "Expected `array`, got `int` - at `$.figure`"),
        ('control = { what = "w", of = "a/b" }', "Expected `array`, got `str` - at `$.control.of`"),
        ('control = { what = "w", of = [3] }', "Expected `str`, got `int` - at `$.control.of[0]`"),
        ('control = { what = "w", of = ["a"] }', "'of[0]': 'a' is not of the form"),
        ('directions = "x"', "unknown field `directions`"),
        ('fitted = "yes"', "$.fitted"),
        ("not_testable = 2026-01-02", "$.not_testable"),
        ("seeds = 0", "$.seeds"),
        ('direction = [{ left = "a/b", op = "==", right = 1, against = 2 }]', "'against' has no meaning with op '=='"),
        ('direction = [{ left = "a/b", op = "within", right = 1 }]', "op 'within' needs 'by', a margin above 0"),
        ('figure = [{ of = "a/b", paper = 1, kind = "accuracy", band = [2, 3] }]', "'band': 1 lies outside"),
        ('requires = [{ left = "a/b", op = ">", right = 1 }]', "missing required field `why` - at `$.requires[0]`"),
        (
            'requires = [{ left = "a/b", op = ">", right = 1, why = "w", otherwise = "open" }]',
            "$.requires[0].otherwise",
        ),
        (
            'requires = [{ left = "a/b", op = ">", right = 1, why = "w", typo = 1 }]',
            "unknown field `typo` - at `$.requires[0]`",
        ),
        ('requires = [{ left = "a/b", op = ">", why = "w" }]', "missing required field `right` - at `$.requires[0]`"),
        ('requires = [{ left = "a/b", op = "=>", right = 1, why = "w" }]', "'=>' - at `$.requires[0].op`"),
        (
            'requires = [{ predicate = { left = "a/b", op = ">", right = 1 }, why = "w" }]',
            "unknown field `predicate` - at `$.requires[0]`",
        ),
    ],
)
def test_mistake_is_one_line_that_names_claim_and_field(tmp_path: Path, body: str, problem: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(f"{HEAD}{body}\n")
    with pytest.raises(ClaimsError) as caught:
        load_claims(path)
    message = str(caught.value)
    assert problem in message
    assert message.startswith(f"{path}: C01: ")
    assert "\n" not in message


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (HEAD.replace("C01", "'C\\n1'"), "letters and a number"),
        (HEAD.replace("C01", "C"), "C: an id is letters and a number"),
        (HEAD.replace("C01", "C" + "1" * 5000), "letters and a number"),
        (HEAD.replace("small", "tiny"), "C01: Invalid enum value 'tiny' - at `$.part`"),
        ('[C01]\npart = "small"\npaper = "p"', "C01: Object missing required field `claim`"),
        ("C01 = 3", "C01: Expected `object`, got `int`"),
        ("[C01\n", "line 1"),
        (HEAD + HEAD, "C01"),
        ("[defaults]\ngrammar = [1]", "defaults: "),
        ("[defaults]\n'a b' = 1", "defaults: "),
        ("robustness = 3", "robustness: "),
        ("[unpublished]\nseeds = 1000", "mine.toml: unpublished: Object contains unknown field `seeds`"),
        ('[unpublished]\nseed = "abc"', "mine.toml: unpublished: Expected `int | null`, got `str` - at `$.seed`"),
        ("[unpublished]\nseed = -1", "mine.toml: unpublished: Expected `int` >= 0 - at `$.seed`"),
        ("x = " + "[" * 5000, "mine.toml: "),
        ("x = 1" + "0" * 5000, "mine.toml: "),
    ],
)
def test_broken_file_is_refused_in_one_line(text: str, problem: str) -> None:
    with pytest.raises(ClaimsError) as caught:
        parse_claims(text, "mine.toml")
    assert problem in str(caught.value)
    assert str(caught.value).startswith("mine.toml: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "mine.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ClaimsError, match=r"mine\.toml"):
        load_claims(path)


def test_own_claims_stand_beside_the_papers() -> None:
    own = parse_claims(HEAD.replace("C01", "X10") + HEAD.replace("C01", "X9"))
    assert [claim.id for claim in own] == ["X9", "X10"]
    both = load_claims() | own
    assert [claim.id for claim in both] == [*IDS, "X9", "X10"]
    with pytest.raises(ClaimsError, match="C01: this claim is there already"):
        load_claims() | Claims((Claim("C01", "small", "c", "p"),))


@pytest.mark.parametrize(
    "section",
    [
        "[defaults]\ngrammar = 'mine'",
        "[defaults]\nrepresentation = 'l0'",
        "[robustness]\nwidth = 64",
        "[unpublished]\nseed = 5",
    ],
)
def test_own_claims_do_not_change_the_evidence_for_the_papers(section: str) -> None:
    name = section[1 : section.index("]")]
    with pytest.raises(ClaimsError, match=f"^mine.py: {name}: '[a-z]+' would change the evidence for other claims"):
        with_own_claims(load_claims(), section, "mine.py", command="c")


def test_own_claims_may_repeat_what_the_papers_say() -> None:
    same = "[defaults]\ngrammar = 'half_passives'\n[robustness]\ngrammar = 'fully_drawn'\n[unpublished]\nseed = 1000"
    assert with_own_claims(load_claims(), same, "mine.py", command="c") == load_claims()


def test_claims_of_own_experiments_are_kept_as_data(tmp_path: Path) -> None:
    text = HEAD.replace("C01", "X1")
    keep_claims(text, tmp_path, "squares", 'ematrace reproduce "./my squares.py"')
    both = with_kept_claims(load_claims(), tmp_path)
    assert both["X1"].command == 'ematrace reproduce "./my squares.py"'
    assert "X1" not in with_kept_claims(load_claims(), tmp_path, but=["squares"])
    keep_claims(text, tmp_path, "others", "c")
    with pytest.raises(ClaimsError, match=r"squares/claims\.toml: X1: this claim is there already"):
        with_kept_claims(load_claims(), tmp_path)
    keep_claims("", tmp_path, "others", "c")
    keep_claims("[X1", tmp_path, "squares", "c")
    with pytest.raises(ClaimsError, match=r"squares/claims\.toml: "):
        with_kept_claims(load_claims(), tmp_path)
