"""What the backward pass of attention keeps of rows of queries: Σ out·ct, and sums of dq.

Where a key head is one range of keys, its task computes the former as it first meets the queries,
and the latter stay in the task's memory. Otherwise they are loops of their own, before and after.
"""

from __future__ import annotations

from typing import Protocol

from funcgrad.backends.llvm.attention.parts import CALL, Attention
from funcgrad.backends.llvm.drafts.cuts import PACKED
from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.code import I32, I64, PTR, Bool, Code, Int, Record

# Tiles of queries at a time, and how many queries an item of the loops of their own has.
TILES, QUERIES = 10, 256


class OfHead(Protocol):
    """A key head of an item of the batch, and the sums of dq that its task has."""

    @property
    def batch(self) -> Int:
        """The item of the batch."""

    @property
    def key_head(self) -> Int:
        """The number of the key head."""

    @property
    def dq(self) -> ir.Value:
        """The sums of dq that the task has."""


class Rows:
    """Writes `delta` and `finish`, functions of some queries of a head, and says where rows are.

    block: how many queries are met at a time
    """

    def __init__(self, parts: Attention):
        self.parts, self.block = parts, parts.rows * TILES
        self.delta, self.finish = self._delta(), self._finish()

    def sums(self, code: Code, call: Record, b: OfHead, number: Int, g: Int) -> ir.Value:
        """The sums of dq of a range and head number g of a key head: rows of `size` elements."""
        group = call["heads"] // call["key_heads"]
        rows = call["queries"].round_up(self.parts.rows)
        own = code.at(b.dq, g * rows * self.size(call), self.parts.acc)
        of_all = self._all_sums(code, call, number, b.batch, b.key_head * group + g)
        return self.keeps(call).pick(own, of_all)

    def _all_sums(self, code: Code, call: Record, number: Int, batch: Int, head: Int) -> ir.Value:
        items = call["batch"] * call["heads"]
        item = (number * call["batch"] + batch) * call["heads"] + head
        rows = call["queries"].round_up(self.parts.rows)
        at = items * call["queries"] + item * rows * self.size(call)
        return code.at(call.pointer_at("scratch"), at, self.parts.acc)

    def size(self, call: Record) -> Int:
        """How many elements a row of sums has."""
        return call["features"].round_up(self.parts.cols)

    def keeps(self, call: Record) -> Bool:
        """Whether sums of dq are the task's own."""
        return self.packed(call)[0] & call["ranges"].eq(1)

    def packed(self, call: Record) -> tuple[Bool, Int, Int]:
        """Whether all queries of a key head are packed at once, of how many heads they are then,
        and for how many of each there is room: a multiple of a tile's rows."""
        queries, group = call["queries"], call["heads"] // call["key_heads"]
        at_once = queries * group <= PACKED
        room = at_once.select(queries.round_up(self.parts.rows), self.block)
        return at_once, at_once.select(group, 1), room

    def task(self, name: str) -> ir.Function:
        """The task whose items are some queries of a head each, for which it calls a function of
        that name."""
        parts = self.parts
        code, call = parts.task(f"{name}_task")
        small = call["queries"].ceil_div(QUERIES)
        with parts.items(code) as (i, _):
            start, item = i % small * QUERIES, i // small
            batch, head = item // call["heads"], item % call["heads"]
            where = batch, head, start, (start + QUERIES).min(call["queries"])
            if name == "delta":
                code.call(self.delta, call.pointer, *where)
            else:
                sums = self._all_sums(code, call, code.i64(0), batch, head)
                code.call(self.finish, call.pointer, sums, *where)
        code.ret()
        return code.function

    def deltas(self, code: Code, call: Record, batch: Int, head: Int, t: Int) -> ir.Value:
        """Where the number of a row is."""
        at = (batch * call["heads"] + head) * call["queries"] + t
        return code.at(call.pointer_at("scratch"), at, self.parts.acc)

    def _delta(self) -> ir.Function:
        """void(call, batch, head, start, stop): Σ out·ct of each row."""
        code = Code(self.parts.module, "delta", [PTR, *[I64] * 4])
        pointer, batch, head, start, stop = code.args
        call, parts, lanes = Record(code, CALL, pointer), self.parts, self.parts.lanes
        h, storage = call["features"], parts.fmt.storage
        unit = call["out_feature"].eq(1) & call["ct_feature"].eq(1)
        whole = unit.select(h // lanes * lanes, 0)
        wide = ir.VectorType(storage, lanes)
        with code.range(start, stop) as t:
            out, ct = (parts.pointer(code, call, x, (batch, t, head)) for x in ("out", "ct"))
            many = code.variable(parts.vec, ir.Constant(parts.vec, None))
            one = code.variable(parts.acc, ir.Constant(parts.acc, 0.0))
            with code.range(0, whole, lanes) as j:
                x, y = (parts.widened(code, code.at(p, j, storage), wide) for p in (out, ct))
                many.set(parts.fma(code, x, y, many.get()))
            with code.range(whole, h) as j:
                x = parts.widened(code, code.at(out, j * call["out_feature"], storage), storage)
                y = parts.widened(code, code.at(ct, j * call["ct_feature"], storage), storage)
                one.set(code.b.fadd(one.get(), code.b.fmul(x, y)))
            total = code.b.fadd(code.lane_sum(many.get()), one.get())
            code.store(total, self.deltas(code, call, batch, head, t))
        code.ret()
        code.function.attributes.add("noinline")
        return code.function

    def _finish(self) -> ir.Function:
        """void(call, sums, batch, head, start, stop): dq = scale · the sums of all ranges, the
        first of which are given."""
        code = Code(self.parts.module, "finish", [PTR, PTR, *[I64] * 4])
        pointer, first, batch, head, start, stop = code.args
        call, parts, lanes = Record(code, CALL, pointer), self.parts, self.parts.lanes
        h, storage = call["features"], parts.fmt.storage
        scale = parts.scale(code, call)
        one_scale = code.b.extract_element(scale, I32(0))
        whole = call["dq_feature"].eq(1).select(h // lanes * lanes, 0)
        rows = call["queries"].round_up(parts.rows)
        apart = call["batch"] * call["heads"] * rows * self.size(call)
        with code.range(start, stop) as t:
            row = code.at(first, t * self.size(call), parts.acc)
            to = parts.pointer(code, call, "dq", (batch, t, head))

            def total(j: Int, kind: ir.Type, row: ir.Value = row) -> ir.Value:
                sums = code.variable(kind, ir.Constant(kind, None))
                with code.range(0, call["ranges"]) as r:
                    p = code.at(row, r * apart + j, parts.acc)
                    sums.set(code.b.fadd(sums.get(), code.load(p, kind, parts.width)))
                return sums.get()

            with code.range(0, whole, lanes) as j:
                x = code.b.fmul(total(j, parts.vec), scale)
                parts.write(code, x, code.at(to, j, storage))
            with code.range(whole, h) as j:
                x = code.b.fmul(total(j, parts.acc), one_scale)
                parts.write(code, x, code.at(to, j * call["dq_feature"], storage))
        code.ret()
        code.function.attributes.add("noinline")
        return code.function
