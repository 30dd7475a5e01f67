"""Products whose rows belong to groups of different sizes: `ragged_dot`, and over any axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from funcgrad import dtypes
from funcgrad.core.aval import ShapedArray
from funcgrad.core.trace import aval_of
from funcgrad.errors import ArgumentError, DTypeError, ShapeError
from funcgrad.ops.arguments import canonical_axes
from funcgrad.ops.contract import canonical_numbers, dot_general
from funcgrad.ops.elementwise.arithmetic import mul
from funcgrad.ops.elementwise.convert import clamp, convert_element_type
from funcgrad.ops.reduce import reduce_sum
from funcgrad.ops.shape import broadcast_in_dim, reshape, transpose
from funcgrad.ops.sharding import cut_as_said
from funcgrad.transforms.grouped import ragged_dot_p, ragged_outer_p

INT32 = np.dtype(np.int32)


@dataclass(frozen=True, init=False)
class RaggedDotDimensionNumbers:
    """Which axes a ragged product contracts, and which are batches, ragged, and of groups.

    dot_dimension_numbers: ((lhs contracting, rhs contracting), (lhs batch, rhs batch))
    lhs_ragged_dimensions: the one axis of lhs that groups divide
    rhs_group_dimensions: the axis of rhs that counts groups, or none

    >>> from funcgrad import lax
    >>> lax.RaggedDotDimensionNumbers((([1], [1]), ([], [])), [0], [0]).lhs_ragged_dimensions
    (0,)
    """

    dot_dimension_numbers: tuple
    lhs_ragged_dimensions: tuple[int, ...]
    rhs_group_dimensions: tuple[int, ...]

    def __init__(
        self,
        dot_dimension_numbers: Any,
        lhs_ragged_dimensions: Sequence[int],
        rhs_group_dimensions: Sequence[int],
    ):
        numbers = tuple(tuple(tuple(axes) for axes in pair) for pair in dot_dimension_numbers)
        object.__setattr__(self, "dot_dimension_numbers", numbers)
        object.__setattr__(self, "lhs_ragged_dimensions", tuple(lhs_ragged_dimensions))
        object.__setattr__(self, "rhs_group_dimensions", tuple(rhs_group_dimensions))


_ROWS = RaggedDotDimensionNumbers((((1,), (1,)), ((), ())), (0,), (0,))


def ragged_dot(
    lhs: Any,
    rhs: Any,
    group_sizes: Any,
    precision: Any = None,
    preferred_element_type: Any = None,
    group_offset: None = None,
    out_sharding: Any = None,
) -> Any:
    """Products of groups of consecutive rows with a matrix for each group.

    lhs: (m, k); rhs: (g, k, n); group_sizes: (g,) integers, how many rows each group has. The
    result is (m, n), 0 in rows behind the last group. Work is that of all rows once, not of all
    rows for each group. `precision`, `preferred_element_type` and `out_sharding` are those of
    `dot_general`.

    >>> from funcgrad import lax
    >>> x, w = fnp.ones((4, 2)), fnp.array([1.0, 10.0])[:, None, None] * fnp.ones((2, 2, 1))
    >>> lax.ragged_dot(x, w, fnp.array([1, 2]))
    Array([[ 2.],
           [20.],
           [20.],
           [ 0.]], dtype=float32)
    """
    shapes = aval_of(lhs).ndim, aval_of(rhs).ndim, aval_of(group_sizes).ndim
    if shapes != (2, 3, 1):
        raise ShapeError(
            "ragged_dot: need lhs (m, k), rhs (g, k, n) and group_sizes (g,), got "
            f"{aval_of(lhs)}, {aval_of(rhs)} and {aval_of(group_sizes)}"
        )
    return ragged_dot_general(
        lhs, rhs, group_sizes, _ROWS, precision, preferred_element_type, group_offset, out_sharding
    )


def ragged_dot_general(
    lhs: Any,
    rhs: Any,
    group_sizes: Any,
    ragged_dot_dimension_numbers: RaggedDotDimensionNumbers,
    precision: Any = None,
    preferred_element_type: Any = None,
    group_offset: None = None,
    out_sharding: Any = None,
) -> Any:
    """`dot_general` of an lhs whose ragged axis is divided into groups of consecutive places.

    The ragged axis may be
    1. free: each group's rows are multiplied by what rhs has for it along its group axis, and the
       result is that of `dot_general`, 0 where there is no group;
    2. contracted: the result has an axis of groups in front, with the sums over each group;
    3. a batch axis: the result is that of `dot_general`.

    group_sizes: integers (g,), or (…, g) with sizes of their own for each index of the batch axes
    and of those free (contracted, batch) axes of lhs that come before the ragged one
    group_offset: None, as there is no use for it yet

    Raises ShapeError where shapes don't fit, DTypeError for sizes that are no integers.

    >>> from funcgrad import lax
    >>> numbers = lax.RaggedDotDimensionNumbers((([0], [0]), ([], [])), [0], [])
    >>> x = fnp.ones((4, 1))
    >>> lax.ragged_dot_general(x, x, fnp.array([1, 3]), numbers).ravel()
    Array([1., 3.], dtype=float32)
    """
    if not isinstance(ragged_dot_dimension_numbers, RaggedDotDimensionNumbers):
        raise ArgumentError(
            "ragged_dot_general: ragged_dot_dimension_numbers must be RaggedDotDimensionNumbers, "
            f"got {ragged_dot_dimension_numbers!r}"
        )
    if group_offset is not None:
        raise NotImplementedError(
            "ragged_dot_general: group_offset must be None; slice rhs and group_sizes instead"
        )
    product = _Product(aval_of(lhs), aval_of(rhs), aval_of(group_sizes),
                       ragged_dot_dimension_numbers)  # fmt: skip
    preferred = preferred_element_type
    preferred = None if preferred is None else dtypes.canonical(preferred)
    if product.kind == "batch":
        out = dot_general(lhs, rhs, product.numbers, precision, preferred)
    else:
        rule = product.rows if product.kind == "free" else product.sums
        out = rule(lhs, rhs, group_sizes, preferred)
    return cut_as_said(out, out_sharding)


class _Product:
    """A ragged product's axes: what is checked, and how operands become those of the two ops."""

    def __init__(
        self,
        lhs: ShapedArray,
        rhs: ShapedArray,
        sizes: ShapedArray,
        numbers: RaggedDotDimensionNumbers,
    ):
        name = "ragged_dot_general"
        self.lhs, self.rhs = lhs, rhs
        self.numbers = canonical_numbers(name, numbers.dot_dimension_numbers, lhs.ndim, rhs.ndim)
        (self.lc, self.rc), (self.lb, self.rb) = self.numbers
        ragged, groups = numbers.lhs_ragged_dimensions, numbers.rhs_group_dimensions
        if len(ragged) != 1:
            raise ShapeError(
                f"{name} expects exactly one lhs ragged dimension, got {tuple(ragged)}"
            )
        (self.ragged,) = canonical_axes(name, ragged, lhs.ndim)
        self.group = canonical_axes(name, groups, rhs.ndim)
        self.free = [i for i in range(lhs.ndim) if i not in (*self.lc, *self.lb)]
        taken = (*self.rc, *self.rb, *self.group)
        self.rhs_free = [i for i in range(rhs.ndim) if i not in taken]
        if self.ragged in self.free:
            self.kind, own = "free", self.free
        elif self.ragged in self.lc:
            self.kind, own = "contracted", [*self.lc]
        else:
            self.kind, own = "batch", [*self.lb]
        self.outer = () if self.kind == "batch" else self.lb
        place = own.index(self.ragged)
        self.before, self.after = own[:place], own[place + 1 :]
        self._check_pairs()
        self._check_groups(sizes)

    def _check_pairs(self) -> None:
        for what, left, right in (
            ("contracting", self.lc, self.rc), ("batch", self.lb, self.rb)
        ):  # fmt: skip
            if [self.lhs.shape[i] for i in left] != [self.rhs.shape[i] for i in right]:
                raise ShapeError(
                    f"ragged_dot_general: {what} axes {left} of lhs {self.lhs} and {right} of rhs "
                    f"{self.rhs} must have the same sizes"
                )

    def _check_groups(self, sizes: ShapedArray) -> None:
        if not dtypes.is_integer(sizes.dtype):
            raise DTypeError(f"ragged_dot_general: group_sizes must be integers, got {sizes}")
        lead = tuple(self.lhs.shape[i] for i in (*self.outer, *self.before))
        if sizes.ndim == 0:
            raise ShapeError(
                "ragged_dot_general: expected rank of group_sizes to be >=1, got a scalar"
            )
        groups = sizes.shape[-1]
        if sizes.ndim > 1 and sizes.shape[:-1] != lead:
            raise ShapeError(
                f"ragged_dot_general: expected group_sizes to have shape {(*lead, groups)}, got "
                f"{sizes.shape}; or {(groups,)}, the same for all, for lhs {self.lhs}"
            )
        given = f"for rhs {self.rhs}, got {self.group}"
        if self.kind == "free" and len(self.group) != 1:
            raise ShapeError(
                "ragged_dot_general requires exactly one rhs group dimension when lhs ragged "
                f"dimension is noncontracting: {given}"
            )
        if self.kind != "free" and self.group:
            raise ShapeError(
                "ragged_dot_general requires zero group dimensions in the rhs when lhs ragged "
                f"dimension is contracting or batch: {given}"
            )
        if set(self.group) & {*self.rc, *self.rb}:
            raise ShapeError(
                "ragged_dot_general requires rhs group dimension numbers to be distinct from "
                f"contracting and batch dimensions: {given}"
            )
        if self.group and self.rhs.shape[self.group[0]] != groups:
            raise ShapeError(
                f"ragged_dot_general: expected rhs group dimension size to be {groups}, got "
                f"{self.rhs.shape[self.group[0]]}: group_sizes {sizes} are those of rhs {self.rhs} "
                f"along axis {self.group[0]}"
            )

    def sizes(self, x: Any, batches: int) -> Any:
        """Sizes in rows of what is merged: the ragged axis and those behind it; as (batches, g)."""
        aval = aval_of(x)
        # Counts beyond all rows mean the same as all rows: int32 can count these.
        rows, each = self.lhs.shape[self.ragged], self._size(self.lhs, self.after)
        low, high = (
            aval.dtype.type(0),
            aval.dtype.type(np.minimum(rows, dtypes.iinfo(aval.dtype).max)),
        )
        x = convert_element_type(clamp(low, x, high), INT32)
        if each != 1:
            x = mul(x, broadcast_in_dim(np.int32(each), aval.shape, ()))
        return reshape(x, (1 if aval.ndim == 1 else batches, aval.shape[-1]))

    @staticmethod
    def _size(aval: ShapedArray, axes: Sequence[int]) -> int:
        return math.prod(aval.shape[i] for i in axes)

    def _arranged(self, x: Any, *axes: Sequence[int]) -> Any:
        """x with its axes in an order, each sequence of them merged into one."""
        aval = aval_of(x)
        shape = [self._size(aval, merged) for merged in axes]
        return reshape(transpose(x, [i for merged in axes for i in merged]), shape)

    def rows(self, lhs: Any, rhs: Any, group_sizes: Any, dtype: Any) -> Any:
        """The ragged axis is free: rows of lhs by matrices of rhs."""
        batch = self._size(self.lhs, self.lb)
        outer, ragged = (*self.lb, *self.before), (self.ragged, *self.after)
        x = self._arranged(lhs, outer, ragged, self.lc)
        w = self._arranged(rhs, self.rb, self.group, self.rc, self.rhs_free)
        many = self._size(self.lhs, self.before)
        if batch != 1 and many != 1:
            shape = aval_of(w).shape
            w = broadcast_in_dim(w, (batch, many, *shape[1:]), (0, 2, 3, 4))
            w = reshape(w, (batch * many, *shape[1:]))
        out = ragged_dot_p.bind(x, w, self.sizes(group_sizes, batch * many), dtype=dtype)
        kept = [self.lhs.shape[i] for i in (*outer, *ragged)]
        return reshape(out, (*kept, *(self.rhs.shape[i] for i in self.rhs_free)))

    def sums(self, lhs: Any, rhs: Any, group_sizes: Any, dtype: Any) -> Any:
        """The ragged axis is contracted: sums for each group."""
        pairs = dict(zip(self.lc, self.rc, strict=True))
        outer, ragged = (*self.lb, *self.before), (self.ragged, *self.after)
        x = self._arranged(lhs, outer, ragged, self.free)
        y = self._arranged(
            rhs,
            (*self.rb, *(pairs[i] for i in self.before)),
            tuple(pairs[i] for i in ragged),
            self.rhs_free,
        )
        many = self._size(self.lhs, outer)
        out = ragged_outer_p.bind(x, y, self.sizes(group_sizes, many), dtype=dtype)
        groups = aval_of(group_sizes).shape[-1]
        shape = [self.lhs.shape[i] for i in outer]
        rest = [self.lhs.shape[i] for i in self.free] + [self.rhs.shape[i] for i in self.rhs_free]
        out = reshape(out, (*shape, groups, *rest))
        first = len(self.lb)
        if self.before:
            out = reduce_sum(out, tuple(range(first, first + len(self.before))))
        # Groups come first.
        order = [first, *(i for i in range(aval_of(out).ndim) if i != first)]
        return transpose(out, order)
