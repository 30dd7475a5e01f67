"""Sizes under windows, strides, dilation and padding: what convolutions and pooling share.

Along an axis, a window of `dilated(w, window_dilation)` elements moves by `stride` over an operand
of `dilated(n, base_dilation) + low + high` elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from funcgrad.errors import ShapeError
from funcgrad.ops.arguments import integers, items_of
from funcgrad.ops.slicing import pad_p

Pads = tuple[tuple[int, int], ...]


def dilated(size: int, dilation: int) -> int:
    """The length of an axis with dilation - 1 holes between neighbours.

    >>> dilated(3, 2), dilated(0, 2)
    (5, 0)
    """
    return 1 + (size - 1) * dilation if size else 0


def positions(size: int, window: int, stride: int) -> int:
    """How many positions a window has along an axis.

    >>> positions(7, 3, 2), positions(2, 3, 1)
    (3, 0)
    """
    return max(0, (size - window) // stride + 1)


def padtype_to_pads(
    in_shape: Sequence[int],
    window_shape: Sequence[int],
    window_strides: Sequence[int],
    padding: Any,
) -> Pads:
    """(low, high) for each axis, of the padding "VALID", "SAME", "SAME_LOWER" or pairs of ints.

    "SAME" gives ceil(n / stride) positions, with the odd element of padding at the end
    ("SAME_LOWER": at the start).

    >>> from funcgrad import lax
    >>> lax.padtype_to_pads((5, 5), (2, 3), (1, 2), "SAME")
    ((0, 1), (1, 1))
    """
    in_shape = integers("padtype_to_pads", "in_shape", in_shape)
    rank = len(in_shape)
    if not isinstance(padding, str):
        pads = tuple(integers("padding", "padding", p) for p in items_of("padding", padding))
        if len(pads) != rank or any(len(p) != 2 for p in pads):
            raise ShapeError(
                f"padding must have a pair (low, high) for each of {rank} axes, got {padding}"
            )
        return pads  # type: ignore[return-value]
    kind = padding.upper()
    if kind == "VALID":
        return ((0, 0),) * rank
    if kind not in ("SAME", "SAME_LOWER"):
        raise ValueError(f"padding must be 'VALID', 'SAME', 'SAME_LOWER' or pairs, got {padding!r}")
    windows = integers("padtype_to_pads", "window_shape", window_shape)
    strides = integers("padtype_to_pads", "window_strides", window_strides)
    if not len(windows) == len(strides) == rank:
        raise ShapeError(f"padding {padding!r}: need a window and a stride for each of {rank} axes")
    pads_list = []
    for n, window, stride in zip(in_shape, windows, strides, strict=True):
        total = max((-(-n // stride) - 1) * stride + window - n, 0)
        less, more = total // 2, total - total // 2
        pads_list.append((less, more) if kind == "SAME" else (more, less))
    return tuple(pads_list)


def pads_of_operand_gradient(
    in_shape: Sequence[int],
    window: Sequence[int],
    strides: Sequence[int],
    out_shape: Sequence[int],
    padding: Pads,
    base_dilation: Sequence[int],
    window_dilation: Sequence[int],
) -> Pads:
    """The padding (maybe negative) of a cotangent, dilated by the strides, over which the flipped
    window moves by `base_dilation` to give the operand's cotangent."""
    pads = []
    for n, w, s, m, (low, _), b, d in zip(
        in_shape, window, strides, out_shape, padding, base_dilation, window_dilation, strict=True
    ):
        before = dilated(w, d) - low - 1
        after = dilated(n, b) + dilated(w, d) - 1 - dilated(m, s) - before
        pads.append((before, after))
    return tuple(pads)


def pads_of_window_gradient(
    in_shape: Sequence[int],
    window: Sequence[int],
    strides: Sequence[int],
    out_shape: Sequence[int],
    padding: Pads,
    base_dilation: Sequence[int],
    window_dilation: Sequence[int],
) -> Pads:
    """The padding of the operand under the cotangent as a window, dilated by the strides, which
    moves by `window_dilation` to give the kernel's cotangent."""
    pads = []
    for n, w, s, m, (low, _), b, d in zip(
        in_shape, window, strides, out_shape, padding, base_dilation, window_dilation, strict=True
    ):
        high = dilated(m, s) - dilated(n, b) + dilated(w, d) - low - 1
        pads.append((low, high))
    return tuple(pads)


def padded(xp: Any, x: Any, value: Any, padding: Any, base_dilation: Any) -> Any:
    """x with holes between neighbours and a border, both filled with a value."""
    config = tuple((lo, hi, b - 1) for (lo, hi), b in zip(padding, base_dilation, strict=True))
    if not any(any(c) for c in config):
        return x
    return pad_p.impl(xp, x, value, padding_config=config)
