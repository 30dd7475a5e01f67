"""Products as matrix multiplications: which axes are rows, columns and batches, and their strides.

Axes that memory runs through as one are merged; of several groups of rows (or columns) the largest
is the matrix's, the others repeat it. Transposed and broadcast operands are just other strides, and
a result whose columns lie together is written as the transposed product.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from funcgrad.backends.loops.builder import strides_of
from funcgrad.backends.lower.views import View, merged
from funcgrad.backends.program import Convolution, Frame, GemmAxes, Windows
from funcgrad.backends.target import Limits
from funcgrad.core.ir import Eqn
from funcgrad.core.record import replace

# An axis (or several): its size and the strides of lhs, rhs and result.
Span = tuple[int, int, int, int]
# Fields of a `Convolution` that have an entry for each axis.
_ALONG = ("size", "taps", "places", "strides", "padding", "dilation")


class GemmShape(NamedTuple):
    """The fields of a `GemmStep` beside its addresses; swapped: its a is the rhs, its b the lhs."""

    m: int
    n: int
    k: int
    strides: tuple[tuple[int, int], tuple[int, int], tuple[int, int]]
    batch: tuple[Span, ...]
    swapped: bool
    axes: GemmAxes | None = None
    convolution: Convolution | None = None
    windows: Windows | None = None


def gemm_shape(
    eqn: Eqn,
    operands: Sequence[tuple[View | None, tuple[int, ...]]],
    strides: Sequence[int],
    limits: Limits,
    joins: bool = False,
) -> GemmShape | None:
    """How a matrix multiplication computes a product of operands (with views of memory, or
    contiguous, and their shapes); None if the contracted axes aren't one axis of both.

    strides: of the result's axes; joins: whether rows of windows, taken in the order of the
        result's memory, are all the matrix's if it runs through them as one
    Those of pairs become strides of the complex numbers.
    """
    (lc, rc), (lb, rb) = eqn.params["dimension_numbers"]
    (left, l_shape), (right, r_shape) = operands
    a = strides_of(l_shape) if left is None else left.strides
    b = strides_of(r_shape) if right is None else right.strides
    if eqn.params["pairs"]:
        l_shape, r_shape = l_shape[:-1], r_shape[:-1]
        a, b, strides = ([s // 2 for s in x[:-1]] for x in (a, b, strides))
    # The result's strides in the order batch, free axes of lhs, of rhs: it is written permuted.
    order = eqn.params["permutation"]
    placed = dict(zip(order, strides, strict=False))
    c = iter([placed[i] for i in range(len(strides))])
    if eqn.params["gathers"]:
        made = _gathered(eqn, (l_shape, r_shape), (a, b), c, limits, joins)
        return made._replace(windows=None) if left is None else made
    l_inner = merged([(l_shape[i], a[i]) for i in lc])
    r_inner = merged([(r_shape[i], b[i]) for i in rc])
    if l_inner is None or r_inner is None:
        return None
    (k, a_k), (_, b_k) = l_inner, r_inner
    l_free = [i for i in range(len(l_shape)) if i not in lc and i not in lb]
    r_free = [i for i in range(len(r_shape)) if i not in rc and i not in rb]
    batch = [(l_shape[i], a[i], b[j], next(c)) for i, j in zip(lb, rb, strict=True)]
    rows = _merge((l_shape[i], a[i], 0, next(c)) for i in l_free)
    columns = _merge((r_shape[i], 0, b[i], next(c)) for i in r_free)
    m, a_m, _, c_m = _largest(rows, limits.lanes)
    n, _, b_n, c_n = _largest(columns, limits.lanes)
    rest, of = tuple(_merge([*batch, *rows, *columns])), eqn.params["convolution"]
    if c_m == 1 and c_n != 1:
        rest = tuple((size, right, left, out) for size, left, right, out in rest)
        return GemmShape(n, m, k, ((b_n, b_k), (a_k, a_m), (c_n, c_m)), rest, True, None, of)
    return GemmShape(m, n, k, ((a_m, a_k), (b_k, b_n), (c_m, c_n)), rest, False, None, of)


def frame_of(view: View | None, operand: int) -> Frame | None:
    """The frame of an operand that is read by a view."""
    if view is None or view.frame is None:
        return None
    return Frame(operand, view.offset, *view.frame)


def _gathered(
    eqn: Eqn,
    shapes: Sequence[tuple[int, ...]],
    strides: Sequence,
    places: Iterator[int],
    limits: Limits,
    joins: bool,
) -> GemmShape:
    """As `gemm_shape`, for operands that have rows and columns at any distances.

    places: the result's strides in the order batch, free axes of lhs, of rhs
    """
    (contract, batched), (left, right) = eqn.params["dimension_numbers"], shapes
    a, b = strides
    rest = [(left[i], a[i], b[j], next(places)) for i, j in zip(*batched, strict=True)]
    phases = rest[1:]
    free = [
        [i for i in range(len(shape)) if i not in (*contract[side], *batched[side])]
        for side, shape in enumerate(shapes)
    ]
    spans = [(left[i], a[i], 0, next(places)) for i in free[0]]
    row_groups = _groups(spans)
    if joins:
        joined = _groups(sorted(spans, key=lambda span: -span[3]))
        # As columns of a product, rows that fill registers are read more quickly by themselves.
        fill = any(math.prod(s[0] for s in g) > limits.lanes and g[-1][3] == 1 for g in row_groups)
        size = math.prod(s[0] for s in spans) * math.prod(right[i] for i in free[1])
        fits = len(joined) == 1 and size <= limits.joined
        row_groups = joined if fits and not fill else row_groups
    column_groups = _groups((right[i], 0, b[i], next(places)) for i in free[1])
    rows, columns = (_take_largest(g, limits.lanes) for g in (row_groups, column_groups))
    rest += [span for group in (*row_groups, *column_groups) for span in group]
    inner = [(left[i], a[i], b[j], 0) for i, j in zip(*contract, strict=True)]
    m, n, k = (_merge(spans) or [(1, 1, 1, 1)] for spans in (rows, columns, inner))
    windows, c_m, c_n = None, m[-1][3], n[-1][3]
    batch, swapped = _merge(rest), c_m == 1 and c_n != 1
    if swapped:
        m, n, c_m, c_n = n, m, c_n, c_m
        m, n, k, batch = ([(s, y, x, z) for s, x, y, z in spans] for spans in (m, n, k, batch))
    of = eqn.params["convolution"]
    if eqn.params["windows"]:
        taken = [i for row in rows for i, span in enumerate(spans) if span is row]
        of, windows = _windows(of, int(swapped), a, taken, (phases, spans))
    size_m, size_n, size_k = (math.prod(span[0] for span in spans) for spans in (m, n, k))
    # Many products with the same kernel go a way of their own, which takes axes.
    if max(len(m), len(n), len(k)) == 1 and not batch:
        plain = ((m[0][1], k[0][1]), (k[0][2], n[0][2]), (c_m, c_n))
        return GemmShape(size_m, size_n, size_k, plain, (), swapped, None, of, windows)
    axes = GemmAxes(
        tuple((s, x) for s, x, _, _ in m),
        tuple((s, y) for s, _, y, _ in n),
        tuple((s, x, y) for s, x, y, _ in k),
    )
    apart = ((0, 0), (0, 0), (c_m, c_n))
    return GemmShape(size_m, size_n, size_k, apart, tuple(batch), swapped, axes, of, windows)


def _windows(
    of: Convolution,
    operand: int,
    strides: Sequence,
    rows: list[int],
    spans: tuple[list[Span], list[Span]],
) -> tuple[Convolution, Windows]:
    """A convolution and where a product has its windows, from the strides of an operand that has
    axes as `windows_p` gives them, and which of its images and places are rows. Axes of one place
    and one tap, along which nothing moves, are left out of both.

    spans: of phases; of images and places
    """
    kept = [i for i, sizes in enumerate(zip(of.taps, of.places, strict=True)) if max(sizes) > 1]
    axes = {name: tuple(getattr(of, name)[i] for i in kept) for name in _ALONG}
    first = 2 + len(of.phases)
    steps = (strides[1], strides[-1], *(strides[first + i] for i in kept))
    taken = tuple(i and 1 + kept.index(i - 1) for i in rows)
    phases, (images, *places) = spans
    results = (span[3] for span in (images, *phases, *(places[i] for i in kept)))
    kernels = tuple(span[2] for span in phases)
    return replace(of, **axes), Windows(operand, steps, taken, tuple(results), kernels)


def _groups(spans: Iterable[Span]) -> list[list[Span]]:
    """Neighbours that the result's memory runs through as one; axes of size 1 left out."""
    out: list[list[Span]] = []
    for span in spans:
        if span[0] == 1:
            continue
        if out and out[-1][-1][3] == span[3] * span[0]:
            out[-1].append(span)
        else:
            out.append([span])
    return out


def _take_largest(groups: list[list[Span]], lanes: int) -> list[Span]:
    """Take out the largest group; of those that fill registers, one whose elements lie together."""
    if not groups:
        return []

    def rank(i: int) -> tuple[bool, int]:
        size = math.prod(span[0] for span in groups[i])
        return size >= lanes and groups[i][-1][3] == 1, size

    return groups.pop(max(range(len(groups)), key=rank))


def _merge(spans: Iterable[Span]) -> list[Span]:
    """Neighbours joined where all strides allow it; axes of size 1 left out."""
    out: list[Span] = []
    for n, *steps in spans:
        if n == 1:
            continue
        if out and all(s == t * n for s, t in zip(out[-1][1:], steps, strict=True)):
            out[-1] = (out[-1][0] * n, *steps)  # type: ignore[assignment]
        else:
            out.append((n, *steps))  # type: ignore[arg-type]
    return out


def _largest(spans: list[Span], lanes: int) -> Span:
    """As `_take_largest`, of spans that are one axis each."""
    if not spans:
        return (1, 1, 1, 1)

    def rank(i: int) -> tuple[bool, int]:
        size, *steps = spans[i]
        return size >= lanes and steps[2] == 1 and 1 in steps[:2], size

    return spans.pop(max(range(len(spans)), key=rank))
