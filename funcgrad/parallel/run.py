"""Running a program on several ranks so that a failure on one ends all.

`mpiexec -n 4 python -m funcgrad.parallel.run prog.py args…` runs prog.py (or `-m module`) on each
rank. A traceback, or an exit with another status than 0, ends all ranks at once; so does a
collective that lasts longer than FUNCGRAD_COLLECTIVE_TIMEOUT.

`python -m funcgrad.parallel.run --supervise -n 4 [--min-ranks 2] [--restarts 10] prog.py args…`
starts mpiexec itself, and starts the job again when it fails (`funcgrad.parallel.supervise`).
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Sequence

from funcgrad.parallel.communicators import mpi
from funcgrad.parallel.launch.hooks import end_job
from funcgrad.parallel.meshes import launched
from funcgrad.parallel.supervise import supervise

USAGE = (
    "usage: mpiexec -n N python -m funcgrad.parallel.run (prog.py | -m module) [arguments]\n"
    "       python -m funcgrad.parallel.run --supervise -n N [--min-ranks M] [--restarts R] "
    "(prog.py | -m module) [arguments]"
)


def main(argv: Sequence[str]) -> int:
    """Run what the command line asks for; the exit status.

    >>> main([])
    usage: mpiexec -n N python -m funcgrad.parallel.run (prog.py | -m module) [arguments]
    ...
    2
    """
    if not argv or argv[0] in ("-h", "--help"):
        print(USAGE)
        return 0 if argv else 2
    if argv[0] == "--supervise":
        return supervise(argv[1:])
    if launched():
        # From here on the launcher ends all ranks when one is gone.
        mpi.world()
    try:
        run_program(argv)
    except SystemExit as stop:
        return ended_with(stop.code)
    except BaseException as error:
        if not launched():
            raise
        # Without the frames of this module and of runpy.
        place = error.__traceback__
        while place and place.tb_frame.f_code.co_filename in (__file__, "<frozen runpy>"):
            place = place.tb_next
        end_job(type(error), error, place)
    return 0


def run_program(argv: Sequence[str]) -> None:
    """Run a file, or the module after -m, as if Python had been started with it."""
    if argv[0] == "-m" and len(argv) > 1:
        sys.argv[:] = argv[1:]
        sys.path.insert(0, os.getcwd())
        runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
        return
    sys.argv[:] = argv
    sys.path.insert(0, os.path.dirname(os.path.abspath(argv[0])))
    runpy.run_path(argv[0], run_name="__main__")


def ended_with(code: object) -> int:
    """What a program's exit means for the job."""
    if code is None or code == 0:
        return 0
    status = code if isinstance(code, int) else 1
    job = launched()
    if not isinstance(code, int):
        print(code, file=sys.stderr)
    if job:
        print(f"funcgrad: rank {job[0]} exits with {code!r}", file=sys.stderr, flush=True)
        mpi.abort(status)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
