"""Products of integers, and the kernel that consumes them, task by task.

A scale, a bias, an activation and rounding to codes again are one kernel that walks the rows of a
product's sums. The tasks of the product run it on their rows while these are in a core's cache: the
sums then have no memory of their own, unless others read them, too. Sums of integers are the same
in any order, so that each element is what it would be.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from funcgrad.backends.drafts.drafter import BlockDrafter
from funcgrad.backends.drafts.tensors import Draft, Tensor, moved
from funcgrad.backends.llvm.drafts.bands import Sliced, Span, sliced_kernel
from funcgrad.backends.loops.ir import Kernel
from funcgrad.backends.program import GemmStep, LoopStep, Ref, Step
from funcgrad.core.record import replace

LEAST_ROWS, LEAST_COLUMNS = 64, 16
# Whole rows of all columns are a task's, which reads all of the right operand.
MOST_COLUMNS, MOST_TERMS = 2048, 1 << 13


def finished(block: BlockDrafter, drafts: list[Draft], results: Sequence[Tensor]) -> list[Draft]:
    """The drafts of a block, products joined with what is made of their rows.

    results: what is read after the block
    """
    if not any(d.product is not None and _may_be(d.product) for d in drafts):
        return drafts
    out: list[Draft] = []
    waiting: dict[Tensor, Draft] = {}  # products that nobody has read, by their sums
    for i, d in enumerate(drafts):
        product = next((waiting[t.whole] for t in d.reads if t.whole in waiting), None)
        if product is not None:
            sums = product.writes[0]
            part = _rows_of(product, d, block.drafter.shared)
            if part is not None:
                later = {t.whole for e in drafts[i + 1 :] for t in e.reads}
                kept = sums in later or any(t.whole is sums for t in results)
                out.remove(product)
                d = _joined(product, d, part, kept, block.drafter.loop_number())
            del waiting[sums]
        out.append(d)
        if d.product is not None and _may_be(d.product) and d.writes[0].base is None:
            waiting[d.writes[0]] = d
    return out


def _may_be(step: GemmStep) -> bool:
    """Whether tasks of a product may have whole rows, and all of their sums."""
    plain = not step.batch and step.axes is None and step.frame is None
    wide = LEAST_COLUMNS <= step.n <= MOST_COLUMNS and step.m >= LEAST_ROWS
    in_rows = step.c_strides == (step.n, 1)
    return step.dtype == np.int8 and plain and wide and in_rows and 0 < step.k <= MOST_TERMS


def _rows_of(product: Draft, draft: Draft, shared: Callable[[Kernel], Kernel]) -> Sliced | None:
    """A kernel along the rows of a product's sums; None if it isn't one."""
    step, sums = product.product, product.writes[0]
    if draft.kernel is None or step is None or any(t.base is not None for t in draft.writes):
        return None
    part = sliced_kernel(draft.kernel, draft.operands, step.m, shared)
    if part is None:
        return None
    own = {sums, *draft.writes}
    apart = all(0 <= s.low <= s.high <= s.step for t, s in part.operands if t.whole in own)
    whole = all(s.step == step.n * step.out.itemsize for t, s in part.operands if t.whole is sums)
    return part if apart and whole else None


def _joined(product: Draft, draft: Draft, part: Sliced, kept: bool, number: int) -> Draft:
    """The product as a draft that finishes rows. kept: whether its sums are others', too."""
    step, sums = product.product, product.writes[0]
    assert step is not None
    rows, band = step.m, Ref("band", number)
    build = part.build(1)

    def at(t: Tensor, span: Span) -> Ref:
        ref = band if t.whole is sums and not kept else t.place
        return replace(ref, strides=(*ref.strides, (number, span.step))) if span.step else ref

    def make(inner: list[tuple[Step, ...]]) -> list[Step]:
        operands = zip(product.operands[:2], product.offsets[:2], strict=True)
        a, b = (moved(t.place, n) for t, n in operands)
        body = build([at(t, span) for t, span in part.operands])
        finish = LoopStep(number, rows, (body,), parallel=True)
        return [replace(step, a=a, b=b, c=sums.place if kept else band, finish=finish)]

    reads = [*product.reads, *(t for t in draft.reads if t.whole is not sums)]
    writes = [*draft.writes, *([sums] if kept else [])]
    mine = {t.whole for t in product.reads} | {sums}
    pairs = [(w, r) for w, r in draft.in_place if r.whole not in mine]
    return Draft(reads, writes, make, pairs)
