"""scaled_dot: against the product of operands whose scales are repeated; bad input."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import errors, lax

# name: shapes of lhs, rhs, their scales; dimension numbers
CASES = {
    "matrices": ((4, 8), (8, 3), (4, 2), (4, 3), None),
    "batches": ((2, 4, 8), (2, 8, 3), (2, 4, 1), (2, 8, 3), None),
    "turned": ((2, 4, 8), (2, 3, 8), (2, 4, 2), (2, 3, 4), (((2,), (2,)), ((0,), (0,)))),
    "several": ((4, 6, 8), (8, 6), (4, 3, 2), (2, 1), (((1, 2), (1, 0)), ((), ()))),
    "one_scale": ((4, 8), (8, 3), (4, 2), None, None),
    "none": ((4, 8), (8, 3), None, None, None),
    "empty": ((0, 8), (8, 3), (0, 2), None, None),
}


def repeated(x, scale):
    for i, n in enumerate(x.shape):
        if scale is not None and scale.shape[i] != n:
            scale = np.repeat(scale, n // scale.shape[i], i)
    return x if scale is None else x * scale


@pytest.mark.parametrize("name", CASES)
def test_values_and_derivatives(name, rng):
    *shapes, numbers = CASES[name]
    x, y, s, t = (None if shape is None else rng.normal(size=shape) for shape in shapes)
    usual = {2: (((1,), (0,)), ((), ())), 3: (((2,), (1,)), ((0,), (0,)))}[x.ndim]
    f = lambda x, y, s, t: lax.scaled_dot(
        x, y, lhs_scale=s, rhs_scale=t, dimension_numbers=numbers, preferred_element_type="float64"
    )
    wanted = lax.dot_general(repeated(x, s), repeated(y, t), numbers or usual)
    got = f(x, y, s, t)
    np.testing.assert_allclose(got, wanted, rtol=1e-12)
    np.testing.assert_allclose(fg.jit(f)(x, y, s, t), wanted, rtol=1e-12)
    if s is not None and t is not None:
        loss = lambda *args: fnp.sum(fnp.sin(f(*args)))
        slopes = fg.grad(loss, (0, 1, 2, 3))(x, y, s, t)
        assert [g.shape for g in slopes] == [v.shape for v in (x, y, s, t)]
        np.testing.assert_allclose(
            fnp.sum(slopes[2] * s), fnp.sum(fnp.cos(got) * got), rtol=1e-9, atol=1e-9
        )


def test_dtypes(rng):
    x, y = (fnp.asarray(rng.normal(size=s), "float8_e4m3fn") for s in ((4, 8), (8, 3)))
    scale = fnp.ones((4, 2), "float8_e4m3fn")
    assert lax.scaled_dot(x, y, lhs_scale=scale).dtype == "bfloat16"
    wide = lax.scaled_dot(x, y, lhs_scale=scale, preferred_element_type="float32")
    exact = np.asarray(x, np.float64) @ np.asarray(y, np.float64)
    np.testing.assert_allclose(wide, exact, rtol=1e-6, atol=1e-6)


def test_bad_input():
    x = np.ones((4, 8), np.float32)
    with pytest.raises(errors.ShapeError, match=r"lhs_scale must have the shape of lhs f32\[4,8\]"):
        lax.scaled_dot(x, x.T, lhs_scale=np.ones((4, 3)))
    with pytest.raises(errors.ShapeError, match=r"contracted axes \(0,\); got f32\[8,2\]"):
        lax.scaled_dot(x, x.T, rhs_scale=np.ones((8, 2)))
    with pytest.raises(ValueError, match="dimension_numbers must be given for operands"):
        lax.scaled_dot(x[0], x[0])
