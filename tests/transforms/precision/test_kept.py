"""What derivatives of functions in mixed precision keep of float32 arithmetic."""

import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax, nn, random
from funcgrad.ad_checkpoint import saved_residuals
from funcgrad.errors import ShapeError
from funcgrad.transforms.precision.kept import keep_narrow, scaled_p

BF16 = np.dtype(fnp.bfloat16)


def some(*shape, seed=0):
    return fnp.asarray(np.random.default_rng(seed).standard_normal(shape), "float32")


def kept(f, *args):
    """Bytes that the backward pass keeps beside arguments, and the types of these arrays."""
    found = [a for a, text in saved_residuals(f, *args) if "argument" not in text]
    return sum(a.size * a.dtype.itemsize for a in found), [str(a) for a in found]


@pytest.fixture
def gpt():
    examples = str(Path(__file__).parents[3] / "examples")
    sys.path.insert(0, examples)
    import gpt

    yield gpt
    sys.path.remove(examples)


def test_a_gpt_keeps_two_fifths_less(gpt):
    cfg = gpt.Config(96, context=64, width=64, heads=4, layers=2)
    params = gpt.init_params(random.key(0), cfg)
    tokens = fnp.arange(512, dtype="int32").reshape(8, 64) % 96
    loss = partial(gpt.loss_of, cfg=cfg)
    wide, _ = kept(lambda p: loss(p, tokens, tokens), params)
    narrow, types = kept(lambda p: fg.autocast(loss)(p, tokens, tokens), params)
    assert narrow < 0.6 * wide
    assert "f32[8,64,256]" not in types


def chain(x, b):
    return nn.gelu(x + b) * fnp.sin(b)


def narrowed(f):
    """f as keep_narrow has it."""

    def call(*args):
        closed = fg.make_jaxpr(f)(*args)
        (out,) = fg.core.ir.eval_jaxpr(keep_narrow(closed.jaxpr, BF16), *closed.consts, *args)
        return out

    return call


def test_a_chain_keeps_a_factor_for_each_operand():
    x, b = some(4, 3), some(4, 3, seed=1)
    assert kept(narrowed(lambda x: nn.gelu(2 * x)), x) == (24, ["bf16[4,3]"])
    assert kept(narrowed(chain), x, b)[1] == ["bf16[4,3]", "bf16[4,3]"]
    np.testing.assert_array_equal(narrowed(chain)(x, b), chain(x, b))
    f = lambda x, b: fnp.sum(chain(x, b) ** 2)
    g = lambda x, b: fnp.sum(narrowed(chain)(x, b) ** 2)
    for run in (fg.grad, fg.jacfwd, lambda f, n: fg.jit(fg.grad(f, n))):
        for got, want in zip(run(g, (0, 1))(x, b), fg.grad(f, (0, 1))(x, b), strict=True):
            np.testing.assert_allclose(got, want, rtol=0.01, atol=0.02)
    lanes, wanted = (
        fg.vmap(fg.grad(lambda x, b: fnp.sum(fun(x, b))), (0, None))(x, b[0])
        for fun in (narrowed(chain), chain)
    )
    np.testing.assert_allclose(lanes, wanted, rtol=0.01, atol=0.01)
    second = fg.grad(lambda x: fnp.sum(fg.grad(g)(x, b) ** 2))(x)
    wanted = fg.grad(lambda x: fnp.sum(fg.grad(f)(x, b) ** 2))(x)
    assert float(fnp.linalg.norm(second - wanted) / fnp.linalg.norm(wanted)) < 0.02


def test_loops_stack_narrow_factors():
    w, x = some(5, 8, 8, seed=2), some(64, 8)
    f = lambda w, x: lax.scan(lambda h, w: (h + nn.gelu(h @ w + 1.0), None), x, w)[0]
    wide, narrow = kept(f, w, x), kept(fg.autocast(f), w, x)
    assert "bf16[5,64,8]" in narrow[1]
    assert narrow[0] < 0.55 * wide[0]


def test_what_stays_as_it_is():
    # One operation, operands of other shapes or dtypes, what is used elsewhere, numbers.
    x, b = some(4, 3), some(3)
    for f in (
        lambda x: fnp.tanh(x) + x,
        lambda x: 2 * x / 3 - x,
        lambda x: fnp.exp(fnp.sin(x)),
        lambda x: fnp.tanh(x) @ fnp.tanh(x).T,
        lambda x: fnp.tanh(x.astype("float64") * fnp.sin(x.astype("float64"))),
        lambda x: fnp.sin(fnp.tanh(x[0, 0])),
    ):
        jaxpr = fg.make_jaxpr(f)(x).jaxpr
        assert str(keep_narrow(jaxpr, BF16)) == str(jaxpr)
    f = lambda x: nn.gelu(x + b)
    once = fg.autocast(f)
    assert str(fg.make_jaxpr(fg.autocast(once))(x)) == str(fg.make_jaxpr(once)(x))
    half = str(fg.make_jaxpr(fg.autocast(f, "float16"))(x))
    assert half == str(fg.make_jaxpr(f)(x))


def test_products_with_narrow_factors():
    x, factor = some(4), some(4, seed=1).astype("bfloat16")
    assert scaled_p.bind(x, factor).dtype == np.float32
    (back,) = fg.linear_transpose(lambda f: scaled_p.bind(x, f), factor)(fnp.ones(4))
    assert back.dtype == BF16
    with pytest.raises(ShapeError, match="scaled"):
        scaled_p.bind(x, factor[:3])
