"""What varies: marks where they belong, none where they don't, and none left at the end."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax
from funcgrad.core import context
from funcgrad.core.ir import typecheck
from funcgrad.errors import ShardingError
from funcgrad.parallel.mapping.varying import annotate, erase
from funcgrad.parallel.mapping.varying_pass import listed

AI, AJ, NONE = frozenset("i"), frozenset("j"), frozenset()
SIZES = {"i": 2, "j": 3}
X = np.ones((2, 2), np.float32)


def traced(f, *args):
    with context.scoped(axes=SIZES, manual=("i", "j")):
        closed = fg.make_jaxpr(f)(*args)
    assert not closed.consts
    return closed.jaxpr


def marked(f, varying, *args, at_least=None):
    """The annotated program, checked; annotating it again changes nothing."""
    with context.scoped(axes=SIZES, manual=("i", "j")):
        found = annotate(traced(f, *args), varying, ("i", "j"), at_least)
        typecheck(found.jaxpr)
        again = annotate(found.jaxpr, varying, ("i", "j"), at_least)
    assert str(again.jaxpr) == str(found.jaxpr)
    assert again.varying == found.varying
    return found


def names(jaxpr):
    return [e.prim.name for e in jaxpr.eqns]


@pytest.mark.parametrize(
    ("f", "varying", "want"),
    [
        (lambda x, y: fnp.sin(x), [AI, NONE], AI),
        (lambda x, y: x + y, [AI, AJ], AI | AJ),
        (lambda x, y: x + y, [NONE, NONE], NONE),
        (lambda x, y: lax.psum(x + y, "i"), [AI, AJ], AJ),
        (lambda x, y: lax.psum(x, ("i", "j")), [AI, NONE], NONE),
        (lambda x, y: lax.pmax(x, "i"), [AI | AJ, NONE], AJ),
        (lambda x, y: lax.all_gather(x, "i"), [AI, NONE], AI),
        (lambda x, y: lax.all_gather(x, "i"), [NONE, NONE], AI),
        (lambda x, y: lax.ppermute(x, "j", [(0, 1)]), [AI, NONE], AI | AJ),
        (lambda x, y: lax.psum_scatter(x, "i"), [NONE, NONE], AI),
        (lambda x, y: lax.all_to_all(x, "i", 0, 0, tiled=True), [AJ, NONE], AI | AJ),
        (lambda x, y: x * lax.axis_index("j"), [NONE, NONE], AJ),
        (lambda x, y: lax.pvary(x, ("i", "j")), [AI, NONE], AI | AJ),
        (lambda x, y: lax.pbroadcast(x, "i", 0), [AI, NONE], NONE),
        (lambda x, y: fnp.zeros(3), [AI, AJ], NONE),
        (lambda x, y: fg.jit(lambda x: x * y)(x), [AI, AJ], AI | AJ),
        (lambda x, y: lax.cond(x[0, 0] > 0, lambda: 1.0, lambda: 2.0), [AI, NONE], AI),
        (lambda x, y: lax.cond(True, lambda: x, lambda: y), [AI, NONE], AI),
        (lambda x, y: lax.scan(lambda c, r: (c + r, None), y[0], x)[0], [AI, NONE], AI),
        (lambda x, y: lax.scan(lambda c, r: (c, r), y[0], x)[0], [AI, NONE], NONE),
        (
            lambda x, y: lax.fori_loop(0, lax.axis_index("j"), lambda i, c: c + y, y),
            [AI, NONE],
            AJ,
        ),
        (
            lambda x, y: lax.while_loop(lambda c: c[0, 0] < 3, lambda c: c + 1, y),
            [AI, NONE],
            NONE,
        ),
        (lambda x, y: fg.grad(lambda y: fnp.sum(x * y))(y), [AI, NONE], NONE),
        (lambda x, y: fg.grad(lambda x: fnp.sum(x * y))(x), [AI, NONE], AI),
    ],
)
def test_what_varies(f, varying, want):
    assert marked(f, varying, X, X).varying == [want]


def test_marks():
    found = marked(lambda x, y: x * y + y, [AI, NONE], X, X)
    assert names(found.jaxpr) == ["pvary", "mul", "add"]
    assert found.widened == [NONE, AI]
    # Numbers and integers have no cotangents.
    found = marked(lambda x, n: x * 2.0 + n, [AI, NONE], X, 3)
    assert "pvary" not in names(found.jaxpr) or found.widened[1] == NONE
    # What varies over less than asked is marked at the end.
    found = marked(lambda x, y: y, [AI, NONE], X, X, at_least=[AI])
    assert names(found.jaxpr) == ["pvary"]
    assert found.varying == [AI]


def test_sums_of_what_is_equal_are_products():
    found = marked(lambda x, y: lax.psum(y, ("i", "j")), [NONE, NONE], X, X)
    assert names(found.jaxpr) == ["mul"]
    found = marked(lambda x, y: x * lax.psum(1.0, "j"), [AI, NONE], X, X)
    assert names(found.jaxpr) == ["mul"]
    found = marked(lambda x, y: lax.psum(x, ("i", "j")), [AI, NONE], X, X)
    assert names(found.jaxpr) == ["psum_invariant", "mul"]
    found = marked(lambda x, y: lax.pmean(y, "i"), [AI, NONE], X, X)
    assert "psum_invariant" not in names(found.jaxpr)


def test_marks_are_made_before_calls_and_loops():
    call = fg.jit(lambda x, y: x * y)
    found = marked(lambda x, y: call(x, y) + call(x + 1, y), [AI, NONE], X, X)
    assert names(found.jaxpr).count("pvary") == 1
    loop = lambda x, y: lax.scan(lambda c, r: (c * y[0] + r, None), x[0], x)[0]
    found = marked(loop, [AI, NONE], X, X)
    (scan,) = (e for e in found.jaxpr.eqns if e.prim.name == "scan")
    assert "pvary" not in names(scan.params["jaxpr"])
    # Not where a result would then vary: here the loop also gives what is equal.
    both = lambda x, y: lax.scan(lambda c, r: (c * y[0], r * y[0]), y[1], x)
    found = marked(both, [AI, NONE], X, X)
    assert found.varying == [NONE, AI]
    (scan,) = (e for e in found.jaxpr.eqns if e.prim.name == "scan")
    assert "pvary" in names(scan.params["jaxpr"])


def test_axes_of_vmap_are_left_alone():
    jaxpr = traced(lambda x: fg.vmap(lambda v: lax.psum(v, ("i", "k")), axis_name="k")(x), X)
    with context.scoped(axes=SIZES):
        found = annotate(jaxpr, [AI], ("i", "j"))
    assert found.varying == [NONE]


def test_nothing_is_left_of_the_marks():
    f = lambda x, y: fg.grad(lambda y: lax.pmean(fnp.sum(fg.jit(fnp.multiply)(x, y)), "i"))(y)
    found = marked(f, [AI, NONE], X, X).jaxpr
    assert "pvary" in str(found)
    plain = erase(found)
    assert "pvary" not in str(plain)
    assert "psum_invariant" not in str(plain)
    assert "psum[" in str(plain)
    with context.scoped(axes=SIZES):
        typecheck(plain)


def test_different_ways_may_not_meet():
    meet = lambda x: lax.cond(x[0, 0] > 0, lambda: lax.psum(x, "i"), lambda: x)
    with pytest.raises(ShardingError, match="cond: its predicate varies.*psum_invariant over 'i'"):
        marked(meet, [AI], X)
    marked(lambda x: lax.cond(x[0, 0] > 0, lambda: lax.psum(x, "j"), lambda: x), [AI], X)
    assert listed({"j", "i"}) == "'i' and 'j'"
