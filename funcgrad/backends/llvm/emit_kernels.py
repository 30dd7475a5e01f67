"""Kernels to machine code: equal ones once a process, new ones on all processors at a time."""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from funcgrad.backends.llvm import half_calls, pool, scratch
from funcgrad.backends.llvm.emit import emit
from funcgrad.backends.llvm.emit_split import split
from funcgrad.backends.llvm.engine import Engine, Library
from funcgrad.backends.loops import Kernel, kernel_text

MODULE_KERNELS = 8  # what a module of its own costs is then spread over enough kernels


@dataclass(frozen=True, slots=True)
class Call:
    """A call that a kernel consists of.

    params: for each pointer the number of the kernel's parameter, after which partial results count
    turns, grain: what `fg_parallel_for` shares among threads; 0 turns: a plain call
    """

    symbol: str
    params: tuple[int, ...]
    turns: int
    grain: int


@dataclass(frozen=True, slots=True)
class Native:
    """A kernel's calls, in order, and the bytes of each array of partial results."""

    calls: tuple[Call, ...]
    partials: tuple[int, ...]


class KernelCache:
    """The compiled kernels of an engine."""

    def __init__(self, engine: Engine):
        self.engine = engine
        self._lock = threading.Lock()
        self._natives: dict[str, Native] = {}
        self._texts: dict[str, str] = {}
        self._libraries: dict[str, Library] = {}
        pool.bind(engine)
        scratch.bind(engine)
        half_calls.provide(engine)

    def compile(
        self, kernels: Iterable[Kernel], beside: Iterable[Callable[[], Any]] = ()
    ) -> dict[Kernel, Native]:
        """Compile kernels and bind their symbols in the engine; do something else meanwhile."""
        natives = {k: self.native(k) for k in kernels}
        symbols = {c.symbol for n in natives.values() for c in n.calls}
        with self._lock:
            new = sorted(s for s in symbols if s not in self._libraries)
        self._build(new, list(beside))
        return natives

    def native(self, kernel: Kernel) -> Native:
        """How a kernel is called; its code is written, not yet compiled."""
        key = kernel_text(kernel, name="")
        with self._lock:
            known = self._natives.get(key)
        if known is None:
            known = self._write(kernel)
            with self._lock:
                self._natives[key] = known
        return known

    def libraries(self, natives: Iterable[Native]) -> list[Library]:
        """The compiled modules that hold these kernels."""
        found = [self._libraries[c.symbol] for n in natives for c in n.calls]
        return list(dict.fromkeys(found))

    def _write(self, kernel: Kernel) -> Native:
        if not kernel.points:
            return Native((), ())
        pieces, partials = split(kernel)
        calls = []
        for piece in pieces:
            emitted = emit(piece.kernel, "KERNEL", piece.ranges)
            text = emitted.definitions.text([emitted.text])
            symbol = f"fg_k{hashlib.sha256(text.encode()).hexdigest()[:16]}"
            with self._lock:
                self._texts[symbol] = text.replace("KERNEL", symbol)
            calls.append(Call(symbol, piece.params, emitted.turns, emitted.grain))
        return Native(tuple(calls), tuple(b.size * b.dtype.itemsize for b in partials))

    def _build(self, symbols: Sequence[str], tasks: list[Callable[[], Any]]) -> None:
        workers = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 2
        modules = max(-(-len(symbols) // MODULE_KERNELS), min(workers, len(symbols)))
        # Long ones first, dealt in turn: modules of about one length.
        order = sorted(symbols, key=lambda s: -len(self._texts[s]))
        tasks += [partial(self._build_module, order[i::modules]) for i in range(modules)]
        if len(tasks) < 2 or workers < 2:
            for task in tasks:
                task()
            return
        with ThreadPoolExecutor(workers) as threads:
            for done in [threads.submit(task) for task in tasks]:
                done.result()

    def _build_module(self, symbols: Sequence[str]) -> None:
        library = self.engine.compile(merge([self._texts[s] for s in symbols]))
        for s in symbols:
            name = task_symbol(s) if f"@{task_symbol(s)}(" in self._texts[s] else s
            self.engine.bind(name, library.address(name))
            with self._lock:
                self._libraries[s] = library


def task_symbol(symbol: str) -> str:
    """The function that tasks of a shared kernel run."""
    return f"{symbol}_task"


def merge(modules: Sequence[str]) -> str:
    """One module of several: what more than one defines is there once, metadata is renumbered.

    >>> merge(["declare void @f()\\n\\n!0 = !{}\\n", "declare void @f()\\n\\n!0 = !{}\\n"])
    'declare void @f()\\n\\n!0 = !{}\\n!1 = !{}\\n'
    """
    parts: dict[str, str] = {}
    metadata: list[str] = []
    for text in modules:
        shift = len(metadata)
        moved = _moved(text, shift) if shift else text
        *functions, nodes = moved.rstrip("\n").split("\n\n")
        if not nodes.startswith("!"):
            functions, nodes = [*functions, nodes], ""
        for function in functions:
            found = _NAME.search(function)
            parts.setdefault(found[1] if found else function, function)
        metadata += nodes.split("\n") if nodes else []
    return "\n\n".join([*parts.values(), "\n".join(metadata)]) + "\n"


def _moved(text: str, shift: int) -> str:
    """The text with metadata numbers increased."""
    return re.sub(r"!(\d+)", lambda m: f"!{int(m[1]) + shift}", text)


_NAME = re.compile(r'@"?([\w.]+)"?\(')
