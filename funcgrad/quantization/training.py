"""`qat`: training with the rounding that quantization will do."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

import funcgrad.numpy as fnp
from funcgrad.errors import ArgumentError
from funcgrad.quantization import formats
from funcgrad.quantization.arrays import IntArray
from funcgrad.quantization.configs import Int8Dynamic, Int8Static, WeightOnly
from funcgrad.quantization.convert import choices_of, ranges_of
from funcgrad.quantization.fake import Fake
from funcgrad.transforms.arguments import wraps
from funcgrad.transforms.weights.applied import of_arrays, with_weights
from funcgrad.transforms.weights.leaves import named_leaves, with_leaves
from funcgrad.transforms.weights.uses import Strict


def qat(f: Callable, config: Any) -> Callable:
    """f(params, *inputs) as its quantized function computes it, to train by (quantization-aware).

    Parameters stay arrays of floats. Where `config` (as `fg.quantize` takes it) quantizes one,
    products are those of the quantized array, to the bit, and derivatives are taken as if nothing
    were rounded, where nothing is clipped. `fg.quantize(f, params, config, [inputs])` then gives
    the function that was trained. Params of `prepare` have learned steps or static ranges, too.

    >>> f = lambda params, x: x @ params["w"]
    >>> params, x = {"w": random.normal(random.key(0), (8, 4))}, fnp.ones((2, 8))
    >>> config = fg.quantization.WeightOnly(bits=2)
    >>> trained = fg.qat(f, config)
    >>> grads = fg.grad(lambda p: fnp.sum(trained(p, x) ** 2))(params)
    >>> qf, qparams, _ = fg.quantize(f, params, config, [(x,)])
    >>> bool((qf(qparams, x) == trained(params, x)).all())
    True
    """
    plain = of_arrays(f)

    @wraps(plain, "qat")
    def call(params: Any, *inputs: Any, **named: Any) -> Any:
        choices = choices_of("qat", plain, params, config, inputs)
        leaves = named_leaves(params)
        fakes = {}
        for name, choice in choices.items():
            if choice.reason or isinstance(leaves[name], Fake):
                continue
            if isinstance(choice.config, Int8Static):
                raise ArgumentError(
                    f"qat: Int8Static needs a range for the input of products with {name}: give it "
                    "parameters of quantization.prepare(f, params, config, calibration)"
                )
            fakes[name] = Fake(leaves[name], config=choice.config, axes=choice.axes)
        strict = Strict("qat", [n for n, c in choices.items() if c.named])
        return with_weights(plain, strict)(with_leaves(params, fakes), *inputs, **named)

    call.of_arrays = plain  # type: ignore[attr-defined]
    return call


def prepare(f: Callable, params: Any, config: Any, calibration: Any, learned: bool = False) -> Any:
    """Parameters for `fg.qat(f, config)` with what is beside arrays: static ranges of products'
    inputs, from calibration; with `learned` each scale as an array that is trained, too (LSQ), for
    `Int8Dynamic`, `Int8Static` and `WeightOnly`, which then are symmetric.

    The result is a tree of arrays, for grad and optimizers; ranges have no derivative.

    >>> f = lambda params, x: x @ params["w"]
    >>> params, x = {"w": random.normal(random.key(0), (8, 4))}, fnp.ones((2, 8))
    >>> config = fg.quantization.WeightOnly(bits=4)
    >>> prepared = fg.quantization.prepare(f, params, config, [(x,)], learned=True)
    >>> fg.grad(lambda p: fnp.sum(fg.qat(f, config)(p, x)))(prepared)["w"].step.shape
    (1, 4)
    """
    choices, ranges = ranges_of("prepare", f, params, config, calibration)
    leaves = named_leaves(params)
    fakes = {}
    for name, choice in choices.items():
        if choice.reason:
            continue
        fake = Fake(fnp.asarray(leaves[name]), config=choice.config, axes=choice.axes)
        if learned:
            fake = replace(fake, step=_first_step(name, fake))
        if name in ranges:
            fake = replace(fake, x_scale=ranges[name].x_scale, x_zero=ranges[name].x_zero)
        fakes[name] = fake
    return with_leaves(params, fakes)


def _first_step(name: str, fake: Fake) -> Any:
    """The first of the learned steps: amax / qmax, of 2 bits the paper's 2 · mean|w| / √qmax."""
    config = fake.config
    if not isinstance(config, WeightOnly | Int8Dynamic | Int8Static):
        raise ArgumentError(
            f"prepare: steps are learned for WeightOnly, Int8Dynamic and Int8Static; the parameter "
            f"{name} is for {type(config).__name__}"
        )
    symmetric = replace(config, symmetric=True) if isinstance(config, WeightOnly) else config
    found = symmetric.encode(fake.w, fake.axes)
    assert isinstance(found, IntArray)
    if found.width > 2:
        return found.scale
    _, top = formats.limits(found.width, True)
    axis, w = found.axis, fnp.abs(fake.w.astype("float32"))
    if found.group:
        mean = fnp.mean(formats.split_groups(w, axis, found.group), axis=axis)
    else:
        axes = tuple(i for i, n in enumerate(found.scale.shape) if n != fake.shape[i])
        mean = fnp.mean(w, axis=axes, keepdims=True)
    return formats.positive(2 * mean / np.float32(math.sqrt(top)))
