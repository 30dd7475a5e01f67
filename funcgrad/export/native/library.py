"""`aot`: a function as a C library in a folder."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import astuple, dataclass, replace
from pathlib import Path

from funcgrad.backends.llvm.native.foreign import FOREIGN
from funcgrad.backends.llvm.native.target import LEVELS, Target
from funcgrad.errors import ArgumentError, ExportError
from funcgrad.export.exported import Exported
from funcgrad.export.native.measure import LEAST, scratch_bytes
from funcgrad.export.native.parts import Parts, parts_of
from funcgrad.export.native.sources import for_builds, sources
from funcgrad.export.native.toolchain import Toolchain, file_of, toolchain

TARGETS = ("host", "generic", *LEVELS, *FOREIGN)
_KINDS = ("shared", "static", "object")
_FUNCTIONS = (
    "abi_version", "arena_bytes", "input", "output", "init", "run", "arena_used", "message",
)  # fmt: skip
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,62}")


@dataclass(frozen=True)
class CLibrary:
    """What `aot` wrote. Beside the C header is one for C++, which ends in .hpp.

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
        "x86-64-v3"; or another processor and system: one of `TARGETS`, such as "aarch64-linux"
    kind: "shared", "static" or "object"
    weights: "inside" of the library, or "beside": the program then maps the file and gives it to
        `<name>_init`

    For this processor the code is that of `jit`, so that results are the same, to the bit. A run
    allocates no memory: the caller gives an arena, whose size the header has. What tasks take of it
    is found by a run on the samples of `exported`, or else on zeros (twice that for processors that
    it can't be found for); a run that needs more gives a status. One thread computes a run; several
    may run at a time.

    Raises ExportError for what only Python can do, which is named with the user's line, for a kind
    that a system lacks, and where there is no C compiler for the target; ArgumentError for symbolic
    sizes (`specialize` them).

    >>> import tempfile
    >>> from funcgrad import export
    >>> f = export.export(fg.jit(fnp.sin))(fg.ShapeDtypeStruct((8,), "float32"))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     export.aot(f, folder, name="sine").library.name
    'libsine.so'
    """
    name = exported.fun_name if name is None else name
    if not _NAME.fullmatch(name):
        raise ArgumentError(f"export.aot: {name!r} can't begin names in C: give name=")
    for what, given, known in (
        ("kind", kind, _KINDS),
        ("weights", weights, ("inside", "beside")),
        ("target", target, TARGETS),
    ):
        if given not in known:
            raise ArgumentError(f"export.aot: {what} must be one of {known}, got {given!r}")
    to = Path(folder)
    to.mkdir(parents=True, exist_ok=True)
    options = Options(name, kind, weights)
    file_of(target, kind, name)
    asked = os.environ.get("FUNCGRAD_TARGET") or "host"
    if target in FOREIGN or target in LEVELS:
        toolchain(target)  # there is one, before anything is compiled
        return _elsewhere(exported, to, _reached(target), options)
    if target != asked:
        return _elsewhere(exported, to, target, options)
    return write(exported, to, target, options)


@dataclass(frozen=True)
class Options:
    """What `aot` was asked for.

    scratch: bytes that tasks are given where they can't be measured; -1: they are
    """

    name: str
    kind: str
    weights: str
    scratch: int = -1


def write(exported: Exported, to: Path, target: str, options: Options) -> CLibrary:
    """The library, for the target that this process compiles for."""
    name, kind = options.name, options.kind
    tools = toolchain(target)
    file = file_of(target, kind, name)
    parts = parts_of(exported, f"{name}_fg_")
    weights_file = to / f"{name}.safetensors"
    weights_file.write_bytes(parts.weights)
    inside = options.weights == "inside"
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        build = _Build(name, f"{exported!r}", parts, inside, to, work, tools)
        scratch = max(options.scratch, 0)
        if options.scratch < 0 and parts.takes_scratch:
            library = build.linked(0, "shared", work / f"lib{name}.so")
            samples = [sample.args for sample in exported.samples]
            scratch = scratch_bytes(library, name, weights_file, parts, samples)
        library = build.linked(scratch, kind, to / file)
        for header in (f"{name}.h", f"{name}.hpp"):
            shutil.copyfile(work / header, to / header)
    if kind != "object":
        for path, text in for_builds(name, kind, library.name, f"{exported!r}").items():
            (to / path).write_text(text, encoding="utf-8")
    return CLibrary(to / f"{name}.h", library, weights_file, parts.arena + scratch)


def _reached(target: str) -> str:
    """A level of x86-64 as one that runs here, or else as another processor."""
    try:
        Target.named(target)
    except ValueError:
        return f"{target}-linux"
    return target


# Code is planned for one target a process.
_ELSEWHERE = """
import json, pathlib, sys
from funcgrad import errors, export
from funcgrad.export.native import library
path, folder, target, options = sys.argv[1:]
try:
    asked = library.Options(*json.loads(options))
    made = library.write(export.load(path), pathlib.Path(folder), target, asked)
except (errors.ExportError, ValueError) as e:
    raise SystemExit(str(e))
print(json.dumps([str(made.header), str(made.library), str(made.weights), made.arena_bytes]))
"""


def _elsewhere(exported: Exported, folder: Path, target: str, options: Options) -> CLibrary:
    """The library that a process for another target makes."""
    if not Target.named(target).runs_here:
        options = replace(options, scratch=_scratch_here(exported))
    with tempfile.TemporaryDirectory() as temporary:
        path = os.path.join(temporary, "exported.fg")
        exported.save(path)
        done = subprocess.run(
            [sys.executable, "-c", _ELSEWHERE, path, str(folder), target,
             json.dumps(astuple(options))],
            env=os.environ | {"FUNCGRAD_TARGET": target, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    if done.returncode:
        raise ExportError(f"export.aot for {target}: {done.stderr.strip()[-2000:]}")
    header, library, weights, arena = json.loads(done.stdout.splitlines()[-1])
    return CLibrary(Path(header), Path(library), Path(weights), arena)


def _scratch_here(exported: Exported) -> int:
    """Bytes for the tasks of another processor, whose code can't be run: twice what they take on
    this one, and at least some."""
    with tempfile.TemporaryDirectory() as folder:
        made = write(exported, Path(folder), "host", Options("net", "shared", "beside"))
        measured = made.arena_bytes - parts_of(exported, "net_fg_").arena
    return max(2 * measured, LEAST)


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
        for i, code in enumerate(self.parts.objects):
            objects.append(f"{self.name}.{i}.o")
            (self.work / objects[-1]).write_bytes(code)
        public = [f"{self.name}_{f}" for f in _FUNCTIONS]
        self.tools.link(self.work, kind, objects, public, to)
        return to
