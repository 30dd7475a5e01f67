"""Kernels to machine code: equal ones once a process, new ones on all processors at a time."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from functools import partial
from weakref import WeakValueDictionary

from funcgrad.backends.late import late
from funcgrad.backends.llvm.emit.emitter import emit
from funcgrad.backends.llvm.emit.schedule import Piece
from funcgrad.backends.llvm.emit.unroll import unrolled
from funcgrad.backends.llvm.emit.wide import widened
from funcgrad.backends.llvm.native.engine import HALF_CALLS, Engine, Library
from funcgrad.backends.llvm.native.later import soon
from funcgrad.backends.llvm.native.objects import digest
from funcgrad.backends.llvm.native.target import Target
from funcgrad.backends.llvm.native.together import Together, processors
from funcgrad.backends.llvm.runtime import pool, run_code, scratch
from funcgrad.backends.loops.ir import Buffer, Kernel, Loop, kernel_text
from funcgrad.core.process import fork
from funcgrad.core.record import Record

abreast, split, half_calls = late("funcgrad.backends.llvm.emit", "abreast", "split", "half_calls")

MOST_TEXTS = 1024  # of kernels, so that what comes again isn't written again
MODULE_KERNELS = 8  # what a module of its own costs is then spread over enough kernels


class Call(Record):
    """A call that a kernel consists of.

    params: for each pointer the number of the kernel's parameter, after which partial results count
    turns, grain: what `fg_parallel_for` shares among threads; 0 turns: a plain call
    asks: whether it takes a pointer more, to the words of `fg_poll`, which it calls
    """

    symbol: str
    params: tuple[int, ...]
    turns: int
    grain: int
    asks: bool


class Native(Record):
    """A kernel's calls, in order, and the bytes of each array of partial results."""

    calls: tuple[Call, ...]
    partials: tuple[int, ...]

    @property
    def asks(self) -> bool:
        """Whether it asks for signals."""
        return any(c.asks for c in self.calls)


class _Written(Record):
    """A kernel's calls, and the modules that define their symbols; `tiny` as of `Emitted`."""

    native: Native
    texts: dict[str, str]
    tiny: bool = False


class KernelCache:
    """The kernels of an engine: their code while a program holds it, and their latest texts."""

    def __init__(self, engine: Engine):
        self.engine = engine
        self._lock = fork.lock()
        self._written: OrderedDict[tuple[str, bool], _Written] = OrderedDict()
        self._libraries: WeakValueDictionary[str, Library] = WeakValueDictionary()
        pool.bind(engine)
        scratch.bind(engine)
        run_code.bind(engine)
        for name in HALF_CALLS:
            engine.provide(name, lambda: half_calls.library(engine))

    def compile(
        self, kernels: Iterable[Kernel], work: Together, once: bool = False,
        often: Set[Kernel] = frozenset(), brief: bool = False,
    ) -> tuple[dict[Kernel, Native], Callable[[], dict[str, Library]], list[str]]:  # fmt: skip
        """How kernels are called; what waits until they are compiled, among that work, and gives
        the code of each symbol, which lives as long as these libraries; and the modules of those
        that aren't compiled, for the program's own module to hold.

        once: whether a call of the program runs each kernel at most once. Then the time of tiny
        ones is nothing beside the call's, and neither optimizing them nor a module is worth it.
        often: those that loops run again and again
        brief: whether they run as soon as they are translated, and are optimized later
        """
        written = {k: self._find(k, k in often) for k in kernels}
        own = {s: t for w in written.values() if once and w.tiny for s, t in w.texts.items()}
        texts = {s: t for w in written.values() for s, t in w.texts.items() if s not in own}
        with self._lock:
            known = {s: self._libraries.get(s) for s in texts}
        libraries = {s: x for s, x in known.items() if x is not None}
        missing = {s: t for s, t in texts.items() if s not in libraries}
        builds = [partial(self._build, x, libraries) for x in _modules(missing)]
        tasks = [work.add(partial(soon, x, brief)) for x in builds]

        def compiled() -> dict[str, Library]:
            for task in tasks:
                task.wait()
            return {_entry(s, texts[s]): x for s, x in libraries.items()}

        return {k: w.native for k, w in written.items()}, compiled, list(own.values())

    def forget(self) -> None:
        """Let go of texts; code lives as long as a program holds it."""
        with self._lock:
            self._written.clear()

    def _find(self, kernel: Kernel, often: bool) -> _Written:
        key = kernel_text(kernel, name=""), often
        with self._lock:
            known = self._written.get(key)
            if known is not None:
                self._written.move_to_end(key)
                return known
        known = self._write(kernel, often)
        with self._lock:
            self._written[key] = known
            while len(self._written) > MOST_TEXTS:
                self._written.popitem(last=False)
        return known

    def _write(self, kernel: Kernel, often: bool) -> _Written:
        if not kernel.points:
            return _Written(Native((), ()), {})
        target = self.engine.target
        pieces, partials = _pieces(unrolled(widened(kernel)), target)
        calls, texts, tiny = [], {}, True
        for piece in pieces:
            emitted = emit(piece.kernel, "KERNEL", piece.ranges, target, often)
            text = emitted.definitions.text([emitted.text])
            symbol = f"fg_k{digest(text)[:16]}"
            texts[symbol] = text.replace("KERNEL", symbol)
            given = emitted.turns, emitted.grain, emitted.asks
            calls.append(Call(symbol, piece.params, *given))
            tiny &= emitted.tiny
        native = Native(tuple(calls), tuple(b.size * b.dtype.itemsize for b in partials))
        return _Written(native, texts, tiny)

    def _build(self, texts: Mapping[str, str], into: dict[str, Library]) -> None:
        library = self.engine.compile(merge(list(texts.values())), links={})
        into.update(dict.fromkeys(texts, library))
        with self._lock:
            self._libraries.update(dict.fromkeys(texts, library))


def _pieces(kernel: Kernel, target: Target) -> tuple[list[Piece], list[Buffer]]:
    """The kernels that together do what this one does, and the partial results."""
    if not any(isinstance(s, Loop) for s in kernel.body):
        return [Piece(kernel, tuple(range(len(kernel.params))))], []
    pieces, partials = split.split(kernel)
    bits, l1 = target.vector_bits, target.caches.l1
    return [p for x in pieces for p in abreast.abreast(x, bits, l1)], partials


def _modules(texts: Mapping[str, str]) -> list[dict[str, str]]:
    """Kernels dealt to modules."""
    n = max(-(-len(texts) // MODULE_KERNELS), min(processors(), len(texts)))
    # Long ones first, dealt in turn: modules of about one length.
    order = sorted(texts, key=lambda s: (-len(texts[s]), s))
    return [{s: texts[s] for s in order[i::n]} for i in range(n)]


def _entry(symbol: str, text: str) -> str:
    """The function that others call: the kernel, or its task where it is shared among threads."""
    task = task_symbol(symbol)
    return task if f"@{task}(" in text else symbol


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
