"""Loss scaling: when it grows and shrinks, steps that are skipped to the bit, programs."""

from functools import partial

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax, optim, tree

W = {"w": fnp.array([1.0, -2.0]), "b": fnp.array(0.5, "float32")}


def loss(params, x):
    return fnp.mean((x * params["w"] + params["b"]) ** 2)


def bits(pytree):
    return [np.asarray(x).tobytes() for x in tree.leaves(pytree)]


def test_gradients_are_those_of_the_loss():
    x = fnp.array([3.0, 4.0])
    scale, finite, value, grads = fg.scaled_value_and_grad(loss)(optim.LossScale(), W, x)
    wanted_value, wanted = fg.value_and_grad(loss)(W, x)
    assert bool(finite)
    assert float(value) == float(wanted_value)
    assert bits(grads) == bits(wanted)
    assert (float(scale.scale), int(scale.count)) == (65536, 1)


def test_small_gradients_survive_in_float16():
    """3e-8 is half of float16's smallest number; times 2¹⁶ it is an ordinary one."""
    f = lambda w: fnp.sum((w.astype("float16") * 1.0).astype("float32")) * 2e-8
    w = fnp.ones(3)
    assert np.asarray(fg.grad(f)(w)).tolist() == [0, 0, 0]
    _, finite, _, grads = fg.scaled_value_and_grad(f)(optim.LossScale(), w)
    assert bool(finite)
    assert np.allclose(grads, 2e-8, rtol=1e-3)


def test_it_grows_after_finite_steps_and_shrinks_otherwise():
    scale = optim.LossScale.of(8.0, interval=3)
    seen = []
    for finite in (True, True, True, True, False, True, True, False, False):
        scale = scale.adjusted(finite)
        seen.append((float(scale.scale), int(scale.count)))
    assert seen == [(8, 1), (8, 2), (16, 0), (16, 1), (8, 0), (8, 1), (8, 2), (4, 0), (2, 0)]
    for _ in range(5):
        scale = scale.adjusted(False)
    assert float(scale.scale) == 1.0
    large = optim.LossScale.of(2.0**127, interval=1).adjusted(True)
    assert np.isfinite(large.scale)


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("jit", [False, True])
def test_a_step_with_an_infinity_leaves_everything_as_it_was(bad, jit):
    opt = optim.adam(0.1)

    def step(scale, params, state, x):
        scale, finite, _, grads = fg.scaled_value_and_grad(loss)(scale, params, x)
        updates, new = opt.update(grads, state, params)
        kept = optim.select(finite, (optim.apply_updates(params, updates), new), (params, state))
        return scale, *kept

    run = fg.jit(step) if jit else step
    scale, params, state = run(optim.LossScale(), W, opt.init(W), fnp.array([1.0, 2.0]))
    assert bits(params) != bits(W)
    again = run(scale, params, state, fnp.array([1.0, bad]))
    assert bits(again[1:]) == bits((params, state))
    assert (float(again[0].scale), int(again[0].count)) == (32768, 0)


def test_a_loop_of_steps_in_float16_is_one_program():
    narrow = fg.autocast(lambda w, x: fnp.mean((x @ w - 1.0) ** 2), "float16")
    x, opt = fnp.eye(4) * 2, optim.sgd(0.2)

    def step(carry, _):
        scale, w, state = carry
        scale, finite, value, grads = fg.scaled_value_and_grad(narrow)(scale, w, x)
        updates, new = opt.update(grads, state, w)
        w, state = optim.select(finite, (optim.apply_updates(w, updates), new), (w, state))
        return (scale, w, state), (value, finite)

    start = optim.LossScale(), fnp.zeros(4), opt.init(fnp.zeros(4))
    (_, w, _), (values, finite) = fg.jit(lambda c: lax.scan(step, c, None, length=40))(start)
    assert not bool(finite[0])  # 65536 is infinite in float16
    assert bool(finite[-1])
    assert np.abs(np.asarray(w) - 0.5).max() < 1e-2
    assert float(values[-1]) < 1e-4


def test_what_else_the_function_gives_and_several_arguments():
    f = lambda a, b: (a * b, {"sum": a + b})
    got = fg.scaled_value_and_grad(f, (0, 1), has_aux=True)(optim.LossScale(), 2.0, 3.0)
    _, _, (value, aux), grads = got
    assert (float(value), float(aux["sum"]), *map(float, grads)) == (6, 5, 3, 2)
    narrow = partial(fg.scaled_value_and_grad(lambda w: fnp.sum(w * w)), optim.LossScale.of(1024.0))
    _, _, value, grad = narrow(fnp.ones(2, "float16"))
    assert (value.dtype, grad.dtype) == (np.float16, np.float16)
    assert grad.tolist() == [2, 2]


def test_the_scale_is_a_pytree_that_keeps_its_numbers():
    scale = optim.LossScale.of(4.0, interval=7, factor=3.0, least=0.5)
    again = tree.map(lambda x: x, scale)
    assert (again.interval, again.factor, again.least) == (7, 3.0, 0.5)
    assert len(tree.leaves(scale)) == 2


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: optim.LossScale.of(np.inf), "LossScale: scale must be finite and ≥ 1.0, got inf"),
        (lambda: optim.LossScale.of(interval=0), "interval must be finite and ≥ 1, got 0"),
        (lambda: optim.LossScale.of(factor=1.0), "need factor > 1 and least > 0"),
        (lambda: fg.scaled_value_and_grad(loss)(W, 1.0), "must be an optim.LossScale, got {"),
        (lambda: fg.scaled_value_and_grad(loss, -1), "argnums must be ≥ 0, got -1"),
        (lambda: optim.select(True, {"a": 1.0}, {"b": 1.0}), "both must have one structure"),
        (
            lambda: optim.select(True, {"a": fnp.ones(2)}, {"a": 1.0}),
            r"\['a'\] must be of one type",
        ),
        (lambda: optim.select(True, 1, 1.0), "the values must be of one type, got int32"),
    ],
)
def test_wrong_arguments(call, words):
    with pytest.raises((TypeError, ValueError), match=words):
        call()
