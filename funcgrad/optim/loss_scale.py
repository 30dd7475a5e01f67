"""Loss scaling: gradients of small numbers in float16, kept from vanishing.

The loss is multiplied before it is differentiated, the gradients divided after. A step whose
gradients aren't finite is skipped, and the factor halved; after many that were, it is doubled.
(Micikevicius et al., "Mixed Precision Training", 2018.) All of it are values of the program: what
is skipped is selected, and nothing waits for the host.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import tree
from funcgrad.core.display.tracebacks import boundary
from funcgrad.errors import ArgumentError, TreeError
from funcgrad.optim.base import wide
from funcgrad.optim.conditions import all_finite
from funcgrad.optim.moments import no_steps
from funcgrad.transforms.arguments import name_of, wraps
from funcgrad.transforms.derivatives.grad import value_and_grad


def _static(default: Any) -> Any:
    return field(default=default, metadata={"static": True})


@tree.register_dataclass
@dataclass(frozen=True)
class LossScale:
    """What losses are multiplied by, and since how many steps: a pytree of two scalars.

    scale: float32; count: steps since it changed, int32. interval: how many finite steps double it;
    factor: by how much it grows, and shrinks where a step wasn't finite; least: its smallest value.

    >>> from funcgrad import optim
    >>> scale = optim.LossScale()
    >>> print(scale.scale, scale.adjusted(False).scale)
    65536.0 32768.0
    """

    scale: Any = field(default_factory=lambda: fnp.asarray(2.0**16, np.float32))
    count: Any = field(default_factory=no_steps)
    interval: int = _static(2000)
    factor: float = _static(2.0)
    least: float = _static(1.0)

    @staticmethod
    def of(
        scale: float = 2.0**16, interval: int = 2000, factor: float = 2.0, least: float = 1.0
    ) -> LossScale:
        """One with other numbers than the usual ones, checked.

        >>> from funcgrad import optim
        >>> print(optim.LossScale.of(1024.0, interval=500).scale)
        1024.0
        """
        for name, value, low in (("scale", scale, least), ("interval", interval, 1)):
            if not (low <= value < math.inf):
                raise ArgumentError(f"LossScale: {name} must be finite and ≥ {low}, got {value}")
        if not (1 < factor < math.inf and least > 0):
            raise ArgumentError(
                f"LossScale: need factor > 1 and least > 0, got {factor} and {least}"
            )
        return LossScale(fnp.asarray(scale, np.float32), no_steps(), interval, factor, least)

    def adjusted(self, finite: Any) -> LossScale:
        """The scale of the next step, given whether this one's gradients were finite.

        >>> from funcgrad import optim
        >>> print(optim.LossScale.of(8.0, interval=1).adjusted(True).scale)
        16.0
        """
        count = self.count + 1
        grow = count >= self.interval
        # Not beyond what float32 holds.
        larger = fnp.minimum(self.scale * self.factor, np.float32(2.0**127))
        smaller = fnp.maximum(self.scale / self.factor, np.float32(self.least))
        scale = fnp.where(finite, fnp.where(grow, larger, self.scale), smaller)
        start = fnp.zeros_like(count)
        return replace(self, scale=scale, count=fnp.where(finite & ~grow, count, start))


def scaled_value_and_grad(
    fun: Callable, argnums: int | Sequence[int] = 0, has_aux: bool = False
) -> Callable:
    """`value_and_grad` with a loss scale: (scale, *args) → (new scale, finite, value, grads).

    The first argument is an `optim.LossScale`, what comes back that of the next step. `finite` says
    whether all gradients are; where they aren't, skip the step by `optim.select`. The value is as
    `fun` gives it (with has_aux the pair of it and what else it gives), the gradients are those of
    it, divided in float32. bfloat16, which has float32's range, needs none of this.

    >>> loss = fg.autocast(lambda w, x: fnp.mean((x @ w) ** 2), "float16")
    >>> w, x, opt = fnp.ones(3), fnp.ones((2, 3)), optim.adam(0.1)
    >>> state, scale = opt.init(w), optim.LossScale()
    >>> scale, finite, value, grads = fg.scaled_value_and_grad(loss)(scale, w, x)
    >>> updates, new = opt.update(grads, state, w)
    >>> w, state = optim.select(finite, (optim.apply_updates(w, updates), new), (w, state))
    >>> print(finite, value, w, scale.scale)
    False 9.0 [1. 1. 1.] 32768.0
    """

    def scaled(factor: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        out = fun(*args, **kwargs)
        value = out[0] if has_aux else out
        # In float32: a float16 loss times the scale would be infinite.
        return wide(value) * fnp.asarray(factor, wide(value).dtype), out

    scaled.__name__ = name_of(fun)
    nums = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    if any(n < 0 for n in nums):
        raise ArgumentError(f"scaled_value_and_grad: argnums must be ≥ 0, got {argnums}")
    behind = nums[0] + 1 if isinstance(argnums, int) else tuple(n + 1 for n in nums)
    gradients = value_and_grad(scaled, behind, has_aux=True)

    @wraps(fun, "scaled_value_and_grad")
    @boundary
    def both(scale: LossScale, *args: Any, **kwargs: Any) -> tuple[LossScale, Any, Any, Any]:
        if not isinstance(scale, LossScale):
            raise ArgumentError(
                f"scaled_value_and_grad of {name_of(fun)}: the first argument must be an "
                f"optim.LossScale, got {scale!r}"
            )
        (_, value), found = gradients(scale.scale, *args, **kwargs)
        grads = tree.map(lambda g: _divided(g, scale.scale), found)
        finite = all_finite(grads)
        return scale.adjusted(finite), finite, value, grads

    return both


def _divided(g: Any, scale: Any) -> Any:
    """A gradient divided by the scale, computed in float32 or wider."""
    x = wide(g)
    return (x / scale.astype(fnp.real(x).dtype)).astype(g.dtype)


def select(pred: Any, on_true: Any, on_false: Any) -> Any:
    """One of two pytrees of arrays of the same types, to the bit: `on_true` where pred holds.

    For steps that may have to be skipped; nothing waits for the host.
    Raises TreeError where the pytrees differ in structure, ArgumentError where arrays differ.

    >>> from funcgrad import optim
    >>> print(optim.select(fnp.array(False), {"w": fnp.inf}, {"w": 1.0})["w"])
    1.0
    """
    if tree.structure(on_true) != tree.structure(on_false):
        raise TreeError(
            f"optim.select: both must have one structure, got {tree.structure(on_true)} and "
            f"{tree.structure(on_false)}"
        )

    def one(path: Any, x: Any, y: Any) -> Any:
        x, y = fnp.asarray(x), fnp.asarray(y)
        if (x.shape, x.dtype) != (y.shape, y.dtype):
            raise ArgumentError(
                f"optim.select: {tree.keystr(path) or 'the values'} must be of one type, got "
                f"{x.dtype}{list(x.shape)} and {y.dtype}{list(y.shape)}"
            )
        return fnp.where(pred, x, y)

    return tree.map_with_path(one, on_true, on_false)
