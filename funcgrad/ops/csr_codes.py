"""The product of a sparse matrix with rows of 8 or 4 bits, each of which has a scale.

As `ops.csr`, of the dense matrix that the codes stand for, which is never made: a row is its codes
times its scale. So are embedding tables looked up for serving. Codes of 4 bits lie two to a byte,
the first in the low bits, and 8 is taken from each. By its formula the scale of each entry is read,
and of 4 bits the codes of each entry are unpacked, before the product.
"""

from __future__ import annotations

import numpy as np

from funcgrad.core.aval import ShapedArray, Zero
from funcgrad.core.primitive import NoRule, Primitive
from funcgrad.core.trace import aval_of
from funcgrad.errors import DTypeError, ShapeError
from funcgrad.ops.base import full
from funcgrad.ops.csr import DROP, below_each_other, csr_matmul_p, lines
from funcgrad.ops.elementwise.arithmetic import mul, sub
from funcgrad.ops.elementwise.compare import bitwise_and, ge, lt, shift_right_logical
from funcgrad.ops.elementwise.convert import convert_element_type, select
from funcgrad.ops.families import add
from funcgrad.ops.shape import iota, reshape
from funcgrad.ops.slicing import concatenate, slice

_HALF, _LOW = 8, 15  # what is added to codes of 4 bits; the first of a byte

# ---- meaning


def _abstract(data, indices, starts, ends, codes, scales, *, bits, columns, missing=DROP):
    kind = np.dtype(np.int8 if bits == 8 else np.uint8)
    if codes.ndim != 2 or codes.shape[1] != -(-columns * bits // 8):
        raise ShapeError(f"csr_matmul_codes: {columns} columns of {bits} bits aren't {codes}")
    if codes.dtype != kind or scales.shape != codes.shape[:1] or scales.dtype != data.dtype:
        raise DTypeError(
            f"csr_matmul_codes: need codes (k, bytes) of {kind} and scales (k,) of the dtype of "
            f"data, got {codes}, {scales} and {data}"
        )
    dense = ShapedArray((codes.shape[0], columns), data.dtype)
    return csr_matmul_p.abstract(data, indices, starts, ends, dense, missing=missing)


def _impl(xp, data, indices, starts, ends, codes, scales, *, bits, columns, missing=DROP):
    there = (indices >= 0) & (indices < codes.shape[0])
    rows = codes[xp.where(there, indices, 0)] if codes.shape[0] else codes[:0]
    if bits == 4:
        pairs = xp.stack([rows & _LOW, rows >> 4], axis=2)
        rows = pairs.reshape(len(rows), -1)[:, :columns].astype(np.int8) - np.int8(_HALF)
    dense = rows.astype(data.dtype)
    if codes.shape[0]:
        dense = dense * scales[xp.where(there, indices, 0)][:, None]
    at = xp.where(there, xp.arange(len(indices)), -1)
    return csr_matmul_p.impl(xp, data, at, starts, ends, dense, missing=missing)


# ---- of other ops


def _scale_of(scales, indices):
    """The scale of each entry, 0 where there is none."""
    n = aval_of(indices).shape[0]
    return reshape(lines(reshape(scales, (aval_of(scales).shape[0], 1)), indices), (n,))


def _rows(indices, codes, bits, columns):
    """Indices and a matrix of codes of 8 bits, for the product."""
    if bits == 8:
        return indices, codes
    (n,), kind = aval_of(indices).shape, aval_of(indices).dtype
    count = full((n,), aval_of(codes).shape[0], kind)
    there = bitwise_and(ge(indices, full((n,), 0, kind)), lt(indices, count))
    packed = lines(codes, indices)
    shape = aval_of(packed).shape
    halves = (bitwise_and(packed, full(shape, _LOW, np.uint8)),
              shift_right_logical(packed, full(shape, 4, np.uint8)))  # fmt: skip
    pairs = concatenate([reshape(x, (*shape, 1)) for x in halves], 2)
    read = slice(reshape(pairs, (n, 2 * shape[1])), (0, 0), (n, columns))
    read = sub(convert_element_type(read, np.int8), full((n, columns), _HALF, np.int8))
    return select(there, iota(kind, n), full((n,), -1, kind)), read


def _product(data, indices, starts, ends, codes, bits, columns, missing=DROP):
    at, rows = _rows(indices, codes, bits, columns)
    return csr_matmul_p.bind(data, at, starts, ends, rows, missing=missing)


def _formula(data, indices, starts, ends, codes, scales, *, bits, columns, missing=DROP):
    data = mul(data, _scale_of(scales, indices))
    return _product(data, indices, starts, ends, codes, bits, columns, missing)


# ---- rules


def _jvp(primals, tangents, **params):
    data, indices, starts, ends, codes, scales = primals
    out = csr_matmul_codes_p.bind(*primals, **params)
    terms = []
    if type(tangents[0]) is not Zero:
        terms.append(mul(tangents[0], _scale_of(scales, indices)))
    if type(tangents[5]) is not Zero:
        terms.append(mul(data, _scale_of(tangents[5], indices)))
    if not terms:
        return out, Zero(aval_of(out).tangent())
    total = terms[0] if len(terms) == 1 else add(*terms)
    parts = params["bits"], params["columns"]
    return out, _product(total, indices, starts, ends, codes, *parts)


def _batch(axis, args, dims, **params):
    m, flat = below_each_other(axis, args, dims)
    out = csr_matmul_codes_p.bind(*flat, **params)
    return reshape(out, (axis.size, m, params["columns"])), 0


# data (nse,), indices (nse,), starts (m,), ends (m,), codes (k, bytes), scales (k,) → (m, columns)
csr_matmul_codes_p: Primitive = Primitive(
    name="csr_matmul_codes",
    abstract=_abstract,
    impl=_impl,
    jvp=_jvp,
    transpose=NoRule("its derivatives are products of other ops"),
    batch=_batch,
    dims=lambda *avals, **params: "e!, e!, m, m, k! b!, k! -> m .",
    formula=_formula,
    passes=2,
)
