"""Mixers: one defect for each kind of promise, in one mixer that makes it."""

from __future__ import annotations

from typing import Any

from defects.planting import defect, replaced, skipped, with_arguments, with_result, wrap


@defect("mixers._chunks", "test_mixers_conformance.py", "test_mixer and hgrn-packed")
def packed_sequences_leak(chunks: Any) -> None:
    """A packed sequence goes on where the one before it ended."""
    with_result(chunks, "starts_of", lambda found: (found[0] & False, found[1]))


@defect("mixers.attention", "test_mixers_conformance.py", "test_mixer and attention-steps")
def positions_start_anew(attention: Any) -> None:
    """Rotary positions do not go on from the state."""
    with_arguments(attention, "_positions", state=lambda state: None)


@defect("mixers.attention", "test_mixers_conformance.py", "test_mixer and attention-causal")
def attention_sees_the_future(attention: Any) -> None:
    """No causal mask."""
    replaced(attention, "attend", lambda q, k, v: attention.F.scaled_dot_product_attention(q, k, v))


@defect("mixers.hgrn", "test_mixers_conformance.py", "test_mixer and hgrn-padded")
def padding_enters_the_state(hgrn: Any) -> None:
    """The mask is not looked at."""
    with_arguments(hgrn.HgrnMixer, "forward", mask=lambda mask: None)


@defect("mixers.ema", "test_mixers_conformance.py", "test_mixer and ema-rows_independent")
def rows_see_each_other(ema: Any) -> None:
    """The state is a mean over the batch."""
    with_result(ema.EmaMixer, "forward", lambda found: (found[0], found[1] * 0 + found[1].mean(0)))


@defect("mixers.linear_attention", "test_mixers_conformance.py", "test_mixer and linear_attention-state_size")
def state_size_of_one_head(linear_attention: Any) -> None:
    """The honest x-axis is not: the state is larger than what a mixer says."""
    wrap(
        linear_attention.LinearAttentionMixer,
        "state_size",
        lambda original: lambda self, seq_len: original(self, seq_len) // self.n_heads,
    )


@defect("mixers.gla", "test_mixers_equations.py", "chunks_are_the_loop and gla")
def chunks_forget_at_another_rate(gla: Any) -> None:
    """The form over chunks decays less than the recurrence it stands for."""
    with_arguments(gla, "gla", log_a=lambda log_a: 0.9 * log_a)


@defect("mixers._registry", "test_mixers.py", "name_in_a_config")
def config_imports_its_mixer(registry: Any) -> None:
    """A name in a downloaded config is taken for consent."""
    wrap(
        registry,
        "registered_mixer",
        lambda original: lambda name: registry._known(name) or registry.register_mixer(name),
    )


@defect("mixers._registry", "test_mixers.py", "never_dropped")
def unknown_options_dropped(registry: Any) -> None:
    """A misspelt option does nothing, in silence."""

    def lenient(original: Any) -> Any:
        def build_mixer(name: str, d_model: int, **options: Any) -> Any:
            there = registry._options(registry.registered_mixer(name)) or options
            return original(name, d_model, **{key: value for key, value in options.items() if key in there})

        return build_mixer

    wrap(registry, "build_mixer", lenient)


@defect("mixers.conformance", "test_mixers_conformance.py", "mistake_is_noticed and packed")
def check_that_cannot_fail(conformance: Any) -> None:
    """Any difference is small enough."""
    skipped(conformance, "_agree")
