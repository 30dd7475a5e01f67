"""Functions with derivative rules of the user's, and checkpoint's policies, after loading."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import export, lax
from funcgrad.custom_batching import custom_vmap
from funcgrad.errors import BatchingError, DifferentiationError, ExportError
from funcgrad.export.program.rules import policy_from_json, policy_to_json
from funcgrad.transforms.derivatives.checkpoint import checkpoint_policies


def loaded(fun, *args, order=2):
    return export.deserialize(export.export(fg.jit(fun), rule_order=order)(*args).serialize()).call


@fg.custom_jvp
def jvp_rule(x, y):
    return fnp.sin(x) * y


@jvp_rule.defjvp
def _(primals, tangents):
    """Ten times the derivative, so that it is seen which rule is used."""
    (x, y), (dx, dy) = primals, tangents
    return jvp_rule(x, y), 10 * (fnp.cos(x) * y * dx + fnp.sin(x) * dy)


@fg.custom_vjp
def vjp_rule(x, y):
    return fnp.sin(x) * y


vjp_rule.defvjp(
    lambda x, y: (vjp_rule(x, y), (x, y)),
    lambda kept, g: (10 * fnp.cos(kept[0]) * kept[1] * g, None),
)
TABLE = np.arange(3.0, dtype="float32")


@fg.custom_jvp
def with_table(x):
    return x * TABLE


with_table.defjvps(lambda t, out, x: t * TABLE * 100)


@pytest.mark.parametrize("f", [jvp_rule, vjp_rule])
@pytest.mark.parametrize(
    "transform",
    [
        lambda f: fg.grad(f, (0, 1)),
        lambda f: fg.vmap(fg.grad(f), (0, None)),
        lambda f: fg.grad(fg.grad(f)),
        lambda f: fg.jit(fg.grad(lambda x, y: fg.vmap(f, (0, None))(x * fnp.ones(2), y).sum())),
        lambda f: fg.grad(lambda x, y: lax.scan(lambda c, _: (f(c, y), c), x, None, length=2)[0]),
    ],
)
def test_rules_are_kept(f, transform):
    args = (0.5, 2.0)
    try:
        want = transform(f)(*args)
    except (ValueError, TypeError):
        args = (fnp.array([0.5, 0.7]), 2.0)
        want = transform(f)(*args)
    got = transform(loaded(f, 0.5, 2.0))(*args)
    for g, w in zip(fg.tree.leaves(got), fg.tree.leaves(want), strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-6)


def test_rules_that_capture_arrays():
    x = fnp.ones(3)
    got = fg.grad(lambda x: loaded(with_table, x)(x).sum())(x)
    np.testing.assert_array_equal(got, 100 * TABLE)


def test_exported_gradients_hold_both_rules():
    f = loaded(fg.grad(lambda x, y: vjp_rule(x, y)), 0.5, 2.0)
    np.testing.assert_allclose(f(0.5, 2.0), fg.grad(vjp_rule)(0.5, 2.0), rtol=1e-6)
    tangent = lambda x, t: fg.jvp(lambda x: vjp_rule(x, 2.0), (x,), (t,))[1]
    g = loaded(tangent, 0.5, 1.0)
    np.testing.assert_allclose(g(0.5, 1.0), tangent(0.5, 1.0), rtol=1e-6)
    got = fg.grad(g, 1)(0.5, 1.0)
    np.testing.assert_allclose(got, fg.grad(tangent, 1)(0.5, 1.0), rtol=1e-6)


def test_exported_tangents_run_without_rules():
    tangent = lambda x, t: fg.jvp(lambda x: vjp_rule(x, 2.0), (x,), (t,))[1]
    g = loaded(tangent, 0.5, 1.0, order=0)
    np.testing.assert_allclose(g(0.5, 1.0), tangent(0.5, 1.0), rtol=1e-6)


def test_an_order_beyond_is_an_error():
    f = loaded(jvp_rule, 0.5, 2.0, order=1)
    assert np.isfinite(fg.grad(f)(0.5, 2.0))
    with pytest.raises(
        DifferentiationError, match=r"jvp_rule: it was exported without.*rule_order"
    ):
        fg.grad(fg.grad(f))(0.5, 2.0)
    plain = loaded(vjp_rule, 0.5, 2.0, order=0)
    np.testing.assert_allclose(plain(0.5, 2.0), vjp_rule(0.5, 2.0), rtol=1e-6)
    with pytest.raises(DifferentiationError, match=r"vjp_rule: it was exported without"):
        fg.grad(plain)(0.5, 2.0)


def test_rules_that_fail_say_so_when_they_are_used():
    broken = fg.custom_jvp(lambda x: x * 2)
    broken.defjvp(lambda primals, tangents: 1 / 0)
    f = loaded(lambda x: broken(x), 1.0)
    assert float(f(3.0)) == 6.0
    with pytest.raises(DifferentiationError, match="couldn't be exported: ZeroDivisionError"):
        fg.grad(f)(1.0)


def test_linear_solves_are_transposed_by_their_rule():
    a = fnp.array([[3.0, 1.0], [1.0, 2.0]])

    def solve(b):
        def by_loop(matvec, b):
            """Jacobi's method, which can't be transposed op by op."""
            step = lambda s: (s[0] + 1, s[1] + (b - matvec(s[1])) / fnp.diag(a))
            return lax.while_loop(lambda s: s[0] < 60, step, (0, b))[1]

        return lax.custom_linear_solve(lambda x: a @ x, b, by_loop, by_loop, symmetric=True)

    f, b = loaded(solve, fnp.ones(2)), fnp.array([1.0, 2.0])
    np.testing.assert_allclose(f(b), np.linalg.solve(a, b), atol=1e-5)
    np.testing.assert_allclose(fg.jacrev(f)(b), np.linalg.inv(np.asarray(a)), rtol=1e-5, atol=1e-6)
    twice = lambda f: fg.hessian(lambda b: fnp.sum(f(b) ** 3))(b)
    np.testing.assert_allclose(twice(f), twice(solve), rtol=1e-4)


def test_rules_for_vmap_are_not_in_files():
    @custom_vmap
    def f(x):
        return x + 1

    f.def_vmap(lambda size, batched, x: (x * 2, True))
    g = loaded(f, 1.0)
    assert float(g(1.0)) == 2.0
    assert float(fg.grad(g)(1.0)) == 1.0
    with pytest.raises(
        BatchingError, match="its rule for vmap isn't in the file: apply vmap before"
    ):
        fg.vmap(g)(fnp.ones(2))
    np.testing.assert_array_equal(loaded(fg.vmap(f), fnp.ones(2))(fnp.ones(2)), [2, 2])


@pytest.mark.parametrize(
    "policy",
    [
        None,
        checkpoint_policies.dots_saveable,
        checkpoint_policies.save_only_these_names("a"),
        checkpoint_policies.save_from_both_policies(
            checkpoint_policies.save_any_names_but_these("b"),
            checkpoint_policies.save_anything_except_these_names("a", "c"),
        ),
    ],
)
def test_policies_of_checkpoints(policy):
    assert policy_from_json(policy_to_json(policy)) == policy

    def f(x):
        return fnp.sin(fg.checkpoint_name(fnp.exp(x), "a")) * x

    g = loaded(lambda x: fg.checkpoint(f, policy=policy)(x), 1.0)
    want = fg.make_jaxpr(fg.grad(fg.checkpoint(f, policy=policy)))(1.0)
    assert len(fg.make_jaxpr(fg.grad(g))(1.0).eqns) <= len(want.eqns) + 3
    np.testing.assert_allclose(fg.grad(g)(1.0), fg.grad(f)(1.0), rtol=1e-6)


def test_policies_of_ones_own_are_refused():
    f = fg.checkpoint(fnp.sin, policy=lambda prim, *avals, **params: True)
    with pytest.raises(ExportError, match="its policy is the Python function"):
        export.export(fg.jit(f))(1.0)
