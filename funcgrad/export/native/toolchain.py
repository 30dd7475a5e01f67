"""The C compiler and its companions: objects to libraries."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from funcgrad.errors import ExportError

_FLAGS = ("-std=gnu99", "-O2", "-fPIC", "-Wall", "-Wextra", "-Werror")


def tool(name: str, *others: str) -> str:
    """The path of a program, of several the first that is there; the compiler's is the environment
    variable CC's. Raises ExportError where there is none."""
    wanted = (os.environ["CC"],) if name == "cc" and os.environ.get("CC") else (name, *others)
    for each in wanted:
        found = shutil.which(each)
        if found is not None:
            return found
    raise ExportError(
        f"export.aot needs {' or '.join(wanted)}, which is not on PATH: install a C compiler "
        "(gcc or clang, with binutils)"
    )


def run(folder: Path, *command: str) -> None:
    """Run a tool in a folder; ExportError with what it printed where it fails."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        text = (done.stderr or done.stdout).strip()[-2000:]
        raise ExportError(f"export.aot: {Path(command[0]).name} failed:\n{text}")


def compile_glue(folder: Path, source: str, to: str, include: Path) -> None:
    """The object of the C file; weights are found in the folder `include`."""
    cc = tool("cc", "gcc", "clang")
    run(folder, cc, *_FLAGS, f"-I{include}", f"-Wa,-I{include}", "-c", source, "-o", to)


def link_shared(folder: Path, objects: Sequence[str], public: Sequence[str], to: Path) -> None:
    """A shared library that shows these symbols alone, and needs libc and libm."""
    names = "".join(f"{p};" for p in public)
    (folder / "exports.map").write_text(f"{{global: {names} local: *;}};\n", encoding="utf-8")
    cc = tool("cc", "gcc", "clang")
    run(
        folder, cc, "-shared", "-Wl,--no-undefined", "-Wl,-z,noexecstack",
        "-Wl,-z,max-page-size=16384", "-Wl,--version-script=exports.map", f"-Wl,-soname,{to.name}",
        *objects, "-lm", "-o", str(to),
    )  # fmt: skip


def link_object(folder: Path, objects: Sequence[str], public: Sequence[str], to: Path) -> None:
    """One object of several, which shows these symbols alone."""
    cc, objcopy = tool("cc", "gcc", "clang"), tool("objcopy", "llvm-objcopy")
    run(folder, cc, "-r", "-nostdlib", *objects, "-o", "whole.o")
    keep = [f"--keep-global-symbol={p}" for p in public]
    run(folder, objcopy, *keep, "whole.o", str(to))


def archive(folder: Path, member: Path, to: Path) -> None:
    """A static library of one object."""
    to.unlink(missing_ok=True)
    run(folder, tool("ar", "llvm-ar"), "rcsD", str(to), str(member))
