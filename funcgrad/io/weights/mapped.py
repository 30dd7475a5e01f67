"""Files mapped into memory, and read within their bounds."""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from funcgrad.errors import FormatError


class Mapped:
    """A file's bytes; what lies outside of them is an error of its format."""

    def __init__(self, path: str | os.PathLike, kind: str):
        self.path, self.kind = Path(path), kind
        with open(self.path, "rb") as file:
            self.size = os.fstat(file.fileno()).st_size
            if not self.size:
                self.error("it is empty")
            self.bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def error(self, what: str) -> NoReturn:
        """Raise FormatError for this file."""
        raise FormatError(f"{self.path} is no valid {self.kind} file: {what}")

    def slice(self, start: int, length: int, what: str) -> memoryview:
        """Some bytes."""
        if start < 0 or length < 0 or start + length > self.size:
            self.error(f"{what}, {length} bytes at {start}, ends behind its {self.size} bytes")
        return memoryview(self.bytes)[start : start + length]

    def array(self, start: int, dtype: np.dtype, shape: Sequence[int], what: str) -> np.ndarray:
        """An array that lies in the file."""
        count = 1
        for n in shape:
            count *= n
        data = self.slice(start, count * dtype.itemsize, what)
        return np.frombuffer(data, np.uint8).view(dtype).reshape(tuple(shape))


class Reader:
    """Numbers one after the other, little end first."""

    def __init__(self, file: Mapped, at: int = 0):
        self.file, self.at = file, at

    def take(self, length: int, what: str) -> memoryview:
        """The next bytes."""
        found = self.file.slice(self.at, length, what)
        self.at += length
        return found

    def number(self, code: str, what: str) -> Any:
        """The next number, of a type as `struct` calls it."""
        return struct.unpack(f"<{code}", self.take(struct.calcsize(f"<{code}"), what))[0]


MAX_DEPTH = 64


def nested(flat: dict[str, Any]) -> dict[str, Any]:
    """A tree of what stands under dotted names.

    >>> nested({"a.b": 1, "a.c": 2, "d": 3})
    {'a': {'b': 1, 'c': 2}, 'd': 3}
    """
    tree: dict[str, Any] = {}
    for name, value in flat.items():
        *path, last = name.split(".", MAX_DEPTH)
        place = tree
        for key in path:
            place = place.setdefault(key, {})
            if not isinstance(place, dict):
                raise FormatError(f"the name {name} goes through an array, {key}")
        if last in place:
            raise FormatError(f"the name {name} stands for an array and for a folder of them")
        place[last] = value
    return tree
