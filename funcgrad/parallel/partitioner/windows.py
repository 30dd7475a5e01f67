"""Parts of an axis as whole programs see them: runs of pieces that lie in arrays of one size.

`x[1:]` of an axis of n elements has n - 1, which devices can't share; but it lies in x, which they
do. A `Run` says where: rows of *carriers* (arrays with n rows, counted in a circle), of small
arrays, or one number again and again. `Carriers` makes an array of n rows that holds a run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from funcgrad.core.aval import ShapedArray
from funcgrad.core.ir import Eqn
from funcgrad.core.trace import aval_of
from funcgrad.ops.base import broadcast_p, full, position_dtype, zeros
from funcgrad.ops.elementwise.compare import bitwise_and, bitwise_or, ge, lt
from funcgrad.ops.elementwise.convert import select_n
from funcgrad.ops.shape import concatenate, iota_p
from funcgrad.ops.slicing import pad_p, slice_p
from funcgrad.parallel.partitioner.shift import centered, shift_p

Names = tuple[str, ...]


@dataclass(frozen=True)
class Piece:
    """Rows of an array: `length` from `start` on. `carrier`: in a circle, of an array of the run's
    size, whose rows may all be `equal`; else of a small one, or of a number, again and again."""

    source: Any
    start: int
    length: int
    carrier: bool
    equal: bool = False


@dataclass(frozen=True)
class Run:
    """Pieces, one after the other along an axis. n: the size of carriers; cut: the mesh axes over
    which devices share them; aval: the type of the whole."""

    axis: int
    n: int
    cut: Names
    pieces: tuple[Piece, ...]
    aval: ShapedArray

    @property
    def length(self) -> int:
        """The number of rows."""
        return self.aval.shape[self.axis]

    def with_pieces(self, pieces: Sequence[Piece], aval: ShapedArray | None = None) -> Run:
        """Other pieces, whose lengths give the size of the axis; aval: of the other axes."""
        kept = tuple(p for p in pieces if p.length)
        size = sum(p.length for p in kept)
        return replace(self, pieces=kept, aval=resized(aval or self.aval, self.axis, size))

    def window(self, start: int, length: int) -> Run:
        """Some of the rows."""
        found, at = [], 0
        for p in self.pieces:
            low, high = max(start, at), min(start + length, at + p.length)
            if low < high:
                found.append(replace(p, start=p.start + low - at, length=high - low))
            at += p.length
        return self.with_pieces(found)

    @property
    def place(self) -> int:
        """Where the largest piece of a carrier lies as it is."""
        at, best, found = 0, 0, 0
        for p in self.pieces:
            if p.carrier and not p.equal and p.length > best:
                best, found = p.length, p.start - at
            at += p.length
        return found % self.n


@dataclass(frozen=True)
class Later:
    """A result with more rows than a carrier, of an op that treats them alike: computed for those
    rows that are taken from it."""

    eqn: Eqn
    factor: str
    run: Run


def resized(aval: ShapedArray, axis: int, n: int) -> ShapedArray:
    """The type with another size of one axis."""
    return aval.update(shape=(*aval.shape[:axis], n, *aval.shape[axis + 1 :]))


def rows(x: Any, axis: int, start: int, stop: int) -> Any:
    """Rows of an array along an axis."""
    shape = aval_of(x).shape
    if (start, stop) == (0, shape[axis]):
        return x
    low, high = [0] * len(shape), list(shape)
    low[axis], high[axis] = start, stop
    return slice_p.bind(x, start_indices=tuple(low), limit_indices=tuple(high), strides=None)


class Carriers:
    """Writes arrays that hold runs, each once. atom: the variable that stands for a value."""

    def __init__(self, atom: Callable[[Any], Any]):
        self.atom = atom
        self.known: dict[Any, Any] = {}

    def _once(self, key: Any, make: Callable[[], Any]) -> Any:
        if key not in self.known:
            self.known[key] = make()
        return self.known[key]

    def shifted(self, x: Any, axis: int, offset: int) -> Any:
        """An array whose row i is x's row i + offset."""
        offset = centered(offset, aval_of(x).shape[axis])
        if not offset:
            return x
        key = ("shift", self.atom(x), axis, offset)
        return self._once(key, lambda: shift_p.bind(x, axis=axis, offset=offset))

    def mask(self, aval: ShapedArray, axis: int, start: int, length: int) -> Any:
        """Which rows are among `length` from `start` on, in a circle."""
        n = aval.shape[axis]
        start %= n
        key = ("mask", n, start, length)
        flags = self._once(key, lambda: _flags(n, start, length))
        return self._once(
            (*key, aval.shape, axis),
            lambda: broadcast_p.bind(flags, shape=aval.shape, broadcast_dimensions=(axis,)),
        )

    def masked(self, x: Any, run: Run, at: int, outside: Any) -> Any:
        """A carrier that holds a run at a place, and a number elsewhere."""
        aval = aval_of(x)
        here = self.mask(aval, run.axis, at, run.length)
        return select_n(here, full(aval.shape, outside, aval.dtype), x)

    def put(self, run: Run, at: int, outside: Any = None) -> Any:
        """A carrier that holds a run from a place on; what else it holds is of no meaning, or
        `outside`."""
        found, first, to = None, None, at
        for p in run.pieces:
            part = self._lying(run, p, to)
            if found is None:
                found = first = part
            elif part is not found and part is not first:
                here = self.mask(aval_of(part), run.axis, to, p.length)
                found = select_n(here, found, part)
            to += p.length
        return found if outside is None else self.masked(found, run, at, outside)

    def _lying(self, run: Run, p: Piece, to: int) -> Any:
        """A carrier whose rows from `to` on are a piece."""
        shape = resized(run.aval, run.axis, run.n).shape
        if p.equal:
            return p.source
        if p.carrier:
            return self.shifted(p.source, run.axis, p.start - to)
        if not aval_of(p.source).ndim and shape:
            key = ("number", id(p.source), shape)
            return self._once(
                key, lambda: (broadcast_p.bind(p.source, shape=shape, broadcast_dimensions=()), p)
            )[0]
        to %= run.n
        low = min(to, run.n - p.length)
        part = rows(p.source, run.axis, p.start, p.start + p.length)
        config = [(0, 0, 0)] * len(shape)
        config[run.axis] = (low, run.n - p.length - low, 0)
        zero = np.zeros((), aval_of(part).dtype)
        lying = pad_p.bind(part, zero, padding_config=tuple(config))
        return self.shifted(lying, run.axis, low - to)

    def whole(self, run: Run) -> Any:
        """A run as an array of its own."""
        parts = []
        for p in run.pieces:
            if not p.carrier and not aval_of(p.source).ndim and run.aval.ndim:
                shape = resized(run.aval, run.axis, p.length).shape
                parts.append(broadcast_p.bind(p.source, shape=shape, broadcast_dimensions=()))
                continue
            start = p.start % run.n if p.carrier else p.start
            stop = start + p.length
            size = aval_of(p.source).shape[run.axis]
            parts.append(rows(p.source, run.axis, start, min(stop, size)))
            if stop > size:
                parts.append(rows(p.source, run.axis, 0, stop - size))
        if not parts:
            return zeros(run.aval)
        return parts[0] if len(parts) == 1 else concatenate(parts, run.axis)


def _flags(n: int, start: int, length: int) -> Any:
    """Which of n rows, in a circle, are among `length` from `start` on."""
    dtype = position_dtype(n)
    counts = iota_p.bind(dtype=dtype, shape=(n,), dimension=0)

    def limit(i: int) -> Any:
        return full((n,), np.asarray(i, dtype))

    stop = start + length
    if start == 0:
        return lt(counts, limit(length))
    if stop == n:
        return ge(counts, limit(start))
    if stop < n:
        return bitwise_and(ge(counts, limit(start)), lt(counts, limit(stop)))
    return bitwise_or(ge(counts, limit(start)), lt(counts, limit(stop - n)))
