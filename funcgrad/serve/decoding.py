"""Sequences that are generated side by side: they join and leave between two steps.

A prompt takes one call, between two steps, where the model has one for it; else it goes through the
same steps as what follows it, a token at a time, and its logits are dropped. Either way what
happens to a slot is a function of its own sequence.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from funcgrad.core.types import Tree
from funcgrad.serve.batching import Batching
from funcgrad.serve.generation import Generator, Options
from funcgrad.serve.metrics import Metrics
from funcgrad.serve.protocol import RequestError


class _Sequence:
    """A prompt, what is asked for, and where its tokens go, or None behind the last."""

    def __init__(self, prompt: Sequence[int], options: Options):
        self.prompt, self.options = prompt, options
        self.out: asyncio.Queue[int | RequestError | None] = asyncio.Queue()
        self.since = time.monotonic()
        self.is_gone = False
        self.position, self.made, self.last = 0, 0, prompt[0]


class Decoder:
    """The slots of one generator, and what waits for them. It belongs to one event loop."""

    def __init__(self, model: Generator, how: Batching, metrics: Metrics, pool: ThreadPoolExecutor):
        self.model, self.how, self.metrics, self.pool = model, how, metrics, pool
        self.slots: list[_Sequence | None] = [None] * model.slots
        self._queue: list[tuple[int, int, _Sequence]] = []
        self._numbers = itertools.count()
        self._labels = {"model": model.name, "version": model.version}
        self._worker: asyncio.Task | None = None

    async def generate(
        self, prompt: Sequence[int], options: Options, priority: int = 0
    ) -> AsyncGenerator[int, None]:
        """The tokens that follow a prompt. Closing it frees its slot."""
        self._queue = sorted(w for w in self._queue if not w[2].is_gone)  # still a heap
        if len(self._queue) >= self.how.max_queue:
            raise RequestError(
                f"the queue of {self.model.name} is full with {self.how.max_queue} requests",
                503, "queue_full",
            )  # fmt: skip
        sequence = _Sequence(prompt, options)
        heapq.heappush(self._queue, (priority, next(self._numbers), sequence))
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        try:
            while (token := await self._next(sequence)) is not None:
                yield token
        finally:
            sequence.is_gone = True

    async def _next(self, sequence: _Sequence) -> int | None:
        try:
            # Each token has the whole time: a long result is no slow one.
            async with asyncio.timeout(self.how.timeout):
                found = await sequence.out.get()
        except TimeoutError:
            raise RequestError(
                f"{self.model.name} gave no token within {self.how.timeout} s", 503, "timeout"
            ) from None
        if isinstance(found, RequestError):
            raise found
        return found

    async def _work(self) -> None:
        """Step until there is nothing to generate."""
        cache = self.model.empty()
        try:
            while self._admit():
                cache = await self._prompts(cache)
                if any(self.slots):
                    cache = await self._step(cache)
        except Exception as e:
            # The cache was given to the step, so it is lost to all that are under way.
            error = RequestError(f"{self.model.name} failed: {e}", 500, "model")
            for sequence in filter(None, self.slots):
                sequence.out.put_nowait(error)
            self.slots = [None] * self.model.slots
            if self._queue:
                self._worker = asyncio.create_task(self._work())
        finally:
            self.metrics.set("slots_used", 0, **self._labels)

    def _admit(self) -> int:
        """Put what waits into free slots; how many are used."""
        for i, sequence in enumerate(self.slots):
            if sequence is not None and sequence.is_gone:
                self.slots[i] = None
            while self.slots[i] is None and self._queue:
                waiting = heapq.heappop(self._queue)[2]
                if not waiting.is_gone:
                    self.slots[i] = waiting
                    waited = time.monotonic() - waiting.since
                    self.metrics.observe("queue_seconds", waited, **self._labels)
        used = sum(s is not None for s in self.slots)
        self.metrics.set("slots_used", used, **self._labels)
        return used

    async def _prompts(self, cache: Tree) -> Tree:
        """Take the prompts that are new in slots, if the model takes them whole."""
        for i, sequence in enumerate(self.slots):
            if sequence is None or sequence.position or not self.model.takes_prompts:
                continue
            given = cache, i, sequence.prompt, sequence.options
            token, cache = await self._computed(self.model.begin, *given)
            sequence.position = len(sequence.prompt) - 1
            if self._took(sequence, token):
                self.slots[i] = None
        return cache

    async def _computed(self, call: Callable, *given: Any) -> tuple:
        """What a call of the model gives, in the thread for that."""
        start = time.monotonic()
        found = await asyncio.get_running_loop().run_in_executor(self.pool, call, *given)
        self.metrics.observe("compute_seconds", time.monotonic() - start, **self._labels)
        self.metrics.add("inference_exec_count", 1, **self._labels)
        return found

    async def _step(self, cache: Tree) -> Tree:
        tokens, cache = await self._computed(self.model.advance, cache, *self._state())
        for i, sequence in enumerate(self.slots):
            if sequence is not None and self._took(sequence, int(tokens[i])):
                self.slots[i] = None
        return cache

    def _state(self) -> list[np.ndarray]:
        """Tokens, positions, seeds, temperatures and top_ks by slot; zeros in free ones."""
        rows: list[tuple[Any, ...]] = [
            (0, 0, 0, 0.0, 0) if s is None else
            (s.last, s.position, s.options.seed, s.options.temperature, s.options.top_k)
            for s in self.slots
        ]  # fmt: skip
        names = ("i4", "i4", "u4", "f4", "i4")
        return [np.array(c, n) for c, n in zip(zip(*rows, strict=True), names, strict=True)]

    def _took(self, sequence: _Sequence, token: int) -> bool:
        """Move a sequence on by a step that gave a token; whether it has ended."""
        sequence.position += 1
        if sequence.position < len(sequence.prompt):
            sequence.last = sequence.prompt[sequence.position]
            return sequence.is_gone
        if token != self.model.end:
            sequence.last = token
            sequence.made += 1
            sequence.out.put_nowait(token)
            self.metrics.add("generated_tokens", 1, **self._labels)
            if sequence.made < sequence.options.max_tokens:
                return sequence.is_gone
        sequence.out.put_nowait(None)
        return True
