"""What attention's kernels have in common: tiles of 16 places by 16, a warp at a time.

Each lane reads its fragments where they lie, so that any strides do, and nothing is shared between
warps. Tiles in shared memory, copied ahead, are what is missing to the measured 323 TFLOP/s
(docs/cuda.md). A lane holds of a tile the elements of two rows, `row` and 8 further, and of two
neighbouring columns, `pair`, and 8 further.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain

import numpy as np

from funcgrad.backends.cuda.kernels import mma
from funcgrad.backends.cuda.kernels.attention import TILE, WARPS, AttentionKernel
from funcgrad.backends.cuda.kernels.thread_text import ThreadText
from funcgrad.backends.cuda.schedule import WARP, Schedule
from funcgrad.backends.cuda.writer import GLOBAL
from funcgrad.backends.llvm.emit.text import BFLOAT16, FLOAT32, constant

LOWEST = "0xFFF0000000000000"
LOG2E = constant(np.float32(math.log2(math.e)), FLOAT32)
Part = list[str]  # of a tile's eight columns: a lane's four elements


class Tiles(ThreadText):
    """Writes a kernel in which a warp has a tile of places."""

    def __init__(self, kernel: AttentionKernel, name: str):
        super().__init__(kernel, name)
        self.kernel, self.step = kernel, kernel.step
        self.kind = "bf16" if self.step.dtype == BFLOAT16 else "f16"

    def run(self, plan: Schedule) -> str:
        """The kernel's function."""
        f, n = self.f, self.step.sizes
        thread, block = (f.call(w, "i32", [], []) for w in ("fg_thread", "fg_block"))
        lane = self.op("and", thread, WARP - 1)
        self.row, self.pair = self.op("lshr", lane, 2), self.op("shl", self.op("and", lane, 3), 1)
        unit = self.op("add", self.op("mul", block, WARPS), self.op("lshr", thread, 5))
        heads, places = (
            (n.key_heads, n.keys) if self.kernel.part == "keys" else (n.heads, n.queries)
        )
        tiles = -(-places // TILE)
        inside = f.let(f"icmp ult i32 {unit}, {self.kernel.units}")
        f.do(f"br i1 {inside}, label %work, label %end")
        f.start("work")
        self.first = self.op("mul", self.op("urem", unit, tiles), TILE)
        both = self.op("udiv", unit, tiles)
        self.head, self.batch = self.op("urem", both, heads), self.op("udiv", both, heads)
        self.places = [self.op("add", self.op("add", self.first, self.row), 8 * h) for h in (0, 1)]
        self.lengths = [self.number(x) for x in ("queries", "keys") if x in self.numbers]
        self.attend()
        f.do("br label %end")
        f.start("end")
        f.do("ret void")
        params = ", ".join(f"ptr{GLOBAL} %p{i}" for i in range(len(self.kernel.params)))
        return f.text(f"define ptx_kernel void @{self.name}({params}) nounwind")

    def attend(self) -> None:
        """What a warp does."""
        raise NotImplementedError

    # ---- memory

    def number(self, name: str) -> str:
        """The batch's element of lengths."""
        i = self.numbers[name]
        place = self.f.let(f"getelementptr i32, ptr{GLOBAL} %p{i}, i64 {self.wide(self.batch)}")
        return self.f.let(f"load i32, ptr{GLOBAL} {place}, align 4")

    def at(self, name: str, place: str, head: str) -> str:
        """Where a place's features begin; places behind the last are the last."""
        n = self.step.sizes
        limit = n.keys if name in ("k", "v", "dk", "dv") else n.queries
        return self._sum(name, (self.batch, self.least(place, limit), head))

    def least(self, place: str, limit: int) -> str:
        """A place, or the last one."""
        return self.f.intrinsic("umin", "i32", place, str(limit - 1))

    def _sum(self, name: str, indices: Sequence[str]) -> str:
        """The element of an array at the indices of its first axes, 0 along the others."""
        x = self.kernel.arrays[name]
        total = str(x.start)
        for index, stride in zip(indices, x.strides, strict=False):
            total = self.op("add", self.op("mul", self.wide(index), stride, "i64"), total, "i64")
        return total

    def pointer(self, name: str, at: str, kind: str) -> str:
        """A pointer to an element."""
        number = self.numbers[name]
        size = self.kernel.params[number].size
        if size < 1 << 31:
            short = self.f.let(f"trunc i64 {at} to i32")
            self.f.do(f"call void @fg_at(i32 {short}, i32 {size})")
        return self.f.let(f"getelementptr {kind}, ptr{GLOBAL} %p{number}, i64 {at}")

    def element(self, name: str, at: str, feature: str) -> str:
        """A pointer to a feature."""
        step = self.kernel.arrays[name].strides[3]
        moved = self.op("mul", self.wide(feature), step, "i64")
        return self.pointer(name, self.op("add", at, moved, "i64"), "i16")

    def two(self, low: str, high: str) -> str:
        """Two halves of a register."""
        low, high = (self.f.let(f"zext i16 {x} to i32") for x in (low, high))
        return self.op("or", low, self.op("shl", high, 16))

    def load(self, name: str, at: str, feature: str) -> str:
        """An element, as its bits."""
        return self.f.let(f"load i16, ptr{GLOBAL} {self.element(name, at, feature)}, align 2")

    def load_pair(self, name: str, at: str, feature: str) -> str:
        """Two neighbouring features in a register."""
        if self._paired(name):
            place = self.element(name, at, feature)
            return self.f.let(f"load i32, ptr{GLOBAL} {place}, align 4")
        high = self.op("add", feature, 1)
        return self.two(self.load(name, at, feature), self.load(name, at, high))

    def store_pair(self, name: str, at: str, feature: str, value: str) -> None:
        """Two neighbouring features of a result."""
        f = self.f
        if self._paired(name):
            f.do(f"store i32 {value}, ptr{GLOBAL} {self.element(name, at, feature)}, align 4")
            return
        for i, part in enumerate((value, self.op("lshr", value, 16))):
            place = self.element(name, at, self.op("add", feature, i))
            f.do(f"store i16 {f.let(f'trunc i32 {part} to i16')}, ptr{GLOBAL} {place}, align 2")

    def _paired(self, name: str) -> bool:
        """Whether neighbours lie together, in four bytes that are aligned."""
        x = self.kernel.arrays[name]
        *outer, inner = x.strides
        moves = [s for _, s in x.ref.strides]
        return inner == 1 and not any(s % 2 for s in outer) and not any(
            n % 4 for n in (x.ref.offset, *moves)
        )  # fmt: skip

    def of_row(self, name: str, place: str, head: str, which: str = "") -> str:
        """A pointer to a query's number in `means`, or in `stats`, which has two of each."""
        n = self.step.sizes
        row = self.op("add", self.op("mul", self.batch, n.heads), head)
        if which:
            row = self.op("add", self.op("shl", row, 1), which)
        at = self.op("mul", self.wide(row), n.queries, "i64")
        return self.pointer(name, self.op("add", at, self.wide(place), "i64"), "float")

    def load_float(self, pointer: str) -> str:
        """A float."""
        return self.f.let(f"load float, ptr{GLOBAL} {pointer}, align 4")

    def of_pair(self, name: str, head: str, query: str, key: str) -> str:
        """Where a bias or a mask has the element of a query and a key."""
        n = self.step.sizes
        indices = (self.batch, head, self.least(query, n.queries), self.least(key, n.keys))
        return self._sum(name, indices)

    # ---- sums of rows, as states of a loop

    def zeros(self, stem: str) -> dict[str, str]:
        """States of sums of rows, by 8 features."""
        return {f"{stem}{c}_{i}": "0.0" for c in range(self.blocks) for i in range(4)}

    def totals(self, stem: str) -> list[Part]:
        """Such states in a turn, and after all."""
        return [[f"%{stem}{c}_{i}" for i in range(4)] for c in range(self.blocks)]

    def named(self, stem: str, parts: list[Part]) -> dict[str, str]:
        """Such states after a turn."""
        return dict(zip(self.zeros(stem), chain.from_iterable(parts), strict=True))

    @property
    def blocks(self) -> int:
        """How many times 8 features there are."""
        return self.step.sizes.features // 8

    # ---- tiles

    def rows_of(self, name: str, places: Sequence[str], head: str) -> list[list[str]]:
        """Fragments of rows that stay: by 16 features, the products' first operand."""
        at = [self.at(name, p, head) for p in places]
        return [
            [self.load_pair(name, at[i % 2], self.op("add", self.pair, 16 * k + 8 * (i // 2)))
             for i in range(4)]
            for k in range(self.step.sizes.features // 16)
        ]  # fmt: skip

    def products(self, rows: list[list[str]], name: str, first: str, head: str) -> list[Part]:
        """Products over features of rows and of 16 places of an array."""
        found = []
        for c in (0, 1):
            place = self.op("add", self.op("add", first, self.row), 8 * c)
            at, total = self.at(name, place, head), ["0.0"] * 4
            for k, a in enumerate(rows):
                b = [self.load_pair(name, at, self.op("add", self.pair, 16 * k + 8 * i))
                     for i in (0, 1)]  # fmt: skip
                total = mma.multiply(self.f, self.kind, a, b, total)
            found.append(total)
        return found

    def mixed(
        self, weights: Sequence[Part], name: str, first: str, head: str, totals: Sequence[Part]
    ) -> list[Part]:
        """Totals, by 8 features, and 16 places of an array weighted by the tile's columns."""
        f = self.f
        a = [mma.pack(f, self.kind, *weights[c][2 * h : 2 * h + 2]) for c in (0, 1) for h in (0, 1)]
        near = self.op("add", first, self.pair)
        places = [self.at(name, self.op("add", near, i), head) for i in (0, 1, 8, 9)]
        found = []
        for c, total in enumerate(totals):
            values = [self.load(name, at, self.op("add", self.row, 8 * c)) for at in places]
            b = [self.two(*values[:2]), self.two(*values[2:])]
            found.append(mma.multiply(f, self.kind, a, b, total))
        return found

    def logit(self, x: str, head: str, query: str, key: str) -> str:
        """A product of a query and a key as their logit: -∞ where the query doesn't see the key."""
        f = self.f
        x = self.fop("fmul", x, constant(np.float32(self.step.scale), FLOAT32))
        if "bias" in self.numbers:
            place = self.pointer("bias", self.of_pair("bias", head, query, key), "float")
            x = self.fop("fadd", x, self.load_float(place))
        sees = ""
        for test in self._tests(head, query, key):
            this = f.let(test)
            sees = f.let(f"and i1 {sees}, {this}") if sees else this
        return f.let(f"select i1 {sees}, float {x}, float {LOWEST}")

    def _tests(self, head: str, query: str, key: str) -> list[str]:
        f, n, s = self.f, self.step.sizes, self.step
        tests = [f"icmp slt i32 {key}, {n.keys}"]
        if self.kernel.part == "keys":  # results of other queries than there are aren't written
            tests.append(f"icmp slt i32 {query}, {n.queries}")
        if s.before is not None:
            tests.append(f"icmp sge i32 {self.op('add', key, s.before)}, {query}")
        if s.after is not None:
            tests.append(f"icmp sle i32 {key}, {self.op('add', query, s.after)}")
        if self.lengths:
            tests += [f"icmp slt i32 {query}, {self.lengths[0]}",
                      f"icmp slt i32 {key}, {self.lengths[1]}"]  # fmt: skip
        if "mask" in self.numbers:
            place = self.pointer("mask", self.of_pair("mask", head, query, key), "i8")
            tests.append(f"icmp ne i8 {f.let(f'load i8, ptr{GLOBAL} {place}, align 1')}, 0")
        return tests

    def keys_seen(self, first: str) -> tuple[str, str]:
        """The tiles of keys, from the first to before the second, that 16 queries may see."""
        f, n, s = self.f, self.step.sizes, self.step
        start, stop = "0", str(n.keys)
        if s.before is not None:
            start = f.intrinsic("smax", "i32", self.op("sub", first, s.before), "0")
            start = self.op("lshr", start, 4)
        if s.after is not None:
            last = self.op("add", first, min(s.after, n.keys) + TILE)
            stop = f.intrinsic("umin", "i32", last, stop)
        return start, self.op("lshr", self.op("add", stop, TILE - 1), 4)
