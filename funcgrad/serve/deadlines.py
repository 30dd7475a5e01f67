"""One timer for all that may take the same time, as one for each request costs like its JSON."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Deadlines(Generic[T]):
    """Things that are late `seconds` after they were added, unless they are removed before.

    late: called with each that is. All of it belongs to one event loop at a time.
    """

    def __init__(self, seconds: float, late: Callable[[T], None]):
        self.seconds, self._late = seconds, late
        self._ends: dict[T, float] = {}  # the first is the first to end
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_set = False

    def add(self, thing: T) -> None:
        """From now on its time runs, unless it does already."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._is_set = loop, False
            self._ends.clear()  # whoever waited on a loop that is no more
        end = self._ends.setdefault(thing, loop.time() + self.seconds)
        if not self._is_set:
            self._set(loop, end)

    def remove(self, thing: T) -> None:
        """It came in time, or is late already."""
        self._ends.pop(thing, None)

    def _set(self, loop: asyncio.AbstractEventLoop, end: float) -> None:
        loop.call_at(end, self._look, loop)
        self._is_set = True

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """Call what is late, and look again when the next one is."""
        self._is_set = False
        while self._ends:
            thing, end = next(iter(self._ends.items()))
            if end > loop.time():
                self._set(loop, end)
                return
            del self._ends[thing]
            self._late(thing)
