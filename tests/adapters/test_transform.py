"""lora: the function as it was at the start, what it learns, and what merging gives."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax, nn, optim, random, tree
from funcgrad.adapters import Adapter, load_adapters, save_adapters
from funcgrad.core.ir import sub_jaxprs
from funcgrad.errors import ArgumentError, DTypeError, ShapeError, TreeError

RNG = np.random.default_rng(0)
KEY = random.key(0)
KINDS = ["lora", "rslora", "dora"]


def normal(*shape, dtype="float32"):
    return fnp.asarray(RNG.standard_normal(shape), dtype)


X = normal(3, 6)
IDS = np.array([[1, 4], [0, 1]])
IMAGES = normal(2, 3, 8, 8)


def mlp(p, x):
    return fnp.tanh(x @ p["w"] + p["b"]) @ p["out"].T


def stacked(p, x):
    body = lambda h, w: (fnp.tanh(h @ w["w"] + w["b"]), None)
    return lax.scan(fg.checkpoint(body), x, p["layers"])[0]


def heads(p, x):
    h = fnp.einsum("bd,dhk->bhk", x, p["q"])
    return fnp.einsum("bhk,hkd->bd", fnp.sin(h), p["o"])


def language(p, ids):
    return nn.relu(p["emb"][ids]) @ p["emb"].T


def network(p, x):
    h = lax.conv_general_dilated(x, p["k"], (1, 1), "SAME")
    return lax.conv_general_dilated(
        nn.relu(h), p["z"], (2, 2), "SAME", dimension_numbers=("NCHW", "HWIO", "NCHW")
    )


def experts(p, x):
    return fnp.einsum("ed,edk->ek", x[:2], p["w"])


def pieces(p, x):
    q, k = p["qkv"][:, :3], p["qkv"][:, 3:]
    return (x @ q) * (x @ k) + x[:, :3] @ p["stack"][1]


CASES = {
    "mlp": (mlp, {"w": normal(6, 5), "b": normal(5), "out": normal(4, 5)}, "w|out", (X,)),
    "stacked": (stacked, {"layers": {"w": normal(4, 6, 6), "b": normal(4, 6)}}, "w$", (X,)),
    "heads": (heads, {"q": normal(6, 2, 4), "o": normal(2, 4, 6)}, "q|o", (X,)),
    "language": (language, {"emb": normal(7, 6)}, "emb", (IDS,)),
    "network": (network, {"k": normal(4, 3, 3, 3), "z": normal(2, 2, 4, 5)}, "k|z", (IMAGES,)),
    "experts": (experts, {"w": normal(2, 6, 4)}, "w", (X,)),
    "pieces": (pieces, {"qkv": normal(6, 6), "stack": normal(2, 3, 3)}, "qkv|stack", (X,)),
}  # fmt: skip


def case(name, kind="lora", given=True):
    f, params, rules, inputs = CASES[name]
    lf, base, adapters = fg.lora(
        f, params, rules, KEY, rank=2, alpha=8, kind=kind, inputs=inputs if given else None
    )
    return f, lf, base, adapters, inputs


def disturbed(adapters, scale=0.5):
    """Adapters as if they had learned something."""
    rng = np.random.default_rng(1)
    noise = lambda x: x + np.float32(scale) * fnp.asarray(rng.standard_normal(x.shape), x.dtype)
    return tree.map(noise, adapters)


def prims(jaxpr):
    for e in jaxpr.eqns:
        yield e
        for j in sub_jaxprs(e):
            yield from prims(j)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CASES)
def test_nothing_changes_at_the_start(name, kind):
    f, lf, base, adapters, inputs = case(name, kind)
    got, want = lf(base, adapters, *inputs), fg.make_jaxpr(f)(base, *inputs)
    want = want(*tree.leaves((base, inputs)))[0]
    if (
        kind == "dora" and name == "pieces"
    ):  # the norm of a stack's piece is summed in another order
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    else:
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("name", CASES)
def test_compiled_at_the_start(name):
    f, lf, base, adapters, inputs = case(name)
    np.testing.assert_array_equal(fg.jit(lf)(base, adapters, *inputs), fg.jit(f)(base, *inputs))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_merged_parameters_do_the_same(name, kind, given):
    f, lf, base, adapters, inputs = case(name, kind, given)
    adapters = disturbed(adapters)
    want = f(fg.lora_merge(base, adapters), *inputs)
    scale = float(fnp.abs(want).max())
    for got in (lf(base, adapters, *inputs), fg.jit(lf)(base, adapters, *inputs)):
        np.testing.assert_allclose(got / scale, want / scale, atol=2e-6)
    assert not np.allclose(want, f(base, *inputs))


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_the_sum(name):
    f, lf, base, adapters, inputs = case(name)
    adapters = disturbed(adapters)
    loss = lambda y: fnp.sum(fnp.sin(y))
    got = fg.grad(lambda a: loss(lf(base, a, *inputs)))(adapters)
    want = fg.grad(lambda a: loss(f(fg.lora_merge(base, a), *inputs)))(adapters)
    tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-3), got, want)


def test_gradients_of_dora_take_the_norm_as_constant():
    _f, lf, base, adapters, inputs = case("mlp", "dora")
    adapters = disturbed(adapters, 0.1)
    loss = lambda a: fnp.sum(lf(base, a, *inputs) ** 2)
    got = fg.grad(loss)(adapters)
    eps = 1e-2
    for leaf in ("w", "out"):
        # Of magnitudes the derivative is whole: by differences.
        m = adapters[leaf].magnitude
        for i in range(len(m)):
            step = np.eye(len(m), dtype=np.float32)[i] * eps
            ends = []
            for sign in (1, -1):
                moved = Adapter(**{**vars(adapters[leaf]), "magnitude": m + sign * step})
                ends.append(float(loss({**adapters, leaf: moved})))
            np.testing.assert_allclose(
                got[leaf].magnitude[i], (ends[0] - ends[1]) / (2 * eps), rtol=2e-2, atol=2e-2
            )


@pytest.mark.parametrize("name", ["mlp", "stacked", "heads", "language", "experts"])
def test_no_gradient_of_a_base_weight_is_computed(name):
    _f, lf, base, adapters, inputs = case(name)
    jaxpr = fg.make_jaxpr(fg.grad(lambda b, a: fnp.sum(lf(b, a, *inputs)), 1))(base, adapters)
    shapes = {tuple(x.shape) for x in tree.leaves(base) if x.ndim > 1}
    shapes |= {s[1:] for s in shapes if len(s) > 2} | {s[::-1] for s in shapes}
    made = [
        e for e in prims(jaxpr.jaxpr) if e.prim.name in ("dot_general", "scatter_add", "add_any")
    ]
    assert made
    assert not [e for e in made if e.outs[0].aval.shape in shapes]


def test_shapes_of_factors():
    adapters = case("stacked")[3]
    assert adapters["layers.w"].a.shape == (4, 6, 2)
    assert adapters["layers.w"].b.shape == (4, 2, 6)
    adapters = case("heads")[3]
    assert (adapters["q"].a.shape, adapters["q"].b.shape) == ((6, 2), (2, 2, 4))
    assert (adapters["o"].a.shape, adapters["o"].b.shape) == ((2, 4, 2), (2, 6))
    adapters = case("mlp")[3]
    assert (adapters["out"].a.shape, adapters["out"].b.shape) == ((5, 2), (2, 4))
    assert case("experts")[3]["w"].a.shape == (2, 6, 2)
    assert case("network")[3]["z"].a.shape == (2, 2, 4, 2)


def test_the_start_of_factors():
    _, _, adapters = fg.lora(mlp, {"w": normal(100, 5)}, "w", KEY, rank=64)
    a = np.asarray(adapters["w"].a)
    assert 0.09 < np.abs(a).max() <= 0.1
    assert not adapters["w"].b.any()
    again = fg.lora(mlp, {"w": normal(100, 5), "z": normal(2, 2)}, "w|z", KEY, rank=64)[2]
    np.testing.assert_array_equal(again["w"].a, a)  # a leaf's start depends on its name and the key
    emb = case("language")[3]["emb"]
    assert not emb.a.any()
    assert emb.b.any()
    assert adapters["w"].scale == 16 / 64
    assert fg.lora(mlp, {"w": normal(4, 4)}, "w", KEY, kind="rslora")[2]["w"].scale == 16 / 8**0.5


@pytest.mark.parametrize("kind", KINDS)
def test_adapters_learn(kind):
    _f, lf, base, adapters, inputs = case("stacked", kind)
    target = normal(3, 6) * 0.3

    @fg.jit
    def loss(adapters):
        return fnp.mean((lf(base, adapters, *inputs) - target) ** 2)

    method = optim.adam(0.03)
    state, first = method.init(adapters), float(loss(adapters))
    for _ in range(60):
        updates, state = method.update(fg.grad(loss)(adapters), state, adapters)
        adapters = optim.apply_updates(adapters, updates)
    assert float(loss(adapters)) < 0.2 * first


def test_vmap_over_adapters():
    _f, lf, base, adapters, inputs = case("mlp")
    several = [disturbed(adapters, s) for s in (0.1, 0.7)]
    both = tree.map(lambda *xs: fnp.stack(xs), *several)
    got = fg.vmap(lf, (None, 0, None))(base, both, *inputs)
    want = fnp.stack([lf(base, a, *inputs) for a in several])
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_weights_in_bfloat16_have_adapters_in_float32():
    f = lambda p, x: x.astype("bfloat16") @ p["w"]
    lf, base, adapters = fg.lora(f, {"w": normal(6, 5, dtype="bfloat16")}, "w", KEY)
    assert adapters["w"].a.dtype == "float32"
    assert lf(base, adapters, X).dtype == "bfloat16"
    assert fg.lora_merge(base, disturbed(adapters))["w"].dtype == "bfloat16"


def test_all_that_may_have_adapters():
    f = lambda p, x: fnp.tanh(x @ p["w"]) @ fnp.exp(p["e"]) + p["b"]
    params = {"w": normal(6, 5), "e": normal(5, 5), "b": normal(5), "unused": normal(3, 3)}
    assert list(fg.lora(f, params, None, KEY, inputs=(X,))[2]) == ["w"]
    assert list(fg.lora(f, params, None, KEY)[2]) == ["e", "unused", "w"]


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (
            {"rules": "nothing"},
            ArgumentError,
            "rule 'nothing' matches none of the parameters b, ids",
        ),
        ({"rules": ["w", "q"]}, ArgumentError, "rule 'q' matches none"),
        ({"rules": "("}, ArgumentError, "is no regular expression"),
        ({"rules": "ids"}, DTypeError, "parameter ids must be an array of floats.*got int32"),
        ({"rules": "b"}, DTypeError, "parameter b must be an array of floats with two axes"),
        ({"rank": 0}, ArgumentError, "rank must be an integer of at least 1, got 0"),
        ({"alpha": float("nan")}, ArgumentError, "alpha must be a finite number"),
        ({"kind": "vera"}, ArgumentError, "kind must be one of lora, rslora, dora, got 'vera'"),
    ],
)
def test_bad_arguments(change, error, words):
    params = {"w": normal(6, 5), "b": normal(5), "ids": np.zeros((2, 2), np.int32)}
    given = {"rules": "w", "key": KEY} | change
    with pytest.raises(error, match=f"lora: .*{words}"):
        fg.lora(mlp, params, **given)


def test_a_leaf_that_cannot_be_followed():
    f = lambda p, x: x @ fnp.exp(p["w"])
    params = {"w": normal(6, 5)}
    with pytest.raises(
        ArgumentError, match=r"lora: .* w can't be followed through exp at .*\.py:\d"
    ):
        fg.lora(f, params, "w", KEY, inputs=(X,))
    lf, base, adapters = fg.lora(f, params, "w", KEY)
    with pytest.raises(
        ArgumentError, match=r"lora: .* w can't be followed through exp at .*\.py:\d"
    ):
        lf(base, adapters, X)
    lf, base, adapters = fg.lora(f, params, None, KEY)
    np.testing.assert_array_equal(lf(base, adapters, X), f(params, X))


def test_adapters_of_another_base():
    _f, lf, base, adapters, inputs = case("mlp")
    with pytest.raises(TreeError, match=r"lora_merge: .* adapter of 'out', but the base has b, w"):
        fg.lora_merge({"w": base["w"], "b": base["b"]}, adapters)
    with pytest.raises(ShapeError, match=r"lora_merge: .* 'w' has factors of shapes \(6, 2\)"):
        fg.lora_merge(base | {"w": normal(7, 5)}, adapters)
    with pytest.raises(ShapeError, match=r"lora: .*of another base"):
        lf(base | {"out": normal(4, 6)}, adapters, *inputs)
    with pytest.raises(TreeError, match="must be an Adapter"):
        lf(base, {"w": base["w"]}, *inputs)
    with pytest.raises(TreeError, match="must be a dictionary"):
        lf(base, [1], *inputs)


def test_adapters_know_their_base(tmp_path):
    f, x = lambda p, x: x @ p["w"], fnp.ones((2, 8))
    params, other = ({"w": random.normal(random.key(i), (8, 4))} for i in range(2))
    _, base, adapters = fg.lora(f, params, "w", random.key(0), rank=2)
    assert fg.lora_merge(base, adapters)["w"].shape == (8, 4)
    words = (
        "lora_merge: the adapter of 'w' was made for other weights .*: it is one of another base"
    )
    for wrong in (other, {"w": params["w"].at[7, 3].add(1.0)}):
        with pytest.raises(TreeError, match=words):
            fg.lora_merge(wrong, adapters)
    save_adapters(tmp_path, adapters)
    like = fg.lora(f, other, "w", random.key(0), rank=2)[2]
    with pytest.raises(TreeError, match=words):
        fg.lora_merge(other, load_adapters(tmp_path, like))
    # Those of a quantized base, added to what it came from.
    qf, qparams, _ = fg.quantize(f, params, fg.quantization.WeightOnly(8))
    lf, base, adapters = fg.lora(qf, qparams, "w", random.key(0), rank=2)
    assert fg.lora_merge(base, adapters)["w"].shape == (8, 4)
    with pytest.raises(TreeError, match=words):
        fg.lora_merge(params, adapters)
    merged = fg.lora_merge(params, adapters, of_another_base=True)
    np.testing.assert_allclose(f(merged, x), lf(base, adapters, x), rtol=0.05, atol=0.05)
    # Where weights aren't known, nothing is said of them.
    found = fg.jit(lambda p: fg.lora(f, p, "w", random.key(0), rank=2)[2])(params)
    assert found["w"].base == ""
    assert fg.lora_merge(other, found)["w"].shape == (8, 4)
    assert fg.jit(fg.lora_merge)(other, adapters)["w"].shape == (8, 4)
