"""Micro-kernels of the generated GEMM: the loops over k whose accumulators stay in registers.

`packed` multiplies panels (rows × vectors of a register tile, outer products), `direct` does the
same on operands where they lie, for small or thin problems, and `dot` takes inner products of
contiguous rows and columns. The others are for what a way reads by tables. All end in `store_tile`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

from funcgrad.backends.llvm.gemm.pack import BIAS, I32, Format, Tile, constant, vector_of, widen
from funcgrad.backends.llvm.gemm.registers import Registers
from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.code import BYTE, I64, PTR, Callee, Code, Int, Variable, zero_of
from funcgrad.backends.llvm.native.target import Target

SOON = 20  # steps along k that a tall tile's panel of B is fetched ahead, where that is needed
ROWS_SOON = 12  # the same of rows of elements beside such a panel that lies in memory
LINES_SOON = 8  # the same of vectors of lines, whose places a table says: it goes on for as long
TOGETHER = 8  # steps along k that `narrow` writes out
APART = 4  # steps along k from one row of C that is fetched to the next, at most


class Micro(NamedTuple):
    """A micro-kernel that several ways use: of which kind, for a tile of how many rows and vectors.

    >>> Micro("direct", 8, 2, True).name
    'direct8x2m'
    """

    kind: str
    rows: int
    vectors: int
    masked: bool = False

    @property
    def name(self) -> str:
        """Short for it."""
        return f"{self.kind}{self.rows}x{self.vectors}{'m' * self.masked}"

    @property
    def arguments(self) -> list[ir.Type]:
        """The types of its arguments."""
        if self.kind == "strips":
            return [I64, PTR, PTR, *[PTR, PTR, I64] * self.vectors, I64, I64, I64]
        if self.kind == "sums":
            return [I64, PTR, PTR, PTR, PTR, PTR, I64, I64, I64]
        if self.kind == "packed":
            return [I64, PTR, PTR, PTR, I64, I64, I64, I64, I64]
        ahead = [PTR, I64] if self.kind == "ahead" else []
        return [I64, PTR, I64, I64, PTR, I64, PTR, I64, I64, I64, *ahead]


class Kernels(Registers):
    """Writes the micro-kernels of one format into a module, each when it is first asked for.

    elsewhere: what gives those that several ways use, if they are not to be written here
    """

    def __init__(
        self, module: ir.Module, fmt: Format, tile: Tile, target: Target,
        elsewhere: Callable[[Micro], Callee] | None = None,
    ):  # fmt: skip
        super().__init__(module, fmt, tile, target)
        self._elsewhere = elsewhere

    @property
    def direct_works(self) -> bool:
        """Whether masked loads of the storage type are cheap, which `direct` lives on."""
        return self.tile.masks and (self.fmt.bytes >= 4 or self.target.has("avx512bw"))

    def packed(self, rows: int, vectors: int) -> Callee:
        """void(k, a panel, b panel, c, c_rs, c_cs, m, n, add): rows × the first vectors of b."""
        return self._micro(Micro("packed", rows, vectors))

    def direct(self, rows: int, vectors: int, masked: bool) -> Callee:
        """void(k, a, a_rs, a_cs, b, b_rs, c, c_rs, n, add): b and c contiguous along n ≤ cols."""
        return self._micro(Micro("direct", rows, vectors, masked))

    def pairs(self, rows: int, vectors: int) -> Callee:
        """As `direct` for pairs of int16, an int32 each: whole vectors of b, a in rows."""
        return self._micro(Micro("pairs", rows, vectors))

    def narrow(self, rows: int, masked: bool) -> Callee:
        """As `direct` for one vector of columns and an a that is contiguous along k."""
        return self._micro(Micro("narrow", rows, 1, masked))

    @property
    def placed_rows(self) -> int:
        """The rows of `placed`: their addresses must fit in registers, too."""
        return 8 if self.tile.many_registers else 4

    def placed(self, vectors: int) -> ir.Function:
        """void(k, a, across, along, b panel, c, c_rs, c_cs, m, n, add): the elements of a's rows
        lie at a[across[row] + along[k]]; c is contiguous along its rows or its columns."""
        return self.once(f"placed{vectors}", lambda name: self._placed(name, vectors))

    def lines(self, rows: int, vectors: int) -> ir.Function:
        """void(k, b, along, a, across, a_along, c, c_rs, n, add): a few rows of a, whose elements
        lie at a[across[row] + a_along[k]]; those of b at b[along[k] + column], for n columns."""
        name = f"lines{rows}x{vectors}"
        return self.once(name, lambda name: self._lines(name, rows, vectors))

    def strips(self, rows: int, vectors: int) -> Callee:
        """void(k, a panel, along, (b, c, skipped)…, c_rs, m, add): a vector of b and of c each, at
        b[along[k]], of which the first lanes, so many, aren't stored. The table along goes on for
        `LINES_SOON` entries, of any places near b."""
        return self._micro(Micro("strips", rows, vectors))

    def sums(self, rows: int, vectors: int) -> Callee:
        """void(k, a, a_along, b, b_along, c, c_rs, n, add): rows of a begin at a[a_along[k]], those
        of b at b[b_along[k]]; elements of both, and of c's, follow each other. The tables go on for
        some entries, of any places."""
        return self._micro(Micro("sums", rows, vectors, True))

    def _micro(self, kernel: Micro) -> Callee:
        if self._elsewhere is not None:
            return self._elsewhere(kernel)
        return self.once(kernel.name, lambda name: self.write(kernel, name))

    def write(self, kernel: Micro, name: str) -> ir.Function:
        """One that several ways use, by this name."""
        if kernel.kind in ("direct", "ahead", "pairs"):
            return self._direct(name, kernel)
        if kernel.kind == "narrow":
            return self._narrow(name, kernel.rows, kernel.masked)
        if kernel.kind == "sums":
            return self._together(name, kernel)
        write = self._packed if kernel.kind == "packed" else self._strips
        return write(name, kernel.rows, kernel.vectors)

    def axpy(self, rows: int) -> ir.Function:
        """void(a, a_cs, b, b_rs, c, n, add): c = or += Σ a[r]·b[r] over rows of b, m = 1."""
        return self.once(f"axpy{rows}", lambda name: self._axpy(name, rows))

    def dot(self, rows: int, cols: int) -> ir.Function:
        """void(k, a, a_rs, b, b_cs, c, c_rs, c_cs, add): a and b contiguous along k."""
        return self.once(f"dot{rows}x{cols}", lambda name: self._dot(name, rows, cols))

    def _packed(self, name: str, rows: int, vectors: int) -> ir.Function:
        code = Code(self.module, name, Micro("packed", rows, vectors).arguments)
        self.panels(code, rows, vectors, code.args, (self.tile.rows, self.tile.cols))
        return code.function

    def panels(
        self,
        code: Code,
        rows: int,
        vectors: int,
        args: list,
        steps: tuple[Int | int, Int | int],
        also: Callable[[Int], None] | None = None,
    ) -> None:
        """The rest of a function with the arguments of `packed`; steps: from one k to the next, of
        a and b; also(kk) writes what else is done with each, before its products."""
        k, a, b, c, c_rs, c_cs, m, n, add = args
        tile, acc = self.tile, self._accumulators(code, rows, vectors)
        # 128 · the sums of b's columns, which a's bias adds to each row.
        columns = self._accumulators(code, 1, vectors)[0] if tile.biased else []
        bias = constant(ir.VectorType(I32, tile.lanes), BIAS)
        kind = I32 if tile.pairs else self.fmt.acc
        vec = vector_of(kind, tile.lanes)

        tall = rows * tile.sums > 8
        fetches = also is None and tall and not self.target.follows_strides

        def step(kk: Int) -> None:
            if also is not None:
                also(kk)
            pb = code.at(b, kk * steps[1], self.fmt.acc)
            pa = code.at(a, kk * steps[0], self.fmt.acc)
            bv = [
                code.load(code.at(pb, v * tile.lanes, kind), vec, self.fmt.acc_align)
                for v in range(vectors)
            ]
            if columns:
                self._pair_products(code, columns, bias, bv)
            if fetches:
                for v in range(vectors):
                    soon = code.at(pb, steps[1] * SOON + v * tile.lanes, kind)
                    code.prefetch(soon, first=True)
                code.prefetch(code.at(pa, steps[0] * SOON, kind), first=True)
            for i in range(rows):
                p = code.at(pa, i, kind)
                if tile.pairs:
                    x = code.splat(code.load(p, kind), tile.lanes)
                    self._pair_products(code, acc[i], x, bv)
                else:
                    self._row_product(code, acc[i], self._factors(code, p), bv)

        # A row of C a step: all at once would keep the first panels waiting. Long steps are written
        # once, as compiling them takes long.
        few = k.min(rows)
        with code.range(0, few) as kk:
            self._prefetch(code, code.at(c, kk * c_rs, self.fmt.acc), c_rs, 1, vectors)
            if also is None:
                step(kk)
        few = few if also is None else code.i64(0)
        with code.range(few, k) as kk:
            step(kk)
        for row in acc if columns else []:
            for slot, column in zip(row, columns, strict=True):
                slot.set(code.b.sub(slot.get(), column.get()))
        self.store_tile(code, acc, c, c_rs, c_cs, m, n, add)
        code.ret()

    def _direct(self, name: str, kernel: Micro) -> ir.Function:
        """`direct`, or `pairs`; or "ahead", void(…, soon, step), which meanwhile fetches what is
        read after it, from `soon` on, so many bytes further with each step along k."""
        code = Code(self.module, name, kernel.arguments)
        k, a, a_rs, a_cs, b, b_rs, c, c_rs, n, add, *ahead = code.args
        kind, rows, vectors, masked = kernel
        lanes, fmt, pairs = self.tile.lanes, self.fmt, kind == "pairs"
        element, vec = (fmt.acc, self.vec) if pairs else (fmt.storage, self.storage_vec)
        masks = [self.mask(code, n - v * lanes) if masked else None for v in range(vectors)]
        acc = self._accumulators(code, rows, vectors)
        row_pointers = [code.at(a, a_rs * i, element) for i in range(rows)]
        if self.target.follows_strides:
            # Others have nothing of it: they follow C's rows, or wait for them all the same.
            self._prefetch(code, c, c_rs, rows, vectors)
        with code.range(0, k) as kk:
            if ahead:
                # All at once, or several a step, these would delay what the step itself reads.
                soon, step = ahead
                code.prefetch(code.at(soon, kk * step, BYTE), first=True)
            pb = code.at(b, kk * b_rs, element)
            bv = []
            for v in range(vectors):
                p = code.at(pb, v * lanes, element)
                y = self._read(code, p, masks[v], vec)
                bv.append(y if pairs else widen(code, fmt, self.target, y))
            for i in range(rows):
                at = kk if pairs else kk * a_cs
                x = self._factors(code, code.at(row_pointers[i], at, element), pairs)
                if pairs:
                    self.word_products(code, acc[i], x[0], bv)
                else:
                    self._row_product(code, acc[i], x, bv)
        self._store_rows(code, acc, masks, (c, c_rs, add))
        code.ret()
        return code.function

    def _together(self, name: str, kernel: Micro) -> ir.Function:
        code = Code(self.module, name, kernel.arguments)
        k, a, a_along, b, b_along, c, c_rs, n, add = code.args
        kind, lanes = self.fmt.acc, self.tile.lanes
        masks = [self.mask(code, n - v * lanes) for v in range(kernel.vectors)]
        acc = self._accumulators(code, kernel.rows, kernel.vectors)
        with code.range(0, k) as kk:
            at_a, at_b = (code.load(code.at(x, kk, I64), I64) for x in (a_along, b_along))
            pa, pb = code.at(a, at_a, kind), code.at(b, at_b, kind)
            soon_a, soon_b = (
                code.load(code.at(x, kk + ROWS_SOON, I64), I64) for x in (a_along, b_along)
            )
            code.prefetch(code.at(a, soon_a, kind), first=True)
            for v in range(kernel.vectors):
                code.prefetch(code.at(b, soon_b + v * lanes, kind), first=True)
            bv = [self._read(code, code.at(pb, v * lanes, kind), mask, self.vec)
                  for v, mask in enumerate(masks)]  # fmt: skip
            for i, row in enumerate(acc):
                self._row_product(code, row, self._factors(code, code.at(pa, i, kind)), bv)
        self._store_rows(code, acc, masks, (c, c_rs, add))
        code.ret()
        return code.function

    def _narrow(self, name: str, rows: int, masked: bool) -> ir.Function:
        code = Code(self.module, name, Micro("narrow", rows, 1).arguments)
        k, a, a_rs, _, b, b_rs, c, c_rs, n, add = code.args
        kind = self.fmt.acc
        mask = self.mask(code, n) if masked else None
        acc = self._accumulators(code, rows, 1)
        places = [code.variable(PTR, code.at(a, a_rs * i, kind)) for i in range(rows)]

        def step(pb: ir.Value, pa: list[ir.Value]) -> None:
            y = self._read(code, pb, mask, self.vec)
            for row, p in zip(acc, pa, strict=True):
                self._row_product(code, row, self._factors(code, p), [y])

        # A product that reads its factor itself is one operation only where the address has no
        # index: each row has a pointer, which LLVM takes for any, not for one a step further on.
        same = ir.assembler(ir.FunctionType(PTR, [PTR]), "", "=r,0")
        most = k // TOGETHER * TOGETHER
        with code.range(0, most, TOGETHER) as kk:
            pa = [code.b.call(same, [x.get()]) for x in places]
            for u in range(TOGETHER):
                step(code.at(b, (kk + u) * b_rs, kind), [code.at(p, u, kind) for p in pa])
            for x, p in zip(places, pa, strict=True):
                x.set(code.at(p, TOGETHER, kind))
        with code.range(most, k) as kk:
            step(code.at(b, kk * b_rs, kind), [code.at(x.get(), kk - most, kind) for x in places])
        self._store_rows(code, acc, [mask], (c, c_rs, add))
        code.ret()
        return code.function

    def _store_rows(
        self,
        code: Code,
        acc: list[list[Variable]],
        masks: Sequence[ir.Value | None],
        args: tuple[ir.Value, Int, Int],
    ) -> None:
        """The end of `direct` and `narrow`: sums are stored, or added."""
        c, c_rs, add = args
        values = self._sums(code, acc)
        where = [[code.at(c, c_rs * i + v * self.tile.lanes, self.fmt.acc) for v in range(len(row))]
                 for i, row in enumerate(values)]  # fmt: skip
        with code.either(add.ne(0)) as (yes, no):
            for branch, more in ((yes, True), (no, False)):
                with branch:
                    for row, places in zip(values, where, strict=True):
                        for x, p, mask in zip(row, places, masks, strict=True):
                            self._write(code, x, p, mask, more)

    def _placed(self, name: str, vectors: int) -> ir.Function:
        code = Code(self.module, name, [I64, *[PTR] * 5, I64, I64, I64, I64, I64])
        k, a, across, along, b, c, c_rs, c_cs, m, n, add = code.args
        rows, kind, lanes = self.placed_rows, self.fmt.acc, self.tile.lanes
        acc = self._accumulators(code, rows, vectors)
        # Rows that don't exist are another's, and not stored.
        numbers = [(m > i).select(i, 0) for i in range(rows)]
        starts = [code.at(a, code.load(code.at(across, i, I64), I64), kind) for i in numbers]
        with code.either(c_cs.eq(1)) as (in_rows, in_columns):
            with in_rows:
                self._prefetch(code, c, c_rs, rows, vectors)
            with in_columns:
                for j in range(vectors * lanes):
                    code.prefetch(code.at(c, c_cs * j, kind), write=True)
        with code.range(0, k) as kk:
            place = code.load(code.at(along, kk, I64), I64)
            pb = code.at(b, kk * self.tile.cols, kind)
            bv = [self._read(code, code.at(pb, v * lanes, kind), None, self.vec)
                  for v in range(vectors)]  # fmt: skip
            if not self.target.follows_strides:
                for v in range(vectors):
                    soon = code.at(pb, self.tile.cols * SOON + v * lanes, kind)
                    code.prefetch(soon, first=True)
            for start, row in zip(starts, acc, strict=True):
                self._row_product(code, row, self._factors(code, code.at(start, place, kind)), bv)
        with code.either(c_cs.eq(1)) as (yes, no):
            with yes:
                self.store_tile(code, acc, c, c_rs, c_cs, m, n, add)
            with no:
                self._store_turned(code, acc, c, c_cs, m, n, add)
        code.ret()
        return code.function

    def _lines(self, name: str, rows: int, vectors: int) -> ir.Function:
        code = Code(self.module, name, [I64, PTR, PTR, PTR, PTR, PTR, PTR, I64, I64, I64])
        k, b, along, a, across, a_along, c, c_rs, n, add = code.args
        kind, lanes = self.fmt.acc, self.tile.lanes
        masks = [code.first_lanes(n - v * lanes, lanes) for v in range(vectors)]
        acc = self._accumulators(code, rows, vectors)
        starts = [code.at(a, code.load(code.at(across, i, I64), I64), kind) for i in range(rows)]
        self._prefetch(code, c, c_rs, rows, vectors)
        with code.range(0, k) as kk:
            pb = code.at(b, code.load(code.at(along, kk, I64), I64), kind)
            place = code.load(code.at(a_along, kk, I64), I64)
            bv = [self._read(code, code.at(pb, v * lanes, kind), masks[v], self.vec)
                  for v in range(vectors)]  # fmt: skip
            for start, row in zip(starts, acc, strict=True):
                self._row_product(code, row, self._factors(code, code.at(start, place, kind)), bv)
        values = [[x.get() for x in row] for row in acc]
        with code.either(add.ne(0)) as (yes, no):
            for branch, more in ((yes, True), (no, False)):
                with branch:
                    for i, v in itertools.product(range(rows), range(vectors)):
                        p = code.at(c, c_rs * i + v * lanes, kind)
                        self._write(code, values[i][v], p, masks[v], more)
        code.ret()
        return code.function

    def _strips(self, name: str, rows: int, vectors: int) -> ir.Function:
        code = Code(self.module, name, Micro("strips", rows, vectors).arguments)
        (k, a, along), (c_rs, m, add) = code.args[:3], code.args[-3:]
        bs, cs, skips = (code.args[3 + i : -3 : 3] for i in range(3))
        acc, kind = self._accumulators(code, rows, vectors), self.fmt.acc
        apart = (k // rows).min(APART).max(1)
        with code.range(0, k, apart) as first:
            # A row of C now and then: all at once would keep waiting what the first steps read.
            row = (first // apart).min(rows - 1) * c_rs
            for c in cs:
                code.prefetch(code.at(c, row, kind), write=True)
            with code.range(first, (first + apart).min(k)) as kk:
                place, soon = (code.load(code.at(along, kk + n, I64), I64) for n in (0, LINES_SOON))
                pa = code.at(a, kk * self.tile.rows, kind)
                bv = [self._read(code, code.at(b, place, kind), None, self.vec) for b in bs]
                for b in bs if rows > 8 else ():
                    code.prefetch(code.at(b, soon, kind), first=True)
                for i in range(rows):
                    self._row_product(code, acc[i], self._factors(code, code.at(pa, i, kind)), bv)
        self._store_strips(code, acc, cs, skips, (c_rs, m, add))
        code.ret()
        return code.function

    def _store_strips(
        self,
        code: Code,
        acc: list[list[Variable]],
        cs: list[ir.Value],
        skips: list[Int],
        args: tuple[Int, Int, Int],
    ) -> None:
        """The end of `strips`: its sums are stored, or added."""
        (c_rs, m, add), rows, vectors = args, len(acc), len(cs)
        kind, lanes = self.fmt.acc, self.tile.lanes
        values = [[x.get() for x in row] for row in acc]
        whole = m >= rows
        for skipped in skips:
            whole = whole & skipped.eq(0)
        with code.either(whole) as (yes, no):
            with yes, code.either(add.ne(0)) as (more, fresh):
                for branch, adding in ((more, True), (fresh, False)):
                    with branch:
                        for i, v in itertools.product(range(rows), range(vectors)):
                            p = code.at(cs[v], c_rs * i, kind)
                            self._write(code, values[i][v], p, None, adding)
            with no:
                buffer = code.variable(self.vec, count=rows * vectors).slot
                masks = [code.b.not_(code.first_lanes(skipped, lanes)) for skipped in skips]
                for i, v in itertools.product(range(rows), range(vectors)):
                    code.store(values[i][v], code.at(buffer, i * vectors + v, self.vec))
                with code.range(0, m.min(rows)) as row:
                    for v, c in enumerate(cs):
                        x = code.load(code.at(buffer, row * vectors + v, self.vec), self.vec)
                        p = code.at(c, c_rs * row, kind)
                        with code.either(add.ne(0)) as (more, fresh):
                            for branch, adding in ((more, True), (fresh, False)):
                                with branch:
                                    self._write(code, x, p, masks[v], adding)

    def _axpy(self, name: str, rows: int) -> ir.Function:
        code = Code(self.module, name, [PTR, I64, PTR, I64, PTR, I64, I64])
        a, a_cs, b, b_rs, c, n, add = code.args
        fmt, lanes, zero = self.fmt, self.tile.lanes, zero_of(self.vec)
        places = [code.at(a, a_cs * r, fmt.storage) for r in range(rows)]
        factors = [self._factors(code, p, packed=False) for p in places]
        lines = [code.at(b, b_rs * r, fmt.storage) for r in range(rows)]

        def step(j: Int, mask: ir.Value | None) -> None:
            out = code.at(c, j, fmt.acc)
            old = self._read(code, out, mask, self.vec)
            sums = [add.ne(0).pick(old, zero), zero][: self.tile.sums]
            for xs, line in zip(factors, lines, strict=True):
                y = self._read(code, code.at(line, j, fmt.storage), mask, self.storage_vec)
                y = widen(code, fmt, self.target, y)
                sums = [self._multiply_add(code, x, y, z) for x, z in zip(xs, sums, strict=True)]
            self._write(code, self._joined(code, sums), out, mask, False)

        whole = n // lanes * lanes
        with code.range(0, whole, lanes) as j:
            step(j, None)
        with code.when(whole < n):
            step(whole, self.mask(code, n - whole))
        code.ret()
        return code.function

    def _dot(self, name: str, rows: int, cols: int) -> ir.Function:
        code = Code(self.module, name, [I64, PTR, I64, PTR, I64, PTR, I64, I64, I64])
        k, a, a_rs, b, b_cs, c, c_rs, c_cs, add = code.args
        lanes, fmt = self.tile.lanes, self.fmt
        # Enough chains to hide the latency of an addition.
        turns = max(1, 8 // (rows * cols * self.tile.sums))
        acc = [self._accumulators(code, rows, cols) for _ in range(turns)]
        pa = [code.at(a, a_rs * i, fmt.storage) for i in range(rows)]
        pb = [code.at(b, b_cs * j, fmt.storage) for j in range(cols)]

        def step(kk: Int, into: list[list[Variable]], mask: ir.Value | None) -> None:
            def get(p: ir.Value) -> ir.Value:
                x = self._read(code, code.at(p, kk, fmt.storage), mask, self.storage_vec)
                return widen(code, fmt, self.target, x)

            ys = [get(p) for p in pb]
            for i in range(rows):
                x = get(pa[i])
                xs = [x, self._swapped(code, x)] if fmt.is_complex else [x]
                self._row_product(code, into[i], xs, ys)

        block = lanes * turns
        whole = k // block * block
        with code.range(0, whole, block) as kk:
            for t in range(turns):
                step(kk + t * lanes, acc[t], None)
        with code.range(whole, k, lanes) as kk:
            step(kk, acc[0], self.mask(code, k - kk))
        for i in range(rows):
            for j in range(cols):
                totals = [x.get() for x in acc[0][i][j::cols]]
                for other in acc[1:]:
                    more = [x.get() for x in other[i][j::cols]]
                    totals = [self.sum(code, x, y) for x, y in zip(totals, more, strict=True)]
                p = code.at(c, c_rs * i + c_cs * j, fmt.acc)
                self.write_scalar(code, self._lane_sum(code, totals), p, add)
        code.ret()
        return code.function
