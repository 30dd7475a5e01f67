"""The code of a program as objects for a linker, with all that it calls, to run without Python.

What remains undefined is libc's, and what `RUNTIME` names: threads, scratch memory, and the
questions for signals, which whoever links it has to provide.
"""

from __future__ import annotations

from typing import NamedTuple

from funcgrad.backends.late import Late
from funcgrad.backends.llvm.build import Built
from funcgrad.backends.llvm.native.engine import HALF_CALLS, Engine, Library, engine
from funcgrad.errors import CompileError

compiler = Late("funcgrad.backends.llvm.native.compiler")

RUNTIME = (
    "fg_parallel_for", "fg_parallel_asking", "fg_pool_limit", "fg_poll", "fg_scratch_take",
    "fg_scratch_give",
)  # fmt: skip
# How names begin that only a Python process has.
_OF_PYTHON = ("fg_", "Py", "_Py")


class Standalone(NamedTuple):
    """Objects, in ELF or the target's own format, and the features that their code needs."""

    objects: list[bytes]
    features: tuple[str, ...]


def standalone(built: Built) -> Standalone:
    """The objects of a program.

    Raises CompileError for code that calls what only this process has, such as NumPy's LAPACK.
    """
    target = engine()
    left: list[Library] = [built.library]  # which uses those of kernels
    found: dict[Library, bytes] = {}
    while left:
        library = left.pop()
        if library not in found:
            found[library], called = _object(target, library)
            left += [*library.uses, *_meant(target, called)]
    features = target.target.features.split(",")
    return Standalone(list(found.values()), tuple(f[1:] for f in features if f.startswith("+")))


def _object(target: Engine, library: Library) -> tuple[bytes, list[str]]:
    """A library's object, and what it takes from others."""
    code, (_, called) = compiler.compiled(
        target.target, library.source, library.level, lambda m: (m.code(), m.symbols())
    )
    halves = [name for name in HALF_CALLS if name.encode() in code]
    return code, [name for name in called if not name.startswith("llvm.")] + halves


def _meant(target: Engine, called: list[str]) -> list[Library]:
    """The libraries of symbols that aren't those of kernels, which a library `uses`."""
    found = []
    for name in called:
        meaning = None if name in RUNTIME else target.meaning(name)
        if isinstance(meaning, Library):
            found.append(meaning)
        elif meaning is not None and name.startswith(_OF_PYTHON):
            raise CompileError(f"it calls {name.removeprefix('fg_')}, which is of this process")
    return found
