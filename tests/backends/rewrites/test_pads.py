"""Sums of pads as concatenations: which are, and that not even the sign of a zero changes."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.backends.llvm.cpu import CPU
from funcgrad.backends.rewrites.normalize import normalize
from funcgrad.backends.rewrites.pads import join_pads
from funcgrad.core.ir import interpret, typecheck
from funcgrad.ops.shape import concatenate_p, pad_p
from funcgrad.transforms.passes.simplify import simplify
from tests.backends.checks import check, floats, integers


def padded(x, *config, value=None):
    value = x.dtype.type(0) if value is None else x.dtype.type(value)
    return pad_p.bind(x, value, padding_config=config)


def joined(fun, *args):
    """Whether sums of pads become concatenations; the results stay the same bits."""
    jaxpr = normalize(simplify(fg.make_jaxpr(fun)(*args).jaxpr), CPU)
    after = join_pads(jaxpr)
    typecheck(after)
    values = [np.asarray(a) for a in fg.tree.leaves(args)]
    for a, b in zip(interpret(jaxpr, np, *values), interpret(after, np, *values), strict=True):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()
    prims = [e.prim for e in after.eqns]
    return concatenate_p in prims and pad_p not in prims


def gradient(cut, *shape):
    def fun(x):
        return sum(fnp.sum(fnp.sin(p) * (i + 1)) for i, p in enumerate(cut(x)))

    return joined(fg.grad(fun), floats(*shape))


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("pieces", [2, 3, 6])
def test_gradients_of_split(axis, pieces):
    assert gradient(lambda x: fnp.split(x, pieces, axis), 6, 12, 6)


def test_gaps_are_zeros():
    assert gradient(lambda x: (x[3:5], x[7], x[20:]), 33, 4)
    assert gradient(lambda x: (x[:, 1], x[:, 3]), 5, 5)


def test_what_overlaps_or_lies_elsewhere_stays():
    assert not gradient(lambda x: (x[:5], x[4:]), 9, 4)
    assert not gradient(lambda x: (x[:5], x[:, 2:]), 9, 4)
    assert not gradient(lambda x: (x[::2], x[1::2]), 8, 4)
    x = floats(4)
    assert not joined(lambda x: padded(x, (0, 4, 0), value=1) + padded(x, (4, 0, 0)), x)
    assert not joined(lambda x: padded(x, (0, 4, 0), value=-0.0) + padded(x, (4, 0, 0)), x)
    assert not joined(lambda x: padded(x, (0, 2, 0)) + padded(x, (3, -1, 0)), x)
    assert joined(lambda x: padded(x, (0, 4, 0)) + padded(x, (4, 0, 0)), x)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "complex64"])
def test_signs_of_zeros(dtype):
    x = np.array([-0.0, 0.0, -1, 2], "float64").astype(dtype)
    assert joined(lambda x: padded(x, (0, 5, 0)) + padded(x, (4, 1, 0)), x)
    check(lambda x: [padded(x, (0, 5, 0)) + padded(x, (4, 1, 0))], x, exact=True)


def test_pads_that_others_read_too():
    def fun(x):
        a, b = padded(x, (0, 4, 0)), padded(x, (4, 0, 0))
        both = a + b
        return [both, both * a, (both + padded(x, (0, 4, 0))) * b]

    check(fun, integers(4), exact=True)


def test_products_are_written_where_they_belong():
    def loss(x, w, y):
        a, b = fnp.split(x, 2, axis=1)
        return fnp.sum((a @ w) * y) + fnp.sum((b @ w.T) * y)

    args = floats(16, 32), floats(16, 16), floats(16, 16)
    planned = check(lambda *a: [fg.grad(loss)(*a)], *args)
    (gradient_of_sum,) = planned.kernels()
    text = str(planned)
    assert text.count("output0[32, 1]") == text.count("output0+64[32, 1]") == 1
    assert gradient_of_sum.name == "mul"
