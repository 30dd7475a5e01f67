"""Libraries that take any array: einops, opt_einsum, SciPy, scikit-learn, xarray.

What they compute of our arrays is compared with what they make of NumPy's. What writes into arrays
(many of scikit-learn's estimators do) is refused: ours are immutable.
"""

import os

os.environ["SCIPY_ARRAY_API"] = "1"  # read when SciPy is imported

import array_api_compat
import einops
import einops.array_api
import numpy as np
import opt_einsum
import pytest
import scipy.cluster.vq
import scipy.fft
import scipy.integrate
import scipy.interpolate
import scipy.ndimage
import scipy.optimize
import scipy.signal
import scipy.special
import scipy.stats
import sklearn
import xarray
from scipy.spatial.transform import Rotation
from sklearn import metrics
from sklearn.decomposition import PCA
from sklearn.preprocessing import LabelEncoder

import funcgrad as fg
import funcgrad.numpy as fnp

fg.interop.register_einops()
X = np.arange(24.0, dtype="float32").reshape(2, 3, 4)
P = np.array([0.1, 0.5, 0.8], "float32")


def same(found, want, kind=fg.Array):
    assert isinstance(found, kind), type(found)
    np.testing.assert_allclose(np.asarray(found), np.asarray(want), rtol=2e-4, atol=1e-5)


# ---- einops, opt_einsum

EINOPS = {
    "rearrange": lambda e, x: e.rearrange(x, "a b c -> c (a b)"),
    "split": lambda e, x: e.rearrange(x, "a b (c d) -> d a b c", d=2),
    "reduce": lambda e, x: e.reduce(x, "a b c -> a", "mean"),
    "max": lambda e, x: e.reduce(x, "a (b n) c -> a b c", "max", n=3),
    "repeat": lambda e, x: e.repeat(x, "a b c -> a r b c", r=2),
}


@pytest.mark.parametrize("name", EINOPS)
@pytest.mark.parametrize("module", [einops, einops.array_api], ids=["einops", "array_api"])
def test_einops(name, module):
    f = EINOPS[name]
    want = f(einops, X)
    same(f(module, fnp.asarray(X)), want)
    same(fg.jit(lambda x: f(module, x))(X), want)
    slope = fg.grad(lambda x: fnp.sum(f(module, x) ** 2))(fnp.asarray(X))
    assert slope.shape == X.shape


def test_einops_einsum_and_pack():
    x = fnp.asarray(X)
    same(einops.einsum(x, x, "a b c, a b d -> c d"), np.einsum("abc,abd->cd", X, X))
    packed, shapes = einops.pack([x, x[..., 0]], "a b *")
    assert packed.shape == (2, 3, 5)
    same(einops.unpack(packed, shapes, "a b *")[0], X)


def test_registering_einops_again_does_nothing():
    count = len(einops._backends.NumpyBackend.__subclasses__())
    fg.interop.register_einops()
    assert len(einops._backends.NumpyBackend.__subclasses__()) == count


def test_opt_einsum():
    f = lambda x, y: opt_einsum.contract("abc,abd,de->ce", x, x, y)
    y = np.ones((4, 5), "float32")
    same(f(fnp.asarray(X), fnp.asarray(y)), f(X, y))
    same(fg.jit(f)(X, y), f(X, y))
    same(fg.vmap(f, (None, 0))(fnp.asarray(X), np.stack([y, 2 * y]))[1], 2 * f(X, y))


# ---- SciPy

SCIPY = {
    "special.gammaln": lambda xp: scipy.special.gammaln(xp.asarray(P)),
    "special.expit": lambda xp: scipy.special.expit(xp.asarray(P)),
    "special.entr": lambda xp: scipy.special.entr(xp.asarray(P)),
    "special.xlogy": lambda xp: scipy.special.xlogy(xp.asarray(P), xp.asarray(P)),
    "special.betainc": lambda xp: scipy.special.betainc(
        xp.asarray(2.0), xp.asarray(3.0), xp.asarray(P)),
    "stats.ttest_ind": lambda xp: scipy.stats.ttest_ind(xp.asarray(X[0]), xp.asarray(X[1])).pvalue,
    "stats.skew": lambda xp: scipy.stats.skew(xp.asarray(P)),
    "stats.entropy": lambda xp: scipy.stats.entropy(xp.asarray(P)),
    "stats.gmean": lambda xp: scipy.stats.gmean(xp.asarray(P)),
    "signal.convolve": lambda xp: scipy.signal.convolve(xp.asarray(P), xp.asarray(P)),
    "signal.lfilter": lambda xp: scipy.signal.lfilter(xp.asarray(P), xp.asarray(P), xp.asarray(P)),
    "signal.detrend": lambda xp: scipy.signal.detrend(xp.asarray(X)),
    "fft.rfft": lambda xp: scipy.fft.rfft(xp.asarray(X)),
    "optimize.rosen": lambda xp: scipy.optimize.rosen(xp.asarray(P)),
    "integrate.trapezoid": lambda xp: scipy.integrate.trapezoid(xp.asarray(P)),
    "integrate.cubature": lambda xp: scipy.integrate.cubature(
        lambda v: xp.sum(v**2, axis=-1), xp.zeros(2), xp.ones(2)).estimate,
    "ndimage.gaussian_filter": lambda xp: scipy.ndimage.gaussian_filter(xp.asarray(X[0]), 1.0),
    "interpolate.spline": lambda xp: scipy.interpolate.make_interp_spline(
        xp.asarray(X[0, 0]), xp.asarray(X[0, 0]) ** 2)(xp.asarray(1.5)),
    "spatial.Rotation": lambda xp: Rotation.from_rotvec(xp.asarray(P)).as_matrix(),
}  # fmt: skip


@pytest.mark.parametrize("name", SCIPY)
def test_scipy_gives_our_arrays(name):
    same(SCIPY[name](fnp), SCIPY[name](np))


def test_what_writes_into_arrays_is_refused():
    with pytest.raises(TypeError, match="arrays are immutable"):
        scipy.stats.zscore(fnp.asarray(P))


# ---- scikit-learn, xarray, array-api-compat


def test_sklearn():
    rows = np.random.default_rng(0).normal(size=(50, 4)).astype("float32")
    with sklearn.config_context(array_api_dispatch=True):
        found = PCA(2, svd_solver="full").fit(fnp.asarray(rows))
        same(metrics.mean_squared_error(fnp.asarray(rows), fnp.asarray(2 * rows)),
             np.mean(rows**2), float)  # fmt: skip
        labels = LabelEncoder().fit_transform(fnp.asarray([3, 1, 3, 2]))
        assert metrics.accuracy_score(labels, fnp.asarray([2, 0, 2, 2])) == 0.75
    same(labels, [2, 0, 2, 1])
    same(found.explained_variance_, PCA(2, svd_solver="full").fit(rows).explained_variance_)


XARRAY = {
    "mean": lambda x: (x * 2).mean("a"),
    "isel": lambda x: x.isel(a=0).transpose("c", "b"),
    "concat": lambda x: xarray.concat([x, x], "a"),
    "where": lambda x: x.where(lambda v: v > 3, 0.0),
    "dot": lambda x: xarray.dot(x, x, dim="a"),
    "std": lambda x: x.std(("a", "c")),
    "cumsum": lambda x: x.cumsum("b"),
}


@pytest.mark.parametrize("name", XARRAY)
def test_xarray(name):
    dims = ("a", "b", "c")
    found = XARRAY[name](xarray.DataArray(fnp.asarray(X), dims=dims))
    same(found.data, XARRAY[name](xarray.DataArray(X, dims=dims)).data)


def test_array_api_compat():
    x = fnp.asarray(X)
    xp = array_api_compat.array_namespace(x)
    assert xp is fnp
    assert array_api_compat.size(x) == 24
    same(array_api_compat.to_device(x, array_api_compat.device(x)), X)
