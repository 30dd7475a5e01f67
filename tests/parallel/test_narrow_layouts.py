"""Quantized, adapted and narrow parameters on layouts: the results of one device, and what is sent
is narrow."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax, quantization, random, tree
from funcgrad.core.ir import interpret
from funcgrad.parallel import AbstractMesh, P
from funcgrad.parallel.partitioner.analysis import traffic
from funcgrad.parallel.partitioner.partition import partition
from tests.parallel.partitioned import checked, run, sharded, traced

MESH = AbstractMesh(4, "x")
ROWS, WIDTH, INNER = 2048, 128, 256
CONFIGS = {
    "int8": quantization.Int8Dynamic(),
    "weights": quantization.WeightOnly(8),
    "4 bits": quantization.WeightOnly(4, 32),
    "nf4": quantization.NF4(),
    "float8": quantization.Float8(),
    "mxfp4": quantization.MXFP4(),
}


def mlp(params, x):
    return fnp.tanh(fnp.tanh(x @ params["up"]) @ params["down"])


@pytest.fixture
def params(rng):
    up, down = rng.normal(size=(WIDTH, INNER)) / 8, rng.normal(size=(INNER, WIDTH)) / 8
    return {"up": up.astype("float32"), "down": down.astype("float32")}


@pytest.fixture
def x(rng):
    return rng.normal(size=(ROWS, WIDTH)).astype("float32")


def fsdp(name, leaf, lead=0):
    """Rows over all devices, where there are enough of them."""
    fits = leaf.ndim - lead > 1 and leaf.shape[lead] % 4 == 0
    return P(*(None,) * lead, "x") if fits else P()


def tensor(name, leaf):
    """Columns of the first matrix, rows of the second one; scales and blocks as they fit."""
    axis = 1 if name == "up" else 0
    fits = leaf.ndim > 1 and leaf.shape[axis] % 4 == 0
    return P(*(None,) * axis, "x") if fits else P()


def same(fun, params, x, spec, data=None, **tolerance):
    """Bytes that a device gathers, after results were found to be those of one device."""
    leaves, structure = tree.flatten((params, x))
    flat = lambda *xs: tree.leaves(fun(*structure.unflatten(xs)))
    jaxpr, values = traced(flat, leaves)
    cuts = [spec(path[0].key, leaf) for path, leaf in tree.leaves_with_path(params)]
    cuts = [None] * (len(values) - len(leaves)) + sharded(MESH, *cuts, data)
    program = checked(partition(jaxpr, MESH, cuts))
    wanted = interpret(jaxpr, np, *(np.asarray(v) for v in values))
    for g, w in zip(run(program, values), wanted, strict=True):
        np.testing.assert_allclose(g, w, **{"rtol": 1e-4, "atol": 1e-5, **tolerance})
    sent = traffic(program.jaxpr, MESH.shape)
    return sum(n for (kind, _), (_, n) in sent.items() if kind == "all_gather")


def gathered(params, spec):
    """The bytes of all parameters that are cut, but a device's own."""
    leaves = [(path[0].key, np.asarray(v)) for path, v in tree.leaves_with_path(params)]
    return sum(v.nbytes * 3 / 4 for name, v in leaves if spec(name, v) != P())


@pytest.mark.parametrize("config", CONFIGS)
def test_quantized(config, params, x):
    qf, quantized, _ = fg.quantize(mlp, params, CONFIGS[config])
    got = same(qf, quantized, x, fsdp, P("x"))
    assert got <= gathered(quantized, fsdp) < gathered(params, fsdp) / 3
    assert same(qf, quantized, x, tensor) <= gathered(quantized, tensor)


def test_layers_in_a_loop(rng, x):
    """In each turn the narrow weights of one layer are gathered."""
    params = {"w": (rng.normal(size=(3, WIDTH, WIDTH)) / 8).astype("float32")}
    model = lambda p, x: lax.scan(lambda h, w: (fnp.tanh(h @ w), None), x, p["w"])[0]
    qf, quantized, _ = fg.quantize(model, params, quantization.WeightOnly(8))
    spec = lambda name, leaf: fsdp(name, leaf, 1)
    assert same(qf, quantized, x, spec, P("x")) <= gathered(quantized, spec)


@pytest.mark.parametrize("layout", [fsdp, tensor])
def test_adapters_of_quantized_weights(layout, params, x):
    _, quantized, _ = fg.quantize(mlp, params, quantization.WeightOnly(8))
    lf, base, adapters = fg.lora(mlp, quantized, None, random.key(0), rank=4)
    adapters = tree.map(lambda a: np.asarray(a) + 0.01, adapters)

    def fun(base, x):
        return fg.value_and_grad(lambda a: fnp.mean(lf(base, a, x) ** 2))(adapters)

    data = P("x") if layout is fsdp else P()
    # The weights' bytes once or twice, never those of floats.
    assert same(fun, base, x, layout, data) <= 2 * gathered(base, layout)


@pytest.mark.parametrize("layout", [fsdp, tensor])
def test_autocast(layout, params, x):
    low = fg.autocast(mlp, "bfloat16")
    data = P("x") if layout is fsdp else P()
    loss = lambda p, x: fnp.mean(low(p, x).astype("float32") ** 2)
    got = same(lambda p, x: fg.value_and_grad(loss)(p, x), params, x, layout, data, rtol=2e-2,
               atol=1e-3)  # fmt: skip
    assert got <= gathered(params, layout) / 2
