"""Text for language models: corpora, tokenizers, packed and streamed tokens."""

from ematrace.text.corpora import open_source
from ematrace.text.documents import Document, Source
from ematrace.text.packed import PackedTokens
from ematrace.text.packing import pack
from ematrace.text.streamed import StreamedTokens
from ematrace.text.tokenizers import DocumentEncoder, load_tokenizer, train_bpe

__all__ = [
    "Document",
    "DocumentEncoder",
    "PackedTokens",
    "Source",
    "StreamedTokens",
    "load_tokenizer",
    "open_source",
    "pack",
    "train_bpe",
]
