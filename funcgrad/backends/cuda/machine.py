"""A GPU as what programs are planned for: its `Target`.

Constants are first guesses by an H200 (docs/cuda.md). None depends on the GPU at hand, so that
results don't.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from funcgrad.backends import machines
from funcgrad.backends.late import Late, function
from funcgrad.backends.target import Splits, Target, Writer
from funcgrad.core.ir import Eqn
from funcgrad.core.record import replace
from funcgrad.ops.contract import dot_general_p
from funcgrad.ops.convolution.conv import conv_general_dilated_p
from funcgrad.ops.convolution.pooling import (
    select_and_gather_add_p,
    select_and_scatter_add_p,
)
from funcgrad.ops.csr import csr_matmul_p
from funcgrad.ops.cumulative import cumlogsumexp_p, cummax_p, cummin_p, cumprod_p, cumsum_p
from funcgrad.ops.indexing.gather import scatter_add_p
from funcgrad.ops.indexing.scatter import scatter_max_p, scatter_min_p, scatter_mul_p, scatter_p
from funcgrad.ops.linalg.triangular import cholesky_p, lu_p, triangular_solve_p
from funcgrad.ops.sort import sort_p, top_k_p

updates = Late("funcgrad.backends.kernels.updates")

if TYPE_CHECKING:
    from funcgrad.backends.kernels.cluster import Written
    from funcgrad.backends.kernels.special import SpecialKernel

FEW_UPDATES = 256  # that one team writes, window after window

LIMITS = replace(
    machines.LIMITS,
    lanes=4,
    tasks=16,  # fewer rows, of one kernel, would leave a GPU to one launch after the other
    cheap=12,
    # Computing is free as long as memory is waited for.
    again_cost=40,
    row=1 << 16,
    columns=128,
    tiny=64,
    window=16,
    splits=Splits(
        least=1 << 15, few=132, part=1 << 12, most=528, tall=1 << 18, rows=528, wide=1 << 13
    ),
)


def _scatter(kernel: SpecialKernel, eqn: Eqn) -> Written | None:
    # Windows that may meet are written in order, by one team: a few of them, so that bits don't
    # vary. Of many that aren't rows the host's order is quicker.
    few = eqn.ins[1].aval.size <= FEW_UPDATES
    return updates.scatter(kernel, eqn) if eqn.params["unique_indices"] or few else None


_scatters = Writer(_scatter, inlines=2)
_running = Writer(function("funcgrad.backends.cuda.kernels.running.write"))
_ordered = function("funcgrad.backends.cuda.kernels.scatters.rewrite")
_rows = function("funcgrad.backends.llvm.kernels.rows.rows")
_windows, _sorts = "funcgrad.backends.cuda.kernels.windows", "funcgrad.backends.cuda.kernels.sorts"
_eights = "funcgrad.backends.cuda.libraries.eights"
_small = "funcgrad.backends.llvm.kernels.eliminations"
_ATTENTION = ("attention", "attention_backward")

CUDA = Target(
    "cuda",
    alignment=256,
    limits=LIMITS,
    prepare=machines.pairs(LIMITS),
    rewrites={
        **machines.REWRITES,
        **machines.COLLECTIVES,
        **dict.fromkeys(_ATTENTION, function("funcgrad.backends.cuda.kernels.attention.rewrite")),
        **dict.fromkeys((scatter_p, scatter_add_p, scatter_mul_p), _ordered),
        **machines.NARROW,
        dot_general_p: function(f"{_eights}.dot"),
        conv_general_dilated_p: function("funcgrad.backends.cuda.libraries.convolutions.rewrite"),
    },
    reduction=machines.reduction,
    passes=(machines.turned, function(f"{_eights}.scaled")),
    grouped=function("funcgrad.backends.cuda.kernels.tails.joined"),
    writers={
        **machines.WRITERS,
        **dict.fromkeys((scatter_p, scatter_add_p, scatter_mul_p), _scatters),
        **dict.fromkeys((scatter_min_p, scatter_max_p), _scatters),
        **dict.fromkeys((cumsum_p, cumprod_p, cummax_p, cummin_p, cumlogsumexp_p), _running),
        "row_order": Writer(function("funcgrad.backends.cuda.kernels.scatters.order")),
        "update_rows": Writer(_rows, inlines=2),
        "sum_rows": Writer(_rows, inlines=1),
        csr_matmul_p: Writer(function("funcgrad.backends.llvm.kernels.csr.product")),
        lu_p: Writer(function(f"{_small}.lu")),
        cholesky_p: Writer(function(f"{_small}.cholesky")),
        triangular_solve_p: Writer(function(f"{_small}.triangular_solve")),
        select_and_gather_add_p: Writer(function(f"{_windows}.gather")),
        select_and_scatter_add_p: Writer(function(f"{_windows}.scatter")),
        sort_p: Writer(function(f"{_sorts}.sort")),
        top_k_p: Writer(function(f"{_sorts}.top")),
    },
    steps={
        "product": function("funcgrad.backends.drafts.steps.product"),
        "exchange": function("funcgrad.backends.drafts.steps.exchange"),
        "lane": function("funcgrad.backends.drafts.steps.lane"),
        "eights": function(f"{_eights}.draft"),
        **machines.MEMORY,
        **dict.fromkeys(_ATTENTION, function("funcgrad.backends.cuda.kernels.attention.draft")),
    },
)
