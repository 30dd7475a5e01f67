"""Routines: generated functions that host steps call, each compiled in a module of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.engine import Engine, engine
from funcgrad.backends.llvm.native.sources import generator
from funcgrad.backends.llvm.runtime import pool, scratch


class Call(NamedTuple):
    """How a step calls a routine.

    words: what is passed before the addresses of arrays, operands first
    needs: what compiles the routine, and what it calls; they may be called side by side
    """

    symbol: str
    words: tuple[int, ...]
    needs: tuple[Callable[[], Any], ...]


def compiled(
    name: str, write: Callable[[], ir.Module], level: int, sources: tuple[str, ...],
    target: Engine | None = None,
) -> int:  # fmt: skip
    """Compile what *write* writes, bind the symbol *name*, and return its address.

    *sources*: the modules of this backend that it is written with, as of `generator`

    >>> from funcgrad.backends.llvm.routines import rows
    >>> rows.install() == compiled("fg_row_order", rows._module, 2, ("routines.rows",))
    True
    """
    target = target or engine()
    pool.bind(target)
    scratch.bind(target)
    key = " ".join([name, *map(generator, sources)])
    library = target.compile(write, level, key)
    target.bind(name, library)
    return library.address(name)
