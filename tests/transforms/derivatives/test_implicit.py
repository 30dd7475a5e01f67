"""custom_linear_solve and custom_root: implicit derivatives of iterative solvers."""

import functools

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax, tree
from funcgrad.errors import CustomRuleError, TreeError

A = np.array([[4.0, 1.0, 0.0], [1.0, 3.0, -1.0], [0.5, -1.0, 5.0]], np.float64)
B = np.array([1.0, 2.0, 3.0])
S = A + A.T


def close(got, want):
    tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-8), got, want)


def jacobi(matvec, b):
    """Richardson's iteration in a while loop, which reverse mode can't go through."""

    def step(state):
        x, _ = state
        r = tree.map(lambda p, q: p - q, b, matvec(x))
        size = sum(fnp.sum(v**2) for v in tree.leaves(r))
        return tree.map(lambda p, q: p + 0.12 * q, x, r), size

    start = (tree.map(fnp.zeros_like, b), fnp.asarray(np.inf))
    return lax.while_loop(lambda s: s[1] > 1e-26, step, start)[0]


def solve(a, b, **options):
    return lax.custom_linear_solve(lambda x: a @ x, b, jacobi, **options)


def weighted(x):
    return fnp.sum(fnp.sin(x) * fnp.arange(1.0, 4.0))


def both(a, b):
    return weighted(solve(a, b, transpose_solve=jacobi))


def direct(a, b):
    return weighted(fnp.linalg.solve(a, b))


def numeric(f, *args, step=1e-5):
    """The gradient of f with respect to each argument, by central differences."""
    grads = []
    for i, x in enumerate(args):
        g = np.zeros_like(x)
        for j in np.ndindex(x.shape):
            up, down = [[*args] for _ in range(2)]
            up[i], down[i] = x.copy(), x.copy()
            up[i][j] += step
            down[i][j] -= step
            g[j] = (float(f(*up)) - float(f(*down))) / (2 * step)
        grads.append(g)
    return grads


def explicit(a, b):
    return np.sum(np.sin(np.linalg.solve(a, b)) * np.arange(1.0, 4.0))


@pytest.mark.parametrize(
    "transform",
    [
        lambda f: fg.grad(f, (0, 1)),
        lambda f: fg.jit(fg.grad(f, (0, 1))),
        lambda f: fg.grad(fg.jit(f), (0, 1)),
        lambda f: fg.grad(fg.checkpoint(f), (0, 1)),
        lambda f: fg.jacfwd(f, (0, 1)),
    ],
    ids=["grad", "jit grad", "grad jit", "grad checkpoint", "jacfwd"],
)
def test_linear_solve_differentiates_without_unrolling(transform):
    close(both(A, B), explicit(A, B))
    got = transform(both)(A, B)
    for g, n in zip(got, numeric(explicit, A, B), strict=True):
        np.testing.assert_allclose(g, n, rtol=1e-5, atol=1e-7)


def test_linear_solve_second_order():
    x = np.linalg.inv(A)
    f = lambda b: both(A, b)
    d = np.arange(1.0, 4.0) * -np.sin(x @ B)
    close(fg.hessian(f)(B), x.T @ np.diag(d) @ x)
    close(fg.jacrev(fg.grad(f))(B), x.T @ np.diag(d) @ x)
    scaled = lambda s: both(s * A, B)
    by_hand = lambda s: explicit(s * A, B)
    h = 1e-3
    want = (by_hand(1 + h) - 2 * by_hand(1.0) + by_hand(1 - h)) / h**2
    np.testing.assert_allclose(fg.grad(fg.grad(scaled))(np.float64(1)), want, rtol=1e-4)
    np.testing.assert_allclose(fg.jacfwd(fg.grad(scaled))(np.float64(1)), want, rtol=1e-4)


def test_linear_solve_under_vmap():
    batch = np.stack([B, 2 * B])
    f = fg.grad(both, (0, 1))
    for in_axes in ((None, 0), (0, None), (0, 0)):
        args = [np.stack([v, v * 1.1]) if ax == 0 else v
                for v, ax in zip((A, B), in_axes, strict=True)]  # fmt: skip
        got = fg.vmap(f, in_axes)(*args)
        for lane in range(2):
            one = f(*(v[lane] if ax == 0 else v for v, ax in zip(args, in_axes, strict=True)))
            close(tree.map(lambda g, k=lane: g[k], got), one)
    total = fg.grad(lambda a: fnp.sum(fg.vmap(both, (None, 0))(a, batch)))(A)
    close(total, f(A, B)[0] + f(A, 2 * B)[0])


def test_symmetric_solve_needs_no_second_solver():
    f = lambda b: weighted(solve(S, b, symmetric=True))
    close(fg.grad(f)(B), np.linalg.solve(S, np.arange(1.0, 4.0) * np.cos(np.linalg.solve(S, B))))


def test_solve_of_trees_with_aux():
    def f(a, b):
        x, aux = lax.custom_linear_solve(
            lambda t: {"u": a * t["u"], "v": t["v"] * 2.0},
            {"u": b, "v": b},
            lambda mv, r: (jacobi(mv, r), {"residual": 0.0}),
            symmetric=True,
            has_aux=True,
        )
        return x["u"] + x["v"] + aux["residual"]

    a, b = np.float64(4), np.float64(8)
    close(f(a, b), 6.0)
    close(fg.grad(f, (0, 1))(a, b), (-0.5, 0.75))


def test_solve_without_a_transpose():
    with pytest.raises(CustomRuleError, match="custom_linear_solve.*needs transpose_solve="):
        fg.grad(lambda b: fnp.sum(solve(A, b)))(B)
    close(fg.jvp(lambda b: solve(A, b), (B,), (B,))[1], np.linalg.solve(A, B))
    with pytest.raises(TreeError, match="custom_linear_solve: b"):
        lax.custom_linear_solve(lambda x: x, B, lambda mv, b: (b, b))


# ---- roots


def newton(f, x):
    def step(state):
        x, _ = state
        value, slope = fg.jvp(f, (x,), (fnp.ones_like(x),))
        new = x - value / slope
        return new, fnp.max(fnp.abs(new - x))

    return lax.while_loop(lambda s: s[1] > 1e-12, step, (x, fnp.asarray(np.inf)))[0]


def root(a):
    """The elementwise cube root."""
    return lax.custom_root(
        lambda x: x**3 - a, fnp.ones_like(a), newton, lambda g, y: y / g(fnp.ones_like(y))
    )


@pytest.mark.parametrize(
    "f",
    [root, fg.jit(root), fg.vmap(root), fg.checkpoint(root)],
    ids=["plain", "jit", "vmap", "checkpoint"],
)
def test_root(f):
    a = np.array([1.0, 8.0, 27.0])
    close(f(a), [1, 2, 3])
    want = 1 / (3 * np.array([1.0, 4.0, 9.0]))
    close(fg.grad(lambda v: fnp.sum(f(v)))(a), want)
    close(fg.jit(fg.grad(lambda v: fnp.sum(f(v))))(a), want)
    close(fg.jvp(f, (a,), (np.ones(3),))[1], want)
    second = -2 / 9 * a ** (-5 / 3)
    close(fg.grad(lambda v: fnp.sum(fg.grad(lambda w: fnp.sum(f(w)))(v)))(a), second)


def test_root_has_no_gradient_in_the_guess():
    def f(guess, a):
        return lax.custom_root(lambda x: x * x - a, guess, newton, lambda g, y: y / g(1.0))

    close(fg.grad(f, (0, 1))(np.float64(3), np.float64(4)), (0.0, 0.25))


def test_root_with_aux_and_trees():
    def f(a):
        x, aux = lax.custom_root(
            lambda p: {"x": p["x"] * 2.0 - a},
            {"x": np.float64(0)},
            lambda g, x0: ({"x": x0["x"] - g(x0)["x"] / 2.0}, {"steps": 1}),
            lambda g, y: {"x": y["x"] / 2.0},
            has_aux=True,
        )
        assert int(aux["steps"]) == 1
        return x["x"]

    close(fg.value_and_grad(f)(np.float64(6)), (3.0, 0.5))


def test_solvers_capture_traced_values():
    """What a solver closes over (a factor, a preconditioner) is a constant of derivatives."""

    def captured(a, b):
        m = a + a.T
        direct = lambda _, rhs: fnp.linalg.solve(m, rhs)
        return weighted(lax.custom_linear_solve(lambda x: m @ x, b, direct, symmetric=True))

    def root(a, b):
        m = a + a.T
        newton = lambda f, x: x - fnp.linalg.solve(m, f(x))
        dense = lambda g, y: fnp.linalg.solve(fg.jacfwd(g)(y), y)
        return weighted(lax.custom_root(lambda x: m @ x - b, fnp.zeros_like(b), newton, dense))

    def plain(a, b):
        return direct(a + a.T, b)

    for f in (captured, root):
        for of in (fg.grad, fg.hessian, lambda f: fg.jacrev(fg.grad(f))):
            want = of(plain)(A, B)
            close(of(f)(A, B), want)
            close(fg.jit(of(f))(A, B), want)
            close(fg.vmap(of(f), (None, 0))(A, fnp.stack([B, B]))[1], want)


def test_a_solver_may_loop_in_python():
    def bisect(f, x):
        low, high = 0.0, 8.0
        while high - low > 1e-12:
            mid = (low + high) / 2
            low, high = (mid, high) if f(fnp.asarray(mid, "float64")) < 0 else (low, mid)
        return fnp.asarray(low, "float64")

    def sqrt(a):
        zero = fnp.zeros((), "float64")
        return lax.custom_root(lambda x: x * x - a, zero, bisect, lambda g, y: y / g(1.0))

    close(fg.grad(sqrt)(fnp.asarray(4.0, "float64")), 0.25)


def test_tangent_solve_captures_traced_values():
    """A factor that the solver of tangents closes over, however the call is transformed."""

    def root(a, scale):
        f, start = lambda x: x**3 - a, fnp.ones_like(a)
        tangent = lambda g, y: (y * scale) / (g(fnp.ones_like(y)) * scale)
        return fnp.sum(lax.custom_root(f, start, newton, tangent))

    a, scale = np.array([1.0, 8.0, 27.0]), np.float64(3)
    want = 1 / 3 * a ** (-2 / 3)
    second = np.diag(-2 / 9 * a ** (-5 / 3))
    for f in (root, fg.jit(root), fg.checkpoint(root)):
        for of in (fg.grad, fg.jacfwd):
            close(of(f, (0, 1))(a, scale), (want, 0.0))
            close(fg.jit(of(f, (0, 1)))(a, scale), (want, 0.0))
        close(fg.hessian(f)(a, scale), second)
        many = fg.vmap(fg.grad(f), (None, 0))(a, fnp.array([1.0, 2.0], "float64"))
        close(many, np.stack([want, want]))

    def looped(a):
        return lax.scan(lambda c, s: (c + root(a, s), None), scale, np.array([1.0, 2.0]))[0]

    close(fg.grad(looped)(a), 2 * want)


def test_python_numbers_take_the_dtype_of_what_they_meet():
    def sqrt(a):
        solve = lambda f, x: lax.fori_loop(0, 20, lambda i, x: x - f(x) / fg.grad(f)(x), x)
        return lax.custom_root(lambda x: x * x - a, 1.0, solve, lambda g, y: y / g(1.0))

    def divide(a, b):
        solve = lambda matvec, b: b / matvec(1.0)
        return lax.custom_linear_solve(lambda x: a * x, b, solve, symmetric=True)

    four = np.array(4.0)
    for got, want in [
        (sqrt(four), 2.0),
        (fg.grad(sqrt)(four), 0.25),
        (divide(four, 2.0), 0.5),
        (fg.grad(divide)(four, 2.0), -0.125),
    ]:
        assert got.dtype == np.float64
        close(got, want)
    assert sqrt(4.0).weak_type
