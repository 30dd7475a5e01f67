"""Large results of eager operations, which are worth more than a call of NumPy.

Most of a large elementwise operation's time goes to page faults on its fresh result. So what is
evaluated again and again gets memory of dead arrays, from the allocator of compiled programs; and
where compiled code gives the same bits, its loops on all threads take NumPy's place. Neither is
worth loading a compiler for a few operations, nor to be waited for: threads see to it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from funcgrad import dtypes
from funcgrad.core import backend
from funcgrad.core.eager import aligned
from funcgrad.core.eager.aligned import HUGE_FROM
from funcgrad.core.process import fork
from funcgrad.core.types import ArrayModule, Param, PlainArray
from funcgrad.core.views import in_order

if TYPE_CHECKING:
    from funcgrad.core.aval import ShapedArray
    from funcgrad.core.primitive import Primitive

LARGE = 1 << 17  # bytes, from which memory is kept
CAST = 16  # bytes an element of which other operations take as long as casts of floats of 8 bits
# Bytes of results that an operation makes before its memory is kept, and before it is compiled.
KEPT_AFTER, COMPILED_AFTER = 1 << 26, 1 << 29
COMPILED_FROM = 1 << 20  # bytes of a result, from which threads are worth their start


class LargeImpl:
    """An operation's `impl` on operands of certain types, whose result is large, or dear.

    prim: the operation, if it is elementwise
    words: zeros until the operation is compiled, then what native eager calls need to run it:
    addresses of its program's spec, of the memory handler for its result and of its setter.
    """

    __slots__ = (
        "_aval", "_begun", "_cost", "_impl", "_kernel", "_made", "_memory", "_nbytes", "_prim",
        "words",
    )  # fmt: skip

    def __init__(self, impl: Callable, aval: ShapedArray, prim: Primitive | None = None):
        self._impl, self._aval, self._prim = impl, aval, prim
        self._made, self._nbytes = 0, aval.nbytes
        self._cost = 0  # what a result counts, once operands are known
        self._begun = 0  # how much of what follows is being made, or was
        self._kernel: Any = None
        self._memory: Any = None
        self.words = np.zeros(3, np.int64)

    def __call__(self, xp: ArrayModule, *values: PlainArray, **params: Param) -> PlainArray:
        if self._kernel is not None and all(v.flags.c_contiguous for v in values):
            return self._kernel(values)
        self._cost = self._cost or _cost(self._aval, *[v.dtype for v in values])
        self._made += self._cost
        if self._made >= KEPT_AFTER and not self._begun:
            self._begun = 1
            fork.beside(self._keep)
        memory = self._memory
        if memory is None and self._nbytes < HUGE_FROM:
            memory = aligned.handler()
        if memory is None:
            return self._impl(xp, *values, **params)
        if self._made >= COMPILED_AFTER and self._begun == 1:
            # At once: a second kernel would free the first, which other threads may be running.
            self._begun = 2
            if self._prim is not None and self._cost >= COMPILED_FROM:
                types = [(v.shape, v.dtype) for v in values]
                fork.beside(lambda: self._compile(types, params))
        token = memory.begin()
        try:
            return self._impl(xp, *values, **params)
        finally:
            memory.end(token)

    def _keep(self) -> None:
        self._memory = backend.eager().memory()

    def _compile(self, types: list[tuple], params: dict) -> None:
        made = backend.eager().kernel(self._prim, types, self._aval, params)
        if made is not None:
            self._kernel, self.words[:] = made


def _cost(aval: ShapedArray, *operands: np.dtype) -> int:
    """The bytes of a result, or what takes as long."""
    cast = any(dtype in dtypes.FLOAT8 for dtype in (aval.dtype, *operands))
    return max(aval.nbytes, CAST * aval.size) if cast else aval.nbytes


def kept(impl: Callable, aval: ShapedArray, prim: Primitive | None = None) -> Callable:
    """What gives a result of this type as `impl` does, in memory that is kept if it is large."""
    return LargeImpl(impl, aval, prim) if _cost(aval) >= LARGE else impl


def implementation(prim: Primitive, aval: ShapedArray) -> Callable:
    """How an operation whose result has this type is evaluated."""
    if prim.identity or prim.view not in (None, in_order):  # which take no memory
        return prim.impl
    return kept(prim.impl, aval, prim if prim.elementwise else None)
