"""`aot`: a function as a C library in a folder."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from funcgrad.backends.llvm.native.target import LEVELS
from funcgrad.errors import ArgumentError, ExportError
from funcgrad.export.exported import Exported
from funcgrad.export.native import toolchain
from funcgrad.export.native.measure import scratch_bytes
from funcgrad.export.native.parts import Parts, parts_of
from funcgrad.export.native.sources import cmake, sources

TARGETS = ("host", "generic", *LEVELS)
_FILES = {"shared": "lib{}.so", "static": "lib{}.a", "object": "{}.o"}
_FUNCTIONS = ("abi_version", "input", "output", "init", "run", "arena_used", "message")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,62}")


@dataclass(frozen=True)
class CLibrary:
    """What `aot` wrote.

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
    """Write a function as a C library: a C99 header, the library, its weights, a file for CMake.

    name: how files and symbols begin, by default the function's name
    target: "host", this processor; "generic", all of its architecture; or a level of x86-64 that it
        reaches, such as "x86-64-v3"
    kind: "shared", "static" or "object"
    weights: "inside" of the library, or "beside": the program then maps the file and gives it to
        `<name>_init`

    The code is that of `jit`, so that results are the same, to the bit. A run allocates no memory:
    the caller gives an arena, whose size the header has. What tasks take of it is found by a run on
    the samples of `exported`, or else on zeros; a run that needs more gives a status. One thread
    computes a run; several may run at a time.

    Raises ExportError for what only Python can do, which is named with the user's line, and where
    there is no C compiler; ArgumentError for symbolic sizes (`specialize` them).

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
        ("kind", kind, tuple(_FILES)),
        ("weights", weights, ("inside", "beside")),
        ("target", target, TARGETS),
    ):
        if given not in known:
            raise ArgumentError(f"export.aot: {what} must be one of {known}, got {given!r}")
    to = Path(folder)
    to.mkdir(parents=True, exist_ok=True)
    if target != (os.environ.get("FUNCGRAD_TARGET") or "host"):
        return elsewhere(exported, to, target, {"name": name, "kind": kind, "weights": weights})
    parts = parts_of(exported)
    weights_file = to / f"{name}.safetensors"
    weights_file.write_bytes(parts.weights)
    signature = f"{exported!r}"
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        build = _Build(name, signature, parts, weights == "inside", to, work)
        scratch = 0
        if parts.takes_scratch:
            library = build.linked(0, "shared", work / f"lib{name}.so")
            samples = [sample.args for sample in exported.samples]
            scratch = scratch_bytes(library, name, weights_file, parts, samples)
        library = build.linked(scratch, kind, to / _FILES[kind].format(name))
        header = to / f"{name}.h"
        header.write_text((work / f"{name}.h").read_text(encoding="utf-8"), encoding="utf-8")
    if kind != "object":
        text = cmake(name, kind, library.name)
        (to / f"{name}Config.cmake").write_text(text, encoding="utf-8")
    return CLibrary(header, library, weights_file, parts.arena + scratch)


# Code is planned for one target a process.
_ELSEWHERE = """
import json, sys
from funcgrad import errors, export
path, folder, target, options = sys.argv[1:]
try:
    made = export.aot(export.load(path), folder, target=target, **json.loads(options))
except (errors.ExportError, ValueError) as e:
    raise SystemExit(str(e))
print(json.dumps([str(made.header), str(made.library), str(made.weights), made.arena_bytes]))
"""


def elsewhere(exported: Exported, folder: Path, target: str, options: dict[str, str]) -> CLibrary:
    """The library that a process for another target makes."""
    with tempfile.TemporaryDirectory() as temporary:
        path = os.path.join(temporary, "exported.fg")
        exported.save(path)
        done = subprocess.run(
            [sys.executable, "-c", _ELSEWHERE, path, str(folder), target, json.dumps(options)],
            env=os.environ | {"FUNCGRAD_TARGET": target, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    if done.returncode:
        raise ExportError(f"export.aot for {target}: {done.stderr.strip()[-2000:]}")
    header, library, weights, arena = json.loads(done.stdout.splitlines()[-1])
    return CLibrary(Path(header), Path(library), Path(weights), arena)


@dataclass(frozen=True)
class _Build:
    """Compiles and links in a folder of its own."""

    name: str
    signature: str
    parts: Parts
    inside: bool
    folder: Path
    work: Path

    def linked(self, scratch: int, kind: str, to: Path) -> Path:
        """The library, whose runs take so much memory beside the program's."""
        texts = sources(self.name, self.signature, self.parts, scratch, self.inside)
        for file, text in texts.items():
            (self.work / file).write_text(text, encoding="utf-8")
        objects = [f"{self.name}.glue.o"]
        include = self.folder.resolve()
        toolchain.compile_glue(self.work, f"{self.name}.c", objects[0], include)
        for i, code in enumerate(self.parts.objects):
            objects.append(f"{self.name}.{i}.o")
            (self.work / objects[-1]).write_bytes(code)
        public, to = [f"{self.name}_{f}" for f in _FUNCTIONS], to.resolve()
        if kind == "shared":
            toolchain.link_shared(self.work, objects, public, to)
        else:
            whole = to if kind == "object" else self.work / f"{self.name}.o"
            toolchain.link_object(self.work, objects, public, whole)
            if kind == "static":
                toolchain.archive(self.work, whole, to)
        return to
