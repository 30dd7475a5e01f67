"""The samplers that everything uses: uniform, normal, integers, choices, permutations."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import dtypes
from funcgrad.core.context import current
from funcgrad.core.trace import aval_of
from funcgrad.errors import DTypeError, ShapeError
from funcgrad.numpy._util import index_dtype
from funcgrad.ops.arguments import canonical_axis
from funcgrad.ops.elementwise.compare import bitwise_or, shift_right_logical
from funcgrad.ops.elementwise.convert import bitcast_convert_type
from funcgrad.ops.elementwise.special import erf, erf_inv
from funcgrad.ops.sort import sort_key_val, top_k
from funcgrad.random.keys import random_words, sampler, split
from funcgrad.transforms.recorded import recorded


def float_dtype(what: str, dtype: Any, complex_too: bool = False) -> np.dtype:
    """The dtype of a draw: the default float where nothing is asked for."""
    found = current().float_dtype if dtype is None else dtypes.canonical(dtype)
    if not dtypes.is_float(found) and not (complex_too and dtypes.is_complex(found)):
        raise DTypeError(f"{what}: dtype must be a floating-point one, got {found}")
    return found


def shape_with(what: str, shape: Any, **parameters: Any) -> tuple[int, ...]:
    """The shape of a draw: that of the parameters where None, else checked to fit theirs."""
    shapes = [np.shape(p) if np.isscalar(p) else aval_of(p).shape for p in parameters.values()]
    joint = np.broadcast_shapes(*shapes)
    if shape is None:
        return joint
    try:
        fits = np.broadcast_shapes(shape, joint) == shape
    except ValueError:
        fits = False
    if not fits:
        listed = ", ".join(f"{n} {s}" for n, s in zip(parameters, shapes, strict=True))
        raise ShapeError(f"{what}: shape {shape} doesn't fit the parameters' shapes: {listed}")
    return shape


def arguments(what: str, shape: Any, dtype: Any, **parameters: Any) -> Any:
    """The dtype of a draw, its shape as `shape_with` has it, and the parameters in that dtype.

    >>> arguments("random.t", None, "float64", df=[1, 2])
    (dtype('float64'), (2,), Array([1., 2.], dtype=float64))
    """
    dtype = float_dtype(what, dtype)
    arrays = {name: fnp.asarray(value, dtype) for name, value in parameters.items()}
    return dtype, shape_with(what, shape, **arrays), *arrays.values()


@sampler
@recorded
def uniform(
    key: Any, shape: Any = (), dtype: Any = None, minval: Any = 0.0, maxval: Any = 1.0
) -> Any:
    """Uniform on [minval, maxval), with all bits of the mantissa random.

    >>> from funcgrad import random
    >>> print(random.uniform(random.key(0), (2,)))
    [0.947667  0.9785799]
    """
    dtype = float_dtype("random.uniform", dtype)
    low, high = fnp.asarray(minval, dtype), fnp.asarray(maxval, dtype)
    shape_with("random.uniform", shape, minval=low, maxval=high)
    info = dtypes.finfo(dtype)
    nmant = info.nmant
    # Formats with few mantissa bits need only a byte of randomness.
    width = 8 if nmant < 8 else info.bits
    words = random_words("random.uniform", key, shape, np.dtype(f"uint{width}"))
    if width != info.bits:
        words = words.astype(f"uint{info.bits}")
    one = np.array(1.0, dtype).view(f"uint{info.bits}")
    shift = words.dtype.type(width - nmant)
    in_one_two = bitwise_or(shift_right_logical(words, shift), one)
    unit = bitcast_convert_type(in_one_two, dtype) - np.array(1.0, dtype)
    return fnp.maximum(low, unit * (high - low) + low)


@sampler
@recorded
def normal(key: Any, shape: Any = (), dtype: Any = None) -> Any:
    """Normal with mean 0 and variance 1; complex ones have independent parts of variance 1/2.

    >>> from funcgrad import random
    >>> print(random.normal(random.key(0), (2,)))
    [1.6226... 2.0252...]
    """
    dtype = float_dtype("random.normal", dtype, complex_too=True)
    if dtypes.is_complex(dtype):
        k1, k2 = split(key)
        part = dtypes.real_part(dtype)
        both = normal(k1, shape, part) + 1j * normal(k2, shape, part)
        return (both / math.sqrt(2)).astype(dtype)
    low = np.nextafter(np.array(-1.0, dtype), np.array(0.0, dtype), dtype=dtype)
    u = uniform(key, shape, dtype, low, 1.0)
    return np.array(math.sqrt(2), dtype) * erf_inv(u)


@sampler
@recorded
def truncated_normal(key: Any, lower: Any, upper: Any, shape: Any = None, dtype: Any = None) -> Any:
    """Normal with mean 0 and variance 1, given that it lies between lower and upper.

    >>> from funcgrad import random
    >>> x = random.truncated_normal(random.key(0), -1.0, 1.0, (100,))
    >>> bool((fnp.abs(x) <= 1).all())
    True
    """
    dtype, shape, lower, upper = arguments(
        "random.truncated_normal", shape, dtype, lower=lower, upper=upper
    )
    root = np.array(math.sqrt(2), dtype)
    u = uniform(key, shape, dtype, erf(lower / root), erf(upper / root))
    inside_low = fnp.nextafter(lower, fnp.asarray(np.inf, dtype))
    inside_high = fnp.nextafter(upper, fnp.asarray(-np.inf, dtype))
    return fnp.clip(root * erf_inv(u), inside_low, inside_high)


@sampler
@recorded
def randint(key: Any, shape: Any, minval: Any, maxval: Any, dtype: Any = None) -> Any:
    """Uniform integers from minval to maxval - 1 (default dtype int32).

    Limits outside of the dtype's range are moved into it; maxval may be one past its largest value.
    Where maxval ≤ minval the draw is minval.

    >>> from funcgrad import random
    >>> print(random.randint(random.key(0), (3,), 0, 10))
    [9 0 2]
    """
    dtype = current().int_dtype if dtype is None else dtypes.canonical(dtype)
    if not dtypes.is_integer(dtype):
        raise DTypeError(f"random.randint: dtype must be an integer one, got {dtype}")
    for name, v in (("minval", minval), ("maxval", maxval)):
        if not dtypes.is_integer(aval_of(v).dtype):
            raise DTypeError(f"random.randint: {name} must be an integer, got {aval_of(v)}")
    info = dtypes.iinfo(dtype)
    least, most = int(info.min), int(info.max)
    if info.bits < 32:
        # Of few words a remainder would favour some numbers.
        low, high = (
            _within(minval, least, most, np.int32),
            _within(maxval, least, most + 1, np.int32),
        )
        return _integers(key, shape, low, high, False).astype(dtype)
    low, high = _within(minval, least, most, dtype), _within(maxval, least, most, dtype)
    past_end = maxval > most if isinstance(maxval, int) else _exceeds(maxval, dtype)
    return _integers(key, shape, low, high, past_end)


def _within(v: Any, least: int, most: int, dtype: Any) -> Any:
    """v moved into least … most, as an array of dtype; NumPy's where v is known."""
    if isinstance(v, int):
        return np.asarray(min(max(v, least), most), dtype)
    v = fnp.asarray(v)
    info = dtypes.iinfo(v.dtype)
    return fnp.clip(v, max(least, int(info.min)), min(most, int(info.max))).astype(dtype)


def _exceeds(v: Any, dtype: np.dtype) -> Any:
    """Where the integers v lie past the end of a dtype."""
    v = fnp.asarray(v)
    most = int(dtypes.iinfo(dtype).max)
    return v > v.dtype.type(most) if int(dtypes.iinfo(v.dtype).max) > most else False


def _integers(key: Any, shape: tuple[int, ...], low: Any, high: Any, past_end: Any) -> Any:
    """Integers from low to high - 1, or to high where past_end says so, of 32 or 64 bits."""
    dtype = low.dtype
    bits = dtype.itemsize * 8
    unsigned = np.dtype(f"uint{bits}")
    shape_with("random.randint", shape, minval=low, maxval=high)
    known = all(isinstance(v, np.ndarray | bool) for v in (low, high, past_end))
    xp = np if known else fnp
    with np.errstate(over="ignore"):
        span = (xp.asarray(high) - low).astype(unsigned) + xp.asarray(past_end, unsigned)
        span = xp.where(xp.asarray(high) > low, span, xp.ones_like(span))
        # (upper·2ᵇ + lower) mod span, without a wider integer; span 0 stands for 2ᵇ.
        whole = span == 0
        safe = xp.where(whole, xp.ones_like(span), span)
        half = np.array(1 << (bits // 2), unsigned) % safe
        factor = (half * half) % safe
    k1, k2 = split(key)
    upper = random_words("random.randint", k1, shape, unsigned)
    lower = random_words("random.randint", k2, shape, unsigned)
    if known and whole:
        return low + lower.astype(dtype)
    offset = ((upper % safe) * factor + lower % safe) % safe
    offset = offset if known else fnp.where(whole, lower, offset)
    return low + offset.astype(dtype)


@sampler
@recorded
def bernoulli(key: Any, p: Any = 0.5, shape: Any = None, mode: str = "low") -> Any:
    """True with probability p. mode="high": with twice the random bits, so that p may be tiny.

    >>> from funcgrad import random
    >>> print(random.bernoulli(random.key(0), 0.5, (3,)))
    [False False  True]
    """
    p = fnp.asarray(p)
    if not dtypes.is_float(p.dtype):
        p = p.astype(current().float_dtype)
    shape = shape_with("random.bernoulli", shape, p=p)
    if _is_low("random.bernoulli", mode, ("low", "high")):
        return uniform(key, shape, p.dtype) < p
    high, low = uniform(key, (2, *shape), p.dtype)
    return low * 2.0 ** -dtypes.finfo(p.dtype).nmant < p - high


def _is_low(what: str, mode: str | None, modes: tuple[str, ...]) -> bool:
    if mode is not None and mode not in modes:
        raise ValueError(f"{what}: mode must be one of {', '.join(modes)}, got {mode!r}")
    return mode is None or mode == "low"


@sampler
@recorded
def rademacher(key: Any, shape: Any = (), dtype: Any = None) -> Any:
    """-1 or 1 with equal probability.

    >>> from funcgrad import random
    >>> print(random.rademacher(random.key(0), (3,)))
    [-1 -1  1]
    """
    dtype = current().int_dtype if dtype is None else dtypes.canonical(dtype)
    return (2 * bernoulli(key, 0.5, shape).astype(dtype) - 1).astype(dtype)


def gumbel_noise(what: str, key: Any, shape: Any, dtype: np.dtype, mode: str | None) -> Any:
    """-log(-log(u)) for uniform u > 0: the noise whose argmax draws from logits. mode="high" joins
    two draws to one u, whose small values then have more bits."""
    info = dtypes.finfo(dtype)
    tiny = np.array(info.tiny, dtype)
    if not _is_low(what, mode, ("low", "high")):
        high, low = uniform(key, (2, *shape), dtype)
        fine = high + np.array(2.0**-info.nmant, dtype) * low + tiny
        return -fnp.log(-fnp.log1p(-fnp.where(high >= 0.5, high, fine)))
    return -fnp.log(-fnp.log(uniform(key, shape, dtype, tiny, 1.0)))


@sampler
@recorded
def categorical(
    key: Any,
    logits: Any,
    axis: int = -1,
    shape: Any = None,
    replace: bool = True,
    mode: str | None = None,
) -> Any:
    """Indices drawn with probability softmax(logits) along `axis` (Gumbel's trick).

    shape: of the result; it ends with the shape of logits without `axis`. replace=False: no index
    twice along the leading axes of `shape`. mode: "low" or "high", as `gumbel` has it.

    >>> from funcgrad import random
    >>> print(random.categorical(random.key(0), fnp.array([-fnp.inf, 0.0])))
    1
    """
    what = "random.categorical"
    logits = fnp.asarray(logits)
    if not dtypes.is_float(logits.dtype):
        logits = logits.astype(current().float_dtype)
    if not logits.ndim:
        raise ShapeError("random.categorical: the logits need at least one axis, got a scalar")
    axis = canonical_axis("random.categorical", axis, logits.ndim)
    batch = logits.shape[:axis] + logits.shape[axis + 1 :]
    shape = batch if shape is None else shape
    lanes = len(shape) - len(batch)
    prefix, ending = shape[: max(lanes, 0)], shape[max(lanes, 0) :]
    fits = lanes >= 0 and all(b in (1, n) for b, n in zip(batch, ending, strict=True))
    if not fits or (not replace and ending != batch):
        raise ShapeError(
            f"random.categorical: shape {shape} must end with the shape {batch} of logits "
            f"{logits.shape} without axis {axis}"
        )
    if not replace:
        if math.prod(prefix) > logits.shape[axis]:
            raise ValueError(
                f"random.categorical: can't draw {math.prod(prefix)} of {logits.shape[axis]} "
                "categories without repeats"
            )
        noisy = fnp.moveaxis(
            logits + gumbel_noise(what, key, logits.shape, logits.dtype, mode), axis, -1
        )
        chosen = top_k(noisy, math.prod(prefix))[1]
        return fnp.moveaxis(chosen, -1, 0).reshape(shape)
    noise_shape = (*prefix, *ending[:axis], logits.shape[axis], *ending[axis:])
    noisy = gumbel_noise(what, key, noise_shape, logits.dtype, mode) + logits
    return fnp.argmax(noisy, axis=axis + lanes)


@sampler
@recorded
def permutation(key: Any, x: Any, axis: int = 0, independent: bool = False) -> Any:
    """A random permutation of 0 … x-1 for an integer x, or of an array along `axis`.

    independent: each slice along the axis is permuted in its own way.

    >>> from funcgrad import random
    >>> print(sorted(random.permutation(random.key(0), 4).tolist()))
    [0, 1, 2, 3]
    """
    if isinstance(x, int | np.integer):
        return _shuffle(key, fnp.arange(x, dtype=index_dtype(x)), 0)
    x = fnp.asarray(x)
    if not x.ndim:
        raise ShapeError("random.permutation: need an integer or an array with axes, got a scalar")
    axis = canonical_axis("random.permutation", axis, x.ndim)
    if independent or x.ndim == 1:
        return _shuffle(key, x, axis)
    n = x.shape[axis]
    return fnp.take(x, _shuffle(key, fnp.arange(n, dtype=index_dtype(n)), 0), axis=axis)


def _shuffle(key: Any, x: Any, axis: int) -> Any:
    # Sorting by random words; enough rounds that ties leave no trace.
    rounds = math.ceil(3 * math.log(max(1, x.size)) / math.log(2**32 - 1))
    for _ in range(rounds):
        key, sub = split(key)
        words = random_words("random.permutation", sub, x.shape, np.dtype(np.uint32))
        _, x = sort_key_val(words, x, axis)
    return x


@sampler
@recorded
def choice(
    key: Any,
    a: Any,
    shape: Any = (),
    replace: bool = True,
    p: Any = None,
    axis: int = 0,
    mode: str | None = None,
) -> Any:
    """Random elements of an array along `axis` (of 0 … a-1 for an integer a).

    p: their probabilities (uniform if None). replace=False: no element twice.
    mode: "low" or "high", as `gumbel` has it, where both are given.

    >>> from funcgrad import random
    >>> sorted(random.choice(random.key(0), 3, (3,), replace=False).tolist())
    [0, 1, 2]
    """
    count = math.prod(shape)
    whole = isinstance(a, int | np.integer)
    if whole:
        n = int(a)
    else:
        a = fnp.asarray(a)
        axis = canonical_axis("random.choice", axis, a.ndim)
        n = a.shape[axis]
    if n < 1 and count:
        raise ValueError("random.choice: there is nothing to choose from (a is empty)")
    if not replace and count > n:
        raise ValueError(f"random.choice: can't choose {count} of {n} elements without repeats")
    if p is not None and aval_of(fnp.asarray(p)).shape != (n,):
        raise ShapeError(f"random.choice: p must have shape ({n},), got {fnp.asarray(p).shape}")
    if p is None and replace:
        index = randint(key, shape, 0, n, index_dtype(n))
    elif p is None:
        order = permutation(key, n)[:count]
        index = order.reshape(shape)
    elif replace:
        total = fnp.cumsum(fnp.asarray(p))
        r = total[-1] * (1 - uniform(key, shape, total.dtype))
        index = fnp.searchsorted(total, r).astype(index_dtype(n))
    else:
        p = fnp.asarray(p)
        noisy = gumbel_noise("random.choice", key, (n,), p.dtype, mode) + fnp.log(p)
        index = top_k(noisy, count)[1].reshape(shape)
    if whole:
        return index
    taken = fnp.take(a, index.reshape(-1), axis=axis)
    return taken.reshape(*a.shape[:axis], *shape, *a.shape[axis + 1 :])
