"""Slices, pads and concatenations along an axis that is cut, so that only their edges are sent.

A pass over a program of whole arrays whose cuts are known. What is taken from a cut axis is
followed as a `Run` (`windows`): ops that treat its rows alike work on arrays of the axis's full
size, shifted (`shift`) where rows meet others; where a result has the full size again, the rows
without meaning are replaced. What is used otherwise is made as the program says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from funcgrad import dtypes
from funcgrad.core.ir import Atom, Eqn, Jaxpr, Var
from funcgrad.core.rewriting import Writer, with_programs
from funcgrad.ops.base import broadcast_p
from funcgrad.parallel.partitioner.edges import EDGES, handler_of
from funcgrad.parallel.partitioner.factors import Factors
from funcgrad.parallel.partitioner.localize import RULES
from funcgrad.parallel.partitioner.propagate import Propagation
from funcgrad.parallel.partitioner.reshard import extent
from funcgrad.parallel.partitioner.shift import shift_p
from funcgrad.parallel.partitioner.windows import Carriers, Later, Names, Piece, Run, resized

# What changes nothing, by how elements are combined.
NEUTRAL = {"sum": 0, "or": False, "and": True}


def with_halos(plan: Propagation) -> Jaxpr | None:
    """The program with shifts in place of slices, pads and concatenations of cut axes; None where
    there is nothing to gain. Its inputs are the same variables."""
    if not _takes_parts(plan):
        return None
    found = HaloPass(plan)
    jaxpr = found.write(plan.jaxpr)
    return jaxpr if found.gained else None


def _takes_parts(plan: Propagation) -> bool:
    """Whether some op takes rows of a cut axis, or puts such together."""
    if any(_takes_parts(p) for inner in plan.inner.values() for p in inner):
        return True
    for eqn in plan.jaxpr.eqns:
        if eqn.prim not in EDGES:
            continue
        shapes = [v.aval.shape for v in (*eqn.ins, *eqn.outs) if v.aval.ndim]
        for a in (*eqn.ins, *eqn.outs):
            for d, cut in enumerate(plan.cuts_of(a)):
                if cut and any(shape[d] != a.aval.shape[d] for shape in shapes):
                    return True
    return False


class HaloPass(Writer):
    """One walk through a program."""

    def __init__(self, plan: Propagation):
        super().__init__()
        self.plan = plan
        self.carriers = Carriers(self.trace.atom)
        self.numbers = iter(range(len(plan.jaxpr.eqns)))
        self.runs: dict[Var, Run | Later] = {}
        # Cuts that follow from what this pass does, beyond those of the plan.
        self.more: dict[Var, dict[int, Names]] = {}
        self.gained = False

    def walk(self, jaxpr: Jaxpr) -> list:
        super().walk(jaxpr)
        for a in jaxpr.outs:
            self.settle(a)
        return [self.read(a) for a in jaxpr.outs]

    def equation(self, eqn: Eqn, ins: list) -> None:
        """Write an equation: as runs of rows where its op takes them so, else as it is."""
        i = next(self.numbers)
        if i in self.plan.inner:
            self.copy(i, self.with_bodies(i, eqn))
            return
        handler = handler_of(eqn.prim)
        if handler and handler(self, eqn):
            return
        if not handler and any(self.run_of(a) for a in eqn.ins) and self.alike(i, eqn):
            return
        self.copy(i, eqn)

    def with_bodies(self, i: int, eqn: Eqn) -> Eqn:
        """An equation whose programs are rewritten, too."""
        found = {}
        for plan in self.plan.inner[i]:
            inner = HaloPass(plan)
            new = inner.write(plan.jaxpr)
            found[plan.jaxpr] = new if inner.gained else plan.jaxpr
            self.gained |= inner.gained
        return with_programs(eqn, found.__getitem__)

    # ---- values

    def run_of(self, atom: Atom) -> Run | Later | None:
        """The run as which a value is followed; None for one that is an array of its own."""
        return self.runs.get(atom) if isinstance(atom, Var) else None

    def made(self, atom: Atom) -> Any:
        """A value as it is, to be computed with."""
        self.settle(atom)
        return self.value(self.read(atom))

    def settle(self, atom: Atom) -> None:
        """Make an array of its own of a value that is followed as a run."""
        if not isinstance(atom, Var) or atom not in self.runs or atom in self.same:
            return
        found, eqn = self.runs[atom], self.plan.jaxpr.eqns[self.plan.maker[atom]]
        if isinstance(found, Later) or not any(self.run_of(a) for a in eqn.ins):
            ins = [self.made(a) for a in eqn.ins]
            self.same[atom] = eqn.prim.bind(*ins, **eqn.params)
        else:
            self.same[atom] = self.carriers.whole(found)

    def copy(self, i: int, eqn: Eqn) -> None:
        """Write an equation as it is."""
        for a in eqn.ins:
            self.settle(a)
        self.keep(eqn, map(self.read, eqn.ins))
        factors = self.plan.factors[i]
        if factors is None or not any(a in self.more for a in eqn.ins if isinstance(a, Var)):
            return
        known = {
            names[d]: cut
            for names, a in zip(factors.ins, eqn.ins, strict=True)
            if isinstance(a, Var)
            for d, cut in self.more.get(a, {}).items()
            if factors.fitting(names[d], cut, self.plan.sizes) == cut
        }
        for names, v in zip(factors.outs, eqn.outs, strict=True):
            found = {d: known[f] for d, f in enumerate(names) if f in known}
            if found:
                self.more[v] = found

    def cut_of(self, atom: Atom, axis: int) -> Names:
        """The mesh axes over which an axis of a value is cut, into more than one part."""
        if not isinstance(atom, Var) or self.run_of(atom):
            return ()
        cut = self.plan.cuts[atom][axis] or self.more.get(atom, {}).get(axis, ())
        parts = extent(cut, self.plan.sizes)
        return cut if parts > 1 and atom.aval.shape[axis] % parts == 0 else ()

    def hold(self, var: Var, run: Run) -> bool:
        """Follow a result as a run; one of the full size is made at once."""
        if run.length == run.n:
            self.gained = True
            self.same[var] = self.carriers.put(run, 0)
            self.more[var] = {run.axis: run.cut}
        else:
            self.runs[var] = run
        return True

    def as_run(self, atom: Atom, like: Run) -> Run:
        """A value as a run beside another one, along the same axis."""
        found = self.run_of(atom)
        if isinstance(found, Run) and (found.axis, found.n) == (like.axis, like.n):
            return found
        n = atom.aval.shape[like.axis]
        alone = self.repeated(atom, like)
        value = self.made(atom) if alone is None else alone
        piece = Piece(value, 0, n, n == like.n or alone is not None, alone is not None)
        return Run(like.axis, like.n, like.cut, (piece,), atom.aval)

    def repeated(self, atom: Atom, like: Run) -> Any:
        """A broadcast along an axis as one to a carrier's size; None if it isn't one."""
        i = self.plan.maker.get(atom) if isinstance(atom, Var) else None
        eqn = self.plan.jaxpr.eqns[i] if i is not None else None
        if eqn is None or eqn.prim is not broadcast_p:
            return None
        along, shape = eqn.params["broadcast_dimensions"], resized(atom.aval, like.axis, like.n)
        if like.axis in along:
            return None
        return eqn.prim.bind(self.made(eqn.ins[0]), shape=shape.shape, broadcast_dimensions=along)

    def of_cut(self, atom: Atom, wanted: Callable[[int], bool]) -> Run | None:
        """A value as a run: as it is followed, or along its first cut axis of those wanted."""
        found = self.run_of(atom)
        if found is not None:
            return found.run if isinstance(found, Later) else found
        for d, n in enumerate(atom.aval.shape):
            if wanted(d) and (cut := self.cut_of(atom, d)):
                piece = Piece(self.made(atom), 0, n, True)
                return Run(d, n, cut, (piece,), atom.aval)
        return None

    # ---- ops that treat rows alike

    def alike(self, i: int, eqn: Eqn) -> bool:
        """Do an op on carriers, if it treats the rows of its runs alike."""
        factors = self.plan.factors[i]
        if factors is None or eqn.prim.effect or len(eqn.outs) != 1:
            return False
        if (eqn.prim in RULES or eqn.prim.blocks) and eqn.prim is not shift_p:
            return False
        first = next(a for a in eqn.ins if self.run_of(a))
        run = self.of_cut(first, lambda d: True)
        assert run is not None
        factor = factors.ins[eqn.ins.index(first)][run.axis]
        values = zip((*factors.ins, *factors.outs), (*eqn.ins, *eqn.outs), strict=True)
        if factor not in factors.sizes or any(names.count(factor) > 1 for names, _ in values):
            return False
        if eqn.prim is shift_p and eqn.params["axis"] == run.axis:
            return False
        if factor in factors.contracted:
            return self.contracted(eqn, factors, factor, run)
        axis = factors.outs[0].index(factor)
        out = eqn.outs[0].aval
        found = Run(axis, run.n, run.cut, (), out)
        if run.length > run.n:
            self.runs[eqn.outs[0]] = Later(eqn, factor, found)
            return True
        operands = [
            self.operand(a, names, factor, run)
            for names, a in zip(factors.ins, eqn.ins, strict=True)
        ]
        return self.hold(eqn.outs[0], self.computed(eqn, operands, found))

    def operand(self, atom: Atom, names: Sequence[str], factor: str, like: Run) -> Any:
        """An operand: a run along a factor's axis, or a value without it."""
        if factor not in names:
            return self.made(atom)
        axis = names.index(factor)
        return self.as_run(atom, Run(axis, like.n, like.cut, (), atom.aval))

    def computed(self, eqn: Eqn, operands: Sequence[Any], like: Run) -> Run:
        """An op on runs of equal lengths."""
        runs = [x for x in operands if isinstance(x, Run)]
        at = self.best_place(runs)
        values = [self.carriers.put(x, at) if isinstance(x, Run) else x for x in operands]
        self.gained = True
        out = eqn.prim.bind(*values, **eqn.params)
        return like.with_pieces([Piece(out, at, runs[0].length, True)])

    def best_place(self, runs: Sequence[Run]) -> int:
        """Where runs are to lie so that the fewest bytes move."""
        n = runs[0].n
        lying = [r for r in runs if any(p.carrier and not p.equal for p in r.pieces)]

        def moved(at: int) -> float:
            apart = [(min((r.place - at) % n, (at - r.place) % n), r) for r in lying]
            return sum(d * r.aval.nbytes / max(r.length, 1) for d, r in apart)

        if not lying:
            return 0
        middle = (n - runs[0].length) // 2
        places = {*(r.place for r in lying), middle}
        return min(places, key=lambda at: (moved(at), abs(at - middle), at))

    def contracted(self, eqn: Eqn, factors: Factors, factor: str, run: Run) -> bool:
        """A reduction over a run: other rows are made neutral."""
        dtype = eqn.ins[0].aval.dtype
        how = eqn.prim.reduction or ("sum" if eqn.prim.contraction else "")
        if run.length > run.n:
            return False
        if how in ("max", "min") and dtype.itemsize > 1:
            outside = _extreme(dtype, least=how == "max")
        elif how in NEUTRAL:
            outside = NEUTRAL[how]
        else:
            return False
        operands = [
            self.operand(a, names, factor, run)
            for names, a in zip(factors.ins, eqn.ins, strict=True)
        ]
        at = self.best_place([x for x in operands if isinstance(x, Run)])
        values = [self.carriers.put(x, at, outside) if isinstance(x, Run) else x for x in operands]
        self.gained = True
        self.define(eqn, [eqn.prim.bind(*values, **eqn.params)])
        return True

    def taken(self, atom: Atom, run: Run, start: int, length: int) -> Run:
        """Rows of a value that is followed, or of a cut one."""
        found = self.run_of(atom)
        if not isinstance(found, Later):
            return run.window(start, length)
        eqn, factors = found.eqn, self.plan.factors[self.plan.maker[found.eqn.outs[0]]]
        assert factors is not None
        operands: list[Any] = []
        for names, a in zip(factors.ins, eqn.ins, strict=True):
            if found.factor not in names:
                operands.append(self.made(a))
                continue
            axis = names.index(found.factor)
            own = self.run_of(a)
            if isinstance(own, Later):
                operands.append(self.taken(a, own.run, start, length))
            else:
                like = Run(axis, run.n, run.cut, (), a.aval)
                operands.append(self.as_run(a, like).window(start, length))
        return self.computed(eqn, operands, found.run)


def _extreme(dtype: np.dtype, least: bool) -> Any:
    """The least or the greatest value of a dtype."""
    if dtype == dtypes.BOOL:
        return not least
    if dtypes.is_inexact(dtype):
        return -math.inf if least else math.inf
    info = np.iinfo(dtype)
    return info.min if least else info.max
