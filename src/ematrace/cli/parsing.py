"""From words to a command's dataclass, with tyro; errors in plain words."""

from __future__ import annotations

import inspect
import shutil
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

T = TypeVar("T")
NUMBERS = {int: "a whole number", float: "a number"}
registry = ConstructorRegistry()


def parse(kind: type[T], prog: str, arguments: Sequence[str]) -> T:
    """The command with these arguments. Bad ones end the program with exit code 2, --help with 0."""
    if "-h" in arguments or "--help" in arguments:
        if sys.stdout is None:  # closed: nobody to help
            raise SystemExit(0)
        print(f"{wrap(inspect.getdoc(kind) or '', shutil.get_terminal_size().columns)}\n")
    return tyro.cli(
        kind,
        prog=prog,
        args=arguments,
        description="",  # tyro would join its lines
        config=(tyro.conf.PositionalMetavarFromFieldName,),
        registry=registry,
    )


def wrap(text: str, width: int) -> str:
    """Paragraphs filled to a width; lines that are indented stay as they are.

    >>> wrap("\\n".join(["A sentence", "over two lines.", "    a table  as it is"]), 30).splitlines()
    ['A sentence over two lines.', '    a table  as it is']
    """
    lines: list[str] = []
    for kept, group in groupby(text.splitlines(), lambda line: not line or line.startswith(" ")):
        block = list(group)
        lines += block if kept else [textwrap.fill(" ".join(block), width)]
    return "\n".join(lines)


@registry.primitive_rule
def number(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """`many` for a number is not an error of `int()`, but of the person who typed it."""
    kind: Any = info.type
    if kind not in NUMBERS:
        return None

    def read(texts: list[str]) -> Any:
        try:
            return kind(texts[0])
        except ValueError:
            raise ValueError(f"{texts[0]!r} is not {NUMBERS[kind]}") from None

    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=kind.__name__.upper(),
        instance_from_str=read,
        is_instance=lambda value: isinstance(value, kind) or (kind is float and isinstance(value, int)),
        str_from_instance=lambda value: [str(value)],
    )


@registry.primitive_rule
def optional(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """`X | None` reads X, or the word None. tyro's own rule shows the types of Python when neither fits."""
    kinds = [kind for kind in get_args(info.type) if kind is not NoneType]
    if info.type_origin not in (Union, UnionType) or len(kinds) != 1 or len(get_args(info.type)) != 2:
        return None
    spec = ConstructorRegistry.get_primitive_spec(PrimitiveTypeInfo.make(kinds[0], info.markers))
    if not isinstance(spec, PrimitiveConstructorSpec) or spec.nargs != 1:
        return None
    return replace(
        spec,
        instance_from_str=lambda texts: None if texts == ["None"] else spec.instance_from_str(texts),
        is_instance=lambda value: value is None or spec.is_instance(value),
        str_from_instance=lambda value: ["None"] if value is None else spec.str_from_instance(value),
        choices=None if spec.choices is None else (*spec.choices, "None"),
    )
