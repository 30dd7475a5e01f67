"""An exception on one rank ends all ranks: else the others would wait for it without end."""

from __future__ import annotations

import importlib
import sys
import traceback
from types import TracebackType

from funcgrad.parallel.meshes import launched


def install() -> None:
    """From now on an exception that nobody catches prints its traceback and ends the job.

    Only under an MPI launcher; elsewhere nothing changes.

    >>> install()
    """
    if launched() and sys.excepthook is sys.__excepthook__:
        sys.excepthook = end_job


def end_job(kind: type[BaseException], error: BaseException, place: TracebackType | None) -> None:
    """Print an exception with its rank, and end all ranks."""
    job = launched() or (0, 1)
    text = "".join(traceback.format_exception(kind, error, place))
    lines = "".join(f"rank {job[0]}: {line}\n" for line in text.splitlines())
    sys.stdout.flush()
    sys.stderr.write(lines)
    sys.stderr.flush()
    # It needs the compiler, which a program that doesn't fail may never load.
    importlib.import_module("funcgrad.parallel.communicators.mpi").abort(1)
