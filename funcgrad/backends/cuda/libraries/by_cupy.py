"""Steps that have no kernel, on the device by CuPy where it is installed: FFTs, decompositions,
sorts of long lines.

An op's rule `impl` runs on views of the program's memory, in CuPy's default stream, which is in
order with the device's own; nothing goes to the host. CuPy flushes float32's subnormals.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec

import numpy as np

from funcgrad.backends.cuda.devices.device import OutOfDeviceMemory
from funcgrad.backends.late import Late
from funcgrad.backends.program import HostStep, View
from funcgrad.core.primitive import Primitive
from funcgrad.core.types import ArrayModule

display = Late("funcgrad.core.display.jaxpr_text")


def found() -> ArrayModule | None:
    """CuPy, if it is installed.

    >>> found() is None or found().__name__ == "cupy"
    True
    """
    return import_module("cupy") if find_spec("cupy") else None


def takes(s: HostStep) -> bool:
    """Whether a step may run there: an op that calls nothing of the user's, on NumPy's own dtypes.

    >>> from funcgrad.core.aval import ShapedArray
    >>> from funcgrad.ops.linalg.decompositions import eigh_p
    >>> from funcgrad.backends.program import Ref
    >>> f32, bf16 = (View(Ref("arena"), ShapedArray((2, 2), d)) for d in (np.dtype("f4"), "V2"))
    >>> takes(HostStep(eigh_p, {}, (f32,), (f32, f32)))
    True
    """
    of_users = s.prim.effect or any(
        display.holds_programs(v) or (callable(v) and not isinstance(v, Primitive))
        for v in s.params.values()
    )
    return not of_users and all(v.aval.dtype.isbuiltin == 1 for v in (*s.ins, *s.outs))


def run(xp: ArrayModule, number: int, s: HostStep, addresses: Sequence[int]) -> None:
    """A step on memory of the GPU of a number.

    Raises OutOfDeviceMemory if there is no room for what the step needs beside its results.
    """
    views = (*s.ins, *s.outs)
    with xp.cuda.Device(number), xp.cuda.Stream.null:
        arrays = [
            xp.asarray(_Memory(at, v)) for at, v in zip(addresses[: len(views)], views, strict=True)
        ]
        ins, outs = arrays[: len(s.ins)], arrays[len(s.ins) :]
        try:
            made = s.prim.impl(xp, *ins, **s.params)
        except MemoryError as error:
            op = s.params.get("prim", s.prim)  # of an op on complex numbers
            raise OutOfDeviceMemory(f"{op}: CuPy: {error}") from None
        for out, value in zip(outs, made if s.prim.multiple else [made], strict=True):
            out[...] = value


class _Memory:
    """A view of a program's memory, by CUDA's array interface."""

    def __init__(self, address: int, view: View):
        aval = view.aval
        self.__cuda_array_interface__ = {
            "shape": aval.shape, "typestr": np.dtype(aval.dtype).str, "data": (address, False),
            "version": 3, "strides": None,
        }  # fmt: skip
