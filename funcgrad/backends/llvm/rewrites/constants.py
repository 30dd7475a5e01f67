"""Matrices that never change, laid out once as products read them.

A product of few rows reads a matrix but a few times, so that packing it, at each call, takes as
long as the product. Of an exported function the weights are known before it is called: they are
copied to panels of some columns, their rows one after the other, which products of few rows read
where they lie (see `panels`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from funcgrad.backends.rewrites.equations import Equations
from funcgrad.backends.rewrites.scans import DTYPES
from funcgrad.core.aval import ShapedArray
from funcgrad.core.ir import Atom, Eqn, Jaxpr, Var
from funcgrad.core.rewriting import makers, uses
from funcgrad.ops.base import transpose_p
from funcgrad.ops.contract import dot_general_p

# More rows repay packing; smaller matrices stay in the first caches.
MOST_ROWS, LEAST_BYTES = 64, 1 << 16


class Panels(NamedTuple):
    """How a matrix lies: in panels of so many columns, of rows along the axis that products sum.

    >>> Panels(0, 2).of(np.arange(8).reshape(2, 4)).tolist()
    [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]
    """

    axis: int
    columns: int

    def of(self, matrix: np.ndarray) -> np.ndarray:
        """The matrix as an array of axes panel, summed, column."""
        rows = matrix if self.axis == 0 else matrix.T
        split = rows.reshape(rows.shape[0], -1, self.columns)
        return np.ascontiguousarray(split.transpose(1, 0, 2))

    def type(self, aval: ShapedArray) -> ShapedArray:
        """The type of a matrix that lies so."""
        k, n = aval.shape[self.axis], aval.shape[1 - self.axis]
        return ShapedArray((n // self.columns, k, self.columns), aval.dtype)


def panelled_inputs(
    jaxpr: Jaxpr, count: int, columns: Callable[[np.dtype], int]
) -> dict[int, Panels]:
    """Which of a simplified program's first inputs, that never change, had better lie in panels:
    those that nothing reads but products of few rows.

    columns: how many a tile of a dtype has

    >>> import funcgrad as fg
    >>> f = fg.make_jaxpr(lambda w, x: x @ w)(fg.numpy.ones((256, 128)), fg.numpy.ones((8, 256)))
    >>> [p.axis for p in panelled_inputs(f.jaxpr, 1, lambda dtype: 16).values()]
    [0]
    >>> panelled_inputs(f.jaxpr, 0, lambda dtype: 16)
    {}
    """
    readers, found = uses(jaxpr), {}
    for i, var in enumerate(jaxpr.ins[:count]):
        aval = var.aval
        if aval.dtype in DTYPES and aval.ndim == 2 and aval.nbytes >= LEAST_BYTES:
            axes = _summed(jaxpr, readers, var, 0)
            axis = axes.pop() if len(axes) == 1 else None
            if axis is not None and aval.shape[1 - axis] % columns(aval.dtype) == 0:
                found[i] = Panels(axis, columns(aval.dtype))
    return found


def _summed(jaxpr: Jaxpr, readers: Mapping[Var, list[int]], var: Var, axis: int) -> set[int | None]:
    """The axes of a matrix along which products of few rows sum, where `axis` of `var` is its
    first; None stands for whatever else reads it."""
    found: set[int | None] = set()
    for i in readers.get(var, ()):
        eqn = jaxpr.eqns[i] if i < len(jaxpr.eqns) else None
        if eqn is not None and eqn.prim is transpose_p:
            found |= _summed(jaxpr, readers, eqn.outs[0], eqn.params["permutation"].index(axis))
        else:
            summed = None if eqn is None else _summed_by(eqn, var)
            found.add(None if summed is None else int(summed != axis))
    return found


def _summed_by(eqn: Eqn, matrix: Var) -> int | None:
    """The axis of its right operand along which a product sums; None if it is none that panels
    serve."""
    if eqn.prim is not dot_general_p or eqn.ins[1] is not matrix or eqn.ins[0] is matrix:
        return None
    if any(a.aval.dtype != matrix.aval.dtype for a in (eqn.ins[0], *eqn.outs)):
        return None
    (_, contract), (batch, _) = eqn.params["dimension_numbers"]
    if batch or len(contract) != 1:
        return None
    rows = eqn.ins[0].aval.size // max(1, matrix.aval.shape[contract[0]])
    return contract[0] if 0 < rows <= MOST_ROWS else None


def with_panels(jaxpr: Jaxpr, panels: Mapping[int, Panels]) -> Jaxpr:
    """A simplified program that takes these inputs in panels, as `panelled_inputs` found them."""
    return _Panelled(panels).write(jaxpr) if panels else jaxpr


class _Panelled(Equations):
    """A program whose products read panels."""

    def __init__(self, panels: Mapping[int, Panels]):
        super().__init__()
        self.panels = panels
        self.laid: dict[Atom, Var] = {}
        self.made: dict[Var, Any] = {}

    def begin(self, jaxpr: Jaxpr) -> list[Var]:
        ins = [Var(self.panels[i].type(v.aval)) if i in self.panels else v
               for i, v in enumerate(jaxpr.ins)]  # fmt: skip
        self.laid = {v: ins[i] for i, v in enumerate(jaxpr.ins) if i in self.panels}
        self.made = {v: jaxpr.eqns[i] for v, i in makers(jaxpr).items()}
        return ins

    def equation(self, eqn: Eqn, ins: list) -> None:
        panels = self.laid.get(self._source(eqn.ins[1])) if len(eqn.ins) == 2 else None
        if panels is None:
            if not (eqn.prim is transpose_p and self._source(eqn.outs[0]) in self.laid):
                self.keep(eqn, ins)
            return
        contract = eqn.params["dimension_numbers"][0][0]
        numbers = ((contract, (1,)), ((), ()))
        product = self.again(eqn, [ins[0], panels], dimension_numbers=numbers)
        self.define(eqn, [self.reshape_of(product, eqn.outs[0].aval.shape)])

    def _source(self, atom: Atom) -> Atom:
        """What an atom is a transpose of, or itself."""
        while isinstance(atom, Var) and atom in self.made:
            eqn = self.made[atom]
            if eqn.prim is not transpose_p:
                break
            atom = eqn.ins[0]
        return atom
