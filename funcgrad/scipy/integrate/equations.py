"""Users' equations as functions of vectors, with all that they depend on as arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import funcgrad.numpy as fnp
from funcgrad import dtypes, tree
from funcgrad.errors import ArgumentError, TreeError
from funcgrad.numpy._util import promote_inexact
from funcgrad.scipy.integrate.adaptive import ravel
from funcgrad.transforms.batching.vmap import vmap
from funcgrad.transforms.derivatives.custom import closure_convert


def closed(name: str, func: Callable, y0: Any, t: Any, args: Any) -> tuple:
    """(start, back, fun, operands, fixed): the first state as a vector, the function that makes
    pytrees of rows of vectors, and the equation as fun(vector, t, operands, fixed) with the
    operands that have derivatives and those that don't."""
    for leaf in tree.leaves((y0, args)):
        try:
            fnp.asarray(leaf)
        except (TypeError, ValueError) as e:
            raise ArgumentError(
                f"{name}: the contents of y0 and args must be arrays or scalars, but got {leaf!r}"
            ) from e
    y0 = tree.map(lambda x: promote_inexact(name, fnp.asarray(x))[0], y0)
    start, unravel = ravel(y0)
    structure, types = tree.structure(y0), [x.shape for x in tree.leaves(y0)]
    leaves, args_tree = tree.flatten(args)
    leaves = [fnp.asarray(x) for x in leaves]

    def plain(v: Any, t: Any, *leaves: Any) -> Any:
        out = func(unravel(v), t, *args_tree.unflatten(leaves))
        found = tree.leaves(out)
        if len(found) != len(types) or [fnp.shape(x) for x in found] != types:
            raise TreeError(
                f"{name}: the derivative must have the structure and shapes of y0, {structure} of "
                f"{types}, got {tree.structure(out)} of {[fnp.shape(x) for x in found]}"
            )
        return unravel.flat(out)

    converted, captured = closure_convert(plain, start, t[0], *leaves)
    every = [*leaves, *map(fnp.asarray, captured)]
    varies = [dtypes.is_inexact(x.dtype) for x in every]

    def fun(v: Any, t: Any, operands: Any, fixed: Any) -> Any:
        some, others = iter(operands), iter(fixed)
        return converted(v, t, *(next(some) if v else next(others) for v in varies))

    operands = [x for x, v in zip(every, varies, strict=True) if v]
    fixed = [x for x, v in zip(every, varies, strict=True) if not v]
    return start, vmap(unravel), fun, operands, fixed
