"""What derivatives keep of float32 arithmetic, in the narrow dtype.

A chain of elementwise operations, such as an activation, would keep an array of float32 for each.
As a whole, it changes by a factor for each of its operands; these factors are found with its
result, in float32, and all that is kept of them is a narrow copy. Torch's autocast keeps as little,
as it computes such chains in the narrow dtype.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from funcgrad.core.aval import Zero
from funcgrad.core.dce import dce_eqns
from funcgrad.core.ir import Atom, Eqn, Jaxpr, Literal, Var, eval_jaxpr
from funcgrad.core.primitive import Primitive
from funcgrad.core.rewriting import Writer, uses
from funcgrad.core.trace import aval_of
from funcgrad.core.types import Operand, Params, Rewritten, Tangents, Value, Values
from funcgrad.ops.base import full, instantiate
from funcgrad.ops.elementwise.arithmetic import div, integer_pow_p, mul, neg, sub
from funcgrad.ops.elementwise.convert import convert_element_type
from funcgrad.ops.elementwise.transcendental import cos, logistic, sin, tanh
from funcgrad.ops.families import add, binary, is_number
from funcgrad.transforms.autodiff.jvp import jvp_flat
from funcgrad.transforms.control.custom_call import (
    JVPCall,
    custom_jvp_call_p,
    custom_vjp_call_p,
)

# Operations whose factors are worth keeping once for a chain of them, and those that have none.
_BENT = frozenset({mul, div, tanh, logistic, sin, cos, integer_pow_p})
_STRAIGHT = frozenset({add, sub, neg})
_FEWEST = 2  # operations of the first kind in a chain


# ---- a product with a narrow factor


def _like(x: Value, other: Operand) -> Value:
    """x in another value's dtype."""
    return convert_element_type(x, aval_of(other).dtype)


scaled_p: Primitive = binary(
    "scaled",
    impl=lambda xp, x, factor: x * factor.astype(x.dtype),
    jvp=(
        lambda g, z, x, factor: scaled_p.bind(g, factor),
        lambda g, z, x, factor: mul(x, _like(g, x)),
    ),
    transpose=(
        lambda ct, x, factor: scaled_p.bind(ct, factor),
        lambda ct, x, factor: convert_element_type(mul(ct, x), factor.aval.dtype),
    ),
    formula=lambda x, factor: mul(x, _like(factor, x)),
    same_dtype=False,
    result=lambda x, factor: x,
    accepts=is_number,
    doc="",
)

# ---- the pass


def keep_narrow(jaxpr: Jaxpr, dtype: np.dtype) -> Jaxpr:
    """The program whose chains of float32 arithmetic keep factors in a narrow dtype, each chain a
    function of its own with such a derivative; in the programs within, too.

    >>> import funcgrad as fg
    >>> f = lambda x: x * fnp.tanh(x)
    >>> jaxpr = keep_narrow(fg.make_jaxpr(f)(fnp.ones(3)).jaxpr, np.dtype("bfloat16"))
    >>> kept = fg.ad_checkpoint.saved_residuals(lambda x: eval_jaxpr(jaxpr, x), fnp.ones(3))
    >>> [str(aval) for aval, _ in kept]
    ['bf16[3]']
    """
    return jaxpr.derive(("kept narrow", dtype), lambda: _Keeper(jaxpr, dtype).write(jaxpr))


class _Keeper(Writer):
    """Chains become functions, where their last operations stand."""

    def __init__(self, jaxpr: Jaxpr, dtype: np.dtype):
        super().__init__("narrow factors")
        self.dtype = dtype
        self.chains = _chains(jaxpr)

    def within(self, jaxpr: Jaxpr) -> Jaxpr:
        return keep_narrow(jaxpr, self.dtype)

    def programs(self, eqn: Eqn) -> Params:
        custom = eqn.prim in (custom_jvp_call_p, custom_vjp_call_p)
        return eqn.params if custom else super().programs(eqn)

    def equation(self, eqn: Eqn, ins: list) -> None:
        chain = self.chains.get(eqn.outs[0]) if eqn.outs else None
        if chain is None:
            self.keep(eqn, ins)
            return
        call = _call(chain, self.dtype)
        given = [self.value(self.read(v)) for v in chain.ins]
        self.define(eqn, call.stage(self.trace, given))


def _chains(jaxpr: Jaxpr) -> dict[Var, Jaxpr]:
    """Chains of arithmetic by their results: all that nothing else uses of what leads there."""
    used, n = uses(jaxpr), len(jaxpr.eqns)
    member: dict[int, int] = {}  # the place of an equation, and of the last one of its chain
    for i in reversed(range(n)):
        eqn = jaxpr.eqns[i]
        if not _is_arithmetic(eqn):
            continue
        ends = {member.get(j, -1) for j in used.get(eqn.outs[0], ())}
        end = ends.pop() if len(ends) == 1 else -1
        shape = eqn.outs[0].aval.shape
        if end >= 0 and jaxpr.eqns[end].outs[0].aval.shape == shape:
            member[i] = end
        elif _is_bent(eqn):
            member[i] = i
    chains: dict[int, list[Eqn]] = {}
    made: set[Atom] = set()
    for i in sorted(member):
        eqn = jaxpr.eqns[i]
        # What only adds two operands is left in front: the sum has one factor.
        alone = sum(isinstance(a, Var) for a in eqn.ins) == 1
        if alone or _is_bent(eqn) or not made.isdisjoint(eqn.ins):
            chains.setdefault(member[i], []).append(eqn)
            made.update(eqn.outs)
    return {
        jaxpr.eqns[end].outs[0]: _program(eqns)
        for end, eqns in chains.items()
        if sum(map(_is_bent, eqns)) >= _FEWEST
    }


def _is_arithmetic(eqn: Eqn) -> bool:
    if eqn.prim not in _BENT and eqn.prim not in _STRAIGHT:
        return False
    avals = [a.aval for a in eqn.ins if not isinstance(a, Literal)]
    out = eqn.outs[0].aval
    wide = all(a.dtype == np.float32 and a.shape == out.shape for a in (*avals, out))
    return wide and bool(avals) and out.ndim > 0


def _is_bent(eqn: Eqn) -> bool:
    """Whether an operation's factor isn't the same number for all elements."""
    scales = eqn.prim is mul and any(isinstance(a, Literal) for a in eqn.ins)
    divides = eqn.prim is div and isinstance(eqn.ins[1], Literal)
    return eqn.prim in _BENT and not scales and not divides


def _program(eqns: Sequence[Eqn]) -> Jaxpr:
    made = {v for e in eqns for v in e.outs}
    ins = dict.fromkeys(a for e in eqns for a in e.ins if isinstance(a, Var) and a not in made)
    outs = list(eqns[-1].outs)
    return Jaxpr(list(ins), dce_eqns(eqns, outs), outs)


def _call(chain: Jaxpr, dtype: np.dtype) -> JVPCall:
    """The function that a chain is, whose derivative keeps a narrow factor for each operand."""

    def fun(*args: Value) -> list:
        return eval_jaxpr(chain, *args)

    def rule(primals: Values, tangents: Tangents) -> tuple[list, list]:
        total: Rewritten = None
        outs = None
        for i, t in enumerate(tangents):
            if type(t) is Zero:
                continue
            ones = [
                full(aval_of(p).shape, 1, aval_of(p).dtype)
                if j == i
                else Zero(aval_of(p).tangent())
                for j, p in enumerate(primals)
            ]
            outs, (factor,) = jvp_flat(fun, primals, ones)
            term = scaled_p.bind(t, convert_element_type(instantiate(factor), dtype))
            total = term if total is None else add(total, term)
        outs = fun(*primals) if outs is None else outs
        return outs, [Zero(aval_of(outs[0]).tangent()) if total is None else total]

    return JVPCall("arithmetic", fun, rule, symbolic_zeros=True)
