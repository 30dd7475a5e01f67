"""A rank's failure ends all ranks: else the others would wait for it without end.

So that no rank can fail unnoticed, ranks join each other, and watch, from the import on.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from types import TracebackType
from typing import Any

from funcgrad.parallel.communicators import mpi
from funcgrad.parallel.meshes import launched

# The number of the process that is the rank: those that it starts inherit its environment, and are
# none.
_PROCESS = "FUNCGRAD_RANK_PROCESS"


def install() -> None:
    """Join the other ranks. From now on an exception that nobody catches, on any thread, prints its
    traceback and ends the job.

    Only under an MPI launcher; elsewhere nothing changes.

    >>> install()
    """
    if not launched() or not _is_rank() or sys.excepthook is _uncaught:
        return
    _before[:] = sys.excepthook, threading.excepthook
    sys.excepthook, threading.excepthook = _uncaught, _uncaught_on_thread
    mpi.start()


def _is_rank() -> bool:
    process = str(os.getpid())
    return os.environ.setdefault(_PROCESS, process) == process


# What was done about exceptions before, of the main thread and of others.
_before: list[Any] = [sys.__excepthook__, threading.__excepthook__]


def _uncaught(kind: type[BaseException], error: BaseException, place: TracebackType | None) -> None:
    spared = _spared()
    try:
        if spared or _before[0] is not sys.__excepthook__:
            _before[0](kind, error, place)
    finally:
        if not spared:
            end_job(kind, error, place)


def _uncaught_on_thread(args: Any) -> None:
    spared = _spared() or args.exc_type is SystemExit
    try:
        if spared or _before[1] is not threading.__excepthook__:
            _before[1](args)
    finally:
        if not spared:
            end_job(args.exc_type, args.exc_value, args.exc_traceback)


def _spared() -> bool:
    """Whether an exception ends nothing: who types goes on, and a forked child is no rank."""
    return hasattr(sys, "ps1") or bool(sys.flags.interactive) or not _is_rank()


def end_job(kind: type[BaseException], error: BaseException, place: TracebackType | None) -> None:
    """Print an exception with its rank, and end all ranks."""
    job = launched() or (0, 1)
    try:
        text = "".join(traceback.format_exception(kind, error, place))
        lines = "".join(f"rank {job[0]}: {line}\n" for line in text.splitlines())
        sys.stdout.flush()
        sys.stderr.write(lines)
        sys.stderr.flush()
    finally:
        mpi.abort(1)
