"""Before lowering: a program without calls, unused equations, and a few ops written as others.

Calls of programs are replaced by their equations. A reduction to few results becomes two, so that
it runs in parallel: partial results, then their reduction, in an order that doesn't depend on the
number of threads. Products that no matrix multiplication serves (of integers, with a vector, tiny)
become sums of products, which fuse; those of narrow floats are summed in float32, convolutions
are products of windows. Scatters of one update are selections, collectives exchanges of contiguous
blocks.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from funcgrad import dtypes
from funcgrad.backends.exchanges import REWRITES as EXCHANGES
from funcgrad.backends.exchanges import axes_key
from funcgrad.backends.late import late
from funcgrad.backends.lowered import lowered
from funcgrad.backends.scalars import HALVES, LOOP_DTYPES
from funcgrad.core.aval import ShapedArray
from funcgrad.core.ir import Atom, Eqn, Jaxpr, Literal, Var
from funcgrad.core.source import Source
from funcgrad.ops.arithmetic import mul
from funcgrad.ops.base import broadcast_p, sum_p, transpose_p
from funcgrad.ops.compare import bitwise_and
from funcgrad.ops.contract import accumulator, dot_general_p
from funcgrad.ops.convert import convert_element_type_p
from funcgrad.ops.reduce import or_p
from funcgrad.ops.shape import reshape_p
from funcgrad.ops.sort import sort_p
from funcgrad.transforms.attention import FORMULAS, attention_backward_p, attention_tangent_p

if TYPE_CHECKING:
    from funcgrad.backends import (
        attention_joint,
        convolution,
        depthwise,
        elements,
        panels,
        running,
        scans,
        scatters,
        shuffles,
    )
else:
    (
        attention_joint,
        convolution,
        depthwise,
        elements,
        panels,
        running,
        scans,
        scatters,
        shuffles,
    ) = late(
        "funcgrad.backends",
        *("attention_joint", "convolution", "depthwise", "elements", "panels", "running"),
        *("scans", "scatters", "shuffles"),
    )

# What only transformations and users care for.
IDENTITIES = frozenset({"name", "optimization_barrier"})
CALLS = frozenset({"jit", "custom_jvp_call", "custom_vjp_call", "checkpoint"})
GEMM_DTYPES = (np.dtype(np.float32), np.dtype(np.float64))
# Operands that a matrix product reads as they are, and in which type it sums their products; the
# sums of int8 are exact up to so many.
NARROW_SUMS = {
    np.dtype(ml_dtypes.bfloat16): np.dtype(np.float32),
    np.dtype(np.float16): np.dtype(np.float32),
    np.dtype(np.int8): np.dtype(np.int32),
}
MOST_INT8 = (1 << 17) - 1
REDUCTIONS = frozenset(f"reduce_{how}" for how in ("sum", "max", "min", "prod", "and", "or", "xor"))
FLOAT32 = np.dtype(np.float32)

# A reduction of more elements than SPLIT_FROM to fewer than FEW results is split in two; a part
# has no fewer than PART elements.
SPLIT_FROM, FEW, PART, MAX_PARTS = 1 << 15, 8, 1 << 12, 64
# A reduction over rows of more elements than TALL is split in so many parts: a part's totals, one
# for each of at most WIDE columns, stay in the first-level cache while whole rows stream by.
TALL, ROW_PARTS, WIDE = 1 << 22, 32, 1 << 13
# Attention of fewer queries or keys fills no register tiles: 16 take twice the time of the formula,
# 32 less (one core).
FEW_PLACES = 32
# Products with fewer multiplications than this don't repay a call of the matrix product.
TINY = 512


class _Flattener:
    """Writes equations of a program and of those it calls into one list."""

    def __init__(self) -> None:
        self.eqns: list[Eqn] = []
        # Broadcasts of zero.
        self.zeros: set[Var] = set()
        # What each reshape is a reshape of.
        self.reshaped: dict[Atom, Atom] = {}
        # Operands of convolutions with zeros around them.
        self.padded: dict[tuple, Atom] = {}
        # The user's line of the equation that is rewritten.
        self.source: Source | None = None

    def add(self, prim: Any, ins: Sequence[Atom], aval: ShapedArray, **params: Any) -> Var:
        var = Var(aval)
        self.append(Eqn(prim, ins, [var], params, self.source))
        return var

    def append(self, eqn: Eqn) -> None:
        self.eqns.append(eqn)
        if eqn.prim is broadcast_p and self._is_zero(eqn.ins[0]):
            self.zeros.add(eqn.outs[0])

    def _is_zero(self, x: Atom) -> bool:
        if type(x) is Literal and x.aval.dtype in LOOP_DTYPES:
            value = x.value.astype(np.complex128)
            return not value and not np.signbit(value.real)
        return x in self.zeros

    def inline(self, jaxpr: Jaxpr, args: Iterable[Atom]) -> list[Atom]:
        """The outputs of a program on these operands, its equations added."""
        outer = self.source
        env: dict[Atom, Atom] = {
            v: a if v.aval.size else self.empty(v.aval)
            for v, a in zip(jaxpr.ins, args, strict=True)
        }
        for eqn in jaxpr.eqns:
            self.source = eqn.source or outer
            ins = [env.get(a, a) for a in eqn.ins]
            for v in eqn.outs:
                if not v.aval.size:
                    env[v] = self.empty(v.aval)
            if eqn.outs and all(v in env for v in eqn.outs) and not _acts(eqn):
                continue
            if eqn.prim.name in CALLS:
                env.update(zip(eqn.outs, self.inline(eqn.params["jaxpr"], ins), strict=True))
                continue
            if eqn.prim.name in IDENTITIES:
                env.update(zip(eqn.outs, ins, strict=True))
                continue
            parts = scans.spread(eqn) or panels.panelled(eqn) if eqn.prim.name == "scan" else None
            if parts is not None:
                env.update(zip(eqn.outs, self.inline(parts, ins), strict=True))
                continue
            rewrite = _REWRITES.get(eqn.prim.name)
            out = rewrite(self, eqn, ins) if rewrite else None
            if out is not None:
                env.update(zip(eqn.outs, out if eqn.prim.multiple else [out], strict=True))
                continue
            outs = [Var(v.aval) for v in eqn.outs]
            env.update((v, o) for v, o in zip(eqn.outs, outs, strict=True) if v.aval.size)
            self.append(Eqn(eqn.prim, ins, outs, eqn.params, eqn.source, eqn.scopes))
        return [env.get(a, a) for a in jaxpr.outs]

    # ---- small steps

    def empty(self, aval: ShapedArray) -> Atom:
        """A value of no elements, made of nothing: code that reads it, which never runs, computes
        no index into it, and nothing is exchanged for it."""
        zero = Literal(np.zeros((), aval.dtype), ShapedArray((), aval.dtype))
        return self.broadcast(zero, aval.shape, ())

    def convert(self, x: Atom, dtype: np.dtype) -> Atom:
        if x.aval.dtype == dtype:
            return x
        aval = ShapedArray(x.aval.shape, dtype)
        return self.add(convert_element_type_p, [x], aval, new_dtype=dtype)

    def reshape(self, x: Atom, shape: tuple[int, ...]) -> Atom:
        x = self.reshaped.get(x, x)
        if x.aval.shape == shape:
            return x
        self.reshaped[out := self.reshape_of(x, shape)] = x
        return out

    def reshape_of(self, x: Atom, shape: tuple[int, ...]) -> Var:
        return self.add(reshape_p, [x], ShapedArray(shape, x.aval.dtype), new_sizes=shape)

    def reduce(self, prim: Any, x: Atom, axes: Sequence[int]) -> Atom:
        shape = tuple(n for i, n in enumerate(x.aval.shape) if i not in axes)
        return self.add(prim, [x], ShapedArray(shape, x.aval.dtype), axes=tuple(axes))

    def broadcast(self, x: Atom, shape: tuple[int, ...], dims: Sequence[int]) -> Atom:
        aval = ShapedArray(shape, x.aval.dtype)
        return self.add(broadcast_p, [x], aval, shape=shape, broadcast_dimensions=tuple(dims))

    def transpose(self, x: Atom, order: Sequence[int]) -> Atom:
        if list(order) == list(range(len(order))):
            return x
        aval = ShapedArray(tuple(x.aval.shape[i] for i in order), x.aval.dtype)
        return self.add(transpose_p, [x], aval, permutation=tuple(order))


# ---- reductions


def _parts(n: int, total: int) -> int:
    """In how many equal parts to cut an axis of size n of a reduction of `total` elements."""
    most = min(MAX_PARTS, total // PART)
    return max((d for d in range(1, most + 1) if n % d == 0), default=1)


def _row_parts(rows: int, columns: int) -> int:
    """In how many equal parts to cut the rows whose columns are reduced."""
    if rows * columns < TALL or columns > WIDE:
        return 1
    return max(d for d in range(1, ROW_PARTS + 1) if rows % d == 0)


def _reduction(flat: _Flattener, eqn: Eqn, ins: list[Atom]) -> Atom | None:
    (x,), axes = ins, sorted(eqn.params["axes"])
    dtype, out = x.aval.dtype, eqn.outs[0].aval
    if not axes:
        return x if dtype == out.dtype else None
    if x.aval.size < SPLIT_FROM or dtype not in LOOP_DTYPES:
        return None
    shape = x.aval.shape
    # Neighbouring axes that are all summed count as one.
    first = last = axes[0]
    while last + 1 in axes:
        last += 1
    size = math.prod(shape[first : last + 1])
    if out.size < FEW:
        parts = _parts(size, x.aval.size // max(out.size, 1))
    else:
        rows = first == 0 and last == axes[-1]
        parts = _row_parts(size, out.size) if rows else 1
    if parts < 2:
        return None
    wide = flat.convert(x, FLOAT32) if dtype in HALVES else x
    cut = flat.reshape(wide, shape[:first] + (parts, size // parts) + shape[last + 1 :])
    moved = [first + 1] + [a - (last - first) + 1 for a in axes if a > last]
    partial = flat.reduce(eqn.prim, cut, moved)
    return flat.convert(flat.reduce(eqn.prim, partial, [first]), dtype)


# ---- products


def _product_impl(xp, lhs, rhs, *, dimension_numbers, permutation, gathers, exact):
    wide = NARROW_SUMS.get(lhs.dtype)
    product = dot_general_p.impl(
        xp, lhs, rhs, dimension_numbers=dimension_numbers, preferred_element_type=wide
    )
    return xp.transpose(product, permutation)


def _product_abstract(lhs, rhs, *, dimension_numbers, permutation, gathers, exact):
    wide = NARROW_SUMS.get(lhs.dtype)
    out = dot_general_p.abstract(
        lhs, rhs, dimension_numbers=dimension_numbers, preferred_element_type=wide
    )
    return out.update(shape=tuple(out.shape[i] for i in permutation))


# A matrix product of float32, float64, or operands of `NARROW_SUMS` into the type of their sums,
# and a permutation of its axes. gathers: whether it reads operands in place whose rows or columns
# don't lie at equal distances. exact: whether all products are to be formed, none by tiles.
product_p = lowered("product", _product_abstract, _product_impl)


def _absorb_transposes(eqns: Sequence[Eqn], outs: Sequence[Atom]) -> list[Eqn]:
    """Products whose only reader is a transpose write their result transposed."""
    readers: dict[Atom, int] = {}
    for a in (*outs, *(a for e in eqns for a in e.ins)):
        readers[a] = readers.get(a, 0) + 1
    made = {e.outs[0]: i for i, e in enumerate(eqns) if e.prim is product_p}
    out: list[Eqn | None] = list(eqns)
    for i, eqn in enumerate(eqns):
        if eqn.prim is not transpose_p or readers[eqn.ins[0]] != 1 or eqn.ins[0] not in made:
            continue
        at = made.pop(eqn.ins[0])
        product = eqns[at]
        order = tuple(product.params["permutation"][p] for p in eqn.params["permutation"])
        out[at] = product.replace(outs=eqn.outs, params={**product.params, "permutation": order})
        out[i] = None
    return [e for e in out if e is not None]


def _dot(flat: _Flattener, eqn: Eqn, ins: list[Atom]) -> Atom | None:
    lhs, rhs = ins
    out = eqn.outs[0].aval
    if any(a.aval.dtype not in LOOP_DTYPES for a in (lhs, rhs)) or out.dtype not in LOOP_DTYPES:
        return None
    (lc, _), (lb, _) = eqn.params["dimension_numbers"]
    dtype = accumulator(lhs.aval.dtype, rhs.aval.dtype, out.dtype)
    if dtypes.is_integer(out.dtype) and not dtypes.is_integer(dtype):
        dtype = np.result_type(lhs.aval.dtype, rhs.aval.dtype, out.dtype)
    batch = math.prod(lhs.aval.shape[i] for i in lb)
    k = math.prod(lhs.aval.shape[i] for i in lc)
    m, n = (a.aval.size // max(1, batch * k) for a in ins)
    narrow = _narrow_operands(lhs, rhs, dtype, k)
    if (narrow is None and dtype not in GEMM_DTYPES) or min(m, n) < 2 or m * n * k < TINY:
        rows = _sum_of_rows(flat, eqn, ins, dtype)
        return _sum_of_products(flat, eqn, ins, dtype) if rows is None else rows
    sides = [
        _neighbours(flat, flat.convert(a, narrow or dtype), contract, batched)
        for a, contract, batched in zip(ins, *eqn.params["dimension_numbers"], strict=True)
    ]
    numbers = tuple(zip(*(axes for _, axes in sides), strict=True))
    if narrow is not None:
        dtype = NARROW_SUMS[narrow]
    product = flat.add(
        product_p, [a for a, _ in sides], ShapedArray(out.shape, dtype),
        dimension_numbers=numbers, permutation=tuple(range(out.ndim)), gathers=False, exact=True,
    )  # fmt: skip
    return flat.convert(product, out.dtype)


def _narrow_operands(lhs: Atom, rhs: Atom, dtype: np.dtype, k: int) -> np.dtype | None:
    """The dtype of operands that a product reads as they are, if their k products would be summed
    in `dtype`; None if they must be converted to that."""
    narrow = lhs.aval.dtype
    if rhs.aval.dtype != narrow or narrow not in NARROW_SUMS:
        return None
    if narrow == np.int8:
        return narrow if k <= MOST_INT8 else None
    return narrow if NARROW_SUMS[narrow] == dtype else None


def _neighbours(
    flat: _Flattener, x: Atom, contract: tuple[int, ...], batch: tuple[int, ...]
) -> tuple[Atom, tuple[tuple[int, ...], tuple[int, ...]]]:
    """An operand of a product with its contracted axes side by side, in order."""
    if all(b == a + 1 for a, b in itertools.pairwise(contract)):
        return x, (contract, batch)
    free = [i for i in range(x.aval.ndim) if i not in contract and i not in batch]
    moved = flat.transpose(x, [*batch, *free, *contract])
    n = len(batch) + len(free)
    return moved, (tuple(range(n, n + len(contract))), tuple(range(len(batch))))


def _sum_of_rows(flat: _Flattener, eqn: Eqn, ins: list[Atom], dtype: np.dtype) -> Atom | None:
    """A vector times a large matrix (k, n): the matrix's rows, weighted, are summed in parts."""
    contract, out = eqn.params["dimension_numbers"][0], eqn.outs[0].aval
    for vector, matrix, axes in zip(ins, ins[::-1], contract[::-1], strict=True):
        if matrix.aval.ndim != 2 or tuple(axes) != (0,) or dtype == dtypes.BOOL:
            continue
        k, n = matrix.aval.shape
        parts = _row_parts(k, n) if vector.aval.size == k and out.size == n else 1
        turned = any(e.prim is transpose_p and e.outs[0] is matrix for e in flat.eqns)
        if parts < 2 or turned:
            continue
        shape = (parts, k // parts, n)
        rows = flat.reshape(flat.convert(matrix, dtype), shape)
        weights = flat.reshape(flat.convert(vector, dtype), shape[:2])
        weights = flat.broadcast(weights, shape, (0, 1))
        product = flat.add(mul, [weights, rows], ShapedArray(shape, dtype))
        total = flat.reduce(sum_p, flat.reduce(sum_p, product, [1]), [0])
        return flat.convert(flat.reshape(total, out.shape), out.dtype)
    return None


def _sum_of_products(flat: _Flattener, eqn: Eqn, ins: list[Atom], dtype: np.dtype) -> Atom:
    """A product as `sum(lhs·rhs)` over axes batch, lhs free, rhs free, contracted."""
    (lc, rc), (lb, rb) = eqn.params["dimension_numbers"]
    lhs, rhs = (flat.convert(a, dtype) for a in ins)
    left = [i for i in range(lhs.aval.ndim) if i not in lc and i not in lb]
    right = [i for i in range(rhs.aval.ndim) if i not in rc and i not in rb]
    nb, nl, nr, nk = len(lb), len(left), len(right), len(lc)
    shape = (*eqn.outs[0].aval.shape, *(lhs.aval.shape[i] for i in lc))
    batch, inner = list(range(nb)), list(range(nb + nl + nr, nb + nl + nr + nk))
    lhs = flat.transpose(lhs, [*lb, *left, *lc])
    rhs = flat.transpose(rhs, [*rb, *right, *rc])
    lhs = flat.broadcast(lhs, shape, [*batch, *range(nb, nb + nl), *inner])
    rhs = flat.broadcast(rhs, shape, [*batch, *range(nb + nl, nb + nl + nr), *inner])
    logical = dtype == dtypes.BOOL
    product = flat.add(bitwise_and if logical else mul, [lhs, rhs], ShapedArray(shape, dtype))
    total = Eqn(or_p if logical else sum_p, [product], eqn.outs, {"axes": tuple(inner)})
    split = _reduction(flat, total, [product]) if dtype == eqn.outs[0].aval.dtype else None
    summed = flat.reduce(total.prim, product, inner) if split is None else split
    return flat.convert(summed, eqn.outs[0].aval.dtype)


def _convolution(flat: _Flattener, eqn: Eqn, ins: list[Atom]) -> Atom | None:
    avals = [*(x.aval for x in ins), eqn.outs[0].aval]
    if any(a.dtype not in LOOP_DTYPES or not a.size for a in avals):
        return None
    dtype = accumulator(avals[0].dtype, avals[1].dtype, avals[2].dtype)
    if dtype in GEMM_DTYPES and not dtypes.is_integer(avals[2].dtype):
        for write in (depthwise.channel_convolution, _gathered_convolution):
            made = write(flat, eqn, ins, dtype)
            if made is not None:
                return made
    return convolution.convolution(flat, eqn, ins, _dot)


def _gathered_convolution(
    flat: _Flattener, eqn: Eqn, ins: list[Atom], dtype: np.dtype
) -> Atom | None:
    """A convolution as products of windows that are read in place; None if it is too small.

    Those of bfloat16 are multiplied as they are: processors have instructions for it. Others are
    converted as they are padded.
    """
    avals = [a.aval for a in ins]
    both = all(a.dtype == ml_dtypes.bfloat16 for a in avals) and dtype == FLOAT32
    read = avals[0].dtype if both and convolution.stays_narrow(eqn, avals) else dtype

    def product(x: Atom, w: Atom, shape: tuple[int, ...], numbers: Any) -> Atom:
        order = tuple(range(len(shape)))
        return flat.add(product_p, [x, w], ShapedArray(shape, dtype), dimension_numbers=numbers,
                        permutation=order, gathers=True, exact=eqn.params["exact"])  # fmt: skip

    made = convolution.gathered_convolution(flat, eqn, ins, (read, dtype), product)
    return None if made is None else flat.convert(made, eqn.outs[0].aval.dtype)


def _attention(flat: _Flattener, eqn: Eqn, ins: list[Atom]) -> Any:
    """Attention of few queries or keys, and its tangent, by the formula."""
    (_, queries, *_), (_, keys, *_) = (x.aval.shape for x in ins[:2])
    formula = FORMULAS[eqn.prim]
    if eqn.prim is not attention_tangent_p and min(queries, keys) >= FEW_PLACES:
        return None
    outs = flat.inline(formula([x.aval for x in ins], eqn.params), ins)
    return outs if eqn.prim.multiple else outs[0]


def _scatter(flat: _Flattener, eqn: Eqn, ins: list[Atom]) -> Any:
    """As a selection, by elements, of narrow floats in float32, or as it is (None)."""
    found = _special_scatter(flat, eqn, ins)
    wide = scatters.wide_scatter(flat, eqn, ins) if found is None else None
    if wide is None:
        return found
    total = _special_scatter(flat, *wide)
    if total is None:
        flat.append(wide[0])
        total = wide[0].outs[0]
    return flat.convert(total, eqn.outs[0].aval.dtype)


def _special_scatter(flat: _Flattener, eqn: Eqn, ins: list[Atom]) -> Any:
    if eqn.prim.name == "scatter_mul":
        return None
    return scatters.single_scatter(flat, eqn, ins) or elements.element_scatter(flat, eqn, ins)


def _running(flat: _Flattener, eqn: Eqn, ins: list[Atom]) -> Atom | None:
    return running.running(flat, eqn, ins)


_REWRITES = {
    **dict.fromkeys((prim.name for prim in FORMULAS), _attention),
    "dot_general": _dot,
    "conv_general_dilated": _convolution,
    "reshape": lambda flat, eqn, ins: flat.reshape(ins[0], eqn.outs[0].aval.shape),
    "scatter": _scatter,
    "scatter_add": _scatter,
    "scatter_mul": _scatter,
    **dict.fromkeys(REDUCTIONS, _reduction),
    **dict.fromkeys(("cumsum", "cumprod", "cummax", "cummin"), _running),
    **EXCHANGES,
}


# ---- the pass


def normalize(jaxpr: Jaxpr) -> Jaxpr:
    """The program written for lowering: see the module's docstring.

    >>> import funcgrad as fg
    >>> closed = fg.make_jaxpr(fg.jit(lambda x: x + 1))(1.0)
    >>> (
    ...     [e.prim.name for e in closed.jaxpr.eqns],
    ...     [e.prim.name for e in normalize(closed.jaxpr).eqns],
    ... )
    (['jit'], ['add'])
    """
    return jaxpr.derive(("normalized", axes_key()), lambda: _normalize(jaxpr))


def _normalize(jaxpr: Jaxpr) -> Jaxpr:
    flat = _Flattener()
    ins = [Var(v.aval) for v in jaxpr.ins]
    outs = flat.inline(jaxpr, ins)
    used = {a for a in outs if type(a) is Var}
    kept = []
    made: dict[Atom, Eqn] = {}
    if any(e.prim is sort_p for e in flat.eqns):
        made = {v: e for e in flat.eqns for v in e.outs}
    for eqn in reversed(flat.eqns):
        if any(v in used for v in eqn.outs) or _acts(eqn):
            if made:
                eqn = shuffles.shuffle(eqn, used, made) or eqn
            used.update(a for a in eqn.ins if type(a) is Var)
            kept.append(eqn)
    eqns: Sequence[Eqn] = _absorb_transposes(kept[::-1], outs)
    if any(e.prim is attention_backward_p for e in eqns):
        eqns = attention_joint.join_attention(eqns, outs, _acts)
    return Jaxpr(ins, eqns, outs, jaxpr.names)


def _acts(eqn: Eqn) -> bool:
    """Whether an equation does more than to give results."""
    if eqn.prim.effect:
        return True
    params = (q for p in eqn.params.values() for q in (p if type(p) is tuple else (p,)))
    return any(type(q) is Jaxpr and q.has_effects for q in params)
