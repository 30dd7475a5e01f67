"""Large results of eager operations, which are worth more than a call of NumPy.

Most of a large elementwise operation's time goes to page faults on its fresh result. So what is
evaluated again and again gets memory of dead arrays, from the allocator of compiled programs; and
where compiled code gives the same bits, its loops on all threads take NumPy's place. Neither is
worth loading a compiler for a few operations, nor to be waited for: threads see to it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from funcgrad.core import backend
from funcgrad.core.eager import aligned
from funcgrad.core.eager.aligned import HUGE_FROM
from funcgrad.core.process import fork

LARGE = 1 << 17  # bytes, from which memory is kept
# Bytes of results that an operation makes before its memory is kept, and before it is compiled.
KEPT_AFTER, COMPILED_AFTER = 1 << 26, 1 << 29
COMPILED_FROM = 1 << 20  # bytes of a result, from which threads are worth their start

# What rounds once or not at all, by its kind of dtype.
_EXACT = {
    "add": "fiu", "sub": "fiu", "mul": "fiu", "div": "f", "neg": "fi", "abs": "fi", "sqrt": "f",
    "square": "fiu", "eq": "fiu", "ne": "fiu", "lt": "fiu", "le": "fiu", "gt": "fiu", "ge": "fiu",
    "select_n": "fib",
}  # fmt: skip

# Whose results are views, which take no memory.
_VIEWS = frozenset({"broadcast_in_dim", "slice", "stop_gradient", "transpose"})


class LargeImpl:
    """An operation's `impl` on operands of certain types, whose result is large.

    words: zeros until the operation is compiled, then what native eager calls need to run it:
    addresses of its program's spec, of the memory handler for its result and of its setter.
    """

    __slots__ = ("_aval", "_begun", "_kernel", "_made", "_memory", "_nbytes", "_prim", "words")

    def __init__(self, prim: Any, aval: Any):
        self._prim, self._aval = prim, aval
        self._made, self._nbytes = 0, aval.nbytes
        self._begun = 0  # how much of what follows is being made, or was
        self._kernel: Any = None
        self._memory: Any = None
        self.words = np.zeros(3, np.int64)

    def __call__(self, xp: Any, *values: Any, **params: Any) -> Any:
        if self._kernel is not None and all(v.flags.c_contiguous for v in values):
            return self._kernel(values)
        self._made += self._nbytes
        if self._made >= KEPT_AFTER and not self._begun:
            self._begun = 1
            fork.beside(self._keep)
        memory = self._memory
        if memory is None and self._nbytes < HUGE_FROM:
            memory = aligned.handler()
        if memory is None:
            return self._prim.impl(xp, *values, **params)
        if self._made >= COMPILED_AFTER and self._begun == 1:
            # At once: a second kernel would free the first, which other threads may be running.
            self._begun = 2
            if self._is_exact(values):
                types = [(v.shape, v.dtype) for v in values]
                fork.beside(lambda: self._compile(types, params))
        token = memory.begin()
        try:
            return self._prim.impl(xp, *values, **params)
        finally:
            memory.end(token)

    def _keep(self) -> None:
        self._memory = backend.eager().memory()

    def _compile(self, types: list[tuple], params: dict) -> None:
        made = backend.eager().kernel(self._prim, types, self._aval, params)
        self._kernel, self.words[:] = made

    def _is_exact(self, values: Any) -> bool:
        """Whether compiled code gives the same bits, and is worth it."""
        kinds = _EXACT.get(self._prim.name, "")
        return (
            bool(kinds)
            and self._nbytes >= COMPILED_FROM
            and all(
                v.dtype.kind in kinds and (v.dtype.kind != "f" or v.dtype.itemsize >= 4)
                for v in values
            )
        )


def implementation(prim: Any, aval: Any) -> Any:
    """How an operation whose result has this type is evaluated."""
    has_memory = aval.nbytes >= LARGE and prim.name not in _VIEWS
    return LargeImpl(prim, aval) if has_memory else prim.impl
