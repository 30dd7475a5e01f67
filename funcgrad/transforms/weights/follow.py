"""A program's run on values and weights: each weight goes where the program takes it.

Views of a weight (transposes, reshapes, conversions, pieces) stay the weight's, products and
lookups are its own affair, and programs within are entered. Before any other operation a weight
becomes the dense array; whoever runs the program may object.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from funcgrad import dtypes
from funcgrad.core import context, source
from funcgrad.core.ir import Eqn, Jaxpr, Var, literal_value
from funcgrad.core.primitive import Primitive
from funcgrad.core.trace import aval_of
from funcgrad.core.types import Rewritten, Value
from funcgrad.ops.base import broadcast_p, transpose_p
from funcgrad.ops.elementwise.convert import convert_element_type, convert_element_type_p
from funcgrad.ops.indexing.windows_at import dynamic_slice_p
from funcgrad.ops.shape import reshape_p
from funcgrad.ops.slicing import slice_p
from funcgrad.transforms.weights.products import Product, Rows, product_of, rows_of
from funcgrad.transforms.weights.view import View
from funcgrad.transforms.weights.weight import Weight


@dataclass(frozen=True)
class Seen:
    """A weight as an operation sees it. name: of the leaf that it is, as the user writes it."""

    weight: Weight
    view: View
    name: str

    @staticmethod
    def whole(weight: Weight, name: str) -> Seen:
        """A weight at the beginning of a program."""
        return Seen(weight, View.whole(weight.shape), name)

    def dense(self) -> Value:
        """The array that the operation sees."""
        return self.view.convert(self.view.arrange(self.weight.dense()))


class Watcher:
    """What happens to weights in a program: told of each use, and of each that can't be followed.

    Both may raise; the base class minds nothing.
    """

    def product(self, seen: Seen, use: Product, x: Value) -> None:
        """A product, or a convolution, of x with a weight."""

    def rows(self, seen: Seen, use: Rows) -> None:
        """A lookup of a weight's rows."""

    def lost(self, seen: Seen, eqn: Eqn) -> None:
        """A weight meets an operation for which it must be the dense array."""


Enter = Callable[["Follow", Eqn, list], list]


class Follow:
    """Goes through a program, with weights among its inputs.

    programs: what gives the results of equations that hold programs, by their ops.
    """

    def __init__(self, watcher: Watcher, programs: Mapping[Primitive, Enter]):
        self.watcher = watcher
        self.programs = programs

    def run(self, jaxpr: Jaxpr, inputs: Iterable[Rewritten]) -> list:
        """What the program gives; arrays only."""
        env: dict[Rewritten, Rewritten] = dict(zip(jaxpr.ins, inputs, strict=True))

        def read(atom: Rewritten) -> Rewritten:
            return env[atom] if type(atom) is Var else literal_value(atom)

        place, outer = source.placed(), context.current().scopes
        try:
            for eqn in jaxpr.eqns:
                source.set_place(eqn.source or place)
                with context.scoped(scopes=outer + eqn.scopes):
                    outs = self.equation(eqn, [read(a) for a in eqn.ins])
                env.update(zip(eqn.outs, outs, strict=True))
        finally:
            source.set_place(place)
        outs = [read(a) for a in jaxpr.outs]
        return [x.dense() if isinstance(x, Seen) else x for x in outs]

    def equation(self, eqn: Eqn, values: list) -> list:
        """An equation's results, weights among them where it gives views."""
        if not any(isinstance(x, Seen) for x in values):
            return performed(eqn, values)
        within = self.programs.get(eqn.prim)
        if within is not None:
            return within(self, eqn, values)
        view = _VIEWS.get(eqn.prim)
        if view is not None and isinstance(values[0], Seen):
            found = view(eqn, values[0], values[1:])
            if found is not None:
                return [found]
        return self.used(eqn, values)

    def used(self, eqn: Eqn, values: list) -> list:
        """The results of an equation that isn't a view."""
        side = max(i for i, x in enumerate(values) if isinstance(x, Seen))
        seen, others = values[side], [*values]
        use = product_of(eqn, side, seen.view)
        if use is not None:
            x = others[1 - side]
            x = self.dense(x, eqn) if isinstance(x, Seen) else x
            self.watcher.product(seen, use, x)
            return [convert_element_type(seen.weight.product(use, x), eqn.outs[0].aval.dtype)]
        rows = rows_of(eqn, side, seen.view, values[-1])
        found = None if rows is None else seen.weight.rows(rows)
        if rows is not None and found is not None:
            self.watcher.rows(seen, rows)
            return [rows.result(found)]
        return performed(eqn, [self.dense(x, eqn) for x in values])

    def dense(self, x: Rewritten, eqn: Eqn) -> Value:
        """A value as an array, for an equation that takes no weight."""
        if not isinstance(x, Seen):
            return x
        self.watcher.lost(x, eqn)
        return x.dense()


def performed(eqn: Eqn, values: Sequence[Value]) -> list:
    """An equation's results on arrays."""
    outs = eqn.prim.bind(*values, **eqn.params)
    return outs if eqn.prim.multiple else [outs]


# ---- views: what the result of an equation is of a weight, or None


def _with(seen: Seen, view: View | None) -> Seen | None:
    return None if view is None else Seen(seen.weight, view, seen.name)


def _transpose(eqn: Eqn, seen: Seen, rest: list) -> Seen | None:
    return _with(seen, seen.view.transposed(eqn.params["permutation"]))


def _reshape(eqn: Eqn, seen: Seen, rest: list) -> Seen | None:
    return _with(seen, seen.view.reshaped(eqn.params["new_sizes"]))


def _broadcast(eqn: Eqn, seen: Seen, rest: list) -> Seen | None:
    """Axes of size 1 are added; others would repeat the weight."""
    shape = eqn.params["shape"]
    return _with(seen, seen.view.reshaped(shape)) if _same(seen, math.prod(shape)) else None


def _same(seen: Seen, size: int) -> bool:
    return math.prod(seen.view.sizes) == size


def _convert(eqn: Eqn, seen: Seen, rest: list) -> Seen | None:
    dtype = eqn.params["new_dtype"]
    return _with(seen, seen.view.converted(dtype)) if dtypes.is_float(dtype) else None


def _slice(eqn: Eqn, seen: Seen, rest: list) -> Seen | None:
    p, sizes = eqn.params, seen.view.sizes
    starts, limits = p["start_indices"], p["limit_indices"]
    strides = p["strides"] or (1,) * len(sizes)
    cut = [d for d, n in enumerate(sizes) if (starts[d], limits[d], strides[d]) != (0, n, 1)]

    def piece(x: Value, axis: int, dim: int) -> Value:
        shape = aval_of(x).shape
        return slice_p.bind(
            x,
            start_indices=tuple(starts[dim] * (i == axis) for i in range(len(shape))),
            limit_indices=tuple(limits[dim] if i == axis else n for i, n in enumerate(shape)),
            strides=tuple(strides[dim] if i == axis else 1 for i in range(len(shape))),
        )

    return _cut(seen, cut, piece)


def _dynamic_slice(eqn: Eqn, seen: Seen, rest: list) -> Seen | None:
    wanted, sizes = eqn.params["slice_sizes"], seen.view.sizes

    def piece(x: Value, axis: int, dim: int) -> Value:
        shape, start = aval_of(x).shape, rest[dim]
        zero = aval_of(start).dtype.type(0)
        return dynamic_slice_p.bind(
            x,
            *(start if i == axis else zero for i in range(len(shape))),
            slice_sizes=tuple(wanted[dim] if i == axis else n for i, n in enumerate(shape)),
        )

    return _cut(seen, [d for d, n in enumerate(sizes) if wanted[d] != n], piece)


def _cut(seen: Seen, dims: Sequence[int], piece: Callable[..., Value]) -> Seen | None:
    """A piece of a weight along the operation's axes; piece(array, axis, dim) → array."""
    for dim in dims:
        axis = seen.view.axis_of(dim)
        if axis is None:
            return None
        weight = seen.weight.cut(axis, partial(piece, dim=dim))
        if weight is None:
            return None
        seen = Seen(weight, seen.view.resized(axis, weight.shape[axis]), seen.name)
    return seen


_VIEWS: dict[Primitive, Callable[[Eqn, Seen, list], Seen | None]] = {
    transpose_p: _transpose,
    reshape_p: _reshape,
    broadcast_p: _broadcast,
    convert_element_type_p: _convert,
    slice_p: _slice,
    dynamic_slice_p: _dynamic_slice,
}
