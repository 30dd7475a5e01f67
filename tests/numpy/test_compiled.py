"""Functions of each family, compiled to native code, against their eager values."""

import numpy as np
import pytest

import funcgrad.numpy as fnp
from funcgrad.core.array import Array
from funcgrad.transforms.derivatives.grad import grad
from funcgrad.transforms.jit.jit import jit
from tests.numpy.compare import leaves, same

X = np.linspace(-2, 3, 12).reshape(3, 4)
S = X[:, :3] @ X[:, :3].T + 3 * np.eye(3)
FUNCTIONS = {
    "rot90": lambda x: fnp.rot90(x),
    "block": lambda x: fnp.block([[x, x], [x, x]]),
    "repeat": lambda x: fnp.repeat(x, np.array([1, 0, 2]), 0),
    "roll": lambda x: fnp.roll(x, 3),
    "pad": lambda x: fnp.pad(x, 2, "reflect"),
    "insert": lambda x: fnp.insert(x, [0, 2], 9.0, 1),
    "where": lambda x: fnp.where(x > 0, x, 0),
    "nonzero": lambda x: fnp.nonzero(x > 0, size=8, fill_value=-1),
    "take": lambda x: fnp.take(x, np.array([2, 0]), 1),
    "take_along_axis": lambda x: fnp.take_along_axis(x, fnp.argsort(-x, 1), 1),
    "diag": lambda x: fnp.diag(fnp.diag(x)),
    "select": lambda x: fnp.select([x < 0, x > 2], [x, x * x], 7),
    "einsum": lambda x: fnp.einsum("ij,kj->ik", x, x),
    "sort": lambda x: fnp.sort(x, 0, descending=True),
    "searchsorted": lambda x: fnp.searchsorted(x[0], x[1]),
    "unique": lambda x: fnp.unique(fnp.round(x), size=9, return_counts=True),
    "quantile": lambda x: fnp.quantile(x, np.array([0.2, 0.7]), 1),
    "histogram": lambda x: fnp.histogram(x, bins=4),
    "cov": lambda x: fnp.cov(x),
    "norm": lambda x: fnp.linalg.norm(x, axis=0),
    "solve": lambda x: fnp.linalg.solve(S, x),
    "det": lambda x: fnp.linalg.det(x[:, :3] + S),
    "rfft": lambda x: fnp.fft.rfft(x),
    "convolve": lambda x: fnp.convolve(x[0], x[1]),
    "polyval": lambda x: fnp.polyval(x[0], x),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_compiled(name):
    f = FUNCTIONS[name]
    same(jit(f)(X), f(Array(X)), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["pad", "take_along_axis", "einsum", "sort", "solve", "norm"])
def test_compiled_derivatives(name):
    f = grad(lambda x: sum(fnp.sum(y * y) for y in leaves(FUNCTIONS[name](x))))
    same(jit(f)(X), f(Array(X)), rtol=1e-9, atol=1e-9)
