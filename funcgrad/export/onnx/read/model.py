"""`from_onnx`: a model file as a function over its parameters."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from funcgrad import dtypes
from funcgrad.core.array import Array
from funcgrad.core.display.tracebacks import boundary
from funcgrad.errors import ExportError, FormatError
from funcgrad.export.onnx.kernels import ONNX_NAMES
from funcgrad.export.onnx.model import onnx_package
from funcgrad.export.onnx.read import (
    control,
    elementwise,
    images,
    indexing,
    layers,
    losses,
    quantized,
    recurrent,
    reductions,
    resize,
    shape,
    signal,
)
from funcgrad.export.onnx.read.graph import GraphProgram, Node, Rule

RULES: dict[str, Rule] = {
    **elementwise.RULES,
    **shape.RULES,
    **reductions.RULES,
    **indexing.RULES,
    **layers.RULES,
    **recurrent.RULES,
    **losses.RULES,
    **control.RULES,
    **quantized.RULES,
    **resize.RULES,
    **images.RULES,
    **signal.RULES,
}
OLDEST = 13
_DOMAINS = ("", "ai.onnx")


@boundary
def from_onnx(path: str | os.PathLike) -> tuple[Callable, dict[str, Array]]:
    """A model as `(f, params)`: `f(params, *inputs)` computes what the model does.

    The floats among its weights are `params`, by name: what `grad` differentiates and an optimizer
    changes. Integers (shapes, axes, indices), and factors of sizes, are part of the function.
    Inputs are in the model's order, or given by name; f gives an array, or a tuple where the model
    has several outputs. It is a function as any other: it differentiates, batches and compiles.
    `f.signature` lists its inputs' names, dtypes and shapes (-1: any size). Operators of opset 13
    and later are read, those in `funcgrad.export.onnx.read.model.RULES`.

    Raises FormatError for what is no model, ExportError where it needs what can't be read.

    >>> import os, tempfile
    >>> from funcgrad.export import from_onnx, to_onnx
    >>> path = os.path.join(tempfile.mkdtemp(), "double.onnx")
    >>> to_onnx(lambda w, x: w * x, path, fnp.array(2.0), fnp.ones(3), stored_argnums=0)
    >>> f, params = from_onnx(path)
    >>> params, f(params, fnp.array([1.0, 2.0, 3.0]))
    ({'w': Array(2., dtype=float32)}, Array([2., 4., 6.], dtype=float32))
    """
    onnx = onnx_package()
    proto = loaded(onnx, Path(path))
    opset = max((o.version for o in proto.opset_import if o.domain in _DOMAINS), default=0)
    if opset < OLDEST:
        raise ExportError(
            f"from_onnx: {path} is of opset {opset}, from {OLDEST} on they are read; "
            "onnx.version_converter brings it there"
        )
    functions = {(f.domain, f.name): f for f in proto.functions}
    missing = _missing(proto.graph, functions)
    if missing:
        raise ExportError(f"from_onnx: {path} has operators that aren't read: {sorted(missing)}")
    program = read_graph(onnx, proto.graph, opset, Path(path).parent)
    fixed = _factors(proto.graph)
    params = {
        name: Array(value)
        for name, value in program.constants.items()
        if _is_parameter(value) and name not in fixed
    }
    program.constants = {k: v for k, v in program.constants.items() if k not in params}
    names = [i.name for i in proto.graph.input if i.name in program.ins]

    def model(params: Mapping[str, Any], *inputs: Any, **by_name: Any) -> Any:
        given = dict(zip(names, inputs, strict=False))
        if len(inputs) > len(names) or set(by_name) & set(given):
            raise ExportError(f"{Path(path).name}: its inputs are {names}, each is given once")
        given |= by_name
        if set(given) != set(names):
            raise ExportError(f"{Path(path).name}: needs the inputs {names}, got {list(given)}")
        values = [_as_array(given[name]) for name in names]
        outs = program.run(values, {k: _as_array(v) for k, v in params.items()})
        outs = [Array(x) if isinstance(x, np.ndarray) else x for x in outs]
        return outs[0] if len(outs) == 1 else tuple(outs)

    types = [_typed(onnx, i) for i in proto.graph.input if i.name in names]
    model.signature = types  # type: ignore[attr-defined]
    model.__name__ = Path(path).stem
    model.__doc__ = f"The model {Path(path).name}: f(params, {', '.join(names)})."
    return model, params


def _typed(onnx: Any, info: Any) -> tuple[str, np.dtype, tuple[int, ...]]:
    """An input's name, dtype, and shape, -1 where a size is any."""
    kind = info.type.tensor_type
    name = _type_name(onnx, kind.elem_type)
    if name not in TYPES:
        raise ExportError(f"from_onnx: the input {info.name} is of type {name}")
    shape = tuple(d.dim_value if d.HasField("dim_value") else -1 for d in kind.shape.dim)
    return info.name, TYPES[name], shape


def _as_array(x: Any) -> Any:
    return x if hasattr(x, "aval") or x is None else Array(np.asarray(x))


def _is_parameter(value: Any) -> bool:
    return isinstance(value, np.ndarray) and dtypes.is_inexact(value.dtype)


def loaded(onnx: Any, path: Path) -> Any:
    """The message in a file, checked; FormatError if it is none."""
    if not path.exists():
        raise FileNotFoundError(f"from_onnx: there is no file {path}")
    decode = onnx.load_model_from_string
    try:
        proto = decode(path.read_bytes())
        onnx.checker.check_model(str(path) if proto.ByteSize() > 1 << 30 else proto)
    except (ValueError, TypeError, onnx.checker.ValidationError) as e:
        raise FormatError(f"from_onnx: {path} is no valid ONNX model: {e}") from None
    except Exception as e:  # protobuf's DecodeError is a class of whichever protobuf there is
        if type(e).__name__ != "DecodeError":
            raise
        raise FormatError(f"from_onnx: {path} is no ONNX model: {e}") from None
    return proto


def _factors(graph: Any) -> set[str]:
    """Names of floats that sizes follow from: regions and factors of Resize."""
    found = {name for n in graph.node if n.op_type == "Resize" for name in n.input[1:]}
    return found.union(*(_factors(a.g) for n in graph.node for a in n.attribute if a.HasField("g")))


def _missing(graph: Any, functions: Mapping) -> set[str]:
    found = set()
    for node in graph.node:
        if node.domain not in _DOMAINS:
            found.add(f"{node.domain}.{node.op_type}")
        elif node.op_type not in RULES:
            found.add(node.op_type)
        for attribute in node.attribute:
            if attribute.HasField("g"):
                found |= _missing(attribute.g, functions)
    return found


def read_graph(onnx: Any, graph: Any, opset: int, folder: Path) -> GraphProgram:
    """A graph's message as a program, with graphs in attributes as programs, too."""
    constants = {t.name: array_of(onnx, t, folder) for t in graph.initializer}
    for sparse in graph.sparse_initializer:
        raise ExportError(f"from_onnx: the initializer {sparse.values.name} is sparse")
    nodes = []
    for proto in graph.node:
        attrs = {a.name: _attribute(onnx, a, opset, folder) for a in proto.attribute}
        nodes.append(Node(proto, attrs, opset))
    ins = [i.name for i in graph.input if i.name not in constants]
    return GraphProgram(nodes, constants, ins, [o.name for o in graph.output], RULES)


def _attribute(onnx: Any, attribute: Any, opset: int, folder: Path) -> Any:
    kinds = onnx.AttributeProto
    if attribute.type == kinds.GRAPH:
        return read_graph(onnx, attribute.g, opset, folder)
    if attribute.type == kinds.TENSOR:
        return array_of(onnx, attribute.t, folder)
    value = onnx.helper.get_attribute_value(attribute)
    if attribute.type == kinds.STRING:
        return value.decode()
    if attribute.type == kinds.STRINGS:
        return [v.decode() for v in value]
    return list(value) if attribute.type in (kinds.INTS, kinds.FLOATS) else value


TYPES = {name: dtype for dtype, name in ONNX_NAMES.items()}


def _type_name(onnx: Any, number: int) -> str:
    """The name of an element type's number."""
    try:
        return onnx.TensorProto.DataType.Name(number)
    except ValueError:
        raise FormatError(f"from_onnx: the element type {number} is none of ONNX's") from None


def array_of(onnx: Any, tensor: Any, folder: Path) -> np.ndarray:
    """The array of a tensor's message; its bytes may be in a file beside the model."""
    name = _type_name(onnx, tensor.data_type)
    if name not in TYPES and not name.startswith("COMPLEX"):
        raise ExportError(f"from_onnx: the tensor {tensor.name} is of type {name}")
    try:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            onnx.external_data_helper.load_external_data_for_tensor(tensor, str(folder))
        value = onnx.numpy_helper.to_array(tensor)
    except (ValueError, OSError, onnx.checker.ValidationError) as e:
        raise FormatError(f"from_onnx: the tensor {tensor.name}: {e}") from None
    return value if value.flags.writeable is False else np.asarray(value)
