"""The vocabulary of programs: the ops with their exact semantics, control flow and collectives.

Names and meaning are those of `jax.lax`. Nothing promotes or broadcasts here, but scalars: that is
what `funcgrad.numpy` does, which is made of these.
"""

# ruff: noqa: F401, I001 - the names imported here are the public ones, a line holds many
# fmt: off

import sys as _sys
from typing import TYPE_CHECKING

from funcgrad.core.process import lazy as _lazy
from funcgrad.core.primitive import Primitive as _Primitive
from funcgrad.ops.elementwise.arithmetic import (
    abs, cbrt, complex, conj, div, imag, integer_pow, max, min, mul, mulhi, neg, real, reciprocal,
    rem, rsqrt, sign, sqrt, square, sub,
)
from funcgrad.ops.elementwise.compare import (
    bitwise_and, bitwise_not, bitwise_or, bitwise_xor, clz, eq, eq_to, ge, gt, le, le_to, lt, lt_to,
    ne, population_count, shift_left, shift_right_arithmetic, shift_right_logical,
)
from funcgrad.ops.contract import batch_matmul, dot, dot_general
from funcgrad.ops.convolution.conv import (
    ConvDimensionNumbers, conv_dimension_numbers, conv_general_dilated,
)
from funcgrad.ops.elementwise.convert import (
    bitcast_convert_type, clamp, convert_element_type, copy, reduce_precision, select, select_n,
    stop_gradient,
)
from funcgrad.ops.cumulative import cumlogsumexp, cummax, cummin, cumprod, cumsum
from funcgrad.ops.families import add
from funcgrad.ops.indexing.gather import gather
from funcgrad.ops.indexing.windows_at import (
    dynamic_index_in_dim, dynamic_slice, dynamic_slice_in_dim, dynamic_update_index_in_dim,
    dynamic_update_slice, dynamic_update_slice_in_dim, index_in_dim, index_take, slice_in_dim,
)
from funcgrad.ops.convolution.padding import padtype_to_pads
from funcgrad.ops.precision import Precision
from funcgrad.ops.reduce import (
    argmax, argmin, reduce, reduce_and, reduce_max, reduce_min, reduce_or, reduce_prod, reduce_sum,
    reduce_xor,
)
from funcgrad.ops.elementwise.rounding import (
    RoundingMethod, ceil, floor, is_finite, nextafter, round,
)
from funcgrad.ops.indexing.scatter import (
    scatter, scatter_add, scatter_max, scatter_min, scatter_mul, scatter_sub,
)
from funcgrad.ops.shape import (
    broadcast, broadcast_in_dim, broadcasted_iota, collapse, concatenate, expand_dims, iota, pad,
    reshape, rev, slice, split, squeeze, transpose,
)
from funcgrad.ops.sort import approx_max_k, approx_min_k, argsort, sort, sort_key_val, top_k
from funcgrad.ops.elementwise.transcendental import (
    acos, acosh, asin, asinh, atan, atan2, atanh, cos, cosh, exp, exp2, expm1, log, log1p, logistic,
    pow, sin, sinh, tan, tanh,
)
from funcgrad.ops.indexing.windows import (
    GatherDimensionNumbers, GatherScatterMode, ScatterDimensionNumbers,
)
from funcgrad.transforms.control.cond import cond, switch
from funcgrad.transforms.control.repeated import scatter_apply
from funcgrad.transforms.control.scan import scan
from funcgrad.transforms.control.while_loop import fori_loop, while_loop

if TYPE_CHECKING:
    from funcgrad.lax import linalg, primitives
    from funcgrad.lax.bits import RandomAlgorithm, rng_bit_generator
    from funcgrad.lax.filled import (
        broadcast_like, broadcast_shapes, broadcast_to_rank, dtype, empty, full, full_like,
        pswapaxes, stack, tile, unstack,
    )
    from funcgrad.ops.barrier import optimization_barrier
    from funcgrad.ops.collective.reductions import (
        all_gather, axis_index, axis_size, pmax, pmean, pmin, psum, psum_scatter,
    )
    from funcgrad.ops.collective.exchanges import all_to_all, ppermute, pshuffle
    from funcgrad.ops.collective.varying import pbroadcast, pcast, pvary
    from funcgrad.ops.convolution.variants import (
        conv, conv_general_dilated_local, conv_general_dilated_patches, conv_transpose,
        conv_with_general_padding,
    )
    from funcgrad.ops.elementwise.special import (
        bessel_i0e, bessel_i1e, betainc, digamma, erf, erf_inv, erfc, igamma, igamma_grad_a,
        igammac, lgamma, polygamma, random_gamma_grad, zeta,
    )
    from funcgrad.ops.fft import FftType, fft
    from funcgrad.ops.convolution.pooling import reduce_window
    from funcgrad.transforms.derivatives.implicit import custom_linear_solve, custom_root
    from funcgrad.transforms.control.parallel_scan import associative_scan, map
    from funcgrad.lax.scaled import scaled_dot
    from funcgrad.lax.ragged import RaggedDotDimensionNumbers, ragged_dot, ragged_dot_general
    from funcgrad.transforms.jit.composite import composite, platform_dependent

_LATER = {
    "funcgrad.lax.bits": "RandomAlgorithm rng_bit_generator",
    "funcgrad.lax.filled":
        "broadcast_like broadcast_shapes broadcast_to_rank dtype empty full full_like pswapaxes "
        "stack tile unstack",
    "funcgrad.ops.barrier": "optimization_barrier",
    "funcgrad.ops.collective.reductions":
        "all_gather axis_index axis_size pmax pmean pmin psum psum_scatter",
    "funcgrad.ops.collective.exchanges": "all_to_all ppermute pshuffle",
    "funcgrad.ops.collective.varying": "pbroadcast pcast pvary",
    "funcgrad.ops.convolution.variants":
        "conv conv_general_dilated_local conv_general_dilated_patches conv_transpose "
        "conv_with_general_padding",
    "funcgrad.ops.elementwise.special":
        "bessel_i0e bessel_i1e betainc digamma erf erf_inv erfc igamma igamma_grad_a igammac "
        "lgamma polygamma random_gamma_grad zeta",
    "funcgrad.ops.fft": "FftType fft",
    "funcgrad.ops.convolution.pooling": "reduce_window",
    "funcgrad.transforms.derivatives.implicit": "custom_linear_solve custom_root",
    "funcgrad.transforms.control.parallel_scan": "associative_scan map",
    "funcgrad.lax.scaled": "scaled_dot",
    "funcgrad.lax.ragged": "RaggedDotDimensionNumbers ragged_dot ragged_dot_general",
    "funcgrad.transforms.jit.composite": "composite platform_dependent",
}

_later, __dir__ = _lazy.names(__name__, _LATER, ["linalg", "primitives"])


def __getattr__(name: str) -> object:
    """An op's primitive by JAX's name: `sin_p` is `sin` itself, `scan_p` what `scan` binds."""
    return _primitive(name) if name.endswith("_p") else _later(name)


def _primitive(name: str) -> object:
    if name in (listed := vars(_later("primitives"))):
        return listed[name]
    for first in ("linalg", *[held.partition(" ")[0] for held in _LATER.values()]):
        _later(first)  # loads what has more primitives
    homes = [m for key, m in list(_sys.modules.items()) if key.startswith("funcgrad.")]
    names = (name.removesuffix("_p"), name)
    for found in (vars(m).get(n) for n in names for m in homes if hasattr(m, "__dict__")):
        if isinstance(found, _Primitive) and found.name == names[0]:
            return found
    return _later(name)
