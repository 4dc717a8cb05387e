"""The skeleton: switches, labels, states, and models that are only data."""

from __future__ import annotations

from typing import Any

from defects.planting import constant, defect, with_arguments, wrap


@defect("models.block", "test_spen_model.py", "is_algorithm_1")
def residual_switch_ignored(block: Any) -> None:
    """The context always joins the residual stream."""
    wrap(block.Block, "respond", lambda original: lambda self, x, c, mask=None: original(self, c, c, mask))


@defect("models.modeling", "test_spen_transformers.py", "labels_are_shifted")
def labels_not_shifted(modeling: Any) -> None:
    """Each position predicts itself."""
    wrap(modeling, "_shifted", lambda original: lambda labels, cu_seqlens: labels)


@defect("models.modeling", "test_spen_transformers.py", "packed_sequences and static")
def sequence_predicts_the_next_one(modeling: Any) -> None:
    """The last token of a packed sequence has the first of the next one for a target."""
    with_arguments(modeling, "_shifted", cu_seqlens=lambda cu_seqlens: None)


@defect("models.modeling", "test_spen_transformers.py", "carrying and static")
def state_not_carried(modeling: Any) -> None:
    """Every call starts from nothing."""
    with_arguments(modeling.SkeletonModel, "forward", past_key_values=lambda cache: None)


@defect("models.modeling", "test_spen_transformers.py", "padding_changes and static")
def padding_enters_the_model(modeling: Any) -> None:
    """The attention mask is not looked at."""
    with_arguments(modeling.SkeletonModel, "forward", attention_mask=lambda mask: None)


@defect("models.cache", "test_spen_generation.py", "beam_search_with and static")
def beams_keep_their_old_state(cache: Any) -> None:
    """Beam search goes on with the states of beams that it dropped."""
    with_arguments(cache.MixerCache, "batch_select_indices", indices=lambda indices: indices.sort().values * 0)


@defect("models.cache", "test_spen_transformers.py", "copied_repeated")
def repeated_states_in_the_wrong_order(cache: Any) -> None:
    """Two copies of a batch stand one after the other, not row by row."""

    def tiled(original: Any) -> Any:
        def repeat(self: Any, repeats: int) -> None:
            self._change(lambda t: t.repeat(repeats, *[1] * (t.ndim - 1)))

        return repeat

    wrap(cache.MixerCache, "batch_repeat_interleave", tiled)


@defect("models.feedforward", "test_spen_model.py", "counts_in_training_only")
def load_balance_in_evaluation(feedforward: Any) -> None:
    """The loss has a balance term outside of training."""

    def always(original: Any) -> Any:
        def activate(self: Any, u: Any, mask: Any) -> Any:
            before, self.training = self.training, True
            try:
                return original(self, u, mask)
            finally:
                self.training = before

        return activate

    wrap(feedforward.TopKFeedForward, "activate", always)


@defect("models.flops", "test_flops.py", "preset")
def backward_pass_counted_once(flops: Any) -> None:
    """Operations of a training step: the gradients of the weights are left out."""
    constant(flops, "BACKWARD", lambda backward: backward - 1)


@defect("train.models", "test_language_cli.py", "code_in_a_model_folder")
def code_of_a_model_folder_runs(models: Any) -> None:
    """trust_remote_code=True."""

    def trusting(original: Any) -> Any:
        def load_model(*args: Any, **kwargs: Any) -> Any:
            from transformers import AutoModelForCausalLM

            careful = AutoModelForCausalLM.from_pretrained
            AutoModelForCausalLM.from_pretrained = lambda name, **options: careful(
                name, **{**options, "trust_remote_code": True}
            )
            try:
                return original(*args, **kwargs)
            finally:
                AutoModelForCausalLM.from_pretrained = careful

        return load_model

    wrap(models, "load_model", trusting)
