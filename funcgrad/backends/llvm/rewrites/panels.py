"""Matrices that a scan multiplies by in each turn, copied before it as the product reads them.

A panel is some columns of a matrix, its rows one after the other. The kernels of a product that
packs nothing read one panel at a time: where the rows of the whole matrix lie a page apart, each
costs an address translation, and all fall into the same few lines of a cache. The copy is made
once, not in each turn, and the sums are those of the whole matrix, in the same order.

A small matrix that multiplies a vector, row by row, is transposed: sums of rows are then side by
side, in vectors, in place of a vector for each sum, whose lanes have to be added up.
"""

from __future__ import annotations

from funcgrad.backends.rewrites.equations import Equations
from funcgrad.backends.rewrites.scans import DTYPES
from funcgrad.core.ir import Atom, Eqn, Jaxpr, Var
from funcgrad.ops.base import transpose_p
from funcgrad.ops.contract import dot_general_p

# Bytes of a row of a panel: two vectors of the widest registers, the columns of a register tile.
ROW_BYTES = 128
# A copy takes as long as some ten turns gain by it. Fewer rows read a matrix once, and what is
# small lies in the first cache any way.
TURNS, ROWS, MOST_ROWS, LEAST_BYTES, MOST_BYTES = 16, 8, 256, 1 << 16, 1 << 24
# Larger matrices are read from caches, or memory, that are no faster than lanes are added up.
MOST_TURNED_BYTES = 1 << 17


def panelled(scan: Eqn) -> Jaxpr | None:
    """The program of a scan's operands that copies such matrices first; None if there is none.

    >>> import funcgrad as fg
    >>> x, w = fg.numpy.ones((8, 256)), fg.numpy.ones((256, 256))
    >>> f = lambda x, w: fg.lax.fori_loop(0, 20, lambda i, x: x @ w, x)
    >>> (scan,) = fg.make_jaxpr(f)(x, w).eqns
    >>> [e.prim.name for e in panelled(scan).eqns]
    ['reshape', 'transpose', 'scan']
    """
    p = scan.params
    if p["length"] < TURNS:
        return None
    key = ("panelled", p["length"], p["n_consts"])
    return p["jaxpr"].derive(key, lambda: _panelled(scan))


def _panelled(scan: Eqn) -> Jaxpr | None:
    body, n = scan.params["jaxpr"], scan.params["n_consts"]
    outer = [Var(a.aval) for a in scan.ins]
    inner = _Body(body, dict(zip(body.ins, outer[:n], strict=False)))
    found = inner.write(body)
    if not inner.panels:
        return None
    used = {a for e in found.eqns for a in e.ins} | set(body.outs)
    stay = [v for v in body.ins[:n] if v in used or all(v is not m for m, _ in inner.panels)]
    outside, inside = zip(*inner.panels.values(), strict=True)
    operands = [*(inner.consts[v] for v in stay), *outside, *outer[n:]]
    turn = Jaxpr([*stay, *inside, *body.ins[n:]], found.eqns, found.outs)
    params = scan.params | {"jaxpr": turn, "n_consts": len(stay) + len(inside)}
    results = [Var(v.aval) for v in scan.outs]
    loop = scan.replace(ins=operands, outs=results, params=params)
    return Jaxpr(outer, [*inner.before.eqns, loop], results)


class _Body(Equations):
    """A scan's body in which products read panels, which `before` makes of constants."""

    def __init__(self, body: Jaxpr, consts: dict[Atom, Var]):
        super().__init__()
        self.consts = consts
        self.made = {v: e for e in body.eqns for v in e.outs}
        self.before = Equations()
        # The panels of a matrix and its contracted axis, or with None its transpose, outside and in
        # the body.
        self.panels: dict[tuple[Atom, int | None], tuple[Atom, Var]] = {}

    def equation(self, eqn: Eqn, ins: list) -> None:
        turned = _turned_matrix(eqn, self.made, self.consts)
        found = _matrix(eqn, self.made, self.consts)
        if turned is not None:
            matrix = self.panel((turned, None))
            numbers = (((0,), (0,)), ((), ()))
            self.define(eqn, [self.again(eqn, [ins[1], matrix], dimension_numbers=numbers)])
        elif found is not None:
            contract = eqn.params["dimension_numbers"][0][0]
            numbers = ((contract, (1,)), ((), ()))
            product = self.again(eqn, [ins[0], self.panel(found)], dimension_numbers=numbers)
            self.define(eqn, [self.reshape_of(product, eqn.outs[0].aval.shape)])
        else:
            self.keep(eqn, ins)

    def panel(self, key: tuple[Atom, int | None]) -> Var:
        """The variable of a copy in the body."""
        if key not in self.panels:
            copy = self.copied(self.consts[key[0]], key[1])
            self.panels[key] = copy, Var(copy.aval)
        return self.panels[key][1]

    def copied(self, matrix: Var, axis: int | None) -> Atom:
        """A matrix as an array of axes panel, contracted, column, or its transpose."""
        if axis is None:
            return self.before.transpose(matrix, (1, 0))
        k, n = matrix.aval.shape[axis], matrix.aval.shape[1 - axis]
        columns = ROW_BYTES // matrix.aval.dtype.itemsize
        split = (k, n // columns, columns) if axis == 0 else (n // columns, columns, k)
        order = (1, 0, 2) if axis == 0 else (0, 2, 1)
        return self.before.transpose(self.before.reshape_of(matrix, split), order)


def _turned_matrix(eqn: Eqn, made: dict, consts: dict) -> Atom | None:
    """The constant matrix whose rows a vector is multiplied by, if it is better transposed."""
    if eqn.prim is not dot_general_p or any(
        a.aval.dtype not in DTYPES for a in (*eqn.ins, *eqn.outs)
    ):
        return None
    (contract, _), (batch, _) = eqn.params["dimension_numbers"]
    atom, x = eqn.ins
    if batch or len(contract) != 1 or x.aval.ndim != 1 or x in consts:
        return None
    axis = contract[0]
    while (source := made.get(atom)) is not None and source.prim is transpose_p:
        axis, atom = source.params["permutation"][axis], source.ins[0]
    if atom not in consts or atom.aval.ndim != 2 or axis != 1:
        return None
    return atom if 0 < atom.aval.nbytes <= MOST_TURNED_BYTES else None


def _matrix(eqn: Eqn, made: dict, consts: dict) -> tuple[Atom, int] | None:
    """The constant of which a product's right operand is a transpose, and along which axis of it
    the product sums; None if a copy isn't worth while."""
    if eqn.prim is not dot_general_p or any(
        a.aval.dtype not in DTYPES for a in (*eqn.ins, *eqn.outs)
    ):
        return None
    (_, contract), (batch, _) = eqn.params["dimension_numbers"]
    (x, atom) = eqn.ins
    if batch or len(contract) != 1:
        return None
    axis = contract[0]
    while (source := made.get(atom)) is not None and source.prim is transpose_p:
        axis, atom = source.params["permutation"][axis], source.ins[0]
    if atom not in consts or atom.aval.ndim != 2 or x in consts or not atom.aval.size:
        return None
    k, n, size = atom.aval.shape[axis], atom.aval.shape[1 - axis], atom.aval.nbytes
    columns = ROW_BYTES // atom.aval.dtype.itemsize
    several = n % columns == 0 and n > columns
    pays = ROWS <= x.aval.size // k <= MOST_ROWS and LEAST_BYTES <= size <= MOST_BYTES
    return (atom, axis) if several and pays else None
