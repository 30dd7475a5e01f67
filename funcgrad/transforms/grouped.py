"""Products of groups of rows: each group of consecutive rows with a matrix of its own.

Two ops, each of which is the other's cotangent: `ragged_dot` gives rows, x[i] · w[group of i], and
`ragged_outer` the sums over each group's rows, Σ x[i]ᵀ y[i]. Rows behind the last group belong to
none. Compiled, both go through each group's rows block by block, so that their work is that of all
rows once, and of at most one block more for each group (Gale et al., "MegaBlocks", 2022).
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator

import numpy as np

from funcgrad import dtypes
from funcgrad.core.aval import ShapedArray, Zero
from funcgrad.core.primitive import Primitive
from funcgrad.core.trace import aval_of
from funcgrad.core.types import (
    ArrayModule,
    BatchDims,
    Operand,
    Param,
    PlainArray,
    Tangent,
    Tangents,
    Value,
    Values,
)
from funcgrad.errors import ShapeError
from funcgrad.ops.base import batch_front, factor, full, is_linear, sum_p, transpose_p
from funcgrad.ops.contract import accumulator, dot_general, from_accumulator, product_dtype
from funcgrad.ops.cumulative import cumsum
from funcgrad.ops.elementwise.arithmetic import max, min, mul, sub
from funcgrad.ops.elementwise.compare import ge, lt
from funcgrad.ops.elementwise.convert import convert_element_type, select
from funcgrad.ops.families import add
from funcgrad.ops.indexing.windows_at import (
    dynamic_index_in_dim,
    dynamic_slice_in_dim,
    dynamic_update_slice,
)
from funcgrad.ops.shape import broadcast_in_dim, iota, pad, reshape, slice
from funcgrad.transforms.batching.trace import BatchAxis
from funcgrad.transforms.control.scan import scan
from funcgrad.transforms.control.while_loop import fori_loop

INT32 = np.dtype(np.int32)
# Rows of a block: as many as products need to be fast, as few as groups may have. Blocks of many
# rows read a group's matrix less often; they are taken as long as they are full.
BLOCK, LEAST, WIDEST = 128, 8, 1024
# turn(first row, number of rows, which of them count (None: all), carry) → carry
Turn = Callable[[Value, int, Value | None, Value], Value]


# ---- types


def _check(name: str, x: ShapedArray, y: ShapedArray, sizes: ShapedArray, shared: int) -> None:
    batches = {1, x.shape[0]}
    fits = (
        y.shape[0] in batches and sizes.shape[0] in batches and y.shape[shared] == x.shape[shared]
    )
    if not fits or sizes.dtype != INT32:
        raise ShapeError(f"{name}: operands {x}, {y} and sizes {sizes} don't fit")


def _dot_abstract(
    x: ShapedArray, w: ShapedArray, sizes: ShapedArray, *, dtype: np.dtype | None
) -> ShapedArray:
    _check("ragged_dot", x, w, sizes, 2)
    out = product_dtype("ragged_dot", x, w, dtype)
    return ShapedArray((*x.shape[:2], w.shape[3]), out)


def _outer_abstract(
    x: ShapedArray, y: ShapedArray, sizes: ShapedArray, *, dtype: np.dtype | None
) -> ShapedArray:
    _check("ragged_outer", x, y, sizes, 1)
    out = product_dtype("ragged_outer", x, y, dtype)
    return ShapedArray((x.shape[0], sizes.shape[1], x.shape[2], y.shape[2]), out)


# ---- meaning


def _groups(
    xp: ArrayModule, sizes: PlainArray, batches: int, rows: int
) -> Iterator[tuple[int, int, builtins.slice]]:
    """Each group with rows: its batch, its number, and its rows as a slice."""
    sizes = sizes if xp is np else sizes.get()  # slices are made on the host
    ends = np.minimum(np.cumsum(np.maximum(sizes, 0), axis=1, dtype=np.int64), rows).tolist()
    for b in range(batches):
        start = 0
        for g, end in enumerate(ends[b % len(ends)]):
            if end > start:
                yield b, g, builtins.slice(start, end)
            start = end


def _dot_impl(xp: ArrayModule, x: PlainArray, w: PlainArray, sizes: PlainArray, *,
              dtype: np.dtype | None) -> PlainArray:  # fmt: skip
    out_dtype = dtype or x.dtype
    compute = accumulator(x.dtype, w.dtype, out_dtype)
    out = xp.zeros((*x.shape[:2], w.shape[3]), out_dtype)
    left, right = x.astype(compute, copy=False), w.astype(compute, copy=False)
    for b, g, own in _groups(xp, sizes, *x.shape[:2]):
        product = xp.matmul(left[b, own], right[b % w.shape[0], g])
        out[b, own] = from_accumulator(product, out_dtype)
    return out


def _outer_impl(xp: ArrayModule, x: PlainArray, y: PlainArray, sizes: PlainArray, *,
                dtype: np.dtype | None) -> PlainArray:  # fmt: skip
    out_dtype = dtype or x.dtype
    compute = accumulator(x.dtype, y.dtype, out_dtype)
    out = xp.zeros((x.shape[0], sizes.shape[1], x.shape[2], y.shape[2]), out_dtype)
    left, right = x.astype(compute, copy=False), y.astype(compute, copy=False)
    for b, g, own in _groups(xp, sizes, *x.shape[:2]):
        product = xp.matmul(xp.transpose(left[b, own]), right[b % y.shape[0], own])
        out[b, g] = from_accumulator(product, out_dtype)
    return out


# ---- as programs of other ops


class _Blocks:
    """The groups of all batches in one row, and loops over their blocks.

    Rows of all batches lie behind each other. Blocks of many rows are full; of the rest a short one
    may reach beyond its group, or begin before its turn so that it ends with the last row of all.
    """

    def __init__(self, x: Value, sizes: Value):
        self.batches, self.rows, _ = aval_of(x).shape
        self.groups, self.total = aval_of(sizes).shape[1], self.batches * self.rows
        self.block = BLOCK
        while self.block > LEAST and self.block * self.groups > self.rows:
            self.block //= 2
        self.block = builtins.min(self.block, self.total)
        self.wide = self.block
        while self.wide < WIDEST and 2 * self.wide * self.groups <= self.rows:
            self.wide *= 2
        shape = self.batches, self.groups
        sizes = max(sizes, full(aval_of(sizes).shape, 0, INT32))
        ends = min(cumsum(sizes, axis=1), full(aval_of(sizes).shape, self.rows, INT32))
        ends = _every(ends, self.batches)
        starts = pad(
            slice(ends, (0, 0), (shape[0], shape[1] - 1)), np.int32(0), ((0, 0, 0), (1, 0, 0))
        )
        before = mul(iota(INT32, self.batches), full((self.batches,), self.rows, INT32))
        before = broadcast_in_dim(before, shape, (0,))
        self.starts, self.ends = (reshape(add(e, before), (-1,)) for e in (starts, ends))

    def flat(self, x: Value) -> Value:
        """All batches' rows behind each other."""
        return reshape(_every(x, self.batches), (self.total, aval_of(x).shape[2]))

    def each(self, group: Value, turn: Turn, carry: Value) -> Value:
        """turn(first row, number of rows, which of them count, carry) for each block of a group:
        wide ones, all of whose rows count (None), and then those that the rest needs."""
        start, end = (dynamic_index_in_dim(v, group, 0, False) for v in (self.starts, self.ends))
        if self.wide > self.block:
            size, first = np.int32(self.wide), start
            full_ones = sub(end, start) // size
            carry = fori_loop(
                0, full_ones, lambda i, c: turn(add(first, mul(i, size)), self.wide, None, c), carry
            )
            start = add(start, mul(full_ones, size))
        small, rest = np.int32(self.block), start

        def short(i: Value, carry: Value) -> Value:
            wanted = add(rest, mul(i, small))
            start = min(wanted, np.int32(self.total - self.block))
            shape = (self.block,)
            place = add(iota(INT32, self.block), broadcast_in_dim(start, shape, ()))
            after = ge(place, broadcast_in_dim(wanted, shape, ()))
            return turn(
                start, self.block, after & lt(place, broadcast_in_dim(end, shape, ())), carry
            )

        return fori_loop(0, (sub(end, rest) + (small - 1)) // small, short, carry)


def _dot_formula(x: Value, w: Value, sizes: Value, *, dtype: np.dtype | None) -> Value:
    """Rows that belong to no group keep the zeros that the result begins with."""
    made = _dot_abstract(aval_of(x), aval_of(w), aval_of(sizes), dtype=dtype)
    b, g, k, n = aval_of(w).shape
    if not g or not made.size:
        return full(made.shape, 0, made.dtype)
    blocks = _Blocks(x, sizes)
    flat, matrices = blocks.flat(x), reshape(w, (b * g, k, n))

    def group(out: Value, its: tuple[Value, Value]) -> tuple[Value, None]:
        i, matrix = its

        def turn(start: Value, size: int, own: Value | None, out: Value) -> Value:
            rows = dynamic_slice_in_dim(flat, start, size, axis=0)
            product = dot_general(rows, matrix, (((1,), (0,)), ((), ())),
                                  preferred_element_type=dtype)  # fmt: skip
            if own is not None:
                before = dynamic_slice_in_dim(out, start, size, axis=0)
                product = select(broadcast_in_dim(own, (size, n), (0,)), product, before)
            return dynamic_update_slice(out, product, (start, np.int32(0)))

        if b == blocks.batches:
            return blocks.each(i, turn, out), None
        return fori_loop(
            0,
            blocks.batches,
            lambda j, out: blocks.each(add(i, mul(j, np.int32(g))), turn, out),
            out,
        ), None

    # A loop over the matrices, as products read these where they are.
    out = full((blocks.total, n), 0, made.dtype)
    return reshape(scan(group, out, (iota(INT32, b * g), matrices))[0], made.shape)


def _outer_formula(x: Value, y: Value, sizes: Value, *, dtype: np.dtype | None) -> Value:
    made = _outer_abstract(aval_of(x), aval_of(y), aval_of(sizes), dtype=dtype)
    if not made.size or not aval_of(x).size:
        return full(made.shape, 0, made.dtype)
    blocks, out_dtype = _Blocks(x, sizes), made.dtype
    sums = accumulator(aval_of(x).dtype, aval_of(y).dtype, out_dtype)
    if dtypes.is_integer(out_dtype):
        sums = out_dtype  # wraps around, as each of its sums may
    left, right = blocks.flat(x), blocks.flat(y)
    m, n = aval_of(x).shape[2], aval_of(y).shape[2]

    def group(i: Value, out: Value) -> Value:
        def part(flat: Value, start: Value, size: int, own: Value | None) -> Value:
            rows = dynamic_slice_in_dim(flat, start, size, axis=0)
            if own is None:
                return rows
            shape, kind = aval_of(rows).shape, aval_of(rows).dtype
            # Both: others' rows may be NaN or infinite.
            return select(broadcast_in_dim(own, shape, (0,)), rows, full(shape, 0, kind))

        def turn(start: Value, size: int, own: Value | None, total: Value) -> Value:
            pair = part(left, start, size, own), part(right, start, size, own)
            product = dot_general(*pair, (((0,), (0,)), ((), ())),
                                  preferred_element_type=sums)  # fmt: skip
            return add(total, product)

        total = blocks.each(i, turn, full((m, n), 0, sums))
        own = reshape(convert_element_type(total, out_dtype), (1, m, n))
        return dynamic_update_slice(out, own, (i, np.int32(0), np.int32(0)))

    count = blocks.batches * blocks.groups
    out = fori_loop(0, count, group, full((count, m, n), 0, out_dtype))
    return reshape(out, (blocks.batches, blocks.groups, m, n))


# ---- derivatives


def _jvp(prim: Callable[[], Primitive]) -> Callable:
    """Both ops are linear in each of their first two operands."""

    def rule(primals: Values, tangents: Tangents, **params: Param) -> tuple[Value, Tangent]:
        x, y, sizes = primals
        out = prim().bind(x, y, sizes, **params)
        terms = []
        if type(tangents[0]) is not Zero:
            terms.append(prim().bind(tangents[0], y, sizes, **params))
        if type(tangents[1]) is not Zero:
            terms.append(prim().bind(x, tangents[1], sizes, **params))
        if not terms:
            return out, Zero(aval_of(out).tangent())
        return out, terms[0] if len(terms) == 1 else add(*terms)

    return rule


def _dtype_of(aval: ShapedArray, *operands: Value) -> np.dtype | None:
    """The parameter `dtype` of a product of these operands that gives what `aval` has."""
    same = all(aval_of(v).dtype == aval.dtype for v in operands)
    return None if same else aval.dtype


def _turned(w: Value) -> Value:
    return transpose_p.bind(w, permutation=(0, 1, 3, 2))


def _summed(ct: Value, aval: ShapedArray) -> Value:
    """The cotangent of an operand that all batches share."""
    if aval_of(ct).shape == aval.shape:
        return ct
    return reshape(sum_p.bind(ct, axes=(0,)), aval.shape)


def _dot_transpose(
    ct: Value, x: Operand, w: Operand, sizes: Value, *, dtype: np.dtype | None
) -> list:
    if is_linear(x):
        factor("ragged_dot", w)
        kind = _dtype_of(x.aval, ct, w)
        return [ragged_dot_p.bind(ct, _turned(w), sizes, dtype=kind), None, None]
    kind = _dtype_of(w.aval, ct, x)
    return [None, _summed(ragged_outer_p.bind(x, ct, sizes, dtype=kind), w.aval), None]


def _outer_transpose(
    ct: Value, x: Operand, y: Operand, sizes: Value, *, dtype: np.dtype | None
) -> list:
    if is_linear(x):
        factor("ragged_outer", y)
        rows, kind = _every(y, x.aval.shape[0]), _dtype_of(x.aval, ct, y)
        return [ragged_dot_p.bind(rows, _turned(ct), sizes, dtype=kind), None, None]
    kind = _dtype_of(y.aval, ct, x)
    return [None, _summed(ragged_dot_p.bind(x, ct, sizes, dtype=kind), y.aval), None]


def _every(y: Value, batches: int) -> Value:
    """An operand that all batches may share, for each of them."""
    own, *shape = aval_of(y).shape
    if own == batches:
        return y
    return broadcast_in_dim(reshape(y, shape), (batches, *shape), range(1, len(shape) + 1))


# ---- batches and axes


def _batch(prim: Callable[[], Primitive]) -> Callable:
    """The batch becomes the outer part of the first axis; what all batches share stays as it is."""

    def rule(axis: BatchAxis, args: Values, dims: BatchDims, **params: Param) -> tuple[Value, int]:
        lead = aval_of(args[0]).shape[0 if dims[0] != 0 else 1]
        folded = []
        for i, (v, d) in enumerate(zip(args, dims, strict=True)):
            if i and d is None and aval_of(v).shape[0] == 1:
                folded.append(v)
                continue
            v = batch_front(v, d, axis.size)
            size, own, *shape = aval_of(v).shape
            if own != lead:
                v = reshape(v, (size, *shape))
                v = broadcast_in_dim(v, (size, lead, *shape), (0, *range(2, len(shape) + 2)))
            folded.append(reshape(v, (size * lead, *shape)))
        out = prim().bind(*folded, **params)
        return reshape(out, (axis.size, lead, *aval_of(out).shape[1:])), 0

    return rule


def _lead(x: ShapedArray, y: ShapedArray) -> str:
    """The batch axis of an operand that may have one batch for all."""
    return "b" if x.shape[0] == y.shape[0] else "."


def _dot_dims(x: ShapedArray, w: ShapedArray, sizes: ShapedArray, *, dtype: np.dtype | None) -> str:
    return f"b m! k, {_lead(x, w)} g! k n, {_lead(x, sizes)} g! -> b m! n"


def _outer_dims(
    x: ShapedArray, y: ShapedArray, sizes: ShapedArray, *, dtype: np.dtype | None
) -> str:
    return f"b r! m, {_lead(x, y)} r! n, {_lead(x, sizes)} g! -> b g! m n"


# ---- the ops

ragged_dot_p: Primitive = Primitive(
    name="ragged_dot",
    abstract=_dot_abstract,
    impl=_dot_impl,
    jvp=_jvp(lambda: ragged_dot_p),
    transpose=_dot_transpose,
    batch=_batch(lambda: ragged_dot_p),
    dims=_dot_dims,
    formula=_dot_formula,
    passes=2,
)
ragged_outer_p: Primitive = Primitive(
    name="ragged_outer",
    abstract=_outer_abstract,
    impl=_outer_impl,
    jvp=_jvp(lambda: ragged_outer_p),
    transpose=_outer_transpose,
    batch=_batch(lambda: ragged_outer_p),
    dims=_outer_dims,
    formula=_outer_formula,
    passes=2,
)
