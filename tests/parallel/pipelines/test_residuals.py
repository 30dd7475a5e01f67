"""What forward passes leave to backward passes: less than partial evaluation does, and the same
derivatives of it."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax, nn
from funcgrad.core.ir import eval_jaxpr
from funcgrad.parallel.pipelines.derivatives import passes


def layer(h, w):
    return h + nn.gelu(h * w["scale"] @ w["up"] + w["bias"]) @ w["down"]


def in_a_loop(w, x):
    return lax.scan(lambda h, w: (layer(h, w), None), x, w)[0]


def backwards(w, x):
    return lax.scan(lambda h, w: (layer(h, w), None), x, w, reverse=True)[0]


def through_one_scale(w, x):
    """A loop one of whose weights is the same in all turns."""
    scale = w["scale"][0]

    def turn(h, own):
        up, bias, down = own
        return layer(h, {"scale": scale, "up": up, "bias": bias, "down": down}), None

    return lax.scan(turn, x, (w["up"], w["bias"], w["down"]))[0]


def two_loops(w, x):
    return backwards(w, in_a_loop(w, x))


def checkpointed(w, x):
    return lax.scan(fg.checkpoint(lambda h, w: (layer(h, w), None)), x, w)[0]


def weights(rng, layers):
    shapes = {"scale": (4,), "up": (4, 8), "bias": (8,), "down": (8, 4)}
    return {k: fnp.asarray(rng.normal(size=(*layers, *s)) / 2) for k, s in shapes.items()}


def programs(f, w, x):
    flat, structure = fg.tree.flatten(w)
    avals = [fg.ShapeDtypeStruct(v.shape, v.dtype).aval for v in [*flat, x]]
    fun = lambda *vs: [f(structure.unflatten(vs[:-1]), vs[-1])]
    return passes(fun, avals[:-1], avals[-1:], "a stage"), flat


LOOPS = [in_a_loop, backwards, through_one_scale, two_loops, checkpointed]


@pytest.mark.parametrize("f", [layer, *LOOPS])
def test_derivatives(f, rng):
    x = fnp.asarray(rng.normal(size=(5, 4)))
    w = weights(rng, () if f is layer else (3,))
    ordered = (lambda w, x: layer(x, w)) if f is layer else f
    found, flat = programs(ordered, w, x)
    value, pull = fg.vjp(ordered, w, x)
    outs = eval_jaxpr(found.forward, *found.fixed, *flat, x)
    np.testing.assert_allclose(outs[0], value, rtol=1e-12)
    ct = fnp.cos(value)
    got = eval_jaxpr(found.backward, *found.fixed, *flat, *outs[1:], ct)
    for g, want in zip(got, fg.tree.leaves(pull(ct)), strict=True):
        np.testing.assert_allclose(g, want, rtol=1e-10, atol=1e-12)
    # The halves.
    first = eval_jaxpr(found.inputs_half, *found.fixed, *flat, *outs[1:], ct)
    soon = found.late.count(False)
    np.testing.assert_allclose(first[soon], got[-1], rtol=1e-10, atol=1e-12)
    late = eval_jaxpr(found.weights_half, *found.fixed, *flat, *outs[1:], *first[soon + 1 :])
    for g, want in zip(late, [g for g, i in zip(got, found.late) if i], strict=True):  # noqa: B905
        np.testing.assert_allclose(g, want, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("f", [layer, in_a_loop])
def test_what_waits(f, rng):
    """The input, that of the activation, and its result, which is multiplied: nothing of what is
    between."""
    x = fnp.asarray(rng.normal(size=(5, 4)))
    layers = () if f is layer else (3,)
    ordered = (lambda w, x: layer(x, w)) if f is layer else f
    saved = programs(ordered, weights(rng, layers), x)[0].saved
    wide = [v for v in saved if v.shape[-1] == 8]
    assert len(wide) == 2
    assert sum(v.size for v in saved) <= 3 ** len(layers) * 5 * (4 + 4 + 2 * 8)
