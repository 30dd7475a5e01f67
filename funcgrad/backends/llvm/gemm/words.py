"""The records in memory that all of the generated GEMM shares: the words of a call and of a job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from funcgrad.errors import IRError

if TYPE_CHECKING:
    from funcgrad.backends.program import GemmAxes

CALL = (
    "batch0", "batch1", "m", "n", "k",
    "a", "a_b0", "a_b1", "a_rs", "a_cs",
    "b", "b_b0", "b_b1", "b_rs", "b_cs",
    "c", "c_b0", "c_b1", "c_rs", "c_cs",
    "add",
    # 0, or the address of `AXES`, which then take the place of the strides of a and b.
    "axes",
    # 0, or the address of `frames.FRAME`: windows' strides are in an array with zeros around
    # what is in memory. Of all ways, strips and those by tiles alone take it.
    "frame",
    # 0, or the form of products of windows that `tiles` knows; and in which operand windows are
    # that overlap: 1 a, 2 b; 0 if there are none.
    "tiled", "windows",
    # `FINISH`
    "finish", "around", "apart",
)  # fmt: skip
# Each matrix axis as MAX_AXES axes, outermost first: their sizes, then their strides.
MAX_AXES = 6
AXES = ("m_sizes", "m_a", "n_sizes", "n_b", "k_sizes", "k_a", "k_b")
# Tables made of them: where each row and each column of an operand begins; 0 if there are none.
TABLES = ("a_rows", "a_ks", "b_ks", "b_cols")
# How many rows of a, and columns of b, follow each other in a line of memory, one or two elements
# apart, where lines are as many apart, or a multiple; 0 if none do.
INNER = ("m_inner", "m_step", "n_inner", "n_step")
# What is known of a frame before: 0, or 1 if it is a's, 2 if it is b's.
FRAMED = "framed"
SHARED = (*CALL, *TABLES, *INNER)
# Of the packed way, for sums that something is made of row by row when they are whole: 0, or the
# address of void(ptr around, i64 begin, i64 end, ptr c), which makes it of the rows [begin, end) of
# sums at c, n apart; what it is called with; whether c is these rows' alone, and nowhere else.
FINISH = ("finish", "around", "apart")
OUT = ("out", "out_rs", "out_cs", "out_add")
JOB = (
    # Of the call that it is a product of.
    *SHARED,
    # The block in hand of the packed way: offsets and sizes, packed operands, tiling.
    "jc", "ic", "ko", "nl", "ml", "kl", "pa", "pb", "pa_step", "pb_step",
    "a_parts", "mt", "nt", "row_tiles", "prepacked", "by_rows",
    # How many panels of A, or tasks, are taken, from the front and (in the upper half) from the
    # back; how many tasks there are; whether they pack panels of A for each other, and where the
    # states of these are.
    "taken", "tasks", "lazy", "states",
    # Where the sums in c are to be rounded to, beside or (if "out_add") on what is there; 0 if they
    # aren't, or are already. Whether each tile's are when it is done.
    *OUT, "rounds",
)  # fmt: skip
THIN = 8  # rows of A up to which B is not worth packing
SMALL_WORK = 96**3  # multiply-adds up to which packing costs more than it saves
SERIAL_WORK = 1 << 17  # below this many a second thread is no gain
BATCH_WORK = 1 << 24  # products up to this size are spread over threads as wholes
# Multiply-adds of small products that follow each other in a thread, where there are enough: a
# processor's own prefetching begins anew behind them.
BATCH_PART = 1 << 19


def inner_words(axes: GemmAxes) -> dict[str, int]:
    """The words of `INNER`.

    >>> from funcgrad.backends.program import GemmAxes
    >>> inner_words(GemmAxes(m=((3, 40), (5, 1)), n=((2, 30),), k=((4, 2, 1),)))
    {'m_inner': 5, 'm_step': 1, 'n_inner': 0, 'n_step': 1}
    """
    words = []
    for spans in (axes.m, axes.n):
        size, step = spans[-1]
        fits = step in (1, 2) and all(s % step == 0 for n, s in spans if n > 1)
        words += [size, step] if fits else [0, 1]
    return dict(zip(INNER, words, strict=True))


def axes_words(axes: GemmAxes) -> list[int]:
    """The words of `AXES`. IRError for more axes than they hold."""
    words = []
    for spans in (axes.m, axes.n, axes.k):
        if len(spans) > MAX_AXES:
            raise IRError(f"a product's operand has {len(spans)} axes; {MAX_AXES} is the most")
        filled = [(1,) * len(spans[0])] * (MAX_AXES - len(spans)) + list(spans)
        words += [span[i] for i in range(len(spans[0])) for span in filled]
    return words
