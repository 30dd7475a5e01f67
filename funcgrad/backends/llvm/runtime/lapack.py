"""Names by which generated code calls the LAPACK that NumPy has loaded."""

from __future__ import annotations

from functools import partial

from funcgrad.backends.llvm.native.engine import Engine
from funcgrad.ops.linalg import lapack

ROUTINES = ("sgesdd", "dgesdd", "sgeev", "dgeev")


def symbol(name: str) -> str:
    """What generated code calls a routine.

    >>> symbol("dgeev")
    'fg_lapack_dgeev'
    """
    return f"fg_lapack_{name}"


def bind(target: Engine) -> None:
    """Let modules that *target* compiles call `ROUTINES`, as far as they are there.

    >>> from funcgrad.backends.llvm.native.engine import engine
    >>> bind(engine())
    """
    for name in ROUTINES:
        target.provide(symbol(name), partial(_address, name))


def _address(name: str) -> int:
    found = lapack.address(name)
    assert found, name
    return found
