"""Whole programs on disk: what was traced and compiled before runs without being planned again.

A file holds the `Facts` of an executable and the name of its code, which names what it calls
(`Engine.load`). It is found by all that the code depends on: the program itself, donation, the
context, the target, and the source of this package.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from funcgrad import dtypes
from funcgrad.backends.llvm.executable import Executable, Facts
from funcgrad.backends.llvm.identity import identity
from funcgrad.backends.llvm.native import objects
from funcgrad.backends.llvm.native.engine import engine
from funcgrad.backends.llvm.runtime import lapack, pool, run_code, scratch
from funcgrad.core import backend, context
from funcgrad.core.display.compile_report import CompileStage
from funcgrad.core.ir import Jaxpr

if TYPE_CHECKING:
    from funcgrad.backends.llvm.build import Built

_MOST_CONSTANTS = 1 << 20  # bytes
_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))


def key(jaxpr: Jaxpr, donated: Sequence[bool]) -> str | None:
    """The name of a program's file, None if it has none.

    >>> import funcgrad as fg
    >>> jaxpr = fg.make_jaxpr(lambda x: x + 1)(1.0).jaxpr
    >>> key(jaxpr, [True]) == key(jaxpr, [False])
    False
    """
    if not objects.enabled():
        return None
    version, found = _source.version(), identity(jaxpr)
    if version is None or found is None:
        return None
    ctx = context.current()
    settings = (
        tuple(ctx.axes.items()), ctx.manual, ctx.float_dtype.name, ctx.int_dtype.name,
        pool.num_threads(), list(map(bool, donated)), sys.version, np.__version__,
    )  # fmt: skip
    return objects.digest("program", version, engine().salt, found, repr(settings))


def load(name: str, jaxpr: Jaxpr, called: str, parts: Callable[[], Built]) -> Executable | None:
    """The program of a file as a callable, None if there is none that is whole.

    >>> load("0" * 64, None, "f", None) is None
    True
    """
    times = [time.perf_counter()]
    kept = objects.load(name)
    if kept is None:
        return None
    head, body = kept
    times.append(time.perf_counter())
    run_code.native_run()
    for module in (lapack, pool, scratch, run_code):
        module.bind(engine())
    library = engine().load(head["library"])
    # What it calls may have become that of another version of the package.
    if library is None or head["uses"] != sorted(x.name for x in library.uses):
        return None
    times.append(time.perf_counter())
    constants, at = [], 0
    for dtype, shape in head["constants"]:
        x = np.empty(shape, dtypes.canonical(dtype))
        x.reshape(-1).view(np.uint8)[:] = np.frombuffer(body, np.uint8, x.nbytes, at)
        constants.append(x)
        at += x.nbytes
    facts = Facts(
        called,
        tuple(v.aval.strong() for v in jaxpr.ins),
        tuple(v.aval.strong() for v in jaxpr.outs),
        head["arena"],
        tuple(constants),
        dict(head["aliases"]),
        tuple(head["written"]),
        (),
        head["short"],
    )
    found = "found on disk with its program"
    stages = [
        CompileStage("plan", times[1] - times[0], found),
        CompileStage("kernels", 0.0, f"modules: {len(library.uses)} {found}"),
        CompileStage("program", times[2] - times[1], f"found on disk, {library.size} bytes"),
    ]
    return Executable(facts, library, stages, parts)


def save(name: str, executable: Executable) -> None:
    """Keep a program, if another process could run it: no step of it is Python's or exchanges data.

    >>> import funcgrad as fg
    >>> save("example", fg.jit(lambda x: x * 3).lower(1.0)._executable())
    """
    facts = executable.facts
    large = sum(c.nbytes for c in facts.constants) > _MOST_CONSTANTS
    if executable.calls_back or facts.comms or large or not _source.unchanged():
        return
    head: dict[str, Any] = {
        "library": executable.library.name,
        "uses": sorted(x.name for x in executable.library.uses),
        "arena": facts.arena_bytes,
        "aliases": sorted(facts.aliases.items()),
        "written": facts.written,
        "short": facts.short,
        "constants": [[c.dtype.name, c.shape] for c in facts.constants],
    }
    objects.save(name, head, b"".join(c.tobytes() for c in facts.constants))


class _Source:
    """The package's files by their sizes and times, as Python's own cache of bytecode knows them.

    A process that loaded a file which had changed keeps nothing: it is of two versions.
    """

    def __init__(self) -> None:
        self._files: dict[str, tuple[int, int]] = {}
        self._version = ""
        self._checked: set[str] = set()

    def version(self) -> str | None:
        """A digest of all files; None if there are none to see, or one is newer than the process.

        >>> _source.version() == _source.version()
        True
        """
        if not self._version:
            self._files, self._checked = _stamp(), set(sys.modules)
            seen = any(size for size, _ in self._files.values())  # else a package without sources
            old = seen and max(time for _, time in self._files.values()) < backend.LOADED
            # Some installers give every file one time: then the folder tells versions apart.
            facts = repr(sorted(self._files.items()))
            self._version = objects.digest(_PACKAGE, facts) if old else "none"
        return None if self._version == "none" else self._version

    def unchanged(self) -> bool:
        """Whether the files that were loaded since then are as they were."""
        new = [name for name in list(sys.modules) if name not in self._checked]
        self._checked.update(new)
        paths = [getattr(sys.modules.get(name), "__file__", None) or "" for name in new]
        own = [path for path in paths if path.startswith(_PACKAGE + os.sep)]
        try:
            same = all(self._files.get(p[len(_PACKAGE) + 1 :]) == _facts(os.stat(p)) for p in own)
        except OSError:
            same = False
        if not same:
            self._version = "none"
        return self._version != "none"


def _stamp() -> dict[str, tuple[int, int]]:
    """Size and time of each file of the package's source, by its place there."""
    found: dict[str, tuple[int, int]] = {}
    with contextlib.suppress(OSError):
        _add_files(_PACKAGE, "", found)
    return found


def _add_files(folder: str, place: str, to: dict[str, tuple[int, int]]) -> None:
    with os.scandir(folder) as entries:
        for entry in entries:
            name = entry.name
            if name.endswith(".py"):
                to[place + name] = _facts(entry.stat())
            elif "." not in name and name != "__pycache__" and entry.is_dir():
                _add_files(entry.path, place + name + os.sep, to)


def _facts(status: os.stat_result) -> tuple[int, int]:
    return status.st_size, status.st_mtime_ns


_source = _Source()
