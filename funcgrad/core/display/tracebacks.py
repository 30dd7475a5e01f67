"""Tracebacks of users' errors without the library's own frames.

A traceback grows from the innermost frame outwards while an exception passes. Each function that
users call takes out what lies inside of the library when it passes there, so that what remains are
the user's lines. FUNCGRAD_TRACEBACK_FILTERING=off leaves all frames.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

from funcgrad.core.types import Tree
from funcgrad.errors import IRError

_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
_F = TypeVar("_F", bound=Callable)


def boundary(fun: _F) -> _F:
    """A function that users call: what it raises shows no frame of the library.

    >>> @boundary
    ... def add(x, y):
    ...     return x + y
    >>> add(1, 2)
    3
    """

    @functools.wraps(fun)
    def call(*args: Any, **kwargs: Any) -> Tree:
        try:
            return fun(*args, **kwargs)
        except Exception as e:
            hide_frames(e)
            raise  # adds no entry of this frame: it had one before the frames were taken out

    return call  # type: ignore[return-value]


def hide_frames(error: BaseException) -> None:
    """Take the library's frames out of an exception's traceback, unless it is the library's fault
    (IRError) or users want them."""
    if isinstance(error, IRError) or os.environ.get("FUNCGRAD_TRACEBACK_FILTERING") == "off":
        return
    kept, entry = [], error.__traceback__
    while entry is not None:
        if not entry.tb_frame.f_code.co_filename.startswith(_PACKAGE):
            kept.append(entry)
        entry = entry.tb_next
    shown = None
    for entry in reversed(kept):
        shown = TracebackType(shown, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    error.__traceback__ = shown
