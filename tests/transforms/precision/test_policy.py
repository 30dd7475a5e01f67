"""The policy of autocast: rules by ops, scopes and leaves, and what is refused."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax
from tests.op_samples_base import F32
from tests.transforms.precision.test_autocast import BF16, dtypes_of, program, some


def test_rules(rng):
    w, x = some(rng, 4, 4), some(rng, 4)

    def f(w, x):
        with fg.named_scope("head"):
            y = fnp.tanh(w @ x)
        return fnp.exp(w @ y)

    def products(rules):
        eqns = program(fg.autocast(f, rules=rules), w, x)
        return [e.ins[0].aval.dtype for e in eqns if e.prim.name == "dot_general"]

    assert products(None) == [BF16, BF16]
    assert products({"head": "float32"}) == [F32, BF16]
    assert products({"dot_*": "float32"}) == [F32, F32]
    assert products([("head", "compute"), ("dot_general", "float32")]) == [BF16, F32]
    assert products({"dot_general": "keep"}) == [F32, F32]
    eqns = program(fg.autocast(f, rules={"exp": "compute"}), w, x)
    assert dtypes_of(eqns, "exp") == {BF16}
    eqns = program(fg.autocast(f, rules={"exp": "keep", "head": "float32"}), w, x)
    assert dtypes_of(eqns, "exp") == {BF16}
    assert dtypes_of(eqns, "tanh") == {F32}


def test_rules_name_leaves(rng):
    """By their key path: products with them, in loops and transposed, too."""
    params = {"layers": {"w": some(rng, 3, 4, 4)}, "head": some(rng, 5, 4)}

    def f(p, x):
        h = lax.scan(lambda h, w: (fnp.tanh(h @ w), None), x, p["layers"]["w"])[0]
        return h @ p["head"].T

    x = some(rng, 2, 4)

    def kinds(rules):
        eqns = program(fg.autocast(f, rules=rules), params, x)
        return [e.outs[0].aval.dtype for e in eqns if e.prim.name == "dot_general"]

    assert kinds(None) == [BF16, BF16]
    assert kinds({"head": "float32"}) == [BF16, F32]
    assert kinds({"layers.*": "float32"}) == [F32, BF16]
    assert kinds([("head", "float32"), ("dot_general", "compute")]) == [BF16, F32]
    grads = fg.jit(fg.grad(lambda p: fnp.sum(fg.autocast(f, rules={"head": "float32"})(p, x))))
    wanted = fg.grad(lambda p: fnp.sum(f(p, x)))(params)
    assert np.allclose(grads(params)["head"], wanted["head"], atol=0.05)
    with pytest.raises(ValueError, match="'tail' matches nothing"):
        fg.autocast(f, rules={"tail": "float32"})(params, x)


def test_rules_reach_into_programs(rng):
    w, x = some(rng, 4, 4), some(rng, 4)

    def f(w, x):
        with fg.named_scope("loop"):
            return lax.fori_loop(0, 3, lambda i, h: w @ h, x)

    eqns = program(fg.autocast(f, rules={"loop": "float32"}), w, x)
    assert dtypes_of(eqns, "dot_general") == {F32}


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"compute": "float64"}, "autocast: compute must be one of bfloat16, float16, float32"),
        ({"compute": "int8"}, "got int8"),
        ({"accumulate": "bfloat16"}, "accumulate must be one of float32, float64"),
        ({"rules": {"dot_general": "bfloat16"}}, r"got \('dot_general', 'bfloat16'\)"),
        ({"rules": ["dot_general"]}, "rules must be pairs of a pattern"),
        ({"rules": {"softmax": "float32"}}, "'softmax' matches nothing; the function has the ops"),
        ({"rules": {"fft": "compute"}}, "'fft' asks for bfloat16, in which none"),
    ],
)
def test_wrong_arguments(kwargs, words):
    f = lambda x: fnp.fft.fft(x @ x)
    with pytest.raises((TypeError, ValueError), match=words):
        fg.autocast(f, **kwargs)(fnp.ones((2, 2)))


def test_what_is_no_function_or_array():
    def f(x, name):
        return x

    with pytest.raises(TypeError, match="autocast"):
        fg.autocast(3)
    with pytest.raises(TypeError, match="autocast of f: argument name must be an array"):
        fg.autocast(f)(1.0, "a")
