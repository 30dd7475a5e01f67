"""Integrals and differential equations: `funcgrad.scipy.integrate`, under SciPy's names.

>>> from funcgrad.scipy import integrate
>>> def fall(speed):  # how far a thing goes that the air slows down
...     motion = lambda t, y: fnp.stack([y[1], -0.5 * y[1]])
...     start = fnp.stack([0.0, speed])
...     return integrate.solve_ivp(motion, (0.0, 10.0), start, rtol=1e-6).y[0, -1]
>>> fg.value_and_grad(fall)(3.0)[1].round(3)
Array(1.987, dtype=float32)

- `adaptive`: ordinary differential equations by steps whose lengths the error controls
- `equations`: users' equations as functions of vectors
- `ivp`: `solve_ivp`: initial value problems
- `quadrature`: integrals of samples and of functions
"""

from funcgrad.numpy.calculus import trapezoid
from funcgrad.scipy.integrate.ivp import OdeResult, solve_ivp
from funcgrad.scipy.integrate.quadrature import (
    cumulative_trapezoid,
    fixed_quad,
    quad,
    romb,
    simpson,
)

__all__ = [
    "OdeResult", "cumulative_trapezoid", "fixed_quad", "quad", "romb", "simpson", "solve_ivp",
    "trapezoid",
]  # fmt: skip
