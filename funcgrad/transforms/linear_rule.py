"""The derivative of an operation on operands of certain types, as functions of NumPy's arrays.

It is that of `jvp`, `partial_eval` and `transpose`, and depends on types and parameters alone: so
it is derived once, for all the times that a tape meets such an operation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from funcgrad.core.aval import ShapedArray
from funcgrad.core.calls import HEAVY, VIEWS, calls, is_large, pays
from funcgrad.core.ir import Eqn, Jaxpr, Var
from funcgrad.core.primitive import Primitive
from funcgrad.core.trace import aval_of
from funcgrad.transforms.control import choose
from funcgrad.transforms.jvp import jvp_jaxpr
from funcgrad.transforms.partial_eval import partial_eval_jaxpr
from funcgrad.transforms.pieces import pulled_pieces
from funcgrad.transforms.residuals import fewer_residuals
from funcgrad.transforms.simplify import simplify
from funcgrad.transforms.transpose import transpose_jaxpr


class LinearRule:
    """An operation on operands of certain types, some of which vary, and its derivative.

    run(*operands) → the result, of type `aval`, then residuals. The result varies if there is a
    program `backward` of residuals and the result's cotangent to the cotangents of the operands at
    `positions`, in the order in which they are added to others; `pull` is it on NumPy's arrays.
    """

    __slots__ = ("aval", "backward", "kind", "positions", "pull", "run")

    def __init__(
        self, aval: ShapedArray, run: Callable[..., Sequence], pull: Any = None,
        backward: Any = None, positions: Sequence[int] = (),
    ):  # fmt: skip
        self.aval, self.kind = aval, kind_of(aval)
        self.run, self.pull = run, pull
        self.backward, self.positions = backward, positions


def kind_of(aval: ShapedArray) -> tuple:
    """A type in keys of rules, of an operand that varies.

    >>> kind_of(ShapedArray((2,), "float32"))
    ((2,), dtype('float32'), False, True)
    """
    return aval.shape, aval.dtype, aval.weak_type, True


def linear_rule(jaxpr: Jaxpr, varies: Sequence[bool], compiling: bool = False) -> LinearRule:
    """The rule of a program that has one result; with `compiling`, for large arrays.

    >>> import funcgrad as fg
    >>> product = fg.make_jaxpr(lambda x, y: x * y)(2.0, 3.0)
    >>> linear_rule(product.jaxpr, [True, False]).backward
    { lambda ; a:f32[] b:f32[] . let
        c:f32[] = mul b a
      in (c,) }
    """
    both, (nonzero,) = jvp_jaxpr(jaxpr, varies)
    n, n_varying = len(varies), sum(varies)
    unknown = [False] * n + [True] * n_varying
    parts = partial_eval_jaxpr(both, unknown, [False, True][: 1 + nonzero])
    forward = Jaxpr(both.ins[:n], parts.known.eqns, [both.outs[0], *parts.residuals])
    aval, forward = both.outs[0].aval, simplify(forward)
    if not nonzero:
        return LinearRule(aval, calls(forward, compiling))
    linear = [False] * len(parts.residuals) + [True] * n_varying
    backward, found = transpose_jaxpr(parts.unknown, linear, [True])
    operands = [i for i, v in enumerate(varies) if v]
    cts = dict(zip(choose(operands, found), backward.outs, strict=True))
    positions = [operands[i] for i in order_of(parts.unknown, n_varying) if operands[i] in cts]
    backward = simplify(Jaxpr(backward.ins, backward.eqns, [cts[i] for i in positions]))
    if compiling:
        lean = [simplify(j) for j in fewer_residuals(forward, backward)]
        if any(map(pays, lean)):
            forward, backward = lean
    run, pull = calls(forward, compiling), calls(backward, compiling)
    pull = pulled_pieces(backward, pull) or pull
    return LinearRule(aval, run, pull, backward, positions)


def equation(prim: Primitive, operands: Iterable[Any], params: dict) -> Jaxpr:
    """The program of one operation on operands like these."""
    ins = [Var(aval_of(x)) for x in operands]
    out = Var(prim.abstract(*(v.aval for v in ins), **params))
    return Jaxpr(ins, [Eqn(prim, ins, (out,), params)], [out])


def order_of(linear: Jaxpr, n: int) -> list[int]:
    """In which order the last n inputs of a linear program get their cotangents, when it is run
    backwards: sums of floating-point numbers depend on it."""
    number: dict[Any, int] = {v: i for i, v in enumerate(linear.ins[len(linear.ins) - n :])}
    reads = [linear.outs, *(e.ins for e in reversed(linear.eqns))]
    return list(dict.fromkeys(number[a] for atoms in reads for a in atoms if a in number))


def may_compile(of: Any, values: list, program: Callable[[], Jaxpr | None]) -> bool:
    """Whether the rule of an operation, or of a function, may be compiled, as is to be known at the
    first meeting already."""
    if not isinstance(of, Primitive):
        return is_large(values)
    if of.name in VIEWS:
        return False
    if is_large(values):
        return True
    jaxpr = program() if of.name in HEAVY else None
    return jaxpr is not None and is_large(jaxpr.out_avals)
