"""autocast to float8: which products are, in programs within and derivatives, and how near."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax, nn
from funcgrad.transforms.precision.float8 import E4M3, E5M2
from tests.op_samples_base import F32
from tests.transforms.precision.test_autocast import BF16, dtypes_of, program, some

autocast = lambda f, **more: fg.autocast(f, "float8_e4m3fn", **more)


def kinds(fun, *args):
    """The dtypes of each matrix product's operands."""
    eqns = program(fun, *args)
    return [tuple(a.aval.dtype for a in e.ins) for e in eqns if e.prim.name == "dot_general"]


def mlp(params, x):
    h = nn.relu(x @ params["up"] + params["bias"])
    return h @ params["down"]


def loss(params, x, y):
    return fnp.mean((mlp(params, x) - y) ** 2)


@pytest.fixture
def params(rng):
    return {"up": some(rng, 32, 48, scale=0.2), "bias": some(rng, 48),
            "down": some(rng, 48, 16, scale=0.2)}  # fmt: skip


def test_products_are_float8_forward_and_backward(params, rng):
    x, y = some(rng, 64, 32), some(rng, 64, 16)
    assert kinds(autocast(mlp), params, x) == [(E4M3, E4M3)] * 2
    found = kinds(fg.grad(autocast(loss)), params, x, y)
    assert sorted(map(set, found), key=len) == [{E4M3}] * 2 + [{E4M3, E5M2}] * 3
    grads = fg.jit(fg.grad(autocast(loss)))(params, x, y)
    for name, got in grads.items():
        want = np.asarray(fg.grad(loss)(params, x, y)[name])
        assert got.dtype == F32
        assert np.linalg.norm(got - want) < 0.15 * np.linalg.norm(want), name


def test_all_else_is_as_with_bfloat16(params, rng):
    def f(image, kernel, q, x):
        return (
            lax.conv(image, kernel, (1, 1), "SAME"),
            nn.dot_product_attention(q, q, q),
            fnp.tanh(x @ x),
            fnp.exp(x @ x),
        )

    args = some(rng, 1, 2, 5, 5), some(rng, 3, 2, 3, 3), some(rng, 1, 6, 2, 4), some(rng, 16, 16)
    eqns = program(autocast(f), *args)
    assert dtypes_of(eqns, "conv_general_dilated", "tanh") == {BF16}
    assert dtypes_of(eqns, "exp") == {F32}
    assert BF16 in dtypes_of(eqns, "attention")
    assert all(v.dtype == F32 for v in autocast(f)(*args))


def test_in_programs_within_and_under_transforms(params, rng):
    w, x = some(rng, 3, 16, 16, scale=0.3), some(rng, 5, 16)

    def f(w, x):
        layer = fg.checkpoint(lambda h, w: fg.jit(lambda h: fnp.tanh(h @ w))(h))
        return lax.scan(lambda h, w: (layer(h, w), None), x, w)[0]

    want = np.asarray(f(w, x))
    assert (E4M3, E4M3) in kinds(autocast(f), w, x)
    for run in (autocast(f), fg.jit(autocast(f)), autocast(fg.jit(f))):
        assert np.abs(np.asarray(run(w, x)) - want).max() < 0.15
    rows = fg.vmap(autocast(f), (None, 0))(w, x[:, None])
    assert np.abs(np.asarray(rows)[:, 0] - want).max() < 0.15
    grad = fg.jit(fg.grad(lambda w: fnp.sum(autocast(f)(w, x) ** 2)))(w)
    exact = fg.grad(lambda w: fnp.sum(f(w, x) ** 2))(w)
    assert np.linalg.norm(grad - exact) < 0.2 * np.linalg.norm(exact)


@pytest.mark.parametrize(
    "spec", ["ij,jk->ik", "bij,kjb->bki", "abc,cbd->da", "i,i->", "ij,kl->lkji"]
)
def test_any_axes(spec, rng):
    """Cotangents come back in the operands' axes."""
    sizes = dict(zip("abcdijkl", (2, 3, 4, 5, 6, 7, 3, 2), strict=True))
    x, y = (some(rng, *(sizes[c] for c in side)) for side in spec.split("->")[0].split(","))
    f = lambda x, y: fnp.einsum(spec, x, y)
    got, pull = fg.vjp(autocast(f), x, y)
    want, exact = fg.vjp(f, x, y)
    ct = some(rng, *want.shape)
    for a, b in zip((got, *pull(ct)), (want, *exact(ct)), strict=True):
        assert a.shape == b.shape
        assert np.linalg.norm(a - b) <= 0.12 * np.linalg.norm(b) + 0.2


def test_rules(params, rng):
    x = some(rng, 8, 32)
    assert kinds(autocast(mlp, rules={"up": "bfloat16"}), params, x)[0] == (BF16, BF16)
    assert kinds(autocast(mlp, rules={"down": "float32"}), params, x)[1] == (F32, F32)
    chosen = [("up", "compute"), ("dot_general", "bfloat16")]
    assert kinds(autocast(mlp, rules=chosen), params, x) == [(E4M3, E4M3), (BF16, BF16)]
    assert dtypes_of(program(autocast(fnp.exp, rules={"exp": "bfloat16"}), x), "exp") == {BF16}


def test_what_a_user_chose_stays(rng):
    x = some(rng, 16, 16)
    half = lambda x: x.astype("float16") @ x.astype("float16")
    assert kinds(autocast(half), x) == [(np.float16, np.float16)]
    wide = lambda x: fnp.matmul(x, x, preferred_element_type="float32")
    (cast,) = [e for e in program(autocast(wide), x) if e.prim.name == "dot_general"]
    assert cast.outs[0].aval.dtype == F32
    assert BF16 not in {a.aval.dtype for e in program(autocast(wide), x) for a in e.outs}


def test_what_derivatives_keep_takes_a_byte(rng):
    w, x = some(rng, 32, 16), some(rng, 64, 32)
    kept = fg.ad_checkpoint.saved_residuals(autocast(lambda w, x: fnp.sin(x @ w)), w, x)
    held = {(aval.shape, aval.dtype) for aval, _ in kept}
    assert {((32, 16), E4M3), ((64, 32), E4M3)} <= held


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_infinities_are_not_made_finite(bad, rng):
    x = np.ones((16, 16), np.float32)
    x[0, 1] = bad
    assert np.isnan(autocast(fnp.matmul)(x, x)).any()


@pytest.mark.parametrize(
    ("compute", "more", "words"),
    [
        ("float8_e5m2", {}, "compute must be one of bfloat16, .*float8_e4m3fn, got float8_e5m2"),
        ("float8_e4m3fn", {"accumulate": "float64"}, "accumulate must be float32, got float64"),
        ("bfloat16", {"rules": {"*": "bfloat16"}}, '"bfloat16" beside compute=.* alone; with'),
        ("float8_e4m3fn", {"rules": {"*": "float8"}}, "rules must be pairs of a pattern"),
        ("float8_e4m3fn", {"rules": {"fft": "bfloat16"}}, "'fft' asks for bfloat16, in which none"),
    ],
)
def test_wrong_arguments(compute, more, words):
    with pytest.raises((TypeError, ValueError), match=words):
        fg.autocast(lambda x: fnp.fft.fft(x @ x), compute, **more)(fnp.ones((2, 2)))


def test_an_mlp_learns_digits(rng):
    """Ten classes of noisy patterns are told apart as well as in float32."""
    centres = some(rng, 10, 64)
    labels = np.arange(600) % 10
    x = centres[labels] + some(rng, 600, 64, scale=1.5)
    params = {"up": some(rng, 64, 32, scale=0.2), "bias": fnp.zeros(32),
              "down": some(rng, 32, 10, scale=0.2)}  # fmt: skip

    def loss(params, x, y):
        return -fnp.mean(nn.log_softmax(mlp(params, x))[fnp.arange(len(y)), y])

    def accuracy(cast):
        def step(i, p):
            grads = fg.grad(cast(loss))(p, x[:400], labels[:400])
            return fg.tree.map(lambda p, g: p - 0.3 * g, p, grads)

        trained = fg.jit(lambda p: lax.fori_loop(0, 60, step, p))(params)
        return float(fnp.mean(fnp.argmax(mlp(trained, x[400:]), 1) == labels[400:]))

    exact = accuracy(lambda f: f)
    assert exact > 0.8
    assert accuracy(autocast) > exact - 0.05
