"""Control flow: If for branches, Scan for loops over arrays, Loop for the others.

What a body captures it reads from the graph around it, by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from funcgrad.core.ir import Eqn, Jaxpr
from funcgrad.export.onnx.dims import Dim
from funcgrad.export.onnx.graph import Graph, Tensor
from funcgrad.export.onnx.kernels import I8, held
from funcgrad.export.onnx.rules.structure import flipped
from funcgrad.export.onnx.scalars import looped
from funcgrad.transforms.control.bodies import split_list
from funcgrad.transforms.control.cond import cond_p
from funcgrad.transforms.control.scan import scan_p
from funcgrad.transforms.control.while_loop import while_p

Ins = Sequence[Tensor]
# Writes a program's equations into a graph, on these operands; gives its results.
Program = Callable[[Graph, Jaxpr, Ins], list[Tensor]]


def cond(g: Graph, eqn: Eqn, ins: Ins, program: Program) -> list[Tensor]:
    """The branch that a number says, held within range."""
    index, *operands = ins
    branches = eqn.params["branches"]
    return _branch(g, index, list(range(len(branches))), branches, operands, program)


def _branch(
    g: Graph, index: Tensor, numbers: Sequence[int], branches: Any, ins: Ins, program: Program
) -> list[Tensor]:
    if len(numbers) == 1:
        return program(g, branches[numbers[0]], ins)
    first, *rest = numbers
    test = g.compare("LessOrEqual", index, g.constant(first, index.dtype))
    avals = branches[first].out_avals

    def graph(name: str, chosen: Sequence[int]) -> Any:
        inner = Graph(g.onnx, g)
        found = _branch(inner, index, chosen, branches, ins, program)
        outs = [
            inner.info(inner.alias(x), x.dtype, a.shape) for x, a in zip(found, avals, strict=True)
        ]
        return inner.proto(name, [], outs)

    attrs = {"then_branch": graph("then", [first]), "else_branch": graph("otherwise", rest)}
    names = g.node("If", [test.name], attrs, len(avals))
    return [Tensor(g, n, held(a.dtype), a.shape) for n, a in zip(names, avals, strict=True)]


def scan(g: Graph, eqn: Eqn, ins: Ins, program: Program) -> list[Tensor]:
    """A loop over arrays' first axes, with what it carries and what each turn gives."""
    p = eqn.params
    n_consts, n_carry, jaxpr, length = p["n_consts"], p["n_carry"], p["jaxpr"], p["length"]
    consts, carry, xs = split_list(ins, n_consts, n_carry)
    ys = [v.aval for v in eqn.outs[n_carry:]]
    if int(length) == 0:
        return [*carry, *(g.full(a.shape, 0, held(a.dtype)) for a in ys)]
    if not xs:
        return _counted(g, eqn, consts, carry, program)
    inner = Graph(g.onnx, g)
    starts = [*carry, *xs]
    names = [inner.unique("carried") for _ in carry] + [inner.unique("element") for _ in xs]
    shapes = [c.shape for c in carry] + [x.shape[1:] for x in xs]
    given = [
        Tensor(inner, name, s.dtype, shape)
        for name, s, shape in zip(names, starts, shapes, strict=True)
    ]
    found = program(inner, jaxpr, [*consts, *given])
    outs = [
        inner.info(inner.alias(x), x.dtype, v.aval.shape)
        for x, v in zip(found, jaxpr.outs, strict=True)
    ]
    body = inner.proto("body", [inner.info(t.name, t.dtype, t.shape) for t in given], outs)
    attrs: dict[str, Any] = {"body": body, "num_scan_inputs": len(xs)}
    if p["reverse"]:
        attrs |= {"scan_input_directions": [1] * len(xs), "scan_output_directions": [1] * len(ys)}
    attrs = {k: v for k, v in attrs.items() if v != []}
    made = g.node("Scan", [s.name for s in starts], attrs, len(eqn.outs))
    return [
        Tensor(g, n, held(v.aval.dtype), v.aval.shape) for n, v in zip(made, eqn.outs, strict=True)
    ]


def _counted(g: Graph, eqn: Eqn, consts: Ins, carry: Ins, program: Program) -> list[Tensor]:
    """A loop of so many turns over nothing."""
    p = eqn.params
    length = p["length"]
    turns = g.root.reshape(g.root.size(length), ()) if isinstance(length, Dim) else g.constant(
        int(length), I8
    )  # fmt: skip

    def body(inner: Graph, i: Tensor, carried: Ins) -> list[Tensor]:
        return program(inner, p["jaxpr"], [*consts, *carried])

    n = len(carry)
    outs = looped(g, turns, None, carry, body, [v.aval.shape for v in eqn.outs[n:]])
    return [*outs[:n], *(flipped(g, y, [0]) if p["reverse"] else y for y in outs[n:])]


def while_loop(g: Graph, eqn: Eqn, ins: Ins, program: Program) -> list[Tensor]:
    """Turns for as long as a condition holds."""
    p = eqn.params
    cond_consts, body_consts, carry = split_list(ins, p["n_cond"], p["n_body"])

    def test(inner: Graph, carried: Ins) -> Tensor:
        return program(inner, p["cond_jaxpr"], [*cond_consts, *carried])[0]

    def body(inner: Graph, i: Tensor, carried: Ins) -> list[Tensor]:
        return program(inner, p["body_jaxpr"], [*body_consts, *carried])

    return looped(g, None, test, carry, body)


RULES = {cond_p: cond, scan_p: scan, while_p: while_loop}
