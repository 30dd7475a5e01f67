"""Memory that attention needs soon, fetched while products are computed.

A task says which rows of arrays come after a block of products: those of the next block, or of the
item that the thread will probably take next. A few of them are fetched after each register tile:
memory then has all the time that products take, and they don't wait for it. (Length 256, one
thread: packing and writing took a fifth of the forward pass, two thirds of that only to wait. What
fetching costs is about what it gains there; the backward pass gains some 5 %.)
"""

from __future__ import annotations

from funcgrad.backends.llvm.attention.parts import Attention
from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.code import I64, PTR, Code, Int, Record

I8 = ir.IntType(8)
LINE = 64  # bytes that come at a time
SLOT = ("first", "apart", "rows")
# What is left of all, how much comes at a time, bytes of a row, the slot in turn; then the slots.
HEAD = ("left", "step", "bytes", "slot")


class Ahead:
    """Up to so many pieces of arrays, each some rows; written into a task's function."""

    def __init__(self, parts: Attention, code: Code, call: Record, slots: int):
        self.parts, self.code, self.call = parts, code, call
        words = (*HEAD, *(f"{x}{i}" for i in range(slots) for x in SLOT))
        memory = code.variable(I64, count=len(words)).slot
        self.words = Record(code, words, memory)
        self.words["left"] = 0
        self.words["bytes"] = call["features"] * parts.fmt.bytes

    def begin(self) -> None:
        """Forget what was left."""
        self.words["left"] = self.words["slot"] = 0

    def add(self, i: int, name: str, place: tuple[Int, Int, Int], rows: Int) -> None:
        """Piece number i: rows of an array from (batch, place, head) on; none if their features are
        apart."""
        code, call, words = self.code, self.call, self.words
        near = call[f"{name}_feature"].eq(1)
        count = near.select(rows.max(0), 0)
        words[f"first{i}"] = self.parts.pointer(code, call, name, place)
        words[f"apart{i}"] = call[f"{name}_place"] * self.parts.fmt.bytes
        words[f"rows{i}"] = count
        words["left"] = words["left"] + count

    def spread(self, tiles: Int) -> None:
        """All that was added comes with so many tiles."""
        self.words["step"] = self.words["left"].ceil_div(tiles.max(1))

    def fetch(self) -> None:
        """The next few rows, if any are left."""
        with self.code.when(self.words["left"] > 0):
            self.code.call(self.parts.once("fetch", self._fetch), self.words.pointer)

    def _fetch(self, name: str) -> ir.Function:
        """void(words): the next rows of the slot in turn."""
        code = Code(self.parts.module, name, [PTR])
        words = Record(code, self.words.fields, code.args[0])
        slot = words["slot"]
        p = code.at(code.args[0], slot * len(SLOT) + len(HEAD), I64)
        piece = Record(code, SLOT, p)
        rows, apart = piece["rows"], piece["apart"]
        count = rows.min(words["step"])
        first = piece.pointer_at("first")
        with code.range(0, count) as i:
            row = code.at(first, i * apart, I8)
            with code.range(0, words["bytes"], LINE) as j:
                code.prefetch(code.at(row, j, I8))
        piece["first"] = code.at(first, count * apart, I8)
        piece["rows"] = rows - count
        words["left"] = words["left"] - count
        words["slot"] = slot + count.eq(rows).select(1, 0)
        code.ret()
        return code.function
