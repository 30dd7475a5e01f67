"""Splitting programs by what is known: values, residuals, what is forwarded and what runs again."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax
from funcgrad.core.ir import interpret, typecheck
from funcgrad.transforms.autodiff.partial_eval import partial_eval_jaxpr

X = np.array([0.5, -1.0, 2.0], np.float32)
Y = np.array([1.0, 3.0, -2.0], np.float32)


def split(f, unknown, **options):
    """Both parts of f's program, and a check that one after the other they are f."""
    jaxpr = fg.make_jaxpr(f)(X, Y).jaxpr
    parts = partial_eval_jaxpr(jaxpr, unknown, **options)
    typecheck(parts.known)
    typecheck(parts.unknown)
    args = [X, Y]
    known = [a for a, u in zip(args, unknown, strict=True) if not u]
    found = interpret(parts.known, np, *known)
    n = len(parts.out_unknown) - sum(parts.out_unknown)
    computed = iter(found[n:])
    residuals = [next(computed) if f is None else known[f] for f in parts.forwarded]
    later = iter(interpret(parts.unknown, np, *residuals, *(
        a for a, u in zip(args, unknown, strict=True) if u)))  # fmt: skip
    at_once = iter(found[:n])
    got = [next(later) if u else next(at_once) for u in parts.out_unknown]
    for a, b in zip(got, interpret(jaxpr, np, *args), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)
    return parts


def names(jaxpr):
    return [e.prim.name for e in jaxpr.eqns]


def test_known_work_is_done_first():
    parts = split(lambda x, y: (fnp.sin(x) * y, fnp.cos(x)), [False, True])
    assert names(parts.known) == ["sin", "cos"]
    assert names(parts.unknown) == ["mul"]
    assert parts.out_unknown == [True, False]
    assert len(parts.residuals) == 1


def test_residuals_that_are_inputs_are_forwarded():
    parts = split(lambda x, y: (x * y,), [False, True])
    assert parts.forwarded == [0]
    assert parts.known.outs == ()


def test_results_can_be_forced_to_be_unknown():
    parts = split(lambda x, y: (fnp.sin(x), y), [False, True], force_out=True)
    assert parts.out_unknown == [True, True]
    assert names(parts.known) == ["sin"]


def test_nothing_and_everything_unknown():
    assert names(split(lambda x, y: (x * y,), [False, False]).known) == ["mul"]
    parts = split(lambda x, y: (x * y, 1.0), [True, True])
    assert (names(parts.known), parts.out_unknown) == ([], [True, False])


def test_what_may_not_be_saved_runs_again():
    f = lambda x, y: (fnp.sin(fnp.exp(x)) * y,)
    nothing = split(f, [False, True], saveable=lambda eqn: False)
    assert names(nothing.unknown) == ["exp", "sin", "mul"]
    assert nothing.forwarded == [0]
    some = split(f, [False, True], saveable=lambda eqn: eqn.prim.name == "exp")
    assert names(some.known) == ["exp"]
    assert names(some.unknown) == ["sin", "mul"]


@pytest.mark.parametrize(
    ("f", "inner"),
    [
        (fg.jit(lambda x, y: (fnp.sin(x) * y, fnp.cos(x))), "jit"),
        (lambda x, y: lax.cond(True, lambda: (fnp.sin(x) * y,), lambda: (y,)), "cond"),
        (lambda x, y: lax.scan(lambda c, v: (c * v[0], (fnp.sin(v[0]) * v[1], c)), 1.0, (x, y))[1],
         "scan"),
        (lambda x, y: lax.scan(lambda c, v: ((c[0] + v, c[1] + 1), c[1]), (fnp.sum(y), 0), x)[0],
         "scan"),
        (lambda x, y: lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * x), (0, y)),
         "while"),
        (fg.checkpoint(lambda x, y: (fnp.sin(x) * y, fnp.cos(x))), "checkpoint"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("unknown", [[False, True], [True, False], [True, True]])
def test_programs_within_are_split_too(f, inner, unknown):
    parts = split(lambda x, y: tuple(f(x, y)), unknown)
    assert inner in names(parts.unknown)
    if unknown == [False, True] and inner in ("jit", "scan", "checkpoint"):
        assert inner in names(parts.known)


def test_scanned_residuals_are_stacked_and_constants_are_not():
    w = fnp.ones((3, 3))
    f = lambda x, y: lax.scan(lambda c, v: (w @ c + fnp.sin(v), None), y, x)[0]
    jaxpr = fg.make_jaxpr(f)(X, Y).jaxpr
    parts = partial_eval_jaxpr(jaxpr, [False, False, True])
    (scan,) = [e for e in parts.unknown.eqns if e.prim.name == "scan"]
    assert scan.params["n_consts"] == 1, "w is read as it is"
    assert [a.aval.shape for a in scan.ins] == [(3, 3), (3,), (3,)]
