"""jvp, linearize, vjp, grad, value_and_grad, linear_transpose."""

import functools

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import dtypes, lax, tree
from funcgrad.core.primitive import NoRule, Primitive
from funcgrad.errors import DifferentiationError, TreeError

X = np.array([0.5, -1.0, 2.0], np.float32)


def close(got, want, **options):
    tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, **{"rtol": 1e-5, "atol": 1e-6} | options),
        got,
        want,
    )


def poly(x, y):
    return fnp.sum(x**3 * y) + fnp.sum(y**2)


# ---- jvp


def test_jvp():
    value, tangent = fg.jvp(poly, (X, 2 * X), (np.ones_like(X), X))
    close(value, np.sum(2 * X**4 + 4 * X**2))
    close(tangent, np.sum(6 * X**3 + X**4 + 4 * X**2))


def test_jvp_of_trees_and_aux():
    def f(p, s):
        return {"y": p["w"] * s, "const": fnp.ones(2)}, fnp.sum(p["w"])

    out, tangent, aux = fg.jvp(f, ({"w": X}, 2.0), ({"w": X}, 1.0), has_aux=True)
    close(out["y"], 2 * X)
    close(tangent["y"], 3 * X)
    close(tangent["const"], np.zeros(2))
    close(aux * 1, X.sum())


def test_jvp_of_integers_takes_float0():
    zeros = np.zeros((3,), dtypes.float0)
    value, tangent = fg.jvp(lambda x, n: (x * n, n), (X, np.arange(3)), (X, zeros))
    close(tangent[0], X * np.arange(3))
    assert tangent[1].dtype == dtypes.float0
    assert tangent[1].shape == value[1].shape == (3,)


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16", "complex64"])
def test_scalar_tangents_take_the_primals_dtype(dtype):
    x = fnp.asarray(3.0, dtype)
    for tangent in (1.0, 1, fnp.asarray(1.0)):
        _, t = fg.jvp(lambda v: v * v, (x,), (tangent,))
        assert t.dtype == x.dtype
        assert complex(t) == 6.0
        assert fg.linearize(lambda v: v * v, x)[1](tangent).dtype == x.dtype
        assert fg.vjp(lambda v: v * v, x)[1](tangent)[0].dtype == x.dtype
        assert fg.linear_transpose(lambda v: 2 * v, x)(tangent)[0].dtype == x.dtype


@pytest.mark.parametrize("tangent", [1j, np.array(1.0), np.ones(2, "float32"), np.int32(1)])
def test_other_tangents_are_refused(tangent):
    with pytest.raises(DifferentiationError, match=r"the tangent of x must have type f32\[\]"):
        fg.jvp(lambda x: x * x, (3.0,), (tangent,))


def test_jvp_checks_its_arguments():
    with pytest.raises(TypeError, match="must be tuples"):
        fg.jvp(fnp.sin, X, X)
    with pytest.raises(TreeError, match="jvp: primals"):
        fg.jvp(lambda p: p["a"], ({"a": 1.0},), ({"b": 1.0},))
    with pytest.raises(TypeError, match="argument name must be an array.*'x'"):
        fg.jvp(lambda name: name, ("x",), (1.0,))


# ---- linearize and vjp


def test_linearize_evaluates_once():
    calls = []

    def f(x):
        calls.append(1)
        return fnp.sin(x) * x

    y, f_lin = fg.linearize(f, X)
    close(y, np.sin(X) * X)
    for t in (np.ones_like(X), X):
        close(f_lin(t), (np.cos(X) * X + np.sin(X)) * t)
    assert calls == [1]


def test_linearize_is_linear_in_trees():
    f = lambda p: {"s": p["a"] * p["b"], "c": 1.0, "i": 3}
    p = {"a": 2.0, "b": 3.0}
    _, f_lin = fg.linearize(f, p)
    out = f_lin({"a": 1.0, "b": 10.0})
    assert float(out["s"]) == 23.0
    assert float(out["c"]) == 0.0
    assert out["i"].dtype == dtypes.float0
    with pytest.raises(TreeError, match="linearize: primals"):
        f_lin({"a": 1.0})


def test_linearized_functions_transform():
    _, f_lin = fg.linearize(fnp.sin, X)
    batch = np.stack([X, 2 * X])
    close(fg.vmap(f_lin)(batch), np.cos(X) * batch)
    close(fg.jit(f_lin)(X), np.cos(X) * X)
    close(fg.linear_transpose(f_lin, X)(X)[0], np.cos(X) * X)
    y, pushed = fg.jit(lambda x: fg.linearize(fnp.sin, x))(X)
    close((y, pushed(X)), (np.sin(X), np.cos(X) * X))
    close(fg.jit(lambda f, t: f(t))(pushed, X), np.cos(X) * X)


def test_vjp():
    value, pull = fg.vjp(lambda x, y: (x * y, fnp.sum(x)), X, 2 * X)
    close(value[0], 2 * X * X)
    gx, gy = pull((np.ones_like(X), 10.0))
    close(gx, 2 * X + 10)
    close(gy, X)
    close(pull((np.zeros_like(X), 1.0)), (np.ones(3), np.zeros(3)))


def test_vjp_with_aux_and_integer_results():
    value, pull, aux = fg.vjp(lambda x: ((x**2, 3), {"n": x + 1}), X, has_aux=True)
    close(aux["n"] * 2, 2 * (X + 1))
    assert int(value[1]) == 3
    (g,) = pull((np.ones_like(X), np.zeros((), dtypes.float0)))
    close(g, 2 * X)


def test_vjp_functions_pass_through_jit_and_vmap():
    pull = fg.jit(lambda x: fg.vjp(fnp.sin, x)[1])(X)
    close(pull(np.ones_like(X))[0], np.cos(X))
    close(fg.jit(lambda p, c: p(c))(pull, 2 * np.ones_like(X))[0], 2 * np.cos(X))
    close(fg.vmap(pull)(np.eye(3, dtype="float32"))[0], np.diag(np.cos(X)))


def test_vjp_checks_the_cotangent():
    _, pull = fg.vjp(lambda x: {"a": x}, X)
    with pytest.raises(TreeError, match="vjp: the function's result"):
        pull(X)
    with pytest.raises(DifferentiationError, match=r"cotangent 0 must have type f32\[3\]"):
        pull({"a": np.ones(2, "float32")})
    with pytest.raises(TypeError, match="takes one argument, the cotangent.*'a'.*; got 2"):
        pull({"a": X}, X)


# ---- grad


def test_grad_of_one_argument():
    close(fg.grad(poly)(X, X), 3 * X**2 * X)
    close(fg.grad(poly, argnums=1)(X, X), X**3 + 2 * X)
    close(fg.grad(poly, argnums=-1)(X, X), X**3 + 2 * X)


def test_grad_of_several_arguments():
    g = fg.grad(poly, argnums=(1, 0))(X, X)
    assert type(g) is tuple
    close(g, (X**3 + 2 * X, 3 * X**3))
    assert fg.grad(poly, argnums=[0])(X, X)[0].shape == (3,)
    assert fg.grad(poly, argnums=())(X, X) == ()


def test_value_and_grad_with_aux():
    def f(p, x):
        y = p["w"] * x
        return fnp.sum(y), {"y": y, "none": None, "name": "text"}

    (value, aux), g = fg.value_and_grad(f, has_aux=True)({"w": X, "b": None}, X)
    close(value, np.sum(X * X))
    close(aux["y"] + 0.0, X * X)
    assert (aux["none"], aux["name"]) == (None, "text")
    close(g["w"], X)
    assert g["b"] is None
    g, aux = fg.grad(f, has_aux=True)({"w": X}, X)
    close(fnp.sin(aux["y"]), np.sin(X * X))


def test_aux_is_good_for_an_outer_transformation():
    def f(x):
        g, aux = fg.grad(lambda v: (fnp.sum(v**2), v**3), has_aux=True)(x)
        return fnp.sum(g * aux)

    close(fg.grad(f)(X), 8 * X**3)
    close(fg.jit(fg.grad(f))(X), 8 * X**3)
    close(fg.vmap(f)(np.stack([X, X])), np.full(2, np.sum(2 * X**4)))


def test_keyword_arguments_and_defaults():
    def f(x, *, scale=1.0, rest=()):
        return fnp.sum(x) * scale + sum(rest)

    close(fg.grad(f)(X, scale=3.0), np.full(3, 3.0))
    close(fg.grad(f)(X, rest=(1, 2)), np.ones(3))


def test_what_a_function_may_return():
    w = fnp.asarray(5.0)
    close(fg.grad(lambda x: 1.0)(X), np.zeros(3))
    close(fg.grad(lambda x: w)(X), np.zeros(3))
    close(fg.grad(lambda x: x)(2.0), 1.0)
    close(fg.grad(lambda x: np.float32(2))(2.0), 0.0)
    close(fg.grad(lambda x, y: y)(2.0, 3.0), 0.0)
    assert fg.grad(lambda x: fnp.sum(x["a"]))({"a": X, "b": (), "c": None})["b"] == ()


def test_the_same_array_twice():
    x = fnp.asarray(X)
    close(fg.grad(lambda a, b: fnp.sum(a * b), argnums=(0, 1))(x, x), (X, X))
    close(fg.grad(lambda a: fnp.sum(a * a))(x), 2 * X)
    close(fg.grad(lambda t: fnp.sum(t[0] * t[1]))((x, x)), (X, X))


@pytest.mark.parametrize(
    ("x", "dtype"),
    [
        (3.0, "float32"),
        (np.float64(3), "float64"),
        (np.float16(3), "float16"),
        (np.array(3.0), "float64"),
        (fnp.asarray(3.0, "bfloat16"), "bfloat16"),
    ],
)
def test_gradients_have_the_arguments_dtype(x, dtype):
    g = fg.grad(lambda v: v * v * 0.5)(x)
    assert g.dtype.name == dtype
    assert float(g) == 3.0


@pytest.mark.parametrize("wrap", [lambda f: f, fg.jit, fg.checkpoint, fg.custom_jvp])
def test_gradients_are_as_weak_as_the_arguments(wrap):
    f = wrap(lambda x: x * x)
    if wrap is fg.custom_jvp:
        f.defjvp(lambda p, t: (f(p[0]), p[0] * t[0] * 2))
    assert fg.grad(f)(3.0).weak_type
    assert not fg.grad(f)(np.float32(3)).weak_type


def test_mixed_dtypes_keep_their_own_gradients():
    def f(a, b, c):
        return fnp.sum(a * b.astype("float64") * c)

    gs = fg.grad(f, argnums=(0, 1, 2))(
        fnp.ones(2, "float64"), fnp.ones(2, "bfloat16"), fnp.ones(2, "float32")
    )
    assert [g.dtype.name for g in gs] == ["float64", "bfloat16", "float32"]


def test_zero_size_and_zero_dimensions():
    assert fg.grad(lambda x: fnp.sum(x**2))(fnp.ones((0, 4))).shape == (0, 4)
    assert fg.grad(lambda x: fnp.sum(x**2) + 1.0)(fnp.asarray(2.0)).shape == ()


def test_integer_arguments():
    f = lambda x, n: fnp.sum(x) * n
    close(fg.grad(f)(X, 3), np.full(3, 3.0))
    g = fg.grad(f, argnums=1, allow_int=True)(X, 3)
    assert g.dtype == dtypes.float0
    g = fg.grad(lambda p: p["x"] * 2.0, allow_int=True)({"x": 1.0, "step": np.arange(3)})
    assert g["step"].shape == (3,)


def test_higher_orders():
    f = lambda x: x**5
    close(fg.grad(fg.grad(f))(2.0), 160.0)
    close(fg.grad(fg.grad(fg.grad(fg.grad(f))))(2.0), 240.0)
    close(fg.grad(lambda x: fg.jvp(f, (x,), (1.0,))[1])(2.0), 160.0)
    close(fg.jvp(fg.grad(f), (2.0,), (1.0,))[1], 160.0)
    close(fg.grad(lambda x: fg.vjp(f, x)[1](1.0)[0])(2.0), 160.0)
    close(fg.grad(lambda x: fg.linearize(f, x)[1](1.0))(2.0), 160.0)


def test_perturbations_are_not_confused():
    inner = lambda x: fg.grad(lambda y: x + y)(1.0) * x
    assert float(fg.grad(inner)(3.0)) == 1.0
    nested = lambda x: x * fg.grad(lambda y: x * y)(2.0)
    assert float(fg.grad(nested)(5.0)) == 10.0
    assert (
        float(fg.jvp(lambda x: fg.jvp(lambda y: x * y, (2.0,), (1.0,))[1], (5.0,), (1.0,))[1]) == 1
    )


def test_partials_methods_and_callables():
    class Model:
        def __init__(self, w):
            self.w = w

        def loss(self, x):
            return fnp.sum(self.w * x)

        def __call__(self, x):
            return self.loss(x) * 2

    model = Model(3.0)
    close(fg.grad(model.loss)(X), np.full(3, 3.0))
    close(fg.grad(model)(X), np.full(3, 6.0))
    close(fg.grad(functools.partial(poly, y=X))(X), 3 * X**3)
    close(fg.grad(functools.partial(poly, X))(X), X**3 + 2 * X)
    assert fg.grad(poly).__name__ == "grad(poly)"
    assert fg.grad(poly).__wrapped__ is poly


def test_python_control_flow_and_loops():
    def f(x):
        total = 0.0
        for i in range(3):
            total = total + x**i if x > 0 else total - x
        return total

    assert float(fg.grad(f)(2.0)) == 5.0
    assert float(fg.grad(f)(-2.0)) == -3.0


# ---- complex numbers: JAX's conventions

Z = np.array([1 + 2j, -0.5 + 1j], np.complex64)


def test_gradient_of_a_real_function_of_complex_arguments():
    close(fg.grad(lambda z: fnp.sum(fnp.abs(z) ** 2))(Z), 2 * np.conj(Z))
    close(fg.grad(lambda z: fnp.sum(fnp.real(z * z)))(Z), 2 * Z)
    close(fg.grad(lambda z: fnp.sum(fnp.imag(z)))(Z), np.full(2, -1j))


def test_holomorphic_gradient():
    close(fg.grad(lambda z: fnp.sum(fnp.sin(z)), holomorphic=True)(Z), np.cos(Z))
    close(fg.grad(lambda z: fnp.sum(z**3), holomorphic=True)(Z), 3 * Z**2, rtol=1e-4)
    second = fg.grad(fg.grad(fnp.sin, holomorphic=True), holomorphic=True)
    close(second(Z[0]), -np.sin(Z[0]))


def test_jvp_and_vjp_of_complex_functions():
    _, t = fg.jvp(lambda z: z * z, (Z,), (np.full(2, 1j, "complex64"),))
    close(t, 2j * Z)
    _, pull = fg.vjp(lambda z: z * 3j, Z)
    close(pull(np.ones(2, "complex64"))[0], np.full(2, 3j))


def test_real_parameters_through_complex_values():
    def f(x):
        return fnp.abs(fnp.exp(1j * x) - 1.0) ** 2

    g = fg.grad(f)(0.5)
    assert g.dtype == np.float32
    close(g, 2 * np.sin(0.5))


# ---- linear_transpose


def test_linear_transpose():
    a = np.arange(6, dtype="float32").reshape(2, 3)
    t = fg.linear_transpose(lambda x: a @ x, fg.ShapeDtypeStruct((3,), "float32"))
    close(t(np.ones(2, "float32"))[0], a.sum(0))
    f = lambda p: p["a"] * 2.0 + fnp.sum(p["b"])
    ((g),) = fg.linear_transpose(f, {"a": X, "b": X})(X)
    close(g, {"a": 2 * X, "b": np.full(3, X.sum())})


def test_linear_transpose_of_loops_and_branches():
    loop = lambda x: lax.fori_loop(0, 3, lambda i, c: c * 2.0 + 0.0 * i, x)
    close(fg.linear_transpose(loop, X)(X)[0], 8 * X)
    chosen = lambda x: lax.cond(True, lambda v: v * 2.0, lambda v: v, x)
    close(fg.linear_transpose(chosen, X)(X)[0], 2 * X)
    sums = lambda x: lax.scan(lambda c, v: (c * 2.0 + v, c), 0.0, x)
    close(fg.linear_transpose(sums, X)((1.0, np.zeros(3, "float32")))[0], [4, 2, 1])
    both = lambda x: (x * 2.0, fnp.ones(2))
    close(fg.linear_transpose(both, X)((X, np.ones(2, "float32")))[0], 2 * X)


def test_results_are_arrays():
    results = [
        fg.jvp(lambda x: x, (X,), (X,)),
        fg.vjp(lambda x: x, X)[0],
        fg.vjp(lambda x: x, X)[1](X),
        fg.linearize(lambda x: x, X)[0],
        fg.linearize(lambda x: x, X)[1](X),
        fg.linear_transpose(lambda x: x, X)(X),
        fg.value_and_grad(lambda x: x)(2.0),
        fg.vmap(lambda x: x)(X),
        fg.checkpoint(lambda x: x)(X),
        lax.switch(0, [lambda x: x], X),
    ]
    kept = X.copy()
    for leaf in tree.leaves(results):
        assert type(leaf) is fg.Array
        assert not np.shares_memory(np.asarray(leaf), X)
    np.testing.assert_array_equal(X, kept)


def test_transposing_twice_gives_the_function_back():
    f = lambda x: fnp.roll(x, 1) * 3.0
    twice = fg.linear_transpose(lambda c: fg.linear_transpose(f, X)(c)[0], X)
    close(twice(X)[0], np.roll(X, 1) * 3)


def test_what_is_not_linear_says_so():
    with pytest.raises(DifferentiationError, match="sin has no transpose rule"):
        fg.linear_transpose(fnp.sin, 1.0)(1.0)
    with pytest.raises(TreeError, match="linear_transpose: the function's result"):
        fg.linear_transpose(lambda x: x, 1.0)((1.0,))


# ---- what is differentiated, and what is not


def test_stop_gradient():
    close(fg.grad(lambda x: x * lax.stop_gradient(x))(3.0), 3.0)
    out = fg.grad(lambda p: fnp.sum(p[0] * lax.stop_gradient(p)[1]))((X, X))
    close(out, (X, np.zeros(3)))
    assert lax.stop_gradient({"n": 3})["n"] == 3


def test_unused_arguments_cost_nothing():
    jaxpr = fg.make_jaxpr(fg.grad(lambda x, y: x * 2.0 + y**3 * 0))(1.0, 2.0)
    assert "integer_pow" not in [e.prim.name for e in jaxpr.eqns[-1:]]
    zero = fg.make_jaxpr(fg.grad(lambda x: fnp.sum(fnp.sin(X))))(X)
    assert {e.prim.name for e in zero.eqns} <= {"sin", "reduce_sum", "broadcast_in_dim"}


def test_gradients_only_of_what_was_asked_for():
    f = lambda x, y: fnp.sum(fnp.sin(x) * fnp.cos(y))
    eqns = fg.make_jaxpr(fg.grad(f))(X, X).eqns
    assert [e.prim.name for e in eqns].count("sin") == 1


def test_argnums_must_be_positions():
    with pytest.raises(TypeError, match="argnums must be positions .* got 'x'"):
        fg.grad(lambda x: x, argnums="x")


def test_gradients_are_as_weak_as_their_arguments():
    strong = fnp.asarray(3.0, "float32")
    g = lambda x, y: x * y
    unused = lambda x, y: x * 1.0
    for f, grads in [
        (g, lambda f: fg.grad(f, (0, 1))(3.0, strong)),
        (g, lambda f: fg.jit(fg.grad(f, (0, 1)))(3.0, strong)),
        (g, lambda f: fg.vjp(f, 3.0, strong)[1](1.0)),
        (g, lambda f: fg.vjp(f, 3.0, strong)[1](strong)),
        (g, lambda f: fg.jacrev(f, (0, 1))(3.0, strong)),
        (unused, lambda f: fg.grad(f, (0, 1))(3.0, strong)),
        (unused, lambda f: fg.jacrev(f, (0, 1))(3.0, strong)),
    ]:
        assert [x.weak_type for x in grads(f)] == [True, False]
    cube = lambda x: x**3
    for derivative in (fg.jacrev(cube), fg.jacfwd(cube), fg.hessian(cube), fg.grad(fg.grad(cube))):
        assert derivative(2.0).weak_type
        assert not derivative(strong).weak_type


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x * x,
        lambda x: 1 / x,
        lambda x: x @ x,
        lambda x: fg.lax.conv(x[None, None], x[None, None], (1, 1), "SAME"),
    ],
    ids=["mul", "div", "dot", "conv"],
)
def test_products_of_what_varies_are_not_linear(f):
    x = fnp.ones((3, 3))
    for run in (lambda f: f, fg.jit):
        with pytest.raises(DifferentiationError, match="isn't linear: it multiplies or divides"):
            run(fg.linear_transpose(f, x))(f(x))


def test_a_gradient_that_is_donated_is_not_the_next_one():
    increased = fg.jit(lambda x: x + 1, donate_argnums=0)
    for _ in range(100):
        assert float(increased(fg.grad(lambda x: x)(fnp.float32(5)))) == 2.0
    with pytest.raises(ValueError, match="read-only"):
        np.asarray(fg.grad(lambda x: x)(5.0))[...] = 3


@pytest.mark.parametrize("name", [n for n in dir(lax) if isinstance(getattr(lax, n), Primitive)])
def test_rules_of_ops_take_numbers(name):
    """At first and second order, forward and reverse: no rule stumbles over what has no dtype."""
    op = getattr(lax, name)
    for args in ((0.5,), (0.5, 0.25), (0.5, 0.25, 0.75)):
        try:
            want = op(*args)
        except (TypeError, ValueError):
            continue
        if want.dtype != np.float32 or isinstance(op.jvp, NoRule):
            continue
        ones = (1.0,) * len(args)
        try:
            value, tangent = fg.jvp(op, args, ones)
        except DifferentiationError:
            continue
        np.testing.assert_allclose(value, want, rtol=1e-6)
        arrays = [fnp.array(a) for a in args]
        np.testing.assert_allclose(tangent, fg.jvp(op, arrays, [*map(fnp.array, ones)])[1])
        second = lambda *a: fg.jvp(op, a, ones)[1]
        try:
            want = fg.jvp(second, arrays, [*map(fnp.array, ones)])[1]
        except DifferentiationError:
            continue
        np.testing.assert_allclose(fg.jvp(second, args, ones)[1], want)
