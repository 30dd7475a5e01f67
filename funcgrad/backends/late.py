"""Modules of this layer that only some programs need: imported when they are first used.

A process that compiles one small function waits for each module that it loads, some 0.3 ms.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from funcgrad.core.process import fork


class Late:
    """A module by its name, imported when something of it is asked for.

    >>> Late("funcgrad.backends.lower.gemms").gemm_shape.__name__
    'gemm_shape'
    """

    def __init__(self, name: str):
        self._name = name
        self._module: Any = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # asked by what looks at all that a module has
            raise AttributeError(name)
        if self._module is None:
            self._module = fork.import_module(self._name)
        return getattr(self._module, name)


def late(package: str, *names: str) -> list[Any]:
    """Several modules of a package, each a `Late`.

    >>> gemms, views = late("funcgrad.backends.lower", "gemms", "views")
    >>> gemms.gemm_shape.__name__
    'gemm_shape'
    """
    return [Late(f"{package}.{name}") for name in names]


def function(name: str) -> Callable[..., Any]:
    """A function by the names of its module and its own, imported when it is called.

    >>> function("math.gcd")(4, 6)
    2
    """
    module, _, own = name.rpartition(".")
    return lambda *args, **kwargs: getattr(fork.import_module(module), own)(*args, **kwargs)
