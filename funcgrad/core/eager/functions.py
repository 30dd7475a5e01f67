"""Functions of arrays as they are called outside of transformations: by Python, until so many calls
show that native code pays which does the same (`funcgrad.backends.llvm.calls.eager`)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from funcgrad.core import backend
from funcgrad.core.aval import ShapedArray
from funcgrad.core.context import Context
from funcgrad.core.process import fork
from funcgrad.core.types import Param

# The numbers of calls after which native code is loaded if it is on disk (6 ms), and after which it
# is compiled (30 ms): what that takes is then about what these calls took. Nobody waits for it.
MOMENTS = (1 << 10, 1 << 13)
counter = itertools.count(1)

_lock = fork.lock()
_functions: list[EagerFunction] = []
_native: Any = None
_considered = itertools.count()


class Recipe(NamedTuple):
    """What a call does on NumPy arrays, whenever its arguments are of the same types.

    operands: the arguments that are arrays or numbers, by position, and constants
    impl: impl(np, *operands, **params) → the result, as of a primitive; if it is None,
    run: run(*operands) → a sequence of the result. Both run while errors are silenced.
    """

    aval: ShapedArray
    operands: Sequence[int | np.ndarray]
    impl: Callable | None = None
    params: Mapping[str, Param] = MappingProxyType({})
    run: Callable | None = None


class EagerFunction:
    """A function of arrays, which is called by `call`.

    general: the function, in Python
    recipe: recipe(context, args, kwargs) → what such a call does at the root, if that is known
    numbers: whether Python numbers among the arguments are operands, so that only their type counts

    >>> double = EagerFunction(lambda x: x + x, lambda ctx, args, kwargs: None)
    >>> double.call(2)
    4
    """

    __slots__ = ("_followers", "call", "general", "numbers", "recipe")

    def __init__(
        self,
        general: Callable,
        recipe: Callable[[Context, tuple, dict], Recipe | None],
        numbers: bool = False,
    ):
        self.general, self.recipe, self.numbers = general, recipe, numbers
        self._followers: list[Callable[[Callable], None]] = []
        with _lock:
            self.call: Callable = general if _native is None else _native.function(self)
            _functions.append(self)

    def follow(self, use: Callable[[Callable], None]) -> None:
        """Have `use` given what does the calls: at once, and when native code takes over."""
        with _lock:
            self._followers.append(use)
            use(self.call)

    def take_over(self, call: Callable) -> None:
        """Have `call` do the calls from now on."""
        self.call = call
        for use in self._followers:
            use(call)


def consider() -> None:
    """Have native code do the calls, at the last of the `MOMENTS` even if it is to be compiled. A
    thread sees to that, while calls go on by Python."""
    last = next(_considered) > 0
    fork.beside(lambda: (last or backend.eager_calls().ready(compiling=False)) and activate())


def activate() -> bool:
    """Have native code do the calls from now on; False where this Python or NumPy has none."""
    global _native
    native = backend.eager_calls()
    if not native.ready(compiling=True):
        return False
    with _lock:
        if _native is None:
            _native = native
            for function in _functions:
                function.take_over(native.function(function))
    return True
