"""fold_norms: what is folded, what stays, and that the results are the same."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax, nn
from funcgrad import quantization as q
from funcgrad.errors import ArgumentError

RNG = np.random.default_rng(6)


def normal(*shape, scale=1.0):
    return fnp.asarray(RNG.standard_normal(shape) * scale, "float32")


def stats(n):
    return {
        "mean": normal(n),
        "var": fnp.abs(normal(n)) + 0.5,
        "scale": normal(n),
        "bias": normal(n),
    }


def norm(p, x, shape=(-1,)):
    p = {k: v.reshape(shape) for k, v in p.items()}
    return (x - p["mean"]) * lax.rsqrt(p["var"] + 1e-5) * p["scale"] + p["bias"]


def conv(x, w, layouts=("NHWC", "HWIO", "NHWC"), **options):
    return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=layouts, **options)


def same(f, params, x, names):
    folded, fparams = q.fold_norms(f, params, x)
    assert sorted(fparams) == sorted(names)
    want = f(params, x)
    np.testing.assert_allclose(folded(fparams, x), want, rtol=2e-4, atol=2e-4)
    return folded, fparams


INNER = fg.jit(lambda p, x: norm(p, x @ p["w"]))
FIRST = ("NCHW", "OIHW", "NCHW")
CASES = {
    "conv": (lambda p, x: nn.relu(norm(p, conv(x, p["w"]))), (3, 3, 8, 4)),
    "conv with a bias": (lambda p, x: norm(p, conv(x, p["w"]) + p["mean"]), (3, 3, 8, 4)),
    "groups": (lambda p, x: norm(p, conv(x, p["w"], feature_group_count=2)), (3, 3, 4, 4)),
    "channels first": (
        lambda p, x: norm(p, conv(x.transpose(0, 3, 1, 2), p["w"], FIRST), (-1, 1, 1)),
        (4, 8, 3, 3),
    ),
    "product": (lambda p, x: norm(p, x @ p["w"]), (8, 4)),
    "from the left": (lambda p, x: norm(p, p["w"] @ x[0, 0].T, (-1, 1)), (4, 8)),
    "transposed": (lambda p, x: norm(p, x @ p["w"].T), (4, 8)),
    "in a jit": (lambda p, x: INNER(p, x), (8, 4)),
    "turned": (
        lambda p, x: (p["bias"] - x @ p["w"]) / p["scale"] + 0 * p["var"] * p["mean"],
        (8, 4),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_norms_are_folded(name):
    f, shape = CASES[name]
    params = {**stats(4), "w": normal(*shape, scale=1 / 4)}
    folded, fparams = same(f, params, normal(2, 5, 5, 8), ["w", "w.shift"])
    more = normal(3, 5, 5, 8)
    np.testing.assert_allclose(folded(fparams, more), f(params, more), rtol=2e-4, atol=2e-4)
    text = str(fg.make_jaxpr(folded)(fparams, more))
    assert not any(op in text for op in (" mul ", " div ", " sub ", "rsqrt"))


def test_what_stays():
    params = {"w": normal(8, 4, scale=1 / 3), "v": normal(8, 4), **stats(4)}
    x = normal(6, 8)

    def by_batch(p, x):
        h = x @ p["w"]
        h = (h - h.mean(0)) / fnp.sqrt(h.var(0) + 1e-5) * p["scale"]
        return h + norm(p, x @ p["v"])

    names = ["scale", "v", "v.shift", "w"]
    same(by_batch, params, x, names)

    def twice(p, x):
        h = x @ p["w"]
        return norm(p, h) + h + norm(p, x @ p["v"]), norm(p, x @ p["v"])

    same(
        lambda p, x: twice(p, x)[0],
        params,
        x,
        ["bias", "mean", "scale", "v", "v.shift", "var", "w"],
    )
    # A weight that is needed as it is, too.
    same(lambda p, x: norm(p, x @ p["v"]) @ p["v"].T, params, x, ["v", "v.folded", "v.shift"])
    # Two uses of one weight, each with a factor of its own.
    both = lambda p, x: (x @ p["w"]) * p["scale"] + (x @ p["w"] + p["bias"]) * p["var"]
    same(both, params, x, ["w", "w.2", "w.2.shift"])


def test_folded_functions_are_functions():
    params = {"a": {"w": normal(3, 3, 4, 8, scale=1 / 6), "norm": stats(8)}, "o": normal(8, 5)}
    f = lambda p, x: nn.relu(norm(p["a"]["norm"], conv(x, p["a"]["w"]))).mean((1, 2)) @ p["o"]
    x = normal(4, 9, 9, 4)
    folded, fparams = q.fold_norms(f, params, fg.ShapeDtypeStruct((4, 9, 9, 4), "float32"))
    assert set(fparams) == {"a.w", "a.w.shift", "o"}
    want = f(params, x)
    np.testing.assert_allclose(fg.jit(folded)(fparams, x), want, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(fg.vmap(folded, (None, 0))(fparams, x[:, None])[:, 0], want,
                               rtol=1e-4, atol=1e-4)  # fmt: skip
    grads = fg.grad(lambda x: fnp.sum(folded(fparams, x)))(x)
    np.testing.assert_allclose(grads, fg.grad(lambda x: fnp.sum(f(params, x)))(x), atol=1e-4)
    qf, qparams, report = fg.quantize(folded, fparams, {r"a\.w$": q.Int8Static()}, [(x,)])
    assert list(report.quantized) == ["a.w"]
    assert q.sqnr(want, qf(qparams, x)) > 38


def test_what_is_refused():
    with pytest.raises(TypeError, match="fold_norms: the first argument must be a function, got 3"):
        q.fold_norms(3, {})
    params, x = {"w": normal(8, 4), "b": normal(4)}, normal(2, 8)
    with pytest.raises(
        ArgumentError, match="fold_norms: found no product .* of the parameters b, w"
    ):
        q.fold_norms(lambda p, x: x @ p["w"] + p["b"], params, x)
    folded, _ = q.fold_norms(lambda p, x: x @ p["w"] * p["b"], params, x)
    with pytest.raises(ArgumentError, match=r"fold_norms\(.*\): parameters must be w, got w, b"):
        folded(params, x)
    with pytest.raises(ArgumentError, match="parameters must be w, got .*list"):
        folded([1], x)
    _, qparams, _ = fg.quantize(lambda p, x: x @ p["w"] * p["b"], params, q.WeightOnly(8))
    with pytest.raises(
        ArgumentError, match="fold_norms: the parameter w must be an array, got IntA"
    ):
        q.fold_norms(lambda p, x: x @ p["w"] * p["b"], qparams, x)
