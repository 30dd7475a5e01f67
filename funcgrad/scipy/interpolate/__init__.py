"""Functions through given points: `funcgrad.scipy.interpolate`, under SciPy's names.

>>> from funcgrad.scipy import interpolate
>>> x = fnp.linspace(0.0, fnp.pi, 9)
>>> area = lambda y: fnp.mean(interpolate.CubicSpline(x, y)(fnp.linspace(0.0, fnp.pi, 201)))
>>> fg.value_and_grad(area)(fnp.sin(x))[0].round(2)
Array(0.63, dtype=float32)

- `cubic`: curves of cubic pieces through points
- `grid`: values on a grid whose axes are regular, read between its points
"""

from funcgrad.scipy.interpolate.cubic import CubicHermiteSpline, CubicSpline, PchipInterpolator
from funcgrad.scipy.interpolate.grid import RegularGridInterpolator

__all__ = ["CubicHermiteSpline", "CubicSpline", "PchipInterpolator", "RegularGridInterpolator"]
