"""Which products read windows of an array with zeros around it that are nowhere written."""

from __future__ import annotations

import numpy as np

from funcgrad.backends.llvm.rewrites.tiles import forms_of
from funcgrad.backends.loops.scalars import HALVES
from funcgrad.backends.lower.primitives import product_p
from funcgrad.backends.lower.views import View, frame_axes
from funcgrad.core.ir import Eqn

LINE = 16  # elements of a vector


def lines_fill(eqn: Eqn, view: View, pad: Eqn) -> bool:
    """Whether a product is one of windows, of a pad's result, that has a way which copies what they
    reach, for lines that fill vectors or for tiles: see `convolution` for their axes."""
    of = eqn.params["convolution"] if eqn.prim is product_p else None
    if of is None or eqn.ins[0].aval.dtype in HALVES:
        return False
    if of.phases:  # which go by tiles
        frame = frame_axes(pad)
        return frame is not None and len(frame[1]) == 2
    line, step = view.shape[1 + len(of.places)], view.strides[1 + len(of.places)]
    steps = (view.strides[1], view.strides[-1], *view.strides[2 : 2 + len(of.places)])
    if eqn.ins[0].aval.dtype == np.int8:
        return not eqn.params["exact"] and bool(forms_of(of, steps, int8=True))
    if not eqn.params["exact"] and forms_of(of, steps):
        return True
    many = all(a.aval.shape[1] >= LINE for a in eqn.ins[1:])
    return many and step in (1, 2) and line >= LINE and line % LINE in (0, LINE - 1)
