"""Elementary functions as straight-line code, so that they vectorize.

- `functions`: all of them, by NumPy's names, and how code calls them
- `ir`: the notation that they are written in
- `exp`: exp, exp2, expm1, logistic, tanh, sinh, cosh
- `log`: log, log2, log10, log1p, arcsinh, arccosh, arctanh
- `power`: power, cbrt, rsqrt, hypot
- `trig`: sin, cos, tan
- `arc`: arcsin, arccos, arctan, arctan2
- `erf`: erf, erfc, erf_inv
- `gamma`: lgamma, digamma
- `bits`: fmod, nextafter
- `rare`: longer ways for rare arguments, without giving up vectors
"""
