"""Operands of products that are read as if zeros stood around them: the copy that has them.

`FRAME` describes the array with its zeros, as `program.Frame` does. A part of it, in the order of
its elements, is written line by line. Ways of the generated GEMM that can't do so themselves get
a copy of the whole, by `install`.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.code import I64, PTR, VOID, Code, Int, Record, declare, zero_of
from funcgrad.backends.llvm.native.engine import Engine, engine
from funcgrad.backends.llvm.native.sources import generator
from funcgrad.backends.llvm.runtime import pool

if TYPE_CHECKING:
    from funcgrad.backends.program import Frame

# The first element that is read; of each axis its size, zeros in front, and the size with all
# zeros, outermost first; lines of the whole.
AXES = 3
FRAME = ("start", *(f"{x}{i}" for i in range(AXES) for x in ("size", "low", "all")), "lines")
TASK = 1 << 16  # elements that a thread copies at a time
AHEAD = 2048  # bytes that memory is asked for before it is copied


def frame_words(frame: Frame) -> list[int]:
    """The words of `FRAME`.

    >>> from funcgrad.backends.program import Frame
    >>> frame_words(Frame(1, 7, 5, ((4, 1, 2),)))
    [7, 1, 0, 1, 1, 0, 1, 4, 1, 7, 5]
    """
    axes = ((1, 0, 0),) * (AXES - len(frame.axes)) + frame.axes
    words, lines = [frame.start], frame.planes
    for i, (size, low, high) in enumerate(axes):
        words += [size, low, low + size + high]
        lines *= 1 if i == AXES - 1 else low + size + high
    return [*words, lines]


def framed_function(module: ir.Module, element: ir.Type, lanes: int, masks: bool) -> ir.Function:
    """void framed(dst, src, frame, first, count): elements [first, first + count) of an array with
    its zeros, of which src lies without them."""
    code = Code(module, "framed", [PTR, PTR, PTR, I64, I64])
    dst, src, frame, first, count = code.args
    frame = Record(code, FRAME, frame)
    width, low, whole = (frame[f"{x}2"] for x in ("size", "low", "all"))
    line = first // whole
    # Where the line is, along the axes outside.
    y, rest = code.variable(I64, line % frame["all1"]), line // frame["all1"]
    z, plane = code.variable(I64, rest % frame["all0"]), rest // frame["all0"]
    plane = code.variable(I64, plane)
    begin, done = code.variable(I64, first % whole), code.variable(I64, I64(0))
    writer = _Writer(code, element, lanes, masks)
    writer.write(dst, None, code.i64(0), count)
    with code.loop() as (turn, out):
        at, start = Int(code, done.get()), Int(code, begin.get())
        code.b.cbranch((at < count).value, turn, out)
        code.b.position_at_end(turn)
        stop = whole.min(start + count - at)
        inner, outer = Int(code, y.get()) - frame["low1"], Int(code, z.get()) - frame["low0"]
        inside = (inner >= 0) & (inner < frame["size1"])
        inside = inside & (outer >= 0) & (outer < frame["size0"])
        with code.when(inside):
            lines = (Int(code, plane.get()) * frame["size0"] + outer) * frame["size1"] + inner
            line, row = (
                code.at(src, lines * width - low, element),
                code.at(dst, at - start, element),
            )
            writer.write(row, line, low.max(start), (low + width).min(stop))
        done.set(at + stop - start)
        begin.set(I64(0))
        over = (Int(code, y.get()) + 1).eq(frame["all1"])
        y.set(over.select(0, Int(code, y.get()) + 1))
        with code.when(over):
            last = (Int(code, z.get()) + 1).eq(frame["all0"])
            plane.set(Int(code, plane.get()) + last.select(1, 0))
            z.set(last.select(0, Int(code, z.get()) + 1))
    code.ret()
    code.function.attributes.add("noinline")
    return code.function


class _Writer:
    """Writes elements of a row, and nothing else."""

    def __init__(self, code: Code, element: ir.Type, lanes: int, masks: bool):
        self.code, self.element, self.lanes, self.masks = code, element, lanes, masks
        self.vec = ir.VectorType(element, lanes)

    def write(self, row: ir.Value, source: ir.Value | None, begin: Int, end: Int) -> None:
        """Elements [begin, end), those of the same numbers of a source, or zeros."""
        code, lanes = self.code, self.lanes
        end = end.max(begin)
        whole = begin + (end - begin) // lanes * lanes
        with code.range(begin, whole, lanes) as i:
            self._put(row, source, i, self.vec)
        if not self.masks:
            with code.range(whole, end) as i:
                self._put(row, source, i, self.element)
            return
        with code.when(whole < end):
            mask = code.first_lanes(end - whole, lanes)
            x: ir.Value = zero_of(self.vec)
            if source is not None:
                place = code.at(source, whole, self.element)
                x = code.masked_load(place, mask, self.vec)
                self._ask(place)
            code.masked_store(x, code.at(row, whole, self.element), mask)

    def _put(self, row: ir.Value, source: ir.Value | None, i: Int, kind: ir.Type) -> None:
        code, x = self.code, zero_of(kind)
        if source is not None:
            place = code.at(source, i, self.element)
            x = code.load(place, kind, 1)
            if kind == self.vec:
                self._ask(place)
        code.store(x, code.at(row, i, self.element), 1)

    def _ask(self, place: ir.Value) -> None:
        """For what lies behind it: the lines of an array follow each other."""
        self.code.prefetch(self.code.at(place, AHEAD, ir.IntType(8)), first=True)


@functools.cache
def install(nbytes: int, target: Engine | None = None) -> int:
    """Compile void fg_framed_<bytes>(dst, src, frame), which writes a whole array of elements of
    that size with its zeros; bind its symbol, return its address.

    >>> install(4) == install(4)
    True
    """
    target = target or engine()
    pool.bind(target)
    name = name_of(nbytes)

    def write() -> ir.Module:
        module = ir.Module("frames")
        element, lanes = ir.IntType(8 * nbytes), target.target.vector_bits // (8 * nbytes)
        function = framed_function(module, element, lanes, masks=False)
        task = Code(module, "framed_task", [PTR, I64, I64])
        dst, src, frame = (task.load(task.at(task.args[0], i, I64), PTR) for i in range(3))
        width = Record(task, FRAME, frame)["all2"]
        first, count = task.args[1] * width, (task.args[2] - task.args[1]) * width
        task.call(function, task.at(dst, first, element), src, frame, first, count)
        task.ret()
        code = Code(module, name, [PTR, PTR, PTR], public=True)
        words = code.variable(PTR, count=3).slot
        for i, pointer in enumerate(code.args):
            code.store(pointer, code.at(words, i, I64))
        given = Record(code, FRAME, code.args[2])
        grain = (code.i64(TASK) // given["all2"].max(1)).max(1)
        loop = declare(module, "fg_parallel_for", ir.FunctionType(VOID, [PTR, PTR, I64, I64]))
        code.call(loop, task.function, words, given["lines"], grain)
        code.ret()
        return module

    library = target.compile(write, level=1, key=f"{name} {generator('gemm.images.frames')}")
    target.bind(name, library)
    return library.address(name)


def name_of(nbytes: int) -> str:
    """The symbol that `install` binds.

    >>> name_of(4)
    'fg_framed_4'
    """
    return f"fg_framed_{nbytes}"
