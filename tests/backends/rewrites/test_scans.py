"""Products moved out of scans: what moves, what stays, and the same results."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.backends.llvm.cpu import CPU
from funcgrad.backends.program import GemmStep, LoopStep, walk
from funcgrad.backends.rewrites.scans import spread
from tests.backends.checks import check, floats

TURNS = CPU.limits.turns


def scan_of(fun, *args):
    (eqn,) = [e for e in fg.make_jaxpr(fun)(*args).jaxpr.eqns if e.prim.name == "scan"]
    return eqn


def names(fun, *args):
    """The ops around a scan once it is spread, and those of its body that are products."""
    made = spread(scan_of(fun, *args), TURNS)
    if made is None:
        return None
    (inner,) = [e for e in made.eqns if e.prim.name == "scan"]
    products = [e for e in inner.params["jaxpr"].eqns if e.prim.name == "dot_general"]
    return [e.prim.name for e in made.eqns if e.prim.name != "transpose"], len(products)


def products(planned):
    """How many products there are, and how many of them in loops."""
    gemms = [s for s in walk(planned.steps) if isinstance(s, GemmStep)]
    loops = [s for s in walk(planned.steps) if isinstance(s, LoopStep)]
    return len(gemms), sum(isinstance(s, GemmStep) for x in loops for s in walk(x.body))


def test_rows_are_multiplied_before_the_scan():
    def rnn(xs, w, u, h):
        return fg.lax.scan(lambda h, x: (fnp.tanh(x @ w + h @ u),) * 2, h, xs)

    args = floats(5, 7, 8), floats(8, 9), floats(9, 9), floats(7, 9)
    assert names(rnn, *args) == (["dot_general", "scan"], 1)
    assert products(check(lambda *a: list(rnn(*a)), *args)) == (2, 1)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    "multiply",
    [
        lambda x, w: x @ w,
        lambda x, w: w.T @ x.T,
        lambda x, w: fnp.einsum("ik,kj->ji", x, w),
        lambda x, w: fnp.einsum("ik,kj->ij", x, w.T.T),
        lambda x, w: fnp.tensordot(w, x, axes=((0,), (1,))),
    ],
)
def test_any_side_and_order(multiply, reverse):
    xs, w, c = floats(5, 12, 8), floats(8, 9), floats(12, 8)

    def before(xs, w):
        total, ys = fg.lax.scan(
            lambda c, x: (c + multiply(x, w).sum(), multiply(x, w)), 0.0, xs, reverse=reverse
        )
        return [total, ys]

    def after(xs, w, c):
        return list(fg.lax.scan(lambda c, x: (c * 0.5 + x, multiply(c, w)), c, xs, reverse=reverse))

    assert products(check(before, xs, w))[1] == 0
    assert names(before, xs, w)[1] == 0
    assert products(check(after, xs, w, c))[1] == 0
    assert names(after, xs, w, c)[1] == 0


@pytest.mark.parametrize("reverse", [False, True])
def test_batched_products(reverse):
    xs, w = floats(4, 3, 12, 8), floats(3, 8, 9)

    def f(xs, w):
        def turn(c, x):
            c = c * 0.5 + x
            batched = fnp.einsum("bik,bkj->bij", x, w)
            return c, (batched, fnp.einsum("bkj,bik->jbi", w, c))

        return fg.tree.leaves(fg.lax.scan(turn, xs[0], xs, reverse=reverse))

    assert products(check(f, xs, w))[1] == 0


def test_gradients_of_weights_are_summed_at_once():
    def rnn(xs, w, u, b, h):
        def turn(h, x):
            h = fnp.tanh(x @ w + h @ u + b)
            return h, h

        return (fg.lax.scan(turn, h, xs)[1] ** 2).sum()

    args = floats(5, 7, 8), floats(8, 9), floats(9, 9), floats(9), floats(7, 9)
    planned = check(lambda *a: list(fg.grad(rnn, argnums=(0, 1, 2, 3, 4))(*a)), *args)
    # Forward one before and one inside; backward one inside, those of xs, w and u after.
    assert products(planned) == (6, 2)


def test_sums_that_are_read_stay():
    def f(xs, w):
        def turn(c, x):
            c = c + x.T @ x
            return c, c

        return list(fg.lax.scan(turn, w, xs))

    args = floats(5, 7, 8), floats(8, 8)
    assert names(f, *args) is None
    check(f, *args)


def test_sums_on_both_sides_and_what_turns_alone_know():
    def f(xs, ys, a, b):
        def turn(c, row):
            x, y = row
            z = x * c[2]
            return (c[0] + x.T @ y, (z.T @ y).T + c[1], c[2] * 0.5), z.sum()

        return fg.tree.leaves(fg.lax.scan(turn, (a, b, fnp.float32(2)), (xs, ys), reverse=True))

    args = floats(5, 7, 8), floats(5, 7, 9), floats(8, 9), floats(9, 8)
    assert names(f, *args) == (["scan", "dot_general", "add", "dot_general", "add"], 0)
    check(f, *args)


def test_rows_of_results_and_chains_of_layers():
    def f(xs, w, u):
        def turn(c, x):
            y = (x @ w) @ u
            return c, (y, y, x)

        return fg.tree.leaves(fg.lax.scan(turn, 0.0, xs))

    args = floats(5, 7, 8), floats(8, 9), floats(9, 7)
    assert names(f, *args) == (["dot_general", "dot_general", "scan"], 0)
    check(f, *args)


def test_a_result_that_is_also_summed_and_a_row_that_waits_twice():
    def f(xs, w, a, h):
        def turn(c, x):
            h, a = c
            h = fnp.tanh(h + x)
            return (h, a + h.T @ h), (h, h @ w)

        return fg.tree.leaves(fg.lax.scan(turn, (h, a), xs))

    args = floats(5, 7, 8), floats(8, 9), floats(8, 8), floats(7, 8)
    made = spread(scan_of(f, *args), TURNS)
    (inner,) = [e for e in made.eqns if e.prim.name == "scan"]
    assert len(inner.outs) == 2  # the carried value, and its rows once
    check(f, *args)


def test_what_does_not_move():
    x, w = floats(5, 7, 8), floats(8, 9)

    def ys(dtype=np.float32, rows=6, length=5):
        shapes = fg.ShapeDtypeStruct((length, rows, 8), dtype), fg.ShapeDtypeStruct((8, 9), dtype)
        return names(lambda x, w: fg.lax.scan(lambda c, r: (c, 2 * (r @ w)), 0.0, x)[1], *shapes)

    assert ys() == (["dot_general", "scan"], 0)
    assert ys(fnp.bfloat16) is None  # it would be rounded less often
    assert ys(np.int32) is None
    assert ys(rows=257) is None
    assert ys(length=1) is None
    assert ys(rows=17, length=TURNS.cached // (17 * 9 * 4) + 1) is None
    assert ys(rows=16, length=TURNS.cached // (16 * 9 * 4) + 1) is not None
    assert ys(length=TURNS.nbytes // (6 * 9 * 4) + 1) is None
    assert names(lambda x, w: fg.lax.scan(lambda c, r: (c, c @ r.T), w.T, x)[1], x, w) is None


def test_nested_scans_and_effects():
    def f(xs, w):
        def turn(c, x):
            inner = fg.lax.scan(lambda d, row: (d + row @ w, None), fnp.zeros((2, 9)), x)[0]
            return c + inner, inner

        return list(fg.lax.scan(turn, fnp.zeros((2, 9)), xs))

    check(f, floats(3, 4, 2, 8), floats(8, 9))


def test_compiled():
    def rnn(xs, w, u, b, h):
        def turn(h, x):
            h = fnp.tanh(x @ w + h @ u + b)
            return h, h

        return (fg.lax.scan(turn, h, xs)[1] ** 2).sum()

    # Small weights: large ones would multiply a rounding error from turn to turn.
    w, u = floats(20, 24) / 8, floats(24, 24) / 8
    args = floats(7, 12, 20), w, u, floats(24), floats(12, 24)
    gradient = fg.value_and_grad(rnn, argnums=(0, 1, 2, 3, 4))
    for got, wanted in zip(
        fg.tree.leaves(fg.jit(gradient)(*args)), fg.tree.leaves(gradient(*args)), strict=True
    ):
        size = float(abs(np.asarray(wanted)).max())
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5 * size)
