"""Memory of compiled programs and of large eager results: blocks that are kept after use.

Most of the time of a large elementwise op goes to page faults on its fresh result. So NumPy gets
the memory of large results from a native allocator (NumPy's own protocol, NEP 49) that keeps the
blocks of dead arrays, most recent first, and asks for huge pages. Arenas are kept the same way. At
most FUNCGRAD_KEPT_MEMORY bytes are kept idle ("512M", "2G"; by default a sixteenth of the machine's
memory).
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from funcgrad.backends.llvm.native.engine import here
from funcgrad.backends.llvm.runtime import memory_code, scratch
from funcgrad.core.display.array_html import size_text
from funcgrad.core.display.jaxpr_html import escape, page
from funcgrad.core.eager.aligned import Handler
from funcgrad.core.process import fork

_VARIABLE = "FUNCGRAD_KEPT_MEMORY"
_UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}


class _Allocator(Handler):
    """The native allocator, as NumPy takes it."""

    def __init__(self) -> None:
        library = here().compile(memory_code.IR, level=0)
        names = ("malloc", "zeros", "resize", "give")
        functions = [library.address(f"fg_memory_{n}") for n in names]
        self.numbers = {
            n: ctypes.c_int64.from_address(library.address(f"fg_memory_{n}"))
            for n in memory_code.NUMBERS
        }
        self.numbers["limit"].value = _limit()
        self.lock = ctypes.c_int32.from_address(library.address("fg_memory_lock"))
        self.take, self.give = library.address("fg_memory_take"), functions[3]
        self.empty = ctypes.CFUNCTYPE(ctypes.c_int64)(library.address("fg_memory_empty"))
        super().__init__(functions)


def _limit() -> int:
    """The most bytes that are kept idle."""
    text = os.environ.get(_VARIABLE, "").strip().upper()
    if not text:
        try:
            return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 16
        except (AttributeError, ValueError, OSError):
            return 1 << 29
    match = re.fullmatch(r"([0-9]{1,15})([KMGT]?)I?B?", text)
    if match is None:
        raise ValueError(f"{_VARIABLE} must be a number of bytes, as 512M or 2G, got {text!r}")
    return min(int(match[1]) << _UNITS[match[2]], (1 << 63) - 1)


_lock = fork.lock()
_allocator: _Allocator | None = None


def allocator() -> _Allocator:
    """The one allocator, made at first use."""
    global _allocator
    with _lock:
        if _allocator is None:
            _allocator = _Allocator()
        return _allocator


def large_arrays(specs: Sequence[tuple[tuple[int, ...], np.dtype]]) -> list[np.ndarray]:
    """Uninitialized arrays of these shapes and dtypes in memory that is kept after their death.

    >>> large_arrays([((2, 3), np.dtype("int8"))])[0].shape
    (2, 3)
    """
    a = _allocator or allocator()
    token = a.begin()
    try:
        return [np.empty(shape, dtype) for shape, dtype in specs]
    finally:
        a.end(token)


# ---- for users


class MemorySummary(NamedTuple):
    """What `memory_summary` tells, in bytes and in numbers of blocks."""

    in_use: int
    peak: int
    idle: int
    idle_blocks: int
    limit: int
    reused: int
    made: int

    def rows(self) -> list[tuple[str, str]]:
        """The table's cells."""
        return [
            ("in use", size_text(self.in_use)),
            ("at most", size_text(self.peak)),
            ("kept idle", f"{size_text(self.idle)} in {self.idle_blocks} blocks"),
            ("limit of idle", f"{size_text(self.limit)} ({_VARIABLE})"),
            ("blocks", f"{self.reused} used again, {self.made} made"),
        ]

    def __repr__(self) -> str:
        lines = [f"{what:<15}{text}" for what, text in self.rows()]
        return "\n".join(["memory of large arrays", *lines])

    def _repr_html_(self) -> str:
        cells = [f"<td>{escape(a)}</td><td>{escape(b)}</td>" for a, b in self.rows()]
        rows = "".join(f"<tr>{c}</tr>" for c in cells)
        return page(f"<div><b>memory of large arrays</b></div><table>{rows}</table>")


def memory_summary() -> MemorySummary:
    """What large results and temporaries take of this process's memory, and what is kept for more.

    Counted are results of compiled programs where one has 128 KiB or more, the temporaries of
    programs, and the results of eager operations that are large and often repeated. `in_use` and
    `peak` are bytes of living arrays, now and at most; `idle` those of dead ones, which the next
    arrays of such sizes take over. `release_memory` gives these back.

    >>> summary = fg.memory_summary()
    >>> summary.idle <= summary.limit
    True
    """
    n = {name: number.value for name, number in allocator().numbers.items()}
    return MemorySummary(
        n["used"], n["peak"], n["idle"], n["count"], n["limit"], n["reused"], n["made"]
    )


def release_memory() -> int:
    """Give memory that is kept idle back to the system: the number of bytes of large blocks.

    Arrays that live, and what views them, stay as they are. The environment variable
    FUNCGRAD_KEPT_MEMORY bounds what is kept: 0 keeps nothing.

    >>> fg.release_memory() >= 0
    True
    >>> fg.memory_summary().idle
    0
    """
    freed = allocator().empty()
    scratch.release()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
    if trim is not None:
        trim(0)
    return freed


@fork.in_child
def _after_fork() -> None:
    """Another thread may have been changing the table when the process forked: then its blocks are
    left alone."""
    if _allocator is not None and _allocator.lock.value:
        _allocator.numbers["count"].value = _allocator.numbers["idle"].value = 0
        _allocator.lock.value = 0
