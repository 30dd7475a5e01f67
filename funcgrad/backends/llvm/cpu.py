"""The processor as what programs are planned for: its `Target`.

Numbers were found on machines of 4 to 192 cores with vectors of 256 and 512 bits. None depends on
the processor at hand, so that results don't.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from funcgrad.backends.late import Late, function, late
from funcgrad.backends.rewrites.equations import Equations
from funcgrad.backends.target import Limits, RowSums, Splits, Target, Turns, Writer
from funcgrad.core.ir import Atom, Eqn, Jaxpr

if TYPE_CHECKING:
    from funcgrad.backends.drafts.drafter import BlockDrafter
    from funcgrad.backends.program import GemmStep

complex_pairs = Late("funcgrad.backends.rewrites.complex_pairs")
attention_joint, products = late("funcgrad.backends.rewrites", "attention_joint", "products")
attention = Late("funcgrad.backends.llvm.drafts.attention")
shuffles, tiles = late("funcgrad.backends.llvm.rewrites", "shuffles", "tiles")
steps = Late("funcgrad.backends.drafts.steps")

LIMITS = Limits(
    # Vectors of 16 elements, or whole numbers of theirs, and the columns of a register tile.
    lanes=16,
    tasks=8,
    cheap=6,
    chain_cost=220,
    chain_arrays=12,
    # Memory takes longer; smaller arrays are in a core's cache when they are read again.
    again_cost=32,
    again_bytes=1 << 20,
    small=2048,
    row=1 << 18,
    kernel_cost=900,
    kernel_arrays=20,
    tries=3,
    merged=4,
    picked=16,
    # A row's sums stay in the first cache; fewer terms are in it anyway.
    row_sums=RowSums(least=1 << 16, narrow=128, wide=1 << 12, most=4, blocks=32, rows=8),
    pieces=12,
    picks=4,
    pick_row=128,
    pick_width=8,
    columns=64,
    together=((8, 8), (32, 4)),
    beside=64,
    points=1024,
    # Fewer multiplications don't repay a call.
    tiny=512,
    joined=1 << 18,
    window=8,
    # Of tall ones, a part's totals, one a column, stay in the first cache while rows stream by.
    splits=Splits(least=1 << 15, few=8, part=1 << 12, most=64, tall=1 << 22, rows=32, wide=1 << 13),
    # What has more rows a turn is large as it is; many rows gain less than memory costs that no
    # cache holds.
    turns=Turns(rows=256, nbytes=1 << 26, few=16, cached=1 << 23),
    swapped_bytes=1 << 14,
    swapped_eqns=100,
    scalars=4,
    scalar_terms=16,
    scalar_cost=64,
)


def _prepare(jaxpr: Jaxpr) -> Jaxpr:
    return complex_pairs.as_pairs(jaxpr, LIMITS.tiny) if jaxpr.has_complex else jaxpr


def _reshape(flat: Equations, eqn: Eqn, ins: list[Atom]) -> Atom:
    return flat.reshape(ins[0], eqn.outs[0].aval.shape)


_collective = function("funcgrad.backends.rewrites.exchanges.rewrite")
_reduction = function("funcgrad.backends.rewrites.reductions.reduction")
_scatter = function("funcgrad.backends.llvm.rewrites.scatters.rewrite")
_attention = function("funcgrad.backends.llvm.drafts.attention.rewrite")
_running = function("funcgrad.backends.llvm.rewrites.running.running")

REWRITES = {
    "attention": _attention,
    "attention_backward": _attention,
    "dot_general": function("funcgrad.backends.rewrites.products.dot"),
    "conv_general_dilated": function("funcgrad.backends.llvm.rewrites.convolution.convolve"),
    "reshape": _reshape,
    **dict.fromkeys(("scatter", "scatter_add", "scatter_mul"), _scatter),
    "reduce_window_sum": function("funcgrad.backends.rewrites.scatters.window_spread"),
    "select_and_scatter_add": function("funcgrad.backends.rewrites.scatters.window_scatter"),
    "scan": function("funcgrad.backends.llvm.rewrites.scan_blocks.rewrite"),
    **{f"reduce_{how}": _reduction for how in ("sum", "max", "min", "prod", "and", "or", "xor")},
    **dict.fromkeys(("cumsum", "cumprod", "cummax", "cummin"), _running),
    **dict.fromkeys(("psum", "psum_invariant", "pvary", "assume_invariant"), _collective),
    **dict.fromkeys(("pmax", "pmin", "all_gather", "psum_scatter", "all_to_all"), _collective),
    **dict.fromkeys(("ppermute", "axis_index"), _collective),
}


def _turned(eqns: Sequence[Eqn], outs: Sequence[Atom]) -> Sequence[Eqn]:
    has = any(e.prim.name == "product" for e in eqns)
    return products.absorb_transposes(eqns, outs) if has else eqns


def _both_passes(eqns: Sequence[Eqn], outs: Sequence[Atom]) -> Sequence[Eqn]:
    if not any(e.prim.name == "attention_backward" for e in eqns):
        return eqns
    return attention_joint.join_attention(eqns, outs, attention.is_joined)


def _shuffled(eqns: Sequence[Eqn], outs: Sequence[Atom]) -> Sequence[Eqn]:
    return shuffles.shuffled(eqns, outs) if any(e.prim.name == "sort" for e in eqns) else eqns


_scatters = Writer(function("funcgrad.backends.kernels.updates.scatter"), inlines=2)
_rows = function("funcgrad.backends.llvm.kernels.rows.rows")
_sums = Writer(function("funcgrad.backends.llvm.kernels.running.write"))
_loop = Writer(function("funcgrad.backends.drafts.scalar_loops.scalar_loop"))

WRITERS = {
    "scatter": _scatters,
    **{f"scatter_{how}": _scatters for how in ("add", "mul", "min", "max")},
    "dynamic_update_slice": Writer(
        function("funcgrad.backends.kernels.updates.dynamic_update_slice"), inlines=1
    ),
    "update_rows": Writer(_rows, inlines=2),
    "sum_rows": Writer(_rows, inlines=1),
    **dict.fromkeys(("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp", "running"), _sums),
    "select_and_scatter_add": Writer(function("funcgrad.backends.llvm.kernels.selections.write")),
    "lu": Writer(function("funcgrad.backends.llvm.kernels.eliminations.lu")),
    "cholesky": Writer(function("funcgrad.backends.llvm.kernels.eliminations.cholesky")),
    "triangular_solve": Writer(
        function("funcgrad.backends.llvm.kernels.eliminations.triangular_solve")
    ),
    "scan": _loop,
    "while": _loop,
    "channels": Writer(function("funcgrad.backends.llvm.kernels.depthwise.write")),
    "channels_last": Writer(function("funcgrad.backends.llvm.kernels.depthwise_last.write")),
}


def _in_order(step: GemmStep) -> bool:
    return not any(tiles.tiles_of(step))


def _product(d: BlockDrafter, eqn: Eqn) -> bool:
    return steps.product(d, eqn, _in_order)


_attend = function("funcgrad.backends.llvm.drafts.attention.draft")

CPU = Target(
    "cpu",
    alignment=64,
    limits=LIMITS,
    prepare=_prepare,
    rewrites=REWRITES,
    passes=(_shuffled, _turned, _both_passes),
    writers=WRITERS,
    steps={
        "product": _product,
        **dict.fromkeys(("attention", "attention_backward", "attention_joint"), _attend),
        "exchange": function("funcgrad.backends.drafts.steps.exchange"),
        "lane": function("funcgrad.backends.drafts.steps.lane"),
    },
    frames=function("funcgrad.backends.llvm.rewrites.frames.lines_fill"),
    grouped=function("funcgrad.backends.llvm.drafts.bands.banded"),
)
