"""The QR decomposition of larger matrices by blocks of Householder's reflections, as generated
code.

A block's columns are halved down to panels (Elmroth and Gustavson, 2000); its reflections, 1 - V T
Vᵀ, are taken off the columns behind it, and later put together to Q, by products. V lies block by
block, with its zeros and ones; of T, the transpose of -T. Rows are padded to whole panels of zeros.
"""

from __future__ import annotations

from typing import NamedTuple

from funcgrad.backends.llvm.matrix.parts import Matrices
from funcgrad.backends.llvm.matrix.qr import QR
from funcgrad.backends.llvm.matrix.qr_panel import PANEL, panel
from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.code import I64, PTR, Code, Int, Record

BLOCK = 32


class _Room(NamedTuple):
    """Where a matrix's rows, V, T and products of them lie; where v and t of a block do."""

    parts: Matrices
    code: Code
    m: Int
    wide: Int
    x: ir.Value
    v: ir.Value
    t: ir.Value
    w: ir.Value
    w2: ir.Value

    def block(self, j: Int) -> tuple[ir.Value, ir.Value]:
        """V and T of the block from column j on, V from row j on."""
        at = self.parts.at
        return at(self.code, self.v, j * self.m), at(self.code, self.t, j * BLOCK)


def emit_qr_blocks(parts: Matrices, name: str) -> None:
    """Write void name(ptr call) of the words `QR`."""
    reflect = _reflect(parts)
    factor = _factor(parts, reflect)
    row_type = ir.VectorType(parts.type, PANEL)

    def decompose(code: Code, call: Record, item: Int) -> None:
        m, n, columns = call["m"], call["n"], call["columns"]
        k, wide = m.min(n), n.round_up(PANEL)
        a, q, r = (
            parts.at(code, call.pointer_at(name), item * size)
            for name, size in (("a", m * n), ("q", m * columns), ("r", columns * n))
        )
        sizes = (
            m * wide, m * k.round_up(BLOCK), k.round_up(BLOCK) * BLOCK,
            wide.max(columns) * BLOCK, wide.max(columns) * BLOCK,
        )  # fmt: skip
        base = place = code.call(parts.take, sum(sizes, code.i64(0)) * parts.bytes)
        places = []
        for size in sizes:
            places.append(place)
            place = parts.at(code, place, size)
        room = _Room(parts, code, m, wide, *places)
        with code.range(0, m) as i, code.range(0, wide, PANEL) as j:
            inside = code.first_lanes(n - j, PANEL)
            row = code.masked_load(parts.at(code, a, i * n + j), inside, row_type)
            parts.store(code, row, room.x, i * wide + j)
        with code.range(0, k, BLOCK) as j:
            size, (v, t) = (k - j).min(BLOCK), room.block(j)
            corner = parts.at(code, room.x, j * (wide + 1))
            fill(parts, code, t, code.i64(BLOCK * BLOCK))
            code.call(factor, corner, wide, v, t, m - j, size, room.w, room.w2)
            done = size.round_up(PANEL)
            with code.when(wide > j + done):
                behind, left = parts.at(code, corner, done), (m - j, size, wide - j - done)
                code.call(reflect, v, t, BLOCK, 1, behind, wide, *left, room.w, room.w2)
        zero = ir.Constant(parts.type, 0.0)
        with code.range(0, columns) as i, code.range(0, n) as j:
            value = code.b.select((j < i).value, zero, parts.load(code, room.x, i * wide + j))
            parts.store(code, value, r, i * n + j)
        _form(room, reflect, q, k, columns)
        code.call(parts.give, base)

    parts.entry(name, QR, decompose)


def fill(parts: Matrices, code: Code, x: ir.Value, count: Int) -> None:
    """Write so many zeros."""
    with code.range(0, count) as i:
        parts.store(code, ir.Constant(parts.type, 0.0), x, i)


def _form(room: _Room, reflect: ir.Function, q: ir.Value, k: Int, columns: Int) -> None:
    """Q from its last block on: what lies before a block's columns is the unit matrix's."""
    parts, code, m, _, _, _, _, w, w2 = room
    blocks, one = k.ceil_div(BLOCK), ir.Constant(parts.type, 1.0)
    with code.range(0, blocks) as turn:
        j = (blocks - 1 - turn) * BLOCK
        size, (v, t) = (k - j).min(BLOCK), room.block(j)
        rest, corner = columns - j, parts.at(code, q, j * (columns + 1))
        # These are the unit matrix's, too, so far.
        plain = turn.eq(0).select(rest, size)
        known, to = (w2, plain, 1), (corner, columns, 1)
        parts.add_product(code, (size, plain, size), (t, 1, BLOCK), (v, 1, BLOCK), known, add=0)
        parts.add_product(code, (m - j, plain, size), (v, BLOCK, 1), known, to, add=0)
        with code.range(0, plain) as i:
            value = parts.load(code, corner, i * (columns + 1))
            parts.store(code, code.b.fadd(value, one), corner, i * (columns + 1))
        with code.when(rest > plain):
            behind = parts.at(code, corner, plain)
            with code.range(0, size) as i:
                fill(parts, code, parts.at(code, behind, i * columns), rest - plain)
            left = m - j, size, rest - plain
            code.call(reflect, v, t, 1, BLOCK, behind, columns, *left, w, w2)


def _factor(parts: Matrices, reflect: ir.Function) -> ir.Function:
    """void factor(x, stride, v, t, m, n, w, w2): the QR decomposition of n columns of a block, no
    more than m, in place; those up to a whole panel are taken along."""
    base = panel(parts)
    code = Code(parts.module, "factor", [PTR, I64, PTR, PTR, I64, I64, PTR, PTR])
    x, stride, v, t, m, n, w, w2 = code.args
    with code.when(n <= PANEL):
        code.call(base, x, stride, v, t, BLOCK, m, n)
        code.ret()
    h = (n // 2).round_up(PANEL)
    rest = n - h
    below = parts.at(code, v, h * BLOCK)
    later, corner = parts.at(code, below, h), parts.at(code, t, h * (BLOCK + 1))
    right, beside = parts.at(code, x, h), parts.at(code, t, h * BLOCK)
    code.call(code.function, x, stride, v, t, m, h, w, w2)
    code.call(reflect, v, t, BLOCK, 1, right, stride, m, h, rest.round_up(PANEL), w, w2)
    right = parts.at(code, right, h * stride)
    code.call(code.function, right, stride, later, corner, m - h, rest, w, w2)
    with code.range(0, h) as i:
        fill(parts, code, parts.at(code, v, i * BLOCK + h), rest.round_up(PANEL))
    # Of both together, T is [T₁, -T₁ V₁ᵀ V₂ T₂; 0, T₂].
    for sizes, a, b, c in (
        ((h, rest, m - h), (below, 1, BLOCK), (later, BLOCK, 1), (w, rest, 1)),
        ((h, rest, h), (t, 1, BLOCK), (w, rest, 1), (w2, rest, 1)),
        ((rest, h, rest), (corner, BLOCK, 1), (w2, 1, rest), (beside, BLOCK, 1)),
    ):
        parts.add_product(code, sizes, a, b, c, add=0)
    code.ret()
    return code.function


def _reflect(parts: Matrices) -> ir.Function:
    """void reflect(v, t, t_rs, t_cs, c, stride, m, n, columns, w, w2): c becomes (1 - V T Vᵀ) c, of
    T or its transpose."""
    kinds = [PTR, PTR, I64, I64, PTR, I64, I64, I64, I64, PTR, PTR]
    code = Code(parts.module, "reflect", kinds)
    v, t, t_rs, t_cs, c, stride, m, n, columns, w, w2 = code.args
    first, second, rows = (w, columns, 1), (w2, columns, 1), (c, stride, 1)
    parts.add_product(code, (n, columns, m), (v, 1, BLOCK), rows, first, add=0)
    parts.add_product(code, (n, columns, n), (t, t_rs, t_cs), first, second, add=0)
    parts.add_product(code, (m, columns, n), (v, BLOCK, 1), second, rows)
    code.ret()
    return code.function
