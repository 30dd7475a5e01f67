"""Ops whose own names aren't those that JAX's primitives have."""

from funcgrad.ops.base import broadcast_p as broadcast_in_dim_p
from funcgrad.ops.base import sum_p as reduce_sum_p
from funcgrad.ops.convolution.pooling import window_max_p as reduce_window_max_p
from funcgrad.ops.convolution.pooling import window_min_p as reduce_window_min_p
from funcgrad.ops.convolution.pooling import window_sum_p as reduce_window_sum_p
from funcgrad.ops.elementwise.compare import bitwise_and as and_p
from funcgrad.ops.elementwise.compare import bitwise_not as not_p
from funcgrad.ops.elementwise.compare import bitwise_or as or_p
from funcgrad.ops.elementwise.compare import bitwise_xor as xor_p
from funcgrad.ops.elementwise.special import betainc as regularized_incomplete_beta_p
from funcgrad.ops.reduce import and_p as reduce_and_p
from funcgrad.ops.reduce import max_p as reduce_max_p
from funcgrad.ops.reduce import min_p as reduce_min_p
from funcgrad.ops.reduce import or_p as reduce_or_p
from funcgrad.ops.reduce import prod_p as reduce_prod_p
from funcgrad.ops.reduce import xor_p as reduce_xor_p

__all__ = [
    "and_p", "broadcast_in_dim_p", "not_p", "or_p", "reduce_and_p", "reduce_max_p", "reduce_min_p",
    "reduce_or_p", "reduce_prod_p", "reduce_sum_p", "reduce_window_max_p", "reduce_window_min_p",
    "reduce_window_sum_p", "reduce_xor_p", "regularized_incomplete_beta_p", "xor_p",
]  # fmt: skip
