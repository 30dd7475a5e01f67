"""Distributions of several variables, and estimated densities, against SciPy."""

import numpy as np
import pytest
from scipy import stats as sp

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import random, tree
from funcgrad.scipy import stats

RNG = np.random.default_rng(0)
X, MEAN = RNG.normal(size=(4, 3)), RNG.normal(size=3)
ROOTS = RNG.normal(size=(4, 3, 3)) + 2 * np.eye(3)
COVS = ROOTS @ ROOTS.swapaxes(1, 2)


def test_multivariate_normal():
    ours, theirs = stats.multivariate_normal, sp.multivariate_normal
    want = theirs.logpdf(X, MEAN, COVS[0])
    np.testing.assert_allclose(ours.logpdf(X, MEAN, COVS[0]), want)
    np.testing.assert_allclose(fg.jit(ours.pdf)(X, MEAN, COVS[0]), np.exp(want))
    np.testing.assert_allclose(fg.vmap(ours.logpdf, (0, None, None))(X, MEAN, COVS[0]), want)
    np.testing.assert_allclose(ours.logpdf(X, MEAN, 0.7), theirs.logpdf(X, MEAN, 0.7))
    np.testing.assert_allclose(ours.logpdf(X, 0.2, 0.7), sp.norm.logpdf(X, 0.2, np.sqrt(0.7)))
    each = [theirs.logpdf(x, m, c) for x, m, c in zip(X, X[::-1], COVS, strict=True)]
    np.testing.assert_allclose(ours.logpdf(X, X[::-1], COVS), each)
    np.testing.assert_allclose(
        ours.logpdf(MEAN, MEAN, COVS), [theirs.logpdf(MEAN, MEAN, c) for c in COVS]
    )
    # Its derivative in the mean, and in the covariance: Λ (x - m), (Λ d dᵀ Λ - Λ)/2.
    at = fg.grad(lambda m, c: ours.logpdf(X[0], m, c), (0, 1))
    first, second = at(fnp.array(MEAN), fnp.array(COVS[0]))
    inverse = np.linalg.inv(COVS[0])
    np.testing.assert_allclose(first, inverse @ (X[0] - MEAN))
    d = inverse @ (X[0] - MEAN)
    np.testing.assert_allclose(
        np.asarray(second + second.T) / 2, (np.outer(d, d) - inverse) / 2, atol=1e-12
    )


def test_multivariate_normal_of_lower_rank():
    ours, theirs = stats.multivariate_normal, sp.multivariate_normal
    flat = ROOTS[0][:, :2] @ ROOTS[0][:, :2].T
    inside = MEAN + X[:, :2] @ ROOTS[0][:, :2].T
    want = theirs(MEAN, flat, allow_singular=True).logpdf(inside)
    got = fg.jit(lambda x: ours.logpdf(x, MEAN, flat, allow_singular=True))(inside)
    np.testing.assert_allclose(got, want)
    np.testing.assert_allclose(ours.pdf(inside, MEAN, flat, True), np.exp(want))
    assert ours.logpdf(inside[0] + 1, MEAN, flat, allow_singular=True) == -np.inf
    full = ours.logpdf(X, MEAN, COVS[0], allow_singular=True)
    np.testing.assert_allclose(full, ours.logpdf(X, MEAN, COVS[0]))
    slope = fg.grad(lambda x: ours.logpdf(x, MEAN, flat, allow_singular=True))(inside[0])
    np.testing.assert_allclose(slope, np.linalg.pinv(flat) @ (MEAN - inside[0]), rtol=1e-6)


def test_entropy_of_multivariate_normal():
    ours = stats.multivariate_normal
    want = [sp.multivariate_normal.entropy(MEAN, c) for c in COVS]
    np.testing.assert_allclose(ours.entropy(MEAN, COVS), want)
    np.testing.assert_allclose(ours.entropy(0.0, 2.0), sp.norm.entropy(0, np.sqrt(2)), rtol=1e-6)
    slope = fg.grad(ours.entropy, 1)(MEAN, COVS[0])
    np.testing.assert_allclose(slope, np.linalg.inv(COVS[0]) / 2)


def test_dirichlet():
    alpha = np.array([0.5, 2.0, 3.0])
    x = RNG.dirichlet(alpha, 4).T
    want = sp.dirichlet.logpdf(x, alpha)
    np.testing.assert_allclose(stats.dirichlet.logpdf(x, alpha), want, rtol=1e-9)
    np.testing.assert_allclose(stats.dirichlet.pdf(x[:2], alpha), np.exp(want), rtol=1e-9)
    np.testing.assert_allclose(fg.jit(stats.dirichlet.logpdf)(x[:, 0], alpha), want[0], rtol=1e-9)
    assert stats.dirichlet.logpdf(np.array([0.5, 0.7, -0.2]), alpha) == -np.inf
    assert np.isnan(stats.dirichlet.logpdf(x[:, 0], -alpha))
    zero = fg.grad(lambda x: stats.dirichlet.logpdf(x, alpha))(fnp.array([0.5, 0.7, -0.2]))
    np.testing.assert_array_equal(zero, 0)


def test_multinomial():
    p = np.array([0.2, 0.3, 0.5])
    x = np.array([[1, 2, 3], [0, 0, 6], [6, 0, 0], [1, 1, 1], [-1, 3, 4]])
    want = sp.multinomial.logpmf(x, 6, p)
    np.testing.assert_allclose(stats.multinomial.logpmf(x.astype(float), 6, p), want)
    np.testing.assert_allclose(fg.jit(stats.multinomial.pmf)(x, 6.0, p), np.exp(want))
    sure = stats.multinomial.logpmf(np.array([0.0, 3.0]), 3, np.array([0.0, 1.0]))
    assert float(sure) == 0


@pytest.mark.parametrize("method", [None, "silverman", 0.4, lambda kde: kde.neff**-0.3])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shape", [(20,), (2, 20)])
def test_kde(shape, weighted, method):
    data = RNG.normal(size=shape)
    weights = RNG.uniform(1, 2, 20) if weighted else None
    ours = stats.gaussian_kde(data, method, weights)
    theirs = sp.gaussian_kde(data, method, weights)
    x = RNG.normal(size=shape)[..., :7]
    np.testing.assert_allclose(ours(x), theirs(x), rtol=1e-9)
    np.testing.assert_allclose(fg.jit(lambda k, x: k.logpdf(x))(ours, x), theirs.logpdf(x))
    d = theirs.d
    mean, cov = np.full(d, 0.3), 0.5 * np.eye(d)
    np.testing.assert_allclose(
        ours.integrate_gaussian(mean, cov), theirs.integrate_gaussian(mean, cov)
    )
    np.testing.assert_allclose(ours.integrate_kde(ours), theirs.integrate_kde(theirs))
    if d == 1:
        np.testing.assert_allclose(
            ours.integrate_box_1d(-0.5, 1.0), theirs.integrate_box_1d(-0.5, 1.0)
        )
    again = tree.unflatten(tree.structure(ours), tree.leaves(ours))
    np.testing.assert_array_equal(again.pdf(x), ours.pdf(x))
    drawn = np.asarray(ours.resample(random.key(0), (4000,)))
    np.testing.assert_allclose(drawn.mean(1), np.average(np.atleast_2d(data), 1, weights), atol=0.1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: stats.multivariate_normal.logpdf(X, MEAN, COVS[0, :2]), "cov \\(2, 3\\)"),
        (lambda: stats.multivariate_normal.logpdf(X, MEAN, MEAN), "cov \\(3,\\)"),
        (lambda: stats.multivariate_normal.entropy(MEAN, MEAN), "cov \\(3,\\)"),
        (lambda: stats.multivariate_normal.logpdf("a", MEAN, COVS), "logpdf: x"),
        (lambda: stats.dirichlet.logpdf(X, MEAN), r"alpha \(3,\)"),
        (lambda: stats.multinomial.pmf(X, 3, np.ones(2)), r"p \(2,\)"),
        (lambda: stats.gaussian_kde([1.0]), "gaussian_kde: dataset"),
        (lambda: stats.gaussian_kde([1.0, 2.0], "best"), "bw_method must be .* 'best'"),
        (lambda: stats.gaussian_kde([1.0, 2.0], weights=[1.0]), r"weights must be \(2,\)"),
        (lambda: stats.gaussian_kde([1.0, 2.0])(np.ones((2, 3))), r"\(1, m\)"),
        (lambda: stats.gaussian_kde([1.0, 2.0]).integrate_kde(3), "integrate_kde: other"),
        (lambda: stats.gaussian_kde([1.0, 2.0]).integrate_box_1d([1.0], 2.0), "low \\(1,\\)"),
    ],
)
def test_wrong_arguments(call, message):
    with pytest.raises(fg.errors.FuncgradError, match=message):
        call()
