"""Stochastic rounding: narrow parameters that don't lose small updates.

bfloat16 has 8 bits: rounded to nearest, a parameter plus an update of less than 2⁻⁹ of it stays as
it was, at each step. Rounded up or down by chance, in proportion, it is right in the mean.
(Zamirai et al., "Revisiting BFloat16 Training", 2021.)
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import dtypes, random, tree
from funcgrad.errors import DTypeError
from funcgrad.lax import bitcast_convert_type, nextafter
from funcgrad.optim.base import (
    GradientTransformationExtraArgs,
    need_parameters,
    with_extra_args_support,
)
from funcgrad.optim.optimizers import adamw
from funcgrad.optim.updates import ScalarOrSchedule

BFLOAT16, FLOAT16 = dtypes.canonical("bfloat16"), np.dtype(np.float16)


def stochastic_round(key: Any, x: Any, dtype: Any = "bfloat16") -> Any:
    """x (float32) in bfloat16 or float16, rounded to one of the two neighbours by chance: up with
    the probability that the mean is x.

    Bits beyond the result's are compared with 16 random ones of each element (with 24 for float16).
    What is exact stays, as do infinities and NaN; what lies beyond the largest finite number is
    rounded as always.

    >>> from funcgrad import optim
    >>> x = fnp.full(1000, 1.0 + 2.0**-9)
    >>> print(fnp.unique(optim.stochastic_round(random.key(0), x).astype("float32")))
    [1.        1.0078125]
    """
    dtype = dtypes.canonical(dtype)
    if dtype not in (BFLOAT16, FLOAT16):
        raise DTypeError(f"stochastic_round: dtype must be bfloat16 or float16, got {dtype}")
    x = fnp.asarray(x)
    if x.dtype == dtype:
        return x
    if x.dtype != np.float32:
        raise DTypeError(f"stochastic_round: x must be float32, got {x.dtype}")
    return (_to_bfloat16 if dtype == BFLOAT16 else _to_float16)(key, x)


def _to_bfloat16(key: Any, x: Any) -> Any:
    """The upper half of the word, to which a random lower half is added first."""
    word = bitcast_convert_type(x, np.uint32)
    noise = random.bits(key, x.shape, np.uint16).astype(np.uint32)
    high = ((word + noise) >> np.uint32(16)).astype(np.uint16)
    nearest = x.astype(BFLOAT16)
    # The carry would make numbers of infinities and NaN, and infinities of the largest numbers.
    large = ~(fnp.abs(x) <= np.float32(dtypes.finfo(BFLOAT16).max))
    return fnp.where(large, nearest, bitcast_convert_type(high, BFLOAT16))


def _to_float16(key: Any, x: Any) -> Any:
    """Of the two neighbours, the upper one as often as x lies in the upper part between them."""
    nearest = x.astype(FLOAT16)
    near = nearest.astype(np.float32)
    away = fnp.where(x > near, np.float16(np.inf), np.float16(-np.inf))
    other = nextafter(nearest, away)
    far = other.astype(np.float32)
    share = (x - near) / (far - near)
    chance = random.bits(key, x.shape, np.uint32) >> np.uint32(8)
    moves = chance.astype(np.float32) * np.float32(2.0**-24) < share
    return fnp.where(moves & (x != near) & fnp.isfinite(far), other, nearest)


class RoundedState(NamedTuple):
    """The key of the next step's random bits, and the inner state."""

    key: Any
    inner_state: Any


def stochastically_rounded(inner: Any, key: Any) -> GradientTransformationExtraArgs:
    """A step whose parameters may be bfloat16 or float16, and are rounded by chance.

    inner: the step, which sees gradients and parameters in float32, and whose state is of float32.
    Updates of narrow parameters are differences, in float32, to what they are rounded to, so that
    `apply_updates` gives that.

    >>> from funcgrad import optim
    >>> opt = optim.stochastically_rounded(optim.sgd(2.0**-10), random.key(0))
    >>> w = fnp.ones(1000, "bfloat16")
    >>> updates, state = opt.update(-w, opt.init(w), w)
    >>> mean = fnp.mean(optim.apply_updates(w, updates).astype("float32"))
    >>> print(fnp.abs(mean - 1 - 2.0**-10) < 3e-4)
    True
    """
    inner = with_extra_args_support(inner)

    def init(params: Any) -> RoundedState:
        return RoundedState(key, inner.init(tree.map(_wide, params)))

    def update(
        updates: Any, state: RoundedState, params: Any = None, **extra: Any
    ) -> tuple[Any, RoundedState]:
        need_parameters("stochastically_rounded", params)
        later, now = random.split(state.key)
        given = tree.map(_wide, updates)
        out, held = inner.update(given, state.inner_state, tree.map(_wide, params), **extra)
        leaves, structure = tree.flatten(params)
        keys = random.split(now, max(len(leaves), 1))
        changes = map(_rounded, keys, leaves, structure.flatten_up_to(out))
        return structure.unflatten(changes), RoundedState(later, held)

    return GradientTransformationExtraArgs(init, update)


def _wide(x: Any) -> Any:
    x = fnp.asarray(x)
    return x.astype(np.float32) if x.dtype in (BFLOAT16, FLOAT16) else x


def _rounded(key: Any, p: Any, update: Any) -> Any:
    """The update after which a parameter is what its sum with an update is rounded to."""
    wide = _wide(p)
    if wide.dtype == fnp.asarray(p).dtype:
        return update
    return _wide(stochastic_round(key, wide + update, p.dtype)) - wide


def adamw_bf16(
    learning_rate: ScalarOrSchedule,
    key: Any,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 1e-4,
    mask: Any = None,
) -> GradientTransformationExtraArgs:
    """AdamW of bfloat16 parameters without float32 copies: they are rounded stochastically.

    Its arithmetic and its moments are float32. key: of the random bits; see
    `stochastically_rounded`, and `adamw` for the rest.

    >>> from funcgrad import optim
    >>> opt, w = optim.adamw_bf16(0.1, random.key(0)), fnp.ones(2, "bfloat16")
    >>> updates, state = opt.update(w, opt.init(w), w)
    >>> optim.apply_updates(w, updates).dtype
    dtype(bfloat16)
    """
    inner = adamw(learning_rate, b1, b2, eps, weight_decay=weight_decay, mask=mask)
    return stochastically_rounded(inner, key)
