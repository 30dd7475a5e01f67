"""The log: what became of each request, as a line of JSON or of words."""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

_numbers = itertools.count(1)


class Entry:
    """What is known of a request. Its id is the client's, or one of this process."""

    def __init__(self, method: str, path: str):
        self.method, self.path = method, path
        self.start = time.monotonic()
        self.id = f"{os.getpid()}-{next(_numbers)}"
        self.model = self.version = ""
        self._more: dict[str, Any] = {}

    def named(self, name: str) -> None:
        """Take the client's id, as far as it can stand in a header."""
        self.id = "".join(c for c in name if " " <= c <= "~") or self.id

    def ran(self, batch_size: int, queued: float, computed: float) -> None:
        """It ran in a batch, after and for so many seconds."""
        self._more = {
            "batch_size": batch_size, "queue_us": round(queued * 1e6),
            "compute_us": round(computed * 1e6),
        }  # fmt: skip

    def told(self, status: int) -> dict[str, Any]:
        """All of it, now that the answer is sent.

        >>> from funcgrad.serve.log import Entry
        >>> entry = Entry("GET", "/v2")
        >>> entry.named("mine")
        >>> {**entry.told(200), "total_us": 5}
        {'id': 'mine', 'method': 'GET', 'path': '/v2', 'status': 200, 'total_us': 5}
        """
        served = {"model": self.model, "version": self.version} if self.model else {}
        total = round((time.monotonic() - self.start) * 1e6)
        return {
            "id": self.id, "method": self.method, "path": self.path, **served, "status": status,
            **self._more, "total_us": total,
        }  # fmt: skip


def writer(kind: str) -> Callable[[dict[str, Any]], None] | None:
    """What writes entries to stderr: of the kind "json", "text" or "none"."""
    if kind == "none":
        return None

    def write(told: dict[str, Any]) -> None:
        told = {"time": round(time.time(), 6), **told}
        line = json.dumps(told) if kind == "json" else " ".join(f"{k}={v}" for k, v in told.items())
        # A path may hold anything: no entry spans lines.
        sys.stderr.write(line.replace("\r", "\\r").replace("\n", "\\n") + "\n")

    return write
