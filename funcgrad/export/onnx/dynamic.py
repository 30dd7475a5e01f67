"""Axes of any size: a program traced at several sizes, and what differs between the traces.

A size that follows from the named ones is one number in each trace. The formula that gives all of
them (`dims.fitted`) takes its place, in types, parameters and literals; where none does, or where
the traces have other operations, the program depends on a size and is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from funcgrad import tree
from funcgrad.core.aval import ShapedArray
from funcgrad.core.closed import ClosedJaxpr, Constant
from funcgrad.core.ir import Atom, Eqn, Jaxpr, Literal, Var
from funcgrad.core.shapes import ShapeDtypeStruct
from funcgrad.errors import ExportError
from funcgrad.export.onnx.dims import Dim, fitted
from funcgrad.export.onnx.lowered import lowered
from funcgrad.transforms.jit.make_jaxpr import make_jaxpr

# Sizes that programs have for no other reason, so that none is taken for one that follows.
PRIMES = (19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67)


class _Differs(Exception):
    """The traces differ in what no formula of sizes expresses."""


def traced_at_sizes(
    fun: Callable, args: Sequence[Any], kept: Sequence[int], dynamic: Mapping[str, Any],
    attention: bool = False,
) -> tuple[ClosedJaxpr, Any]:  # fmt: skip
    """The program of a function for named sizes, and the tree of its results.

    kept: numbers of the arguments that have no such axes, as they are stored
    attention: whether the program may have that op
    """
    names = list(dynamic) if isinstance(dynamic, Mapping) else [""]
    if not all(isinstance(name, str) and name for name in names):
        raise ExportError(
            f"to_onnx: dynamic gives sizes names, such as {{'batch': {{'x': 0}}}}, got {dynamic!r}"
        )
    if 2 * len(names) + 1 > len(PRIMES):
        raise ExportError(f"to_onnx: dynamic names {len(names)} sizes, at most 5 are possible")
    base = dict(zip(names, PRIMES, strict=False))
    others = dict(zip(names, PRIMES[len(names) :], strict=False))
    points = [base, *({**base, n: others[n]} for n in names)]
    points.append(dict(zip(names, PRIMES[len(names) + 1 :], strict=False)))
    traces = []
    for point in points:
        sized = _with_sizes(fun, args, kept, dynamic, point)
        closed, out_tree = make_jaxpr(fun, return_shape=True)(*sized)
        traces.append((closed, out_tree))
    jaxprs = [lowered(closed.jaxpr, attention) for closed, _ in traces]
    try:
        same = _Unifier(points).program(jaxprs)
    except _Differs as e:
        raise ExportError(
            f"to_onnx: the program depends on the sizes {', '.join(names)} in a way that a model "
            f"can't express: {e}. Leave the size fixed, or compute with it without branching on it"
        ) from None
    return ClosedJaxpr(same, traces[0][0].consts), traces[0][1]


def _with_sizes(
    fun: Callable, args: Sequence[Any], kept: Sequence[int], dynamic: Mapping, point: Mapping
) -> list:
    """The arguments as types, with these sizes at the named axes."""
    closed = make_jaxpr(fun)(*args)
    names = list((closed.jaxpr.names or ())[len(closed.consts) :])
    wanted: dict[str, dict[int, int]] = {}
    for size_name, places in dynamic.items():
        if not isinstance(places, Mapping):
            raise ExportError(
                f"to_onnx: dynamic[{size_name!r}] must say which axes of which inputs, such as "
                f"{{'x': 0}}, got {places!r}"
            )
        for which, axes in places.items():
            for axis in (axes,) if isinstance(axes, int) else tuple(axes):
                wanted.setdefault(which, {})[axis] = point[size_name]
    flat, structure = tree.flatten(tuple(args))
    counts = [len(tree.leaves(a)) for a in args]
    of = [i for i, n in enumerate(counts) for _ in range(n)]
    out = []
    for leaf, aval, name, number in zip(flat, closed.in_avals, names, of, strict=True):
        axes = wanted.pop(name, {})
        if number in kept:
            if axes:
                raise ExportError(f"to_onnx: dynamic names {name}, which is stored in the model")
            out.append(leaf)
            continue
        shape = list(aval.shape)
        for axis, size in axes.items():
            if not isinstance(axis, int) or not -len(shape) <= axis < len(shape):
                raise ExportError(
                    f"to_onnx: dynamic: input {name} is {aval}, it has no axis {axis!r}"
                )
            shape[axis] = size
        out.append(ShapeDtypeStruct(tuple(shape), aval.dtype, weak_type=aval.weak_type))
    if wanted:
        raise ExportError(
            f"to_onnx: dynamic names the inputs {sorted(wanted)}; the function has {names}"
        )
    return list(tree.unflatten(structure, out))


class _Unifier:
    """One program that stands for several traces of a function."""

    def __init__(self, points: Sequence[Mapping[str, int]]):
        self.points = points

    def program(self, traces: Sequence[Jaxpr]) -> Jaxpr:
        first = traces[0]
        if any(len(t.eqns) != len(first.eqns) or len(t.ins) != len(first.ins) for t in traces):
            raise _Differs("its number of operations depends on them")
        new: dict[Var, Var] = {}
        numbers = [self._numbered(t) for t in traces]

        def bound(vars_: Sequence[Var]) -> Var:
            made = new[vars_[0]] = Var(self.aval([v.aval for v in vars_]))
            return made

        def atom(atoms: Sequence[Atom], where: Any) -> Atom:
            if all(isinstance(a, Literal) for a in atoms):
                return self.literal(atoms, where)
            places = [n.get(a) for n, a in zip(numbers, atoms, strict=True)]  # type: ignore[arg-type]
            if any(p is None or p != places[0] for p in places):
                raise _Differs(f"what {where} reads depends on them")
            return new[atoms[0]]  # type: ignore[index]

        ins = [bound(vs) for vs in zip(*(t.ins for t in traces), strict=True)]
        eqns = []
        for same in zip(*(t.eqns for t in traces), strict=True):
            eqn = same[0]
            where = eqn.prim if eqn.source is None else f"{eqn.prim} at {eqn.source}"
            if any(
                e.prim is not eqn.prim or len(e.ins) != len(eqn.ins) or len(e.outs) != len(eqn.outs)
                for e in same
            ):
                raise _Differs(f"{where} is another operation at another size")
            operands = [atom(a, where) for a in zip(*(e.ins for e in same), strict=True)]
            params = {
                k: self.value([e.params[k] for e in same], f"{k} of {where}") for k in eqn.params
            }
            outs = [bound(vs) for vs in zip(*(e.outs for e in same), strict=True)]
            eqns.append(Eqn(eqn.prim, operands, outs, params, eqn.source, eqn.scopes))
        results = [atom(a, "the result") for a in zip(*(t.outs for t in traces), strict=True)]
        return Jaxpr(ins, eqns, results, first.names)

    @staticmethod
    def _numbered(jaxpr: Jaxpr) -> dict[Var, int]:
        every: list[Any] = [*jaxpr.ins, *(v for e in jaxpr.eqns for v in e.outs)]
        return {v: i for i, v in enumerate(every)}

    def aval(self, avals: Sequence[ShapedArray]) -> ShapedArray:
        first = avals[0]
        if any(a.ndim != first.ndim or a.dtype != first.dtype for a in avals):
            raise _Differs("the types of its arrays depend on them")
        shape = tuple(
            self.size(ns, "a shape") for ns in zip(*(a.shape for a in avals), strict=True)
        )
        return ShapedArray(shape, first.dtype, first.weak_type)

    def size(self, values: Sequence[int], where: Any) -> int:
        found = fitted(self.points, values)
        if found is None:
            raise _Differs(f"{where} is {values[0]} or {values[1]}")
        return found

    def value(self, values: Sequence[Any], where: Any) -> Any:
        """A parameter of an operation."""
        first = values[0]
        if type(first) is int and all(type(v) is int for v in values):
            return self.size(values, where)
        if type(first) is Jaxpr:
            return self.program(values)
        if type(first) is ShapedArray:
            return self.aval(values)
        if isinstance(first, tuple) and all(len(v) == len(first) for v in values):
            items = [self.value(v, where) for v in zip(*values, strict=True)]
            return type(first)(*items) if hasattr(first, "_fields") else tuple(items)
        if all(v is first or v == first for v in values) or callable(first):
            return first
        if type(first) is Constant and all(map(_same_array, values, values[1:])):
            return first
        raise _Differs(f"{where} depends on them")

    def literal(self, atoms: Sequence[Any], where: Any) -> Literal:
        first = atoms[0]
        values = [a.value for a in atoms]
        if all(v.tobytes() == values[0].tobytes() for v in values):
            return first
        if any(v != np.rint(v) for v in values):
            raise _Differs(f"{where} computes with a number that depends on them")
        found = self.size([int(v) for v in values], where)
        return SizeLiteral(first.value, first.aval, found)


def _same_array(a: Constant, b: Constant) -> bool:
    x, y = np.asarray(a.array), np.asarray(b.array)
    return x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes()


class SizeLiteral(Literal):
    """A number that is a size."""

    __slots__ = ("size",)

    def __init__(self, value: np.ndarray, aval: ShapedArray, size: Dim | int):
        super().__init__(value, aval)
        self.size = size
