"""The special functions, each `f(xp, *arrays)` a scalar program over an array namespace.

- `base`: what the special functions are written with
- `bessel`: the modified Bessel functions of the first kind of orders 0 and 1, plain and scaled by
  e⁻|x|
- `bessel_iv`: the modified Bessel function of the first kind of real order, scaled by e⁻|x|
- `bessel_jy`: the Bessel functions J and Y of the orders 0 and 1
- `bessel_real`: the Bessel functions J, Y and K of real orders
- `bessel_debye`: modified ones of large orders
- `beta`: the regularized incomplete beta function
- `binomial`: logarithms of the beta function and of Poisson's and the binomial terms
- `erf`: the error function and its relatives, and the normal distribution's
- `expint`: the exponential integrals E₁, Ei and Eₙ
- `functions`: the special functions, each `f(xp, *arrays)` a scalar program over an array namespace
- `gamma`: the logarithm of the gamma function, its derivatives, and the Hurwitz zeta function
- `igamma`: the regularized incomplete gamma functions and their derivative in the shape a
- `log`: functions made of logarithms: entropy terms, logit, and the dilogarithm
"""
