"""Recurrent layers: RNN, GRU and LSTM, in both directions, as scans."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from funcgrad import lax, nn
from funcgrad import numpy as fnp
from funcgrad.errors import ExportError
from funcgrad.export.onnx.read.graph import Node

_ACTIVATIONS: dict[str, Callable] = {
    "relu": nn.relu, "tanh": fnp.tanh, "sigmoid": nn.sigmoid, "softsign": nn.soft_sign,
    "softplus": nn.softplus,
}  # fmt: skip


def _activations(node: Node, default: Sequence[str], directions: int) -> list[Callable]:
    names = node.get("activations") or list(default) * directions
    missing = [n for n in names if n.lower() not in _ACTIVATIONS]
    if missing or node.get("activation_alpha") or node.get("activation_beta"):
        raise ExportError(f"from_onnx: {node} has activations {names} with parameters")
    return [_ACTIVATIONS[n.lower()] for n in names]


def _clipped(node: Node, x: Any) -> Any:
    clip = node.get("clip")
    return x if clip is None else fnp.clip(x, -clip, clip)


def _directions(node: Node) -> list[bool]:
    """For each direction of the layer, whether it runs backwards."""
    kinds = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}
    return kinds[node.get("direction", "forward")]


def _layer(gates: int, states: int, default: Sequence[str], cell: Callable) -> Callable:
    """A layer of a cell(node, functions, x, states, parameters) → states, the first one its
    result."""

    def rule(
        node: Node, x: Any, w: Any, r: Any, b: Any = None, lengths: Any = None, *more: Any
    ) -> Any:
        in_front = bool(node.get("layout", 0))  # the batch is
        x = fnp.swapaxes(x, 0, 1) if in_front else x
        size = r.shape[-1]
        batch = x.shape[1]
        ways = _directions(node)
        functions = _activations(node, default, len(ways))
        each = len(functions) // len(ways)
        given = [*more, None, None, None]
        starts, peepholes = given[:states], given[states] if states == 2 else None
        if in_front:
            starts = [None if s is None else fnp.swapaxes(s, 0, 1) for s in starts]
        b = fnp.zeros((len(ways), 2 * gates * size), x.dtype) if b is None else b
        ys, lasts = [], []
        for d, backwards in enumerate(ways):
            first = [fnp.zeros((batch, size), x.dtype) if s is None else s[d] for s in starts]
            parameters = w[d], r[d], b[d], None if peepholes is None else peepholes[d]
            chosen = functions[d * each : (d + 1) * each]
            y, last = _run(node, cell, chosen, x, first, parameters, lengths, backwards)
            ys.append(y)
            lasts.append(last)
        outs = [fnp.stack(ys, 1)]
        outs += [fnp.stack([last[i] for last in lasts], 0) for i in range(states)]
        if in_front:
            outs = [fnp.moveaxis(outs[0], 2, 0), *(fnp.swapaxes(s, 0, 1) for s in outs[1:])]
        return outs

    return rule


def _run(
    node: Node, cell: Callable, functions: Sequence[Callable], x: Any, first: Sequence[Any],
    parameters: tuple, lengths: Any, backwards: bool,
) -> tuple[Any, Sequence[Any]]:  # fmt: skip
    steps = fnp.arange(x.shape[0])

    def turn(states: Sequence[Any], element: tuple) -> tuple:
        i, now = element
        new = cell(node, functions, now, states, parameters)
        y = new[0]
        if lengths is not None:
            on = (i < lengths)[:, None]
            new = [fnp.where(on, n, s) for n, s in zip(new, states, strict=True)]
            y = fnp.where(on, y, 0)
        return new, y

    last, ys = lax.scan(turn, list(first), (steps, fnp.asarray(x)), reverse=backwards)
    return ys, last


def _rnn(node: Node, f: Sequence[Callable], x: Any, states: Any, parameters: tuple) -> list:
    w, r, b, _ = parameters
    bw, br = fnp.split(b, 2)
    return [f[0](_clipped(node, x @ w.T + states[0] @ r.T + bw + br))]


def _gru(node: Node, f: Sequence[Callable], x: Any, states: Any, parameters: tuple) -> list:
    w, r, b, _ = parameters
    (h,) = states
    wz, wr, wh = fnp.split(w, 3)
    rz, rr, rh = fnp.split(r, 3)
    bz, br, bh, cz, cr, ch = fnp.split(b, 6)
    z = f[0](_clipped(node, x @ wz.T + h @ rz.T + bz + cz))
    reset = f[0](_clipped(node, x @ wr.T + h @ rr.T + br + cr))
    if node.get("linear_before_reset", 0):
        inner = reset * (h @ rh.T + ch)
    else:
        inner = (reset * h) @ rh.T + ch
    new = f[1](_clipped(node, x @ wh.T + bh + inner))
    return [(1 - z) * new + z * h]


def _lstm(node: Node, f: Sequence[Callable], x: Any, states: Any, parameters: tuple) -> list:
    w, r, b, peepholes = parameters
    h, c = states
    bw, br = fnp.split(b, 2)
    i, o, forget, cell = fnp.split(x @ w.T + h @ r.T + bw + br, 4, axis=-1)
    pi, po, pf = (0, 0, 0) if peepholes is None else fnp.split(peepholes, 3)
    i = f[0](_clipped(node, i + pi * c))
    forget = 1 - i if node.get("input_forget", 0) else f[0](_clipped(node, forget + pf * c))
    new = forget * c + i * f[1](_clipped(node, cell))
    o = f[0](_clipped(node, o + po * new))
    return [o * f[2](new), new]


RULES: dict[str, Callable] = {
    "GRU": _layer(3, 1, ["Sigmoid", "Tanh"], _gru),
    "LSTM": _layer(4, 2, ["Sigmoid", "Tanh", "Tanh"], _lstm),
    "RNN": _layer(1, 1, ["Tanh"], _rnn),
}
