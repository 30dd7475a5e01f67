"""while_loop and fori_loop against loops in Python."""

import functools

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax, tree
from funcgrad.core.ir import typecheck
from funcgrad.errors import ControlFlowError, DifferentiationError

X = np.array([1.0, 3.0, 10.0], np.float32)
jits = pytest.mark.parametrize(
    "jit",
    [lambda f: f, fg.jit, *(functools.partial(fg.jit, backend=b) for b in ("numpy", "plain"))],
    ids=["eager", "llvm", "numpy", "plain"],
)  # fmt: skip


def close(got, want, **options):
    tree.map(
        functools.partial(np.testing.assert_allclose, **{"rtol": 1e-5, "atol": 1e-6} | options),
        got,
        want,
    )


def double(x, limit=20.0, **options):
    """x doubled until it reaches the limit; how often."""
    return lax.while_loop(
        lambda c: c["x"] < limit,
        lambda c: {"x": c["x"] * 2.0, "n": c["n"] + 1},
        {"x": x, "n": 0},
        **options,
    )


def double_by_hand(x, limit=20.0):
    n = 0
    while x < limit:
        x, n = x * 2, n + 1
    return {"x": x, "n": n}


@jits
def test_while(jit):
    for x in X:
        close(jit(double)(x), double_by_hand(x))
    close(jit(lambda x: lax.while_loop(lambda v: False, lambda v: v + 1, x))(X), X)


@jits
def test_captured_values_of_condition_and_body(jit):
    w = fnp.asarray(X)
    f = lambda a: lax.while_loop(lambda c: fnp.sum(c * w) < a, lambda c: c + a * w, fnp.zeros(3))
    want = np.zeros(3)
    while np.sum(want * X) < 500.0:
        want = want + 500.0 * X
    close(jit(f)(500.0), want)


def test_weak_carries_are_promoted():
    out = lax.while_loop(lambda c: c[1] < 3, lambda c: (c[0] + X[0], c[1] + 1), (0, 0))
    assert (out[0].dtype.name, out[0].weak_type) == ("float32", False)
    assert (out[1].dtype.name, out[1].weak_type) == ("int32", True)


def test_max_steps_bounds_the_turns():
    close(double(1.0, max_steps=2)["x"], 4.0)
    close(double(1.0, max_steps=100)["x"], 32.0)
    close(double(1.0, max_steps=0)["x"], 1.0)


@jits
def test_forward_mode(jit):
    tangent = lambda x: fg.jvp(lambda v: double(v)["x"], (x,), (1.0,))
    close(jit(tangent)(3.0), (24.0, 8.0))
    f = lambda x: lax.while_loop(lambda c: c[1] < 3, lambda c: (c[0] * x, c[1] + 1), (x, 0))[0]
    close(jit(lambda x: fg.jvp(f, (x,), (1.0,)))(2.0), (16.0, 32.0))
    close(jit(fg.jacfwd(fg.jacfwd(f)))(2.0), 48.0)


@jits
def test_reverse_mode_with_max_steps(jit):
    f = lambda x: double(x, max_steps=8)["x"] ** 2
    close(jit(fg.grad(f))(3.0), 2 * 24 * 8.0)
    close(jit(fg.grad(fg.grad(f)))(3.0), 128.0)
    close(jit(fg.vmap(fg.grad(f)))(X), [2 * 32 * 32, 2 * 24 * 8, 2 * 20 * 2])


def test_reverse_mode_without_a_bound_says_what_to_do():
    with pytest.raises(DifferentiationError, match=r"while has no transpose rule.*max_steps=n"):
        fg.grad(lambda x: double(x)["x"])(1.0)


def test_parts_that_do_not_vary_are_no_obstacle():
    f = lambda x: x * double(lax.stop_gradient(x))["n"] + double(3.0)["x"]
    close(fg.grad(f)(1.0), 5.0)
    close(fg.jit(fg.grad(f))(1.0), 5.0)
    # The counter is known, only the rest depends on x linearly.
    g = lambda x: lax.fori_loop(0, np.int32(3), lambda i, c: c * x, 1.0)
    close(fg.grad(g)(2.0), 12.0)


@jits
def test_vmap(jit):
    out = jit(fg.vmap(double))(X)
    want = [double_by_hand(x) for x in X]
    close(out, {k: np.array([w[k] for w in want]) for k in ("x", "n")})
    close(jit(fg.vmap(double, (None, 0)))(1.0, X)["x"], [1.0, 4.0, 16.0])
    counted = lambda x: lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * x), (0, x))
    close(jit(fg.vmap(counted))(X), (np.full(3, 3), X**4))
    nested = fg.vmap(fg.vmap(lambda a, b: double(a, b)["x"], (None, 0)), (0, None))
    close(jit(nested)(X, X), [[double_by_hand(a, b)["x"] for b in X] for a in X])
    close(jit(fg.vmap(lambda x: fg.jvp(lambda v: double(v)["x"], (x,), (1.0,))[1]))(X), [32, 8, 2])


@jits
def test_lanes_get_nothing_from_turns_they_do_not_take(jit):
    """A turn more would take the root of a negative number."""
    h = lambda a: lax.while_loop(lambda s: s < 5.0, lambda s: s + fnp.sqrt(5 - s), a, max_steps=30)
    xs = np.array([1.0, 4.0, 6.0], "float32")
    each = [fg.grad(h)(x) for x in xs]
    assert np.isfinite(each).all()
    close(jit(fg.grad(lambda xs: fnp.sum(fg.vmap(h)(xs))))(xs), np.stack(each))


def test_a_lane_that_is_done_stays_as_it_is():
    f = lambda x: lax.while_loop(lambda c: c[0] > 0, lambda c: (c[0] - 1, c[1] / c[0]), (x, 100.0))
    out = fg.vmap(f)(np.array([1, 3], "int32"))
    close(out[1], [100.0, 100 / 6])
    assert np.isfinite(out[1]).all()


def test_programs_typecheck():
    for f in (double, fg.vmap(double), fg.vmap(lambda x: fg.jvp(double, (x,), (x,)))):
        x = X if f.__name__.startswith("vmap") else 1.0
        typecheck(fg.make_jaxpr(f)(x).jaxpr)


@jits
def test_fori_loop(jit):
    f = lambda lo, hi, x: lax.fori_loop(lo, hi, lambda i, c: c * 2 + i, x)

    def by_hand(lo, hi, x):
        for i in range(lo, hi):
            x = x * 2 + i
        return x

    for lo, hi in ((0, 4), (2, 5), (3, 3), (5, 2), (-2, 2)):
        close(jit(f)(lo, hi, X), by_hand(lo, hi, X))
        close(jit(lambda x: f(lo, hi, x))(X), by_hand(lo, hi, X))
    tree_carry = lambda x: lax.fori_loop(0, 3, lambda i, c: (c[1], c[0] + i), (x, 0.0))
    close(jit(tree_carry)(1.0), (1.0, 3.0))


def test_the_index_takes_the_carrys_dtype():
    for dtype in ("int8", "uint8", "float16", "bfloat16", "int64", "float64"):
        x = fnp.ones((), dtype)
        assert lax.fori_loop(0, 3, lambda i, c: c + i, x).dtype == x.dtype
        assert fg.jit(lambda v: lax.fori_loop(0, 3, lambda i, c: c + i, v))(x).dtype == x.dtype
    seen = []
    lax.fori_loop(fnp.asarray(np.int64(0)), 3, lambda i, c: seen.append(i.dtype.name) or c, 0.0)
    assert seen[0] == "int64"


def test_fori_loop_gradients():
    f = lambda x: lax.fori_loop(1, 4, lambda i, c: c * x + i, x)
    want = lambda x: 4 * x**3 + 2 * x * 1 + 2
    close(f(2.0), 16.0 + 4 + 4 + 3)
    close(fg.grad(f)(2.0), want(2.0))
    close(fg.jit(fg.grad(fg.grad(f)))(2.0), 12 * 4.0 + 2)
    with pytest.raises(DifferentiationError, match="fori_loop with Python integers"):
        fg.jit(fg.grad(lambda x, n: lax.fori_loop(0, n, lambda i, c: c * x, x)))(2.0, 3)


def test_fori_loop_of_traced_bounds_under_vmap():
    f = lambda n: lax.fori_loop(0, n, lambda i, c: c + i, 0)
    close(fg.vmap(f)(np.array([0, 3, 5])), [0, 3, 10])
    close(fg.jit(f)(4), 6)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: lax.while_loop(lambda x: x, lambda x: x, 1.0), r"return a boolean, got f32\[\]"),
        (lambda: lax.while_loop(lambda x: x > 0, lambda x: x, X), r"be a scalar, got bool\[3\]"),
        (lambda: lax.while_loop(lambda x: (True,), lambda x: x, X), "must return one boolean"),
        (lambda: lax.while_loop(lambda x: True, lambda x: (x, x), X), "keep its structure"),
        (lambda: lax.while_loop(lambda x: True, lambda x: x[:1], X),
         r"carry enters as f32\[3\] and leaves as f32\[1\]"),
        (lambda: lax.while_loop(lambda c: True, lambda c: (c[0], c[1] + 0.5), (1, np.int32(2))),
         r"carry\[1\] enters as i32\[\] and leaves as f32\[\]"),
        (lambda: lax.fori_loop(0, 2.5, lambda i, x: x, 1.0), r"must be integers, got f32\[\]"),
        (lambda: lax.fori_loop(0, X, lambda i, x: x, 1.0), "a bound must be a scalar"),
        (lambda: lax.fori_loop(0, 3, lambda i, x: (x, x), 1.0),
         r"^fori_loop: the carry must keep its structure.* PyTreeDef\(\*\) and .*\(\*, \*\)"),
        (lambda: fg.jit(lambda n: lax.fori_loop(0, n, lambda i, x: {"a": X}, {"a": 1.0}))(3),
         r"^fori_loop: .*carry\['a'\] enters as f32\[\] \(weak\) and leaves as f32\[3\]"),
    ],
)  # fmt: skip
def test_errors(call, words):
    with pytest.raises(ControlFlowError, match=f"(?s){words}"):
        call()


def test_arguments_of_wrong_kinds():
    with pytest.raises(TypeError, match="while_loop: need two functions"):
        lax.while_loop(True, lambda x: x, 1.0)
    with pytest.raises(TypeError, match="fori_loop: the third argument must be a function"):
        lax.fori_loop(0, 1, 2, 3)
    with pytest.raises(TypeError, match="^fori_loop of <lambda>: the result must be an array"):
        lax.fori_loop(0, 1, lambda i, x: "a", 3)
