"""Ops that hold programs, as partitioning sees them: which values inside and outside are one.

A *tie* is a set of slots (an operand, an input of a body, a body's result, …) that are cut alike:
the start of a scan's carry, the carry as the body gets it, as it leaves it, and the result.
"""

from __future__ import annotations

from itertools import chain
from typing import NamedTuple

from funcgrad.core.ir import Atom, Eqn, Jaxpr, Var
from funcgrad.core.sharding import Cuts
from funcgrad.parallel.mapping.primitive import shard_map_p
from funcgrad.transforms.control.bodies import split_list
from funcgrad.transforms.control.cond import cond_p
from funcgrad.transforms.control.scan import scan_p
from funcgrad.transforms.control.while_loop import while_p

OUTSIDE = -1


class Slot(NamedTuple):
    """A place in a tie: in which body (or outside), which value, and how its cuts differ from the
    tie's: by `lead` whole axes in front (a scanned axis), or by axes of the mesh that are already
    taken (`manual`), which come first."""

    body: int
    atom: Atom
    lead: int = 0
    manual: Cuts | None = None

    def outward(self, cuts: Cuts) -> Cuts:
        """The slot's cuts, where the tie has these."""
        if self.manual is not None:
            return tuple(m + c for m, c in zip(self.manual, cuts, strict=True))
        return ((),) * self.lead + cuts

    def inward(self, cuts: Cuts) -> Cuts:
        """The tie's cuts, where the slot has these."""
        if self.manual is None:
            return cuts[self.lead :]
        pairs = zip(cuts, self.manual, strict=True)
        return tuple(c[len(m) :] if c[: len(m)] == m else () for c, m in pairs)


Tie = tuple[Slot, ...]


def bodies(eqn: Eqn) -> tuple[Jaxpr, ...]:
    """The programs that partitioning looks into."""
    found = [eqn.params[name] for name in _PROGRAMS.get(eqn.prim, ())]
    return tuple(chain.from_iterable(p if isinstance(p, tuple) else (p,) for p in found))


def ties(eqn: Eqn) -> list[Tie]:
    """The ties of an equation that holds programs, those of operands in their order first."""
    return _TIES[eqn.prim](eqn)


def _scan(eqn: Eqn) -> list[Tie]:
    body, n_consts, n_carry = (eqn.params[k] for k in ("jaxpr", "n_consts", "n_carry"))
    consts, init, xs = split_list(eqn.ins, n_consts, n_carry)
    c_vars, k_vars, x_vars = split_list(body.ins, n_consts, n_carry)
    k_outs, y_outs = split_list(body.outs, n_carry)
    finals, ys = split_list(eqn.outs, n_carry)
    return [
        *(_pair(a, v) for a, v in zip(consts, c_vars, strict=True)),
        *_carried(0, init, k_vars, k_outs, finals),
        *((Slot(OUTSIDE, a, 1), Slot(0, v)) for a, v in zip(xs, x_vars, strict=True)),
        *((Slot(0, o), Slot(OUTSIDE, v, 1)) for o, v in zip(y_outs, ys, strict=True)),
    ]


def _pair(outer: Atom, inner: Var, body: int = 0) -> Tie:
    return (Slot(OUTSIDE, outer), Slot(body, inner))


def _carried(body: int, init, ins, outs, finals) -> list[Tie]:
    return [
        (Slot(OUTSIDE, a), Slot(body, v), Slot(body, o), Slot(OUTSIDE, f))
        for a, v, o, f in zip(init, ins, outs, finals, strict=True)
    ]


def _while(eqn: Eqn) -> list[Tie]:
    test, body, n_cond, n_body = (
        eqn.params[k] for k in ("cond_jaxpr", "body_jaxpr", "n_cond", "n_body")
    )
    test_consts, body_consts, init = split_list(eqn.ins, n_cond, n_body)
    carried = _carried(1, init, body.ins[n_body:], body.outs, eqn.outs)
    return [
        *(_pair(a, v) for a, v in zip(test_consts, test.ins[:n_cond], strict=True)),
        *(_pair(a, v, 1) for a, v in zip(body_consts, body.ins[:n_body], strict=True)),
        *((*tie, Slot(0, v)) for tie, v in zip(carried, test.ins[n_cond:], strict=True)),
    ]


def _cond(eqn: Eqn) -> list[Tie]:
    branches = eqn.params["branches"]
    return [
        *(
            (Slot(OUTSIDE, a), *(Slot(k, b.ins[i]) for k, b in enumerate(branches)))
            for i, a in enumerate(eqn.ins[1:])
        ),
        *(
            (*(Slot(k, b.outs[i]) for k, b in enumerate(branches)), Slot(OUTSIDE, v))
            for i, v in enumerate(eqn.outs)
        ),
    ]


def _shard_map(eqn: Eqn) -> list[Tie]:
    body, in_cuts, out_cuts = (eqn.params[k] for k in ("jaxpr", "in_cuts", "out_cuts"))
    ins = zip(eqn.ins, in_cuts, body.ins, strict=True)
    outs = zip(eqn.outs, out_cuts, body.outs, strict=True)
    return [
        *((Slot(OUTSIDE, a, manual=c), Slot(0, v)) for a, c, v in ins),
        *((Slot(0, o), Slot(OUTSIDE, v, manual=c)) for v, c, o in outs),
    ]


_TIES = {scan_p: _scan, while_p: _while, cond_p: _cond, shard_map_p: _shard_map}
_PROGRAMS = {
    scan_p: ("jaxpr",), while_p: ("cond_jaxpr", "body_jaxpr"), cond_p: ("branches",),
    shard_map_p: ("jaxpr",),
}  # fmt: skip
