"""Elementwise ops: their meaning `impl`, run on ONNX values in place of arrays.

`impl` is written over NumPy's names, and the compiler's namespace of symbols (`Scalars`) already
turns it into scalar code with NumPy's types. Here the statements that it makes are ONNX nodes. So
each elementwise op has a translation, special functions among them, that means what it means
elsewhere. Functions that ONNX or a type lacks are formulas in `functions`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from funcgrad.backends.loops import interpret
from funcgrad.backends.loops.ir import Const
from funcgrad.backends.loops.scalars import Scalars, Unsupported
from funcgrad.export.onnx import functions
from funcgrad.export.onnx.graph import Graph, Tensor, Untranslatable, broadcast_shape
from funcgrad.export.onnx.kernels import BOOL, I8

Operand = Tensor | Const

_SAME = {
    "add": "Add", "subtract": "Sub", "multiply": "Mul", "negative": "Neg", "abs": "Abs",
    "sign": "Sign", "floor": "Floor", "ceil": "Ceil", "rint": "Round", "sqrt": "Sqrt",
    "exp": "Exp", "log": "Log", "sin": "Sin", "cos": "Cos", "tanh": "Tanh",
}  # fmt: skip
_COMPARE = {
    "equal": "Equal", "less": "Less", "less_equal": "LessOrEqual", "greater": "Greater",
    "greater_equal": "GreaterOrEqual",
}  # fmt: skip
_BITS = {
    "bitwise_and": ("And", "BitwiseAnd"), "bitwise_or": ("Or", "BitwiseOr"),
    "bitwise_xor": ("Xor", "BitwiseXor"), "invert": ("Not", "BitwiseNot"),
}  # fmt: skip


class Statements:
    """What `Scalars` writes into: ops on tensors and constants, as nodes of a graph."""

    def __init__(self, graph: Graph):
        self.graph = graph

    def tensor(self, x: Operand) -> Tensor:
        """An operand as a value of the graph."""
        return self.graph.constant(x.value) if isinstance(x, Const) else x

    def op(self, name: str, dtype: np.dtype, *args: Operand) -> Operand:
        """name(*args) of this dtype; of constants, their value."""
        if all(isinstance(a, Const) for a in args):
            with np.errstate(all="ignore"):
                values = [np.asarray(a.value) for a in args]  # type: ignore[union-attr]
                return Const(interpret.apply(name, dtype, values), dtype)
        if name == "convert":
            return self.convert(args[0], dtype)
        return written(self.graph, name, dtype, [self.tensor(a) for a in args])

    def convert(self, x: Operand, dtype: np.dtype) -> Operand:
        """x as another type, as NumPy's astype."""
        if x.dtype == dtype:
            return x
        if isinstance(x, Const):
            with np.errstate(all="ignore"):
                return Const(x.value, dtype)
        if dtype == BOOL:
            zero = self.graph.constant(0, x.dtype)
            return self.graph.not_(self.graph.compare("Equal", x, zero))
        return self.graph.cast(x, dtype)

    def loop(
        self, size: int, body: Callable[..., Sequence[Operand]], starts: Sequence[Operand]
    ) -> list[Tensor]:
        """A loop of so many turns: body(i, *carried) gives the next carried values."""
        wide = self._spread(starts)
        turns = self.graph.constant(size, I8)

        def write(inner: Graph, i: Tensor, carried: Sequence[Tensor]) -> list[Tensor]:
            step = Statements(inner)
            outer, self.graph = self.graph, inner
            nexts = [step.tensor(x) for x in body(i, *carried)]
            self.graph = outer
            return nexts

        return looped(self.graph, turns, None, wide, write)

    def while_(
        self,
        test: Callable[..., Operand],
        body: Callable[..., Sequence[Operand]],
        starts: Sequence[Operand],
    ) -> list[Tensor]:
        """Turns for as long as an element's test holds; those that are done keep their values."""
        wide = self._spread(starts)
        shape = wide[0].shape

        def go(inner: Graph, carried: Sequence[Tensor]) -> Tensor:
            outer, self.graph = self.graph, inner
            found = self.tensor(test(*carried))
            self.graph = outer
            return inner.broadcast_small(found, shape) if found.shape != shape else found

        def some(inner: Graph, state: Sequence[Tensor]) -> Tensor:
            return inner.reduce("ReduceMax", state[0], range(len(shape)))

        def write(inner: Graph, i: Tensor, state: Sequence[Tensor]) -> list[Tensor]:
            active, *carried = state
            outer, self.graph = self.graph, inner
            nexts = [self.tensor(x) for x in body(*carried)]
            self.graph = outer
            kept = [inner.where(active, n, c) for n, c in zip(nexts, carried, strict=True)]
            return [inner.elementwise("And", active, go(inner, kept)), *kept]

        if 0 in map(int, shape):
            return wide
        active = go(self.graph, wide)
        outs = looped(self.graph, None, some, [active, *wide], write)
        return outs[1:]

    def _spread(self, starts: Sequence[Operand]) -> list[Tensor]:
        """The carried values, all of the shape that they have together with what the body reads."""
        tensors = [self.tensor(s) for s in starts]
        shape = broadcast_shape([self.shape, *(t.shape for t in tensors)])
        out = []
        for t in tensors:
            thin = (1,) * (len(shape) - t.rank) + t.shape
            out.append(self.graph.broadcast_small(self.graph.reshape(t, thin), shape))
        return out

    shape: tuple[int, ...] = ()


def looped(
    graph: Graph,
    turns: Tensor | None,
    condition: Callable[[Graph, Sequence[Tensor]], Tensor] | None,
    starts: Sequence[Tensor],
    body: Callable[[Graph, Tensor, Sequence[Tensor]], Sequence[Tensor]],
    stacked: Sequence[tuple[int, ...]] = (),
) -> list[Tensor]:
    """A Loop that carries values: body(graph, i, carried) gives the next ones.

    condition: says of the carried values whether there is a next turn
    stacked: the shapes of what the body gives beside them, with an axis of all turns in front
    """
    inner = Graph(graph.onnx, graph)
    i_name, go_name = inner.unique("turn"), inner.unique("go")
    names = [inner.unique("carried") for _ in starts]
    carried = [Tensor(inner, n, s.dtype, s.shape) for n, s in zip(names, starts, strict=True)]
    found = list(body(inner, Tensor(inner, i_name, I8, ()), carried))
    nexts, given_out = found[: len(starts)], found[len(starts) :]
    nexts = [
        inner.broadcast_small(n, s.shape) if n.rank == s.rank else n
        for n, s in zip(nexts, starts, strict=True)
    ]
    more = condition(inner, nexts) if condition else Tensor(inner, go_name, BOOL, ())
    go = inner.alias(more)
    scalar = [inner.info(i_name, I8, ()), inner.info(go_name, BOOL, ())]
    ins = [*scalar, *(inner.info(c.name, c.dtype, c.shape) for c in carried)]
    outs = [inner.info(go, BOOL, ())]
    outs += [
        inner.info(inner.alias(n), s.dtype, s.shape) for n, s in zip(nexts, starts, strict=True)
    ]
    outs += [inner.info(inner.alias(y), y.dtype, y.shape) for y in given_out]
    first = condition(graph, starts).name if condition else graph.constant(True).name
    count = "" if turns is None else turns.name
    given = [count, first, *(s.name for s in starts)]
    attrs = {"body": inner.proto("body", ins, outs)}
    made = graph.node("Loop", given, attrs, len(found))
    types = [(s.dtype, s.shape) for s in starts]
    types += [(y.dtype, shape) for y, shape in zip(given_out, stacked, strict=True)]
    return [Tensor(graph, n, *t) for n, t in zip(made, types, strict=True)]


def written(g: Graph, name: str, dtype: np.dtype, args: Sequence[Tensor]) -> Tensor:
    """NumPy's function of this name, whose operands have the types that it wants."""
    own = args[0].dtype
    if name in _SAME:
        return _plain(g, name, args)
    if name in _COMPARE:
        if own == BOOL and name != "equal":
            args = [g.cast(a, np.dtype("u1")) for a in args]
        return g.compare(_COMPARE[name], *args)
    if name == "not_equal":
        return g.not_(g.compare("Equal", *args))
    if name in _BITS:
        return g.elementwise(_BITS[name][own != BOOL], *args)
    if name == "where":
        return g.where(*args)
    if name in ("maximum", "minimum"):
        if own == BOOL:
            return g.elementwise("Or" if name == "maximum" else "And", *args)
        return g.elementwise("Max" if name == "maximum" else "Min", *args)
    formula = getattr(functions, name, None)
    if formula is None:
        raise Untranslatable(f"no ONNX op computes {name}")
    return formula(g, *args) if name != "bitcast" else formula(g, args[0], dtype)


def _plain(g: Graph, name: str, args: Sequence[Tensor]) -> Tensor:
    own = args[0].dtype
    if name == "negative" and own.kind == "u":
        return g.elementwise("Sub", g.constant(0, own), args[0])
    if name in ("floor", "ceil", "rint") and own.kind in "iu":
        return args[0]
    if own == BOOL and name == "abs":
        return args[0]
    if own == BOOL:
        return g.elementwise("Or" if name == "add" else "And", *args)
    return g.elementwise(_SAME[name], *args)


def elementwise(
    g: Graph, prim: Any, params: dict, ins: Sequence[Tensor], types: Sequence[np.dtype]
) -> list[Tensor]:
    """The results, of these types, of an elementwise op: its `impl` run on values of the graph."""
    statements = Statements(g)
    statements.shape = broadcast_shape([x.shape for x in ins])
    xp = Scalars(statements)  # type: ignore[arg-type]
    symbols = [xp.symbol(_scalar(x), x.dtype) for x in ins]  # type: ignore[arg-type]
    try:
        found = prim.impl(xp, *symbols, **params)
        outs = found if prim.multiple else [found]
        return [
            statements.tensor(xp.result(value, dtype))  # type: ignore[arg-type]
            for value, dtype in zip(outs, types, strict=True)
        ]
    except (Unsupported, AttributeError, TypeError) as e:
        raise Untranslatable(str(e)) from None


def _scalar(x: Tensor) -> Operand:
    """An operand; constants of rank 0 as such, so that what is made of them is computed now."""
    known = x.constant is not None and x.constant.ndim == 0
    return Const(x.constant, x.dtype) if known else x
