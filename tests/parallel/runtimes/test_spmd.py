"""A runtime from outside of the package: a mesh of devices that have a memory of their own, a
thread for each, joined by a communicator that exchanges their buffers."""

import copy
import operator
import threading
from contextvars import copy_context
from functools import partial, reduce

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.core import context
from funcgrad.core.sharding import Device, NamedSharding
from funcgrad.errors import ShardingError
from funcgrad.ops.collective.reductions import psum_p
from funcgrad.parallel import P, make_mesh, shard_map
from funcgrad.parallel.communicators.communicator import PythonCommunicator
from funcgrad.parallel.runtimes import spmd
from tests.away import FARTHER, HERE, MEMORY, THERE, AwayBackend, register
from tests.ops import elsewhere
from tests.ops.elsewhere import READ, Away


class Group:
    """What the devices of a mesh exchange through."""

    def __init__(self, size):
        self.held, self.barrier, self.exchanges = (
            [None] * size,
            threading.Barrier(size, timeout=30),
            0,
        )


class AwayCommunicator(PythonCommunicator):
    """Threads that read each other's buffers."""

    buffer = Away

    def __init__(self, group, rank):
        super().__init__(rank, len(group.held))
        self.group = group

    def exchanged(self, x):
        assert type(x) is Away
        assert x.place == self.rank
        self.group.held[self.rank] = x
        self.group.barrier.wait()
        found = [Away(y._x.copy()) for y in self.group.held]
        self.group.exchanges += 1
        self.group.barrier.wait()
        return found

    def all_reduce(self, x, op="sum"):
        xp = elsewhere.namespace
        by = {"sum": operator.add, "max": xp.maximum, "min": xp.minimum}[op]
        return reduce(by, self.exchanged(x))

    def all_gather(self, x):
        return elsewhere.namespace.stack(self.exchanged(x))

    def reduce_scatter(self, x, op="sum"):
        return self.all_reduce(x, op)[self.rank]

    def all_to_all(self, x):
        return elsewhere.namespace.stack([y[self.rank] for y in self.exchanged(x)])

    def permute(self, x, perm):
        found, sources = self.exchanged(x), {to: of for of, to in perm}
        return found[sources[self.rank]] if self.rank in sources else x * 0

    def barrier(self):
        self.group.barrier.wait()


class Parts:
    """What is kept of an array: each device's part, on it."""

    def __init__(self, parts):
        self.parts = parts
        first = parts[0]
        self.shape, self.dtype, self.ndim = first.shape, first.dtype, first.ndim
        self.size, self.nbytes, self.itemsize = first.size, first.nbytes, first.itemsize


GROUPS: list = []


class AwayRuntime:
    """A thread for each device."""

    buffer, addressable = Parts, True

    def __init__(self, mesh):
        self.devices = list(mesh.devices.flat)

    def compile(self, program, donated, name, using):
        with context.scoped(axes=program.mesh.shape):
            compiled = AwayBackend().compile(program.jaxpr, donated, name)
        group = Group(len(self.devices))
        GROUPS.append(group)

        def of_rank(rank, values, outs):
            bound = compiled.bind(lambda axes: AwayCommunicator(group, rank))
            outs[rank] = bound([v.parts[rank] for v in values])

        def run(values, began=None):
            outs = [None] * len(self.devices)
            threads = [
                threading.Thread(target=copy_context().run, args=(of_rank, i, values, outs))
                for i in range(len(outs))
            ]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            return [Parts(list(parts)) for parts in zip(*outs, strict=True)]

        return run

    def put(self, value, sharding):
        value = np.asarray(value)
        return self.make(value.shape, sharding, lambda index: value[index])

    def make(self, shape, sharding, part):
        where = sharding.devices_indices_map(shape)
        return Parts([MEMORY.put(part(where[d]), d) for d in self.devices])

    def fetch(self, kept, sharding, shape):
        out = np.empty(shape, kept.dtype)
        for _, index, part in self.parts(kept, sharding, shape):
            out[index] = part.get()
        return out

    def parts(self, kept, sharding, shape):
        where = sharding.devices_indices_map(shape)
        return [(d, where[d], part) for d, part in zip(self.devices, kept.parts, strict=True)]


@pytest.fixture(autouse=True)
def runtime(monkeypatch):
    register(monkeypatch)
    monkeypatch.setattr(spmd, "_RUNTIMES", dict(spmd._RUNTIMES))
    spmd.register_runtime("away", AwayRuntime)
    GROUPS.clear()


def away_mesh(n=2):
    return make_mesh((n,), "i", devices=[Device(i, kind="away") for i in range(n)])


def cut(x, mesh):
    return fg.device_put(x, NamedSharding(mesh, P("i")))


def test_meshes_elsewhere():
    x = cut(np.arange(4.0, dtype="float32"), away_mesh())
    y = fnp.sin(x * 2) + 1
    assert y.devices() == {THERE, FARTHER}
    assert y.device == y.sharding
    assert not READ
    assert [s.data.device for s in y.addressable_shards] == [THERE, FARTHER]
    np.testing.assert_allclose(y, np.sin(np.arange(4) * 2) + 1, rtol=1e-6)
    assert repr(y).startswith("ShardedArray([1.")
    assert y.is_fully_addressable


def test_collectives_go_through_the_communicator():
    mesh = away_mesh()
    x = cut(np.arange(8.0, dtype="float32").reshape(4, 2), mesh)
    lanes = make_mesh((2,), "i")
    here = cut(np.asarray(x), lanes)
    collectives = {
        "psum": (partial(fg.lax.psum, axis_name="i"), P()),
        "pmax": (partial(fg.lax.pmax, axis_name="i"), P()),
        "all_gather": (partial(fg.lax.all_gather, axis_name="i", tiled=True), P("i")),
        "psum_scatter": (partial(fg.lax.psum_scatter, axis_name="i", tiled=True), P("i")),
        "all_to_all": (lambda x: fg.lax.all_to_all(x, "i", 0, 0, tiled=True), P("i")),
        "ppermute": (lambda x: fg.lax.ppermute(x, "i", [(0, 1)]), P("i")),
    }
    for name, (f, out) in collectives.items():
        GROUPS.clear()
        READ.clear()
        there = fg.jit(shard_map(f, mesh=mesh, in_specs=P("i"), out_specs=out))(x)
        assert sum(g.exchanges for g in GROUPS), name
        assert not READ, name
        of_lanes = fg.jit(shard_map(f, mesh=lanes, in_specs=P("i"), out_specs=out))(here)
        np.testing.assert_array_equal(there, of_lanes, err_msg=name)


def test_partitioned_programs():
    mesh = away_mesh()
    data = np.linspace(-1, 1, 12, dtype="float32").reshape(4, 3)
    w = np.full((3, 2), 0.5, np.float32)
    x = cut(data, mesh)
    READ.clear()
    step = fg.jit(fg.value_and_grad(lambda w, x: fnp.mean(fnp.tanh(x @ w) ** 2)))
    got, want = step(fg.device_put(w, NamedSharding(mesh, P())), x), step(w, data)
    assert sum(g.exchanges for g in GROUPS)
    assert not READ
    for g, v in zip(fg.tree.leaves(got), fg.tree.leaves(want), strict=True):
        np.testing.assert_allclose(g, v, rtol=1e-5)
    assert not np.shares_memory(copy.deepcopy(x).buffer.parts[0]._x, x.buffer.parts[0]._x)


def test_a_communicator_takes_its_own_buffers():
    group = Group(1)
    with context.scoped(communicators=lambda axes: AwayCommunicator(group, 0)):
        assert type(psum_p.impl(elsewhere.namespace, Away(np.ones(2)), axis_name=("i",))) is Away
        with pytest.raises(TypeError, match=r"psum.*: devices exchange arrays of .*Away.*, got "):
            psum_p.impl(np, np.ones(2), axis_name=("i",))


def test_errors_of_meshes():
    x = fg.device_put(np.ones((2, 3), np.float32), THERE)
    mesh = make_mesh((2,), "i")
    with pytest.raises(ShardingError, match="different devices, .*'away'.* and those of Mesh"):
        x[0, :2] + cut(np.ones(2, np.float32), mesh)
    for devices in ([HERE, THERE], [Device(i, kind="odd") for i in range(2)]):
        odd = make_mesh((2,), "i", devices=devices)
        with pytest.raises(
            ShardingError, match="a mesh needs one that has a runtime, of 'virtual'"
        ):
            cut(np.ones(2), odd)
    with pytest.raises(ValueError, match="a runtime for devices of the kind 'away' already"):
        spmd.register_runtime("away", AwayRuntime)
