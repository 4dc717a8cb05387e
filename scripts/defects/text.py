"""Text on its way to tokens, and the evaluation on it."""

from __future__ import annotations

from typing import Any

import numpy as np

from defects.planting import defect, with_arguments, with_result, wrap


@defect("text.packed", "test_text_packed.py", "cuts_of_one_row")
def document_boundary_off_by_one(packed: Any) -> None:
    """A document seems to start one token late."""
    with_result(packed.PackedTokens, "document_starts", lambda starts: starts + 1)


@defect("text.documents", "test_text_packed.py", "split_depends")
def held_out_documents_trained_on(documents: Any) -> None:
    """The training split holds the validation documents, too."""
    wrap(
        documents,
        "in_split",
        lambda original: lambda id, split, share: split == "train" or original(id, split, share),
    )


@defect("text.documents", "test_text_held_out.py", "by_their_tails")
def held_out_tails_trained_on(documents: Any) -> None:
    """The training split of a lone document is all of it."""

    def leave_whole(original: Any) -> Any:
        return lambda document, split, share: document if split == "train" else original(document, split, share)

    wrap(documents, "_without_or_only_tail", leave_whole)


@defect("text.streamed", "test_text_streamed.py", "resumed_anywhere and files")
def stream_resumes_at_the_document(streamed: Any) -> None:
    """The place inside a document is forgotten."""

    def at_its_start(state: Any) -> Any:
        return state if state["position"] is None else {**state, "position": {**state["position"], "token": 0}}

    with_arguments(streamed.StreamedTokens, "load_state_dict", state=at_its_start)


@defect("text.tokenizers", "test_text_tokenizers.py", "spells")
def text_spells_the_special_token(tokenizers: Any) -> None:
    """A text that contains <|endoftext|> ends there."""

    def open_up(original: Any) -> Any:
        def init(self: Any, tokenizer: Any) -> None:
            original(self, tokenizer)
            self._backend.encode_special_tokens = False

        return init

    wrap(tokenizers.DocumentEncoder, "__init__", open_up)


@defect("evaluation", "test_evaluation.py", "scored_once")
def state_forgotten_between_parts(evaluation: Any) -> None:
    """A long document is scored as if each part of it began anew."""

    def forget(original: Any) -> Any:
        def parts(model: Any, inputs: Any, targets: Any, context: Any, steps: int) -> Any:
            for start in range(0, inputs.shape[1], steps):
                part = slice(start, start + steps)
                yield from original(model, inputs[:, part], targets[:, part], context, steps)

        return parts

    wrap(evaluation, "_scored_parts", forget)


@defect("evaluation", "test_evaluation.py", "scored_once")
def position_off_by_one(evaluation: Any) -> None:
    """Perplexity by position counts a token at the place of the one after it; the sums stay right."""
    with_arguments(evaluation.Evaluation, "add", nats=lambda nats: np.roll(nats, 1))
