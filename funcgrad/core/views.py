"""Where the elements of a view come from: what an op's rule `view` says of one that moves elements
and computes nothing.

A rule gives a `Place` for each axis of the operand, or `None` where elements keep their row-major
order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from funcgrad.core.types import Param

if TYPE_CHECKING:
    from funcgrad.core.aval import ShapedArray
    from funcgrad.core.ir import Eqn


class Place(NamedTuple):
    """Where elements lie along an axis of the operand: at `start`, plus `step` times the index
    along an axis of the result, for each pair (step, axis) of `terms`."""

    start: int
    terms: tuple[tuple[int, int], ...] = ()


def in_order(x: ShapedArray, **params: Param) -> None:
    """The rule of ops that keep the row-major order of elements, such as a reshape."""
    return None


def spread(eqn: Eqn) -> list[int] | None:
    """For a broadcast, which may permute axes: the axis of the result along which each axis of the
    operand lies, -1 for one of size 1 that goes along any. None for other views.

    >>> import funcgrad as fg, funcgrad.numpy as fnp
    >>> program = fg.make_jaxpr(lambda x: fnp.broadcast_to(x, (4, 3)).T)(fnp.ones((1, 3)))
    >>> list(map(spread, program.eqns))
    [[-1, 1], [1, 0]]
    """
    x, shape = eqn.ins[0].aval, eqn.outs[0].aval.shape
    places = eqn.prim.view(x, **eqn.params)  # type: ignore[misc]
    axes = []
    for n, place in zip(x.shape, places if places is not None else (), strict=places is not None):
        along = [d for step, d in place.terms if step == 1 and shape[d] == n]
        if place.start or len(along) < len(place.terms) or len(along) > 1 or n > 1 > len(along):
            return None
        axes.append(along[0] if along else -1)
    return None if places is None else axes


def repeats(eqn: Eqn) -> bool:
    """Whether an equation is a view that has elements more than once: a broadcast."""
    return eqn.prim.view is not None and eqn.outs[0].aval.size > eqn.ins[0].aval.size
