"""Abstract values: what a program knows of an array before it runs (shape, dtype, weakness)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from funcgrad import dtypes
from funcgrad.core import context
from funcgrad.core.types import DTypeLike, Scalar, Tangent


class ShapedArray:
    """A shape, a dtype, and whether the dtype is weak (from Python scalars alone).

    >>> ShapedArray((2, 3), "float32")
    f32[2,3]
    """

    __slots__ = ("dtype", "shape", "weak_type")

    shape: tuple[int, ...]
    dtype: np.dtype
    weak_type: bool

    def __init__(self, shape: tuple[int, ...], dtype: DTypeLike, weak_type: bool = False):
        self.shape = shape
        self.dtype = dtype if dtype in dtypes.CANONICAL else dtypes.canonical(dtype)
        self.weak_type = weak_type

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The bytes of all elements."""
        return self.size * self.dtype.itemsize

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, ShapedArray)
            and self.shape == other.shape
            and self.dtype == other.dtype
            and self.weak_type == other.weak_type
        )

    def __hash__(self) -> int:
        return hash((self.shape, self.dtype, self.weak_type))

    def __repr__(self) -> str:
        return f"{dtypes.short_name(self.dtype)}[{','.join(map(str, self.shape))}]"

    def update(self, **changes: Any) -> ShapedArray:
        """A copy with shape, dtype or weak_type changed."""
        return ShapedArray(
            changes.get("shape", self.shape),
            changes.get("dtype", self.dtype),
            changes.get("weak_type", self.weak_type),
        )

    def strong(self) -> ShapedArray:
        """The same type without weakness."""
        return ShapedArray(self.shape, self.dtype) if self.weak_type else self

    def tangent(self) -> ShapedArray:
        """The type of this value's tangents: float0 where there is nothing to differentiate."""
        if self.dtype.kind in "fc" or dtypes.is_inexact(self.dtype):
            return self
        return ShapedArray(self.shape, dtypes.float0)

    def matches(self, other: ShapedArray) -> bool:
        """Equal up to weakness."""
        return self.shape == other.shape and self.dtype == other.dtype


class Zero:
    """A tangent or cotangent known to be zero: never stored, never computed with."""

    __slots__ = ("aval",)

    def __init__(self, aval: ShapedArray):
        self.aval = aval

    def __repr__(self) -> str:
        return f"Zero({self.aval})"


def with_zeros(
    found: Iterable[Tangent], nonzero: Sequence[bool], avals: Sequence[ShapedArray]
) -> list:
    """The tangents of values of these types, of which those that aren't zero are given."""
    rest, pairs = iter(found), zip(nonzero, avals, strict=True)
    return [next(rest) if nz else Zero(a.tangent()) for nz, a in pairs]


class Linear:
    """Stands for an operand of a transpose rule with respect to which the op is transposed."""

    __slots__ = ("aval",)

    def __init__(self, aval: ShapedArray):
        self.aval = aval

    def __repr__(self) -> str:
        return f"Linear({self.aval})"


def scalar_dtype(value: Scalar) -> np.dtype:
    """The default dtype of a Python scalar's kind, under the current context."""
    if isinstance(value, bool):
        return dtypes.BOOL
    ctx = context.current()
    if isinstance(value, int):
        return ctx.int_dtype
    return dtypes.to_complex(ctx.float_dtype) if isinstance(value, complex) else ctx.float_dtype


def kind_dtype(node: np.dtype | dtypes.Kind) -> np.dtype:
    """The dtype that a lattice node stands for under the current context."""
    if isinstance(node, np.dtype):
        return node
    ctx = context.current()
    if node is dtypes.WEAK_INT:
        return ctx.int_dtype
    if node is dtypes.WEAK_FLOAT:
        return ctx.float_dtype
    return dtypes.to_complex(ctx.float_dtype)


def promote(avals: list[ShapedArray]) -> tuple[np.dtype, bool]:
    """The common dtype of operands and whether it is weak, by JAX's rules.

    Weak operands yield to strong ones of the same kind; among weak ones alone the widest dtype
    wins and the result stays weak.

    >>> promote([ShapedArray((), "int8"), ShapedArray((), "float32", weak_type=True)])
    (dtype('float32'), True)
    """
    first = avals[0]
    if all(a.dtype == first.dtype for a in avals):
        return first.dtype, all(a.weak_type for a in avals)
    if all(a.weak_type for a in avals):
        node = dtypes.join(frozenset(a.dtype for a in avals))
        return kind_dtype(node), node != dtypes.BOOL
    nodes = frozenset(dtypes.kind_of(a.dtype) if a.weak_type else a.dtype for a in avals)
    node = dtypes.join(nodes)
    return kind_dtype(node), isinstance(node, dtypes.Kind)
