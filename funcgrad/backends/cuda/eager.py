"""Operations on a GPU's arrays, one by one: each is a program of one operation.

It is compiled when operands of its types first come, and kept. So an operation has the bits that it
has within a program, and nothing but the driver is needed. What is only run once is no graph.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence

import numpy as np

from funcgrad.backends.cuda.device_program import DeviceProgram
from funcgrad.backends.cuda.devices.gpu import Gpu
from funcgrad.backends.cuda.devices.memory import DeviceBuffer
from funcgrad.backends.cuda.machine import CUDA
from funcgrad.backends.plan import plan
from funcgrad.core.aval import ShapedArray
from funcgrad.core.ir import Eqn, Jaxpr, Var
from funcgrad.core.primitive import Primitive
from funcgrad.core.types import Params

MOST = 1024  # programs that a GPU keeps


class Operations:
    """The programs of single operations on a device."""

    def __init__(self, gpu: Gpu):
        self.gpu = gpu
        self._kept: OrderedDict[Hashable, DeviceProgram] = OrderedDict()

    def run(
        self, prim: Primitive, values: Sequence[DeviceBuffer], params: Params
    ) -> list[DeviceBuffer] | DeviceBuffer:
        """An operation's result, or its results, of buffers on the device."""
        avals = [ShapedArray(v.shape, v.dtype) for v in values]
        outs = self._program(prim, avals, params).on_device(values)
        return outs if prim.multiple else outs[0]

    def _program(
        self, prim: Primitive, avals: Sequence[ShapedArray], params: Params
    ) -> DeviceProgram:
        key: Hashable = (prim, *avals, *((k, _exact(v)) for k, v in params.items()))
        try:
            found = self._kept.get(key)
        except TypeError:  # a parameter has no hash
            return self._compiled(prim, avals, params)
        if found is None:
            found = self._compiled(prim, avals, params)
            if len(self._kept) >= MOST:
                self._kept.popitem(last=False)
        self._kept[key] = found
        self._kept.move_to_end(key)
        return found

    def _compiled(
        self, prim: Primitive, avals: Sequence[ShapedArray], params: Params
    ) -> DeviceProgram:
        made = prim.abstract(*avals, **params)
        ins, outs = [Var(a) for a in avals], [Var(a) for a in (made if prim.multiple else [made])]
        jaxpr = Jaxpr(ins, [Eqn(prim, ins, outs, params)], outs)
        program = plan(jaxpr, [False] * len(ins), prim.name, CUDA)
        return DeviceProgram(program, self.gpu, replays=False)


def _exact(value: object) -> Hashable:
    # 0.0 == -0.0 == False, but no operation is to take one for the other.
    return type(value), repr(value) if isinstance(value, float | np.floating) else value
