"""Casts from and to floats of 8 bits and integers of 4 as steps of a program: `rewrites.narrow`."""

from __future__ import annotations

from typing import Any

import numpy as np

from funcgrad.backends.drafts.drafter import BlockDrafter
from funcgrad.backends.loops.builder import Builder
from funcgrad.backends.loops.ir import Axis, Buffer, Index, Kernel
from funcgrad.backends.loops.scalars import LOOP_DTYPES, Scalars
from funcgrad.backends.program import KernelStep, Step
from funcgrad.backends.rewrites.narrow import NARROW, held, loaded, stored
from funcgrad.core.ir import Eqn


def cast(d: BlockDrafter, eqn: Eqn) -> bool:
    """A `convert_element_type` of which one side is narrow; False for others."""
    (x,), (y,) = eqn.ins, eqn.outs
    source, to = x.aval.dtype, y.aval.dtype
    if not NARROW & {source, to} or not {source, to} <= NARROW | LOOP_DTYPES:
        return False
    kernel = d.drafter.shared(_kernel(source, to, x.aval.size))
    tensors = [d.tensor(x), d.tensor(y)]

    def make(inner: Any) -> list[Step]:
        return [KernelStep(kernel, tuple(t.place for t in tensors))]

    d.add(tensors[:1], tensors[1:], make, kernel=kernel, operands=tensors)
    return True


def _kernel(source: np.dtype, to: np.dtype, n: int) -> Kernel:
    b = Builder()
    xp, axis = Scalars(b), b.axis(n)
    ins, out = Buffer("in0", held(source), n, "in"), Buffer("out0", held(to), n, "out")
    at = Index(0, ((1, axis),))
    value = stored(xp, loaded(xp, xp.symbol(b.load(ins, at), ins.dtype), source), to)
    b.store(out, at, xp.result(value, out.dtype))
    return Kernel("cast", (ins, out), (Axis(axis, n),), tuple(b.blocks[0].stmts))
