"""Several processes that serve the same models from one listening socket.

A supervisor reads the models and forks the workers, so that weights lie in memory once; nobody but
the workers compiles. It replaces those that die. A new model is read by all before any serves it,
each in place, so that no connection is lost. As the supervisor holds the socket, clients wait, at
most, for a worker. Workers tell it what they count, every second; it has the sums.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

from funcgrad.errors import FuncgradError
from funcgrad.serve.metrics import Metrics
from funcgrad.serve.models import Repository, Served
from funcgrad.serve.protocol import RequestError

PATIENCE = 300.0  # seconds for a worker to read a model
COUNTED = 1.0  # seconds between two times that a worker tells what it counted
SUMMED = 10.0  # seconds to wait for the sums, while the supervisor reads a model, say
LONGEST = 1 << 26  # bytes of a line that a worker reads: sums of many models are long
MOST_DEATHS = 3  # of workers, one after the other, before any of them served


class Channel:
    """Lines of JSON between two processes."""

    def __init__(self, end: socket.socket):
        self.end, self._rest = end, b""

    def send(self, **told: Any) -> None:
        """Say something; it is lost if the other process has gone, which reading shows."""
        with contextlib.suppress(OSError):
            self.end.sendall(json.dumps(told).encode() + b"\n")

    def receive(self, timeout: float) -> dict[str, Any] | None:
        """What comes next; None where the other process has gone, or says nothing in time."""
        self.end.settimeout(timeout)
        while b"\n" not in self._rest:
            try:
                part = self.end.recv(65536)
            except OSError:
                part = b""
            if not part:
                return None
            self._rest += part
        line, self._rest = self._rest.split(b"\n", 1)
        return json.loads(line)

    @property
    def has_more(self) -> bool:
        """Whether a line is there already."""
        return b"\n" in self._rest


class Worker:
    """What a worker knows of its supervisor. It belongs to the worker's event loop."""

    def __init__(self, end: socket.socket, models: Repository, metrics: Metrics | None = None):
        self.models = models
        self.metrics = metrics or Metrics()
        self._end = end
        self._prepared: Served | None = None
        self._answers: asyncio.Queue[dict] = asyncio.Queue()
        self._sums: list[asyncio.Future[dict]] = []
        self._one = asyncio.Lock()
        self._writer: asyncio.StreamWriter | None = None

    async def run(self, is_ready: Callable[[], bool]) -> None:
        """Tell that the worker serves, then do what the supervisor says until it has gone."""
        reader, self._writer = await asyncio.open_connection(sock=self._end, limit=LONGEST)
        while not is_ready():
            await asyncio.sleep(0.01)
        self._say(ready=True)
        counting = asyncio.create_task(self._count())
        while line := await reader.readline():
            told = json.loads(line)
            if "prepare" in told:
                self._say(prepared=await self._prepare(told["prepare"]))
            elif "commit" in told:
                if self._prepared is not None:
                    self.models.put(self._prepared)
            elif "sums" in told:
                asked = self._sums.pop(0)
                if not asked.done():
                    asked.set_result(told["sums"])
            else:
                self._answers.put_nowait(told)
        counting.cancel()
        os.kill(os.getpid(), signal.SIGTERM)

    async def reload(self, name: str) -> None:
        """Let all workers read a model again. Raises what `Repository.reload` does."""
        self.models.path_of(name)
        async with self._one:
            self._say(load=name)
            error = (await self._answers.get())["loaded"]
        if error is not None:
            raise FuncgradError(error)

    async def totals(self) -> str:
        """What all workers counted, as `Metrics.text` says it; the others' a second ago."""
        asked = asyncio.get_running_loop().create_future()
        self._sums.append(asked)
        self._say(counted=self.metrics.state(), sum=True)
        try:
            async with asyncio.timeout(SUMMED):
                found = await asked
        except TimeoutError:
            raise RequestError("the supervisor is busy", 503, "busy") from None
        summed = Metrics()
        summed.include(found)
        return summed.text()

    async def _count(self) -> None:
        while True:
            self._say(counted=self.metrics.state())
            await asyncio.sleep(COUNTED)

    async def _prepare(self, name: str) -> str | None:
        loop = asyncio.get_running_loop()
        try:
            self._prepared = await loop.run_in_executor(None, self.models.read_again, name)
        except Exception as e:
            self._prepared = None
            return str(e)
        return None

    def _say(self, **told: Any) -> None:
        if self._writer is not None:
            self._writer.write(json.dumps(told).encode() + b"\n")


class Supervisor:
    """Keeps `count` workers alive, each of which runs `work` on the models and its channel's end.

    models: read, but not compiled; grace: seconds that workers may take to end
    """

    def __init__(
        self, models: Repository, work: Callable[[Repository, socket.socket], None], count: int,
        grace: float = 30.0,
    ):  # fmt: skip
        self.models, self.work, self.count, self.grace = models, work, count, grace
        self.workers: dict[int, Channel] = {}
        self._counted: dict[int, dict[str, list]] = {}
        self._gone = Metrics()  # what workers counted that have died
        self._loads: list[tuple[int, str]] = []
        self._deaths = 0
        self._ends = False

    def run(self) -> int:
        """Until the process is told to end; its exit status."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._end)
        while not self._ends and self._deaths < MOST_DEATHS:
            while len(self.workers) < self.count:
                self._start()
            self._listen(0.2)
            while self._loads and not self._ends:
                self._load(*self._loads.pop(0))
        self._stop()
        return 0 if self._ends else 1

    def _end(self, *_: Any) -> None:
        self._ends = True

    def _start(self) -> None:
        mine, theirs = socket.socketpair()
        sys.stdout.flush()
        sys.stderr.flush()
        child = os.fork()
        if child:
            theirs.close()
            self.workers[child] = Channel(mine)
            return
        status = 1
        try:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            for end in (mine, *(c.end for c in self.workers.values())):
                end.close()
            self.work(self.models, theirs)
            status = 0
        except Exception as e:
            print(f"a worker failed: {type(e).__name__}: {e}", file=sys.stderr, flush=True)
        finally:
            os._exit(status)

    def _listen(self, timeout: float) -> None:
        ready = [c.end for c in self.workers.values() if c.has_more]
        if not ready:
            ready = select.select([c.end for c in self.workers.values()], [], [], timeout)[0]
        for child, channel in list(self.workers.items()):
            if channel.end in ready:
                self._hear(child, channel.receive(PATIENCE))

    def _hear(self, child: int, told: dict[str, Any] | None) -> None:
        if told is None:
            self.workers.pop(child).end.close()
            last = Metrics()
            last.include(self._counted.pop(child, last.state()))
            self._gone.include(last.state(gauges=False))
            os.kill(child, signal.SIGKILL)  # it may only be stuck
            os.waitpid(child, 0)
            self._deaths += 1
        elif "load" in told:
            self._loads.append((child, told["load"]))
        elif "ready" in told:
            self._deaths = 0
        elif "counted" in told:
            self._counted[child] = told["counted"]
            if told.get("sum"):
                self.workers[child].send(sums=self._sums())

    def _sums(self) -> dict[str, list]:
        total = Metrics()
        for state in (self._gone.state(), *self._counted.values()):
            total.include(state)
        return total.state()

    def _load(self, asker: int, name: str) -> None:
        """All read a model; if all can, all serve it. Whoever dies meanwhile is replaced later."""
        try:
            model: Served = self.models.read_again(name)
            error = self._prepared(name)
        except Exception as e:
            error = str(e)
        if error is None:
            self.models.put(model)
            for channel in self.workers.values():
                channel.send(commit=name)
        if asker in self.workers:
            self.workers[asker].send(loaded=error)

    def _prepared(self, name: str) -> str | None:
        """What kept a worker from reading a model, None where nothing did."""
        errors: list[str] = []
        for channel in self.workers.values():
            channel.send(prepare=name)
        for child, channel in list(self.workers.items()):
            while True:
                told = channel.receive(PATIENCE)
                if told is not None and "prepared" in told:
                    errors += [told["prepared"]] if told["prepared"] else []
                    break
                self._hear(child, told)
                if told is None:
                    break
        return errors[0] if errors else None

    def _stop(self) -> None:
        for child in self.workers:
            os.kill(child, signal.SIGTERM)
        end = time.monotonic() + self.grace
        for child in self.workers:
            while os.waitpid(child, os.WNOHANG)[0] == 0:
                if time.monotonic() > end:
                    os.kill(child, signal.SIGKILL)
                    os.waitpid(child, 0)
                    break
                time.sleep(0.02)
