"""Convolutions of many small images, features first, as of images whose features come last.

A result of few places for each feature fills no vectors, and is a product for each image, or for
each place, which reads all of the kernel. With features last, the places of all images are rows of
one product. Operand and result are copied into that order: they are small beside the kernel. So are
those of gradients of kernels, which are tiles of all images then.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from funcgrad.backends.fusion.joins import copy_p
from funcgrad.core.aval import ShapedArray
from funcgrad.core.ir import Atom, Eqn, Var

# At least so many images; at most so many places of each, and of windows by tiles, which take
# longer to cut out of lines that are short.
IMAGES, PLACES, TILED_PLACES = 8, 15, 36
# Of gradients of 3×3 kernels: at most so many places; at least so many channels, which fill
# vectors; and of places in all at least so many times the channels or features.
GRADIENT_PLACES, CHANNELS, TIMES = 196, 32, 4


def features_last(
    flat: Any, eqn: Eqn, ins: list[Atom], write: Callable[[Eqn, list[Atom]], Atom | None]
) -> Atom | None:
    """A convolution of many small images, by a normalizer's methods; None if it is none, or isn't
    written.

    write: makes the result of a convolution's equation, or None

    >>> import funcgrad as fg
    >>> x, w = fg.numpy.ones((8, 16, 3, 3)), fg.numpy.ones((16, 16, 2, 2))
    >>> conv = fg.jit(lambda x, w: fg.lax.conv_general_dilated(x, w, (1, 1), "VALID"))
    >>> "gemm float32 32x16x64" in str(conv.lower(x, w)._executable().program)
    True
    """
    p, out, (x, w) = eqn.params, eqn.outs[0].aval, ins
    spec, rank = p["dimension_numbers"], len(p["window_strides"])
    first, last = tuple(range(rank + 2)), (0, *range(2, rank + 2), 1)
    plain = p["feature_group_count"] * p["batch_group_count"] == 1
    if not plain or tuple(spec.lhs_spec) != first or tuple(spec.out_spec) != first:
        return None
    if out.shape[0] < IMAGES or not 1 < _places(eqn) <= _most_places(eqn, w.aval):
        return None
    x, order = _copied(flat, flat.transpose(x, last)), (0, rank + 1, *range(1, rank + 1))
    result = Var(ShapedArray(tuple(out.shape[a] for a in last), out.dtype))
    numbers = type(spec)(order, tuple(spec.rhs_spec), order)
    made = eqn.replace(ins=[x, w], outs=[result], params=p | {"dimension_numbers": numbers})
    y = write(made, [x, w])
    return None if y is None else flat.transpose(_copied(flat, y), order)


def gradient_features_last(
    flat: Any, eqn: Eqn, ins: list[Atom], write: Callable[[Eqn, list[Atom]], Atom | None]
) -> Atom | None:
    """As `features_last`, for the gradient of a kernel: the convolution of an operand with that of
    the result, whose places are the window's. Lines that are short are sooner cut into tiles where
    vectors are of channels.

    >>> import funcgrad as fg
    >>> x, w = fg.numpy.ones((8, 32, 6, 6)), fg.numpy.ones((16, 32, 3, 3))
    >>> conv = lambda w: fg.lax.conv_general_dilated(x, w, (1, 1), "SAME").sum()
    >>> fg.jit(fg.grad(conv))(w).shape
    (16, 32, 3, 3)
    """
    p, out, (x, g) = eqn.params, eqn.outs[0].aval, ins
    spec, rank = p["dimension_numbers"], len(p["window_strides"])
    swapped, last = (1, 0, *range(2, rank + 2)), (0, *range(2, rank + 2), 1)
    plain = p["feature_group_count"] * p["batch_group_count"] == 1
    if not plain or any(tuple(s) != swapped for s in spec):
        return None
    images, places = x.aval.shape[0], math.prod(g.aval.shape[2:])
    ones = {*p["window_strides"], *p["lhs_dilation"], *p["rhs_dilation"]} == {1}
    if not ones or out.shape[2:] != (3, 3) or out.shape[1] < CHANNELS or places > GRADIENT_PLACES:
        return None
    # The kernel's gradient is written twice.
    if images < IMAGES or images * places <= TIMES * max(out.shape[:2]):
        return None
    x, g = (_copied(flat, flat.transpose(v, last)) for v in (x, g))
    spatial = tuple(range(rank))
    order, kernel = (rank + 1, 0, *(i + 1 for i in spatial)), (rank, rank + 1, *spatial)
    shape = tuple(out.shape[a] for a in (*range(2, rank + 2), 1, 0))
    result = Var(ShapedArray(shape, out.dtype))
    numbers = type(spec)(order, order, kernel)
    made = eqn.replace(ins=[x, g], outs=[result], params=p | {"dimension_numbers": numbers})
    y = write(made, [x, g])
    return None if y is None else flat.transpose(_copied(flat, y), (rank + 1, rank, *spatial))


def _places(eqn: Eqn) -> int:
    """Of an image's result, those that meet the same elements of the kernel."""
    p = eqn.params
    moves = zip(p["lhs_dilation"], p["window_strides"], strict=True)
    phases = math.prod(hole // math.gcd(hole, step) for hole, step in moves)
    return math.prod(eqn.outs[0].aval.shape[2:]) // phases


def _most_places(eqn: Eqn, w: ShapedArray) -> int:
    p = eqn.params
    ones = {*p["window_strides"], *p["lhs_dilation"], *p["rhs_dilation"]} == {1}
    window = [w.shape[a] for a in p["dimension_numbers"].rhs_spec[2:]]
    return TILED_PLACES if ones and window == [3, 3] else PLACES


def _copied(flat: Any, x: Atom) -> Atom:
    return flat.add(copy_p, [x], x.aval)
