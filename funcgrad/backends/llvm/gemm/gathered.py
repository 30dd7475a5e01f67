"""The program around products whose operands have several axes each, such as windows of images.

They go ways of their own, or the packed one by tables of where rows and columns begin. The function
for calls of which nothing is known, with axes or without, is here, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from funcgrad.backends.llvm.gemm.batch import merge_batches
from funcgrad.backends.llvm.gemm.driver import ROUTED, Driver, symbol
from funcgrad.backends.llvm.gemm.images.lines import Lines
from funcgrad.backends.llvm.gemm.images.placed import Placed
from funcgrad.backends.llvm.gemm.images.strips import Strips
from funcgrad.backends.llvm.gemm.images.sums import Sums
from funcgrad.backends.llvm.gemm.images.windows import Windows
from funcgrad.backends.llvm.gemm.job import Parts, Way
from funcgrad.backends.llvm.gemm.kernels import SOON, Micro
from funcgrad.backends.llvm.gemm.pack import Format
from funcgrad.backends.llvm.gemm.trial import Facts, Known
from funcgrad.backends.llvm.gemm.winograd.first import Winograd
from funcgrad.backends.llvm.gemm.winograd.kernel_first import WinogradKernel
from funcgrad.backends.llvm.gemm.winograd.kernel_last import WinogradKernelLast
from funcgrad.backends.llvm.gemm.winograd.last import WinogradLast
from funcgrad.backends.llvm.gemm.winograd.last_bytes import WinogradBytes
from funcgrad.backends.llvm.gemm.winograd.phases import WinogradPhases
from funcgrad.backends.llvm.gemm.winograd.tiles import TiledWay
from funcgrad.backends.llvm.gemm.words import AXES, CALL, FRAMED, INNER, MAX_AXES, TABLES
from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.code import I64, PTR, Code, Int, Record
from funcgrad.backends.llvm.native.target import Target
from funcgrad.backends.llvm.rewrites import tiles

TILED_WAYS: dict[int, type[TiledWay]] = {
    tiles.IMAGES: Winograd,
    tiles.KERNEL: WinogradKernel,
    tiles.IMAGES_LAST: WinogradLast,
    tiles.KERNEL_LAST: WinogradKernelLast,
    tiles.PHASES: WinogradPhases,
    tiles.BYTES_LAST: WinogradBytes,
}


class Gathered(Driver):
    """A `Driver` for calls that may have axes."""

    routed = (*ROUTED, Sums.name)

    def __init__(self, fmt: Format, out: Format, target: Target, way: str = ""):
        super().__init__(fmt, out, target, way)
        plain = not (self.narrow or fmt.is_complex)
        self.gathered = self._gathered_ways() if plain else {}

    def write(self) -> None:
        """The functions."""
        if self.way in self.gathered:
            self._gathered_entry(self.gathered[self.way][1])
        else:
            super().write()

    def route(self, words: Mapping[str, int]) -> tuple[str, list[Micro]]:
        """As of `Driver`; a call that has axes needs `INNER`, too."""
        if not words.get("axes"):
            return super().route(words)
        if not words["k"] or self.narrow:
            return "", []
        call: Any = Facts({name: Known(words.get(name, 0)) for name in (*CALL, *INNER, FRAMED)})
        work = words["m"] * words["n"] * words["batch0"] * words["batch1"]
        ways = self.gathered.items() if work else ()
        way = next((name for name, (serves, _) in ways if serves(call)), "")
        takes = call["tiled"] or (way == Strips.name and Strips.takes_frame(call))
        kernels = Sums.reached(self.parts.tile, call) if way == Sums.name else []
        return ("", []) if call[FRAMED] and not takes else (way, kernels)

    def _entry(self, task: ir.Function) -> None:
        code = Code(self.module, symbol(self.fmt, self.out, self.way), [PTR], public=True)
        given, call = self._shared_call(code)
        apart = given["axes"].ne(0)
        tables = code.variable(PTR, ir.Constant(PTR, None))
        with code.either(apart) as (yes, no):
            with yes:
                tables.set(self._make_tables(code, call))
            with no:
                merge_batches(code, call)

        def ways(left: list) -> None:
            if not left:
                self._items(code, call, task)
                return
            (serves, way), *others = left
            with code.either(serves(call)) as (yes, no):
                with yes:
                    code.call(way.function, call.pointer)
                with no:
                    ways(others)

        some = call["m"] * call["n"] * call["k"] * call["batch0"] * call["batch1"] > 0
        with code.either(apart & some) as (gathered, plain):
            with gathered:
                self._set_inner(call)
                # Who calls a product for all ways doesn't ask for these.
                others = [kind.name for kind in TILED_WAYS.values()] + [Sums.name]
                ways([x for x in self.gathered.values() if x[1].name not in others])
            with plain:
                self._items(code, call, task)
        with code.when(apart):
            code.call(self.parts.give, tables.get())
        code.ret()

    def _gathered_entry(self, way: Way) -> None:
        """The entry for calls that have axes and go one way."""
        code = Code(self.module, symbol(self.fmt, self.out, self.way), [PTR], public=True)
        _, call = self._shared_call(code)
        untold = {kind.name for kind in TILED_WAYS.values() if not kind.tables}
        tables = None if way.name in untold else self._make_tables(code, call)
        self._set_inner(call)
        code.call(way.function, call.pointer)
        if tables is not None:
            code.call(self.parts.give, tables)
        code.ret()

    def _set_inner(self, call: Record) -> None:
        """`INNER` of a call that has axes."""
        code, axes = call.code, call.pointer_at("axes")
        for x, strides in (("m", "m_a"), ("n", "n_b")):
            sizes, steps = (
                code.at(axes, AXES.index(name) * MAX_AXES, I64) for name in (f"{x}_sizes", strides)
            )
            size, step = (code.load(code.at(p, MAX_AXES - 1, I64), I64) for p in (sizes, steps))
            odd = code.variable(I64, I64(0))
            with code.range(0, MAX_AXES) as i:
                other = (code.load(code.at(p, i, I64), I64) for p in (sizes, steps))
                n, stride = other
                odd.set(Int(code, odd.get()) + ((n > 1) & (stride % 2).ne(0)).select(1, 0))
            two = step.eq(2) & Int(code, odd.get()).eq(0)
            call[f"{x}_inner"] = (step.eq(1) | two).select(size, 0)
            call[f"{x}_step"] = two.select(2, 1)

    def _gathered_ways(self) -> dict[str, tuple[Callable[[Any], Any], Way]]:
        """Ways for operands of axes, and when they serve: the first that does is gone."""
        parts = self.parts
        ways: list[tuple[Callable[[Any], Any], Way]] = []
        # Only elements that are multiplied as they lie are read one by one.
        as_it_is = self.fmt.storage == self.fmt.acc
        for form, kind in TILED_WAYS.items():
            serves = self.fmt.name == "int8" if form == tiles.BYTES_LAST else as_it_is
            if serves:
                ways.append(_tiled_way(form, kind, parts))
        if as_it_is and Lines.works(parts):
            sums = Way(Sums.name, lambda: Sums(parts).function)
            ways.append((lambda call: Sums.serves(call, parts), sums))
            strips = Way(Strips.name, lambda: Strips(parts).function)
            ways.append((lambda call: Strips.serves(call, parts), strips))
            lines = Way("lines", lambda: Lines(parts).function)
            ways.append((lambda call: Lines.serves(call, parts), lines))
        if as_it_is:
            placed = Way("placed", lambda: Placed(parts).function)
            ways.append((lambda call: Placed.serves(call, parts), placed))
        copied = Way("windows", lambda: Windows(parts, self._panels).function)
        ways.append((Windows.serves, copied))
        return {way.name: (serves, way) for serves, way in ways}

    def _make_tables(self, code: Code, call: Record) -> ir.Value:
        """Sets the tables of a call that has axes; returns their memory, with room to read on."""
        m, n, k = call["m"], call["n"], call["k"]
        axes, fill = call.pointer_at("axes"), self._fill_table()
        more = max(self.parts.tile.lanes, SOON)
        memory = code.call(self.parts.take, (m + n + 2 * k + more) * 8)
        at = code.i64(0)
        sources = zip(TABLES, ("m", "k", "k", "n"), ("m_a", "k_a", "k_b", "n_b"), strict=True)
        for name, axis, strides in sources:
            count = {"m": m, "n": n, "k": k}[axis]
            table = call[name] = code.at(memory, at, I64)
            parts = (
                code.at(axes, AXES.index(x) * MAX_AXES, I64) for x in (f"{axis}_sizes", strides)
            )
            with code.when(count > 0):
                code.call(fill, table, *parts)
            at = at + count
        return memory

    def _fill_table(self) -> ir.Function:
        """void fill(table, sizes, strides): Σ index·stride for each point of the axes, in order."""
        code = Code(self.module, "fill_table", [PTR, PTR, PTR])
        table, sizes, strides = code.args
        filled = code.variable(I64, I64(1))
        code.store(I64(0), table)
        with code.range(1, MAX_AXES + 1) as back:
            size, stride = (
                code.load(code.at(x, MAX_AXES - back, I64), I64) for x in (sizes, strides)
            )
            done = Int(code, filled.get())
            with code.range(1, size) as i, code.range(0, done) as j:
                start = code.load(code.at(table, j, I64), I64)
                code.store(start + i * stride, code.at(table, i * done + j, I64))
            filled.set(done * size)
        code.ret()
        return code.function


def _tiled_way(form: int, kind: type[TiledWay], parts: Parts) -> tuple[Callable[[Any], Any], Way]:
    return (lambda call: call["tiled"].eq(form)), Way(kind.name, lambda: kind(parts).function)
