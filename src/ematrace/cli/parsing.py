"""From words to a command's dataclass, with tyro; errors are one line, as everywhere."""

from __future__ import annotations

import inspect
import io
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import replace
from itertools import groupby
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from ematrace.names import did_you_mean

T = TypeVar("T")
NUMBERS = {int: "a whole number", float: "a number"}
registry = ConstructorRegistry()


def parse(kind: type[T], prog: str, arguments: Sequence[str]) -> T:
    """The command with these arguments. Bad ones are a ValueError; --help ends the program with exit code 0.

    A command says with `ONLY_WITH` which options, by how they begin, have no effect unless a flag of it is given.
    """
    if "-h" in arguments or "--help" in arguments:
        if sys.stdout is None:  # closed: nobody to help
            raise SystemExit(0)
        print(f"{wrap(inspect.getdoc(kind) or '', shutil.get_terminal_size().columns)}\n")
    with _errors_of_tyro(kind, prog):
        command = _tyro(kind, prog, arguments)
    for beginning, flag in getattr(kind, "ONLY_WITH", {}).items():
        without_effect = [word for word in arguments if word.startswith(beginning)]
        if without_effect and not getattr(command, flag):
            raise ValueError(f"{without_effect[0].partition('=')[0]}: a setting of --{flag}, which is not given")
    return command


def _tyro(kind: type[T], prog: str, arguments: Sequence[str]) -> T:
    return tyro.cli(
        kind,
        prog=prog,
        args=arguments,
        description="",  # tyro would join its lines
        config=(tyro.conf.PositionalMetavarFromFieldName,),
        registry=registry,
    )


@contextmanager
def _errors_of_tyro(kind: type[Any], prog: str) -> Iterator[None]:
    """What tyro would show in a box, as a ValueError of one line.

    Its hook is private, and constraints.txt pins its version: with another one, errors may be boxes again.
    """
    errors = getattr(tyro, "_errors", None)
    if errors is None:
        yield
        return

    def hook(event: Any) -> None:
        with suppress(AttributeError):
            line = in_one_line(event, kind, prog)
            if line is not None:
                raise ValueError(line)

    with errors.on_parse_error(hook):
        yield


def in_one_line(event: Any, kind: type[Any], prog: str) -> str | None:
    """An event of tyro in words that name the option; None for those that this program cannot cause."""
    more = f"; `{prog} --help` explains the command"
    match type(event).__name__:
        case "UnrecognizedArgs":
            return _unknown(event.tokens, kind, prog, more)
        case "MissingArgs":
            if any(token.startswith("-") for token in event.unrecognized_tokens):  # often the one that is missing
                return _unknown(event.unrecognized_tokens, kind, prog, more)
            missing = [_name(one.arg) for one in event.missing_arguments]
            return f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing{more}"
        case "BadValue":
            return f"{_name(event.argument)}: its value is missing{more}"
        case "InvalidChoice":
            hint = did_you_mean(event.value, event.choices)
            return f"{_name(event.argument)}: {event.value!r} is none of {', '.join(event.choices)}{hint}"
        case "InstantiationFailure":
            where = "" if event.argument is None else f"{_name(event.argument)}: "
            return where + " ".join(event.message.split())
    return None


def _unknown(tokens: Sequence[str], kind: type[Any], prog: str, more: str) -> str:
    """The options that there are not, or else the words that are too many."""
    options = [token.partition("=")[0] for token in tokens if token.startswith("-")]
    if not options:
        return f"{', '.join(map(repr, tokens))}: more than the command takes{more}"
    known = _options(kind, prog)
    return " ".join(f"no option {option}{did_you_mean(option, known) or more}" for option in options)


def _options(kind: type[Any], prog: str) -> list[str]:
    """Names of all options, as its help lists them: after a border, spaces or a comma, and not after a word."""
    with redirect_stdout(io.StringIO()) as text, suppress(SystemExit):
        _tyro(kind, prog, ["--help"])
    return re.findall(r"(?<![^│ ,] )--[a-z][\w.-]*", text.getvalue())


def _name(argument: Any) -> str:
    flags = argument.lowered.name_or_flags
    return str(argument.lowered.metavar) if argument.is_positional() else str(flags[0])


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
