"""A weight's axes as an operation sees them, after transposes, reshapes and conversions.

Each axis of a weight is divided into parts where a reshape divides it, and each axis of what an
operation sees is a row of such parts. So what holds for an axis of the weight (a scale for each
index, say) can be put where the operation has it, without touching the weight's elements.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from funcgrad.core.trace import aval_of
from funcgrad.core.types import Value
from funcgrad.ops.base import broadcast_p, transpose_p
from funcgrad.ops.elementwise.convert import convert_element_type
from funcgrad.ops.shape import reshape


class Part(NamedTuple):
    """A digit of an index along an axis: of this many values, that many elements apart."""

    axis: int
    stride: int
    size: int


Dims = tuple[tuple[Part, ...], ...]


@dataclass(frozen=True)
class View:
    """How an operation sees a weight of a shape: `dims` has the parts of each axis, the slowest
    first; `dtypes` are those that it was converted to, in order."""

    shape: tuple[int, ...]
    dims: Dims
    dtypes: tuple[np.dtype, ...] = ()

    @staticmethod
    def whole(shape: Sequence[int]) -> View:
        """The weight as it is.

        >>> View.whole((2, 3)).sizes
        (2, 3)
        """
        return View(tuple(shape), tuple(_whole(i, n) for i, n in enumerate(shape)))

    @property
    def sizes(self) -> tuple[int, ...]:
        """The shape that the operation sees."""
        return tuple(math.prod(p.size for p in dim) for dim in self.dims)

    def transposed(self, permutation: Sequence[int]) -> View:
        """The view with its axes in another order.

        >>> View.whole((2, 3)).transposed((1, 0)).sizes
        (3, 2)
        """
        return replace(self, dims=tuple(self.dims[i] for i in permutation))

    def reshaped(self, sizes: Sequence[int]) -> View | None:
        """The view in another shape; None where that mixes what can't be told apart.

        >>> View.whole((4, 3)).reshaped((2, 6)).dims[1]
        (Part(axis=0, stride=1, size=2), Part(axis=1, stride=1, size=3))
        >>> View.whole((4, 3)).reshaped((3, 4)) is None
        True
        """
        rest = [p for dim in self.dims for p in dim][::-1]
        dims = []
        for size in sizes:
            dim = []
            while size > 1:
                part = rest.pop()
                if part.size > size:
                    if part.size % size:
                        return None
                    inner = part.size // size
                    rest.append(Part(part.axis, part.stride, inner))
                    part = Part(part.axis, part.stride * inner, size)
                elif size % part.size:
                    return None
                dim.append(part)
                size //= part.size
            dims.append(tuple(dim))
        return replace(self, dims=tuple(dims))

    def converted(self, dtype: np.dtype) -> View:
        """The view of what is converted to a dtype."""
        return replace(self, dtypes=(*self.dtypes, dtype))

    def axis_of(self, dim: int) -> int | None:
        """The weight's axis that the operation's axis is; None if it is several, or part of one."""
        parts = self.dims[dim]
        whole = len(parts) == 1 and parts[0] == Part(parts[0].axis, 1, self.shape[parts[0].axis])
        return parts[0].axis if whole else None

    def resized(self, axis: int, size: int) -> View:
        """The view of a weight that has another size along an axis, which isn't divided."""
        shape = tuple(size if i == axis else n for i, n in enumerate(self.shape))
        dims = tuple(
            _whole(axis, size) if any(p.axis == axis for p in dim) else dim for dim in self.dims
        )
        return replace(self, shape=shape, dims=dims)

    def row(self) -> View | None:
        """The view of an element of the weight's first axis, if the operation's first is that."""
        # An axis of one element has no parts: that none of them is elsewhere must do.
        one = self.shape[:1] == (1,) and not self.dims[0]
        if not one and self.axis_of(0) != 0:
            return None
        dims = tuple(tuple(p._replace(axis=p.axis - 1) for p in d) for d in self.dims[1:])
        return replace(self, shape=self.shape[1:], dims=dims)

    def arrange(self, x: Value) -> Value:
        """An array with the weight's axes, or axes of size 1 in their place, as the operation
        would see it; not converted.

        >>> import funcgrad.numpy as fnp
        >>> View.whole((4, 3)).reshaped((2, 2, 3)).transposed((2, 0, 1)).arrange(
        ...     fnp.ones((4, 1))
        ... ).shape
        (1, 2, 2)
        """
        x = self._repeated(x)
        shape = aval_of(x).shape
        kept = [p for dim in self.dims for p in dim if shape[p.axis] != 1]
        order = sorted(kept, key=lambda p: (p.axis, -p.stride))
        digits = [p.size for p in order]
        if digits != list(shape):
            x = reshape(x, digits)
        permutation = tuple(order.index(p) for p in kept)
        if permutation != tuple(range(len(kept))):
            x = transpose_p.bind(x, permutation=permutation)
        sizes = [math.prod(p.size for p in dim if shape[p.axis] != 1) for dim in self.dims]
        return x if list(aval_of(x).shape) == sizes else reshape(x, sizes)

    def _repeated(self, x: Value) -> Value:
        """The array, with all elements of axes of size 1 that share an axis of the operation with
        one that isn't."""
        shape = aval_of(x).shape
        sizes = list(shape)
        for dim in self.dims:
            ones = [p.axis for p in dim if shape[p.axis] == 1]
            for axis in ones if len(ones) < len(dim) else ():
                sizes[axis] = self.shape[axis]
        if sizes == list(shape):
            return x
        return broadcast_p.bind(
            x, shape=tuple(sizes), broadcast_dimensions=tuple(range(len(sizes)))
        )

    def convert(self, x: Value) -> Value:
        """An array as the view's conversions leave it."""
        for dtype in self.dtypes:
            x = convert_element_type(x, dtype)
        return x


def _whole(axis: int, size: int) -> tuple[Part, ...]:
    return () if size == 1 else (Part(axis, 1, size),)
