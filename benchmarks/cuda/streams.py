"""LLVM texts of kernels that move much and compute little: elementwise, rows, columns, transposes,
gathers and scattered sums, by threads, widths and how much a thread has in flight."""

from __future__ import annotations

from typing import NamedTuple

from funcgrad.backends.llvm.emit.text import Definitions, Function

G = " addrspace(1)"
_SREG = "llvm.nvvm.read.ptx.sreg."
TID_X, TID_Y, CTAID_X, CTAID_Y, NCTAID_X = "tid.x", "tid.y", "ctaid.x", "ctaid.y", "nctaid.x"


class Point(NamedTuple):
    """y = f(x₀, …) on float32: elements a vector, vectors a thread, threads a block."""

    width: int
    unroll: int
    threads: int
    inputs: int = 1
    op: str = "axpy"
    loop: bool = False  # a fixed grid whose blocks go on in turns

    @property
    def name(self) -> str:
        """The kernel's."""
        kind = "loop" if self.loop else "grid"
        return f"point_{self.op}_{self.inputs}_{kind}_{self.width}_{self.unroll}_{self.threads}"


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


def elements(f: Function, x: str, width: int) -> list[str]:
    """A vector's elements."""
    if width == 1:
        return [x]
    return [f.let(f"extractelement {vector(width)} {x}, i32 {i}") for i in range(width)]


def packed(f: Function, xs: list[str], kind: str = "float") -> str:
    """A vector of elements."""
    if len(xs) == 1:
        return xs[0]
    made = "poison"
    for i, x in enumerate(xs):
        made = f.let(f"insertelement {vector(len(xs), kind)} {made}, {kind} {x}, i32 {i}")
    return made


def formula(f: Function, op: str, xs: list[str]) -> str:
    """The element's value of one op."""
    if op == "axpy":
        total = f.intrinsic("fma", "float", xs[0], "2.0", "1.0")
        for x in xs[1:]:
            total = f.let(f"fadd float {total}, {x}")
        return total
    return f.math(op, "float", xs[0])


def point(module: Definitions, p: Point) -> str:
    """`name(x0, …, y, n)` of n vectors, a multiple of what a block takes."""
    f, kind = Function(module), vector(p.width)
    align = 4 * p.width
    tid, block = special(f, TID_X), special(f, CTAID_X)
    first = f.let(f"add i32 {f.let(f'mul i32 {block}, {p.threads * p.unroll}')}, {tid}")
    if p.loop:
        step = f.let(f"mul i32 {special(f, NCTAID_X)}, {p.threads * p.unroll}")
    f.do("br label %go")
    f.start("go")
    at = first
    if p.loop:
        f.do(f"%at = phi i32 [{first}, %entry], [%next, %go]")
        at = "%at"
    places, loaded = [], []
    for u in range(p.unroll):
        place = f.let(f"zext i32 {f.let(f'add i32 {at}, {u * p.threads}')} to i64")
        places.append(place)
        pointers = [
            f.let(f"getelementptr {kind}, ptr{G} %x{i}, i64 {place}") for i in range(p.inputs)
        ]
        loaded.append([f.let(f"load {kind}, ptr{G} {x}, align {align}") for x in pointers])
    for place, xs in zip(places, loaded, strict=True):
        parts = [elements(f, x, p.width) for x in xs]
        y = packed(f, [formula(f, p.op, list(group)) for group in zip(*parts, strict=True)])
        to = f.let(f"getelementptr {kind}, ptr{G} %y, i64 {place}")
        f.do(f"store {kind} {y}, ptr{G} {to}, align {align}")
    if p.loop:
        f.do(f"%next = add i32 %at, {step}")
        f.do(f"br i1 {f.let('icmp ult i32 %next, %n')}, label %go, label %done")
        f.start("done")
    f.do("ret void")
    params = "".join(f"ptr{G} noalias readonly %x{i}, " for i in range(p.inputs))
    return f.text(f"define ptx_kernel void @{p.name}({params}ptr{G} noalias %y, i32 %n)")


class Row(NamedTuple):
    """A softmax of float32 rows, each read once into registers by a warp or a block."""

    size: int
    threads: int  # a row
    fast: bool = False  # ex2.approx in place of the library's exp

    @property
    def name(self) -> str:
        """The kernel's."""
        return f"softmax_{self.size}_{self.threads}{'_fast' if self.fast else ''}"

    @property
    def rows(self) -> int:
        """Rows a block."""
        return max(1, 128 // self.threads)


def _over_row(f: Function, row: Row, x: str, op: str, slot: str, warp: str, lane: str) -> str:
    x = warp_total(f, x, op)
    warps = row.threads // 32
    if warps == 1:
        return x
    at = f.let(f"getelementptr float, ptr addrspace(3) {slot}, i32 {warp}")
    f.do(f"store float {x}, ptr addrspace(3) {at}")
    barrier(f)
    part = f.let(f"getelementptr float, ptr addrspace(3) {slot}, i32 {lane}")
    loaded = f.let(f"load float, ptr addrspace(3) {part}")
    neutral = "0xFFF0000000000000" if op == "max" else "0.0"
    inside = f.let(f"icmp ult i32 {lane}, {warps}")
    return warp_total(f, f.let(f"select i1 {inside}, float {loaded}, float {neutral}"), op)


def _exp(f: Function, x: str, fast: bool) -> str:
    if not fast:
        return f.math("exp", "float", x)
    f.module.declare("llvm.nvvm.ex2.approx.f", "float", ["float"])
    scaled = f.let(f"fmul float {x}, 0x3FF7154760000000")
    return f.let(f"call float @llvm.nvvm.ex2.approx.f(float {scaled})")


def softmax(module: Definitions, row: Row) -> str:
    """`name(x, y)`: a grid of rows / row.rows blocks of row.rows · row.threads threads."""
    f = Function(module)
    tid, block = special(f, TID_X), special(f, CTAID_X)
    thread = f.let(f"and i32 {tid}, {row.threads - 1}")
    within = f.let(f"udiv i32 {tid}, {row.threads}")
    number = f.let(f"add i32 {f.let(f'mul i32 {block}, {row.rows}')}, {within}")
    base = f.let(f"mul i64 {f.let(f'zext i32 {number} to i64')}, {row.size // 4}")
    warp, lane = f.let(f"lshr i32 {thread}, 5"), f.let(f"and i32 {thread}, 31")
    start = f.let(f"add i64 {base}, {f.let(f'zext i32 {thread} to i64')}")
    places = [
        f.let(f"add i64 {start}, {k * row.threads}") for k in range(row.size // 4 // row.threads)
    ]
    xs: list[str] = []
    for place in places:
        at = f.let(f"getelementptr <4 x float>, ptr{G} %x, i64 {place}")
        xs += elements(f, f.let(f"load <4 x float>, ptr{G} {at}, align 16"), 4)
    top = xs[0]
    for x in xs[1:]:
        top = combined(f, "max", top, x)
    top = _over_row(f, row, top, "max", "@most", warp, lane)
    es = [_exp(f, f.let(f"fsub float {x}, {top}"), row.fast) for x in xs]
    total = es[0]
    for e in es[1:]:
        total = f.let(f"fadd float {total}, {e}")
    total = _over_row(f, row, total, "fadd", "@sums", warp, lane)
    inverse = f.let(f"fdiv float 1.0, {total}")
    for k, place in enumerate(places):
        y = packed(f, [f.let(f"fmul float {e}, {inverse}") for e in es[4 * k : 4 * k + 4]])
        at = f.let(f"getelementptr <4 x float>, ptr{G} %y, i64 {place}")
        f.do(f"store <4 x float> {y}, ptr{G} {at}, align 16")
    f.do("ret void")
    for name in ("most", "sums"):
        module.needed.setdefault(name, f"@{name} = internal addrspace(3) global [32 x float] undef")
    return f.text(
        f"define ptx_kernel void @{row.name}(ptr{G} noalias readonly %x, ptr{G} noalias %y)"
    )


def columns(module: Definitions, unroll: int) -> str:
    """`columns_U(x, y, rows, vectors)`: sums over rows of vectors of 4 columns, a part of the rows
    a block of 32 × 8 threads, added to y by atomics. The grid is vectors / 32 times parts."""
    f = Function(module)
    x, y = special(f, TID_X), special(f, TID_Y)
    column = f.let(f"add i32 {f.let(f'shl i32 {special(f, CTAID_X)}, 5')}, {x}")
    first = f.let(f"add i32 {f.let(f'mul i32 {special(f, CTAID_Y)}, %rows')}, {y}")
    end = f.let(f"add i32 {f.let(f'mul i32 {special(f, CTAID_Y)}, %rows')}, %rows")
    f.do("br label %go")
    f.start("go")
    f.do(f"%row = phi i32 [{first}, %entry], [%next, %go]")
    f.do("%sum = phi <4 x float> [zeroinitializer, %entry], [%more, %go]")
    loaded = []
    for u in range(unroll):
        at = f.let(f"mul i32 {f.let(f'add i32 %row, {8 * u}')}, %vectors")
        place = f.let(f"zext i32 {f.let(f'add i32 {at}, {column}')} to i64")
        pointer = f.let(f"getelementptr <4 x float>, ptr{G} %x, i64 {place}")
        loaded.append(f.let(f"load <4 x float>, ptr{G} {pointer}, align 16"))
    total = "%sum"
    for v in loaded[:-1]:
        total = f.let(f"fadd <4 x float> {total}, {v}")
    f.do(f"%more = fadd <4 x float> {total}, {loaded[-1]}")
    f.do(f"%next = add i32 %row, {8 * unroll}")
    f.do(f"br i1 {f.let(f'icmp ult i32 %next, {end}')}, label %go, label %done")
    f.start("done")
    to = f.let(f"getelementptr <4 x float>, ptr{G} %y, i32 {column}")
    for i, part in enumerate(elements(f, "%more", 4)):
        at = f.let(f"getelementptr float, ptr{G} {to}, i32 {i}")
        f.let(f"atomicrmw fadd ptr{G} {at}, float {part} monotonic")
    f.do("ret void")
    return f.text(
        f"define ptx_kernel void @columns_{unroll}(ptr{G} noalias readonly %x, ptr{G} %y, "
        "i32 %rows, i32 %vectors)"
    )


def transpose(module: Definitions, rows: int) -> str:
    """`transpose_R(x, y, n)`: of n × n floats by tiles of 32 × 33 in shared memory, by 32 × R
    threads."""
    f = Function(module)
    x, y = special(f, TID_X), special(f, TID_Y)
    bx, by = (f.let(f"shl i32 {special(f, name)}, 5") for name in (CTAID_X, CTAID_Y))
    for turn, (across, down) in enumerate(((bx, by), (by, bx))):
        column = f.let(f"add i32 {across}, {x}")
        for k in range(0, 32, rows):
            inner = f.let(f"add i32 {y}, {k}")
            line = f.let(f"add i32 {down}, {inner}")
            place = f.let(f"add i32 {f.let(f'mul i32 {line}, %n')}, {column}")
            wide = f.let(f"zext i32 {place} to i64")
            pair = (inner, x) if turn == 0 else (x, inner)
            cell = f.let(f"add i32 {f.let(f'mul i32 {pair[0]}, 33')}, {pair[1]}")
            shared = f.let(f"getelementptr float, ptr addrspace(3) @tile, i32 {cell}")
            at = f.let(f"getelementptr float, ptr{G} {'%y' if turn else '%x'}, i64 {wide}")
            if turn:
                f.do(f"store float {f.let(f'load float, ptr addrspace(3) {shared}')}, ptr{G} {at}")
            else:
                f.do(f"store float {f.let(f'load float, ptr{G} {at}')}, ptr addrspace(3) {shared}")
        if not turn:
            barrier(f)
    f.do("ret void")
    module.needed.setdefault("tile", "@tile = internal addrspace(3) global [1056 x float] undef")
    return f.text(
        f"define ptx_kernel void @transpose_{rows}(ptr{G} noalias readonly %x, "
        f"ptr{G} noalias %y, i32 %n)"
    )


def gather(module: Definitions, vectors: int, lanes: int) -> str:
    """`gather_V_L(table, ids, y)`: rows of V vectors of 4 floats, L lanes a row."""
    f = Function(module)
    flat = f.let(f"add i32 {f.let(f'shl i32 {special(f, CTAID_X)}, 8')}, {special(f, TID_X)}")
    row, lane = f.let(f"udiv i32 {flat}, {lanes}"), f.let(f"and i32 {flat}, {lanes - 1}")
    at = f.let(f"getelementptr i32, ptr{G} %ids, i32 {row}")
    number = f.let(f"zext i32 {f.let(f'load i32, ptr{G} {at}')} to i64")
    offsets = []
    for base in (number, f.let(f"zext i32 {row} to i64")):
        start = f.let(f"mul i64 {base}, {vectors}")
        offsets.append(f.let(f"add i64 {start}, {f.let(f'zext i32 {lane} to i64')}"))
    loaded = []
    for k in range(0, vectors, lanes):
        place = f.let(f"add i64 {offsets[0]}, {k}")
        pointer = f.let(f"getelementptr <4 x float>, ptr{G} %table, i64 {place}")
        loaded.append(f.let(f"load <4 x float>, ptr{G} {pointer}, align 16"))
    for k, x in zip(range(0, vectors, lanes), loaded, strict=True):
        place = f.let(f"add i64 {offsets[1]}, {k}")
        pointer = f.let(f"getelementptr <4 x float>, ptr{G} %y, i64 {place}")
        f.do(f"store <4 x float> {x}, ptr{G} {pointer}, align 16")
    f.do("ret void")
    return f.text(
        f"define ptx_kernel void @gather_{vectors}_{lanes}(ptr{G} noalias readonly %table, "
        f"ptr{G} noalias readonly %ids, ptr{G} noalias %y)"
    )


def scatter(module: Definitions, wide: bool) -> str:
    """`scatter_1` or `scatter_4(x, ids, table)`: rows of 64 floats added by atomics."""
    f = Function(module)
    flat = f.let(f"add i32 {f.let(f'shl i32 {special(f, CTAID_X)}, 8')}, {special(f, TID_X)}")
    row, lane = f.let(f"lshr i32 {flat}, 4"), f.let(f"and i32 {flat}, 15")
    at = f.let(f"getelementptr i32, ptr{G} %ids, i32 {row}")
    number = f.let(f"zext i32 {f.let(f'load i32, ptr{G} {at}')} to i64")
    pointer = f.let(f"getelementptr <4 x float>, ptr{G} %x, i32 {flat}")
    loaded = elements(f, f.let(f"load <4 x float>, ptr{G} {pointer}, align 16"), 4)
    start = f.let(f"add i64 {f.let(f'shl i64 {number}, 4')}, {f.let(f'zext i32 {lane} to i64')}")
    to = f.let(f"getelementptr <4 x float>, ptr{G} %table, i64 {start}")
    if wide:
        text = "red.global.add.v4.f32 [$0], {$1, $2, $3, $4};"
        values = ", ".join(f"float {x}" for x in loaded)
        f.do(f'call void asm sideeffect "{text}", "l,f,f,f,f"(ptr{G} {to}, {values})')
    else:
        for i, x in enumerate(loaded):
            cell = f.let(f"getelementptr float, ptr{G} {to}, i32 {i}")
            f.let(f"atomicrmw fadd ptr{G} {cell}, float {x} monotonic")
    f.do("ret void")
    return f.text(
        f"define ptx_kernel void @scatter_{4 if wide else 1}(ptr{G} noalias readonly %x, "
        f"ptr{G} noalias readonly %ids, ptr{G} %table)"
    )
