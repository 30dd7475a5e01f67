"""Scatters: windows of an array replaced by, or combined with, updates at many positions.

Where updates of a `scatter` meet in one element, the last one in row-major order of the updates
wins: so it is a function of its operands, linear in operand and updates.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from funcgrad import dtypes
from funcgrad.core.aval import ShapedArray, Zero
from funcgrad.core.primitive import NoRule
from funcgrad.core.trace import aval_of
from funcgrad.errors import DifferentiationError
from funcgrad.ops.base import full, instantiate, is_linear, zeros
from funcgrad.ops.elementwise.arithmetic import div, mul, neg
from funcgrad.ops.elementwise.compare import eq
from funcgrad.ops.elementwise.convert import select_n
from funcgrad.ops.families import add
from funcgrad.ops.folds import merged
from funcgrad.ops.indexing.gather import (
    accumulate,
    axes_as_tuples,
    gather_updates,
    is_number,
    scatter_add_p,
    scatter_primitive,
)
from funcgrad.ops.indexing.windows import GatherScatterMode, ScatterDimensionNumbers
from funcgrad.ops.shape import iota, reshape

# ---- scatter: set


def _replace(xp, flat, place, values):
    if xp is not np:
        # Elsewhere the last one need not win.
        place, values = merged(xp, lambda earlier, later: later, place, values)
    flat[place] = values
    return flat


def _set_jvp(primals, tangents, **params):
    x, indices, updates = primals
    g, _, g_updates = tangents
    y = scatter_p.bind(x, indices, updates, **params)
    return y, scatter_p.bind(instantiate(g), indices, instantiate(g_updates), **params)


def _set_transpose(ct, x, indices, updates, **params):
    ct_x = ct_updates = None
    window = aval_of(updates)
    if is_linear(x):
        none = zeros(window.update(dtype=aval_of(ct).dtype))
        ct_x = scatter_p.bind(ct, indices, none, **params)
    if is_linear(updates):
        ct_updates = gather_updates(ct, indices, window, **params)
        if not params["unique_indices"]:
            won = _winners(aval_of(x), indices, window, params)
            ct_updates = select_n(won, zeros(aval_of(ct_updates)), ct_updates)
    return [ct_x, None, ct_updates]


def _winners(x: ShapedArray, indices: Any, updates: ShapedArray, params: dict) -> Any:
    """Which updates are still there after all of them were put in place."""
    numbers = reshape(iota(np.int64, updates.size), updates.shape)
    placed = scatter_p.bind(full(x.shape, -1, np.int64), indices, numbers, **params)
    return eq(gather_updates(placed, indices, updates, fill=-1, **params), numbers)


scatter_p = scatter_primitive("scatter", _replace, _set_jvp, _set_transpose)

# ---- scatter_mul


def _need_unique(params: dict) -> None:
    if not params["unique_indices"]:
        raise DifferentiationError(
            "scatter_mul has a derivative with respect to its updates only where no two of them "
            "meet: pass unique_indices=True if that is so"
        )


def _mul_jvp(primals, tangents, **params):
    x, indices, updates = primals
    g, _, g_updates = tangents
    y = scatter_mul_p.bind(x, indices, updates, **params)
    out = Zero(aval_of(y).tangent())
    if type(g) is not Zero:
        out = scatter_mul_p.bind(g, indices, updates, **params)
    if type(g_updates) is not Zero:
        _need_unique(params)
        base = zeros(aval_of(y).tangent())
        term = mul(x, scatter_add_p.bind(base, indices, g_updates, **params))
        out = term if type(out) is Zero else add(out, term)
    return y, out


def _mul_transpose(ct, x, indices, updates, **params):
    ct_x = ct_updates = None
    if is_linear(x):
        ct_x = scatter_mul_p.bind(ct, indices, updates, **params)
    if is_linear(updates):
        _need_unique(params)
        ct_updates = gather_updates(mul(ct, x), indices, updates.aval, **params)
    return [ct_x, None, ct_updates]


scatter_mul_p = scatter_primitive(
    "scatter_mul",
    accumulate(lambda xp: xp.multiply),
    _mul_jvp,
    _mul_transpose,
    "numbers",
    is_number,
)

# ---- scatter_min and scatter_max


def _extremum_jvp(prim: Callable) -> Callable:
    def rule(primals, tangents, **params):
        """Among the operand's element and the updates that attain the result, the mean tangent."""
        x, indices, updates = primals
        g, _, g_updates = tangents
        y = prim().bind(x, indices, updates, **params)
        window = aval_of(updates)
        attained = eq(x, y), eq(updates, gather_updates(y, indices, window, **params))

        def total(of_x: Any, of_updates: Any) -> Any:
            kept = [
                select_n(mask, zeros(aval_of(value)), value)
                for mask, value in zip(attained, (of_x, of_updates), strict=True)
            ]
            return scatter_add_p.bind(kept[0], indices, kept[1], **params)

        dtype = aval_of(y).dtype
        count = total(full(aval_of(x).shape, 1, dtype), full(window.shape, 1, dtype))
        return y, div(total(instantiate(g), instantiate(g_updates)), count)

    return rule


def _extremum(name: str, ufunc: Callable) -> Any:
    made = scatter_primitive(
        name,
        accumulate(ufunc),
        _extremum_jvp(lambda: made),
        NoRule("it is not linear"),
        "real numbers",
        lambda dtype: not dtypes.is_complex(dtype),
    )
    return made


scatter_min_p = _extremum("scatter_min", lambda xp: xp.minimum)
scatter_max_p = _extremum("scatter_max", lambda xp: xp.maximum)

# ---- the public functions

_EXAMPLE = """
    With component k of a vector v along the last axis of `scatter_indices`, a window starts at v[k]
    in operand axis `dimension_numbers.scatter_dims_to_operand_dims[k]` and at 0 in axes that no
    component maps to; it has the sizes of `updates` in its axes `update_window_dims`, and 1 in axes
    that are inserted. The other axes of `updates` are those of the indices but the last.

    `mode` says what becomes of a window that is not inside the operand: "drop" (and None) leaves it
    out, "clip" moves it inside, "promise_in_bounds" says that there is none. With
    `unique_indices` no two windows may overlap. Raises ShapeError where axes or sizes don't fit.

    >>> from funcgrad import lax
    >>> numbers = lax.ScatterDimensionNumbers((), (0,), (0,))
    >>> where = np.array([[1], [1]])
    >>> lax.{name}(lax.iota("int32", 4) + 3, where, np.array([2, 7], "int32"), numbers)
    Array({shown}, dtype=int32)
    """


def _public(name: str, prim: Any, first: str, shown: str) -> Callable:
    def scatter_function(
        operand: Any,
        scatter_indices: Any,
        updates: Any,
        dimension_numbers: ScatterDimensionNumbers,
        *,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
        mode: str | GatherScatterMode | None = None,
    ) -> Any:
        return prim.bind(
            operand,
            scatter_indices,
            updates,
            dimension_numbers=axes_as_tuples(ScatterDimensionNumbers, dimension_numbers),
            indices_are_sorted=bool(indices_are_sorted),
            unique_indices=bool(unique_indices),
            mode=GatherScatterMode.from_any(mode),
        )

    scatter_function.__name__ = scatter_function.__qualname__ = name
    scatter_function.__doc__ = first + "\n" + _EXAMPLE.format(name=name, shown=shown)
    return scatter_function


scatter = _public(
    "scatter",
    scatter_p,
    "The operand with windows replaced by updates; of several updates of one element, the last one"
    " stays.",
    "[3, 7, 5, 6]",
)
scatter_add = _public(
    "scatter_add", scatter_add_p, "The operand with updates added to windows.", "[ 3, 13,  5,  6]"
)
scatter_mul = _public(
    "scatter_mul",
    scatter_mul_p,
    "The operand with windows multiplied by updates.",
    "[ 3, 56,  5,  6]",
)
scatter_min = _public(
    "scatter_min",
    scatter_min_p,
    "The operand with the lesser of each element and its updates.",
    "[3, 2, 5, 6]",
)
scatter_max = _public(
    "scatter_max",
    scatter_max_p,
    "The operand with the greater of each element and its updates.",
    "[3, 7, 5, 6]",
)


def scatter_sub(operand: Any, scatter_indices: Any, updates: Any, *args: Any, **options: Any):
    """The operand with updates subtracted from windows; arguments are those of `scatter_add`.

    >>> from funcgrad import lax
    >>> numbers = lax.ScatterDimensionNumbers((), (0,), (0,))
    >>> lax.scatter_sub(lax.iota("int32", 3), np.array([[1]]), np.array([5], "int32"), numbers)
    Array([ 0, -4,  2], dtype=int32)
    """
    return scatter_add(operand, scatter_indices, neg(updates), *args, **options)
