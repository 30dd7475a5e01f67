"""Loops over a few numbers: a whole `while` or `scan` as one kernel that keeps them in registers.

Such a loop carries, and computes in a turn, only values of a few elements, each of which becomes a
scalar of the kernel. Arrays that stay, and scanned rows, are read where they lie; stacked results
are written row by row. Loops and cheap branches inside become part of the kernel, too, and turns
that carry nothing its independent points. A loop that computes more in a turn, or what isn't made
of elements, stays a loop over steps.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from funcgrad.backends.fusion.roots import fusable_cost
from funcgrad.backends.kernels.cluster import Written
from funcgrad.backends.kernels.special import SpecialKernel
from funcgrad.backends.loops.builder import add_indices, scale_index
from funcgrad.backends.loops.ir import Const, Index, Operand, Value
from funcgrad.backends.loops.scalars import LOOP_DTYPES
from funcgrad.backends.lower.pull import Pull
from funcgrad.backends.lower.rules import RULES, reduction
from funcgrad.backends.rewrites.normalize import normalize
from funcgrad.backends.target import Target
from funcgrad.core.ir import Atom, Eqn, Jaxpr, Literal, Var
from funcgrad.transforms.control.cond import cond_p
from funcgrad.transforms.control.scan import scan_p
from funcgrad.transforms.control.while_loop import while_p

BOOL = np.dtype(bool)
LOOPS = frozenset((scan_p, while_p))

# Reads the element of a value at a row-major position.
Read = Callable[[Index], Operand]


def scalar_loop(k: SpecialKernel, eqn: Eqn) -> Written | None:
    """The kernel of a loop over a few numbers; None if it is none."""
    bodies = _Bodies(k.target)
    if bodies.loop(eqn) > k.target.limits.kernel_cost:
        return None
    carried = _carried(eqn)
    buffers = [k.params.write(v) for v in eqn.outs]
    writer = _Writer(k, bodies)
    ins = [writer.outside(a) for a in eqn.ins]
    if eqn.prim is scan_p:
        stacked = buffers[carried:]
        last = writer.scan(eqn, ins, lambda i, at, value: k.builder.store(stacked[i], at, value))
    else:
        last = writer.while_(eqn, ins)
    for buffer, values in zip(buffers, last, strict=False):
        for i, value in enumerate(values):
            k.builder.store(buffer, Index(i), value)
    pairs = zip(eqn.outs, _starts(eqn), strict=False)
    return k.done(eqn, [(out, start) for out, start in pairs if type(start) is Var])


def _carried(eqn: Eqn) -> int:
    """How many values a loop carries."""
    return eqn.params["n_carry"] if eqn.prim is scan_p else len(eqn.outs)


def _starts(eqn: Eqn) -> tuple[Atom, ...]:
    """What a loop's carried values are at first."""
    p = eqn.params
    first = p["n_consts"] if eqn.prim is scan_p else p["n_cond"] + p["n_body"]
    return eqn.ins[first : first + _carried(eqn)]


class _Bodies:
    """The programs inside a loop as they are lowered, and what they cost."""

    def __init__(self, target: Target) -> None:
        self.target, self.limits = target, target.limits
        self.normal: dict[Jaxpr, Jaxpr] = {}

    def of(self, jaxpr: Jaxpr) -> Jaxpr:
        """A program, normalized."""
        if jaxpr not in self.normal:
            self.normal[jaxpr] = normalize(jaxpr, self.target)
        return self.normal[jaxpr]

    def loop(self, eqn: Eqn) -> float:
        """Scalar ops of a turn; infinite where a turn is no work of scalars alone."""
        p = eqn.params
        if not self.few(_starts(eqn)):
            return math.inf
        if eqn.prim is while_p:
            return self.body(p["cond_jaxpr"]) + self.body(p["body_jaxpr"])
        return self.body(p["jaxpr"]) if p["length"] else math.inf

    def body(self, jaxpr: Jaxpr) -> float:
        """Scalar ops of a program."""
        if not self.few(jaxpr.outs) or len(jaxpr.eqns) > self.limits.kernel_cost:
            return math.inf
        total = 0.0
        for e in self.of(jaxpr).eqns:
            total += self.equation(e)
            if total > self.limits.kernel_cost:
                return math.inf
        return total

    def equation(self, eqn: Eqn) -> float:
        """Scalar ops of an equation inside."""
        if not self.few(eqn.outs):
            return math.inf
        if eqn.prim in LOOPS:
            return self.loop(eqn) if len(eqn.outs) == _carried(eqn) else math.inf
        if eqn.prim is cond_p:
            return self.branches(eqn)
        cost = fusable_cost(eqn)
        if cost is None:
            return math.inf
        if eqn.prim.reduction:
            n = eqn.ins[0].aval.size
            return n if n <= self.limits.scalar_terms else math.inf
        return max(1, cost) * sum(v.aval.size for v in eqn.outs)

    def branches(self, eqn: Eqn) -> float:
        """Scalar ops of all branches, where computing each is cheap and surely ends; one result is
        chosen."""
        jaxprs = eqn.params["branches"]
        total = sum(map(self.body, jaxprs))
        ends = total <= self.limits.scalar_cost and not any(
            e.prim in LOOPS for j in jaxprs for e in self.of(j).eqns
        )
        return total if ends and eqn.ins[0].aval.dtype == np.int32 else math.inf

    def few(self, values: Iterable[Atom]) -> bool:
        """Whether values have few elements: more are better off in vectors."""
        most = self.limits.scalars
        return all(0 < v.aval.size <= most and v.aval.dtype in LOOP_DTYPES for v in values)


class _Writer:
    """Writes loops and what is in them into a kernel."""

    def __init__(self, k: SpecialKernel, bodies: _Bodies):
        self.k, self.b, self.bodies = k, k.builder, bodies
        self.reads: dict[Var, Read] = {}
        self.pull = Pull(
            self.b, RULES, k.target.limits, {}, lambda var, flat: self.reads[var](flat)
        )

    # ---- values

    def outside(self, atom: Atom) -> Read:
        """What lies in memory before the loop."""
        return lambda flat: self.k.element_at(atom, flat)

    def read(self, atom: Atom) -> Read:
        """A value inside."""
        if type(atom) is Literal:
            constant = Const(atom.value, atom.aval.dtype)
            return lambda flat: constant
        return self.reads[atom]  # type: ignore[index]

    def held(self, values: Sequence[Operand]) -> Read:
        """A value whose elements are scalars."""
        b, dtype, n = self.b, values[0].dtype, len(values)
        zero = Const(0, dtype)

        def read(flat: Index) -> Operand:
            if flat.terms:
                at, value = b.integer(flat), values[0]
                for i in range(1, n):
                    here = b.op("equal", BOOL, at, Const(i, at.dtype))
                    value = b.op("where", dtype, here, values[i], value)
            else:
                value = values[flat.const] if 0 <= flat.const < n else zero
            # Where a guard is false a load gives 0, and so does this.
            return value if b.guard is None else b.op("where", dtype, b.guard, value, zero)

        return read

    def elements(self, read: Read, like: Atom) -> list[Operand]:
        """All elements of a value."""
        return [self.b.convert(read(Index(i)), like.aval.dtype) for i in range(like.aval.size)]

    def bind(self, variables: Sequence[Var], reads: Iterable[Read]) -> None:
        self.reads.update(zip(variables, reads, strict=True))

    def carried(self, values: Sequence[Operand], like: Sequence[Atom]) -> list[list[Operand]]:
        """The elements of each carried value, of all of them in a row."""
        rest = iter(values)
        return [list(itertools.islice(rest, v.aval.size)) for v in like]

    # ---- programs

    def run(self, jaxpr: Jaxpr, ins: Sequence[Read]) -> list[list[Operand]]:
        """The elements of each result of a program."""
        program = self.bodies.of(jaxpr)
        self.bind(program.ins, ins)
        for eqn in program.eqns:
            self.bind(eqn.outs, map(self.held, self.results(eqn)))
        return [self.elements(self.read(a), a) for a in program.outs]

    def results(self, eqn: Eqn) -> list[list[Operand]]:
        """The elements of each result of an equation."""
        ins = [self.read(a) for a in eqn.ins]
        if eqn.prim is scan_p:
            return self.scan(eqn, ins)
        if eqn.prim is while_p:
            return self.while_(eqn, ins)
        if eqn.prim is cond_p:
            return self.cond(eqn, ins)
        return [[self.b.convert(self.element(eqn, i, n), v.aval.dtype) for i in range(v.aval.size)]
                for n, v in enumerate(eqn.outs)]  # fmt: skip

    def element(self, eqn: Eqn, i: int, out: int) -> Operand:
        """Element i of a result of elements."""
        b = self.b
        at = b.unflatten(Index(i), eqn.outs[out].aval.shape)
        if not eqn.prim.reduction:
            return self.pull.evaluate(eqn, at, out)
        x, how, axes = eqn.ins[0], reduction(eqn), set(eqn.params["axes"])
        total: Operand = how.start
        for summed in itertools.product(*(range(x.aval.shape[a]) for a in sorted(axes))):
            rest, inner = iter(at), iter(summed)
            place = [Index(next(inner)) if a in axes else next(rest) for a in range(x.aval.ndim)]
            value = b.convert(self.pull.read(x, place), how.dtype)
            total = b.op(how.op, how.dtype, total, value)
        return total

    # ---- control flow

    def scan(
        self, eqn: Eqn, ins: Sequence[Read],
        stack: Callable[[int, Index, Operand], None] | None = None,
    ) -> list[list[Operand]]:  # fmt: skip
        """The last carried values. stack(number, place, element) takes the rows of the others."""
        p, b, like = eqn.params, self.b, _starts(eqn)
        nc, nk, length = p["n_consts"], p["n_carry"], p["length"]
        consts, init, xs = ins[:nc], ins[nc : nc + nk], ins[nc + nk :]
        rows = [v.aval.size // length for v in eqn.ins[nc + nk :]]

        def turn(at: Index, *carried: Operand) -> list[Operand]:
            at = scale_index(at, -1, length - 1) if p["reverse"] else at
            held = map(self.held, self.carried(carried, like))
            scanned = [_row(x, scale_index(at, n)) for x, n in zip(xs, rows, strict=True)]
            outs = self.run(p["jaxpr"], [*consts, *held, *scanned])
            for i, values in enumerate(outs[nk:]):
                for j, value in enumerate(values):
                    assert stack is not None
                    stack(i, scale_index(at, len(values), j), value)
            return list(itertools.chain(*outs[:nk]))

        if stack is not None and not nk:
            turn(self.k.outer(length))
            return []
        starts = [e for x, v in zip(init, like, strict=True) for e in self.elements(x, v)]
        last = b.loop(length, lambda i, *carried: turn(Index(0, ((1, i),)), *carried), starts)
        return self.carried(last, like)

    def while_(self, eqn: Eqn, ins: Sequence[Read]) -> list[list[Operand]]:
        """The last carried values."""
        p, like = eqn.params, _starts(eqn)
        nc, nb = p["n_cond"], p["n_body"]
        starts = [e for x, v in zip(ins[nc + nb :], like, strict=True) for e in self.elements(x, v)]

        def part(jaxpr: Jaxpr, consts: Sequence[Read], carried: Sequence[Value]) -> list[Operand]:
            held = map(self.held, self.carried(carried, like))
            return list(itertools.chain(*self.run(jaxpr, [*consts, *held])))

        last = self.b.while_(
            lambda *carried: part(p["cond_jaxpr"], ins[:nc], carried)[0],
            lambda *carried: part(p["body_jaxpr"], ins[nc : nc + nb], carried),
            starts,
        )
        return self.carried(last, like)

    def cond(self, eqn: Eqn, ins: Sequence[Read]) -> list[list[Operand]]:
        """The results of the branch that an index chooses, all of them computed."""
        b, (index,) = self.b, self.elements(ins[0], eqn.ins[0])
        found = [self.run(j, ins[1:]) for j in eqn.params["branches"]]
        chosen = found[-1]
        for i, results in enumerate(found[:-1]):
            here = b.op("equal", BOOL, index, Const(i, index.dtype))
            chosen = [
                [b.op("where", x.dtype, here, x, y) for x, y in zip(xs, ys, strict=True)]
                for xs, ys in zip(results, chosen, strict=True)
            ]
        return chosen


def _row(read: Read, first: Index) -> Read:
    """A row of a scanned value, from its first element."""
    return lambda flat: read(add_indices(first, flat))
