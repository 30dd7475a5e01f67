"""The processor as what programs are planned for: its `Target`.

Numbers were found on machines of 4 to 192 cores with vectors of 256 and 512 bits. None depends on
the processor at hand, so that results don't.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from funcgrad.backends import machines
from funcgrad.backends.late import Late, function, late
from funcgrad.backends.target import (
    Key,
    Rewrite,
    RowSums,
    Splits,
    Target,
    Turns,
    Writer,
)
from funcgrad.core.ir import Atom, Eqn
from funcgrad.core.record import replace
from funcgrad.ops.convolution.conv import conv_general_dilated_p
from funcgrad.ops.convolution.pooling import select_and_scatter_add_p
from funcgrad.ops.csr import csr_matmul_p
from funcgrad.ops.csr_codes import csr_matmul_codes_p
from funcgrad.ops.cumulative import cumlogsumexp_p, cummax_p, cummin_p, cumprod_p, cumsum_p
from funcgrad.ops.indexing.gather import scatter_add_p
from funcgrad.ops.indexing.scatter import scatter_max_p, scatter_min_p, scatter_mul_p, scatter_p
from funcgrad.ops.linalg.triangular import cholesky_p, lu_p, triangular_solve_p
from funcgrad.ops.sort import sort_p
from funcgrad.transforms.control.scan import scan_p

if TYPE_CHECKING:
    from funcgrad.backends.drafts.drafter import BlockDrafter
    from funcgrad.backends.drafts.tensors import Draft, Tensor
    from funcgrad.backends.program import GemmStep

attention_joint = Late("funcgrad.backends.rewrites.attention_joint")
attention = Late("funcgrad.backends.llvm.drafts.attention")
csr, shuffles, tiles = late("funcgrad.backends.llvm.rewrites", "csr", "shuffles", "tiles")
steps = Late("funcgrad.backends.drafts.steps")
bands, finishes = late("funcgrad.backends.llvm.drafts", "bands", "finishes")

LIMITS = replace(
    machines.LIMITS,
    # Vectors of 16 elements, or whole numbers of theirs, and the columns of a register tile.
    lanes=16,
    tasks=8,
    cheap=6,
    # Memory takes longer; smaller arrays are in a core's cache when they are read again.
    again_cost=32,
    row=1 << 18,
    # A row's sums stay in the first cache; fewer terms are in it anyway.
    row_sums=RowSums(least=1 << 16, narrow=128, wide=1 << 12, most=4, blocks=32, rows=8),
    columns=64,
    together=((8, 8), (32, 4)),
    beside=64,
    points=1024,
    # Fewer multiplications don't repay a call.
    tiny=512,
    window=8,
    # Of tall ones, a part's totals, one a column, stay in the first cache while rows stream by.
    splits=Splits(least=1 << 15, few=8, part=1 << 12, most=64, tall=1 << 22, rows=32, wide=1 << 13),
    # What has more rows a turn is large as it is; many rows gain less than memory costs that no
    # cache holds.
    turns=Turns(rows=256, nbytes=1 << 26, few=16, cached=1 << 23),
)


_scatter = function("funcgrad.backends.llvm.rewrites.scatters.rewrite")
_attention = function("funcgrad.backends.llvm.drafts.attention.rewrite")
_running = function("funcgrad.backends.llvm.rewrites.running.running")

REWRITES: dict[Key, Rewrite] = {
    **machines.REWRITES,
    **machines.COLLECTIVES,
    **dict.fromkeys(("attention", "attention_backward"), _attention),
    conv_general_dilated_p: function("funcgrad.backends.llvm.rewrites.convolution.convolve"),
    csr_matmul_codes_p: function("funcgrad.backends.llvm.rewrites.csr.codes"),
    **dict.fromkeys((scatter_p, scatter_add_p, scatter_mul_p), _scatter),
    scan_p: function("funcgrad.backends.llvm.rewrites.scan_blocks.rewrite"),
    **dict.fromkeys((cumsum_p, cumprod_p, cummax_p, cummin_p), _running),
}


def _both_passes(eqns: Sequence[Eqn], outs: Sequence[Atom]) -> Sequence[Eqn]:
    if sum(e.prim.strided for e in eqns) < 2:
        return eqns
    return attention_joint.join_attention(eqns, outs, attention.is_joined)


def _shuffled(eqns: Sequence[Eqn], outs: Sequence[Atom]) -> Sequence[Eqn]:
    return shuffles.shuffled(eqns, outs) if any(e.prim is sort_p for e in eqns) else eqns


_SPARSE = csr_matmul_p, csr_matmul_codes_p


def _products(eqns: Sequence[Eqn], outs: Sequence[Atom]) -> Sequence[Eqn]:
    return csr.together(eqns, outs) if any(e.prim in _SPARSE for e in eqns) else eqns


_scatters = Writer(function("funcgrad.backends.kernels.updates.scatter"), inlines=2)
_rows = function("funcgrad.backends.llvm.kernels.rows.rows")
_sums = Writer(function("funcgrad.backends.llvm.kernels.running.write"))

WRITERS: dict[Key, Writer] = {
    **machines.WRITERS,
    **dict.fromkeys((scatter_p, scatter_add_p, scatter_mul_p), _scatters),
    **dict.fromkeys((scatter_min_p, scatter_max_p), _scatters),
    "update_rows": Writer(_rows, inlines=2),
    "sum_rows": Writer(_rows, inlines=1),
    **dict.fromkeys((cumsum_p, cumprod_p, cummax_p, cummin_p, cumlogsumexp_p, "running"), _sums),
    select_and_scatter_add_p: Writer(function("funcgrad.backends.llvm.kernels.selections.write")),
    csr_matmul_p: Writer(function("funcgrad.backends.llvm.kernels.csr.product")),
    lu_p: Writer(function("funcgrad.backends.llvm.kernels.eliminations.lu")),
    cholesky_p: Writer(function("funcgrad.backends.llvm.kernels.eliminations.cholesky")),
    triangular_solve_p: Writer(
        function("funcgrad.backends.llvm.kernels.eliminations.triangular_solve")
    ),
    "channels": Writer(function("funcgrad.backends.llvm.kernels.depthwise.write")),
    "channels_last": Writer(function("funcgrad.backends.llvm.kernels.depthwise_last.write")),
}


def _in_order(step: GemmStep) -> bool:
    return not any(tiles.tiles_of(step))


def _product(d: BlockDrafter, eqn: Eqn) -> bool:
    return steps.product(d, eqn, _in_order)


def _grouped(block: BlockDrafter, drafts: list[Draft], results: Sequence[Tensor]) -> list[Draft]:
    if not any(d.product for d in drafts):
        return drafts
    return bands.banded(block, finishes.finished(block, drafts, results), results)


_attend = function("funcgrad.backends.llvm.drafts.attention.draft")

CPU = Target(
    "cpu",
    alignment=64,
    limits=LIMITS,
    prepare=machines.pairs(LIMITS),
    rewrites={**REWRITES, **machines.NARROW},
    reduction=machines.reduction,
    passes=(_shuffled, _products, machines.turned, _both_passes),
    writers=WRITERS,
    steps={
        "product": _product,
        **dict.fromkeys(("attention", "attention_backward", "attention_joint"), _attend),
        "exchange": function("funcgrad.backends.drafts.steps.exchange"),
        "lane": function("funcgrad.backends.drafts.steps.lane"),
        **machines.MEMORY,
    },
    frames=function("funcgrad.backends.llvm.rewrites.frames.lines_fill"),
    grouped=_grouped,
)
