"""Text in result files and claims is shown as text: never as markup, script or template."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from cells_support import make_file, make_provenance, make_row
from ematrace.ledger import Claim, Claims, Direction, build_ledger
from ematrace.report import ledger_table
from ematrace.report.parts import Values, templates
from ematrace.results import Metric, Selector, Store, Table
from report_support import Reader, drawn, made_up, recorded_only, render, replaced, with_cell

PAYLOADS = (
    "<script>alert('x')</script><b>&amp;",
    "</script><script>alert(1)</script>",
    "</title></style><img src=x onerror=alert(1)>",
    '" onmouseover="alert(1)" x="',
    "' autofocus onfocus='alert(1)",
    "{{ 7*7 }}{% for x in ().__class__.__base__.__subclasses__() %}{{ x }}{% endfor %}{# #}",
    "<!--<script>",
    "<svg/onload=alert(1)>",
    "javascript:alert(1)",
    "%{x}<br><a href='javascript:alert(1)'>y</a>",
    "$plotly ${title} %(x)s {0}",
)
SAFE_TAGS = """
    html head meta title style body script a main header section footer nav h1 h2 h3 p ul li dl dt dd div span strong b
    i cite dfn code br table colgroup col thead tbody tr th td details summary figure figcaption form label select
    button option input output svg defs g circle path use text
"""
SAFE_ATTRIBUTES = """
    lang charset name content http-equiv class id href title aria-label aria-hidden aria-sort role tabindex scope
    colspan rowspan type value hidden autocomplete style d r x y width height viewbox preserveaspectratio
    data-sort data-part
"""
# Numbers and names of ours, never text of a file.
SAFE_STYLE = re.compile(
    r"flex-grow: \d+|(--at:[\d.]+%;)?--grid:([\d.]+%,?)+"
    r"|(--[xpablh]:[\d.]+%(;|$))*"
    r"|(--c\d+:'([\w ,.()/%+±²→-]|\\[\da-f]+ )*'(;|$))*"
)


def hostile_store(payload: str, folder: Path) -> Store:
    """The payload wherever a result file can hold free text."""
    provenance = make_provenance(
        commit=payload, command=payload, hardware={"cpu": payload, payload: payload}, versions={payload: payload}
    )
    changes: dict[str, Any] = {"provenance": provenance, "settings": {payload: {payload: [payload, {payload: 1}]}}}
    accuracy = {"within": Metric(0.5, "accuracy", 100)}
    role = {"role_transfer": Metric(0.5, "accuracy", 100)}
    files = []
    for file in made_up("trace_probe", 2):
        file = with_cell(file, accuracy, representation=payload)
        file = with_cell(file, role, representation="l0+traces", role=payload)
        files.append(replaced(file, **changes))
    files += [with_cell(file, accuracy, features=payload) for file in made_up("controls", 2)]
    files += [
        with_cell(file, {"role_accuracy": Metric(0.5, "accuracy", 9)}, input="intact", role=payload)
        for file in made_up("shortcuts", 2)
    ]
    for file in drawn("trace_probe", 3):
        grammar = {**file.settings["grammar"], payload: file.seed, "text": payload}
        files.append(replaced(file, settings={"grammar": grammar}, factors={**file.factors, "colour": payload}))
    row = make_row({"metric": 1.0}, factor=payload)
    files += [make_file(row, experiment="later", seed=seed, factors={"point": payload}, **changes) for seed in (0, 1)]
    preset = make_row({"tokens_per_second": 5.0})
    files.append(make_file(preset, experiment="spen_training", scale="gpu", factors={"preset": payload}))
    return recorded_only(folder, *files)


def hostile_claims(payload: str) -> Claims:
    left = Selector("trace_probe", "within", {"representation": payload})
    claim = Claim("C01", "small", payload, payload, not_testable=payload, direction=(Direction(left, ">", 0.1),))
    return Claims((claim,), {"grammar": "half_passives"}, {"grammar": "fully_drawn"})


@pytest.fixture(scope="module", params=PAYLOADS)
def hostile(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A payload, and the page of results that are full of it."""
    folder = tmp_path_factory.mktemp("hostile")
    payload: str = request.param
    return payload, render(hostile_store(payload, folder), folder, claims=hostile_claims(payload))


def test_only_our_own_tags_and_attributes(hostile: tuple[str, str]) -> None:
    _, page = hostile
    elements = Reader(page).elements
    assert {tag for tag, _, _ in elements} <= set(SAFE_TAGS.split())
    assert {name for _, attributes, _ in elements for name in attributes} <= set(SAFE_ATTRIBUTES.split())
    assert all(SAFE_STYLE.fullmatch(a["style"] or "") for _, a, _ in elements if "style" in a)
    assert sum(tag == "script" for tag, _, _ in elements) == 1
    assert all((a.get("href") or "#").startswith(("#", "https://arxiv.org/abs/")) for _, a, _ in elements)
    assert "<!--" not in page


def test_shown_as_it_is_written(hostile: tuple[str, str]) -> None:
    payload, page = hostile
    reader = Reader(page)
    assert reader.all("td", **{"class": "said"})[0][1] == payload
    assert payload in [text for _, text in reader.all("th")]
    assert any(text.startswith(payload) for _, text in reader.all("li"))
    assert payload in [text for _, text in reader.all("dt")]
    assert payload in [text for _, text in reader.all("dd")]
    for section in ("representations", "roles", "shortcuts", "provenance", "experiment-later"):
        [text] = [text for tag, a, text in reader.elements if tag in ("section", "details") and a.get("id") == section]
        assert payload in text, section


def test_the_script_writes_no_markup() -> None:
    source, _, _ = templates().loader.get_source(templates(), "page.js")  # type: ignore[union-attr]
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval", source)


def test_templates_escape_by_themselves() -> None:
    """No template turns escaping off."""
    environment = templates()
    assert environment.autoescape is True
    names = [name for name in environment.list_templates() if name.endswith(".j2")]
    assert "page.html.j2" in names
    for name in names:
        source, _, _ = environment.loader.get_source(environment, name)  # type: ignore[union-attr]
        assert not re.search(r"\|\s*safe|autoescape|Markup", source)


def test_settings_a_hundred_levels_deep_are_cut() -> None:
    nested: dict[str, Any] = {"leaf": 1}
    for _ in range(100):
        nested = {"inner": nested, "many": [nested]}
    text = Values(nested).__html__()
    assert "…" in text
    assert "leaf" not in text


@pytest.mark.parametrize("payload", ["[red]x[/red] [/]", "[link=file:///etc/passwd]y[/link]", "\\[b]z"])
def test_markup_of_the_terminal_is_text(payload: str) -> None:
    claims = Claims((Claim("C01", "small", payload, payload, not_testable=payload),))
    console = Console(width=160, force_terminal=False, color_system=None)
    with console.capture() as capture:
        console.print(ledger_table(build_ledger(Table(()), claims), claims))
    assert capture.get().count(payload) >= 2
