"""Densities estimated from a sample, a Gaussian around each of its points."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import funcgrad.numpy as fnp
from funcgrad import lax, random, tree
from funcgrad.errors import ArgumentError, ShapeError
from funcgrad.nn.normalize import logsumexp
from funcgrad.ops.elementwise.special import ndtr
from funcgrad.scipy._operands import float_arrays, real_array


@tree.register_pytree_node_class
class gaussian_kde:
    """The density of the sample `dataset`, (n,) or (d, n).

    bw_method: "scott" (as if None), "silverman", a factor of the sample's spread, or a function of
    this object that gives one. weights: of the n points.

    >>> from funcgrad.scipy import stats
    >>> density = stats.gaussian_kde(fnp.array([0.0, 1.0, 2.0]))
    >>> print(density(1.0))
    [0.318...]
    """

    def __init__(
        self,
        dataset: Any,
        bw_method: str | float | Callable | None = None,
        weights: Any = None,
    ):
        dataset = fnp.atleast_2d(real_array("stats.gaussian_kde", "dataset", dataset))
        if dataset.ndim != 2 or dataset.size < 2:
            raise ShapeError(
                f"stats.gaussian_kde: dataset must be (n,) or (d, n) with elements, "
                f"got {dataset.shape}"
            )
        n = dataset.shape[1]
        if weights is None:
            (self.dataset,) = float_arrays([dataset])
            self.weights = fnp.full(n, 1 / n, self.dataset.dtype)
        else:
            weights = fnp.atleast_1d(real_array("stats.gaussian_kde", "weights", weights))
            if weights.shape != (n,):
                raise ShapeError(
                    f"stats.gaussian_kde: weights must be ({n},), one a point, got {weights.shape}"
                )
            self.dataset, weights = float_arrays([dataset, weights])
            self.weights = weights / fnp.sum(weights)
        self.neff = 1 / fnp.sum(self.weights**2)
        factor = self._factor(bw_method)
        spread = fnp.atleast_2d(fnp.cov(self.dataset, bias=False, aweights=self.weights))
        self.covariance = spread * factor**2
        self.inv_cov = fnp.linalg.inv(spread) / factor**2

    def _factor(self, method: Any) -> Any:
        if method is None or (isinstance(method, str) and method == "scott"):
            return self.neff ** (-1 / (self.d + 4))
        if isinstance(method, str) and method == "silverman":
            return (self.neff * (self.d + 2) / 4) ** (-1 / (self.d + 4))
        if callable(method):
            return method(self)
        if isinstance(method, str) or fnp.ndim(method) != 0:
            raise ArgumentError(
                "stats.gaussian_kde: bw_method must be 'scott', 'silverman', a number or a "
                f"function, got {method!r}"
            )
        real_array("stats.gaussian_kde", "bw_method", method)
        return fnp.asarray(method, self.dataset.dtype)

    def tree_flatten(self) -> tuple[tuple, None]:
        """The arrays, as a pytree's leaves.

        >>> from funcgrad.scipy import stats
        >>> len(stats.gaussian_kde(fnp.array([0.0, 1.0])).tree_flatten()[0])
        5
        """
        return (self.neff, self.dataset, self.weights, self.covariance, self.inv_cov), None

    @classmethod
    def tree_unflatten(cls, aux: None, children: tuple) -> gaussian_kde:
        """The density of these arrays.

        >>> from funcgrad.scipy import stats
        >>> density = stats.gaussian_kde(fnp.array([0.0, 1.0]))
        >>> stats.gaussian_kde.tree_unflatten(None, density.tree_flatten()[0]).n
        2
        """
        kde = object.__new__(cls)
        kde.neff, kde.dataset, kde.weights, kde.covariance, kde.inv_cov = children
        return kde

    @property
    def d(self) -> int:
        """The number of variables."""
        return self.dataset.shape[0]

    @property
    def n(self) -> int:
        """The number of points."""
        return self.dataset.shape[1]

    def logpdf(self, x: Any) -> Any:
        """The logarithm of the density at the points x, (m,) or (d, m).

        >>> from funcgrad.scipy import stats
        >>> print(stats.gaussian_kde(fnp.array([0.0, 1.0])).logpdf(0.5))
        [-0.763...]
        """
        points = fnp.atleast_2d(real_array("stats.gaussian_kde.logpdf", "x", x))
        if points.shape[0] == 1 and points.shape[1] == self.d:
            points = points.reshape(self.d, 1)
        if points.ndim != 2 or points.shape[0] != self.d:
            raise ShapeError(
                f"stats.gaussian_kde: points must be ({self.d}, m) as the dataset's, "
                f"got {points.shape}"
            )
        points, data, weights, precision = float_arrays(
            [points, self.dataset, self.weights, self.inv_cov]
        )
        root = fnp.linalg.cholesky(precision)
        gap = (root.T @ points)[:, :, None] - (root.T @ data)[:, None, :]
        norm = fnp.sum(fnp.log(fnp.diagonal(root))) - 0.5 * self.d * math.log(2 * math.pi)
        return logsumexp(norm - 0.5 * fnp.sum(gap * gap, axis=0), axis=1, b=weights)

    def evaluate(self, points: Any) -> Any:
        """The density at the points.

        >>> from funcgrad.scipy import stats
        >>> print(stats.gaussian_kde(fnp.array([0.0, 1.0])).evaluate(0.5))
        [0.465...]
        """
        return fnp.exp(self.logpdf(points))

    __call__ = pdf = evaluate

    def _overlap(self, name: str, mean: Any, cov: Any) -> Any:
        """The integrals of the product of each point's Gaussian with those of these means."""
        root = fnp.linalg.cholesky(self.covariance + cov)
        gap = (mean[:, :, None] - self.dataset[:, None, :]).reshape(self.d, -1)
        y = lax.linalg.triangular_solve(root, gap, left_side=True, lower=True)
        norm = 0.5 * self.d * math.log(2 * math.pi) + fnp.sum(fnp.log(fnp.diagonal(root)))
        density = fnp.exp(-0.5 * fnp.sum(y * y, axis=0) - norm)
        return density.reshape(mean.shape[1], self.n) @ self.weights

    def integrate_gaussian(self, mean: Any, cov: Any) -> Any:
        """The integral of the density times that of a normal variable.

        >>> from funcgrad.scipy import stats
        >>> print(stats.gaussian_kde(fnp.array([0.0, 1.0])).integrate_gaussian(0.0, 1.0))
        0.288...
        """
        name = "stats.gaussian_kde.integrate_gaussian"
        mean = fnp.atleast_1d(fnp.squeeze(real_array(name, "mean", mean)))
        cov = fnp.atleast_2d(real_array(name, "cov", cov))
        if mean.shape != (self.d,) or cov.shape != (self.d, self.d):
            raise ShapeError(
                f"{name}: need mean ({self.d},) and cov ({self.d}, {self.d}), "
                f"got {mean.shape} and {cov.shape}"
            )
        return self._overlap(name, mean[:, None], cov)[0]

    def integrate_box_1d(self, low: Any, high: Any) -> Any:
        """The probability of the interval from low to high.

        >>> from funcgrad.scipy import stats
        >>> print(stats.gaussian_kde(fnp.array([0.0, 1.0])).integrate_box_1d(-fnp.inf, 0.5))
        0.5
        """
        name = "stats.gaussian_kde.integrate_box_1d"
        low, high = real_array(name, "low", low), real_array(name, "high", high)
        if self.d != 1 or low.ndim or high.ndim:
            raise ShapeError(
                f"{name}: needs one variable and two numbers, got {self.d} variables, "
                f"low {low.shape} and high {high.shape}"
            )
        sigma = fnp.sqrt(self.covariance[0, 0])
        ends = [ndtr((e.astype(sigma.dtype) - self.dataset[0]) / sigma) for e in (low, high)]
        return fnp.sum(self.weights * (ends[1] - ends[0]))

    def integrate_box(self, low_bounds: Any, high_bounds: Any, maxpts: int | None = None) -> Any:
        """Refused: SciPy integrates boxes by a random rule; `integrate_box_1d` is exact.

        >>> from funcgrad.scipy import stats
        >>> stats.gaussian_kde(fnp.array([0.0, 1.0])).integrate_box(0, 1)
        Traceback (most recent call last):
        NotImplementedError: stats.gaussian_kde.integrate_box: ...
        """
        raise NotImplementedError(
            "stats.gaussian_kde.integrate_box: use integrate_box_1d, or resample and count"
        )

    def integrate_kde(self, other: gaussian_kde) -> Any:
        """The integral of the product of two estimated densities.

        >>> from funcgrad.scipy import stats
        >>> density = stats.gaussian_kde(fnp.array([0.0, 1.0]))
        >>> print(density.integrate_kde(density))
        0.347...
        """
        name = "stats.gaussian_kde.integrate_kde"
        if not isinstance(other, gaussian_kde) or other.d != self.d:
            raise ShapeError(f"{name}: other must be a gaussian_kde of {self.d} variables")
        return self._overlap(name, other.dataset, other.covariance) @ other.weights

    def resample(self, key: Any, shape: tuple = ()) -> Any:
        """A random sample of the density, (d, *shape).

        >>> from funcgrad.scipy import stats
        >>> stats.gaussian_kde(fnp.array([0.0, 1.0])).resample(random.key(0), (3,)).shape
        (1, 3)
        """
        first, second = random.split(key)
        which = random.choice(first, self.n, shape=shape, p=self.weights)
        noise = random.multivariate_normal(
            second, fnp.zeros(self.d, self.covariance.dtype), self.covariance, shape=shape,
            dtype=self.dataset.dtype,
        )  # fmt: skip
        return self.dataset[:, which] + fnp.moveaxis(noise, -1, 0)

    def set_bandwidth(self, bw_method: Any = None) -> None:
        """Refused: the density doesn't change; make another one.

        >>> from funcgrad.scipy import stats
        >>> stats.gaussian_kde(fnp.array([0.0, 1.0])).set_bandwidth(1.0)
        Traceback (most recent call last):
        NotImplementedError: stats.gaussian_kde.set_bandwidth: ...
        """
        raise NotImplementedError(
            "stats.gaussian_kde.set_bandwidth: make another gaussian_kde with this bw_method"
        )
