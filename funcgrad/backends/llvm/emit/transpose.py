"""Transposition of a tile of memory, in registers: what a kernel's tiles are staged through.

A square of n rows of n elements is loaded as n vectors and transposed in log n rounds of shuffles,
each of which swaps one bit of the row's number with that bit of the column's (Eklundh, A Fast
Computer Method for Matrix Transposing, 1972).
"""

from __future__ import annotations

from functools import cache

from funcgrad.backends.llvm.emit.text import Definitions, Function

TILE_BYTES = 256


def tile_size(itemsize: int) -> int:
    """Rows and columns of a tile of elements of this size."""
    return min(64, TILE_BYTES // itemsize)


def declare_transpose(module: Definitions, itemsize: int) -> str:
    """The function void(ptr from, i64 step, ptr to, i64 stride, i64 rows, i64 columns) in a module.

    It writes to[column·stride + row] = from[row·step + column].
    """
    name = f"fg.transpose.i{8 * itemsize}"
    module.needed.setdefault(name, _function(name, itemsize))
    return name


@cache
def _function(name: str, itemsize: int) -> str:
    n, kind = min(16, 64 // itemsize), f"i{8 * itemsize}"
    f = Function(Definitions())
    align = max(1, itemsize // 2)  # of pairs that are moved as one element
    whole_rows, whole_columns = f"and i64 %rows, -{n}", f"and i64 %columns, -{n}"
    f.entry += [f"  %r = {whole_rows}", f"  %c = {whole_columns}"]
    f.do("br label %entry.end")
    f.start("entry.end")

    def square(row: str, column: str) -> None:
        first = _place(f, kind, "%from", f.let(f"mul nsw i64 {row}, %step"), column)
        to = _place(f, kind, "%to", f.let(f"mul nsw i64 {column}, %stride"), row)
        vectors = []
        for i in range(n):
            at = _place(f, kind, first, f.let(f"mul nsw i64 %step, {i}"), "0")
            vectors.append(f.let(f"load <{n} x {kind}>, ptr {at}, align {align}"))
        for i, v in enumerate(_transposed(f, vectors, n, kind)):
            at = _place(f, kind, to, f.let(f"mul nsw i64 %stride, {i}"), "0")
            f.do(f"store <{n} x {kind}> {v}, ptr {at}, align {align}")

    def single(row: str, column: str) -> None:
        at = _place(f, kind, "%from", f.let(f"mul nsw i64 {row}, %step"), column)
        to = _place(f, kind, "%to", f.let(f"mul nsw i64 {column}, %stride"), row)
        value = f.let(f"load {kind}, ptr {at}, align {align}")
        f.do(f"store {kind} {value}, ptr {to}, align {align}")

    _two_loops(f, ("0", "%r", n), ("0", "%c", n), square)
    _two_loops(f, ("%r", "%rows", 1), ("0", "%columns", 1), single)
    _two_loops(f, ("0", "%r", 1), ("%c", "%columns", 1), single)
    f.do("ret void")
    params = (
        "ptr noalias readonly %from, i64 %step, ptr noalias %to, i64 %stride, i64 %rows, "
        "i64 %columns"
    )
    return f.text(f"define internal void @{name}({params}) noinline nounwind")


def _place(f: Function, kind: str, base: str, offset: str, more: str) -> str:
    total = offset if more == "0" else f.let(f"add nsw i64 {offset}, {more}")
    return f.let(f"getelementptr inbounds {kind}, ptr {base}, i64 {total}")


def _transposed(f: Function, vectors: list[str], n: int, kind: str) -> list[str]:
    bit = n // 2
    while bit:
        before, vectors = vectors, [""] * n
        for i in range(n):
            if i & bit:
                continue
            j = i | bit
            low = [c if not c & bit else n + (c ^ bit) for c in range(n)]
            high = [c | bit if not c & bit else n + c for c in range(n)]
            for k, mask in ((i, low), (j, high)):
                lanes = ", ".join(f"i32 {m}" for m in mask)
                vectors[k] = f.let(
                    f"shufflevector <{n} x {kind}> {before[i]}, <{n} x {kind}> {before[j]}, "
                    f"<{n} x i32> <{lanes}>"
                )
        bit //= 2
    return vectors


def _two_loops(f: Function, rows: tuple, columns: tuple, body) -> None:
    """for row in range(*rows): for column in range(*columns): body, where neither may turn."""
    _loop(f, rows, lambda r: _loop(f, columns, lambda c: body(r, c)))


def _loop(f: Function, bounds: tuple, body) -> None:
    start, stop, step = bounds
    head, turn, after = f.name("loop"), f.name("turn"), f.name("done")
    before, i = f.block, "%" + f.name("i")
    f.do(f"br label %{head}")
    f.start(head)
    place = len(f.lines)
    f.lines.append("")
    more = f.let(f"icmp slt i64 {i}, {stop}")
    f.do(f"br i1 {more}, label %{turn}, label %{after}")
    f.start(turn)
    body(i)
    later = f.let(f"add nuw nsw i64 {i}, {step}")
    f.lines[place] = f"  {i} = phi i64 [{start}, %{before}], [{later}, %{f.block}]"
    f.do(f"br label %{head}")
    f.start(after)
