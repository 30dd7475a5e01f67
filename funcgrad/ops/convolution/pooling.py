"""Reductions of every window of an array (pooling), and the ops of their gradients.

Sums, maxima and minima separate: one axis after the other is reduced by a few shifted slices. The
tangent of a maximum is gathered from where the window's first maximum stands, and cotangents are
scattered there: two ops that are each other's transposes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from funcgrad import dtypes, tree
from funcgrad.core import dims as dims_
from funcgrad.core.aval import ShapedArray, Zero
from funcgrad.core.primitive import Primitive
from funcgrad.core.trace import aval_of
from funcgrad.errors import DTypeError, ShapeError
from funcgrad.ops.arguments import integers
from funcgrad.ops.base import batch_front, is_linear, sum_p
from funcgrad.ops.convolution.padding import (
    dilated,
    padded,
    pads_of_operand_gradient,
    padtype_to_pads,
    positions,
)
from funcgrad.ops.cumulative import widened
from funcgrad.ops.elementwise.compare import ge, le
from funcgrad.ops.families import NOT_LINEAR
from funcgrad.ops.reduce import (
    checked_init,
    highest,
    is_identity,
    lowest,
    max_p,
    min_p,
    monoid_of,
)
from funcgrad.ops.slicing import pad_p, slice_p

# ---- windows: shapes, and slices that hold one element of each window


def _check(name: str, x: ShapedArray, params: dict) -> tuple[int, ...]:
    """The number of windows along each axis, or an error in the op's terms."""
    for key, values in params.items():
        if len(values) != x.ndim:
            raise ShapeError(f"{name}: {key} {values} needs one entry for each axis of {x}")
        if key != "padding" and any(v < 1 for v in values):
            raise ShapeError(f"{name}: {key} must be positive, got {values}")
    counts = []
    for n, w, s, (low, high), b, d in _axes(x.shape, **params):
        size = dilated(n, b) + low + high
        if size < 0:
            raise ShapeError(f"{name}: padding {params['padding']} takes more than {x} has")
        counts.append(positions(size, dilated(w, d), s))
    return tuple(counts)


def _axes(shape, *, window_dimensions, window_strides, padding, base_dilation, window_dilation):
    return zip(
        shape,
        window_dimensions,
        window_strides,
        padding,
        base_dilation,
        window_dilation,
        strict=True,
    )


def taps(window: Sequence[int], strides: Any, dilation: Any, counts: Any) -> Iterator[tuple]:
    """For each element of a window, in order, the slices that take it from every window."""
    for offsets in itertools.product(*(range(w) for w in window)):
        yield tuple(
            slice(o * d, o * d + n * s, s)
            for o, d, n, s in zip(offsets, dilation, counts, strides, strict=True)
        )


def _shifted(params: dict) -> dict:
    """The parameters beside a leading batch axis."""
    return {
        k: ((0, 0), *v) if k == "padding" else (1, *v) if isinstance(v, tuple) else v
        for k, v in params.items()
    }


def _window_dims(x: ShapedArray, params: dict) -> tuple[str, str]:
    """Mappings of operand and result: an axis along which windows reach is whole and made anew."""
    names = dims_.letters(x.ndim)
    axes = list(_axes(x.shape, **params))
    still = [(w, s, p, b) == (1, 1, (0, 0), 1) for _, w, s, p, b, _ in axes]
    ins = " ".join(n if k else f"{n}!" for n, k in zip(names, still, strict=True))
    outs = " ".join(n if k else "." for n, k in zip(names, still, strict=True))
    return ins, outs


# ---- reduce_window_sum, _max, _min


def _window_reducer(
    name: str,
    combine: Callable[[Any], Any],
    accepts: Callable[[np.dtype], bool],
    identity: Callable[[np.dtype], Any],
    jvp: Callable,
    transpose: Any = NOT_LINEAR,
) -> Primitive:
    def abstract(x, **params):
        if not accepts(x.dtype):
            raise DTypeError(f"{name}: not defined for {x}; convert with .astype(...)")
        return x.update(shape=_check(name, x, params))

    def impl(xp, x, **params):
        op, value = combine(xp), identity(x.dtype)
        wide = widened(x)
        value = value.astype(wide.dtype)
        counts = _check(name, x, params)
        y = padded(xp, wide, value, params["padding"], params["base_dilation"])
        for i, (_, w, s, _, _, d) in enumerate(_axes(x.shape, **params)):
            line = (slice(None),) * i
            pieces = [y[(*line, slice(k * d, k * d + counts[i] * s, s))] for k in range(w)]
            y = pieces[0]
            for k, piece in enumerate(pieces[1:]):
                y = op(y, piece) if not k else op(y, piece, out=y)
        return y

    def batch(axis, args, dims, **params):
        x = batch_front(args[0], dims[0], axis.size)
        return made.bind(x, **_shifted(params)), 0

    def dims(x, **params):
        return " -> ".join(_window_dims(x, params))

    made = Primitive(
        name=name,
        abstract=abstract,
        impl=impl,
        jvp=jvp,
        transpose=transpose,
        batch=batch,
        dims=dims,
    )
    return made


def _sum_jvp(primals, tangents, **params):
    return window_sum_p.bind(*primals, **params), window_sum_p.bind(*tangents, **params)


def _sum_transpose(
    ct, x, *, window_dimensions, window_strides, padding, base_dilation, window_dilation
):
    pads = pads_of_operand_gradient(
        x.aval.shape,
        window_dimensions,
        window_strides,
        aval_of(ct).shape,
        padding,
        base_dilation,
        window_dilation,
    )
    return [
        window_sum_p.bind(
            ct,
            window_dimensions=window_dimensions,
            window_strides=base_dilation,
            padding=pads,
            base_dilation=window_strides,
            window_dilation=window_dilation,
        )
    ]


def _extremum_jvp(prim: Callable[[], Primitive], select_prim: Primitive) -> Callable:
    def rule(primals, tangents, **params):
        (x,), (g,) = primals, tangents
        tangent = select_and_gather_add_p.bind(g, x, select_prim=select_prim, **params)
        return prim().bind(x, **params), tangent

    return rule


def _is_real(dtype: np.dtype) -> bool:
    return not dtypes.is_complex(dtype)


window_sum_p: Primitive = _window_reducer(
    "reduce_window_sum",
    lambda xp: xp.add,
    lambda dtype: dtype != dtypes.BOOL,
    lambda dtype: np.zeros((), dtype),
    _sum_jvp,
    _sum_transpose,
)
window_max_p: Primitive = _window_reducer(
    "reduce_window_max",
    lambda xp: xp.maximum,
    _is_real,
    lowest,
    _extremum_jvp(lambda: window_max_p, ge),
)
window_min_p: Primitive = _window_reducer(
    "reduce_window_min",
    lambda xp: xp.minimum,
    _is_real,
    highest,
    _extremum_jvp(lambda: window_min_p, le),
)

# ---- select_and_gather_add, select_and_scatter_add: move values from or to the extrema


def _better(xp: Any, candidate: Any, best: Any, select_prim: Primitive) -> Any:
    """Where a later element replaces the best so far: not on ties, and NaN is best of all."""
    keeps = best >= candidate if select_prim is ge else best <= candidate
    return ~keeps & (best == best)


def _extreme(x_dtype: np.dtype, select_prim: Primitive) -> Any:
    return lowest(x_dtype) if select_prim is ge else highest(x_dtype)


def _choices(xp: Any, x: Any, counts: Any, params: dict, select_prim: Primitive) -> tuple:
    """The slices of each tap, and for each window the number of the tap that is selected."""
    value = _extreme(x.dtype, select_prim)
    x = widened(x)
    wide = padded(xp, x, value.astype(x.dtype), params["padding"], params["base_dilation"])
    slices = list(
        taps(
            params["window_dimensions"], params["window_strides"], params["window_dilation"], counts
        )
    )
    best = wide[slices[0]]
    chosen = xp.zeros(best.shape, np.int32)
    for k, at in enumerate(slices[1:], 1):
        better = _better(xp, wide[at], best, select_prim)
        best = xp.where(better, wide[at], best)
        chosen[better] = k
    return slices, chosen


def _gather_abstract(g, x, *, select_prim, **params):
    if g.shape != x.shape:
        raise ShapeError(f"select_and_gather_add: tangents {g} must have the shape of operand {x}")
    return g.update(shape=_check("select_and_gather_add", x, params))


def _gather_impl(xp, g, x, *, select_prim, **params):
    counts = _check("select_and_gather_add", x, params)
    slices, chosen = _choices(xp, x, counts, params, select_prim)
    wide = padded(xp, g, np.zeros((), g.dtype), params["padding"], params["base_dilation"])
    out = xp.zeros(counts, g.dtype)
    for k, at in enumerate(slices):
        xp.copyto(out, wide[at], where=chosen == k)
    return out


def _scatter_abstract(source, x, *, select_prim, **params):
    counts = _check("select_and_scatter_add", x, params)
    if source.shape != counts:
        raise ShapeError(
            f"select_and_scatter_add: source {source} needs one element for each of the windows "
            f"{counts} of operand {x}"
        )
    return source.update(shape=x.shape)


def _scatter_impl(xp, source, x, *, select_prim, **params):
    slices, chosen = _choices(xp, x, source.shape, params, select_prim)
    values = widened(source)
    pads, holes = params["padding"], params["base_dilation"]
    shape = [
        dilated(n, b) + low + high for n, (low, high), b in zip(x.shape, pads, holes, strict=True)
    ]
    wide = xp.zeros(shape, values.dtype)
    for k, at in enumerate(slices):
        wide[at] += xp.where(chosen == k, values, 0)
    undo = tuple((-low, -high, 0) for low, high in pads)
    inner = pad_p.impl(xp, wide, np.zeros((), values.dtype), padding_config=undo)
    return inner[tuple(slice(None, None, b) for b in holes)]


def _selection(
    name: str, abstract: Callable, impl: Callable, inverse: Callable[[], Primitive]
) -> Primitive:
    """One of the two selecting ops: linear in its first operand, with `inverse` as transpose."""

    def jvp(primals, tangents, **params):
        out = made.bind(*primals, **params)
        if type(tangents[0]) is Zero:
            return out, Zero(aval_of(out).tangent())
        return out, made.bind(tangents[0], primals[1], **params)

    def transpose(ct, moved, x, **params):
        return [inverse().bind(ct, x, **params) if is_linear(moved) else None, None]

    def batch(axis, args, dims, **params):
        moved = [batch_front(a, d, axis.size) for a, d in zip(args, dims, strict=True)]
        return made.bind(*moved, **_shifted(params)), 0

    def dims(moved, x, *, select_prim, **params):
        ins, outs = _window_dims(x, params)
        if name == "select_and_gather_add":
            return f"{ins}, {ins} -> {outs}"
        return f"{outs}, {ins} -> {ins}"

    made = Primitive(
        name=name,
        abstract=abstract,
        impl=impl,
        jvp=jvp,
        transpose=transpose,
        batch=batch,
        dims=dims,
    )
    return made


select_and_gather_add_p: Primitive = _selection(
    "select_and_gather_add", _gather_abstract, _gather_impl, lambda: select_and_scatter_add_p
)
select_and_scatter_add_p: Primitive = _selection(
    "select_and_scatter_add", _scatter_abstract, _scatter_impl, lambda: select_and_gather_add_p
)

# ---- public function

_BY_REDUCTION = {sum_p: window_sum_p, max_p: window_max_p, min_p: window_min_p}


def reduce_window(
    operand: Any,
    init_value: Any,
    computation: Callable,
    window_dimensions: Sequence[int],
    window_strides: Sequence[int],
    padding: Any,
    base_dilation: Sequence[int] | None = None,
    window_dilation: Sequence[int] | None = None,
) -> Any:
    """Combine the elements of each window by an associative function, beginning with an init.

    Window sizes, strides and dilations have an entry for each axis; `padding` is "VALID", "SAME",
    "SAME_LOWER" or pairs (low, high), and is filled with `init_value`, which must be neutral.
    `lax.add`, `max` and `min` become pooling ops; any other elementwise `computation(x, y)` works
    too, and with a pytree of operands and inits it takes and returns two such trees.

    >>> from funcgrad import lax
    >>> lax.reduce_window(lax.iota("int32", 6), 0, lax.add, (3,), (2,), "VALID")
    Array([3, 9], dtype=int32)
    """
    xs, structure = tree.flatten(operand)
    inits, init_structure = tree.flatten(init_value)
    if not xs or structure != init_structure:
        raise TypeError(
            f"reduce_window: init_value must have the structure of operand {structure}, got "
            f"{init_structure}"
        )
    avals = [aval_of(x) for x in xs]
    if any(a.shape != avals[0].shape for a in avals):
        raise ShapeError(f"reduce_window: operands must have one shape, got {avals}")
    params = window_params(
        avals[0], window_dimensions, window_strides, padding, base_dilation, window_dilation
    )
    inits = [checked_init("reduce_window", i, a.dtype) for i, a in zip(inits, avals, strict=True)]
    monoid = monoid_of(computation, avals[0].dtype) if len(xs) == 1 else None
    if monoid is not None and monoid.reduce in _BY_REDUCTION:
        prim = _BY_REDUCTION[monoid.reduce]
        if is_identity(inits[0], monoid.identity(avals[0].dtype)):
            return tree.unflatten(structure, [prim.bind(xs[0], **params)])
    return _combined(xs, inits, structure, computation, params)


def window_params(
    x: ShapedArray, window: Any, strides: Any, padding: Any, base: Any, dilation: Any
) -> dict:
    """The parameters of a window op as its rules want them; dilations of None are 1."""
    ones = (1,) * x.ndim
    window = integers("reduce_window", "window_dimensions", window)
    strides = integers("reduce_window", "window_strides", strides)
    base = integers("reduce_window", "base_dilation", ones if base is None else base)
    holes = integers("reduce_window", "window_dilation", ones if dilation is None else dilation)
    for name, values in (("window_dimensions", window), ("window_strides", strides),
                         ("base_dilation", base), ("window_dilation", holes)):  # fmt: skip
        if len(values) != x.ndim:
            raise ShapeError(f"reduce_window: {name} {values} needs one entry for each axis of {x}")
    reach = [dilated(w, d) for w, d in zip(window, holes, strict=True)]
    return {
        "window_dimensions": window,
        "window_strides": strides,
        "padding": padtype_to_pads(x.shape, reach, strides, padding),
        "base_dilation": base,
        "window_dilation": holes,
    }


def _combined(xs: list, inits: list, structure: Any, computation: Callable, params: dict) -> Any:
    """Windows reduced axis by axis from the last, so that elements are combined in order."""
    aval = aval_of(xs[0])
    counts = _check("reduce_window", aval, params)
    holes = zip(params["padding"], params["base_dilation"], strict=True)
    config = tuple((low, high, b - 1) for (low, high), b in holes)
    xs = [pad_p.bind(x, i, padding_config=config) for x, i in zip(xs, inits, strict=True)]
    for i, (_, w, s, _, _, d) in reversed(list(enumerate(_axes(aval.shape, **params)))):
        pieces = [[_every(x, i, k * d, counts[i], s) for x in xs] for k in range(w)]
        value = tree.unflatten(structure, pieces[0])
        for piece in pieces[1:]:
            value = computation(value, tree.unflatten(structure, piece))
        xs = tree.leaves(value)
    return computation(tree.unflatten(structure, inits), tree.unflatten(structure, xs))


def _every(x: Any, axis: int, start: int, count: int, stride: int) -> Any:
    shape = aval_of(x).shape
    starts, limits, strides = [0] * len(shape), list(shape), [1] * len(shape)
    starts[axis] = min(start, shape[axis])
    limits[axis] = max(starts[axis], start + (count - 1) * stride + 1) if count else starts[axis]
    strides[axis] = stride
    return slice_p.bind(
        x, start_indices=tuple(starts), limit_indices=tuple(limits), strides=tuple(strides)
    )
