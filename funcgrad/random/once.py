"""Loops of eager samplers: written down once for each type of their arguments, not at each call."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from funcgrad import tree
from funcgrad.core import context
from funcgrad.core.trace import Tracer
from funcgrad.transforms.jit.jit import Jitted, jit


def traced_once(*static: int) -> Callable[[Callable], Callable]:
    """Decorates a function of arrays (and of static arguments, at these positions), so that where
    it is evaluated op by op, what it does is recorded at first and then replayed on NumPy.

    Nothing is compiled, and under transformations, or `jit`, it is the function it was.

    >>> import funcgrad.numpy as fnp
    >>> @traced_once(1)
    ... def add(x, n):
    ...     print("traced")
    ...     return x + n
    >>> add(fnp.ones(1), 2), add(fnp.ones(1), 2)
    traced
    (Array([3.], dtype=float32), Array([3.], dtype=float32))
    """

    def decorate(fun: Callable) -> Callable:
        recorded: Jitted = jit(fun, static_argnums=static, backend="numpy")
        recorded.expect_many_types()

        @functools.wraps(fun)
        def call(*args: Any) -> Any:
            ctx = context.current()
            if ctx.trace is not context.ROOT.trace or ctx.disable_jit or ctx.checks:
                return fun(*args)
            if any(isinstance(x, Tracer) for x in tree.leaves(args)):
                return fun(*args)
            return recorded(*args)

        return call

    return decorate
