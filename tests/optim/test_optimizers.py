"""Each optimizer against its formula written in NumPy, on dtypes, under jit, and on a quadratic."""

import math
from functools import partial

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import errors, optim, tree

STEPS = 5
F64 = np.float64


def sgd(g, p, s, t, lr=0.1, momentum=0.0, nesterov=False):
    s["m"] = g + momentum * s.get("m", 0)
    return -lr * (g + momentum * s["m"] if nesterov else s["m"])


def adam(g, p, s, t, lr=0.1, b1=0.9, b2=0.999, eps=1e-8, root=0.0, decay=0.0, nesterov=False):
    s["m"] = b1 * s.get("m", 0) + (1 - b1) * g
    s["v"] = b2 * s.get("v", 0) + (1 - b2) * g * g
    mean = s["m"] / (1 - b1**t)
    if nesterov:
        mean = b1 * s["m"] / (1 - b1 ** (t + 1)) + (1 - b1) * g / (1 - b1**t)
    return -lr * (mean / (np.sqrt(s["v"] / (1 - b2**t) + root) + eps) + decay * p)


def lion(g, p, s, t, lr=0.1, b1=0.9, b2=0.99, decay=1e-3):
    m = s.get("m", 0)
    s["m"] = b2 * m + (1 - b2) * g
    return -lr * (np.sign(b1 * m + (1 - b1) * g) + decay * p)


def rmsprop(g, p, s, t, lr=0.1, decay=0.9, eps=1e-8, start=0.0, momentum=0.0, inside=True):
    s["v"] = decay * s.get("v", start) + (1 - decay) * g * g
    scaled = g / (np.sqrt(s["v"] + eps) if inside else np.sqrt(s["v"]) + eps)
    s["m"] = -lr * scaled + momentum * s.get("m", 0)
    return s["m"]


def adagrad(g, p, s, t, lr=0.1, start=0.1, eps=1e-7):
    s["s"] = s.get("s", start) + g * g
    return -lr * g / np.sqrt(s["s"] + eps)


CASES = {
    "sgd": (optim.sgd(0.1), sgd),
    "sgd_momentum": (optim.sgd(0.1, 0.9), partial(sgd, momentum=0.9)),
    "sgd_nesterov": (optim.sgd(0.1, 0.9, True), partial(sgd, momentum=0.9, nesterov=True)),
    "adam": (optim.adam(0.1), adam),
    "adam_b1_0": (optim.adam(0.1, b1=0.0), partial(adam, b1=0.0)),
    "adam_root": (optim.adam(0.1, 0.8, 0.9, 1e-3, 1e-2), partial(adam, b1=0.8, b2=0.9, eps=1e-3, root=1e-2)),  # noqa: E501
    "adam_nesterov": (optim.adam(0.1, nesterov=True), partial(adam, nesterov=True)),
    "adamw": (optim.adamw(0.1, weight_decay=0.3), partial(adam, decay=0.3)),
    "lion": (optim.lion(0.1), lion),
    "lion_decay": (optim.lion(0.1, 0.5, 0.6, weight_decay=0.2), partial(lion, b1=0.5, b2=0.6, decay=0.2)),  # noqa: E501
    "rmsprop": (optim.rmsprop(0.1), rmsprop),
    "rmsprop_start": (optim.rmsprop(0.1, 0.8, 1e-3, 0.5), partial(rmsprop, decay=0.8, eps=1e-3, start=0.5)),  # noqa: E501
    "rmsprop_outside": (optim.rmsprop(0.1, eps=1e-2, eps_in_sqrt=False), partial(rmsprop, eps=1e-2, inside=False)),  # noqa: E501
    "rmsprop_momentum": (optim.rmsprop(0.1, momentum=0.9), partial(rmsprop, momentum=0.9)),
    "adagrad": (optim.adagrad(0.1), adagrad),
    "adagrad_start": (optim.adagrad(0.1, 0.0, 1e-3), partial(adagrad, start=0.0, eps=1e-3)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
def test_formula(name, jit, rng):
    opt, formula = CASES[name]
    params = {"w": rng.normal(size=(3, 2)), "b": [rng.normal(size=4)]}
    ours, state, memory = tree.map(fnp.array, params), None, [{}, {}]
    state = opt.init(ours)
    update = fg.jit(opt.update) if jit else opt.update
    leaves, treedef = tree.flatten(params)
    for t in range(1, STEPS + 1):
        grads = [rng.normal(size=p.shape) for p in leaves]
        updates, state = update(treedef.unflatten([fnp.array(g) for g in grads]), state, ours)
        for got, p, g, s in zip(tree.leaves(updates), leaves, grads, memory, strict=True):
            assert got.dtype == F64
            np.testing.assert_allclose(got, formula(g, p, s, t), rtol=1e-12)
        ours = optim.apply_updates(ours, updates)
        leaves = [np.asarray(p) for p in tree.leaves(ours)]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_dtypes_of_updates_and_state(name, dtype):
    opt = CASES[name][0]
    params = fnp.array([1.0, -2.0, 0.0]).astype(dtype)
    state = opt.init(params)
    kinds = [x.dtype for x in tree.leaves(state)]
    updates, after = opt.update(params, state, params)
    assert updates.dtype == params.dtype
    assert optim.apply_updates(params, updates).dtype == params.dtype
    assert np.isfinite(np.asarray(updates, F64)).all()
    assert [x.dtype for x in tree.leaves(after)] == kinds
    assert all(k in (np.int32, params.dtype) for k in kinds)


@pytest.mark.parametrize(
    "opt",
    [
        optim.adam(0.1, mu_dtype="float32"),
        optim.lion(0.1, mu_dtype="float32"),
        optim.sgd(0.1, 0.9, accumulator_dtype="float32"),
    ],
)
def test_moments_in_a_wider_dtype(opt):
    params = fnp.ones(2, "bfloat16")
    state = opt.init(params)
    updates, after = opt.update(params, state, params)
    for s in (state, after):
        assert np.float32 in [x.dtype for x in tree.leaves(s)]
    assert optim.apply_updates(params, updates).dtype == params.dtype


@pytest.mark.parametrize(
    "opt",
    [
        optim.sgd(0.1),
        optim.sgd(0.05, 0.9, nesterov=True),
        optim.adam(0.1),
        optim.adamw(0.1, weight_decay=0.0),
        optim.rmsprop(0.02),
        optim.adagrad(1.0),
        optim.lion(optim.exponential_decay(0.1, 20, 0.7), weight_decay=0.0),
        optim.chain(optim.clip_by_global_norm(1.0), optim.sgd(0.3)),
        optim.chain(optim.clip(0.5), optim.sgd(0.3)),
    ],
)
def test_a_quadratic_falls(opt):
    goal = {"a": fnp.array([1.0, -2.0]), "b": fnp.array(0.5)}

    def loss(p):
        return sum(fnp.sum((p[k] - goal[k]) ** 2 * (1 + i)) for i, k in enumerate(goal))

    @partial(fg.jit, donate_argnums=(0, 1))
    def step(p, s):
        updates, s = opt.update(fg.grad(loss)(p), s, p)
        return optim.apply_updates(p, updates), s

    params = tree.map(fnp.zeros_like, goal)
    state = opt.init(params)
    for _ in range(300):
        params, state = step(params, state)
    assert float(loss(params)) < 1e-3


def test_bias_correction_is_precise():
    """Of float32, too: 1 - 0.999 by subtraction would be off by 2e-5."""
    opt = optim.scale_by_adam(b1=0.5, b2=0.9999)
    out, _ = opt.update(fnp.array(2.0), opt.init(fnp.array(0.0)))
    assert float(out) == pytest.approx(1.0, abs=1e-6)


def test_a_learning_rate_may_be_traced():
    params = fnp.array([1.0, 2.0])

    def stepped(rate):
        opt = optim.adam(rate)
        updates, _ = opt.update(params, opt.init(params))
        return fnp.sum(optim.apply_updates(params, updates))

    assert float(fg.jit(fg.grad(stepped))(0.1)) == pytest.approx(-2.0, rel=1e-5)


def test_decays_may_be_traced():
    params = fnp.array([1.0, 2.0])
    step = lambda b: optim.scale_by_adam(b1=b).update(params, optim.scale_by_adam().init(params))
    np.testing.assert_allclose(fg.jit(step)(0.9)[0], step(0.9)[0], rtol=1e-5)


def test_vmap_over_learning_rates():
    params = fnp.array([1.0, 2.0])

    def stepped(rate):
        updates, _ = optim.sgd(rate).update(params, optim.sgd(rate).init(params))
        return optim.apply_updates(params, updates)

    out = fg.vmap(stepped)(fnp.array([0.0, 0.5]))
    np.testing.assert_allclose(out, [[1, 2], [0.5, 1.0]])


# ---- parts


def test_clip_by_global_norm(rng):
    grads = {"a": fnp.array([3.0, 0.0]), "b": fnp.array([[4.0]], "bfloat16")}
    step = optim.clip_by_global_norm(1.0)
    out, _ = step.update(grads, step.init(grads))
    np.testing.assert_allclose(out["a"], [0.6, 0.0], rtol=1e-6)
    assert out["b"].dtype == grads["b"].dtype
    small, _ = optim.clip_by_global_norm(5.5).update(grads, optim.EmptyState())
    assert np.array_equal(small["a"], grads["a"])
    assert float(optim.global_norm(grads)) == 5.0
    assert float(optim.global_norm([])) == 0.0


def test_global_norm_of_half_precision_does_not_overflow():
    assert float(optim.global_norm(fnp.full((4,), 300.0, "float16"))) == 600.0
    assert float(optim.global_norm(fnp.array([3 + 4j]))) == 5.0


def test_masked_by_tree_prefix_and_function():
    params = {"w": {"x": fnp.ones(2), "y": fnp.ones(3)}, "b": fnp.ones(2)}
    for mask in (
        {"w": {"x": True, "y": True}, "b": False},
        {"w": True, "b": False},
        lambda p: {"w": tree.map(lambda _: True, p["w"]), "b": False},
    ):
        step = optim.masked(optim.trace(0.5), mask)
        state = step.init(params)
        _, state = step.update(params, state)
        out, _ = step.update(params, state)
        assert [float(x[0]) for x in tree.leaves(out)] == [1.0, 1.5, 1.5]  # b, w.x, w.y


def test_masked_says_where_the_mask_differs():
    step = optim.masked(optim.scale(2.0), {"a": True})
    with pytest.raises(errors.TreeError, match="b"):
        step.init({"a": 1.0, "b": 2.0})


def test_frozen_parameters_stay():
    opt = optim.chain(optim.adam(0.1), optim.masked(optim.set_to_zero(), {"a": True, "b": False}))
    params = {"a": fnp.ones(2), "b": fnp.ones(2)}
    updates, _ = opt.update(params, opt.init(params), params)
    after = optim.apply_updates(params, updates)
    assert np.array_equal(after["a"], params["a"])
    assert not np.array_equal(after["b"], params["b"])


@pytest.mark.parametrize("state", [(optim.EmptyState(),), optim.EmptyState(), None])
def test_a_chain_wants_its_own_state(state):
    step = optim.chain(optim.scale(1.0), optim.scale(2.0), optim.scale(2.0))
    with pytest.raises(ValueError, match=r"chain of 3 .* init\(params\)"):
        step.update(1.0, state)


def test_decay_needs_parameters():
    opt = optim.adamw(0.1)
    with pytest.raises(ValueError, match=r"update\(grads, state, params\)"):
        opt.update(1.0, opt.init(1.0))


def test_adagrad_of_zero_gradients_stays():
    opt = optim.adagrad(0.1, 0.0, 0.0)
    updates, _ = opt.update(fnp.zeros(2), opt.init(fnp.zeros(2)))
    assert np.array_equal(updates, [0.0, 0.0])


def test_weight_decay_mask():
    opt = optim.adamw(1.0, weight_decay=0.5, mask={"w": True, "b": False})
    params = {"w": fnp.array(2.0), "b": fnp.array(2.0)}
    zero = tree.map(fnp.zeros_like, params)
    updates, _ = opt.update(zero, opt.init(params), params)
    assert (float(updates["w"]), float(updates["b"])) == (-1.0, 0.0)


def test_update_of_python_numbers():
    opt = optim.adam(0.1)
    updates, _ = opt.update({"a": 2.0}, opt.init({"a": 1.0}))
    assert math.isclose(float(updates["a"]), -0.1, rel_tol=1e-5)
