"""The skeleton: switches, labels, states, and models that are only data."""

from __future__ import annotations

from typing import Any

from defects.planting import constant, defect, replaced, with_arguments, wrap


@defect("models.block", "test_models.py", "block_is_its_equations and pre")
def mixer_without_its_norm(block: Any) -> None:
    """The mixer reads the residual stream as it is, whatever the switch says."""

    def context(self: Any, x: Any, state: Any = None, mask: Any = None, cu_seqlens: Any = None) -> Any:
        y, state = self.mixer(x, state, mask=mask, cu_seqlens=cu_seqlens)
        return x + y, state

    replaced(block.Block, "context", context)


@defect("models.block", "test_models.py", "block_is_its_equations and pre")
def residual_switch_ignored(block: Any) -> None:
    """The context always joins the residual stream."""
    wrap(block.Block, "respond", lambda original: lambda self, x, c, mask=None: original(self, c, c, mask))


@defect("models.modeling", "test_spen_transformers.py", "labels_are_shifted")
def labels_not_shifted(modeling: Any) -> None:
    """Each position predicts itself."""
    wrap(modeling, "_shifted", lambda original: lambda labels, cu_seqlens: labels)


@defect("models.modeling", "test_spen_transformers.py", "carrying and static")
def state_not_carried(modeling: Any) -> None:
    """Every call starts from nothing."""
    with_arguments(modeling.SkeletonModel, "forward", past_key_values=lambda cache: None)


@defect("models.cache", "test_spen_generation.py", "beam_search_with and static")
def beams_keep_their_old_state(cache: Any) -> None:
    """Beam search goes on with the states of beams that it dropped."""
    with_arguments(cache.MixerCache, "batch_select_indices", indices=lambda indices: indices.sort().values * 0)


@defect("models.flops", "test_flops.py", "test_preset and spen-tiny", compiled=True)
def backward_pass_counted_once(flops: Any) -> None:
    """Operations of a training step: the gradients of the weights are left out."""
    constant(flops, "BACKWARD", lambda backward: backward - 1)


@defect("train.models", "test_language_cli.py", "code_in_a_model_folder")
def code_of_a_model_folder_runs(models: Any) -> None:
    """As with --trust-remote-code, which nobody gave."""

    def trusting(original: Any) -> Any:
        return lambda *args, **kwargs: original(*args, **{**kwargs, "trust_remote_code": True})

    wrap(models, "load_model", trusting)
