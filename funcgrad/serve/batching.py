"""Requests that wait together run together.

A model's requests stand in one queue, in the order of their priority. When the model is free it
takes what waits, up to the largest batch; a delay lets it wait a little for more. What doesn't fit
in the queue is refused at once, so that a flood is no delay for those that are served.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from funcgrad.serve.deadlines import Deadlines
from funcgrad.serve.limits import check_count, check_seconds
from funcgrad.serve.log import Entry
from funcgrad.serve.metrics import Metrics
from funcgrad.serve.models import ANY, Model
from funcgrad.serve.protocol import RequestError

# Seconds. What takes less runs between two turns of the loop: a thread has to wait for Python's
# lock, there and back, while the loop is busy.
QUICK = 0.001
# Seconds that a quick model's batch takes at most, with its waiting for Python's lock.
HELD_UP = 0.02
# Seconds after which it is asked whether a client is still there: it takes a task to ask.
UNSEEN = 0.05

Receive = Callable[[], Awaitable[dict]]


@dataclass(frozen=True)
class Batching:
    """How requests are put together.

    max_batch_size: elements of the first axis that run together (a larger request runs alone)
    max_delay: seconds that a free model may wait for a full batch
    max_queue: requests that may wait
    timeout: seconds after which a request that still waits is given up

    Raises ArgumentError where these are no numbers of elements, requests or seconds.

    >>> from funcgrad.serve import Batching
    >>> Batching(max_batch_size=8).max_delay
    0.0
    """

    max_batch_size: int = 32
    max_delay: float = 0.0
    max_queue: int = 256
    timeout: float = 30.0

    def __post_init__(self) -> None:
        check_count("Batching", "max_batch_size", self.max_batch_size)
        check_count("Batching", "max_queue", self.max_queue)
        check_seconds("Batching", "max_delay", self.max_delay, zero=True)
        check_seconds("Batching", "timeout", self.timeout)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of batches that models are compiled for: powers of two."""
        return tuple(1 << i for i in range((self.max_batch_size - 1).bit_length() + 1))


class _Waiting:
    def __init__(
        self, values: Sequence[np.ndarray], size: int, result: asyncio.Future,
        entry: Entry | None, receive: Receive | None,
    ):  # fmt: skip
        self.values, self.size, self.result, self.entry = values, size, result, entry
        self.since = time.monotonic()
        self._receive = receive
        self._watch: asyncio.Task | None = None

    def fail(self, what: str, status: int, reason: str) -> None:
        """Answer that it failed, unless it has an answer."""
        if not self.result.done():
            self.result.set_exception(RequestError(what, status, reason))

    def watch(self) -> None:
        """From now on, fail when the client goes."""
        if self._receive is not None:
            self._watch = asyncio.create_task(self._until_gone(self._receive))

    async def _until_gone(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.fail("the client has gone", 499, "cancelled")

    def end(self) -> None:
        """Nobody waits for it any more: it is dropped from the queue."""
        self.result.cancel()
        if self._watch is not None:
            self._watch.cancel()


class Batcher:
    """The queue of one model, and what empties it. It belongs to one event loop."""

    def __init__(self, model: Model, how: Batching, metrics: Metrics, pool: ThreadPoolExecutor):
        self.model, self.how, self.metrics, self.pool = model, how, metrics, pool
        self._queue: list[tuple[int, int, _Waiting]] = []
        self._numbers = itertools.count()
        self._more = asyncio.Event()
        self._labels = {"model": model.name, "version": model.version}
        self._worker: asyncio.Task | None = None
        self._took = QUICK  # seconds, of the last batches
        self._is_ragged = any(ANY in s.shape[1:] for s in model.inputs)
        self._unseen = Deadlines(min(UNSEEN, how.timeout), self._slow)
        self._unanswered = Deadlines(how.timeout - self._unseen.seconds, self._late)

    async def infer(
        self, values: Sequence[np.ndarray], priority: int = 0, entry: Entry | None = None,
        receive: Receive | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """The results for a request's inputs; lower priorities go first. The entry of the log is
        told what became of it; `receive` says when the client has gone."""
        if len(self._queue) >= self.how.max_queue:
            raise RequestError(
                f"the queue of {self.model.name} is full with {self.how.max_queue} requests",
                503, "queue_full",
            )  # fmt: skip
        loop = asyncio.get_running_loop()
        size = values[0].shape[0] if self.model.is_batched else 1
        waiting = _Waiting(values, size, loop.create_future(), entry, receive)
        heapq.heappush(self._queue, (priority, next(self._numbers), waiting))
        self.metrics.set("inference_pending", len(self._queue), **self._labels)
        if self._worker is None or self._worker.done():
            self._worker = loop.create_task(self._work())
        self._more.set()
        self._unseen.add(waiting)
        try:
            return await waiting.result
        finally:
            self._unseen.remove(waiting)
            self._unanswered.remove(waiting)
            waiting.end()

    def _slow(self, waiting: _Waiting) -> None:
        waiting.watch()
        self._unanswered.add(waiting)

    def _late(self, waiting: _Waiting) -> None:
        what = f"{self.model.name} didn't answer within {self.how.timeout} s"
        waiting.fail(what, 503, "timeout")

    async def _work(self) -> None:
        """Run batches until nothing waits."""
        while self._queue:
            await self._gathered()
            batch = self._batch()
            if batch:
                await self._run(batch)

    async def _gathered(self) -> None:
        """Wait until a batch is full, or has waited long enough."""
        if not self.model.is_batched or self.how.max_delay <= 0:
            # What arrives in this turn of the loop belongs to the batch, too.
            await asyncio.sleep(0)
            return
        # From when the model is free: those who were just answered ask again. Whoever they would
        # have joined too late, and so the last of them, would wait for a third batch.
        end = time.monotonic() + self.how.max_delay
        while sum(w.size for _, _, w in self._queue) < self.how.max_batch_size:
            left = end - time.monotonic()
            if left <= 0:
                return
            self._more.clear()
            try:
                await asyncio.wait_for(self._more.wait(), left)
            except TimeoutError:
                return

    def _batch(self) -> list[_Waiting]:
        """The next requests that run together, without those that nobody waits for."""
        batch: list[_Waiting] = []
        total = 0
        while self._queue:
            waiting = self._queue[0][2]
            if not waiting.result.done():
                full = total + waiting.size > self.how.max_batch_size
                alike = not batch or not self._is_ragged or _fit(batch[0], waiting)
                if batch and (full or not alike or not self.model.is_batched):
                    break
                batch.append(waiting)
                total += waiting.size
            heapq.heappop(self._queue)
        self.metrics.set("inference_pending", len(self._queue), **self._labels)
        return batch

    async def _run(self, batch: list[_Waiting]) -> None:
        start = time.monotonic()
        for waiting in batch:
            self.metrics.observe("queue_seconds", start - waiting.since, **self._labels)
        try:
            if self._took < QUICK:
                outs, computed = timed(self.model, batch)
            else:
                loop = asyncio.get_running_loop()
                outs, computed = await loop.run_in_executor(self.pool, timed, self.model, batch)
        except Exception as e:
            for waiting in batch:
                waiting.fail(f"{self.model.name} failed: {e}", 500, "model")
            return
        # One batch that was interrupted makes no slow model.
        self._took = min(computed, 2 * self._took)
        took = time.monotonic() - start
        self.metrics.observe("compute_seconds", took, **self._labels)
        total = sum(w.size for w in batch)
        for waiting in batch:
            if waiting.entry is not None:
                waiting.entry.ran(total, start - waiting.since, took)
        self.metrics.add("inference_exec_count", 1, **self._labels)
        self.metrics.add("inference_count", total, **self._labels)
        for waiting, out in zip(batch, outs, strict=True):
            if not waiting.result.done():
                waiting.result.set_result(out)


def _fit(a: _Waiting, b: _Waiting) -> bool:
    """Whether requests have the same types but for the first axis."""
    return all(x.shape[1:] == y.shape[1:] for x, y in zip(a.values, b.values, strict=True))


def timed(model: Model, batch: Sequence[_Waiting]) -> tuple[list[dict[str, np.ndarray]], float]:
    """The results of `together`, and its seconds: those that its thread computed, as waiting for
    Python's lock says nothing of the model; but all, where that was more than such a wait."""
    start, began = time.monotonic(), time.thread_time()
    outs = together(model, batch)
    computed, took = time.thread_time() - began, time.monotonic() - start
    return outs, computed if took < HELD_UP else took


def together(model: Model, batch: Sequence[_Waiting]) -> list[dict[str, np.ndarray]]:
    """The results of each request of a batch. Batches are filled up to a power of two, so that the
    model is compiled for few sizes."""
    if not model.is_batched:
        return [model.run(w.values) for w in batch]
    total = sum(w.size for w in batch)
    size = 1 << max(total - 1, 0).bit_length()
    columns = []
    for i in range(len(model.inputs)):
        parts = [w.values[i] for w in batch]
        if size > total:
            shape = (size - total, *parts[0].shape[1:])
            parts.append(np.zeros(shape, parts[0].dtype))
        columns.append(np.concatenate(parts) if len(parts) > 1 else parts[0])
    outs = model.run(columns)
    found, at = [], 0
    for w in batch:
        found.append({name: x[at : at + w.size] for name, x in outs.items()})
        at += w.size
    return found
