"""Datasets of the Hugging Face hub, streamed: only what is read is downloaded."""

from __future__ import annotations

import glob
import os
import re
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ematrace.text.documents import Document, DocumentCursor, Source
from ematrace.text.readers import document_of_row

_LOCAL = re.compile(r"hf:(?P<builder>json|parquet|csv|text|arrow):(?P<pattern>.+)")
_HUB = re.compile(r"hf:(?P<name>[^/@:]+(/[^/@:]+)?)(/(?P<config>[^/@:]+))?(@(?P<split>[^@/:]+))?")
_REACH_SECONDS = 5.0


def hub_is_reachable() -> bool:
    """Checked first: the hub's own client retries for minutes before it reports that there is no network."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}:
        return False
    if urllib.request.getproxies():  # a direct connection would tell nothing
        return True
    address = urlsplit(os.environ.get("HF_ENDPOINT") or "https://huggingface.co")
    port = address.port or (80 if address.scheme == "http" else 443)
    try:
        socket.create_connection((address.hostname or "", port), timeout=_REACH_SECONDS).close()
    except OSError:
        return False
    return True


class HubSource(Source):
    """`hf:NAME[/CONFIG][@SPLIT]`, or local files read with `datasets`: `hf:parquet:GLOB`."""

    def __init__(self, spec: str) -> None:
        self.spec = spec
        self.files: list[str] = []
        if local := _LOCAL.fullmatch(spec):
            self.name, self.config, self.split = local["builder"], None, "train"
            pattern = str(Path(local["pattern"]).expanduser())
            self.files = sorted(glob.glob(pattern, recursive=True))  # noqa: PTH207
            if not self.files:
                raise FileNotFoundError(f"{spec}: no file matches")
        elif hub := _HUB.fullmatch(spec):
            self.name, self.config, self.split = hub["name"], hub["config"], hub["split"] or "train"
        else:
            raise ValueError(f"{spec}: not of the form hf:NAME[/CONFIG][@SPLIT] or hf:json:GLOB")

    def __iter__(self) -> Iterator[Document]:
        return iter(self.cursor())

    def cursor(self) -> DocumentCursor:
        return HubCursor(self)

    def identity(self) -> dict[str, Any]:
        stats = [Path(file).stat() for file in self.files]
        files = [[file, stat.st_size, stat.st_mtime_ns] for file, stat in zip(self.files, stats, strict=True)]
        return {"spec": self.spec, "files": files}

    def open(self) -> Any:
        """The `datasets.IterableDataset`."""
        try:
            import datasets
        except ImportError:
            raise ValueError(f"{self.spec}: needs the datasets library (pip install datasets)") from None
        if not self.files and not hub_is_reachable():
            raise OSError(
                f"{self.spec}: the Hugging Face hub cannot be reached; give a local file or folder instead, "
                "or hf:parquet:GLOB for a copy of the dataset's files"
            )
        options = {"data_files": self.files} if self.files else {}
        try:
            return datasets.load_dataset(self.name, self.config, split=self.split, streaming=True, **options)
        except Exception as error:  # the library raises anything from OSError to its own classes
            raise OSError(f"{self.spec}: {_one_line(error)}") from None


class HubCursor(DocumentCursor):
    """Resumes with the dataset's own state, without reading the documents before it."""

    def __init__(self, source: HubSource) -> None:
        self.source = source
        self.n_rows = 0
        self._dataset: Any = None
        self._start: dict[str, Any] | None = None

    def __iter__(self) -> Iterator[Document]:
        self._dataset = self.source.open()
        if self._start is not None:
            self._dataset.load_state_dict(self._start)
        where = self.source.spec
        for row in self._rows():
            self.n_rows += 1
            default_id = f"{self.source.name}:{self.n_rows}"
            document = document_of_row(row, f"{where}: row {self.n_rows}", default_id, self.source.name)
            if document.text:
                yield document

    def state_dict(self) -> dict[str, Any]:
        dataset = self._start if self._dataset is None else self._dataset.state_dict()
        return {"n_rows": self.n_rows, "dataset": dataset}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.n_rows, self._start, self._dataset = int(state["n_rows"]), state["dataset"], None

    def _rows(self) -> Iterator[Any]:
        try:
            yield from self._dataset
        except Exception as error:  # a lost connection, a broken file: again anything
            raise OSError(f"{self.source.spec}: after row {self.n_rows}: {_one_line(error)}") from None


def _one_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0]
