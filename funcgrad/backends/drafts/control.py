"""Drafts of steps that all targets have: control flow, and what brings pieces to their places.

Steps of control flow have blocks inside, whose values stay in memory from turn to turn.

Each function adds the draft of an equation to a block's, or returns False if the host is to run it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from funcgrad.backends.drafts.tensors import Block, Row, Tensor, moved
from funcgrad.backends.program import CondStep, CopyStep, LoopStep, Step, WhileStep
from funcgrad.backends.target import Limits
from funcgrad.core.ir import Atom, Eqn, Jaxpr, Var
from funcgrad.core.primitive import Primitive
from funcgrad.transforms.control.cond import cond_p
from funcgrad.transforms.control.scan import scan_p
from funcgrad.transforms.control.while_loop import while_p

if TYPE_CHECKING:
    from funcgrad.backends.drafts.drafter import BlockDrafter

INT32 = np.dtype(np.int32)


def _cond(d: BlockDrafter, eqn: Eqn) -> bool:
    """Branches that write their results to the same places; where one of them passes an operand on,
    the result begins as that, and has its memory if nobody else reads it."""
    index, *ops = (d.tensor(a) for a in eqn.ins)
    if index.aval.dtype != INT32:
        return False
    outs = [d.tensor(v) for v in eqn.outs]
    begins = {t: outs[k] for t, k in _passed_on(d, eqn, ops).items()}
    given = [begins.get(t, t) for t in ops]
    blocks = [d.drafter.block(b, given, outs) for b in eqn.params["branches"]]
    d.add(list(dict.fromkeys([index, *ops])), outs,
          lambda inner: [CondStep(index.place, tuple(inner))],
          starts=[(to, t) for t, to in begins.items()], blocks=blocks)  # fmt: skip
    return True


def _passed_on(d: BlockDrafter, eqn: Eqn, ops: Sequence[Tensor]) -> dict[Tensor, int]:
    """Operands of a cond that a branch gives as a result, if nothing else reads them: which one."""
    found: dict[Tensor, int] = {}
    for branch in eqn.params["branches"]:
        given = dict(zip(branch.ins, ops, strict=True))
        for k, a in enumerate(branch.outs):
            t = given.get(a) if isinstance(a, Var) else None
            if t is not None and t not in found and k not in found.values():
                found[t] = k
    read = {d.tensor(a) for e in d.jaxpr.eqns if e is not eqn for a in e.ins if a in d.tensors}
    read |= {d.tensor(a) for a in d.jaxpr.outs if a in d.tensors}
    # A program's inputs and constants have addresses already; rows and parts belong to others.
    own = {t for t in found if type(t) is Tensor and t.ref is None and t not in read}
    return {t: k for t, k in found.items() if t in own}


def _while(d: BlockDrafter, eqn: Eqn) -> bool:
    """A test and a body, which writes what it carries over what it read."""
    p, ins = eqn.params, [d.tensor(a) for a in eqn.ins]
    nc, nb = p["n_cond"], p["n_body"]
    cond_consts, consts, init = ins[:nc], ins[nc : nc + nb], ins[nc + nb :]
    carry = [d.tensor(v) for v in eqn.outs]
    holds = Tensor(p["cond_jaxpr"].outs[0].aval.strong())
    test = d.drafter.block(p["cond_jaxpr"], [*cond_consts, *carry], [holds])
    body = d.drafter.block(p["body_jaxpr"], [*consts, *carry], carry)

    def make(inner: list[tuple[Step, ...]]) -> list[Step]:
        return [WhileStep(inner[0], holds.place, inner[1])]

    d.add(ins, [*carry, holds], make, starts=list(zip(carry, init, strict=True)),
          blocks=[test, body])  # fmt: skip
    return True


def _scan(d: BlockDrafter, eqn: Eqn) -> bool:
    """A body whose rows move with a counter; where it carries much, it stands there twice."""
    p, ins = eqn.params, [d.tensor(a) for a in eqn.ins]
    nc, nk, length = p["n_consts"], p["n_carry"], p["length"]
    consts, init, xs = ins[:nc], ins[nc : nc + nk], ins[nc + nk :]
    outs = [d.tensor(v) for v in eqn.outs]
    carry, ys = outs[:nk], outs[nk:]
    number, body = d.drafter.loop_number(), p["jaxpr"]

    def turn(carried: Sequence[Tensor], i: int, every: int) -> Block:
        """The body's turn i, and each so many after it; carried values are where they come."""

        def rows(arrays: Sequence[Tensor], like: Sequence[Atom]) -> list[Tensor]:
            return [Row(v.aval.strong(), None, t, None, number, length, p["reverse"], every, i)
                    for t, v in zip(arrays, like, strict=True)]  # fmt: skip

        given = [*consts, *carried, *rows(xs, body.ins[nc + nk :])]
        return d.drafter.block(body, given, [*carry, *rows(ys, body.outs[nk:])])

    def make(inner: list[tuple[Step, ...]]) -> list[Step]:
        rest = inner[1] if len(inner) > 1 else ()
        return [LoopStep(number, length // every, inner[0]), *rest]

    every = 2 if length > 1 and _swaps(body, nc, nk, d.target.limits) else 1
    if every == 1:
        blocks = [turn(carry, 0, 1)]
    else:
        # Two turns take each other's memory, where one would copy what it carries back.
        first = turn(carry, 0, 2)
        second = turn([value for value, _ in first.results[:nk]], 1, 2)
        results = [*first.results[nk:], *second.results]
        blocks = [Block([*first.drafts, *second.drafts], results)]
        blocks += [turn(carry, length - 1, 0)] if length % 2 else []
    d.add(ins, outs, make, starts=list(zip(carry, init, strict=True)), blocks=blocks)
    return True


def _swaps(body: Jaxpr, n_consts: int, n_carry: int, limits: Limits) -> bool:
    """Whether a loop carries so much that two turns at a time are worth a longer program."""
    carried = sum(v.aval.nbytes for v in body.ins[n_consts : n_consts + n_carry])
    short = len(body.eqns) <= limits.swapped_eqns
    return carried >= limits.swapped_bytes and short and not body.has_effects


def _join(d: BlockDrafter, eqn: Eqn) -> bool:
    """Nothing to do: the operands were written to their places."""
    return True


def _move(d: BlockDrafter, eqn: Eqn) -> bool:
    """A contiguous part of an array as bytes."""
    source, to = d.tensor(eqn.ins[0]), d.tensor(eqn.outs[0])
    at = eqn.params["start"] * to.aval.dtype.itemsize

    def make(inner: list[tuple[Step, ...]]) -> list[Step]:
        return [CopyStep(moved(source.place, at), to.place, to.aval.nbytes)]

    d.add([source], [to], make)
    return True


# Of all targets.
STEPS: dict[Primitive | str, Callable[[BlockDrafter, Eqn], bool]] = {
    cond_p: _cond,
    while_p: _while,
    scan_p: _scan,
    "join": _join,
    "move": _move,
}
