"""Python called from programs: values, order, and what each transformation makes of it."""

import functools

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax, tree
from funcgrad.errors import DifferentiationError, ShapeError

X = np.array([1.0, 2.0, 3.0], np.float32)
SCALAR = fg.ShapeDtypeStruct((), "float32")
jits = pytest.mark.parametrize(
    "jit",
    [lambda f: f, fg.jit, *(functools.partial(fg.jit, backend=b) for b in ("numpy", "plain"))],
    ids=["eager", "llvm", "numpy", "plain"],
)  # fmt: skip


def close(got, want):
    tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-6), got, want)


def host_sin(x):
    return fg.pure_callback(np.sin, SCALAR, x)


# ---- pure_callback


@jits
def test_pure_callback(jit):
    close(jit(host_sin)(2.0), np.sin(2.0))
    struct = {"s": SCALAR, "v": fg.ShapeDtypeStruct((2,), "int32")}

    def host(p, k, *, bias):
        assert all(type(v) is np.ndarray for v in (p["x"], k, bias))
        return {"s": p["x"].sum() * k + bias, "v": [1, 2]}

    def host_arrays(*args, **kwargs):
        out = host(*args, **kwargs)
        return {"s": out["s"], "v": np.asarray(out["v"])}

    f = lambda x: fg.pure_callback(host_arrays, struct, {"x": x}, 2.0, bias=1.0)
    out = jit(f)(X)
    close(out, {"s": 13.0, "v": [1, 2]})
    assert out["v"].dtype == np.int32


def test_results_take_the_promised_dtype():
    f = lambda dtype: fg.pure_callback(lambda: 1.5, fg.ShapeDtypeStruct((), dtype))
    for dtype in ("float64", "float32", "float16", "bfloat16", "complex64"):
        assert f(dtype).dtype == fnp.zeros((), dtype).dtype
    with pytest.raises(ShapeError, match=r"must return i32\[\], got float64\[\]"):
        f("int32")


def test_arrays_may_stand_for_their_types():
    close(fg.pure_callback(lambda x: x * 2, fnp.zeros(3), X), 2 * X)


@jits
@pytest.mark.parametrize("method", ["sequential", "expand_dims", "broadcast_all"])
def test_vmap_methods(jit, method):
    shapes = []

    def host(x, y):
        shapes.append((x.shape, y.shape))
        return (x * y).astype("float32")

    f = lambda x, y: fg.pure_callback(host, SCALAR, x, y, vmap_method=method)
    close(jit(fg.vmap(f, (0, None)))(X, 2.0), 2 * X)
    assert set(shapes) == {{
        "sequential": ((), ()), "expand_dims": ((3,), (1,)), "broadcast_all": ((3,), (3,))
    }[method]}  # fmt: skip
    assert len(shapes) == (3 if method == "sequential" else 1)
    close(fg.vmap(fg.vmap(f, (None, 0)), (0, None))(X, X), np.outer(X, X))


def test_vmap_of_no_lanes():
    assert fg.vmap(host_sin)(X[:0]).shape == (0,)


@jits
def test_inside_control_flow(jit):
    f = lambda x: lax.scan(lambda c, v: (c + host_sin(v), host_sin(c)), 0.0, x)
    total = np.cumsum(np.sin(X))
    close(jit(f)(X), (total[-1], np.sin(np.concatenate([[0], total[:-1]])).astype("f4")))
    g = lambda x: lax.cond(x > 0, host_sin, lambda v: v, x)
    close((jit(g)(1.0), jit(g)(-1.0)), (np.sin(1.0), -1.0))
    h = lambda x: lax.while_loop(lambda v: v < 0.5, lambda v: v + host_sin(v), x)
    v = 0.1
    while v < 0.5:
        v = v + np.sin(v)
    np.testing.assert_allclose(jit(h)(0.1), v, rtol=1e-5)


def test_derivatives_need_a_rule():
    with pytest.raises(DifferentiationError, match="Python code can't be differentiated.*custom_"):
        fg.grad(host_sin)(1.0)
    close(fg.grad(lambda x: x * host_sin(lax.stop_gradient(x)))(1.0), np.sin(1.0))


def test_unused_pure_callbacks_are_dropped_when_compiled():
    calls = []
    f = lambda x: (fg.pure_callback(lambda v: calls.append(1) or v, SCALAR, x), x)[1]
    fg.jit(f)(1.0)
    assert calls == []


def test_errors_in_the_callback_pass_through():
    def fails(x):
        raise ZeroDivisionError("mine")

    for jit in (lambda f: f, fg.jit):
        with pytest.raises(ZeroDivisionError, match="mine"):
            jit(lambda x: fg.pure_callback(fails, SCALAR, x))(1.0)
    close(fg.jit(lambda x: x + 1)(1.0), 2.0)


@pytest.mark.parametrize(
    ("result", "error", "words"),
    [
        (
            lambda x: np.zeros(2),
            ShapeError,
            r"pure_callback .*must return f32\[\], got float64\[2\]",
        ),
        (lambda x: (x, x), TypeError, "must return the structure of result_shape_dtypes"),
        (lambda x: np.complex64(1), ShapeError, r"must return f32\[\], got complex64\[\]"),
    ],
)
@jits
def test_wrong_results(jit, result, error, words):
    with pytest.raises(error, match=words):
        jit(lambda x: fg.pure_callback(result, SCALAR, x))(1.0)


def test_wrong_arguments():
    with pytest.raises(ValueError, match="vmap_method must be one of"):
        fg.pure_callback(np.sin, SCALAR, 1.0, vmap_method="fast")
    with pytest.raises(TypeError, match="pure_callback: the first argument must be a function"):
        fg.pure_callback(1, SCALAR, 1.0)
    with pytest.raises(TypeError, match="must be an array or a number, got 'x'"):
        fg.pure_callback(np.sin, SCALAR, "x")


def test_callbacks_cannot_write_to_their_arguments():
    def host(x):
        x[0] = 5.0
        return x

    with pytest.raises(ValueError, match="read-only"):
        fg.pure_callback(host, fg.ShapeDtypeStruct((3,), "float32"), X)


# ---- io_callback


@jits
def test_io_callbacks_run_once_in_order(jit):
    log = []
    note = lambda tag, v: fg.io_callback(lambda a: log.append((tag, float(a))), None, v)

    def f(x):
        note("a", x)
        y = fg.io_callback(lambda a: log.append("read") or a * 2, SCALAR, x, ordered=True)
        note("b", y)
        lax.scan(lambda c, v: (c, note("s", v)), 0.0, fnp.arange(3.0))
        lax.cond(x > 0, lambda: note("yes", x), lambda: note("no", x))
        return y

    close(jit(f)(1.0), 2.0)
    want = [("a", 1.0), "read", ("b", 2.0), ("s", 0.0), ("s", 1.0), ("s", 2.0), ("yes", 1.0)]
    assert log == want
    log.clear()
    jit(fg.jit(f))(1.0)
    assert log == want


def test_unused_results_of_io_callbacks_do_not_drop_the_call():
    log = []
    f = fg.jit(lambda x: (fg.io_callback(lambda: log.append(1) or np.float32(0), SCALAR), x)[1])
    f(1.0), f(2.0)
    assert log == [1, 1]


def test_equal_io_callbacks_are_not_merged():
    counter = iter(range(10))
    f = lambda: fg.io_callback(lambda: np.float32(next(counter)), SCALAR)
    close(fg.jit(lambda: (f(), f(), f()))(), (0.0, 1.0, 2.0))


def test_io_callback_under_vmap():
    log = []
    fg.vmap(lambda x: fg.io_callback(lambda v: log.append(float(v)), None, x))(X)
    assert log == [1.0, 2.0, 3.0]


# ---- debug


@jits
def test_debug_print(jit, capfd):
    def f(x):
        fg.debug.print("x={} y={y:.1f}", x, y=x * 2)
        return x

    jit(f)(1.5)
    fg.vmap(jit(f))(X[:2])
    fg.grad(lambda x: jit(f)(x) ** 2)(3.0)
    assert capfd.readouterr().out.splitlines() == [
        "x=1.5 y=3.0", "x=1.0 y=2.0", "x=2.0 y=4.0", "x=3.0 y=6.0"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("transform", "times"),
    [
        (lambda f: f, 1),
        (fg.grad, 1),
        (lambda f: fg.grad(fg.grad(f)), 1),
        (lambda f: fg.jit(fg.value_and_grad(f)), 1),
        (lambda f: lambda x: fg.jvp(f, (x,), (1.0,)), 1),
        (lambda f: fg.grad(fg.checkpoint(f)), 1),
        (lambda f: fg.grad(lambda x: lax.cond(True, f, f, x)), 1),
        (lambda f: fg.grad(lambda x: lax.fori_loop(0, 3, lambda i, c: f(c), x)), 3),
        (lambda f: fg.jit(fg.grad(lambda x: lax.fori_loop(0, 3, lambda i, c: f(c), x))), 3),
        (lambda f: lambda x: fg.vmap(fg.grad(f))(x * fnp.ones(4)), 4),
        (lambda f: lambda x: fg.jit(fg.vmap(f))(x * fnp.ones(4)), 4),
        (lambda f: fg.make_jaxpr(f), 0),
    ],
)
def test_debug_callback_runs_where_the_function_does(transform, times):
    seen = []

    def f(x):
        fg.debug.callback(lambda v: seen.append(float(v)), x)
        return x * x

    transform(f)(0.5)
    assert len(seen) == times


def test_debug_callback_gives_nothing_back():
    assert fg.debug.callback(lambda x: "ignored", 1.0) is None
    with pytest.raises(TypeError, match="must be a format string, got 3"):
        fg.debug.print(3)


def test_tangents_may_be_looked_at():
    seen = []

    @fg.custom_jvp
    def f(x):
        return x * 2.0

    @f.defjvp
    def _(primals, tangents):
        fg.debug.callback(lambda t: seen.append(float(t)), tangents[0])
        return f(*primals), tangents[0] * 2.0

    fg.jvp(f, (1.0,), (7.0,))
    assert seen == [7.0]
