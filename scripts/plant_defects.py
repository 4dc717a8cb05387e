"""Does the suite notice when something is broken? Plants one defect at a time and runs the tests that should fail.

Works on copies of src/ and tests/ in a temporary folder; the working tree is only read. Exit code 1 if a defect goes
unnoticed, 2 if something does not fit: a text to replace that is not there exactly once, tests that fail without a
defect, a copy that is not the one imported.

    python scripts/plant_defects.py              # all of them, a few minutes on two cores
    python scripts/plant_defects.py --only spa   # those with "spa" in their name
    python scripts/plant_defects.py --compiled   # compile each broken kernel; else Python interprets them, see numba's
                                                 # NUMBA_DISABLE_JIT: the same source, and 12 s saved each time
    python scripts/plant_defects.py --list
"""

from __future__ import annotations

import argparse
import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WORKERS = 2
TIMEOUT_S = 180

KERNELS, MODEL = "spcn/kernels.py", "spcn/model.py"
T_KERNELS, T_MODEL, T_FILES = "test_spcn_kernels.py", "test_spcn_model.py", "test_spcn_files.py"
T_FEEDFORWARD, T_PROBES = "test_spcn_feedforward.py", "test_probes.py"
T_LEDGER, T_GRAMMAR = "test_ledger.py", "test_grammar.py"
LOOP, CHUNKED, OPERATOR = "traces/reference.py", "traces/chunked.py", "traces/operator.py"
TRITON, TRACES_MODULE = "traces/triton_scan.py", "traces/module.py"
T_OPERATOR, T_TRITON, T_TRACES = "test_traces_operator.py", "test_traces_triton.py", "test_traces_module.py"


@dataclass(frozen=True)
class Defect:
    """`old`, which stands exactly once in src/ematrace/`file`, becomes `new`; tests/`tests` -k `select` should fail."""

    name: str
    file: str
    tests: str
    select: str
    old: str
    new: str


class Misfit(Exception):
    """The defect, or the suite without one, is not what this script takes it for."""


BY_HAND = "pghu or decay_alone"  # tests of Eq. 3 against arithmetic by hand

DEFECTS = (
    # learning
    Defect("sign of PGHU", KERNELS, T_KERNELS, BY_HAND,
           "step = kind(rule.eta) /",
           "step = -kind(rule.eta) /"),
    Defect("precision once where twice, and back", KERNELS, T_KERNELS, BY_HAND,
           "if rule.precision_power == 2 else pi",
           "if rule.precision_power == 1 else pi"),
    Defect("sign of the decay", KERNELS, T_KERNELS, BY_HAND,
           "weights.fb_scale[level] *= kind(1) - kind(rule.decay)",
           "weights.fb_scale[level] *= kind(1) + kind(rule.decay)"),
    Defect("PGHU learns from the state, not from the error", KERNELS, T_KERNELS, BY_HAND,
           "error = state.dense[level, j] - state.prediction[level, j]",
           "error = state.dense[level, j]"),
    Defect("variance of the state, not of the error", KERNELS, T_KERNELS, BY_HAND,
           "rate * (error * error - weights",
           "rate * (state.dense[level, j] ** 2 - weights"),
    Defect("scale folded back without resetting it", KERNELS, T_KERNELS, "lazy",
           "            weights.fb_scale[level] = 1\n",
           "            weights.fb_scale[level] *= 1\n"),
    Defect("W_fb learns when frozen", MODEL, T_MODEL, "frozen_feedback",
           "if self.learn_feedback:",
           "if True:"),
    # traces
    Defect("fast and slow rates swapped", MODEL, T_KERNELS, "traces or half_lives",
           "fast, fast * self.slow_ratio, weights,",
           "fast * self.slow_ratio, fast, weights,"),
    Defect("(1 - alpha) dropped from the traces", KERNELS, T_KERNELS, "traces or half_lives",
           "keep = trace.dtype.type(1) - rate",
           "keep = trace.dtype.type(1)"),
    Defect("every level at the rate of L0", KERNELS, T_KERNELS, "traces or half_lives",
           "rate = alpha_fast[level]",
           "rate = alpha_fast[0]"),
    # the trace operator
    Defect("loop: the rate weighs the past", LOOP, T_OPERATOR, "whole_chunks",
           "torch.lerp(h, x_t.expand_as(h), a)",
           "torch.lerp(x_t.expand_as(h), h, a)"),
    Defect("chunked: state decays one step too little", CHUNKED, T_OPERATOR, "whole_chunks",
           "steps_T, state = time_T + 1, state.unsqueeze(2)",
           "steps_T, state = time_T, state.unsqueeze(2)"),
    Defect("chunked: packed sequences leak within a chunk", CHUNKED, T_OPERATOR, "three_levels",
           "weights = weights * (segment_KC.unsqueeze(-1) == segment_KC.unsqueeze(-2))",
           "pass"),
    Defect("chunked: packed sequences leak between chunks", CHUNKED, T_OPERATOR, "three_levels",
           "enters = enters * (segment_KC[1:] == before_K.unsqueeze(1))[:, :, None, None]",
           "pass"),
    Defect("chunked: empty sequence takes its neighbour's state", CHUNKED, T_OPERATOR, "closed_form",
           "cu_seqlens[1:] <= cu_seqlens[:-1]",
           "cu_seqlens[1:] < cu_seqlens[:-1]"),
    Defect("chunked: powers in float32", CHUNKED, T_OPERATOR, "slow_trace",
           "base_AG.unsqueeze(-1) ** exponents_T.to(base_AG.dtype)",
           "base_AG.float().unsqueeze(-1) ** exponents_T.float()"),
    Defect("chunked: carry never enters", CHUNKED, T_OPERATOR, "whole_chunks",
           "enters, carry)], dim=2)",
           "enters * 0, carry)], dim=2)"),
    Defect("chunked: TF32 allowed", CHUNKED, T_OPERATOR, "fewer_bits",
           'torch.get_float32_matmul_precision() == "highest"',
           "True"),
    Defect("autocast reaches the traces", OPERATOR, T_OPERATOR, "autocast",
           "torch.autocast(x.device.type, enabled=False)",
           "nullcontext()"),
    Defect("state in the dtype of x", OPERATOR, T_OPERATOR, "rounds_once",
           "return torch.float64 if x.dtype == torch.float64 else torch.float32",
           "return x.dtype"),
    Defect("rates not checked", OPERATOR, T_OPERATOR, "bad_arguments",
           "if not 0.0 <= a <= 1.0:",
           "if False:"),
    Defect("triton: state lost between tiles", TRITON, T_TRITON, "traces_and_gradients",
           "h_tile = within + entering * h[:, None, :]",
           "h_tile = within"),
    Defect("triton: 1 - a rounded at every step", TRITON, T_TRITON, "slow_trace",
           "log2_keep.to(tl.float32)",
           "tl.log2(tl.where(keep > 0, keep, 1.0).to(tl.float32))"),
    Defect("triton: final state of a full tile only", TRITON, T_TRITON, "traces_and_gradients",
           "final = tl.minimum(BLOCK_T, end - start - tile * BLOCK_T) - 1",
           "final = BLOCK_T - 1"),
    Defect("triton: gradient of the last state dropped", TRITON, T_TRITON, "traces_and_gradients",
           "(i == size - 1)[None, :, None] & (back == 0), grad_last",
           "(i == size - 1)[None, :, None] & (back == 0), 0 * grad_last"),
    Defect("triton: gradient lost between tiles", TRITON, T_TRITON, "traces_and_gradients",
           "G_next = tl.sum(",
           "G_next = 0 * tl.sum("),
    Defect("triton: rates' gradient with h_t for h_{t-1}", TRITON, T_TRITON, "traces_and_gradients",
           "x_base + x_at - x_stride_t, mask=earlier",
           "x_base + x_at, mask=mask_td"),
    Defect("triton: strides of x ignored", TRITON, T_TRITON, "strides",
           "*wide.stride(), *x.stride()",
           "*wide.stride(), *x.contiguous().stride()"),
    Defect("padding moves the state", TRACES_MODULE, T_TRACES, "as_if",
           "torch.where(mask_BT.unsqueeze(-1), x, 0)",
           "torch.nan_to_num(x, 1.0)"),
    Defect("padding counts as steps", TRACES_MODULE, T_TRACES, "as_if",
           "steps_BT = mask_BT.cumsum(1)",
           "steps_BT = torch.ones_like(mask_BT).cumsum(1)"),
    Defect("half-life in nats", TRACES_MODULE, T_TRACES, "half_lives",
           "-math.expm1(-math.log(2) / half_life)",
           "-math.expm1(-1 / half_life)"),
    # attention
    Defect("SPA buffer off by one place", KERNELS, T_KERNELS, "spa",
           "place = state.buffer_seen[0] % state.scores.shape[1]",
           "place = (state.buffer_seen[0] + 1) % state.scores.shape[1]"),
    Defect("SPA buffer forgets its last place", KERNELS, T_KERNELS, "spa",
           "stored = min(state.buffer_seen[0], state.scores.shape[1])",
           "stored = min(state.buffer_seen[0], max(state.scores.shape[1] - 1, 1))"),
    Defect("SPA softmax over all states", KERNELS, T_KERNELS, "spa",
           "min(rule.spa_top, stored)",
           "stored"),
    Defect("SPA query without precision", KERNELS, T_KERNELS, "spa",
           "state.scratch[level, j] = weights.precision[level, j] * (",
           "state.scratch[level, j] = ("),
    Defect("SPA scores without 1/√d", KERNELS, T_KERNELS, "spa",
           "root = np.sqrt(kind(d))",
           "root = kind(1)"),
    Defect("SPA ties by place in the ring", KERNELS, T_KERNELS, "tied_scores",
           "oldest = state.buffer_seen[0] - stored",
           "oldest = 0"),
    # settling
    Defect("top-k keeps k + 1", KERNELS, T_KERNELS, "what_top_k_keeps or top_k_above",
           "    half = x.dtype.type(0.5)\n",
           "    half = x.dtype.type(0.5)\n    k += 1\n"),
    Defect("ties to the highest index", KERNELS, T_KERNELS, "ties_go",
           "    for j in range(d):\n        if x[level, j] > threshold:",
           "    for j in range(d - 1, -1, -1):\n        if x[level, j] > threshold:"),
    Defect("sign of the lateral drive", KERNELS, T_KERNELS, "settling_step",
           "level, active, rule.gamma)",
           "level, active, -rule.gamma)"),
    Defect("feedback weight ignored", KERNELS, T_KERNELS, "settling_step",
           "beta = kind(rule.beta)",
           "beta = kind(1)"),
    Defect("one settling step too few", KERNELS, T_KERNELS, "settling_step",
           "for _ in range(rule.settle_steps):",
           "for _ in range(rule.settle_steps - 1):"),
    Defect("settle 2 steps by default", MODEL, T_MODEL, "defaults",
           "settle_steps: int = 3",
           "settle_steps: int = 2"),
    Defect("synchronous update done in place", KERNELS, T_KERNELS, "settling_step",
           "elif not rule.synchronous:",
           "else:"),
    Defect("backward hierarchy runs forward", MODEL, T_KERNELS, "backward",
           'tokens, starts, side == "backward", np',
           "tokens, starts, False, np"),
    Defect("state not reset at a sentence", KERNELS, T_KERNELS, "reset_between or emptied",
           "        if rule.reset:\n",
           "        if rule.reset and s == 0:\n"),
    Defect("buffer not emptied at a sentence", KERNELS, T_KERNELS, "emptied",
           "    state.buffer_seen[0] = 0\n",
           ""),
    # the estimator
    Defect("repeated words counted twice", MODEL, T_MODEL, "may_repeat",
           "enumerate(dict.fromkeys(words))",
           "enumerate(words)"),
    Defect("roles read as words", MODEL, T_MODEL, "roles_of_sentences",
           'words = getattr(sentence, "words", sentence)',
           'words = getattr(sentence, "roles", getattr(sentence, "words", sentence))'),
    Defect("labels order the sentences", MODEL, T_MODEL, "labels_given",
           "        self.n_tokens_seen_ = 0\n",
           "        self.n_tokens_seen_ = 0\n        texts = texts if y is None else texts[::-1]\n"),
    Defect("seed ignored", MODEL, T_MODEL, "seeds",
           "default_rng([self.random_state, DIRECTIONS",
           "default_rng([0, DIRECTIONS"),
    Defect("both hierarchies with the same weights", MODEL, T_KERNELS, "independent",
           "DIRECTIONS.index(side)])",
           "0])"),
    Defect("states that are not finite go unseen", MODEL, T_MODEL, "not_finite",
           "if sentence >= 0:",
           "if sentence > 99:"),
    Defect("file written in place", "files.py", T_FILES, "failed_write",
           "temporary.replace(path)",
           "path.write_bytes(content); temporary.replace(path)"),
    Defect("loaded precision forgotten", MODEL, T_FILES, "round_trip",
           "blank._replace(**fields)",
           'blank._replace(**fields | {"precision": blank.precision})'),
    Defect("Sanger without its order", "spcn/feedforward.py", T_FEEDFORWARD, "sanger",
           "np.triu(Y_BO.T @ Y_BO)",
           "(Y_BO.T @ Y_BO)"),
    # probes, ledger, grammar
    Defect("ridge without centring", "probes/ridge.py", T_PROBES, "sklearn_ridge",
           "        if fit_intercept:\n            A -=",
           "        if False:\n            A -="),
    Defect("Wilson without z²/n", "probes/intervals.py", T_PROBES, "wilson",
           "centre = (p + z * z / (2 * n)) / (1 + z * z / n)",
           "centre = p"),
    Defect("figure judged by its mean alone", "ledger/predicates.py", T_LEDGER, "TestPaperFigure",
           "lo, hi = ours.interval or (ours.mean, ours.mean)",
           "lo, hi = ours.mean, ours.mean"),
    Defect("direction judged by the wrong end", "ledger/predicates.py", T_LEDGER, "TestDirection",
           '(hi if op == "<" else lo) - by',
           '(lo if op == "<" else hi) - by'),
    Defect("noun bias inverted", "grammar/grammar.py", T_GRAMMAR, "noun_bias",
           "if slot.role in self.first_half_roles else",
           "if slot.role not in self.first_half_roles else"),
    Defect("content word in both grammars", "grammar/sources.py", T_GRAMMAR, "errors_name",
           "if other_group != group:",
           "if False:"),
)  # fmt: skip


class Copy:
    """A private copy of what the tests need. Files are copied with their times, so that numba's cache stays valid."""

    def __init__(self, folder: Path, compiled: bool) -> None:
        self.folder, self.compiled = folder, compiled
        self.package = folder / "src" / "ematrace"
        shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copytree(ROOT / "tests", folder / "tests", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy2(ROOT / "pyproject.toml", folder)
        self.environment = os.environ | {
            "PYTHONPATH": str(folder / "src"),
            "NUMBA_CACHE_DIR": str(folder / "numba"),
            "NUMBA_DISABLE_JIT": str(int(not compiled)),
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
        }
        code = "import ematrace, sys; sys.stdout.write(ematrace.__file__)"
        imported = Path(self._python("-c", code).stdout).resolve()
        if imported.parent != self.package.resolve():
            raise Misfit(f"the tests would import {imported}, not the copy in {self.package}")

    def _python(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
        )  # fmt: skip

    def test(self, tests: str, select: str) -> list[str]:
        """The first test that fails, or none."""
        arguments = ["-m", "pytest", "-x", "-rf", "--tb=no", "-p", "no:cacheprovider", f"tests/{tests}", "-k", select]
        if not self.compiled:
            arguments += ["-W", "ignore::RuntimeWarning"]  # Python's numbers warn where compiled ones go to inf
        run = self._python(*arguments)
        failed = re.findall(r"^FAILED tests/(\S+::.+?)(?: - |$)", run.stdout, re.MULTILINE)
        if run.returncode not in (0, 1) or (run.returncode == 1) != bool(failed):
            last = (run.stdout + run.stderr).strip().splitlines()[-3:]
            raise Misfit(f"pytest {tests} -k {select!r} ended with code {run.returncode}: {' | '.join(last)}")
        return failed

    def plant(self, defect: Defect) -> list[str]:
        path = self.package / defect.file
        text = path.read_text(encoding="utf-8")
        if text.count(defect.old) != 1:
            raise Misfit(f"{defect.name}: {defect.old!r} stands {text.count(defect.old)} times in {defect.file}")
        try:
            path.write_text(text.replace(defect.old, defect.new), encoding="utf-8")
            return self.test(defect.tests, defect.select)
        finally:
            shutil.copy2(ROOT / "src" / "ematrace" / defect.file, path)


def check_defects(defects: tuple[Defect, ...]) -> None:
    """Complain about every text that does not stand exactly once, before anything is run."""
    texts = {d.file: (ROOT / "src" / "ematrace" / d.file).read_text(encoding="utf-8") for d in defects}
    problems = [
        f"{d.name}: {d.old!r} stands {texts[d.file].count(d.old)} times in {d.file}"
        for d in defects
        if texts[d.file].count(d.old) != 1
    ]
    if problems:
        raise Misfit("\n".join(problems))


def baseline(copy: Copy, defects: tuple[Defect, ...]) -> None:
    """Without a defect every selected test passes; else nothing that follows would mean anything."""
    for tests in dict.fromkeys(d.tests for d in defects):
        select = " or ".join(f"({s})" for s in dict.fromkeys(d.select for d in defects if d.tests == tests))
        if failed := copy.test(tests, select):
            raise Misfit(f"{failed[0]} fails without any defect")


def run(defects: tuple[Defect, ...], folder: Path, compiled: bool) -> dict[Defect, str]:
    """For each defect the test that noticed it, or an empty string."""
    copies = [Copy(folder / f"copy{i}", compiled) for i in range(WORKERS)]
    # Each copy warms its own compiled kernels; defects elsewhere then need no compiling.
    parts = [tuple(d for d in defects if (d.file == KERNELS) == kernels) for kernels in (False, True)]
    noticed: dict[Defect, str] = {}

    def plant(defect: Defect) -> list[str]:
        copy = free.get()
        try:
            return copy.plant(defect)
        finally:
            free.put(copy)

    free: queue.SimpleQueue[Copy] = queue.SimpleQueue()
    with ThreadPoolExecutor(WORKERS) as pool:
        for started in [pool.submit(baseline, copy, defects) for copy in (copies if compiled else copies[:1])]:
            started.result()
        print(f"all selected tests pass without a defect; planting {len(defects)}", flush=True)
        for copy in copies:
            free.put(copy)
        for part in parts:  # those in the kernels last, because they make the caches stale
            futures = {pool.submit(plant, defect): defect for defect in part}
            for future in as_completed(futures):
                defect = futures[future]
                try:
                    noticed[defect] = "".join(future.result()[:1])
                except subprocess.TimeoutExpired:
                    noticed[defect] = ""
                    print(f"  {defect.name}: no answer in {TIMEOUT_S} s", flush=True)
                status = "caught" if noticed[defect] else "NOT CAUGHT"
                print(f"[{len(noticed):2}/{len(defects)}] {status:<10} {defect.name}", flush=True)
    return noticed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="TEXT", help="defects with this in their name")
    parser.add_argument("--compiled", action="store_true", help="compile the kernels, 12 s for each defect in them")
    parser.add_argument("--list", action="store_true", help="name the defects and stop")
    options = parser.parse_args()
    defects = tuple(d for d in DEFECTS if options.only.lower() in d.name.lower())
    if options.list or not defects:
        print("\n".join(f"{d.name}  ({d.file})" for d in defects) or f"no defect has {options.only!r} in its name")
        return 0 if defects else 2
    start = time.monotonic()
    try:
        check_defects(defects)
        with tempfile.TemporaryDirectory(prefix="defects-") as folder:
            noticed = run(defects, Path(folder), options.compiled)
    except Misfit as problem:
        print(problem, file=sys.stderr)
        return 2
    width = max(len(d.name) for d in defects)
    print(f"\n{'defect':<{width}}  {'':<10}  by")
    for defect in defects:
        status = "caught" if noticed[defect] else "NOT CAUGHT"
        print(f"{defect.name:<{width}}  {status:<10}  {noticed[defect] or f'{defect.tests} -k {defect.select!r}'}")
    missed = sum(not noticed[d] for d in defects)
    print(f"\n{len(defects) - missed} of {len(defects)} caught in {time.monotonic() - start:.0f} s")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
