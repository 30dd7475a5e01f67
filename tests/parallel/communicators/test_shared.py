"""Shared memory, with threads as ranks: the native code doesn't know the difference."""

import threading

import numpy as np
import pytest

from funcgrad.errors import CollectiveError, ShapeError
from funcgrad.parallel.communicators import shared
from funcgrad.parallel.communicators.shared import SharedCommunicator, SharedMemory
from tests.backends.rewrites.test_exchanges import COLLECTIVES, X, compiled, mapped
from tests.parallel.jobs import five_exchanges
from tests.parallel.threads import PATIENCE


class Starter:
    """What ranks start from, for threads."""

    def __init__(self, rank, size, barrier, values):
        self.rank, self.size, self.barrier, self.values = rank, size, barrier, values

    def allgather(self, obj):
        self.values[self.rank] = obj
        self.barrier.wait()
        everything = list(self.values)
        self.barrier.wait()
        return everything

    def bcast(self, obj, root=0):
        return self.allgather(obj)[root]


def on_ranks(size, fun):
    """fun(starter) in as many threads; the results."""
    barrier = threading.Barrier(size, timeout=PATIENCE)
    values, results = [None] * size, [None] * size

    def work(rank):
        try:
            results[rank] = fun(Starter(rank, size, barrier, values))
        except BaseException as error:
            results[rank] = error

    threads = [threading.Thread(target=work, args=(r,)) for r in range(size)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(PATIENCE)
    return results


def good(results):
    for r in results:
        if isinstance(r, BaseException):
            raise r
    return results


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_exchanges(size):
    """Few ranks sum everything each, more of them in parts; slots hold little."""

    def run(starter):
        comm = SharedCommunicator(starter, 1024 * size)
        comm.set_crowded(True)
        five_exchanges(comm, range(size), ["float32", "bfloat16", "int4"], [1, 2, 1500], True)

    good(on_ranks(size, run))


def test_results_past_the_caches():
    """Large results are written without being read: all bytes must be there."""

    def run(starter):
        comm = SharedCommunicator(starter, 1 << 16)
        x = (np.arange(5_000_003) % 251).astype("uint8") + np.uint8(starter.rank)
        every = comm.all_gather(x)
        shifted = comm.permute(x[1:], [(0, 1), (1, 0)])
        return [
            np.array_equal(every[r], (np.arange(x.size) % 251).astype("uint8") + np.uint8(r))
            for r in range(2)
        ] + [np.array_equal(shifted, every[1 - starter.rank][1:])]

    assert good(on_ranks(2, run)) == [[True] * 3] * 2


@pytest.mark.parametrize("name", ["psum", "all_gather axis", "all_to_all", "ppermute"])
def test_compiled_programs(name):
    executable = compiled(COLLECTIVES[name], {"i": 3}, X)
    (want,) = mapped(COLLECTIVES[name], {"i": 3}, X)

    def run(starter):
        comm = SharedCommunicator(starter)
        bound = executable.bind(lambda axes: comm)
        return [bound([X[starter.rank]])[0] for _ in range(3)]

    for rank, outs in enumerate(good(on_ranks(3, run))):
        for out in outs:
            np.testing.assert_array_equal(out, want[rank])


def test_ranks_that_disagree():
    def run(starter):
        comm = SharedCommunicator(starter)
        texts = []
        for what in ("sum", "max" if starter.rank else "sum", "sum"):
            try:
                comm.all_reduce(np.ones(4, "float32"), what)
            except CollectiveError as error:
                texts.append(str(error))
        return texts

    for first, second in good(on_ranks(2, run)):
        assert "the ranks disagree on what they exchange: rank 0: #2 all_reduce sum" in first
        assert "rank 1: #2 all_reduce max float32[4]" in first
        assert "another rank failed before" in second


def test_failures_in_programs_name_the_operation():
    executable = compiled(COLLECTIVES["psum"], {"i": 2}, X[:2])

    def run(starter):
        comm = SharedCommunicator(starter)
        if starter.rank:
            comm.barrier()
        else:
            executable.bind(lambda axes: comm)([X[0]])

    error = on_ranks(2, run)[0]
    assert isinstance(error, CollectiveError)
    assert str(error).startswith("all_reduce of float32[36] over ('i',) in f: the ranks disagree")


def test_sums_that_are_not_known():
    def run(starter):
        comm = SharedCommunicator(starter)
        with pytest.raises(CollectiveError, match="numbers of this dtype can't be combined so"):
            comm._exchange("all_reduce", "max", np.ones(2, "complex64"), np.ones(2, "complex64"), 2)
        with pytest.raises(ShapeError, match="among 2 ranks needs an array with 2 rows"):
            comm.all_to_all(np.ones(3))

    good(on_ranks(2, run))


def test_memory_that_can_not_be_shared(monkeypatch):
    def refuse(*args):
        raise OSError("not here")

    monkeypatch.setattr(shared.os, "memfd_create", refuse)
    for error in on_ranks(2, lambda s: SharedMemory(s, 100)):
        assert isinstance(error, OSError)
        assert "ranks of one node can't share memory: not here" in str(error)
