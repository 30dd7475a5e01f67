"""Elementwise choice among several arrays: choose, select, piecewise.

A branch that is not taken contributes no derivative, not even NaN where it is a function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from funcgrad.errors import OutOfBoundsError, ShapeError
from funcgrad.numpy._known import unknown_error
from funcgrad.numpy._util import (
    as_array,
    as_dtype,
    broadcast_shapes,
    broadcast_to,
    items_of,
    promote,
)
from funcgrad.numpy.elementwise.logic import truth
from funcgrad.numpy.manipulation.indexing import cases_of, positions_of
from funcgrad.numpy.manipulation.joining import arrays_of
from funcgrad.ops.base import full
from funcgrad.ops.elementwise.arithmetic import max as larger
from funcgrad.ops.elementwise.arithmetic import min as smaller
from funcgrad.ops.elementwise.convert import convert_element_type, select_n, select_n_p
from funcgrad.ops.indexing.plan import known
from funcgrad.ops.shape import reshape
from funcgrad.transforms.batching.vmap import vmap
from funcgrad.transforms.control.cond import switch

__all__ = ["choose", "piecewise", "select"]


def choose(a: Any, choices: Any, out: None = None, mode: str = "raise") -> Any:
    """Elementwise choices[a]: `a` says which of several arrays an element is taken from.

    All broadcast, and the choices promote. A number outside `choices` raises OutOfBoundsError in
    mode "raise" (for known `a` only), counts around with "wrap", takes the nearest with "clip".

    >>> fnp.choose(fnp.array([1, 0, 1]), [fnp.arange(3), fnp.array([10, 20, 30])])
    Array([10,  1, 30], dtype=int32)
    """
    if out is not None:
        raise NotImplementedError("choose: arrays are immutable, so there is no out=")
    if mode not in ("raise", "wrap", "clip"):
        raise ValueError(f"choose: mode must be 'raise', 'wrap' or 'clip', got {mode!r}")
    a = positions_of("choose", a)
    cases = promote("choose", *arrays_of("choose", choices, "choices"))
    n = len(cases)
    if mode == "raise":
        value = known(a)
        if value is None:
            raise unknown_error("choose", "a", a, "Say mode='clip' or mode='wrap'.")
        if value.size and not (value.min() >= 0 and value.max() < n):
            raise OutOfBoundsError(f"choose: a must be from 0 to {n - 1}, got {value}")
    a = a % n if mode == "wrap" else smaller(larger(a, 0), n - 1)
    shape = broadcast_shapes("choose", a.shape, *(c.shape for c in cases))
    which = broadcast_to(convert_element_type(a, np.int32), shape)
    return select_n(which, *(broadcast_to(c, shape) for c in cases))


def select(condlist: Sequence[Any], choicelist: Sequence[Any], default: Any = 0) -> Any:
    """Elementwise, the choice whose condition is the first that holds, else `default`.

    All arrays broadcast; choices and default promote.

    >>> x = fnp.arange(4)
    >>> fnp.select([x < 1, x > 2], [x, x * 10], default=-1)
    Array([ 0, -1, -1, 30], dtype=int32)
    """
    condlist, choicelist = items_of("condlist", condlist), items_of("choicelist", choicelist)
    if len(condlist) != len(choicelist) or not len(condlist):
        raise ValueError(
            f"select: need as many choices as conditions, got {len(condlist)} conditions and "
            f"{len(choicelist)} choices"
        )
    masks = [truth(c) for c in arrays_of("select", condlist, "condlist")]
    out, *choices = promote("select", default, *arrays_of("select", choicelist, "choicelist"))
    for mask, choice in zip(reversed(masks), reversed(choices), strict=True):
        out = select_n_p.bind(*cases_of("select", mask, out, choice))
    return out


def piecewise(x: Any, condlist: Any, funclist: Sequence[Any], *args: Any, **kw: Any) -> Any:
    """Elementwise, the function of x (or the value) whose condition is the last that holds.

    A function beyond those of the conditions is for elements where none holds; else they are 0.
    Functions get one element of x, with `args` and `kw`, and their results are converted to x's
    dtype; elements that a function isn't for give no derivative by it, neither to x nor to what
    the function closes over.

    >>> x = fnp.array([-4.0, 4.0])
    >>> fnp.piecewise(x, [x < 0, x >= 0], [-1, fnp.sqrt])
    Array([-1.,  2.], dtype=float32)
    """
    x = as_array("piecewise", x, "x")
    if not isinstance(condlist, list | tuple):
        condlist = [condlist]
    masks = [truth(c) for c in arrays_of("piecewise", condlist, "condlist")]
    if any(broadcast_shapes("piecewise", x.shape, m.shape) != x.shape for m in masks):
        raise ShapeError(f"piecewise: conditions {masks} must broadcast to x {x.aval}")
    functions = items_of("funclist", funclist)
    n, given = len(masks), len(functions)
    if given not in (n, n + 1):
        raise ValueError(f"piecewise: need {n} or {n + 1} functions, got {given}")
    default = functions.pop() if given > n else 0

    def branch(function: Any) -> Callable[[Any], Any]:
        def run(element: Any) -> Any:
            value = function(element, *args, **kw) if callable(function) else function
            return as_dtype("piecewise", value, x.dtype, "a value")

        return run

    taken: Any = full(x.shape, 0, np.int32)
    for i, mask in enumerate(masks):
        taken = select_n_p.bind(*cases_of("piecewise", mask, taken, np.int32(i + 1)))
    branches = [branch(function) for function in (default, *functions)]
    by_element = vmap(lambda i, element: switch(i, branches, element))
    return reshape(by_element(reshape(taken, (-1,)), reshape(x, (-1,))), x.shape)
