"""Adam whose moments take 8 bits each: a quarter of the memory.

Blocks of 256 numbers are divided by their largest, and held as the nearest of 256 numbers between
-1 and 1 (0 and 1 for second moments), of which there are as many for each power of ten as it can
tell apart. (Dettmers et al., "8-bit Optimizers via Block-wise Quantization", 2022.)
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import tree
from funcgrad.errors import ArgumentError
from funcgrad.optim.base import (
    GradientTransformation,
    GradientTransformationExtraArgs,
    abs_square,
    chain,
    wide,
)
from funcgrad.optim.moments import debias, no_steps
from funcgrad.optim.updates import ScalarOrSchedule, add_decayed_weights, scale_by_learning_rate

_POWERS = 7


class Blocks(NamedTuple):
    """Numbers of 8 bits: codes (uint8) in the shape of what they stand for, and the largest size in
    each block of them (float32), in the order of memory."""

    codes: Any
    largest: Any


class Adam8bitState(NamedTuple):
    """Step count, first and second moments: `Blocks`, or float32 arrays where they are small."""

    count: Any
    mu: Any
    nu: Any


@cache
def dynamic_map(signed: bool) -> np.ndarray:
    """The 256 numbers that codes stand for, ascending: 0 and 1, and for each power of ten from 10⁻⁶
    to 1 the middles of equal parts of what lies between its tenth and itself; for each power twice
    as many as for the one below.

    >>> print(dynamic_map(False)[:3], dynamic_map(True)[[0, -1]])
    [0.00e+00 3.25e-07 7.75e-07] [-0.99296874  1.        ]
    """
    found = [0.0, 1.0]
    for i in range(_POWERS):
        edges = np.linspace(0.1, 1.0, 2 ** (i + (not signed)) + 1)
        middles = 10.0 ** (i - _POWERS + 1) * (edges[:-1] + edges[1:]) / 2
        found += [*middles, *(-middles if signed else ())]
    return np.sort(np.array(found)).astype(np.float32)


def quantized(x: Any, signed: bool, block: int = 256) -> Blocks:
    """x (float32) as numbers of 8 bits; without `signed`, x ≥ 0, of which none but 0 becomes 0.

    >>> codes = quantized(fnp.array([0.5, -1.0, 0.0]), True)
    >>> print(codes.largest, dequantized(codes, True))
    [1.] [ 0.5...  -0.99...  0.    ]
    """
    numbers = dynamic_map(signed)
    blocks = fnp.pad(x.ravel(), (0, -x.size % block)).reshape(-1, block)
    largest = fnp.max(fnp.abs(blocks), axis=1)
    shares = blocks / fnp.where(largest == 0, 1, largest)[:, None]
    between = fnp.asarray((numbers[:-1] + numbers[1:]) / 2)
    codes = fnp.searchsorted(between, shares).astype(np.uint8)
    if not signed:
        # A second moment of 0 beside a first one that isn't would be a step without bounds.
        codes = fnp.where(shares > 0, fnp.maximum(codes, np.uint8(1)), codes)
    return Blocks(codes.ravel()[: x.size].reshape(x.shape), largest)


def dequantized(held: Blocks, signed: bool, block: int = 256) -> Any:
    """The float32 numbers that `quantized` holds.

    >>> print(dequantized(quantized(fnp.array([4.0, 0.0]), False), False))
    [4. 0.]
    """
    codes = held.codes
    shares = fnp.asarray(dynamic_map(signed))[codes.astype(np.int32)]
    factors = fnp.repeat(held.largest, block)[: codes.size].reshape(codes.shape)
    return shares * factors


def scale_by_adam8bit(
    b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8, block: int = 256, least: int = 4096
) -> GradientTransformation:
    """`scale_by_adam` whose moments are held in 8 bits, in blocks of `block` numbers.

    least: arrays of fewer elements keep float32 moments, as those of embeddings should (use
    `partition`). Arithmetic is of float32.

    >>> from funcgrad import optim
    >>> step, w = optim.scale_by_adam8bit(), fnp.ones((64, 64))
    >>> out, state = step.update(0.5 * w, step.init(w))
    >>> print(state.mu.codes.dtype, out[0, 0])
    uint8 1.0
    """
    if not isinstance(block, int) or block < 1 or least < 0:
        raise ArgumentError(
            f"scale_by_adam8bit: need block ≥ 1 and least ≥ 0, got {block!r} and {least!r}"
        )

    def zero(p: Any, signed: bool) -> Any:
        p = fnp.asarray(p)
        if p.dtype.kind == "c" or not fnp.issubdtype(p.dtype, fnp.floating):
            raise ArgumentError(f"scale_by_adam8bit: parameters must be real floats, got {p.dtype}")
        zeros = fnp.zeros(p.shape, np.float32)
        return quantized(zeros, signed, block) if p.size >= least else zeros

    def init(params: Any) -> Adam8bitState:
        mu, nu = (tree.map(lambda p, s=s: zero(p, s), params) for s in (True, False))
        return Adam8bitState(no_steps(), mu, nu)

    def update(updates: Any, state: Adam8bitState, params: Any = None) -> tuple:
        count = state.count + 1
        first, second = (debias(b, count)(np.dtype(np.float32)) for b in (b1, b2))

        def one(g: Any, mu: Any, nu: Any) -> tuple[Any, Any, Any]:
            x = wide(g).astype(np.float32)
            m = (1 - b1) * x + b1 * _opened(mu, True, block)
            v = (1 - b2) * abs_square(x) + b2 * _opened(nu, False, block)
            out = m * first / (fnp.sqrt(v * second) + eps)
            return out.astype(fnp.asarray(g).dtype), _closed(m, mu, True), _closed(v, nu, False)

        def _closed(x: Any, like: Any, signed: bool) -> Any:
            return quantized(x, signed, block) if isinstance(like, Blocks) else x

        leaves, structure = tree.flatten(updates)
        held = map(structure.flatten_up_to, (state.mu, state.nu))
        found = [one(*each) for each in zip(leaves, *held, strict=True)]
        out, mu, nu = (structure.unflatten([f[i] for f in found]) for i in range(3))
        return out, Adam8bitState(count, mu, nu)

    return GradientTransformation(init, update)


def _opened(held: Any, signed: bool, block: int) -> Any:
    return dequantized(held, signed, block) if isinstance(held, Blocks) else held


def adam8bit(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    mask: Any = None,
    block: int = 256,
    least: int = 4096,
) -> GradientTransformationExtraArgs:
    """`adamw` with moments of 8 bits; see `scale_by_adam8bit`. Without weight decay by default.

    >>> from funcgrad import optim
    >>> opt, w = optim.adam8bit(0.1), fnp.ones((64, 64))
    >>> updates, state = opt.update(w, opt.init(w), w)
    >>> print(updates[0, 0])
    -0.1
    """
    decay = [add_decayed_weights(weight_decay, mask)] if weight_decay else []
    return chain(
        scale_by_adam8bit(b1, b2, eps, block, least),
        *decay,
        scale_by_learning_rate(learning_rate),
    )
