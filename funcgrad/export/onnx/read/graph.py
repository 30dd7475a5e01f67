"""Graphs that run node by node, on arrays or while they are traced.

Values that don't depend on the model's inputs or parameters are NumPy arrays, and nodes of those
alone are computed at once, also inside `jit`: shapes and axes, which ONNX computes as tensors, so
are known where they are needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from funcgrad.core.array import Array
from funcgrad.core.settings import ensure_compile_time_eval
from funcgrad.errors import ExportError, FuncgradError

Rule = Callable[..., Any]


class Node:
    """One node: its operator, attributes, and the names of what it reads and makes.

    opset: the version of the operators that the model was written for
    """

    def __init__(self, proto: Any, attrs: dict[str, Any], opset: int):
        self.op = proto.op_type
        self.domain = proto.domain
        self.name = proto.name
        self.ins = list(proto.input)
        self.outs = list(proto.output)
        self.attrs = attrs
        self.opset = opset

    def get(self, name: str, default: Any = None) -> Any:
        """An attribute."""
        return self.attrs.get(name, default)

    def __str__(self) -> str:
        return f"{self.op} {self.name!r}" if self.name else f"{self.op} of {self.outs}"


class GraphProgram:
    """A graph's nodes in order, with its initializers, and the rules that run them."""

    def __init__(
        self, nodes: Sequence[Node], constants: Mapping[str, np.ndarray], ins: Sequence[str],
        outs: Sequence[str], rules: Mapping[str, Rule],
    ):  # fmt: skip
        self.nodes = nodes
        self.constants = constants
        self.ins = list(ins)
        self.outs = list(outs)
        self.rules = rules

    def run(self, values: Sequence[Any], outer: Mapping[str, Any]) -> list[Any]:
        """The results for these inputs; `outer` has what graphs around this one hold."""
        env: dict[str, Any] = {**outer, **self.constants}
        env.update(zip(self.ins, values, strict=True))
        for node in self.nodes:
            ins = [env[name] if name else None for name in node.ins]
            outs = self.node(node, ins, env)
            env.update((name, x) for name, x in zip(node.outs, outs, strict=False) if name)
        return [env[name] for name in self.outs]

    def node(self, node: Node, ins: Sequence[Any], env: Mapping[str, Any]) -> Sequence[Any]:
        """The results of a node."""
        rule = self.rules[node.op]
        more = {"env": env} if getattr(rule, "reads_outer", False) else {}
        known = not more and all(x is None or isinstance(x, np.ndarray) for x in ins)
        try:
            if not known:
                outs = rule(node, *ins, **more)
            else:
                with ensure_compile_time_eval(), np.errstate(all="ignore"):
                    outs = rule(node, *ins)
                    outs = _numpy(outs) if isinstance(outs, list | tuple) else _numpy([outs])
        except ExportError:
            raise
        except (FuncgradError, IndexError, KeyError, TypeError, ValueError) as e:
            shapes = [None if x is None else f"{x.dtype}{list(np.shape(x))}" for x in ins]
            raise ExportError(f"from_onnx: the node {node} of operands {shapes}: {e}") from e
        return outs if isinstance(outs, list | tuple) else [outs]


def _numpy(outs: Sequence[Any]) -> list[Any]:
    return [np.asarray(x) if isinstance(x, Array) else x for x in outs]


def known(x: Any, what: str) -> np.ndarray:
    """A value that must be known while the model is traced."""
    if not isinstance(x, np.ndarray):
        if isinstance(x, Array):
            return np.asarray(x)
        raise ExportError(
            f"from_onnx: {what} depends on the model's inputs; shapes and axes must be known while "
            "the function is traced"
        )
    return x


def integers(x: Any, what: str) -> list[int]:
    """A list of integers that must be known while the model is traced."""
    return [int(v) for v in np.atleast_1d(known(x, what))]
