"""einsum against NumPy's: every form of subscripts, every dtype, derivatives."""

import numpy as np
import pytest

import funcgrad.numpy as fnp
from funcgrad.core.array import Array
from funcgrad.core.staging import stage
from funcgrad.core.trace import aval_of
from funcgrad.errors import ShapeError
from tests.numpy.compare import check_grad, same, same_as_numpy, same_batched

CASES = [
    ("ij,jk->ik", (2, 3), (3, 4)),
    ("ij,jk", (2, 3), (3, 4)),
    ("ij,kj->ki", (2, 3), (4, 3)),
    ("ij,ij->ij", (2, 3), (2, 3)),
    ("ij,ij->i", (2, 3), (2, 3)),
    ("ij,ji->", (2, 3), (3, 2)),
    ("i,j->ij", (2,), (3,)),
    ("i,j->ji", (2,), (3,)),
    ("i,i", (3,), (3,)),
    ("ij->ji", (2, 3)),
    ("ba", (2, 3)),
    ("ij->", (2, 3)),
    ("ij->j", (0, 3)),
    ("ii", (3, 3)),
    ("ii->i", (3, 3)),
    ("iij->ji", (3, 3, 2)),
    ("iijj->ij", (3, 3, 2, 2)),
    ("iii->i", (2, 2, 2)),
    ("ii,i->i", (3, 3), (3,)),
    ("ijk,jil->kl", (2, 3, 4), (3, 2, 5)),
    ("bij,bjk->bik", (2, 3, 4), (2, 4, 5)),
    ("bhqd,bhkd->bhqk", (2, 2, 3, 4), (2, 2, 5, 4)),
    ("bij,jk->bki", (2, 3, 4), (4, 5)),
    ("...ij,...jk->...ik", (2, 1, 3, 4), (5, 4, 2)),
    ("...ij,jk", (2, 3, 4), (4, 5)),
    ("i...,i...->...", (3, 2, 4), (3, 4)),
    ("...->...", (2, 3)),
    ("a...a->...a", (3, 2, 3)),
    ("ij,ij->ij", (2, 1), (1, 3)),
    ("ij,jk->ik", (2, 1), (3, 4)),
    ("i,->i", (3,), ()),
    (",->", (), ()),
    ("ab,bc,cd->ad", (2, 3), (3, 4), (4, 5)),
    ("ab,bc,cd,de,ef->af", (2, 3), (3, 4), (4, 5), (5, 2), (2, 3)),
    ("a,ab,abc->abc", (2,), (2, 3), (2, 3, 4)),
    ("ea,fb,abcd,gc,hd->efgh", (2, 3), (2, 3), (3, 3, 3, 3), (2, 3), (2, 3)),
    ("ij,jk,ki->", (2, 3), (3, 4), (4, 2)),
    (" i j , j k -> i k ", (2, 3), (3, 4)),
]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c[0])
def test_as_numpy(case, rng):
    spec, *shapes = case
    xs = [rng.standard_normal(s) for s in shapes]
    same_as_numpy(
        lambda *a: fnp.einsum(spec, *a), lambda *a: np.einsum(spec, *a), *xs, rtol=1e-10, atol=1e-10
    )
    if all(x.size for x in xs):
        check_grad(lambda *a: fnp.einsum(spec, *a), *xs)


@pytest.mark.parametrize("dtype", [bool, "int8", "int32", "float16", "float32", "complex128"])
def test_dtypes(dtype, rng):
    x = rng.integers(0, 3, (3, 3)).astype(dtype)
    for spec in ("ij,jk->ik", "ij,ij->ij", "ij->i", "ii->i", "ii"):
        args = [x] * (spec.count(",") + 1)
        same(fnp.einsum(spec, *args), np.einsum(spec, *args))


def test_promotion():
    assert fnp.einsum("i,i", np.int32([1, 2]), np.float32([1, 2])).dtype == np.float32
    out = fnp.einsum("i,i", *[np.full(3, 300, np.float16)] * 2, preferred_element_type="float32")
    same(out, np.float32(270000))


def test_operands_with_lists(rng):
    a, b = rng.standard_normal((2, 3)), rng.standard_normal((4, 3))
    same(fnp.einsum(a, [0, 1], b, [2, 1], [2, 0]), np.einsum(a, [0, 1], b, [2, 1], [2, 0]))
    same(fnp.einsum(a, [0, 1], b, [2, 1]), np.einsum(a, [0, 1], b, [2, 1]))
    same(fnp.einsum(a, [..., 1], [1, ...]), np.einsum(a, [..., 1], [1, ...]))


PATHS = ["auto", "optimal", "greedy", True, False, [(0, 2), (0, 1)], ["einsum_path", (1, 2)]]


@pytest.mark.parametrize("optimize", PATHS, ids=str)
def test_orders_of_contraction(optimize, rng):
    spec = "ab,bc,cd->ad"
    xs = [rng.standard_normal(s) for s in ((2, 3), (3, 4), (4, 5))]
    same(fnp.einsum(spec, *xs, optimize=optimize), np.einsum(spec, *xs))


def test_a_good_order_is_found():
    a, b, v = np.ones((30, 30)), np.ones((30, 30)), np.ones(30)
    path, report = fnp.einsum_path("ij,jk,k->i", a, b, v)
    assert path == [(1, 2), (0, 1)]
    assert "Complete contraction" in report
    same(fnp.einsum("ij,jk,k->i", a, b, v, optimize=path), np.full(30, 900.0))


def program(spec, *shapes):
    avals = [aval_of(Array(np.ones(s))) for s in shapes]
    return [e.prim.name for e in stage(lambda *a: [fnp.einsum(spec, *a)], avals)[0].eqns]


def test_programs_are_as_short_as_they_can_be():
    assert program("ij,jk->ik", (2, 3), (3, 4)) == ["dot_general"]
    assert program("ij,jk->ki", (2, 3), (3, 4)) == ["dot_general"]
    assert program("bij,bjk->bik", (2, 2, 3), (2, 3, 4)) == ["dot_general"]
    assert program("bhqd,bhkd->bhqk", (2, 2, 3, 4), (2, 2, 5, 4)) == ["dot_general"]
    assert program("ij,ij->ij", (2, 3), (2, 3)) == ["mul"]
    assert program("ij->ji", (2, 3)) == ["transpose"]
    assert program("ij->i", (2, 3)) == ["reduce_sum"]


def test_batched(rng):
    x, y = rng.standard_normal((3, 2, 4)), rng.standard_normal((3, 4, 2))
    same_batched(lambda x, y: fnp.einsum("ij,jk->ki", x, y), x, y)
    same_batched(lambda x: fnp.einsum("ii->i", x), rng.standard_normal((2, 3, 3)))


X = np.ones((2, 3))
ERRORS = [
    (lambda: fnp.einsum("ij,jk", X), ValueError, "name 2 operands, got 1"),
    (lambda: fnp.einsum("ijk", X), ShapeError, r"names 3 axes, operand 0 f64\[2,3\] has 2"),
    (lambda: fnp.einsum("i", X), ShapeError, "names 1 axes"),
    (lambda: fnp.einsum("ij,jk", X, X), ShapeError, "'j' has size 3 in one operand and 2"),
    (lambda: fnp.einsum("ij->iz", X), ValueError, "must name letters of the operands"),
    (lambda: fnp.einsum("ij->ii", X), ValueError, "each once"),
    (lambda: fnp.einsum("i...->i", X), ValueError, "lacks"),
    (lambda: fnp.einsum("i1", X), ValueError, "must be letters"),
    (lambda: fnp.einsum("ij", [[1, 2]]), TypeError, "operand 0 is a list"),
    (lambda: fnp.einsum("ij,ij", X, X, optimize="best"), ValueError, "optimize must be"),
    (lambda: fnp.einsum("ij,ij", X, X, optimize=[(0, 5)]), ValueError, "is no path"),
]


@pytest.mark.parametrize(("call", "error", "words"), ERRORS)
def test_errors(call, error, words):
    with pytest.raises(error, match=words):
        call()
