"""Histograms and counts, covariance and correlation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from funcgrad import dtypes
from funcgrad.core.array import Array
from funcgrad.core.aval import promote as promote_avals
from funcgrad.core.trace import is_known
from funcgrad.errors import DTypeError, ShapeError, within
from funcgrad.numpy._known import concrete
from funcgrad.numpy._util import (
    as_array,
    as_dtype,
    convert,
    default_float,
    default_int,
    dtype_or,
    index_dtype,
    integer,
    items_of,
    need_real,
    promote,
    promote_inexact,
)
from funcgrad.numpy.contraction import matmul
from funcgrad.numpy.creation.diagonals import diag
from funcgrad.numpy.creation.ranges import linspace
from funcgrad.numpy.elementwise.arithmetic import clip, maximum, true_divide
from funcgrad.numpy.elementwise.functions import conjugate, imag, real, sqrt
from funcgrad.numpy.manipulation.indexing import where
from funcgrad.numpy.manipulation.joining import arrays_of, concatenate
from funcgrad.numpy.manipulation.shape import atleast_2d, ravel, reshape, squeeze, transpose
from funcgrad.numpy.manipulation.sorting import searchsorted
from funcgrad.numpy.reductions.reductions import max as greatest
from funcgrad.numpy.reductions.reductions import min as least
from funcgrad.numpy.reductions.reductions import sum as total_of
from funcgrad.ops.base import full, size_of
from funcgrad.ops.elementwise.arithmetic import complex as complex_of
from funcgrad.ops.indexing.indexing import index_update
from funcgrad.ops.indexing.plan import known
from funcgrad.ops.sharding import cut_as_said

__all__ = [
    "bincount", "corrcoef", "cov", "histogram", "histogram2d", "histogram_bin_edges", "histogramdd",
]  # fmt: skip

# ---- counts


def bincount(
    x: Any,
    weights: Any = None,
    minlength: int = 0,
    *,
    length: int | None = None,
    out_sharding: Any = None,
) -> Any:
    """How often each number 0, 1, 2, … occurs in a vector of integers, or the sum of `weights`.

    The result is as long as the greatest number needs, but at least `minlength`. Where x is traced
    `length` must say how long: greater numbers are left out, negative ones count as 0. Known
    negative ones raise ValueError. `out_sharding` is how the result is to be cut over a mesh.

    >>> fnp.bincount(fnp.array([1, 3, 1]))
    Array([0, 2, 0, 1], dtype=int32)
    """
    if out_sharding is not None:
        return cut_as_said(bincount(x, weights, minlength, length=length), out_sharding)
    x = as_array("bincount", x, "x")
    if x.ndim != 1:
        raise ShapeError(f"bincount: x must be a vector, got {x.aval}")
    if x.dtype.kind not in "iub":
        raise DTypeError(f"bincount: x must be integers, got {x.aval}")
    if length is None:
        hint = "Give the length of the result: fnp.bincount(x, length=n)."
        value = concrete("bincount", "x", x, hint)
        length = max(int(value.max()) + 1 if value.size else 0, integer("minlength", minlength))
    if is_known(x) and np.any(known(x) < 0):
        raise ValueError("bincount: x must not be negative")
    if weights is None:
        counted = full(x.shape, 1, index_dtype(x.size + 1))
    else:
        counted = as_array("bincount", weights, "weights")
        if counted.shape != x.shape:
            raise ShapeError(f"bincount: weights {counted.aval} must have the shape of x {x.aval}")
    if x.dtype == dtypes.BOOL or dtypes.iinfo(x.dtype).bits < 32:
        x = convert(x, default_int())
    out = full((integer("length", length),), 0, counted.dtype)
    return index_update(out, maximum(x, 0), counted, "add", mode="drop")


# ---- histograms


def histogram_bin_edges(a: Any, bins: Any = 10, range: Any = None, weights: Any = None) -> Any:
    """The edges of the bins of a histogram: bins + 1 numbers from the least to the greatest.

    `range` = (low, high) replaces these two. `bins` may be the edges themselves, or, where `a` is
    known, the name of one of NumPy's estimators ("auto", "fd", …).

    >>> fnp.histogram_bin_edges(fnp.array([0.0, 1.0, 4.0]), bins=2)
    Array([0., 2., 4.], dtype=float32)
    """
    name = "histogram_bin_edges"
    (a,) = promote_inexact(name, a)
    if isinstance(bins, str):
        value = concrete(name, "a", a, "Give the number of bins as an integer.")
        try:
            return convert(Array(np.histogram_bin_edges(value, bins, range)), a.dtype)
        except ValueError as e:
            raise ValueError(within(f"{name}: {e}")) from None
    if _is_sequence(bins):
        edges = as_array(name, np.asarray(bins) if isinstance(bins, list | tuple) else bins)
        return convert(edges, dtypes.to_inexact(promote_avals([edges.aval, a.aval])[0], a.dtype))
    count = integer("bins", bins)
    if count < 1:
        raise ValueError(f"{name}: bins must be positive, got {bins}")
    if range is not None:
        low, high = (as_dtype(name, r, a.dtype, "range") for r in _ends(name, range))
    elif not a.size:
        low, high = (as_array(name, v) for v in (0.0, 1.0))
    else:
        low, high = least(a), greatest(a)
    flat = low == high
    low, high = where(flat, low - 0.5, low), where(flat, high + 0.5, high)
    return linspace(low, high, count + 1, dtype=a.dtype)


def _ends(name: str, range: Any) -> list:
    ends = items_of("range", range)
    if len(ends) != 2:
        raise ValueError(f"{name}: range must be (low, high), got {range!r}")
    return ends


def _is_sequence(bins: Any) -> bool:
    return isinstance(bins, list | tuple) or getattr(bins, "ndim", 0) == 1


def _bins(x: Any, edges: Any) -> Any:
    """The bin of each element; -1 and the number of bins stand for those outside."""
    last = edges.shape[0] - 1
    place = searchsorted(edges, x, side="right")
    # The last bin has both its edges.
    return where(x == edges[last], last, place) - 1


def _add_up(bins: Any, weights: Any, sizes: tuple[int, ...]) -> Any:
    """The sums of weights in each bin of a grid; bins outside are left out."""
    inside, flat, count = True, 0, size_of(sizes)
    for place, n in zip(bins, sizes, strict=True):
        inside = inside & (place >= 0) & (place < n)
        flat = flat * n + convert(place, index_dtype(count + 1))
    out = index_update(
        full((count,), 0, weights.dtype), where(inside, flat, count), weights, "add", mode="drop"
    )
    return reshape(out, sizes)


def _weights(name: str, weights: Any, x: Any) -> tuple[Any, np.dtype]:
    """One for each element, by default 1, and the dtype of their sums.

    As in JAX, counts are floating-point numbers; but they are counted in integers.
    """
    if weights is None:
        dtype = promote_inexact(name, x)[0].dtype
        ones = full((x.size,), 1, index_dtype(x.size + 1))
        return ones, dtype if dtype.itemsize >= 4 else default_float()
    weights = as_array(name, weights, "weights")
    if weights.size != x.size:
        raise ShapeError(f"{name}: weights {weights.aval} must have as many elements as {x.aval}")
    return ravel(weights), weights.dtype


def histogram(
    a: Any, bins: Any = 10, range: Any = None, weights: Any = None, density: bool | None = None
) -> tuple[Any, Any]:
    """How many elements (or what sum of `weights`) lie in each bin, and the bins' edges.

    Bins hold their lower edge, the last one both. See `histogram_bin_edges` for `bins` and
    `range`. With `density` the histogram's integral is 1. Counts are floating-point numbers.

    >>> fnp.histogram(fnp.array([0.0, 1.0, 3.0, 4.0]), bins=2)
    (Array([2., 2.], dtype=float32), Array([0., 2., 4.], dtype=float32))
    """
    a = as_array("histogram", a, "a")
    need_real("histogram", a)
    edges = histogram_bin_edges(a, bins, range)
    counts, dtype = _weights("histogram", weights, a)
    x, own = promote("histogram", ravel(a), edges)
    out = convert(_add_up([_bins(x, own)], counts, (edges.shape[0] - 1,)), dtype)
    if density:
        out = true_divide(out, edges[1:] - edges[:-1]) / total_of(out)
    return out, edges


def histogram2d(
    x: Any,
    y: Any,
    bins: Any = 10,
    range: Any = None,
    weights: Any = None,
    density: bool | None = None,
) -> tuple[Any, Any, Any]:
    """The histogram of points (x, y): H[i, j] counts x in bin i, y in bin j; and both edges.

    `bins` and `range` are for both, or a pair of them; see `histogram`.

    >>> h, xedges, yedges = fnp.histogram2d(fnp.array([0.0, 1.0]), fnp.array([0.0, 2.0]), bins=2)
    >>> h
    Array([[1., 0.],
           [0., 1.]], dtype=float32)
    """
    pair = [bins, bins] if _is_sequence(bins) and len(bins) != 2 else bins
    h, (xedges, yedges) = _grid("histogram2d", [x, y], pair, range, weights, density)
    return h, xedges, yedges


def histogramdd(
    sample: Any, bins: Any = 10, range: Any = None, weights: Any = None, density: bool | None = None
) -> tuple[Any, list]:
    """The histogram of points in D dimensions, and the list of the D arrays of edges.

    `sample` is (points, D), or a list of D vectors. `bins` is a number, or a list of numbers or
    edges, `range` a list of (low, high) or None. See `histogram`.

    >>> h, edges = fnp.histogramdd(fnp.array([[0.0, 0.0], [1.0, 2.0]]), bins=2)
    >>> h
    Array([[1., 0.],
           [0., 1.]], dtype=float32)
    """
    if isinstance(sample, list | tuple):
        columns = arrays_of("histogramdd", sample, "sample")
    else:
        sample = as_array("histogramdd", sample, "sample")
        if sample.ndim != 2:
            raise ShapeError(f"histogramdd: sample must be (points, D), got {sample.aval}")
        columns = [sample[:, i] for i in np.arange(sample.shape[1])]
    return _grid("histogramdd", columns, bins, range, weights, density)


def _grid(
    name: str, columns: Sequence[Any], bins: Any, range: Any, weights: Any, density: Any
) -> tuple[Any, list]:
    columns = promote(name, *columns)
    if any(c.ndim != 1 or c.shape != columns[0].shape for c in columns):
        listed = ", ".join(str(c.aval) for c in columns)
        raise ShapeError(f"{name}: need vectors of one length, got {listed}")
    n = len(columns)
    each = list(bins) if _is_sequence(bins) else [bins] * n
    ranges = [None] * n if range is None else items_of("range", range)
    if len(each) != n or len(ranges) != n:
        raise ValueError(f"{name}: bins and range must be for {n} axes")
    edges = [histogram_bin_edges(c, b, r) for c, b, r in zip(columns, each, ranges, strict=True)]
    places = [_bins(*promote(name, c, e)) for c, e in zip(columns, edges, strict=True)]
    sizes = tuple(e.shape[0] - 1 for e in edges)
    counts, dtype = _weights(name, weights, columns[0])
    out = convert(_add_up(places, counts, sizes), dtype)
    if density:
        out = true_divide(out, total_of(out))
        for i, e in enumerate(edges):
            line = [-1 if j == i else 1 for j in np.arange(n)]
            out = out / reshape(e[1:] - e[:-1], line)
    return out, edges


# ---- covariance


def cov(
    m: Any,
    y: Any = None,
    rowvar: bool = True,
    bias: bool = False,
    ddof: int | None = None,
    fweights: Any = None,
    aweights: Any = None,
    dtype: Any = None,
) -> Any:
    """The covariance matrix of variables, the rows of `m` (columns unless `rowvar`) and of `y`.

    Sums are divided by the number of observations less `ddof` (by default 1, or 0 with `bias`).
    `fweights` says how often each observation occurred (integers), `aweights` how much it weighs.

    >>> fnp.cov(fnp.array([[0.0, 1.0, 2.0], [2.0, 1.0, 0.0]]))
    Array([[ 1., -1.],
           [-1.,  1.]], dtype=float32)
    """
    parts = [m] if y is None else [m, y]
    parts = promote_inexact("cov", *parts)
    if any(p.ndim > 2 for p in parts):
        raise ShapeError("cov: m and y must have at most two axes")
    if dtype is not None:
        parts = [convert(p, dtype_or(dtype, p.dtype)) for p in parts]
    rows = [atleast_2d(p) for p in parts]
    if not rowvar:
        rows = [transpose(r) if p.ndim == 2 else r for r, p in zip(rows, parts, strict=True)]
    x = concatenate(rows) if len(rows) > 1 else rows[0]
    if ddof is None:
        ddof = 0 if bias else 1
    weights = _observation_weights(fweights, aweights, x)
    if weights is None:
        total: Any = x.shape[1]
        centered = x - total_of(x, axis=1, keepdims=True) / total
        factor, weighted = total - as_array("cov", ddof, "ddof"), centered
    else:
        weights = convert(weights, dtypes.real_part(x.dtype))
        total = total_of(weights)
        centered = x - total_of(x * weights, axis=1, keepdims=True) / total
        share = 1 if aweights is None else total_of(weights * as_array("cov", aweights)) / total
        factor, weighted = total - ddof * share, centered * weights
    out = matmul(weighted, transpose(conjugate(centered)))
    if isinstance(factor, int):
        factor = max(factor, 0)
    return squeeze(true_divide(out, as_dtype("cov", factor, out.dtype)))


def _observation_weights(fweights: Any, aweights: Any, x: Any) -> Any:
    weights = None
    for argument, given in (("fweights", fweights), ("aweights", aweights)):
        if given is None:
            continue
        w = as_array("cov", given, argument)
        if w.shape != x.shape[1:]:
            raise ShapeError(
                f"cov: {argument} must be one for each of {x.shape[1]} observations, got {w.aval}"
            )
        if argument == "fweights" and not dtypes.is_integer(w.dtype):
            raise DTypeError(f"cov: fweights must be integers, got {w.aval}")
        weights = w if weights is None else weights * w
    return weights


def corrcoef(x: Any, y: Any = None, rowvar: bool = True, dtype: Any = None) -> Any:
    """The correlation coefficients of variables, from -1 to 1; see `cov` for the arguments.

    >>> fnp.corrcoef(fnp.array([[0.0, 1.0, 2.0], [4.0, 2.0, 0.0]]))
    Array([[ 1., -1.],
           [-1.,  1.]], dtype=float32)
    """
    c = cov(x, y, rowvar, dtype=dtype)
    if not c.ndim:
        return c / c
    deviation = sqrt(real(diag(c)))
    c = c / deviation[:, None] / deviation[None, :]
    if dtypes.is_complex(c.dtype):
        return complex_of(clip(real(c), -1, 1), clip(imag(c), -1, 1))
    return clip(c, -1, 1)
