"""Paddings by name, and what the gradients of windows are padded with."""

import itertools

import numpy as np
import pytest

from funcgrad.errors import ShapeError
from funcgrad.ops.convolution.padding import (
    dilated,
    padded,
    pads_of_operand_gradient,
    pads_of_window_gradient,
    padtype_to_pads,
    positions,
)


def test_named_paddings():
    assert padtype_to_pads((5, 6), (3, 2), (2, 2), "SAME") == ((1, 1), (0, 0))
    assert padtype_to_pads((5,), (2,), (1,), "same") == ((0, 1),)
    assert padtype_to_pads((5,), (2,), (1,), "SAME_LOWER") == ((1, 0),)
    assert padtype_to_pads((5,), (2,), (1,), "VALID") == ((0, 0),)
    assert padtype_to_pads((5,), (2,), (1,), [(1, -1)]) == ((1, -1),)


def test_same_gives_the_quotient_rounded_up():
    for n, window, stride in itertools.product(range(1, 9), range(1, 5), range(1, 5)):
        ((low, high),) = padtype_to_pads((n,), (window,), (stride,), "SAME")
        assert positions(n + low + high, window, stride) == -(-n // stride)
        assert 0 <= high - low <= 1


def test_gradients_have_the_sizes_of_what_they_belong_to():
    """Also where the strides leave something over, or padding is negative."""
    sizes = itertools.product(range(6), (1, 2, 3), (1, 2), (-1, 0, 2), (0, 1), (1, 2), (1, 2))
    for n, window, stride, low, high, base, holes in sizes:
        reach, wide = dilated(window, holes), dilated(n, base) + low + high
        if wide < 0:
            continue
        out = positions(wide, reach, stride)
        args = (n,), (window,), (stride,), (out,), ((low, high),), (base,), (holes,)
        ((before, after),) = pads_of_operand_gradient(*args)
        assert positions(dilated(out, stride) + before + after, reach, base) == n
        ((before, after),) = pads_of_window_gradient(*args)
        total = dilated(n, base) + before + after
        assert positions(total, dilated(out, stride), holes) == window


def test_padded():
    x = np.array([[1, 2, 3]])
    got = padded(np, x, 0, ((1, 0), (-1, 2)), (1, 2))
    assert got.tolist() == [[0] * 6, [0, 2, 0, 3, 0, 0]]
    assert padded(np, x, 0, ((0, 0), (0, 0)), (1, 1)) is x


def test_errors():
    with pytest.raises(ValueError, match="'VALID', 'SAME', 'SAME_LOWER' or pairs, got 'FULL'"):
        padtype_to_pads((5,), (2,), (1,), "FULL")
    with pytest.raises(ShapeError, match=r"pair \(low, high\) for each of 1 axes"):
        padtype_to_pads((5,), (2,), (1,), [(1, 1), (2, 2)])
    with pytest.raises(TypeError, match="padding must be integers"):
        padtype_to_pads((5,), (2,), (1,), [(1, 1.5)])
