"""`aot`: a function as a C library in a folder."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from funcgrad.backends.llvm.native.foreign import FOREIGN
from funcgrad.backends.llvm.native.target import LEVELS, Target
from funcgrad.errors import ArgumentError, ExportError
from funcgrad.export.exported import Exported
from funcgrad.export.native.codes import Code, Piece, codes_of, runs_here
from funcgrad.export.native.measure import LEAST, scratch_bytes
from funcgrad.export.native.parts import Parts, parts_of
from funcgrad.export.native.sources import for_builds, module, sources
from funcgrad.export.native.toolchain import Toolchain, file_of, toolchain
from funcgrad.export.rows import BLOCKS

TARGETS = ("host", "generic", *LEVELS, *FOREIGN)
_KINDS = ("shared", "static", "object")
_WEIGHTS = ("inside", "beside")
_FUNCTIONS = (
    "abi_version", "arena_bytes", "input", "output", "init", "level", "set_level", "set_size",
    "run", "arena_used", "message",
)  # fmt: skip
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,62}")


@dataclass(frozen=True)
class CLibrary:
    """What `aot` wrote. Beside the C header is one for C++, which ends in .hpp, and for
    WebAssembly a JavaScript module, which ends in .mjs.

    arena_bytes: memory that a run needs
    """

    header: Path
    library: Path
    weights: Path
    arena_bytes: int


def aot(
    exported: Exported,
    folder: str | os.PathLike[str],
    *,
    name: str | None = None,
    target: str = "host",
    kind: str = "shared",
    weights: str = "inside",
) -> CLibrary:
    """Write a function as a C library: headers for C99 and C++17, the library, its weights, files
    for CMake and pkg-config.

    name: how files and symbols begin, by default the function's name
    target: "host", this processor; "generic", all of its architecture; a level of x86-64 such as
        "x86-64-v3", or several, "x86-64-v2+v3+v4", of which `<name>_init` chooses the highest that
        the processor reaches; or another processor and system: one of `TARGETS`, such as
        "aarch64-linux"
    kind: "shared", "static" or "object"
    weights: "inside" of the library, or "beside": the program then maps the file and gives it to
        `<name>_init`

    For this processor the code is that of `jit`, so that results are the same, to the bit. A run
    allocates no memory: the caller gives an arena, whose size the header has. What tasks take of it
    is found by a run on the samples of `exported`, or else on zeros (twice that for processors that
    it can't be found for); a run that needs more gives a status. One thread computes a run; several
    may run at a time.

    A symbolic size may count rows that are independent of each other (`Exported.row_size`): such a
    library has code for 64, 8 and 1 of them, which computes any number, with other last bits than
    `jit`'s, and `<name>_set_size` says how many.

    Raises ExportError for what only Python can do, which is named with the user's line, for a kind
    that a system lacks, where there is no C compiler for the target, and for other symbolic sizes
    (`specialize` them).

    >>> import tempfile
    >>> from funcgrad import export
    >>> f = export.export(fg.jit(fnp.sin))(fg.ShapeDtypeStruct((8,), "float32"))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     export.aot(f, folder, name="sine").library.name
    'libsine.so'
    """
    if not isinstance(exported, Exported):
        raise ArgumentError(
            f"export.aot takes an Exported, as export.export(fg.jit(f))(*args) is, got {exported!r}"
        )
    name = exported.fun_name if name is None else name
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ArgumentError(f"export.aot: {name!r} can't begin names in C: give name=")
    targets = targets_of(target)
    for what, given, known in (("kind", kind, _KINDS), ("weights", weights, _WEIGHTS)):
        if given not in known:
            raise ArgumentError(f"export.aot: {what} must be one of {known}, got {given!r}")
    if exported.is_symbolic:
        _check_rows(exported)
    return _write(exported, Path(folder), name, targets, kind, weights == "inside")


def _write(exported: Exported, to: Path, name: str, targets: Sequence[str], kind: str,
           inside: bool) -> CLibrary:  # fmt: skip
    to.mkdir(parents=True, exist_ok=True)
    file, signature = file_of(targets[0], kind, name), f"{exported!r}"
    tools = toolchain(targets[0])  # there is one, before anything is compiled
    parts = parts_of(exported, _codes(exported, name, targets))
    weights = to / f"{name}.safetensors"
    weights.write_bytes(parts.weights)
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        build = _Build(name, signature, parts, inside, to, work, tools)
        scratch = _scratch(exported, build, weights) if parts.takes_scratch else 0
        library = build.linked(scratch, kind, to / file)
        for header in (f"{name}.h", f"{name}.hpp"):
            shutil.copyfile(work / header, to / header)
    beside: dict[str, str] = {}
    if library.suffix == ".wasm":
        beside = {f"{name}.mjs": module(name, signature, parts.size, inside)}
    elif kind != "object":
        beside = for_builds(name, kind, library.name, signature)
    for path, text in beside.items():
        (to / path).write_text(text, encoding="utf-8")
    return CLibrary(to / f"{name}.h", library, weights, parts.arena + scratch)


def _check_rows(exported: Exported) -> None:
    try:
        exported.rows(1)
    except ExportError as e:
        raise ExportError(
            f"export.aot of {exported.fun_name}: {e}; a library for all sizes needs rows that are "
            "independent of each other: specialize(…) fixes the sizes"
        ) from None


def targets_of(target: str) -> list[str]:
    """The targets that a text names: one, or several levels of x86-64, from the least on.

    >>> targets_of("x86-64-v4+v2")
    ['x86-64-v2', 'x86-64-v4']
    """
    first, *others = str(target).split("+")
    levels = [first, *(level if level in LEVELS else f"x86-64-{level}" for level in others)]
    known = LEVELS if others else TARGETS
    if not set(levels) <= set(known) or len(set(levels)) < len(levels):
        raise ArgumentError(
            f"export.aot: target must be one of {TARGETS}, or some levels of x86-64 such as "
            f"'x86-64-v2+v3+v4', got {target!r}"
        )
    return sorted(levels, key=list(known).index)


def _codes(exported: Exported, name: str, targets: Sequence[str]) -> dict[str, list[Code]]:
    """The code for each target."""
    runtime = f"{name}_fg_"
    rows = BLOCKS if exported.is_symbolic else (0,)
    return {
        target: codes_of(exported, [Piece(f"{runtime}{i}_{n}_", n) for n in rows], runtime,
                         _reached(target), lays_out=len(targets) == 1)
        for i, target in enumerate(targets)
    }  # fmt: skip


def _reached(target: str) -> str:
    """A level of x86-64 as one that runs here, or else as another processor."""
    try:
        Target.named(target)
    except ValueError:
        return f"{target}-linux"
    return target


def _scratch(exported: Exported, build: _Build, weights: Path) -> int:
    """Bytes for tasks: what they take on this processor; twice that for others, whose code can't be
    run, and at least some."""
    levels = [level.name for level in build.parts.levels]
    here = [level for level in levels if runs_here(_reached(level))]
    if not here:
        with tempfile.TemporaryDirectory() as folder:
            made = aot(exported, folder, name="net", weights="beside")
            codes = _codes(exported, "net", ["host"])
            return max(2 * (made.arena_bytes - parts_of(exported, codes).arena), LEAST)
    # Any size does to measure, also one that the function isn't for.
    free = replace(build, parts=replace(build.parts, constraints=()))
    library = free.linked(0, "shared", build.work / f"lib{build.name}.so")
    samples = [sample.args for sample in exported.samples]
    taken = scratch_bytes(library, build.name, weights, build.parts, here, samples)
    return taken if here == levels else 2 * taken


@dataclass(frozen=True)
class _Build:
    """Compiles and links in a folder of its own."""

    name: str
    signature: str
    parts: Parts
    inside: bool
    folder: Path
    work: Path
    tools: Toolchain

    def linked(self, scratch: int, kind: str, to: Path) -> Path:
        """The library, whose runs take so much memory beside the program's."""
        texts = sources(self.name, self.signature, self.parts, scratch, self.inside)
        for file, text in texts.items():
            (self.work / file).write_text(text, encoding="utf-8")
        objects = [f"{self.name}.glue.o"]
        include, to = self.folder.resolve(), to.resolve()
        self.tools.compile(self.work, f"{self.name}.c", objects[0], include)
        for code in (code for level in self.parts.levels for code in level.codes):
            for data in code.objects:
                objects.append(f"{self.name}.{len(objects)}.o")
                (self.work / objects[-1]).write_bytes(data)
        if kind == "static" and len(self.parts.levels) > 1:
            # What levels share is to be that of the least, which is first.
            self.tools.link(self.work, "object", objects, [], self.work / f"{self.name}.o")
            objects = [f"{self.name}.o"]
        public = [f"{self.name}_{f}" for f in _FUNCTIONS]
        self.tools.link(self.work, kind, objects, public, to)
        return to
