"""Stochastic rounding: right in the mean, exact where it can be, and optimizers that use it."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import dtypes, optim, random

BF16, F16 = dtypes.canonical("bfloat16"), np.dtype(np.float16)
by_dtype = pytest.mark.parametrize("dtype", [BF16, F16], ids=str)


def neighbours(x, dtype):
    """The numbers of a dtype at or below, and at or above float32 ones."""
    near = x.astype(dtype).astype(np.float32)
    bits = {BF16: 8, F16: 11}[dtype]
    step = 2.0 ** (np.floor(np.log2(np.abs(x))) - bits + 1)
    return np.where(near > x, near - step, near), np.where(near < x, near + step, near)


@by_dtype
@pytest.mark.parametrize("jit", [False, True])
def test_it_is_right_in_the_mean(dtype, jit, rng):
    """Within 4 units in the last place / (2 √N), of N draws."""
    n, x = 4096, rng.normal(size=32).astype(np.float32)
    draws = fg.vmap(lambda key: optim.stochastic_round(key, x, dtype).astype("float32"))
    found = np.asarray((fg.jit(draws) if jit else draws)(random.split(random.key(3), n)))
    low, high = neighbours(x, dtype)
    assert ((found == low) | (found == high)).all()
    assert (np.abs(found.mean(0) - x) <= 4 * (high - low) / (2 * np.sqrt(n))).all()


@by_dtype
def test_what_is_exact_stays(dtype, rng):
    x = rng.normal(size=1000).astype(dtype).astype(np.float32)
    assert np.array_equal(optim.stochastic_round(random.key(0), x, dtype), x.astype(dtype))
    narrow = fnp.ones(3, dtype)
    assert optim.stochastic_round(random.key(0), narrow, dtype) is narrow


@by_dtype
def test_what_has_no_neighbours_is_rounded_as_always(dtype):
    top = float(dtypes.finfo(dtype).max)
    x = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, top, -top, 3.4e38, -3.4e38], np.float32)
    for seed in range(20):
        got = np.asarray(optim.stochastic_round(random.key(seed), x, dtype))
        assert np.array_equal(got, x.astype(dtype), equal_nan=True)
        assert np.array_equal(np.signbit(got[3:5]), [False, True])


def test_the_same_key_gives_the_same_bits(rng):
    x = rng.normal(size=100).astype(np.float32)
    a, b = (np.asarray(optim.stochastic_round(random.key(s), x)) for s in (0, 1))
    assert np.array_equal(a, optim.stochastic_round(random.key(0), x))
    assert (a != b).any()


def test_bfloat16_parameters_take_small_steps():
    """1000 steps of 2⁻¹², each lost by rounding to nearest."""
    w = fnp.ones(256, "bfloat16")

    def trained(opt):
        def step(i, carry):
            w, state = carry
            updates, state = opt.update(-fnp.ones(256, "bfloat16"), state, w)
            return optim.apply_updates(w, updates), state

        return np.asarray(fg.lax.fori_loop(0, 1000, step, (w, opt.init(w)))[0], np.float32)

    assert (trained(optim.sgd(2.0**-12)) == 1).all()
    got = trained(optim.stochastically_rounded(optim.sgd(2.0**-12), random.key(0)))
    # Each step's error has a deviation of at most 2⁻⁸, and they are independent.
    assert abs(got.mean() - (1 + 1000 * 2.0**-12)) < 0.01


def test_adamw_in_bfloat16_finds_the_minimum():
    target = fnp.linspace(-1.0, 1.0, 64)
    opt = optim.adamw_bf16(2e-3, random.key(0), weight_decay=0.0)

    @fg.jit
    def run(w):
        def step(i, carry):
            w, state = carry
            g = fg.grad(lambda w: 0.5 * fnp.sum((w.astype("float32") - target) ** 2))(w)
            updates, state = opt.update(g, state, w)
            return optim.apply_updates(w, updates), state

        return fg.lax.fori_loop(0, 1500, step, (w, opt.init(w)))

    w, state = run(fnp.zeros(64, "bfloat16"))
    assert w.dtype == BF16
    assert {str(x.dtype) for x in fg.tree.leaves(state.inner_state)} == {"float32", "int32"}
    assert np.abs(np.asarray(w, np.float32) - np.asarray(target)).mean() < 0.01


def test_wide_parameters_are_not_rounded():
    params = {"a": fnp.ones(3), "b": fnp.ones(3, "float64"), "c": fnp.ones(3, "bfloat16")}
    opt = optim.stochastically_rounded(optim.sgd(0.1), random.key(0))
    updates, _ = opt.update(params, opt.init(params), params)
    plain, _ = optim.sgd(0.1).update(params, optim.sgd(0.1).init(params), params)
    assert np.array_equal(updates["a"], plain["a"])
    assert np.array_equal(updates["b"], plain["b"])
    assert {k: v.dtype for k, v in optim.apply_updates(params, updates).items()} == {
        k: v.dtype for k, v in params.items()
    }


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda k: optim.stochastic_round(k, 1.0, "float32"), "dtype must be bfloat16 or float16"),
        (
            lambda k: optim.stochastic_round(k, fnp.ones(2, "float64")),
            "x must be float32, got float64",
        ),
        (lambda k: optim.stochastic_round(k, fnp.ones(2, int)), "x must be float32, got int32"),
        (lambda k: optim.adamw_bf16(0.1, k).update(1.0, None), "update needs the parameters"),
    ],
)
def test_wrong_arguments(call, words):
    with pytest.raises((TypeError, ValueError), match=words):
        call(random.key(0))
