"""Conversions of float16 for processors that lack one: most know none from float64.

LLVM then calls functions that a C compiler's runtime library has, and a Python process need not.
These are ours.
"""

from __future__ import annotations

from funcgrad.backends.llvm.gemm.pack import F32, F64, FORMATS, I16, I32, narrow, widen
from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.code import I64, Code
from funcgrad.backends.llvm.native.engine import HALF_CALLS, Engine, Library
from funcgrad.backends.llvm.native.sources import generator
from funcgrad.backends.llvm.native.target import Target

HALF = ir.HalfType()


def library(engine: Engine) -> Library:
    """The functions of `HALF_CALLS`.

    >>> from funcgrad.backends.llvm.native.engine import engine
    >>> library(engine(Target.host().generic())).address(HALF_CALLS[0]) > 0
    True
    """
    key = f"half_calls {generator('emit.half_calls')}"
    return engine.compile(lambda: _module(engine.target), level=2, key=key)


def _module(target: Target) -> ir.Module:
    module = ir.Module("half_calls")
    extend, truncate, truncate_double = HALF_CALLS
    code = Code(module, extend, [HALF], public=True, result=F32)
    bits = code.b.bitcast(code.function.args[0], I16)
    code.b.ret(widen(code, FORMATS["float16"], target, bits))
    for name, type_ in ((truncate, F32), (truncate_double, F64)):
        code = Code(module, name, [type_], public=True, result=HALF)
        (x,) = code.function.args
        bits = narrow(code, FORMATS["float16"], x if type_ == F32 else _to_odd(code, x))
        code.b.ret(code.b.bitcast(bits, HALF))
    return module


def _to_odd(code: Code, x: ir.Value) -> ir.Value:
    """Double to float such that rounding the result once more is rounding once."""
    b = code.b
    near = b.fptrunc(x, F32)
    back = b.fpext(near, F64)
    size, back_size = (
        b.and_(b.bitcast(v, I64), I64((1 << 63) - 1)) for v in (x, back)
    )  # of finite numbers, bits are ordered as sizes
    bits = b.bitcast(near, I32)
    toward_zero = b.select(b.icmp_unsigned(">", back_size, size), b.sub(bits, I32(1)), bits)
    inexact = b.fcmp_ordered("!=", back, x)
    return b.bitcast(b.select(inexact, b.or_(toward_zero, I32(1)), bits), F32)
