"""Host steps that sort, as generated code: one function a pattern of dtypes serves all shapes."""

from __future__ import annotations

import functools
import math
from functools import partial
from typing import TYPE_CHECKING

from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.engine import Engine, engine
from funcgrad.backends.llvm.runtime.routine import Call, compiled
from funcgrad.backends.llvm.sort.keys import Keys, keys_of
from funcgrad.backends.llvm.sort.network import LANES
from funcgrad.backends.llvm.sort.radix import LONG
from funcgrad.backends.llvm.sort.rows import by_buckets, emit_keys, emit_order
from funcgrad.backends.llvm.sort.shuffle import emit_shuffle
from funcgrad.backends.llvm.sort.top import FEW, emit_top

if TYPE_CHECKING:
    from funcgrad.backends.program import HostStep

# Positions in a row have 32 bits.
_MOST = (1 << 32) - 1
_WIDTHS = (1, 2, 4, 8, 16)
# Vectors that a sorting network keeps in registers, by their bits.
_VECTORS = {128: 2, 256: 8, 512: 16}


def sort_call(step: HostStep) -> Call | None:
    """How the function that runs a step of `sort` is called; None where the host is to run it."""
    avals = [v.aval for v in step.ins]
    shape, axis = avals[0].shape, step.params["dimension"]
    known = [keys_of(a.dtype) for a in avals[: step.params["num_keys"]]]
    keys = [k for k in known if k]
    fit = all(a.dtype.itemsize in _WIDTHS for a in avals)
    if len(keys) < len(known) or not fit or shape[axis] > _MOST:
        return None
    names = "_".join(k.name for k in keys)
    widths = "_".join(str(a.dtype.itemsize) for a in avals) if len(avals) > 1 else ""
    n = shape[axis]
    words = math.prod(shape[:axis]), n, math.prod(shape[axis + 1 :]), n
    # Without the ways of long rows, the code is a third.
    what = "short" if n < LONG and any(map(by_buckets, keys)) else "sort"
    name = f"fg_{what}_{names}__{widths}"
    return _call(name, words)


def top_call(step: HostStep) -> Call | None:
    """The same for a step of `top_k`."""
    aval = step.ins[0].aval
    *lead, n = aval.shape
    keys = keys_of(aval.dtype)
    if keys is None or keys.bits > 32 or n >= 2**31:  # positions are int32
        return None
    k = step.params["k"]
    return _call(f"fg_{'few' if k <= FEW else 'top'}_{keys.name}", (math.prod(lead), n, 1, k))


def shuffle_call(step: HostStep) -> Call:
    """The same for a step of `shuffle`."""
    x = step.ins[2].aval
    name = f"fg_shuffle_{x.dtype.itemsize}"
    return _call(name, (x.size,))


def _call(name: str, words: tuple[int, ...]) -> Call:
    return Call(name, words, (partial(install, name),))


@functools.cache
def install(name: str, target: Engine | None = None) -> int:
    """Compile a function that `sort_call`, `top_call` or `shuffle_call` names; bind its symbol,
    return its address.

    >>> install("fg_sort_float32__") == install("fg_sort_float32__")
    True
    """
    target = target or engine()
    _, what, pattern = name.split("_", 2)
    dtypes, _, sizes = pattern.partition("__")
    widths = [int(w) for w in sizes.split("_") if w]

    def write() -> ir.Module:
        module, block = ir.Module("sort"), LANES * _VECTORS[target.target.vector_bits]
        if what == "shuffle":
            emit_shuffle(module, name, int(pattern), block)
            return module
        keys = [Keys(d) for d in dtypes.split("_")]
        block = 0 if what == "short" else block
        if what in ("few", "top"):
            emit_top(module, name, keys[0], what == "few")
        elif widths:
            emit_order(module, name, keys, widths, block)
        else:
            emit_keys(module, name, keys[0], block)
        return module

    # Loops of sorts are written as they are to run.
    return compiled(name, write, 1, ("sort.functions",), target)
