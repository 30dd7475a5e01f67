"""vmap: which axes are mapped and where they go, beside what ops' own batching tests cover."""

import functools

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax, tree
from funcgrad.core import context
from funcgrad.errors import (
    BatchingError,
    DonatedBufferError,
    LeakedTracerError,
    NonFiniteError,
    TreeError,
)

M = np.arange(6, dtype=np.float32).reshape(2, 3)
V = np.array([1.0, 2.0, 3.0], np.float32)


def same(got, want):
    tree.map(np.testing.assert_array_equal, got, want)


def test_default_axis_is_the_first():
    same(fg.vmap(fnp.sum)(M), M.sum(1))
    same(fg.vmap(lambda x, y: x * y)(M, M), M * M)


@pytest.mark.parametrize(
    ("in_axes", "args", "want"),
    [
        ((0, None), (M, V), M @ V),
        ((None, 1), (V, M.T), M @ V),
        ((-1, None), (M.T, V), M @ V),
        ([1, None], (M.T, V), M @ V),
        ((None, -2), (V, M), M @ V),
        ((0, 0), (M, M), (M * M).sum(1)),
    ],
)
def test_in_axes(in_axes, args, want):
    same(fg.vmap(fnp.dot, in_axes=in_axes)(*args), want)


def test_in_axes_of_trees():
    f = lambda p, x: p["w"] * x[0] + p["b"]["c"] * x[1]
    p, x = {"w": M, "b": {"c": V}}, (M, np.float32(2))
    want = M * M + V * 2
    same(fg.vmap(f, in_axes=({"w": 0, "b": None}, (0, None)))(p, x), want)
    same(fg.vmap(f, in_axes=({"w": 0, "b": {"c": None}}, (0, None)))(p, x), want)
    per_lane = fg.vmap(lambda t: t["a"] + t["b"], in_axes=({"a": 1, "b": 0},))
    same(per_lane({"a": M, "b": M.T}), (M.T * 2))


def test_none_in_arguments_and_results():
    out = fg.vmap(lambda x, y: (x, None, {"k": y}), in_axes=(0, None))(M, None)
    same(out[0], M)
    assert out[1:] == (None, {"k": None})
    same(fg.vmap(lambda t: t[0], in_axes=((0, None),))((M, None)), M)


def test_out_axes():
    same(fg.vmap(lambda x: x, out_axes=1)(M), M.T)
    same(fg.vmap(lambda x: x, in_axes=1, out_axes=-1)(M), M)
    t = np.arange(24.0).reshape(2, 3, 4)
    same(fg.vmap(lambda x: x, out_axes=2)(t), np.moveaxis(t, 0, 2))
    same(fg.vmap(lambda x: x, in_axes=1, out_axes=-2)(t), np.moveaxis(t, 1, 1))


def test_out_axes_of_trees():
    f = lambda x: {"x": x, "both": (x, x + 1), "k": fnp.ones(2)}
    out = fg.vmap(f, out_axes={"x": 1, "both": 0, "k": None})(M)
    same(out, {"x": M.T, "both": (M, M + 1), "k": np.ones(2)})


def test_results_that_are_the_same_for_all_lanes():
    same(fg.vmap(lambda x: 1.0)(M), np.ones(2))
    same(fg.vmap(lambda x: fnp.arange(3))(M), np.tile(np.arange(3), (2, 1)))
    same(fg.vmap(lambda x: V, out_axes=1)(M), np.tile(V[:, None], (1, 2)))
    same(fg.vmap(lambda x, y: y, in_axes=(0, None), out_axes=None)(M, V), V)
    assert fg.vmap(lambda x: 1.0, out_axes=None)(M) == 1.0


def test_axis_size():
    same(fg.vmap(lambda: fnp.ones(2), axis_size=3)(), np.ones((3, 2)))
    same(fg.vmap(lambda x: x, in_axes=None, axis_size=2)(V), np.stack([V, V]))
    same(fg.vmap(lambda x: x, axis_size=2)(M), M)
    assert fg.vmap(lambda x: x, in_axes=None, axis_size=0)(V).shape == (0, 3)


def test_zero_lanes():
    empty = np.zeros((0, 3), np.float32)
    assert fg.vmap(lambda x: fnp.sum(fnp.sin(x)))(empty).shape == (0,)
    assert fg.vmap(lambda x: x @ V)(empty).shape == (0,)
    assert fg.vmap(fg.grad(lambda x: fnp.sum(x**2)))(empty).shape == (0, 3)
    ys = fg.vmap(lambda x: lax.scan(lambda c, v: (c + v, v), 0.0, x))(empty)
    assert [y.shape for y in ys] == [(0,), (0, 3)]


def test_keyword_arguments_are_mapped_along_axis_0():
    same(fg.vmap(lambda x, *, y: x + y)(M, y=M), M + M)
    with pytest.raises(BatchingError, match=r"in_axes maps axis 0 of argument y, which is f32\[\]"):
        fg.vmap(lambda x, *, y: x + y)(M, y=1.0)
    partial = functools.partial(lambda x, *, y: x + y, y=1.0)
    same(fg.vmap(partial)(M), M + 1)


def test_closed_over_values_are_not_mapped():
    same(fg.vmap(lambda x: x * V)(M), M * V)


def test_nested():
    outer = fg.vmap(fg.vmap(lambda a, b: a * b, in_axes=(None, 0)), in_axes=(0, None))
    same(outer(V, V), np.outer(V, V))
    t = np.arange(24.0).reshape(2, 3, 4)
    same(fg.vmap(fg.vmap(fnp.sum, in_axes=1), in_axes=1)(t), t.sum(0))
    same(fg.vmap(lambda x: fg.vmap(lambda y: x + y)(V))(V), V[:, None] + V)
    same(fg.vmap(lambda x: fg.vmap(lambda y: x)(V))(V), np.tile(V[:, None], (1, 3)))


def test_lanes_keep_weak_types_and_dtypes():
    out = fg.vmap(lambda x: (x * 2.0, 1.0, x > 0))(np.ones(2, "float64"))
    assert [o.dtype.name for o in out] == ["float64", "float32", "bool"]
    assert fg.vmap(lambda x: x + fnp.asarray(1.0))(np.ones(2, "float16")).dtype == np.float16


def test_random_and_integer_lanes():
    same(fg.vmap(lambda n: n * 2 + 1)(np.arange(3)), np.arange(3) * 2 + 1)
    keys = fg.random.split(fg.random.key(0), 3)
    lanes = fg.vmap(lambda k: fg.random.normal(k, (2,)))(keys)
    assert lanes.shape == (3, 2)
    same(lanes[1], fg.random.normal(keys[1], (2,)))


def test_with_grad_both_ways():
    f = lambda w, x: fnp.sum(fnp.tanh(w * x))
    per_example = fg.vmap(fg.grad(f), in_axes=(None, 0))(V, M)
    of_sum = fg.grad(lambda w: fnp.sum(fg.vmap(f, in_axes=(None, 0))(w, M)))(V)
    np.testing.assert_allclose(per_example.sum(0), of_sum, rtol=1e-5)
    np.testing.assert_allclose(per_example, M / np.cosh(V * M) ** 2, atol=1e-5)


def test_decorator_and_name():
    @functools.partial(fg.vmap, in_axes=(0, None))
    def scaled(x, k):
        """Scale x."""
        return x * k

    same(scaled(M, 2.0), M * 2)
    assert scaled.__name__ == "vmap(scaled)"
    assert scaled.__doc__ == "Scale x."


# ---- rules that are found ready, from the third call on

AGAIN = {
    "operators": lambda x, y: (x * y + x * 2.0 - 1, -x, x / y, 3 - x, x**2, x > y),
    "functions": lambda x, y: (
        fnp.sin(x),
        fnp.tanh(x * y),
        fnp.maximum(x, y),
        fnp.where(x > 0, x, y),
    ),
    "reductions": lambda x, y: (fnp.sum(x * y), fnp.mean(x), fnp.max(x), fnp.argmax(y * x)),
    "matrices": lambda x, y: (fnp.outer(x, y), x @ y, fnp.outer(x, y) @ x),
    "indices": lambda x, y: (x[1:], x[::-1], x[fnp.argsort(x)], x.at[0].set(5.0)),
    "shapes": lambda x, y: (x[:, None] * y, fnp.stack([x, y]), fnp.broadcast_to(x[0], (2,))),
    "the same for all lanes": lambda x, y: (fnp.sum(y), fnp.zeros_like(x), y * 2),
    "several results": lambda x, y: tuple(fnp.split(x * y, [1])) + tuple(lax.top_k(x, 2)),
    "low precision": lambda x, y: (x.astype("bfloat16") * 2, fnp.sum(x.astype("float16"))),
    "programs": lambda x, y: (fg.jit(lambda z: z * y)(x), lax.cumsum(x), fg.checkpoint(fnp.sin)(x)),
    "inside one another": lambda x, y: (fg.vmap(lambda a: a * y)(x), fg.vmap(lambda a: a + x)(y)),
    "a gradient": lambda x, y: fg.grad(lambda z: fnp.sum(fnp.sin(z) * y))(x),
}


@pytest.mark.parametrize("fun", AGAIN.values(), ids=AGAIN)
@pytest.mark.parametrize("in_axes", [(0, None), (1, None), (0, 0), (-1, 0)])
def test_each_call_gives_the_bits_of_the_first(fun, in_axes):
    x = fnp.array(np.random.default_rng(0).standard_normal((3, 3)).astype(np.float32))
    y = x * 0.5 if in_axes[1] == 0 else x[0] * 0.5
    context.ROOT.types.clear()
    want = fg.vmap(fun, in_axes)(x, y)
    lanes = [fun(x.take(i, in_axes[0]), y[i] if in_axes[1] == 0 else y) for i in range(3)]
    for _ in range(3):
        got = fg.vmap(fun, in_axes)(x, y)
        same(got, want)
        for a, b in zip(tree.leaves(got), tree.leaves(want), strict=True):
            assert (a.dtype, a.weak_type) == (b.dtype, b.weak_type)
    stacked = tree.map(lambda *rows: np.stack(rows), *lanes)
    tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), got, stacked)


@pytest.mark.parametrize("n", [0, 1, 5])
def test_each_call_has_its_own_size(n):
    for size in (n, 2, n, n):
        x = fnp.arange(size * 2.0).reshape(size, 2)
        same(fg.vmap(lambda row: fnp.sum(row * 2.0))(x), np.asarray(x).sum(1) * 2)


def test_non_finite_values_pass_silently():
    with np.errstate(all="raise"):
        for _ in range(4):
            assert np.isnan(fg.vmap(lambda x: fnp.log(x) * 0.0)(fnp.array([-1.0, 0.0]))).all()


def test_values_are_looked_at_each_time():
    c = fnp.ones(3)
    fun = fg.vmap(lambda x: fnp.sum(x * c))
    for _ in range(4):
        fun(M)
    fun(fnp.array(M))
    with fg.debug_nans(), pytest.raises(NonFiniteError):
        fun(fnp.array([[np.inf, -np.inf, 0.0]]))
    c.delete()
    with pytest.raises(DonatedBufferError):
        fun(fnp.array(M))


@pytest.mark.parametrize("dtype", ["float16", "float32", "complex64", "int32"])
def test_numbers_take_the_dtype_each_time(dtype):
    x = fnp.ones((2, 2), dtype)
    for _ in range(4):
        got = fg.vmap(lambda r: (r * 2, 2.5 - r, r + True, r / 0.1))(x)
        want = (x * 2, 2.5 - x, x + True, x / 0.1)
        same(got, want)
        assert [a.dtype for a in got] == [a.dtype for a in want]
    weak = fg.vmap(lambda r, k: r * k, in_axes=(0, None))
    for k in (2, 2.0, np.float64(2), fnp.float32(2), 2, 2.0):
        assert weak(x, k).dtype == (x * k).dtype
    for _ in range(3):
        with pytest.raises(OverflowError):
            fg.vmap(lambda r: r * 10**400)(x)


def test_checks_for_nans_begin_inside():
    def fun(x):
        with fg.debug_nans():
            return fnp.log(x)

    for _ in range(4):
        with pytest.raises(NonFiniteError):
            fg.vmap(fun)(fnp.array([-1.0, 1.0]))


def test_tracers_that_leak_are_told():
    held = []
    for _ in range(4):
        fg.vmap(lambda x: held.append(x) or x * 2.0)(fnp.ones(2))
        with pytest.raises(LeakedTracerError, match="vmap"):
            held[-1] * 2.0
        with pytest.raises(LeakedTracerError):
            fg.vmap(lambda x: x * held[-1])(fnp.ones(2))


# ---- what is refused


def test_sizes_that_differ_are_named():
    with pytest.raises(BatchingError) as e:
        fg.vmap(lambda x, p: x, in_axes=(0, {"w": 1}))(M, {"w": M})
    assert "x has size 2 at axis 0; p['w'] has size 3 at axis 1" in str(e.value)
    with pytest.raises(BatchingError, match="size 2 at axis 0; axis_size=5"):
        fg.vmap(lambda x: x, axis_size=5)(M)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: fg.vmap(lambda x: x)(1.0), r"axis 0 of argument x, which is f32\[\] with 0 axes"),
        (lambda: fg.vmap(lambda x: x, in_axes=2)(M), "axis 2 of argument x"),
        (lambda: fg.vmap(lambda x: x, in_axes=-3)(M), "axis -3 of argument x"),
        (lambda: fg.vmap(lambda x: x, in_axes="a")(M), "axis a of argument x"),
        (lambda: fg.vmap(lambda x, y: x, in_axes=(0,))(M, M), "1 entries.*2 positional"),
        (
            lambda: fg.vmap(lambda x: x, in_axes=None)(M),
            "no argument is mapped.*non-None.*axis_size",
        ),
        (lambda: fg.vmap(lambda x: x, out_axes=None)(M), "out_axes=None.*depends on a mapped"),
        (lambda: fg.vmap(lambda x: x, out_axes=2)(M), "out_axes=2 is no axis of a result with 2"),
        (lambda: fg.vmap(lambda x: x, out_axes=-3)(M), "out_axes=-3"),
    ],
)
def test_axes_that_do_not_fit(call, words):
    with pytest.raises(BatchingError, match=f"vmap of <lambda>.*{words}"):
        call()


def test_trees_that_do_not_fit():
    with pytest.raises(TreeError, match="vmap in_axes must be a prefix"):
        fg.vmap(lambda p: p["a"], in_axes=({"b": 0},))({"a": M})
    with pytest.raises(TreeError, match="vmap out_axes must be a prefix"):
        fg.vmap(lambda x: (x, x), out_axes=(0, 0, 0))(M)
    with pytest.raises(TypeError, match="argument name must be an array or a number, got 'x'"):
        fg.vmap(lambda name: 1.0)("x")
    with pytest.raises(TypeError, match="the result must be an array or a number, got 'x'"):
        fg.vmap(lambda x: "x")(M)
    with pytest.raises(TypeError, match="first argument must be a function"):
        fg.vmap(3)


@pytest.mark.parametrize("axis", [True, False, 1.0, 0.0, "0"])
def test_axes_are_integers(axis):
    with pytest.raises(ValueError, match="vmap of"):
        fg.vmap(lambda x: x, in_axes=axis)(np.ones(3))
    with pytest.raises(ValueError, match="vmap of"):
        fg.vmap(lambda x: x, out_axes=axis)(np.ones(3))
