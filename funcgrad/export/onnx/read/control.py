"""Branches and loops: of values that are known as Python's, else as `cond`, `while` and `scan`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from funcgrad import lax
from funcgrad import numpy as fnp
from funcgrad.core.array import Array
from funcgrad.errors import ExportError
from funcgrad.export.onnx.read.graph import GraphProgram, Node


def _outer(rule: Callable) -> Callable:
    rule.reads_outer = True  # type: ignore[attr-defined]
    return rule


def _arrays(values: Sequence[Any]) -> list[Any]:
    return [Array(x) if isinstance(x, np.ndarray) else x for x in values]


def _is_known(x: Any) -> bool:
    return isinstance(x, np.ndarray | Array)


@_outer
def _if(node: Node, condition: Any, env: Mapping[str, Any]) -> Any:
    then, other = node.get("then_branch"), node.get("else_branch")
    if _is_known(condition):
        return (then if np.asarray(condition).item() else other).run([], env)
    return list(
        lax.cond(
            fnp.reshape(condition, ()),
            lambda: _arrays(then.run([], env)),
            lambda: _arrays(other.run([], env)),
        )
    )


@_outer
def _loop(node: Node, turns: Any, go: Any, *carried: Any, env: Mapping[str, Any]) -> Any:
    body: GraphProgram = node.get("body")
    n = len(carried)
    if len(body.outs) > n + 1:
        return _stacking_loop(body, turns, go, carried, env)
    most = None if turns is None else fnp.reshape(fnp.asarray(turns), ())
    start = fnp.asarray(True) if go is None else fnp.reshape(fnp.asarray(go), ())

    def more(state: Any) -> Any:
        i, on, *_ = state
        return on if most is None else on & (i < most)

    def turn(state: Any) -> Any:
        i, on, *values = state
        on, *values = _arrays(body.run([i, on, *values], env))
        return (i + 1, fnp.reshape(on, ()), *values)

    first = (fnp.asarray(np.int64(0)), start, *_arrays(carried))
    return list(lax.while_loop(more, turn, first)[2:])


def _stacking_loop(
    body: GraphProgram, turns: Any, go: Any, carried: Sequence[Any], env: Mapping[str, Any]
) -> list[Any]:
    """A loop whose turns leave something, so that their number must be known."""
    n, values = len(carried), list(carried)
    left: list[list[Any]] = []
    on: Any = np.asarray(True) if go is None else go
    i = 0
    if turns is not None and not _is_known(turns):
        raise ExportError(
            "from_onnx: a Loop whose turns' results are stacked has a number of turns that depends "
            "on the model's inputs"
        )
    while turns is None or i < int(np.asarray(turns).reshape(())):
        if not _is_known(on):
            raise ExportError(
                "from_onnx: a Loop whose turns' results are stacked ends by a condition that "
                "depends on the model's inputs"
            )
        if not np.asarray(on).item():
            break
        on, *outs = body.run([np.asarray(i, np.int64), on, *values], env)
        values, left = outs[:n], [*left, outs[n:]]
        i += 1
    stacked = [fnp.stack(list(column)) for column in zip(*left, strict=True)]
    return [*values, *stacked]


@_outer
def _scan(node: Node, *operands: Any, env: Mapping[str, Any]) -> Any:
    body: GraphProgram = node.get("body")
    m = node.get("num_scan_inputs")
    n = len(operands) - m
    carried, xs = _arrays(operands[:n]), _arrays(operands[n:])
    ys = len(body.outs) - n
    turned_in = node.get("scan_input_directions") or [0] * m
    turned_out = node.get("scan_output_directions") or [0] * ys
    axes_in = node.get("scan_input_axes") or [0] * m
    axes_out = node.get("scan_output_axes") or [0] * ys
    xs = [fnp.moveaxis(x, a, 0) for x, a in zip(xs, axes_in, strict=True)]
    xs = [fnp.flip(x, 0) if t else x for x, t in zip(xs, turned_in, strict=True)]

    def turn(carry: Any, elements: Any) -> Any:
        outs = _arrays(body.run([*carry, *elements], env))
        return outs[:n], outs[n:]

    carried, stacked = lax.scan(turn, carried, xs)
    stacked = [fnp.flip(y, 0) if t else y for y, t in zip(stacked, turned_out, strict=True)]
    return [*carried, *(fnp.moveaxis(y, 0, a) for y, a in zip(stacked, axes_out, strict=True))]


RULES: dict[str, Callable] = {"If": _if, "Loop": _loop, "Scan": _scan}
