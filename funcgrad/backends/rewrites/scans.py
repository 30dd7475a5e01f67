"""Products out of scans: one large matrix product in place of a small one in each turn.

What a scan's body multiplies by a matrix that stays is known before the scan, if it is a scanned
row, and needed after it only, if it is a row of a result. What it adds to a carried sum that nobody
else reads (the gradient of a weight, say) is one product that sums over the turns, too. Rows wait
in memory for that, where the target allows it. Sums are added in another order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from funcgrad.backends.rewrites.equations import Equations
from funcgrad.backends.target import Turns
from funcgrad.core.aval import ShapedArray
from funcgrad.core.dce import dce_eqns
from funcgrad.core.ir import Atom, Eqn, Jaxpr, Var
from funcgrad.core.primitive import Primitive
from funcgrad.ops.base import sum_p, transpose_p
from funcgrad.ops.contract import dot_general_p
from funcgrad.ops.families import add

DTYPES = (np.dtype(np.float32), np.dtype(np.float64))


def spread(scan: Eqn, limits: Turns) -> Jaxpr | None:
    """The program of a scan's operands that computes its products apart; None if it has none.

    >>> import funcgrad as fg
    >>> x, w = fg.numpy.ones((5, 2, 3)), fg.numpy.ones((3, 4))
    >>> f = lambda x, w: fg.lax.scan(lambda c, row: (c, row @ w), 0.0, x)[1]
    >>> limits = Turns(rows=256, nbytes=1 << 26, few=16, cached=1 << 23)
    >>> [e.prim.name for e in spread(fg.make_jaxpr(f)(x, w).eqns[-1], limits).eqns]
    ['dot_general', 'scan']
    """
    p = scan.params
    key = ("spread", limits, p["length"], p["reverse"], p["n_consts"], p["n_carry"])
    return p["jaxpr"].derive(key, lambda: _Spreader(scan, limits).run())


def large(scan: Eqn, limits: Turns) -> int:
    """Bytes of one turn of the products known before a scan, those of which all turns' results are
    more than caches hold."""
    spreader = _Spreader(scan, limits)
    spreader.run()
    return spreader.large


class _Product(NamedTuple):
    """A product (or a sum over axes) whose result is then transposed by `order`."""

    eqn: Eqn
    order: tuple[int, ...]


class _Spreader:
    """Writes the program around a scan. Variables of the body have others outside: those of
    `consts` stay, those of `rows` have one row a turn."""

    def __init__(self, scan: Eqn, limits: Turns):
        self.limits = limits
        self.scan, self.body, self.length = scan, scan.params["jaxpr"], scan.params["length"]
        n, m = scan.params["n_consts"], scan.params["n_carry"]
        self.n_carry = m
        self.outer = [Var(a.aval) for a in scan.ins]
        inside = self.body.ins
        self.consts: dict[Any, Var] = dict(zip(inside[:n], self.outer[:n], strict=True))
        self.carry, self.init = inside[n : n + m], self.outer[n : n + m]
        self.rows: dict[Any, Var] = dict(zip(inside[n + m :], self.outer[n + m :], strict=True))
        self.made = {v: e for e in self.body.eqns for v in e.outs}
        self.readers: dict[Atom, int] = {}
        for a in (*(a for e in self.body.eqns for a in e.ins), *self.body.outs):
            self.readers[a] = self.readers.get(a, 0) + 1
        self.before, self.after = Equations(), Equations()
        # Values of which a result has the rows, and those that wait until after the scan.
        self.kept: list[tuple[Atom, Var]] = []
        self.waiting: dict[Atom, Var] = {}
        # Bytes a turn of products that are known before the scan and don't fit in caches.
        self.large = 0

    def run(self) -> Jaxpr | None:
        """The program; None if it would be the scan alone."""
        if self.length < 2:
            return None
        for eqn in self.body.eqns:
            self.known_before(eqn)
        n = self.n_carry
        results = [Var(v.aval) for v in self.scan.outs]
        later: list[tuple[int, _Product]] = []
        for i, out in enumerate(self.body.outs[n:], n):
            product = self.needed_after(out)
            if out in self.rows:
                results[i] = self.rows[out]
            elif product is not None:
                later.append((i, product))
            else:
                self.kept.append((out, results[i]))
        for i, (eqn, order) in later:
            side = self.row_side(eqn)
            assert side is not None
            results[i] = self.over_turns(self.after, eqn, side, order)
        left = list(range(n))
        # Sums over axes last: those of what waits for a product anyway.
        for prim in (dot_general_p, sum_p):
            for i in list(left):
                total = self.summed_after(i, prim)
                if total is not None:
                    results[i] = total
                    left.remove(i)
        if not (self.before.eqns or self.after.eqns):
            return None
        scan = self.smaller([(i, results[i]) for i in left])
        return Jaxpr(self.outer, [*self.before.eqns, scan, *self.after.eqns], results)

    def smaller(self, left: Sequence[tuple[int, Var]]) -> Eqn:
        """The scan without what was moved."""
        ys = [*self.kept, *self.waiting.items()]
        outs = [*(self.body.outs[i] for i, _ in left), *(a for a, _ in ys)]
        unknown = [e for e in self.body.eqns if self.rows.keys().isdisjoint(e.outs)]
        eqns = dce_eqns(unknown, outs)
        needed = {a for e in eqns for a in e.ins}.union(outs)
        consts, rows = ([v for v in side if v in needed] for side in (self.consts, self.rows))
        body = Jaxpr([*consts, *(self.carry[i] for i, _ in left), *rows], eqns, outs)
        operands = [
            *(self.consts[v] for v in consts), *(self.init[i] for i, _ in left),
            *(self.rows[v] for v in rows),
        ]  # fmt: skip
        params = {"jaxpr": body, "n_consts": len(consts), "n_carry": len(left)}
        made = [v for _, v in (*left, *ys)]
        return self.scan.replace(ins=operands, outs=made, params=self.scan.params | params)

    # ---- what moves

    def known_before(self, eqn: Eqn) -> None:
        """Move a product of a row with what stays before the scan."""
        side = self.row_side(eqn)
        if side is None or self.untransposed(eqn.ins[side]) not in self.rows:
            return
        nbytes = eqn.outs[0].aval.nbytes
        limits, total = self.limits, self.length * nbytes
        self.large += nbytes if total > limits.cached else 0
        most = limits.cached if self.rows_of(eqn, side) > limits.few else limits.nbytes
        if 0 < total <= most:
            self.rows[eqn.outs[0]] = self.over_turns(self.before, eqn, side)

    def needed_after(self, out: Atom) -> _Product | None:
        """The product of any value with what stays, of which only rows of a result are made."""
        product = self.product(out)
        side = None if product is None else self.row_side(product.eqn)
        if product is None or side is None or not self.waits(product.eqn.ins[side]):
            return None
        return product

    def summed_after(self, i: int, prim: Primitive) -> Var | None:
        """Carried value number i, where a product or a sum over axes is only added to it."""
        inside, out = self.carry[i], self.body.outs[i]
        eqn = self.made.get(out)
        if eqn is None or eqn.prim is not add or inside not in eqn.ins:
            return None
        if self.readers[inside] != 1 or self.readers[out] != 1:
            return None
        product = self.product(eqn.ins[eqn.ins[0] is inside])
        if product is None or product.eqn.prim is not prim:
            return None
        if not all(self.waits(a) for a in product.eqn.ins):
            return None
        p: dict[str, Any] = product.eqn.params
        if prim is sum_p:
            # Little work: not worth memory of its own.
            summed = self.untransposed(product.eqn.ins[0])
            if not any(summed in known for known in (self.rows, dict(self.kept), self.waiting)):
                return None
            p = {"axes": (0, *(i + 1 for i in p["axes"]))}
        else:
            contract, batch = p["dimension_numbers"]
            terms = math.prod(product.eqn.ins[0].aval.shape[a] for a in contract[0])
            if terms > self.limits.rows:
                return None
            contract = tuple((0, *(i + 1 for i in x)) for x in contract)
            p = {"dimension_numbers": (contract, tuple(tuple(i + 1 for i in x) for x in batch))}
        stacks = [self.stack(self.after, a) for a in product.eqn.ins]
        total = self.after.transpose(self.after.again(product.eqn, stacks, **p), product.order)
        return self.after.add(add, [self.init[i], total])

    # ---- what is a product

    def product(self, atom: Atom) -> _Product | None:
        """The product that makes a value which is read once, through transposes."""
        order = tuple(range(atom.aval.ndim))
        while self.readers[atom] == 1 and (eqn := self.made.get(atom)) is not None:
            if eqn.prim is transpose_p:
                order = tuple(eqn.params["permutation"][i] for i in order)
                atom = eqn.ins[0]
                continue
            known = eqn.prim is dot_general_p or eqn.prim is sum_p
            plain = all(a.aval.dtype in DTYPES for a in (*eqn.ins, *eqn.outs))
            return _Product(eqn, order) if known and plain else None
        return None

    def stays(self, atom: Atom) -> bool:
        """Whether a value is the same in each turn: a constant, transposed or not."""
        return self.untransposed(atom) in self.consts

    def untransposed(self, atom: Atom) -> Atom:
        """What a value is a transpose of."""
        while (eqn := self.made.get(atom)) is not None and eqn.prim is transpose_p:
            atom = eqn.ins[0]
        return atom

    def row_side(self, eqn: Eqn) -> int | None:
        """Which operand of a product isn't what stays, if the other is; None too if it has many
        rows itself."""
        if eqn.prim is not dot_general_p or any(
            a.aval.dtype not in DTYPES for a in (*eqn.ins, *eqn.outs)
        ):
            return None
        stays = [self.stays(a) for a in eqn.ins]
        if stays[0] == stays[1]:
            return None
        side = stays.index(False)
        return side if self.rows_of(eqn, side) <= self.limits.rows else None

    def rows_of(self, eqn: Eqn, side: int) -> int:
        """How many rows a product's operand has in a turn."""
        contract = eqn.params["dimension_numbers"][0][side]
        shape = eqn.ins[side].aval.shape
        return math.prod(n for i, n in enumerate(shape) if i not in contract)

    # ---- values of all turns

    def fits(self, aval: ShapedArray) -> bool:
        return 0 < self.length * aval.nbytes <= self.limits.nbytes

    def waits(self, atom: Atom) -> bool:
        """Whether a value's rows can be read after the scan."""
        atom = self.untransposed(atom)
        if type(atom) is not Var or atom in self.consts:
            return False
        return atom in self.rows or self.fits(atom.aval)

    def stack(self, to: Equations, atom: Atom) -> Var:
        """The variable of a value's rows outside; equations that transpose them are written."""
        for known in (self.rows, dict(self.kept), self.waiting):
            if atom in known:
                return known[atom]
        eqn = self.made.get(atom)
        if eqn is not None and eqn.prim is transpose_p:
            order = (0, *(i + 1 for i in eqn.params["permutation"]))
            return to.again(eqn, [self.stack(to, eqn.ins[0])], permutation=order)
        aval = atom.aval.update(shape=(self.length, *atom.aval.shape))
        return self.waiting.setdefault(atom, Var(aval))

    def outside(self, to: Equations, atom: Atom) -> Var:
        """The variable of what stays outside."""
        if atom in self.consts:
            return self.consts[atom]
        eqn = self.made[atom]
        return to.again(eqn, [self.outside(to, eqn.ins[0])])

    def over_turns(self, to: Equations, eqn: Eqn, side: int, order: tuple[int, ...] = ()) -> Any:
        """A product of each row, whose operand on one side is a row, transposed by `order`; the
        turns are first."""
        contract, batch = ([list(x) for x in pair] for pair in eqn.params["dimension_numbers"])
        contract[side] = [i + 1 for i in contract[side]]
        batch[side] = [i + 1 for i in batch[side]]
        ins = [
            self.stack(to, a) if i == side else self.outside(to, a) for i, a in enumerate(eqn.ins)
        ]
        rank = eqn.outs[0].aval.ndim
        # The turns are the first free axis of their side.
        free = 0 if side == 0 else eqn.ins[0].aval.ndim - len(contract[0]) - len(batch[0])
        place = len(batch[0]) + free
        whole = [i for i in range(rank + 1) if i != place]
        numbers = tuple(tuple(tuple(x) for x in pair) for pair in (contract, batch))
        made = to.again(eqn, ins, dimension_numbers=numbers)
        return to.transpose(made, (place, *(whole[i] for i in (order or range(rank)))))
