"""One run: each case on each library, compared, then timed in bursts by turns."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.case import Case
from benchmarks.compare import difference
from benchmarks.worker import Worker, WorkerError

PROCESSES = {"cold": 3, "cached": 3, "memory": 1, "import": 5}  # new processes a case and library
REFERENCES = ("numpy", "jax", "torch", "compile", "funcgrad")  # the first that ran is right
CACHES = ("FUNCGRAD_CACHE_DIR", "JAX_COMPILATION_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")
# Python's own files are there in every process but the first.
BYTECODE = {"PYTHONDONTWRITEBYTECODE": ""}
CACHE_ALL = BYTECODE | {
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}
IMPORT = "import time; t = time.perf_counter(); import {}; print(time.perf_counter() - t)"


@dataclass(frozen=True)
class Settings:
    """How long and how often to measure. seconds: a case and library; timeout: to prepare one."""

    seconds: float = 2.0
    rounds: int = 5
    timeout: float = 300.0
    threads: int = 2
    size: str = "full"


@dataclass
class Outcome:
    """What was seen of a case: samples by library, or why there are none."""

    case: Case
    read: int = 0
    written: int = 0
    samples: dict[str, list[float]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    details: dict[str, str] = field(default_factory=dict)

    def fail(self, library: str, error: WorkerError) -> None:
        """Note a failure; the other libraries go on."""
        self.samples.pop(library, None)
        self.failures[library] = str(error)
        self.details[library] = error.details


class Runner:
    """Holds a worker a library for the length of a run; use it in a `with`."""

    def __init__(self, libraries: Sequence[str], settings: Settings):
        self._settings = settings
        self._workers = {name: Worker(name, settings.threads) for name in libraries}

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers.values():
            worker.stop()

    def measure(self, case: Case) -> Outcome:
        """Measure a case on all libraries that have a text for it."""
        outcome = Outcome(case)
        libraries = [name for name in self._workers if case.runs_on(name)]
        if case.measure == "call":
            self._calls(outcome, libraries)
        else:
            self._processes(outcome, libraries)
        return outcome

    # ---- calls

    def _calls(self, outcome: Outcome, libraries: list[str]) -> None:
        prepared = self._together(
            outcome, libraries, self._settings.timeout, "prepare", outcome.case.key
        )
        outcome.read = max((read for _, read, _ in prepared.values()), default=0)
        outcome.written = max((written for *_, written in prepared.values()), default=0)
        self._compare(outcome, {name: results for name, (results, *_) in prepared.items()})
        alive = [name for name in prepared if name not in outcome.failures]
        for name in alive:
            self._one(outcome, name, "calibrate")
        for turn in range(self._settings.rounds):
            alive = [name for name in alive if name not in outcome.failures]
            # Nobody always follows the same neighbour.
            order = alive[turn % len(alive) :] + alive[: turn % len(alive)] if alive else []
            for name in order:
                seconds = self._settings.seconds / self._settings.rounds
                times = self._one(outcome, name, "burst", seconds)
                if times is not None:
                    outcome.samples.setdefault(name, []).extend(times)

    def _together(
        self, outcome: Outcome, libraries: list[str], timeout: float, request: str, key: str
    ) -> dict[str, Any]:
        """Ask all at once: compilers mostly keep one core busy."""
        for name in libraries:
            self._workers[name].send(request, key, self._settings.size)
        answers = {}
        for name in libraries:
            try:
                answers[name] = self._workers[name].receive(timeout)
            except WorkerError as error:
                outcome.fail(name, error)
        return answers

    def _one(self, outcome: Outcome, library: str, request: str, *arguments: Any) -> Any:
        try:
            return self._workers[library].ask(self._settings.timeout, request, *arguments)
        except WorkerError as error:
            outcome.fail(library, error)
            return None

    def _compare(self, outcome: Outcome, results: dict[str, list]) -> None:
        case = outcome.case
        compared = [name for name in REFERENCES if name in results and name in case.compared]
        for name in compared[1:]:
            wrong = difference(results[name], results[compared[0]], case.tolerance)
            if wrong is not None:
                outcome.fail(name, WorkerError(f"disagrees with {compared[0]}: {wrong}"))

    # ---- new processes

    def _processes(self, outcome: Outcome, libraries: list[str]) -> None:
        with tempfile.TemporaryDirectory(prefix="benchmarks-") as filled:
            for turn in range(PROCESSES[outcome.case.measure]):
                for name in libraries:
                    if name in outcome.failures:
                        continue
                    try:
                        if turn == 0 and outcome.case.measure == "cached":
                            self._new_process(outcome.case, name, filled)
                        value = self._new_process(outcome.case, name, filled)
                        outcome.samples.setdefault(name, []).append(value)
                    except WorkerError as error:
                        outcome.fail(name, error)

    def _new_process(self, case: Case, library: str, filled: str) -> float:
        if case.measure == "import":
            return self._import(library)
        with tempfile.TemporaryDirectory(prefix="benchmarks-") as empty:
            folder = filled if case.measure == "cached" else empty
            caches = dict.fromkeys(CACHES, f"{folder}/{library}")
            worker = Worker(library, self._settings.threads, caches | CACHE_ALL)
            request = "peak" if case.measure == "memory" else "first_call"
            try:
                worker.ask(self._settings.timeout, "open")
                return worker.ask(self._settings.timeout, request, case.key, self._settings.size)
            finally:
                worker.stop()

    def _import(self, library: str) -> float:
        package = "torch" if library == "compile" else library
        environment = os.environ | BYTECODE
        try:
            done = subprocess.run(
                [sys.executable, "-c", IMPORT.format(package)],
                capture_output=True,
                text=True,
                check=True,
                timeout=self._settings.timeout,
                env=environment,
            )
        except subprocess.CalledProcessError as error:
            lines = error.stderr.strip().splitlines() or ["no message"]
            raise WorkerError(lines[-1], error.stderr) from None
        except subprocess.TimeoutExpired as error:
            raise WorkerError(f"took more than {error.timeout:.0f} s") from None
        return json.loads(done.stdout)
