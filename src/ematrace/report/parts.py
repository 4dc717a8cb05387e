"""What the page is made of: parts, each shown by a macro of `templates/parts.html.j2`.

Jinja escapes every text; a part, and MarkupSafe's `Markup`, stand for markup. Text with markup in it is made by
`Markup("<code>{}</code>").format(text)`, which escapes what is filled in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Literal, TypeAlias

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ematrace.report.formatting import short

MAX_DEPTH = 6  # of nested settings; a result file may nest them a thousand deep
LISTED = 1  # levels of settings with a line for each name; deeper ones stand in one line


@cache
def templates() -> Environment:
    """The package's templates, in which every text is escaped."""
    environment = Environment(
        loader=PackageLoader("ematrace.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["short"] = short
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "allow_nan": False}
    return environment


class Part:
    """A piece of the page. It may stand wherever text may: Jinja and MarkupSafe call `__html__`."""

    macro: ClassVar[str]
    template: ClassVar[str] = "parts.html.j2"

    def __html__(self) -> str:
        show = getattr(templates().get_template(self.template).module, self.macro)
        return str(show(self))

    def children(self) -> Iterable[object]:
        """The parts inside this one, among other things."""
        return ()


Content: TypeAlias = "str | Part"
"""Text, which is escaped, or markup."""


def walk(content: object) -> Iterator[Part]:
    """A part and all parts inside it, in the order of the page; nothing for text."""
    if isinstance(content, Part):
        yield content
        for child in content.children():
            yield from walk(child)


def code(text: object) -> Markup:
    return Markup("<code>{}</code>").format(text)


@dataclass(frozen=True)
class Paragraph(Part):
    text: Content
    style: str = ""
    macro = "paragraph"


@dataclass(frozen=True)
class Block(Part):
    """Parts in a box; `style` is its CSS class."""

    parts: Sequence[Content]
    style: str = ""
    macro = "block"

    def children(self) -> Iterable[object]:
        return self.parts


@dataclass(frozen=True)
class Fold(Part):
    """Parts behind a line that opens them."""

    summary: Content
    parts: Sequence[Content]
    style: str = "fold"
    id: str = ""
    macro = "fold"

    def children(self) -> Iterable[object]:
        return self.parts


@dataclass(frozen=True)
class Values(Part):
    """Settings and the like: names and values, nested ones as an indented list."""

    values: Mapping[str, Any]
    depth: int = 0
    macro = "values"

    @property
    def items(self) -> list[tuple[str, Content]]:
        return [(str(name), self._shown(value)) for name, value in self.values.items()]

    def _shown(self, value: object) -> Content:
        if isinstance(value, Mapping) and value and self.depth < LISTED:
            return Values(value, self.depth + 1)
        return value_text(value, self.depth)


def value_text(value: object, depth: int = 0) -> str:
    """Anything that JSON can hold, in one line."""
    if isinstance(value, list | tuple | Mapping) and value and depth >= MAX_DEPTH:
        return "…"
    if isinstance(value, list | tuple):
        return ", ".join(value_text(v, depth + 1) for v in value) or "none"
    if isinstance(value, Mapping):
        return "; ".join(f"{name} {value_text(v, depth + 1)}" for name, v in value.items()) or "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    return "–" if value is None else str(value)


@dataclass(frozen=True)
class TableCell:
    """A cell with a `scope` is a header."""

    content: Content = ""
    style: str = ""
    scope: Literal["", "row", "col", "colgroup"] = ""
    colspan: int = 1
    rowspan: int = 1


@dataclass(frozen=True)
class TableRow:
    cells: Sequence[TableCell]
    style: str = ""


@dataclass(frozen=True)
class DataTable(Part):
    """A table; on a phone each row is a card in which every cell has the name of its column.

    `label` names the table to screen readers.
    """

    label: str
    head: Sequence[TableRow]
    body: Sequence[TableRow]
    style: str = "figures"
    macro = "table"

    def children(self) -> Iterable[object]:
        return (cell.content for row in (*self.head, *self.body) for cell in row.cells)

    @property
    def says_scopes(self) -> bool:
        """HTML knows what is a header of what by itself if the head and the first column are headers throughout."""
        head = all(cell.scope for row in self.head for cell in row.cells)
        return not (head and all(row.cells[0].scope and not any(c.scope for c in row.cells[1:]) for row in self.body))

    @property
    def labels(self) -> str:
        """The names of the columns as CSS that the cells show on a phone; the first column is the card's heading."""
        return ";".join(f"--c{i}:{css_string(name)}" for i, name in enumerate(self.columns, start=1) if i > 1)

    @property
    def columns(self) -> list[str]:
        """The name of each column, with that of its group before it."""
        names: list[list[str]] = []
        covered: list[int] = []  # rows of the head that a cell above still covers, by column
        for row in self.head:
            at = 0
            for cell in row.cells:
                while at < len(covered) and covered[at] > 0:
                    covered[at] -= 1
                    at += 1
                for _ in range(cell.colspan):
                    if at == len(names):
                        names.append([])
                        covered.append(0)
                    names[at].append(str(cell.content))
                    covered[at] = cell.rowspan - 1
                    at += 1
        return [", ".join(filter(None, parts)) for parts in names]


HARMLESS = frozenset(" ,.()/%+-±²→_")  # in a CSS string inside an attribute


def css_string(text: str) -> str:
    """Quoted for a style attribute; whatever is not a letter, a digit or harmless is written as its code.

    >>> css_string('W (A), "x"')
    "'W (A), \\\\22 x\\\\22 '"
    """
    return "'" + "".join(c if c.isalnum() or c in HARMLESS else f"\\{ord(c):x} " for c in text) + "'"


def plain_table(
    heads: Sequence[str], rows: Sequence[Sequence[Content]], label: str, style: Literal["", "words"] = ""
) -> DataTable:
    """A row's name, and cells that are all numbers or, in the style `words`, text."""
    head = TableRow([TableCell(h, scope="col") for h in heads])
    body = [TableRow([TableCell(row[0], scope="row"), *map(TableCell, row[1:])]) for row in rows]
    return DataTable(label, [head], body, f"figures {style}".strip())
