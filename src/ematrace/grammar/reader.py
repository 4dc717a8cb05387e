"""Reading grammars from a TOML file, which is checked as a whole."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ematrace.grammar.grammar import Grammar, Slot, Structure, Variant

_DEFAULT = Path(__file__).with_name("default.toml")
_SUM_TOLERANCE = 1e-6
_SLOT = re.compile(r"(?P<role>[\w-]+)(=(?P<word_class>[\w-]+))?(?P<optional>\?)?")
_PHRASE = re.compile(r"(?P<phrase>[\w-]+):(?P<name>[\w-]+)")


class GrammarError(ValueError):
    """An invalid grammar file; the message is one line with the file and the field.

    >>> load_grammar("C")
    Traceback (most recent call last):
        ...
    ematrace.grammar.reader.GrammarError: default.toml: sides: no side 'C', there is A, B
    """


def load_grammar(name: str, path: str | Path | None = None) -> Grammar:
    """Side `name` of a grammar file, the packaged `default.toml` (sides A and B) unless `path` is given.

    The whole file is checked, including the other sides.

    >>> sentence = load_grammar("A").sample(1, seed=0)[0]
    >>> list(zip(sentence.words, sentence.roles))
    [('the', 'det_agent'), ('big', 'adj_agent'), ('tiger', 'noun_agent'), ('sleeps', 'verb_intrans')]
    """
    sides = _read(_DEFAULT if path is None else Path(path))
    if name not in sides:
        file = next(iter(sides.values())).file
        raise GrammarError(f"{file}: sides: no side {name!r}, there is {', '.join(sides)}")
    return sides[name]


@dataclass(frozen=True)
class _Table:
    """A table of the file with its path, so that errors name the field.

    msgspec would check the types, but its errors leave out the keys of tables (`$.structures[...].share`).
    """

    file: str
    field: str
    data: dict[str, Any]

    def error(self, key: str, problem: str) -> GrammarError:
        where = f"{self.field}.{key}".strip(".")
        return GrammarError(f"{self.file}: {where}: {problem}")

    def only(self, known: Collection[str]) -> None:
        for key in self.data:
            if key not in known:
                raise self.error(key, f"unknown field, known here: {', '.join(known)}")

    def get(self, key: str) -> Any:
        if key not in self.data:
            raise self.error(key, "missing")
        return self.data[key]

    def table(self, key: str) -> _Table:
        value = self.get(key)
        if not isinstance(value, dict):
            raise self.error(key, f"must be a table, not {value!r}")
        if not value:
            raise self.error(key, "empty")
        return _Table(self.file, f"{self.field}.{key}".strip("."), value)

    def text(self, key: str) -> str:
        value = self.get(key)
        if not isinstance(value, str):
            raise self.error(key, f"must be a string, not {value!r}")
        return value

    def fraction(self, key: str) -> float:
        value = self.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(key, f"must be a number, not {value!r}")
        if not 0 <= value <= 1:  # also catches nan
            raise self.error(key, f"{value} is not between 0 and 1")
        return float(value)

    def strings(self, key: str, empty_ok: bool = False) -> tuple[str, ...]:
        """A list of strings without whitespace."""
        value = self.get(key)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.error(key, "must be a list of strings")
        if not value and not empty_ok:
            raise self.error(key, "empty")
        for i, item in enumerate(value):
            if not item or any(char.isspace() for char in item):
                raise self.error(f"{key}[{i}]", f"{item!r} is empty or has whitespace in it")
        return tuple(value)

    def distinct(self, key: str, empty_ok: bool = False) -> tuple[str, ...]:
        items = self.strings(key, empty_ok)
        for i, item in enumerate(items):
            if item in items[:i]:
                raise self.error(key, f"{item!r} is listed twice")
        return items

    def classes(self) -> dict[str, tuple[str, ...]]:
        return {name: self.distinct(name) for name in self.data}


def _read(path: Path) -> dict[str, Grammar]:
    file = path.name if path == _DEFAULT else str(path)
    try:
        data = tomllib.loads(path.read_bytes().decode())
    except FileNotFoundError:
        raise GrammarError(f"{file}: no such file") from None
    except OSError as error:
        raise GrammarError(f"{file}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise GrammarError(f"{file}: not UTF-8 (at line {line})") from None
    except tomllib.TOMLDecodeError as error:
        raise GrammarError(f"{file}: broken TOML: {error}") from None
    return grammars_from(data, file)


def grammars_from(data: dict[str, Any], file: str) -> dict[str, Grammar]:
    """All sides of a grammar file's data, or the first GrammarError in it, which names the file."""
    top = _Table(file, "", data)
    top.only(("roles", "deep_roles", "ambiguous_words", "sampling", "function", "phrases", "structures", "sides"))
    roles = top.distinct("roles")
    deep_roles = top.distinct("deep_roles", empty_ok=True)
    _known_roles(top, "deep_roles", deep_roles, roles)

    sampling = top.table("sampling")
    sampling.only(("adjective_rate", "noun_bias", "biased_class", "first_half_roles"))
    adjective_rate, noun_bias = sampling.fraction("adjective_rate"), sampling.fraction("noun_bias")
    first_half_roles = sampling.distinct("first_half_roles", empty_ok=True)
    _known_roles(sampling, "first_half_roles", first_half_roles, roles)
    biased_class = sampling.text("biased_class")

    function, sides = top.table("function"), top.table("sides")
    function_classes = function.classes()
    content_classes = {name: sides.table(name).classes() for name in sides.data}
    ambiguous = top.distinct("ambiguous_words", empty_ok=True) if "ambiguous_words" in top.data else ()
    _check_words(top, function_classes, content_classes, ambiguous)

    structures, used_at = _structures(top, roles)
    for word_class, where in used_at.items():
        _check_class(top, word_class, f"used by {where}", function_classes, content_classes)
    _check_class(top, biased_class, "named by sampling.biased_class", function_classes, content_classes)
    for field, classes in [
        ("function", function_classes),
        *((f"sides.{s}", c) for s, c in content_classes.items()),
    ]:
        for word_class in classes:
            if word_class not in used_at:
                raise top.error(f"{field}.{word_class}", "no template uses this class")

    return {
        side: Grammar(
            name=side,
            file=top.file,
            roles=roles,
            deep_roles=deep_roles,
            function_classes=function_classes,
            content_classes=classes,
            structures=structures,
            adjective_rate=adjective_rate,
            noun_bias=noun_bias,
            biased_class=biased_class,
            first_half_roles=first_half_roles,
        )
        for side, classes in content_classes.items()
    }


def _known_roles(table: _Table, key: str, names: tuple[str, ...], roles: tuple[str, ...]) -> None:
    for name in names:
        if name not in roles:
            raise table.error(key, f"unknown role {name!r}, not in roles")


def _check_words(
    top: _Table,
    function_classes: dict[str, tuple[str, ...]],
    content_classes: dict[str, dict[str, tuple[str, ...]]],
    ambiguous: tuple[str, ...],
) -> None:
    """A word has one class unless declared ambiguous; no two sides share one, nor a side and [function]."""
    groups = {"function": function_classes} | {f"sides.{side}": c for side, c in content_classes.items()}
    first_seen: dict[str, tuple[str, str]] = {}
    for group, classes in groups.items():
        for word_class, words in classes.items():
            for word in words:
                other_group, other_class = first_seen.setdefault(word, (group, word_class))
                if other_group != group:
                    raise top.error(f"{group}.{word_class}", f"{word!r} is also in {other_group}.{other_class}")
                if other_class != word_class and word not in ambiguous:
                    problem = f"{word!r} is also in {other_group}.{other_class} and not in ambiguous_words"
                    raise top.error(f"{group}.{word_class}", problem)


def _check_class(
    top: _Table,
    word_class: str,
    reason: str,
    function_classes: dict[str, tuple[str, ...]],
    content_classes: dict[str, dict[str, tuple[str, ...]]],
) -> None:
    """A class is in [function] or in every side, never in both."""
    for side, classes in content_classes.items():
        field = f"sides.{side}.{word_class}"
        if word_class in function_classes and word_class in classes:
            raise top.error(field, "this class is also in [function]")
        if word_class not in function_classes and word_class not in classes:
            raise top.error(field, f"missing class, {reason}")


def _structures(top: _Table, roles: tuple[str, ...]) -> tuple[tuple[Structure, ...], dict[str, str]]:
    """The templates, and for each class they use the first field that uses it."""
    table = top.table("structures")
    phrases: dict[str, tuple[str, ...]] = {}
    if "phrases" in top.data:
        phrase_table = top.table("phrases")
        phrases = {name: phrase_table.strings(name) for name in phrase_table.data}
    used_at: dict[str, str] = {}
    produced: set[str] = set()

    def slots_of(owner: _Table) -> tuple[Slot, ...]:
        slots = []
        for i, text in enumerate(owner.strings("slots")):
            for slot in _expand(owner, f"slots[{i}]", text, phrases):
                if slot.role not in roles:
                    raise owner.error(f"slots[{i}]", f"unknown role {slot.role!r}, not in roles")
                used_at.setdefault(slot.word_class, f"{owner.field}.slots[{i}]")
                produced.add(slot.role)
                slots.append(slot)
        if all(slot.optional for slot in slots):
            raise owner.error("slots", "all are optional, so a sentence could be empty")
        return tuple(slots)

    structures = []
    for name in table.data:
        structure = table.table(name)
        if "variants" in structure.data:
            structure.only(("share", "variants"))
            variant_table = structure.table("variants")
            variants = []
            for variant_name in variant_table.data:
                variant = variant_table.table(variant_name)
                variant.only(("weight", "slots"))
                variants.append(Variant(variant_name, variant.fraction("weight"), slots_of(variant)))
            _check_sum(structure, "variants", "weights", [v.weight for v in variants])
        else:
            structure.only(("share", "slots"))
            variants = [Variant(name, 1.0, slots_of(structure))]
        structures.append(Structure(name, structure.fraction("share"), tuple(variants)))
    _check_sum(top, "structures", "shares", [s.share for s in structures])
    for role in roles:
        if role not in produced:
            raise top.error("roles", f"no template produces {role!r}")
    return tuple(structures), used_at


def _expand(owner: _Table, key: str, text: str, phrases: dict[str, tuple[str, ...]]) -> list[Slot]:
    """The slots that one entry of a template stands for."""
    slots = [text]
    if match := _PHRASE.fullmatch(text):
        if match["phrase"] not in phrases:
            raise owner.error(key, f"{text!r} names an unknown phrase, not in [phrases]")
        slots = [slot.replace("{}", match["name"]) for slot in phrases[match["phrase"]]]
    expanded = []
    for slot in slots:
        parts = _SLOT.fullmatch(slot)
        if parts is None:
            raise owner.error(key, f"cannot read slot {slot!r}, write role, role=class, role=class? or PHRASE:name")
        expanded.append(Slot(parts["role"], parts["word_class"] or parts["role"], parts["optional"] is not None))
    return expanded


def _check_sum(table: _Table, key: str, what: str, values: list[float]) -> None:
    if abs(sum(values) - 1) > _SUM_TOLERANCE:
        raise table.error(key, f"{what} sum to {sum(values):.6g}, not 1")
