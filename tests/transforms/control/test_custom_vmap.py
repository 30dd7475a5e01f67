"""`custom_vmap` and `sequential_vmap`: which rule is taken under which transformations."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax
from funcgrad.custom_batching import custom_vmap, sequential_vmap
from funcgrad.errors import CustomRuleError

X, Y = fnp.arange(3.0), fnp.arange(1.0, 4.0)


@pytest.fixture
def seen():
    return []


@pytest.fixture
def f(seen):
    """sin(x) + y; over batches cos(x)·y, so that one sees whose rule was taken."""

    @custom_vmap
    def f(x, y):
        return fnp.sin(x) + y

    @f.def_vmap
    def rule(axis_size, in_batched, x, y):
        seen.append((axis_size, in_batched))
        return fnp.cos(x) * y, True

    return f


def close(got, wanted):
    np.testing.assert_allclose(np.asarray(got), np.asarray(wanted), rtol=1e-5, atol=1e-6)


def test_without_vmap_it_is_the_function(f, seen):
    close(f(1.0, 2.0), np.sin(1.0) + 2)
    close(fg.jit(f)(1.0, 2.0), np.sin(1.0) + 2)
    close(lax.scan(lambda c, x: (c, f(x, c)), 2.0, X)[1], np.sin(X) + 2)
    assert not seen


WAYS = [fg.vmap, lambda f: fg.jit(fg.vmap(f)), lambda f: fg.vmap(fg.jit(f))]


@pytest.mark.parametrize("way", WAYS)
def test_the_rule_is_taken(f, seen, way):
    close(way(f)(X, Y), np.cos(X) * Y)
    assert seen == [(3, [True, True])]


def test_what_is_batched(f, seen):
    close(fg.vmap(f, in_axes=(None, 0))(1.0, Y), np.cos(1.0) * Y)
    assert seen[0] == (3, [False, True])


def test_batch_axes_come_first(seen):
    @custom_vmap
    def total(x):
        return x.sum()

    @total.def_vmap
    def rule(axis_size, in_batched, x):
        seen.append(x.shape)
        return x.sum(1), in_batched[0]

    x = fnp.arange(12.0).reshape(3, 4)
    close(fg.vmap(total, in_axes=1)(x), x.sum(0))
    assert seen == [(4, 3)]


def test_nested_vmaps_batch_the_rule(f, seen):
    got = fg.vmap(fg.vmap(f, in_axes=(0, None)), in_axes=(None, 0))(X, Y)
    close(got, np.cos(X) * np.asarray(Y)[:, None])
    assert seen == [(3, [True, False])]


def test_forward_mode_differentiates_the_rule(f):
    out, out_t = fg.vmap(lambda x, y: fg.jvp(f, (x, y), (1.0, 0.0)))(X, Y)
    close(out, np.cos(X) * Y)
    close(out_t, -np.sin(X) * Y)
    close(fg.jvp(f, (1.0, 2.0), (1.0, 1.0))[1], np.cos(1.0) + 1)
    outs = fg.jvp(fg.vmap(f), (X, Y), (fnp.zeros(3), fnp.ones(3)))
    close(outs[1], np.cos(X))


def test_forward_mode_of_a_tangent_that_is_batched_alone(f):
    out, out_t = fg.vmap(lambda g: fg.jvp(f, (1.0, 2.0), (g, 0.0)))(X)
    close(out, np.full(3, np.cos(1.0) * 2))
    close(out_t, -np.sin(1.0) * 2 * X)


def test_reverse_mode_differentiates_the_function(f, seen):
    close(fg.grad(f)(1.0, 2.0), np.cos(1.0))
    close(fg.vmap(fg.grad(f))(X, Y), np.cos(X))
    close(fg.jit(fg.grad(fg.grad(f)))(1.0, 2.0), -np.sin(1.0))


def test_a_custom_vjp_around():
    @fg.custom_vjp
    @custom_vmap
    def f(x, y):
        return fnp.sin(x) * y

    inner = f._fun
    inner.def_vmap(lambda size, batched, x, y: (fnp.cos(x) * y, True))
    f.defvjp(lambda x, y: (f(x, y), (x, y)), lambda kept, g: (7 * g, kept[0] * g))
    close(fg.vmap(f)(X, Y), np.cos(X) * Y)
    close(fg.grad(f)(1.0, 2.0), 7.0)


def test_pytrees_and_results_that_are_not_batched():
    @custom_vmap
    def f(p):
        return {"a": p["x"] * 2, "b": p["y"]}

    @f.def_vmap
    def rule(size, batched, p):
        assert batched == [{"x": True, "y": False}]
        return {"a": p["x"] * 2, "b": p["y"]}, {"a": True, "b": False}

    got = fg.vmap(f, in_axes=({"x": 0, "y": None},))({"x": X, "y": 5.0})
    close(got["a"], 2 * X)
    close(got["b"], [5, 5, 5])


def test_captured_values():
    def at(scale):
        @custom_vmap
        def f(x):
            return x * scale

        f.def_vmap(lambda size, batched, x: (-x * scale, True))
        return f

    close(fg.jit(lambda s, x: fg.vmap(at(s))(x))(2.0, X), -2 * X)
    close(fg.grad(lambda s: at(s)(3.0))(2.0), 3.0)
    with pytest.raises(CustomRuleError, match="f closes over a value that vmap maps"):
        fg.vmap(lambda s: at(s)(3.0))(X)


def test_errors():
    f = custom_vmap(lambda x: x)
    with pytest.raises(CustomRuleError, match="has no rule yet: give one with"):
        f(1.0)
    for rule, words in [
        (lambda size, batched, x: x, "must return a pair"),
        (lambda size, batched, x: ([x], True), r"returned PyTreeDef\(\[\*\]\), where"),
        (lambda size, batched, x: (x[:2], True), "its first axis isn't 3 long"),
    ]:
        f.def_vmap(rule)
        with pytest.raises(CustomRuleError, match=words):
            fg.vmap(f)(X)
    with pytest.raises(TypeError, match="custom_vmap"):
        custom_vmap(3)


def test_sequential(seen):
    @sequential_vmap
    def f(x, y):
        fg.debug.callback(lambda x: seen.append(float(x)), x)
        return {"product": x * y}

    close(fg.vmap(f, in_axes=(0, None))(X, 2.0)["product"], 2 * X)
    assert seen == [0.0, 1.0, 2.0]
    close(fg.jit(fg.vmap(f))(X, Y)["product"], X * Y)
    close(fg.vmap(fg.vmap(f))(fnp.ones((2, 3)), fnp.ones((2, 3)))["product"], np.ones((2, 3)))
    close(fg.grad(lambda x: f(x, 3.0)["product"])(2.0), 3.0)


def test_rules_are_set_through_each_other(seen):
    """A function that has rules for both derivatives and batches takes each by its own method."""
    f = fg.custom_vjp(custom_vmap(lambda x: fnp.sin(x)))
    f.def_vmap(lambda axis_size, in_batched, x: (fnp.cos(x), True))
    f.defvjp(lambda x: (f(x), x), lambda x, g: (10.0 * g,))
    close(fg.vmap(f)(X), np.cos(X))
    close(fg.grad(f)(1.0), 10.0)
    g = custom_vmap(fg.custom_jvp(lambda x: fnp.sin(x)))
    g.def_vmap(lambda axis_size, in_batched, x: (g._fun(x), True))
    g.defjvp(lambda primals, tangents: (g._fun(*primals), 10.0 * tangents[0]))
    close(fg.vmap(fg.grad(g))(X), 10.0 * np.ones(3))
    with pytest.raises(AttributeError, match="'custom_vmap' object has no attribute 'rule'"):
        _ = g.rule
    with pytest.raises(AttributeError, match="defvjp"):
        custom_vmap(lambda x: x).defvjp(None, None)
