"""SPEN: Algorithm 1, its predictors, streams, fast weights and decoders."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from defects.planting import defect, replaced, with_arguments, with_result, wrap


@defect("spen.predictors", "test_spen_model.py", "is_algorithm_1")
def error_is_a_sum(predictors: Any) -> None:
    """The prediction is added to the input instead of subtracted."""
    with_result(predictors.StaticPredictor, "forward", lambda found: (-found[0], found[1]))


@defect("spen.predictors", "test_spen_model.py", "is_algorithm_1")
def fast_trace_predicts(predictors: Any) -> None:
    """The prediction reads the first trace, not the last."""
    with_arguments(predictors.StaticPredictor, "forward", traces=lambda traces: traces.flip(0))


@defect("spen.predictors", "test_spen_model.py", "strict_past and softmax")
def predictor_sees_what_it_predicts(predictors: Any) -> None:
    """Attention of a step over itself."""

    def attention(q: Any, k: Any, v: Any, seen: Any = None) -> Any:
        import torch

        T, S = q.shape[-2], k.shape[-2]
        visible = torch.ones(T, S, dtype=torch.bool, device=q.device).tril(S - T)
        if seen is not None:
            visible = visible & seen
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=visible).nan_to_num()

    replaced(predictors, "strictly_causal_attention", attention)


@defect("spen.predictors", "test_spen_model.py", "definitions and linear")
def memory_does_not_fade(predictors: Any) -> None:
    """Linear attention with gamma 1."""
    with_arguments(predictors, "decayed_linear_attention", gamma=lambda gamma: 1.0)


@defect("spen.mixer", "test_spen_decode_cpu.py", "folding", compiled=True)
def sign_of_the_folded_prediction(mixer: Any) -> None:
    """The precomputed weights add the prediction."""

    def flip(weights: Any) -> Any:
        d = weights.shape[0]
        weights = weights.clone()
        weights[:, -d:] *= -1
        return weights

    with_result(mixer.SpenMixer, "folded_weights", flip)


@defect("spen.fast_weights", "test_spen_stream.py", "pghu_equals")
def update_before_the_prediction(fast_weights: Any) -> None:
    """A block predicts its input with weights that have seen it."""

    def broken(original: Any) -> Any:
        def call(self: Any, x: Any, traces: Any, *rest: Any, **kwargs: Any) -> Any:
            x_hat, past = original(self, x, traces, *rest, **kwargs)
            return self.weights.predict(self.W_base, traces[-1, :, 0]).to(x_hat).unsqueeze(1), past

        return call

    wrap(fast_weights.FastPredictor, "__call__", broken)


@defect("spen.fast_weights", "test_spen_stream.py", "pghu_equals")
def precision_without_a_limit(fast_weights: Any) -> None:
    """Small variances give any precision."""
    with_arguments(fast_weights, "_precision", rule=lambda rule: replace(rule, pi_max=1e30))


@defect("spen.fast_weights", "test_spen_stream.py", "pghu_equals")
def decay_towards_the_wrong_anchor(fast_weights: Any) -> None:
    """Fast weights forget what the stream began with, or return to it where they should not."""
    with_arguments(
        fast_weights.FastWeights,
        "update",
        rule=lambda rule: replace(rule, decay_to="zero" if rule.decay_to == "base" else "base"),
    )


@defect("spen.stream", "test_spen_stream.py", "in_pieces")
def state_lost_between_pieces(stream: Any) -> None:
    """Each call reads as if nothing had been read before."""

    def forget(original: Any) -> Any:
        def read(self: Any, *args: Any, **kwargs: Any) -> Any:
            self.cache = stream.MixerCache.empty(self.model.config.n_layers)
            return original(self, *args, **kwargs)

        return read

    wrap(stream.SpenStream, "_read", forget)


@defect("spen.stream_files", "test_spen_stream.py", "foreign")
def state_of_any_model_accepted(stream_files: Any) -> None:
    """A state continues with weights that did not make it."""
    with_result(stream_files, "fingerprint", lambda digest: "")


@defect("spen.stream_files", "test_spen_stream.py", "continues_exactly")
def fast_weights_not_saved(stream_files: Any) -> None:
    """A stream that goes on from its file has forgotten what it adapted to."""
    with_arguments(stream_files, "save_state", fast_weights=lambda weights: [])


@defect("spen.parity", "test_spen_stream.py", "parity_perplexity")
def perplexity_of_the_token_before(parity: Any) -> None:
    """Predictions are compared with what they were made from."""
    with_arguments(parity, "_perplexity", ids=lambda ids: ids.roll(1, -1))


@defect("spen.decode.cpu", "test_spen_decode_cpu.py", "equals_its_equations", compiled=True)
def decoder_leaves_its_state(cpu: Any) -> None:
    """Every step of the decoder starts from the same state."""
    with_arguments(cpu.CpuDecoder, "step", state=lambda state: state.clone())


@defect("spen.decode.weights", "test_spen_decode_cpu.py", "cannot_run", compiled=True)
def replaced_layers_decoded(weights: Any) -> None:
    """A decoder reads the weights of a layer that would have done something else."""
    with_result(weights, "obstacle_to_decoding", lambda obstacle: None)
