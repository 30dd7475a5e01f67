"""Activations. Each is elementwise unless it says otherwise, and has finite derivatives wherever
its value is finite, also where a branch that isn't taken would overflow."""

from __future__ import annotations

import math
from typing import Any

import funcgrad.numpy as fnp
from funcgrad import dtypes
from funcgrad.core.context import current
from funcgrad.core.eager.single import single
from funcgrad.numpy._util import convert
from funcgrad.ops.arguments import canonical_axis
from funcgrad.ops.elementwise.special import erfc
from funcgrad.ops.elementwise.transcendental import logistic
from funcgrad.transforms.derivatives.custom import custom_jvp
from funcgrad.transforms.recorded import recorded


def _inexact(x: Any) -> Any:
    x = fnp.asarray(x)
    if dtypes.is_inexact(x.dtype):
        return x
    return convert(x, current().float_dtype, x.weak_type)


@single
def relu(x: Any) -> Any:
    """max(x, 0), with derivative 0 at 0.

    >>> from funcgrad import nn
    >>> print(nn.relu(fnp.array([-1.0, 2.0])))
    [0. 2.]
    """
    return _relu(x)


@custom_jvp
def _relu(x: Any) -> Any:
    return fnp.maximum(x, 0)


_relu.defjvps(lambda g, y, x: fnp.where(fnp.asarray(x) > 0, g, fnp.zeros_like(g)))


@custom_jvp
def relu6(x: Any) -> Any:
    """min(max(x, 0), 6), with derivative 0 at 0 and 6.

    >>> from funcgrad import nn
    >>> print(nn.relu6(fnp.array([-1.0, 2.0, 7.0])))
    [0. 2. 6.]
    """
    return fnp.minimum(fnp.maximum(x, 0), 6.0)


relu6.defjvps(
    lambda g, y, x: fnp.where((fnp.asarray(x) > 0) & (fnp.asarray(x) < 6), g, fnp.zeros_like(g))
)


@recorded
def sigmoid(x: Any) -> Any:
    """1 / (1 + exp(-x)).

    >>> from funcgrad import nn
    >>> print(nn.sigmoid(0.0))
    0.5
    """
    return logistic(_inexact(x))


@recorded
def log_sigmoid(x: Any) -> Any:
    """log(sigmoid(x)), accurate for large negative x.

    >>> from funcgrad import nn
    >>> print(nn.log_sigmoid(-100.0))
    -100.0
    """
    return -softplus(-_inexact(x))


@recorded
def softplus(x: Any) -> Any:
    """log(1 + exp(x)).

    >>> from funcgrad import nn
    >>> print(nn.softplus(100.0))
    100.0
    """
    return fnp.logaddexp(_inexact(x), 0.0)


def log1mexp(x: Any) -> Any:
    """log(1 - exp(-x)) for x ≥ 0, accurate for small and large x (Mächler, 2012).

    >>> from funcgrad import nn
    >>> print(nn.log1mexp(1.0))
    -0.458675...
    """
    x = _inexact(x)
    near = x < math.log(2)
    # Each branch sees only what it is for, so that the other's derivative stays finite.
    small, large = fnp.where(near, x, 1.0), fnp.where(near, 1.0, x)
    return fnp.where(near, fnp.log(-fnp.expm1(-small)), fnp.log1p(-fnp.exp(-large)))


@recorded
def soft_sign(x: Any) -> Any:
    """x / (|x| + 1).

    >>> from funcgrad import nn
    >>> print(nn.soft_sign(1.0))
    0.5
    """
    x = _inexact(x)
    return x / (fnp.abs(x) + 1)


@recorded
def silu(x: Any) -> Any:
    """x · sigmoid(x) (Elfwing et al., 2017); also known as swish.

    >>> from funcgrad import nn
    >>> print(nn.silu(0.0))
    0.0
    """
    x = _inexact(x)
    return x * sigmoid(x)


swish = silu


def identity(x: Any) -> Any:
    """x itself, as an array.

    >>> from funcgrad import nn
    >>> print(nn.identity(2.0))
    2.0
    """
    return fnp.asarray(x)


def tanh(x: Any) -> Any:
    """The hyperbolic tangent.

    >>> from funcgrad import nn
    >>> print(nn.tanh(0.0))
    0.0
    """
    return fnp.tanh(x)


@recorded
def mish(x: Any) -> Any:
    """x · tanh(softplus(x)) (Misra, 2019).

    >>> from funcgrad import nn
    >>> print(nn.mish(0.0))
    0.0
    """
    x = _inexact(x)
    return x * fnp.tanh(softplus(x))


@recorded
def gelu(x: Any, approximate: bool = True) -> Any:
    """x · Φ(x) with the normal distribution's Φ (Hendrycks & Gimpel, 2016).

    approximate: 0.5x(1 + tanh(√(2/π)(x + 0.044715x³))), at most 5e-4 off; else by erfc.

    >>> from funcgrad import nn
    >>> print(nn.gelu(1.0, approximate=False))
    0.8413447
    """
    x = _inexact(x)
    if approximate:
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * (x * x * x))
        return 0.5 * x * (1 + fnp.tanh(inner))
    return 0.5 * x * erfc(-x * math.sqrt(0.5))


@recorded
def leaky_relu(x: Any, negative_slope: float = 0.01) -> Any:
    """x where x ≥ 0, else negative_slope · x.

    >>> from funcgrad import nn
    >>> print(nn.leaky_relu(fnp.array([-1.0, 2.0])))
    [-0.01  2.  ]
    """
    x = _inexact(x)
    return fnp.where(x >= 0, x, fnp.multiply(negative_slope, x))


@recorded
def elu(x: Any, alpha: float = 1.0) -> Any:
    """x where x > 0, else alpha · (exp(x) - 1) (Clevert et al., 2015).

    >>> from funcgrad import nn
    >>> print(nn.elu(2.0))
    2.0
    """
    x = _inexact(x)
    # The exponential sees no large x: its derivative there would overflow.
    low = fnp.where(x > 0, 0.0, x)
    return fnp.where(x > 0, x, fnp.multiply(alpha, fnp.expm1(low)))


@recorded
def celu(x: Any, alpha: float = 1.0) -> Any:
    """max(x, 0) + min(0, alpha · (exp(x/alpha) - 1)) (Barron, 2017).

    >>> from funcgrad import nn
    >>> print(nn.celu(2.0))
    2.0
    """
    x = _inexact(x)
    low = fnp.where(x > 0, 0.0, x)
    return fnp.where(x > 0, x, fnp.multiply(alpha, fnp.expm1(fnp.divide(low, alpha))))


@recorded
def selu(x: Any) -> Any:
    """1.0507 · elu(x, 1.67326), self-normalizing (Klambauer et al., 2017).

    >>> from funcgrad import nn
    >>> print(nn.selu(1.0))
    1.050701
    """
    return 1.0507009873554804934193349852946 * elu(x, 1.6732632423543772848170429916717)


@recorded
def hard_tanh(x: Any) -> Any:
    """x clipped to [-1, 1].

    >>> from funcgrad import nn
    >>> print(nn.hard_tanh(3.0))
    1.0
    """
    x = _inexact(x)
    return fnp.where(x > 1, 1.0, fnp.where(x < -1, -1.0, x))


@recorded
def hard_sigmoid(x: Any) -> Any:
    """relu6(x + 3) / 6.

    >>> from funcgrad import nn
    >>> print(nn.hard_sigmoid(0.0))
    0.5
    """
    return relu6(_inexact(x) + 3.0) / 6.0


@recorded
def hard_silu(x: Any) -> Any:
    """x · hard_sigmoid(x) (Howard et al., 2019).

    >>> from funcgrad import nn
    >>> print(nn.hard_silu(3.0))
    3.0
    """
    x = _inexact(x)
    return x * hard_sigmoid(x)


hard_swish = hard_silu


@recorded
def glu(x: Any, axis: int = -1) -> Any:
    """The first half of x along `axis` times the sigmoid of the second (Dauphin et al., 2017).

    >>> from funcgrad import nn
    >>> print(nn.glu(fnp.array([2.0, 0.0])))
    [1.]
    """
    x = _inexact(x)
    if x.shape[canonical_axis("nn.glu", axis, x.ndim)] % 2:
        raise ValueError(f"nn.glu: axis {axis} must have an even size, got shape {x.shape}")
    first, second = fnp.split(x, 2, axis)
    return first * sigmoid(second)


def squareplus(x: Any, b: float = 4.0) -> Any:
    """(x + √(x² + b)) / 2 (Barron, 2021).

    >>> from funcgrad import nn
    >>> print(nn.squareplus(0.0))
    1.0
    """
    x = _inexact(x)
    return 0.5 * (x + fnp.sqrt(fnp.add(x * x, b)))


def sparse_plus(x: Any) -> Any:
    """0 for x ≤ -1, (x + 1)²/4 between, x for x ≥ 1 (Tatsunami & Taki, 2023).

    >>> from funcgrad import nn
    >>> print(nn.sparse_plus(0.0))
    0.25
    """
    x = _inexact(x)
    return fnp.where(x <= -1, 0.0, fnp.where(x >= 1, x, (x + 1) ** 2 / 4))


def sparse_sigmoid(x: Any) -> Any:
    """(x + 1)/2 clipped to [0, 1]: the derivative of `sparse_plus`.

    >>> from funcgrad import nn
    >>> print(nn.sparse_sigmoid(0.0))
    0.5
    """
    return 0.5 * fnp.clip(_inexact(x) + 1.0, 0.0, 2.0)
