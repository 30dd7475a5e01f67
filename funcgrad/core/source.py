"""Where in the user's code an operation stands: the line errors and printed programs name."""

from __future__ import annotations

import inspect
import linecache
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import CodeType, FrameType
from typing import NamedTuple

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


class Source(NamedTuple):
    """A place in a program: cheap to take at each op, resolved to a line only when shown."""

    code: CodeType
    instruction: int

    @property
    def file(self) -> str:
        """The path of the file, or what stands for it ("<stdin>", a cell of a notebook)."""
        return self.code.co_filename

    @property
    def line(self) -> int:
        """The number of the line, from 1 on."""
        for start, end, line in self.code.co_lines():
            if line is not None and start <= self.instruction < end:
                return line
        return self.code.co_firstlineno

    @property
    def text(self) -> str:
        """The line of code itself, stripped; empty where the source is unknown."""
        return linecache.getline(self.file, self.line).strip()

    def __str__(self) -> str:
        # A notebook's cells are files of random names; the line's text tells which cell it is.
        in_cell = os.path.basename(os.path.dirname(self.file)).startswith("ipykernel_")
        place = f"line {self.line} of a cell" if in_cell else f"{self.file}:{self.line}"
        return f"{place} ({self.code.co_name})"

    def __deepcopy__(self, memo: dict) -> Source:
        return self


# The place of the equation that is being evaluated or transposed.
_place: ContextVar[Source | None] = ContextVar("funcgrad_place", default=None)
placed = _place.get
set_place = _place.set


def current() -> Source | None:
    """The place of the operation that is performed: where its equation was traced, or else where
    the user's program stands."""
    return _place.get() or here()


@contextmanager
def unplaced() -> Iterator[None]:
    """Run a block of the user's own code, within the evaluation of an equation or not."""
    before = placed()
    try:
        set_place(None)
        yield
    finally:
        set_place(before)


def user_frame() -> FrameType | None:
    """The innermost frame outside this package."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if file not in _inside and not _is_inside(file):
            return frame
        frame = frame.f_back
    return None


def called_within(*layers: str) -> bool:
    """Whether this package calls what runs, from another of its layers than these."""
    below = tuple(_PACKAGE + layer + os.sep for layer in layers)
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(below):
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename.startswith(_PACKAGE)


def is_argument(value: object) -> bool:
    """Whether the user's code called this package with this very object, or in a list or a tuple.

    >>> is_argument(1)
    False
    """
    frame: FrameType | None = sys._getframe(1)
    called = None
    while frame is not None and _is_inside(frame.f_code.co_filename):
        called, frame = frame, frame.f_back
    if called is None or frame is None:
        return False
    code = called.f_code
    n = code.co_argcount + code.co_kwonlyargcount
    n += sum(bool(code.co_flags & flag) for flag in (inspect.CO_VARARGS, inspect.CO_VARKEYWORDS))
    scope = called.f_locals
    given = [scope[name] for name in code.co_varnames[:n] if name in scope]
    return any(_path_to(value, x, "argument") is not None for x in given)


_inside: set[str] = set()  # the files of this package, as far as they were met


def _is_inside(file: str) -> bool:
    inside = file.startswith(_PACKAGE)
    if inside:
        _inside.add(file)
    return inside


def here() -> Source | None:
    """The user's current place in the program."""
    frame = user_frame()
    return None if frame is None else Source(frame.f_code, frame.f_lasti)


def variable_holding(value: object) -> str | None:
    """The name under which the user's frames hold `value`: a variable, an element, an attribute."""
    frame = user_frame()
    while frame is not None:
        for scope in (frame.f_locals, frame.f_globals):
            for name, held in list(scope.items()):
                # Test runners and debuggers keep values under names that aren't the user's.
                found = _path_to(value, held, name) if name.isidentifier() else None
                if found is not None:
                    return found
        frame = frame.f_back
        if frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
            frame = None
    return None


def _path_to(value: object, held: object, name: str) -> str | None:
    if held is value:
        return name
    if isinstance(held, list | tuple):
        return next((f"{name}[{i}]" for i, x in enumerate(held[:1000]) if x is value), None)
    if isinstance(held, dict):
        items = list(held.items())[:1000]
        return next((f"{name}[{k!r}]" for k, x in items if x is value), None)
    attributes = getattr(held, "__dict__", None)
    if isinstance(attributes, dict) and not isinstance(held, type):
        return next((f"{name}.{k}" for k, x in list(attributes.items()) if x is value), None)
    return None
