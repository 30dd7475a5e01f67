"""Messages between two ranks: who sends goes on at once, who wants one waits for it alone.

Inside a node each pair of ranks has a queue in shared memory, of as many messages as are on their
way at a time; a count of those that were put in and one of those that were taken out say which
places are free. Between nodes messages are MPI's.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from funcgrad.backends.llvm.native.engine import engine
from funcgrad.errors import CollectiveError
from funcgrad.parallel.communicators.flight_recorder import written
from funcgrad.parallel.communicators.native import NativeCommunicator
from funcgrad.parallel.communicators.shared import SharedCommunicator, SharedMemory

# The two counts of a queue, each in a cache line of its own, lie before its messages.
LINE = 128
# Turns of waiting in which nothing else is done, in which others may run; then it sleeps between.
SPINS, YIELDS, SLEEP = 200, 50, 2e-5
# Counts pass from rank to rank with all that was written before them.
_COUNTS = """
define i64 @fg_mail_count(ptr %at) {
  %n = load atomic i64, ptr %at acquire, align 8
  ret i64 %n
}
define void @fg_mail_counted(ptr %at, i64 %n) {
  store atomic i64 %n, ptr %at release, align 8
  ret void
}
"""


class Route(NamedTuple):
    """Which messages belong together: those of one value of a program, in the order in which they
    are sent. pairs: (from, to) of those ranks that exchange any; capacity: how many may be on their
    way from one to the other; number: of the value."""

    pairs: tuple[tuple[int, int], ...]
    capacity: int
    number: int


def passed(
    comm: NativeCommunicator, route: Route, x: np.ndarray, to: int, source: int
) -> np.ndarray:
    """Send x to a rank, and get the next message from another one; where a number is -1, nothing
    is sent, or zeros are got. All ranks call this together first; then each by itself. Raises
    CollectiveError where another rank has failed, or one was interrupted while it waited."""
    _check(comm)
    boxes = comm.mail
    key = (*route, x.nbytes)
    if key not in boxes:
        boxes[key] = _boxes(comm, route, x.nbytes)
    box = boxes[key]
    try:
        if to >= 0:
            box.put(np.ascontiguousarray(x), to)
        if source >= 0:
            return box.get(np.empty(x.shape, x.dtype), source)
    except BaseException:
        # What is on its way would be taken for what is asked for next.
        if isinstance(comm, SharedCommunicator):
            comm.give_up()
        raise
    return np.broadcast_to(np.zeros((), x.dtype), x.shape)


def _boxes(comm: NativeCommunicator, route: Route, nbytes: int) -> SharedMail | MpiMail:
    if isinstance(comm, SharedCommunicator):
        return SharedMail(comm, route, nbytes)
    return MpiMail(comm, route)


@cache
def _counts() -> tuple[Callable[[int], int], Callable[[int, int], None]]:
    library = engine().compile(_COUNTS, level=1)
    read = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)
    write = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)
    return read(library.address("fg_mail_count")), write(library.address("fg_mail_counted"))


class SharedMail:
    """Queues in memory that the ranks of a node share."""

    def __init__(self, comm: SharedCommunicator, route: Route, nbytes: int):
        self.comm, self.capacity, self.nbytes = comm, route.capacity, nbytes
        self.step = -(-(2 * LINE + route.capacity * nbytes) // LINE) * LINE
        self.memory = SharedMemory(comm.ranks, len(route.pairs) * self.step)
        self.place = {pair: i for i, pair in enumerate(route.pairs)}
        self.read, self.write = _counts()

    def queue(self, source: int, to: int) -> tuple[int, int]:
        """The addresses of how many were put into a queue, and of how many were taken out."""
        base = self.memory.address + self.place[source, to] * self.step
        return base, base + LINE

    def slot(self, queue: tuple[int, int], n: int) -> int:
        """The address of the n-th message."""
        return queue[0] + 2 * LINE + n % self.capacity * self.nbytes

    def put(self, x: np.ndarray, to: int) -> None:
        """Put a message into the queue to a rank, as soon as a place is free."""
        queue = self.queue(self.comm.rank, to)
        sent = self.read(queue[0])
        _wait(self.comm, lambda: sent - self.read(queue[1]) < self.capacity)
        ctypes.memmove(self.slot(queue, sent), x.ctypes.data, self.nbytes)
        self.write(queue[0], sent + 1)

    def get(self, out: np.ndarray, source: int) -> np.ndarray:
        """Take the next message out of the queue from a rank, as soon as it is there."""
        queue = self.queue(source, self.comm.rank)
        taken = self.read(queue[1])
        _wait(self.comm, lambda: self.read(queue[0]) > taken)
        ctypes.memmove(out.ctypes.data, self.slot(queue, taken), self.nbytes)
        self.write(queue[1], taken + 1)
        return out


class MpiMail:
    """Messages of MPI. What was sent is kept until it has arrived."""

    def __init__(self, comm: Any, route: Route):
        self.comm, self.tag = comm, 1 + route.number
        self.flying: list[tuple[Any, np.ndarray]] = []

    def put(self, x: np.ndarray, to: int) -> None:
        """Begin to send a message to a rank."""
        self.flying = [(request, kept) for request, kept in self.flying if not request.Test()]
        kept = x.copy()
        self.flying.append((self.comm.ranks.Isend(_bytes(kept), to, self.tag), kept))

    def get(self, out: np.ndarray, source: int) -> np.ndarray:
        """The next message from a rank."""
        request = self.comm.ranks.Irecv(_bytes(out), source, self.tag)
        try:
            _wait(self.comm, request.Test)
        except BaseException:
            request.Cancel()  # as it would write to memory that is no more
            request.Wait()
            raise
        return out


def _bytes(x: np.ndarray) -> np.ndarray:
    return x.reshape(-1).view(np.uint8)


def _wait(comm: NativeCommunicator, there: Callable[[], bool]) -> None:
    """Wait until something is there; CollectiveError where another rank has failed."""
    for _ in range(SPINS):
        if there():
            return
    with _recorded(comm):
        for _ in range(YIELDS):
            if there():
                return
            os.sched_yield()
        while not there():
            _check(comm)
            time.sleep(SLEEP)


def _check(comm: NativeCommunicator) -> None:
    if isinstance(comm, SharedCommunicator) and comm.aborted:
        raise CollectiveError("a message: another rank failed before, or stopped waiting for one")


@contextlib.contextmanager
def _recorded(comm: NativeCommunicator) -> Iterator[None]:
    """Let the watchdog see that this rank waits."""
    record = comm.word("record")
    with written(record, comm.word("number"), "a message") if record else contextlib.nullcontext():
        yield
