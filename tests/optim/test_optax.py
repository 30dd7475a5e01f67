"""Each optimizer, step and schedule gives what Optax's does, to rounding; `optax_values.json` has
that. Their states compile, loop, map and shard."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax, optim, tree
from funcgrad.io import checkpoints
from funcgrad.parallel import fsdp
from tests.optim import optax_cases as cases

VALUES = json.loads((Path(__file__).parent / "optax_values.json").read_text())


def params_of(dtype=None):
    return tree.map(lambda x: fnp.asarray(x, dtype), cases.PARAMS)


def rows(params):
    return np.concatenate([np.ravel(x) for x in tree.leaves(params)])


def test_every_case_has_values():
    assert set(VALUES["optimizers"]) == set(cases.OPTIMIZERS)
    assert set(VALUES["searches"]) == set(cases.SEARCHES)
    assert set(VALUES["schedules"]) == set(cases.SCHEDULES)


@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("name", cases.OPTIMIZERS)
def test_steps_are_optax_s(name, jit):
    opt, params = cases.OPTIMIZERS[name](optim), params_of()
    state = opt.init(params)
    update = fg.jit(opt.update) if jit else opt.update
    for t, expected in enumerate(VALUES["optimizers"][name]):
        updates, after = update(tree.map(fnp.asarray, cases.grads(t)), state, params)
        assert tree.structure(after) == tree.structure(state)
        types = zip(tree.leaves(after), tree.leaves(state), strict=True)
        assert all(a.dtype == s.dtype and a.shape == s.shape for a, s in types)
        params, state = optim.apply_updates(params, updates), after
        np.testing.assert_allclose(rows(params), expected, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("name", cases.OPTIMIZERS)
def test_states_are_carried_by_scan(name):
    opt = cases.OPTIMIZERS[name](optim)
    grads = [tree.map(fnp.asarray, cases.grads(t)) for t in range(cases.STEPS)]

    def step(carry, g):
        params, state = carry
        updates, state = opt.update(g, state, params)
        params = optim.apply_updates(params, updates)
        return (params, state), rows_traced(params)

    def rows_traced(params):
        return fnp.concatenate([fnp.ravel(x) for x in tree.leaves(params)])

    stacked = tree.map(lambda *x: fnp.stack(x), *grads)
    params = params_of()
    _, got = lax.scan(step, (params, opt.init(params)), stacked)
    np.testing.assert_allclose(got, VALUES["optimizers"][name], rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("name", cases.OPTIMIZERS)
def test_vmap_trains_each(name):
    opt = cases.OPTIMIZERS[name](optim)
    scales = fnp.array([1.0, -0.5])

    def train(factor):
        params = tree.map(lambda x: factor * x, params_of())
        state = opt.init(params)
        for t in range(2):
            g = tree.map(lambda x: factor * fnp.asarray(x), cases.grads(t))
            updates, state = opt.update(g, state, params)
            params = optim.apply_updates(params, updates)
        return params

    got = fg.vmap(train)(scales)
    for i in range(2):
        each = train(scales[i])
        np.testing.assert_allclose(
            rows(tree.map(lambda x, i=i: x[i], got)), rows(each), rtol=1e-9, atol=1e-12
        )


@pytest.mark.parametrize("name", cases.OPTIMIZERS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_dtypes(name, dtype):
    opt, params = cases.OPTIMIZERS[name](optim), params_of(dtype)
    grads = tree.map(lambda x: fnp.asarray(x, dtype), cases.grads(0))
    state = opt.init(params)
    updates, after = opt.update(grads, state, params)
    assert {x.dtype.name for x in tree.leaves(updates)} == {dtype}
    pairs = zip(tree.leaves(after), tree.leaves(state), strict=True)
    assert all(a.dtype == s.dtype for a, s in pairs)
    expected = VALUES["optimizers"][name][0]
    tolerance = {"float32": 1e-4, "bfloat16": 6e-2}[dtype]
    new = rows(optim.apply_updates(params, updates)).astype(np.float64)
    np.testing.assert_allclose(new, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", ["adamw_mask", "lamb", "adafactor", "multi_steps", "multi_transform", "inject_hyperparams", "lbfgs_direction"])  # fmt: skip # noqa: E501
def test_sharded_parameters(name):
    """The state of parameters that are cut over devices is cut likewise, and steps are the same."""
    opt, params = cases.OPTIMIZERS[name](optim), params_of()
    params = {"w": fnp.tile(params["w"], (4, 2)), "b": fnp.tile(params["b"], 4)}
    mesh = fg.make_mesh(4, "data")
    cut = partial(fsdp, mesh=mesh, min_size=8)

    @fg.jit
    def step(params, state, grads):
        updates, state = opt.update(grads, state, params)
        return optim.apply_updates(params, updates), state

    state = opt.init(params)
    ours = fg.device_put(params, cut(params)), fg.device_put(state, cut(state))
    whole = params, state
    for t in range(cases.STEPS):
        g = cases.grads(t)
        g = {"w": fnp.tile(fnp.asarray(g["w"]), (4, 2)), "b": fnp.tile(fnp.asarray(g["b"]), 4)}
        whole = step(*whole, g)
        ours = step(*ours, fg.device_put(g, cut(g)))
    np.testing.assert_allclose(rows(ours[0]), rows(whole[0]), rtol=1e-7)
    for a, b in zip(tree.leaves(ours[1]), tree.leaves(whole[1]), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("name", ["adafactor", "multi_steps", "multi_transform", "inject_hyperparams", "rmsprop_unbiased"])  # fmt: skip # noqa: E501
def test_states_are_saved_and_donated(name, tmp_path):
    """A training that is broken off goes on as if it weren't."""
    opt = cases.OPTIMIZERS[name](optim)

    @partial(fg.jit, donate_argnums=(0, 1))
    def step(params, state, grads):
        updates, state = opt.update(grads, state, params)
        return optim.apply_updates(params, updates), state

    params = params_of()
    held = params, opt.init(params)
    for t in range(cases.STEPS):
        held = step(*held, tree.map(fnp.asarray, cases.grads(t)))
        checkpoints.save(tmp_path / str(t), held)
        held = checkpoints.load(tmp_path / str(t), tree.map(fnp.zeros_like, held))
    np.testing.assert_allclose(rows(held[0]), VALUES["optimizers"][name][-1], rtol=1e-7)


@pytest.mark.parametrize("name", cases.SCHEDULES)
def test_schedules_are_optax_s(name):
    schedule = cases.SCHEDULES[name](optim)
    expected = VALUES["schedules"][name]
    np.testing.assert_allclose([schedule(n) for n in cases.COUNTS], expected, rtol=2e-6, atol=1e-8)
    counts = fnp.array(cases.COUNTS)
    got = fg.vmap(fg.jit(lambda n: fnp.asarray(schedule(n))))(counts)
    np.testing.assert_allclose(got, expected, rtol=2e-6, atol=1e-8)


# ---- with line searches


def search(name, jit, start=None):
    opt = cases.SEARCHES[name](optim)
    x = fnp.asarray(cases.START) if start is None else start
    both = optim.value_and_grad_from_state(cases.rosenbrock)

    def step(x, state):
        value, grad = both(x, state=state)
        updates, state = opt.update(
            grad, state, x, value=value, grad=grad, value_fn=cases.rosenbrock
        )
        return optim.apply_updates(x, updates), state

    step = fg.jit(step) if jit else step
    state, seen = opt.init(x), []
    for _ in range(cases.SEARCH_STEPS):
        x, state = step(x, state)
        seen.append(x)
    return fnp.stack(seen)


@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("name", cases.SEARCHES)
def test_searches_are_optax_s(name, jit):
    got = search(name, jit)
    np.testing.assert_allclose(got, VALUES["searches"][name], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", ["lbfgs", "gradient_backtracking"])
def test_searches_under_vmap(name):
    starts = fnp.stack([fnp.asarray(cases.START), fnp.asarray(cases.START[::-1])])
    got = fg.vmap(lambda x: search(name, False, x))(starts)
    for i in range(2):
        np.testing.assert_allclose(got[i], search(name, True, starts[i]), rtol=1e-6, atol=1e-8)
