"""Sources: what is read, in which order, and what each kind of broken file is called."""

from __future__ import annotations

import gzip
import json
import lzma
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ematrace.text import Document, open_source
from ematrace.text.corpora import BuiltinSource

ROWS = [
    {"text": "one\ntwo", "id": "a", "source": "news"},
    {"text": "žluťoučký 猫 🐈", "id": 7, "domain": "odd"},
    {"text": "third"},
]
TREEBANK = """# newdoc id = story-1
# sent_id = 1
# text = The cat sat.
1\tThe\tthe\tDET\t_\t_\t2\tdet\t_\t_
2\tcat\tcat\tNOUN\t_\t_\t3\tnsubj\t_\t_
3\tsat\tsit\tVERB\t_\t_\t0\troot\t_\tSpaceAfter=No
4\t.\t.\tPUNCT\t_\t_\t3\tpunct\t_\t_

# sent_id = 2
# text = It purred
1\tIt\tit\tPRON\t_\t_\t2\tnsubj\t_\t_
2\tpurred\tpurr\tVERB\t_\t_\t0\troot\t_\t_
2.1\tloudly\tloudly\tADV\t_\t_\t_\t_\t2:advmod\t_

# newdoc
# sent_id = 3
# text = Don't!
1-2\tDon't\t_\t_\t_\t_\t_\t_\t_\tSpaceAfter=No
1\tDo\tdo\tAUX\t_\t_\t0\troot\t_\t_
2\tn't\tnot\tPART\t_\t_\t1\tadvmod\t_\t_
3\t!\t!\tPUNCT\t_\t_\t1\tpunct\t_\t_
"""


def zstd(content: bytes) -> bytes:
    import pyarrow

    sink = pyarrow.BufferOutputStream()
    with pyarrow.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(content)
    return bytes(sink.getvalue().to_pybytes())


COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".xz": lzma.compress,
    ".gz": gzip.compress,
    ".zst": zstd,
}


def json_lines(rows: list[dict[str, object]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


@pytest.mark.parametrize("suffix", COMPRESS)
def test_json_lines_compressed_in_every_way(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"corpus.jsonl{suffix}"
    path.write_bytes(COMPRESS[suffix](json_lines(ROWS) + b"\n"))
    assert list(open_source(str(path))) == [
        Document("one\ntwo", "a", "news"),
        Document("žluťoučký 猫 🐈", "7", "odd"),
        Document("third", f"corpus.jsonl{suffix}:3", "corpus"),
    ]


@pytest.mark.parametrize("suffix", COMPRESS)
def test_plain_text_and_treebanks_compressed_in_every_way(tmp_path: Path, suffix: str) -> None:
    text = tmp_path / f"wiki.valid.raw{suffix}"
    text.write_bytes(COMPRESS[suffix]("\ufeffa\r\nb ů".encode()))
    assert list(open_source(str(text))) == [Document("a\r\nb ů", text.name, "wiki.valid")]
    bank = tmp_path / f"en-ud.conllu{suffix}"
    bank.write_bytes(COMPRESS[suffix](TREEBANK.encode()))
    assert list(open_source(str(bank))) == [
        Document("The cat sat. It purred", "story-1", "en-ud"),
        Document("Don't!", f"{bank.name}:2", "en-ud"),
    ]


def test_a_treebank_without_text_comments_gives_the_same_text(tmp_path: Path) -> None:
    (tmp_path / "a.conllu").write_text(TREEBANK)
    (tmp_path / "b.conllu").write_text("".join(line for line in TREEBANK.splitlines(True) if "# text" not in line))
    with_comments, without = ([d.text for d in open_source(str(tmp_path / f"{name}.conllu"))] for name in "ab")
    assert with_comments == without


def test_folders_and_globs_are_sorted_and_ids_do_not_depend_on_where_the_corpus_lies(tmp_path: Path) -> None:
    ids = []
    for place in ("here", "there"):
        for name in ("b.txt", "a.md", "sub/c.txt", "picture.png", ".hidden.txt"):
            path = tmp_path / place / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(name)
        folder = tmp_path / place
        assert [d.id for d in open_source(str(folder))] == ["a.md", "b.txt"]
        documents = list(open_source(f"{folder}/**"))
        assert [d.text for d in documents] == ["a.md", "b.txt", "sub/c.txt"]
        assert [d.domain for d in documents] == [place, place, "sub"]
        ids.append([d.id for d in documents])
        assert [d.id for d in open_source(f"{folder}/*.txt")] == ["b.txt"]
    assert ids[0] == ids[1]


def test_a_file_whose_name_looks_like_a_glob(tmp_path: Path) -> None:
    (tmp_path / "a[1].txt").write_text("brackets")
    assert [d.text for d in open_source(str(tmp_path / "a[1].txt"))] == ["brackets"]


def test_documents_without_text_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(json_lines([{"text": ""}, {"text": " "}]))
    (tmp_path / "b.txt").write_text("")
    assert [d.id for d in open_source(str(tmp_path))] == ["a.jsonl:2"]


def test_builtin_is_prose_and_code_of_a_fixed_order_and_size() -> None:
    small, large = (list(BuiltinSource(n)) for n in (300_000, 600_000))
    assert large[: len(small)] == small  # a prefix of the same order
    sizes = [len(d.text.encode()) for d in small]
    assert sum(sizes) >= 300_000 > sum(sizes[:-1])
    for sample in (small, large):  # a fair one, whatever its size
        assert {d.domain for d in sample} == {"pydoc", "stdlib"}
    assert len({d.id for d in large}) == len(large)
    assert not any("/test" in d.id or "site-packages" in d.id or "_sysconfigdata" in d.id for d in BuiltinSource())
    assert BuiltinSource(300_000).identity() == BuiltinSource(300_000).identity() != BuiltinSource(600_000).identity()


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("a.txt", b"good\xff", r"a\.txt: not UTF-8 at byte 4"),
        ("a.jsonl", b'{"text": "fine"}\n{"text": "\xe9"}\n', r"a\.jsonl: not UTF-8 at byte 27"),
        ("a.jsonl", b'{"text": "fine"}\n{"text": \n', r"a\.jsonl:2: not JSON"),
        ("a.jsonl", b'{"text": "fine"}\n\n{"body": "x"}\n', r"a\.jsonl:3: field text is missing"),
        ("a.jsonl", b'{"text": null}\n', r"a\.jsonl:1: field text is NoneType"),
        ("a.jsonl", b'["text"]\n', r"a\.jsonl:1: not an object"),
        ("a.jsonl", b'{"text": "\\ud800"}\n', r"a\.jsonl:1: field text has half a surrogate pair"),
        ("a.jsonl", b"[" * 100_000 + b"\n", r"a\.jsonl:1: not JSON"),
        ("a.conllu", b"# text = A\nnot-a-row\n", r"a\.conllu:1: not CoNLL-U"),
        ("a.conllu", TREEBANK.encode() + b"\n# text = A\nnot-a-row\n", r"a\.conllu:23: not CoNLL-U"),
        ("a.txt.xz", lzma.compress(b"x" * 9999)[:-20], r"a\.txt\.xz: compressed file ends too early"),
        ("a.txt.gz", gzip.compress(b"x" * 9999, mtime=0)[:-12], r"a\.txt\.gz: compressed file ends too early"),
        ("a.txt.zst", zstd(b"x" * 9999)[:-4], r"a\.txt\.zst: .*[Tt]runcated"),
        ("a.txt.xz", b"not xz at all", r"a\.txt\.xz: broken compressed file"),
        ("a.txt.gz", b"not gz at all", r"a\.txt\.gz: broken compressed file"),
        ("a.txt.zst", b"not zst at all", r"a\.txt\.zst: ZSTD"),
        ("a.pdf", b"%PDF", r"a\.pdf: file type not supported"),
    ],
)
def test_broken_files_are_named_with_the_place(tmp_path: Path, name: str, content: bytes, complaint: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises((ValueError, OSError), match=complaint) as error:
        list(open_source(str(tmp_path / name)))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("spec", ["missing.txt", "none/*.txt", "", "hf:", "hf:a/b/c/d", "hf:json:none/*.jsonl"])
def test_specs_that_name_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        (ValueError, FileNotFoundError), match=r"no such file|no file matches|not of the form|source: empty"
    ):
        open_source(spec)


def test_hub_names_are_taken_apart() -> None:
    from ematrace.text.hub import HubSource

    def parts(spec: str) -> tuple[str, str | None, str]:
        source = HubSource(spec)
        return source.name, source.config, source.split

    assert parts("hf:HuggingFaceFW/fineweb-edu/sample-10BT") == ("HuggingFaceFW/fineweb-edu", "sample-10BT", "train")
    assert parts("hf:allenai/c4/en@validation") == ("allenai/c4", "en", "validation")
    assert parts("hf:nyu-mll/blimp") == ("nyu-mll/blimp", None, "train")
    assert parts("hf:imdb@test") == ("imdb", None, "test")


def test_no_network_says_so_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(OSError, match=r"hf:allenai/c4/en: the Hugging Face hub cannot be reached; give a local"):
        next(iter(open_source("hf:allenai/c4/en")))


def test_local_files_streamed_by_datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    (tmp_path / "a.jsonl").write_bytes(json_lines([{"text": "x", "id": "1"}, {"text": "", "id": "2"}]))
    (tmp_path / "b.jsonl").write_bytes(json_lines([{"text": "y", "id": "3"}]))
    source = open_source(f"hf:json:{tmp_path}/*.jsonl")
    assert list(source) == [Document("x", "1", "json"), Document("y", "3", "json")]
    assert list(source) == list(source)
    (tmp_path / "c.jsonl").write_bytes(b'{"text": \n')
    with pytest.raises(OSError, match=r"hf:json:.*after row 3: \S"):
        list(open_source(f"hf:json:{tmp_path}/*.jsonl"))


def test_text_works_without_optional_libraries(tmp_path: Path) -> None:
    """Also without a library installed that only the command line needs."""
    (tmp_path / "a.conllu").write_text(TREEBANK)
    code = f"""
import sys
for name in ("datasets", "conllu", "pyarrow", "tyro", "rich", "numba"):
    sys.modules[name] = None
from ematrace.text import open_source, train_bpe, pack
from ematrace.text.corpora import BuiltinSource
assert "torch" not in sys.modules
tokenizer = train_bpe(BuiltinSource(10_000), 300)
assert pack(BuiltinSource(10_000), tokenizer, {str(tmp_path / "pack")!r}).n_tokens
for call, missing in [
    (lambda: list(open_source({str(tmp_path / "a.conllu")!r})), "conllu"),
    (lambda: list(open_source("hf:imdb")), "datasets"),
]:
    try:
        call()
    except ValueError as error:
        assert f"pip install {{missing}}" in str(error), error
    else:
        raise AssertionError(missing)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
