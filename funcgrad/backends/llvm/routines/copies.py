"""Copies of much memory, shared among threads; what the caches can't hold anyway is written past
them.

A store to a line that isn't in a cache reads it first, and one past the caches (a streaming store)
doesn't: of three moves of memory two remain.
"""

from __future__ import annotations

import functools

from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.code import I32, I64, PTR, VOID, Code, Int, Record, declare
from funcgrad.backends.llvm.native.engine import Engine, engine
from funcgrad.backends.llvm.native.sources import generator
from funcgrad.backends.llvm.runtime import pool

SYMBOL = "fg_copy"
_TURN = 1 << 17
_JOB = ("to", "source", "bytes")
_BYTE = ir.IntType(8)


@functools.cache
def install(target: Engine | None = None) -> int:
    """Compile void fg_copy(ptr to, ptr source, i64 bytes), of arrays that don't overlap; bind its
    symbol, return its address.

    >>> install() == install()
    True
    """
    target = target or engine()
    pool.bind(target)
    most = target.target.stream_bytes

    def write() -> ir.Module:
        module = ir.Module("copies")
        _entry(module, _task(module, most))
        return module

    library = target.compile(write, level=2, key=f"{SYMBOL} {most} {generator('routines.copies')}")
    target.bind(SYMBOL, library)
    return library.address(SYMBOL)


def _entry(module: ir.Module, task: ir.Function) -> None:
    loop = ir.FunctionType(VOID, [PTR, PTR, I64, I64])
    parallel_for = declare(module, "fg_parallel_for", loop)
    code = Code(module, SYMBOL, [PTR, PTR, I64], public=True)
    to, source, nbytes = code.args
    job = Record(code, _JOB, code.variable(I64, count=len(_JOB)).slot)
    job["to"], job["source"] = (Int(code, code.b.ptrtoint(p, I64)) for p in (to, source))
    job["bytes"] = nbytes
    code.call(parallel_for, task, job.pointer, nbytes.ceil_div(_TURN), 1)
    code.ret()


def _task(module: ir.Module, most: int) -> ir.Function:
    """Turns [begin, end) of a copy."""
    code = Code(module, "task", [PTR, I64, I64])
    job = Record(code, _JOB, code.args[0])
    first, nbytes = code.args[1] * _TURN, job["bytes"]
    n = (code.args[2] * _TURN).min(nbytes) - first
    places = [code.at(job.pointer_at(name), first, _BYTE) for name in ("to", "source")]
    copy = declare(module, "memcpy", ir.FunctionType(PTR, [PTR, PTR, I64]))
    if most:
        stream = stream_function(module)
        with code.either(nbytes >= most) as (large, small):
            with large:
                code.call(stream, *places, n)
                # These stores are in no order with others, the end of the task among them.
                code.b.fence("seq_cst")
            with small:
                code.call(copy, *places, n)
    else:
        code.call(copy, *places, n)
    code.ret()
    return code.function


def stream_function(module: ir.Module) -> ir.Function:
    """void stream(to, source, bytes): a copy that leaves nothing of `to` in the caches."""
    code = Code(module, "stream", [PTR, PTR, I64])
    to, source, nbytes = code.args
    copy = declare(module, "memcpy", ir.FunctionType(PTR, [PTR, PTR, I64]))
    lanes = ir.VectorType(I64, 8)
    first = ((0 - Int(code, code.b.ptrtoint(to, I64))) % 64).min(nbytes)
    code.b.call(copy, [to, source, first.value])
    whole = first + (nbytes - first) // 256 * 256
    past = module.add_metadata([I32(1)])
    with code.range(first, whole, 256) as i:
        places = [i + 64 * k for k in range(4)]
        values = [code.b.load(code.at(source, p, _BYTE), typ=lanes, align=1) for p in places]
        for p, value in zip(places, values, strict=True):
            code.b.store(value, code.at(to, p, _BYTE), 64, f"!nontemporal {past}")
    rest = nbytes - whole
    code.b.call(copy, [code.at(to, whole, _BYTE), code.at(source, whole, _BYTE), rest.value])
    code.ret()
    return code.function
