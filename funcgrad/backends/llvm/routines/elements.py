"""Scatters of very many single elements, as generated code: each task owns a range of the target.

A task looks at all updates, several at a time, packs those of its range into small arrays and
applies them, in order, from there. So results don't depend on how many tasks there are. A range
begins as a copy of what is there, or zeros. Where few elements take many updates, a task owns some
of the updates instead; mostly all go to elements there are, which is quick to see of many at once.
Where many neighbours go to one element, their sum stays in a register: memory would hand it on more
slowly.
"""

from __future__ import annotations

import functools
import math
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.code import I32, I64, PTR, VOID, Code, Int, Record, declare
from funcgrad.backends.llvm.native.engine import Engine, engine
from funcgrad.backends.llvm.runtime.routine import Call, compiled

if TYPE_CHECKING:
    from funcgrad.backends.program import HostStep

_CALL = ("lines", "n", "size", "positions", "updates", "start", "out")
_JOB = (*_CALL, "ranges")
# Updates looked at before those of a range are applied, and how far ahead of that their places are
# asked for.
CHUNK, AHEAD = 2048, 24
# How many updates of a chunk are asked whether they go where the one before goes; above so many
# that do, runs are long enough (of ten) to be worth a branch at each end.
SAMPLE, RUNS = 64, 57
# How the places of updates are known: see `_Writer._apply`.
CHECKED, DIRECT, PACKED = "checked", "direct", "packed"
# Ranges at most: each task looks at all updates, which takes a tenth of the time of applying them.
MOST = 16


def elements_call(step: HostStep) -> Call:
    """How the function that runs a step of `scatter_elements` is called."""
    positions, updates, *start = (v.aval for v in step.ins)
    how, dtype = step.params["how"], updates.dtype
    # What is set is bits.
    kind = dtype.name if dtype.kind == "f" and how == "add" else f"int{8 * dtype.itemsize}"
    wraps = "wrap" if step.params["wraps"] else "plain"
    name = f"fg_elements_{how}_{kind}_{len(start)}_{wraps}"
    lines = step.params["lines"]
    words = lines, positions.size // lines, math.prod(step.params["shape"]) // lines
    return Call(name, words, (partial(install, name),))


@functools.cache
def install(name: str, target: Engine | None = None) -> int:
    """Compile a function that `elements_call` names; bind its symbol, return its address.

    >>> name = "fg_elements_add_float32_1_wrap"
    >>> install(name) == install(name)
    True
    """
    target = target or engine()
    _, _, how, dtype, starts, wraps = name.split("_")

    def write() -> ir.Module:
        module = ir.Module("elements")
        packs = target.target.vector_bits == 512
        _Writer(module, how, dtype, starts == "1", wraps == "wrap", packs).entry(name)
        return module

    return compiled(name, write, 2, ("routines.elements",), target)


class _Writer:
    """Writes the functions of one dtype and way to combine."""

    def __init__(
        self, module: ir.Module, how: str, dtype: str, starts: bool, wraps: bool, packs: bool
    ):
        self.module, self.adds, self.starts = module, how == "add", starts
        self.wraps, self.packs = wraps, packs
        self.floats = dtype.startswith("float")
        self.width = np.dtype(dtype).itemsize
        kinds = {"float32": ir.FloatType(), "float64": ir.DoubleType()}
        self.kind = kinds.get(dtype, ir.IntType(8 * self.width))
        self.call = _CALL if starts else tuple(f for f in _CALL if f != "start")

    def entry(self, name: str) -> None:
        """void name(ptr call) of the words `_CALL`."""
        task = self._task()
        loop = ir.FunctionType(VOID, [PTR, PTR, I64, I64])
        parallel_for = declare(self.module, "fg_parallel_for", loop)
        limit = ir.GlobalVariable(self.module, I32, "fg_pool_limit")
        code = Code(self.module, name, [PTR], public=True)
        call = Record(code, self.call, code.args[0])
        job = Record(code, _JOB, code.variable(I64, count=len(_JOB)).slot)
        for field in self.call:
            job[field] = call[field]
        threads = Int(code, code.b.sext(code.load(limit, I32), I64)) + 1
        job["ranges"] = (call["lines"] > 1).select(1, threads.min(MOST))
        code.call(parallel_for, task, job.pointer, call["lines"] * job["ranges"], 1)
        code.ret()

    def _task(self) -> ir.Function:
        """Tasks [begin, end): of several lines, or ranges of a single one."""
        checked, direct, apply = (self._apply(way) for way in (CHECKED, DIRECT, PACKED))
        greatest, pack = self._greatest(), self._pack()
        code = Code(self.module, "task", [PTR, I64, I64])
        b, job = code.b, Record(code, _JOB, code.args[0])
        n, size, lines = job["n"], job["size"], job["lines"]
        span = size.ceil_div(job["ranges"])
        places = code.variable(I32, count=CHUNK + 64).slot
        values = code.variable(self.kind, count=CHUNK + 64).slot
        positions, updates = job.pointer_at("positions"), job.pointer_at("updates")
        with code.range(code.args[1], code.args[2]) as t:
            low = t * span
            count = (size * lines - low).min(span).max(0)
            out = code.at(job.pointer_at("out"), low, self.kind)
            self._begin(code, job, out, low, count)
            with code.either(lines > 1) as (several, one):
                with several, code.range(t * n, (t + 1) * n, CHUNK) as first:
                    own = code.at(positions, first, I32), code.at(updates, first, self.kind)
                    length = ((t + 1) * n - first).min(CHUNK)
                    most = code.call(greatest, own[0], length, places)
                    parts = out, places, own[1], length, size
                    with code.either(Int(code, b.zext(most, I64)) < size) as (inside, some):
                        with inside:
                            code.call(direct, *parts)
                        with some:
                            code.call(checked, *parts)
                with one, code.range(0, n, CHUNK) as first:
                    chunk = first, (first + CHUNK).min(n), low, count, size
                    kept = code.call(pack, positions, updates, *chunk, places, values)
                    code.call(apply, out, places, values, Int(code, kept), count)
        code.ret()
        return code.function

    def _begin(self, code: Code, job: Record, out: ir.Value, at: Int, count: Int) -> None:
        nbytes, no = (count * self.width).value, ir.Constant(ir.IntType(1), 0)
        if self.starts:
            kind = ir.FunctionType(VOID, [PTR, PTR, I64, no.type])
            copy = declare(self.module, "llvm.memcpy.p0.p0.i64", kind)
            code.b.call(copy, [out, code.at(job.pointer_at("start"), at, self.kind), nbytes, no])
        else:
            kind = ir.FunctionType(VOID, [PTR, ir.IntType(8), I64, no.type])
            fill = declare(self.module, "llvm.memset.p0.i64", kind)
            code.b.call(fill, [out, ir.IntType(8)(0), nbytes, no])

    def _greatest(self) -> ir.Function:
        """i32 greatest(positions, n, places): the greatest of these positions, as numbers without
        sign, which are copied to places: whose memory it is may write to it before they are used.
        """
        code = Code(self.module, "greatest", [PTR, I64, PTR], result=I32)
        code.function.attributes.add("noinline")
        positions, n, places = code.args
        b, lanes, index = code.b, 16, ir.VectorType(I32, 16)
        parts = [code.variable(index, ir.Constant(index, None)) for _ in range(4)]
        most = code.variable(I32, I32(0))

        def more(x: ir.Value, y: ir.Value) -> ir.Value:
            return b.select(b.icmp_unsigned(">", x, y), x, y)

        whole = n // (4 * lanes) * (4 * lanes)
        with code.range(0, whole, 4 * lanes) as i:
            for k, part in enumerate(parts):
                some = code.load(code.at(positions, i + k * lanes, I32), index, 4)
                code.store(some, code.at(places, i + k * lanes, I32), 4)
                part.set(more(some, part.get()))
        with code.range(whole, n) as i:
            one = code.load(code.at(positions, i, I32), I32)
            code.store(one, code.at(places, i, I32))
            most.set(more(one, most.get()))
        found = functools.reduce(more, [part.get() for part in parts])
        while lanes > 1:
            lanes //= 2
            found = more(code.part(found, 0, lanes), code.part(found, lanes, lanes))
        code.ret(more(b.extract_element(found, I32(0)), most.get()))
        return code.function

    def _pack(self) -> ir.Function:
        """i64 pack(positions, updates, first, last, low, count, size, places, values): how many of
        these updates are in the range, whose places in it and values are written one after the
        other."""
        kinds = [PTR, PTR, I64, I64, I64, I64, I64, PTR, PTR]
        code = Code(self.module, "pack", kinds, result=I64)
        code.function.attributes.add("noinline")
        positions, updates, first, last, low, count, size, places, values = code.args
        b, kept = code.b, code.variable(I64, I64(0))
        low32, count32 = b.trunc(low.value, I32), b.trunc(count.value, I32)
        lanes = min(16, 64 // self.width) if self.packs else 1
        whole = first
        if lanes > 1:
            whole = first + (last - first) // lanes * lanes
            index, value = ir.VectorType(I32, lanes), ir.VectorType(self.kind, lanes)
            lows, counts = code.splat(low32, lanes), code.splat(count32, lanes)
            with code.range(first, whole, lanes) as i:
                place = self._wrapped(code, code.load(code.at(positions, i, I32), index, 4), size)
                place = b.sub(place, lows)
                inside = b.icmp_unsigned("<", place, counts)
                at = Int(code, kept.get())
                x = code.load(code.at(updates, i, self.kind), value, self.width)
                for these, to, kind in ((place, places, I32), (x, values, self.kind)):
                    packed = self._compressed(code, these, inside)
                    code.store(packed, code.at(to, at, kind), (kind is I32 and 4) or self.width)
                bits = b.bitcast(inside, ir.IntType(lanes))
                some = code.intrinsic("ctpop", bits)
                kept.set(at + Int(code, b.zext(some, I64)))
        with code.range(whole, last) as i:
            place = self._wrapped(code, code.load(code.at(positions, i, I32), I32), size)
            place = b.sub(place, low32)
            at = Int(code, kept.get())
            code.store(place, code.at(places, at, I32))
            code.store(self._load(code, updates, i),
                       code.at(values, at, self.kind))  # fmt: skip
            inside = b.icmp_unsigned("<", place, count32)
            kept.set(at + Int(code, b.zext(inside, I64)))
        code.ret(kept.get())
        return code.function

    def _wrapped(self, code: Code, position: ir.Value, size: Int) -> ir.Value:
        """A position, or a vector of them, from the beginning."""
        if not self.wraps:
            return position
        shift, more = I32(31), code.b.trunc(size.value, I32)
        if isinstance(position.type, ir.VectorType):
            shift, more = (code.splat(x, position.type.count) for x in (shift, more))
        return code.b.add(position, code.b.and_(code.b.ashr(position, shift), more))

    def _compressed(self, code: Code, x: ir.Value, mask: ir.Value) -> ir.Value:
        """The lanes that are on, one after the other."""
        kind = x.type
        name = f"llvm.experimental.vector.compress.v{kind.count}{kind.element.intrinsic_name}"
        f = declare(self.module, name, ir.FunctionType(kind, [kind, mask.type, kind]))
        return code.b.call(f, [x, mask, ir.Undefined(kind)])

    def _load(self, code: Code, values: ir.Value, i: Int) -> ir.Value:
        return code.b.load(code.at(values, i, self.kind), typ=self.kind)

    def _apply(self, way: str) -> ir.Function:
        """void apply(out, places, values, n, size): CHECKED, of those places that are less than
        size; DIRECT, of places that all are; PACKED, of such in a small array, which has room
        behind them."""
        each = self._loop(way, runs=False)
        runs = self._loop(way, runs=True) if self.adds else each
        code = Code(self.module, f"apply_{way}", [PTR, PTR, PTR, I64, I64])
        _, places, _, n, _ = code.args
        b = code.b
        if way == PACKED:
            with code.range(n, n + AHEAD) as i:
                code.store(I32(0), code.at(places, i, I32))
        same = code.variable(I64, I64(0))
        if self.adds:
            with code.range(1, n.min(SAMPLE)) as i:
                pair = (code.load(code.at(places, i - j, I32), I32) for j in (0, 1))
                more = b.zext(b.icmp_unsigned("==", *pair), I64)
                same.set(b.add(same.get(), more))
        with code.either(Int(code, same.get()) > RUNS) as (yes, no):
            with yes:
                code.call(runs, *code.args)
            with no:
                code.call(each, *code.args)
        code.ret()
        return code.function

    def _loop(self, way: str, runs: bool) -> ir.Function:
        """The same, with the sum of neighbours that go to one element in a register, or without: a
        branch and a move more for each update."""
        name = f"loop_{way}_{runs:d}"
        code = Code(self.module, name, [PTR, PTR, PTR, I64, I64])
        code.function.attributes.add("noinline")
        out, places, values, n, size = code.args
        b, size32 = code.b, code.b.trunc(size.value, I32)

        def place(i: Int) -> ir.Value:
            return code.load(code.at(places, i, I32), I32)

        def element(at: ir.Value) -> ir.Value:
            return code.at(out, Int(code, b.zext(at, I64)), self.kind)

        def update(i: Int, to: ir.Value) -> None:
            x = self._load(code, values, i)
            code.store(add(b.load(to, typ=self.kind), x) if self.adds else x, to)

        add = b.fadd if self.floats else b.add
        with code.when(n <= 0):
            code.ret()
        # Any element will do at first: it is stored as it is.
        here = code.variable(PTR, out)
        total = code.variable(self.kind, b.load(out, typ=self.kind))
        start = code.i64(0)
        if way != CHECKED and not runs:
            start = n // 4 * 4
            with code.range(0, start, 4) as i:
                # A load for two places: there is more to load than to compute.
                pairs = [code.load(code.at(places, i + j, I32), I64, 4).value for j in (0, 2)]
                for j in range(4 if way == PACKED else 0):
                    code.prefetch(element(place(i + AHEAD + j)), write=True)
                for j in range(4):
                    pair = b.lshr(pairs[j // 2], I64(j % 2 * 32))
                    update(i + j, element(b.trunc(pair, I32)))
        with code.range(start, n) as i:
            at = self._wrapped(code, place(i), size) if way == CHECKED else place(i)
            inside = ir.IntType(1)(1)
            if way == CHECKED:
                inside = b.icmp_unsigned("<", at, size32)
            if way == PACKED:
                code.prefetch(element(place(i + AHEAD)), write=True)
            with b.if_then(inside):
                to = element(at)
                if runs:
                    with b.if_then(b.icmp_unsigned("!=", to, here.get())):
                        code.store(total.get(), here.get())
                        here.set(to)
                        total.set(b.load(to, typ=self.kind))
                    total.set(add(total.get(), self._load(code, values, i)))
                else:
                    update(i, to)
        if runs:
            code.store(total.get(), here.get())
        code.ret()
        return code.function
