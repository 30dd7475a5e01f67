"""Scans in blocks of turns: which are, what comes before them, and the same results."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.backends.llvm.cpu import CPU
from funcgrad.backends.llvm.rewrites import scan_blocks
from funcgrad.backends.llvm.rewrites.scan_blocks import LEAST_TURNS, blocked
from funcgrad.core.record import replace
from tests.backends.checks import check, floats, limited

ROWS, WIDTH = 32, 32


@pytest.fixture(autouse=True)
def small_caches(monkeypatch):
    """Blocks of 16 turns of `ROWS` rows of 64 elements."""
    limited(monkeypatch, turns=replace(CPU.limits.turns, cached=1 << 17))
    monkeypatch.setattr(scan_blocks, "BLOCK_BYTES", LEAST_TURNS * ROWS * 64 * 4)


def scan_of(fun, *args):
    (eqn,) = [e for e in fg.make_jaxpr(fun)(*args).jaxpr.eqns if e.prim.name == "scan"]
    return eqn


def cut(scan, cached=1 << 17):
    return blocked(scan, replace(CPU.limits.turns, cached=cached))


def cell(xs, w, u, h, reverse=False):
    """A recurrent network."""

    def turn(h, x):
        h = fnp.tanh(x @ w + fnp.tile(h, 2) + (h @ u)[:, :64])
        return h[:, :WIDTH], h

    return list(fg.lax.scan(turn, h, xs, reverse=reverse))


def operands(length, *batch, panels=2):
    weights = floats(WIDTH, 64) / np.float32(9), floats(WIDTH, 64 * panels) / np.float32(9)
    return floats(*batch, length, ROWS, WIDTH), *weights, floats(*batch, ROWS, WIDTH)


@pytest.mark.parametrize("reverse", [False, True])
def test_each_block_multiplies_its_rows_at_once(reverse):
    args = operands(48)
    made = cut(scan_of(lambda *a: cell(*a, reverse=reverse), *args))
    (outer,) = [e for e in made.eqns if e.prim.name == "scan"]
    assert outer.params["length"] == 3
    assert outer.params["reverse"] == reverse
    body = outer.params["jaxpr"]
    assert [e.prim.name for e in body.eqns] == ["dot_general", "scan"]
    assert body.eqns[0].outs[0].aval.shape == (LEAST_TURNS, ROWS, 64)
    check(lambda *a: cell(*a, reverse=reverse), *args)


def test_panels_are_copied_once_before_all_blocks():
    xs, w, u, h = operands(48, panels=8)
    assert u.nbytes >= 1 << 16
    made = cut(scan_of(cell, xs, w, u, h))
    assert [e.prim.name for e in made.eqns] == [
        "reshape",
        "transpose",
        "reshape",
        "scan",
        "reshape",
    ]
    assert [e.prim.name for e in made.eqns[3].params["jaxpr"].eqns] == ["dot_general", "scan"]
    check(cell, xs, w, u, h)


def test_lengths_that_have_no_fitting_divisor_stay():
    for length in (47, 2 * (LEAST_TURNS - 1), 8):
        assert cut(scan_of(cell, *operands(length))) is None
    check(cell, *operands(47))


def test_what_fits_or_has_no_product_known_before_stays():
    args = operands(48)
    assert cut(scan_of(cell, *args), cached=1 << 20) is None
    sums = lambda xs, h: fg.lax.scan(lambda h, x: (h + x, None), h, xs)[0]
    assert cut(scan_of(sums, args[0], args[3]), cached=1) is None


def test_gradients_batches_and_scans_in_scans():
    xs, w, u, h = operands(48)

    def loss(xs, w, u, h):
        last, ys = cell(xs, w, u, h)
        return (last**2).sum() + (ys**2).mean()

    check(lambda *a: list(fg.grad(loss, argnums=(0, 1, 2, 3))(*a)), xs, w, u, h)

    def batched(xs, w, u, h):
        return fg.vmap(cell, in_axes=(0, None, None, 0))(xs, w, u, h)

    check(batched, *operands(32, 2))

    def nested(xs, w, u, h):
        return list(fg.lax.scan(lambda h, xs: tuple(cell(xs, w, u, h)), h, xs))

    check(nested, operands(32, 3)[0], w, u, h)


def test_effects_come_in_order_and_as_often():
    seen = []

    def f(xs, w):
        def turn(c, x):
            i, c = c
            fg.debug.callback(lambda i: seen.append(int(i)), i, ordered=True)
            return (i + 1, c + (x @ w).sum()), None

        return fg.lax.scan(turn, (0, fnp.float32(0)), xs)[0][1]

    xs, w, *_ = operands(48)
    np.testing.assert_allclose(fg.jit(f)(xs, w), (xs @ w).sum(), rtol=1e-3, atol=1e-2)
    assert seen == list(range(48))


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_compiled(threads):
    args = operands(64, panels=8)
    before = fg.num_threads()
    fg.set_num_threads(threads)
    try:
        results = fg.jit(cell)(*args)
        fg.set_num_threads(1)
        for got, alone, wanted in zip(results, fg.jit(cell)(*args), cell(*args), strict=True):
            np.testing.assert_array_equal(got, alone)
            np.testing.assert_allclose(got, wanted, rtol=3e-5, atol=3e-5)
    finally:
        fg.set_num_threads(before)
