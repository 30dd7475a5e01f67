"""What programs are planned for: a backend's `Target`, which the shared layers ask.

It says which ops are written as others before lowering, which have kernels or steps of their own,
and how much of anything is worth while. What it leaves out is off: with `Target("any")` all that
loops can express is computed in kernels, and each other op is a step of the host's. Nothing in it
depends on the number of threads, or results would.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from funcgrad.core.ir import Atom, Eqn, Jaxpr
from funcgrad.core.primitive import Primitive
from funcgrad.core.record import Record, fresh

if TYPE_CHECKING:
    from funcgrad.backends.drafts.drafter import BlockDrafter
    from funcgrad.backends.drafts.tensors import Draft, Tensor
    from funcgrad.backends.lower.views import View

Key = Primitive | str
NEVER = 1 << 62  # a limit that nothing reaches

# Writes an equation to a `rewrites.equations.Equations`, as its results (a list where the op has
# several); None if it stays as it is.
Rewrite = Callable[[Any, Eqn, list[Atom]], Any]
# The equations of a program as others, which give its results too.
Pass = Callable[[Sequence[Eqn], Sequence[Atom]], Sequence[Eqn]]
# Adds the draft of an equation to a block's; False if the host is to run it.
Step = Callable[["BlockDrafter", Eqn], bool]


class Writer(Record):
    """write(kernel, equation) writes an op's kernel with a `kernels.special.SpecialKernel`; None if
    the op is none for it.

    inlines: the operand that may be computed as it is written
    """

    write: Callable[[Any, Eqn], Any]
    inlines: int | None = None


class Splits(Record):
    """Which reductions go in two steps: those of more elements than `least` to fewer than `few`
    results, in parts of no fewer than `part`, up to `most`; and those of as many as `tall` over
    rows, of up to `wide` columns, in up to `rows` parts."""

    least: int
    few: int
    part: int
    most: int
    tall: int
    rows: int
    wide: int


class RowSums(Record):
    """Which sums over rows are taken where the rows are made: of as many terms as `least`, in rows
    of `narrow` to `wide` elements, up to `most` in a kernel, in up to `blocks` blocks of `rows`."""

    least: int
    narrow: int
    wide: int
    most: int
    blocks: int
    rows: int


class Turns(Record):
    """Which products leave scans: of no more than `rows` rows, or terms, a turn, whose results take
    `nbytes` in all; only `cached` bytes if rows are more than `few`."""

    rows: int
    nbytes: int
    few: int
    cached: int


class Limits(Record):
    """How much is worth while. Costs are in scalar ops of an element, sizes in elements.

    lanes: the elements that fill registers; tasks: how many a kernel has, at least, if possible

    Where values are computed (`fusion`):
    cheap: the cost up to which each reader computes a value; chain_cost, chain_arrays: of a value
        that is computed where it is read, and how many arrays it may read
    again_cost, again_bytes: the cost up to which, and the size from which on, a value is computed
        again after a step rather than kept
    small: the size below which anything may share a kernel; row: the longest of a kernel's rows;
        kernel_cost, kernel_arrays: of a kernel; tries: how many kernels that read what a value
        reads it may join
    merged: how many kernels that read an array are asked to pick what a reduction reads, an element
        of `picked` of it; row_sums: see `RowSums`
    pieces: how many a concatenation has that are written to their places any way; picks: how many,
        of rows up to `pick_row` and widths below `pick_width`, are picked as they are read

    How kernels are written (`kernels`, `lower`):
    columns: the fewest that a task reduces; together: for costs up to the first number of each
        pair, so many rows are added at a time
    beside, points: how many extrema side by side, and in all, have their positions found row by row

    Products (`lower.gemms`, `rewrites`):
    tiny: multiplications of a product that is no matrix product; joined: the size of a result whose
        rows, of windows, are one matrix's; strip: the most columns of a large matrix that are
        summed at a time where a vector multiplies it
    window: elements of a window whose extremum is found as a row's
    splits, turns: see `Splits`, `Turns`

    Loops (`drafts`):
    swapped_bytes, swapped_eqns: what is carried by a loop of which two turns stand in the program,
        and the equations of one
    scalars, scalar_terms, scalar_cost: elements of a value, terms of a reduction, and cost of all
        branches in a loop that is one kernel
    """

    lanes: int = 1
    tasks: int = 1
    cheap: int = 0
    chain_cost: int = NEVER
    chain_arrays: int = NEVER
    again_cost: int = 0
    again_bytes: int = NEVER
    small: int = 0
    row: int = NEVER
    kernel_cost: int = NEVER
    kernel_arrays: int = NEVER
    tries: int = 0
    merged: int = 0
    picked: int = NEVER
    row_sums: RowSums | None = None
    pieces: int = 0
    picks: int = 0
    pick_row: int = 0
    pick_width: int = 0
    columns: int = 1
    together: tuple[tuple[int, int], ...] = ()
    beside: int = NEVER
    points: int = NEVER
    tiny: int = 0
    joined: int = 0
    strip: int = 0
    window: int = NEVER
    splits: Splits | None = None
    turns: Turns | None = None
    swapped_bytes: int = NEVER
    swapped_eqns: int = 0
    scalars: int = 0
    scalar_terms: int = 0
    scalar_cost: int = 0


class Target(Record, eq=False):
    """What a backend's programs are planned for.

    In its tables ops are known as `lower.primitives.key_of` says.

    alignment: of arrays in the arena, in bytes
    prepare: the whole program as one that the rest can plan
    rewrites: which equations are written as others, and how; others are inlined by their formula
    reduction: how those that reduce are, if they aren't in the table
    passes: what follows, one after the other, when unused equations are dropped
    writers: ops that are none of elements but have kernels
    steps: ops that are steps of their own kind; what has none runs on the host
    frames(product, view, pad): whether a product reads windows of an array as if the zeros that
        `pad` puts around it were there
    grouped(block, drafts, results): the drafts of a block in their final form
    """

    name: str
    alignment: int = 16
    limits: Limits = Limits()
    prepare: Callable[[Jaxpr], Jaxpr] = lambda jaxpr: jaxpr
    rewrites: Mapping[Key, Rewrite] = fresh(factory=dict)
    reduction: Rewrite | None = None
    passes: tuple[Pass, ...] = ()
    writers: Mapping[Key, Writer] = fresh(factory=dict)
    steps: Mapping[Key, Step] = fresh(factory=dict)
    frames: Callable[[Eqn, View, Eqn], bool] = lambda product, view, pad: False
    grouped: Callable[[BlockDrafter, list[Draft], list[Tensor]], list[Draft]] = (
        lambda block, drafts, results: drafts
    )


ANY = Target("any")  # what knows of no machine


def stay(flat: Any, eqn: Eqn, ins: list[Atom]) -> None:
    """The rewrite of an op that stays, though it has a formula."""
