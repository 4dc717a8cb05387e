"""What does a context mechanism keep of the past, structure or content, and what does it cost?

    ematrace.traces           exponential moving averages at several rates: ema_traces, EMATraces (in ematrace, too)
    ematrace.mixers           context mechanisms, one file each: MIXERS, build_mixer, register_mixer
    ematrace.models           one transformers language model around any mixer: SkeletonConfig, SkeletonForCausalLM
    ematrace.spen             SPEN, a language model whose only context is traces: SpenForCausalLM, SpenStream
    ematrace.spcn             SPCN, a Hebbian network that finds grammatical roles, as a scikit-learn transformer
    ematrace.grammar          the formal grammar: load_grammar("A").sample(n, seed)
    ematrace.probes           linear probes, controls, lag decoding: RidgeProbe, wilson_interval
    ematrace.baselines        one-hot features, a supervised tagger, language models without context
    ematrace.text             corpora, tokenizers, packed and streamed tokens: open_source, train_bpe, pack
    ematrace.train            training from a config: TrainConfig, train, load_model
    ematrace.evaluation       perplexity by domain and by position, models compared: evaluate, difference
    ematrace.ops              operators of the models: gelu_topk, linear_cross_entropy
    ematrace.experiments      one file per table or figure: EXPERIMENTS, Experiment
    ematrace.results          what was measured, as cells selected by factors: Cell, Store, Table, Selector
    ematrace.analysis         what cells say together: how the gap between SPEN and a transformer is made up
    ematrace.ledger           the paper's claims, predicates over cells, verdicts: load_claims, build_ledger
    ematrace.report           verdicts, tables and plots on one HTML page and in the terminal: write_report
    ematrace.bench            contenders timed in turn, ceilings of the machine: Case, time_cases, ratio
    ematrace.cli              the command `ematrace`

Classes and functions have examples in their docstrings: `from ematrace.probes import RidgeProbe; help(RidgeProbe)`.
The command `ematrace --help` lists what can be run without writing Python.

>>> import torch
>>> from ematrace import ema_traces
>>> traces, state = ema_traces(torch.ones(1, 3, 1), alphas=[0.5])
>>> traces[0, 0, :, 0].tolist()
[0.5, 0.75, 0.875]
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ematrace.traces import EMATraces, ema_traces

__all__ = ["EMATraces", "__version__", "ema_traces"]
__version__ = "0.2.0.dev0"


def __getattr__(name: str) -> Any:
    """The operator and its module, imported when first asked for, so that `import ematrace` does not wait for torch."""
    if name not in __all__:
        raise AttributeError(f"module 'ematrace' has no attribute {name!r}")
    from ematrace import traces

    return getattr(traces, name)


def __dir__() -> list[str]:
    return sorted(__all__)
