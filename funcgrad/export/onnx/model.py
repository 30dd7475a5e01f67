"""`to_onnx`: a function's program, traced and written as a model file."""

from __future__ import annotations

import inspect
import operator
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np

from funcgrad import tree
from funcgrad.core.closed import ClosedJaxpr
from funcgrad.core.display.tracebacks import boundary
from funcgrad.core.process import fork
from funcgrad.core.shapes import ShapeDtypeStruct, SymbolicSize
from funcgrad.errors import ExportError
from funcgrad.export.exported import Exported
from funcgrad.export.onnx.dims import Dim
from funcgrad.export.onnx.dynamic import traced_at_sizes
from funcgrad.export.onnx.graph import Graph, Tensor, Untranslatable
from funcgrad.export.onnx.kernels import held
from funcgrad.export.onnx.lowered import lowered
from funcgrad.export.onnx.rules.attention import OPSET
from funcgrad.export.onnx.store import stored, tensor
from funcgrad.export.onnx.translate import Translator
from funcgrad.transforms.arguments import name_of
from funcgrad.transforms.jit.make_jaxpr import make_jaxpr

# The IR version that first had an opset, as old runtimes refuse newer files.
IR_VERSIONS = {18: 8, 19: 9, 20: 9, 21: 10, 22: 10, 23: 11, 24: 11, 25: 12}


def onnx_package() -> Any:
    """The package onnx, or an error that says how to get it."""
    try:
        fork.import_module("onnx.numpy_helper")
        return fork.import_module("onnx")
    except ImportError as e:
        raise ImportError(
            f"ONNX models need the package onnx: pip install 'funcgrad[onnx]' ({e})"
        ) from None


@boundary
def to_onnx(
    fun: Callable | Exported,
    path: str | os.PathLike,
    *args: Any,
    opset: int = 21,
    dynamic: Mapping[str, Any] | None = None,
    stored_argnums: int | Sequence[int] = (),
    attention: bool = False,
) -> None:
    """Write `fun(*args)` as an ONNX model; of an `Exported`, for the types it was exported for.

    args: arrays, or `ShapeDtypeStruct`s in their place, in pytrees. The leaves are the model's
        inputs, named by their paths ("x", "params.layers.0.w"); results are "output", or
        "output.loss", … Complex arrays have an axis of size 2 more, real and imaginary part.
    stored_argnums: positional arguments whose arrays become part of the model, such as parameters
    dynamic: axes of any size, by name: {"batch": {"x": 0}} says that axis 0 of the input x is, or
        {"batch": {"x": 0, "y": 0}} of both. Sizes that follow from these are computed.
    opset: the version of the operators, 18 to 25; the lowest that does is what most runtimes read
    attention: write attention as one node (opset 23), not as the products that it is made of

    Weights beyond 2 GB are beside the model, in `path` + ".data". Raises ExportError, before
    anything is written, with the operations that have no translation and the lines that they stand
    in, or if the program depends on the size of a dynamic axis in a way that it can't express.

    >>> import os, tempfile
    >>> from funcgrad.export import to_onnx
    >>> weights = {"w": fnp.ones((3, 2)), "b": fnp.zeros(2)}
    >>> def layer(params, x):
    ...     return fnp.tanh(x @ params["w"] + params["b"])
    >>> path = os.path.join(tempfile.mkdtemp(), "layer.onnx")
    >>> to_onnx(layer, path, weights, fnp.ones((4, 3)), stored_argnums=0, dynamic={"n": {"x": 0}})
    >>> os.path.exists(path)
    True
    """
    onnx = onnx_package()
    if opset not in IR_VERSIONS:
        raise ExportError(
            f"to_onnx: opset must be from {min(IR_VERSIONS)} to {max(IR_VERSIONS)}, got {opset}"
        )
    if attention and opset < OPSET:
        raise ExportError(f"to_onnx: attention=True needs opset {OPSET} or later, got {opset}")
    if isinstance(fun, Exported):
        fun, args = _function_of(fun, args)
    if not callable(fun):
        raise ExportError(f"to_onnx takes a function, or an Exported, got {fun!r}")
    what = name_of(fun)
    kept = _positions(stored_argnums, len(args))
    if dynamic:
        closed, out_tree = traced_at_sizes(fun, args, kept, dynamic, attention)
    else:
        traced, out_tree = make_jaxpr(fun, return_shape=True)(*args)
        closed = ClosedJaxpr(lowered(traced.jaxpr, attention), traced.consts)
    values = _stored_values(args, kept, closed)
    names = input_names(closed)
    outputs = output_names(out_tree)
    model = written(onnx, closed, names, outputs, values, what, opset)
    stored(onnx, model, Path(path))


def _positions(stored_argnums: Any, count: int) -> tuple[int, ...]:
    """`stored_argnums` as Python's integers, NumPy's being ones, too."""
    given = stored_argnums if isinstance(stored_argnums, Iterable) else (stored_argnums,)
    kept = []
    for i in given:
        place = operator.index(i) if isinstance(i, Integral) else -1
        if not 0 <= place < count:
            raise ExportError(f"to_onnx: stored_argnums {i!r} is none of the {count} arguments")
        kept.append(place)
    return tuple(kept)


def _function_of(exported: Exported, args: tuple) -> tuple[Callable, tuple]:
    """The function of an `Exported`, and arguments: those given, else of its types."""
    if not args:
        if any(isinstance(n, SymbolicSize) for a in exported.in_avals for n in a.shape):
            raise ExportError(
                f"to_onnx: {exported.fun_name} was exported with symbolic sizes: give arguments, "
                "and axes of any size by dynamic="
            )
        structs = [ShapeDtypeStruct(a.shape, a.dtype) for a in exported.in_avals]
        args, kwargs = exported.in_tree.unflatten(structs)
        if kwargs:
            raise ExportError(f"to_onnx: {exported.fun_name} has named arguments: {[*kwargs]}")

    def fun(*given: Any) -> Any:
        return exported.call(*given)

    fun.__name__ = exported.fun_name
    names = list(dict.fromkeys(re.split(r"[.\[]", name)[0] for name in exported.arg_names))
    if len(names) == len(args):  # each argument has leaves, by which its name is known
        named = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY) for name in names]
        fun.__signature__ = inspect.Signature(named)  # type: ignore[attr-defined]
    return fun, args


def _stored_values(args: Sequence[Any], kept: Sequence[int], closed: ClosedJaxpr) -> dict:
    """The values of inputs that become part of the model, by their numbers among the inputs."""
    values: dict[int, np.ndarray] = {}
    place = 0
    for i, arg in enumerate(args):
        for path, leaf in tree.flatten_with_path(arg)[0]:
            if i in kept:
                if not hasattr(leaf, "__array__") and not isinstance(leaf, bool | int | float):
                    raise ExportError(
                        f"to_onnx: stored_argnums: argument {i}{tree.keystr(path)} must be an "
                        f"array to be stored, got {leaf!r}"
                    )
                values[place] = np.asarray(leaf, closed.in_avals[place].dtype)
            place += 1
    return values


def input_names(closed: ClosedJaxpr) -> list[str]:
    """Names of a program's inputs, from their paths: "params['w'][0]" is "params.w.0"."""
    n = len(closed.consts)
    names = closed.jaxpr.names or [f"input_{i}" for i in range(len(closed.jaxpr.ins))]
    return [f"captured_{i}" for i in range(n)] + [dotted(name) for name in names[n:]]


def output_names(out_tree: Any) -> list[str]:
    """Names of results, from their paths in the tree."""
    paths = [tree.keystr(path) for path, _ in tree.flatten_with_path(out_tree)[0]]
    return [dotted(f"output{path}") for path in paths]


def dotted(name: str) -> str:
    """A key path with dots alone.

    >>> dotted("params['layers'][0].w")
    'params.layers.0.w'
    """
    return re.sub(r"\[['\"]?(.*?)['\"]?\]", r".\1", name).strip(".") or "value"


def written(
    onnx: Any, closed: ClosedJaxpr, names: Sequence[str], outputs: Sequence[str],
    values: Mapping[int, np.ndarray], what: str, opset: int,
) -> Any:  # fmt: skip
    """A program as a pair of a model without initializers, and these by name.

    names: of all inputs, captured values among them; values: of inputs that are stored, by number
    """
    jaxpr = closed.jaxpr
    g, translator = Graph(onnx, opset=opset), Translator()
    n = len(closed.consts)
    known: dict[int, Any] = {i: np.asarray(c) for i, c in enumerate(closed.consts)}
    known |= {n + i: v for i, v in values.items()}
    ins, infos = [], []
    for i, (var, name) in enumerate(zip(jaxpr.ins, names, strict=True)):
        aval = var.aval
        if i in known:
            value = _as_pairs(np.asarray(known[i]))
            ins.append(_received(g, g.constant(value, name=name), aval.dtype))
            continue
        unique = g.unique(name)
        for axis, size in enumerate(aval.shape):
            if isinstance(size, Dim) and isinstance(size.formula, str):
                g.named_sizes.setdefault(size.formula, (unique, axis))
        try:
            infos.append(g.info(unique, aval.dtype, aval.shape))
        except Untranslatable as e:
            raise ExportError(f"to_onnx: input {name} of {what}: {e}") from None
        ins.append(_received(g, Tensor(g, unique, aval.dtype, aval.shape), aval.dtype))
    for name in outputs:
        g.root.taken.setdefault(name, 1)
    found = translator.program(g, jaxpr, ins)
    translator.check(what)
    outs = []
    for x, atom, name in zip(found, jaxpr.outs, outputs, strict=True):
        x = g.cast(x, atom.aval.dtype, saturate=False)
        g.nodes.append(onnx.helper.make_node("Identity", [x.name], [name], name=f"{name}_"))
        outs.append(g.info(name, atom.aval.dtype, atom.aval.shape))
    # Numbers of the program are nodes, so that who reads the model takes none for a weight.
    constants = [
        onnx.helper.make_node("Constant", [], [name], name=name, value=tensor(onnx, name, array))
        for name, array in g.constants.items()
    ]
    graph = onnx.helper.make_graph(_pruned([*constants, *g.nodes], outputs), what, infos, outs)
    model = onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", opset)], producer_name="funcgrad",
        ir_version=IR_VERSIONS[opset],
    )  # fmt: skip
    used = {name for node in _all_nodes(graph) for name in node.input}
    return model, {k: v for k, v in g.initializers.items() if k in used}


def _as_pairs(value: np.ndarray) -> np.ndarray:
    return np.stack([value.real, value.imag], -1) if value.dtype.kind == "c" else value


def _received(g: Graph, x: Tensor, dtype: np.dtype) -> Tensor:
    """An input in the type that its values are held in."""
    return g.cast(x, held(dtype))


def _all_nodes(graph: Any) -> list[Any]:
    found = []
    for node in graph.node:
        found.append(node)
        for attribute in node.attribute:
            if attribute.HasField("g"):
                found += _all_nodes(attribute.g)
    # What an inner graph gives is a use, too.
    return found


def _pruned(nodes: Sequence[Any], outputs: Sequence[str]) -> list[Any]:
    """Nodes without those whose results nothing reads."""
    needed, kept = set(outputs), []
    for node in reversed(nodes):
        if any(name in needed for name in node.output):
            kept.append(node)
            needed.update(node.input)
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    for inner in _all_nodes(attribute.g):
                        needed.update(inner.input)
    return kept[::-1]
