"""Convolutions without the elements of kernels that meet nothing but padding.

In the last layers of a network that was made for larger images, and in what makes images of
vectors, most of a window lies outside: of an image of one place, each result meets one element of
the kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from funcgrad.core.aval import ShapedArray
from funcgrad.core.ir import Atom, Eqn, Literal
from funcgrad.ops.shape import rev_p
from funcgrad.ops.slicing import pad_p, slice_p


def trimmed(flat: Any, eqn: Eqn, ins: list[Atom]) -> tuple[Eqn, list[Atom]]:
    """A convolution, and its operands, without the first and last elements of the kernel that meet
    only padding, if those are most of it, by a normalizer's methods.

    >>> import funcgrad as fg
    >>> x, w = fg.numpy.ones((8, 32, 2, 2)), fg.numpy.ones((16, 32, 3, 3))
    >>> conv = fg.jit(lambda x, w: fg.lax.conv_general_dilated(x, w, (2, 2), [(1, 1), (1, 1)]))
    >>> "gemm float32 8x16x128" in str(conv.lower(x, w)._executable().program)
    True
    """
    (x, w), p, padding = ins, eqn.params, []
    parts = [range(n) for n in w.aval.shape]
    for i, (image, kernel, places) in enumerate(_spatial(eqn)):
        stride, dilation, (low, high) = (
            p[name][i] for name in ("window_strides", "rhs_dilation", "padding")
        )
        starts = range(-low, -low + eqn.outs[0].aval.shape[places] * stride, stride)
        hole = p["lhs_dilation"][i]
        inside = range(0, x.aval.shape[image] * hole, hole)
        taps, met = parts[kernel], low % math.gcd(stride, dilation, hole) == 0
        first = next((t for t in taps if met and _meets(t * dilation, starts, inside)), None)
        if first is not None:
            last = next(t for t in reversed(taps) if _meets(t * dilation, starts, inside))
            low, high = low - first * dilation, high - (taps[-1] - last) * dilation
            parts[kernel] = range(first, last + 1)
        padding.append((low, high))
    if 2 * math.prod(map(len, parts)) >= w.aval.size:
        return eqn, ins
    cut = _cut(flat, w, parts)
    made = eqn.replace(ins=[x, cut], params=p | {"padding": tuple(padding)})
    return made, [x, cut]


def single_places(flat: Any, eqn: Eqn, ins: list[Atom], product: Callable) -> Atom | None:
    """A convolution of images of one place each, as a product of these with the elements of the
    kernel that they meet, by a normalizer's methods; None if it is none.

    product: makes a product from operands, the result's shape and dimension_numbers

    >>> import funcgrad as fg
    >>> x, w = fg.numpy.ones((8, 32, 1, 1)), fg.numpy.ones((16, 32, 4, 4))
    >>> conv = fg.jit(lambda x, w: fg.lax.conv_general_dilated(x, w, (1, 1), [(3, 3), (3, 3)]))
    >>> "gemm float32 8x256x32" in str(conv.lower(x, w)._executable().program)
    True
    """
    (x, w), p, shape = ins, eqn.params, eqn.outs[0].aval.shape
    spec, groups = p["dimension_numbers"], p["feature_group_count"] * p["batch_group_count"]
    met = [
        _meetings(shape[places], w.aval.shape[kernel], stride, low, dilation)
        for (_, kernel, places), stride, (low, _), dilation in zip(
            _spatial(eqn), p["window_strides"], p["padding"], p["rhs_dilation"], strict=True
        )
    ]
    single = all(x.aval.shape[image] == 1 for image, _, _ in _spatial(eqn))
    if groups > 1 or not single or not all(m.places for m in met):
        return None
    # Images, then features and places in the order of the result, and their axes of the kernel.
    order = [0, *sorted(range(1, len(shape)), key=lambda i: spec.out_spec[i])]
    axes = [spec.rhs_spec[0 if i == 1 else i] for i in order[1:]]
    parts = [range(n) for n in w.aval.shape]
    for axis, m in zip(spec.rhs_spec[2:], met, strict=True):
        parts[axis] = m.elements
    w = _cut(flat, w, parts)
    turned = tuple(a for a in spec.rhs_spec[2:] if w.aval.shape[a] > 1)
    if turned:
        w = flat.add(rev_p, [w], w.aval, dimensions=turned)
    w = flat.transpose(w, (spec.rhs_spec[1], *axes))
    x = flat.transpose(x, spec.lhs_spec)
    x = flat.reshape(x, x.aval.shape[:2])
    made = (x.aval.shape[0], *w.aval.shape[1:])
    y = product(x, w, made, (((1,), (0,)), ((), ())))
    taken = [
        range(shape[spec.out_spec[0]]),
        range(shape[spec.out_spec[1]]),
        *(m.places for m in met),
    ]
    y = _spread(flat, y, [shape[spec.out_spec[i]] for i in order], [taken[i] for i in order])
    return flat.transpose(y, [order.index(spec.out_spec.index(a)) for a in range(len(shape))])


def _meets(shift: int, starts: range, inside: range) -> bool:
    """Whether an element of a kernel, so far from where windows start, meets an image."""
    return any(start + shift in inside for start in starts)


def _spatial(eqn: Eqn) -> list[tuple[int, int, int]]:
    """The spatial axes: of the image, of the kernel and of the result."""
    return list(zip(*(spec[2:] for spec in eqn.params["dimension_numbers"]), strict=True))


class _Meetings(NamedTuple):
    """Places of a result, and the elements of a kernel that they meet, the last place the first."""

    places: range
    elements: range


def _meetings(size: int, kernel: int, stride: int, low: int, dilation: int) -> _Meetings:
    """Which of `size` places meet an image's one place, along an axis, and with what."""
    met = {}
    for place in range(size):
        element, rest = divmod(low - place * stride, dilation)
        if not rest and 0 <= element < kernel:
            met[place] = element
    return _Meetings(_steps(list(met)), _steps(list(met.values())[::-1]))


def _steps(numbers: list[int]) -> range:
    """Numbers at equal distances as a range."""
    if not numbers:
        return range(0)
    return range(numbers[0], numbers[-1] + 1, numbers[1] - numbers[0] if len(numbers) > 1 else 1)


def _cut(flat: Any, x: Atom, parts: Sequence[range]) -> Atom:
    """The elements of x in a range along each axis."""
    made = tuple(map(len, parts))
    if made == x.aval.shape:
        return x
    return flat.add(
        slice_p, [x], ShapedArray(made, x.aval.dtype), start_indices=tuple(r.start for r in parts),
        limit_indices=tuple(r.stop for r in parts), strides=tuple(r.step for r in parts),
    )  # fmt: skip


def _spread(flat: Any, x: Atom, shape: Sequence[int], places: Sequence[range]) -> Atom:
    """Zeros of a shape, with x at places along each axis."""
    if x.aval.shape == tuple(shape):
        return x
    zero = Literal(np.zeros((), x.aval.dtype), ShapedArray((), x.aval.dtype))
    config = tuple((r[0], n - 1 - r[-1], r.step - 1) for n, r in zip(shape, places, strict=True))
    aval = ShapedArray(tuple(shape), x.aval.dtype)
    return flat.add(pad_p, [x, zero], aval, padding_config=config)
