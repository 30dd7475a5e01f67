"""What values are made of: rules that write several equations as one node look back from the last.

What nothing reads after that is left out of the model.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from funcgrad.core.primitive import Primitive
from funcgrad.export.onnx.dims import is_static
from funcgrad.export.onnx.graph import Tensor
from funcgrad.export.onnx.kernels import held

FEW = 64  # floats that are computed before a model runs, to see whether they are integers


def made_by(x: Tensor, *prims: Primitive) -> Sequence[Tensor] | None:
    """The operands of the equation that made a value, if its op is one of these."""
    return x.origin[1] if x.origin is not None and x.origin[0].prim in prims else None


def thin(x: Tensor) -> Tensor:
    """What a value was broadcast from, with as many axes."""
    return x if x.small is None else x.small


def known(x: Tensor) -> np.ndarray | None:
    """A value's elements, if they follow from stored integers alone (or from few floats)."""
    values: dict[Tensor, np.ndarray | None] = {}
    todo = [x]
    while todo:
        eqn, ins = (_computed(todo[-1]) and todo[-1].origin) or (None, ())
        missing = [v for v in ins if v not in values]
        if missing:
            todo += missing
            continue
        v = todo.pop()
        values[v] = v.stored if v.constant is None else v.constant
        if eqn is not None and all(values[a] is not None for a in ins):
            values[v] = np.asarray(eqn.prim.impl(np, *(values[a] for a in ins), **eqn.params))
    return values[x]


def _computed(x: Tensor) -> bool:
    """Whether a value is computed of integers (or few floats) by an op that NumPy computes, too."""
    if x.constant is not None or x.stored is not None or x.origin is None:
        return False
    eqn, _ = x.origin
    if eqn.prim.multiple or eqn.prim.call or not is_static(x.shape):
        return False
    avals = [a.aval for a in (*eqn.ins, *eqn.outs)]
    return all(held(a.dtype) == a.dtype and (a.dtype.kind in "biu" or a.size <= FEW) for a in avals)


def source(x: Tensor) -> str:
    """The name of the stored value that a value was computed from."""
    while x.stored is None and x.origin is not None and x.origin[1]:
        x = x.origin[1][0]
    return x.name
