"""What numba has no words for: vectors of 16 floats, bfloat16, prefetching, counters that threads share.

Each function is an intrinsic of one or two LLVM instructions, for use inside compiled functions only. LLVM splits the
16 floats into whatever the processor has: one AVX-512 register, two of AVX2, four of NEON.
"""

# mypy: disallow-untyped-decorators=false, disallow-untyped-defs=false, disallow-untyped-calls=false
from __future__ import annotations

import ctypes
import os
from typing import Any

from llvmlite import binding, ir  # type: ignore[import-untyped]
from numba import extending
from numba.core import types
from numba.core.cgutils import get_or_insert_function
from numba.core.datamodel import models
from numba.np import arrayobj

intrinsic: Any = extending.intrinsic  # its types describe what is called here, not what compiled code calls

LANES = 16
CACHE_LINE = 64

_I16, _I32, _I64, _F32 = ir.IntType(16), ir.IntType(32), ir.IntType(64), ir.FloatType()
_VECTOR = ir.VectorType(_F32, LANES)


class _Floats(types.Type):
    def __init__(self):
        super().__init__(name="Floats16")


_FLOATS = _Floats()


@extending.register_model(_Floats)
class _FloatsModel(models.PrimitiveModel):
    def __init__(self, manager, of):
        super().__init__(manager, of, _VECTOR)


def _address(context, builder, kind, array, index):
    return builder.gep(arrayobj.make_array(kind)(context, builder, array).data, [index])


def _is_weight(kind):
    return isinstance(kind, types.Array) and kind.ndim == 1 and kind.dtype in (types.uint16, types.float32)


def _widened(builder, bits, integers, floats):
    """bfloat16 is the upper half of a float32."""
    return builder.bitcast(builder.shl(builder.zext(bits, integers), _constant(integers, 16)), floats)


def _constant(kind, value):
    return ir.Constant(kind, [value] * LANES if isinstance(kind, ir.VectorType) else value)


@intrinsic
def widen(typing, weight):
    """A weight as float32: a float32 as it is, a uint16 as the bits of a bfloat16."""

    def generate(context, builder, signature, arguments):
        narrow = signature.args[0] == types.uint16
        return _widened(builder, arguments[0], _I32, _F32) if narrow else arguments[0]

    return (types.float32(weight), generate) if weight in (types.uint16, types.float32) else None


@intrinsic
def load(typing, array, index):
    """array[index : index + 16], widened."""

    def generate(context, builder, signature, arguments):
        address = _address(context, builder, signature.args[0], *arguments)
        if signature.args[0].dtype == types.float32:
            return builder.load(builder.bitcast(address, _VECTOR.as_pointer()), align=4)
        narrow = builder.load(builder.bitcast(address, ir.VectorType(_I16, LANES).as_pointer()), align=2)
        return _widened(builder, narrow, ir.VectorType(_I32, LANES), _VECTOR)

    return (_FLOATS(array, types.intp), generate) if _is_weight(array) else None


@intrinsic
def zeros(typing):
    return _FLOATS(), lambda context, builder, signature, arguments: _constant(_VECTOR, 0.0)


@intrinsic
def multiply_add(typing, a, b, c):
    """a · b + c."""

    def generate(context, builder, signature, arguments):
        kind = ir.FunctionType(_VECTOR, [_VECTOR] * 3)
        return builder.call(get_or_insert_function(builder.module, kind, f"llvm.fmuladd.v{LANES}f32"), arguments)

    return _FLOATS(a, b, c), generate


@intrinsic
def total(typing, a, b, c, d):
    """Sum of all lanes of four vectors."""

    def generate(context, builder, signature, arguments):
        kind = ir.FunctionType(_F32, [_F32, _VECTOR])
        add = get_or_insert_function(builder.module, kind, f"llvm.vector.reduce.fadd.v{LANES}f32")
        a, b, c, d = arguments
        lanes = builder.fadd(builder.fadd(a, b), builder.fadd(c, d))
        return builder.call(add, [ir.Constant(_F32, 0.0), lanes], fastmath=("reassoc",))  # pairwise, not one by one

    return types.float32(a, b, c, d), generate


@intrinsic
def prefetch(typing, array, index, lanes):
    """Ask for the cache lines of array[index : index + lanes] (lanes: a literal); an address outside does no harm."""
    if not isinstance(lanes, types.IntegerLiteral):
        return None

    def generate(context, builder, signature, arguments):
        item = signature.args[0].dtype.bitwidth // 8
        byte = ir.IntType(8).as_pointer()
        first = builder.bitcast(_address(context, builder, signature.args[0], *arguments[:2]), byte)
        kind = ir.FunctionType(ir.VoidType(), [byte, _I32, _I32, _I32])
        ask = get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        for offset in range(0, lanes.literal_value * item, CACHE_LINE):
            line = builder.gep(first, [_constant(_I64, offset)])
            builder.call(ask, [line, _constant(_I32, 0), _constant(_I32, 2), _constant(_I32, 1)])  # read, into L2, data
        return context.get_dummy_value()

    return types.none(array, types.intp, lanes), generate


@intrinsic
def claim(typing, counters, index):
    """counters[index] += 1, for all threads at once; returns what it was before."""

    def generate(context, builder, signature, arguments):
        address = _address(context, builder, signature.args[0], *arguments)
        return builder.atomic_rmw("add", address, _constant(_I64, 1), "seq_cst")

    return (types.int64(counters, types.intp), generate) if counters.dtype == types.int64 else None


@intrinsic
def observe(typing, counters, index):
    """counters[index] as other threads left it, and all that they wrote before."""

    def generate(context, builder, signature, arguments):
        address = _address(context, builder, signature.args[0], *arguments)
        return builder.load_atomic(address, "seq_cst", align=8)

    return (types.int64(counters, types.intp), generate) if counters.dtype == types.int64 else None


def _address_of_yield():
    """Where the C library has `sched_yield`, or None where it has none."""
    if os.name != "posix":
        return None
    return ctypes.cast(ctypes.CDLL(None).sched_yield, ctypes.c_void_p).value


_YIELD = _address_of_yield()
if _YIELD is not None:  # known to LLVM by name, so that code compiled by another process finds it, too
    binding.add_symbol("ematrace_yield", _YIELD)


@intrinsic
def give_way(typing):
    """Let another thread have the processor, where the system has a call for that."""

    def generate(context, builder, signature, arguments):
        if _YIELD is not None:
            builder.call(get_or_insert_function(builder.module, ir.FunctionType(_I32, []), "ematrace_yield"), [])
        return context.get_dummy_value()

    return types.none(), generate
