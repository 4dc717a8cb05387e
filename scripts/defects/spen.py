"""SPEN: Algorithm 1, its predictors, streams, fast weights and decoders."""

from __future__ import annotations

from typing import Any

from defects.planting import defect, replaced, with_arguments, with_result, wrap


@defect("spen.predictors", "test_spen_model.py", "is_algorithm_1")
def error_is_a_sum(predictors: Any) -> None:
    """The prediction is added to the input instead of subtracted."""
    with_result(predictors.StaticPredictor, "forward", lambda found: (-found[0], found[1]))


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


@defect("spen.fast_weights", "test_spen_stream.py", "pghu_equals")
def update_before_the_prediction(fast_weights: Any) -> None:
    """A block predicts its input with weights that have seen it."""

    def broken(original: Any) -> Any:
        def call(self: Any, x: Any, traces: Any, *rest: Any, **kwargs: Any) -> Any:
            x_hat, past = original(self, x, traces, *rest, **kwargs)
            return self.weights.predict(self.W_base, traces[-1, :, 0]).to(x_hat).unsqueeze(1), past

        return call

    wrap(fast_weights.FastPredictor, "__call__", broken)


@defect("spen.stream_files", "test_spen_stream.py", "foreign")
def state_of_any_model_accepted(stream_files: Any) -> None:
    """A state continues with weights that did not make it."""
    with_result(stream_files, "fingerprint", lambda digest: "")


@defect("spen.decode.cpu", "test_spen_decode_cpu.py", "equals_its_equations", compiled=True)
def decoder_leaves_its_state(cpu: Any) -> None:
    """Every step of the decoder starts from the same state."""
    with_arguments(cpu.CpuDecoder, "step", state=lambda state: state.clone())


@defect("spen.predictors", "test_gap_predictors.py", "are_their_definition")
def query_is_always_the_slow_trace(predictors: Any) -> None:
    """The switch that takes the query from the input does nothing."""
    with_arguments(predictors.SoftmaxPredictor, "__init__", query=lambda query: "slow_trace")
