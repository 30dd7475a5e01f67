"""What of an equation may be cut, and how conflicts are resolved."""

import numpy as np
import pytest

import funcgrad.numpy as fnp
from funcgrad import lax
from funcgrad.parallel.partitioner.factors import Factors, choose, factors_of, restrict
from tests.parallel.partitioned import traced

SIZES = {"x": 2, "y": 4}
SIDES = (("i", "k"), ("k", "j")), (("i", "j"),)
DOT = Factors(*SIDES, {"i": 8, "k": 8, "j": 8}, frozenset("k"), "sum")


def of(fun, *args):
    jaxpr, _ = traced(lambda *xs: [fun(*xs)], args)
    (eqn,) = jaxpr.eqns
    return factors_of(eqn)


def test_factors_of_a_product():
    found = of(lambda a, b: a @ b, np.ones((2, 3)), np.ones((3, 4)))
    (i, k), (k2, j) = found.ins
    assert k == k2
    assert found.outs == ((i, j),)
    assert found.sizes == {i: 2, k: 3, j: 4}
    assert found.contracted == {k}


def test_a_product_of_booleans_is_combined_by_or():
    a = np.ones((2, 3), bool)
    assert of(lambda a, b: a @ b, a, a.T).reduction == "or"


@pytest.mark.parametrize(
    ("fun", "shape", "n_cut"),
    [
        (lambda x: fnp.sort(x, 0), (4, 6), 1),
        (lambda x: fnp.cumsum(x, 0), (4, 6), 1),
        (lambda x: lax.argmax(x, 0, "int32"), (4, 6), 1),
        (lambda x: lax.reduce_max(x, (0,)), (4, 6), 2),
        (lambda x: lax.reduce_prod(x, (0,)), (4, 6), 1),
        (lambda x: lax.rev(x, (0,)), (4, 6), 1),
    ],
)
def test_whole_axes(fun, shape, n_cut):
    assert len(of(fun, np.ones(shape, "float32")).sizes) == n_cut


@pytest.mark.parametrize(
    ("old", "new", "sizes"),
    [
        ((8, 6), (48,), [8]),
        ((48,), (8, 6), [8]),
        ((8, 6), (4, 12), [4]),
        ((6, 4), (4, 6), [2]),
        ((2, 3, 4), (6, 4), [2, 4]),
        ((1, 8, 1), (8,), [8]),
        ((4, 1, 6), (1, 4, 6), [4, 6]),
        ((2, 6, 5), (4, 3, 5), [2, 5]),
    ],
)
def test_reshapes_share_leading_parts(old, new, sizes):
    found = of(lambda x: lax.reshape(x, new), np.ones(old))
    assert sorted(n for n in found.sizes.values() if n > 1) == sorted(sizes)


def test_reductions_that_no_collective_does_stay_whole():
    bits = of(lambda x: lax.reduce_or(x, (0,)), np.ones((4, 6), "int32"))
    flags = of(lambda x: lax.reduce_or(x, (0,)), np.ones((4, 6), bool))
    assert (len(bits.sizes), len(flags.sizes)) == (1, 2)


def test_one_wish_a_factor_is_granted():
    seen = [(("i", "k"), (("x",), ())), (("k", "j"), ((), ("y",)))]
    assert choose(DOT, seen, SIZES, lambda a: 0.0) == {"i": ("x",), "j": ("y",)}


def test_a_longer_cut_includes_a_shorter_one():
    seen = [(("i", "k"), (("x",), ())), (("i", "j"), (("x", "y"), ()))]
    assert choose(DOT, seen, SIZES, lambda a: 0.0) == {"i": ("x", "y")}


def test_a_cut_that_does_not_divide_is_shortened():
    small = Factors(*SIDES, {"i": 2, "k": 8, "j": 8}, frozenset("k"), "sum")
    seen = [(("i", "k"), (("x", "y"), ()))]
    assert choose(small, seen, SIZES, lambda a: 0.0) == {"i": ("x",)}


def test_conflicts_are_resolved_by_bytes():
    seen = [(("i", "k"), (("x",), ())), (("k", "j"), ((), ("x",)))]
    by_rows = lambda a: 1.0 if "i" in a else 2.0
    by_columns = lambda a: 1.0 if "j" in a else 2.0
    assert choose(DOT, seen, SIZES, by_rows) == {"i": ("x",)}
    assert choose(DOT, seen, SIZES, by_columns) == {"j": ("x",)}
    # Of equals, the first operand's.
    assert choose(DOT, seen, SIZES, lambda a: 0.0) == {"i": ("x",)}


def test_work_is_shared_before_bytes_are_saved():
    seen = [(("i", "k"), (("x", "y"), ())), (("k", "j"), ((), ("x",)))]
    assert choose(DOT, seen, SIZES, lambda a: float(len(a) > 0)) == {"i": ("x", "y")}


def test_many_conflicts_end():
    names = tuple("abcdefgh")
    f = Factors((names, names), (names,), dict.fromkeys(names, 8), frozenset(), "sum")
    seen = [(names, (("x", "y"),) + ((),) * 7), (names, tuple(("y",) for _ in names))]
    found = choose(f, seen, SIZES, lambda a: 0.0)
    used = [a for axes in found.values() for a in axes]
    assert sorted(used) == ["x", "y"]


def test_restrict():
    assert restrict(("i", ".", "j"), {"i": ("x",)}) == (("x",), (), ())
