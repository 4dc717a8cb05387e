"""Corpora: `builtin` (text that CPython ships), files on disk, the Hugging Face hub."""

from __future__ import annotations

import glob
import hashlib
import importlib
import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ematrace.text.documents import Document, Source
from ematrace.text.hub import HubSource
from ematrace.text.readers import SUPPORTED, is_supported, read_documents

BUILTIN_BYTES = 8_000_000


class BuiltinSource(Source):
    """Prose and code that CPython ships: the topics of `pydoc` and the modules of the standard library.

    Documents come in the order of a hash of their id, so that any prefix is a fair sample of the whole.
    """

    spec = "builtin"
    validation_share = 0.05  # few documents: 1% of them would be seven
    _FOREIGN = frozenset({"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"})
    # Character tables, and the topics again as one file.
    _NOT_CODE = frozenset({"encodings", "pydoc_data"})

    def __init__(self, max_bytes: int = BUILTIN_BYTES) -> None:
        if max_bytes < 1:
            raise ValueError(f"builtin: max_bytes is {max_bytes}, must be positive")
        self.max_bytes = max_bytes

    def __iter__(self) -> Iterator[Document]:
        stdlib = Path(sysconfig.get_paths()["stdlib"])
        topics = self._topics()
        names = [f"pydoc/{name}" for name in topics] + [f"stdlib/{name}" for name in self._modules(stdlib)]
        n_bytes = 0
        for name in sorted(names, key=lambda name: hashlib.sha256(name.encode()).digest()):
            domain, _, inner = name.partition("/")
            try:
                raw = topics[inner].encode() if domain == "pydoc" else (stdlib / inner).read_bytes()
                text = raw.decode()
            except UnicodeDecodeError:  # a few modules are written in Latin-1
                continue
            if text:
                yield Document(text, name, domain)
            n_bytes += len(raw)
            if n_bytes >= self.max_bytes:
                return

    def identity(self) -> dict[str, Any]:
        digest = hashlib.sha256()
        for document in self:
            for part in (document.id, document.text):
                digest.update(part.encode() + b"\0")
        return {"spec": self.spec, "max_bytes": self.max_bytes, "sha256": digest.hexdigest()}

    @staticmethod
    def _topics() -> dict[str, str]:
        try:
            topics: dict[str, str] = importlib.import_module("pydoc_data.topics").topics
        except ImportError:  # not in the minimal Python of some Linux distributions
            return {}
        return topics

    def _modules(self, stdlib: Path) -> list[str]:
        # _sysconfigdata and config-…: paths and flags of the machine that compiled this Python
        machine = ("_sysconfigdata", "config-")
        names = []
        for folder, inside, files in os.walk(stdlib):
            at_top = Path(folder) == stdlib
            leave_out = self._FOREIGN | (self._NOT_CODE if at_top else set())
            inside[:] = [name for name in inside if name not in leave_out and not name.startswith(machine)]
            modules = [name for name in files if name.endswith(".py") and not name.startswith(machine)]
            names += [(Path(folder) / name).relative_to(stdlib).as_posix() for name in modules]
        return names


class FileSource(Source):
    """Files of text, JSON lines or treebanks, each optionally compressed, in sorted order."""

    def __init__(self, spec: str) -> None:
        self.spec = spec
        self.root, self.paths = _matching_files(spec)

    def __iter__(self) -> Iterator[Document]:
        alone = len(self.paths) == 1
        for path in self.paths:
            yield from read_documents(path, path.relative_to(self.root).as_posix(), alone)

    def identity(self) -> dict[str, Any]:
        files = []
        for path in self.paths:
            stat = path.stat()
            files.append([str(path.resolve()), stat.st_size, stat.st_mtime_ns])
        return {"spec": self.spec, "files": files}


def open_source(spec: str | Source) -> Source:
    """`builtin`, a path, folder or glob, or `hf:NAME[/CONFIG][@SPLIT]`.

    `hf:json:GLOB`, `hf:parquet:GLOB` (also csv, text, arrow) stream local files with `datasets`.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     for name in ("one.txt", "two.md"):
    ...         size = Path(folder, name).write_text("Once upon a time.")
    ...     [document.id for document in open_source(f"{folder}/*")]
    ['one.txt', 'two.md']
    """
    if isinstance(spec, Source):
        return spec
    if not spec:
        raise ValueError("source: empty; give builtin, a path, a glob or hf:NAME")
    if spec == "builtin":
        return BuiltinSource(BUILTIN_BYTES)
    if spec.startswith("hf:"):
        return HubSource(spec)
    return FileSource(spec)


def _matching_files(spec: str) -> tuple[Path, list[Path]]:
    """The folder that document ids are relative to, and the files."""
    path = Path(spec).expanduser()
    if path.is_file():
        if not is_supported(path):
            raise ValueError(f"{spec}: file type not supported ({SUPPORTED})")
        return path.parent, [path]
    if path.is_dir():
        root, candidates = path, [child for child in path.iterdir() if not child.name.startswith(".")]
        hint = f"; for the folders inside it: {path}/**"
    elif not glob.has_magic(spec):
        raise FileNotFoundError(f"{spec}: no such file or folder")
    else:
        root = _fixed_part(path)
        # unlike pathlib's, this glob skips hidden files and accepts absolute patterns
        candidates = [Path(name) for name in glob.glob(str(path), recursive=True)]  # noqa: PTH207
        hint = ""
    files = sorted({child for child in candidates if child.is_file() and is_supported(child)})
    if not files:
        raise FileNotFoundError(f"{spec}: no file matches of a supported type ({SUPPORTED}){hint}")
    return root, files


def _fixed_part(pattern: Path) -> Path:
    """The folders before the first wildcard."""
    fixed = []
    for part in pattern.parts[:-1]:
        if glob.has_magic(part):
            break
        fixed.append(part)
    return Path(*fixed)
