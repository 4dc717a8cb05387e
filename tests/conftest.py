"""What the tests share: hypothesis without deadlines, since compiling a kernel takes seconds, and SPCN's oracle."""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import inspect
import itertools
import math
import os
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any

import pytest

# Without a GPU the Triton kernels are interpreted. Triton reads this when it is imported, and torch may import it.
if not any(Path("/dev").glob("nvidia[0-9]*")):
    os.environ.setdefault("TRITON_INTERPRET", "1")
# Some virtual machines announce AMX for bfloat16 products and then die of an illegal instruction. oneDNN reads it once.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

# What tests tokenize and pack stays out of the user's cache. The first process sets it, the others inherit it.
if "EMATRACE_CACHE" not in os.environ:
    os.environ["EMATRACE_CACHE"] = mkdtemp(prefix="ematrace-tests-")
    atexit.register(rmtree, os.environ["EMATRACE_CACHE"], ignore_errors=True)

# Test processes share the cores: threads that wait for one another by spinning would take them from the other process.
# The libraries of linear algebra read this when they are imported.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # After all that the libraries do at the end: to free millions of objects one by one would take five more seconds.
    atexit.register(os._exit, 0)

import numpy as np

if TYPE_CHECKING:  # the tests of the other rooms must run without SPCN
    from ematrace.spcn import SPCN
    from ematrace.spcn.reference import ReferenceHierarchy

try:
    from hypothesis import settings
except ImportError:  # the tests on GPU machines do without
    pass
else:
    settings.register_profile("ematrace", deadline=None)
    settings.load_profile("ematrace")


# Python would look for garbage after every 700 objects, which takes 7% of the time. Tests that need it look themselves.
gc.set_threshold(50_000, 20, 50)

COMPILED = ("test_spcn_", "test_ops_topk_cpu", "test_ops_cross_entropy_cpu", "test_spen_decode_cpu")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Every second process imports the tests from the last one on: what the other has compiled by then lies there.

    In a fresh checkout each would else compile all of the tests, and of the package, at the same time as the other.
    """
    if os.environ.get("PYTEST_XDIST_WORKER", "gw0")[-1] in "13579":
        for path in sorted(Path(__file__).parent.glob("test_*.py"), reverse=True):
            with suppress(Exception, pytest.skip.Exception):  # as pytest will say when it imports the file itself
                importlib.import_module(path.stem)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The long tests first: one of them at the end would leave the other processes idle.

    In the middle, where the second of two processes begins, those for which numba compiles most: in a fresh checkout
    both would else compile the same kernels at the same time, for half a minute.
    """
    compiled = [item for item in items if item.path.stem.startswith(COMPILED)]
    others = [item for item in items if not item.path.stem.startswith(COMPILED)]
    others.sort(key=lambda item: item.get_closest_marker("slow") is None)
    half = min(len(items) // 2, len(others))
    items[:] = [*others[:half], *compiled, *others[half:]]


def pytest_collection_finish() -> None:
    # Millions of objects of torch and others stay until the end: without this each gc.collect() takes 0.4 s.
    gc.collect()
    gc.freeze()
    if interpreter := sys.modules.get("triton.runtime.interpreter"):
        with suppress(AttributeError):  # another version of Triton
            interpret_faster(interpreter)
    atexit.register(gc.unfreeze)  # else libraries that look for leaks at the end report them


def interpret_faster(interpreter: Any) -> None:
    """Spare Triton's interpreter more than half of its time: what it does again and again, or for nothing.

    It looks through its language for builtins at every launch; here once, and the same are replaced. It replaces them
    at every call of a helper, where the kernel's launch has done it. It writes the table of its types at every look
    into it. It describes the shape of every value anew, in objects that nobody changes. And it looks for integers that
    overflow, only to tell nobody unless `debug` is on.
    """
    builder, is_builtin = interpreter.interpreter_builder, interpreter.tl.core.is_builtin
    scopes, patch_lang, languages = interpreter._LangPatchScope, interpreter._patch_lang, interpreter.tl
    restore, np_dtype_of = scopes.restore, interpreter._get_np_dtype
    np_dtype_of_scalar = functools.cache(np_dtype_of)
    names: dict[Any, list[str]] = {}
    seen: dict[Any, set[Any]] = {}
    replaced: set[Any] = set()

    def patch_builtin(pkg: Any, builder: Any, scope: Any) -> None:
        if pkg not in names:
            names[pkg] = [name for name, member in inspect.getmembers(pkg) if is_builtin(member)]
        for name in names[pkg]:
            if is_builtin(member := getattr(pkg, name)):
                interpreter._patch_attr(pkg, name, member, builder, scope)

    def patch_lang_once(fn: Any) -> Any:
        if fn not in seen:
            seen[fn] = {lang for lang in (languages, languages.core) if any(v is lang for v in fn.__globals__.values())}
        if seen[fn] and seen[fn] <= replaced:
            return scopes()
        scope = patch_lang(fn)
        replaced.update(seen[fn])
        return scope

    def restore_all(scope: Any) -> None:
        replaced.clear()
        restore(scope)

    def np_dtype(dtype: Any) -> Any:
        if isinstance(dtype, languages.block_type):
            dtype = dtype.element_ty
        return np_dtype_of_scalar(dtype) if type(dtype) is languages.dtype else np_dtype_of(dtype)

    @functools.cache
    def called(member: Any) -> Any:
        """The function behind the check that `_semantic` was given, which it always is here."""
        function, semantic = getattr(member, "__wrapped__", member), interpreter.interpreter_semantic

        def call(*args: Any, **kwargs: Any) -> Any:
            kwargs["_semantic"] = semantic
            return function(*args, **kwargs)

        return call

    def patch_attr(obj: Any, name: str, member: Any, builder: Any, scope: Any) -> None:
        scope.set_attr(obj, name, called(member))

    core, init_block_type = languages.core, languages.core.block_type.__init__

    @functools.cache
    def block_of(*shape: int) -> tuple[Any, Any, str]:
        block = object.__new__(core.block_type)
        init_block_type(block, languages.float32, [*shape])
        return block.shape, block.numel, str(block.shape)

    @functools.cache
    def shape_of(*shape: int) -> tuple[Any, Any]:
        return core.constexpr(math.prod(shape)), core.tuple([core.constexpr(n) for n in shape])

    def init_block(block: Any, element_ty: Any, shape: Any) -> None:
        sizes = [n.value if isinstance(n, core.constexpr) else n for n in shape]
        block.shape, block.numel, text = block_of(*sizes)
        block.element_ty, block.name = element_ty, f"<{text}, {element_ty}>"

    def init_tensor(tensor: Any, handle: Any, kind: Any) -> None:
        tensor.handle, tensor.type, tensor.dtype = handle, kind, kind.scalar
        tensor.numel, tensor.shape = shape_of(*(kind.shape if kind.is_block() else ()))

    core.block_type.__init__, core.tensor.__init__ = init_block, init_tensor
    interpreter._patch_attr = patch_attr
    interpreter._patch_builtin = patch_builtin
    interpreter._patch_lang, scopes.restore = patch_lang_once, restore_all
    interpreter._get_np_dtype = np_dtype
    if not builder.options.debug:
        builder.options = replace(builder.options, sanitize_overflow=False)


@pytest.fixture
def inductor(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Inductor as users have it, less what changes no instruction of the compiled program.

    That is line numbers for a debugger, processes beside this one that import torch only to wait for the C++ compiler,
    and trying weaker vector instructions after stronger ones were found to work: it takes the strongest.
    """
    from torch._inductor import config, cpu_vec_isa

    if platform.machine() == "x86_64" and "ATEN_CPU_CAPABILITY" not in os.environ:
        with suppress(AttributeError):  # another version of torch
            here = cpu_vec_isa.x86_isa_checker()
            known = [isa for isa in cpu_vec_isa.supported_vec_isa_list if {*str(isa).split()} <= {*here}]
            strongest = functools.cache(lambda: [*itertools.islice(filter(None, known), 1)])
            monkeypatch.setattr(cpu_vec_isa, "valid_vec_isa_list", strongest)
    options = {"compile_threads": 1, "aot_inductor.enable_line_tables": False}
    with config.patch({name: value for name, value in options.items() if name in config._config}):
        yield


WORDS = tuple(f"w{i}" for i in range(14))
ReferenceOf = Callable[..., "ReferenceHierarchy"]
ReferenceRun = Callable[..., np.ndarray]


def draw_sentences(n: int, seed: int, longest: int = 17) -> list[list[str]]:
    rng = np.random.default_rng(seed)
    return [[WORDS[i] for i in rng.integers(0, len(WORDS), rng.integers(1, longest + 1))] for _ in range(n)]


@pytest.fixture(scope="session")
def sentences() -> list[list[str]]:
    """Random sentences of 1 to 17 words over w0 ... w13, so that many outgrow an SPA buffer of 8."""
    return draw_sentences(14, seed=3)


@pytest.fixture(scope="session")
def held_out() -> list[list[str]]:
    return draw_sentences(5, seed=4)


@pytest.fixture(scope="session")
def reference_of() -> ReferenceOf:
    """The dense float64 hierarchy with a fitted model's present weights and settings."""
    from ematrace.spcn.reference import reference_of

    return reference_of


@pytest.fixture(scope="session")
def run_reference() -> ReferenceRun:
    """Features [tokens, Σ 3 d_l]: activation, fast and slow trace of each level in turn, words in text order."""

    def run(
        reference: ReferenceHierarchy,
        model: SPCN,
        sentences: Sequence[Sequence[str]],
        *,
        backward: bool = False,
        learning: bool = False,
    ) -> np.ndarray:
        rows = []
        for words in sentences:
            if model.reset == "sentence":
                reference.start_sentence()
            sentence = []
            for word in reversed(words) if backward else words:
                reference.step(model.vocabulary_.get(word, -1), learning)
                levels = zip(reference.x, reference.fast, reference.slow, strict=True)
                sentence.append(np.concatenate([part for level in levels for part in level]))
            rows += sentence[::-1] if backward else sentence
        return np.array(rows)

    return run
