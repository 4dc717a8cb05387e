"""Result files damaged at random or with hostile text: each is refused in one line that names it, or is harmless."""

from __future__ import annotations

import io
import json
import random
import shutil
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ematrace.ledger import build_ledger
from ematrace.report.page import write_report
from ematrace.report.terminal import ledger_table
from ematrace.results import AmbiguousSelection, ResultError, Store, Table, read_file

RECORDED = Path(__file__).resolve().parents[1] / "results"


def of_seed_0(experiment: str) -> list[str]:
    """Recorded files, a drawn grammar's before that of half passives."""
    found = sorted((RECORDED / experiment).glob("grammar-*_seed-0_cpu.json"))
    return [path.relative_to(RECORDED).as_posix() for path in found]


SOURCES = (
    *of_seed_0("trace_probe")[-2:],
    *of_seed_0("controls")[-1:],
    *of_seed_0("dimension_control")[-1:],
    "spen_model/seed-0_cpu.json",
    "spen_streaming/seed-0_gpu.json",
    "spen_training/preset-spen-130m_seed-0_gpu.json",
    "topk_gpu/seed-0_gpu.json",
)
MUTATIONS = 200
HOSTILE = (
    "<script>zq()</script>",
    "</script><script>zq()</script>",
    '"><img src=zq onerror=zq()>',
    "'><svg/onload=zq()>",
    "javascript:zq()",
    "{{7*1111111}}",
    "{% for x in 7*1111111 %}",
    "${7*1111111}",
    "__import__('pathlib').Path('zq').touch()",
    "{0.__class__.__mro__} %(zq)s %n",
    "[red]zq[/red] [link=file:///zq]x[/link]",
    "../../../zq",
    "\x1b]0;zq\x07\x1b[2J",
    "a\nb\u2028c\x00",
    "\ud800",
)
OTHERS = (None, True, False, 0, -1, 0.5, 3e7, 1e308, -1e-320, 10**400, 2**60, "", "1", "NaN", [], {}, [[]], {"a": {}})

Mutation = Callable[[random.Random, bytes], bytes]


def nodes(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) below a value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in items:
        yield value, key
        yield from nodes(part)


def pick(rng: random.Random, record: Any, kind: type = object) -> tuple[Any, Any]:
    """A node, from every depth alike: most numbers lie deep inside cells."""
    by_depth = [list(nodes(record))[: len(record)], [n for n in nodes(record) if isinstance(n[0][n[1]], kind)]]
    return rng.choice(rng.choice(by_depth) if kind is object else by_depth[1])


def flip_bits(rng: random.Random, data: bytes) -> bytes:
    text = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        text[rng.randrange(len(text))] ^= 1 << rng.randrange(8)
    return bytes(text)


def cut(rng: random.Random, data: bytes) -> bytes:
    start = rng.randrange(len(data))
    return data[:start] if rng.random() < 0.5 else data[:start] + data[start + rng.randint(1, 40) :]


def repeat(rng: random.Random, data: bytes) -> bytes:
    start = rng.randrange(len(data))
    end = start + rng.randint(1, 200)
    return data[:end] + data[start:end] + data[end:]


def swap_type(rng: random.Random, data: bytes) -> bytes:
    record = json.loads(data)
    container, key = pick(rng, record)
    container[key] = rng.choice(OTHERS)
    return json.dumps(record).encode()


def insert_text(rng: random.Random, data: bytes) -> bytes:
    record = json.loads(data)
    container, key = pick(rng, record, str)
    container[key] = rng.choice([container[key], ""]) + rng.choice(HOSTILE)
    return json.dumps(record).encode()


def insert_setting(rng: random.Random, data: bytes) -> bytes:
    """Settings are free: what stands there must get through, and only as text."""
    record = json.loads(data)
    for text in rng.sample(HOSTILE[:-3], 4):
        record["settings"][rng.choice(["title", "note", text])] = text
    return json.dumps(record).encode()


def swap_setting(rng: random.Random, data: bytes) -> bytes:
    """The schema knows no types of settings, so whoever shows them must not either."""
    record = json.loads(data)
    container, key = rng.choice(list(nodes(record["settings"])))
    container[key] = rng.choice([*OTHERS, *HOSTILE])
    return json.dumps(record).encode()


def rename_key(rng: random.Random, data: bytes) -> bytes:
    record = json.loads(data)
    container, key = pick(rng, record)
    if isinstance(container, dict):
        container[rng.choice([*HOSTILE[:-1], "extra", f"{key}2", "grammar"])] = container.pop(key)
    return json.dumps(record).encode()


def give_twice(rng: random.Random, data: bytes) -> bytes:
    """A key of an object again, with another value: most parsers keep one and say nothing."""
    record = json.loads(data)
    found = [(box, key) for box, key in nodes(record) if isinstance(box, dict)]
    container, key = rng.choice(found)
    container["\0twice"] = rng.choice([container[key], *OTHERS[:6]])
    return json.dumps(record).replace('"\\u0000twice"', json.dumps(key)).encode()


def nest(rng: random.Random, data: bytes) -> bytes:
    depth = rng.choice([5, 100, 900, 20_000])
    record = json.loads(data)
    container, key = pick(rng, record)
    container[key] = "\0deep"
    inside = rng.choice(["[" * depth + "]" * depth, '{"a":' * depth + "1" + "}" * depth])
    return json.dumps(record).replace('"\\u0000deep"', inside).encode()


def move_cells(rng: random.Random, data: bytes) -> bytes:
    record = json.loads(data)
    cells = record["cells"]
    cells.insert(rng.randrange(len(cells)), rng.choice([*cells, {}, None, {"factors": {}, "metrics": {}}]))
    if rng.random() < 0.5:
        rng.shuffle(cells)
        del cells[rng.randint(0, 2)]
    return json.dumps(record).encode()


KINDS: tuple[Mutation, ...] = (
    *(flip_bits, cut, repeat, swap_type, insert_text, insert_setting, swap_setting),
    *(rename_key, give_twice, nest, move_cells),
)


class Page(HTMLParser):
    """What a browser would run."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[str] = []
        self.in_script = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.in_script = tag == "script"
        for name, value in attrs:
            if (name.startswith("on") or name in ("href", "src", "srcdoc", "style")) and "zq" in (value or ""):
                self.found.append(f"<{tag} {name}={value!r}>")

    def handle_endtag(self, tag: str) -> None:
        self.in_script = False

    def handle_data(self, data: str) -> None:
        if self.in_script and data.strip().startswith("zq("):
            self.found.append(data)


def count_metrics(data: bytes) -> int:
    """Metrics in the text, equal keys included."""
    pairs = dict(json.loads(data, object_pairs_hook=lambda pairs: pairs))
    return sum(len(part) for row in pairs["cells"] for name, part in row if name == "metrics")


def show(folder: Path) -> tuple[str, str, str]:
    """What `ematrace ledger --json`, `ematrace ledger` and `ematrace report` give."""
    store = Store(folder, folder / "local")
    rows = build_ledger(Table(store.load()))
    terminal = io.StringIO()
    Console(file=terminal, width=200).print(ledger_table(rows))
    page = write_report(store, folder / "page.html").read_text(encoding="utf-8")
    return json.dumps([row.to_json() for row in rows], allow_nan=False), terminal.getvalue(), page


def check_refusal(error: Exception, path: Path) -> None:
    """One line for a terminal that names the file."""
    assert str(error).isprintable()
    assert str(path) in str(error)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in SOURCES:
        (tmp_path / "results" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(RECORDED / name, tmp_path / "results" / name)
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    return tmp_path / "results"


def test_200_mutations_are_refused_or_harmless(folder: Path) -> None:
    clean = {name: (folder / name).read_bytes() for name in SOURCES}
    accepted: dict[str, list[bytes]] = {name: [] for name in SOURCES}
    refused = 0
    for i in range(MUTATIONS):
        rng = random.Random(i)
        name = SOURCES[i // len(KINDS) % len(SOURCES)]
        path, data = folder / name, KINDS[i % len(KINDS)](rng, clean[name])
        path.write_bytes(data)
        try:
            file = read_file(path)
        except ResultError as error:
            refused += 1
            check_refusal(error, path)
        else:
            assert sum(len(row.metrics) for row in file.cells) == count_metrics(data)
            if data != clean[name]:
                accepted[name].append(data)
        assert path.read_bytes() == data
        path.write_bytes(clean[name])

    survivors = sum(map(len, accepted.values()))
    assert refused > 60
    assert survivors > 30
    # Together, a mutation of each file at a time; one that is refused now is put back and the rest shown again.
    for batch in zip_longest(*accepted.values()):
        mutated = {name: data for name, data in zip(SOURCES, batch, strict=True) if data is not None}
        for name in SOURCES:
            (folder / name).write_bytes(mutated.get(name, clean[name]))
        show_or_put_back(folder, mutated, clean)


def show_or_put_back(folder: Path, mutated: dict[str, bytes], clean: dict[str, bytes]) -> None:
    while True:
        try:
            ledger, terminal, page = show(folder)
        except (ResultError, AmbiguousSelection) as error:
            name = next(name for name in mutated if str(folder / name) in str(error))
            check_refusal(error, folder / name)
            assert (folder / name).read_bytes() == mutated.pop(name)
            (folder / name).write_bytes(clean[name])
            continue
        break
    assert len(json.loads(ledger)) == 50
    for text in (ledger, terminal, page):
        assert "7777777" not in text
        assert "\x1b" not in text
    assert Page(page).found == []
    assert not list(folder.parent.rglob("zq*"))
    for name in SOURCES:
        assert (folder / name).read_bytes() == mutated.get(name, clean[name])


def test_the_search_would_notice_what_a_browser_runs() -> None:
    for text in HOSTILE[:4]:
        assert Page(f'<p title="{text}">{text}</p>' if '"' in text else f"<p title='{text}'>{text}</p>").found
    assert not Page("<p>&lt;script&gt;zq()&lt;/script&gt;</p><script>x = '\\u003cscript>zq()'</script>").found
