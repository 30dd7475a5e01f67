"""Minima of functions: `funcgrad.scipy.optimize`, under SciPy's names.

>>> from funcgrad.scipy import optimize
>>> x = fnp.arange(5.0)
>>> def loss(p):
...     return fnp.sum((p["slope"] * x + p["offset"] - 2 * x - 1) ** 2)
>>> optimize.minimize(loss, {"slope": 0.0, "offset": 0.0}, method="BFGS").x["slope"].round(2)
Array(2., dtype=float32)

- `least_squares`: roots and least squares, by Levenberg and Marquardt's method
- `line_search`: steps along a direction that satisfy the strong Wolfe conditions
- `minimize`: minima of functions: BFGS and L-BFGS
"""

from funcgrad.scipy.optimize.least_squares import (
    LeastSquaresResult,
    RootResult,
    least_squares,
    root,
)
from funcgrad.scipy.optimize.line_search import LineSearchResults, line_search
from funcgrad.scipy.optimize.minimize import OptimizeResults, minimize

__all__ = [
    "LeastSquaresResult", "LineSearchResults", "OptimizeResults", "RootResult", "least_squares",
    "line_search", "minimize", "root",
]  # fmt: skip
