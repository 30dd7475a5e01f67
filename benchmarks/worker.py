"""A process a library: it prepares cases and runs bursts when asked, and may crash alone."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import cases, timing
from benchmarks.case import leaves
from benchmarks.compare import sample
from benchmarks.libraries import open_library, to_numpy

STATE_CALLS = 3  # steps whose results are compared
THREAD_VARIABLES = (
    "FUNCGRAD_NUM_THREADS",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "PJRT_NPROC",
    "NPROC",
)


class WorkerError(Exception):
    """A worker couldn't do what it was asked: the reason in a line, and where it arose."""

    def __init__(self, reason: str, details: str = ""):
        super().__init__(reason)
        self.details = details


class Worker:
    """A library in a process of its own, as its owner sees it.

    environment: variables that the process starts with, beside those that set the threads.
    """

    def __init__(self, library: str, threads: int, environment: dict[str, str] | None = None):
        self.library = library
        self._threads = threads
        self._environment = environment or {}
        self._process: Any = None
        self._connection: Any = None

    def send(self, request: str, *arguments: Any) -> None:
        """Ask for something; `receive` gives the answer."""
        if self._process is None:
            self._start()
        with contextlib.suppress(OSError):  # a dead process shows when its answer is missing
            self._connection.send((request, arguments))

    def receive(self, timeout: float) -> Any:
        """The answer. WorkerError if there is none in time, or a failure instead."""
        if not self._connection.poll(timeout):
            self.stop(patience=0.0)
            raise WorkerError(f"took more than {timeout:.0f} s")
        try:
            reason, details, value = self._connection.recv()
        except (EOFError, ConnectionError):
            self._process.join()
            code = self._process.exitcode
            self.stop()
            how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            raise WorkerError(f"the process ended: {how}") from None
        if reason is not None:
            raise WorkerError(reason, details)
        return value

    def ask(self, timeout: float, request: str, *arguments: Any) -> Any:
        """Ask, and wait for the answer."""
        self.send(request, *arguments)
        return self.receive(timeout)

    def stop(self, patience: float = 10.0) -> None:
        """End the process, which has some seconds to clean up; the next request starts another."""
        if self._process is not None:
            self._connection.close()
            self._process.join(patience)
            self._process.kill()
            self._process.join()
            self._process = None

    def _start(self) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._connection, theirs = spawn.Pipe()
        with _environment(self._environment | dict.fromkeys(THREAD_VARIABLES, str(self._threads))):
            self._process = spawn.Process(
                target=serve, args=(theirs, self.library, self._threads), daemon=True
            )
            self._process.start()
        theirs.close()


@contextlib.contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def serve(connection: Connection, library: str, threads: int) -> None:
    """The worker's side: answer requests until there are no more."""
    if hasattr(os, "sched_setaffinity"):
        # Some libraries take as many threads as there are processors.
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    sys.dont_write_bytecode = False  # or a source tree would be slow to import, beside wheels
    bench = Bench(library, threads)
    while True:
        try:
            request, arguments = connection.recv()
        except (EOFError, KeyboardInterrupt):
            return
        answer: tuple[str | None, str, Any]
        try:
            answer = None, "", getattr(bench, request)(*arguments)
        except Exception as error:
            lines = [line for line in str(error).splitlines() if line.strip()] or [""]
            answer = f"{type(error).__name__}: {lines[0][:300]}", traceback.format_exc(), None
        connection.send(answer)


class Bench:
    """What a worker can be asked for."""

    def __init__(self, library: str, threads: int):
        self._name = library
        self._threads = threads
        self._library: Any = None
        self._run: Callable[[], Any] = lambda: None
        self._count = 1

    def open(self) -> None:
        """Import the library."""
        if self._library is None:
            self._library = open_library(self._name, self._threads)

    def prepare(self, key: str, size: str) -> tuple[list[np.ndarray], int, int]:
        """Compile a case and run it: samples of its results, and the bytes it must
        read and write."""
        self.open()
        self._run = lambda: None  # lets go of the last case
        gc.collect()
        case = cases.find(key, size)
        values = case.inputs(np.random.default_rng(0))
        call = self._library.call(case, self._library.inputs(case, values))
        results = [[to_numpy(x) for x in leaves(call())] for _ in range(_first_calls(case))]
        self._run = self._library.timed(case, call)
        read = case.reads or sum(x.nbytes for x in leaves(values) if isinstance(x, np.ndarray))
        written = sum(x.nbytes for x in results[0])
        written += sum(x.nbytes for x in leaves(values[0])) if case.state else 0
        return sample([x for part in results for x in part]), int(read), written

    def calibrate(self) -> int:
        """Find how many calls to time at once."""
        self._count = timing.calls_a_sample(self._run)
        return self._count

    def burst(self, seconds: float) -> list[float]:
        """Times of the prepared case, for a while."""
        gc.collect()
        return timing.burst(self._run, seconds, self._count)

    def first_call(self, key: str, size: str) -> float:
        """Seconds of a case's first call, tracing and compilation included."""
        self.open()
        case = cases.find(key, size)
        values = self._library.inputs(case, case.inputs(np.random.default_rng(0)))
        start = time.perf_counter()
        self._library.timed(case, self._library.call(case, values))()
        return time.perf_counter() - start

    def peak(self, key: str, size: str) -> int:
        """The most bytes that this process held at once, with a few calls of the case."""
        self.open()
        case = cases.find(key, size)
        values = self._library.inputs(case, case.inputs(np.random.default_rng(0)))
        call = self._library.timed(case, self._library.call(case, values))
        for _ in range(STATE_CALLS):
            call()
        return peak_memory()


def _first_calls(case: Any) -> int:
    return STATE_CALLS if case.state else 1


def peak_memory() -> int:
    """The most bytes of memory that this process held at once."""
    status = Path("/proc/self/status")
    if status.exists():  # what getrusage says there includes the parent's memory at the fork
        lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
        return int(lines["VmHWM"].split()[0]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak * (1 if sys.platform == "darwin" else 1024)
