"""checkpoint: what is kept, what is computed again, and that compilers don't undo it."""

import functools

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax, tree
from funcgrad.core.ir import sub_jaxprs, typecheck
from funcgrad.transforms.passes.simplify import simplify

X = np.array([0.1, 0.5, -0.3], np.float32)
policies = fg.checkpoint_policies


def close(got, want):
    tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), got, want)


def sines(x):
    for _ in range(4):
        x = fnp.sin(x)
    return fnp.sum(x)


def residuals(f, *args):
    """The sizes of what the derivative of f keeps."""
    _, pull = fg.vjp(f, *args)
    return sorted(np.size(r) for r in tree.leaves(pull))


def count(jaxpr, name):
    """How often an operation stands in a program and those within."""
    return sum(
        (e.prim.name == name) + sum(count(j, name) for j in sub_jaxprs(e)) for e in jaxpr.eqns
    )


@pytest.mark.parametrize(
    "wrap",
    [
        fg.checkpoint,
        lambda f: fg.checkpoint(fg.checkpoint(f)),
        fg.checkpoint(policy=policies.everything_saveable),
        fg.checkpoint(policy=policies.nothing_saveable, prevent_cse=False),
        lambda f: fg.jit(fg.checkpoint(f)),
        lambda f: fg.checkpoint(fg.jit(f)),
        lambda f: lambda x: fnp.sum(fg.vmap(fg.checkpoint(f))(x[:, None])),
        lambda f: fg.checkpoint(lambda x: fnp.sum(fg.vmap(f)(x[:, None]))),
        lambda f: lambda x: lax.scan(fg.checkpoint(lambda c, v: (c + f(v[None]), None)), 0.0, x)[0],
        lambda f: fg.checkpoint(lambda x: lax.cond(True, f, lambda v: fnp.sum(v), x)),
    ],
)
def test_values_and_derivatives_are_the_same(wrap):
    f = wrap(sines)
    close(f(X), sines(X))
    close(fg.grad(f)(X), fg.grad(sines)(X))
    close(fg.jit(fg.grad(f))(X), fg.grad(sines)(X))
    close(fg.jvp(f, (X,), (X,)), fg.jvp(sines, (X,), (X,)))
    close(fg.hessian(f)(X), fg.hessian(sines)(X))
    close(fg.vmap(fg.grad(f))(np.stack([X, -X]))[1], fg.grad(sines)(-X))


def test_only_arguments_are_kept():
    assert residuals(sines, X) == [3] * 4
    assert residuals(fg.checkpoint(sines), X) == [3]
    assert residuals(lambda x: sines(fg.checkpoint(fnp.sin)(x)), X) == [3] * 5
    w = fnp.ones((3, 3))
    assert residuals(fg.checkpoint(lambda x: fnp.sum(fnp.sin(w @ x))), X) == [3, 9]


def test_everything_is_computed_again():
    jaxpr = fg.make_jaxpr(fg.grad(fg.checkpoint(sines)))(X).jaxpr
    typecheck(jaxpr)
    assert count(jaxpr, "sin") == 4 + 3, "the last sine is not needed again"
    assert count(jaxpr, "cos") == 4
    assert count(fg.make_jaxpr(fg.grad(sines))(X).jaxpr, "sin") == 4


def test_recomputation_survives_simplification():
    again = fg.make_jaxpr(fg.grad(fg.checkpoint(sines)))(X).jaxpr
    assert count(simplify(again), "sin") == 3, "only the gradient is wanted"
    both = fg.make_jaxpr(fg.value_and_grad(fg.checkpoint(sines)))(X).jaxpr
    assert count(simplify(both), "sin") == 7
    assert count(simplify(both), "optimization_barrier") == 0
    merged = fg.checkpoint(sines, prevent_cse=False)
    assert count(simplify(fg.make_jaxpr(fg.value_and_grad(merged))(X).jaxpr), "sin") == 4
    close(fg.jit(fg.value_and_grad(fg.checkpoint(sines)))(X), fg.value_and_grad(sines)(X))


def test_the_function_runs_once_per_trace():
    calls = []

    def f(x):
        calls.append(1)
        return fnp.sum(fnp.sin(x))

    fg.grad(fg.checkpoint(f))(X)
    assert calls == [1]


# ---- policies


def model(w, x):
    h = fg.checkpoint_name(fnp.sin(w @ x), "hidden")
    g = fg.checkpoint_name(fnp.cos(w @ h), "gate")
    return fnp.sum(fnp.tanh(g) * h)


W = np.eye(3, dtype=np.float32) * 0.5


@pytest.mark.parametrize(
    ("policy", "kept"),
    [
        (None, 0),
        (policies.nothing_saveable, 0),
        (policies.dots_saveable, 2),
        (policies.dots_with_no_batch_dims_saveable, 2),
        (policies.save_only_these_names("hidden"), 1),
        (policies.save_only_these_names("hidden", "gate"), 2),
        (policies.save_only_these_names("other"), 0),
        (policies.save_any_names_but_these("gate"), 1),
        (policies.save_from_both_policies(
            policies.dots_saveable, policies.save_only_these_names("gate")), 3),
        (lambda prim, *avals, **params: prim.name == "cos", 2),
    ],
)  # fmt: skip
def test_policies_keep_what_they_say(policy, kept):
    f = fg.checkpoint(model, policy=policy)
    assert residuals(f, W, X) == sorted([9, 3] + [3] * kept)
    close(fg.grad(f, (0, 1))(W, X), fg.grad(model, (0, 1))(W, X))
    close(fg.jit(fg.grad(f, (0, 1)))(W, X), fg.grad(model, (0, 1))(W, X))


def test_saved_products_are_not_computed_again():
    def dots(policy):
        f = fg.value_and_grad(fg.checkpoint(model, policy=policy))
        return count(simplify(fg.make_jaxpr(f)(W, X).jaxpr), "dot_general")

    assert dots(None) - dots(policies.dots_saveable) == 2
    assert dots(policies.dots_saveable) == dots(policies.everything_saveable)


def test_policies_look_into_compiled_functions():
    dot = fg.jit(lambda w, x: fnp.sin(w @ x))
    f = fg.checkpoint(lambda w, x: fnp.sum(fnp.cos(dot(w, x))), policy=policies.dots_saveable)
    assert residuals(f, W, X) == [3, 3, 9]
    close(fg.grad(f)(W, X), fg.grad(lambda w, x: fnp.sum(fnp.cos(fnp.sin(w @ x))))(W, X))
    named = fg.jit(lambda w, x: fg.checkpoint_name(fnp.sin(w @ x), "hidden"))
    f = fg.checkpoint(lambda w, x: fnp.sum(fnp.cos(named(w, x))),
                      policy=policies.save_only_these_names("hidden"))  # fmt: skip
    assert residuals(f, W, X) == [3, 3, 9]


def test_batched_products_are_told_apart():
    f = lambda w, x: fnp.sum(fnp.sin(fnp.einsum("bij,bj->bi", w, x)) @ fnp.ones((3, 3)))
    w, x = np.stack([W, W]), np.stack([X, X])
    batched = functools.partial(fg.checkpoint, f)
    assert residuals(batched(policy=policies.dots_with_no_batch_dims_saveable), w, x) == [6, 18]
    assert residuals(batched(policy=policies.dots_saveable), w, x) == [6, 6, 18]


def test_names_mark_trees_and_do_nothing_else():
    out = fg.checkpoint_name({"a": X, "b": (1.0, None)}, "n")
    close(out["a"], X)
    assert out["b"][1] is None
    close(fg.jit(lambda x: fg.checkpoint_name(x, "n") * 2)(X), 2 * X)
    close(fg.vmap(fg.grad(lambda x: fg.checkpoint_name(x, "n") ** 2))(X), 2 * X)


# ---- composition


def test_scan_of_checkpointed_steps_keeps_the_carries_alone():
    def step(h, x):
        for _ in range(3):
            h = fnp.tanh(h + x)
        return h, None

    def loss(wrap, h, xs):
        return fnp.sum(lax.scan(wrap(step), h, xs)[0])

    xs = np.linspace(-1, 1, 30, dtype="float32").reshape(10, 3)
    plain = functools.partial(loss, lambda f: f)
    ours = functools.partial(loss, fg.checkpoint)
    close(fg.grad(ours, (0, 1))(X, xs), fg.grad(plain, (0, 1))(X, xs))
    close(fg.jit(fg.grad(ours, (0, 1)))(X, xs), fg.grad(plain, (0, 1))(X, xs))
    assert sum(residuals(ours, X, xs)) < sum(residuals(plain, X, xs))
    assert sum(residuals(ours, X, xs)) == 2 * 30


def test_arguments():
    @functools.partial(fg.checkpoint, static_argnums=(1, 2))
    def f(x, n, name, *, k):
        assert (n, name) == (3, "a")
        return {"y": fnp.sum(x["v"]) ** n * k, "none": None}

    close(f({"v": X}, 3, "a", k=2.0)["y"], 2 * X.sum() ** 3)
    g = fg.grad(lambda x: f(x, 3, "a", k=2.0)["y"])({"v": X})
    close(g["v"], np.full(3, 6 * X.sum() ** 2))
    assert f.__name__ == "checkpoint(f)"
    bare = fg.checkpoint()(fnp.sin)
    close(bare(X), np.sin(X))


def test_unused_and_integer_arguments():
    f = fg.checkpoint(lambda x, n, unused: (x ** n.astype("float32"), n))
    g = fg.grad(lambda x: f(x, fnp.asarray(3), X)[0])(2.0)
    close(g, 12.0)
    close(fg.grad(fg.checkpoint(lambda x: 1.0))(2.0), 0.0)
    close(fg.grad(fg.checkpoint(lambda x: x))(2.0), 1.0)


def test_effects_are_not_repeated():
    seen = []
    note = lambda v: fg.debug.callback(lambda a: seen.append(float(a)), v)

    def f(x):
        note(x)
        y = fg.jit(lambda v: note(v * 10) or fnp.sin(v))(x)
        return fnp.sin(y) * y

    for g in (fg.grad(fg.checkpoint(f)), fg.jit(fg.grad(fg.checkpoint(f)))):
        seen.clear()
        g(1.0)
        assert seen == [1.0, 10.0]


def test_random_numbers_are_the_same_again():
    def f(x):
        noise = fg.random.normal(fg.random.key(0), (3,))
        return fnp.sum(fnp.sin(x * noise) ** 2)

    close(fg.grad(fg.checkpoint(f))(X), fg.grad(f)(X))
    close(fg.jit(fg.grad(fg.checkpoint(f)))(X), fg.grad(f)(X))


@pytest.mark.parametrize("transform", [fg.checkpoint, fg.make_jaxpr])
def test_static_arguments_are_named_and_there(transform):
    name = transform.__name__

    def f(x, kind, y):
        return x if kind == "x" and x > 0 else y

    with pytest.raises(
        ValueError, match=rf"{name} of f: static_argnums=3 needs at least 4 .*got 3"
    ):
        transform(f, static_argnums=3)(1.0, "x", 2.0)
    with pytest.raises(ValueError, match=rf"{name} of f: static_argnums=-4 needs at least 4"):
        transform(f, static_argnums=(1, -4))(1.0, "x", 2.0)
    # Names of the others don't shift.
    with pytest.raises(TypeError, match=rf"{name} of f: argument y must be an array .*got 'z'"):
        transform(f, static_argnums=-2)(1.0, "x", "z")
    with pytest.raises(fg.errors.TracerBoolConversionError, match=rf"argument x of {name}\(f\)"):
        transform(f, static_argnums=1)(1.0, "x", 2.0)
    assert transform(f, static_argnums=[1])(1.0, "y", 2.0) is not None
