"""Attention's forward pass on tensor cores, of bfloat16 and float16: a warp takes 16 queries.

Online softmax (Milakov and Gimelshein 2018; Dao 2023) over tiles of 16 keys, whose fragments each
lane reads where they lie, so that any strides do and nothing is shared between warps. Tiles in
shared memory, copied ahead, are what is missing to the measured 323 TFLOP/s (docs/cuda.md). What
has biases or masks, few places, or other sizes, goes by its formula, as all gradients do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from funcgrad.backends.cuda.kernels import mma
from funcgrad.backends.cuda.schedule import WARP, Schedule
from funcgrad.backends.cuda.writer import GLOBAL
from funcgrad.backends.llvm.emit.text import BFLOAT16, FLOAT32, Definitions, Function, constant
from funcgrad.backends.loops.ir import Buffer, Kernel
from funcgrad.backends.loops.scalars import HALVES
from funcgrad.backends.lower.attention import given_numbers, kind_of, sizes_of
from funcgrad.backends.program import AttentionStep, KernelStep, Strided
from funcgrad.backends.rewrites.normalize import by_formula
from funcgrad.core.ir import Atom, Eqn

TILE, WARPS = 16, 4
FEW, MOST_FEATURES = 32, 128
_LOWEST, _LOG2E = "0xFFF0000000000000", math.log2(math.e)


def rewrite(flat: Any, eqn: Eqn, ins: list[Atom]) -> Any:
    """Attention by its formula; None for what has a kernel."""
    if kind_of(eqn) != "attention":
        return by_formula(flat, eqn, ins)
    n, given = sizes_of(eqn), given_numbers(eqn)
    fits = n.features % TILE == 0 and n.features <= MOST_FEATURES
    fits = fits and min(n.queries, n.keys) >= FEW and eqn.ins[0].aval.dtype in HALVES
    plain = given.bias is None and given.mask is None
    return None if fits and plain else by_formula(flat, eqn, ins)


class AttentionKernel(Kernel, eq=False):
    """The kernel of a step."""

    step: AttentionStep  # type: ignore[misc]  # all are given

    @property
    def plan(self) -> Schedule:
        """Which warps there are."""
        n = self.step.sizes
        units = n.batch * n.heads * -(-n.queries // TILE)
        return Schedule("rows", WARP, WARP * WARPS, -(-units // WARPS))


def kernel_step(s: AttentionStep) -> KernelStep:
    """An attention as the step of its kernel."""
    n, names = s.sizes, ("q", "k", "v", "out", "stats", "queries", "keys")
    shapes = [(n.batch, places, heads, n.features) for places, heads in
              ((n.queries, n.heads), (n.keys, n.key_heads), (n.keys, n.key_heads),
               (n.queries, n.heads))]  # fmt: skip
    arrays = [*s.ins, *s.outs]
    sizes = [_span(shape, x) for shape, x in zip(shapes, arrays, strict=True)]
    assert s.stats is not None, s
    refs = [*(x.ref for x in arrays), s.stats, *s.lengths]
    sizes += [n.batch * n.heads * 2 * n.queries, *[n.batch] * len(s.lengths)]
    kinds = [s.dtype] * 4 + [FLOAT32] + [np.dtype(np.int32)] * len(s.lengths)
    roles = ["in"] * 3 + ["out"] * 2 + ["in"] * len(s.lengths)
    buffers = tuple(
        Buffer(*x)  # type: ignore[arg-type]
        for x in zip(names, kinds, sizes, roles, strict=False)
    )
    return KernelStep(AttentionKernel("attention", buffers, (), (), (), s), tuple(refs))


def _span(shape: Sequence[int], x: Strided) -> int:
    return 1 + sum((n - 1) * stride for n, stride in zip(shape, x.strides, strict=True))


class Attention:
    """Writes the kernel of an attention."""

    def __init__(self, kernel: AttentionKernel, name: str):
        self.kernel, self.step, self.name = kernel, kernel.step, name
        self.kind = "bf16" if self.step.dtype == BFLOAT16 else "f16"
        self.module = Definitions()
        self.f = Function(self.module)
        self.globals: list[str] = []

    # ---- words

    def op(self, name: str, a: str, b: str | int, kind: str = "i32") -> str:
        """An instruction on two integers."""
        return self.f.let(f"{name} {kind} {a}, {b}")

    def wide(self, a: str) -> str:
        """An integer that isn't negative, as an i64."""
        return self.f.let(f"zext nneg i32 {a} to i64")

    def run(self, plan: Schedule) -> str:
        """The kernel's function."""
        f, n = self.f, self.step.sizes
        thread, block = (f.call(w, "i32", [], []) for w in ("fg_thread", "fg_block"))
        lane = self.op("and", thread, WARP - 1)
        self.row, self.pair = self.op("lshr", lane, 2), self.op("shl", self.op("and", lane, 3), 1)
        unit = self.op("add", self.op("mul", block, WARPS), self.op("lshr", thread, 5))
        tiles = -(-n.queries // TILE)
        inside = f.let(f"icmp ult i32 {unit}, {n.batch * n.heads * tiles}")
        f.do(f"br i1 {inside}, label %work, label %end")
        f.start("work")
        self.first = self.op("mul", self.op("urem", unit, tiles), TILE)
        both = self.op("udiv", unit, tiles)
        self.head, self.batch = self.op("urem", both, n.heads), self.op("udiv", both, n.heads)
        self.key_head = self.op("udiv", self.head, n.heads // n.key_heads)
        self.places = [self.op("add", self.op("add", self.first, self.row), 8 * h) for h in (0, 1)]
        self._attend()
        f.do("br label %end")
        f.start("end")
        f.do("ret void")
        params = ", ".join(f"ptr{GLOBAL} %p{i}" for i in range(len(self.kernel.params)))
        return f.text(f"define ptx_kernel void @{self.name}({params}) nounwind")

    # ---- memory

    def rows(self, number: int, place: str, limit: int, head: str) -> str:
        """Where a place's features begin; places behind the last are the last."""
        f, strides = self.f, self._array(number).strides
        place = f.intrinsic("umin", "i32", place, str(limit - 1))
        total = ""
        for index, stride in zip((self.batch, place, head), strides, strict=False):
            term = self.op("mul", self.wide(index), stride, "i64")
            total = self.op("add", total, term, "i64") if total else term
        return total

    def _array(self, number: int) -> Strided:
        return (*self.step.ins, *self.step.outs)[number]

    def element(self, number: int, at: str, feature: str) -> str:
        """A pointer to a feature."""
        step = self._array(number).strides[3]
        moved = self.op("add", at, self.op("mul", self.wide(feature), step, "i64"), "i64")
        short = self.f.let(f"trunc i64 {moved} to i32")
        size = self.kernel.params[number].size
        if size < 1 << 31:
            self.f.do(f"call void @fg_at(i32 {short}, i32 {size})")
        return self.f.let(f"getelementptr i16, ptr{GLOBAL} %p{number}, i64 {moved}")

    def two(self, low: str, high: str) -> str:
        """Two halves of a register."""
        low, high = (self.f.let(f"zext i16 {x} to i32") for x in (low, high))
        return self.op("or", low, self.op("shl", high, 16))

    def load(self, number: int, at: str, feature: str) -> str:
        """An element, as its bits."""
        return self.f.let(f"load i16, ptr{GLOBAL} {self.element(number, at, feature)}, align 2")

    def load_pair(self, number: int, at: str, feature: str) -> str:
        """Two neighbouring features in a register."""
        if self._paired(number):
            place = self.element(number, at, feature)
            return self.f.let(f"load i32, ptr{GLOBAL} {place}, align 4")
        high = self.op("add", feature, 1)
        return self.two(self.load(number, at, feature), self.load(number, at, high))

    def _paired(self, number: int) -> bool:
        """Whether neighbours lie together, in four bytes that are aligned."""
        x = self._array(number)
        *outer, inner = x.strides
        moves = [s for _, s in x.ref.strides]
        return inner == 1 and not any(s % 2 for s in outer) and not any(
            n % 4 for n in (x.ref.offset, *moves)
        )  # fmt: skip

    # ---- the loop over keys

    def _attend(self) -> None:
        f, n, s = self.f, self.step.sizes, self.step
        places = [self.rows(0, p, n.queries, self.head) for p in self.places]
        queries = [
            [self.load_pair(0, places[i % 2], self.op("add", self.pair, 16 * k + 8 * (i // 2)))
             for i in range(4)]
            for k in range(n.features // 16)
        ]  # fmt: skip
        start, stop = "0", str(n.keys)
        if s.before is not None:
            low = f.intrinsic("smax", "i32", self.op("sub", self.first, s.before), "0")
            start = self.op("lshr", low, 4)
        if s.after is not None:
            last = self.op("add", self.first, min(s.after, n.keys) + TILE)
            stop = f.intrinsic("umin", "i32", last, stop)
        end = self.op("lshr", self.op("add", stop, TILE - 1), 4)
        self.lengths = [self._length(i) for i in range(len(s.lengths))]
        states = {f"m{h}": _LOWEST for h in (0, 1)} | {f"l{h}": "0.0" for h in (0, 1)}
        states |= {f"o{c}_{i}": "0.0" for c in range(n.features // 8) for i in range(4)}
        before = f.block
        f.do("br label %head")
        f.start("head")
        at = len(f.lines)
        f.do(f"br i1 {f.let(f'icmp ult i32 %j, {end}')}, label %tile, label %done")
        f.start("tile")
        after = self._tile(queries, self.op("shl", "%j", 4))
        later = self.op("add", "%j", 1)
        f.do("br label %head")
        phis = [f"  %j = phi i32 [{start}, %{before}], [{later}, %{f.block}]"]
        phis += [f"  %{k} = phi float [{first}, %{before}], [{after[k]}, %{f.block}]"
                 for k, first in states.items()]  # fmt: skip
        f.lines[at:at] = phis
        f.start("done")
        self._finish()

    def _length(self, i: int) -> str:
        place = self.f.let(f"getelementptr i32, ptr{GLOBAL} %p{5 + i}, i64 {self.wide(self.batch)}")
        return self.f.let(f"load i32, ptr{GLOBAL} {place}, align 4")

    def _tile(self, queries: list[list[str]], first: str) -> dict[str, str]:
        """Sixteen keys; what the states are after them."""
        f, n = self.f, self.step.sizes
        scale = constant(np.float32(self.step.scale), FLOAT32)
        scores = []
        for c in (0, 1):
            key = self.op("add", self.op("add", first, self.row), 8 * c)
            at, total = self.rows(1, key, n.keys, self.key_head), ["0.0"] * 4
            for k, a in enumerate(queries):
                b = [self.load_pair(1, at, self.op("add", self.pair, 16 * k + 8 * i))
                     for i in (0, 1)]  # fmt: skip
                total = mma.multiply(f, self.kind, a, b, total)
            scaled = [f.let(f"fmul float {x}, {scale}") for x in total]
            scores.append(
                self._masked(scaled, self.op("add", self.op("add", first, 8 * c), self.pair))
            )
        after, weights, shrinks = self._softmax(scores)
        a = [mma.pack(f, self.kind, *weights[c][2 * h : 2 * h + 2]) for c in (0, 1) for h in (0, 1)]
        keys = [self.op("add", self.op("add", first, self.pair), i) for i in (0, 1, 8, 9)]
        places = [self.rows(2, key, n.keys, self.key_head) for key in keys]
        for c in range(n.features // 8):
            values = [self.load(2, at, self.op("add", self.row, 8 * c)) for at in places]
            b = [self.two(*values[:2]), self.two(*values[2:])]
            names = [f"o{c}_{i}" for i in range(4)]
            total = [f.let(f"fmul float %{x}, {shrinks[i // 2]}") for i, x in enumerate(names)]
            after |= dict(zip(names, mma.multiply(f, self.kind, a, b, total), strict=True))
        return after

    def _masked(self, scores: Sequence[str], first: str) -> list[str]:
        """Scores of keys from `first` on, those that a query doesn't see being -∞."""
        f, n, s, found = self.f, self.step.sizes, self.step, []
        for i, x in enumerate(scores):
            key, place = self.op("add", first, i % 2), self.places[i // 2]
            tests = [f"icmp slt i32 {key}, {n.keys}"]
            if s.before is not None:
                tests.append(f"icmp sge i32 {self.op('add', key, s.before)}, {place}")
            if s.after is not None:
                tests.append(f"icmp sle i32 {key}, {self.op('add', place, s.after)}")
            if self.lengths:
                tests += [f"icmp slt i32 {place}, {self.lengths[0]}",
                          f"icmp slt i32 {key}, {self.lengths[1]}"]  # fmt: skip
            sees = ""
            for test in tests:
                this = f.let(test)
                sees = f.let(f"and i1 {sees}, {this}") if sees else this
            found.append(f.let(f"select i1 {sees}, float {x}, float {_LOWEST}"))
        return found

    def _softmax(
        self, scores: Sequence[Sequence[str]]
    ) -> tuple[dict[str, str], list[list[str]], list[str]]:
        """The states after a tile, its weights, and by what earlier results shrink."""
        f, shrinks = self.f, []
        after: dict[str, str] = {}
        weights = [["0.0"] * 4 for _ in scores]
        log2e = constant(np.float32(_LOG2E), FLOAT32)
        for h in (0, 1):
            mine = [x for part in scores for x in part[2 * h : 2 * h + 2]]
            top = mine[0]
            for x in mine[1:]:
                top = f.intrinsic("maxnum", "float", top, x)
            top = f.intrinsic("maxnum", "float", f"%m{h}", mma.over_row(f, top, "max"))
            none = f.let(f"fcmp oeq float {top}, {_LOWEST}")
            base = f.let(f"select i1 {none}, float 0.0, float {top}")

            def power(x: str, base: str = base) -> str:
                return mma.exp2(f, f.let(f"fmul float {f.let(f'fsub float {x}, {base}')}, {log2e}"))

            shrinks.append(power(f"%m{h}"))
            total = f.let(f"fmul float %l{h}, {shrinks[-1]}")
            for c, part in enumerate(scores):
                for i in (2 * h, 2 * h + 1):
                    weights[c][i] = power(part[i])
                    total = f.let(f"fadd float {total}, {weights[c][i]}")
            after |= {f"m{h}": top, f"l{h}": total}
        return after, weights, shrinks

    def _finish(self) -> None:
        """Write results, and what backward passes normalize by."""
        f, n = self.f, self.step.sizes
        heads = self.op("add", self.op("mul", self.batch, n.heads), self.head)
        for h in (0, 1):
            total = mma.over_row(f, f"%l{h}", "add")
            none = f.let(f"fcmp oeq float {total}, 0.0")
            divisor = f.let(f"select i1 {none}, float 1.0, float {total}")
            inside, after = f.name("inside"), f.name("after")
            there = f.let(f"icmp ult i32 {self.places[h]}, {n.queries}")
            at = self.rows(3, self.places[h], n.queries, self.head)
            f.do(f"br i1 {there}, label %{inside}, label %{after}")
            f.start(inside)
            for c in range(n.features // 8):
                parts = []
                for i in (2 * h, 2 * h + 1):
                    value = f.let(f"fdiv float %o{c}_{i}, {divisor}")
                    parts.append(f.let(f"select i1 {none}, float 0.0, float {value}"))
                self._store(at, self.op("add", self.pair, 8 * c), mma.pack(f, self.kind, *parts))
            infinite = "0x7FF0000000000000"
            top = f.let(f"select i1 {none}, float {infinite}, float %m{h}")
            log = f.let(f"select i1 {none}, float 0.0, float {mma.log(f, divisor)}")
            for i, value in enumerate((top, log)):
                row = self.op("mul", self.wide(self.op("add", self.op("shl", heads, 1), i)),
                              n.queries, "i64")  # fmt: skip
                place = self.op("add", row, self.wide(self.places[h]), "i64")
                to = f.let(f"getelementptr float, ptr{GLOBAL} %p4, i64 {place}")
                f.do(f"store float {value}, ptr{GLOBAL} {to}, align 4")
            f.do(f"br label %{after}")
            f.start(after)

    def _store(self, at: str, feature: str, value: str) -> None:
        """Two neighbouring features of a result."""
        f = self.f
        if self._paired(3):
            f.do(f"store i32 {value}, ptr{GLOBAL} {self.element(3, at, feature)}, align 4")
            return
        for i, part in enumerate((value, self.op("lshr", value, 16))):
            place = self.element(3, at, self.op("add", feature, i))
            f.do(f"store i16 {f.let(f'trunc i32 {part} to i16')}, ptr{GLOBAL} {place}, align 2")
