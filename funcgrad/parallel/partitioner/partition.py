"""Partitioning: from a program of whole arrays to the one that each device runs on its parts.

Equation by equation: factors get mesh axes (`propagate`), operands are brought into these layouts
(`reshard`), the op runs on blocks (`localize`). Results are brought elsewhere only when something
wants them there. What is still to be summed over devices stays so through linear ops, so that
several sums become one, and becomes a reduce-scatter where it is wanted cut.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from funcgrad import dtypes
from funcgrad.core import context, source
from funcgrad.core.aval import ShapedArray
from funcgrad.core.ir import Atom, Eqn, Jaxpr, Literal, Var, literal_value
from funcgrad.core.sharding import Cuts, Mesh, NamedSharding, local_shape
from funcgrad.core.staging import stage
from funcgrad.core.trace import aval_of
from funcgrad.ops.collective.reductions import pmax_p, pmin_p
from funcgrad.ops.elementwise.arithmetic import div, mul
from funcgrad.ops.elementwise.convert import convert_element_type
from funcgrad.ops.families import add
from funcgrad.ops.sharding import sharding_constraint_p
from funcgrad.parallel.mapping.varying import erase
from funcgrad.parallel.partitioner import bodies, localize, reshard
from funcgrad.parallel.partitioner.analysis import traffic
from funcgrad.parallel.partitioner.factors import Assignment, Factors, restrict
from funcgrad.parallel.partitioner.halos import with_halos
from funcgrad.parallel.partitioner.propagate import Propagation, propagate
from funcgrad.parallel.partitioner.reshard import Layout, local_aval
from funcgrad.parallel.partitioner.site import Site
from funcgrad.parallel.programs.decomposed import in_rings
from funcgrad.parallel.programs.passes import gathers_once, sums_early
from funcgrad.parallel.programs.program import SpmdProgram
from funcgrad.transforms.passes.simplify import inline_calls

# Along how many axes of an array slices are followed.
MOST_HALOS = 4


def partition(
    jaxpr: Jaxpr, mesh: Mesh, in_shardings: Sequence[NamedSharding | None]
) -> SpmdProgram:
    """The program that each device of a mesh runs, with collectives, for a program of whole arrays.

    in_shardings: how each input is cut; None: as suits the program. Constraints in the program are
    kept; all else is chosen so that work is shared and few bytes move. Raises ShardingError where
    a sharding is of another mesh, or does not divide its array.

    >>> import funcgrad as fg, funcgrad.numpy as fnp
    >>> from funcgrad.parallel import AbstractMesh, NamedSharding, P
    >>> mesh = AbstractMesh((2,), "data")
    >>> jaxpr = fg.make_jaxpr(lambda x: x.sum())(fnp.ones(4)).jaxpr
    >>> partition(jaxpr, mesh, [NamedSharding(mesh, P("data"))])
    per device of AbstractMesh('data': 2):
    { lambda ; a:f32[2] . let
        b:f32[] = reduce_sum[axes=(0,)] a
        c:f32[] = psum[axis_name=('data',)] b
      in (c,) }
    """
    jaxpr = gathers_once(erase(inline_calls(jaxpr)))
    plan = propagate(jaxpr, mesh, in_shardings)
    best = _per_device(plan)
    for _ in range(MOST_HALOS):
        edges = with_halos(plan)
        if edges is None:
            break
        plan = propagate(edges, mesh, in_shardings)
        found = _per_device(plan)
        if sent(found) < sent(best):
            best = found
    return replace(best, jaxpr=in_rings(best.jaxpr, mesh))


def _per_device(plan: Propagation) -> SpmdProgram:
    """The program of each device, for a program all of whose values have cuts."""
    jaxpr, mesh = plan.jaxpr, plan.mesh
    layouts = [Layout(plan.cuts[v]) for v in jaxpr.ins]
    found: list[Cuts] = []

    def device(*parts: Any) -> list:
        run = Partitioner(plan)
        run.begin(parts, layouts)
        run.run()
        wanted = [run.resting(a) for a in jaxpr.outs]
        found.extend(layout.cuts for layout in wanted)
        return [run.demand(a, layout) for a, layout in zip(jaxpr.outs, wanted, strict=True)]

    avals = [local_aval(v.aval, h, mesh.shape) for v, h in zip(jaxpr.ins, layouts, strict=True)]
    with context.scoped(axes=mesh.shape):
        local, captured = stage(device, avals, "a device's program", jaxpr.names)
    assert not captured, f"partitioning captured {captured}"
    in_cuts = tuple(h.cuts for h in layouts)
    return SpmdProgram(sums_early(local), mesh, in_cuts, tuple(found))


def sent(program: SpmdProgram) -> float:
    """The bytes that a device sends in a run of a program."""
    return sum(n for _, n in traffic(program.jaxpr, program.mesh.shape).values())


class Held:
    """What devices hold of one value of the whole program: its versions by layout, or how to make
    it (`make`, of equation `maker`) in whatever layout is wanted.

    regather: gathered versions are not kept
    zeros: all its elements are zero, so that it may as well be partial
    """

    __slots__ = ("aval", "make", "maker", "regather", "versions", "zeros")

    def __init__(self, aval: ShapedArray, versions: dict[Layout, Any], regather: bool = False):
        self.aval = aval
        self.versions = versions
        self.make: Callable[[Cuts], Any] | None = None
        self.maker = -1
        self.regather = regather
        self.zeros = False

    def pending(self) -> Layout | None:
        """The layout of a value of which there are only parts of a sum."""
        found = None
        for layout in self.versions:
            if not layout.partial:
                return None
            found = layout
        return found


class Partitioner:
    """Runs one program of whole arrays on a device's parts."""

    def __init__(self, plan: Propagation):
        self.plan = plan
        self.sizes = plan.sizes
        self.env: dict[Var, Held] = {}
        # Carries of a loop to which nothing but partial values are added: found while running.
        self.carried: dict[Var, Atom] = {}
        self.sums: dict[Var, Layout] = {}

    def begin(self, values: Sequence[Any], layouts: Sequence[Layout]) -> None:
        """Say what a device holds of the program's inputs."""
        for v, x, layout in zip(self.plan.jaxpr.ins, values, layouts, strict=True):
            self.env[v] = Held(v.aval, {layout: x}, v in self.plan.regather)

    def run(self) -> None:
        """Perform all equations."""
        outer_place, outer_scopes = source.placed(), context.current().scopes
        try:
            for i, eqn in enumerate(self.plan.jaxpr.eqns):
                source.set_place(eqn.source or outer_place)
                with context.scoped(scopes=outer_scopes + eqn.scopes):
                    self._perform(i, eqn)
        finally:
            source.set_place(outer_place)

    # ---- values

    def resting(self, atom: Atom) -> Layout:
        """A layout without sums to be done that a value has, or takes with the fewest bytes."""
        if isinstance(atom, Literal):
            return reshard.whole(0)
        wanted = Layout(self.plan.cuts[atom])
        versions = self.env[atom].versions
        if atom in self.plan.fixed or wanted in versions:
            return wanted
        return next((layout for layout in versions if not layout.partial), wanted)

    def demand(self, atom: Atom, want: Layout) -> Any:
        """A value in a layout: as it is held, made anew, or brought there."""
        if isinstance(atom, Literal):
            return self._partial(literal_value(atom), atom.aval, want)
        held = self.env[atom]
        if want in held.versions:
            return held.versions[want]
        if held.make is not None:
            if want.partial and not held.zeros:
                x = self._partial(self.demand(atom, Layout(want.cuts)), held.aval, want)
            else:
                x = held.make(want.cuts)
            held.versions[want] = x
            return x
        have = min(held.versions, key=lambda h: reshard.cost(held.aval, h, want, self.sizes))
        x = reshard.apply(held.versions[have], have, want, self.sizes)
        gathered = any(s.kind == "all_gather" for s in reshard.steps(have, want))
        if not (held.regather and gathered):
            held.versions[want] = x
        return x

    def _partial(self, x: Any, aval: ShapedArray, want: Layout) -> Any:
        return reshard.apply(x, Layout(want.cuts), want, self.sizes) if want.partial else x

    def cost_of(self, atom: Atom, cuts: Cuts) -> float:
        """The bytes to bring a value, as it is held, into a layout."""
        if isinstance(atom, Literal):
            return 0.0
        held, want = self.env[atom], Layout(cuts)
        if want in held.versions or held.regather:
            return 0.0
        if held.make is not None:
            return self.plan.cost_remade(held.maker, cuts, self.cost_of)
        return min(reshard.cost(held.aval, h, want, self.sizes) for h in held.versions)

    def hold(self, var: Var, layout: Layout, x: Any) -> None:
        """Say what devices hold of a result."""
        held = self.env.setdefault(var, Held(var.aval, {}, var in self.plan.regather))
        held.versions[layout] = x

    # ---- equations

    def _perform(self, i: int, eqn: Eqn) -> None:
        factors = self.plan.factors[i]
        if i in self.plan.inner:
            bodies.perform(self, i, eqn)
        elif eqn.prim is sharding_constraint_p:
            layout = Layout(self.plan.cuts[eqn.outs[0]])
            self.hold(eqn.outs[0], layout, self.demand(eqn.ins[0], layout))
        elif eqn.prim.identity and eqn.prim.multiple:
            self._barrier(eqn)
        elif factors is None:
            values = [self.demand(a, reshard.whole(a.aval.ndim)) for a in eqn.ins]
            out = eqn.prim.bind(*values, **eqn.params)
            for v, x in zip(eqn.outs, out if eqn.prim.multiple else [out], strict=True):
                self.hold(v, reshard.whole(v.aval.ndim), x)
        elif i in self.plan.remade:
            self._later(i, eqn, factors)
        else:
            self._apply(i, eqn, factors)

    def _barrier(self, eqn: Eqn) -> None:
        """Each operand passes as it is held; what is made where it is wanted needs no barrier."""
        for a, v in zip(eqn.ins, eqn.outs, strict=True):
            if isinstance(a, Var) and self.env[a].make is not None:
                self.env[v] = self.env[a]
            else:
                self.demand(a, self.resting(a))
        passed = [
            (a, v, h)
            for a, v in zip(eqn.ins, eqn.outs, strict=True)
            if v not in self.env
            for h in self._settled(a)
        ]
        outs = eqn.prim.bind(*(self.demand(a, h) for a, _, h in passed))
        for (_, v, h), x in zip(passed, outs, strict=True):
            self.hold(v, h, x)

    def _settled(self, atom: Atom) -> list[Layout]:
        """The layouts of which a value's versions are no parts of sums."""
        held = isinstance(atom, Var) and self.env[atom].versions
        return [h for h in held if not h.partial] if held else [self.resting(atom)]

    def _later(self, i: int, eqn: Eqn, factors: Factors) -> None:
        """Make a broadcast, a count or what widens an input where and as it is wanted."""

        def make(cuts: Cuts) -> Any:
            assigned = factors.of_result(cuts, self.sizes)
            values = self._operands(eqn, factors, assigned)
            made = Layout(restrict(factors.outs[0], assigned))
            (x,) = self._emit(eqn, factors, assigned, values)
            return reshard.apply(x, made, Layout(cuts), self.sizes)

        held = Held(eqn.outs[0].aval, {})
        held.make, held.maker = make, i
        held.zeros = len(eqn.ins) == 1 and _is_zero(eqn.ins[0])
        self.env[eqn.outs[0]] = held

    def _apply(self, i: int, eqn: Eqn, factors: Factors) -> None:
        linear = self._linear(eqn, factors)
        if linear is not None:
            assigned, due = linear
        else:
            assigned, due = self.plan.choose(i, self.cost_of), frozenset()
        values = self._operands(eqn, factors, assigned, due)
        outs = self._emit(eqn, factors, assigned, values)
        axes = tuple(a for a in factors.contracted_axes(assigned) if self.sizes[a] > 1)
        partial = due
        if axes and factors.reduction == "sum":
            partial = due | frozenset(axes)
        elif axes:
            outs = [_reduced(factors.reduction, x, axes) for x in outs]
        for v, names, x in zip(eqn.outs, factors.outs, outs, strict=True):
            self.hold(v, Layout(restrict(names, assigned), partial), x)

    def _operands(
        self, eqn: Eqn, factors: Factors, assigned: Assignment, due: frozenset[str] = frozenset()
    ) -> list:
        """An equation's operands in their layouts; `due`: sums that stay to be done."""
        rule = localize.RULES.get(eqn.prim)
        once = frozenset(a for a in factors.contracted_axes(assigned) if self.sizes[a] > 1)
        values = []
        for k, (a, names) in enumerate(zip(eqn.ins, factors.ins, strict=True)):
            partial = once if rule and k in rule.partial else frozenset()
            pending = self._pending(a)
            if due and pending is not None:
                partial |= pending.partial
            values.append(self.demand(a, Layout(restrict(names, assigned), partial)))
        return values

    def _emit(
        self, eqn: Eqn, factors: Factors, assigned: Assignment, values: Sequence[Any]
    ) -> list:
        shapes = tuple(
            local_shape(self.sizes, restrict(names, assigned), v.aval.shape)
            for names, v in zip(factors.outs, eqn.outs, strict=True)
        )
        site = Site(
            eqn.prim,
            eqn.params,
            tuple(a.aval for a in eqn.ins),
            shapes,
            assigned,
            self.sizes,
        )
        return localize.emit(site, values)

    # ---- sums that are due

    def _pending(self, atom: Atom) -> Layout | None:
        if isinstance(atom, Literal) or self.env[atom].make is not None:
            return None
        return self.env[atom].pending()

    def _linear(self, eqn: Eqn, factors: Factors) -> tuple[Assignment, frozenset[str]] | None:
        """How an op that is linear works on parts of a sum, where that moves no more bytes than to
        sum first: its assignment, and the sums that stay due."""
        pending = {k: p for k, a in enumerate(eqn.ins) if (p := self._pending(a)) is not None}
        for k, layout in pending.items():
            self._note_sum(eqn, k, layout)
        if not pending or not self._is_linear_in(eqn, list(pending)):
            return None
        first, *others = pending
        layout, names = pending[first], factors.ins[first]
        if any(pending[k] != layout for k in others):
            return None
        assigned = {f: c for f, c in zip(names, layout.cuts, strict=True) if c and f != "."}
        return (assigned, layout.partial) if restrict(names, assigned) == layout.cuts else None

    def _is_linear_in(self, eqn: Eqn, pending: Sequence[int]) -> bool:
        """Whether an op is linear in its pending operands together, which nothing else needs, and
        gives nothing larger."""
        if any(self.plan.uses[eqn.ins[k]] > 1 for k in pending):  # type: ignore[index]
            return False
        if eqn.prim in (mul, div):
            return len(pending) == 1 and _scales(eqn, pending[0])
        if not eqn.prim.linear or len(pending) < len(eqn.ins):
            return False
        return eqn.outs[0].aval.size <= eqn.ins[0].aval.size and self._widens(eqn)

    def _widens(self, eqn: Eqn) -> bool:
        """Whether a conversion, if it is one, is exact and followed by a sum with other values."""
        have, want = eqn.ins[0].aval.dtype, eqn.outs[0].aval.dtype
        if have == want:
            return True
        users = self.plan.users.get(eqn.outs[0], [])
        added = len(users) == 1 and self.plan.jaxpr.eqns[users[0]].prim is add
        floats = dtypes.is_float(have) and dtypes.is_float(want)
        return added and floats and want.itemsize > have.itemsize

    def _note_sum(self, eqn: Eqn, k: int, layout: Layout) -> None:
        """Note where a loop's carry only has parts of a sum added to it."""
        if eqn.prim is not add:
            return
        other = eqn.ins[1 - k]
        if isinstance(other, Var) and self.carried.get(other) is eqn.outs[0]:
            term = eqn.ins[k]
            alone = (other, term, eqn.outs[0])
            if all(self.plan.uses.get(v) == 1 for v in alone):  # type: ignore[arg-type]
                self.sums[other] = layout


def _scales(eqn: Eqn, k: int) -> bool:
    """Whether an operand is multiplied by, or divided by, a number that sums may be scaled by as
    well as their parts are (infinity times parts of both signs would be NaN)."""
    other = eqn.ins[1 - k]
    if not isinstance(other, Literal) or not np.all(np.isfinite(other.value)):
        return False
    exact = k == 0 and dtypes.is_inexact(other.aval.dtype) and bool(np.any(other.value))
    return eqn.prim is mul or exact


def _is_zero(atom: Atom) -> bool:
    return isinstance(atom, Literal) and not np.any(atom.value)


def _reduced(reduction: str, x: Any, axes: tuple[str, ...]) -> Any:
    """The maximum or minimum of devices' values."""
    dtype = aval_of(x).dtype
    prim = pmax_p if reduction in ("max", "or") else pmin_p
    if dtype != dtypes.BOOL:
        return prim.bind(x, axis_name=axes)
    found = prim.bind(convert_element_type(x, np.dtype(np.int32)), axis_name=axes)
    return convert_element_type(found, dtype)
