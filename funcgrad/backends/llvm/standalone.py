"""The code of a program as objects for a linker, with all that it calls, to run without Python.

What remains undefined is libc's, and what `RUNTIME` names: threads, scratch memory, and the
questions for signals, which whoever links it has to provide.
"""

from __future__ import annotations

import re
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
# Names of generated code, and the beginning of what is seen outside of its module.
_OURS = re.compile(r"(?<![\w.])fg_(\w*)")
_SEEN = re.compile(r"^(define (?:external )?|@[\w.\"]+ = (?=global |constant ))", re.MULTILINE)
_LINKAGES = ("internal ", "private ", "weak", "linkonce", "available", "hidden ")
# How names begin that only a Python process has.
_OF_PYTHON = ("fg_", "Py", "_Py")


class Standalone(NamedTuple):
    """Objects, in ELF or the target's own format, and the features that their code needs."""

    objects: list[bytes]
    features: tuple[str, ...]


def standalone(built: Built, prefix: str, runtime: str) -> Standalone:
    """The objects of a program, whose names begin with `prefix` in place of "fg_" and are hidden;
    those of `RUNTIME` begin with `runtime`.

    Raises CompileError for code that calls what only this process has, such as NumPy's LAPACK.
    """
    target = engine()
    left: list[Library] = [built.library]  # which uses those of kernels
    found: dict[Library, bytes] = {}
    while left:
        library = left.pop()
        if library not in found:
            found[library], called = _object(target, library, prefix, runtime)
            left += [*library.uses, *_meant(target, called)]
    features = target.target.features.split(",")
    return Standalone(list(found.values()), tuple(f[1:] for f in features if f.startswith("+")))


def _object(target: Engine, library: Library, prefix: str,
            runtime: str) -> tuple[bytes, list[str]]:  # fmt: skip
    """A library's object, and what it takes from others."""

    def named(found: re.Match) -> str:
        return (runtime if found[0] in RUNTIME else prefix) + found[1]

    text = _SEEN.sub(_hidden, _OURS.sub(named, library.source))
    for name in HALF_CALLS:  # which each library has that needs them
        seen = rf"^define (?:external )?hidden (?=.*@\"?{name}\b)"
        text = re.sub(seen, "define weak hidden ", text, flags=re.MULTILINE)
    code, (_, called) = compiler.compiled(
        target.target, text, library.level, lambda m: (m.code(), m.symbols())
    )
    called = ["fg_" + name[len(prefix) :] if name.startswith(prefix) else name for name in called]
    halves = [name for name in HALF_CALLS if name.encode() in code] if _own_halves(target) else []
    return code, [name for name in called if not name.startswith("llvm.")] + halves


def _hidden(beginning: re.Match) -> str:
    """The beginning of a definition that no other library sees."""
    rest = beginning.string[beginning.end() : beginning.end() + 12]
    return beginning[0] if rest.startswith(_LINKAGES) else f"{beginning[0]}hidden "


def _own_halves(target: Engine) -> bool:
    """Whether conversions of float16 are ours, and not of the C compiler's runtime library."""
    linux = ("x86_64-unknown-linux", "riscv64")  # elsewhere they have other names, or no weak ones
    return target.target.runs_here or target.target.triple.startswith(linux)


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
