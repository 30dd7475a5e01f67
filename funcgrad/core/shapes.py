"""Types that stand for arrays: shapes and dtypes as users write them, and types with shardings."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any, SupportsIndex

from funcgrad import dtypes
from funcgrad.core.aval import ShapedArray
from funcgrad.core.methods import fact
from funcgrad.core.sharding import NamedSharding
from funcgrad.core.types import DTypeLike, Value


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
