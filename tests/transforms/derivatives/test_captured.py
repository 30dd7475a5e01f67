"""Custom rules whose functions close over traced values."""

import functools

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax, tree
from funcgrad.errors import DifferentiationError

SCALES = np.array([2.0, -1.0, 0.5], np.float32)
X = np.array([0.1, 0.5, -0.3], np.float32)


def close(got, want):
    tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), got, want)


# Functions of x with a rule; all close over `a`, and their derivative is 10 a cos x.


def jvp_all(a):
    f = fg.custom_jvp(lambda x: a * fnp.sin(x))
    f.defjvp(lambda p, t: (f(*p), 10 * a * fnp.cos(p[0]) * t[0]))
    return f


def jvp_rule(a):
    f = fg.custom_jvp(fnp.sin)
    f.defjvp(lambda p, t: (f(*p), 10 * a * fnp.cos(p[0]) * t[0]))
    return f


def vjp_all(a):
    f = fg.custom_vjp(lambda x: a * fnp.sin(x))
    f.defvjp(lambda x: (f(x), x), lambda x, g: (10 * a * fnp.cos(x) * g,))
    return f


def vjp_forward(a):
    f = fg.custom_vjp(fnp.sin)
    f.defvjp(lambda x: (f(x), (a, x)), lambda r, g: (10 * r[0] * fnp.cos(r[1]) * g,))
    return f


def vjp_backward(a):
    f = fg.custom_vjp(fnp.sin)
    f.defvjp(lambda x: (f(x), x), lambda x, g: (10 * a * fnp.cos(x) * g,))
    return f


def linear(a):
    """Where the rule is linear, by a transpose of its own."""
    g = fg.custom_jvp(lambda x, t: a * fnp.cos(x) * t)
    g.defjvps(lambda d, out, x, t: -a * fnp.sin(x) * t * d, lambda d, out, x, t: g(x, d))
    g.deftranspose(lambda p, ct: (None, 10 * a * fnp.cos(p[0]) * ct))
    f = fg.custom_jvp(fnp.sin)
    f.defjvp(lambda p, t: (f(*p), g(p[0], t[0])))
    return f


RULES = [jvp_all, jvp_rule, vjp_all, vjp_forward, vjp_backward]
rules = pytest.mark.parametrize("rule", RULES)

# What traces `a` and x of a function of both.
WRAPPERS = {
    "jit": fg.jit,
    "vmap": lambda f: (
        lambda a, x: fnp.sum(fg.vmap(f)(fnp.stack([a, 7.0]), fnp.stack([x, 0.2]))[:1])
    ),
    "vmap of a": lambda f: lambda a, x: fg.vmap(f, (0, None))(fnp.stack([3.0, a]), x)[1],
    "scan": lambda f: lambda a, x: lax.scan(lambda c, b: (c, f(b, c)), x, fnp.stack([a]))[1][0],
    "cond": lambda f: lambda a, x: lax.cond(a > 9, lambda a, x: x, f, a, x),
    "checkpoint": fg.checkpoint,
    "inner function": lambda f: lambda a, x: fg.jit(lambda y: f(a, y))(x),
}


@pytest.mark.sampled(12)
@rules
@pytest.mark.parametrize("inner", WRAPPERS)
@pytest.mark.parametrize("outer", WRAPPERS)
def test_the_rule_holds_wherever_what_it_closes_over_is_traced(rule, inner, outer):
    f = WRAPPERS[outer](WRAPPERS[inner](lambda a, x: rule(a)(x)))
    slopes, curves = 10 * SCALES * np.cos(X), -10 * SCALES * np.sin(X)
    first, second = fg.grad(f, 1), fg.grad(fg.grad(f, 1), 1)
    close(first(2.0, 0.1), slopes[0])
    close(second(2.0, 0.1), curves[0])
    close(fg.jit(fg.vmap(first))(SCALES, X), slopes)
    close(fg.grad(lambda x: fnp.sum(fg.vmap(f)(SCALES, x)))(X), slopes)
    close(fg.grad(lambda x: fnp.sum(fg.vmap(first)(SCALES, x)))(X), curves)


@pytest.mark.parametrize("inner", WRAPPERS)
def test_transposes_of_their_own(inner):
    f = WRAPPERS[inner](lambda a, x: linear(a)(x))
    close(fg.grad(f, 1)(2.0, 0.1), 20 * np.cos(0.1))
    close(fg.vmap(fg.grad(f, 1))(SCALES, X), 10 * SCALES * np.cos(X))
    close(fg.jvp(lambda x: f(2.0, x), (0.1,), (1.0,))[1], 2 * np.cos(0.1))


class Model:
    def __init__(self, a):
        self.a = a

    def scale(self):
        return self.a


PLACES = {
    "cell": lambda a: lambda: a,
    "tree": lambda a: lambda held={"a": [a]}: held["a"][0],
    "inner cell": lambda a: (lambda get: lambda: get())(lambda: a),
    "keyword": lambda a: lambda *, held=a: held,
    "bound": lambda a: functools.partial(lambda held: held, a),
    "tree of a function": lambda a: tree.Partial(lambda held: held, a),
    "method": lambda a: Model(a).scale,
    "attribute": lambda a: (lambda model: lambda: model.a)(Model(a)),
    "jit": lambda a: fg.jit(lambda: a),
}


@rules
@pytest.mark.parametrize("place", PLACES)
def test_it_is_found_wherever_it_is_kept(rule, place):
    class Late:  # an array-like thing that asks for the value when the rule runs
        def __init__(self, get):
            self.get = get

        def __mul__(self, other):
            return self.get() * other

        __rmul__ = __mul__

    f = lambda a, x: rule(Late(PLACES[place](a)))(x)
    if rule is vjp_forward:
        f = lambda a, x: rule(PLACES[place](a)())(x)
    want = 10 * SCALES * np.cos(X)
    close(fg.vmap(fg.grad(f, 1))(SCALES, X), want)
    close(fg.vmap(fg.grad(fg.jit(f), 1))(SCALES, X), want)
    close(fg.grad(lambda x: lax.scan(lambda c, p: (c + f(*p), None), 0.0, (SCALES, x))[0])(X), want)


@rules
@pytest.mark.parametrize("program", ["jit", "scan", "cond", "checkpoint", "inner function"])
def test_programs_in_rules_close_over_it(rule, program):
    """As a factor of 1, by a program that the function or the rule stages."""

    class Scale(Model):
        def __mul__(self, other):
            return self.a * WRAPPERS[program](lambda _, y: y * self.a / self.a)(0.0, other)

        __rmul__ = __mul__

    def f(a, x):
        return rule(a if rule is vjp_forward else Scale(a))(x)

    slopes = 10 * SCALES * np.cos(X)
    close(fg.grad(fg.jit(f), 1)(2.0, 0.1), slopes[0])
    close(fg.vmap(fg.grad(f, 1))(SCALES, X), slopes)
    close(fg.grad(lambda x: fnp.sum(fg.vmap(fg.jit(f))(SCALES, x)))(X), slopes)


@rules
def test_derivatives_in_it_are_refused_where_the_function_depends_on_it(rule):
    for wrap in (lambda f: f, fg.jit, WRAPPERS["scan"]):
        f = wrap(lambda a, x: rule(a)(x))
        if rule in (jvp_all, vjp_all):
            for argnums in (0, (0, 1)):
                with pytest.raises(DifferentiationError, match=r"closes over.*closure_convert"):
                    fg.grad(f, argnums)(2.0, 0.1)
        else:  # only the derivative depends on it
            close(fg.grad(f, (0, 1))(2.0, 0.1), (0.0, 20 * np.cos(0.1)))
            close(fg.grad(fg.grad(f, 1), 0)(2.0, 0.1), 10 * np.cos(0.1))


def test_what_is_not_used_is_no_obstacle():
    def loss(w):
        unused = {"w": w}
        f = fg.custom_jvp(lambda x: x**2 if unused else x)
        f.defjvps(lambda t, out, x: 3 * x * t)
        return f(w) + w

    close(fg.grad(loss)(2.0), 7.0)
    close(fg.jit(fg.grad(loss))(2.0), 7.0)
    close(fg.vmap(fg.grad(loss))(X), 3 * X + 1)


def test_python_may_look_at_values_where_nothing_else_traces_them():
    @fg.vmap
    def f(a):
        @fg.custom_jvp
        def g(x):
            return x if x > 0 else -x

        g.defjvps(lambda t, out, x: a * t if x > 0 else t)
        return fg.grad(g)(3.0)

    close(f(SCALES), SCALES)


def test_objects_of_any_attributes():
    """What a rule closes over may have a dict of keys that don't sort."""

    class Holder:
        def __init__(self, x):
            self.kinds = {int: 1, "x": x}

    def outer(x):
        held = Holder(x)
        f = fg.custom_jvp(lambda y: y * 2.0)
        f.defjvp(lambda p, t: (f(*p), held.kinds["x"] * t[0]))
        return fg.grad(f)(1.0)

    np.testing.assert_allclose(fg.jit(outer)(3.0), 3.0)
