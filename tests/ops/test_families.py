"""Operands of elementwise ops: what they are made of, and axes of size 1."""

import itertools

import numpy as np
import pytest

from funcgrad import lax
from funcgrad.core.primitive import Primitive
from funcgrad.errors import DTypeError, ShapeError
from funcgrad.transforms.batching.vmap import vmap
from funcgrad.transforms.jit.jit import jit
from tests.numpy.compare import check_grad

X, Y = np.linspace(0.2, 0.9, 6).reshape(2, 3), np.linspace(0.3, 0.8, 3)


def operand_count(prim):
    for n in (1, 2, 3):
        try:
            prim(*[np.float64(0.5)] * n)
            return n
        except DTypeError:
            return None
        except TypeError:
            pass
    return None


OPS = [f for n in sorted(dir(lax)) if isinstance(f := getattr(lax, n), Primitive) and f.elementwise]
SEVERAL = {f.name: f for f in OPS if operand_count(f) in (2, 3)}


def test_there_are_many():
    assert {"add", "sub", "mul", "div", "max", "pow", "eq", "nextafter", "atan2"} <= set(SEVERAL)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", SEVERAL)
def test_axes_of_size_1_are_as_long_as_the_others(name):
    prim = SEVERAL[name]
    n = operand_count(prim)
    each = [(2, 3), (1, 3), (2, 1), (1, 1), ()] if n == 2 else [(2, 3), (2, 1), ()]
    for shapes in itertools.product(each, repeat=n):
        args = [np.resize(X, s) for s in shapes]
        whole = np.broadcast_shapes(*shapes)
        want = np.asarray(prim(*(np.broadcast_to(a, whole) for a in args)))
        several = [np.stack([a, a]) for a in args]
        for got in (prim(*args), jit(prim)(*args), vmap(prim)(*several)[1]):
            np.testing.assert_allclose(np.asarray(got), want, rtol=1e-12)


@pytest.mark.parametrize("name", ["add", "mul", "div", "pow", "atan2", "max"])
def test_their_derivatives_are_summed(name):
    check_grad(SEVERAL[name], X, Y.reshape(1, 3))
    check_grad(SEVERAL[name], np.full((2, 1), 0.1), X)


@pytest.mark.parametrize("name", SEVERAL)
def test_what_does_not_fit(name):
    prim = SEVERAL[name]
    rest = [1.0] * (operand_count(prim) - 2)
    for a, b in (((3,), (2, 3)), ((2, 3), (3, 3)), ((2,), (3,)), ((1,), (2, 3))):
        with pytest.raises(ShapeError, match=f"{prim.name}: operands must have one shape"):
            prim(np.full(a, 0.5), np.full(b, 0.5), *rest)
    if name != "pow":  # whose exponent may be an integer
        with pytest.raises(DTypeError, match="must have one dtype, got the numbers 1, 0.5"):
            prim(1, 0.5, *[0.5] * len(rest))
