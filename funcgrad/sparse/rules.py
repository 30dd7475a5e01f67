"""What operations of programs are of sparse arrays: rule(equation, *operands, **parameters)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from funcgrad import lax
from funcgrad.core.ir import Eqn
from funcgrad.core.primitive import Primitive
from funcgrad.errors import SparseEfficiencyError
from funcgrad.ops.base import broadcast_p, sum_p, transpose_p
from funcgrad.ops.contract import dot_general_p
from funcgrad.ops.elementwise.arithmetic import integer_pow_p
from funcgrad.ops.elementwise.convert import convert_element_type_p, reduce_precision_p
from funcgrad.ops.indexing.windows_at import dynamic_slice_p
from funcgrad.ops.shape import reshape_p, rev_p
from funcgrad.ops.slicing import concatenate_p, slice_p
from funcgrad.sparse import elementwise, structure
from funcgrad.sparse.arrays import BCSR, is_sparse, known
from funcgrad.sparse.products import as_bcoo, bcoo_dot_general, bcsr_dot_general, densified

LINEAR = (lax.neg, lax.conj, lax.real, lax.imag, lax.copy)
ZERO_AT_ZERO = (
    lax.abs, lax.sign, lax.sqrt, lax.cbrt, lax.square, lax.sin, lax.tan, lax.asin, lax.atan,
    lax.sinh, lax.tanh, lax.asinh, lax.atanh, lax.expm1, lax.log1p, lax.floor, lax.ceil, lax.erf,
    lax.erf_inv, reduce_precision_p,
)  # fmt: skip


def _unary(prim: Primitive, linear: bool) -> Callable:
    def rule(eqn: Eqn, x: Any, **params: Any) -> Any:
        return elementwise.on_data(x, lambda data: prim.bind(data, **params), linear)

    return rule


def _integer_pow(eqn: Eqn, x: Any, *, y: int) -> Any:
    return elementwise.power(x, y)


def _pow(eqn: Eqn, x: Any, y: Any) -> Any:
    value = None if is_sparse(y) or y.shape else known(y)
    if not is_sparse(x):
        raise densified("pow", y, "as an exponent")
    return elementwise.power(x, y if value is None else value.item())


def _convert(eqn: Eqn, x: Any, *, new_dtype: Any) -> Any:
    return elementwise.astype(x, new_dtype)


def _extreme(prim: Primitive) -> Callable:
    """The greater or smaller of a sparse array and a number, where that of 0 and it is 0."""

    def rule(eqn: Eqn, x: Any, y: Any) -> Any:
        mat, other = (x, y) if is_sparse(x) else (y, x)
        value = None if is_sparse(other) or other.shape else known(other)
        if value is None or not (value <= 0 if prim is lax.max else value >= 0):
            raise densified(f"{prim}", mat, f"of 0 and the other operand it must be 0, got {other}")
        return elementwise.on_data(mat, lambda data: prim.bind(data, other))

    return rule


def _dot_general(eqn: Eqn, x: Any, y: Any, *, dimension_numbers: Any, **params: Any) -> Any:
    product = bcsr_dot_general if isinstance(x, BCSR) else bcoo_dot_general
    preferred = params.get("preferred_element_type")
    return product(x, y, dimension_numbers=dimension_numbers, preferred_element_type=preferred)


def _reduce_sum(eqn: Eqn, x: Any, *, axes: tuple[int, ...]) -> Any:
    out = structure.bcoo_reduce_sum(as_bcoo(x), axes=axes)
    return out if out.ndim else out.data.sum()


def _reshape(eqn: Eqn, x: Any, **params: Any) -> Any:
    return structure.bcoo_reshape(as_bcoo(x), new_sizes=eqn.outs[0].aval.shape)


def _concatenate(eqn: Eqn, *xs: Any, dimension: int) -> Any:
    if not all(map(is_sparse, xs)):
        raise SparseEfficiencyError(
            "sparsify: concatenate of sparse and dense arrays would be dense; call sparse.todense "
            "on the sparse ones"
        )
    return elementwise.concatenated(list(xs), dimension)


def _broadcast(eqn: Eqn, x: Any, *, shape: Any, broadcast_dimensions: Any) -> Any:
    return structure.bcoo_broadcast_in_dim(
        as_bcoo(x), shape=shape, broadcast_dimensions=broadcast_dimensions
    )


def _slice(eqn: Eqn, x: Any, **params: Any) -> Any:
    return structure.bcoo_slice(
        as_bcoo(x), start_indices=params["start_indices"], limit_indices=params["limit_indices"],
        strides=params.get("strides"),
    )  # fmt: skip


def _transpose(eqn: Eqn, x: Any, *, permutation: Any) -> Any:
    return structure.bcoo_transpose(as_bcoo(x), permutation=permutation)


def _dynamic_slice(eqn: Eqn, x: Any, *starts: Any, slice_sizes: Any) -> Any:
    if not is_sparse(x):
        raise SparseEfficiencyError("sparsify: the starts of dynamic_slice must be dense")
    return structure.bcoo_dynamic_slice(as_bcoo(x), starts, slice_sizes)


RULES: dict[Primitive, Callable] = {
    **{prim: _unary(prim, linear=True) for prim in LINEAR},
    **{prim: _unary(prim, linear=False) for prim in ZERO_AT_ZERO},
    integer_pow_p: _integer_pow,
    convert_element_type_p: _convert,
    lax.max: _extreme(lax.max),
    lax.min: _extreme(lax.min),
    lax.mul: lambda eqn, x, y: elementwise.multiply(x, y),
    lax.div: lambda eqn, x, y: elementwise.divide(x, y),
    lax.add: lambda eqn, x, y: elementwise.add(x, y),
    lax.sub: lambda eqn, x, y: elementwise.subtract(x, y),
    lax.pow: _pow,
    dot_general_p: _dot_general,
    transpose_p: _transpose,
    sum_p: _reduce_sum,
    reshape_p: _reshape,
    broadcast_p: _broadcast,
    concatenate_p: _concatenate,
    slice_p: _slice,
    dynamic_slice_p: _dynamic_slice,
    rev_p: lambda eqn, x, *, dimensions: structure.bcoo_rev(as_bcoo(x), dimensions),
}
