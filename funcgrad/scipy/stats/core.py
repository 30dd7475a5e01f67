"""What a distribution is: formulas in standard form, from which all methods are derived.

A distribution is given by some formulas of a standardized variable and its shape parameters, such
as `logpdf` and `cdf`, and by its support. `Distribution` adds location and scale, the values
outside of the support, NaN for parameters that are none, and by `derived` what follows from the
formulas given: logarithms, tails, quantiles. A formula never sees a point outside of the support,
so that gradients are finite where the functions are.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import funcgrad.numpy as fnp
from funcgrad.scipy._operands import real_operands
from funcgrad.scipy.stats import inverse

INF, NAN = np.inf, np.nan
# method: values left and right of the support
OUTSIDE = {
    "logpdf": (-INF, -INF), "pdf": (0.0, 0.0), "logpmf": (-INF, -INF), "pmf": (0.0, 0.0),
    "cdf": (0.0, 1.0), "logcdf": (-INF, 0.0), "sf": (1.0, 0.0), "logsf": (0.0, -INF),
}  # fmt: skip
QUANTILES = ("ppf", "isf")
MOMENTS = ("mean", "var", "std", "entropy")
EXAMPLES = {**dict.fromkeys(OUTSIDE, "1.0"), **dict.fromkeys(QUANTILES, "0.5")}
MEANINGS = {
    "logpdf": "The logarithm of the density at x; -inf outside of the support.",
    "pdf": "The density at x; 0 outside of the support.",
    "logpmf": "The logarithm of the probability of k; -inf where k is impossible.",
    "pmf": "The probability of k; 0 where k is impossible.",
    "cdf": "The probability of at most x.",
    "logcdf": "The logarithm of the probability of at most x.",
    "sf": "The probability of more than x, 1 - cdf without cancellation.",
    "logsf": "The logarithm of the probability of more than x.",
    "ppf": "The inverse of `cdf` at q: the quantile.",
    "isf": "The inverse of `sf` at q, exact also where q is tiny.",
    "mean": "The mean.", "var": "The variance.", "std": "The standard deviation.",
    "entropy": "The (differential) entropy, in nats.",
}  # fmt: skip


def guarded(safe: Any, formula: Callable, x: Any, other: float) -> Any:
    """formula(x) where `safe` holds, else `other`; elsewhere it is evaluated at `other`.

    >>> print(guarded(fnp.array([True, False]), lambda x: 1 / x, fnp.array([2.0, 0.0]), 1.0))
    [0.5 1. ]
    """
    return fnp.where(safe, formula(fnp.where(safe, x, other)), other)


def log_complement(y: Any) -> Any:
    """log(1 - exp(y)) for y ≤ 0, without cancellation.

    >>> print(log_complement(fnp.array(-1e-30)))
    -69.07755
    """
    near = y > -math.log(2)
    return fnp.where(
        near,
        fnp.log(-fnp.expm1(fnp.where(near, y, -1.0))),
        fnp.log1p(-fnp.exp(fnp.where(near, -1.0, y))),
    )


def _log_of(small: Callable, large: Callable) -> Callable:
    """The logarithm of a tail from this tail and the other one."""

    def logarithm(x: Any, *shapes: Any) -> Any:
        p, q = small(x, *shapes), large(x, *shapes)
        half = p < 0.5
        return fnp.where(
            half, fnp.log(fnp.where(half, p, 0.25)), fnp.log1p(-fnp.where(half, 0.25, q))
        )

    return logarithm


def derived(formulas: dict[str, Callable], symmetric: bool = False) -> dict[str, Callable]:
    """The formulas, and what follows from them: tails from tails, logarithms, exponentials.

    symmetric: the distribution is that of -x, too.

    >>> sorted(derived({"logsf": lambda x: -x}))
    ['cdf', 'logcdf', 'logsf', 'sf']
    """
    f = dict(formulas)
    tails = (("cdf", "sf"), ("sf", "cdf"))
    for here, there in tails if symmetric else ():
        for name in (n for n in (here, f"log{here}") if n in f):
            f.setdefault(name.replace(here, there), lambda x, *s, g=f[name]: g(-x, *s))
    for name in ("pdf", "pmf", "cdf", "sf"):
        if f"log{name}" in f:
            f.setdefault(name, lambda *a, g=f[f"log{name}"]: fnp.exp(g(*a)))
    for here, there in tails:
        if here in f and there not in f:
            if f"log{here}" in f:
                f[there] = lambda *a, g=f[f"log{here}"]: -fnp.expm1(g(*a))
                f[f"log{there}"] = lambda *a, g=f[f"log{here}"]: log_complement(g(*a))
            else:
                f[there] = lambda *a, g=f[here]: 1 - g(*a)
    for here, there in tails:
        if here in f:
            f.setdefault(f"log{here}", _log_of(f[here], f[there]))
    if symmetric and "ppf" in f:
        f.setdefault("isf", lambda q, *s, g=f["ppf"]: -g(q, *s))
    return f


def _end(value: float | Callable, shapes: list, like: Any) -> Any:
    given = value(*shapes) if callable(value) else value
    return fnp.broadcast_to(fnp.asarray(given, like.dtype), like.shape)


class Distribution:
    """A univariate distribution, continuous or of whole numbers.

    Its methods take a point, the shape parameters by position or name, `loc` and (if continuous)
    `scale`, all of which broadcast.

    >>> from funcgrad.scipy import stats
    >>> print(stats.norm.logpdf(0.0, loc=1.0, scale=2.0))
    -1.7370857
    """

    def __init__(
        self,
        name: str,
        shapes: str = "",
        *,
        low: float | Callable = -INF,
        high: float | Callable = INF,
        closed: bool = True,
        valid: Callable | None = None,
        symmetric: bool = False,
        **formulas: Callable,
    ):
        """low, high: the support's ends, numbers or functions of the shape parameters.

        closed: the density at the ends is the formula's, else 0. valid: of the shape parameters,
        whether they are any; positive ones without it. formulas: in standard form, by method.
        """
        self.name, self.shapes = name, shapes.split()
        self.discrete = "logpmf" in formulas
        self._ends, self._closed = (low, high), closed
        self._valid = valid or _positive
        self._formulas = derived(formulas, symmetric)
        kind = "Probabilities" if self.discrete else "Density, tails and quantiles"
        self.__doc__ = f"{kind} of the distribution `{name}({', '.join(self.shapes)})`."
        for method in self._methods():
            setattr(self, method, self._method(method))

    def __repr__(self) -> str:
        return f"stats.{self.name}"

    def __getattr__(self, method: str) -> Any:
        raise AttributeError(f"stats.{self.name} has no {method!r}: it has {dir(self)}")

    def __dir__(self) -> list[str]:
        return sorted(m for m in self.__dict__ if not m.startswith("_"))

    def _methods(self) -> list[str]:
        found = [m for m in OUTSIDE if m in self._formulas]
        found += QUANTILES if "cdf" in self._formulas else [m for m in QUANTILES if m in found]
        found += [m for m in MOMENTS if m in self._formulas]
        return [*found, "std"] if "var" in self._formulas else found

    def _method(self, name: str) -> Callable:
        """The public function `name`, with its signature, docstring and example."""
        first = "q" if name in QUANTILES else "k" if self.discrete else "x"
        names = ([] if name in MOMENTS else [first]) + self.shapes
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        defaults = {"loc": 0} if self.discrete else {"loc": 0, "scale": 1}
        signature = inspect.Signature(
            [inspect.Parameter(n, kind) for n in names]
            + [inspect.Parameter(n, kind, default=d) for n, d in defaults.items()]
        )
        if name in OUTSIDE:
            compute: Callable = partial(self._at, name)
        else:
            compute = partial(self._quantile if name in QUANTILES else self._moment, name)

        def method(*args: Any, **kwargs: Any) -> Any:
            try:
                given = signature.bind(*args, **kwargs).arguments
            except TypeError as e:
                need = f"{self.name}.{name}{signature}"
                raise TypeError(f"stats.{self.name}.{name}: {e}; need {need}") from None
            arrays = real_operands(f"stats.{self.name}.{name}", given) if given else {}
            loc, scale = arrays.pop("loc", None), arrays.pop("scale", None)
            return compute(list(arrays.values()), loc, scale)

        method.__name__, method.__qualname__ = name, f"{self.name}.{name}"
        method.__doc__ = MEANINGS[name]
        method.__dict__["__signature__"] = signature
        return method

    def _check(self, shapes: list, scale: Any, value: Any) -> Any:
        """The value, and NaN where parameters are none."""
        good = self._valid(*shapes) if shapes else True
        good = good if scale is None else fnp.logical_and(good, scale > 0)
        return value if good is True else fnp.where(good, value, NAN)

    def _inside(self, x: Any, shapes: list, closed: bool) -> tuple[Any, Any, Any, Any]:
        """Whether x is in the support, x or else a point of it, and the support's ends."""
        low, high = (_end(e, shapes, x) for e in self._ends)
        inside = fnp.logical_and(x >= low, x <= high) if closed else (x > low) & (x < high)
        inside = fnp.logical_and(inside, fnp.abs(x) < INF)
        # Some point of the support, where an end may be infinite.
        left = fnp.where(low == -INF, fnp.where(high == INF, -1.0, high - 2), low)
        middle = 0.5 * (left + fnp.where(high == INF, left + 2, high))
        return inside, fnp.where(inside, x, middle), low, high

    def _at(self, method: str, args: list, loc: Any, scale: Any) -> Any:
        """A density or a tail."""
        x, *shapes = args
        x = x if loc is None else x - loc
        x = x if scale is None else x / scale
        density = "pdf" in method or "pmf" in method
        whole = fnp.floor(x) if self.discrete else x
        inside, safe, low, _ = self._inside(whole, shapes, self._closed)
        if self.discrete and density:
            inside = fnp.logical_and(inside, whole == x)
        value = self._formulas[method](safe, *shapes)
        left, right = OUTSIDE[method]
        if scale is not None and density:
            value = value - fnp.log(scale) if method == "logpdf" else value / scale
        beyond = fnp.where(x > low, right, left) if left != right else left
        value = fnp.where(inside, value, fnp.where(fnp.isnan(x), NAN, beyond))
        return self._check(shapes, scale, value)

    def _quantile(self, method: str, args: list, loc: Any, scale: Any) -> Any:
        q, *shapes = args
        inside = fnp.logical_and(q > 0, q < 1)
        safe = fnp.where(inside, q, 0.5)
        q, safe, *shapes = fnp.broadcast_arrays(q, safe, *shapes)
        low, high = (_end(e, shapes, q) for e in self._ends)
        # The parameters that are none would keep the search from its end.
        good = self._valid(*shapes) if shapes else True
        if method in self._formulas:
            x = self._formulas[method](safe, *shapes)
        elif self.discrete:
            x = self._search(method, safe, shapes, low - 1, high)
            low = low - 1
        else:
            x = self._solve(method, safe, shapes, low, high)
        first, last = (low, high) if method == "ppf" else (high, low)
        x = fnp.where(inside, x, fnp.where(q == 0, first, fnp.where(q == 1, last, NAN)))
        x = x if good is True else fnp.where(good, x, NAN)
        x = x if scale is None else x * scale
        return self._check([], scale, x if loc is None else x + loc)

    def _search(self, method: str, q: Any, shapes: list, low: Any, high: Any) -> Any:
        if method == "ppf":
            return inverse.search(lambda k: ~(self._formulas["cdf"](k, *shapes) < q), low, high)
        return inverse.search(lambda k: ~(self._formulas["sf"](k, *shapes) > q), low, high)

    def _solve(self, method: str, q: Any, shapes: list, low: Any, high: Any) -> Any:
        f, info = self._formulas, fnp.finfo(q.dtype)
        p, q = (q, 1 - q) if method == "ppf" else (1 - q, q)
        smallest, largest = float(np.log(info.tiny)), float(np.log(info.max)) - 1
        bounded = not callable(self._ends[0]) and np.isfinite(self._ends[0])
        if bounded and self._ends[1] == INF:
            kind, ends = inverse.half_line, (smallest, largest)
        elif bounded and not callable(self._ends[1]):
            kind, ends = inverse.interval, (smallest, -smallest)
        else:
            kind = inverse.line
            ends = tuple(fnp.arcsinh(fnp.clip(e, -0.4 * info.max, 0.4 * info.max))
                         for e in (low, high))  # fmt: skip

        def y_of(s: Any, *shapes: Any) -> tuple[Any, Any]:
            y, log_slope = kind(s)
            return (self._ends[0] + y if bounded else y), log_slope

        def tails(y: Any, *shapes: Any) -> tuple[Any, Any, Any]:
            return f["logcdf"](y, *shapes), f["logsf"](y, *shapes), f["logpdf"](y, *shapes)

        ends = tuple(fnp.asarray(e, q.dtype) for e in ends)
        s = inverse.solve(tails, y_of, p, q, tuple(shapes), ends)
        return y_of(s)[0]

    def _moment(self, method: str, shapes: list, loc: Any, scale: Any) -> Any:
        value = self._formulas["var" if method == "std" else method](*shapes)
        value = fnp.sqrt(value) if method == "std" else value
        if scale is not None:
            scaled = {"mean": scale, "std": scale, "var": scale * scale}
            value = value + fnp.log(scale) if method == "entropy" else value * scaled[method]
        value = value + loc if loc is not None and method == "mean" else value
        return self._check(shapes, scale, fnp.asarray(value, dtype=_dtype(shapes, scale, loc)))


def _dtype(*given: Any) -> Any:
    found = [a for g in given for a in (g if isinstance(g, list) else [g]) if a is not None]
    return found[0].dtype if found else None


def _positive(*shapes: Any) -> Any:
    good = shapes[0] > 0
    for s in shapes[1:]:
        good = fnp.logical_and(good, s > 0)
    return good
