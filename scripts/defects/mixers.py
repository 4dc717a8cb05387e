"""Mixers: one defect for each kind of promise, in one mixer that makes it."""

from __future__ import annotations

from typing import Any

from defects.planting import defect, replaced, skipped, with_arguments, with_result, wrap


@defect("mixers._chunks", "test_mixers_conformance.py", "test_mixer and hgrn-packed")
def packed_sequences_leak(chunks: Any) -> None:
    """A packed sequence goes on where the one before it ended."""
    with_result(chunks, "starts_of", lambda found: (found[0] & False, found[1]))


@defect("mixers.attention", "test_mixers_conformance.py", "test_mixer and attention-causal")
def attention_sees_the_future(attention: Any) -> None:
    """No causal mask."""
    replaced(attention, "attend", lambda q, k, v: attention.F.scaled_dot_product_attention(q, k, v))


@defect("mixers.hgrn", "test_mixers_conformance.py", "test_mixer and hgrn-padded")
def padding_enters_the_state(hgrn: Any) -> None:
    """The mask is not looked at."""
    with_arguments(hgrn.HgrnMixer, "forward", mask=lambda mask: None)


@defect("mixers.linear_attention", "test_mixers_conformance.py", "test_mixer and linear_attention-state_size")
def state_size_of_one_head(linear_attention: Any) -> None:
    """The honest x-axis is not: the state is larger than what a mixer says."""
    wrap(
        linear_attention.LinearAttentionMixer,
        "state_size",
        lambda original: lambda self, seq_len: original(self, seq_len) // self.n_heads,
    )


@defect("mixers._registry", "test_mixers.py", "name_in_a_config")
def config_imports_its_mixer(registry: Any) -> None:
    """A name in a downloaded config is taken for consent."""
    wrap(
        registry,
        "registered_mixer",
        lambda original: lambda name: registry._known(name) or registry.register_mixer(name),
    )


@defect("mixers.conformance", "test_mixers_conformance.py", "mistake_is_noticed and packed")
def check_that_cannot_fail(conformance: Any) -> None:
    """Any difference is small enough."""
    skipped(conformance, "_agree")
