"""segment_sum, segment_prod, segment_max, segment_min against loops."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import errors, ops

NAMES = ["sum", "prod", "max", "min"]
EMPTY = {"sum": 0, "prod": 1, "max": -np.inf, "min": np.inf}


def loop(name, data, ids, count):
    ids, flat = ids.reshape(-1), data.reshape(-1, *data.shape[ids.ndim :])
    out = np.full((count, *flat.shape[1:]), EMPTY[name], data.dtype)
    combine = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}[name]
    for k, i in enumerate(ids):
        if 0 <= i < count:
            out[i] = combine(out[i], flat[k])
    return out


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(7,), (7, 3), (2, 4, 3)])
def test_against_loops(name, shape):
    rng = np.random.default_rng(0)
    data = rng.uniform(-1, 1, shape)
    ids = rng.integers(-2, 6, shape[: max(1, len(shape) - 1)]).astype("int32")
    segment = getattr(ops, f"segment_{name}")
    want = loop(name, data, ids, 5)
    np.testing.assert_allclose(segment(data, ids, 5), want, rtol=1e-12)
    compiled = fg.jit(segment, static_argnums=2)(data, ids, 5)
    np.testing.assert_allclose(compiled, want, rtol=1e-12)
    mapped = fg.vmap(lambda d, i: segment(d, i, 5))(np.stack([data, -data]), np.stack([ids, ids]))
    np.testing.assert_allclose(mapped[0], want, rtol=1e-12)
    np.testing.assert_allclose(mapped[1], loop(name, -data, ids, 5), rtol=1e-12)


def test_how_many_segments():
    ids = fnp.array([0, 2, -1])
    assert ops.segment_sum(fnp.ones(3), ids).shape == (3,)
    assert ops.segment_sum(fnp.ones(3), ids, 0).shape == (0,)
    assert ops.segment_sum(fnp.ones((0, 2)), fnp.zeros(0, "int32")).shape == (0, 2)
    with pytest.raises(errors.TracerIntegerConversionError, match="segment_sum: num_segments must"):
        fg.jit(ops.segment_sum)(fnp.ones(3), ids)
    # Under a derivative the values are there.
    grad = fg.grad(lambda x: ops.segment_max(x, ids)[0])(fnp.ones(3))
    np.testing.assert_array_equal(grad, [1, 0, 0])
    with pytest.raises(errors.ShapeError, match="segment_max: num_segments .* negative"):
        ops.segment_max(fnp.ones(3), ids, -1)
    with pytest.raises(TypeError, match="segment_max: num_segments must be integers"):
        ops.segment_max(fnp.ones(3), ids, 2.5)


def test_integers_and_narrow_ids():
    data, ids = np.arange(4, dtype="int8"), np.array([0, 200, 200, 1], "uint8")
    got = ops.segment_min(data, ids, 201)
    assert got.dtype == np.int8
    assert (int(got[200]), int(got[0]), int(got[5])) == (1, 0, 127)


def test_what_does_not_fit():
    with pytest.raises(errors.DTypeError, match="segment_sum: segment_ids must be integers"):
        ops.segment_sum(fnp.ones(3), fnp.ones(3))
    for ids in (fnp.zeros(2, "int32"), fnp.zeros((), "int32")):
        with pytest.raises(errors.ShapeError, match="segment_sum: segment_ids .* leading axes"):
            ops.segment_sum(fnp.ones(3), ids)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [1, 2, 5, 7, 9])
def test_buckets(name, size):
    rng = np.random.default_rng(0)
    data, ids = rng.uniform(-1, 1, (7, 3)), rng.integers(-1, 4, 7)
    f = lambda d, i: getattr(ops, f"segment_{name}")(d, i, 3, bucket_size=size)
    for run in (f, fg.jit(f)):
        np.testing.assert_allclose(run(data, ids), loop(name, data, ids, 3), rtol=1e-12)
    clipped = getattr(ops, f"segment_{name}")(data, ids, 3, bucket_size=size, mode="clip")
    np.testing.assert_allclose(clipped, loop(name, data, ids.clip(0, 2), 3), rtol=1e-12)
    with pytest.raises(ValueError, match=f"segment_{name}: bucket_size must be positive"):
        getattr(ops, f"segment_{name}")(data, ids, 3, bucket_size=0)
