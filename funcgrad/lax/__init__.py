"""The vocabulary of programs: the ops with their exact semantics, control flow and collectives.

Names and meaning are those of `jax.lax`. Nothing promotes or broadcasts here, but scalars: that is
what `funcgrad.numpy` does, which is made of these.
"""

# ruff: noqa: F401, I001 - the names imported here are the public ones, a line holds many
# fmt: off

import sys

from funcgrad.core.primitive import Primitive
from funcgrad.errors import no_attribute as _no_attribute
from funcgrad.lax import linalg
from funcgrad.lax.bits import RandomAlgorithm, rng_bit_generator
from funcgrad.lax.filled import (
    broadcast_like, broadcast_shapes, broadcast_to_rank, dtype, empty, full, full_like,
    pswapaxes, stack, tile, unstack,
)
from funcgrad.ops.elementwise.arithmetic import (
    abs,
    cbrt,
    complex,
    conj,
    div,
    imag,
    integer_pow,
    max,
    min,
    mul,
    mulhi,
    neg,
    real,
    reciprocal,
    rem,
    rsqrt,
    sign,
    sqrt,
    square,
    sub,
)
from funcgrad.ops.barrier import optimization_barrier
from funcgrad.ops.collective.reductions import (
    all_gather,
    axis_index,
    axis_size,
    pmax,
    pmean,
    pmin,
    psum,
    psum_scatter,
)
from funcgrad.ops.collective.exchanges import all_to_all, ppermute, pshuffle
from funcgrad.ops.collective.varying import pbroadcast, pcast, pvary
from funcgrad.ops.elementwise.compare import (
    bitwise_and,
    bitwise_not,
    bitwise_or,
    bitwise_xor,
    clz,
    eq,
    eq_to,
    ge,
    gt,
    le,
    le_to,
    lt,
    lt_to,
    ne,
    population_count,
    shift_left,
    shift_right_arithmetic,
    shift_right_logical,
)
from funcgrad.ops.contract import batch_matmul, dot, dot_general
from funcgrad.ops.convolution.conv import (
    ConvDimensionNumbers,
    conv_dimension_numbers,
    conv_general_dilated,
)
from funcgrad.ops.convolution.variants import (
    conv,
    conv_general_dilated_local,
    conv_general_dilated_patches,
    conv_transpose,
    conv_with_general_padding,
)
from funcgrad.ops.elementwise.convert import (
    bitcast_convert_type,
    clamp,
    convert_element_type,
    copy,
    reduce_precision,
    select,
    select_n,
    stop_gradient,
)
from funcgrad.ops.cumulative import cumlogsumexp, cummax, cummin, cumprod, cumsum
from funcgrad.ops.families import add
from funcgrad.ops.fft import FftType, fft
from funcgrad.ops.indexing.gather import gather
from funcgrad.ops.indexing.windows_at import (
    dynamic_index_in_dim,
    dynamic_slice,
    dynamic_slice_in_dim,
    dynamic_update_index_in_dim,
    dynamic_update_slice,
    dynamic_update_slice_in_dim,
    index_in_dim,
    index_take,
    slice_in_dim,
)
from funcgrad.ops.convolution.padding import padtype_to_pads
from funcgrad.ops.precision import Precision
from funcgrad.ops.reduce import (
    argmax, argmin, reduce, reduce_and, reduce_max, reduce_min, reduce_or, reduce_prod,
    reduce_sum, reduce_xor,
)
from funcgrad.ops.elementwise.rounding import (
    RoundingMethod,
    ceil,
    floor,
    is_finite,
    nextafter,
    round,
)
from funcgrad.ops.indexing.scatter import (
    scatter,
    scatter_add,
    scatter_max,
    scatter_min,
    scatter_mul,
    scatter_sub,
)
from funcgrad.ops.shape import (
    broadcast, broadcast_in_dim, broadcasted_iota, collapse, concatenate, expand_dims, iota, pad,
    reshape, rev, slice, split, squeeze, transpose,
)
from funcgrad.ops.sort import approx_max_k, approx_min_k, argsort, sort, sort_key_val, top_k
from funcgrad.ops.elementwise.special import (
    bessel_i0e,
    bessel_i1e,
    betainc,
    digamma,
    erf,
    erf_inv,
    erfc,
    igamma,
    igamma_grad_a,
    igammac,
    lgamma,
    polygamma,
    random_gamma_grad,
    zeta,
)
from funcgrad.ops.elementwise.transcendental import (
    acos,
    acosh,
    asin,
    asinh,
    atan,
    atan2,
    atanh,
    cos,
    cosh,
    exp,
    exp2,
    expm1,
    log,
    log1p,
    logistic,
    pow,
    sin,
    sinh,
    tan,
    tanh,
)
from funcgrad.ops.convolution.pooling import reduce_window
from funcgrad.ops.indexing.windows import (
    GatherDimensionNumbers,
    GatherScatterMode,
    ScatterDimensionNumbers,
)
from funcgrad.transforms.control.cond import cond, switch
from funcgrad.transforms.derivatives.implicit import custom_linear_solve, custom_root
from funcgrad.transforms.control.parallel_scan import associative_scan, map
from funcgrad.transforms.control.repeated import scatter_apply
from funcgrad.lax.scaled import scaled_dot
from funcgrad.lax import primitives
from funcgrad.lax.ragged import RaggedDotDimensionNumbers, ragged_dot, ragged_dot_general
from funcgrad.transforms.control.scan import scan
from funcgrad.transforms.control.while_loop import fori_loop, while_loop
from funcgrad.transforms.jit.composite import composite, platform_dependent


def __getattr__(name: str) -> object:
    """An op's primitive by JAX's name: `sin_p` is `sin` itself, `scan_p` what `scan` binds."""
    if name.endswith("_p"):
        if name in primitives.__all__:
            return getattr(primitives, name)
        own = globals().get(name.removesuffix("_p"))
        homes = [m for key, m in list(sys.modules.items()) if key.startswith("funcgrad.")]
        for found in (own, *(vars(m).get(name) for m in homes if hasattr(m, "__dict__"))):
            if isinstance(found, Primitive) and found.name == name.removesuffix("_p"):
                return found
    raise _no_attribute("funcgrad.lax", name)
