"""Sorts by random words, of which only what is sorted is used, as one step: a shuffle.

The words are made where they are needed and never stored in full (see `llvm/sort/shuffle`); the
order is that of the sort, to the last bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from funcgrad.backends.lower.primitives import lowered
from funcgrad.core.dce import dce_eqns
from funcgrad.core.ir import Atom, Eqn, Literal, Var
from funcgrad.ops.elementwise.compare import bitwise_xor
from funcgrad.ops.random import threefry2x32_p
from funcgrad.ops.shape import iota_p
from funcgrad.ops.sort import sort_p

UINT32 = np.dtype(np.uint32)
# Of elements. Shorter arrays are sorted in caches anyhow.
MANY, MOST = 1 << 16, 1 << 26


def _impl(xp: Any, key0: Any, key1: Any, x: Any) -> Any:
    zero, counts = np.uint32(0), xp.arange(x.size, dtype=np.uint32)
    high, low = threefry2x32_p.impl(xp, key0, key1, zero, counts)
    return sort_p.impl(xp, high ^ low, x, dimension=0, is_stable=True, num_keys=1)[1]


# A vector sorted by the random words 0, 1, … of a key: words that are equal leave the order.
shuffle_p = lowered("shuffle", lambda key0, key1, x: x.strong(), _impl)


def shuffled(eqns: Sequence[Eqn], outs: Sequence[Atom]) -> Sequence[Eqn]:
    """The equations of a program with shuffles for what are some."""
    if not any(e.prim is sort_p for e in eqns):
        return eqns
    made: dict[Atom, Eqn] = {v: e for e in eqns for v in e.outs}
    return dce_eqns(eqns, outs, lambda eqn, used: shuffle(eqn, used, made) or eqn)


def shuffle(eqn: Eqn, used: set[Var], made: dict[Atom, Eqn]) -> Eqn | None:
    """A sort as a shuffle; None if it isn't one.

    used: values that later equations need
    made: the equations by what they give
    """
    if eqn.prim is not sort_p or len(eqn.ins) != 2 or eqn.outs[0] in used:
        return None
    words, x = eqn.ins
    fits = x.aval.ndim == 1 and MANY <= x.aval.size <= MOST and x.aval.dtype.itemsize <= 4
    if not fits or eqn.params["num_keys"] != 1:
        return None
    both = made.get(words)
    if both is None or both.prim is not bitwise_xor:
        return None
    parts = [made.get(a) for a in both.ins]
    drawn = parts[0]
    if drawn is None or drawn.prim is not threefry2x32_p or set(both.ins) != set(drawn.outs):
        return None
    key0, key1, high, low = drawn.ins
    zero = type(high) is Literal and not high.value
    counts = made.get(low)
    if not zero or counts is None or counts.prim is not iota_p or key0.aval.shape != ():
        return None
    if key1.aval.shape != () or low.aval.dtype != UINT32:
        return None
    return Eqn(shuffle_p, [key0, key1, x], [eqn.outs[1]], {}, eqn.source, eqn.scopes)
