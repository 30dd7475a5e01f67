"""`qat`: training with the rounding that quantization will do."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

import funcgrad.numpy as fnp
from funcgrad.errors import ArgumentError
from funcgrad.quantization import formats
from funcgrad.quantization.arrays import IntArray
from funcgrad.quantization.calibration import observe
from funcgrad.quantization.configs import Int8Dynamic, Int8Static, WeightOnly
from funcgrad.quantization.convert import choices_of, range_of, ranges_of
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
            low, high = ranges[name]
            fake = replace(fake, x_low=low, x_high=high)
        fakes[name] = fake
    return with_leaves(params, fakes)


def update_ranges(f: Callable, params: Any, *inputs: Any, rate: float = 0.01) -> Any:
    """Parameters of `prepare` whose static ranges moved towards what f(params, *inputs) multiplies
    with them, as far as `rate` says: averages of each call's ends, where they are updated between
    steps of training. Ranges that aren't are frozen. Not for functions that are traced.

    Raises ArgumentError for parameters without static ranges, and a rate outside of (0, 1].

    >>> f = lambda params, x: x @ params["w"]
    >>> params, x = {"w": fnp.ones((8, 4))}, fnp.ones((2, 8))
    >>> prepared = fg.quantization.prepare(f, params, fg.quantization.Int8Static(), [(x,)])
    >>> fg.quantization.update_ranges(f, prepared, 3 * x, rate=0.5)["w"].x_high
    Array([[2.]], dtype=float32)
    """
    if not 0 < rate <= 1:
        raise ArgumentError(f"update_ranges: rate must be in (0, 1], got {rate}")
    leaves = named_leaves(params)
    fakes = {n: x for n, x in leaves.items() if isinstance(x, Fake) and x.x_low is not None}
    if not fakes:
        raise ArgumentError(
            "update_ranges: none of the parameters has a static range; give it parameters of "
            "quantization.prepare with Int8Static"
        )
    stacks = {name: _n_stack(fake) for name, fake in fakes.items()}
    plain = with_leaves(params, {n: x.dense() for n, x in leaves.items() if isinstance(x, Fake)})
    examples = observe(of_arrays(f), plain, stacks, [inputs])
    moved = {}
    for name, fake in fakes.items():
        assert isinstance(fake.config, Int8Static)
        ends = range_of(name, fake.shape, stacks[name], fake.config.observer, examples.get(name))
        low, high = (
            old + np.float32(rate) * (new - old)
            for old, new in zip((fake.x_low, fake.x_high), ends, strict=True)
        )
        moved[name] = replace(fake, x_low=low, x_high=high)
    return with_leaves(params, moved)


def _n_stack(fake: Fake) -> int:
    """How many axes in front have a range for each element."""
    n = len(fake.shape) + min(fake.axes)
    sizes = zip(fake.x_low.shape[:n], fake.shape, strict=False)
    return len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], sizes)))


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
