"""Statistics of samples, and tests of them, against SciPy."""

import warnings

import numpy as np
import pytest
from scipy import stats as sp

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.scipy import stats

A = np.random.default_rng(0).normal(size=(5, 6, 3)) ** 3
SMALL = np.random.default_rng(1).integers(0, 4, (6, 5)).astype(float)
HOLES = np.where(SMALL == 3, np.nan, SMALL)
AXES = (None, 0, 1, -1)
CALLS = {
    "sem": [{}, {"ddof": 0}, {"keepdims": True}],
    "moment": [{"order": 2}, {"order": 3}, {"order": 2, "center": 0.5}],
    "skew": [{}, {"bias": False}],
    "kurtosis": [{}, {"bias": False}, {"fisher": False}],
    "zscore": [{}, {"ddof": 1}],
    "variation": [{}],
    "iqr": [{}, {"rng": (10, 90)}],
    "trim_mean": [{"proportiontocut": 0.21}],
    "gmean": [{}],
    "hmean": [{}],
    "entropy": [{}, {"base": 2}],
}
NAMED = [(name, kwargs) for name, many in CALLS.items() for kwargs in many]
POSITIVE = ("gmean", "hmean", "entropy")


def data(name):
    return np.abs(A) + 0.1 if name in POSITIVE else A


@pytest.mark.sampled(4)
@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize(("name", "kwargs"), NAMED)
def test_statistics(name, kwargs, axis):
    ours = getattr(stats, name)
    want = getattr(sp, name)(data(name), axis=axis, **kwargs)
    np.testing.assert_allclose(ours(data(name), axis=axis, **kwargs), want, rtol=1e-10)
    assert ours(data(name).astype(np.float32), axis=axis, **kwargs).dtype == np.float32
    jitted = fg.jit(lambda a: ours(a, axis=axis, **kwargs))
    np.testing.assert_allclose(jitted(data(name)), want, rtol=1e-10)
    lanes = fg.vmap(lambda a: ours(a, axis=None if axis is None else 0, **kwargs))
    each = [getattr(sp, name)(a, axis=None if axis is None else 0, **kwargs) for a in data(name)]
    np.testing.assert_allclose(lanes(data(name)), np.array(each), rtol=1e-10)


@pytest.mark.parametrize(("name", "kwargs"), NAMED)
def test_derivatives(name, kwargs):
    a = data(name)[:, 0, 0]

    def total(a):
        return fnp.sum(fnp.square(getattr(stats, name)(a, axis=0, **kwargs)))

    h = 1e-6
    want = [float(total(a + h * e) - total(a - h * e)) / (2 * h) for e in np.eye(len(a))]
    np.testing.assert_allclose(fg.grad(total)(fnp.array(a)), want, rtol=1e-4, atol=1e-6)


def test_relative_entropy_and_description():
    p, q = data("entropy")[..., 0], data("entropy")[..., 1]
    np.testing.assert_allclose(stats.entropy(p, q, axis=1), sp.entropy(p, q, axis=1))
    ours, theirs = stats.describe(A), sp.describe(A)
    assert ours.nobs == theirs.nobs
    for got, want in zip(fg.tree.leaves(tuple(ours[1:])), [*theirs[1], *theirs[2:]], strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-10)


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("a", [SMALL, HOLES, SMALL.astype(int), np.zeros((0, 3))])
def test_mode(a, axis):
    for keepdims in (False, True):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            want = sp.mode(a, axis=axis, keepdims=keepdims)
        got = fg.jit(lambda a, k=keepdims: stats.mode(a, axis=axis, keepdims=k))(a)
        np.testing.assert_array_equal(got.mode, want.mode)
        np.testing.assert_array_equal(got.count, want.count)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("method", ["average", "min", "max", "dense", "ordinal"])
@pytest.mark.parametrize("a", [SMALL, HOLES, np.zeros((0, 3)), A[0]])
def test_rankdata(a, method, axis):
    want = sp.rankdata(a, method, axis=axis)
    np.testing.assert_array_equal(stats.rankdata(a, method, axis=axis), want)
    np.testing.assert_array_equal(fg.jit(lambda a: stats.rankdata(a, method, axis=axis))(a), want)


def test_sem_leaves_out_nan():
    got = stats.sem(HOLES, nan_policy="omit")
    np.testing.assert_allclose(got, sp.sem(HOLES, nan_policy="omit"))


TESTS = {
    "pearsonr": (sp.pearsonr, (A[..., 0], A[..., 1])),
    "spearmanr": (lambda x, y, **k: sp.spearmanr(x[:, 0], y[:, 0], **k), (A[..., 0], A[..., 1])),
    "ttest_1samp": (sp.ttest_1samp, (A[..., 0], 0.3)),
    "ttest_rel": (sp.ttest_rel, (A[..., 0], A[..., 1])),
    "ttest_ind": (sp.ttest_ind, (A[..., 0], A[:3, :, 1])),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("alternative", ["two-sided", "less", "greater"])
@pytest.mark.parametrize("name", TESTS)
def test_tests(name, alternative):
    theirs, args = TESTS[name]
    got = fg.jit(lambda *a: getattr(stats, name)(*a, alternative=alternative))(
        *(np.asarray(a) for a in args)
    )
    narrow = [np.asarray(a, np.float32) for a in args]
    assert {x.dtype for x in getattr(stats, name)(*narrow)} == {np.dtype(np.float32)}
    kwargs = {"axis": 0} if name == "pearsonr" else {}
    want = theirs(*args, alternative=alternative, **kwargs)
    first = 0 if name == "spearmanr" else slice(None)
    np.testing.assert_allclose(got.statistic[first], want.statistic, rtol=1e-10)
    np.testing.assert_allclose(got.pvalue[first], want.pvalue, rtol=1e-9)


def test_welchs_test():
    got = stats.ttest_ind(A[..., 0], A[:3, :, 1], equal_var=False)
    want = sp.ttest_ind(A[..., 0], A[:3, :, 1], equal_var=False)
    np.testing.assert_allclose(got.pvalue, want.pvalue, rtol=1e-9)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: stats.sem("a"), TypeError, r"stats\.sem: a"),
        (lambda: stats.sem(A, axis=3), ValueError, r"stats\.sem: .*axis"),
        (lambda: stats.sem(A, nan_policy="skip"), ValueError, r"nan_policy.*'skip'"),
        (lambda: stats.mode(A, nan_policy="omit"), NotImplementedError, "nan_policy='omit'"),
        (lambda: stats.mode(1j), TypeError, r"stats\.mode: a must be real"),
        (lambda: stats.rankdata(A, "first"), ValueError, "method must be .* got 'first'"),
        (lambda: stats.trim_mean(A, 0.6), ValueError, "proportiontocut .* got 0.6"),
        (lambda: stats.trim_mean(A, None), ValueError, "proportiontocut .* got None"),
        (lambda: stats.pearsonr(A[0], A[1, :2]), ValueError, r"pearsonr: .*\(6, 3\) and \(2, 3\)"),
        (lambda: stats.ttest_rel([1.0], [2.0]), ValueError, "ttest_rel: .* 2 elements or more"),
        (lambda: stats.ttest_1samp(A, 0, alternative="up"), ValueError, "alternative .* 'up'"),
    ],
)
def test_wrong_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call()
