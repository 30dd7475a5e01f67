"""Values on a grid whose axes are regular, read between its points."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

import funcgrad.numpy as fnp
from funcgrad.errors import ArgumentError, ShapeError
from funcgrad.numpy._util import as_array, promote_inexact
from funcgrad.ops.arguments import items_of


class RegularGridInterpolator:
    """The function of points that takes `values` on a grid, and between its points interpolates.

    points: a vector of increasing coordinates for each of the grid's axes; values: an array with
    these axes first. method: "linear" or "nearest". Outside of the grid the result is `fill_value`,
    or continues where that is None.

    >>> from funcgrad.scipy.interpolate import RegularGridInterpolator
    >>> x = fnp.array([0.0, 1.0, 3.0])
    >>> f = RegularGridInterpolator((x, x), x[:, None] * 10 + x)
    >>> f(fnp.array([[0.5, 2.0], [9.0, 0.0]]))
    Array([ 7., nan], dtype=float32)
    """

    def __init__(
        self,
        points: Sequence[Any],
        values: Any,
        method: str = "linear",
        bounds_error: bool = False,
        fill_value: Any = np.nan,
    ):
        self._name = type(self).__name__
        self.method = self._method(method)
        if bounds_error:
            raise NotImplementedError(f"{self._name}: bounds_error takes no effect under jit")
        values = as_array(self._name, values, "values")
        grid = tuple(as_array(self._name, p, "points") for p in items_of("points", points))
        if len(grid) > values.ndim:
            raise ShapeError(
                f"{self._name}: there are {len(grid)} point arrays, but values has {values.ndim} "
                "dimensions"
            )
        for i, p in enumerate(grid):
            if p.shape != values.shape[i : i + 1] or p.shape[0] < 2:
                raise ShapeError(
                    f"{self._name}: there must be a point, and at least 2, for each of values "
                    f"along axis {i}, got points {p.aval} for values {values.aval}"
                )
        (self.values,) = promote_inexact(self._name, values)
        self.grid = grid
        if fill_value is not None:
            fill_value = fnp.asarray(fill_value)
            if not fnp.can_cast(fill_value.dtype, self.values.dtype, casting="same_kind"):
                raise ArgumentError(
                    f"{self._name}: fill_value must be either 'None' or of a type compatible with "
                    f"values, got {fill_value.aval} for {self.values.aval}"
                )
        self.fill_value = fill_value
        self.bounds_error = bounds_error

    def _method(self, method: Any) -> str:
        if method not in ("linear", "nearest"):
            raise ArgumentError(
                f"{self._name}: method {method!r} is not defined, but linear and nearest"
            )
        return str(method)

    def __call__(self, xi: Any, method: str | None = None) -> Any:
        """The values at points: their coordinates along the last axis, or a tuple of arrays."""
        method = self.method if method is None else self._method(method)
        n = len(self.grid)
        if isinstance(xi, tuple):
            xi = fnp.stack(fnp.broadcast_arrays(*map(fnp.asarray, xi)), -1)
        xi = as_array(self._name, xi, "xi")
        if xi.ndim == 1:
            xi = xi[:, None] if n == 1 else xi[None]
        if xi.shape[-1:] != (n,):
            raise ShapeError(
                f"{self._name}: the requested sample points xi have dimension {xi.shape[-1:]}, but "
                f"this {self._name} has dimension {n}"
            )
        out = self._at([xi[..., i] for i in range(n)], method)
        return out

    def _at(self, places: list[Any], method: str) -> Any:
        corners, outside = [], False
        for x, grid in zip(places, self.grid, strict=True):
            i = fnp.clip(fnp.searchsorted(grid, x, side="right") - 1, 0, grid.shape[0] - 2)
            share = (x - grid[i]) / (grid[i + 1] - grid[i])
            outside = outside | (x < grid[0]) | (x > grid[-1])
            if method == "nearest":
                corners.append([(fnp.where(share <= 0.5, i, i + 1), None)])
            else:
                corners.append([(i, 1 - share), (i + 1, share)])
        more = (1,) * (self.values.ndim - len(places))
        total: Any = 0
        for corner in itertools.product(*corners):
            value = self.values[tuple(i for i, _ in corner)]
            for _, w in corner:
                value = value if w is None else value * w.reshape(*w.shape, *more)
            total = total + value
        if self.fill_value is None:
            return total
        hidden = fnp.asarray(outside).reshape(*fnp.shape(outside), *more)
        return fnp.where(hidden, self.fill_value.astype(total.dtype), total)
