"""Correlations and Student's tests, each a statistic and the probability of one as extreme."""

from __future__ import annotations

from typing import Any, NamedTuple

import funcgrad.numpy as fnp
from funcgrad.errors import ArgumentError, ShapeError
from funcgrad.scipy._operands import real_array
from funcgrad.scipy.stats.line import t as student
from funcgrad.scipy.stats.samples import floats, rankdata


class SignificanceResult(NamedTuple):
    """A statistic, and the probability of one as extreme if there is no effect."""

    statistic: Any
    pvalue: Any


def _result(
    name: str, t: Any, df: Any, alternative: str, statistic: Any = None
) -> SignificanceResult:
    if alternative not in ("two-sided", "less", "greater"):
        raise ArgumentError(
            f"stats.{name}: alternative must be 'two-sided', 'less' or 'greater', "
            f"got {alternative!r}"
        )
    if alternative == "two-sided":
        p = 2 * student.sf(fnp.abs(t), df)
    else:
        p = student.cdf(t, df) if alternative == "less" else student.sf(t, df)
    return SignificanceResult(t if statistic is None else statistic, p)


def _pairs(name: str, x: Any, y: Any, axis: int | None) -> tuple[Any, Any, int]:
    x, along = floats(name, x, axis, "x")
    y, _ = floats(name, y, axis, "y")
    if x.shape != y.shape or x.shape[along] < 2:
        raise ShapeError(
            f"stats.{name}: need two samples of one shape, of 2 elements or more, "
            f"got {x.shape} and {y.shape}"
        )
    return x, y, along


def pearsonr(
    x: Any, y: Any, *, alternative: str = "two-sided", axis: int | None = 0
) -> SignificanceResult:
    """Pearson's correlation of two samples, and its significance for normal variables.

    >>> from funcgrad.scipy import stats
    >>> print(stats.pearsonr([1.0, 2.0, 3.0], [2.0, 4.0, 3.0]).statistic)
    0.4999...
    """
    return _correlation("pearsonr", x, y, alternative, axis)


def spearmanr(
    a: Any, b: Any, axis: int | None = 0, *, alternative: str = "two-sided"
) -> SignificanceResult:
    """Spearman's correlation of two samples: Pearson's of the ranks.

    >>> from funcgrad.scipy import stats
    >>> print(stats.spearmanr([1.0, 2.0, 3.0], [1.0, 9.0, 8.0]).statistic)
    0.4999...
    """
    a, b, axis = _pairs("spearmanr", a, b, axis)
    x, y = (rankdata(z, axis=axis).astype(z.dtype) for z in (a, b))
    return _correlation("spearmanr", x, y, alternative, axis)


def _correlation(
    name: str, x: Any, y: Any, alternative: str, axis: int | None
) -> SignificanceResult:
    x, y, axis = _pairs(name, x, y, axis)
    parts = []
    for z in (x, y):
        centred = z - fnp.mean(z, axis=axis, keepdims=True)
        largest = fnp.max(fnp.abs(centred), axis=axis, keepdims=True)
        scaled = centred / largest  # whose squares don't overflow
        parts.append(scaled / fnp.sqrt(fnp.sum(scaled * scaled, axis=axis, keepdims=True)))
    r = fnp.clip(fnp.sum(parts[0] * parts[1], axis=axis), -1.0, 1.0)
    df = x.shape[axis] - 2
    if df == 0:
        return SignificanceResult(r, fnp.ones_like(r))
    return _result(name, r * fnp.sqrt(df / ((1 - r) * (1 + r))), float(df), alternative, r)


def ttest_1samp(
    a: Any, popmean: Any, axis: int | None = 0, *, alternative: str = "two-sided"
) -> SignificanceResult:
    """Student's test whether the mean is `popmean`.

    >>> from funcgrad.scipy import stats
    >>> print(stats.ttest_1samp([1.0, 2.0, 3.0], 2.0).pvalue)
    1.0
    """
    a, axis = floats("ttest_1samp", a, axis)
    n = a.shape[axis]
    popmean = real_array("stats.ttest_1samp", "popmean", popmean)
    t = (fnp.mean(a, axis=axis) - popmean) / fnp.sqrt(fnp.var(a, axis=axis, ddof=1) / n)
    return _result("ttest_1samp", t, float(n - 1), alternative)


def ttest_rel(
    a: Any, b: Any, axis: int | None = 0, *, alternative: str = "two-sided"
) -> SignificanceResult:
    """Student's test whether the mean of the differences of pairs is 0.

    >>> from funcgrad.scipy import stats
    >>> print(stats.ttest_rel([1.0, 2.0, 3.0], [0.0, 2.0, 4.0]).pvalue)
    1.0
    """
    a, b, axis = _pairs("ttest_rel", a, b, axis)
    return ttest_1samp(a - b, 0.0, axis, alternative=alternative)


def ttest_ind(
    a: Any,
    b: Any,
    axis: int | None = 0,
    equal_var: bool = True,
    *,
    alternative: str = "two-sided",
) -> SignificanceResult:
    """Student's test whether two samples have one mean; Welch's, if their variances may differ.

    >>> from funcgrad.scipy import stats
    >>> print(stats.ttest_ind([1.0, 2.0, 3.0], [0.0, 2.0, 4.0]).pvalue)
    1.0
    """
    a, along = floats("ttest_ind", a, axis)
    b, _ = floats("ttest_ind", b, axis, "b")
    n, m = a.shape[along], b.shape[along]
    va, vb = (fnp.var(z, axis=along, ddof=1) for z in (a, b))
    if equal_var:
        df: Any = float(n + m - 2)
        square = ((n - 1) * va + (m - 1) * vb) / df * (1 / n + 1 / m)
    else:
        va, vb = va / n, vb / m
        square = va + vb
        df = square**2 / (va**2 / (n - 1) + vb**2 / (m - 1))
    t = (fnp.mean(a, axis=along) - fnp.mean(b, axis=along)) / fnp.sqrt(square)
    return _result("ttest_ind", t, df, alternative)
