"""Timing contenders in turn, the measured ceilings of the machine, and the cells that benchmarks leave.

A run of a benchmark is one `CellFile`: `experiment` is the benchmark's name, the seed 0, and all contenders are cells
of it, since only times of one run are compared. The factors, the same in all scripts:

    contender   what is timed: ematrace, chunked, loop, cumsum, fla, torch, gelu, copy (operators);
                spen, gpt2, transformer (models); spcn, reservoirpy; triton, torch (backends of training)
    pass        forward, backward, forward+backward
    tokens      T, the tokens of each sequence
    context     tokens that were read before decoding starts
    streams     sequences that are decoded together
    size        tiny, 7m, 130m: the preset's; 2m is d 128, 4 blocks, vocabulary 8,192
    dtype       of weights: float32, bfloat16
    ffn         topk, dense
    read        parallel, streamed (token by token)
    decoder     spen: eager (the model's own step), compiled (CPU), one_kernel, matmuls (GPU);
                gpt2: loop, transformers
    split       parts that the sums of a matmul are split into
    cache       dynamic, static: transformers' class
    compiled    true where torch.compile was used
    graphed     true where whole training steps were replayed as CUDA graphs
    task        spcn: learn, encode; reservoirpy: run, hebbian_fit
    variant     full, no_spa, no_lateral, one_settling_step, no_learning
    cores       processes that share the work
    init_seed   of a model that is trained
    pair        backends, seeds, steps (graphed and plain): whose training curves are compared
    waiting     how torch's threads wait: spinning (libgomp's default), asleep (OMP_WAIT_POLICY=passive),
                shared (spinning, but only shortly while other programs are busy: ematrace.sharing)
    load        busy loops that run beside what is timed
    part        settling, top_k, lateral, spa, pghu: of the time of learning
    against     spcn; against_cores: of a record of version 0.1, which kept ratios but no times
    ceiling     copy, read, matmul: cells of the machine, with bytes_per_second or flops_per_second

The metrics: `seconds` (the median of its `repetitions`); the least that one call needs: `bytes` to move, `operations`
(floating-point; models as `ematrace.models.flops` counts them), `tokens` to process; and others, with units.
Ratios and shares of ceilings are computed from them (`ratio`, `share`), never stored. The settings name the `title`,
the `checks` against the reference, the `comparisons` to show, and what else the times depend on.

Imports torch only when something is timed, and nothing that a GPU machine may lack.
"""

from ematrace.bench.cells import About, Case, Comparison, ceiling_row, is_benchmark, label, time_cases, timing_row
from ematrace.bench.compare import Run, Spread, Timed, ratio, runs_of, share
from ematrace.bench.measure import Timing, copy_bandwidth, matmul_rate, progress, read_bandwidth, time_cpu, time_gpu
from ematrace.bench.script import finish, gpu_unless_quick, parser, too_busy, write_run

__all__ = [
    "About",
    "Case",
    "Comparison",
    "Run",
    "Spread",
    "Timed",
    "Timing",
    "ceiling_row",
    "copy_bandwidth",
    "finish",
    "gpu_unless_quick",
    "is_benchmark",
    "label",
    "matmul_rate",
    "parser",
    "progress",
    "ratio",
    "read_bandwidth",
    "runs_of",
    "share",
    "time_cases",
    "time_cpu",
    "time_gpu",
    "timing_row",
    "too_busy",
    "write_run",
]
