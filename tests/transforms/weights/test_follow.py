"""Functions of weights: each program runs as on arrays, and knows its weights' uses."""

from dataclasses import dataclass

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax, nn, tree
from funcgrad.core.ir import sub_jaxprs
from funcgrad.errors import ArgumentError
from funcgrad.transforms.weights.applied import with_weights
from funcgrad.transforms.weights.calls import UNROLLED
from funcgrad.transforms.weights.leaves import named_leaves, with_leaves
from funcgrad.transforms.weights.uses import Strict, uses
from funcgrad.transforms.weights.weight import Dense, Weight

RNG = np.random.default_rng(0)
W = fnp.asarray(RNG.standard_normal((4, 4)), "float32")
STACK = fnp.asarray(RNG.standard_normal((3, 4, 4)), "float32")
X = fnp.asarray(RNG.standard_normal((2, 4)), "float32")


@tree.register_dataclass
@dataclass(frozen=True)
class Scaled(Weight):
    """An array times a number for each element of its last axis, which products multiply with
    afterwards where they can."""

    array: object
    scale: object

    @property
    def shape(self):
        return self.array.shape

    @property
    def dtype(self):
        return self.array.dtype

    def dense(self):
        return self.array * self.scale

    def product(self, use, x):
        if set(use.axes("contracted")) & {len(self.shape) - 1} or "mixed" in use.roles():
            return use.bind(x, use.operand(self.dense()))
        return use.bind(x, use.operand(self.array)) * use.over_result(
            self.scale[(None,) * (len(self.shape) - self.scale.ndim)]
        )

    def cut(self, axis, cut):
        scale, own = self.scale, axis - len(self.shape) + self.scale.ndim
        if own >= 0 and scale.shape[own] == self.shape[axis]:
            scale = cut(scale, own)
        return Scaled(cut(self.array, axis), scale)

    def stacked(self):
        return self.scale.ndim == len(self.shape)


@fg.custom_vjp
def ruled(w, x):
    return fnp.tanh(x @ w)


ruled.defvjp(
    lambda w, x: (fnp.tanh(x @ w), (w, x)),
    lambda r, g: (3.0 * (r[1].T @ g), g @ r[0].T),
)


@fg.custom_jvp
def pushed(w, x):
    return x @ w


@pushed.defjvp
def _(primals, tangents):
    (w, x), (dw, dx) = primals, tangents
    return x @ w, 2.0 * (x @ dw) + dx @ w


def scanned(p, x):
    return lax.scan(lambda h, w: (fnp.tanh(h @ w), h @ w.T), x, p["stack"])


def tied(p, x):
    rows = p["w"][np.array([1, 3])]
    return nn.relu(rows @ p["w"].T) + x[:, :1]


PROGRAMS = {
    "product": lambda p, x: x @ p["w"],
    "left": lambda p, x: p["w"] @ x.T,
    "transposed": lambda p, x: x @ p["w"].T,
    "heads": lambda p, x: fnp.einsum("bd,dhk->bhk", x, p["w"].reshape(4, 2, 2)),
    "heads out": lambda p, x: fnp.einsum(
        "bhk,hkd->bd", x.reshape(2, 2, 2), p["w"].reshape(2, 2, 4)
    ),
    "converted": lambda p, x: x.astype("bfloat16") @ p["w"].astype("bfloat16"),
    "pieces": lambda p, x: (x @ p["w"][:, :2], x[:, 1:] @ p["w"][1:]),
    "layer": lambda p, x: x @ p["stack"][1],
    "dynamic layer": lambda p, x: x @ lax.dynamic_index_in_dim(p["stack"], 2, keepdims=False),
    "all layers": lambda p, x: fnp.einsum("bd,ldk->lbk", x, p["stack"]),
    "batched": lambda p, x: fnp.einsum("ld,ldk->lk", fnp.ones((3, 4)), p["stack"]),
    "scan": scanned,
    "scan backwards": lambda p, x: lax.scan(
        lambda h, w: (h @ w, None), x, p["stack"], reverse=True
    ),
    "scan constant": lambda p, x: lax.scan(lambda h, _: (h @ p["w"], h), x, None, length=2),
    "carried": lambda p, x: lax.scan(lambda w, _: (w * 0.5, x @ w), p["w"], None, length=2),
    "jit": lambda p, x: fg.jit(lambda w: x @ w)(p["w"]),
    "checkpoint": lambda p, x: fg.checkpoint(lambda w, x: fnp.sin(x @ w))(p["w"], x),
    "cond": lambda p, x: lax.cond(x[0, 0] > 0, lambda w: x @ w, lambda w: x @ w.T, p["w"]),
    "while": lambda p, x: lax.while_loop(
        lambda h: fnp.sum(h @ p["w"]) < 50, lambda h: fnp.abs(h @ p["w"]) + 1, x
    ),
    "custom vjp": lambda p, x: ruled(p["w"], x),
    "custom jvp": lambda p, x: pushed(p["w"], x),
    "tied": tied,
    "convolution": lambda p, x: lax.conv_general_dilated(
        x[None, None], p["w"][None, None], (1, 1), "SAME"
    ),
    "two weights": lambda p, x: x @ (p["w"] @ p["w"]),
    "lost": lambda p, x: x @ fnp.tanh(p["w"]),
    "repeated": lambda p, x: fnp.broadcast_to(p["w"], (2, 4, 4)) @ x[:, :, None],
    "reshaped and mixed": lambda p, x: x.reshape(4, 2) @ p["w"].reshape(2, 8),
}  # fmt: skip


def arrays():
    return {"w": W, "stack": STACK}


def weights(kind):
    if kind is Dense:
        return tree.map(Dense, arrays())
    return {
        "w": Scaled(W / np.arange(1, 5, dtype=np.float32), np.arange(1, 5, dtype=np.float32)),
        "stack": Scaled(STACK / 2, np.full((3, 1, 4), 2, np.float32)),
    }


def close(got, want, tol=1e-5):
    def each(a, b):
        assert a.dtype == b.dtype
        near = 0.05 if a.dtype == "bfloat16" else tol
        np.testing.assert_allclose(np.float32(a), np.float32(b), rtol=near, atol=near)

    tree.map(each, got, want)


@pytest.mark.parametrize("name", PROGRAMS)
def test_dense_weights_change_no_bit(name):
    f = PROGRAMS[name]
    closed = fg.make_jaxpr(f)(arrays(), X)
    want = closed(*tree.leaves((arrays(), X)))
    got = tree.leaves(with_weights(f)(weights(Dense), X))
    tree.map(np.testing.assert_array_equal, got, want)
    close(tree.leaves(with_weights(f, programs=UNROLLED)(weights(Dense), X)), want)


@pytest.mark.parametrize("name", PROGRAMS)
def test_weights_of_their_own_are_as_good_as_arrays(name):
    f = PROGRAMS[name]
    for programs in ({}, {"programs": UNROLLED}):
        close(with_weights(f, **programs)(weights(Scaled), X), f(arrays(), X))
    close(fg.jit(with_weights(f))(weights(Scaled), X), f(arrays(), X))


@pytest.mark.parametrize("name", sorted(set(PROGRAMS) - {"while"}))
def test_gradients_go_through(name):
    f = PROGRAMS[name]

    def loss(p, x, f=f):
        return sum(fnp.sum(fnp.sin(y.astype("float32"))) for y in tree.leaves(f(p, x)))

    want = fg.grad(loss, (0, 1))(arrays(), X)
    got = fg.grad(lambda p, x: loss(p, x, with_weights(f)), (0, 1))(weights(Scaled), X)
    tol = 0.05 if name == "converted" else 1e-4
    close(got[1], want[1], tol)
    for key in want[0]:
        close(got[0][key].array / weights(Scaled)[key].scale, want[0][key], tol)


@pytest.mark.parametrize("name", ["product", "scan", "cond", "custom vjp", "custom jvp", "tied"])
def test_vmap_over_inputs(name):
    f, xs = with_weights(PROGRAMS[name]), fnp.stack([X, 2 * X])
    got = fg.vmap(f, (None, 0))(weights(Scaled), xs)
    want = [PROGRAMS[name](arrays(), x) for x in xs]
    close(got, tree.map(lambda *rows: fnp.stack(rows), *want))


def prims(jaxpr):
    for e in jaxpr.eqns:
        yield e.prim.name
        for j in sub_jaxprs(e):
            yield from prims(j)


def test_programs_stay_programs():
    for name, op in [("scan", "scan"), ("cond", "cond"), ("while", "while"), ("jit", "jit"),
                     ("checkpoint", "checkpoint"), ("custom vjp", "custom_vjp_call")]:  # fmt: skip
        f = with_weights(PROGRAMS[name])
        assert op in set(prims(fg.make_jaxpr(f)(weights(Scaled), X).jaxpr)), name


def kinds(name):
    return {k: [u.kind for u in v] for k, v in uses(PROGRAMS[name], arrays(), X).items()}


def test_uses():
    assert kinds("tied")["w"] == ["lookup", "product"]
    assert kinds("convolution")["w"] == ["convolution"]
    assert kinds("lost")["w"] == ["tanh"]
    assert kinds("carried")["w"] == ["scan"]
    assert kinds("lost")["stack"] == []
    ops = {
        u.op for f in ("tied", "convolution", "lost") for u in uses(PROGRAMS[f], arrays(), X)["w"]
    }
    assert ops == {"gather", "dot_general", "conv_general_dilated", "tanh"}
    assert kinds("repeated")["w"] == ["broadcast_in_dim"]
    for name in ("scan", "layer", "dynamic layer", "all layers", "batched", "scan backwards"):
        assert set(kinds(name)["stack"]) == {"product"}, name


@pytest.mark.parametrize(
    ("name", "leaf", "contracted"),
    [
        ("product", "w", [(-2,)]),
        ("left", "w", [(-1,)]),
        ("transposed", "w", [(-1,)]),
        ("heads", "w", [(-2,)]),
        ("heads out", "w", [(-2,)]),
        ("scan", "stack", [(-2,), (-1,)]),
        ("all layers", "stack", [(-2,)]),
        ("layer", "stack", [(-2,)]),
        ("reshaped and mixed", "w", [None]),
        ("tied", "w", [(-1,), (-1,)]),
    ],
)
def test_axes_that_are_summed(name, leaf, contracted):
    assert [u.contracted for u in uses(PROGRAMS[name], arrays(), X)[leaf]] == contracted


def test_shapes_do_in_place_of_arrays():
    shape = lambda x: fg.ShapeDtypeStruct(x.shape, x.dtype)
    found = uses(PROGRAMS["scan"], tree.map(shape, arrays()), shape(X))
    assert "test_follow.py" in found["stack"][0].where


def test_a_weight_that_must_be_followed():
    f = with_weights(PROGRAMS["lost"], Strict("lora", ["w"]))
    with pytest.raises(
        ArgumentError, match=r"lora: the parameter w can't be followed through tanh"
    ):
        f(weights(Scaled), X)
    with pytest.raises(ArgumentError, match=r"test_follow.py:\d+"):
        f(weights(Scaled), X)


def test_names_of_leaves():
    params = {"layers": [{"w": W}, {"w": Dense(W)}], "b": X}
    assert list(named_leaves(params)) == ["b", "layers.0.w", "layers.1.w"]
    assert list(named_leaves(W)) == ["params"]
    changed = with_leaves(params, {"layers.1.w": X})
    assert changed["layers"][1]["w"] is X
    assert changed["layers"][0]["w"] is W


def test_rules_of_functions_hold_for_the_dense_array():
    loss = lambda p: fnp.sum(with_weights(PROGRAMS["custom vjp"])(p, X))
    got = fg.grad(loss)(weights(Scaled))["w"].scale
    g = np.ones((2, 4), np.float32)
    w = weights(Scaled)["w"]
    np.testing.assert_allclose(got, np.sum(3 * (np.asarray(X).T @ g) * w.array, 0), rtol=1e-4)
