"""What tests of messages run on two ranks."""

import contextlib
import signal

import numpy as np

from funcgrad.parallel.communicators import mpi
from funcgrad.parallel.communicators.mail import Route, passed

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


def interrupted():
    """A rank is interrupted while it waits, and asks for a message again."""
    comm, route = line(), Route(PAIRS, 1, 0)
    passed(comm, route, np.zeros(2), -1, -1)
    if comm.rank == 1:
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with contextlib.suppress(KeyboardInterrupt):
            passed(comm, route, np.zeros(2), -1, 0)
    passed(comm, route, np.zeros(2), -1, 1 - comm.rank)
