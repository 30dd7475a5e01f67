"""The product of a sparse matrix, whose entries lie row by row, with a dense one.

Row i has the entries starts[i] … ends[i] - 1: their values are in `data`, their columns in
`indices`. An entry whose column there is not is none, or, where such ones are `missing`, its row
becomes NaN. Both its derivatives are made of other ops: with respect to the values it is the dense
product at these places alone, with respect to the dense matrix the transposed product, a scatter.
"""

from __future__ import annotations

import numpy as np

from funcgrad import dtypes
from funcgrad.core.aval import ShapedArray, Zero
from funcgrad.core.primitive import Primitive
from funcgrad.core.trace import aval_of
from funcgrad.errors import ArgumentError, DTypeError, ShapeError
from funcgrad.ops.base import (
    batch_front,
    broadcast_p,
    factor,
    full,
    is_linear,
    move_axis,
    position_dtype,
    sum_p,
)
from funcgrad.ops.cumulative import cumsum
from funcgrad.ops.elementwise.arithmetic import max, min, mul, sub
from funcgrad.ops.elementwise.compare import bitwise_and, ge, le, lt
from funcgrad.ops.elementwise.convert import convert_element_type, select
from funcgrad.ops.families import add
from funcgrad.ops.indexing.gather import accumulate, gather
from funcgrad.ops.indexing.scatter import scatter_add
from funcgrad.ops.indexing.windows import GatherDimensionNumbers, ScatterDimensionNumbers
from funcgrad.ops.shape import iota, reshape

_ROWS_AT = GatherDimensionNumbers((1,), (0,), (0,))
_ROWS_TO = ScatterDimensionNumbers((1,), (0,), (0,))
_ELEMENTS_AT = GatherDimensionNumbers((), (0,), (0,))
_ELEMENTS_TO = ScatterDimensionNumbers((), (0,), (0,))
DROP, NAN = "drop", "nan"  # what becomes of entries whose columns aren't there

# ---- meaning


def _abstract(data, indices, starts, ends, dense, *, missing=DROP):
    fits = data.ndim == 1 and indices.shape == data.shape and dense.ndim == 2
    if not fits or starts.ndim != 1 or ends.shape != starts.shape:
        raise ShapeError(
            "csr_matmul: need data (nse,), indices (nse,), starts (m,), ends (m,) and a dense "
            f"matrix (k, n), got {data}, {indices}, {starts}, {ends} and {dense}"
        )
    for name, x in (("indices", indices), ("starts", starts), ("ends", ends)):
        if not dtypes.is_integer(x.dtype):
            raise DTypeError(f"csr_matmul: {name} must be integers, got {x}")
    if data.dtype == dtypes.BOOL or not (data.dtype == dense.dtype or _narrower(dense, data)):
        raise DTypeError(
            "csr_matmul: data and the dense matrix must be numbers of one dtype, or the dense ones "
            f"narrower than floats of data, got {data} and {dense}; convert with .astype(...)"
        )
    if missing not in (DROP, NAN) or (missing == NAN and not dtypes.is_float(data.dtype)):
        raise ArgumentError(
            f'csr_matmul: missing must be "{DROP}", or of floats "{NAN}", got {missing!r} '
            f"and {data}"
        )
    return ShapedArray((starts.shape[0], dense.shape[1]), data.dtype)


def _narrower(dense, data) -> bool:
    """Whether numbers are read as they are kept, and computed with as floats of `data`."""
    both = dtypes.is_float(data.dtype) and dense.dtype.itemsize < data.dtype.itemsize
    return both and (dtypes.is_float(dense.dtype) or dtypes.is_integer(dense.dtype))


def _impl(xp, data, indices, starts, ends, dense, *, missing=DROP):
    m, nse, dtype = starts.shape[0], data.shape[0], data.dtype
    first = xp.clip(starts, 0, nse).astype(np.int64)
    counts = xp.maximum(xp.clip(ends, 0, nse).astype(np.int64) - first, 0)
    rows = xp.repeat(xp.arange(m), counts)
    at = xp.arange(rows.shape[0]) + xp.repeat(first - (xp.cumsum(counts) - counts), counts)
    columns = indices[at]
    inside = (columns >= 0) & (columns < dense.shape[0])
    lost = rows[~inside] if missing == NAN else rows[:0]
    rows, at, columns = rows[inside], at[inside], columns[inside]
    n = dense.shape[1]
    wide = np.dtype(np.float32) if dtypes.is_float(dtype) and dtype.itemsize < 4 else dtype
    terms = data[at, None].astype(wide) * dense[columns].astype(wide)
    out = xp.zeros((m, n), wide)
    if xp is np and rows.size:
        begun = np.flatnonzero(np.diff(rows, prepend=-1))  # rows ascend
        out[rows[begun]] = np.add.reduceat(terms, begun, axis=0, dtype=wide)
    elif rows.size:
        places = rows[:, None] * n + xp.arange(n)
        add_up = accumulate(lambda xp: xp.add)
        out = add_up(xp, out.ravel(), places.ravel(), terms.ravel()).reshape(m, n)
    if lost.size:
        out[lost] = np.nan
    return out.astype(dtype, copy=False)


# ---- of other ops


def rows_of(starts, ends, nse: int):
    """The row of each of nse entries; the number of rows where an entry belongs to none.

    starts: of each row's entries, ascending

    >>> import funcgrad.numpy as fnp
    >>> rows_of(fnp.array([0, 2, 2]), fnp.array([2, 2, 3]), 4)
    Array([0, 0, 2, 3], dtype=int32)
    """
    m, kind = aval_of(starts).shape[0], position_dtype(nse + 1)
    none = full((nse,), m, kind)
    if not m or not nse:
        return none
    ones = full((m,), 1, kind)
    begun = full((nse,), 0, kind)
    begun = scatter_add(begun, _column(_clamped(starts, nse)), ones, _ELEMENTS_TO, mode="drop")
    rows = sub(cumsum(begun), full((nse,), 1, kind))
    end = gather(ends, _column(rows), _ELEMENTS_AT, (1,), mode="clip")
    place = iota(aval_of(end).dtype, nse)
    inside = bitwise_and(ge(rows, full((nse,), 0, kind)), lt(place, end))
    return select(inside, rows, none)


def _column(x):
    return reshape(x, (aval_of(x).shape[0], 1))


def lines(x, rows, missing=DROP):
    """Rows of a matrix, zeros where there is none, or NaN."""
    value = np.nan if missing == NAN else 0
    if not aval_of(x).shape[0]:
        return full((aval_of(rows).shape[0], aval_of(x).shape[1]), value, aval_of(x).dtype)
    width = aval_of(x).shape[1]
    return gather(x, _column(rows), _ROWS_AT, (1, width), mode="fill", fill_value=value)


def _each(x, columns):
    """The values of entries beside each other."""
    shape = aval_of(x).shape[0], columns
    return broadcast_p.bind(x, shape=shape, broadcast_dimensions=(0,))


def _added(values, rows, count):
    """`count` sums of rows that belong together."""
    start = full((count, aval_of(values).shape[1]), 0, aval_of(values).dtype)
    if not count:
        return start
    return scatter_add(start, _column(rows), values, _ROWS_TO, mode="drop")


def _formula(data, indices, starts, ends, dense, *, missing=DROP):
    rows, dtype = rows_of(starts, ends, aval_of(data).shape[0]), aval_of(data).dtype
    wide = np.float32 if dtypes.is_float(dtype) and dtype.itemsize < 4 else dtype
    data, dense = (convert_element_type(x, wide) for x in (data, dense))
    values = mul(_each(data, aval_of(dense).shape[1]), lines(dense, indices, missing))
    return convert_element_type(_added(values, rows, aval_of(starts).shape[0]), dtype)


# ---- rules


def _jvp(primals, tangents, *, missing=DROP):
    data, *places, dense = primals
    out = csr_matmul_p.bind(data, *places, dense, missing=missing)
    terms = []
    if type(tangents[0]) is not Zero:
        terms.append(csr_matmul_p.bind(tangents[0], *places, dense))
    if type(tangents[-1]) is not Zero:
        terms.append(csr_matmul_p.bind(data, *places, tangents[-1]))
    if not terms:
        return out, Zero(aval_of(out).tangent())
    return out, terms[0] if len(terms) == 1 else add(*terms)


def _transpose(ct, data, indices, starts, ends, dense, *, missing=DROP):
    rows = rows_of(starts, ends, aval_of(indices).shape[0])
    own = lines(ct, rows)
    if is_linear(data):
        factor("csr_matmul", dense)
        dense = convert_element_type(lines(dense, indices), aval_of(ct).dtype)
        sampled = sum_p.bind(mul(own, dense), axes=(1,))
        return [sampled, None, None, None, None]
    values = mul(_each(data, aval_of(ct).shape[1]), own)
    total = _added(values, indices, dense.aval.shape[0])
    return [None, None, None, None, convert_element_type(total, dense.aval.dtype)]


def _batch(axis, args, dims, **params):
    """Dense matrices that vary lie beside each other, sparse ones below each other."""
    data, indices, starts, ends, dense = args
    k, n = (s for i, s in enumerate(aval_of(dense).shape) if i != dims[4])
    if all(d is None for d in dims[:4]):
        wide = reshape(move_axis(dense, dims[4], 1), (k, axis.size * n))
        out = csr_matmul_p.bind(data, indices, starts, ends, wide, **params)
        return reshape(out, (aval_of(out).shape[0], axis.size, n)), 1
    m, flat = below_each_other(axis, args, dims)
    return reshape(csr_matmul_p.bind(*flat, **params), (axis.size, m, n)), 0


def below_each_other(axis, args, dims):
    """How many rows each of many products has, and the operands of all of them as one; behind the
    first four come those whose lines indices are of."""
    size, tables = axis.size, args[4:]
    parts = [batch_front(x, d, size) for x, d in zip(args[:4], dims, strict=False)]
    data, indices, starts, ends = parts
    nse, m = aval_of(data).shape[1], aval_of(starts).shape[1]
    starts, ends = (_below(_clamped(x, nse), nse, nse, size * nse) for x in (starts, ends))
    if any(d is not None for d in dims[4:]):
        tables = [batch_front(x, d, size) for x, d in zip(tables, dims[4:], strict=True)]
        k = aval_of(tables[0]).shape[1]
        tables = [reshape(x, (size * k, *aval_of(x).shape[2:])) for x in tables]
        indices = _below(indices, k - 1, k, size * k)
    return m, [*(reshape(x, (-1,)) for x in (data, indices, starts, ends)), *tables]


def _clamped(x, most):
    """Positions moved into 0 … most."""
    x = convert_element_type(x, position_dtype(most + 1))
    kind, shape = aval_of(x).dtype, aval_of(x).shape
    return min(max(x, full(shape, 0, kind)), full(shape, most, kind))


def _below(x, most, step, outside):
    """Positions in arrays of `step` elements as positions in all of these, one behind the other;
    those beyond `most` are `outside`."""
    shape = aval_of(x).shape
    kind = position_dtype(outside + 1)
    x = convert_element_type(x, kind)
    lead = mul(iota(kind, shape[0]), full(shape[:1], step, kind))
    moved = add(x, broadcast_p.bind(lead, shape=shape, broadcast_dimensions=(0,)))
    inside = bitwise_and(ge(x, full(shape, 0, kind)), le(x, full(shape, most, kind)))
    return select(inside, moved, full(shape, outside, kind))


# data (nse,), indices (nse,), starts (m,), ends (m,), dense (k, n) → (m, n). Entries whose columns
# lie outside 0 … k - 1 are none or, with missing=NAN, make their row NaN, which derivatives pass
# over. Narrow floats are summed in float32; a dense matrix may be of narrower numbers than data.
csr_matmul_p: Primitive = Primitive(
    name="csr_matmul",
    abstract=_abstract,
    impl=_impl,
    jvp=_jvp,
    transpose=_transpose,
    batch=_batch,
    dims=lambda data, indices, starts, ends, dense, **params: "e!, e!, m, m, k! n -> m n",
    formula=_formula,
    passes=2,
)
