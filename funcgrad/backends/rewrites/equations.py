"""A list of equations that grows: what `normalize` and its rewrites write a program into."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from funcgrad.backends.late import Late
from funcgrad.backends.loops.scalars import LOOP_DTYPES
from funcgrad.backends.target import ANY, Target
from funcgrad.core.aval import ShapedArray
from funcgrad.core.ir import Atom, Eqn, Literal, Var
from funcgrad.core.rewriting import Writer
from funcgrad.ops.base import broadcast_p, transpose_p
from funcgrad.ops.elementwise.convert import convert_element_type_p
from funcgrad.ops.shape import reshape_p

narrow = Late("funcgrad.backends.rewrites.narrow")


class Equations(Writer):
    """Equations in order. The methods add one, where one is needed, and give its result.

    >>> x = Var(ShapedArray((2, 3), np.float32))
    >>> flat = Equations()
    >>> flat.reshape(flat.reshape(x, (6,)), (2, 3)) is x
    True
    >>> flat.transpose(x, (1, 0)).aval
    f32[3,2]
    >>> [e.prim.name for e in flat.eqns]
    ['reshape', 'transpose']
    """

    def __init__(self, target: Target = ANY) -> None:
        super().__init__()
        self.target, self.limits = target, target.limits
        # Broadcasts of zero.
        self.zeros: set[Var] = set()
        # What each reshape is a reshape of.
        self.reshaped: dict[Atom, Atom] = {}
        # The bytes of narrow arrays.
        self.bytes: dict[Atom, Atom] = {}
        # What several products read.
        self.shared: set[Atom] = set()
        # Operands of convolutions with zeros around them.
        self.padded: dict[tuple, Atom] = {}

    def append(self, eqn: Eqn) -> None:
        super().append(eqn)
        if eqn.prim is broadcast_p and self._is_zero(eqn.ins[0]):
            self.zeros.add(eqn.outs[0])

    def _is_zero(self, x: Atom) -> bool:
        if type(x) is Literal and x.aval.dtype in LOOP_DTYPES:
            value = x.value.astype(np.complex128)
            return not value and not np.signbit(value.real)
        return x in self.zeros

    def empty(self, aval: ShapedArray) -> Atom:
        """A value of no elements, made of nothing: code that reads it, which never runs, computes
        no index into it, and nothing is exchanged for it."""
        zero = Literal(np.zeros((), aval.dtype), ShapedArray((), aval.dtype))
        return self.broadcast(zero, aval.shape, ())

    def convert(self, x: Atom, dtype: np.dtype) -> Atom:
        """x in a dtype."""
        if x.aval.dtype == dtype:
            return x
        if {x.aval.dtype, dtype} - LOOP_DTYPES:
            made = narrow.converted(self, x, dtype)
            if made is not None:
                return made
        aval = ShapedArray(x.aval.shape, dtype)
        return self.add(convert_element_type_p, [x], aval, new_dtype=dtype)

    def reshape(self, x: Atom, shape: tuple[int, ...]) -> Atom:
        """x in a shape; of a reshaped array, a reshape of what it was before."""
        x = self.reshaped.get(x, x)
        if x.aval.shape == shape:
            return x
        self.reshaped[out := self.reshape_of(x, shape)] = x
        return out

    def reshape_of(self, x: Atom, shape: tuple[int, ...]) -> Var:
        """A reshape of x itself, of which later reshapes don't see that it is one."""
        return self.add(reshape_p, [x], ShapedArray(shape, x.aval.dtype), new_sizes=shape)

    def reduce(self, prim: Any, x: Atom, axes: Sequence[int]) -> Atom:
        """x reduced along axes by a reduction such as `sum_p`."""
        shape = tuple(n for i, n in enumerate(x.aval.shape) if i not in axes)
        return self.add(prim, [x], ShapedArray(shape, x.aval.dtype), axes=tuple(axes))

    def broadcast(self, x: Atom, shape: tuple[int, ...], dims: Sequence[int]) -> Atom:
        """x broadcast to a shape, its axes going to the axes `dims`."""
        aval = ShapedArray(shape, x.aval.dtype)
        return self.add(broadcast_p, [x], aval, shape=shape, broadcast_dimensions=tuple(dims))

    def transpose(self, x: Atom, order: Sequence[int]) -> Atom:
        """x with its axes in another order."""
        if list(order) == list(range(len(order))):
            return x
        aval = ShapedArray(tuple(x.aval.shape[i] for i in order), x.aval.dtype)
        return self.add(transpose_p, [x], aval, permutation=tuple(order))
