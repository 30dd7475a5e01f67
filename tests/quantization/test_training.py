"""qat: the quantized function to the bit, straight-through derivatives, learned steps."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax, nn, optim, tree
from funcgrad import quantization as q
from funcgrad.errors import ArgumentError
from funcgrad.quantization.fake import Fake

RNG = np.random.default_rng(0)


def normal(*shape, scale=1.0):
    return fnp.asarray(RNG.standard_normal(shape) * scale, "float32")


PARAMS = {
    "emb": normal(100, 64),
    "layers": {"w": normal(3, 64, 64, scale=1 / 8), "b": normal(3, 64)},
    "out": normal(32, 64, scale=1 / 8),
}
IDS = RNG.integers(0, 100, 16)


def model(p, ids):
    body = lambda h, w: (h + nn.relu(h @ w["w"] + w["b"]), None)
    h = lax.scan(body, p["emb"][ids], p["layers"])[0]
    return h @ p["out"].T


CONFIGS = [
    q.Int8Dynamic(), q.WeightOnly(8), q.WeightOnly(4, 32), q.WeightOnly(2, 32), q.NF4(),
    q.Float8(), q.Float8(activations=True), q.MXFP4(),
]  # fmt: skip
ids = lambda c: f"{type(c).__name__}{getattr(c, 'bits', '')}"


@pytest.mark.parametrize("config", CONFIGS, ids=ids)
def test_fake_is_real_to_the_bit(config):
    qf, qparams, _ = fg.quantize(model, PARAMS, config, [(IDS,)])
    fake = fg.qat(model, config)
    np.testing.assert_array_equal(fake(PARAMS, IDS), qf(qparams, IDS))


@pytest.mark.parametrize("learned", [True, False])
@pytest.mark.parametrize("config", [q.Int8Dynamic(), q.Int8Static(), q.WeightOnly(4, 32)], ids=ids)
def test_prepared_parameters_are_real_to_the_bit(config, learned):
    prepared = q.prepare(model, PARAMS, config, [(IDS,)], learned)
    assert isinstance(prepared["layers"]["w"], Fake)
    qf, qparams, _ = fg.quantize(model, prepared, config, [(IDS,)])
    fake = fg.qat(model, config)
    np.testing.assert_array_equal(fake(prepared, IDS), qf(qparams, IDS))
    least = 15 if isinstance(config, q.WeightOnly) else 30
    assert q.sqnr(model(PARAMS, IDS), fake(prepared, IDS)) > least


@pytest.mark.parametrize("config", CONFIGS, ids=ids)
def test_derivatives_are_nearly_those_of_the_function(config):
    loss = lambda f: lambda p: fnp.sum(fnp.sin(f(p, IDS)))
    want = fg.grad(loss(model))(PARAMS)
    got = fg.jit(fg.grad(loss(fg.qat(model, config))))(PARAMS)
    least = {8: 15, 4: 0, 2: -10}[
        int({q.NF4: 4, q.MXFP4: 4}.get(type(config), getattr(config, "bits", 8)))
    ]
    assert q.sqnr(want["out"], got["out"]) > least


def test_straight_through_by_hand():
    """dx = dy Wᵀ of the rounded W, dW = x̂ᵀ dy of the rounded x."""
    f, w, x, g = (lambda p, x: x @ p), normal(8, 4), normal(3, 8), normal(3, 4)
    fake = fg.qat(f, q.Int8Dynamic())
    dw, dx = fg.vjp(fake, w, x)[1](g)
    rounded = q.quantize_int(x, axes=(-1,)).dense()
    np.testing.assert_allclose(dx, g @ q.quantize_int(w).dense().T, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(dw, rounded.T @ g, rtol=1e-5, atol=1e-6)


def test_no_derivative_where_a_static_range_clips():
    f, w, x = (lambda p, x: x @ p), normal(8, 4), normal(3, 8)
    config = q.Int8Static()
    prepared = q.prepare(f, w, config, [(x,)])
    far = fnp.where(np.arange(8) % 2 == 0, 10 * x, 0.1 * x)
    dx = fg.grad(lambda x: fnp.sum(fg.qat(f, config)(prepared, x)))(far)
    low, high = min(float(x.min()), 0), max(float(x.max()), 0)
    inside = (np.asarray(far) >= low) & (np.asarray(far) <= high)
    want = np.where(inside, np.asarray(prepared.dense()).sum(1), 0)
    np.testing.assert_allclose(dx, want, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_derivatives_of_learned_steps(bits):
    """ds = (x̂ − x) / s inside, ±qmax outside, times 1/√(N qmax)."""
    w, step, g = normal(16, 3), np.float32([[0.4, 0.2, 0.3]]), np.asarray(normal(16, 3))
    fake = Fake(w, fnp.asarray(step), config=q.WeightOnly(bits))
    got = fg.grad(lambda f: fnp.sum(f.dense() * g))(fake)
    top = 2 ** (bits - 1) - 1
    u = np.asarray(w) / step
    inside = np.abs(u) <= top
    ds = np.where(inside, np.round(u) - u, np.sign(u) * top) * g / np.sqrt(16 * top)
    np.testing.assert_allclose(got.step, ds.sum(0, keepdims=True), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(got.w, np.where(inside, g, 0), rtol=1e-6)


def classes():
    """Points around eight centers, and which of them it is."""
    rng = np.random.default_rng(1)
    centers = rng.standard_normal((8, 16)) * 1.2
    labels = rng.integers(0, 8, 600)
    return fnp.asarray(centers[labels] + rng.standard_normal((600, 16)), "float32"), labels


def mlp(p, x):
    return nn.relu(nn.relu(x @ p["a"]) @ p["b"]) @ p["c"]


def trained(f, params, x, labels, steps, rate=3e-3):
    hot = np.eye(8, dtype=np.float32)[labels]
    loss = lambda p: -fnp.mean(fnp.sum(nn.log_softmax(f(p, x)) * hot, 1))
    method = optim.adam(rate)

    @fg.jit
    def step(params, state):
        updates, state = method.update(fg.grad(loss)(params), state, params)
        return optim.apply_updates(params, updates), state

    state = method.init(params)
    for _ in range(steps):
        params, state = step(params, state)
    return params


def test_training_recovers_what_two_bits_lose():
    x, labels = classes()
    params = {"a": normal(16, 32, scale=0.3), "b": normal(32, 32, scale=0.2), "c": normal(32, 8)}
    params = trained(mlp, params, x[:400], labels[:400], 150)
    score = lambda f, p: float((np.argmax(f(p, x[400:]), 1) == labels[400:]).mean())
    full = score(mlp, params)
    assert full > 0.85
    eight = fg.quantize(mlp, params, q.Int8Dynamic(), [(x,)])[:2]
    assert score(*eight) > full - 0.02
    config = q.WeightOnly(2, 16)
    low = score(*fg.quantize(mlp, params, config, [(x,)])[:2])
    start = q.prepare(mlp, params, config, [(x[:1],)], learned=True)
    tuned = trained(fg.qat(mlp, config), start, x[:400], labels[:400], 150)
    high = score(*fg.quantize(mlp, tuned, config, [(x,)])[:2])
    assert low < full - 0.05
    assert high > low + 0.6 * (full - low)


def test_rules_name_ops():
    """In qat and prepare as in quantize, to the bit."""
    config = {"gather": q.WeightOnly(8), "dot_general": q.Int8Static()}
    prepared = q.prepare(model, PARAMS, config, [(IDS,)])
    assert [type(prepared["emb"].config), type(prepared["out"].config)] == list(
        map(type, config.values())
    )
    qf, qparams, report = fg.quantize(model, prepared, config, [(IDS,)])
    assert set(report.quantized) == {"emb", "layers.w", "out"}
    np.testing.assert_array_equal(fg.qat(model, config)(prepared, IDS), qf(qparams, IDS))


def test_what_is_refused():
    f, params, x = lambda p, x: x @ p["w"], {"w": normal(8, 4)}, normal(2, 8)
    with pytest.raises(ArgumentError, match="Int8Static needs a range for the input .* with w"):
        fg.qat(f, q.Int8Static())(params, x)
    with pytest.raises(ArgumentError, match="qat: the rule 'nothing' matches none"):
        fg.qat(f, q.NF4(rules="nothing"))(params, x)
    with pytest.raises(ArgumentError, match="w is for Float8"):
        q.prepare(f, params, q.Float8(), [(x,)], learned=True)
    with pytest.raises(ArgumentError, match="qat: the parameter w is quantized already"):
        fg.qat(f, q.WeightOnly())({"w": q.quantize_int(params["w"])}, x)
    assert tree.structure(fg.qat(f, q.WeightOnly())(params, x)) == tree.structure(x)


def test_ranges_move_until_they_are_frozen():
    config, params = q.Int8Static(), {k: PARAMS[k] for k in ("emb", "layers", "out")}
    prepared = q.prepare(model, params, {"layers.w|out": config}, [(IDS,)])
    wide = tree.map(lambda x: x, prepared) | {"emb": 4 * params["emb"]}
    moved = q.update_ranges(model, wide, IDS, rate=0.25)
    far = q.prepare(model, params | {"emb": wide["emb"]}, {"layers.w|out": config}, [(IDS,)])
    for name, found in (("layers.w", moved["layers"]["w"]), ("out", moved["out"])):
        old, new = ((p["layers"]["w"] if name != "out" else p["out"]) for p in (prepared, far))
        np.testing.assert_allclose(found.x_high, 0.75 * old.x_high + 0.25 * new.x_high, rtol=0.02)
        assert found.x_low.shape == old.x_low.shape
        np.testing.assert_array_equal(found.w, old.w)
    fake = fg.qat(model, {"layers.w|out": config})
    qf, qparams, _ = fg.quantize(model, moved, {"layers.w|out": config}, [(IDS,)])
    np.testing.assert_array_equal(fake(moved, IDS), qf(qparams, IDS))
    with pytest.raises(ArgumentError, match=r"update_ranges: rate must be in \(0, 1\], got 0"):
        q.update_ranges(model, moved, IDS, rate=0)
    with pytest.raises(ArgumentError, match="none of the parameters has a static range"):
        q.update_ranges(model, PARAMS, IDS)
