"""The code that travels with a saved model: one file in plain torch, made of this package's own sources.

It holds the modules that the model needs, in the order of their imports and without them. The operators that have
kernels, and the registry of mixers, are replaced by `plain.py`.
"""

from __future__ import annotations

import ast
import importlib.util
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

HEADER = '''"""A language model of ematrace in plain torch, for `trust_remote_code=True` without ematrace.

Generated from ematrace's sources by `save_pretrained`; not meant to be edited.
"""
'''
PLAIN = "ematrace.models.plain"
# Modules of which only some definitions are in plain torch; the others are replaced by those of `plain.py`.
PARTS: dict[str, tuple[str, ...]] = {
    "ematrace.traces.operator": ("AUTOCAST_DEVICES", "no_autocast"),
    "ematrace.ops.topk": ("check_topk", "topk_mask", "gelu_rank"),
    "ematrace.ops.load_balance": ("load_balance_loss", "_weights", "_kept_shares"),
}
REPLACED = (
    *("ematrace.files", "ematrace.kernels", "ematrace.ops", "ematrace.mixers", "ematrace.models.standalone"),
    "ematrace.traces.fused_columns",
)
PACKAGES = {"ematrace.traces": "ematrace.traces.module", "ematrace.models": "ematrace.models.modeling"}


def modeling_code(config: Any) -> str:
    """The source of a module with the classes of the model that `config` describes.

    A mixer from outside this package stays outside: then the module is one line, which needs ematrace.
    """
    from ematrace.mixers import MIXERS

    name = config.skeleton().mixer
    if name != "spen" and name not in MIXERS:
        return f"from {config._package} import {', '.join(sorted(config._classes.values()))}\n"
    module = "ematrace.spen.mixer" if name == "spen" else f"ematrace.mixers.{name}"
    mixer = "SpenMixer" if name == "spen" else MIXERS[name].__name__
    roots = (module, f"{config._package}.configuration", f"{config._package}.modeling")
    return f'{_bundle(roots)}\nMIXERS["{name}"] = {mixer}\n'


@cache
def _bundle(roots: tuple[str, ...]) -> str:
    order: list[str] = []
    seen: set[str] = set()
    for root in roots:
        _visit(root, order, seen)
    imports: list[ast.Import | ast.ImportFrom] = []
    bodies: list[str] = []
    taken: set[str] = set()
    for module in order:
        text, definitions, outside = _parts_of(module)
        imports += outside
        for name in sorted(definitions & taken):
            text = _renamed(text, name, f"{name}_of_{module.rpartition('.')[2]}")
        taken |= definitions
        bodies.append(f"# {module}\n\n{text.strip()}\n")
    body = "\n\n".join(bodies)
    return f"{HEADER}\nfrom __future__ import annotations\n\n{_import_lines(imports, body)}\n\n\n{body}"


def _import_lines(imports: list[ast.Import | ast.ImportFrom], body: str) -> str:
    """One line for each module, with the names that are used."""
    names: dict[str, set[str]] = {}
    for node in imports:
        for alias in node.names:
            if re.search(rf"\b{alias.asname or alias.name.partition('.')[0]}\b", body):
                names.setdefault(getattr(node, "module", ""), set()).add(ast.unparse(alias))
    plain = [f"import {name}" for name in sorted(names.pop("", ()))]
    return "\n".join(plain + [f"from {home} import {', '.join(sorted(names[home]))}" for home in sorted(names)])


def _visit(module: str, order: list[str], seen: set[str]) -> None:
    """What a module imports comes before it, but for what imports it in turn and needs it only when it is called."""
    if module in seen:
        return
    seen.add(module)
    for imported in _imported(_source(module)):
        _visit(imported, order, seen)
    order.append(module)


def _imported(source: str) -> Iterator[str]:
    for node in ast.parse(source).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ematrace"):
            assert node.module is not None
            replaced = node.module in REPLACED or (node.module in PARTS and not _all_in_parts(node))
            yield PLAIN if replaced else PACKAGES.get(node.module, node.module)
            if node.module in PACKAGES:
                yield PLAIN


def _all_in_parts(node: ast.ImportFrom) -> bool:
    assert node.module is not None
    return all(alias.name in PARTS[node.module] for alias in node.names)


@cache
def _source(module: str) -> str:
    """Of a module, or of the definitions in it that are used."""
    spec = importlib.util.find_spec(module)
    assert spec is not None
    source = Path(str(spec.origin)).read_text(encoding="utf-8")
    if module not in PARTS:
        return source
    lines = source.splitlines(keepends=True)
    kept = [
        "".join(lines[_first(node) - 1 : node.end_lineno])
        for node in ast.parse(source).body
        if isinstance(node, ast.Import | ast.ImportFrom) or _defined(node) & set(PARTS[module])
    ]
    return "\n\n".join(kept)


def _parts_of(module: str) -> tuple[str, set[str], list[ast.Import | ast.ImportFrom]]:
    """The text without docstring and imports, the names it defines, and the imports from outside the package."""
    source = _source(module)
    lines = source.splitlines(keepends=True)
    outside: list[ast.Import | ast.ImportFrom] = []
    definitions: set[str] = set()
    for i, node in enumerate(ast.parse(source).body):
        is_docstring = i == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if isinstance(node, ast.Import | ast.ImportFrom):
            home = node.module or "" if isinstance(node, ast.ImportFrom) else ""
            if not home.startswith("ematrace") and home != "__future__":
                outside.append(node)
        if is_docstring or isinstance(node, ast.Import | ast.ImportFrom):
            for n in range(node.lineno - 1, node.end_lineno or node.lineno):
                lines[n] = ""
        definitions |= _defined(node)
    return "".join(lines), definitions, outside


def _first(node: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


def _defined(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return {target.id for target in targets if isinstance(target, ast.Name)}


def _renamed(text: str, name: str, new: str) -> str:
    """`name` of one module, which another has too, under a name of its own; attributes keep theirs."""
    lines = text.splitlines(keepends=True)
    before = ""
    places = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.NAME and token.string == name and before != ".":
            places.append(token.start)
        before = token.string
    for row, column in reversed(places):
        line = lines[row - 1]
        lines[row - 1] = line[:column] + new + line[column + len(name) :]
    return "".join(lines)
