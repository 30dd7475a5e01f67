"""The lockstep of virtual devices: per-device programs as one."""

import numpy as np
import pytest

import funcgrad as fg
from funcgrad import lax
from funcgrad.core import context
from funcgrad.core.aval import ShapedArray
from funcgrad.core.ir import interpret, typecheck
from funcgrad.core.sharding import P
from funcgrad.core.staging import stage
from funcgrad.parallel import shard_map
from funcgrad.parallel.programs.program import SpmdProgram
from funcgrad.parallel.runtimes.lockstep import from_lanes, lockstep, to_lanes

MESH = fg.make_mesh((2, 3), ("x", "y"))
VALUES = np.arange(72, dtype=np.float32).reshape(6, 12)
SPECS = [P(), P("x"), P("y"), P(None, "x"), P("x", "y"), P("y", "x"), P(("x", "y")),
         P(None, ("y", "x"))]  # fmt: skip


def program(fun, spec, out_spec, shape=(6, 12)):
    """A per-device program of one operand and one result."""
    cuts = spec.cuts(2)
    local = tuple(n // MESH.extent(c) for n, c in zip(shape, cuts, strict=True))
    with context.scoped(axes=MESH.shape):
        jaxpr, _ = stage(lambda v: [fun(v)], [ShapedArray(local, "float32")])
    return SpmdProgram(jaxpr, MESH, (cuts,), (out_spec.cuts(jaxpr.out_avals[0].ndim),))


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_lanes_and_back(spec):
    cuts = spec.cuts(2)
    lanes = to_lanes(fg.numpy.array(VALUES), cuts, MESH)
    sizes = [MESH.shape[a] for a in MESH.axis_names if a in spec.axes()]
    assert lanes.shape[: len(sizes)] == tuple(sizes)
    np.testing.assert_array_equal(np.asarray(from_lanes(lanes, cuts, MESH)), VALUES)


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_each_device_sees_its_part(spec):
    """A device's number, written over its part."""

    def mark(v):
        return v * 0 + lax.axis_index(("x", "y"))

    spmd = program(mark, spec, spec)
    whole = lockstep(spmd)
    typecheck(whole)
    (got,) = interpret(whole, np, VALUES)
    want = np.zeros_like(VALUES)
    sharding = fg.NamedSharding(MESH, spec)
    # Where several devices hold a part, that of the first one is the result.
    for device, index in reversed(sharding.devices_indices_map(VALUES.shape).items()):
        want[index] = device.id
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    ("fun", "spec", "out_spec", "want"),
    [
        (lambda v: lax.psum(v, ("x", "y")), P("x", "y"), P(),
         VALUES.reshape(2, 3, 3, 4).sum((0, 2))),
        (lambda v: lax.all_gather(v, "x", axis=0, tiled=True), P("x"), P(), VALUES),
        (lambda v: lax.psum_scatter(v, "y", tiled=True), P(), P("y"), 3 * VALUES),
        (lambda v: lax.all_to_all(v, "x", 1, 0, tiled=True), P("x"), P(None, "x"), VALUES),
        (lambda v: lax.ppermute(v, "x", [(0, 1), (1, 0)]), P("x"), P("x"),
         np.roll(VALUES, 3, axis=0)),
    ],
)  # fmt: skip
def test_collectives(fun, spec, out_spec, want):
    spmd = program(fun, spec, out_spec)
    (got,) = interpret(lockstep(spmd), np, VALUES)
    np.testing.assert_array_equal(got, want)


def test_the_program_knows_whole_types():
    spmd = program(lambda v: v[0], P("x", "y"), P("y"))
    assert spmd.in_avals == [ShapedArray((6, 12), "float32")]
    assert spmd.out_avals == [ShapedArray((12,), "float32")]
    assert repr(spmd).startswith("per device of Mesh('x': 2, 'y': 3):")


def test_what_a_device_does_not_take_has_no_derivative():
    mesh = fg.make_mesh((4,), ("x",))
    x, w = np.array([4.0, -1.0, 0.0, 9.0], np.float32), np.float32(2.0)

    @fg.jit
    @fg.grad
    def loss(args):
        def device(x, w):
            f = lambda v: fg.numpy.sqrt(w * v)
            return lax.cond(x[0] > 0, f, lambda v: w * v, x)

        out = shard_map(device, mesh=mesh, in_specs=(P("x"), P()), out_specs=P("x"))(*args)
        return out.sum()

    dx, dw = loss((x, w))
    np.testing.assert_allclose(dx, [8**-0.5, 2, 2, 18**-0.5], rtol=1e-6)
    np.testing.assert_allclose(dw, 2 * 8**-0.5 - 1 + 4.5 * 18**-0.5, rtol=1e-6)
