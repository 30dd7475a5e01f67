"""Attention as one node, where it is asked for: opset 23 has it, and runtimes have kernels for it.

What a query may see is a mask, as runtimes disagree about `is_causal` where queries and keys differ
in number. A query that sees nothing gives 0 here, and NaN there.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from funcgrad.core.ir import Eqn
from funcgrad.export.onnx.graph import Graph, Tensor
from funcgrad.export.onnx.kernels import BOOL
from funcgrad.export.onnx.rules.structure import counted
from funcgrad.transforms.attention.attention import attention_p
from funcgrad.transforms.attention.operands import given_of

Ins = Sequence[Tensor]
OPSET = 23
TYPES = frozenset(map(np.dtype, ("f2", "f4")))  # that ONNX Runtime's kernel takes


def has_node(eqn: Eqn) -> bool:
    """Whether an equation is attention of types that the node takes."""
    return eqn.prim is attention_p and eqn.ins[0].aval.dtype in TYPES


def attention(g: Graph, eqn: Eqn, ins: Ins) -> list[Tensor]:
    """The node; the sums that gradients want (the second result) are not among its results."""
    q, k, v, *rest = ins
    heads = [g.transpose(x, (0, 2, 1, 3)) for x in (q, k, v)]
    weights = (q.shape[0], q.shape[2], q.shape[1], k.shape[1])
    seen = _seen(g, eqn, rest, weights)
    bias = given_of([a.aval for a in eqn.ins[3:]]).bias
    if bias is not None:
        added = next(x for x in rest if x.rank == 4 and x.dtype != BOOL)
        added = g.cast(added, q.dtype)
        least = g.constant(-np.inf, q.dtype)
        seen = added if seen is None else g.where(seen, added, least)
    more = [] if seen is None else [_over_pairs(g, seen, weights)]
    shape = heads[0].shape
    out = g.op("Attention", *heads, *more, scale=eqn.params["scale"], shape=shape, data=[0, 1, 2])
    if seen is not None:
        out = g.where(_any(g, more[0]), out, g.constant(0, q.dtype))
    stats = eqn.outs[1].aval
    return [g.transpose(out, (0, 2, 1, 3)), g.full(stats.shape, 0, stats.dtype)]


def _seen(g: Graph, eqn: Eqn, rest: Ins, weights: Sequence[int]) -> Tensor | None:
    """Which keys a query sees, as (batch, head, query, key), axes of size 1 where all are alike."""
    at = [
        g.reshape(counted(g, n, np.dtype("i4")), (1, 1, *((n, 1) if i == 0 else (1, n))))
        for i, n in enumerate(weights[2:])
    ]
    found = []
    before, after = eqn.params["before"], eqn.params["after"]
    if before is not None or after is not None:
        offset = g.elementwise("Sub", at[1], at[0])
        if before is not None:
            found.append(g.compare("GreaterOrEqual", offset, g.constant(-before, offset.dtype)))
        if after is not None:
            found.append(g.compare("LessOrEqual", offset, g.constant(after, offset.dtype)))
    lengths = [x for x in rest if x.rank != 4]
    for place, length in zip(at, lengths, strict=False):
        length = g.reshape(length, (weights[0], 1, 1, 1))
        found.append(g.compare("Less", place, length))
    found += [x for x in rest if x.rank == 4 and x.dtype == BOOL]
    total: Tensor | None = None
    for x in found:
        total = x if total is None else g.elementwise("And", total, x)
    return total


def _over_pairs(g: Graph, x: Tensor, weights: Sequence[int]) -> Tensor:
    """A mask for all queries and keys, as kernels want; other axes may stay of size 1."""
    return g.broadcast_small(x, (*x.shape[:2], *weights[2:]))


def _any(g: Graph, mask: Tensor) -> Tensor:
    """Whether a query sees any key."""
    if mask.dtype != BOOL:
        mask = g.compare("Greater", mask, g.constant(-np.inf, mask.dtype))
    return g.reduce("ReduceMax", mask, [3], keep=True)


RULES = {attention_p: attention}
