"""What products of a convolution's windows compute: all of it, or one of its phases.

Where images have holes, results that meet the same elements of the kernel are a phase: by itself, a
convolution of images without holes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from funcgrad.backends.program import Convolution
from funcgrad.core.ir import Atom, Eqn
from funcgrad.ops.convolution.padding import dilated


class Phase(NamedTuple):
    """Along an axis, the outputs phase, phase + step, … : the elements first, first + stride, … of
    the kernel meet the operand's start + output·move + element·dilation. So it is of `phases`
    that follow each other, for each of which `first` is one less."""

    start: int
    move: int
    first: int
    stride: int
    dilation: int
    taps: int
    phases: int = 1

    def follows(self, last: Phase) -> bool:
        """Whether outputs of this phase meet what those of the last one do."""
        if not self.taps:
            return not last.taps
        next_of_last = last._replace(first=last.first - last.phases, phases=1)
        return self == next_of_last


def phases_of(
    size: int, kernel: int, stride: int, low: int, hole: int, dilation: int
) -> list[Phase]:
    """The phases of an axis: outputs of a phase meet the same elements of the kernel.

    >>> [p.taps for p in phases_of(8, 3, 1, 1, 2, 1)], len(phases_of(8, 3, 2, 1, 1, 1))
    ([1, 2], 1)
    """
    common, every = math.gcd(stride, hole), hole // math.gcd(dilation, hole)
    out: list[Phase] = []
    for phase in range(min(hole // common, size)):
        at = phase * stride - low
        met = [j for j in range(min(kernel, every)) if (at + j * dilation) % hole == 0]
        first = met[0] if met else kernel
        taps = len(range(first, kernel, every))
        start = (at + first * dilation) // hole
        new = Phase(start, stride // common, first, every, dilation * every // hole, taps)
        if out and new.follows(out[-1]):
            out[-1] = out[-1]._replace(phases=out[-1].phases + 1)
        else:
            out.append(new)
    return out


def convolution_of(
    eqn: Eqn,
    ins: list[Atom],
    along: Sequence[Phase] = (),
    sizes: tuple[int, ...] = (),
    phases: tuple[int, ...] = (),
) -> Convolution:
    """The convolution of an equation; or of windows of a phase along each axis, or of `phases` from
    these on, which have no holes.

    sizes: features in a group, and a result's places, of phases

    >>> import funcgrad as fg
    >>> x, w = fg.numpy.ones((2, 3, 9)), fg.numpy.ones((4, 3, 3))
    >>> conv = lambda x, w: fg.lax.conv_general_dilated(x, w, (2,), [(1, 1)])
    >>> (eqn,) = fg.make_jaxpr(conv)(x, w).jaxpr.eqns
    >>> of = convolution_of(eqn, eqn.ins)
    >>> of.channels, of.taps, of.places, of.strides, of.padding
    (3, (3,), (5,), (2,), ((1, 1),))
    """
    p, out = eqn.params, eqn.outs[0].aval.shape
    lhs, rhs, result = p["dimension_numbers"]
    groups = p["feature_group_count"], p["batch_group_count"]
    o, i, *taps = (ins[1].aval.shape[a] for a in rhs)
    holes = (1,) * len(taps) if sizes else p["lhs_dilation"]
    features, *places = sizes or (o // math.prod(groups), *(out[a] for a in result[2:]))
    if not sizes:
        moves = p["padding"], p["window_strides"], p["rhs_dilation"], taps
        along = [Phase(-pad[0], move, 0, 1, dilation, k)
                 for pad, move, dilation, k in zip(*moves, strict=True)]  # fmt: skip
    size = tuple(ins[0].aval.shape[a] for a in lhs[2:])
    ends = [q.start + (k - 1) * q.move + (q.taps - 1) * q.dilation + 1
            for q, k in zip(along, places, strict=True)]  # fmt: skip
    if phases:
        ends = [end + k - 1 for end, k in zip(ends, phases, strict=True)]
    reach = [dilated(m, hole) for m, hole in zip(size, holes, strict=True)]
    return Convolution(
        out[result[0]], i, features, size, tuple(q.taps for q in along), tuple(places),
        tuple(q.move for q in along),
        tuple((-q.start, end - m) for q, end, m in zip(along, ends, reach, strict=True)),
        tuple(q.dilation for q in along), groups, phases, lhs[1] > lhs[-1], p["operands"],
        holes if max(holes, default=1) > 1 else (),
    )  # fmt: skip
