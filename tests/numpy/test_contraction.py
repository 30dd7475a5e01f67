"""Matrix products and other contractions against NumPy, with derivatives, types and errors."""

import itertools

import numpy as np
import pytest

import funcgrad.numpy as fnp
from funcgrad.core.array import Array
from funcgrad.errors import ShapeError
from funcgrad.transforms.jit.make_jaxpr import make_jaxpr
from tests.numpy.compare import check_grad, same, same_as_numpy, same_batched

RNG = np.random.default_rng(0)


def random(*shape):
    return RNG.standard_normal(shape)


SHAPES = [(3,), (2, 3), (3, 2), (5, 2, 3), (5, 3, 2), (1, 3, 2), (4, 1, 3, 2), (4, 5, 2, 3)]


@pytest.mark.parametrize(("left", "right"), list(itertools.product(SHAPES, SHAPES)))
def test_matmul(left, right):
    a, b = random(*left), random(*right)
    try:
        np.matmul(a, b)
    except ValueError:
        with pytest.raises(ShapeError, match="matmul: "):
            fnp.matmul(a, b)
        return
    same_as_numpy(fnp.matmul, np.matmul, a, b)
    check_grad(fnp.matmul, a, b)


def test_matmul_repeats_nothing():
    """A product with one matrix is one product, whatever leads the other operand."""
    a, b = fnp.ones((7, 4, 5)), fnp.ones((5, 3))
    (eqn,) = make_jaxpr(fnp.matmul)(a, b).eqns
    assert eqn.prim.name == "dot_general"


CASES = [
    ("dot", (3,), (3,)),
    ("dot", (2, 3), (4, 3, 2)),
    ("dot", (2, 3), ()),
    ("dot", (4, 2, 3), (3,)),
    ("inner", (2, 3), (4, 3)),
    ("inner", (), (4, 3)),
    ("outer", (2, 3), (4,)),
    ("vdot", (2, 3), (3, 2)),
    ("tensordot", (2, 3, 4), (3, 4, 5)),
    ("kron", (2, 3), (3, 2)),
    ("kron", (2,), (2, 2)),
    ("kron", (2, 2, 1), (3,)),
    ("cross", (3,), (3,)),
    ("cross", (4, 3), (3,)),
    ("vecdot", (4, 3), (3,)),
    ("vecdot", (4, 1, 3), (2, 3)),
    ("matvec", (4, 2, 3), (4, 3)),
    ("matvec", (2, 3), (5, 3)),
    ("vecmat", (4, 2), (4, 2, 3)),
    ("vecmat", (5, 2), (2, 3)),
]


@pytest.mark.parametrize(("name", "left", "right"), CASES)
def test_product(name, left, right):
    a, b = random(*left), random(*right)
    ours, theirs = getattr(fnp, name), getattr(np, name)
    same_as_numpy(ours, theirs, a, b)
    check_grad(ours, a, b)
    if name in ("dot", "vdot", "inner", "vecdot", "vecmat", "matvec", "kron"):
        same_as_numpy(ours, theirs, a + 1j * a[..., ::-1] if a.ndim else a, b * (1 - 2j))


@pytest.mark.parametrize(
    "axes", [1, 0, ((1, 0), (0, 1)), ((-1,), (0,)), (2, 0), ([0, 1], [1, 2]), ((), ())]
)
def test_tensordot_axes(axes):
    a, b = random(2, 3, 4), random(4, 2, 3)
    try:
        np.tensordot(a, b, axes)
    except ValueError:
        with pytest.raises(ShapeError, match=r"tensordot: axis \d of a"):
            fnp.tensordot(a, b, axes)
        return
    same_as_numpy(lambda x, y: fnp.tensordot(x, y, axes), lambda x, y: np.tensordot(x, y, axes),
                  a, b)  # fmt: skip


def test_cross_of_two_components_and_other_axes():
    a, b = random(4, 3), random(4, 3)
    same(fnp.cross(a, b, axis=1), np.cross(a, b, axis=1))
    same(fnp.cross(a.T, b, axisa=0, axisc=0), np.cross(a.T, b, axisa=0, axisc=0))
    pairs = fnp.cross(a[:, :2], b[:, :2])
    same(pairs, a[:, 0] * b[:, 1] - a[:, 1] * b[:, 0])
    mixed = fnp.cross(a[:, :2], b)
    same(mixed, np.cross(np.pad(a[:, :2], ((0, 0), (0, 1))), b))


def test_trace():
    a = random(3, 4, 5)
    same_as_numpy(fnp.trace, np.trace, a)
    same_as_numpy(lambda x: fnp.trace(x, 1, 1, 2), lambda x: np.trace(x, 1, 1, 2), a)
    same_batched(fnp.trace, a)


def test_products_batch():
    same_batched(fnp.matmul, random(3, 4, 2), random(3, 2))
    same_batched(fnp.kron, random(3, 2), random(3, 2))
    same_batched(fnp.cross, random(4, 3), random(4, 3))


def test_types():
    bools = np.array([[True, False], [True, True]])
    same_as_numpy(fnp.matmul, np.matmul, bools, bools)
    small = np.full((2, 2), 100, np.int8)
    wide = fnp.matmul(small, small, preferred_element_type="int32")
    assert wide.dtype == np.int32
    assert wide[0, 0].item() == 20000
    assert fnp.matmul(fnp.ones((2, 2), "bfloat16"), fnp.ones((2, 2))).dtype == np.float32
    assert fnp.dot(fnp.array([1, 2]), fnp.array([0.5, 1.0])).item() == 2.5


def test_operator():
    a, b = random(2, 3), random(3, 2)
    same(Array(a) @ b, a @ b)
    same(a @ Array(b), a @ b)
    same(Array(a).dot(b), a @ b)


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: fnp.matmul(1.0, fnp.ones(2)), ShapeError, "matmul: need arrays of one or more"),
        (lambda: fnp.matmul(fnp.ones((2, 3)), fnp.ones((2, 3))), ShapeError,
         r"last axis of a f32\[2,3\] has size 3.*axis of b f32\[2,3\] has size 2"),
        (lambda: fnp.matmul(fnp.ones((2, 3)), [1, 2, 3]), TypeError, "matmul: y is a list"),
        (lambda: fnp.dot(fnp.ones(2), fnp.ones(3)), ShapeError, "dot: axis 0 of a"),
        (lambda: fnp.tensordot(fnp.ones(2), fnp.ones(2), 2), ShapeError, "axes=2"),
        (lambda: fnp.tensordot(fnp.ones(2), fnp.ones(2), ((0,), ())), ValueError, "pairs"),
        (lambda: fnp.cross(fnp.ones(4), fnp.ones(3)), ShapeError, "2 or 3 components"),
        (lambda: fnp.vecdot(fnp.ones(4), fnp.ones(3)), ShapeError, "vecdot: axis -1"),
    ],
)  # fmt: skip
def test_errors(call, error, match):
    with pytest.raises(error, match=match):
        call()
