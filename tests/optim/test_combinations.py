"""What combines steps: extra arguments, masks in masks, conditions, injected numbers; bad input."""

from functools import partial

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import errors, optim, random, tree

PARAMS = {"w": fnp.array([1.0, -2.0]), "b": fnp.array(0.5, "float32")}


def test_arguments_by_name_go_through_chains_and_masks():
    seen = []

    def update(updates, state, params=None, *, value, **extra):
        seen.append((value, sorted(extra)))
        return updates, state

    step = optim.GradientTransformationExtraArgs(lambda p: (), update)
    outer = [
        optim.chain(optim.scale(1.0), step),
        optim.named_chain(("a", step)),
        optim.masked(step, True),
        optim.partition({0: step}, lambda p: 0),
        optim.flatten(step),
        optim.MultiSteps(step, 1),
        optim.inject_hyperparams(lambda: step)(),
        optim.conditionally_transform(step, lambda n: n == 0),
    ]
    for opt in outer:
        opt.update(PARAMS, opt.init(PARAMS), PARAMS, value=3.0, more=1)
    assert len(seen) == len(outer)
    assert all(s == (3.0, ["more"]) for s in seen)


def test_extra_arguments_are_masked_where_they_have_the_tree_s_form():
    def update(updates, state, params=None, *, extra, other):
        assert tree.leaves(extra) == [1.0]
        assert other == 5.0
        return updates, state

    step = optim.GradientTransformationExtraArgs(lambda p: (), update)
    opt = optim.masked(step, {"w": False, "b": True}, mask_compatible_extra_args=True)
    opt.update(PARAMS, opt.init(PARAMS), PARAMS, extra={"w": 2.0, "b": 1.0}, other=5.0)


def test_masked_states_have_the_parameters_form():
    state = optim.masked(optim.trace(0.9), {"w": True, "b": False}).init(PARAMS)
    assert state.inner_state.trace["b"] == optim.MaskedNode()
    paths = [tree.keystr(path) for path, _ in tree.leaves_with_path(state)]
    assert paths == [".inner_state.trace['w']"]


def test_groups_with_masks_of_their_own():
    decay = lambda p: tree.map(lambda x: x.ndim > 0, p)
    opt = optim.partition(
        {"all": optim.add_decayed_weights(1.0, decay), "none": optim.set_to_zero()},
        {"w": "all", "b": "all", "c": "none"},
    )
    params = PARAMS | {"c": fnp.ones(2)}
    out, _ = opt.update(tree.map(fnp.zeros_like, params), opt.init(params), params)
    assert np.array_equal(out["w"], params["w"])
    assert float(out["b"]) == 0
    assert not np.any(out["c"])


def test_apply_if_finite_gives_up_after_so_many():
    opt = optim.apply_if_finite(optim.trace(0.5), 2)
    state, update = opt.init(fnp.array(1.0)), fg.jit(opt.update)
    out, state = update(fnp.array(1.0), state)
    for _ in range(2):
        out, state = update(fnp.array(fnp.nan), state)
        assert float(out) == 0
        assert not state.last_finite
    out, state = update(fnp.array(fnp.nan), state)
    assert np.isnan(out)
    assert (int(state.notfinite_count), int(state.total_notfinite)) == (3, 3)
    state = state._replace(inner_state=optim.trace(0.5).init(fnp.array(1.0)))
    out, state = update(fnp.array(2.0), state)
    assert (float(out), int(state.notfinite_count)) == (2.0, 0)


@pytest.mark.parametrize("jit", [False, True])
def test_multi_steps_leaves_batches_out(jit):
    opt = optim.MultiSteps(optim.sgd(1.0), 2, should_skip_update_fn=optim.skip_not_finite)
    update, state = (fg.jit(opt.update) if jit else opt.update), opt.init(fnp.zeros(2))
    for g, wanted, updated in [(1.0, 0.0, False), (np.inf, 0.0, False), (3.0, -2.0, True)]:
        out, state = update(fnp.full(2, g), state)
        assert np.array_equal(out, [wanted, wanted])
        assert bool(opt.has_updated(state)) == updated
    assert int(state.skip_state["num_not_finite"]) == 0
    large = optim.MultiSteps(
        optim.sgd(1.0),
        1,
        should_skip_update_fn=partial(optim.skip_large_updates, max_squared_norm=4.0),
    )
    out, state = large.update(fnp.full(2, 3.0), large.init(fnp.zeros(2)))
    assert not np.any(out)
    assert float(state.skip_state["norm_squared"]) == 18


def test_multi_steps_keeps_narrow_gradients_in_float32():
    opt = optim.MultiSteps(optim.sgd(1.0), 4)
    params = fnp.ones(2, "bfloat16")
    state = opt.init(params)
    assert state.acc_grads.dtype == np.float32
    for g in (256.0, 1.0, 1.0, 1.0):
        out, state = opt.update(fnp.full(2, g, "bfloat16"), state)
    assert out.dtype == params.dtype
    assert float(out[0]) == -64.75 or float(out[0]) == -65.0


def test_multi_steps_keeps_wide_and_complex_gradients_as_they_are():
    for dtype, g in (("float64", 1 + 1e-12), ("complex64", 1 + 2j)):
        opt = optim.MultiSteps(optim.sgd(1.0), 2)
        state = opt.init(fnp.ones(2, dtype))
        assert state.acc_grads.dtype == dtype
        for _ in range(2):
            out, state = opt.update(fnp.full(2, g, dtype), state)
        assert np.array_equal(out, np.full(2, -g, dtype))
    narrow = optim.MultiSteps(optim.sgd(1.0), 2, accumulator_dtype="float32")
    assert narrow.init(fnp.ones(2, "float64")).acc_grads.dtype == np.float32


def test_injected_numbers_change_without_a_new_program():
    opt = optim.inject_hyperparams(optim.sgd)(learning_rate=0.5, momentum=0.0)
    state, traced = opt.init(PARAMS), []

    @fg.jit
    def step(grads, state):
        traced.append(1)
        return opt.update(grads, state, PARAMS)

    out, state = step(PARAMS, state)
    assert float(out["b"]) == -0.25
    state.hyperparams["learning_rate"] = fnp.array(1.0, "float32")
    out, state = step(PARAMS, state)
    assert (float(out["b"]), len(traced)) == (-0.5, 1)
    assert int(state.count) == 2


def test_injected_schedules_show_what_they_gave():
    opt = optim.inject_hyperparams(optim.adam, static_args="b1", hyperparam_dtype="float32")(
        lambda n: 0.1 / (n + 1), mu_dtype="float32"
    )
    state = opt.init(tree.map(lambda x: x.astype("float64"), PARAMS))
    assert "b1" not in state.hyperparams
    assert "mu_dtype" not in state.hyperparams
    assert state.hyperparams["b2"].dtype == np.float32
    for rate in (0.1, 0.05):
        _, state = opt.update(PARAMS, state, PARAMS)
        assert float(state.hyperparams["learning_rate"]) == pytest.approx(rate)


@pytest.mark.parametrize(
    "opt",
    [
        optim.inject_hyperparams(optim.adafactor)(learning_rate=0.1, momentum=0.9),
        optim.inject_hyperparams(optim.adamw, "mask")(0.1, mask=lambda p: {"w": True, "b": False}),
        optim.inject_hyperparams(optim.lamb)(optim.constant_schedule(0.1)),
    ],
)  # fmt: skip
def test_injected_factories_with_more_than_numbers(opt):
    state = opt.init(PARAMS)
    for _ in range(2):
        updates, state = fg.jit(opt.update)(PARAMS, state, PARAMS)
    assert float(state.hyperparams["learning_rate"]) == pytest.approx(0.1)
    assert updates["w"].dtype == PARAMS["w"].dtype


def test_gradients_by_injected_numbers():
    opt = optim.inject_hyperparams(optim.adam)(learning_rate=0.1)

    def stepped(rate):
        state = opt.init(PARAMS)
        state.hyperparams["learning_rate"] = rate
        updates, _ = opt.update(PARAMS, state, PARAMS)
        return optim.apply_updates(PARAMS, updates)["b"]

    assert float(fg.jit(fg.grad(stepped))(0.1)) == pytest.approx(-1.0, rel=1e-5)


@pytest.mark.parametrize("reset", [False, True])
def test_lookahead(reset):
    opt = optim.lookahead(optim.sgd(1.0, 0.5), 2, 0.5, reset_state=reset)
    params = optim.LookaheadParams.init_synced(fnp.array(0.0))
    state = opt.init(params)
    seen = []
    for _ in range(3):
        updates, state = opt.update(fnp.array(1.0), state, params)
        params = optim.apply_updates(params, updates)
        seen.append((float(params.fast), float(params.slow)))
    # -1, then -1 - 1.5 = -2.5 of which half; then on from there
    last = -2.25 if reset else -3.0
    assert seen == [(-1, 0), (-1.25, -1.25), (last, -1.25)]


def test_noise_falls_and_follows_its_key():
    opt = optim.add_noise(1.0, 2.0, random.key(1))
    params = {"a": fnp.zeros(1000), "b": fnp.zeros((3, 4), "float64")}
    first, state = opt.update(params, opt.init(params))
    again, _ = opt.update(params, opt.init(params))
    second, state = fg.jit(opt.update)(params, state)
    assert np.array_equal(first["a"], again["a"])
    assert float(fnp.std(first["a"])) == pytest.approx(1.0, rel=0.1)
    assert float(fnp.std(second["a"])) == pytest.approx(0.5, rel=0.1)
    assert second["b"].dtype == np.float64


def test_means_of_parameters():
    old = tree.map(fnp.zeros_like, PARAMS)
    assert float(optim.incremental_update(PARAMS, old, 0.1)["b"]) == pytest.approx(0.05)
    for steps, wanted in [(4, 0.5), (5, 0.0)]:
        assert float(optim.periodic_update(PARAMS, old, steps, 4)["b"]) == wanted


def test_zero_nans_says_where():
    step = optim.zero_nans()
    grads = {"w": fnp.array([1.0, fnp.nan]), "b": fnp.array(1.0)}
    out, state = step.update(grads, step.init(grads))
    assert np.array_equal(out["w"], [1.0, 0.0])
    assert (bool(state.found_nan["w"]), bool(state.found_nan["b"])) == (True, False)


def test_complex_gradients():
    """Second moments are of absolute values: an update's phase stays, its size is that of |g|."""
    g = fnp.array([3 + 4j, -5j])
    for opt in (optim.scale_by_adam(), optim.scale_by_rms(0.0), optim.scale_by_rss(0.0, 0.0)):
        out, state = opt.update(g, opt.init(g))
        np.testing.assert_allclose(out, [0.6 + 0.8j, -1j], rtol=1e-5)
        assert state.nu.dtype == np.float32
    assert float(optim.global_norm(g)) == pytest.approx(50**0.5)


def test_tree_get():
    state = optim.chain(optim.adam(0.1), {"a": optim.trace(0.9)}["a"]).init(PARAMS)
    assert optim.tree_get(state, "nu")["b"] == 0
    assert optim.tree_get(state, "none", 7) == 7
    both = optim.chain(optim.adam(0.1), optim.adam(0.1)).init(PARAMS)
    with pytest.raises(ValueError, match="2 parts of the state are named 'mu'"):
        optim.tree_get(both, "mu")


@pytest.mark.parametrize("wrapped", [lambda f: f, fg.jit], ids=["plain", "jit"])
def test_line_searches_pass_arguments_to_the_function(wrapped):
    data = fnp.array([1.0, 2.0])
    f = wrapped(lambda x, data, *, scale=1.0: scale * fnp.sum((x - data) ** 2))
    opt, x = optim.lbfgs(), fnp.zeros(2)
    state = opt.init(x)
    both = optim.value_and_grad_from_state(f)
    for _ in range(3):
        value, grad = both(x, data=data, scale=2.0, state=state)
        out, state = opt.update(
            grad, state, x, value=value, grad=grad, value_fn=f, data=data, scale=2.0
        )
        x = optim.apply_updates(x, out)
    np.testing.assert_allclose(x, data, atol=1e-6)
    with pytest.raises(TypeError, match="value_fn takes no argument 'weights'"):
        opt.update(grad, state, x, value=value, grad=grad, value_fn=f, data=data, weights=1)


def test_lbfgs_of_a_tree_and_where_the_function_ends():
    def f(p):  # NaN beyond 1
        return -fnp.log(1 - p["a"]) - fnp.log(p["a"]) + fnp.sum(p["b"] ** 2)

    opt, p = optim.lbfgs(), {"a": fnp.array(0.9), "b": fnp.array([3.0, -4.0])}
    state = opt.init(p)
    both = optim.value_and_grad_from_state(f)

    @fg.jit
    def step(p, state):
        value, grad = both(p, state=state)
        out, state = opt.update(grad, state, p, value=value, grad=grad, value_fn=f)
        return optim.apply_updates(p, out), state

    for _ in range(12):
        p, state = step(p, state)
    assert float(p["a"]) == pytest.approx(0.5, abs=1e-3)
    np.testing.assert_allclose(p["b"], 0, atol=1e-3)


def test_backtracking_stays_where_no_step_is_finite():
    f = lambda x: fnp.where(x == 1.0, 0.0, fnp.nan) + 0 * x
    opt = optim.scale_by_backtracking_linesearch(3)
    x = fnp.array(1.0)
    out, state = opt.update(
        fnp.array(-1.0), opt.init(x), x, value=fnp.array(0.0), grad=fnp.array(1.0), value_fn=f
    )
    assert float(out) == 0
    assert float(state.learning_rate) == 0


BAD = {
    "names_twice": (
        lambda: optim.named_chain(("a", optim.scale(1.0)), ("a", optim.scale(1.0))),
        ValueError, "names must differ, but 'a' comes twice",
    ),
    "named_state": (
        lambda: optim.named_chain(("a", optim.scale(1.0))).update(1.0, ()),
        ValueError, r"named_chain of \['a'\] got a state \(\)",
    ),
    "label": (
        lambda: optim.partition({"a": optim.scale(1.0)}, {"w": "a", "b": "c"}).init(PARAMS),
        ValueError, r"label 'c' of a parameter has no transformation; there are some for \['a'\]",
    ),
    "labels": (
        lambda: optim.partition({"a": optim.scale(1.0)}, {"w": "a"}).init(PARAMS),
        errors.TreeError, "b",
    ),
    "static": (
        lambda: optim.inject_hyperparams(optim.sgd, "rate"),
        ValueError, "static_args names 'rate', which is no argument of sgd",
    ),
    "skip": (
        lambda: (m := optim.MultiSteps(optim.sgd(1.0), 1, should_skip_update_fn=lambda *a: (fnp.ones(2), ())), m.update(PARAMS, m.init(PARAMS))),  # noqa: E501
        ValueError, r"must give a bool first, got float32 of shape \(2,\)",
    ),
    "lookahead_period": (lambda: optim.lookahead(optim.sgd(1.0), 0, 0.5), ValueError, "got 0"),
    "lookahead_params": (
        lambda: optim.lookahead(optim.sgd(1.0), 1, 0.5).update(PARAMS, None, PARAMS),
        ValueError, "as optim.LookaheadParams, got dict",
    ),
    "memory": (lambda: optim.lbfgs(memory_size=0), ValueError, "at least 1, got 0"),
    "lbfgs_params": (
        lambda: optim.scale_by_lbfgs().update(PARAMS, optim.scale_by_lbfgs().init(PARAMS)),
        ValueError, r"scale_by_lbfgs: update needs the parameters",
    ),
    "guess": (
        lambda: optim.scale_by_zoom_linesearch(5, initial_guess_strategy="none"),
        ValueError, "must be \"one\" or \"keep\", got 'none'",
    ),
    "value_in_state": (
        lambda: optim.value_and_grad_from_state(fnp.sum)(PARAMS["w"], state=()),
        ValueError, "the state keeps no value and gradient",
    ),
    "trust_ratio": (
        lambda: optim.scale_by_trust_ratio().update(1.0, optim.EmptyState()),
        ValueError, r"scale_by_trust_ratio: update needs the parameters: update\(grads, state",
    ),
    "units": (
        lambda: optim.adaptive_grad_clip(0.1).update(fnp.ones((2,) * 6), None, fnp.ones((2,) * 6)),
        ValueError, r"a leaf of shape \(2, 2, 2, 2, 2, 2\) has no units by itself",
    ),
    "lion": (lambda: optim.scale_by_lion(mode="soft"), ValueError, "mode must be one of .*'soft'"),
    "interpolation": (
        lambda: optim.piecewise_interpolate_schedule("cubic", 1.0),
        ValueError, "must be \"linear\" or \"cosine\", got 'cubic'",
    ),
    "scales": (
        lambda: optim.piecewise_interpolate_schedule("linear", 1.0, {3: -1.0}),
        ValueError, "scales must not be negative, got -1.0",
    ),
    "onecycle": (lambda: optim.linear_onecycle_schedule(0, 1.0), ValueError, "positive, got 0"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    call, error, words = BAD[name]
    with pytest.raises(error, match=words):
        call()
