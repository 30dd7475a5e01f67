"""Cotangents of arrays that were read in slices, without an array of zeros around each slice.

Where an array is cut along an axis (`split`, the steps of a sequence), each part's cotangent is
zero outside that part. Their sum is written into one array, whose bits are those of adding padded
ones: as long as slices don't overlap, each element is added to zeros alone.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Sequence

import numpy as np

from funcgrad.core.eager.large import kept
from funcgrad.core.ir import Jaxpr, Literal
from funcgrad.core.types import Cotangent, Value
from funcgrad.ops.slicing import pad_p


class Pieces:
    """A sum of padded slices along one axis.

    pad(ct) → [the first one, padded]; room(np) → memory for the sum
    """

    __slots__ = ("_axis", "_ct", "_ends", "_pad", "_room", "_sum")

    def __init__(
        self, pad: Callable[..., Sequence], room: Callable, ct: np.ndarray, axis: int, start: int
    ):
        self._pad, self._room, self._ct, self._axis = pad, room, ct, axis
        self._ends = [start, start + ct.shape[axis]]  # where filled and empty parts meet, in order
        self._sum: np.ndarray | None = None

    def whole(self) -> np.ndarray:
        """The sum as an array."""
        if self._sum is None:
            return self._pad(self._ct)[0]
        ends = [0, *self._ends, self._sum.shape[self._axis]]
        for start, stop in zip(ends[::2], ends[1::2], strict=True):
            if start < stop:
                self._part(start, stop)[...] = 0
        return self._sum

    def add(self, other: Pieces) -> bool:
        """Add another slice of the same array, if it is cut along the same axis and lies in an
        empty part; False if not."""
        start, stop = other._ends[0], other._ends[-1]
        at = bisect(self._ends, start)
        free = at % 2 == 0 and (at == len(self._ends) or stop <= self._ends[at])
        if not free or other._axis != self._axis or other._sum is not None:
            return False
        if self._sum is None:
            self._sum = self._room(np)
            self._fill(self._ends[0], self._ends[-1], self._ct)
        self._fill(start, stop, other._ct)
        self._ends[at:at] = [start, stop]
        if at + 2 < len(self._ends) and self._ends[at + 2] == stop:
            del self._ends[at + 1 : at + 3]
        if at and self._ends[at - 1] == start:
            del self._ends[at - 1 : at + 1]
        return True

    def _fill(self, start: int, stop: int, ct: np.ndarray) -> None:
        # Added to the zeros of others, which makes 0.0 of -0.0.
        np.add(ct, 0, out=self._part(start, stop))

    def _part(self, start: int, stop: int) -> np.ndarray:
        assert self._sum is not None
        return self._sum[(slice(None),) * self._axis + (slice(start, stop),)]


def pulled_pieces(backward: Jaxpr, pull: Callable[..., Sequence]) -> Callable[..., Sequence] | None:
    """The function of a cotangent that a program which pads it along one axis computes, as `pull`
    does, with `Pieces` as its result; None for other programs.

    >>> import funcgrad as fg, numpy as np
    >>> from funcgrad import lax
    >>> x = fg.numpy.ones(1)
    >>> pad = fg.make_jaxpr(lambda ct: lax.pad(ct, np.float32(0), [(1, 2, 0)]))(x).jaxpr
    >>> pulled_pieces(pad, lambda ct: [np.pad(ct, (1, 2))])(np.ones(1))[0].whole()
    array([0., 1., 0., 0.])
    """
    if len(backward.eqns) != 1 or len(backward.ins) != 1 or backward.outs != backward.eqns[0].outs:
        return None
    (eqn,) = backward.eqns
    if eqn.prim is not pad_p or eqn.ins[0] is not backward.ins[0]:
        return None
    config, zero = eqn.params["padding_config"], eqn.ins[1]
    cut = [(axis, low) for axis, (low, high, _) in enumerate(config) if low or high]
    simple = all(low >= 0 and high >= 0 and not inner for low, high, inner in config)
    if len(cut) != 1 or not simple or not backward.ins[0].aval.size:
        return None
    # A sum of bools or integers would be one, too, but these have no cotangents.
    if not isinstance(zero, Literal) or zero.value.tobytes().strip(b"\0"):
        return None
    ((axis, start),) = cut
    aval = backward.outs[0].aval
    room = kept(lambda xp: xp.empty(aval.shape, aval.dtype), aval)
    return lambda ct: [Pieces(pull, room, ct, axis, start)]


def in_one(ct: Cotangent) -> Value:
    """A cotangent that may be of pieces as an array."""
    return ct.whole() if type(ct) is Pieces else ct
