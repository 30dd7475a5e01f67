"""LLVM texts of kernels that move rows and columns about: sums over columns, transposes, gathers,
and sums of scattered rows by atomics or after an order of their indices."""

from __future__ import annotations

from typing import NamedTuple

from benchmarks.cuda.streams import (
    CTAID_X,
    CTAID_Y,
    CTAID_Z,
    TID_X,
    TID_Y,
    G,
    barrier,
    floats,
    packed,
    put,
    special,
)
from funcgrad.backends.llvm.emit.text import Definitions, Function

_SHARED = " addrspace(3)"
_QUAD = "<4 x float>"


def _within(f: Function, name: str, index: str, kind: str = _QUAD, space: str = G) -> str:
    """The address of an element; index has its type."""
    return f.let(f"getelementptr {kind}, ptr{space} {name}, {index}")


def _wide(f: Function, x: str) -> str:
    return f.let(f"zext i32 {x} to i64")


def _add(f: Function, at: str, xs: list[str], wide: bool) -> None:
    """Add four floats to memory, by one atomic or by four."""
    if wide:
        text = "red.global.add.v4.f32 [$0], {$1, $2, $3, $4};"
        values = ", ".join(f"float {x}" for x in xs)
        f.do(f'call void asm sideeffect "{text}", "l,f,f,f,f,~{{memory}}"(ptr{G} {at}, {values})')
        return
    for i, x in enumerate(xs):
        f.let(f"atomicrmw fadd ptr{G} {_within(f, at, f'i32 {i}', 'float')}, float {x} monotonic")


class Columns(NamedTuple):
    """Sums over rows: lanes × lines threads a block, rows a thread has in flight; `last` is how a
    block's sums leave it: each thread's by "atomics", the block's by "atomic", or as a "part"."""

    lanes: int
    lines: int
    unroll: int
    last: str

    @property
    def name(self) -> str:
        """The kernel's."""
        return f"columns_{self.lanes}_{self.lines}_{self.unroll}_{self.last}"


def columns(module: Definitions, c: Columns) -> str:
    """`name(x, y, rows, vectors)`: sums over `rows` rows a block of vectors of 4 columns. The grid
    is vectors / lanes × parts; y holds a row, or one a part."""
    f = Function(module)
    x, y, part = special(f, TID_X), special(f, TID_Y), special(f, CTAID_Y)
    column = f.let(f"add i32 {f.let(f'mul i32 {special(f, CTAID_X)}, {c.lanes}')}, {x}")
    begin = f.let(f"mul i32 {part}, %rows")
    first, end = f.let(f"add i32 {begin}, {y}"), f.let(f"add i32 {begin}, %rows")
    f.do("br label %go")
    f.start("go")
    f.do(f"%row = phi i32 [{first}, %entry], [%next, %go]")
    f.do(f"%sum = phi {_QUAD} [zeroinitializer, %entry], [%more, %go]")
    loaded = []
    for u in range(c.unroll):
        at = f.let(f"mul i32 {f.let(f'add i32 %row, {c.lines * u}')}, %vectors")
        place = _within(f, "%x", f"i64 {_wide(f, f.let(f'add i32 {at}, {column}'))}")
        loaded.append(f.let(f"load {_QUAD}, ptr{G} {place}, align 16"))
    total = "%sum"
    for v in loaded[:-1]:
        total = f.let(f"fadd {_QUAD} {total}, {v}")
    f.do(f"%more = fadd {_QUAD} {total}, {loaded[-1]}")
    f.do(f"%next = add i32 %row, {c.lines * c.unroll}")
    f.do(f"br i1 {f.let(f'icmp ult i32 %next, {end}')}, label %go, label %sums")
    f.start("sums")
    total = "%more" if c.last == "atomics" else _block_sums(f, c, x, y)
    place = column
    if c.last == "part":
        place = f.let(f"add i32 {f.let(f'mul i32 {part}, %vectors')}, {column}")
    to = _within(f, "%y", f"i32 {place}")
    if c.last == "part":
        f.do(f"store {_QUAD} {total}, ptr{G} {to}, align 16")
    else:
        parts = [f.let(f"extractelement {_QUAD} {total}, i32 {i}") for i in range(4)]
        _add(f, to, parts, wide=False)
    f.do("br label %done")
    f.start("done")
    f.do("ret void")
    return f.text(
        f"define ptx_kernel void @{c.name}(ptr{G} noalias readonly %x, ptr{G} noalias %y, "
        f'i32 %rows, i32 %vectors) "nvvm.maxntid"="{c.lanes * c.lines}"'
    )


def _block_sums(f: Function, c: Columns, x: str, y: str) -> str:
    """The sums of a block's lines through shared memory; its first line's threads go on."""
    name = f"lines_{c.lanes}_{c.lines}"
    text = f"@{name} = internal addrspace(3) global [{c.lanes * c.lines} x {_QUAD}] undef, align 16"
    f.module.needed.setdefault(name, text)
    own = f.let(f"add i32 {f.let(f'mul i32 {y}, {c.lanes}')}, {x}")
    f.do(f"store {_QUAD} %more, ptr{_SHARED} {_within(f, f'@{name}', f'i32 {own}', space=_SHARED)}")
    barrier(f)
    f.do(f"br i1 {f.let(f'icmp eq i32 {y}, 0')}, label %first, label %done")
    f.start("first")
    total = "%more"
    for line in range(1, c.lines):
        place = f.let(f"add i32 {x}, {line * c.lanes}")
        at = _within(f, f"@{name}", f"i32 {place}", space=_SHARED)
        total = f.let(f"fadd {_QUAD} {total}, {f.let(f'load {_QUAD}, ptr{_SHARED} {at}')}")
    return total


def narrow_transpose(module: Definitions, rows: int) -> str:
    """`transpose_R(x, y, n)`: of n × n floats by tiles of 32 × 33 in shared memory, by 32 × R
    threads, an element each."""
    f = Function(module)
    x, y = special(f, TID_X), special(f, TID_Y)
    bx, by = (f.let(f"shl i32 {special(f, name)}, 5") for name in (CTAID_X, CTAID_Y))
    for turn, (across, down) in enumerate(((bx, by), (by, bx))):
        column = f.let(f"add i32 {across}, {x}")
        for k in range(0, 32, rows):
            inner = f.let(f"add i32 {y}, {k}")
            line = f.let(f"add i32 {down}, {inner}")
            place = f.let(f"add i32 {f.let(f'mul i32 {line}, %n')}, {column}")
            pair = (inner, x) if turn == 0 else (x, inner)
            cell = f.let(f"add i32 {f.let(f'mul i32 {pair[0]}, 33')}, {pair[1]}")
            shared = _within(f, "@tile", f"i32 {cell}", "float", _SHARED)
            at = _within(f, "%y" if turn else "%x", f"i64 {_wide(f, place)}", "float")
            if turn:
                f.do(f"store float {f.let(f'load float, ptr{_SHARED} {shared}')}, ptr{G} {at}")
            else:
                f.do(f"store float {f.let(f'load float, ptr{G} {at}')}, ptr{_SHARED} {shared}")
        if not turn:
            barrier(f)
    f.do("ret void")
    module.needed.setdefault("tile", "@tile = internal addrspace(3) global [1056 x float] undef")
    return f.text(
        f"define ptx_kernel void @transpose_{rows}(ptr{G} noalias readonly %x, "
        f"ptr{G} noalias %y, i32 %n)"
    )


class Turn(NamedTuple):
    """A transpose of tiles of 64 × 64 elements of 4 bytes or 2 by vectors of 16 bytes.

    Shared memory holds words of 4 bytes: w elements of one column, of w rows next to each other.
    A column's words lie in a row of it, chunk c of 4 words at c ^ (column / v), v elements being a
    vector: then both a vector's scattered words and a row's chunks spread over the banks.
    """

    nbytes: int  # of an element
    threads: int

    @property
    def name(self) -> str:
        """The kernel's."""
        return f"turn_{self.nbytes}_{self.threads}"


def wide_transpose(module: Definitions, t: Turn) -> str:
    """`name(x, y, rows, columns)`: the grid is columns / 64 × rows / 64 × batches."""
    f, v, w = Function(module), 16 // t.nbytes, 4 // t.nbytes
    chunks, across = 16 // w, 64 // v  # of a column, in shared memory; vectors of a tile's row
    tid, element = special(f, TID_X), f"i{8 * t.nbytes}"
    bx, by = (f.let(f"shl i32 {special(f, name)}, 6") for name in (CTAID_X, CTAID_Y))
    size = f.let(f"mul i64 {_wide(f, '%rows')}, {_wide(f, '%columns')}")
    batch = f.let(f"mul i64 {size}, {_wide(f, special(f, CTAID_Z))}")

    def place(row: str, pitch: str, column: str) -> str:
        flat = f.let(f"mul i64 {_wide(f, row)}, {_wide(f, pitch)}")
        flat = f.let(f"add i64 {f.let(f'add i64 {flat}, {_wide(f, column)}')}, {batch}")
        return f"i64 {flat}"

    def cell(column: str, group: str, word: str) -> str:
        """Of a word: its column, which of the column's chunks, the place in the chunk."""
        turned = f.let(f"udiv i32 {column}, {v}")
        chunk = f.let(f"and i32 {f.let(f'xor i32 {group}, {turned}')}, {chunks - 1}")
        base = f.let(f"add i32 {f.let(f'mul i32 {column}, {chunks}')}, {chunk}")
        flat = f.let(f"add i32 {f.let(f'shl i32 {base}, 2')}, {word}")
        return _within(f, f"@{t.name}_tile", f"i32 {flat}", "i32", _SHARED)

    vector, quad = f"<{v} x {element}>", "<4 x i32>"
    lines = 64 // w  # of w rows
    for k in range(lines * across // t.threads):
        flat = f.let(f"add i32 {tid}, {k * t.threads}")
        line, column = _lines_of_eight(f, flat, lines)
        column = f.let(f"mul i32 {column}, {v}")
        first = f.let(f"add i32 {by}, {f.let(f'mul i32 {line}, {w}')}")
        loaded = []
        for r in range(w):
            row = f.let(f"add i32 {first}, {r}")
            at = _within(f, "%x", place(row, "%columns", f.let(f"add i32 {bx}, {column}")), element)
            loaded.append(f.let(f"load {vector}, ptr{G} {at}, align 16"))
        group, word = f.let(f"lshr i32 {line}, 2"), f.let(f"and i32 {line}, 3")
        for i in range(v):
            parts = [f.let(f"extractelement {vector} {x}, i32 {i}") for x in loaded]
            value = packed(f, parts, element)
            if w > 1:
                value = f.let(f"bitcast <{w} x {element}> {value} to i32")
            at = cell(f.let(f"add i32 {column}, {i}"), group, word)
            f.do(f"store i32 {value}, ptr{_SHARED} {at}")
    barrier(f)
    for k in range(64 * chunks // t.threads):
        flat = f.let(f"add i32 {tid}, {k * t.threads}")
        column, group = f.let(f"udiv i32 {flat}, {chunks}"), f.let(f"and i32 {flat}, {chunks - 1}")
        value = f.let(f"load {quad}, ptr{_SHARED} {cell(column, group, '0')}, align 16")
        row, start = f.let(f"add i32 {bx}, {column}"), f.let(f"mul i32 {group}, {4 * w}")
        at = _within(f, "%y", place(row, "%rows", f.let(f"add i32 {by}, {start}")), element)
        f.do(f"store {quad} {value}, ptr{G} {at}, align 16")
    f.do("ret void")
    module.needed.setdefault(
        f"{t.name}_tile",
        f"@{t.name}_tile = internal addrspace(3) global [{64 * 4 * chunks} x i32] undef, align 16",
    )
    return f.text(
        f"define ptx_kernel void @{t.name}(ptr{G} noalias readonly %x, ptr{G} noalias %y, "
        f'i32 %rows, i32 %columns) "nvvm.maxntid"="{t.threads}"'
    )


def _lines_of_eight(f: Function, flat: str, lines: int) -> tuple[str, str]:
    """A warp's four lines by eight vectors, one below the other: the line, and which vector."""
    above = f.let(f"lshr i32 {flat}, 3")
    line = f.let(f"and i32 {above}, {lines - 1}")
    far = f.let(f"mul i32 {f.let(f'udiv i32 {above}, {lines}')}, 8")
    return line, f.let(f"add i32 {f.let(f'and i32 {flat}, 7')}, {far}")


def gather(module: Definitions, vectors: int, lanes: int) -> str:
    """`gather_V_L(table, ids, y)`: rows of V vectors of 4 floats, L lanes a row."""
    f = Function(module)
    flat = f.let(f"add i32 {f.let(f'shl i32 {special(f, CTAID_X)}, 8')}, {special(f, TID_X)}")
    row, lane = f.let(f"udiv i32 {flat}, {lanes}"), f.let(f"and i32 {flat}, {lanes - 1}")
    number = _wide(f, f.let(f"load i32, ptr{G} {_within(f, '%ids', f'i32 {row}', 'i32')}"))
    offsets = []
    for base in (number, _wide(f, row)):
        start = f.let(f"mul i64 {base}, {vectors}")
        offsets.append(f.let(f"add i64 {start}, {_wide(f, lane)}"))
    loaded = []
    for k in range(0, vectors, lanes):
        place = _within(f, "%table", f"i64 {f.let(f'add i64 {offsets[0]}, {k}')}")
        loaded.append(f.let(f"load {_QUAD}, ptr{G} {place}, align 16"))
    for k, x in zip(range(0, vectors, lanes), loaded, strict=True):
        place = _within(f, "%y", f"i64 {f.let(f'add i64 {offsets[1]}, {k}')}")
        f.do(f"store {_QUAD} {x}, ptr{G} {place}, align 16")
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
    number = _wide(f, f.let(f"load i32, ptr{G} {_within(f, '%ids', f'i32 {row}', 'i32')}"))
    loaded = floats(f, _within(f, "%x", f"i32 {flat}"), 4)
    start = f.let(f"add i64 {f.let(f'shl i64 {number}, 4')}, {_wide(f, lane)}")
    _add(f, _within(f, "%table", f"i64 {start}"), loaded, wide)
    f.do("ret void")
    return f.text(
        f"define ptx_kernel void @scatter_{4 if wide else 1}(ptr{G} noalias readonly %x, "
        f"ptr{G} noalias readonly %ids, ptr{G} %table)"
    )


def ordered(module: Definitions) -> str:
    """`ordered(x, order, ids, starts, count, table)`: sums of segment s, the rows of x that `order`
    lists from starts[s] on, added to row ids[s] of the table; 16 lanes a segment of 64 floats.

    Segments cut at some length are those of a first pass, whose rows a second pass adds up: so the
    same bits in each run, and no lane has more than that to add.
    """
    f = Function(module)
    flat = f.let(f"add i32 {f.let(f'shl i32 {special(f, CTAID_X)}, 8')}, {special(f, TID_X)}")
    segment, lane = f.let(f"lshr i32 {flat}, 4"), f.let(f"and i32 {flat}, 15")
    f.do(f"br i1 {f.let(f'icmp ult i32 {segment}, %count')}, label %begin, label %done")
    f.start("begin")

    def number(name: str, at: str) -> str:
        return f.let(f"load i32, ptr{G} {_within(f, name, f'i32 {at}', 'i32')}")

    def row(base: str) -> str:
        return f.let(f"add i64 {f.let(f'shl i64 {_wide(f, base)}, 4')}, {_wide(f, lane)}")

    first, end = number("%starts", segment), number("%starts", f.let(f"add i32 {segment}, 1"))
    f.do("br label %go")
    f.start("go")
    f.do(f"%k = phi i32 [{first}, %begin], [%next, %go]")
    f.do(f"%sum = phi {_QUAD} [zeroinitializer, %begin], [%more, %go]")
    x = _within(f, "%x", f"i64 {row(number('%order', '%k'))}")
    f.do(f"%more = fadd {_QUAD} %sum, {f.let(f'load {_QUAD}, ptr{G} {x}, align 16')}")
    f.do("%next = add i32 %k, 1")
    f.do(f"br i1 {f.let(f'icmp ult i32 %next, {end}')}, label %go, label %write")
    f.start("write")
    to = _within(f, "%table", f"i64 {row(number('%ids', segment))}")
    total = f.let(f"fadd {_QUAD} {f.let(f'load {_QUAD}, ptr{G} {to}, align 16')}, %more")
    put(f, to, [f.let(f"extractelement {_QUAD} {total}, i32 {i}") for i in range(4)])
    f.do("br label %done")
    f.start("done")
    f.do("ret void")
    params = ", ".join(f"ptr{G} noalias readonly %{n}" for n in ("x", "order", "ids", "starts"))
    return f.text(f"define ptx_kernel void @ordered({params}, i32 %count, ptr{G} noalias %table)")
