"""Products of many short rows, and the steps that consume them, some rows at a time.

Where a product sums few terms, reading its result again costs as much as computing it did. Steps in
a row that walk the same rows (products, elementwise kernels, reductions along rows) become one loop
over bands of rows, whose turns threads share: a band goes through all steps while a core's second
cache holds it, and what only these steps read has memory for one band a thread. Each element is
computed as it would be by the whole step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from funcgrad.backends.drafts.drafter import BlockDrafter
from funcgrad.backends.drafts.tensors import Draft, Tensor, moved
from funcgrad.backends.loops.ir import (
    Axis,
    Buffer,
    Index,
    Kernel,
    Load,
    Loop,
    Stmt,
    Store,
    Value,
    rewritten,
    used_as_scalars,
    walk,
)
from funcgrad.backends.program import GemmStep, KernelStep, LoopStep, Ref, Step
from funcgrad.core.record import Record, replace

# Of sums this short the order is the same however many rows are computed at a time.
MOST_TERMS = 128
DTYPES = (np.dtype(np.float32), np.dtype(np.float64))
# Bytes of a right operand that stay in a core's second cache beside a band, and those of a band.
MOST_RIGHT, BAND_BYTES = 1 << 17, 1 << 19
LEAST_ROWS, MOST_ROWS, ROW_UNIT = 64, 2048, 16  # of a band
# Bytes that pass from step to step, below which a cache that cores share holds them any way.
LEAST_PASSED = 1 << 23
MOST_BETWEEN = 8  # steps that have nothing to do with a group's, between them


# ---- steps of some rows


class Span(Record):
    """The bytes [low, high) from an array's address that a step's first row touches, and how much
    further those of each next row are."""

    step: int
    low: int
    high: int


class Sliced(Record, eq=False):
    """A step along its rows.

    rows: how many there are
    operands: the arrays, in the order of the step's addresses
    build: for some rows, what makes their step of its addresses
    """

    rows: int
    operands: tuple[tuple[Tensor, Span], ...]
    build: Callable[[int], Callable[[Sequence[Ref]], Step]]


def sliced(draft: Draft, rows: int, shared: Callable[[Kernel], Kernel]) -> Sliced | None:
    """A step along so many rows; None for one that has others, or none."""
    if draft.product is not None:
        return sliced_product(draft.product, draft.operands, draft.offsets, rows)
    if draft.kernel is not None:
        return sliced_kernel(draft.kernel, draft.operands, rows, shared)
    return None


def sliced_product(
    step: GemmStep, tensors: Sequence[Tensor], offsets: Sequence[int], rows: int
) -> Sliced | None:
    """A product of so many rows; its operands are read so many bytes from the arrays' addresses.
    None for one of another number of rows."""
    if step.m != rows:
        return None
    width = step.dtype.itemsize
    sizes = (1, step.k), (step.k, step.n), (1, step.n)
    strides = step.a_strides, step.b_strides, step.c_strides
    spans = []
    for i, (size, stride) in enumerate(zip(sizes, strides, strict=True)):
        ends = [(n - 1) * s * width for n, s in zip(size, stride, strict=True)]
        low, high = (sum(f(0, x) for x in ends) + offsets[i] for f in (min, max))
        spans.append(Span(0 if i == 1 else stride[0] * width, low, high + width))

    def build(rows: int) -> Callable[[Sequence[Ref]], Step]:
        def at(refs: Sequence[Ref]) -> Step:
            a, b, c = (moved(r, n) for r, n in zip(refs, offsets, strict=True))
            return replace(step, m=rows, a=a, b=b, c=c)

        return at

    return Sliced(step.m, tuple(zip(tensors, spans, strict=True)), build)


def sliced_kernel(
    kernel: Kernel, tensors: Sequence[Tensor], rows: int, shared: Callable[[Kernel], Kernel]
) -> Sliced | None:
    """A kernel whose first axis is these rows, or all their elements; None for any other.

    shared: the kernel that stands for equal ones
    """
    axis = kernel.axes[0] if kernel.axes else None
    if (
        axis is None
        or not axis.size
        or axis.size % rows
        or axis.value in used_as_scalars(kernel.body)
    ):
        return None
    steps = {b: _step(kernel, b, axis.value) for b in kernel.params}
    if any(s is None or s < 0 for s in steps.values()):
        return None
    points = axis.size // rows
    spans = []
    for b in kernel.params:
        low, high = _ends(kernel, b, axis, points)
        width = b.dtype.itemsize
        spans.append(Span((steps[b] or 0) * points * width, low * width, high * width))

    def build(n: int) -> Callable[[Sequence[Ref]], Step]:
        fewer = axis.size - n * points
        made = {b: replace(b, size=b.size - fewer * (steps.get(b) or 0)) for b in kernel.buffers}
        axes = (Axis(axis.value, n * points), *kernel.axes[1:])

        def in_parts(s: Stmt) -> Stmt:
            return replace(s, buffer=made[s.buffer]) if isinstance(s, Load | Store) else s

        body = rewritten(kernel.body, in_parts)
        part = shared(Kernel(kernel.name, tuple(made.values()), axes, body, kernel.in_place))
        return lambda refs: KernelStep(part, tuple(refs))

    return Sliced(rows, tuple(zip(tensors, spans, strict=True)), build)


def _accesses(kernel: Kernel, buffer: Buffer) -> Iterator[Index]:
    for s in walk(kernel.body):
        if isinstance(s, Load | Store) and s.buffer is buffer:
            yield s.index


def _step(kernel: Kernel, buffer: Buffer, axis: Value) -> int | None:
    """How many elements further each access is at the axis's next point; None if they differ, or
    if the buffer is also read as it was before."""
    steps = {next((c for c, v in i.terms if v is axis), 0) for i in _accesses(kernel, buffer)}
    return None if len(steps) > 1 or buffer.role == "inout" else next(iter(steps), 0)


def _ends(kernel: Kernel, buffer: Buffer, axis: Axis, points: int) -> tuple[int, int]:
    """The elements that the first points of the axis touch; all, where only running tells."""
    sizes = {a.value: a.size for a in kernel.axes} | {axis.value: points}
    sizes |= {s.axis: s.size for s in walk(kernel.body) if isinstance(s, Loop)}
    low, high = buffer.size, 0
    for index in _accesses(kernel, buffer):
        if any(v not in sizes for _, v in index.terms):
            return 0, buffer.size
        ends = [c * (sizes[v] - 1) for c, v in index.terms]
        low = min(low, index.const + sum(min(0, x) for x in ends))
        high = max(high, index.const + sum(max(0, x) for x in ends) + 1)
    return low, high


# ---- groups


def banded(block: BlockDrafter, drafts: list[Draft], results: Sequence[Tensor]) -> list[Draft]:
    """The drafts of a block, those that gain by it grouped to go band by band.

    results: what is read after the block
    """
    if not any(d.product for d in drafts):
        return drafts
    number, shared = block.drafter.loop_number, block.drafter.shared
    alignment = block.drafter.target.alignment
    readers: Counter[Tensor] = Counter()
    out: list[Draft] = []
    i = 0
    while i < len(drafts):
        group, before = _group(drafts, i, shared)
        out += before
        if group:
            if not readers:
                readers.update(t.whole for t in results)
                readers.update(t for d in drafts for t in {t.whole for t in d.reads})
            out.append(_Bands(group, readers, alignment).draft(number))
        else:
            out.append(drafts[i])
        i += len(group) + len(before) or 1
    return out


def _group(
    drafts: Sequence[Draft], start: int, shared: Callable[[Kernel], Kernel]
) -> tuple[list[tuple[Draft, Sliced]], list[Draft]]:
    """The drafts from one on that gain by going band by band, none or several; and those between
    them, which may go before."""
    product = drafts[start].product
    if product is None or not _is_short(product) or product.m < 4 * LEAST_ROWS:
        return [], []
    taken: list[tuple[Draft, Sliced]] = []
    between: list[Draft] = []
    passed: dict[Tensor, int] = {}
    last = 0, 0
    for d in drafts[start:]:
        written = {t for e, _ in taken for t in e.writes}
        given = written & {t.whole for t in d.reads}
        short = d.product is None or _is_short(d.product)
        part = sliced(d, product.m, shared) if short else None
        if part is not None and _fits(taken, d, part):
            taken.append((d, part))
        elif given or not d.operands or d.starts or len(between) == MOST_BETWEEN:
            break
        else:
            between.append(d)
        if given:
            passed |= {t: t.aval.nbytes for t in given}
            last = len(taken), len(between)
    group = taken[: last[0]]
    gains = sum(passed.values()) >= LEAST_PASSED and _band(product.m, group)
    return (group, between[: last[1]]) if gains else ([], [])


def _is_short(step: GemmStep) -> bool:
    """Whether a product is one to take in bands: of short sums, beside a small operand."""
    placed = step.axes is not None or step.frame is not None
    if step.batch or placed or step.dtype not in DTYPES or step.out != step.dtype:
        return False
    return 0 < step.k <= MOST_TERMS and step.k * step.n * step.dtype.itemsize <= MOST_RIGHT


def _fits(taken: Sequence[tuple[Draft, Sliced]], draft: Draft, part: Sliced) -> bool:
    """Whether a step's rows depend on the same rows alone of those before it."""
    written = {t for d, _ in taken for t in d.writes} | set(draft.writes)
    if any(t.base is not None for t in written):
        return False
    steps: dict[Tensor, int] = {}
    for t, span in (x for s in (*(s for _, s in taken), part) for x in s.operands):
        if t.whole in written:
            apart = 0 <= span.low <= span.high <= span.step
            if not apart or steps.setdefault(t.whole, span.step) != span.step or t.base is not None:
                return False
    return True


class _Bands:
    """A group of steps, the rows of a band, and places in the memory of a band."""

    def __init__(
        self, group: Sequence[tuple[Draft, Sliced]], readers: Counter[Tensor], alignment: int
    ):
        self.group = group
        self.rows = group[0][1].rows
        steps = {t.whole: span.step for _, s in group for t, span in s.operands}
        self.band = _band(self.rows, group)
        self.written = {t for d, _ in group for t in d.writes}
        inside = Counter(t for d, _ in group for t in {t.whole for t in d.reads})
        own = [t for d, _ in group for t in d.writes if readers[t] == inside[t]]
        # What only these steps read: where it lies in the memory of a band, or, better, in whose
        # memory of those that others read. (Products fetch what they will write over; kernels
        # would wait for it.)
        self.own: dict[Tensor, int | Tensor] = {}
        self.size = 0
        over = self._successors(set(own), steps)
        for t in reversed(own):
            w = over.get(t)
            if w is not None:
                self.own[t] = self.own.get(w, w)
                continue
            self.own[t] = self.size
            self.size += -(-self.band * steps[t] // alignment) * alignment

    def _successors(self, own: set[Tensor], steps: dict[Tensor, int]) -> dict[Tensor, Tensor]:
        """What is written over each of these, element by element, by its last reader."""
        found: dict[Tensor, Tensor] = {}
        for i, (d, _) in enumerate(self.group):
            later = {t.whole for e, _ in self.group[i + 1 :] for t in e.reads}
            for w, r in d.in_place:
                once = sum(t.whole is r for t in d.reads) == 1
                free = r in own and r not in later and r not in found and w not in found.values()
                if once and free and w.base is None and steps[w] == steps[r]:
                    found[r] = w
        return found

    def draft(self, number: Callable[[], int]) -> Draft:
        """The loop over bands, and one of a last band with fewer rows, as a step."""
        whole, rest = divmod(self.rows, self.band)
        loops = [(number(), 0, whole, self.band)]
        if rest:
            loops.append((number(), whole * self.band, 1, rest))
        built = [[s.build(rows) for _, s in self.group] for _, _, _, rows in loops]

        def make(inner: list[tuple[Step, ...]]) -> list[Step]:
            out: list[Step] = []
            for (n, first, count, rows), steps in zip(loops, built, strict=True):
                body = []
                for (_, s), build in zip(self.group, steps, strict=True):
                    refs = [self._at(t, span.step, n, first, rows) for t, span in s.operands]
                    body.append(build(refs))
                out.append(LoopStep(n, count, tuple(body), True, self.size))
            return out

        reads = [t for d, _ in self.group for t in d.reads if t not in self.written]
        writes = [t for d, _ in self.group for t in d.writes if t not in self.own]
        # One that others of the group lived in before takes nobody's memory.
        taken = {*self.own, *self.own.values()}
        pairs = [(w, r) for d, _ in self.group for w, r in d.in_place
                 if w not in taken and r not in self.written]  # fmt: skip
        return Draft(reads, writes, make, pairs)

    def _at(self, t: Tensor, step: int, number: int, first: int, rows: int) -> Ref:
        """Where a band's part of an array begins."""
        home = self.own.get(t, t)
        if isinstance(home, int):
            return Ref("band", number, home)
        ref = moved(home.place, first * step)
        return replace(ref, strides=(*ref.strides, (number, rows * step))) if step else ref


def _band(rows: int, taken: Sequence[tuple[Draft, Sliced]]) -> int:
    """The rows of a band, if possible a divisor of all; 0 if the last one would have few rows.

    Those might be multiplied and reduced in another way, which adds in another order.
    """
    steps = {t.whole: abs(span.step) for _, s in taken for t, span in s.operands}
    most = min(MOST_ROWS, rows // 4, BAND_BYTES // max(1, sum(steps.values())))
    most = max(LEAST_ROWS, most // ROW_UNIT * ROW_UNIT)
    sizes = range(most, most // 2, -ROW_UNIT)
    best = min(sizes, key=lambda n: (rows % n > 0, 0 < rows % n < LEAST_ROWS, -n))
    return 0 if 0 < rows % best < LEAST_ROWS else best
