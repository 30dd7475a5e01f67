"""The C compiler of a target and its companions: objects to libraries."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from funcgrad.errors import ExportError

_FLAGS = ("-std=gnu99", "-O2", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror")

# What kinds of libraries are called, by system.
_FILES = {
    "linux": {"shared": "lib{}.so", "static": "lib{}.a", "object": "{}.o"},
    "macos": {"shared": "lib{}.dylib", "static": "lib{}.a", "object": "{}.o"},
    "windows": {"shared": "{}.dll", "static": "lib{}.a"},
    "wasm": {"shared": "{}.wasm", "static": "lib{}.a"},
}
# For each target its system, the prefix of GNU tools, and zig's name; None: those of this machine.
_TARGETS = {
    "x86-64-linux": ("linux", "x86_64-linux-gnu-", "x86_64-linux-musl"),
    "x86-64-macos": ("macos", None, "x86_64-macos"),
    "x86-64-windows": ("windows", "x86_64-w64-mingw32-", "x86_64-windows-gnu"),
    "aarch64-linux": ("linux", "aarch64-linux-gnu-", "aarch64-linux-musl"),
    "aarch64-android": ("linux", None, None),
    "aarch64-windows": ("windows", None, "aarch64-windows-gnu"),
    "aarch64-macos": ("macos", None, "aarch64-macos"),
    "aarch64-ios": ("macos", None, None),
    "armv7-linux": ("linux", "arm-linux-gnueabihf-", "arm-linux-musleabihf"),
    "riscv64-linux": ("linux", "riscv64-linux-gnu-", "riscv64-linux-musl"),
    "wasm32": ("wasm", None, "wasm32-wasi"),
}


@dataclass(frozen=True)
class Toolchain:
    """Programs that compile and link for a target.

    system: "linux", "macos", "windows" or "wasm", by which files differ
    """

    system: str
    cc: tuple[str, ...]
    ar: tuple[str, ...]

    def compile(self, folder: Path, source: str, to: str, include: Path) -> None:
        """The object of a C file; weights are found in the folder `include`."""
        pic = () if self.system in ("windows", "wasm") else ("-fPIC",)
        embed = () if self.system == "linux" else (f"--embed-dir={include}",)
        where = (f"-I{include}", f"-Wa,-I{include}") if self.system == "linux" else embed
        run(folder, *self.cc, *_FLAGS, *pic, *where, "-c", source, "-o", to)

    def link(self, folder: Path, kind: str, objects: Sequence[str], public: Sequence[str],
             to: Path) -> None:  # fmt: skip
        """A library of objects, which shows these symbols."""
        if kind == "static":
            to.unlink(missing_ok=True)
            run(folder, *self.ar, "rcsD", str(to), *objects)
        elif kind == "object":
            run(folder, *self.cc, "-r", "-nostdlib", *objects, "-o", str(to))
        else:
            run(folder, *self.cc, *self._shared(public, to.name), *objects, *self._libm(), "-o",
                str(to))  # fmt: skip

    def _shared(self, public: Sequence[str], soname: str) -> list[str]:
        if self.system == "linux":
            return ["-shared", "-Wl,--no-undefined", "-Wl,-z,noexecstack",
                    "-Wl,-z,max-page-size=16384", f"-Wl,-soname,{soname}"]  # fmt: skip
        if self.system == "wasm":
            kept = [f"-Wl,--export={symbol}" for symbol in public]
            return ["-mexec-model=reactor", "-s", "-Wl,--export=__heap_base", *kept]
        return ["-shared"]

    def _libm(self) -> list[str]:
        return [] if self.system in ("windows", "macos") else ["-lm"]


def file_of(target: str, kind: str, name: str) -> str:
    """A library's name. Raises ExportError for a kind that the target's system lacks."""
    system = _TARGETS[target][0] if target in _TARGETS else _system()
    if kind not in _FILES[system]:
        raise ExportError(f"export.aot: there is no kind={kind!r} for {system}; "
                          f"there are {', '.join(_FILES[system])}")  # fmt: skip
    return _FILES[system][kind].format(name)


def toolchain(target: str) -> Toolchain:
    """What compiles and links for a target: the environment's CC, or this machine's compiler, GNU's
    for the target, or zig's.

    Raises ExportError where there is none.
    """
    system, gnu, zig = _TARGETS.get(target, (_system(), None, None))
    if target not in _TARGETS:
        cc = tool("cc", "gcc", "clang")
        return Toolchain(system, (cc,), (tool("ar", "llvm-ar"),))
    if given := os.environ.get("CC"):
        return Toolchain(system, (tool("cc"),), (tool(f"{given.removesuffix('cc')}ar", "llvm-ar",
                                                       "ar"),))  # fmt: skip
    if gnu and shutil.which(f"{gnu}gcc"):
        return Toolchain(system, (tool(f"{gnu}gcc"),), (tool(f"{gnu}ar"),))
    program = _zig()
    if zig is None or program is None:
        known = [f"{gnu}gcc"] * bool(gnu) + ["zig (pip install ziglang)"] * bool(zig)
        raise ExportError(f"export.aot: target={target!r} needs a C compiler for it: set CC"
                          + "".join(f", or install {each}" for each in known))  # fmt: skip
    return Toolchain(system, (*program, "cc", "-target", zig), (*program, "ar"))


def _zig() -> tuple[str, ...] | None:
    """How zig is called, which has compilers and C libraries of many targets."""
    if found := shutil.which("zig"):
        return (found,)
    return (sys.executable, "-m", "ziglang") if importlib.util.find_spec("ziglang") else None


def _system() -> str:
    return {"darwin": "macos", "win32": "windows"}.get(sys.platform, "linux")


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
