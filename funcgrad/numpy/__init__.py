"""NumPy's functions on arrays that differentiate, batch and compile: `funcgrad.numpy as fnp`.

Names, signatures and meaning are NumPy's, with the promotion of JAX. Each module holds one topic;
importing this package gives arrays and tracers their operators and methods. Modules that these do
not need are loaded when one of their names is first asked for.

- `elementwise`: functions of single elements
- `manipulation`: arrays put together, cut, reordered and searched
- `creation`: new arrays: of one value, evenly spaced, on grids, from files
- `reductions`: from many elements to few: sums, extrema, means, ranks and counts
- `linalg`: decompositions, norms, solving
- `contraction`: products of matrices and vectors
- `einsum`: sums of products, as a formula says
- `calculus`: differences, gradients, integrals
- `interpolation`: between points
- `polynomial`: polynomials, and convolution of vectors
- `fft`: discrete Fourier transforms
- `functional`: functions applied along axes and over elements
- `ufuncs`: functions of elements with the methods of NumPy's ufuncs
- `types`: constants, the array type, questions about dtypes
- `methods`: the operators, methods and properties of arrays and tracers
- `array_api`: which namespace arrays are of, and what it says of itself, by the array API standard
- `_util`: what every function does first
- `_known`: arguments whose values a function needs
- `_keys`: arrays of random keys in functions that only move elements
"""

# ruff: noqa: F401, I001 - the names imported here are the public ones, a line holds many
# fmt: off

from typing import TYPE_CHECKING

from funcgrad.core.process import lazy as _lazy
from funcgrad.numpy import methods
from funcgrad.numpy.array_api import __array_api_version__, __array_namespace_info__
from funcgrad.numpy.elementwise.arithmetic import (
    abs, absolute, clip, divide, divmod, fabs, float_power, floor_divide, fmax, fmin, fmod, mod,
    positive, pow, power, reciprocal, remainder, sign, square, true_divide,
)
from funcgrad.numpy.manipulation.choosing import choose, piecewise, select
from funcgrad.numpy.contraction import (
    cross, dot, inner, kron, matmul, matvec, outer, tensordot, trace, vdot, vecdot, vecmat,
)
from funcgrad.numpy.creation.creation import (
    array, asarray, astype, copy, empty, empty_like, eye, from_dlpack, frombuffer, fromfunction,
    fromstring, full, full_like, identity, ones, ones_like, tri, zeros, zeros_like,
)
from funcgrad.numpy.reductions.cumulative import (
    cumprod, cumsum, cumulative_prod, cumulative_sum, nancumprod, nancumsum,
)
from funcgrad.numpy.creation.diagonals import (
    diag, diag_indices, diag_indices_from, diagflat, diagonal, fill_diagonal, mask_indices, tril,
    tril_indices, tril_indices_from, triu, triu_indices, triu_indices_from,
)
from funcgrad.numpy.einsum import einsum, einsum_path
from funcgrad.numpy.elementwise.functions import (
    acos, acosh, angle, arccos, arccosh, arcsin, arcsinh, arctan, arctanh, asin, asinh, atan, atanh,
    cbrt, conj, conjugate, cos, cosh, deg2rad, degrees, exp, exp2, expm1, imag, log, log10,
    log1p, log2, rad2deg, radians, real, sin, sinc, sinh, sqrt, tan, tanh,
)
from funcgrad.numpy.elementwise.floats import (
    around, ceil, copysign, fix, floor, frexp, ldexp, modf, nan_to_num, nextafter, rint, round,
    signbit, spacing, trunc,
)
from funcgrad.numpy.manipulation.indexing import (
    argwhere, compress, extract, flatnonzero, nonzero, place, put, put_along_axis, take,
    take_along_axis, where,
)
from funcgrad.numpy.manipulation.joining import (
    append, array_split, block, column_stack, concat, concatenate, dsplit, dstack, hsplit, hstack,
    repeat, resize, roll, split, stack, tile, trim_zeros, unstack, vsplit, vstack,
)
from funcgrad.numpy.elementwise.logic import (
    allclose, array_equal, array_equiv, bitwise_count, bitwise_invert, bitwise_left_shift,
    bitwise_not, bitwise_right_shift, equal, greater, greater_equal, invert, isclose, iscomplex,
    isfinite, isinf, isnan, isneginf, isposinf, isreal, left_shift, less, less_equal, logical_not,
    not_equal, right_shift,
)
from funcgrad.numpy.reductions.reductions import (
    all, amax, amin, any, argmax, argmin, count_nonzero, max, mean, min, prod, ptp, std, sum, var,
)
from funcgrad.numpy.manipulation.shape import (
    atleast_1d, atleast_2d, atleast_3d, broadcast_arrays, broadcast_to, expand_dims, flip, fliplr,
    flipud, matrix_transpose, moveaxis, permute_dims, ravel, reshape, rollaxis, rot90, squeeze,
    swapaxes, transpose,
)
from funcgrad.numpy.manipulation.sorting import (
    argpartition, argsort, digitize, lexsort, partition, searchsorted, sort, sort_complex,
)
from funcgrad.numpy.types import (
    ComplexWarning, array_repr, array_str, bfloat16, bool_, bool_ as bool, broadcast_shapes,
    can_cast, cdouble, character, flexible, object_, complex128, complex64, complex_,
    complexfloating, csingle, double, dtype, e, euler_gamma, finfo, float16, float32, float64,
    float8_e3m4, float8_e4m3, float8_e4m3b11fnuz, float8_e4m3fn, float8_e4m3fnuz, float8_e5m2,
    float8_e5m2fnuz, float_, floating, generic, get_printoptions, iinfo, inexact, inf, int16, int32,
    int4, int64, int8, int_, integer, iscomplexobj, isdtype, isrealobj, isscalar, issubdtype,
    iterable, nan, ndarray, ndim, newaxis, number, pi, printoptions, promote_types, result_type,
    set_printoptions, shape, signedinteger, single, size, uint, uint16, uint32, uint4, uint64,
    uint8, unsignedinteger,
)

if TYPE_CHECKING:
    from funcgrad.numpy import fft, linalg
    from funcgrad.numpy.manipulation.bits import packbits, unpackbits
    from funcgrad.numpy.calculus import diff, ediff1d, gradient, trapezoid, unwrap
    from funcgrad.numpy.creation.files import fromiter, load, save, savez
    from funcgrad.numpy.functional import apply_along_axis, apply_over_axes, vectorize
    from funcgrad.numpy.creation.grids import (
        indices, ix_, meshgrid, ravel_multi_index, unravel_index,
    )
    from funcgrad.numpy.manipulation.insertion import delete, insert
    from funcgrad.numpy.interpolation import interp
    from funcgrad.numpy.reductions.nan import (
        average, nanargmax, nanargmin, nanmax, nanmean, nanmin, nanprod, nanstd, nansum, nanvar,
    )
    from funcgrad.numpy.manipulation.padding import pad
    from funcgrad.numpy.elementwise.pairs import arctan2, atan2, gcd, heaviside, hypot, lcm
    from funcgrad.numpy.polynomial import (
        convolve, correlate, poly, polyadd, polyder, polydiv, polyfit, polyint, polymul, polysub,
        polyval, roots, vander,
    )
    from funcgrad.numpy.reductions.quantiles import (
        median, nanmedian, nanpercentile, nanquantile, percentile, quantile,
    )
    from funcgrad.numpy.creation.ranges import arange, geomspace, linspace, logspace
    from funcgrad.numpy.manipulation.sets import (
        intersect1d, isin, setdiff1d, setxor1d, union1d, unique, unique_all, unique_counts,
        unique_inverse, unique_values,
    )
    from funcgrad.numpy.creation.slices import c_, index_exp, mgrid, ogrid, r_, s_
    from funcgrad.numpy.reductions.statistics import (
        bincount, corrcoef, cov, histogram, histogram2d, histogram_bin_edges, histogramdd,
    )
    from funcgrad.numpy.ufuncs import (
        add, bitwise_and, bitwise_or, bitwise_xor, frompyfunc, logaddexp, logaddexp2, logical_and,
        logical_or, logical_xor, maximum, minimum, multiply, negative, subtract, ufunc,
    )
    from funcgrad.numpy.creation.windows import bartlett, blackman, hamming, hanning, i0, kaiser

_LATER = {
    "funcgrad.numpy.manipulation.bits": "packbits unpackbits",
    "funcgrad.numpy.calculus": "diff ediff1d gradient trapezoid unwrap",
    "funcgrad.numpy.creation.files": "fromiter load save savez",
    "funcgrad.numpy.functional": "apply_along_axis apply_over_axes vectorize",
    "funcgrad.numpy.creation.grids": "indices ix_ meshgrid ravel_multi_index unravel_index",
    "funcgrad.numpy.manipulation.insertion": "delete insert",
    "funcgrad.numpy.interpolation": "interp",
    "funcgrad.numpy.reductions.nan":
        "average nanargmax nanargmin nanmax nanmean nanmin nanprod nanstd nansum nanvar",
    "funcgrad.numpy.manipulation.padding": "pad",
    "funcgrad.numpy.elementwise.pairs": "arctan2 atan2 gcd heaviside hypot lcm",
    "funcgrad.numpy.polynomial":
        "convolve correlate poly polyadd polyder polydiv polyfit polyint polymul polysub polyval "
        "roots vander",
    "funcgrad.numpy.reductions.quantiles":
        "median nanmedian nanpercentile nanquantile percentile quantile",
    "funcgrad.numpy.creation.ranges": "arange geomspace linspace logspace",
    "funcgrad.numpy.manipulation.sets":
        "intersect1d isin setdiff1d setxor1d union1d unique unique_all unique_counts "
        "unique_inverse unique_values",
    "funcgrad.numpy.creation.slices": "c_ index_exp mgrid ogrid r_ s_",
    "funcgrad.numpy.reductions.statistics":
        "bincount corrcoef cov histogram histogram2d histogram_bin_edges histogramdd",
    "funcgrad.numpy.ufuncs":
        "add bitwise_and bitwise_or bitwise_xor frompyfunc logaddexp logaddexp2 logical_and "
        "logical_or logical_xor maximum minimum multiply negative subtract ufunc",
    "funcgrad.numpy.creation.windows": "bartlett blackman hamming hanning i0 kaiser",
}

__getattr__, __dir__ = _lazy.names(__name__, _LATER, ["fft", "linalg"])
