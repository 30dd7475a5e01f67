"""Copies of pairs, such as of complex numbers, as copies of elements of twice the width.

Where pairs are transposed, elements that lie side by side stay so. As one element each, they go
through tiles and registers like any other.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from funcgrad.backends.llvm.emit.schedule import coalesce, coefficient
from funcgrad.backends.loops.ir import Axis, Buffer, Index, Kernel, Load, Stmt, Store, Value
from funcgrad.core.record import replace

_WIDE: dict[int, np.dtype] = {4: np.dtype(np.int64), 2: np.dtype(np.int32), 1: np.dtype(np.int16)}


def widened(kernel: Kernel) -> Kernel:
    """A kernel that moves pairs of elements, with an element for each of them; or as it is."""
    axis = _pairs(kernel)
    if axis is None:
        return kernel
    buffers = {b: _wide(b) for b in kernel.buffers}
    made: dict[Value, Value] = {}
    body: list[Stmt] = []
    for s in kernel.body:
        assert isinstance(s, Load | Store)
        buffer = buffers[s.buffer]
        index = Index(s.index.const // 2, tuple((c // 2, v) for c, v in s.index.terms if c != 1))
        if isinstance(s, Load):
            made[s.out] = Value(buffer.dtype)
            body.append(Load(made[s.out], buffer, index))
        else:
            assert isinstance(s.value, Value)
            body.append(Store(buffer, index, made[s.value]))
    axes = tuple(a for a in kernel.axes if a is not axis)
    wide = tuple(buffers[b] for b in kernel.buffers)
    return replace(kernel, axes=axes, buffers=wide, body=tuple(body))


def _wide(b: Buffer) -> Buffer:
    # It may begin between two of the wide elements' natural places.
    return Buffer(b.name, _WIDE[b.dtype.itemsize], b.size // 2, b.role, b.dtype.itemsize)


def _pairs(kernel: Kernel) -> Axis | None:
    """The axis of two elements that stay side by side, which nothing else divides."""
    if not all(b.dtype.itemsize in _WIDE and b.size % 2 == 0 for b in kernel.buffers):
        return None
    if not _moves(kernel.body):
        return None
    for axis in coalesce(kernel)[0]:
        if axis.size == 2 and axis in kernel.axes and all(
            coefficient(s.index, axis.value) == 1
            and s.index.const % 2 == 0
            and all(c % 2 == 0 for c, v in s.index.terms if v is not axis.value)
            for s in kernel.body
            if isinstance(s, Load | Store)
        ):  # fmt: skip
            return axis
    return None


def _moves(body: Sequence[Stmt]) -> bool:
    """Whether a body does nothing but store what it loads, as it is."""
    loaded: dict[object, np.dtype] = {}
    for s in body:
        if not isinstance(s, Load | Store) or s.guard is not None:
            return False
        if isinstance(s, Load):
            loaded[s.out] = s.buffer.dtype
        elif loaded.get(s.value) != s.buffer.dtype:
            return False
    return True
