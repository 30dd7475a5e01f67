"""Which products read windows of an array with zeros around it that are nowhere written."""

from __future__ import annotations

from funcgrad.backends.llvm.rewrites.tiles import PANEL, TAPS, tiles_pay
from funcgrad.backends.loops.scalars import HALVES
from funcgrad.backends.lower.views import View, frame_axes
from funcgrad.core.ir import Eqn

LINE = 16  # elements of a vector


def lines_fill(eqn: Eqn, view: View, pad: Eqn) -> bool:
    """Whether a product is one of windows, of a pad's result, that has a way which copies what they
    reach, for lines that fill vectors or for tiles: see `convolution` for their axes."""
    if eqn.prim.name != "product" or not eqn.params["gathers"] or eqn.ins[0].aval.dtype in HALVES:
        return False
    if len(eqn.params["dimension_numbers"][1][0]) > 1:  # of phases, which go by tiles
        frame = frame_axes(pad)
        return frame is not None and len(frame[1]) == 2
    rank = (len(view.shape) - 3) // 2
    last = rank + 1
    if _is_tiled(eqn, view):
        return True
    line, step = view.shape[last], view.strides[last]
    many = all(a.aval.shape[1] >= LINE for a in eqn.ins[1:])
    return many and step in (1, 2) and line >= LINE and line % LINE in (0, LINE - 1)


def _is_tiled(eqn: Eqn, view: View) -> bool:
    """Whether a product of windows is one by tiles, with a kernel or with a gradient."""
    shape = view.shape
    if len(shape) != 7 or shape[0] > 1 or view.strides[2:4] != view.strides[4:6]:
        return False
    if eqn.params["exact"]:
        return False
    features, near = eqn.ins[1].aval.shape[1], view.strides[5:]
    taps = (TAPS, TAPS)
    if shape[4:6] == taps and tiles_pay(shape[1], (shape[2], shape[3]), shape[6], features):
        return 1 in near
    size = shape[4], shape[5]
    if 1 not in (near[0], view.strides[1]):
        return False
    panel = PANEL if near[0] == 1 else 1
    return shape[2:4] == taps and tiles_pay(shape[6], size, shape[1], features, panel)
