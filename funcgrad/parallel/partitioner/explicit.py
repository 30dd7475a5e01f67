"""How values are cut over Explicit mesh axes, which their types say (`typeof(x).sharding`).

A pass forward over a program that is being written: how an equation's results are cut follows from
its operands alone, by its factors. What these leave open is an error, except where the result is
constrained at once (`out_sharding=`, `reshard`). What goes into loops' bodies and branches, and
comes of them, is constrained as operands are cut. Nothing (None) is known of inputs of `shard_map`,
and of rows that lie on several devices. Cotangents are cut as they come: where a sum over a batch
makes them, that is whole; those of arguments are brought to their primals' cuts.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from funcgrad.core import context
from funcgrad.core import dims as dims_
from funcgrad.core.aval import ShapedArray
from funcgrad.core.ir import Atom, Eqn, Jaxpr, Var, sub_jaxprs
from funcgrad.core.places.sharded import ShardedArray
from funcgrad.core.refs import Ref
from funcgrad.core.shapes import ShapeDtypeStruct, ShardedAval
from funcgrad.core.sharding import AbstractMesh, Cuts, NamedSharding, PartitionSpec
from funcgrad.core.staging import JaxprTrace, JaxprTracer
from funcgrad.core.trace import Trace, Tracer, aval_of
from funcgrad.errors import ShardingError
from funcgrad.ops.base import broadcast_p, transpose_p
from funcgrad.ops.elementwise.convert import convert_element_type_p
from funcgrad.ops.shape import reshape_p, rev_p
from funcgrad.ops.sharding import sharding_constraint_p
from funcgrad.ops.slicing import concatenate_p, pad_p, slice_p
from funcgrad.parallel.partitioner.factors import Assignment, Factors, Names, factors_of, restrict
from funcgrad.parallel.partitioner.reshard import extent
from funcgrad.transforms.autodiff.jvp import JVPTracer
from funcgrad.transforms.autodiff.transpose import TRANSPOSED
from funcgrad.transforms.batching.trace import BatchTracer
from funcgrad.transforms.control.cond import cond_p
from funcgrad.transforms.control.scan import scan_p
from funcgrad.transforms.control.while_loop import while_p

AUTO = "auto_axes()"  # the scope of operations of which the compiler decides, and derivatives' too
_NO_MESH = AbstractMesh((), ())
_ARRANGING = (broadcast_p, reshape_p, transpose_p)
# Along each axis alone they move elements: results are cut as operands, where lengths let them be.
_ALONG_AXES = (concatenate_p, pad_p, rev_p, slice_p)
_WITH_BODIES = (cond_p, scan_p, while_p)
_SAYING = (convert_element_type_p, sharding_constraint_p)


def type_of(x: Any) -> ShapedArray:
    """The type of a value, with its sharding where that is known: of arrays always, of traced
    values under a mesh with Explicit axes.

    >>> import funcgrad as fg, funcgrad.numpy as fnp
    >>> mesh = fg.make_mesh((2,), "data", fg.AxisType.Explicit)
    >>> type_of(fg.device_put(fnp.ones((4, 3)), fg.NamedSharding(mesh, fg.P("data"))))
    f32[4@data,3]
    """
    aval, sharding = aval_of(x), Reader(lanes=True).sharding_of(x)
    return aval if sharding is None else ShardedAval(aval, sharding)


def sharding_of(x: Any) -> NamedSharding | None:
    """How a value is cut over Explicit axes, None where that isn't known."""
    return Reader().sharding_of(x)


def typed(values: Sequence, shardings: Sequence[NamedSharding | None] | None = None) -> list:
    """The values, of which a program is told how they are cut; by default as their types say."""
    if shardings is None:
        shardings = list(map(Reader().sharding_of, values))
    return [
        v if s is None or not s.mesh.explicit_axes else sharding_constraint_p.bind(v, sharding=s)
        for v, s in zip(values, shardings, strict=True)
    ]


def between_types(fun: Callable[..., list], args: Sequence) -> Callable[..., list]:
    """A flat function to be traced for these arguments: its inputs are cut as they are, and so are
    its results, as follows from these; an error where that is ambiguous."""
    ins = list(map(_of_argument, args))

    def call(*tracers: Any) -> list:
        outs, reader, mesh = fun(*typed(tracers, ins)), Reader(), context.current().mesh
        for tracer in tracers[:1]:
            reader.cuts(tracer)  # all of the program is looked at, also what no result needs
        if mesh is None or mesh.auto_axes:
            return outs
        return typed(outs, list(map(reader.sharding_of, outs)))

    return call


def of_body(
    place: str, fun: Callable[..., list], operands: Sequence, avals: Sequence[ShapedArray],
    n_carry: int,
) -> Callable[..., list]:  # fmt: skip
    """A flat function to be traced as the body of a loop, or as a branch: its inputs are cut as the
    operands are, or their rows, and the first results as the inputs whose place they take."""
    ins = [_of_row(x, aval.ndim) for x, aval in zip(operands, avals, strict=True)]

    def call(*tracers: Any) -> list:
        outs, reader = fun(*typed(tracers, ins)), Reader()
        found = list(map(reader.sharding_of, outs))
        _check_cuts(place, avals, ins[:n_carry], found)
        found[:n_carry] = [a or b for a, b in zip(ins[:n_carry], found, strict=False)]
        return typed(outs, found)

    return call


def check_carry(place: str, before: Sequence, after: Sequence) -> None:
    """Raise ShardingError where a turn of a loop leaves a value cut in another way."""
    reader = Reader()
    enters, leaves = (list(map(reader.sharding_of, values)) for values in (before, after))
    _check_cuts(place, list(map(aval_of, before)), enters, leaves)


def _check_cuts(
    place: str, avals: Sequence[ShapedArray], before: Sequence[NamedSharding | None],
    after: Sequence[NamedSharding | None],
) -> None:  # fmt: skip
    for i, (enters, leaves) in enumerate(zip(before, after, strict=False)):
        if enters and leaves and enters != leaves:
            raise ShardingError(
                f"{place}: the carry must keep its types from one step to the next, but leaf "
                f"{i} enters as {ShardedAval(avals[i], enters)} and leaves as "
                f"{ShardedAval(avals[i], leaves)}; reshard the initial value or the result"
            )


def _of_row(x: Any, ndim: int) -> NamedSharding | None:
    """How an operand is cut, or a row of it where it has an axis more; None where that is not
    known, as of rows that lie on several devices."""
    sharding = sharding_of(x)
    if sharding is None or aval_of(x).ndim == ndim:
        return sharding
    along, *cuts = sharding.spec.cuts(ndim + 1)
    return None if along else NamedSharding(sharding.mesh, PartitionSpec.of(tuple(cuts)))


def _of_argument(x: Any) -> NamedSharding | None:
    """How an argument of a compiled function is cut: an array, a number or what stands for one."""
    if type(x) is Ref:
        return None
    if isinstance(x, Tracer | ShardedArray):
        return sharding_of(x)
    said = x.sharding if isinstance(x, ShapeDtypeStruct) else None
    return said or NamedSharding(context.current().mesh or _NO_MESH, PartitionSpec())


def _explicit(sharding: NamedSharding, ndim: int) -> Cuts:
    """A sharding's cuts over Explicit axes."""
    known = sharding.mesh.explicit_axes
    return tuple(tuple(a for a in c if a in known) for c in sharding.spec.cuts(ndim))


class Reader:
    """Tells how values are cut, from one look at each program that is being written.

    lanes: tell it also of one lane of what `vmap` maps, whose mapped axis isn't seen
    """

    def __init__(self, lanes: bool = False):
        self._lanes = lanes
        self._passes: dict[Trace, Pass] = {}

    def sharding_of(self, x: Any) -> NamedSharding | None:
        """How a value is cut over Explicit axes, None where that isn't known."""
        mesh = x.sharding.mesh if type(x) is ShardedArray else context.current().mesh
        if isinstance(x, Tracer) and not (mesh and mesh.explicit_axes):
            return None
        cuts = self.cuts(x)
        return None if cuts is None else NamedSharding(mesh or _NO_MESH, PartitionSpec.of(cuts))

    def cuts(self, x: Any) -> Cuts | None:
        """The same written out."""
        if type(x) is ShardedArray:
            return _explicit(x.sharding, x.ndim)
        if type(x) is JVPTracer:
            return self.cuts(x.primal)
        if type(x) is BatchTracer:
            whole = self.cuts(x.value) if self._lanes else None
            return whole and (*whole[: x.dim], *whole[x.dim + 1 :])
        if type(x) is JaxprTracer:
            return self._pass(x._trace).known.get(x._var)  # type: ignore[arg-type]
        return None if isinstance(x, Tracer) else ((),) * aval_of(x).ndim

    def _pass(self, trace: JaxprTrace) -> Pass:
        found = self._passes.get(trace)
        if found is None:
            captured = {var: self.cuts(value) for value, _, var in trace.consts.values()}
            found = self._passes[trace] = Pass(trace.eqns, captured)
        return found


class Pass:
    """`known`: how each value of a program is cut, from how its inputs are."""

    def __init__(self, eqns: Sequence[Eqn], known: dict[Var, Cuts | None]):
        self.known = known
        mesh = context.current().mesh
        self.sizes = {} if mesh is None else mesh.shape
        said = [e for e in eqns if e.prim is sharding_constraint_p]
        self.settled = _settled(eqns)
        for eqn in eqns:
            self.known.update(zip(eqn.outs, self._results(eqn), strict=True))
        for eqn in said:  # so a value whose cuts were open is as it was said to be
            (a,), (out,) = eqn.ins, eqn.outs
            if isinstance(a, Var) and self.known.get(a) is None:
                self.known[a] = self.known[out]

    def of(self, atom: Atom) -> Cuts | None:
        """How a value is cut."""
        return self.known.get(atom) if isinstance(atom, Var) else ((),) * atom.aval.ndim

    def _results(self, eqn: Eqn) -> Sequence[Cuts | None]:
        if eqn.prim is sharding_constraint_p:
            return [_explicit(eqn.params["sharding"], eqn.outs[0].aval.ndim)]
        ins, unknown = [self.of(a) for a in eqn.ins], [None] * len(eqn.outs)
        if eqn.prim in _WITH_BODIES:
            return _of_bodies(eqn)
        if None in ins or self.settled.issuperset(eqn.outs) or AUTO in eqn.scopes:
            return unknown
        inner = list(sub_jaxprs(eqn))
        if inner:
            fits = eqn.prim.call and len(inner) == 1 and len(inner[0].ins) == len(ins)
            return self._of_call(inner[0], ins) if fits else unknown
        return self._by_factors(eqn, ins)  # type: ignore[arg-type]

    def _of_call(self, jaxpr: Jaxpr, ins: Sequence[Cuts | None]) -> list[Cuts | None]:
        inner = Pass(jaxpr.eqns, dict(zip(jaxpr.ins, ins, strict=True)))
        return [inner.of(a) for a in jaxpr.outs]

    def _by_factors(self, eqn: Eqn, ins: Sequence[Cuts]) -> list[Cuts | None]:
        if not any(map(any, ins)):
            return [((),) * v.aval.ndim for v in eqn.outs]
        factors = _along(eqn) if eqn.prim in _ALONG_AXES else factors_of(eqn)
        if factors is None:
            self._open(eqn, ins, "it takes whole operands")
        assigned = self._assigned(eqn, ins, factors)
        outs: list[Cuts | None] = []
        for names in factors.outs:
            cuts = restrict(names, assigned)
            axes = [a for c in cuts for a in c]
            if len(set(axes)) < len(axes):
                self._open(eqn, ins, f"its result would be cut twice over {_twice(axes)!r}")
            outs.append(cuts)
        return outs

    def _assigned(self, eqn: Eqn, ins: Sequence[Cuts], factors: Factors) -> Assignment:
        """The mesh axes of each factor."""
        kept = {f for names in factors.outs for f in names}
        lenient, assigned = TRANSPOSED in eqn.scopes, Assignment()
        for names, cuts in zip(factors.ins, ins, strict=True):
            for i, (f, axes) in enumerate(zip(names, cuts, strict=True)):
                if not axes:
                    continue
                if f in kept or f == ".":
                    self._check_fits(eqn, ins, factors, f, axes, i)
                elif f in assigned and not lenient:
                    over = " × ".join(map(repr, axes))
                    self._open(eqn, ins, f"it sums over an axis that is cut over {over}")
                if assigned.setdefault(f, axes) != axes and not lenient:
                    self._open(eqn, ins, "they are cut differently along an axis they share")
        return _without_repeats(assigned, factors) if lenient else assigned

    def _check_fits(
        self, eqn: Eqn, ins: Sequence[Cuts], factors: Factors, f: str, axes: Names, i: int
    ) -> None:
        if factors.fitting(f, axes, self.sizes) != axes:
            parts = extent(axes, self.sizes)
            why = f"its result can't be cut into {parts} parts, as axis {i} of its operand is"
            self._open(eqn, ins, why if f in factors.sizes else f"axis {i} must be whole")

    def _open(self, eqn: Eqn, ins: Sequence[Cuts], why: str) -> NoReturn:
        mesh = context.current().mesh or _NO_MESH
        listed = ", ".join(
            str(ShardedAval(a.aval, NamedSharding(mesh, PartitionSpec.of(c))))
            for a, c in zip(eqn.ins, ins, strict=True)
        )
        place = f"\nat {eqn.source}: {eqn.source.text}" if eqn.source else ""
        raise ShardingError(
            f"{eqn.prim.name} of {listed}: it is open how the result is cut over the Explicit axes "
            f"of {mesh}: {why}. Say it, with out_sharding= or reshard of the result, or reshard "
            f"an operand{place}"
        )


def _of_bodies(eqn: Eqn) -> list[Cuts | None]:
    """How the results of a loop or of branches are cut, as their bodies say of theirs; None where
    branches differ."""
    bodies = [eqn.params["body_jaxpr"]] if eqn.prim is while_p else sub_jaxprs(eqn)
    found = []
    for out, *inner in zip(eqn.outs, *map(_said_of_results, bodies), strict=True):
        cuts = inner[0] if all(c == inner[0] for c in inner) else None
        rows = cuts is not None and len(cuts) < out.aval.ndim
        found.append(((), *cuts) if rows else cuts)  # type: ignore[misc]
    return found


def _said_of_results(jaxpr: Jaxpr) -> list[Cuts | None]:
    """How the results of a body are cut where constraints say it."""
    made = {eqn.outs[0]: eqn for eqn in jaxpr.eqns if eqn.prim in _SAYING}

    def cuts(atom: Atom) -> Cuts | None:
        eqn = made.get(atom) if isinstance(atom, Var) else None
        if eqn is None:
            return None
        if eqn.prim is sharding_constraint_p:
            return _explicit(eqn.params["sharding"], atom.aval.ndim)
        return cuts(eqn.ins[0])

    return list(map(cuts, jaxpr.outs))


def _settled(eqns: Sequence[Eqn]) -> set[Var]:
    """The values that are constrained where they are used, if need be after their elements were
    brought into another order or shape."""
    found: set[Var] = set()
    uses = Counter(a for eqn in eqns for a in eqn.ins if isinstance(a, Var))
    for eqn in reversed(eqns):
        said = eqn.prim is sharding_constraint_p
        if said or (eqn.prim in _ARRANGING and eqn.outs[0] in found):
            found.update(a for a in eqn.ins if isinstance(a, Var) and (said or uses[a] == 1))
    return found


def _along(eqn: Eqn) -> Factors:
    """The factors of an operation that moves elements along axes."""
    (out,) = eqn.outs
    names = tuple(dims_.letters(out.aval.ndim))
    ins = tuple(names if a.aval.ndim == len(names) else () for a in eqn.ins)
    lengths = [a.aval.shape for a in (*eqn.ins, out) if a.aval.ndim == len(names)]
    sizes = {f: math.gcd(*own) for f, *own in zip(names, *lengths, strict=True)}
    return Factors(ins, (names,), sizes, frozenset(), "sum")


def _twice(axes: Sequence[str]) -> str:
    return next(a for a in axes if axes.count(a) > 1)


def _without_repeats(assigned: Assignment, factors: Factors) -> Assignment:
    """An assignment in which each result is cut once over a mesh axis: by the first that says so,
    contracted factors, which make sums over devices, before others."""
    kept = {f for names in factors.outs for f in names}
    used: set[str] = set()
    found = {}
    for f in sorted(assigned, key=kept.__contains__):
        if used.isdisjoint(assigned[f]):
            found[f] = assigned[f]
            used.update(assigned[f])
    return found
