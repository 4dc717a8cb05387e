"""Text on its way to tokens, and the evaluation on it."""

from __future__ import annotations

from typing import Any

from defects.planting import defect, skipped, with_arguments, with_result, wrap


@defect("text.packed", "test_text_packed.py", "cuts_of_one_row")
def document_boundary_off_by_one(packed: Any) -> None:
    """A document seems to start one token late."""
    with_result(packed.PackedTokens, "document_starts", lambda starts: starts + 1)


@defect("text.packed", "test_text_packed.py", "cuts_of_one_row")
def windows_skip_a_token(packed: Any) -> None:
    """Windows do not share the token that is the target of one and the input of the next."""
    wrap(
        packed.PackedTokens,
        "window",
        lambda original: (
            lambda self, i, length: self.tokens(
                min(i * (length + 1), self.n_tokens - length - 1), min((i + 1) * (length + 1), self.n_tokens)
            )
        ),
    )


@defect("text.packed", "test_text_packed.py", "wrong_checksum")
def damaged_shard_accepted(packed: Any) -> None:
    """Files are not compared with their checksums."""
    skipped(packed, "_check_files")


@defect("text.packing", "test_text_packed.py", "packed_once")
def pack_of_another_text_reused(packing: Any) -> None:
    """Any pack that is there will do."""
    wrap(packing, "_has_pack", lambda original: lambda folder, key: (folder / packing.INDEX).is_file())


@defect("text.documents", "test_text_packed.py", "split_depends")
def held_out_documents_trained_on(documents: Any) -> None:
    """The training split holds the validation documents, too."""
    wrap(
        documents,
        "in_split",
        lambda original: lambda id, split, share: split == "train" or original(id, split, share),
    )


@defect("text.held_out", "test_text_held_out.py", "held_out_documents")
def evaluated_on_the_training_text(held_out: Any) -> None:
    """All documents of the training text pass for unseen ones."""
    with_result(held_out, "held_out_split", lambda split: "all")


@defect("text.order", "test_text_order.py", "epochs_and_seeds")
def every_epoch_in_the_same_order(order: Any) -> None:
    """Windows are shuffled once."""
    with_arguments(order, "window_order", epoch=lambda epoch: 0)


@defect("text.streamed", "test_text_streamed.py", "resumed_anywhere and files")
def stream_resumes_at_the_document(streamed: Any) -> None:
    """The place inside a document is forgotten."""

    def at_its_start(state: Any) -> Any:
        return state if state["position"] is None else {**state, "position": {**state["position"], "token": 0}}

    with_arguments(streamed.StreamedTokens, "load_state_dict", state=at_its_start)


@defect("text.tokenizers", "test_text_tokenizers.py", "any_text")
def documents_not_closed(tokenizers: Any) -> None:
    """No end-of-text after a document."""
    with_result(tokenizers.DocumentEncoder, "encode", lambda rows: [row[:-1] for row in rows])


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
        def parts(model: Any, inputs: Any, targets: Any, context: Any) -> Any:
            steps = evaluation.RECURRENT_STEPS
            for start in range(0, inputs.shape[1], steps):
                part = slice(start, start + steps)
                yield from original(model, inputs[:, part], targets[:, part], context)

        return parts

    wrap(evaluation, "_scored_parts", forget)


@defect("evaluation", "test_evaluation.py", "scored_once")
def first_token_shown(evaluation: Any) -> None:
    """The model sees the token that it is asked for."""
    wrap(
        evaluation,
        "_scored_parts",
        lambda original: lambda model, inputs, targets, context: original(model, targets, targets, context),
    )


@defect("evaluation", "test_evaluation.py", "interval")
def tokens_taken_for_independent(evaluation: Any) -> None:
    """The interval shrinks with the number of tokens instead of documents."""

    def narrow(original: Any) -> Any:
        def interval(self: Any) -> Any:
            low, high = original(self)
            middle, share = (low + high) / 2, (self.documents / max(1, self.tokens)) ** 0.5
            return middle - share * (middle - low), middle + share * (high - middle)

        return interval

    wrap(evaluation.Score, "interval", narrow)


@defect("evaluation", "test_evaluation.py", "training_mode")
def dropout_in_evaluation(evaluation: Any) -> None:
    """The model stays in training mode."""

    def back_to_training(original: Any) -> Any:
        def score_rows(model: Any, *rest: Any, **kwargs: Any) -> Any:
            model.train()
            return original(model, *rest, **kwargs)

        return score_rows

    wrap(evaluation, "score_rows", back_to_training)
