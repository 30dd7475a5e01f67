"""Weights that are laid out once, for products of few rows."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import export, nn
from funcgrad.export.constants import laid_out


@pytest.fixture
def weights(rng):
    shapes = {"up": (128, 256), "out": (128, 256), "table": (200, 128)}
    return {k: fnp.asarray(rng.standard_normal(s).astype("f4") / 12) for k, s in shapes.items()}


def panels(f, *args):
    """How many arrays lie in panels."""
    return sum(c.ndim == 3 for c in laid_out(fg.make_jaxpr(f)(*args)).consts)


def model(w):
    def f(ids, x):
        h = nn.gelu((x + w["table"][ids]) @ w["up"])  # a table is read by its rows, too
        return (h @ w["out"].T) @ w["table"].T

    return f


def test_products_of_few_rows_read_panels(weights, rng):
    f = model(weights)
    for rows in ((1,), (2, 3), (64,)):
        ids, x = rng.integers(0, 200, rows).astype("i4"), rng.standard_normal((*rows, 128))
        args = fnp.asarray(ids), fnp.asarray(x.astype("f4"))
        assert panels(f, *args) == 2
        exported = export.export(fg.jit(f))(*args)
        np.testing.assert_allclose(exported.call(*args), f(*args), rtol=1e-4, atol=1e-4)


def test_other_matrices_stay(weights):
    w, x = weights["up"], fnp.ones((4, 128))
    assert panels(lambda x: x @ w, x) == 1
    assert panels(lambda x: x @ w, fnp.ones((65, 128))) == 0  # many rows
    assert panels(lambda x: x @ w[:, :100], x) == 0  # a part of it
    assert panels(lambda x: x @ w + w[:4], x) == 0  # read elsewhere
    assert panels(lambda x: (x @ w) @ w.T, x) == 0  # summed along both axes
    assert panels(lambda x: w.T @ x.T, x) == 0  # the left operand
    assert panels(lambda x: fg.lax.fori_loop(0, 2, lambda i, y: x @ w, x @ w), x) == 0
    small, odd = fnp.ones((128, 64)), fnp.ones((128, 257))
    assert panels(lambda x: (x @ small, x @ odd), x) == 0


def test_what_is_transformed_has_the_weights_themselves(weights):
    @fg.custom_jvp
    def f(x):
        return fnp.sum(x @ weights["up"])

    f.defjvp(lambda primals, tangents: (f(*primals), 7 * fnp.sum(tangents[0])))
    x = fnp.ones((4, 128))
    call = export.export(fg.jit(f))(x).call
    np.testing.assert_allclose(call(x), f(x), rtol=1e-4)
    np.testing.assert_array_equal(fg.grad(call)(x), fnp.full((4, 128), 7.0))
    np.testing.assert_allclose(fg.vmap(call)(fnp.stack([x, x]))[1], f(x), rtol=1e-4)
    np.testing.assert_allclose(fg.jit(call)(x), f(x), rtol=1e-4)
