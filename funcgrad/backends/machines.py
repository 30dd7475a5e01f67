"""What targets that make machine code have in common, from which each says where it differs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from funcgrad import dtypes
from funcgrad.backends.late import function, late
from funcgrad.backends.lower.primitives import product_p
from funcgrad.backends.target import Key, Limits, Rewrite, Step, Writer, stay
from funcgrad.core.ir import Atom, Eqn, Jaxpr
from funcgrad.ops.base import broadcast_p, transpose_p
from funcgrad.ops.collective.exchanges import all_to_all_p, ppermute_p
from funcgrad.ops.collective.reductions import (
    all_gather_p,
    axis_index_p,
    pmax_p,
    pmin_p,
    psum_p,
    psum_scatter_p,
)
from funcgrad.ops.collective.varying import assume_invariant_p, psum_invariant_p, pvary_p
from funcgrad.ops.contract import dot_general_p
from funcgrad.ops.convolution.pooling import select_and_scatter_add_p, window_sum_p
from funcgrad.ops.csr import csr_matmul_p
from funcgrad.ops.elementwise.convert import (
    bitcast_convert_type_p,
    bitcast_regroup_p,
    convert_element_type_p,
    copy,
    select_n_p,
)
from funcgrad.ops.indexing.windows_at import dynamic_slice_p, dynamic_update_slice_p
from funcgrad.ops.shape import reshape_p, rev_p
from funcgrad.ops.sharding import sharding_constraint_p
from funcgrad.ops.slicing import concatenate_p, pad_p, slice_p
from funcgrad.transforms.control.scan import scan_p
from funcgrad.transforms.control.while_loop import while_p

complex_pairs, products = late("funcgrad.backends.rewrites", "complex_pairs", "products")

# How much of a program makes sense in one kernel, whatever runs it.
LIMITS = Limits(
    chain_cost=220,
    chain_arrays=12,
    again_bytes=1 << 20,
    small=2048,
    kernel_cost=900,
    kernel_arrays=20,
    tries=3,
    merged=4,
    picked=16,
    pieces=12,
    picks=4,
    pick_row=128,
    pick_width=8,
    joined=1 << 18,
    strip=1024,
    swapped_bytes=1 << 14,
    swapped_eqns=100,
    scalars=4,
    scalar_terms=16,
    scalar_cost=64,
)


def _itself(flat: Any, eqn: Eqn, ins: list[Atom]) -> Atom:
    return ins[0]


REWRITES: dict[Key, Rewrite] = {
    sharding_constraint_p: _itself,  # on one device
    dot_general_p: function("funcgrad.backends.rewrites.products.dot"),
    csr_matmul_p: stay,
    window_sum_p: function("funcgrad.backends.rewrites.scatters.window_spread"),
    select_and_scatter_add_p: function("funcgrad.backends.rewrites.scatters.window_scatter"),
}


def _of_bytes(name: str) -> Rewrite:
    """What `rewrites.narrow` makes of an equation that has narrow numbers."""
    rewrite = function(f"funcgrad.backends.rewrites.narrow.{name}")

    def written(flat: Any, eqn: Eqn, ins: list[Atom]) -> Atom | None:
        found = {a.aval.dtype for a in (*ins, *eqn.outs)}
        return rewrite(flat, eqn, ins) if found & _NARROW else None

    return written


def _reshaped(flat: Any, eqn: Eqn, ins: list[Atom]) -> Atom:
    return _narrow_reshape(flat, eqn, ins) or flat.reshape(ins[0], eqn.outs[0].aval.shape)


# Floats of 8 bits and integers of 4 as bytes.
_NARROW = frozenset((*dtypes.FLOAT8, np.dtype(dtypes.int4), np.dtype(dtypes.uint4)))
_narrow_reshape = _of_bytes("reshaped")
NARROW: dict[Key, Rewrite] = {
    **dict.fromkeys(
        (broadcast_p, concatenate_p, copy, dynamic_slice_p, dynamic_update_slice_p, pad_p, rev_p,
         select_n_p, slice_p, transpose_p),
        _of_bytes("moved"),
    ),
    reshape_p: _reshaped,
    convert_element_type_p: _of_bytes("cast"),
}  # fmt: skip
MEMORY: dict[Key, Step] = dict.fromkeys(
    ("memory", bitcast_convert_type_p, bitcast_regroup_p),
    function("funcgrad.backends.drafts.steps.same_memory"),
)

COLLECTIVES: dict[Key, Rewrite] = dict.fromkeys(
    (psum_p, psum_invariant_p, pvary_p, assume_invariant_p, pmax_p, pmin_p, all_gather_p,
     psum_scatter_p, all_to_all_p, ppermute_p, axis_index_p),
    function("funcgrad.backends.rewrites.exchanges.rewrite"),
)  # fmt: skip

_loop = Writer(function("funcgrad.backends.drafts.scalar_loops.scalar_loop"))
WRITERS: dict[Key, Writer] = {
    dynamic_update_slice_p: Writer(
        function("funcgrad.backends.kernels.updates.dynamic_update_slice"), inlines=1
    ),
    scan_p: _loop,
    while_p: _loop,
}

reduction = function("funcgrad.backends.rewrites.reductions.reduction")


def pairs(limits: Limits) -> Callable[[Jaxpr], Jaxpr]:
    """What makes programs of complex numbers ones of pairs, by a target's limits.

    >>> import funcgrad as fg
    >>> pairs(LIMITS)(fg.make_jaxpr(lambda x: x * x)(1j).jaxpr).in_avals
    [f32[2]]
    """
    return lambda j: complex_pairs.as_pairs(j, limits.tiny) if j.has_complex else j


def turned(eqns: Sequence[Eqn], outs: Sequence[Atom]) -> Sequence[Eqn]:
    """The pass by which products read transposed operands.

    >>> turned([], [])
    []
    """
    has = any(e.prim is product_p for e in eqns)
    return products.absorb_transposes(eqns, outs) if has else eqns
