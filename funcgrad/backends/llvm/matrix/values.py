"""Singular values, and eigenvalues of matrices that aren't symmetric: generated code that calls
LAPACK for each matrix of a batch, on all threads.

Fortran's matrices lie in columns, so they are transposed on the way. What isn't finite, or isn't
found, has results of NaN.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from funcgrad.backends.llvm.matrix.parts import Matrices
from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.code import I64, PTR, VOID, Bool, Code, Int, Record, declare
from funcgrad.backends.llvm.native.engine import Engine, engine
from funcgrad.backends.llvm.runtime import lapack as names
from funcgrad.backends.llvm.runtime.routine import Call, compiled
from funcgrad.ops.linalg import lapack

if TYPE_CHECKING:
    from funcgrad.backends.program import HostStep

_LETTERS = {"float32": "s", "float64": "d"}
_OWN_THREADS = 128  # rows or columns from which on LAPACK has threads of its own


def svd_call(step: HostStep) -> Call | None:
    """How the function that runs a step of `svd` is called; None where the host is to run it."""
    aval, p = step.ins[0].aval, step.params
    job = "N" if not p["compute_uv"] else "A" if p["full_matrices"] else "S"
    dtype, (*lead, m, n) = aval.dtype.name, aval.shape
    if dtype not in _LETTERS or not aval.size or not lapack.address(f"{_LETTERS[dtype]}gesdd"):
        return None
    room = lapack.svd_work(aval.dtype, m, n, job.encode())
    form = dtype, m, n, job, room
    return Call(_name(*form), (math.prod(lead),), (partial(install, *form),))


def eigvals_call(step: HostStep) -> Call | None:
    """The same for a step of `eig` on pairs, if no vectors are asked for."""
    aval, p = step.ins[0].aval, step.params["params"]
    dtype, (*lead, n, _) = aval.dtype.name, aval.shape[: aval.ndim - any(step.params["pairs"])]
    if any(step.params["pairs"]) or any(p.values()) or dtype not in _LETTERS or not aval.size:
        return None
    if not lapack.address(f"{_LETTERS[dtype]}geev"):
        return None
    form = dtype, n, n, "eigvals", lapack.eigvals_work(aval.dtype, n)
    return Call(_name(*form), (math.prod(lead),), (partial(install, *form),))


def _name(dtype: str, m: int, n: int, job: str, room: int) -> str:
    return f"fg_values_{job.lower()}_{m}_{n}_{dtype}_{room}"


@functools.cache
def install(dtype: str, m: int, n: int, job: str, room: int, target: Engine | None = None) -> int:
    """Compile the values of matrices (m, n), bind the symbol, and return its address.

    job: "N" for singular values alone, "S" or "A" for some or all vectors, or "eigvals"; room:
    elements of work space

    >>> install("float32", 3, 3, "N", 500) == install("float32", 3, 3, "N", 500)
    True
    """
    target = target or engine()
    names.bind(target)
    name = _name(dtype, m, n, job, room)

    def write() -> ir.Module:
        parts = Matrices(ir.Module("values"), dtype, target.target)
        if job == "eigvals":
            _emit_eigvals(parts, name, n, room)
        else:
            _emit(parts, name, m, n, job, room)
        return parts.module

    return compiled(name, write, 1, ("matrix.values",), target)


def _emit_eigvals(parts: Matrices, name: str, n: int, room: int) -> None:
    def one(code: Code, call: Record, item: Int) -> None:
        out = parts.at(code, call.pointer_at("out"), item * (2 * n))
        scratch = code.call(parts.take, (n * n + 2 * n + 1 + room) * parts.bytes)
        re, im, none, work = (
            parts.at(code, scratch, n * n + at) for at in (0, n, 2 * n, 2 * n + 1)
        )
        x = parts.at(code, call.pointer_at("x"), item * (n * n))
        code.call(parts.transpose, x, n, scratch, n, n, n)
        info = code.variable(I64, code.i64(1))
        letter, size, single, count = (
            code.variable(I64, code.i64(v)).slot for v in (ord("N"), n, 1, room)
        )
        with code.when(_finite(parts, code, scratch, n * n)):
            info.set(code.i64(0))
            arguments = [letter, letter, size, scratch, size, re, im, none, single, none, single,
                         work, count, info.slot]  # fmt: skip
            _call(parts, code, f"{_LETTERS[parts.dtype]}geev", arguments, 2)
        found = Int(code, info.get()).eq(0)
        nan = ir.Constant(parts.type, float("nan"))
        with code.range(0, n) as i:
            for k, values in enumerate((re, im)):
                value = code.b.select(found.value, parts.load(code, values, i), nan)
                parts.store(code, value, out, i * 2 + k)
        code.call(parts.give, scratch)

    _entry(parts, name, ("batch", "x", "out"), one, n <= _OWN_THREADS)


def _emit(parts: Matrices, name: str, m: int, n: int, job: str, room: int) -> None:
    k, size = min(m, n), parts.bytes
    wide = {"N": 0, "S": k, "A": m}[job], {"N": 0, "S": k, "A": n}[job]
    lengths = [k, m * wide[0], wide[1] * n][: 1 if job == "N" else 3]
    fields = ("batch", "x", "s", "u", "vh")[: 2 + len(lengths)]
    # What one matrix needs: a copy, vectors in columns, integers, work space.
    needs = [m * n, lengths[1], lengths[2]] if job != "N" else [m * n, 1, 1]
    places = np.cumsum([0, *needs]) * size
    integers = -(-int(places[-1]) // 8) * 8
    work = integers + 8 * 8 * k

    def one(code: Code, call: Record, item: Int) -> None:
        outs = [
            parts.at(code, call.pointer_at(field), item * length)
            for field, length in zip(fields[2:], lengths, strict=True)
        ]
        x = parts.at(code, call.pointer_at("x"), item * (m * n))
        scratch = code.call(parts.take, work + room * size)
        at = [code.b.gep(scratch, [I64(int(p))], source_etype=ir.IntType(8)) for p in places[:3]]
        rest = [code.b.gep(scratch, [I64(p)], source_etype=ir.IntType(8)) for p in (integers, work)]
        code.call(parts.transpose, x, n, at[0], m, m, n)
        info = code.variable(I64, code.i64(1))
        given = ord(job), m, n, max(1, wide[1]), room
        letter, *numbers = (code.variable(I64, code.i64(v)) for v in given)
        rows, columns, high, count = (v.slot for v in numbers)
        with code.when(_finite(parts, code, at[0], m * n)):
            info.set(code.i64(0))
            arguments = [letter.slot, rows, columns, at[0], rows, outs[0], at[1], rows, at[2], high,
                         rest[1], count, rest[0], info.slot]  # fmt: skip
            _call(parts, code, f"{_LETTERS[parts.dtype]}gesdd", arguments, 1)
        found = Int(code, info.get()).eq(0)
        with code.either(found) as (yes, no):
            with yes:
                if job != "N":
                    code.call(parts.transpose, at[1], m, outs[1], wide[0], wide[0], m)
                    code.call(parts.transpose, at[2], wide[1], outs[2], n, n, wide[1])
            with no:
                nan = ir.Constant(parts.type, float("nan"))
                for out, length in zip(outs, lengths, strict=True):
                    with code.range(0, length) as i:
                        parts.store(code, nan, out, i)
        code.call(parts.give, scratch)

    _entry(parts, name, fields, one, max(m, n) <= _OWN_THREADS)


def _entry(parts: Matrices, name: str, fields: Sequence[str], one, several: bool) -> None:
    """As `Matrices.entry`; one matrix after another where `several` is off."""
    if several:
        parts.entry(name, fields, one)
        return
    code = Code(parts.module, name, [PTR], public=True)
    call = Record(code, tuple(fields), code.args[0])
    with code.range(0, call["batch"]) as i:
        one(code, call, i)
    code.ret()


def _call(
    parts: Matrices, code: Code, routine: str, pointers: Sequence[ir.Value], strings: int
) -> None:
    """Call a routine of Fortran, the lengths of strings behind its arguments."""
    kind = ir.FunctionType(VOID, [PTR] * len(pointers) + [I64] * strings)
    function = declare(parts.module, names.symbol(routine), kind)
    code.call(function, *pointers, *[1] * strings)


def _finite(parts: Matrices, code: Code, x: ir.Value, size: int):
    """Whether all elements are: a sum of them times zero is then zero."""
    lanes, b = parts.lanes, code.b
    whole = size // lanes * lanes
    vector = ir.VectorType(parts.type, lanes)
    zeros = code.splat(ir.Constant(parts.type, 0.0), lanes)
    total = code.variable(vector, zeros)
    with code.range(0, whole, lanes) as i:
        total.set(b.fadd(total.get(), b.fmul(parts.load(code, x, i, lanes), zeros)))
    alone = code.variable(parts.type, code.lane_sum(total.get()))
    with code.range(whole, size) as i:
        value = b.fmul(parts.load(code, x, i), ir.Constant(parts.type, 0.0))
        alone.set(b.fadd(alone.get(), value))
    found = b.fcmp_ordered("==", alone.get(), ir.Constant(parts.type, 0.0))
    return Bool(code, found)
