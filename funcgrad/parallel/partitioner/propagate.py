"""Propagation: over which mesh axes each value of a program is cut.

Inputs with shardings and constraints are fixed. From them cuts spread along the factors of the
equations, forwards first, then backwards, until nothing changes; a value's cuts only grow. Programs
in equations propagate with what is around them, tied to it by `nested.ties`.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile
from typing import Any

from funcgrad.core.ir import Atom, Eqn, Jaxpr, Literal, Var
from funcgrad.core.sharding import Cuts, Mesh, NamedSharding
from funcgrad.core.views import repeats, spread
from funcgrad.dtypes import BOOL
from funcgrad.errors import ShardingError
from funcgrad.ops.indexing.gather import gather_p
from funcgrad.ops.shape import reshape_p
from funcgrad.ops.sharding import sharding_constraint_p
from funcgrad.parallel.partitioner import nested
from funcgrad.parallel.partitioner.factors import Assignment, Factors, choose, factors_of, restrict
from funcgrad.parallel.partitioner.localize import RULES
from funcgrad.parallel.partitioner.nested import OUTSIDE, Slot
from funcgrad.parallel.partitioner.reshard import Layout, Sizes, cost, used_axes

# Bytes of an element, as which what is made of narrower inputs is counted: it may be widened later.
WIDE = 4
CostOf = Callable[[Atom, Cuts], float]


class Propagation:
    """The cuts of one program's values, and those of the programs in it.

    cuts: of each variable; regather: variables that are gathered anew for each use; remade:
        equations whose result is made anew wherever it is wanted in another layout
    """

    def __init__(self, jaxpr: Jaxpr, mesh: Mesh, axes: Iterable[str] | None = None):
        self.jaxpr = jaxpr
        self.mesh = mesh
        self.sizes: Sizes = mesh.shape
        # The mesh axes that cuts may be of: in a shard_map's body, those that are not manual.
        self.axes = frozenset(mesh.axis_names if axes is None else axes)
        self.cuts: dict[Var, Cuts] = {}
        self.fixed: set[Var] = set()
        self.regather: set[Var] = set()
        self.factors: list[Factors | None] = []
        self.remade: set[int] = set()
        # The inputs that each input is made of, and what is made element by element of some.
        self.sources: dict[Var, frozenset[Var]] = {v: frozenset((v,)) for v in jaxpr.ins}
        self.inner: dict[int, tuple[Propagation, ...]] = {}
        self.ties: dict[int, list[nested.Tie]] = {}
        self.users: dict[Var, list[int]] = {}
        self.uses: dict[Var, int] = {}
        self.maker: dict[Var, int] = {}
        self.visits = 0
        self._ahead: list[int] = list(range(len(jaxpr.eqns)))
        self._back: list[int] = [-i for i in reversed(range(len(jaxpr.eqns)))]
        self._queued = {(False, i) for i in self._ahead} | {(True, i) for i in self._ahead}
        self._read()

    def _read(self) -> None:
        for v in self.jaxpr.ins:
            self.cuts[v] = ((),) * v.aval.ndim
        for i, eqn in enumerate(self.jaxpr.eqns):
            inner = nested.bodies(eqn)
            if inner:
                taken = eqn.params.get("manual", ())
                left = self.axes - frozenset(taken)
                self.inner[i] = tuple(Propagation(b, self.mesh, left) for b in inner)
                self.ties[i] = nested.ties(eqn)
            self.factors.append(factors := None if inner else factors_of(eqn))
            widens = factors is not None and self._widens(eqn, factors)
            if factors is not None and (widens or _is_remade(eqn, factors)):
                self.remade.add(i)
            for a in eqn.ins:
                if isinstance(a, Var):
                    self.users.setdefault(a, []).append(i)
                    self.uses[a] = self.uses.get(a, 0) + 1
            for v in eqn.outs:
                self.maker[v] = i
                self.cuts[v] = ((),) * v.aval.ndim
            if eqn.prim is sharding_constraint_p:
                self._constrain(eqn)
        for a in self.jaxpr.outs:
            if isinstance(a, Var):
                self.uses[a] = self.uses.get(a, 0) + 1

    def _widens(self, eqn: Eqn, factors: Factors) -> bool:
        """Whether a result is made, element by element, of inputs of narrower dtypes and their
        scales, as weights are of quantized ones: then these are sent in its place."""
        rule = eqn.prim in RULES and eqn.prim not in (reshape_p, gather_p)
        if not eqn.ins and not eqn.prim.effect:  # counts: each device makes its own
            self.sources.update(dict.fromkeys(eqn.outs, frozenset()))
        if eqn.prim.effect or rule or len(eqn.outs) != 1 or not eqn.ins:
            return False
        names = {f for own in factors.ins for f in own} - {"."}
        if not factors.sizes.keys() >= names or any(
            isinstance(a, Var) and a not in self.sources for a in eqn.ins
        ):
            return False
        made_of = frozenset[Var]().union(*(self.sources[a] for a in eqn.ins if isinstance(a, Var)))
        (out,) = eqn.outs
        self.sources[out] = made_of
        narrow = any(v.aval.dtype.itemsize == 1 and v.aval.dtype != BOOL for v in made_of)
        return narrow and sum(v.aval.nbytes for v in made_of) < WIDE * out.aval.size

    def _constrain(self, eqn: Eqn) -> None:
        sharding: NamedSharding = eqn.params["sharding"]
        (out,) = eqn.outs
        check_mesh("with_sharding_constraint", sharding, self.mesh)
        cuts = sharding.cuts(out.aval.shape, f"with_sharding_constraint: {out.aval}")
        if taken := used_axes(cuts) - self.axes:
            raise ShardingError(
                f"with_sharding_constraint: {sharding.spec} names {sorted(taken)}, which are "
                "manual in this shard_map: its body sees each device's part already"
            )
        self.fix(out, cuts)
        if sharding.regather:
            self.regather.add(out)

    def fix(self, var: Var, cuts: Cuts) -> None:
        """Say how a value is cut; nothing changes it any more."""
        self.cuts[var] = cuts
        self.fixed.add(var)

    def cuts_of(self, atom: Atom) -> Cuts:
        """How a value is cut."""
        return self.cuts[atom] if isinstance(atom, Var) else ()

    def offer(self, atom: Atom, cuts: Cuts) -> bool:
        """Cut a value further where that is open and goes together with how it is cut."""
        if isinstance(atom, Literal) or atom in self.fixed:
            return False
        old = self.cuts[atom]
        new = merged(old, self._open(cuts))
        if new == old:
            return False
        self.cuts[atom] = new
        for i in (*self.users.get(atom, ()), *([self.maker[atom]] if atom in self.maker else ())):
            self._queue(i)
        return True

    def _open(self, cuts: Cuts) -> Cuts:
        """Cuts up to the first over a mesh axis that is manual here: an operand of a shard_map may
        arrive cut over one that its spec doesn't name."""
        if self.axes.issuperset(self.sizes):
            return cuts
        return tuple(tuple(takewhile(self.axes.__contains__, c)) for c in cuts)

    def _queue(self, i: int) -> None:
        for back in (False, True):
            if (back, i) not in self._queued:
                self._queued.add((back, i))
                heapq.heappush(self._back if back else self._ahead, -i if back else i)

    def run(self) -> None:
        """Propagate until nothing changes."""
        while self._ahead or self._back:
            back = not self._ahead
            i = -heapq.heappop(self._back) if back else heapq.heappop(self._ahead)
            self._queued.discard((back, i))
            self.visits += 1
            self._visit(i, back)

    def _visit(self, i: int, back: bool) -> None:
        eqn, factors = self.jaxpr.eqns[i], self.factors[i]
        if i in self.inner:
            self._visit_inner(i)
        elif eqn.prim is sharding_constraint_p:
            self.offer(eqn.ins[0], self.cuts[eqn.outs[0]])
        elif factors is not None:
            assigned = self.choose(i)
            names, atoms = (factors.ins, eqn.ins) if back else (factors.outs, eqn.outs)
            for n, a in zip(names, atoms, strict=True):
                self.offer(a, restrict(n, assigned))
            self._spread_regather(eqn)

    def _spread_regather(self, eqn: Eqn) -> None:
        """What is made of a regathered value alone, as its conversion, is gathered anew too."""
        if eqn.prim.identity:
            pairs = zip(eqn.ins, eqn.outs, strict=True)
            self.regather.update(v for a, v in pairs if a in self.regather)
            return
        arrays = [a for a in eqn.ins if isinstance(a, Var) and a.aval.ndim]
        if len(arrays) == 1 and arrays[0] in self.regather:
            same = [v for v in eqn.outs if v.aval.size == arrays[0].aval.size]
            self.regather.update(same)

    def _visit_inner(self, i: int) -> None:
        inner = self.inner[i]
        changed = True
        while changed:
            changed = False
            for tie in self.ties[i]:
                for slot in tie:
                    cuts = slot.inward(self._in(i, slot).cuts_of(slot.atom))
                    for other in tie:
                        if other is not slot and not isinstance(other.atom, Literal):
                            place = self._in(i, other)
                            changed |= place.offer(other.atom, other.outward(cuts))
                self._tie_regather(i, tie)
            for body in inner:
                before = body.visits
                body.run()
                changed |= body.visits > before

    def _tie_regather(self, i: int, tie: nested.Tie) -> None:
        if any(s.body == OUTSIDE and s.atom in self.regather for s in tie[:1]):
            for slot in tie[1:]:
                if slot.body != OUTSIDE and isinstance(slot.atom, Var):
                    self.inner[i][slot.body].regather.add(slot.atom)

    def _in(self, i: int, slot: Slot) -> Propagation:
        return self if slot.body == OUTSIDE else self.inner[i][slot.body]

    def tie_cuts(self, i: int, tie: nested.Tie) -> Cuts:
        """How the values of a tie are cut: as the body gets them, or leaves them."""
        for slot in tie:
            if slot.body != OUTSIDE and isinstance(slot.atom, Var):
                return self.inner[i][slot.body].cuts[slot.atom]
        outer = next(s for s in tie if s.body == OUTSIDE)
        return ((),) * (outer.atom.aval.ndim - outer.lead)

    def choose(self, i: int, cost_of: CostOf | None = None) -> Assignment:
        """The mesh axes for the factors of an equation. cost_of: the bytes to bring an operand into
        a layout, by default from the one it is propagated to have."""
        eqn, factors = self.jaxpr.eqns[i], self.factors[i]
        assert factors is not None
        values = [
            *zip(factors.ins, eqn.ins, strict=True),
            *zip(factors.outs, eqn.outs, strict=True),
        ]
        seen = [(names, c) for names, a in values if any(c := self.cuts_of(a))]
        if not seen:
            return {}
        found = [(f, axes) for names, cuts in seen for f, axes in zip(names, cuts, strict=True)]
        pairs = factors.follows.items()
        seen += [((g,), (axes,)) for f, g in pairs for name, axes in found if name == f and axes]
        # Instead of an axis that is cut over several mesh axes, others over all or one of them.
        seen += [
            ((f,), (some,))
            for f in factors.instead
            for name, axes in found
            if axes and (name not in factors.sizes or any(name in pair for pair in pairs))
            for some in dict.fromkeys([axes, *((a,) for a in axes)])
        ]
        of_operand = cost_of or self._cost_of
        rule = RULES.get(eqn.prim)
        sends = rule.sends if rule else None

        def total(assigned: Assignment) -> float:
            partial = frozenset(factors.contracted_axes(assigned))
            bytes_in = sum(
                of_operand(a, restrict(names, assigned))
                for names, a in zip(factors.ins, eqn.ins, strict=True)
            )
            if sends is not None:
                avals = [a.aval for a in eqn.ins]
                bytes_in += sends(avals, eqn.params, assigned, self.sizes)
            return bytes_in + sum(
                self._cost_out(v, Layout(restrict(names, assigned), partial))
                for names, v in zip(factors.outs, eqn.outs, strict=True)
            )

        return choose(factors, seen, self.sizes, total)

    def _cost_of(self, atom: Atom, cuts: Cuts) -> float:
        if isinstance(atom, Literal):
            return 0.0
        have, want = Layout(self.cuts[atom]), Layout(cuts)
        if have == want or atom in self.regather:
            return 0.0
        i = self.maker.get(atom)
        if i is not None and i in self.remade:
            return self.cost_remade(i, cuts, self._cost_of)
        return cost(atom.aval, have, want, self.sizes)

    def cost_remade(self, i: int, cuts: Cuts, cost_of: CostOf) -> float:
        """The bytes to make a broadcast (or a count) anew in another layout: those to bring its
        operand into the layout that it needs."""
        eqn, factors = self.jaxpr.eqns[i], self.factors[i]
        assert factors is not None
        assigned = factors.of_result(cuts, self.sizes)
        return sum(
            cost_of(a, restrict(names, assigned))
            for names, a in zip(factors.ins, eqn.ins, strict=True)
        )

    def _cost_out(self, var: Var, have: Layout) -> float:
        """The bytes from a result as it is computed to what is wanted of it."""
        cuts = self.cuts[var]
        want = cuts if var in self.fixed else merged(cuts, have.cuts)
        return cost(var.aval, have, Layout(want), self.sizes)


def _is_remade(eqn: Eqn, factors: Factors) -> bool:
    """Whether a result is made of less than it is, a broadcast or a count, and that in any part."""
    if eqn.prim.effect or len(eqn.outs) != 1 or not factors.sizes.keys() >= {*factors.outs[0]}:
        return False
    out = eqn.outs[0].aval
    if not eqn.ins or eqn.prim.view is None:
        return bool(not eqn.ins and out.ndim)
    return spread(eqn) is not None and (out.ndim > eqn.ins[0].aval.ndim or repeats(eqn))


def merged(old: Cuts, more: Cuts) -> Cuts:
    """Cuts that go as far as `old`, and further where `more` does and no mesh axis is used twice.

    >>> merged((("x",), ()), (("x", "y"), ("x",)))
    (('x', 'y'), ())
    """
    used = used_axes(old)
    new = list(old)
    for d, (have, want) in enumerate(zip(old, more, strict=True)):
        added = want[len(have) :]
        if added and want[: len(have)] == have and used.isdisjoint(added):
            new[d] = want
            used.update(added)
    return tuple(new)


def check_mesh(what: str, sharding: NamedSharding, mesh: Mesh) -> None:
    """Raise unless a sharding is of the mesh that a program is partitioned for."""
    if not sharding.mesh.same_grid(mesh):
        raise ShardingError(f"{what}: {sharding} is of another mesh than the program's, {mesh}")


def propagate(
    jaxpr: Jaxpr, mesh: Mesh, in_shardings: Sequence[NamedSharding | None]
) -> Propagation:
    """The cuts of all values of a program, whose inputs are sharded (None: as suits the program).

    >>> import funcgrad as fg, funcgrad.numpy as fnp
    >>> from funcgrad.parallel import AbstractMesh, NamedSharding, P
    >>> jaxpr = fg.make_jaxpr(lambda x: fnp.sin(x).T)(fnp.ones((4, 3))).jaxpr
    >>> mesh = AbstractMesh((2,), "data")
    >>> found = propagate(jaxpr, mesh, [NamedSharding(mesh, P("data"))])
    >>> found.cuts[jaxpr.outs[0]]
    ((), ('data',))
    """
    found = Propagation(jaxpr, mesh)
    names: Any = jaxpr.names or [f"input {i}" for i in range(len(jaxpr.ins))]
    for v, s, name in zip(jaxpr.ins, in_shardings, names, strict=True):
        if s is not None:
            check_mesh(name, s, mesh)
            found.fix(v, s.cuts(v.aval.shape, name))
            if s.regather:
                found.regather.add(v)
    found.run()
    return found
