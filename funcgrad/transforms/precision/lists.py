"""Which ops are computed in which dtype, where nothing else is said.

Products take nearly all of the time, and lose little: their sums are of float32 whatever their
operands are. Sums of many terms, exponentials, logarithms, powers and roots lose much. What is
neither takes its operands as they come. (Micikevicius et al., "Mixed Precision Training", 2018; the
lists are those of torch.amp, but that a sum of a narrow value and a float32 one is float32.)
"""

from __future__ import annotations

from typing import NamedTuple

from funcgrad.core.primitive import Primitive
from funcgrad.ops import contract, cumulative, families, reduce, slicing, sort
from funcgrad.ops.collective import exchanges, reductions, varying
from funcgrad.ops.convolution import conv, pooling
from funcgrad.ops.elementwise import arithmetic, compare, convert, rounding, transcendental
from funcgrad.ops.indexing import gather, scatter, windows_at
from funcgrad.ops.sharding import sharding_constraint_p
from funcgrad.transforms import grouped
from funcgrad.transforms.attention import attention

COMPUTE, FLOAT32, KEEP, BFLOAT16 = "compute", "float32", "keep", "bfloat16"


class Product(NamedTuple):
    """A product: which operands are its factors, and which parameter holds the result's dtype."""

    factors: tuple[int, ...]
    dtype: str = ""


PRODUCTS: dict[Primitive, Product] = {
    contract.dot_general_p: Product((0, 1), "preferred_element_type"),
    conv.conv_general_dilated_p: Product((0, 1), "preferred_element_type"),
    grouped.ragged_dot_p: Product((0, 1), "dtype"),
    grouped.ragged_outer_p: Product((0, 1), "dtype"),
    # Beside factors there are statistics, biases and their tangents, which are float32.
    attention.attention_p: Product((0, 1, 2)),
    attention.attention_tangent_p: Product((0, 1, 2, 3, 5, 6, 7)),
    attention.attention_backward_p: Product((0, 1, 2, 3, 5)),
}

# Beside those that only move elements, or choose some.
_AS_THEY_COME = frozenset({
    families.add, arithmetic.sub, arithmetic.mul, arithmetic.div, arithmetic.rem, arithmetic.neg,
    arithmetic.abs, arithmetic.sign, arithmetic.max, arithmetic.min,
    rounding.floor, rounding.ceil, rounding.round_p, rounding.is_finite,
    compare.eq, compare.ne, compare.lt, compare.le, compare.gt, compare.ge,
    convert.select_n_p, convert.clamp, convert.copy,
    transcendental.tanh, transcendental.logistic, transcendental.sin, transcendental.cos,
    reduce.argmax_p, reduce.argmin_p, cumulative.cummax_p, cumulative.cummin_p,
    pooling.window_max_p, pooling.window_min_p, sort.sort_p, sort.top_k_p,
    slicing.concatenate_p, slicing.pad_p, gather.gather_p, scatter.scatter_p,
    scatter.scatter_max_p, scatter.scatter_min_p,
    windows_at.dynamic_slice_p, windows_at.dynamic_update_slice_p,
    reductions.all_gather_p, reductions.psum_p, reductions.pmax_p, reductions.pmin_p,
    reductions.psum_scatter_p, exchanges.all_to_all_p, exchanges.ppermute_p, varying.pvary_p,
    varying.psum_invariant_p, varying.assume_invariant_p, sharding_constraint_p,
})  # fmt: skip

# What a rule may have computed in a narrow dtype, beside these and functions of single elements.
_SUMS = frozenset({
    cumulative.cumsum_p, cumulative.cumprod_p, cumulative.cumlogsumexp_p, pooling.window_sum_p,
    scatter.scatter_add_p, scatter.scatter_mul_p,
})  # fmt: skip
# Their results depend on which dtype it is.
_OF_BITS = frozenset({
    convert.convert_element_type_p, convert.bitcast_convert_type_p, convert.reduce_precision_p,
    rounding.nextafter, arithmetic.complex,
})  # fmt: skip


def usual(prim: Primitive) -> str:
    """In which dtype an op is computed: "compute", "float32", or "keep": that of its operands.

    >>> [usual(p) for p in (contract.dot_general_p, transcendental.exp, families.add)]
    ['compute', 'float32', 'keep']
    """
    if prim in PRODUCTS:
        return COMPUTE
    moves = prim.view is not None or prim.identity or prim.reduction in ("max", "min")
    return KEEP if moves or prim in _AS_THEY_COME else FLOAT32


def may_be_narrow(prim: Primitive) -> bool:
    """Whether an op can be computed in a narrow dtype, where a rule says so.

    >>> may_be_narrow(transcendental.exp), may_be_narrow(convert.bitcast_convert_type_p)
    (True, False)
    """
    if usual(prim) != FLOAT32:
        return True
    return (prim.elementwise and prim not in _OF_BITS) or bool(prim.reduction) or prim in _SUMS
