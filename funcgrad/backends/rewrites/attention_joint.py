"""Attention forward and backward as one op, where a cotangent doesn't depend on the result.

So it is where a layer is computed once more for its cotangents (`checkpoint`), and in a vjp with a
given cotangent. Weights are then made once for both: six products of all pairs rather than seven.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from funcgrad.backends.lower.primitives import lowered
from funcgrad.core.dce import has_effect
from funcgrad.core.ir import Atom, Eqn, Var
from funcgrad.transforms.attention.attention import attention_backward_p, attention_p


def _abstract(q, k, v, ct, *lengths, **params):
    return [q.strong(), q.strong(), k.strong(), v.strong()]


def _impl(xp, q, k, v, ct, *lengths, **params):
    out, stats = attention_p.impl(xp, q, k, v, *lengths, **params)
    operands = q, k, v, out, stats, ct, *lengths
    return [out, *attention_backward_p.impl(xp, *operands, bias_too=False, **params)]


# Of query, key, value, the result's cotangent and lengths: the result, and three cotangents.
attention_joint_p = lowered("attention_joint", _abstract, _impl, multiple=True, strided=True)


def join_attention(
    eqns: Sequence[Eqn], outs: Sequence[Atom], pays: Callable[[Eqn], bool]
) -> Sequence[Eqn]:
    """The equations of a program of these results, in an order in which they can run, with both
    passes as one where that pays: of a forward equation, `pays`."""
    made: dict[Any, Eqn] = {e.outs[1]: e for e in eqns if e.prim is attention_p and pays(e)}
    backward = [e for e in eqns if made and e.prim is attention_backward_p and e.ins[4] in made]
    for eqn in backward:
        forward = made[eqn.ins[4]]
        if _same_work(forward, eqn) and _readers(forward.outs[1], eqns, outs) == 1:
            eqns = _joined(eqns, forward, eqn) or eqns
    return eqns


def _same_work(forward: Eqn, backward: Eqn) -> bool:
    operands = (*backward.ins[:3], *backward.ins[6:])
    params = {**forward.params, "bias_too": False}
    same = len(operands) == len(forward.ins) and all(
        x is y for x, y in zip(operands, forward.ins, strict=True)
    )
    return same and backward.ins[3] is forward.outs[0] and backward.params == params


def _readers(x: Var, eqns: Sequence[Eqn], outs: Sequence[Atom]) -> int:
    """How many times a value is read."""
    return sum(a is x for a in (*outs, *(a for e in eqns for a in e.ins)))


def _joined(eqns: Sequence[Eqn], forward: Eqn, backward: Eqn) -> list[Eqn] | None:
    """What reads the result comes after both; None if the cotangent does, or what has effects."""
    first, last = eqns.index(forward), eqns.index(backward)
    reached: set[Any] = set(forward.outs)
    before, after = [], []
    for eqn in eqns[first + 1 : last]:
        if reached.isdisjoint(eqn.ins):
            before.append(eqn)
            continue
        if has_effect(eqn):
            return None
        reached.update(eqn.outs)
        after.append(eqn)
    ct = backward.ins[5]
    if ct in reached:
        return None
    ins = (*forward.ins[:3], ct, *forward.ins[3:])
    both = Eqn(attention_joint_p, ins, (forward.outs[0], *backward.outs), forward.params,
               backward.source, backward.scopes)  # fmt: skip
    return [*eqns[:first], *before, both, *after, *eqns[last + 1 :]]
