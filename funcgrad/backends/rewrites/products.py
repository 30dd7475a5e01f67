"""Contractions as matrix products, or as sums that fuse with what is near.

Products that no matrix multiplication serves (of integers, with a vector, tiny) become sums of
products; those of narrow floats are summed in float32.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from funcgrad import dtypes
from funcgrad.backends.loops.scalars import LOOP_DTYPES
from funcgrad.backends.lower.primitives import NARROW_SUMS, product_p
from funcgrad.backends.program import Convolution
from funcgrad.backends.rewrites.equations import Equations
from funcgrad.backends.rewrites.reductions import reduction, row_parts
from funcgrad.core.aval import ShapedArray
from funcgrad.core.ir import Atom, Eqn, Var
from funcgrad.ops.base import sum_p, transpose_p
from funcgrad.ops.contract import accumulator
from funcgrad.ops.elementwise.arithmetic import mul
from funcgrad.ops.elementwise.compare import bitwise_and
from funcgrad.ops.reduce import or_p

FLOAT32 = np.dtype(np.float32)
GEMM_DTYPES = (FLOAT32, np.dtype(np.float64))
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
MOST_INT8 = (1 << 17) - 1


def absorb_transposes(eqns: Sequence[Eqn], outs: Sequence[Atom]) -> list[Eqn]:
    """Products whose only reader is a transpose write their result transposed."""
    readers: dict[Atom, int] = {}
    for a in (*outs, *(a for e in eqns for a in e.ins)):
        readers[a] = readers.get(a, 0) + 1
    made = {e.outs[0]: i for i, e in enumerate(eqns) if e.prim is product_p}
    out: list[Eqn | None] = list(eqns)
    for i, eqn in enumerate(eqns):
        if eqn.prim is not transpose_p or readers[eqn.ins[0]] != 1 or eqn.ins[0] not in made:
            continue
        product = eqns[made[eqn.ins[0]]]
        order = tuple(product.params["permutation"][p] for p in eqn.params["permutation"])
        if product.params["pairs"] and order[-1] != len(order) - 1:
            continue
        at = made.pop(eqn.ins[0])
        out[at] = product.replace(outs=eqn.outs, params={**product.params, "permutation": order})
        out[i] = None
    return [e for e in out if e is not None]


def dot(flat: Equations, eqn: Eqn, ins: list[Atom]) -> Atom | None:
    """A `dot_general` as a matrix product, or as a sum; None if loops don't have its dtypes.

    >>> from funcgrad.backends.target import Target
    >>> from funcgrad.core.ir import Var
    >>> from funcgrad.ops.contract import dot_general_p
    >>> a, b, c = (Var(ShapedArray(s, np.float32)) for s in ((64, 32), (32, 16), (64, 16)))
    >>> numbers = {"dimension_numbers": (((1,), (0,)), ((), ()))}
    >>> flat = Equations(Target("any"))
    >>> dot(flat, Eqn(dot_general_p, [a, b], [c], numbers), [a, b]).aval, len(flat.eqns)
    (f32[64,16], 1)
    >>> flat.eqns[0].prim is product_p
    True
    """
    out = eqn.outs[0].aval
    known = LOOP_DTYPES.union(dtypes.FLOAT8)
    if out.dtype not in LOOP_DTYPES or any(a.aval.dtype not in known for a in ins):
        return None
    # Floats of 8 bits are multiplied as float32.
    ins = [flat.convert(x, FLOAT32) if x.aval.dtype in dtypes.FLOAT8 else x for x in ins]
    lhs, rhs = ins
    (lc, _), (lb, _) = eqn.params["dimension_numbers"]
    dtype = accumulator(lhs.aval.dtype, rhs.aval.dtype, out.dtype)
    if dtypes.is_integer(out.dtype) and not dtypes.is_integer(dtype):
        dtype = np.result_type(lhs.aval.dtype, rhs.aval.dtype, out.dtype)
    batch = math.prod(lhs.aval.shape[i] for i in lb)
    k = math.prod(lhs.aval.shape[i] for i in lc)
    m, n = (a.aval.size // max(1, batch * k) for a in ins)
    narrow = _narrow_operands(lhs, rhs, dtype, k)
    if (
        (narrow is None and dtype not in GEMM_DTYPES)
        or min(m, n) < 2
        or m * n * k < flat.limits.tiny
    ):
        rows = _sum_of_rows(flat, eqn, ins, dtype)
        return _sum_of_products(flat, eqn, ins, dtype) if rows is None else rows
    sides = [
        _neighbours(flat, flat.convert(a, narrow or dtype), contract, batched)
        for a, contract, batched in zip(ins, *eqn.params["dimension_numbers"], strict=True)
    ]
    numbers = tuple(zip(*(axes for _, axes in sides), strict=True))
    # In its own tiles, sooner than by all that reads it. (Float16 has an instruction there.)
    rounded = out.dtype == narrow == BFLOAT16
    if narrow is not None:
        dtype = narrow if rounded else NARROW_SUMS[narrow]
    product = flat.add(
        product_p, [a for a, _ in sides], ShapedArray(out.shape, dtype), dimension_numbers=numbers,
        permutation=tuple(range(out.ndim)), gathers=False, exact=True, pairs=False,
        convolution=eqn.params.get("convolution"), windows=False, rounded=rounded,
        tf32="precision" in eqn.params,
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
    flat: Equations, x: Atom, contract: tuple[int, ...], batch: tuple[int, ...]
) -> tuple[Atom, tuple[tuple[int, ...], tuple[int, ...]]]:
    """An operand of a product with its contracted axes side by side, in order."""
    if all(b == a + 1 for a, b in itertools.pairwise(contract)):
        return x, (contract, batch)
    free = [i for i in range(x.aval.ndim) if i not in contract and i not in batch]
    moved = flat.transpose(x, [*batch, *free, *contract])
    n = len(batch) + len(free)
    return moved, (tuple(range(n, n + len(contract))), tuple(range(len(batch))))


def _sum_of_rows(flat: Equations, eqn: Eqn, ins: list[Atom], dtype: np.dtype) -> Atom | None:
    """A vector times a large matrix (k, n): the matrix's rows, weighted, are summed in parts."""
    contract, out = eqn.params["dimension_numbers"][0], eqn.outs[0].aval
    for i, axes in enumerate(contract[::-1]):
        vector, matrix, given = ins[i], ins[1 - i], eqn.ins[1 - i]
        if matrix.aval.ndim != 2 or tuple(axes) != (0,) or dtype == dtypes.BOOL:
            continue
        k, n = matrix.aval.shape
        made = next((e for e in flat.eqns if matrix in e.outs), None)
        # Of a matrix that is computed, strips of columns, whose sums a first cache holds.
        # If there are more vectors, all sums read each row at once.
        striped = made is not None and given not in flat.shared
        lanes, most = flat.limits.lanes, flat.limits.strip if striped else 0
        width = max((d for d in range(lanes, most + 1, lanes) if n % d == 0), default=n)
        strips, fits = n // width, vector.aval.size == k and out.size == n
        parts = row_parts(k, width, flat.limits.splits, strips) if fits else 1
        if parts < 2 or (made is not None and made.prim is transpose_p):
            continue
        rows = flat.convert(matrix, dtype)
        if strips > 1:
            rows = flat.reshape(rows, (parts, k // parts, strips, width))
            rows = flat.transpose(rows, [0, 2, 1, 3])
        else:
            rows = flat.reshape(rows, (parts, k // parts, n))
        shape, axis = rows.aval.shape, rows.aval.ndim - 2
        weights = flat.reshape(flat.convert(vector, dtype), (parts, k // parts))
        weights = flat.broadcast(weights, shape, (0, axis))
        product = flat.add(mul, [weights, rows], ShapedArray(shape, dtype))
        total = flat.reduce(sum_p, flat.reduce(sum_p, product, [axis]), [0])
        return flat.convert(flat.reshape(total, out.shape), out.dtype)
    return None


def _sum_of_products(flat: Equations, eqn: Eqn, ins: list[Atom], dtype: np.dtype) -> Atom:
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
    split = reduction(flat, total, [product]) if dtype == eqn.outs[0].aval.dtype else None
    summed = flat.reduce(total.prim, product, inner) if split is None else split
    return flat.convert(summed, eqn.outs[0].aval.dtype)


def gathered(
    flat: Equations,
    x: Atom,
    w: Atom,
    out: ShapedArray,
    numbers: Any,
    of: Convolution | None,
    exact: bool = True,
    windows: bool = False,
) -> Var:
    """A product that reads its operands in place, wherever their rows and columns lie.

    of: the convolution that it is; windows: whether x has its windows
    """
    return flat.add(product_p, [x, w], out, dimension_numbers=numbers,
                    permutation=tuple(range(out.ndim)), gathers=True, exact=exact,
                    pairs=False, convolution=of, windows=windows, rounded=False)  # fmt: skip
