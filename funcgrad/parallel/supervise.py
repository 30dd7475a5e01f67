"""A supervisor: starts a job under mpiexec, and starts it again when it fails.

A program that saves checkpoints and begins with the latest one so survives the loss of a rank.
It finds the number of the attempt, from 0, in FUNCGRAD_ATTEMPT. What a killed attempt has left in
/dev/shm is removed (`leftovers`).
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from funcgrad.parallel.launch import leftovers

# A job that fails sooner than this is not started again before so many seconds have passed.
PAUSE = 1.0


def mpiexec() -> str:
    """The path of mpiexec: beside this Python, or on PATH. FileNotFoundError if there is none."""
    search = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    found = shutil.which("mpiexec", path=search)
    if found is None:
        raise FileNotFoundError(
            "no mpiexec beside this Python or on PATH: pip install 'funcgrad[mpi]'"
        )
    return found


def ranks_of(attempt: int, most: int, least: int) -> int:
    """How many ranks an attempt has: after each failure the next divisor of `most` below, so that
    meshes can be cut alike, but no fewer than `least`.

    >>> [ranks_of(i, 8, 2) for i in range(5)]
    [8, 4, 2, 2, 2]
    """
    divisors = [n for n in range(most, 0, -1) if most % n == 0 and n >= least]
    return divisors[min(attempt, len(divisors) - 1)]


def supervise(argv: Sequence[str]) -> int:
    """Run a job until it succeeds or has been restarted often enough; its exit status.

    argv: -n N [--min-ranks M] [--restarts R] prog.py arguments…
    """
    options = _parser().parse_args(argv)
    least = options.n if options.min_ranks is None else options.min_ranks
    if not 1 <= least <= options.n:
        raise SystemExit(f"--min-ranks must be between 1 and {options.n}, got {least}")
    for attempt in range(options.restarts + 1):
        n = ranks_of(attempt, options.n, least)
        started = time.monotonic()
        status = _run(n, attempt, options.program)
        if status == 0 or status == -signal.SIGINT:
            return abs(status)
        if attempt < options.restarts:
            print(
                f"funcgrad: attempt {attempt} on {n} ranks ended with status {status}; restarting "
                f"on {ranks_of(attempt + 1, options.n, least)}",
                file=sys.stderr, flush=True,
            )  # fmt: skip
            time.sleep(max(0.0, PAUSE - (time.monotonic() - started)))
    return status if status > 0 else 128 - status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m funcgrad.parallel.run --supervise")
    parser.add_argument("-n", type=int, required=True, metavar="N", help="the number of ranks")
    parser.add_argument(
        "--min-ranks", type=int, metavar="M",
        help="after a failure go on with fewer ranks, divisors of N, but no fewer than M",
    )  # fmt: skip
    parser.add_argument("--restarts", type=int, default=10, metavar="R", help="10 by default")
    parser.add_argument("program", nargs=argparse.REMAINDER, help="prog.py or -m module, arguments")
    return parser


def _run(n: int, attempt: int, program: Sequence[str]) -> int:
    if not program:
        raise SystemExit("--supervise: name a program to run")
    command = [mpiexec(), "-n", str(n), sys.executable, "-m", "funcgrad.parallel.run", *program]
    names, older = leftovers.names(), leftovers.processes()
    process = subprocess.Popen(command, env={**os.environ, "FUNCGRAD_ATTEMPT": str(attempt)})

    def forward(number: int, frame: object) -> None:
        process.send_signal(number)
        raise SystemExit(128 + number)

    before = {s: signal.signal(s, forward) for s in (signal.SIGTERM, signal.SIGHUP)}
    try:
        return process.wait()
    except KeyboardInterrupt:
        process.wait()
        return -signal.SIGINT
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if process.wait() != 0:
            leftovers.sweep(names, older)
