"""Messages between two ranks: who sends goes on at once, who wants one waits for it alone.

Inside a node each pair of ranks has a queue in shared memory, of as many messages as are on their
way at a time; a count of those that were put in and one of those that were taken out say which
places are free. Between nodes messages are MPI's. Each message says in which run of a program it
was sent: what a run that failed left behind is thrown away. Queues end with their program.
"""

from __future__ import annotations

import contextlib
import copy
import ctypes
import os
import time
from collections.abc import Callable, Iterator
from functools import cache, partial
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


class Offices:
    """The communicators of one program, as `lookup` gives them, with queues that are its own."""

    def __init__(self, lookup: Callable[[tuple], Any]):
        self.lookup = lookup
        self.own: dict[tuple, tuple[Any, Any]] = {}

    def __call__(self, axes: tuple) -> Any:
        """The communicator over named axes."""
        if axes not in self.own:
            shared = self.lookup(axes)
            shared.run += 1
            own = copy.copy(shared)
            own.mail = {}
            self.own[axes] = shared, own
        return self.own[axes][1]

    def begin(self) -> None:
        """A run of the program begins. As all ranks run the same ones, they count alike."""
        for shared, own in self.own.values():
            shared.run += 1
            own.run = shared.run


def passed(
    comm: NativeCommunicator, route: Route, x: np.ndarray, to: int, source: int
) -> np.ndarray:
    """Send x to a rank, and get the next message of this run from another one; where a number is
    -1, nothing is sent, or zeros are got. All ranks call this together first; then each by itself.
    Raises CollectiveError where another rank has failed, or has left this run."""
    _check(comm)
    boxes = comm.mail
    key = (*route, x.nbytes)
    if key not in boxes:
        boxes[key] = _boxes(comm, route, x.nbytes)
    box = boxes[key]
    if to >= 0:
        box.put(np.ascontiguousarray(x), to)
    if source >= 0:
        return box.get(np.empty(x.shape, x.dtype), source)
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
        # A message lies behind the number of its run.
        self.room = -(-(LINE + nbytes) // LINE) * LINE
        self.step = 2 * LINE + route.capacity * self.room
        self.memory = SharedMemory(comm.ranks, len(route.pairs) * self.step)
        self.place = {pair: i for i, pair in enumerate(route.pairs)}
        self.read, self.write = _counts()

    def queue(self, source: int, to: int) -> tuple[int, int]:
        """The addresses of how many were put into a queue, and of how many were taken out."""
        base = self.memory.address + self.place[source, to] * self.step
        return base, base + LINE

    def slot(self, queue: tuple[int, int], n: int) -> int:
        """The address of the n-th message, which begins with its run."""
        return queue[0] + 2 * LINE + n % self.capacity * self.room

    def there(self, queue: tuple[int, int], n: int) -> bool:
        """Whether more than n messages were put into a queue."""
        return self.read(queue[0]) > n

    def put(self, x: np.ndarray, to: int) -> None:
        """Put a message into the queue to a rank, as soon as a place is free."""
        queue = self.queue(self.comm.rank, to)
        sent = self.read(queue[0])
        _wait(self.comm, lambda: sent - self.read(queue[1]) < self.capacity)
        slot = self.slot(queue, sent)
        ctypes.c_int64.from_address(slot).value = self.comm.run
        ctypes.memmove(slot + LINE, x.ctypes.data, self.nbytes)
        self.write(queue[0], sent + 1)

    def get(self, out: np.ndarray, source: int) -> np.ndarray:
        """Take the next message of this run out of the queue from a rank, as soon as it is
        there."""
        queue = self.queue(source, self.comm.rank)
        while True:
            taken = self.read(queue[1])
            _wait(self.comm, partial(self.there, queue, taken))
            slot = self.slot(queue, taken)
            is_ours = _is_of_run(self.comm, ctypes.c_int64.from_address(slot).value, source)
            if is_ours:
                ctypes.memmove(out.ctypes.data, slot + LINE, self.nbytes)
            self.write(queue[1], taken + 1)
            if is_ours:
                return out


class MpiMail:
    """Messages of MPI, behind the numbers of their runs. What was sent is kept until it has
    arrived."""

    def __init__(self, comm: Any, route: Route):
        self.comm, self.tag = comm, 1 + route.number
        self.early: dict[int, np.ndarray] = {}

    def put(self, x: np.ndarray, to: int) -> None:
        """Begin to send a message to a rank."""
        flying = self.comm.flying
        flying[:] = [(request, kept) for request, kept in flying if not request.Test()]
        run = np.array([self.comm.run], np.int64)
        kept = np.concatenate([_bytes(run), _bytes(x)])
        flying.append((self.comm.ranks.Isend(kept, to, self.tag), kept))

    def get(self, out: np.ndarray, source: int) -> np.ndarray:
        """The next message of this run from a rank."""
        while True:
            came = self.early.pop(source, None)
            if came is None:
                came = self._received(8 + out.nbytes, source)
            try:
                is_ours = _is_of_run(self.comm, int(came[:8].view(np.int64)[0]), source)
            except CollectiveError:
                self.early[source] = came
                raise
            if is_ours:
                _bytes(out)[:] = came[8:]
                return out

    def _received(self, nbytes: int, source: int) -> np.ndarray:
        came = np.empty(nbytes, np.uint8)
        request = self.comm.ranks.Irecv(came, source, self.tag)
        try:
            _wait(self.comm, request.Test)
        except BaseException:
            request.Cancel()  # as it would write to memory that is no more
            request.Wait()
            raise
        return came


def _is_of_run(comm: NativeCommunicator, run: int, source: int) -> bool:
    """Whether a message is of this run; False if an earlier one left it. CollectiveError if it is
    of a later one, which it waits for."""
    if run > comm.run:
        raise CollectiveError(
            f"a message: rank {source} failed in this run of a program, and has begun another one"
        )
    return run == comm.run


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
        raise CollectiveError("a message: another rank failed before")


@contextlib.contextmanager
def _recorded(comm: NativeCommunicator) -> Iterator[None]:
    """Let the watchdog see that this rank waits."""
    record = comm.word("record")
    with written(record, comm.word("number"), "a message") if record else contextlib.nullcontext():
        yield
