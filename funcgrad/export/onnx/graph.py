"""An ONNX graph being written: values with types and shapes, nodes, constants, graphs within.

A value that was broadcast stays small until something asks for all of it, as ONNX's elementwise ops
broadcast by themselves. Constants and computed sizes stand in the outermost graph, where all graphs
within see them, each once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from funcgrad.core.ir import Eqn
from funcgrad.export.onnx.dims import Dim, Formula, is_static
from funcgrad.export.onnx.kernels import BOOL, HELD, I8, ONNX_NAMES, carrier

Shape = tuple[int, ...]


class Untranslatable(Exception):
    """What ONNX can't express of an operation, for the reason given."""


class Tensor:
    """A value of a graph. `small`: one of the same rank that is broadcast to this shape.

    constant: its elements, where they are a number of the program; stored: where they are a weight.
    origin: the equation that made it, and that one's operands.
    """

    __slots__ = ("_name", "constant", "dtype", "graph", "origin", "shape", "small", "stored")

    def __init__(
        self,
        graph: Graph,
        name: str | None,
        dtype: np.dtype,
        shape: Shape,
        small: Tensor | None = None,
        constant: np.ndarray | None = None,
    ):
        self.graph = graph
        self._name = name
        self.dtype = dtype
        self.shape = tuple(shape)
        self.small = small
        self.constant = constant
        self.stored: np.ndarray | None = None
        self.origin: tuple[Eqn, Sequence[Tensor]] | None = None

    @property
    def name(self) -> str:
        """The name of the whole value; what was broadcast is written out now."""
        if self._name is None:
            assert self.small is not None
            graph = self.graph
            # Written where it was broadcast: graphs within see it, the outer ones must not.
            if 0 in map(int, self.shape):
                made = graph.constant(np.zeros(list(map(int, self.shape)), self.dtype))
            else:
                made = graph.op("Expand", self.small, graph.sizes(self.shape), shape=self.shape)
            self._name = made.name
        return self._name

    @property
    def rank(self) -> int:
        """The number of axes."""
        return len(self.shape)


class Graph:
    """Nodes in order; `outer` is the graph that this one is in."""

    def __init__(self, onnx: Any, outer: Graph | None = None, opset: int = 21):
        self.onnx = onnx
        self.opset: int = opset if outer is None else outer.opset
        self.outer = outer
        self.root: Graph = self if outer is None else outer.root
        self.nodes: list[Any] = []
        self.scope: str = "" if outer is None else outer.scope
        if outer is None:
            self.initializers: dict[str, np.ndarray] = {}  # the weights
            self.constants: dict[str, np.ndarray] = {}  # the program's own numbers
            self.known: dict[Any, Tensor] = {}
            self.taken: dict[str, int] = {}
            self.named_sizes: dict[str, tuple[str, int]] = {}

    # ---- names

    def unique(self, wanted: str) -> str:
        """A name that nothing else has."""
        taken = self.root.taken
        n = taken.get(wanted, 0)
        taken[wanted] = n + 1
        return wanted if not n else self.unique(f"{wanted}_{n}")

    # ---- constants

    def constant(self, value: Any, dtype: Any = None, name: str = "") -> Tensor:
        """A constant; equal small ones are one. `name`: it is kept under this name."""
        array = np.asarray(value, dtype)
        if not array.flags.c_contiguous:  # (a call would give one of rank 0 an axis)
            array = np.ascontiguousarray(array)
        key = (array.dtype, array.shape, array.tobytes()) if array.nbytes < 4096 else None
        if key and not name and key in self.root.known:
            return self.root.known[key]
        chosen = self.unique(name or "constant")
        (self.root.initializers if name else self.root.constants)[chosen] = array
        # What has a name is kept as it is: nothing is computed from it beforehand.
        known = None if name else array
        made = Tensor(self.root, chosen, array.dtype, array.shape, constant=known)
        if name:
            made.stored = array
        elif key:
            self.root.known[key] = made
        return made

    def full(self, shape: Shape, value: Any, dtype: np.dtype) -> Tensor:
        """An array of one number."""
        return self.broadcast(self.constant(value, dtype), shape, ())

    def sizes(self, shape: Sequence[int]) -> Tensor:
        """Sizes as a vector of int64: a constant, or computed where some are."""
        if is_static(shape):
            return self.constant([int(n) for n in shape], I8)
        root = self.root
        key = ("sizes", tuple(_size_key(n) for n in shape))
        if key not in root.known:
            parts = [root.size(n) for n in shape]
            made = parts[0] if len(parts) == 1 else root.op(
                "Concat", *parts, axis=0, shape=(len(parts),), dtype=I8
            )  # fmt: skip
            root.known[key] = made
        return root.known[key]

    def size(self, n: int) -> Tensor:
        """One size, as a vector of one."""
        return self.root._formula(n.formula if isinstance(n, Dim) else int(n))

    def _formula(self, formula: Formula) -> Tensor:
        if isinstance(formula, int):
            return self.constant([formula], I8)
        key = ("formula", formula)
        if key not in self.known:
            if isinstance(formula, str):
                source, axis = self.named_sizes[formula]
                made = self.node("Shape", [source], {"start": axis, "end": axis + 1})
                self.known[key] = Tensor(self, made[0], I8, (1,))
            else:
                sign, a, b = formula
                kind = {"+": "Add", "-": "Sub", "*": "Mul", "/": "Div"}[sign]
                self.known[key] = self.op(kind, self._formula(a), self._formula(b))
        return self.known[key]

    # ---- nodes

    def node(
        self, kind: str, ins: Sequence[str], attrs: dict | None = None, outs: int = 1
    ) -> list[str]:
        """Write a node; the names of its results."""
        base = f"{self.scope}{kind.lower()}"
        names = [self.unique(base) for _ in range(outs)]
        self.nodes.append(
            self.onnx.helper.make_node(kind, list(ins), names, name=names[0], **(attrs or {}))
        )
        return names

    def op(
        self,
        kind: str,
        *ins: Tensor,
        shape: Shape | None = None,
        dtype: np.dtype | None = None,
        data: Sequence[int] | None = None,
        **attrs: Any,
    ) -> Tensor:
        """A node of one result, of the dtype of its data and the broadcast shape if nothing else is
        said.

        data: which operands have the type that kernels differ by (all, if not given); those that
        ONNX Runtime lacks are converted for it, and the result is converted back.
        """
        chosen = range(len(ins)) if data is None else data
        own = ins[chosen[0]].dtype
        wide = carrier(kind, own)
        if wide is None:
            raise Untranslatable(f"no kernel of {kind} takes {own}")
        if wide != own:
            ins = tuple(self.cast(x, wide) if i in chosen else x for i, x in enumerate(ins))
        (made,) = self.node(kind, [x.name for x in ins], attrs)
        shape = broadcast_shape([x.shape for x in ins]) if shape is None else shape
        if dtype is not None:
            return Tensor(self, made, dtype, shape)
        return self.cast(Tensor(self, made, wide, shape), own)

    def elementwise(self, kind: str, *ins: Tensor, **given: Any) -> Tensor:
        """A node of elementwise operands, read as small as they are where the result's shape is
        that of one of them."""
        shape = broadcast_shape([x.shape for x in ins])
        smalls = [x if x.small is None else x.small for x in ins]
        if broadcast_shape([x.shape for x in smalls]) == shape:
            ins = tuple(smalls)
            return self.op(kind, *ins, shape=shape, **given)
        # All of them are broadcast: so is the result.
        small = self.op(kind, *smalls, **given)
        return self.broadcast_small(small, shape)

    def cast(self, x: Tensor, dtype: np.dtype, saturate: bool = True) -> Tensor:
        """x as another type, by a conversion as C's."""
        if x.dtype == dtype:
            return x
        if x.constant is not None and x.constant.ndim == 0:
            with np.errstate(all="ignore"):
                return self.constant(x.constant.astype(dtype))
        if x._name is None and x.small is not None and dtype not in HELD:
            return self.broadcast_small(self.cast(x.small, dtype, saturate), x.shape)
        attrs = {"to": self.element_type(dtype)}
        if not saturate and dtype.name.startswith("float8"):
            attrs["saturate"] = 0
        return Tensor(self, self.node("Cast", [x.name], attrs)[0], dtype, x.shape)

    def element_type(self, dtype: np.dtype) -> int:
        """The number of a type in ONNX."""
        if dtype not in ONNX_NAMES:
            raise Untranslatable(f"ONNX has no element type {dtype}")
        return getattr(self.onnx.TensorProto, ONNX_NAMES[dtype])

    # ---- shapes

    def reshape(self, x: Tensor, shape: Shape) -> Tensor:
        """x with other axes."""
        if same_shape(x.shape, tuple(shape)):
            return x
        if x.constant is not None and is_static(shape) and x.constant.nbytes < 4096:
            return self.constant(x.constant.reshape([int(n) for n in shape]))
        # The only computed size needs no computing, where there are elements.
        unknown = [i for i, n in enumerate(shape) if isinstance(n, Dim)]
        if len(unknown) == 1 and all(int(n) for n in shape):
            target = self.constant(
                [-1 if i in unknown else int(n) for i, n in enumerate(shape)], I8
            )
        else:
            target = self.sizes(shape)
        attrs: dict[str, Any] = {"allowzero": 1} if 0 in map(int, shape) else {}
        return self.op("Reshape", x, target, shape=tuple(shape), data=[0], **attrs)

    def transpose(self, x: Tensor, order: Sequence[int]) -> Tensor:
        """x with its axes in another order."""
        order = [int(i) for i in order]
        if order == list(range(x.rank)):
            return x
        shape = tuple(x.shape[i] for i in order)
        if x._name is None and x.small is not None:
            return self.broadcast_small(self.transpose(x.small, order), shape)
        return self.op("Transpose", x, perm=order, shape=shape)

    def broadcast(self, x: Tensor, shape: Shape, axes: Sequence[int]) -> Tensor:
        """x with axis i as axis axes[i] of a larger shape."""
        small = x if x._name is not None or x.small is None else x.small
        thin = [1] * len(shape)
        for i, axis in enumerate(axes):
            thin[axis] = small.shape[i]
        return self.broadcast_small(self.reshape(small, tuple(thin)), tuple(shape))

    def broadcast_small(self, small: Tensor, shape: Shape) -> Tensor:
        """A value that is broadcast to a shape of its rank, not written out yet."""
        return small if small.shape == shape else Tensor(self, None, small.dtype, shape, small)

    def slice(
        self, x: Tensor, axis: int, start: int, stop: int, step: int = 1, count: int | None = None
    ) -> Tensor:
        """A part of an axis; sizes may be computed."""
        if step == 1 and start == 0 and stop == x.shape[axis] and _same(stop, x.shape[axis]):
            return x
        n = x.shape[axis]
        count = (stop - start + step - 1) // step if count is None else count
        shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
        if isinstance(stop, Dim) and _same(stop, n):
            stop = int(np.iinfo(np.int64).max)
        ends = [self.sizes([v]) for v in (start, stop, axis, step)]
        return self.op("Slice", x, *ends, shape=shape, data=[0])

    def pad(
        self, x: Tensor, pads: Sequence[tuple[int, int]], value: Tensor, shape: Shape
    ) -> Tensor:
        """x with a border of a value; pads are not negative."""
        if not any(int(n) for pair in pads for n in pair) and is_static(
            [n for p in pads for n in p]
        ):
            return x
        amounts = self.sizes([a for a, _ in pads] + [b for _, b in pads])
        return self.op("Pad", x, amounts, value, shape=shape, data=[0, 2])

    # ---- what is often wanted

    def where(self, condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """x where the condition holds, else y."""
        return self.elementwise("Where", condition, x, y, data=[1, 2])

    def compare(self, kind: str, x: Tensor, y: Tensor) -> Tensor:
        """A comparison."""
        return self.elementwise(kind, x, y, dtype=BOOL)

    def not_(self, x: Tensor) -> Tensor:
        """The negation of a bool."""
        return self.elementwise("Not", x)

    def reduce(self, kind: str, x: Tensor, axes: Sequence[int], keep: bool = False) -> Tensor:
        """A reduction along axes by the op of this name."""
        axes = sorted(int(a) for a in axes)
        shape = tuple(1 if i in axes else n for i, n in enumerate(x.shape) if keep or i not in axes)
        if not axes:
            return x
        return self.op(kind, x, self.constant(axes, I8), keepdims=int(keep), shape=shape, data=[0])

    def within(self, write: Callable[[Graph], None]) -> Graph:
        """A graph inside this one, written by a function."""
        inner = Graph(self.onnx, self)
        write(inner)
        return inner

    def proto(self, name: str, ins: Sequence[Any], outs: Sequence[Any]) -> Any:
        """The graph as a message, with these inputs and outputs (pairs of a name and a type)."""
        make = self.onnx.helper.make_graph
        return make(self.nodes, self.unique(name), list(ins), list(outs))

    def info(self, name: str, dtype: np.dtype, shape: Sequence[int] | None) -> Any:
        """What says of which type a value is."""
        sizes = None if shape is None else [
            str(n) if isinstance(n, Dim) else int(n) for n in shape
        ]  # fmt: skip
        return self.onnx.helper.make_tensor_value_info(name, self.element_type(dtype), sizes)

    def alias(self, x: Tensor) -> str:
        """A name of its own for a value that leaves the graph."""
        return self.node("Identity", [x.name])[0]


def _size_key(n: int) -> Any:
    return n.formula if isinstance(n, Dim) else int(n)


def _same(a: int, b: int) -> bool:
    return _size_key(a) == _size_key(b)


def same_shape(a: Shape, b: Shape) -> bool:
    """Whether shapes are equal, computed sizes by their formulas."""
    return len(a) == len(b) and all(map(_same, a, b))


def broadcast_shape(shapes: Sequence[Shape]) -> Shape:
    """The shape to which NumPy broadcasts."""
    rank = max(map(len, shapes), default=0)
    out: list[int] = [1] * rank
    for shape in shapes:
        for i, n in enumerate(shape, rank - len(shape)):
            if int(out[i]) == 1 or (isinstance(n, Dim) and int(n) != 1):
                out[i] = n
    return tuple(out)


def count(shape: Sequence[int]) -> int:
    """The number of elements of a shape."""
    return math.prod(int(n) for n in shape)
