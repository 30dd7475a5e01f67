"""quantize: what is chosen, what is reported, and what is refused."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax, nn, random
from funcgrad import quantization as q
from funcgrad.errors import ArgumentError, DTypeError, ShapeError

RNG = np.random.default_rng(0)
OBSERVERS = [q.MinMax(), q.EMA(), q.Histogram(), q.Percentile(99.99), q.Entropy()]


def normal(*shape, scale=1.0):
    return fnp.asarray(RNG.standard_normal(shape) * scale, "float32")


PARAMS = {
    "emb": normal(100, 64),
    "layers": {"w": normal(3, 64, 64, scale=1 / 8), "b": normal(3, 64)},
    "q": normal(64, 4, 64, scale=1 / 8),
    "o": normal(4, 64, 64, scale=1 / 16),
}
IDS = RNG.integers(0, 100, 32)


def model(p, ids):
    h = p["emb"][ids]
    body = lambda h, w: (h + nn.relu(h @ w["w"] + w["b"]), None)
    h = lax.scan(body, h, p["layers"])[0]
    h = fnp.einsum("bd,dhk->bhk", h, p["q"])
    return fnp.einsum("bhk,hkd->bd", h, p["o"]) @ p["emb"].T


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("config", "least"),
    [
        (q.Int8Dynamic(), 34), (q.WeightOnly(8), 37), (q.WeightOnly(4, 32), 15), (q.NF4(), 14),
        (q.Float8(), 23), (q.Float8(activations=True), 20), (q.MXFP4(), 12),
        *((q.Int8Static(o), 30) for o in OBSERVERS),
    ],
)  # fmt: skip
def test_functions_of_quantized_parameters(config, least):
    qf, qparams, report = fg.quantize(model, PARAMS, config, [(IDS,)])
    want = model(PARAMS, IDS)
    assert q.sqnr(want, qf(qparams, IDS)) > least
    assert q.sqnr(want, fg.jit(qf)(qparams, IDS)) > least
    assert set(report.quantized) == {"emb", "layers.w", "o", "q"}
    assert report.after < report.before / 3.5


def test_the_report():
    _, _, report = fg.quantize(model, PARAMS, q.NF4(), [(IDS,)])
    assert "goes to broadcast_in_dim at" in report.left_alone["layers.b"]
    assert report.rows[0].after == 100 * 32 + 100 + 4 + 4
    lines = str(report).splitlines()
    assert lines[0].split() == ["parameter", "shape", "bytes", "after", "SQNR"]
    assert "3×64×64" in lines[3]
    assert lines[-1].endswith("times smaller")
    assert report._repr_html_().startswith("<table>")
    assert "&lt;lambda&gt;" in fg.quantize(
        lambda p, x: x @ p["w"] + p["b"] * 1, {"w": normal(4, 4), "b": normal(2, 4)},
        q.WeightOnly(), [(normal(2, 4),)],
    )[2]._repr_html_()  # fmt: skip


def test_rules_and_several_configurations():
    config = {"emb": q.WeightOnly(8), "^layers": q.NF4(), "q|o": q.WeightOnly(4, 4)}
    _, qparams, report = fg.quantize(
        model, PARAMS | {"layers": {"w": PARAMS["layers"]["w"]}}, config
    )
    assert isinstance(qparams["layers"]["w"], q.NF4Array)
    assert (qparams["emb"].width, qparams["o"].width) == (8, 4)
    _, qparams, report = fg.quantize(model, PARAMS, q.WeightOnly(8, rules="emb"))
    assert report.left_alone["q"] == "left alone: no rule is for it"


def classifier(p, x):
    h = lax.conv(x, p["stem"], (1, 1), "SAME")
    h = nn.relu(h * p["scale"]).mean((2, 3)) @ p["a"]
    return h @ (p["b"] + fnp.tanh(p["tanh"])) + p["rows"][np.array([1])] @ p["rows"].T


CLASSES = {
    "stem": normal(8, 2, 3, 3), "scale": normal(8, 1, 1), "a": normal(8, 8), "b": normal(8, 4),
    "rows": normal(4, 8), "tanh": normal(8, 4),
}  # fmt: skip
IMAGES = normal(2, 2, 5, 5)


def test_rules_name_ops():
    """All leaves that go to an op, as programs print it; what can't be quantized is left alone."""
    config = {"conv_.*": q.Int8Static(), "^a$|rows": q.NF4(8), "dot_.*|broadcast.*": q.Float8()}
    qf, qparams, report = fg.quantize(classifier, CLASSES, config, [(IMAGES,)])
    assert qparams["stem"].activations == "static"
    assert {n: type(x).__name__ for n, x in qparams.items() if n in report.quantized} == {
        "stem": "IntArray", "a": "NF4Array", "rows": "NF4Array",
    }  # fmt: skip
    assert "no rule" in report.left_alone["b"]  # it goes to a sum first
    assert "goes to broadcast_in_dim" in report.left_alone["scale"]
    assert q.sqnr(classifier(CLASSES, IMAGES), qf(qparams, IMAGES)) > 10
    config = q.WeightOnly(8, rules=["gather", "stem"])
    _, _, report = fg.quantize(classifier, CLASSES, config, [(IMAGES,)])
    assert set(report.quantized) == {"rows", "stem"}


def test_a_leafs_name_goes_before_an_op():
    f, params = lambda p, x: x @ p["add"] + p["b"], {"add": normal(8, 4), "b": normal(2, 4)}
    _, _, report = fg.quantize(f, params, q.WeightOnly(8, rules="add"), [(normal(2, 8),)])
    assert report.left_alone == {"b": "left alone: no rule is for it"}


def test_axes_come_from_the_program():
    f = lambda p, x: x @ p["w"].T
    params = {"w": normal(6, 64)}
    _, with_inputs, _ = fg.quantize(f, params, q.Int8Dynamic(), [(normal(2, 64),)])
    assert with_inputs["w"].scale.shape == (6, 1)
    shapes = [(fg.ShapeDtypeStruct((2, 64), "float32"),)]
    assert fg.quantize(f, params, q.Int8Dynamic(), shapes)[1]["w"].scale.shape == (6, 1)
    qf, without, _ = fg.quantize(f, params, q.Int8Dynamic())
    assert without["w"].scale.shape == (1, 64)
    x = normal(2, 64)
    assert q.sqnr(f(params, x), qf(without, x)) > 35


def test_static_ranges_of_each_layer():
    scales = np.array([1.0, 10.0, 100.0])
    params = {"w": fnp.asarray(np.stack([np.eye(8)] * 3), "float32")}
    f = lambda p, x: lax.scan(lambda h, w: ((h @ w) * 10, None), x, p["w"])[0]
    x = normal(50, 8)
    _, qparams, _ = fg.quantize(f, params, q.Int8Static(), [(x,)])
    found = np.asarray(qparams["w"].x_scale).ravel()
    np.testing.assert_allclose(found / found[0], scales, rtol=0.02)


def test_static_ranges_of_layers_that_run_in_another_order():
    params = {"w": fnp.asarray(np.stack([np.eye(8)] * 3), "float32")}

    def f(p, x):
        for i in (2, 0, 1):
            x = (x @ p["w"][i]) * 10
        return x

    _, qparams, _ = fg.quantize(f, params, q.Int8Static(), [(normal(50, 8),)])
    found = np.asarray(qparams["w"].x_scale).ravel()
    np.testing.assert_allclose(found / found[2], [10.0, 100.0, 1.0], rtol=0.02)


def test_qlora():
    qf, qparams, _ = fg.quantize(model, PARAMS, q.NF4(), [(IDS,)])
    lf, base, adapters = fg.lora(qf, qparams, "layers.w|q|o", random.key(0), rank=2, inputs=(IDS,))
    np.testing.assert_array_equal(lf(base, adapters, IDS), qf(qparams, IDS))
    grads = fg.jit(fg.grad(lambda a: fnp.sum(lf(base, a, IDS) ** 2)))(adapters)
    assert grads["layers.w"].b.shape == (3, 2, 64)
    assert float(fnp.abs(grads["q"].b).max()) > 0
    merged = fg.lora_merge(base, adapters)
    np.testing.assert_array_equal(merged["q"], qparams["q"].dense())


def test_a_mesh():
    mesh = fg.make_mesh((2,), "model")
    qf, qparams, _ = fg.quantize(lambda p, x: x @ p["w"], {"w": normal(64, 8)}, q.Int8Dynamic())
    x = normal(4, 64)
    cut = fg.NamedSharding(mesh, fg.P(None, "model"))
    sharded = fg.tree.map(lambda a: fg.device_put(a, cut), qparams)
    np.testing.assert_allclose(fg.jit(qf)(sharded, x), qf(qparams, x), rtol=1e-6)


F = lambda p, x: x @ p["w"] @ fnp.exp(p["e"]) @ p["i"].astype("float32") + p["b"]
BAD = {"w": normal(6, 6), "e": normal(6, 6), "i": fnp.ones((6, 6), "int32"), "b": normal(6)}


@pytest.mark.parametrize(
    ("config", "error", "words"),
    [
        (
            q.NF4(rules="nothing"),
            ArgumentError,
            "the rule 'nothing' matches none of the parameters",
        ),
        (q.WeightOnly(4, 4, rules="w"), ShapeError, "parameter w: .*groups of 4 don't divide"),
        (q.WeightOnly(rules="i"), DTypeError, "parameter i must be an array of floats, got int32"),
        (q.WeightOnly(rules="b"), ShapeError, r"parameter b has shape \(6,\)"),
        (q.WeightOnly(rules="e"), ArgumentError, r"parameter e can't be followed through exp at"),
        (q.Int8Static(rules="unseen"), ArgumentError, "calibration never saw the parameter unseen"),
        ("int8", ArgumentError, "config must be one of quantization's"),
        ({"w": 8}, ArgumentError, "config must be one of quantization's"),
    ],
)
def test_what_is_refused(config, error, words):
    with pytest.raises(error, match=f"quantize: .*{words}"):
        fg.quantize(F, BAD | {"unseen": normal(6, 6)}, config, [(normal(2, 6),)])


def test_other_refusals():
    f, params, x = lambda p, x: x @ p["w"], {"w": normal(64, 8)}, normal(2, 64)
    _, qparams, _ = fg.quantize(f, params, q.NF4())
    with pytest.raises(ArgumentError, match="parameter w is quantized already, as NF4Array"):
        fg.quantize(f, qparams, q.NF4())
    with pytest.raises(ArgumentError, match="'conv' matches none .* w, nor .* to, dot_general$"):
        fg.quantize(f, params, q.NF4(rules="conv"), [(x,)])
    with pytest.raises(ArgumentError, match="none of .* w; rules may name ops where there are inp"):
        fg.quantize(f, params, q.NF4(rules="dot_general"))
    with pytest.raises(ArgumentError, match="none of .* can be quantized .w: it goes to tanh at"):
        fg.quantize(lambda p, x: x @ fnp.tanh(p["w"]), params, q.NF4(rules="tanh"), [(x,)])
    with pytest.raises(ArgumentError, match="Int8Static needs calibration"):
        fg.quantize(f, params, q.Int8Static())
    with pytest.raises(ArgumentError, match="calibration is empty"):
        fg.quantize(f, params, q.Int8Static(), [])
    with pytest.raises(ArgumentError, match="calibration must be a list of inputs"):
        fg.quantize(f, params, q.Int8Static(), x)
    with pytest.raises(ArgumentError, match="must have arrays here, not only shapes"):
        fg.quantize(f, params, q.Int8Static(), [(fg.ShapeDtypeStruct((2, 64), "float32"),)])
    with pytest.raises(ArgumentError, match="parameter w has infinities or NaNs"):
        fg.quantize(f, {"w": params["w"].at[0, 0].set(np.inf)}, q.NF4(rules="w"))
    with pytest.raises(ArgumentError, match="none of the parameters can be quantized"):
        fg.quantize(lambda p, x: x + p["b"], {"b": normal(64)}, q.NF4())
    with pytest.raises(ArgumentError, match="bits must be 8, 4 or 2"):
        q.WeightOnly(bits=3)
    with pytest.raises(ArgumentError, match="group must be a positive integer"):
        q.WeightOnly(bits=4, group=-1)
    with pytest.raises(ArgumentError, match=r"percent must be in \(0, 100\]"):
        q.Percentile(0)


def test_unfit_groups_are_left_alone_where_no_rule_asked():
    _, qparams, report = fg.quantize(
        lambda p, x: x @ p["w"] @ p["v"], {"w": normal(64, 6), "v": normal(6, 4)}, q.NF4()
    )
    assert isinstance(qparams["w"], q.NF4Array)
    assert "groups of 64 don't divide" in report.left_alone["v"]


def test_where_nothing_is_quantized_it_says_why():
    with pytest.raises(ArgumentError, match="none of the parameters can be quantized .w: .*divide"):
        fg.quantize(lambda p, x: x @ p["w"], {"w": normal(64, 6)}, q.WeightOnly(bits=4, group=48))
