"""Products of sparse matrices with dense ones, those that don't need each other as one step.

The lookups in all embedding tables are such, and so are the sums of their rows' gradients. One step
shares the rows of all of them among threads (see `routines.csr`), and reads indices and bounds
where they lie in larger arrays. Factors that are all 1 are not read; rows of few bits and their
scales are read as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from funcgrad.backends.lower.primitives import lowered
from funcgrad.backends.rewrites.normalize import by_formula
from funcgrad.core.aval import ShapedArray
from funcgrad.core.dce import dce_eqns, has_effect
from funcgrad.core.ir import Atom, Eqn, Literal, Var
from funcgrad.core.views import in_order
from funcgrad.ops.base import broadcast_p
from funcgrad.ops.csr import NAN, csr_matmul_p
from funcgrad.ops.csr_codes import csr_matmul_codes_p
from funcgrad.ops.slicing import slice_p

FLOAT32, FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
INDICES = (np.dtype(np.int32), np.dtype(np.int64))
NARROW = tuple(map(np.dtype, (np.float32, ml_dtypes.bfloat16, np.float16, np.int8)))
PRODUCTS = csr_matmul_p, csr_matmul_codes_p
MOST = 1024  # columns of a product that is one of several


class Product(NamedTuple):
    """One of several products: the operands that it reads, by number, and where in them its own
    elements begin. data: -1 for factors that are all 1; nan: what is missing makes a row NaN;
    scales: of rows of some bits, -1 and 0 for others."""

    entries: int
    indices: int
    indices_at: int
    starts: int
    starts_at: int
    ends: int
    ends_at: int
    data: int
    data_at: int
    dense: int
    nan: bool
    scales: int
    bits: int


def _impl(xp: Any, *operands: Any, members: tuple[Product, ...], avals: tuple) -> list:
    outs = []
    for m, aval in zip(members, avals, strict=True):
        indices = operands[m.indices].reshape(-1)[m.indices_at :][: m.entries]
        bounds = [
            operands[x].reshape(-1)[at:][: aval.shape[0]]
            for x, at in ((m.starts, m.starts_at), (m.ends, m.ends_at))
        ]
        data = xp.ones(m.entries, aval.dtype)
        if m.data >= 0:
            data = operands[m.data].reshape(-1)[m.data_at :][: m.entries]
        given = [data, indices, *bounds, operands[m.dense]]
        params: dict[str, Any] = {"missing": NAN} if m.nan else {}
        if m.bits:
            given.append(operands[m.scales])
            params |= {"bits": m.bits, "columns": aval.shape[1]}
        outs.append(PRODUCTS[bool(m.bits)].impl(xp, *given, **params))
    return outs


# Several products, of operands that several of them may read; avals: of the results.
csr_matmuls_p = lowered(
    "csr_matmuls", lambda *operands, members, avals: list(avals), _impl, multiple=True
)


def together(eqns: Sequence[Eqn], outs: Sequence[Atom]) -> Sequence[Eqn]:
    """The equations of a program of these results, in an order in which they can run, with products
    that don't need each other as one."""
    groups: dict[tuple, list[Eqn]] = {}
    depth: dict[Atom, int] = {}
    for e in eqns:
        level = max((depth.get(a, 0) for a in e.ins), default=0)
        if e.prim in PRODUCTS and _fits(e):
            kinds = tuple(a.aval.dtype for a in e.ins[:3])
            groups.setdefault((level, kinds), []).append(e)
            level += 1
        depth |= dict.fromkeys(e.outs, level)
    made = {v: e for e in eqns for v in e.outs}
    for group in groups.values():
        eqns = _joined(eqns, group, made)
    return dce_eqns(eqns, outs) if groups else eqns


def _fits(e: Eqn) -> bool:
    """Whether the routine knows a product's types, and there is something to add."""
    data, indices, starts, ends, dense = (a.aval for a in e.ins[:5])
    places = indices.dtype in INDICES and starts.dtype == ends.dtype and ends.dtype in INDICES
    known = dense.dtype in NARROW if data.dtype == FLOAT32 else data.dtype == dense.dtype == FLOAT64
    if e.prim is csr_matmul_codes_p:
        known = data.dtype == FLOAT32
    # With one column, several sums of a row go on beside each other.
    columns = e.outs[0].aval.shape[1]
    return bool(places and known and data.size and starts.size and 1 < columns <= MOST)


def codes(flat: Any, eqn: Eqn, ins: list[Atom]) -> Any:
    """A product with rows of few bits: as it is where the routine knows it, else by its formula."""
    return None if _fits(eqn) else by_formula(flat, eqn, ins)


def _joined(eqns: Sequence[Eqn], group: Sequence[Eqn], made: dict[Var, Eqn]) -> Sequence[Eqn]:
    """What reads a result comes after all of the group; each by itself where that has effects."""
    places = [i for i, e in enumerate(eqns) if any(e is g for g in group)]
    first, last = places[0], places[-1]
    reached: set[Atom] = {v for e in group for v in e.outs}
    before, after = [], []
    for e in eqns[first : last + 1]:
        if any(e is g for g in group):
            continue
        if reached.isdisjoint(e.ins):
            before.append(e)
            continue
        if has_effect(e):
            return [_as_one([e], made) if any(e is g for g in group) else e for e in eqns]
        reached.update(e.outs)
        after.append(e)
    return [*eqns[:first], *before, _as_one(group, made), *after, *eqns[last + 1 :]]


def _as_one(group: Sequence[Eqn], made: dict[Var, Eqn]) -> Eqn:
    operands: dict[Atom, int] = {}

    def number(x: Atom) -> int:
        return operands.setdefault(x, len(operands))

    def found(x: Atom) -> tuple[int, int]:
        whole, at = _where(x, made)
        return number(whole), at

    members = []
    for e in group:
        data, indices, starts, ends, dense, *scales = e.ins
        factors = (-1, 0) if _all_ones(data, made) else found(data)
        bounds = (*found(indices), *found(starts), *found(ends))
        nan = e.params.get("missing") == NAN
        few = number(scales[0]) if scales else -1, e.params.get("bits", 0)
        members.append(Product(data.aval.size, *bounds, *factors, number(dense), nan, *few))
    outs = [e.outs[0] for e in group]
    avals: tuple[ShapedArray, ...] = tuple(v.aval.strong() for v in outs)
    params = {"members": tuple(members), "avals": avals}
    return Eqn(csr_matmuls_p, list(operands), outs, params, group[0].source, group[0].scopes)


def _where(x: Atom, made: dict[Var, Eqn]) -> tuple[Atom, int]:
    """The array that a vector is a part of, and the element at which it begins there."""
    at = 0
    while type(x) is Var and x in made:
        e = made[x]
        source = e.ins[0] if e.ins else x
        if e.prim is slice_p and source.aval.ndim == 1 and e.params["strides"] in (None, (1,)):
            at += e.params["start_indices"][0]
        elif e.prim.view is not in_order:
            break
        x = source
    return x, at


def _all_ones(x: Atom, made: dict[Var, Eqn]) -> bool:
    """Whether a vector is the number 1, broadcast."""
    e = made.get(x) if type(x) is Var else None
    one = e.ins[0] if e is not None and e.prim is broadcast_p else x
    return type(one) is Literal and one.aval.ndim == 0 and one.value == 1
