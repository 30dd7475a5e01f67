"""SciPy's functions under `jit` and `vmap`, and their derivatives to second order: a row each."""

from functools import partial

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.scipy import cluster, fft, integrate, interpolate, linalg, ndimage, signal
from funcgrad.scipy.sparse import linalg as iterative
from funcgrad.scipy.spatial.transform import Rotation, Slerp

GRID = np.linspace(0.0, 2.0, 5)
AT = np.array([0.1, 0.6, 1.3, 1.9])


def spd(x):
    """A positive definite matrix of any one."""
    return x @ x.swapaxes(-1, -2) + 3 * np.eye(x.shape[-1])


def general(x):
    """A matrix far from singular, whose eigenvalues are apart."""
    return x + np.diag(3.0 * np.arange(1, 1 + x.shape[-1]))


def upper(x):
    return fnp.triu(general(x))


def rotation(q):
    return Rotation.from_quat(q / fnp.linalg.norm(q, axis=-1, keepdims=True))


def euler(x):
    return Rotation.from_euler("xyz", x)


def cut(x):
    """What is cut by a circular boundary."""
    return signal.convolve2d(x, x[:2, :2], mode="same", boundary="wrap")


# name: function, shapes of its operands
ROWS = {
    "cluster.whiten": (cluster.vq.whiten, [(5, 2)]),
    "cluster.vq": (lambda x, c: cluster.vq.vq(x, c)[1], [(5, 2), (3, 2)]),
    **{f"fft.{n}": (partial(getattr(fft, n), norm="ortho"), [(6,)])
       for n in ("dct", "idct", "dst", "idst", "fft", "ifft", "rfft", "irfft", "hfft", "ihfft")},
    **{f"fft.{n}": (getattr(fft, n), [(3, 4)])
       for n in ("dctn", "idctn", "dstn", "idstn", "fft2", "ifft2", "rfft2", "irfft2", "fftn",
                 "ifftn", "rfftn", "irfftn", "fftshift", "ifftshift")},
    "integrate.cumulative_trapezoid": (integrate.cumulative_trapezoid, [(5,), (5,)]),
    "integrate.romb": (integrate.romb, [(5,)]),
    "integrate.simpson": (integrate.simpson, [(6,)]),
    "integrate.trapezoid": (integrate.trapezoid, [(5,), (5,)]),
    "interpolate.CubicSpline": (lambda y, x: interpolate.CubicSpline(GRID, y)(x + AT), [(5,), ()]),
    "interpolate.PchipInterpolator": (
        lambda y, x: interpolate.PchipInterpolator(GRID, fnp.exp(y))(x + AT), [(5,), ()]),
    "interpolate.CubicHermiteSpline": (
        lambda y, d, x: interpolate.CubicHermiteSpline(GRID, y, d)(x + AT), [(5,), (5,), ()]),
    "interpolate.RegularGridInterpolator": (
        lambda y, x: interpolate.RegularGridInterpolator((GRID,), y)((AT + 0.01 * x)[:, None]),
        [(5,), ()]),
    "linalg.block_diag": (linalg.block_diag, [(2, 2), (1, 3)]),
    "linalg.cho_solve": (
        lambda x, b: linalg.cho_solve(linalg.cho_factor(spd(x)), b), [(3, 3), (3,)]),
    "linalg.cholesky": (lambda x: linalg.cholesky(spd(x)), [(3, 3)]),
    "linalg.circulant": (linalg.circulant, [(3,)]),
    "linalg.companion": (lambda x: linalg.companion(x + 4), [(3,)]),
    "linalg.convolution_matrix": (lambda x: linalg.convolution_matrix(x, 3), [(2,)]),
    "linalg.det": (lambda x: linalg.det(general(x)), [(3, 3)]),
    "linalg.eigh": (lambda x: linalg.eigh(spd(x), eigvals_only=True), [(3, 3)]),
    "linalg.eigh_tridiagonal": (
        lambda d, e: linalg.eigh_tridiagonal(d, e, eigvals_only=True), [(4,), (3,)]),
    "linalg.expm": (linalg.expm, [(3, 3)]),
    "linalg.expm_frechet": (
        lambda x, e: linalg.expm_frechet(x, e, compute_expm=False), [(3, 3), (3, 3)]),
    "linalg.fiedler": (linalg.fiedler, [(3,)]),
    "linalg.fiedler_companion": (lambda x: linalg.fiedler_companion(x + 4), [(4,)]),
    "linalg.funm": (lambda x: linalg.funm(general(x), fnp.sin), [(3, 3)]),
    "linalg.hankel": (linalg.hankel, [(3,), (3,)]),
    "linalg.hessenberg": (linalg.hessenberg, [(4, 4)]),
    "linalg.inv": (lambda x: linalg.inv(general(x)), [(3, 3)]),
    "linalg.leslie": (linalg.leslie, [(3,), (2,)]),
    "linalg.lu": (lambda x: linalg.lu(general(x))[1:], [(3, 3)]),
    "linalg.lu_solve": (
        lambda x, b: linalg.lu_solve(linalg.lu_factor(general(x)), b), [(3, 3), (3,)]),
    "linalg.polar": (lambda x: linalg.polar(general(x)), [(3, 3)]),
    "linalg.qr": (lambda x: linalg.qr(general(x)), [(3, 3)]),
    "linalg.qr_multiply": (lambda x, c: linalg.qr_multiply(general(x), c)[0], [(3, 3), (2, 3)]),
    "linalg.schur": (lambda x: linalg.schur(general(x))[0], [(3, 3)]),
    "linalg.solve": (lambda x, b: linalg.solve(general(x), b), [(3, 3), (3,)]),
    "linalg.solve_banded": (
        lambda x, b: linalg.solve_banded((1, 1), x + np.array([[0], [4], [0]]), b), [(3, 4), (4,)]),
    "linalg.solve_sylvester": (
        lambda a, b, c: linalg.solve_sylvester(general(a), general(b), c),
        [(3, 3), (2, 2), (3, 2)]),
    "linalg.solve_triangular": (
        lambda x, b: linalg.solve_triangular(upper(x), b), [(3, 3), (3,)]),
    "linalg.sqrtm": (lambda x: linalg.sqrtm(general(x)), [(3, 3)]),
    "linalg.svd": (lambda x: linalg.svd(general(x), compute_uv=False), [(3, 3)]),
    "linalg.toeplitz": (linalg.toeplitz, [(3,), (3,)]),
    "ndimage.affine_transform": (
        lambda x, m: ndimage.affine_transform(x, general(0.02 * m) / 3, order=1),
        [(4, 4), (2, 2)]),
    "ndimage.convolve": (ndimage.convolve, [(4, 4), (2, 3)]),
    "ndimage.convolve1d": (ndimage.convolve1d, [(4, 4), (3,)]),
    "ndimage.correlate": (ndimage.correlate, [(4, 4), (2, 3)]),
    "ndimage.correlate1d": (ndimage.correlate1d, [(4, 4), (3,)]),
    "ndimage.gaussian_filter": (lambda x: ndimage.gaussian_filter(x, 0.7), [(4, 4)]),
    "ndimage.gaussian_filter1d": (
        lambda x, s: ndimage.gaussian_filter1d(x, 1 + 0.1 * s, radius=2), [(6,), ()]),
    "ndimage.map_coordinates": (
        lambda x, at: ndimage.map_coordinates(x, 1.4 + 0.05 * at, order=1), [(4, 4), (2, 3)]),
    "ndimage.rotate": (
        lambda x, a: ndimage.rotate(x, 20 + a, reshape=False, order=1), [(4, 4), ()]),
    "ndimage.shift": (lambda x, s: ndimage.shift(x, 0.4 + 0.1 * s, order=1), [(6,), ()]),
    "ndimage.uniform_filter": (lambda x: ndimage.uniform_filter(x, 3), [(4, 4)]),
    "ndimage.uniform_filter1d": (lambda x: ndimage.uniform_filter1d(x, 3), [(4, 4)]),
    "ndimage.zoom": (lambda x: ndimage.zoom(x, 2, order=1), [(3, 3)]),
    "signal.coherence": (lambda x, y: signal.coherence(x, y, nperseg=4)[1], [(12,), (12,)]),
    "signal.convolve": (lambda x, y: signal.convolve(x, y, mode="same"), [(6,), (3,)]),
    "signal.convolve2d": (cut, [(4, 4)]),
    "signal.correlate": (signal.correlate, [(6,), (3,)]),
    "signal.correlate2d": (signal.correlate2d, [(4, 4), (2, 2)]),
    "signal.csd": (lambda x, y: signal.csd(x, y, nperseg=4)[1], [(12,), (12,)]),
    "signal.detrend": (signal.detrend, [(6,)]),
    "signal.fftconvolve": (signal.fftconvolve, [(6,), (3,)]),
    "signal.hilbert": (signal.hilbert, [(6,)]),
    "signal.istft": (lambda x: signal.istft(x + 1j * x, nperseg=4)[1], [(3, 6)]),
    "signal.lfilter": (lambda b, a, x: signal.lfilter(b, a + 4, x), [(2,), (3,), (8,)]),
    "signal.periodogram": (lambda x: signal.periodogram(x)[1], [(8,)]),
    "signal.resample": (lambda x: signal.resample(x, 9), [(6,)]),
    "signal.savgol_filter": (lambda x: signal.savgol_filter(x, 5, 2), [(8,)]),
    "signal.stft": (lambda x: signal.stft(x, nperseg=4)[2], [(12,)]),
    "signal.welch": (lambda x: signal.welch(x, nperseg=4)[1], [(12,)]),
    **{f"sparse.linalg.{n}": (
        lambda x, b, n=n: getattr(iterative, n)(spd(x), b, tol=1e-12)[0], [(3, 3), (3,)])
       for n in ("bicgstab", "cg", "gmres")},
    "sparse.linalg.lsqr": (
        lambda x, b: iterative.lsqr(general(x), b, atol=1e-13, btol=1e-13)[0], [(3, 3), (3,)]),
    "spatial.Rotation.apply": (lambda q, v: rotation(q + 2).apply(v), [(4,), (3,)]),
    "spatial.Rotation.as_euler": (lambda q: rotation(q + 2).as_euler("xyz"), [(4,)]),
    "spatial.Rotation.as_matrix": (lambda x: euler(x).as_matrix(), [(3,)]),
    "spatial.Rotation.as_rotvec": (lambda q: rotation(q + 2).as_rotvec(), [(4,)]),
    "spatial.Rotation.from_rotvec": (lambda v: Rotation.from_rotvec(v).as_quat(), [(3,)]),
    "spatial.Slerp": (
        lambda q, t: Slerp(np.array([0.0, 1.0]), rotation(q + np.eye(4)[:2]))(t + 0.5).as_matrix(),
        [(2, 4), ()]),
}  # fmt: skip
HALF = 0.2  # what operands differ from 0 by


def leaves(out):
    return [fnp.asarray(x) for x in fg.tree.leaves(out)]


def near(got, want, rtol=1e-9, atol=1e-10):
    for x, y in zip(leaves(got), leaves(want), strict=True):
        np.testing.assert_allclose(x, y, rtol=rtol, atol=atol)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", ROWS)
def test_under_jit_and_vmap(name, rng):
    function, shapes = ROWS[name]
    args = [HALF * rng.standard_normal(s) for s in shapes]
    more = [a + 0.01 * rng.standard_normal(a.shape) for a in args]
    want, other = function(*args), function(*more)
    near(fg.jit(function)(*args), want)
    both = fg.vmap(function)(*[np.stack(pair) for pair in zip(args, more, strict=True)])
    for i, each in enumerate((want, other)):
        near([x[i] for x in leaves(both)], each)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", ROWS)
def test_derivatives_to_second_order(name, rng):
    """Along a line in all operands, of a sum of the results' sines, against differences."""
    function, shapes = ROWS[name]
    args = [HALF * rng.standard_normal(s) for s in shapes]
    along = [rng.standard_normal(s) for s in shapes]

    def at(t):
        out = leaves(function(*[a + t * d for a, d in zip(args, along, strict=True)]))
        return sum(fnp.sum(fnp.sin(fnp.real(x)) + fnp.imag(x) ** 2) for x in out)

    def slope(f, h=2e-4):
        a, b, c, d = (float(f(np.float64(i * h))) for i in (-2, -1, 1, 2))
        return (8 * (c - b) - (d - a)) / (12 * h)

    first = fg.grad(at)
    second = fg.grad(first)
    np.testing.assert_allclose(first(np.float64(0)), slope(at), rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(second(np.float64(0)), slope(first), rtol=1e-5, atol=1e-6)
