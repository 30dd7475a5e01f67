"""Casts made once: ahead of loops, and before what is cast is sent to other devices."""

from functools import partial

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import dtypes, lax
from funcgrad.errors import ShapeError
from funcgrad.parallel import NamedSharding, P, make_mesh, shard_map
from funcgrad.transforms.passes.simplify import simplify
from funcgrad.transforms.precision.casts import cast_once, narrowed_p
from tests.parallel.partitioned import partitioned, run
from tests.transforms.precision.test_autocast import equations, some

BF16 = dtypes.canonical("bfloat16")
DEVICES = 4


@pytest.fixture
def args(rng):
    """Weights, inputs, targets; more inputs than weights."""
    return [some(rng, 8, 16, scale=0.3), some(rng, 16, 4, scale=0.3), some(rng, 512, 8),
            some(rng, 512, 4)]  # fmt: skip


def loss(a, b, x, y):
    return fnp.mean((fnp.tanh(x @ a) @ b - y) ** 2)


def gradients(f):
    def flat(*args):
        value, grads = fg.value_and_grad(f, (0, 1))(*args)
        return [value, *grads]

    return flat


def sent(jaxpr, *kinds):
    """The types of what is sent by collectives of these kinds, but for single numbers."""
    return [e.ins[0].aval for e in equations(jaxpr) if e.prim.name in kinds and e.ins[0].aval.ndim]


def test_a_narrowed_value_has_the_derivatives_of_the_wide_one():
    x = fnp.ones(3)
    f = lambda x: narrowed_p.bind(x, x.astype("bfloat16"))
    y, t = fg.jvp(f, (x,), (x * 0.5,))
    assert (y.dtype, t.dtype) == (BF16, BF16)
    assert fg.grad(lambda x: fnp.sum(f(x).astype("float32")))(x).tolist() == [1, 1, 1]
    with pytest.raises(ShapeError, match="narrowed: need a value and a copy of its shape"):
        narrowed_p.bind(x, fnp.ones(2))


def test_what_nothing_changes_stays_the_same_program(rng):
    jaxpr = fg.make_jaxpr(lambda x: lax.fori_loop(0, 3, lambda i, x: x * 2, x))(1.0).jaxpr
    assert cast_once(jaxpr, BF16) is jaxpr


def test_views_of_a_weight_are_cast_ahead_of_the_loop(rng):
    w, x = some(rng, 2, 6, 4), some(rng, 6)

    def f(w, x):
        def turn(h, _):
            part = w[1].T.reshape(4, 2, 3)[:3].transpose(1, 2, 0).reshape(6, 3)
            return fnp.tanh(part @ h[:3]), None

        return fnp.sum(lax.scan(turn, x, None, length=3)[0])

    cast = fg.autocast(f)
    eqns = list(equations(simplify(fg.make_jaxpr(cast)(w, x).jaxpr)))
    made = [str(e.outs[0].aval) for e in eqns if e.prim.name == "convert_element_type"]
    (loop,) = [e for e in eqns if e.prim.name == "scan"]
    assert "bf16[6,3]" in map(str, (a.aval for a in loop.ins))
    assert made.count("bf16[6,3]") == 1
    assert np.allclose(fg.grad(cast)(w, x), fg.grad(f)(w, x), atol=0.05)


def test_lanes_of_a_loop_with_its_copies(rng):
    w, x = some(rng, 5, 4, 4, scale=0.3), some(rng, 5, 4)
    f = lambda w, x: fnp.sum(lax.fori_loop(0, 3, lambda i, h: fnp.tanh(w @ h), x))
    wanted = fg.vmap(fg.grad(f))(w, x)
    assert np.allclose(fg.vmap(fg.grad(fg.autocast(f)))(w, x), wanted, atol=0.05)
    shared = fg.vmap(fg.grad(fg.autocast(f)), (None, 0))(w[0], x)
    assert np.allclose(shared, fg.vmap(fg.grad(f), (None, 0))(w[0], x), atol=0.05)


def test_partitioned_programs_gather_narrow_weights(args):
    mesh = make_mesh((DEVICES,), ("d",))
    step = gradients(fg.autocast(loss))
    program, _, whole = partitioned(step, args, mesh, [("d",)] * 4)
    gathered = sent(program.jaxpr, "all_gather")
    assert [str(a) for a in gathered] == ["bf16[2,16]", "bf16[4,4]"]
    for got, wanted in zip(run(program, whole), step(*args), strict=True):
        scale = np.abs(np.asarray(wanted)).max()
        assert np.abs(got - np.asarray(wanted)).max() < 0.01 * scale


def test_jit_with_shardings_gives_what_one_device_gives(args):
    mesh = make_mesh((DEVICES,), ("d",))
    cut = NamedSharding(mesh, P("d"))
    step = gradients(fg.autocast(loss))
    spread = fg.jit(
        step, in_shardings=(cut,) * 4, out_shardings=[NamedSharding(mesh, P()), cut, cut]
    )
    for got, wanted in zip(spread(*args), step(*args), strict=True):
        assert got.dtype == np.float32
        scale = np.abs(np.asarray(wanted)).max()
        assert np.abs(np.asarray(got) - np.asarray(wanted)).max() < 0.01 * scale


def over_devices(a, b, x, y):
    gather = partial(lax.all_gather, axis_name="d", tiled=True)
    return lax.pmean(loss(gather(a), gather(b), x, y), "d")


def test_shard_map_gathers_narrow_weights_and_sums_their_cotangents_in_float32(args):
    mesh = make_mesh((DEVICES,), ("d",))
    f = shard_map(over_devices, mesh=mesh, in_specs=(P("d"),) * 4, out_specs=P())
    step = gradients(fg.autocast(f))
    jaxpr = simplify(fg.make_jaxpr(step)(*args).jaxpr)
    assert [str(a) for a in sent(jaxpr, "all_gather")] == ["bf16[2,16]", "bf16[4,4]"]
    assert [str(a) for a in sent(jaxpr, "psum_scatter")] == ["f32[16,4]", "f32[8,16]"]
    exact = gradients(loss)(*args)
    for got, wanted in zip(step(*args), exact, strict=True):
        scale = np.abs(np.asarray(wanted)).max()
        assert np.abs(np.asarray(got) - np.asarray(wanted)).max() < 0.02 * scale
