"""Curves of cubic pieces through points: splines, and monotone ones (Fritsch and Butland 1984).

Each piece is given by the values and slopes at its ends; the kinds differ in the slopes alone.
"""

from __future__ import annotations

import math
from typing import Any

import funcgrad.numpy as fnp
from funcgrad import lax
from funcgrad.errors import ArgumentError, ShapeError
from funcgrad.numpy._util import as_array, promote_inexact
from funcgrad.ops.arguments import canonical_axis, integer


class CubicHermiteSpline:
    """The curve through points (x, y) with slopes dydx there, of cubic pieces.

    x: increasing; y and dydx: arrays with the points along `axis`. extrapolate: the first and last
    piece go on; else there is NaN.

    >>> from funcgrad.scipy.interpolate import CubicHermiteSpline
    >>> f = CubicHermiteSpline(fnp.array([0.0, 1.0]), fnp.array([0.0, 1.0]), fnp.array([0.0, 3.0]))
    >>> f(fnp.array([0.5, 2.0]))
    Array([0.125, 8.   ], dtype=float32)
    """

    def __init__(self, x: Any, y: Any, dydx: Any, axis: int = 0, extrapolate: bool = True):
        self._set(x, y, axis, extrapolate)
        slopes = fnp.moveaxis(as_array(self._name, dydx, "dydx"), self.axis, 0)
        if slopes.shape != self._y.shape:
            raise ShapeError(f"{self._name}: dydx must have y's shape, got {slopes.aval}")
        self._slopes = slopes.astype(self._y.dtype)

    def _set(self, x: Any, y: Any, axis: int, extrapolate: bool) -> None:
        self._name = type(self).__name__
        x, y = as_array(self._name, x, "x"), as_array(self._name, y, "y")
        self.axis = canonical_axis(self._name, axis, y.ndim)
        if x.ndim != 1 or x.shape[0] != y.shape[self.axis] or x.shape[0] < 2:
            raise ShapeError(
                f"{self._name}: x must be a vector of at least 2 places, one for each of y along "
                f"axis {axis}, got {x.aval} for y {y.aval}"
            )
        self.extrapolate = bool(extrapolate)
        self.x, self._y = promote_inexact(self._name, x, fnp.moveaxis(y, self.axis, 0))

    def _column(self, v: Any) -> Any:
        return v.reshape(-1, *(1,) * (self._y.ndim - 1))

    def __call__(self, x: Any, nu: int = 0) -> Any:
        """The values at x, or the derivatives of order nu, with x's axes in the place of `axis`."""
        nu = integer("nu", nu)
        if nu < 0:
            raise ArgumentError(f"{self._name}: nu must be non-negative, got {nu}")
        x = fnp.asarray(x).astype(fnp.promote_types(self.x.dtype, fnp.asarray(x).dtype))
        flat = x.ravel()
        i = fnp.clip(fnp.searchsorted(self.x, flat, side="right") - 1, 0, self.x.shape[0] - 2)
        h, t = self._column(self.x[i + 1] - self.x[i]), self._column(flat - self.x[i])
        y0, s0, s1 = self._y[i], self._slopes[i], self._slopes[i + 1]
        chord = (self._y[i + 1] - y0) / h
        powers = [y0, s0, (3 * chord - 2 * s0 - s1) / h, (s0 + s1 - 2 * chord) / (h * h)]
        out = fnp.zeros_like(y0)
        for k in reversed(range(nu, 4)):
            out = out * t + math.perm(k, nu) * powers[k]
        if not self.extrapolate:
            outside = self._column((flat < self.x[0]) | (flat > self.x[-1]))
            out = fnp.where(outside, fnp.nan, out)
        out = out.reshape(*x.shape, *self._y.shape[1:])
        places = tuple(range(x.ndim))
        return fnp.moveaxis(out, places, tuple(self.axis + p for p in places))


class CubicSpline(CubicHermiteSpline):
    """The curve of cubic pieces through points whose second derivative is continuous.

    bc_type says what else holds at the ends: "not-a-knot", the first two pieces are one, and the
    last two; "natural", the second derivative is 0; "clamped", the first is.

    >>> from funcgrad.scipy.interpolate import CubicSpline
    >>> x = fnp.arange(5.0)
    >>> CubicSpline(x, x**3)(fnp.array([0.5, 2.5])).round(3)
    Array([ 0.125, 15.625], dtype=float32)
    """

    def __init__(
        self, x: Any, y: Any, axis: int = 0, bc_type: str = "not-a-knot", extrapolate: bool = True
    ):
        self._set(x, y, axis, extrapolate)
        if bc_type not in ("not-a-knot", "natural", "clamped"):
            raise ArgumentError(
                f"{self._name}: bc_type must be not-a-knot, natural or clamped, got {bc_type!r}"
            )
        self._slopes = self._solved(bc_type)

    def _solved(self, bc_type: str) -> Any:
        x, y, n = self.x, self._y, self.x.shape[0]
        dx = fnp.diff(x)
        h = self._column(dx)
        chord = fnp.diff(y, axis=0) / h
        if bc_type == "not-a-knot" and n < 4:
            if n == 2:
                return fnp.concatenate([chord, chord])
            bend = (chord[1] - chord[0]) / (x[2] - x[0])  # one parabola
            first = chord[0] - bend * dx[0]
            return fnp.stack([first, first + 2 * bend * dx[0], first + 2 * bend * (x[2] - x[0])])
        zero, one = fnp.zeros(1, x.dtype), fnp.ones(1, x.dtype)
        rights = 3 * (h[1:] * chord[:-1] + h[:-1] * chord[1:])
        if bc_type == "not-a-knot":
            ends = dx[1:2], dx[-2:-1]
            beside = x[2:3] - x[:1], x[-1:] - x[-3:-2]
            a, b = beside[0][0], beside[1][0]
            first = ((h[0] + 2 * a) * h[1] * chord[0] + h[0] ** 2 * chord[1]) / a
            last = (h[-1] ** 2 * chord[-2] + (2 * b + h[-1]) * h[-2] * chord[-1]) / b
        elif bc_type == "natural":
            ends, beside = (2 * dx[:1], 2 * dx[-1:]), (dx[:1], dx[-1:])
            first, last = 3 * (y[1] - y[0]), 3 * (y[-1] - y[-2])
        else:
            ends, beside = (one, one), (zero, zero)
            first = last = fnp.zeros_like(y[0])
        middle = fnp.concatenate([ends[0], 2 * (dx[:-1] + dx[1:]), ends[1]])
        below = fnp.concatenate([zero, dx[1:], beside[1]]).astype(y.dtype)
        above = fnp.concatenate([beside[0], dx[:-1], zero]).astype(y.dtype)
        right = fnp.concatenate([first[None], rights, last[None]])
        flat = right.reshape(n, -1).astype(y.dtype)
        out = lax.linalg.tridiagonal_solve(below, middle.astype(y.dtype), above, flat)
        return out.reshape(y.shape)


class PchipInterpolator(CubicHermiteSpline):
    """The curve of cubic pieces through points that is monotone where they are.

    >>> from funcgrad.scipy.interpolate import PchipInterpolator
    >>> PchipInterpolator(fnp.arange(4.0), fnp.array([0.0, 0.0, 1.0, 1.0]))(fnp.array([0.5, 1.5]))
    Array([0. , 0.5], dtype=float32)
    """

    def __init__(self, x: Any, y: Any, axis: int = 0, extrapolate: bool = True):
        self._set(x, y, axis, extrapolate)
        h = self._column(fnp.diff(self.x))
        chord = fnp.diff(self._y, axis=0) / h
        if self.x.shape[0] == 2:
            self._slopes = fnp.concatenate([chord, chord])
            return
        before, after = chord[:-1], chord[1:]
        w1, w2 = 2 * h[1:] + h[:-1], h[1:] + 2 * h[:-1]
        alike = before * after > 0
        inverse = w1 / fnp.where(alike, before, 1) + w2 / fnp.where(alike, after, 1)
        inner = fnp.where(alike, (w1 + w2) / fnp.where(alike, inverse, 1), 0)
        first = _end(h[0], h[1], chord[0], chord[1])
        last = _end(h[-1], h[-2], chord[-1], chord[-2])
        self._slopes = fnp.concatenate([first[None], inner, last[None]])


def _end(h0: Any, h1: Any, m0: Any, m1: Any) -> Any:
    """The slope at an end by three points, kept from turning the curve round."""
    d = ((2 * h0 + h1) * m0 - h0 * m1) / (h0 + h1)
    steep = (fnp.sign(m0) != fnp.sign(m1)) & (fnp.abs(d) > 3 * fnp.abs(m0))
    return fnp.where(fnp.sign(d) != fnp.sign(m0), 0, fnp.where(steep, 3 * m0, d))
