"""Concatenations as memory: each piece is written where it is wanted in the result.

`place_pieces` writes the concatenations that repay it as *joins*. A join is no step: its operands
lie in its memory. What makes an operand (a kernel, a product, an exchange, …) writes it there, at
its `Place`; what is an array of its own anyway is brought there by a `move` of bytes or a `copy` of
elements. The concatenations that stay are computed where they are read, each element picking its
piece.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from funcgrad.backends.fusion.roots import fusable_cost
from funcgrad.backends.late import Late
from funcgrad.backends.loops.builder import Builder, add_indices, scale_index, strides_of
from funcgrad.backends.loops.ir import Index
from funcgrad.backends.loops.scalars import LOOP_DTYPES
from funcgrad.backends.lower.primitives import key_of, lowered, product_p
from funcgrad.backends.lower.views import alias_of, view_of
from funcgrad.backends.target import Target
from funcgrad.core.aval import ShapedArray
from funcgrad.core.closed import constant_p
from funcgrad.core.ir import Atom, Eqn, Jaxpr, Literal, Var
from funcgrad.core.views import in_order
from funcgrad.ops.indexing.gather import gather_p
from funcgrad.ops.shape import concatenate_p

attention = Late("funcgrad.backends.lower.attention")

# Pieces that lie one after the other in the result.
join_p = lowered("join", concatenate_p.abstract, concatenate_p.impl)
# Elements `start`, … of an operand in memory, as many as there are in `shape`.
move_p = lowered(
    "move",
    lambda x, *, start, shape: ShapedArray(shape, x.dtype),
    lambda xp, x, *, start, shape: x.reshape(-1)[start : start + math.prod(shape)].reshape(shape),
)
copy_p = lowered("copy", lambda x: x, lambda xp, x: x, elementwise=True)


class Place(NamedTuple):
    """Where a piece lies: rows of `width` elements, `step` apart, from element `start` of `whole`.

    rows: how many there are; a single one is contiguous
    """

    whole: Var
    start: int
    rows: int
    width: int
    step: int

    @property
    def span(self) -> int:
        """Elements from the first to the last."""
        return (self.rows - 1) * self.step + self.width

    @property
    def form(self) -> tuple[int, ...]:
        """What a kernel that writes the piece depends on."""
        return (self.rows, self.width, self.step) if self.rows > 1 else (1,)

    def at(self, b: Builder, flat: Index) -> Index:
        """Where the element at a row-major position lies, from the first."""
        if self.rows == 1:
            return flat
        row, rest = b.divide(flat, self.width)
        return add_indices(scale_index(row, self.step), rest)

    def strides(self, shape: Sequence[int]) -> list[int]:
        """Elements between neighbours along each axis of the piece."""
        return [s if s < self.width else s // self.width * self.step for s in strides_of(shape)]


def places_of(join: Eqn) -> list[Place]:
    """Where each operand of a join lies."""
    out, d = join.outs[0], join.params["dimension"]
    shape = out.aval.shape
    rows, inner = math.prod(shape[:d]), math.prod(shape[d + 1 :])
    places, start = [], 0
    for x in join.ins:
        width = x.aval.shape[d] * inner
        places.append(Place(out, start, rows, width, shape[d] * inner))
        start += width
    return places


def alternating(
    pieces: Iterable[Var], places: Mapping[Var, Place], formulas: Mapping[Var, Eqn]
) -> dict[Var, Var]:
    """For pieces of single elements, all of which are given: what they are pieces of.

    A kernel that computes them all, by these formulas, stores whole vectors of it. Not where bytes
    or integers may say what is chosen: LLVM ends the process on two vectors that such masks have
    chosen, put together as one (version 22, AVX-512).
    """
    found: dict[Var, list[Var]] = {}
    for v in pieces:
        if v in places and places[v].width == 1 < places[v].rows:
            found.setdefault(places[v].whole, []).append(v)
    whole = {w: vs for w, vs in found.items() if len(vs) == places[vs[0]].step}
    return {v: w for w, vs in whole.items() if _of_floats(vs, formulas) for v in vs}


def _of_floats(values: Sequence[Var], formulas: Mapping[Var, Eqn]) -> bool:
    """Whether values are computed of nothing but floats, and what these decide."""
    seen, stack = set(values), list(values)
    while stack:
        v = stack.pop()
        eqn, kind = formulas.get(v), v.aval.dtype.kind
        if kind in "iu" or (kind == "b" and (eqn is None or not eqn.ins)):
            return False
        inner = {a for a in (eqn.ins if eqn else ()) if type(a) is Var} - seen
        seen |= inner
        stack += inner
    return True


def place_pieces(jaxpr: Jaxpr, target: Target) -> Jaxpr:
    """The program with joins for the concatenations that repay it: see the module's docstring."""
    placer = _Placer(jaxpr, target)
    for eqn in jaxpr.eqns:
        placer.add(eqn)
    return Jaxpr(jaxpr.ins, placer.eqns, jaxpr.outs, jaxpr.names)


class _Placer:
    def __init__(self, jaxpr: Jaxpr, target: Target):
        self.target, self.limits = target, target.limits
        self.eqns: list[Eqn] = []
        self.made: dict[Var, Eqn] = {}
        self.readers: dict[Atom, list[Eqn | None]] = {}
        for eqn in jaxpr.eqns:
            for a in eqn.ins:
                self.readers.setdefault(a, []).append(eqn)
        for a in jaxpr.outs:
            self.readers.setdefault(a, []).append(None)
        self.jaxpr = jaxpr
        self.settled: set[Atom] = set()
        self.made.update((v, e) for e in jaxpr.eqns for v in e.outs)
        self.settled.update(alias_of(a, self.made) for a in jaxpr.outs)

    def add(self, eqn: Eqn) -> None:
        """The equation, or the join in its place with what brings its operands."""
        if eqn.prim is concatenate_p and self.repays(eqn):
            ins = [x for x in eqn.ins if x.aval.size]
            eqn = Eqn(join_p, ins, eqn.outs, eqn.params, eqn.source, eqn.scopes)
            eqn = eqn.replace(ins=tuple(map(self.piece, ins, places_of(eqn))))
        self.made.update((v, eqn) for v in eqn.outs)
        self.eqns.append(eqn)

    def repays(self, eqn: Eqn) -> bool:
        """Whether a concatenation is better a join.

        Pieces are better picked element by element where the choice is unrolled: in short rows, of
        pieces that are cheap and narrow; and where they are a few that need not be stored for the
        one that reads them: loops are cut where another piece begins.
        """
        out, limits = eqn.outs[0], self.limits
        pieces = [(x, p) for x, p in zip(eqn.ins, places_of(eqn), strict=True) if p.width]
        if len(pieces) < 2 or not out.aval.size or fusable_cost(eqn) is None:
            return False
        if len(pieces) > limits.pieces or any(
            self.strides(x) and self.writable(x, p) for x, p in pieces
        ):
            return True
        place = pieces[0][1]
        if place.step <= limits.pick_width and self.places_of_gather(out):
            return False
        narrow = place.rows > 1 and place.step <= limits.pick_row
        if narrow and min(p.width for _, p in pieces) < limits.pick_width:
            return not all(self.cheap(x) for x, _ in pieces)
        if len(pieces) > limits.picks or not self.fuses(out):
            return True
        return sum(not (self.plain(x) or self.shared(x)) for x, _ in pieces) > 1

    def strides(self, x: Atom) -> bool:
        """Whether what makes an operand, a product or attention, writes at any strides."""
        base = alias_of(x, self.made)
        eqn = self.made.get(base)  # type: ignore[arg-type]
        if eqn is None or key_of(eqn.prim) not in self.target.steps:
            return False
        if eqn.ins and eqn.ins[0].aval.dtype not in LOOP_DTYPES:
            return False
        return eqn.prim is product_p or (
            eqn.prim.strided and base in attention.strided_results(eqn)
        )

    def plain(self, x: Atom) -> bool:
        """Whether an operand's elements are only read from memory."""
        view = view_of(x, self.made) if type(x) is Var else None
        return view is not None and self.stays(view.base)

    def shared(self, x: Atom) -> bool:
        """Whether an operand is a part of a value that has several readers: it is in memory, or so
        cheap that each reader computes it."""
        while (eqn := self.made.get(x)) is not None and eqn.prim.view:  # type: ignore
            x = eqn.ins[0]
        return len(self.readers[x]) > 1

    def cheap(self, x: Atom) -> bool:
        """Whether an operand's elements are read from memory, or are a few operations on such."""
        eqn = self.made.get(x)  # type: ignore[arg-type]
        while eqn is not None and eqn.prim.view is not None:
            x = eqn.ins[0]
            eqn = self.made.get(x)  # type: ignore[arg-type]
        if eqn is None or self.plain(x):
            return True
        cost = fusable_cost(eqn)
        return (
            cost is not None
            and cost <= self.limits.cheap
            and all(type(a) is Literal or self.plain(a) for a in eqn.ins)
        )

    def fuses(self, out: Var) -> bool:
        """Whether a result is read once, by an op that takes it element by element."""
        readers = self.readers.get(out, [])
        while len(readers) == 1 and readers[0] is not None:
            if readers[0].prim.view is None:
                return readers[0].prim.elementwise
            readers = self.readers.get(readers[0].outs[0], [])
        return False

    def places_of_gather(self, out: Var) -> bool:
        """Whether a result is read once, by a gather that takes its positions from it: each
        coordinate is a piece, which is computed as it is needed."""
        readers = self.readers.get(out, [])
        if len(readers) != 1 or readers[0] is None:
            return False
        return readers[0].prim is gather_p and readers[0].ins[0] is not out

    # ---- pieces

    def piece(self, x: Atom, place: Place) -> Atom:
        """An operand as one that is written to its place."""
        if self.writable(x, place):
            self.settled.add(alias_of(x, self.made))
            return x
        view = view_of(x, self.made) if type(x) is Var and place.rows == 1 else None
        out = Var(x.aval.strong())
        if view is not None and self.stays(view.base) and view.contiguous:
            params = {"start": view.offset, "shape": x.aval.shape}
            made = Eqn(move_p, [view.base], [out], params)
        else:
            made = Eqn(copy_p, [x], [out], {})
        self.eqns.append(made)
        self.made[out] = made
        return out

    def writable(self, x: Atom, place: Place) -> bool:
        """Whether what makes an operand can write it to its place."""
        base = alias_of(x, self.made)
        eqn = self.made.get(base)  # type: ignore[arg-type]
        if eqn is None or base in self.settled or eqn.prim.view or eqn.prim is constant_p:
            return False
        if place.rows == 1:
            return True
        if not self.strides(x) and fusable_cost(eqn) is None:
            return False
        return self.alone(x) and place.width in _row_sizes(base.aval.shape)

    def alone(self, x: Atom) -> bool:
        """Whether nobody else reads an operand, under any shape."""
        while len(self.readers[x]) == 1:
            eqn = self.made[x]  # type: ignore[index]
            if eqn.prim.view is not in_order:
                return True
            x = eqn.ins[0]
        return False

    def stays(self, base: Var) -> bool:
        """Whether a value surely is an array in memory of its own."""
        eqn = self.made.get(base)
        kept = eqn is None or eqn.prim.reduction or fusable_cost(eqn) is None
        return bool(kept) or base in self.settled


def _row_sizes(shape: Sequence[int]) -> set[int]:
    """The numbers of elements of an array's parts along its first axes."""
    return {math.prod(shape[i:]) for i in range(len(shape))}
