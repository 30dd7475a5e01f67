"""NumPy's scalars of its default dtypes beside arrays: they count as Python's numbers."""

import numpy as np
import pytest

import funcgrad.numpy as fnp
from funcgrad.transforms.batching.vmap import vmap
from funcgrad.transforms.derivatives.grad import grad
from funcgrad.transforms.jit.jit import jit
from tests.numpy.compare import same

NUMPYS_SCALARS = {
    "divide": lambda x, s: x / s,
    "reflected": lambda x, s: s * x,
    "power": lambda x, s: x**s,
    "maximum": lambda x, s: fnp.maximum(x, s),
    "where": lambda x, s: fnp.where(x > 0, x, s),
    "clip": lambda x, s: fnp.clip(x, -s, s),
    "remainder": lambda x, s: x % s,
}


@pytest.mark.parametrize(
    ("x", "y", "dtype", "weak"),
    [
        (fnp.array([1.0], "float32"), np.float64(1), "float32", False),
        (np.float64(1), fnp.array([1.0], "bfloat16"), "bfloat16", False),
        (fnp.array([1], "int8"), np.int64(1), "int8", False),
        (fnp.array([1]), np.sqrt(2), "float32", True),
    ],
)
def test_promotion(x, y, dtype, weak):
    for out in (fnp.add(x, y), fnp.multiply(y, x), jit(lambda: fnp.add(x, y))()):
        assert (out.dtype.name, out.weak_type) == (dtype, weak)


def test_arguments_of_jit_yield_as_scalars_do():
    assert jit(fnp.add)(fnp.ones(1), np.float64(1)).dtype == np.float32
    assert jit(fnp.add)(fnp.ones(1), np.asarray(1.0)).dtype == np.float64


@pytest.mark.parametrize("transform", [lambda f: f, jit, vmap, grad], ids=lambda f: f.__name__)
def test_what_is_computed_of_a_scalar_alone_yields_as_well(transform):
    a, x = np.float64(0.5), fnp.ones(2, "bfloat16")
    assert (fnp.sin(a).dtype, fnp.sin(a).weak_type) == (np.float64, True)
    if transform in (jit, grad):
        of_scalar = transform(lambda s: fnp.sin(s) * 2)(a)
        assert (of_scalar.dtype, of_scalar.weak_type) == (np.float64, True)
        assert (of_scalar * x).dtype == x.dtype
    else:
        assert transform(lambda v: fnp.sin(a) * v)(x).dtype == x.dtype
    assert jit(lambda s, v: fnp.sin(s) * v)(a, x).dtype == x.dtype


def test_a_scalar_made_an_array_does_not_yield():
    for strong in (fnp.asarray(np.float64(1)), fnp.array(np.float64(1))):
        assert not strong.weak_type
        assert (strong * fnp.ones(2, "float32")).dtype == np.float64


def test_scalars_alone_keep_their_width():
    assert fnp.add(np.int64(5_000_000_000), 1) == 5_000_000_001
    assert fnp.result_type(np.float64(1)) == np.float64
    assert fnp.result_type(np.float64(1), "float32") == np.float32


@pytest.mark.parametrize("name", NUMPYS_SCALARS)
@pytest.mark.parametrize("transform", [lambda f: f, jit, vmap], ids=["eager", "jit", "vmap"])
def test_numpys_scalars_count_as_pythons_beside_arrays(name, transform):
    for x, s in [(fnp.arange(3.0, dtype="bfloat16"), np.sqrt(2)), (fnp.arange(3), np.int64(2))]:
        f = transform(lambda x, s=s: NUMPYS_SCALARS[name](x, s))
        want = NUMPYS_SCALARS[name](x, s.item())
        same(f(x), np.asarray(want))
    if name != "divide":  # which makes floats of integers
        with pytest.raises(OverflowError, match="1000, which int8 can't hold"):
            NUMPYS_SCALARS[name](fnp.ones(3, "int8"), np.int64(1000))
