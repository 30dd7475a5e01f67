"""Convolutions said in other words: plain, transposed, as patches, with a kernel a position."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from funcgrad.core.aval import ShapedArray
from funcgrad.core.trace import aval_of
from funcgrad.errors import ShapeError
from funcgrad.ops.arguments import integers
from funcgrad.ops.base import size_of, transpose_p
from funcgrad.ops.contract import dot_general
from funcgrad.ops.convolution.conv import (
    ConvDimensionNumbers,
    conv_dimension_numbers,
    conv_general_dilated,
)
from funcgrad.ops.convolution.padding import dilated
from funcgrad.ops.shape import rev_p


def conv(
    lhs: Any,
    rhs: Any,
    window_strides: Sequence[int],
    padding: str,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> Any:
    """`conv_general_dilated` of axes N C … and O I …, without dilation.

    >>> from funcgrad import lax
    >>> lax.conv(lax.full((1, 1, 5), 1.0), lax.full((1, 1, 2), 1.0), (2,), "VALID")
    Array([[[2., 2.]]], dtype=float32, weak_type=True)
    """
    return conv_general_dilated(
        lhs,
        rhs,
        window_strides,
        padding,
        precision=precision,
        preferred_element_type=preferred_element_type,
    )


def conv_with_general_padding(
    lhs: Any,
    rhs: Any,
    window_strides: Sequence[int],
    padding: Any,
    lhs_dilation: Sequence[int] | None,
    rhs_dilation: Sequence[int] | None,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> Any:
    """`conv_general_dilated` of axes N C … and O I ….

    >>> from funcgrad import lax
    >>> x, w = lax.full((1, 1, 3), 1.0), lax.full((1, 1, 2), 1.0)
    >>> lax.conv_with_general_padding(x, w, (1,), [(1, 0)], (1,), (2,))
    Array([[[1., 2.]]], dtype=float32, weak_type=True)
    """
    return conv_general_dilated(
        lhs,
        rhs,
        window_strides,
        padding,
        lhs_dilation,
        rhs_dilation,
        precision=precision,
        preferred_element_type=preferred_element_type,
    )


_CHANNELS_LAST = {
    2: ("NC", "IO", "NC"),
    3: ("NHC", "HIO", "NHC"),
    4: ("NHWC", "HWIO", "NHWC"),
    5: ("NHWDC", "HWDIO", "NHWDC"),
}


def conv_transpose(
    lhs: Any,
    rhs: Any,
    strides: Sequence[int],
    padding: Any,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    transpose_kernel: bool = False,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> Any:
    """The transposed ("fractionally strided") convolution: strides make the result larger.

    `padding` "SAME" gives n · stride, "VALID" the size whose convolution would give n; or pairs,
    applied to the dilated operand. Axes are N … C and … I O unless `dimension_numbers` says
    otherwise. With `transpose_kernel` the kernel is flipped and its features swapped, so that the
    result is the gradient of a convolution. Compiled code leaves out products with the holes that
    strides make (see `conv_general_dilated`): NaN or an infinity in the kernel then reaches only
    the results that meet an element of the operand there.

    >>> from funcgrad import lax
    >>> x, w = lax.full((1, 2, 1), 1.0), lax.full((2, 1, 1), 1.0)
    >>> lax.conv_transpose(x, w, (2,), "SAME").shape
    (1, 4, 1)
    """
    numbers = _numbers_of(aval_of(lhs), aval_of(rhs), dimension_numbers)
    kernel = [aval_of(rhs).shape[a] for a in numbers.rhs_spec[2:]]
    ones = (1,) * len(kernel)
    holes = (
        ones if rhs_dilation is None else integers("conv_transpose", "rhs_dilation", rhs_dilation)
    )
    strides = integers("conv_transpose", "strides", strides)
    if not len(strides) == len(holes) == len(kernel):
        raise ShapeError(
            f"conv_transpose: need a stride and a dilation for each of {len(kernel)} axes, got "
            f"strides {strides} and rhs_dilation {holes}"
        )
    if isinstance(padding, str):
        padding = [
            _transpose_pads(dilated(k, d), s, padding.upper())
            for k, d, s in zip(kernel, holes, strides, strict=True)
        ]
    if transpose_kernel:
        rhs = _transposed(rhs, numbers.rhs_spec)
    return conv_general_dilated(
        lhs,
        rhs,
        ones,
        padding,
        strides,
        holes,
        numbers,
        precision=precision,
        preferred_element_type=preferred_element_type,
    )


def _numbers_of(lhs: ShapedArray, rhs: ShapedArray, given: Any) -> ConvDimensionNumbers:
    """Which axes are which, channels last where the user doesn't say."""
    if given is None:
        if lhs.ndim not in _CHANNELS_LAST:
            raise ShapeError(
                f"conv_transpose: dimension_numbers must be given for an operand {lhs}"
            )
        given = _CHANNELS_LAST[lhs.ndim]
    return conv_dimension_numbers(lhs.shape, rhs.shape, given)


def _transposed(kernel: Any, spec: Sequence[int]) -> Any:
    """The kernel flipped, its features swapped."""
    kernel = rev_p.bind(kernel, dimensions=tuple(spec[2:]))
    order = list(range(len(spec)))
    out, into = spec[:2]
    order[out], order[into] = into, out
    return transpose_p.bind(kernel, permutation=tuple(order))


def _transpose_pads(window: int, stride: int, padding: str) -> tuple[int, int]:
    if padding == "SAME":
        total = window + stride - 2
        before = window - 1 if stride > window - 1 else -(-total // 2)
    elif padding == "VALID":
        total = window + stride - 2 + max(window - stride, 0)
        before = window - 1
    else:
        raise ValueError(
            f"conv_transpose: padding must be 'SAME', 'VALID' or pairs, got {padding!r}"
        )
    return before, total - before


def conv_general_dilated_patches(
    lhs: Any,
    filter_shape: Sequence[int],
    window_strides: Sequence[int],
    padding: Any,
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> Any:
    """The windows that a convolution would see, each flattened into the feature axis.

    The result's features are the operand's, each with the elements of its window in order.

    >>> from funcgrad import lax
    >>> x = lax.reshape(lax.iota("float32", 4), (1, 1, 4))
    >>> lax.conv_general_dilated_patches(x, (2,), (1,), "VALID")
    Array([[[0., 1., 2.],
            [1., 2., 3.]]], dtype=float32)
    """
    aval = aval_of(lhs)
    shape = integers("conv_general_dilated_patches", "filter_shape", filter_shape)
    numbers = conv_dimension_numbers(aval.shape, (1, 1, *shape), dimension_numbers)
    features, size = aval.shape[numbers.lhs_spec[1]], size_of(shape)
    # One kernel for each element of a window, the same for each feature (a group of its own).
    pick = np.tile(np.eye(size).reshape(size, 1, *shape), (features, 1, *(1 for _ in shape)))
    spec = numbers.rhs_spec
    kernel = np.transpose(pick, [spec.index(a) for a in range(aval.ndim)]).astype(aval.dtype)
    return conv_general_dilated(
        lhs,
        kernel,
        window_strides,
        padding,
        lhs_dilation,
        rhs_dilation,
        numbers,
        feature_group_count=features,
        precision=precision,
        preferred_element_type=preferred_element_type,
    )


def conv_general_dilated_local(
    lhs: Any,
    rhs: Any,
    window_strides: Sequence[int],
    padding: Any,
    filter_shape: Sequence[int],
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    precision: Any = None,
) -> Any:
    """A convolution with a kernel of its own at each position (not shared).

    `rhs` has the result's spatial axes, and as input features those of
    `conv_general_dilated_patches`.

    >>> from funcgrad import lax
    >>> x, w = lax.full((1, 1, 3), 1.0), lax.reshape(lax.iota("float32", 4), (1, 2, 2))
    >>> lax.conv_general_dilated_local(x, w, (1,), "VALID", (2,))
    Array([[[2., 4.]]], dtype=float32)
    """
    shape = integers("conv_general_dilated_local", "filter_shape", filter_shape)
    numbers = conv_dimension_numbers(aval_of(lhs).shape, (1, 1, *shape), dimension_numbers)
    patches = conv_general_dilated_patches(
        lhs, shape, window_strides, padding, lhs_dilation, rhs_dilation, numbers
    )
    out_spec, rhs_spec = numbers.out_spec, numbers.rhs_spec
    # Batch axes of the product come first, in the order in which the result has them.
    spatial = sorted(zip(out_spec[2:], rhs_spec[2:], strict=True))
    batch = ([a for a, _ in spatial], [b for _, b in spatial])
    out = dot_general(patches, rhs, (((out_spec[1],), (rhs_spec[1],)), batch), precision)
    axes = [*(a for a, _ in spatial), out_spec[0], out_spec[1]]
    return transpose_p.bind(out, permutation=tuple(axes.index(a) for a in range(len(axes))))
