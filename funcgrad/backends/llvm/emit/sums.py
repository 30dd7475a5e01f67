"""Long sums of floats in blocks, each summed by itself.

Rounding errors grow with the additions that follow one another. A vectorized loop adds into as many
sums as its registers hold; of blocks of so many additions into each, and of blocks of those, the
sums are added in turn. So a sum of n numbers takes some hundred additions one after the other,
whatever n, at no cost beside the memory's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from funcgrad.backends.llvm.emit.text import Function, constant
from funcgrad.backends.loops.ir import Carry, Loop, While

# Additions in a row. A loop that is vectorized adds into several vectors at a time: of 128 bits
# LLVM takes two, of wider ones four. In each turn of a loop around others there are some.
IN_A_ROW, AROUND = 64, 8

Run = Callable[[str, str, Sequence[str]], list[str]]
Adds = Callable[[Carry, str, str], str]


def sum_blocks(s: Loop, vector_bits: int) -> list[int]:
    """In turns of how many a loop is cut into blocks, largest first; [] where it is not.

    All that it carries must be sums, of floats some.
    """
    sums = s.parallel and all(c.combine == "add" for c in s.carries)
    if not sums or not any(c.inside.dtype.kind == "f" for c in s.carries):
        return []
    innermost = not any(isinstance(b, Loop | While) for b in s.body)
    width = max(c.inside.dtype.itemsize for c in s.carries)
    lanes = (2 if vector_bits == 128 else 4) * vector_bits // (8 * width)
    block = IN_A_ROW * lanes if innermost else AROUND
    return [n for n in (block * IN_A_ROW, block) if n < s.size]


def in_blocks(
    f: Function, s: Loop, bounds: tuple[str, str], blocks: Sequence[int], whole: int, run: Run,
    outer: Callable[..., list[str]], add: Adds,
) -> list[str]:  # fmt: skip
    """What the loop's sums are from nothing, over turns [start, stop), at most `whole` of them.

    run(start, stop, starts): the loop itself. outer(turns, body, starts): a loop around it
    """
    zeros = [constant(-0.0 if c.inside.dtype.kind == "f" else 0, c.inside.dtype) for c in s.carries]
    start, stop = bounds
    if not blocks:
        return run(start, stop, zeros)
    size, fixed = blocks[0], start == "0" and stop.isdecimal()
    if size >= whole:
        return in_blocks(f, s, bounds, blocks[1:], whole, run, outer, add)
    count = str(-(-whole // size))
    if not fixed:
        turns = f.let(f"sub nsw i64 {stop}, {start}")
        count = f.let(f"udiv i64 {f.let(f'add nuw nsw i64 {turns}, {size - 1}')}, {size}")

    def turn(i: str, *totals: str) -> list[str]:
        low = f.let(f"mul nuw nsw i64 {i}, {size}")
        low = low if start == "0" else f.let(f"add nuw nsw i64 {low}, {start}")
        high = f.let(f"add nuw nsw i64 {low}, {size}")
        if not fixed or whole % size:
            high = f.intrinsic("smin", "i64", high, stop)
        sums = in_blocks(f, s, (low, high), blocks[1:], size, run, outer, add)
        return [add(c, t, x) for c, t, x in zip(s.carries, totals, sums, strict=True)]

    return outer(count, turn, zeros)
