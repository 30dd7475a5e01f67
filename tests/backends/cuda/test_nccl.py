"""NCCL's communicators on a stand-in of its signatures, its ranks threads of this process."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest

import funcgrad as fg
from funcgrad import lax
from funcgrad.backends.cuda.device_program import DeviceProgram
from funcgrad.backends.cuda.devices.device import CudaError
from funcgrad.backends.cuda.devices.memory import DeviceBuffer
from funcgrad.backends.cuda.machine import CUDA
from funcgrad.backends.plan import plan
from funcgrad.core import buffers, context
from funcgrad.core.sharding import Device, Mesh
from funcgrad.errors import CollectiveError, ShapeError
from funcgrad.parallel.communicators import nccl as nccl_module
from funcgrad.parallel.communicators.nccl import (
    Nccl,
    NcclCommunicator,
    identifier_by_file,
    on_own_gpu,
    over,
)
from funcgrad.parallel.programs.program import SpmdProgram
from funcgrad.parallel.runtimes import ranks
from funcgrad.transforms.passes.simplify import simplify
from tests.backends.cuda.simulated import numbers
from tests.backends.cuda.stand_in import launches_of
from tests.parallel.threads import Ranks

RANKS = 3


@pytest.fixture
def together(gpu, library):
    """together(f): f of each rank's communicator, in a thread each; all results."""
    nccl = Nccl(library)

    def run(f, size=RANKS):
        name, results, errors = nccl.unique_id(), [None] * size, []

        def rank(r):
            try:
                results[r] = f(NcclCommunicator(nccl, gpu, r, size, name))
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=rank, args=(r,), daemon=True) for r in range(size)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(60)
        if errors:
            raise errors[0]
        return results

    return run


def given(rank, *shape, dtype="float32"):
    return (10 * numbers(*shape)).astype(dtype) + np.dtype(dtype).type(rank)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "uint8", "complex64"])
def test_sums(dtype, gpu, together):
    def f(comm):
        x = DeviceBuffer.of(gpu, given(comm.rank, RANKS, 4, dtype=dtype))
        return comm.all_reduce(x).get(), comm.reduce_scatter(x).get()

    want = sum(given(r, RANKS, 4, dtype=dtype) for r in range(RANKS)).astype(dtype)
    for r, (whole, row) in enumerate(together(f)):
        np.testing.assert_allclose(whole, want, rtol=1e-5)
        np.testing.assert_allclose(row, want[r], rtol=1e-5)


def test_extremes_and_moves(gpu, together):
    def f(comm):
        x = DeviceBuffer.of(gpu, given(comm.rank, RANKS, 4, dtype="float16"))
        y = DeviceBuffer.of(gpu, given(comm.rank, 4))
        comm.barrier()
        moved = comm.permute(x, [(0, 1), (1, 2)])
        return (comm.all_reduce(y, "max").get(), comm.all_gather(x).get(),
                comm.all_to_all(x).get(), moved.get())  # fmt: skip

    every = np.stack([given(r, RANKS, 4, dtype="float16") for r in range(RANKS)])
    for r, (most, gathered, turned, moved) in enumerate(together(f)):
        np.testing.assert_array_equal(most, given(RANKS - 1, 4))
        np.testing.assert_array_equal(gathered, every)
        np.testing.assert_array_equal(turned, every[:, r])
        np.testing.assert_array_equal(moved, every[r - 1] if r else 0 * every[0])


def test_programs(fake, gpu, together):
    """A compiled program exchanges the device's memory by the library, called from native code."""

    def f(x):
        total = lax.psum(x * 2, "i") + lax.axis_index("i")
        return total, lax.ppermute(x, "i", [(0, 1), (1, 2), (2, 0)]), lax.all_gather(x, "i")

    with context.scoped(axes={"i": RANKS}):
        jaxpr = simplify(fg.make_jaxpr(f)(given(0, 5)).jaxpr)
        planned = plan(jaxpr, [False], "f", CUDA)
    first = DeviceProgram(planned, gpu)
    start = launches_of(fake, first)
    one = threading.Lock()

    def run(comm):
        with one:  # the stand-in compiles in one thread at a time
            program = first.bind(lambda axes: comm)
            assert not program.loaded.waits
        return program([given(comm.rank, 5)])

    every = np.stack([given(r, 5) for r in range(RANKS)])
    for r, (total, moved, gathered) in enumerate(together(run)):
        np.testing.assert_allclose(total, 2 * every.sum(0) + r, rtol=1e-5)
        np.testing.assert_array_equal(moved, every[r - 1])
        np.testing.assert_array_equal(gathered, every)
    assert start


def test_errors(fake, gpu, together):
    def sums_of_shorts(comm):
        comm.all_reduce(DeviceBuffer.of(gpu, np.ones(3, np.int16)))

    with pytest.raises(
        CollectiveError, match=r"all_reduce of int16\[3\] failed on rank 0: NCCL has no"
    ):
        together(sums_of_shorts, 1)
    with pytest.raises(ShapeError, match="all_to_all among 1 ranks needs an array with 1 rows"):
        together(lambda c: c.all_to_all(DeviceBuffer.of(gpu, np.ones(3, np.int16))), 1)
    fake.nccl_refuse(4)
    with pytest.raises(CollectiveError, match="failed on rank 0: invalid argument"):
        together(lambda c: c.barrier(), 1)
    fake.nccl_refuse(0)
    nccl = Nccl(gpu.blas)
    with pytest.raises(CudaError, match="ncclCommInitRank: invalid argument"):
        NcclCommunicator(nccl, gpu, 7, 3, nccl.unique_id())


def test_ranks_that_the_host_joins(gpu, library):
    class Host:
        rank, size = 0, 1

        def all_gather(self, x):
            return x[None]

    comm = over(Host(), gpu, Nccl(library))
    np.testing.assert_array_equal(
        comm.all_reduce(DeviceBuffer.of(gpu, numbers(3))).get(), numbers(3)
    )


def test_ranks_have_a_gpu_each(fake, gpu, library, monkeypatch):
    """As an MPI job's are: the host's communicators join those of the GPUs, of each axis once."""
    monkeypatch.setattr(nccl_module, "count", lambda: 2)
    host, asked, nccl = Ranks(i=2), [], Nccl(library)

    def run(rank, lookup):
        def find(number):
            asked.append(number)
            return gpu

        backend, there = on_own_gpu(lookup, ("i",), find, nccl)
        assert backend.gpu is gpu
        assert there(("i",)) is there(("i",))
        return there(("i",)).all_reduce(DeviceBuffer.of(gpu, given(rank, 5))).get()

    for total in host.run(run):
        np.testing.assert_allclose(total, given(0, 5) + given(1, 5), rtol=1e-5)
    assert sorted(asked) == [0, 1]


def test_ranks_of_one_gpu_meet_on_the_host(fake, gpu, library, monkeypatch):
    """Four ranks on two GPUs: one axis goes by NCCL, the other by the host's communicators, and
    both in one program."""
    monkeypatch.setattr(nccl_module, "count", lambda: 2)
    sizes = {"host": 2, "gpu": 2}

    def f(x):
        within = lax.psum(x * 2, "gpu")
        return lax.psum(within, "host") + lax.axis_index("host"), lax.ppermute(x, "gpu", [(0, 1)])

    with context.scoped(axes=sizes):
        planned = plan(simplify(fg.make_jaxpr(f)(given(0, 5)).jaxpr), [False], "f", CUDA)
    first, nccl, one = DeviceProgram(planned, gpu), Nccl(library), threading.Lock()
    start = launches_of(fake, first)

    def run(rank, lookup):
        _, there = on_own_gpu(lookup, ("host", "gpu"), lambda number: gpu, nccl)
        kinds = [type(there(axes)) is NcclCommunicator for axes in [("host",), ("gpu",)]]
        with one:
            program = first.bind(there)
        return kinds, program.loaded.waits, program([given(rank, 5)])

    every = np.stack([given(r, 5) for r in range(4)])
    for rank, (kinds, waits, (total, moved)) in enumerate(Ranks(**sizes).run(run)):
        assert (kinds, waits) == ([False, True], True)
        np.testing.assert_allclose(total, 2 * every.sum(0) + rank // 2, rtol=1e-5)
        np.testing.assert_array_equal(moved, every[rank - 1] * (rank % 2))
    assert start


def test_programs_of_the_runtime_of_ranks(fake, gpu, library, monkeypatch):
    """A job of one rank, whose program runs on its GPU and asks NCCL once for all programs."""
    asked = []

    def own(lookup, axes):
        asked.append(axes)
        return on_own_gpu(lookup, axes, lambda number: gpu, Nccl(library))

    for name in ("_by_type", "_by_kind"):
        monkeypatch.setattr(buffers, name, dict(getattr(buffers, name)))
    monkeypatch.setattr(ranks, "nccl", SimpleNamespace(on_own_gpu=own))
    ranks._on_own_gpu.cache_clear()
    mesh = Mesh(np.array([Device(0, kind="rank")], object), ("i",))
    with context.scoped(axes={"i": 1}):
        jaxpr = fg.make_jaxpr(lambda x: lax.psum(x, "i") * 2)(given(0, 5)).jaxpr
    for _ in range(2):
        program = SpmdProgram(jaxpr, mesh, ((None,),), ((None,),))
        made = ranks.Ranks(mesh).compile(program, [False], "f", "cuda")
        start = launches_of(fake, made)
        assert not made.loaded.waits
        (y,) = made([given(0, 5)])  # which stays there
        np.testing.assert_array_equal(y.get(), 2 * given(0, 5))
        np.testing.assert_array_equal(made([y])[0].get(), 4 * given(0, 5))
        on_cpu = ranks.Ranks(mesh).compile(program, [False], "f", "plain")
        np.testing.assert_array_equal(on_cpu([y])[0], 4 * given(0, 5))
    assert asked == [("i",)]
    ranks._on_own_gpu.cache_clear()
    assert start


def test_an_identifier_by_a_file(tmp_path):
    path = tmp_path / "id"
    with pytest.raises(CollectiveError, match=r"no rank has written NCCL's identifier to .*id"):
        identifier_by_file(path, None, 0.01)
    assert identifier_by_file(path, b"x" * 128) == b"x" * 128 == identifier_by_file(path, None)
