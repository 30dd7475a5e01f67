"""What tests of messages run on two ranks."""

import contextlib
import gc
import signal
from pathlib import Path

import numpy as np

from funcgrad.errors import CollectiveError
from funcgrad.parallel.communicators import mpi
from funcgrad.parallel.communicators.mail import Offices, Route, passed

PAIRS = ((0, 1), (1, 0))


def line():
    world = mpi.world()
    return mpi.communicator({"i": world.size}, ("i",))


def queued(dtype):
    """The first rank sends three messages before the other one asks for any; then what that gets,
    and what comes back."""
    comm, route = line(), Route(PAIRS, 3, 0)
    x = np.arange(6).reshape(2, 3).astype(dtype)
    if comm.rank == 0:
        nothing = [passed(comm, route, (x + i).astype(dtype), 1, -1) for i in range(3)]
        comm.barrier()
        return [*nothing, passed(comm, route, x, -1, 1)]
    first = passed(comm, route, x, -1, -1)  # queues are made together
    comm.barrier()
    back = (x + 20).astype(dtype)
    return [first, *(passed(comm, route, back, 0 if i == 2 else -1, 0) for i in range(3))]


def of_several_values():
    """Messages of one value don't overtake those of another, nor take their place."""
    comm, found = line(), []
    routes = [Route(PAIRS, 2, number) for number in range(2)]
    for turn in range(20):
        for number, route in enumerate(routes):
            x = np.full(5, 10 * turn + number + comm.rank, np.float32)
            got = passed(comm, route, x, 1 - comm.rank, 1 - comm.rank if turn else -1)
            found.append(got[0])
    for route in routes:
        found.append(passed(comm, route, x, -1, 1 - comm.rank)[0])
    return found


def never_sent(rank):
    """A rank fails while the other one waits for a message of it."""
    comm, route = line(), Route(PAIRS, 1, 0)
    passed(comm, route, np.zeros(2), -1, -1)
    if comm.rank == rank:
        raise ValueError("no message")
    passed(comm, route, np.zeros(2), -1, rank)


def programs(n=1):
    """The communicators of so many programs, each with mail of its own."""
    comm = line()
    found = [Offices(lambda axes: comm) for _ in range(n)]
    for offices in found:
        offices(("i",))
    return found


def after_a_failure(interrupt):
    """A run ends early on the second rank, which fails or is interrupted while it waits; what each
    rank gets in the next one."""
    (offices,) = programs()
    comm, route, x = offices(("i",)), Route(PAIRS, 2, 0), np.zeros(3)
    passed(comm, route, x, -1, -1)
    offices.begin()
    if comm.rank == 0:
        passed(comm, route, x + 1, 1, -1)
        passed(comm, route, x + 2, 1, -1)
    elif interrupt:
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with contextlib.suppress(KeyboardInterrupt):
            for _ in range(3):
                passed(comm, route, x, -1, 0)
    comm.barrier()
    offices.begin()
    return passed(comm, route, x + 10 + comm.rank, 1 - comm.rank, 1 - comm.rank)[0]


def left_alone():
    """A rank waits in a run that the other one has left for the next; then it begins that, too."""
    (offices,) = programs()
    comm, route, x = offices(("i",)), Route(PAIRS, 2, 0), np.zeros(3)
    passed(comm, route, x, -1, -1)
    offices.begin()
    said = ""
    if comm.rank == 0:
        try:
            passed(comm, route, x, -1, 1)
        except CollectiveError as error:
            said = str(error)
        offices.begin()
        return said, passed(comm, route, x, -1, 1)[0]
    offices.begin()
    passed(comm, route, x + 7, 0, -1)
    return said, 7


def queues_of_programs():
    """How many pieces of memory are shared: before, with mail of two programs, and after one, then
    both, have ended."""

    def shared():
        maps = Path("/proc/self/maps").read_text()
        return sum("memfd:funcgrad" in m for m in maps.splitlines())

    line()
    gc.collect()
    found, kept = [shared()], programs(2)
    for offices in kept:
        for size in (3, 5):
            passed(offices(("i",)), Route(PAIRS, 1, 0), np.zeros(size), -1, -1)
    found.append(shared())
    while kept:
        offices = kept.pop()
        del offices
        gc.collect()
        found.append(shared())
    return found
