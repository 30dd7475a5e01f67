"""Reductions, running reductions and weighted means against NumPy; derivatives; errors."""

import warnings

import numpy as np
import pytest

import funcgrad.numpy as fnp
from funcgrad.core.array import Array
from funcgrad.core.settings import default_dtype
from funcgrad.core.shapes import ShapeDtypeStruct
from funcgrad.errors import DTypeError, ShapeError
from funcgrad.transforms.batching.vmap import vmap
from funcgrad.transforms.derivatives.grad import grad
from funcgrad.transforms.jit.jit import jit
from funcgrad.transforms.jit.make_jaxpr import eval_shape
from tests.numpy.compare import check_grad, same, same_as_numpy, same_batched

X = np.array([[3.0, -1.0, 2.5, 0.0], [1.0, 7.0, -2.0, 0.5], [4.0, 4.0, 1.0, -6.0]])
MASK = np.array([[True, False, True, True], [True, True, True, False], [False, True, True, True]])
HOLES = np.where(MASK, X, np.nan)
AXES = [None, 0, 1, -1, (0, 1), ()]
NAMES = ["sum", "prod", "max", "min", "mean", "var", "std", "all", "any", "ptp", "count_nonzero"]
NAN_NAMES = ["nansum", "nanprod", "nanmax", "nanmin", "nanmean", "nanvar", "nanstd"]


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("name", NAMES)
def test_reduction(name, axis, keepdims):
    options = {"axis": axis, "keepdims": keepdims}
    same_as_numpy(
        lambda v: getattr(fnp, name)(v, **options),
        lambda v: getattr(np, name)(v, **options),
        X,
        dtype=name != "count_nonzero",
    )


@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("name", NAN_NAMES)
def test_reduction_without_nan(name, axis):
    for keepdims in (False, True):
        options = {"axis": axis, "keepdims": keepdims}
        same_as_numpy(lambda v: getattr(fnp, name)(v, **options),
                      lambda v: getattr(np, name)(v, **options), HOLES)  # fmt: skip
    same(getattr(fnp, name)(Array(X), axis=axis), getattr(np, name)(X, axis=axis))


@pytest.mark.parametrize("name", NAMES)
def test_reductions_batch(name):
    same_batched(lambda v: getattr(fnp, name)(v, axis=0), np.stack([X, X + 1, -X]))


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [("bool", "int32"), ("int8", "int32"), ("uint8", "uint32"), ("int32", "int32"),
     ("int64", "int64"), ("float16", "float16"), ("bfloat16", "bfloat16"), ("float64", "float64"),
     ("complex64", "complex64")],
)  # fmt: skip
def test_sum_dtypes(dtype, expected):
    x = fnp.ones((3,), dtype)
    assert str(fnp.sum(x).dtype) == expected
    assert str(fnp.prod(x).dtype) == expected
    assert str(fnp.cumsum(x).dtype) == expected
    assert fnp.sum(x).item() == 3


def test_sums_of_narrow_integers_do_not_wrap():
    assert fnp.sum(fnp.full(300, 100, "int8")).item() == 30000
    assert fnp.sum(fnp.full(300, 100, "int8"), dtype="int8").item() == 30000 - 117 * 256
    with default_dtype("int64"):
        assert fnp.sum(fnp.full(2, 2**30, "int32")).item() == 2**31


def test_sum_as_bool():
    assert fnp.sum(fnp.array([0, 0, 3]), dtype=bool).tolist() is True


def test_half_precision_sums_are_formed_in_float32():
    x = fnp.full(4096, 1.0, "float16")
    assert fnp.sum(x).item() == 4096
    assert fnp.mean(fnp.full(100000, 60000.0, "float16")).item() == 60000
    assert fnp.var(fnp.full(100000, 600.0, "bfloat16")).item() == 0


def test_mean_dtypes():
    assert fnp.mean(fnp.array([1, 2])).dtype == np.float32
    assert fnp.mean(fnp.array([1, 2]), dtype="float64").dtype == np.float64
    assert fnp.mean(fnp.array([True, False])).item() == 0.5
    assert fnp.mean(fnp.array([1, 2]), dtype=int).item() == 1
    assert fnp.var(fnp.array([1j, 2.0])).dtype == np.float32


@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("name", ["sum", "prod", "mean", "var", "std", "all", "any"])
def test_where(name, axis):
    same_as_numpy(
        lambda v, m: getattr(fnp, name)(v, axis=axis, where=m),
        lambda v, m: getattr(np, name)(v, axis=axis, where=m),
        X,
        MASK,
    )


@pytest.mark.parametrize("name", ["sum", "prod", "max", "min"])
def test_initial(name):
    same_as_numpy(
        lambda v, m: getattr(fnp, name)(v, axis=1, initial=2.0, where=m),
        lambda v, m: getattr(np, name)(v, axis=1, initial=2.0, where=m),
        X,
        MASK,
    )
    row = MASK[0]
    same(getattr(fnp, name)(X, axis=0, initial=2.0, where=row),
         getattr(np, name)(X, axis=0, initial=2.0, where=row))  # fmt: skip


@pytest.mark.parametrize("name", ["max", "min"])
def test_initial_takes_the_dtype_of_the_array(name):
    extremum = getattr(fnp, name)
    for dtype, initial in (("bool", 0), ("bfloat16", np.float64(2)), ("float32", np.int64(1))):
        out = extremum(fnp.ones(3, dtype), initial=initial)
        same(out, np.array(getattr(np, name)([1, initial])).astype(dtype))


def test_variance_options():
    for options in ({"ddof": 1}, {"correction": 1}, {"mean": X.mean(1, keepdims=True)}):
        same_as_numpy(lambda v, o=options: fnp.var(v, axis=1, **o),
                      lambda v, o=options: np.var(v, axis=1, **o), X)  # fmt: skip
    z = np.array([1 + 2j, 3 - 1j, 0.5])
    same_as_numpy(fnp.var, np.var, z)
    same_as_numpy(fnp.std, np.std, z)


@pytest.mark.parametrize("ddof", [3, 4, 7])
@pytest.mark.parametrize("name", ["var", "std", "nanvar", "nanstd"])
def test_no_degree_of_freedom_left(name, ddof):
    """NaN also where all elements are equal, or integers, or left out by a mask."""
    for x in (np.arange(3), np.ones(3), np.array([1.0, 2, 4]), np.ones(3, complex)):
        f = lambda x: getattr(fnp, name)(x, ddof=ddof)
        for out in (f(x), jit(f)(x), vmap(f)(np.stack([x, x]))):
            assert np.isnan(np.asarray(out)).all()
        mask = np.array([[True] * 3, [True, False, False]])
        some = getattr(fnp, name)(np.stack([x, x]), axis=1, ddof=1, where=mask)
        assert np.isnan(np.asarray(some)).tolist() == [False, True]


def test_moments_of_nothing():
    with np.errstate(all="ignore"):
        assert np.isnan(fnp.mean(fnp.zeros(0)).item())
        assert np.isnan(fnp.nanmean(fnp.array([np.nan])).item())
        assert np.isnan(fnp.nanvar(fnp.array([np.nan, 1.0]), ddof=1).item())
        assert np.isnan(fnp.nanmax(fnp.array([np.nan])).item())
    assert fnp.sum(fnp.zeros((0, 3)), axis=0).tolist() == [0, 0, 0]


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
@pytest.mark.parametrize("name", ["argmax", "argmin", "nanargmax", "nanargmin"])
def test_positions(name, axis):
    for keepdims in (False, True):
        same_as_numpy(
            lambda v, k=keepdims: getattr(fnp, name)(v, axis=axis, keepdims=k),
            lambda v, k=keepdims: getattr(np, name)(v, axis=axis, keepdims=k),
            HOLES if name.startswith("nan") else X,
            dtype=False,
        )
    assert getattr(fnp, name)(X).dtype == np.int32


@pytest.mark.parametrize("name", ["argmax", "argmin", "nanargmax"])
def test_positions_of_no_rows(name):
    for find in (getattr(fnp, name), jit(getattr(fnp, name), static_argnames="axis")):
        same(find(fnp.zeros((0, 3)), axis=1), np.zeros(0, "int32"))
        same(find(fnp.zeros((3, 0, 2)), axis=0), np.zeros((0, 2), "int32"))


def test_position_where_all_is_nan():
    assert fnp.nanargmax(fnp.array([np.nan, np.nan])).item() == -1


@pytest.mark.parametrize("name", ["argmax", "argmin", "nanargmax"])
def test_positions_beyond_the_default_integers_are_64_bits(name):
    find = getattr(fnp, name)
    x = fnp.zeros((300, 128)).at[200, 100].set(-1.0 if name == "argmin" else 1.0)
    with default_dtype("int8"):
        for run in (find, jit(find)):
            assert (run(x).dtype, int(run(x))) == (np.int64, 200 * 128 + 100)
        assert (find(x, axis=0).dtype, int(find(x, axis=0)[100])) == (np.int64, 200)
        assert (find(x, axis=1).dtype, int(find(x, axis=1)[200])) == (np.int8, 100)
    for length, dtype in ((2**31, np.int32), (2**31 + 1, np.int64)):
        assert eval_shape(find, ShapeDtypeStruct((length,), "float32")).dtype == dtype


@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("name", ["cumsum", "cumprod", "nancumsum", "nancumprod"])
def test_running(name, axis):
    x = HOLES if name.startswith("nan") else X
    same_as_numpy(lambda v: getattr(fnp, name)(v, axis), lambda v: getattr(np, name)(v, axis), x)


@pytest.mark.parametrize("name", ["cumsum", "cumprod", "nancumsum", "nancumprod"])
def test_running_truth(name):
    v = np.array([0.5, 0, -0.25])
    same(getattr(fnp, name)(v, dtype=bool), getattr(np, name)(v, dtype=bool))
    same(getattr(fnp, name)(v * 1j, dtype=bool), getattr(np, name)(v * 1j, dtype=bool))


@pytest.mark.parametrize("name", ["cumulative_sum", "cumulative_prod"])
def test_running_of_the_array_api(name):
    for options in ({"axis": 1}, {"axis": 0, "include_initial": True}):
        same_as_numpy(lambda v, o=options: getattr(fnp, name)(v, **o),
                      lambda v, o=options: getattr(np, name)(v, **o), X)  # fmt: skip
    same(getattr(fnp, name)(X[0]), getattr(np, name)(X[0]))
    with pytest.raises(ShapeError, match="axis= must be given"):
        getattr(fnp, name)(X)


def test_average():
    w = np.array([1.0, 2.0, 0.5, 3.0])
    same_as_numpy(lambda v, u: fnp.average(v, 1, u), lambda v, u: np.average(v, 1, u), X, w)
    same_as_numpy(
        lambda v, u: fnp.average(v, None, u), lambda v, u: np.average(v, None, u), X, X**2
    )
    same(fnp.average(X, 0, returned=True), np.average(X, 0, returned=True))
    same(fnp.average(X, 1, w, returned=True), np.average(X, 1, w, returned=True))
    with pytest.raises(ShapeError, match="average: weights"):
        fnp.average(X, weights=w)
    x = np.arange(24.0).reshape(2, 3, 4)
    for axes in ((0, 1), (2, 0), (1, -1), (2, 1, 0), (0,), 1):
        given = (axes,) if isinstance(axes, int) else axes
        u = 1 + np.arange(np.prod([x.shape[i] for i in given], dtype=int))
        u = u.reshape([x.shape[i] for i in given]).astype(float)
        same_as_numpy(lambda v, u, a=axes: fnp.average(v, a, u),
                      lambda v, u, a=axes: np.average(v, a, u), x, u)  # fmt: skip
        with pytest.raises(ShapeError, match="average: weights"):
            fnp.average(x, axes, u[..., None])


# ---- derivatives


@pytest.mark.parametrize(
    "function",
    [
        lambda x: fnp.mean(x, axis=0),
        lambda x: fnp.var(x, axis=1, ddof=1),
        lambda x: fnp.std(x),
        lambda x: fnp.prod(x, axis=1),
        lambda x: fnp.max(x, axis=0),
        lambda x: fnp.ptp(x, axis=1),
        lambda x: fnp.sum(x, where=MASK, initial=3.0),
        lambda x: fnp.mean(x, axis=1, where=MASK),
        lambda x: fnp.average(x, 1, fnp.arange(1.0, 5.0)),
        lambda x: fnp.cumsum(x, axis=1),
        lambda x: fnp.nancumprod(x),
        lambda x: fnp.nanmean(fnp.where(MASK, x, fnp.nan), axis=0),
        lambda x: fnp.nanvar(fnp.where(MASK, x, fnp.nan), axis=0),
        lambda x: fnp.nanmax(fnp.where(MASK, x, fnp.nan), axis=0),
    ],
)
def test_derivatives(function):
    check_grad(function, X + np.arange(12.0).reshape(3, 4) / 100)


def test_variance_of_equal_numbers_has_a_derivative():
    assert grad(lambda x: fnp.var(x))(np.ones(3)).tolist() == [0, 0, 0]


def test_equal_maxima_share_the_derivative():
    assert grad(fnp.max)(fnp.array([1.0, 2.0, 2.0])).tolist() == [0, 0.5, 0.5]


# ---- errors


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: fnp.sum(X, axis=2), ShapeError, "sum: axis 2 is out of range"),
        (lambda: fnp.sum(X, axis=(0, 0)), ShapeError, "not distinct"),
        (lambda: fnp.max(fnp.zeros((0, 2))), ShapeError, "max: .* is empty.*initial="),
        (lambda: fnp.max(X, where=MASK), ValueError, "max: where= needs an initial="),
        (lambda: fnp.argmax(fnp.zeros(0)), ShapeError, "argmax: .*empty"),
        (lambda: fnp.argmax(fnp.zeros((0, 3)), axis=0), ShapeError, "argmax: .*empty"),
        (lambda: fnp.nanvar(X, dtype=int), DTypeError, "nanvar: dtype must be floating-point"),
        (lambda: fnp.argmax(fnp.array([1j])), DTypeError, "argmax.*: need real numbers"),
        (lambda: fnp.sum([1, 2]), TypeError, "sum: a is a list"),
        (lambda: fnp.sum(X, where=np.ones(3, bool)), ShapeError, "sum: .*broadcast"),
    ],
)
def test_errors(call, error, match):
    with pytest.raises(error, match=match):
        call()


def test_methods():
    x = Array(X)
    for name in ("sum", "prod", "max", "min", "mean", "var", "std", "all", "any"):
        same(getattr(x, name)(axis=1), getattr(X, name)(axis=1))
        same(jit(lambda v, n=name: getattr(v, n)(0), backend="numpy")(x), getattr(X, name)(0))
    same(x.argmax(), X.argmax(), dtype=False)
    same(x.cumsum(1), X.cumsum(1))


@pytest.mark.parametrize(
    "name",
    ["mean", "var", "std", "ptp", "count_nonzero", "average", "nansum", "nanprod", "nanmax",
     "nanmin", "nanargmax", "nanargmin", "nanmean", "nanvar", "nanstd"],
)  # fmt: skip
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_an_axis_that_is_not_there_names_the_function(name, dtype):
    x = fnp.ones((2, 3), dtype)
    with pytest.raises(ShapeError, match=f"^{name}: axis 2 is out of range"):
        getattr(fnp, name)(x, axis=2)
    with pytest.raises(TypeError, match=f"^{name}: axis must be an integer, got 'a'"):
        getattr(fnp, name)(x, axis="a")


@pytest.mark.parametrize("name", ["var", "std", "nanvar", "nanstd"])
@pytest.mark.parametrize("dtype", ["float32", "complex64", "int32"])
@pytest.mark.parametrize("asked", [None, "complex64", "complex128", "float64"])
def test_the_dtype_of_moments(name, dtype, asked):
    """A complex one gives complex results, as in NumPy."""
    x = np.array([1, 2, 4], dtype)
    got = getattr(fnp, name)(x, dtype=asked)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy's, of parts that are dropped
        wanted = getattr(np, name)(x, dtype=asked)
    assert got.dtype == (wanted.dtype if asked or dtype != "int32" else "float32")
    np.testing.assert_allclose(np.asarray(got), wanted, rtol=1e-6)


def test_a_standard_deviation_is_no_integer():
    with pytest.raises(DTypeError, match="std: dtype must be floating-point or complex, got int32"):
        fnp.std(fnp.ones(3), dtype="int32")


MASKED = ["sum", "prod", "max", "min", "all", "any", "mean", "var", "std", "nansum", "nanprod",
          "nanmax", "nanmin", "nanmean", "nanvar", "nanstd"]  # fmt: skip


@pytest.mark.parametrize("name", MASKED)
def test_masks_are_bools_and_beginnings_scalars(name):
    f = getattr(fnp, name)
    given = {"initial": 0.0} if "max" in name or "min" in name else {}
    for mask in (np.array([1, 0, 1]), np.array([1.0, 0.0, 1.0]), 1):
        for call in (f, jit(lambda x, where: f(x, where=where, **given))):
            with pytest.raises(ValueError, match="where must be an array of bools"):
                call(fnp.ones(3), where=mask, **(given if call is f else {}))
    if name in ("sum", "prod", "nansum", "nanprod") or given:
        for first in (np.ones(1), np.ones(3), fnp.ones((1, 1))):
            with pytest.raises(ValueError, match="initial must be a scalar"):
                f(fnp.ones(3), initial=first)


@pytest.mark.parametrize("name", [*MASKED, "argmax", "argmin", "nanargmin", "cumsum", "nancumprod",
                                  "ptp", "trace", "round"])  # fmt: skip
def test_no_array_is_written_to(name):
    f, x = getattr(fnp, name), fnp.ones((2, 2))
    same(f(x, out=None), np.asarray(f(x)))
    with pytest.raises(NotImplementedError, match=r"no out=.*use the result"):
        f(x, out=np.zeros(()))


def test_narrow_integers_that_are_not_promoted():
    for dtype in ("int8", "uint16"):
        x = np.full(3, 100, dtype)
        for name in ("sum", "prod"):
            f = lambda x, n=name: getattr(fnp, n)(x, promote_integers=False)
            same(f(x), getattr(np, name)(x, dtype=dtype))
            same(jit(f)(x), getattr(np, name)(x, dtype=dtype))
    assert fnp.sum(np.ones(3, bool), promote_integers=False) == 3
