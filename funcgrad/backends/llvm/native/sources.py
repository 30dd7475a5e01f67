"""Digests of sources, which stand for the code that they write in keys of what is on disk.

A generator's digest covers the modules that it is written with, found by following imports, so that
no list of them has to be kept. That takes a few milliseconds less than writing the code would.
"""

from __future__ import annotations

import functools
import os
import re

from funcgrad.backends.llvm.native.objects import digest

# What makes files of code and reads them: all keys depend on it (`Engine.salt`).
LINKING = ("compiler", "engine", "images", "libllvm", "linker", "objects")
_HERE = __name__.rpartition(".")[0]
_BACKEND = _HERE.rpartition(".")[0]
_PACKAGE = _HERE.partition(".")[0]
_FOLDER = os.path.abspath(os.path.join(os.path.dirname(__file__), *[".."] * len(_HERE.split("."))))
# What is imported as a module is loaded; imports for type checkers are indented. (That it begins
# with letters, which are searched for as such, makes it ten times as fast as the start of a line.)
_IMPORT = re.compile(rf"\nfrom ({_PACKAGE}[\w.]*) import (\([^)]*\)|.*)".encode())
_RENAMED = re.compile(r"#.*| as \w+")


@functools.cache
def linking() -> str:
    """A digest of what makes files of code and reads them.

    >>> len(linking())
    64
    """
    return digest(*[_read(f"{_HERE}.{name}") for name in LINKING])


@functools.cache
def generator(module: str) -> str:
    """A digest of a module of this backend that writes code, and of all that it writes it with.

    >>> products = generator("gemm.functions")
    >>> len(products), products == generator("sort.functions")
    (64, False)
    """
    names = written_with(module)
    return digest(*names, *[_read(name) for name in names])


def written_with(module: str) -> list[str]:
    """The modules of this package that a module of this backend is written with: itself, those that
    it imports, and so on; without `LINKING` and what is imported inside of functions.

    >>> [name.removeprefix("funcgrad.") for name in written_with("native.builder")]
    ['backends.llvm.native.builder', 'backends.llvm.native.ir']
    """
    known = {f"{_HERE}.{name}" for name in LINKING}
    found, left = [], [f"{_BACKEND}.{module}"]
    while left:
        name = left.pop()
        if name not in known:
            known.add(name)
            found.append(name)
            left += _imported(name)
    return sorted(found)


@functools.cache
def _imported(module: str) -> list[str]:
    """What a module imports of this package."""
    found = []
    for imported, given in _IMPORT.findall(b"\n" + _read(module)):
        name = imported.decode()
        path = _path(name)
        if path.endswith(".py"):
            found.append(name)
            continue
        for part in re.findall(r"\w+", _RENAMED.sub("", given.decode())):
            inside = os.path.exists(_path(f"{name}.{part}"))
            found.append(f"{name}.{part}" if inside else name)
    return found


@functools.cache
def _read(module: str) -> bytes:
    path = _path(module)
    with open(path if path.endswith(".py") else os.path.join(path, "__init__.py"), "rb") as file:
        return file.read()


@functools.cache
def _path(module: str) -> str:
    """A module's file, or the folder of a package."""
    path = os.path.join(_FOLDER, *module.split("."))
    return path if os.path.isdir(path) else f"{path}.py"
