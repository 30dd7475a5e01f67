"""What tests run on ranks."""

import os
import time
from functools import reduce

import numpy as np

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax
from funcgrad.backends.rewrites.exchanges import WIDER
from funcgrad.core import context
from funcgrad.core.backend import backend
from funcgrad.core.staging import stage
from funcgrad.core.trace import aval_of
from funcgrad.parallel.communicators import mpi
from funcgrad.parallel.communicators.shared import SharedCommunicator
from funcgrad.transforms.passes.simplify import simplify

COMBINE = {"sum": np.add, "max": np.maximum, "min": np.minimum}


def where():
    """The rank, the number of ranks, and what connects them."""
    world = mpi.world()
    comm = mpi.communicator({"i": world.size}, ("i",))
    return comm.rank, comm.size, type(comm).__name__


def value(rank, dtype, shape):
    """A rank's array: small numbers, some of them NaN where there are."""
    x = np.random.default_rng(rank).normal(size=shape) * 5
    with np.errstate(all="ignore"):
        x = x.astype("float32").astype(fg.dtypes.canonical(dtype))
    if x.dtype.kind == "f" and x.size > 7 and rank == 1:
        x.reshape(-1)[5] = np.nan
    return x


def combined(op, values):
    """The values combined in order, narrow floats in float32."""
    dtype = values[0].dtype
    wide = np.float32 if dtype.name in ("float16", "bfloat16") else WIDER.get(dtype, dtype)
    return reduce(COMBINE[op], [v.astype(wide) for v in values]).astype(dtype)


def same(got, want, exact, what):
    """Assert equality; sums whose order is not the ranks' may differ by rounding."""
    assert got.dtype == want.dtype, what
    assert got.shape == want.shape, what
    a, b = got.astype("complex128"), want.astype("complex128")
    close = 0 if exact else {1: 0.5, 2: 0.05}.get(want.dtype.itemsize, 1e-4)
    good = np.isclose(a, b, rtol=close, atol=close, equal_nan=True)
    assert good.all(), (what, got[~good.reshape(got.shape)][:5], want[~good.reshape(got.shape)][:5])


def five_exchanges(comm, members, dtypes, sizes, exact):
    """All operations of a communicator against numpy; `members` are its ranks in the world."""
    n, r = comm.size, comm.rank
    for dtype in dtypes:
        for size in sizes:
            xs = [value(m, dtype, (n, size)) for m in members]
            x, what = xs[r], (type(comm).__name__, dtype, size)
            for op in COMBINE:
                if dtype.startswith("complex") and op != "sum":
                    continue
                want = combined(op, xs)
                same(comm.all_reduce(x, op), want, exact, what)
                same(comm.reduce_scatter(x, op), want[r], exact, what)
            same(comm.all_gather(x), np.stack(xs), True, what)
            same(comm.all_to_all(x), np.stack([v[r] for v in xs]), True, what)
            perm = [(i, (i + 1) % n) for i in range(n - 1)]
            source = {b: a for a, b in perm}
            want = xs[source[r]] if r in source else np.zeros_like(x)
            same(comm.permute(x, perm), want, True, what)
    comm.barrier()


def communicators_against_numpy(dtypes, sizes, exact=True):
    """The whole mesh and its parts, in 2-d."""
    world = mpi.world()
    mesh = {"a": 2, "b": world.size // 2}
    grid = np.arange(world.size).reshape(tuple(mesh.values()))
    a, b = np.unravel_index(world.rank, grid.shape)
    members = {
        ("a", "b"): grid.reshape(-1), ("b", "a"): grid.T.reshape(-1), ("b",): grid[a],
        ("a",): grid[:, b],
    }  # fmt: skip
    for axes, group in members.items():
        comm = mpi.communicator(mesh, axes)
        assert comm is mpi.communicator({"a": 2, "b": world.size // 2}, axes)
        assert group[comm.rank] == world.rank
        five_exchanges(comm, group.tolist(), dtypes, sizes, exact)


def chunks_of_mpi(dtypes, sizes):
    """MPI alone, in chunks of a few hundred bytes."""
    world = mpi.world()
    comm = mpi.MpiCommunicator(world.comm, chunk=512 * world.size, small=0)
    five_exchanges(comm, range(world.size), dtypes, sizes, exact=True)


def small_slots(dtypes, sizes):
    """Shared memory, in chunks."""
    world = mpi.world()
    comm = SharedCommunicator(world.comm, 1024 * world.size)
    five_exchanges(comm, range(world.size), dtypes, sizes, exact=True)


# ---- programs


def collectives(x):
    """Every collective, in many positions."""
    outs = [lax.psum(x, "i"), lax.pmax(x, "i"), lax.pmin(x, "i"), lax.psum(x, ("i", "j"))]
    for axis in range(3):
        outs.append(lax.all_gather(x, "j", axis=axis))
        outs.append(lax.all_gather(x, "i", axis=axis, tiled=True))
        outs.append(lax.psum_scatter(x, "j", scatter_dimension=axis, tiled=True))
        outs.append(lax.all_to_all(x, "i", axis, (axis + 1) % 3, tiled=True))
    outs.append(lax.psum_scatter(x, "i", scatter_dimension=2))
    outs.append(lax.ppermute(x, "j", [(0, 1)]))
    outs.append(x + lax.axis_index(("j", "i")).astype(x.dtype))
    return outs


def loops(x):
    """Collectives in loops and branches."""

    def step(c, row):
        c = fnp.sin(c) + lax.psum(row, "i")
        return c, lax.ppermute(c, "i", [(0, 1), (1, 0)])

    c, ys = lax.scan(step, x[0], x)
    n, c = lax.while_loop(
        lambda s: lax.pmax(s[0], "i") < 5, lambda s: (s[0] + 1, lax.pmin(s[1], "j") + 1), (0, c)
    )
    c = lax.cond(lax.psum(n, "i") > 3, lambda c: lax.psum(c, "i"), lambda c: c * 0, c)
    return [c, ys]


def gradients(x):
    """Derivatives of collectives."""

    def loss(x):
        y = lax.all_gather(fnp.sin(x), "i", axis=1, tiled=True)
        return fnp.sum(lax.psum_scatter(y * y, "j", tiled=True)) * 0.1

    return [fg.grad(loss)(x)]


PROGRAMS = {"collectives": collectives, "loops": loops, "gradients": gradients}
MESH = {"i": 2, "j": 2}


def lanes(dtype):
    """What each rank of the mesh has."""
    return np.stack([value(r + 2, dtype, (4, 6, 2)) for r in range(4)]).reshape(2, 2, 4, 6, 2)


def program(name, dtype, using):
    """A program on this rank, compiled and bound."""
    x = lanes(dtype)
    world = mpi.world()
    with context.scoped(axes=MESH):
        jaxpr, consts = stage(PROGRAMS[name], [aval_of(x[0, 0])])
        assert not consts
        executable = backend(using).compile(simplify(jaxpr), (False,), name)
    bound = executable.bind(mpi.communicators(MESH))
    own = x.reshape(4, *x.shape[2:])[world.rank]
    first = bound([own])
    for a, b in zip(first, bound([own]), strict=True):
        np.testing.assert_array_equal(a, b)
    return [v.astype("complex128") for v in first]


# ---- faults


def disagree():
    """Rank 1 gathers where the others sum."""
    world = mpi.world()
    comm = mpi.communicator({"i": world.size}, ("i",))
    comm.all_reduce(np.ones(3))
    try:
        if world.rank == 1:
            comm.all_gather(np.ones(3, "float32"))
        else:
            comm.all_reduce(np.ones(3, "float32"))
    except fg.errors.CollectiveError as error:
        return str(error)
    return "no error"


def raises_on(rank):
    """A job that fails on one rank while the others wait for it."""
    world = mpi.world()
    if world.rank == rank:
        raise ValueError("as the test wants it")
    mpi.communicator({"i": world.size}, ("i",)).barrier()


def dies_on(rank):
    """A job in which one rank ends at once."""
    if mpi.world().rank == rank:
        os._exit(3)
    time.sleep(30)
