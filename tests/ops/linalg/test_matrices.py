"""Matrix helpers against NumPy, on batches."""

import numpy as np
import pytest

from funcgrad.core.array import Array
from funcgrad.errors import DTypeError, ShapeError
from funcgrad.ops.linalg import matrices
from tests.ops.rules import check_derivatives, check_vmap


@pytest.mark.parametrize("shape", [(3, 3), (2, 3, 4), (4, 2), (0, 2, 2)])
def test_triangles_and_diagonals(shape, rng):
    x = rng.standard_normal(shape)
    for k in (-1, 0, 1):
        np.testing.assert_array_equal(np.asarray(matrices.tril(x, k)), np.tril(x, k))
        np.testing.assert_array_equal(np.asarray(matrices.triu(x, k)), np.triu(x, k))
    np.testing.assert_array_equal(
        np.asarray(matrices.eye_like(x)), np.broadcast_to(np.eye(*shape[-2:]), shape)
    )
    np.testing.assert_array_equal(np.asarray(matrices.swapped(x)), np.swapaxes(x, -1, -2))
    if shape[-1] == shape[-2]:
        np.testing.assert_array_equal(
            np.asarray(matrices.diagonal(x)), np.diagonal(x, axis1=-2, axis2=-1)
        )


def test_rows_and_columns(rng):
    v = rng.standard_normal((2, 3))
    rows, columns = (np.asarray(f(v, 4)) for f in (matrices.as_rows, matrices.as_columns))
    np.testing.assert_array_equal(rows, np.repeat(v[:, None], 4, 1))
    np.testing.assert_array_equal(columns, np.repeat(v[..., None], 4, 2))


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_hermitian(dtype, rng):
    x = rng.standard_normal((2, 3, 3))
    x = x + 1j * rng.standard_normal(x.shape) if dtype == "complex128" else x
    adjoint = np.swapaxes(x.conj(), -1, -2)
    np.testing.assert_array_equal(np.asarray(matrices.adjoint(x)), adjoint)
    whole = (x + adjoint) / 2
    np.testing.assert_allclose(np.asarray(matrices.hermitian_part(x)), whole)
    for lower in (False, True):
        cut = np.tril(whole) if lower else np.triu(whole)
        np.testing.assert_allclose(np.asarray(matrices.from_triangle(cut, lower)), whole)
        check_derivatives(lambda x: matrices.from_triangle(x, lower), [x], rng, order=1)
        check_vmap(lambda x: matrices.from_triangle(x, lower), [x], rng)


def test_errors():
    with pytest.raises(ShapeError, match=r"f: need square matrices .*got f32\[2,3\]"):
        matrices.check_matrices("f", Array(np.zeros((2, 3), np.float32)).aval, square=True)
    with pytest.raises(DTypeError, match="f.*: need float32.*got bool"):
        matrices.check_matrices("f", Array(np.zeros((2, 3), bool)).aval)
