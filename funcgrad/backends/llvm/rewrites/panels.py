"""Matrices that a scan multiplies by in each turn, copied before it as the product reads them.

A panel is some columns of a matrix, its rows one after the other. The kernels of a product that
packs nothing read one panel at a time: where the rows of the whole matrix lie a page apart, each
costs an address translation, and all fall into the same few lines of a cache. The copy is made
once, not in each turn, and the sums are those of the whole matrix, in the same order.

A small matrix that multiplies a vector, row by row, is transposed: sums of rows are then side by
side, in vectors, in place of a vector for each sum, whose lanes have to be added up.
"""

from __future__ import annotations

from funcgrad.backends.rewrites.scans import DTYPES
from funcgrad.core.ir import Atom, Eqn, Jaxpr, Var
from funcgrad.ops.base import transpose_p
from funcgrad.ops.contract import dot_general_p
from funcgrad.ops.shape import reshape_p

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
    consts: dict[Atom, Var] = dict(zip(body.ins[:n], outer, strict=False))
    made = {v: e for e in body.eqns for v in e.outs}
    before: list[Eqn] = []
    eqns: list[Eqn] = []
    # The panels of a matrix and its contracted axis, or with None its transpose, outside and in the
    # body.
    panels: dict[tuple[Atom, int | None], tuple[Var, Var]] = {}
    for eqn in body.eqns:
        turned = _turned_matrix(eqn, made, consts)
        if turned is not None:
            if (turned, None) not in panels:
                outside = _transposed(before, consts[turned])
                panels[turned, None] = outside, Var(outside.aval)
            params = eqn.params | {"dimension_numbers": (((0,), (0,)), ((), ()))}
            eqns.append(eqn.replace(ins=[eqn.ins[1], panels[turned, None][1]], params=params))
            continue
        found = _matrix(eqn, made, consts)
        if found is None:
            eqns.append(eqn)
            continue
        if found not in panels:
            outside = _copied(before, consts[found[0]], found[1])
            panels[found] = outside, Var(outside.aval)
        _multiply(eqns, eqn, panels[found][1])
    if not panels:
        return None
    eqns = _needed(eqns, body.outs)
    used = {a for e in eqns for a in e.ins} | set(body.outs)
    stay = [v for v in body.ins[:n] if v in used or all(v is not m for m, _ in panels)]
    ins = [*stay, *(inside for _, inside in panels.values()), *body.ins[n:]]
    operands = [*(consts[v] for v in stay), *(out for out, _ in panels.values()), *outer[n:]]
    results = [Var(v.aval) for v in scan.outs]
    inner = Jaxpr(ins, eqns, body.outs)
    params = scan.params | {"jaxpr": inner, "n_consts": len(stay) + len(panels)}
    return Jaxpr(outer, [*before, scan.replace(ins=operands, outs=results, params=params)], results)


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


def _transposed(to: list[Eqn], matrix: Var) -> Var:
    m, n = matrix.aval.shape
    out = Var(matrix.aval.update(shape=(n, m)))
    to.append(Eqn(transpose_p, [matrix], [out], {"permutation": (1, 0)}))
    return out


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


def _copied(to: list[Eqn], matrix: Var, axis: int) -> Var:
    """A matrix as an array of axes panel, contracted, column."""
    dtype = matrix.aval.dtype
    k, n = matrix.aval.shape[axis], matrix.aval.shape[1 - axis]
    columns = ROW_BYTES // dtype.itemsize
    split = (k, n // columns, columns) if axis == 0 else (n // columns, columns, k)
    order = (1, 0, 2) if axis == 0 else (0, 2, 1)
    apart = Var(matrix.aval.update(shape=split))
    out = Var(matrix.aval.update(shape=tuple(split[i] for i in order)))
    to.append(Eqn(reshape_p, [matrix], [apart], {"new_sizes": split}))
    to.append(Eqn(transpose_p, [apart], [out], {"permutation": order}))
    return out


def _multiply(to: list[Eqn], eqn: Eqn, panels: Var) -> None:
    """The product of an equation with panels in place of its right operand."""
    x, out = eqn.ins[0], eqn.outs[0]
    contract = eqn.params["dimension_numbers"][0][0]
    rows = out.aval.shape[:-1]
    product = Var(out.aval.update(shape=(*rows, panels.aval.shape[0], panels.aval.shape[2])))
    params = eqn.params | {"dimension_numbers": ((contract, (1,)), ((), ()))}
    to.append(eqn.replace(ins=[x, panels], outs=[product], params=params))
    to.append(Eqn(reshape_p, [product], [out], {"new_sizes": out.aval.shape}))


def _needed(eqns: list[Eqn], outs: list[Atom]) -> list[Eqn]:
    """Without transposes of matrices that are read in panels only."""
    used, kept = set(outs), []
    for eqn in reversed(eqns):
        if eqn.prim is not transpose_p or eqn.outs[0] in used:
            used.update(eqn.ins)
            kept.append(eqn)
    return kept[::-1]
