"""Convolutions by tiles in shared memory, as products whose first matrix is never written.

Rows are places of results, image by image, columns are features, and what is summed over are the
channels and the taps of windows. A block of 128 threads has 64 × 64 results. In each turn its
threads copy a tile of windows and one of the kernel to shared memory, wait, multiply, and wait.
Halves, and float32 that may be rounded, are multiplied by tensor cores, a warp 16 rows; of others a
thread has 8 × 4 results. All is summed in order, so bits don't vary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from funcgrad.backends.cuda.kernels import mma
from funcgrad.backends.cuda.kernels.thread_text import ThreadText
from funcgrad.backends.cuda.schedule import Schedule
from funcgrad.backends.cuda.writer import GLOBAL, SHARED
from funcgrad.backends.llvm.emit.text import BFLOAT16, FLOAT64
from funcgrad.backends.loops.builder import strides_of
from funcgrad.backends.loops.ir import Buffer, Kernel
from funcgrad.backends.loops.scalars import FLOAT32, HALVES
from funcgrad.backends.program import Convolution
from funcgrad.backends.rewrites.phases import convolution_of
from funcgrad.core.ir import Eqn
from funcgrad.ops.convolution.padding import dilated

TILE, THREADS = 64, 128
ROWS, COLUMNS = 8, 4  # of a thread's results
LEAST = 16  # features, and terms of a sum, that are worth a tile
_TYPES = {FLOAT32: "float", FLOAT64: "double", **dict.fromkeys(HALVES, "i16")}
_MOST = 1 << 31


class TiledConvolution(Kernel, eq=False):
    """A convolution's kernel.

    of: its sizes
    steps: how far, in images, kernel and result, elements of images (or features), channels (or
        features) and places are apart, in elements
    tf32: whether float32 may be rounded to TensorFloat-32
    """

    of: Convolution  # type: ignore[misc]  # all are given
    tf32: bool  # type: ignore[misc]
    steps: tuple[tuple[int, ...], ...]  # type: ignore[misc]

    @property
    def dtype(self) -> np.dtype:
        """Of the operands."""
        return self.buffers[0].dtype

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Rows, columns, and terms of each sum, of a group's product."""
        c = self.of
        return (c.images * math.prod(c.places), c.features, c.channels * math.prod(c.taps))

    @property
    def tiles(self) -> tuple[int, int]:
        """How many tiles have a group's rows, and its columns."""
        rows, columns, _ = self.sizes
        return -(-rows // TILE), -(-columns // TILE)

    @property
    def plan(self) -> Schedule:
        """A block for each tile."""
        blocks = math.prod(self.of.groups) * math.prod(self.tiles)
        return Schedule("rows", THREADS, THREADS, blocks)


def tiled(eqn: Eqn) -> TiledConvolution | None:
    """The kernel of a convolution; None for one that has no use for tiles."""
    avals = [v.aval for v in (*eqn.ins, *eqn.outs)]
    x, w, y = avals
    if x.ndim < 3:  # a product, without windows
        return None
    same = x.dtype == w.dtype and y.dtype in (x.dtype, FLOAT32)
    if not same or x.dtype not in _TYPES or max(a.size for a in avals) >= _MOST:
        return None
    if not all(a.size for a in avals):
        return None
    specs = eqn.params["dimension_numbers"]
    steps = tuple(
        tuple(strides_of(a.shape)[axis] for axis in spec)
        for a, spec in zip(avals, specs, strict=True)
    )
    names = (("images", "in"), ("kernel", "in"), ("result", "out"))
    buffers = tuple(
        Buffer(name, a.dtype, a.size, role)  # type: ignore[arg-type]  # roles are text
        for a, (name, role) in zip(avals, names, strict=True)
    )
    of = convolution_of(eqn, list(eqn.ins))
    fast = "precision" in eqn.params and x.dtype == FLOAT32
    made = TiledConvolution("convolution", buffers, (), (), (), of, fast, steps)
    rows, columns, terms = made.sizes
    return made if min(columns, terms) >= LEAST and rows >= TILE else None


class _Tile:
    """One of both operands' tiles: which of its axes neighbouring threads read along, and where it
    lies in shared memory.

    outer: its rows or columns; depth: how many terms a turn has
    along: whether threads go along `outer`; apart: by how many elements neighbours of an axis are
    """

    def __init__(self, along: bool, depth: int, start: int, apart: tuple[int, int]):
        self.along, self.depth, self.start, self.apart = along, depth, start, apart

    def places(self, text: ThreadText, thread: str) -> list[tuple[str, str]]:
        """The elements that a thread copies: their outer index and their term."""
        fast = TILE if self.along else self.depth
        near = text.op("and", thread, fast - 1)
        far = text.op("lshr", thread, fast.bit_length() - 1)
        found = []
        for i in range(TILE * self.depth // THREADS):
            other = text.op("add", far, i * (THREADS // fast))
            found.append((near, other) if self.along else (other, near))
        return found

    def at(self, text: ThreadText, outer: str, term: str) -> str:
        """Where an element is in shared memory."""
        parts = [text.op("mul", x, n) for x, n in zip((outer, term), self.apart, strict=True)]
        return text.op("add", text.op("add", *parts), self.start)


class ConvolutionTiles(ThreadText):
    """Writes the kernel of a convolution.

    depth: the terms of a turn; columns: the element after a row of a tile
    """

    depth = 16

    def __init__(self, kernel: TiledConvolution, name: str):
        super().__init__(kernel, name)
        self.kernel, self.of = kernel, kernel.of
        self.type = _TYPES[kernel.dtype]
        (image, *x), (feature, *w), _ = kernel.steps
        # Taps change fastest if they are nearer in memory.
        self.channels_last = x[0] < min(x[1:])
        term_x, term_w = (s[0] if self.channels_last else s[-1] for s in (x, w))
        row = x[-1] * self.of.strides[-1] if self.of.places[-1] > 1 else image
        apart, size = self.layout()
        self.tiles = (
            _Tile(row < term_x, self.depth, 0, apart),
            _Tile(feature < term_w, self.depth, size, apart),
        )
        self.memory = f"@{name}_shared"
        nbytes = 2 * size * kernel.dtype.itemsize
        self.globals.append(
            f"{self.memory} = internal addrspace(3) global [{nbytes} x i8] undef, align 16"
        )

    def layout(self) -> tuple[tuple[int, int], int]:
        """How far, in shared memory, neighbouring rows and terms are apart; a tile's elements."""
        return (1, TILE + 4), self.depth * (TILE + 4)

    def run(self, plan: Schedule) -> str:
        """The kernel's function."""
        f, (rows, columns) = self.f, self.kernel.tiles
        self.thread, block = (f.call(w, "i32", [], []) for w in ("fg_thread", "fg_block"))
        unit = self.op("udiv", block, columns)
        self.column = self.op("mul", self.op("urem", block, columns), TILE)
        self.row = self.op("mul", self.op("urem", unit, rows), TILE)
        self.group = self.op("udiv", unit, rows)
        zero = "0.0"
        self.loop("0", str(self.kernel.sizes[2]), {f"c{i}": zero for i in range(32)}, self.turn,
                  "k", self.depth, self.sums)  # fmt: skip
        self.write()
        f.do("ret void")
        params = ", ".join(f"ptr{GLOBAL} %p{i}" for i in range(3))
        head = f"define ptx_kernel void @{self.name}({params}) nounwind"
        return "\n".join([*self.globals, f.text(head)])

    @property
    def sums(self) -> str:
        """The type of sums."""
        return "double" if self.type == "double" else "float"

    def turn(self) -> dict[str, str]:
        """Some terms; what the sums are after them."""
        for tile, read in zip(self.tiles, (self.image, self.weight), strict=True):
            # All are on their way before the first is waited for.
            cells = tile.places(self, self.thread)
            values = [read(outer, self.op("add", "%k", term)) for outer, term in cells]
            for (outer, term), value in zip(cells, values, strict=True):
                place = self.shared(tile.at(self, outer, term), self.type)
                self.f.do(f"store {self.type} {self.copied(value)}, ptr{SHARED} {place}")
        self.f.do("call void @fg_sync()")
        after = self.multiply()
        self.f.do("call void @fg_sync()")
        return after

    def copied(self, value: str) -> str:
        """An element as it is in shared memory."""
        return value

    # ---- operands

    def image(self, row: str, term: str) -> str:
        """An element of a window, 0 in padding, in holes, and behind the last ones."""
        c, f, at = self.of, self.f, self.op("add", self.row, row)
        image, places = self.split(at, c.places)
        channel, taps = self.terms(term)
        tests = [f.let(f"icmp ult i32 {at}, {self.kernel.sizes[0]}"),
                 f.let(f"icmp ult i32 {term}, {self.kernel.sizes[2]}")]  # fmt: skip
        fold, both = c.groups
        if both > 1:
            image = self.op("add", image, self.op("mul", self.group, c.images))
        elif fold > 1:
            channel = self.op("add", channel, self.op("mul", self.group, c.channels))
        spots = [image, channel]
        for i, (place, tap) in enumerate(zip(places, taps, strict=True)):
            hole = c.holes[i] if c.holes else 1
            spot = self.op("add", self.op("mul", place, c.strides[i]), -c.padding[i][0])
            spot = self.op("add", spot, self.op("mul", tap, c.dilation[i]))
            # A number below 0 is a large one without a sign.
            tests.append(f.let(f"icmp ult i32 {spot}, {dilated(c.size[i], hole)}"))
            if hole > 1:
                rest = self.op("urem", spot, hole)
                tests.append(f.let(f"icmp eq i32 {rest}, 0"))
                spot = self.op("udiv", spot, hole)
            spots.append(spot)
        return self.read(0, spots, tests)

    def weight(self, column: str, term: str) -> str:
        """An element of the kernel; 0 behind the last ones."""
        c, f, at = self.of, self.f, self.op("add", self.column, column)
        channel, taps = self.terms(term)
        tests = [f.let(f"icmp ult i32 {at}, {c.features}"),
                 f.let(f"icmp ult i32 {term}, {self.kernel.sizes[2]}")]  # fmt: skip
        return self.read(1, [self.feature(at), channel, *taps], tests)

    def feature(self, column: str) -> str:
        """The number of a group's feature among all."""
        return self.op("add", column, self.op("mul", self.group, self.of.features))

    def terms(self, term: str) -> tuple[str, list[str]]:
        """The channel, and the taps, of a term."""
        c = self.of
        if self.channels_last:
            rest, (channel,) = self.split(term, (c.channels,))
            return channel, self.split(rest, c.taps)[1]
        return self.split(term, c.taps)

    def split(self, number: str, sizes: Sequence[int]) -> tuple[str, list[str]]:
        """A row-major number's indices of the last axes, and what is left for those in front."""
        found = []
        for n in reversed(sizes):
            found.append(self.op("urem", number, n) if n > 1 else "0")
            number = self.op("udiv", number, n) if n > 1 else number
        return number, found[::-1]

    def place(self, array: int, indices: Sequence[str]) -> str:
        """The element of an array."""
        total = "0"
        for index, step in zip(indices, self.kernel.steps[array], strict=True):
            total = self.op("add", total, self.op("mul", index, step))
        return total

    def pointer(self, array: int, at: str, kind: str) -> str:
        """A pointer to an element."""
        self.f.do(f"call void @fg_at(i32 {at}, i32 {self.kernel.params[array].size})")
        return self.f.let(f"getelementptr {kind}, ptr{GLOBAL} %p{array}, i64 {self.wide(at)}")

    def read(self, array: int, indices: Sequence[str], tests: Sequence[str]) -> str:
        """An element, or 0 if not all tests hold: without branches, so that nothing waits."""
        f, inside = self.f, tests[0]
        for test in tests[1:]:
            inside = f.let(f"and i1 {inside}, {test}")
        at = f.let(f"select i1 {inside}, i32 {self.place(array, indices)}, i32 0")
        value = f.let(f"load {self.type}, ptr{GLOBAL} {self.pointer(array, at, self.type)}")
        zero = "0" if self.type == "i16" else "0.0"
        return f.let(f"select i1 {inside}, {self.type} {value}, {self.type} {zero}")

    def shared(self, at: str, kind: str) -> str:
        """A pointer into shared memory."""
        return self.f.let(f"getelementptr {kind}, ptr{SHARED} {self.memory}, i32 {at}")

    # ---- sums

    def multiply(self) -> dict[str, str]:
        """The sums after the terms in shared memory: a thread's rows and columns, side by side."""
        first = self.op("mul", self.op("lshr", self.thread, 4), ROWS)
        second = self.op("mul", self.op("and", self.thread, 15), COLUMNS)

        def turn() -> dict[str, str]:
            left = self.cells(self.tiles[0], first, ROWS)
            right = self.cells(self.tiles[1], second, COLUMNS)
            return {
                f"s{i * COLUMNS + j}": self.f.intrinsic(
                    "fma", self.type, a, b, f"%s{i * COLUMNS + j}"
                )
                for i, a in enumerate(left) for j, b in enumerate(right)
            }  # fmt: skip

        self.loop("0", str(self.depth), {f"s{i}": f"%c{i}" for i in range(32)}, turn, "t",
                  kind=self.sums)  # fmt: skip
        return {f"c{i}": f"%s{i}" for i in range(32)}

    def cells(self, tile: _Tile, outer: str, count: int) -> list[str]:
        """Neighbouring elements of this turn's term, four at a time."""
        f, kind, found = self.f, f"<4 x {self.type}>", []
        for i in range(0, count, 4):
            place = self.shared(tile.at(self, self.op("add", outer, i), "%t"), self.type)
            four = f.let(f"load {kind}, ptr{SHARED} {place}, align 16")
            found += [f.let(f"extractelement {kind} {four}, i32 {j}") for j in range(4)]
        return found

    def write(self) -> None:
        """Write the thread's results."""
        first = self.op("mul", self.op("lshr", self.thread, 4), ROWS)
        second = self.op("mul", self.op("and", self.thread, 15), COLUMNS)
        for i in range(ROWS):
            for j in range(COLUMNS):
                row, column = self.op("add", first, i), self.op("add", second, j)
                self.result(row, column, f"%c{i * COLUMNS + j}")

    def result(self, row: str, column: str, value: str) -> None:
        """Write a result, if it is one."""
        f, c = self.f, self.of
        row, column = self.op("add", self.row, row), self.op("add", self.column, column)
        inside = f.let(f"icmp ult i32 {row}, {self.kernel.sizes[0]}")
        known = f.let(f"icmp ult i32 {column}, {c.features}")

        def store() -> None:
            image, places = self.split(row, c.places)
            at = self.place(2, [image, self.feature(column), *places])
            kind, stored = self.stored(value)
            f.do(f"store {kind} {stored}, ptr{GLOBAL} {self.pointer(2, at, kind)}")

        self.when(f.let(f"and i1 {inside}, {known}"), store)

    def stored(self, value: str) -> tuple[str, str]:
        """A sum as it is written: its type and value."""
        if self.sums == "double" and self.kernel.params[2].dtype == FLOAT32:
            return "float", self.f.let(f"fptrunc double {value} to float")
        return self.sums, value


class CoreTiles(ConvolutionTiles):
    """The kernel of halves, by tensor cores: a warp has 16 rows, by 8 columns at a time.

    unit: how many elements a register has
    """

    unit = 2
    depth = 16 * unit

    def layout(self) -> tuple[tuple[int, int], int]:
        # Terms side by side, as tensor cores want them; 16 bytes more keep lanes in banks of their
        # own.
        row = self.depth + 4 * self.unit
        return (row, 1), TILE * row

    @property
    def kind(self) -> str:
        """What tensor cores call the dtype."""
        return "bf16" if self.kernel.dtype == BFLOAT16 else "f16"

    def lanes(self) -> tuple[str, str, str]:
        """The warp's first row; of the lane the number of its group of four, and within it."""
        lane = self.op("and", self.thread, 31)
        warp = self.op("mul", self.op("lshr", self.thread, 5), 16)
        return warp, self.op("lshr", lane, 2), self.op("and", lane, 3)

    def multiply(self) -> dict[str, str]:
        warp, row, near = self.lanes()
        sums = [[f"%c{4 * c + i}" for i in range(4)] for c in range(TILE // 8)]
        first, term, half = (
            self.op("add", warp, row),
            self.op("mul", near, self.unit),
            4 * self.unit,
        )
        for k in range(0, self.depth, 2 * half):
            a = [self.register(0, self.op("add", first, 8 * (i % 2)), term, k + half * (i // 2))
                 for i in range(4)]  # fmt: skip
            for c, part in enumerate(sums):
                column = self.op("add", row, 8 * c)
                b = [self.register(1, column, term, k + half * i) for i in (0, 1)]
                sums[c] = mma.multiply(self.f, self.kind, a, b, part)
        return {f"c{4 * c + i}": x for c, part in enumerate(sums) for i, x in enumerate(part)}

    def register(self, number: int, outer: str, term: str, more: int) -> str:
        """Neighbouring terms of a tile."""
        at = self.tiles[number].at(self, outer, self.op("add", term, more))
        return self.f.let(f"load i32, ptr{SHARED} {self.shared(at, self.type)}, align 4")

    def write(self) -> None:
        warp, row, near = self.lanes()
        pair = self.op("shl", near, 1)
        for c in range(TILE // 8):
            for i in range(4):
                mine = self.op("add", self.op("add", warp, row), 8 * (i // 2))
                self.result(mine, self.op("add", pair, 8 * c + i % 2), f"%c{4 * c + i}")

    def stored(self, value: str) -> tuple[str, str]:
        if self.kernel.params[2].dtype == FLOAT32:
            return "float", value
        packed = mma.pack(self.f, self.kind, value, value)
        return "i16", self.f.let(f"trunc i32 {packed} to i16")


class FastTiles(CoreTiles):
    """The kernel of float32 that may be rounded to TensorFloat-32."""

    unit = 1
    depth = 16
    kind = "tf32"

    def copied(self, value: str) -> str:
        return mma.fast(self.f, value)


def writer(kernel: TiledConvolution, name: str) -> ConvolutionTiles:
    """What writes the kernel."""
    if kernel.dtype in HALVES:
        return CoreTiles(kernel, name)
    return (FastTiles if kernel.tf32 else ConvolutionTiles)(kernel, name)
