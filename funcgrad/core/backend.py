"""The one protocol through which programs reach a backend; backends load when first asked for."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple, Protocol

from funcgrad.core.process import fork
from funcgrad.core.types import Communicators, PlainArray, Tree, Values
from funcgrad.tree import PyTreeDef

if TYPE_CHECKING:
    from funcgrad.core.aval import ShapedArray
    from funcgrad.core.display.compile_report import CompileStage
    from funcgrad.core.ir import Jaxpr
    from funcgrad.core.source import Source


class Call(NamedTuple):
    """A call of a compiled function that went well: an example of calls to come.

    static: positions and names of the static arguments
    captured: the arrays that are the program's first inputs; those among the arguments follow
    donated: for each input None, or why it can't be used after the call, as it was donated
    """

    args: tuple
    kwargs: dict
    static: tuple[frozenset[int], frozenset[str]]
    captured: Values
    donated: Sequence[str | None]
    out_tree: PyTreeDef
    out_avals: Sequence[ShapedArray]


class MemoryAnalysis(dict[str, int]):
    """Sizes in bytes by their names. Printed, it also tells what lives when the temporaries of a
    program are most, largest first, with the lines that compute it; `peak` has these as (bytes,
    type, place) with None for a place that isn't known. So has `scratch` the operations that take
    memory of their own while they run, one after the other."""

    def __init__(
        self,
        sizes: dict[str, int],
        peak: Sequence[tuple[ShapedArray, Source | None]],
        scratch: Sequence[tuple[int, str, Source | None]] = (),
    ):
        super().__init__(sizes)
        self.peak = [(a.nbytes, str(a), _place(s)) for a, s in peak]
        found = [(nbytes, what, _place(s)) for nbytes, what, s in scratch]
        self.scratch = sorted(found, key=lambda x: -x[0])

    def __str__(self) -> str:
        lines = [f"{name:<24} {size:>14,}" for name, size in self.items()]
        lines += _lines("temporaries when they are most:", self.peak)
        lines += _lines("scratch memory, of one at a time:", self.scratch)
        return "\n".join(lines)


_MOST_LINES = 10


def _place(source: Source | None) -> str | None:
    return f"{source}: {source.text}" if source else None


def _lines(title: str, found: Sequence[tuple[int, str, str | None]]) -> list[str]:
    lines = [f"{nbytes:>14,}  {kind}  {place or 'no line of the user'}"
             for nbytes, kind, place in found[:_MOST_LINES]]  # fmt: skip
    if len(found) > _MOST_LINES:
        rest = found[_MOST_LINES:]
        lines.append(f"{sum(n for n, _, _ in rest):>14,}  in {len(rest)} more")
    return [title, *lines] if lines else []


class Executable(Protocol):
    """A compiled program.

    texts: the stages of it that are worth reading, for `as_text`
    """

    texts: Sequence[str]

    def __call__(self, values: Sequence[PlainArray], began: list | None = None) -> list[PlainArray]:
        """Run on buffers whose dtypes and shapes are those the program was compiled for: NumPy's
        arrays; of a program for another memory (`core.buffers`) also that memory's, by whose
        device it then runs, to which it copies the others.

        began: gets an item when the program begins, which may write to donated arrays
        """

    def direct(self, call: Call) -> object:
        """An entry for `Backend.caller`: calls like this one; None if it can't do without Python,
        NotImplemented if it can't yet: ask again at a later call."""

    def bind(self, communicators: Communicators) -> Executable:
        """The program whose collectives go through these communicators: communicators(axis names)
        gives the one over named axes, with ranks counted row-major in their order."""

    def as_text(self, stage: str) -> str:
        """The program at a stage: "loops", "llvm", "asm", …"""

    def cost_analysis(self) -> dict[str, float]:
        """Floating-point operations and bytes moved, as the compiled program does them."""

    def compile_stages(self) -> list[CompileStage]:
        """What compiling it consisted of, after tracing."""

    def memory_analysis(self) -> dict[str, int]:
        """Bytes of arguments, results, aliases between them, and temporaries."""


class Backend(Protocol):
    """A compiler of programs."""

    name: str

    def compile(self, jaxpr: Jaxpr, donated: Sequence[bool], name: str) -> Executable:
        """Compile a program, which needn't be simplified; a donated input's buffer may be written
        to. Where it has collectives, the context's `axes` must have the sizes of their named
        axes."""

    def caller(self, entries: Sequence[object]) -> Callable[[tuple, dict], Tree]:
        """A fast function of (args, kwargs): the result of a call that is like one of the entries,
        NotImplemented for others."""


class Door(NamedTuple):
    """A module above this layer that is reached by its name, and what for."""

    module: str
    why: str


# All that programs and eager operations reach of the layers above; tests hold other names to the
# layers as they do imports.
DOORS = {
    "spmd": Door("funcgrad.parallel.runtimes.spmd", "arrays and programs on meshes"),
    "explicit": Door("funcgrad.parallel.partitioner.explicit", "cuts over Explicit mesh axes"),
    "devices": Door("funcgrad.parallel", "where functions are told to make their results"),
    "eager": Door("funcgrad.backends.eager", "memory and kernels of large eager results"),
    "eager_calls": Door("funcgrad.backends.llvm.calls.eager", "the native code of eager calls"),
    "numpy": Door("funcgrad.backends.numpy_eval", "a backend: ops one by one"),
    "plain": Door("funcgrad.backends.plain", "a backend: planned programs, interpreted"),
    "cuda": Door("funcgrad.backends.cuda.device_program", "a backend: programs on NVIDIA's GPUs"),
    "llvm": Door("funcgrad.backends.llvm", "the backend that is taken: machine code"),
}


@cache
def door(name: str) -> ModuleType:
    """The module behind a door, imported at its first use."""
    return fork.import_module(DOORS[name].module)


def spmd() -> ModuleType:
    """What runs programs on meshes."""
    return door("spmd")


def explicit() -> ModuleType:
    """What tells how values are cut over Explicit mesh axes."""
    return door("explicit")


def eager() -> ModuleType:
    """What large eager results need."""
    return door("eager")


def eager_calls() -> ModuleType:
    """The native code of eager calls."""
    return door("eager_calls")


# When this process began to load the package, in nanoseconds: files that are newer may not be what
# it runs.
LOADED = time.time_ns()

DEFAULT = "llvm"


def _behind(name: str) -> Backend:
    return door(name).BACKEND


_BACKENDS: dict[str, Callable[[], Backend]] = {
    name: partial(_behind, name) for name in ("numpy", "llvm", "plain", "cuda")
}


def register_backend(name: str, load: Callable[[], Backend]) -> None:
    """Make a backend known by a name: `jit(f, backend=name)` then compiles with it.

    load: gives it, when a program first needs it

    Raises ValueError if there is a backend of this name.

    >>> register_backend("another", lambda: backend("plain"))
    >>> import funcgrad as fg
    >>> fg.jit(lambda x: x + 1, backend="another")(1.0)
    Array(2., dtype=float32, weak_type=True)
    >>> register_backend("another", lambda: backend("plain"))
    Traceback (most recent call last):
      ...
    ValueError: there is a backend 'another' already
    """
    if name in _BACKENDS:
        raise ValueError(f"there is a backend {name!r} already")
    _BACKENDS[name] = cache(load)


def backend(name: str = DEFAULT) -> Backend:
    """The backend of a name, loaded at its first use."""
    try:
        load = _BACKENDS[name]
    except KeyError:
        raise ValueError(f"no backend {name!r}: there are {', '.join(_BACKENDS)}") from None
    return load()
