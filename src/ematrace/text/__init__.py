"""Text for language models: sources, tokenizers, packed token shards, streams."""

from ematrace.text.documents import Document, Source
from ematrace.text.order import sequences_at, window_order
from ematrace.text.packed import PackedDocument, PackedTokens
from ematrace.text.packing import cache_folder, pack
from ematrace.text.sources import open_source
from ematrace.text.streamed import StreamedTokens, starts_after, stateful_loader
from ematrace.text.tokenizers import load_tokenizer, tokenizer_fingerprint, train_bpe

__all__ = [
    "Document",
    "PackedDocument",
    "PackedTokens",
    "Source",
    "StreamedTokens",
    "cache_folder",
    "load_tokenizer",
    "open_source",
    "pack",
    "sequences_at",
    "starts_after",
    "stateful_loader",
    "tokenizer_fingerprint",
    "train_bpe",
    "window_order",
]
