"""A GPU as what programs are planned for: its `Target`.

Constants are first guesses by an H200 (docs/cuda.md). None depends on the GPU at hand, so that
results don't.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from funcgrad.backends.late import Late, function, late
from funcgrad.backends.lower.primitives import product_p
from funcgrad.backends.target import Key, Limits, Rewrite, Splits, Target, Writer, stay
from funcgrad.core.ir import Atom, Eqn, Jaxpr
from funcgrad.ops.contract import dot_general_p
from funcgrad.ops.convolution.conv import conv_general_dilated_p
from funcgrad.ops.convolution.pooling import (
    select_and_gather_add_p,
    select_and_scatter_add_p,
    window_sum_p,
)
from funcgrad.ops.csr import csr_matmul_p
from funcgrad.ops.cumulative import cumlogsumexp_p, cummax_p, cummin_p, cumprod_p, cumsum_p
from funcgrad.ops.indexing.gather import scatter_add_p
from funcgrad.ops.indexing.scatter import scatter_max_p, scatter_min_p, scatter_mul_p, scatter_p
from funcgrad.ops.indexing.windows_at import dynamic_update_slice_p
from funcgrad.ops.linalg.triangular import cholesky_p, lu_p, triangular_solve_p
from funcgrad.ops.sort import sort_p, top_k_p
from funcgrad.transforms.control.scan import scan_p
from funcgrad.transforms.control.while_loop import while_p

updates = Late("funcgrad.backends.kernels.updates")
complex_pairs, products = late("funcgrad.backends.rewrites", "complex_pairs", "products")

if TYPE_CHECKING:
    from funcgrad.backends.kernels.cluster import Written
    from funcgrad.backends.kernels.special import SpecialKernel

FEW_UPDATES = 256

LIMITS = Limits(
    lanes=4,
    tasks=16,  # fewer rows, of one kernel, would leave a GPU to one launch after the other
    cheap=12,
    chain_cost=220,
    chain_arrays=12,
    # Computing is free as long as memory is waited for.
    again_cost=40,
    again_bytes=1 << 20,
    small=2048,
    row=1 << 16,
    kernel_cost=900,
    kernel_arrays=20,
    tries=3,
    merged=4,
    picked=16,
    pieces=12,
    picks=4,
    pick_row=128,
    pick_width=8,
    columns=128,
    tiny=64,
    joined=1 << 18,
    splits=Splits(
        least=1 << 15, few=132, part=1 << 12, most=528, tall=1 << 18, rows=528, wide=1 << 13
    ),
    swapped_bytes=1 << 14,
    swapped_eqns=100,
    scalars=4,
    scalar_terms=16,
    scalar_cost=64,
)


def _prepare(jaxpr: Jaxpr) -> Jaxpr:
    return complex_pairs.as_pairs(jaxpr, LIMITS.tiny) if jaxpr.has_complex else jaxpr


def _turned(eqns: Sequence[Eqn], outs: Sequence[Atom]) -> Sequence[Eqn]:
    has = any(e.prim is product_p for e in eqns)
    return products.absorb_transposes(eqns, outs) if has else eqns


def _scatter(kernel: SpecialKernel, eqn: Eqn) -> Written | None:
    # Windows that may meet are written in order, by one team: a few of them, so that bits don't
    # vary; for many the host's order is quicker.
    few = eqn.ins[1].aval.size <= FEW_UPDATES
    return updates.scatter(kernel, eqn) if eqn.params["unique_indices"] or few else None


_scatters = Writer(_scatter, inlines=2)
_running = Writer(function("funcgrad.backends.cuda.running.write"))
_windows, _sorts = "funcgrad.backends.cuda.windows", "funcgrad.backends.cuda.sorts"
_small = "funcgrad.backends.llvm.kernels.eliminations"
_loop = Writer(function("funcgrad.backends.drafts.scalar_loops.scalar_loop"))

REWRITES: dict[Key, Rewrite] = {
    csr_matmul_p: stay,
    select_and_scatter_add_p: function("funcgrad.backends.rewrites.scatters.window_scatter"),
    dot_general_p: function("funcgrad.backends.rewrites.products.dot"),
    window_sum_p: function("funcgrad.backends.rewrites.scatters.window_spread"),
}

CUDA = Target(
    "cuda",
    alignment=256,
    limits=LIMITS,
    prepare=_prepare,
    rewrites=REWRITES,
    reduction=function("funcgrad.backends.rewrites.reductions.reduction"),
    passes=(_turned,),
    writers={
        dynamic_update_slice_p: Writer(
            function("funcgrad.backends.kernels.updates.dynamic_update_slice"), inlines=1
        ),
        **dict.fromkeys((scatter_p, scatter_add_p, scatter_mul_p), _scatters),
        **dict.fromkeys((scatter_min_p, scatter_max_p), _scatters),
        **dict.fromkeys((cumsum_p, cumprod_p, cummax_p, cummin_p, cumlogsumexp_p), _running),
        csr_matmul_p: Writer(function("funcgrad.backends.llvm.kernels.csr.product")),
        lu_p: Writer(function(f"{_small}.lu")),
        cholesky_p: Writer(function(f"{_small}.cholesky")),
        triangular_solve_p: Writer(function(f"{_small}.triangular_solve")),
        conv_general_dilated_p: Writer(function(f"{_windows}.convolution")),
        select_and_gather_add_p: Writer(function(f"{_windows}.gather")),
        select_and_scatter_add_p: Writer(function(f"{_windows}.scatter")),
        sort_p: Writer(function(f"{_sorts}.sort")),
        top_k_p: Writer(function(f"{_sorts}.top")),
        scan_p: _loop,
        while_p: _loop,
    },
    steps={"product": function("funcgrad.backends.drafts.steps.product")},
)
