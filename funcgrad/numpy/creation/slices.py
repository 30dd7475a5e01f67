"""Arrays written as indices: `mgrid[0:3, 0:2]`, `r_[0:3, 7]`, `s_[1:, ...]`."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from funcgrad.errors import ShapeError
from funcgrad.numpy._util import as_array, default_int, promote
from funcgrad.numpy.creation.creation import array, zeros
from funcgrad.numpy.creation.grids import meshgrid
from funcgrad.numpy.creation.ranges import arange, linspace
from funcgrad.numpy.manipulation.joining import concatenate, stack
from funcgrad.numpy.manipulation.shape import expand_dims, moveaxis

__all__ = ["c_", "index_exp", "mgrid", "ogrid", "r_", "s_"]


def _line(s: slice) -> Any:
    """The numbers of a slice: start, start + step, …, or, for a step of nj, n of them with stop."""
    start = 0 if s.start is None else s.start
    step = 1 if s.step is None else s.step
    if isinstance(step, complex):
        return linspace(start, s.stop, int(abs(step)))
    return arange(start, s.stop, step)


class _Grid:
    """Coordinates of the grid that slices span; each slice is start:stop:step or start:stop:nj."""

    def __init__(self, name: str, sparse: bool):
        self._name, self._sparse = name, sparse

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            return _line(key)
        if not key:
            return () if self._sparse else zeros((0,), default_int())
        lines = promote(self._name, *(_line(s) for s in key))
        grid = meshgrid(*lines, indexing="ij", sparse=self._sparse)
        return grid if self._sparse else stack(grid)

    def __repr__(self) -> str:
        return self._name


class _Concatenator:
    """Slices, arrays and scalars, joined along an axis.

    A string in front says "axis", "axis,ndmin" or "axis,ndmin,place": arrays get `ndmin` axes, and
    the axes of one that has less go to `place` (the end, -1).
    """

    def __init__(self, name: str, axis: int, ndmin: int, place: int):
        self._name, self._axis, self._ndmin, self._place = name, axis, ndmin, place

    def __getitem__(self, key: Any) -> Any:
        items = key if isinstance(key, tuple) else (key,)
        axis, ndmin, place = self._axis, self._ndmin, self._place
        if isinstance(items[0], str):
            given = [int(v) for v in items[0].split(",")] if items[0] not in ("r", "c") else None
            if given is None or len(given) > 3:
                raise ValueError(
                    f"{self._name}: {items[0]!r} must be 'axis', 'axis,ndmin' or 'axis,ndmin,place'"
                )
            axis, ndmin, place = (*given, *(axis, ndmin, place)[len(given) :])
            items = items[1:]
        if not items:
            raise ShapeError(f"{self._name}: nothing to join")
        return concatenate([self._part(i, ndmin, place) for i in items], axis)

    def _part(self, item: Any, ndmin: int, place: int) -> Any:
        if isinstance(item, list | tuple):
            item = array(item)
        part = _line(item) if isinstance(item, slice) else as_array(self._name, item)
        new = max(ndmin, 1) - part.ndim
        if new <= 0:
            return part
        own = tuple(range(new, new + part.ndim))
        wide = expand_dims(part, tuple(range(new)))
        first = operator.index(place)
        first = first % (new + 1) if first >= 0 else new + 1 + first
        return moveaxis(wide, own, tuple(range(first, first + part.ndim)))

    def __repr__(self) -> str:
        return self._name


mgrid = _Grid("mgrid", sparse=False)
ogrid = _Grid("ogrid", sparse=True)
r_ = _Concatenator("r_", axis=0, ndmin=1, place=-1)
c_ = _Concatenator("c_", axis=-1, ndmin=2, place=0)
index_exp = np.index_exp
s_ = np.s_
