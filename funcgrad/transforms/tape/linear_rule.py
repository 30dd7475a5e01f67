"""The derivative of an operation on operands of certain types, as functions of NumPy's arrays.

It is that of `jvp`, `partial_eval` and `transpose`, and depends on types and parameters alone: so
it is derived once, for all the times that a tape meets such an operation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from funcgrad.core import context
from funcgrad.core.aval import ShapedArray
from funcgrad.core.eager.calls import calls, is_large, pays
from funcgrad.core.ir import Eqn, Jaxpr, Var
from funcgrad.core.primitive import Primitive
from funcgrad.core.trace import aval_of
from funcgrad.core.types import Value
from funcgrad.core.views import in_order, spread
from funcgrad.transforms.autodiff.jvp import jvp_jaxpr
from funcgrad.transforms.autodiff.partial_eval import partial_eval_jaxpr
from funcgrad.transforms.autodiff.transpose import transpose_jaxpr
from funcgrad.transforms.control.bodies import choose
from funcgrad.transforms.passes.simplify import simplify
from funcgrad.transforms.tape.residuals import fewer_residuals
from funcgrad.transforms.tape.sliced import pulled_pieces


class LinearRule:
    """An operation on operands of certain types, some of which vary, and its derivative.

    run(*operands) → the result, of type `aval`, then residuals. The result varies if there is a
    program `backward` of residuals and the result's cotangent to the cotangents of the operands at
    `positions`, in the order in which they are added to others; `pull` is it on NumPy's arrays.

    joins, starts: whether it may be put off, to be one program with its neighbours (`joint`), and
    whether it is, rather than only if an operand was. Then it is derived if it is run by itself.
    reads_views: whether it is rather joined with what makes its operands, where these are views
    programs: how many were made that end with it, and others before it
    """

    __slots__ = (
        "_compiling", "_varies", "aval", "backward", "jaxpr", "joins", "kind", "positions",
        "programs", "pull", "reads_views", "run", "starts",
    )  # fmt: skip

    def __init__(self, jaxpr: Jaxpr, varies: Sequence[bool], compiling: bool = False):
        both, (nonzero,) = jvp_jaxpr(jaxpr, varies)
        self.jaxpr, self._varies, self._compiling = jaxpr, varies, compiling
        self.aval = both.outs[0].aval
        self.kind = kind_of(self.aval)
        self.joins = nonzero and all(map(_joins, simplify(both).eqns))
        self.starts, self.programs = self.joins and compiling, 0
        self.reads_views = nonzero and compiling and _reads_views(jaxpr)
        if self.starts or self.reads_views:
            self.run: Callable[..., Sequence] = self._derive_and_run
        else:
            self._derive()

    def _derive_and_run(self, *operands: Any) -> Sequence:
        before = context.current()
        try:
            context.switch(before.with_trace(context.ROOT.trace))
            self._derive()
        finally:
            context.switch(before)
        return self.run(*operands)

    def _derive(self) -> None:
        forward, linear, (nonzero,) = split(self.jaxpr, self._varies)
        if not nonzero:
            self.run = calls(forward, self._compiling)
            self.pull, self.backward = None, None
            self.positions: list[int] = []
            return
        backward, self.positions = backward_of(linear, self._varies, [True])
        if self._compiling:
            lean = [simplify(j) for j in fewer_residuals(forward, backward)]
            if any(map(pays, lean)):
                forward, backward = lean
        pull = calls(backward, self._compiling)
        self.pull, self.backward = pulled_pieces(backward, pull) or pull, backward
        self.run = calls(forward, self._compiling)


def _joins(eqn: Eqn) -> bool:
    """Whether an operation is compiled with its neighbours: in a loop over the same elements."""
    prim = eqn.prim
    if eqn.outs[0].aval.dtype.kind == "c":
        return False
    if prim.view is None or prim.view is in_order:
        return prim.elementwise or bool(prim.reduction or prim.view)
    axes = [a for a in spread(eqn) or (len(eqn.ins), -2) if a != -1]
    return axes == sorted(axes)


def _reads_views(jaxpr: Jaxpr) -> bool:
    """Whether compiled code reads operands where they lie in larger arrays, and writes their
    cotangents into such."""
    return any(e.prim.strided for e in jaxpr.eqns)


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
    return LinearRule(jaxpr, varies, compiling)


def split(jaxpr: Jaxpr, varies: Sequence[bool]) -> tuple[Jaxpr, Jaxpr, list[bool]]:
    """A program to results and then residuals, the linear one of these and of the varying inputs'
    tangents to those of results that vary, and which do."""
    both, nonzero = jvp_jaxpr(jaxpr, varies)
    n, n_results = len(varies), len(jaxpr.outs)
    unknown = [i >= n for i in range(len(both.ins))]
    parts = partial_eval_jaxpr(both, unknown, [i >= n_results for i in range(len(both.outs))])
    outs = [*both.outs[:n_results], *parts.residuals]
    forward = Jaxpr(both.ins[:n], parts.known.eqns, outs)
    return simplify(forward), parts.unknown, nonzero


def backward_of(
    linear: Jaxpr, varies: Sequence[bool], given: Sequence[bool]
) -> tuple[Jaxpr, list[int]]:
    """The transpose of what `split` gave, of residuals and the cotangents that are given, and which
    operands' cotangents it makes, in the order in which they are to be added to others."""
    n = sum(varies)
    known = len(linear.ins) - n
    backward, found = transpose_jaxpr(linear, [i >= known for i in range(known + n)], given)
    operands = [i for i, v in enumerate(varies) if v]
    cts = dict(zip(choose(operands, found), backward.outs, strict=True))
    positions = [operands[i] for i in order_of(linear, n) if operands[i] in cts]
    return simplify(Jaxpr(backward.ins, backward.eqns, [cts[i] for i in positions])), positions


def equation(prim: Primitive, operands: Iterable[Value], params: dict) -> Jaxpr:
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


def may_compile(
    of: Primitive | Callable, values: list, program: Callable[[], Jaxpr | None]
) -> bool:
    """Whether the rule of an operation, or of a function, may be compiled, as is to be known at the
    first meeting already."""
    if not isinstance(of, Primitive):
        return is_large(values)
    if of.view is not None:
        return False
    if is_large(values):
        return True
    jaxpr = program() if (of.passes or 0) > 1 else None
    return jaxpr is not None and is_large(jaxpr.out_avals)
