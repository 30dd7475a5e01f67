"""LLVM texts of kernels that move much and compute little: elementwise and of rows, by threads,
widths and how much a thread has in flight."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from funcgrad.backends.llvm.emit.text import Definitions, Function

G = " addrspace(1)"
SIZES = {"float": 4, "bfloat": 2, "i8": 1}
_SREG = "llvm.nvvm.read.ptx.sreg."
TID_X, TID_Y, CTAID_X, CTAID_Y = "tid.x", "tid.y", "ctaid.x", "ctaid.y"
CTAID_Z, NCTAID_X = "ctaid.z", "nctaid.x"


class Point(NamedTuple):
    """y = f(x₀, …): elements a vector, vectors a thread, threads a block. Operands are float,
    bfloat or i8, results float or, of bfloat, bfloat; all is computed in float."""

    width: int
    unroll: int
    threads: int
    inputs: int = 1
    op: str = "axpy"
    loop: bool = False  # a fixed grid whose blocks go on in turns
    kind: str = "float"
    hint: str = ""  # "stream": L1 is passed by, and lines of results are the first to leave L2
    wide: bool = False  # indices of 64 bits

    @property
    def name(self) -> str:
        """The kernel's."""
        grid = "loop" if self.loop else "grid"
        name = f"point_{self.op}_{self.inputs}_{grid}_{self.width}_{self.unroll}_{self.threads}"
        marks = [self.kind if self.kind != "float" else "", self.hint, "wide" if self.wide else ""]
        return "_".join([name, *filter(None, marks)])

    @property
    def out(self) -> str:
        """The results' type."""
        return "bfloat" if self.kind == "bfloat" else "float"

    @property
    def index(self) -> str:
        """The indices' type."""
        return "i64" if self.wide else "i32"

    @property
    def nbytes(self) -> int:
        """Read and written for an element."""
        return SIZES[self.kind] * self.inputs + SIZES[self.out]


def special(f: Function, name: str) -> str:
    """A special register: tid.x, ctaid.x, nctaid.x, …"""
    f.module.declare(_SREG + name, "i32", [])
    return f.let(f"call i32 @{_SREG}{name}()")


def vector(width: int, element: str = "float") -> str:
    """A vector's type, or the element's."""
    return element if width == 1 else f"<{width} x {element}>"


def barrier(f: Function) -> None:
    """All threads of the block."""
    f.module.declare("llvm.nvvm.barrier0", "void", [], "convergent nounwind")
    f.do("call void @llvm.nvvm.barrier0()")


def shuffled(f: Function, x: str, mask: int) -> str:
    """The value of the lane whose number differs by a mask."""
    name = "llvm.nvvm.shfl.sync.bfly.f32"
    f.module.declare(name, "float", ["i32", "float", "i32", "i32"], "convergent nounwind")
    return f.let(f"call float @{name}(i32 -1, float {x}, i32 {mask}, i32 31)")


def warp_total(f: Function, x: str, op: str) -> str:
    """A reduction over a warp; op is "fadd" or "max"."""
    for mask in (16, 8, 4, 2, 1):
        x = combined(f, op, x, shuffled(f, x, mask))
    return x


def combined(f: Function, op: str, x: str, y: str) -> str:
    """x + y, or the larger one."""
    return f.intrinsic("maxnum", "float", x, y) if op == "max" else f.let(f"fadd float {x}, {y}")


def elements(f: Function, x: str, width: int, kind: str = "float") -> list[str]:
    """A vector's elements."""
    if width == 1:
        return [x]
    return [f.let(f"extractelement {vector(width, kind)} {x}, i32 {i}") for i in range(width)]


def packed(f: Function, xs: list[str], kind: str = "float") -> str:
    """A vector of elements."""
    if len(xs) == 1:
        return xs[0]
    made = "poison"
    for i, x in enumerate(xs):
        made = f.let(f"insertelement {vector(len(xs), kind)} {made}, {kind} {x}, i32 {i}")
    return made


def floats(f: Function, at: str, width: int, kind: str = "float", hint: str = "") -> list[str]:
    """Elements in memory as float."""
    if hint:
        text = "ld.global.nc.L1::no_allocate.v4.f32 {$0, $1, $2, $3}, [$4];"
        result = "{float, float, float, float}"
        loaded = f.let(f'call {result} asm "{text}", "=f,=f,=f,=f,l"(ptr{G} {at})')
        return [f.let(f"extractvalue {result} {loaded}, {i}") for i in range(4)]
    whole, align = vector(width, kind), SIZES[kind] * width
    xs = elements(f, f.let(f"load {whole}, ptr{G} {at}, align {align}"), width, kind)
    if kind == "float":
        return xs
    return [f.let(f"{'sitofp' if kind == 'i8' else 'fpext'} {kind} {x} to float") for x in xs]


def put(f: Function, at: str, ys: list[str], kind: str = "float", hint: str = "") -> None:
    """Floats to memory as elements of a kind, in stores of at most 16 bytes."""
    if hint:
        text = "st.global.cs.v4.f32 [$0], {$1, $2, $3, $4};"
        values = ", ".join(f"float {y}" for y in ys)
        f.do(f'call void asm sideeffect "{text}", "l,f,f,f,f"(ptr{G} {at}, {values})')
        return
    if kind != "float":
        ys = [f.let(f"fptrunc float {y} to {kind}") for y in ys]
    width = min(len(ys), 16 // SIZES[kind])
    for i in range(0, len(ys), width):
        to = at if i == 0 else f.let(f"getelementptr {kind}, ptr{G} {at}, i64 {i}")
        y = packed(f, ys[i : i + width], kind)
        f.do(f"store {vector(width, kind)} {y}, ptr{G} {to}, align {SIZES[kind] * width}")


def formula(f: Function, op: str, xs: list[str]) -> str:
    """The element's value of one op."""
    if op == "axpy":
        total = f.intrinsic("fma", "float", xs[0], "2.0", "1.0")
        for x in xs[1:]:
            total = f.let(f"fadd float {total}, {x}")
        return total
    return f.math(op, "float", xs[0])


def point(module: Definitions, p: Point) -> str:
    """`name(x0, …, y, n)` of n vectors, a multiple of what a block takes; n is p.index."""
    f, each, index = Function(module), p.threads * p.unroll, p.index
    tid, block = special(f, TID_X), special(f, CTAID_X)
    if p.wide:
        tid, block = (f.let(f"zext i32 {x} to i64") for x in (tid, block))
    at = first = f.let(f"add {index} {f.let(f'mul {index} {block}, {each}')}, {tid}")
    if p.loop:
        step = f.let(f"mul i32 {special(f, NCTAID_X)}, {each}")
    f.do("br label %go")
    f.start("go")
    if p.loop:
        f.do(f"%at = phi i32 [{first}, %entry], [%next, %go]")
        at = "%at"
    places, loaded = [], []
    for u in range(p.unroll):
        place = f.let(f"add {index} {at}, {u * p.threads}")
        places.append(place if p.wide else f.let(f"zext i32 {place} to i64"))
        pointers = [
            f.let(f"getelementptr {vector(p.width, p.kind)}, ptr{G} %x{i}, i64 {places[-1]}")
            for i in range(p.inputs)
        ]
        loaded.append([floats(f, x, p.width, p.kind, p.hint) for x in pointers])
    for place, parts in zip(places, loaded, strict=True):
        ys = [formula(f, p.op, list(xs)) for xs in zip(*parts, strict=True)]
        to = f.let(f"getelementptr {vector(p.width, p.out)}, ptr{G} %y, i64 {place}")
        put(f, to, ys, p.out, p.hint)
    if p.loop:
        f.do(f"%next = add i32 %at, {step}")
        f.do(f"br i1 {f.let('icmp ult i32 %next, %n')}, label %go, label %done")
        f.start("done")
    f.do("ret void")
    params = "".join(f"ptr{G} noalias readonly %x{i}, " for i in range(p.inputs))
    return f.text(f"define ptx_kernel void @{p.name}({params}ptr{G} noalias %y, {index} %n)")


class Row(NamedTuple):
    """Softmax, normalization or sums of rows, by a warp or a block a row."""

    size: int
    threads: int  # a row
    op: str = "softmax"  # "norm": by mean and variance; "sum": one float a row
    kind: str = "float"
    fast: bool = False  # ex2.approx in place of the library's exp
    twice: bool = False  # rows are read twice rather than kept in registers; softmax alone

    @property
    def name(self) -> str:
        """The kernel's."""
        marks = [self.kind if self.kind != "float" else ""]
        marks += ["fast" if self.fast else "", "twice" if self.twice else ""]
        return "_".join([f"{self.op}_{self.size}_{self.threads}", *filter(None, marks)])

    @property
    def rows(self) -> int:
        """Rows a block."""
        return max(1, 128 // self.threads)

    @property
    def width(self) -> int:
        """Elements a vector of 16 bytes."""
        return 16 // SIZES[self.kind]

    @property
    def vectors(self) -> int:
        """Vectors a thread."""
        return self.size // self.width // self.threads

    @property
    def nbytes(self) -> float:
        """Read and written for an element."""
        return 4 / self.size + SIZES[self.kind] if self.op == "sum" else 2 * SIZES[self.kind]


class RowWriter:
    """A kernel of rows under construction."""

    def __init__(self, module: Definitions, row: Row) -> None:
        self.f, self.row = Function(module), row
        f = self.f
        tid, block = special(f, TID_X), special(f, CTAID_X)
        thread = f.let(f"and i32 {tid}, {row.threads - 1}")
        within = f.let(f"udiv i32 {tid}, {row.threads}")
        self.number = f.let(f"add i32 {f.let(f'mul i32 {block}, {row.rows}')}, {within}")
        wide = f.let(f"zext i32 {self.number} to i64")
        base = f.let(f"mul i64 {wide}, {row.size // row.width}")
        self.warp, self.lane = f.let(f"lshr i32 {thread}, 5"), f.let(f"and i32 {thread}, 31")
        self.thread = thread
        self.start = f.let(f"add i64 {base}, {f.let(f'zext i32 {thread} to i64')}")

    def at(self, name: str, place: str) -> str:
        """The address of a vector."""
        kind = vector(self.row.width, self.row.kind)
        return self.f.let(f"getelementptr {kind}, ptr{G} {name}, i64 {place}")

    def over_row(self, x: str, op: str, slot: str) -> str:
        """A reduction over the row's threads; each has its own slots in shared memory."""
        f, warps = self.f, self.row.threads // 32
        x = warp_total(f, x, op)
        if warps == 1:
            return x
        name = f"row_{slot}"
        text = f"@{name} = internal addrspace(3) global [32 x float] undef"
        f.module.needed.setdefault(name, text)
        at = f.let(f"getelementptr float, ptr addrspace(3) @{name}, i32 {self.warp}")
        f.do(f"store float {x}, ptr addrspace(3) {at}")
        barrier(f)
        part = f.let(f"getelementptr float, ptr addrspace(3) @{name}, i32 {self.lane}")
        loaded = f.let(f"load float, ptr addrspace(3) {part}")
        neutral = "0xFFF0000000000000" if op == "max" else "0.0"
        inside = f.let(f"icmp ult i32 {self.lane}, {warps}")
        return warp_total(f, f.let(f"select i1 {inside}, float {loaded}, float {neutral}"), op)

    def exp(self, x: str) -> str:
        """e to the power x."""
        f = self.f
        if not self.row.fast:
            return f.math("exp", "float", x)
        f.module.declare("llvm.nvvm.ex2.approx.f", "float", ["float"])
        scaled = f.let(f"fmul float {x}, 0x3FF7154760000000")
        return f.let(f"call float @llvm.nvvm.ex2.approx.f(float {scaled})")

    def total(self, xs: list[str], op: str = "fadd") -> str:
        """A reduction of a thread's values, pairwise."""
        while len(xs) > 1:
            pairs = [combined(self.f, op, *xs[i : i + 2]) for i in range(0, len(xs) - 1, 2)]
            xs = pairs + xs[len(xs) - len(xs) % 2 :]
        return xs[0]

    def kept(self) -> None:
        """Each row is read once, into registers."""
        f, row = self.f, self.row
        places = [f.let(f"add i64 {self.start}, {k * row.threads}") for k in range(row.vectors)]
        xs: list[str] = []
        for place in places:
            xs += floats(f, self.at("%x", place), row.width, row.kind)
        if row.op == "sum":
            self.sum(xs)
            return
        ys = self.softmax(xs) if row.op == "softmax" else self.norm(xs)
        for k, place in enumerate(places):
            part = ys[row.width * k : row.width * (k + 1)]
            put(f, self.at("%y", place), part, row.kind)

    def sum(self, xs: list[str]) -> None:
        """One float a row, by its first thread."""
        f = self.f
        total = self.over_row(self.total(xs), "fadd", "a")
        first = f.let(f"icmp eq i32 {self.thread}, 0")
        f.do(f"br i1 {first}, label %write, label %done")
        f.start("write")
        at = f.let(f"getelementptr float, ptr{G} %y, i32 {self.number}")
        f.do(f"store float {total}, ptr{G} {at}")
        f.do("br label %done")
        f.start("done")

    def softmax(self, xs: list[str]) -> list[str]:
        """e to the power x - max, over their sum."""
        f = self.f
        top = self.over_row(self.total(xs, "max"), "max", "a")
        es = [self.exp(f.let(f"fsub float {x}, {top}")) for x in xs]
        total = self.over_row(self.total(es), "fadd", "b")
        inverse = f.let(f"fdiv float 1.0, {total}")
        return [f.let(f"fmul float {e}, {inverse}") for e in es]

    def norm(self, xs: list[str]) -> list[str]:
        """Less the mean, over the root of the variance and 1e-5."""
        f, share = self.f, f"0x{np.float64(1 / self.row.size).view(np.uint64):016X}"
        mean = f.let(f"fmul float {self.over_row(self.total(xs), 'fadd', 'a')}, {share}")
        ds = [f.let(f"fsub float {x}, {mean}") for x in xs]
        squares = [f.let(f"fmul float {d}, {d}") for d in ds]
        total = self.over_row(self.total(squares), "fadd", "b")
        small = f"0x{np.float64(np.float32(1e-5)).view(np.uint64):016X}"
        root = f.intrinsic("sqrt", "float", f.intrinsic("fma", "float", total, share, small))
        inverse = f.let(f"fdiv float 1.0, {root}")
        return [f.let(f"fmul float {d}, {inverse}") for d in ds]

    def twice(self) -> None:
        """A softmax that reads its row twice: maximum and sum together first."""
        f, row = self.f, self.row
        low = "0xFFF0000000000000"
        self.loop("one", {"%most": low, "%sum": "0.0"}, self.first_turn)
        top = self.over_row("%most.one", "max", "a")
        share = f.let(f"fmul float %sum.one, {self.exp(f.let(f'fsub float %most.one, {top}'))}")
        inverse = f.let(f"fdiv float 1.0, {self.over_row(share, 'fadd', 'b')}")

        def write(place: str) -> list[str]:
            xs = floats(f, self.at("%x", place), row.width, row.kind)
            es = [self.exp(f.let(f"fsub float {x}, {top}")) for x in xs]
            ys = [f.let(f"fmul float {e}, {inverse}") for e in es]
            put(f, self.at("%y", place), ys, row.kind)
            return []

        self.loop("two", {}, write)

    def first_turn(self, place: str) -> list[str]:
        """The largest so far and the sum below it, with one vector more."""
        f = self.f
        xs = floats(f, self.at("%x", place), self.row.width, self.row.kind)
        most = combined(f, "max", "%most", self.total(xs, "max"))
        es = [self.exp(f.let(f"fsub float {x}, {most}")) for x in xs]
        shrink = self.exp(f.let(f"fsub float %most, {most}"))
        kept = f.let(f"fmul float %sum, {shrink}")
        return [most, f.let(f"fadd float {kept}, {self.total(es)}")]

    def loop(self, label: str, carried: dict[str, str], turn: Callable[[str], list[str]]) -> None:
        """A loop over the row's vectors; carried values end as `%name.label`."""
        f, row, before = self.f, self.row, self.f.block
        f.do(f"br label %{label}")
        f.start(label)
        phis = len(f.lines)
        k = f"%k.{label}"
        offset = f.let(f"zext i32 {k} to i64")
        after = turn(f.let(f"add i64 {self.start}, {offset}"))
        following = f.let(f"add i32 {k}, {row.threads}")
        more = f.let(f"icmp ult i32 {following}, {row.size // row.width}")
        f.do(f"br i1 {more}, label %{label}, label %{label}.end")
        f.lines[phis:phis] = [f"  {k} = phi i32 [0, %{before}], [{following}, %{label}]"] + [
            f"  {name} = phi float [{first}, %{before}], [{last}, %{label}]"
            for (name, first), last in zip(carried.items(), after, strict=True)
        ]
        f.start(f"{label}.end")
        for name, last in zip(carried, after, strict=True):
            f.do(f"{name}.{label} = phi float [{last}, %{label}]")

    def text(self) -> str:
        """`name(x, y)`: a grid of rows / row.rows blocks of row.rows · row.threads threads."""
        self.twice() if self.row.twice else self.kept()
        self.f.do("ret void")
        params = f"ptr{G} noalias readonly %x, ptr{G} noalias %y"
        block = self.row.rows * self.row.threads
        head = f'define ptx_kernel void @{self.row.name}({params}) "nvvm.maxntid"="{block}"'
        return self.f.text(head)
