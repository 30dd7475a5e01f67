"""pmap is vmap with an axis name whose lanes are on devices of their own."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax, random
from funcgrad.errors import ArgumentError, BatchingError, DonatedBufferError, ShardingError
from funcgrad.parallel import P

X = fnp.arange(12.0).reshape(4, 3)


def step(w, x):
    loss, gradient = fg.value_and_grad(lambda w: fnp.mean((w * x) ** 2))(w)
    return lax.pmean(loss, "i"), lax.pmean(gradient, "i"), gradient


CASES = {
    "elementwise": (lambda x: {"y": fnp.sin(x) * 2}, (X,), {}),
    "collectives": (lambda x: x / lax.psum(x, "i") + lax.axis_index("i"), (X,), {}),
    "axes": (lambda x, y: (x + y, y), (X, X.T), {"in_axes": (0, 1), "out_axes": (-1, 0)}),
    "trees": (
        lambda d, s: d["a"][:2] * s + d["b"],
        ({"a": X, "b": fnp.arange(2.0)}, 2.0),
        {"in_axes": ({"a": 0, "b": None}, None), "out_axes": 1},
    ),
    "training": (step, (fnp.float32(2.0), X), {"in_axes": (None, 0)}),
    "whole results": (
        lambda x: (x, lax.pmax(x, "i")), (X,), {"out_axes": (0, None)},
    ),
    "permuted": (lambda x: lax.ppermute(x, "i", [(i, (i + 1) % 4) for i in range(4)]), (X,), {}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_as_vmap(name):
    fun, args, options = CASES[name]
    got = fg.pmap(fun, axis_name="i", **options)(*args)
    want = fg.vmap(fun, axis_name="i", **options)(*args)
    for a, b in zip(fg.tree.leaves(got), fg.tree.leaves(want), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_results_are_cut():
    f = fg.pmap(lambda x: (x * 2, lax.psum(x, "i")), axis_name="i", out_axes=(1, None))
    cut, whole = f(X)
    assert (cut.shape, cut.sharding.spec) == ((3, 4), P(None, "i"))
    assert len(cut.addressable_shards) == 4
    assert whole.is_fully_replicated
    again, _ = fg.pmap(lambda x: (x, x), axis_name="i", in_axes=1)(cut)
    assert again.sharding.spec == P("i")


def test_static_keyword_and_negative_arguments():
    f = fg.pmap(lambda n, x, *, y: x**n + y, static_broadcasted_argnums=0)
    np.testing.assert_allclose(f(3, X, y=X), np.asarray(X) ** 3 + X)
    np.testing.assert_allclose(f(2, X, y=X), np.asarray(X) ** 2 + X)
    g = fg.pmap(lambda x: x + 1, in_axes=-1)
    assert g(X).shape == (3, 4)


def test_derivatives_lanes_and_jit_around():
    f = lambda w, x: fnp.sum(fnp.sin(w * x)) * lax.psum(w, "i")
    w = fnp.float32(0.5)
    total = lambda mapped: lambda w, x: fnp.sum(mapped(f, in_axes=(None, 0), axis_name="i")(w, x))
    for got, want in zip(
        fg.grad(total(fg.pmap), (0, 1))(w, X), fg.grad(total(fg.vmap), (0, 1))(w, X), strict=True
    ):
        np.testing.assert_allclose(got, want, rtol=1e-5)
    doubled = fg.pmap(lambda x: x * 2)
    np.testing.assert_allclose(fg.jit(lambda x: doubled(x) + 1)(X), np.asarray(X) * 2 + 1)
    lanes = fg.vmap(doubled, in_axes=1, out_axes=1)(X)
    np.testing.assert_allclose(lanes, np.asarray(X) * 2)


def test_keys():
    keys = random.split(random.key(0), 4)
    got = fg.pmap(lambda key: random.normal(key, (3,)))(keys)
    np.testing.assert_array_equal(got, fg.vmap(lambda key: random.normal(key, (3,)))(keys))


def test_donation():
    f = fg.pmap(lambda x, y: x + y, donate_argnums=0)
    x = fg.device_put(fnp.ones((4, 3)), fg.NamedSharding(fg.make_mesh((4,), "pmap"), P("pmap")))
    f(x, X)
    with pytest.raises(DonatedBufferError):
        x + 1


def test_one_program_for_calls_alike():
    traced = []
    f = fg.pmap(lambda x: traced.append(1) or x + 1)
    f(X), f(X), f(X[:2])
    assert len(traced) == 2
    f(X.astype("int32"))
    assert len(traced) == 3


def test_bad_calls():
    scaled = fg.pmap(lambda x, by: x * by, static_broadcasted_argnums=-1)
    np.testing.assert_array_equal(scaled(X, 2), X * 2)
    f = fg.pmap(lambda x, y: x, in_axes=(0, 0))
    for call, kind, words in (
        (lambda: f(X, X[:2]), BatchingError, "mapped axes must have one size, got x: 4, y: 2"),
        (lambda: f(X, 1.0), BatchingError, "maps axis 0 of argument y, which is f32.. with 0 axes"),
        (lambda: f(X), BatchingError, "in_axes has 2 entries, but .* with 1 positional"),
        (lambda: f(X, "a"), TypeError, "argument y must be an array or a number"),
        (lambda: fg.pmap(fnp.sin, in_axes=None)(X), BatchingError, "at least one argument must"),
        (lambda: fg.pmap(fnp.sin, axis_size=3)(X), BatchingError, "x: 4, axis_size: 3"),
        (lambda: fg.pmap(fnp.sin, backend="tpu"), ValueError, "backend must be None or 'cpu'"),
        (
            lambda: fg.pmap(lambda x: x, out_axes=2)(X),
            BatchingError,
            "out_axes=2 is no axis of a result with 2 axes",
        ),
        (lambda: scaled(X, [2]), ArgumentError, r"argument 1, .* must be hashable, got \[2\]"),
        (
            lambda: fg.pmap(lambda x: x, static_broadcasted_argnums=1),
            ValueError,
            "pmap of <lambda>: static_broadcasted_argnums=1, but the function has 1 positional",
        ),
        (
            lambda: fg.pmap(lambda x: x, donate_argnums=2),
            ValueError,
            "pmap of <lambda>: donate_argnums=2",
        ),
        (lambda: fg.pmap(3), TypeError, "pmap: the first argument must be a function, got 3"),
        (lambda: fg.pmap(fnp.sin, axis_name=3), TypeError, "axis_name must be a string, got 3"),
        (
            lambda: fg.pmap(fnp.sin, devices=fg.virtual_devices(2))(X),
            ShardingError,
            "4 rows need as many devices, got 2",
        ),
    ):
        with pytest.raises(kind, match=words):
            call()
