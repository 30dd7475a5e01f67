"""What is computed where: which values of a program are inlined, and which get a place in memory.

A value that one consumer reads once, or that is cheap, is computed where it is read. The others
are *roots*: each is an element of some op at each point of a domain, perhaps reduced over some of
its axes. A root knows what it reads and at which affine index, found by reading an element dry; if
an index is affine only on finer axes than the shape's, its domain is cut that way.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from funcgrad.backends.late import Late
from funcgrad.backends.loops import scalars
from funcgrad.backends.loops.builder import ZERO, Builder
from funcgrad.backends.loops.ir import Index, Operand, Value
from funcgrad.backends.lower.primitives import key_of, product_p
from funcgrad.backends.lower.pull import Pull
from funcgrad.backends.lower.rules import RULES, rule_cost
from funcgrad.backends.lower.views import (
    DEEP,
    View,
    alias_of,
    final_readers,
    frame_axes,
    is_pad,
    view_of,
)
from funcgrad.backends.target import Target
from funcgrad.core.ir import Atom, Eqn, Var
from funcgrad.core.record import Record, fresh
from funcgrad.core.source import Source
from funcgrad.core.views import in_order
from funcgrad.ops.indexing.gather import gather_p
from funcgrad.ops.shape import concatenate_p, pad_p

attention = Late("funcgrad.backends.lower.attention")


class Access(NamedTuple):
    """What a root reads: a variable at a row-major index, perhaps under a guard."""

    leaf: Var
    at: Index
    guarded: bool


class Root(Record, frozen=False, eq=False):
    """A value that is computed by a kernel of its own or shared.

    sizes: the sizes of the domain's axes, each of the result's, then of the reduced ones; an axis
        may be cut in several (`parts`)
    axes: index values and sizes of the domain's axes, without those of size 1
    """

    eqn: Eqn
    var: Var
    reduced: tuple[int, ...]
    parts: list[list[int]]
    cost: int
    axes: list[tuple[Value, int]] = fresh(factory=list)
    accesses: list[Access] = fresh(factory=list)
    builder: Builder = fresh(factory=Builder)

    @property
    def reduces(self) -> bool:
        """Whether elements of the domain are reduced (summed, or …)."""
        return bool(self.eqn.prim.reduction)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the result."""
        return self.var.aval.shape

    @property
    def reduced_shape(self) -> tuple[int, ...]:
        """The sizes of the axes that are summed (or …) over."""
        if not self.reduced:
            return ()  # iota has no operand
        shape = self.eqn.ins[0].aval.shape
        return tuple(shape[i] for i in self.reduced)

    @property
    def size(self) -> int:
        """The number of the result's elements."""
        return self.var.aval.size

    @property
    def out_parts(self) -> list[int]:
        """Sizes of the result's axes as cut, but those of size 1."""
        return [n for p in self.parts[: len(self.shape)] for n in p if n != 1]

    @property
    def reduced_parts(self) -> list[int]:
        """Sizes of the reduced axes as cut, but those of size 1."""
        return [n for p in self.parts[len(self.shape) :] for n in p if n != 1]

    def evaluate(self, pull: Pull, out: Sequence[Index], reduced: Sequence[Index] = ()) -> Operand:
        """The element of the domain at these indices."""
        if not self.reduces:
            return pull.evaluate(self.eqn, out, self.eqn.outs.index(self.var))
        rest, summed = iter(out), iter(reduced)
        rank = len(out) + len(reduced)
        at = [next(summed) if i in self.reduced else next(rest) for i in range(rank)]
        return pull.read(self.eqn.ins[0], at)


class Summand(Root, frozen=False, eq=False):
    """The terms of a sum over rows, which a kernel that goes through the rows adds up on its way.

    Its domain is the terms', `eqn` sums them over leading axes; what is kept of them, `var`, is a
    sum for each of some equal blocks of rows, one after the other (see `merges`).
    """

    @property
    def reduces(self) -> bool:
        """No: the kernel writes terms, and adds them up as it goes."""
        return False

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the terms."""
        return self.eqn.ins[0].aval.shape

    @property
    def size(self) -> int:
        """The number of terms."""
        return self.eqn.ins[0].aval.size

    @property
    def blocks(self) -> int:
        """In how many blocks the rows fall."""
        return self.var.aval.shape[0]

    def evaluate(self, pull: Pull, out: Sequence[Index], reduced: Sequence[Index] = ()) -> Operand:
        """The term at these indices."""
        return pull.read(self.eqn.ins[0], list(out))


def group(axes: Sequence[tuple[Index, int]], shape: Sequence[int]) -> list[Index]:
    """One index for each size of a shape, from the indices of axes that divide it, in order."""
    out, rest = [], list(axes)[::-1]
    for n in shape:
        index, size = [], 1
        if n == 0:
            index.append(rest.pop())
        while size < n:
            part, m = rest.pop()
            index.append((part, m))
            size *= m
        assert n in (0, size), (axes, shape)
        out.append(_row_major(index))
    return out


def _row_major(parts: Sequence[tuple[Index, int]]) -> Index:
    const, terms, step = 0, [], 1
    for index, n in reversed(parts):
        const += index.const * step
        terms += [(c * step, v) for c, v in index.terms]
        step *= n
    return Index(const, tuple(terms))


class Analysis:
    """Which equations of a program can be fused, what is inlined, and the roots.

    inlined: the equation of each variable computed where it is read
    roots: the others of the fusable equations' results, that somebody reads
    views: (equation, operand number) → the strided view of a variable that a product, or attention,
        reads
    """

    def __init__(self, eqns: Sequence[Eqn], outs: Sequence[Atom], target: Target):
        self.eqns = eqns
        self.target, self.limits = target, target.limits
        self.inlined: dict[Var, Eqn] = {}
        self.roots: dict[Var, Root] = {}
        self.views: dict[tuple[Eqn, int], View] = {}
        self.made: dict[Var, Eqn] = {v: e for e in eqns for v in e.outs}
        self.costs = {e: fusable_cost(e) for e in eqns}
        self.forced = {o for o in map(self.alias, outs) if type(o) is Var}
        self.uses: dict[Var, int] = {}
        self._count_uses()
        self._frame_views(outs)
        self._chains: dict[Var, _Chain] = {}
        for eqn in eqns:
            if self.costs[eqn] is not None:
                for var in eqn.outs:
                    self._decide(eqn, var)

    def alias(self, atom: Atom) -> Atom:
        """The variable whose memory, under another shape, is this one's."""
        return alias_of(atom, self.made)

    def inline(self, root: Root) -> None:
        """Compute a root's value where it is read."""
        leaves = frozenset(a.leaf for a in root.accesses)
        large = sum(v.aval.size * 2 > root.size for v in leaves)
        self._chains[root.var] = _Chain(leaves, root.cost, 1, large)
        self.inlined[root.var] = root.eqn
        del self.roots[root.var]

    def place(self, var: Var) -> Root:
        """A root of an inlined value with one reader, which is to read it from memory then."""
        eqn = self.inlined[var]
        root = Root(eqn, var, *domain(eqn, var), self._chains[var].cost)
        self.analyze(root)
        return root

    def analyze(self, root: Root) -> None:
        """Find a root's accesses, cutting its axes where that makes them affine."""
        for _ in range(8):
            b = root.builder = Builder()
            values = [[b.axis(n) for n in p] for p in root.parts]
            flat = [(v, n) for vs, p in zip(values, root.parts, strict=True)
                    for v, n in zip(vs, p, strict=True)]  # fmt: skip
            root.axes = [(v, n) for v, n in flat if n != 1]
            found: list[Access] = []

            def leaf(v: Var, index: Index, b: Builder = b, found: list[Access] = found) -> Operand:
                found.append(Access(v, index, b.guard is not None))
                value = Value(v.aval.dtype)
                b.depth[value] = 0
                return value

            indices = [ZERO if n == 1 else Index(0, ((1, v),)) for v, n in flat]
            at = group([(i, n) for i, (_, n) in zip(indices, flat, strict=True) if n != 1],
                       [math.prod(p) for p in root.parts])  # fmt: skip
            pull = Pull(b, RULES, self.limits, self.inlined, leaf, dry=True)
            root.evaluate(pull, *_split(at, len(root.shape)))
            root.accesses = found
            own = {v: (i, j) for i, vs in enumerate(values) for j, v in enumerate(vs)}
            if not _cut(root, [(own[v], inner) for v, inner in b.wanted if v in own]):
                return

    def source(self, var: Var) -> Source | None:
        """The user's line that computes a variable, or what it is computed from."""
        eqn = self.made.get(var)
        while eqn is not None and eqn.source is None:
            eqn = next((self.made[a] for a in eqn.ins if a in self.made), None)
        return None if eqn is None else eqn.source

    # ---- who reads what

    def _count_uses(self) -> None:
        """How often each value is evaluated if its readers are evaluated once."""
        for eqn in reversed(self.eqns):
            if self.costs[eqn] is None:
                self._opaque_uses(eqn)
                continue
            # A view evaluates its operand whenever it is evaluated; what is kept, once.
            passes = eqn.prim.view is not None
            n = max(1, *(self.uses.get(v, 0) for v in eqn.outs)) if passes else 1
            for a in set(eqn.ins):
                if type(a) is Var:
                    self.uses[a] = self.uses.get(a, 0) + n * _repeats(eqn, a)

    def _opaque_uses(self, eqn: Eqn) -> None:
        known = key_of(eqn.prim) in self.target.steps
        for i, a in enumerate(eqn.ins):
            if type(a) is not Var:
                continue
            strided = known and eqn.prim.strided and i in attention.strided(eqn)
            if strided or (known and eqn.prim is product_p):
                view = view_of(a, self.made)
                if view is not None and view.serves(eqn, i):
                    self.views[eqn, i] = view
                    self.forced.add(self.alias(view.base))  # type: ignore[arg-type]
                    continue
            if i == self._inlines(eqn) and self._may_inline(eqn, i):
                self.uses[a] = self.uses.get(a, 0) + 1
                continue
            self.forced.add(self.alias(a))  # type: ignore[arg-type]

    def _frame_views(self, outs: Sequence[Atom]) -> None:
        """Products read lines of windows as if an array were padded, if it is in memory anyway, and
        nobody else reads the padded one."""
        framed: dict[Var, list[Eqn]] = {}
        for (eqn, i), view in self.views.items():
            pad = self.made.get(view.base)
            if not i and is_pad(pad) and self.target.frames(eqn, view, pad):
                framed.setdefault(view.base, []).append(eqn)
        if not framed:
            return
        readers: dict[Atom, list[Eqn | None]] = {}
        for eqn in self.eqns:
            for a in eqn.ins:
                readers.setdefault(a, []).append(eqn)
        for a in outs:
            readers.setdefault(a, []).append(None)
        for base, products in framed.items():
            pad = self.made[base]
            frame, x = frame_axes(pad), self.alias(pad.ins[0])
            if frame is None or type(x) is not Var:
                continue
            known = self.made.get(x)
            kept = known is None or x in self.forced or self.costs[known] is None
            if kept and Counter(final_readers(base, readers)) == Counter(products):
                for eqn in products:
                    self.views[eqn, 0] = self.views[eqn, 0]._replace(base=x, frame=frame)
                self.forced.discard(base)
                self.forced.add(x)

    def _inlines(self, eqn: Eqn) -> int | None:
        """The operand that is computed as an op's kernel writes it, if it has one that does so."""
        writer = self.target.writers.get(key_of(eqn.prim))
        return None if writer is None else writer.inlines

    def _may_inline(self, eqn: Eqn, operand: int) -> bool:
        """Whether the updates surely don't read the array that is updated in place."""
        target = self.alias(eqn.ins[0])
        seen: set[Atom] = set()
        todo = [eqn.ins[operand]]
        while todo:
            a = todo.pop()
            if a is target or self.alias(a) is target or len(seen) > DEEP:
                return False
            if a not in seen and a in self.made and self.costs[self.made[a]] is not None:
                seen.add(a)
                todo += self.made[a].ins
        return True

    # ---- inline or root

    def _decide(self, eqn: Eqn, var: Var) -> None:
        cost = self.costs[eqn]
        assert cost is not None
        uses, limits = self.uses.get(var, 0), self.limits
        if eqn.prim.reduction:
            self._add_root(eqn, var, cost)
            return
        chain = self._chain(eqn, cost, var.aval.size)
        once = uses <= 1 and cost < limits.chain_cost
        small = chain.cost <= limits.chain_cost and chain.depth <= DEEP
        small = small and len(chain.leaves) <= limits.chain_arrays
        # Several readers compute what reads no more than one array of its own size.
        cheap = small and chain.cost <= limits.cheap and chain.large <= 1
        view = eqn.prim.view is not None and small
        free = eqn.prim.view is in_order and self.alias(var) is not var
        inline = free or (var not in self.forced and (view or (small and once) or cheap))
        if inline:
            self.inlined[var] = eqn
            self._chains[var] = chain
            if free and var in self.forced:
                self.forced.add(self.alias(var))  # type: ignore[arg-type]
        elif uses or var in self.forced:
            self._add_root(eqn, var, chain.cost)

    def _add_root(self, eqn: Eqn, var: Var, cost: int) -> None:
        self.roots[var] = root = Root(eqn, var, *domain(eqn, var), cost)
        if root.size:
            self.analyze(root)

    def _chain(self, eqn: Eqn, cost: int, size: int) -> _Chain:
        leaves: set[Var] = set()
        depth = 0
        for a in set(eqn.ins):
            known = self._chains.get(a)  # type: ignore[arg-type]
            if known is not None:
                leaves |= known.leaves
                cost += known.cost
                depth = max(depth, known.depth)
            elif type(a) is Var:
                leaves.add(a)
        large = sum(v.aval.size * 2 > size for v in leaves) if size > 1 else len(leaves)
        return _Chain(frozenset(leaves), cost, depth + 1, large)


class _Chain(NamedTuple):
    """What inlining a value costs: what it reads, scalar ops, equations in a row, large arrays."""

    leaves: frozenset
    cost: int
    depth: int
    large: int


def _repeats(eqn: Eqn, operand: Atom) -> int:
    """How often a result evaluates its operand's elements, on average: 1, or 2 for more."""
    out = max(v.aval.size for v in eqn.outs)
    prim = eqn.prim
    if prim.reduction or prim in (pad_p, concatenate_p):
        return 1
    at = prim is gather_p and operand is not eqn.ins[0]
    if at and out * operand.aval.shape[-1] <= operand.aval.size:
        return 1  # a position for each element, both of whose readings LLVM makes one
    if prim in RULES and operand is not eqn.ins[0]:
        return 2
    return 2 if out > operand.aval.size or (rule_cost(eqn) or 0) >= 64 else 1


def fusable_cost(eqn: Eqn) -> int | None:
    """What an element of the equation's results costs; None if it is not computed by loops."""
    avals = [a.aval for a in (*eqn.ins, *eqn.outs)]
    if any(a.dtype not in scalars.LOOP_DTYPES for a in avals):
        return None
    if eqn.prim.reduction:
        return 1
    cost = rule_cost(eqn)
    if cost is not None:
        return cost
    if not eqn.prim.elementwise or eqn.prim.effect:
        return None
    dtypes = [a.aval.dtype for a in eqn.ins]
    costs = [
        scalars.cost(eqn.prim, eqn.params, dtypes, v.aval.dtype, i) for i, v in enumerate(eqn.outs)
    ]
    return None if None in costs else max(c for c in costs if c is not None)


def domain(eqn: Eqn, var: Var) -> tuple[tuple[int, ...], list[list[int]]]:
    """The reduced axes and the parts of the root that an equation's result is."""
    reduced: tuple[int, ...] = ()
    sizes = list(var.aval.shape)
    if eqn.prim.reduction:
        reduced = tuple(sorted(eqn.params["axes"]))
        sizes += [eqn.ins[0].aval.shape[i] for i in reduced]
    return reduced, [[n] for n in sizes]


def _split(items: list[Index], n: int) -> tuple[list[Index], list[Index]]:
    return items[:n], items[n:]


def _cut(root: Root, wanted: Iterable[tuple[tuple[int, int], int]]) -> bool:
    """Cut axes of the domain as an index wants it; whether any was cut."""
    done: set[int] = set()
    for (i, j), inner in wanted:
        if i not in done:
            n = root.parts[i][j]
            root.parts[i][j : j + 1] = [n // inner, inner]
            done.add(i)
    return bool(done)
