"""Abstract values: what a program knows of an array before it runs (shape, dtype, weakness)."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from typing import Any, SupportsIndex

import numpy as np

from funcgrad import dtypes
from funcgrad.core import context
from funcgrad.core.methods import fact
from funcgrad.core.sharding import NamedSharding
from funcgrad.core.types import DTypeLike, Scalar, Tangent, Value


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


class ShardedAval(ShapedArray):
    """A type that tells how the value is cut over a mesh's Explicit axes: what `typeof` gives.

    >>> from funcgrad.core.sharding import AbstractMesh, AxisType, NamedSharding, P
    >>> mesh = AbstractMesh((2,), "data", AxisType.Explicit)
    >>> ShardedAval(ShapedArray((4, 3), "float32"), NamedSharding(mesh, P("data")))
    f32[4@data,3]
    """

    __slots__ = ("sharding",)

    def __init__(self, aval: ShapedArray, sharding: NamedSharding):
        super().__init__(aval.shape, aval.dtype, aval.weak_type)
        self.sharding = sharding

    def __eq__(self, other: object) -> bool:
        same = not isinstance(other, ShardedAval) or self.sharding == other.sharding
        return same and super().__eq__(other)

    __hash__ = ShapedArray.__hash__

    def __repr__(self) -> str:
        cuts = self.sharding.spec.cuts(self.ndim)
        over = ["" if not c else f"@{c[0] if len(c) == 1 else c}" for c in cuts]
        sizes = ",".join(f"{n}{o}" for n, o in zip(self.shape, over, strict=True))
        return f"{dtypes.short_name(self.dtype)}[{sizes}]"


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


class SymbolicSize:
    """The size of an axis that isn't known yet, in a `ShapeDtypeStruct`: see `funcgrad.export`.
    What traces a function takes no such sizes."""

    __slots__ = ()


class ShapeDtypeStruct:
    """A shape and dtype (and sharding) in place of an array, for `eval_shape`, `make_jaxpr` and
    `jit(f).lower`.

    >>> import funcgrad as fg
    >>> fg.eval_shape(lambda x: x @ x, fg.ShapeDtypeStruct((3, 3), "float32"))
    ShapeDtypeStruct(shape=(3, 3), dtype=float32)
    """

    __slots__ = ("aval", "sharding")

    def __init__(
        self,
        shape: Iterable[SupportsIndex],
        dtype: DTypeLike,
        *,
        weak_type: bool = False,
        sharding: NamedSharding | None = None,
    ):
        try:
            sizes: Any = tuple(
                n if isinstance(n, SymbolicSize) else operator.index(n) for n in shape
            )
        except TypeError:
            raise TypeError(
                f"ShapeDtypeStruct: shape must be a sequence of integers, got {shape!r}"
            ) from None
        self.aval = ShapedArray(sizes, dtypes.canonical(dtype), weak_type)
        self.sharding = sharding

    @staticmethod
    def like(x: Value) -> ShapeDtypeStruct:
        """The shape, dtype and weakness of an array, and its sharding over several devices.

        >>> fg.ShapeDtypeStruct.like(fnp.ones((2, 3)))
        ShapeDtypeStruct(shape=(2, 3), dtype=float32)
        """
        cut = getattr(x, "sharding", None)
        return ShapeDtypeStruct(
            x.shape,
            x.dtype,
            weak_type=getattr(x, "weak_type", False),
            sharding=cut if isinstance(cut, NamedSharding) else None,
        )

    def update(self, **changed: Any) -> ShapeDtypeStruct:
        """The same with another `shape`, `dtype`, `weak_type` or `sharding`.

        >>> fg.ShapeDtypeStruct((2, 3), "float32").update(shape=(4,))
        ShapeDtypeStruct(shape=(4,), dtype=float32)
        """
        fields = ("shape", "dtype", "weak_type", "sharding")
        unknown = sorted(set(changed) - set(fields))
        if unknown:
            raise TypeError(
                f"ShapeDtypeStruct.update: there is no field {unknown[0]!r}; there are "
                + ", ".join(fields)
            )
        return ShapeDtypeStruct(**{name: getattr(self, name) for name in fields} | changed)

    shape = fact("shape", lambda self: self.aval.shape)
    dtype = fact("dtype", lambda self: self.aval.dtype)
    ndim = fact("ndim", lambda self: self.aval.ndim)
    size = fact("size", lambda self: self.aval.size)
    weak_type = fact("weak_type", lambda self: self.aval.weak_type)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, ShapeDtypeStruct)
            and self.aval == other.aval
            and self.sharding == other.sharding
        )

    def __hash__(self) -> int:
        return hash(self.aval)

    def __repr__(self) -> str:
        weak = ", weak_type=True" if self.weak_type else ""
        cut = f", sharding={self.sharding}" if self.sharding is not None else ""
        return f"ShapeDtypeStruct(shape={self.shape}, dtype={self.dtype.name}{weak}{cut})"
