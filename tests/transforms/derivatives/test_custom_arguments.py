"""Arguments of custom functions that rules leave out: by name, and None within trees."""

import functools

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import tree
from funcgrad.errors import CustomRuleError


def close(got, want):
    tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), got, want)


def test_nondiff_argnames():
    @functools.partial(fg.custom_jvp, nondiff_argnames="f")
    def forward(f, x):
        return f(x)

    forward.defjvp(lambda f, primals, tangents: (forward(f, *primals), 10.0 * tangents[0]))
    close(fg.jvp(lambda x: forward(fnp.sin, x), (1.0,), (1.0,)), (np.sin(1.0), 10.0))

    @functools.partial(fg.custom_vjp, nondiff_argnames=("f", "n"))
    def backward(f, x, n):
        return f(x) * n

    backward.defvjp(
        lambda f, x, n: (backward(f, x, n), None),
        lambda f, n, _, g: (10.0 * n * g,),
        optimize_remat=True,
    )
    close(fg.value_and_grad(lambda x: backward(fnp.sin, x, n=2))(1.0), (2 * np.sin(1.0), 20.0))
    with pytest.raises(ValueError, match="nondiff_argnames='y' is no parameter of it; it has x"):
        fg.custom_vjp(lambda x: x, nondiff_argnames="y")


def test_none_where_the_argument_has_none():
    f = fg.custom_vjp(lambda x: x[0] * 1.0)
    f.defvjp(lambda x: (f(x), None), lambda _, g: ((g, (None, None)),))
    close(fg.grad(f)((1.0, (2.0, None))), (1.0, (0.0, None)))


def test_closure_convert_counts_what_it_captured():
    def f(a):
        converted, captured = fg.closure_convert(lambda x: a * x, 1.0)
        return converted(3.0, captured, captured)

    with pytest.raises(TypeError, match=r"takes 1 arguments and the 1 values .* got 3"):
        fg.grad(f)(2.0)


def test_results_of_another_structure_than_the_functions():
    def twice(f):
        return lambda x: fg.lax.scan(lambda c, _: (f(c), None), x, None, length=2)[0]

    f = fg.custom_jvp(lambda x: x * 1.0)
    f.defjvp(lambda p, t: ((p[0], p[0]), (t[0], t[0])))
    with pytest.raises(CustomRuleError, match="jvp rule of .* structure that the function's has"):
        fg.jvp(twice(f), (1.0,), (1.0,))
    g = fg.custom_vjp(lambda x: x * 1.0)
    g.defvjp(lambda x: ((x, x), None), lambda _, ct: (ct,))
    with pytest.raises(CustomRuleError, match="forward rule of .* structure that the function's"):
        fg.grad(twice(g))(1.0)
