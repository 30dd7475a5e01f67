"""The names of `funcgrad.lax`, and the functions that only it has."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax
from funcgrad.errors import ShapeError

OPS = """
abs acos acosh add all_gather all_to_all argmax argmin asin asinh associative_scan atan atan2 atanh
axis_index axis_size batch_matmul bessel_i0e bessel_i1e betainc bitcast_convert_type bitwise_and
bitwise_not bitwise_or bitwise_xor broadcast broadcast_in_dim broadcast_shapes broadcasted_iota cbrt
ceil clamp clz collapse complex concatenate cond conj conv conv_dimension_numbers
conv_general_dilated conv_general_dilated_local conv_general_dilated_patches conv_transpose
conv_with_general_padding convert_element_type cos cosh cumlogsumexp cummax cummin cumprod cumsum
custom_linear_solve custom_root digamma div dot dot_general dynamic_index_in_dim dynamic_slice
dynamic_slice_in_dim dynamic_update_index_in_dim dynamic_update_slice dynamic_update_slice_in_dim eq
erf erf_inv erfc exp exp2 expand_dims expm1 fft floor fori_loop full full_like gather ge gt igamma
igammac imag index_in_dim index_take integer_pow iota is_finite le lgamma log log1p logistic lt map
max min mul ne neg nextafter optimization_barrier pad pmax pmean pmin polygamma population_count pow
ppermute pshuffle psum psum_scatter pswapaxes random_gamma_grad real reciprocal reduce reduce_and
reduce_max reduce_min reduce_or reduce_precision reduce_prod reduce_sum reduce_window reduce_xor rem
reshape rev round rsqrt scan scatter scatter_add scatter_max scatter_min scatter_mul scatter_sub
select select_n shift_left shift_right_arithmetic shift_right_logical sign sin sinh slice
slice_in_dim sort sort_key_val split sqrt square squeeze stop_gradient sub switch tan tanh tile
top_k transpose while_loop zeta Precision RoundingMethod GatherDimensionNumbers
ScatterDimensionNumbers GatherScatterMode ConvDimensionNumbers FftType
"""
LINALG = """
EigImplementation EighImplementation SvdAlgorithm cholesky cholesky_update eig eigh hessenberg
householder_product lu lu_pivots_to_permutation ormqr qdwh qr schur svd symmetric_product
triangular_solve tridiagonal tridiagonal_solve
"""


@pytest.mark.parametrize("name", OPS.split())
def test_names_of_jax_are_here(name):
    assert hasattr(lax, name)


@pytest.mark.parametrize("name", LINALG.split())
def test_names_of_linalg_are_here(name):
    assert callable(getattr(lax.linalg, name))


def values(x):
    return np.asarray(x).tolist()


def test_full():
    assert values(lax.full((2,), 7)) == [7, 7]
    assert lax.full((2,), 7).dtype == np.int32
    assert lax.full((2,), 7).weak_type
    assert lax.full((), 1.5, "float64").dtype == np.float64
    assert lax.full((2,), np.float16(2)).dtype == np.float16
    assert values(lax.full_like(np.zeros(2), 3)) == [3.0, 3.0]
    assert lax.full_like(np.zeros(2), 3, "int8", (3,)).shape == (3,)
    assert values(lax.empty((2,), "int32")) == [0, 0]
    assert float(fg.grad(lambda v: lax.reduce_sum(lax.full((3,), v), [0]))(1.0)) == 3.0
    with pytest.raises(ShapeError, match="fill_value must be a scalar"):
        lax.full((2,), np.zeros(2))


def test_dtype():
    assert lax.dtype(1.0) == np.float32
    assert lax.dtype(np.int8(1)) == np.int8


def test_broadcasts():
    assert lax.broadcast_shapes((2, 1), (3,), ()) == (2, 3)
    with pytest.raises(ShapeError, match=r"\(2,\), \(3,\) can't be broadcast.*axis -1"):
        lax.broadcast_shapes((2,), (3,))
    x = lax.iota("int32", 2)
    assert values(lax.broadcast_to_rank(x, 2)) == [[0, 1]]
    assert values(lax.broadcast_like(x, lax.full((2, 2), 0))) == [[0, 1], [0, 1]]
    with pytest.raises(ShapeError, match="more than 0 axes"):
        lax.broadcast_to_rank(x, 0)


def test_stack_and_unstack():
    a, b = fnp.array([1, 2]), fnp.array([3, 4])
    both = lax.stack([a, b], axis=1)
    assert values(both) == [[1, 3], [2, 4]]
    assert [values(x) for x in lax.unstack(both, 1)] == [[1, 2], [3, 4]]
    with pytest.raises(ValueError, match="at least one"):
        lax.stack([])


def test_tile():
    x = fnp.array([[1, 2], [3, 4]])
    np.testing.assert_array_equal(lax.tile(x, (2, 3)), np.tile(np.asarray(x), (2, 3)))
    with pytest.raises(ShapeError, match="one count for each axis"):
        lax.tile(x, (2,))


def test_pswapaxes():
    x = np.arange(9.0).reshape(3, 3)
    swapped = fg.vmap(lambda row: lax.pswapaxes(row, "i", 0), axis_name="i")(x)
    np.testing.assert_array_equal(swapped, x.T)


def test_nothing_promotes_or_broadcasts():
    with pytest.raises(TypeError, match="one dtype"):
        lax.add(np.float32([1]), np.int32([1]))
    with pytest.raises(ShapeError, match="one shape"):
        lax.add(np.ones(2), np.ones(3))
    assert values(lax.add(np.float32([1]), 2)) == [3.0]


def test_control_flow():
    total = lambda n: lax.fori_loop(0, n, lambda i, s: s + i, 0)
    assert int(total(5)) == 10
    assert int(lax.while_loop(lambda v: v < 100, lambda v: v * 2, 1)) == 128
    assert int(lax.cond(True, lambda v: v + 1, lambda v: v - 1, 1)) == 2
    assert int(lax.switch(1, [lambda v: v, lambda v: v * 10], 3)) == 30
    carry, ys = lax.scan(lambda c, v: (c + v, c), 0.0, fnp.arange(3.0))
    assert (float(carry), values(ys)) == (3.0, [0.0, 0.0, 1.0])
    assert values(lax.map(lambda v: v * v, fnp.arange(3))) == [0, 1, 4]
    assert values(lax.associative_scan(lax.add, fnp.arange(4))) == [0, 1, 3, 6]


def test_stop_gradient_of_a_tree():
    f = lambda p: fnp.sum(lax.stop_gradient(p)["a"] * p["a"])
    assert values(fg.grad(f)({"a": fnp.array([2.0, 3.0])})["a"]) == [2.0, 3.0]
