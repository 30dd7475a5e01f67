"""Attention backward: blocks of keys outside, blocks of queries inside, weights computed anew.

Here keys are lanes. An item has all queries of one range of keys (of a batch's item and key head):
it owns their dk and dv, and adds to sums of dq of its own, which are summed over ranges in the end.
So no two items write to one place, and the order of sums depends on shapes alone. (Dao,
"FlashAttention-2", 2023.) Where a head is one range, its sums needn't leave the cache.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from funcgrad.backends.llvm.attention.ahead import Ahead
from funcgrad.backends.llvm.attention.pairs import CHUNK, Pairs
from funcgrad.backends.llvm.attention.parts import CALL, Attention
from funcgrad.backends.llvm.attention.rows import QUERIES, Rows
from funcgrad.backends.llvm.attention.tiles import Tiles
from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.code import I64, PTR, Code, Int, Record, Variable

PANELS = 4  # of keys at a time


class _Task(NamedTuple):
    """A task's place, and its memory."""

    batch: Int
    key_head: Int
    queries: Int
    keys: Int
    kt: ir.Value  # keys as columns, values as columns
    vt: ir.Value
    k: ir.Value  # keys as rows
    dk: ir.Value  # sums, [key][feature]
    dv: ir.Value
    q: ir.Value  # queries as rows, cotangents as rows: all (see `PACKED`), or those of a block
    ct: ir.Value
    top: ir.Value  # of each query
    log_sum: ir.Value  # to base 2
    delta: ir.Value
    weights: ir.Value  # [query][key] of a panel
    ds: ir.Value  # the cotangents of scores, [panel][query][key]
    dq: ir.Value  # sums, [head][query][feature], where they are the task's
    bias: ir.Value
    mask: ir.Value


class _Span(NamedTuple):
    """Keys [s, s + n) and queries [t, t + m)."""

    s: Int
    n: Int
    t: Int
    m: Int


class Backward:
    """Writes `function`: void(ptr call); pairs: with a bias or mask or both."""

    def __init__(self, parts: Attention, symbol: str, pairs: bool):
        self.parts = parts
        self.pairs = Pairs(parts, "key") if pairs else None
        self.rows, self.tiles = Rows(parts), Tiles(parts)
        self.q_block, self.k_block = self.rows.block, parts.cols * PANELS
        # How far panels of scores are apart: tiles write rows behind the last.
        self.panel = (self.q_block + parts.rows + parts.lanes) * parts.cols
        self.weigh, self.add = self._weigh(), self.pairs.add() if self.pairs else None
        delta, finish, task = self.rows.task("delta"), self.rows.task("finish"), self._task()
        code = Code(parts.module, symbol, [PTR], public=True)
        call = Record(code, CALL, code.args[0])
        small = call["batch"] * call["heads"] * call["queries"].ceil_div(QUERIES)
        several = call["ranges"] > 1
        with code.when(several):
            parts.loop(code, delta, code.args[0], small)
        if self.pairs is not None:
            clear = self.pairs.clear()
            parts.loop(code, clear, code.args[0], call["dbias_size"].ceil_div(CHUNK))
        parts.loop(code, task, code.args[0], self._items(call))
        with code.when(several):
            parts.loop(code, finish, code.args[0], small)
        code.ret()
        self.function = code.function
        parts.room(f"{symbol}_room", self._sizes, self._items)

    def _items(self, call: Record) -> Int:
        heads = call["key_heads"] // call["shared_heads"]
        return call["batch"] // call["shared_batch"] * heads * call["ranges"]

    def _sizes(self, code: Code, call: Record) -> list[Int]:
        """Of the places in a task's memory, as `_Task` has them."""
        parts, h, cols = self.parts, call["features"], self.parts.cols
        columns = parts.panel(cols, h) * PANELS
        keys = parts.panel(cols, code.i64(self.k_block)) * h.ceil_div(cols)
        sums = self.rows.size(call) * self.k_block
        _, heads, span = self.rows.packed(call)
        queries = self.tiles.step(span) * h.ceil_div(cols) * heads
        dq = self.rows.keeps(call).select(span * heads * self.rows.size(call), 0)
        pairs = self.pairs.room(code, self.q_block) if self.pairs else code.i64(0)
        return [columns, columns, keys, sums, sums, queries, queries,
                *[code.i64(self.q_block)] * 3, code.i64(self.panel),
                code.i64(self.panel * PANELS), dq, pairs, pairs]  # fmt: skip

    def _task(self) -> ir.Function:
        """Takes items: a range of keys of a key head each, or of several that share a bias."""
        parts = self.parts
        code, call = parts.task("backward_task")
        memory, places = parts.memory(code, self._sizes(code, call))
        ahead = Ahead(parts, code, call, 7)
        with parts.items(code) as (i, after):
            number, batch, key_head = self._place(call, i)
            with (
                code.range(batch, batch + call["shared_batch"]) as batch,
                code.range(key_head, key_head + call["shared_heads"]) as key_head,
            ):
                queries, keys = parts.limits(code, call, batch)
                task = _Task(batch, key_head, queries, keys, *places)
                self._item(code, call, task, number, after, ahead)
        code.call(parts.give, memory)
        code.ret()
        return code.function

    def _place(self, call: Record, i: Int) -> tuple[Int, Int, Int]:
        """Range, and the first item of the batch and key head, of an item."""
        rest, many = i // call["ranges"], call["key_heads"] // call["shared_heads"]
        batch, head = rest // many * call["shared_batch"], rest % many * call["shared_heads"]
        return i % call["ranges"], batch, head

    def _range(self, call: Record, number: Int) -> tuple[Int, Int]:
        """The first key of a range, and the one behind its last."""
        span = call["keys"].ceil_div(call["ranges"]).round_up(self.k_block)
        start = number * span
        return start, (start + span).min(call["keys"])

    def _item(self, code: Code, call: Record, b: _Task, number: Int, after: Int,
              ahead: Ahead) -> None:  # fmt: skip
        """A range of keys of one key head."""
        parts, group = self.parts, call["heads"] // call["key_heads"]
        size = call["queries"].round_up(parts.rows) * self.rows.size(call)
        with code.range(0, group) as g:
            parts.zero(code, self.rows.sums(code, call, b, number, g), size)
        start, stop = self._range(call, number)
        met = code.variable(I64, I64(0))
        with code.range(start, stop, self.k_block) as s:
            n = (call["keys"] - s).min(self.k_block)
            self._keys(code, call, b, number, s, n, met, after, ahead)
        with code.when(call["ranges"].eq(1)), code.range(0, group) as g:
            sums = self.rows.sums(code, call, b, number, g)
            code.call(self.rows.finish, call.pointer, sums, b.batch, b.key_head * group + g, 0,
                      call["queries"])  # fmt: skip

    def _keys(self, code: Code, call: Record, b: _Task, number: Int, s: Int, n: Int,
              met: Variable, after: Int, ahead: Ahead) -> None:  # fmt: skip
        """A block of keys with all queries that see one of them.

        met: queries before this one were in an earlier block of keys, so they are packed and known
        """
        parts, h, cols = self.parts, call["features"], self.parts.cols
        step, k_step = parts.panel(cols, h), parts.panel(cols, code.i64(self.k_block))
        for name, to in (("k", b.kt), ("v", b.vt)):
            p = parts.pointer(code, call, name, (b.batch, s, b.key_head))
            code.call(parts.pack_columns, to, p, n, h, call[f"{name}_place"],
                      call[f"{name}_feature"], step)  # fmt: skip
        p = parts.pointer(code, call, "k", (b.batch, s, b.key_head))
        code.call(parts.pack_columns, b.k, p, h, n, call["k_feature"], call["k_place"], k_step)
        for sums in (b.dk, b.dv):
            parts.zero(code, sums, n.round_up(cols) * self.rows.size(call))
        # t sees a key from s on where t + last > s, and one before its end where t + first < end.
        end = (s + n).min(b.keys)
        low = (s - call["last"] + 1).max(0) // parts.rows * parts.rows
        high = (end - call["first"]).max(0).min(b.queries)
        high = (s < b.keys).select(high, 0)
        before = Int(code, met.get())
        with (
            code.range(0, call["heads"] // call["key_heads"]) as g,
            code.range(low, high, self.q_block) as t,
        ):
            m = (high - t).min(self.q_block)
            at = _Span(s, n, t, m)
            self._soon(code, call, b, number, g, at, (low, high, before), after, ahead)
            self._queries(code, call, b, number, g, at, before, ahead)
        met.set(before.max(high))
        self.tiles.write_keys(code, call, b, s, n)

    def _soon(self, code: Code, call: Record, b: _Task, number: Int, g: Int, at: _Span,
              span: tuple[Int, Int, Int], after: Int, ahead: Ahead) -> None:  # fmt: skip
        """What is needed after a block of queries: the next one, if it is new, or results' places
        and the next block of keys, or the next item's first blocks.

        span: queries that see keys of the block, and how many were met before
        """
        low, high, before = span
        group, next_t = call["heads"] // call["key_heads"], at.t + self.q_block
        head = b.key_head * group + g
        ahead.begin()
        more = next_t < high
        there = more | (g + 1 < group)
        x, t = more.select(head, head + 1), more.select(next_t, low)
        t = t.max(before)
        count = there.select((high - t).min(self.q_block), 0)
        for i, name in enumerate(("q", "ct", "out")):
            ahead.add(i, name, (b.batch, t, x), count)
        start, stop = self._range(call, number)
        with code.when(~there):
            ahead.begin()
            for i, name in enumerate(("dk", "dv")):
                ahead.add(i, name, (b.batch, at.s, b.key_head), at.n)
            next_s = at.s + self.k_block
            with code.either(next_s < stop) as (yes, no):
                with yes:
                    for i, name in enumerate("kv", 2):
                        where = (b.batch, next_s, b.key_head)
                        ahead.add(i, name, where, (stop - next_s).min(self.k_block))
                with no:
                    there = after < self._items(call)
                    number, batch, key_head = self._place(call, there.select(after, 0))
                    start, stop = self._range(call, number)
                    count = there.select((stop - start).min(self.k_block), 0)
                    for i, name in enumerate("kv", 2):
                        ahead.add(i, name, (batch, start, key_head), count)
                    count = there.select(call["queries"].min(self.q_block), 0)
                    for i, name in enumerate(("q", "ct", "out"), 4):
                        ahead.add(i, name, (batch, code.i64(0), key_head * group), count)
        cols, rows = self.parts.cols, self.parts.rows
        tiles = (at.m.ceil_div(rows) + call["features"].ceil_div(cols) * -(-cols // rows)) * 2
        ahead.spread(at.n.ceil_div(self.parts.cols) * tiles)

    def _packed(self, code: Code, call: Record, b: _Task, g: Int, t: Int) -> _Task:
        """With the places of the packed queries, from number t on, of head number g of those that
        share a key head."""
        parts, step = self.parts, self._query_step(call)
        at = g * (step * call["features"].ceil_div(parts.cols)) + t * parts.cols
        return b._replace(q=code.at(b.q, at, parts.acc), ct=code.at(b.ct, at, parts.acc))

    def _query_step(self, call: Record) -> Int:
        """How far panels of queries are apart."""
        return self.tiles.step(self.rows.packed(call)[2])

    def _pack(self, code: Code, call: Record, b: _Task, head: Int, t: Int, m: Int) -> None:
        """Queries [t, t + m) of a head, and their cotangents."""
        parts, h, step = self.parts, call["features"], self._query_step(call)
        for name, to in (("q", b.q), ("ct", b.ct)):
            p = parts.pointer(code, call, name, (b.batch, t, head))
            code.call(parts.pack_columns, to, p, h, m, call[f"{name}_feature"],
                      call[f"{name}_place"], step)  # fmt: skip

    def _queries(self, code: Code, call: Record, b: _Task, number: Int, g: Int,
                 at: _Span, before: Int, ahead: Ahead) -> None:  # fmt: skip
        """A block of queries, of head number g of those that share a key head, with a block of
        keys."""
        parts, group = self.parts, call["heads"] // call["key_heads"]
        head = b.key_head * group + g
        cols, at_once = parts.cols, self.rows.packed(call)[0]
        sums = self.rows.sums(code, call, b, number, g)
        b = self._packed(code, call, b, at_once.select(g, 0), code.i64(0))
        new = at_once.select(at.t.max(before), at.t)
        end = at.t + at.m
        with code.when(new < end):
            place = self._packed(code, call, b, code.i64(0), at_once.select(new, 0))
            self._pack(code, call, place, head, new, end - new)
        new = at.t.max(before)
        with code.when((new < end) & call["ranges"].eq(1)):
            code.call(self.rows.delta, call.pointer, b.batch, head, new, end)
        b = self._packed(code, call, b, code.i64(0), at_once.select(at.t, 0))
        self._rows(code, call, b, head, at)
        low, _ = parts.seen(code, call, at.t, b.keys)
        _, high = parts.seen(code, call, at.t + at.m - 1, b.keys)
        low = (low - at.s).max(0).min(at.n) // cols
        high = (high - at.s).max(0).min(at.n).ceil_div(cols)
        with code.range(low, high) as p:
            self._panel(code, call, b, head, at, p, ahead)
        self._sum_dq(code, call, b, at, sums, (low, high), ahead)

    def _sum_dq(self, code: Code, call: Record, b: _Task, at: _Span, sums: ir.Value,
                panels: tuple[Int, Int], ahead: Ahead) -> None:  # fmt: skip
        """What a block of queries and keys adds to dq: one product along all panels that a tile
        sees, as each would read and write the sums. panels: those that one of the queries sees"""
        parts, rows, cols, h = self.parts, self.tiles.tall, self.parts.cols, call["features"]
        k_step = parts.panel(cols, code.i64(self.k_block))
        with code.range(0, at.m, rows) as i:
            first, _ = parts.seen(code, call, at.t + i, b.keys)
            _, last = parts.seen(code, call, at.t + (i + rows).min(at.m) - 1, b.keys)
            start = ((first - at.s).max(0) // cols).max(panels[0])
            count = (last - at.s).min(at.n).min(panels[1] * cols) - start * cols
            with code.when(count > 0):
                c = code.at(sums, (at.t + i) * self.rows.size(call), parts.acc)
                a = code.at(b.ds, start * self.panel + i * cols, parts.acc)
                k = code.at(b.k, start * (cols * cols), parts.acc)
                self.tiles.along_all(code, (at.m - i).min(rows), count, a, code.i64(self.panel), k,
                                     k_step, c, h, ahead)  # fmt: skip

    def _rows(self, code: Code, call: Record, b: _Task, head: Int, at: _Span) -> None:
        """What is known of each query of a block."""
        acc = self.parts.acc
        base2 = ir.Constant(acc, 1 / math.log(2))
        item, queries = b.batch * call["heads"] + head, call["queries"]
        stats = code.at(call.pointer_at("stats"), item * 2 * queries + at.t, acc)
        deltas = self.rows.deltas(code, call, b.batch, head, at.t)
        with code.range(0, at.m) as i:
            top, log_sum, delta = (
                code.load(code.at(p, i + apart, acc), acc)
                for p, apart in ((stats, 0), (stats, queries), (deltas, 0))
            )
            code.store(top, code.at(b.top, i, acc))
            code.store(code.b.fmul(log_sum, base2), code.at(b.log_sum, i, acc))
            code.store(delta, code.at(b.delta, i, acc))

    def _panel(self, code: Code, call: Record, b: _Task, head: Int, at: _Span, p: Int,
               ahead: Ahead) -> None:  # fmt: skip
        """A panel of keys with those queries of a block that see one of them."""
        parts, cols = self.parts, self.parts.cols
        key = at.s + p * cols
        end = (key + cols).min(at.s + at.n).min(b.keys)
        low = ((key - call["last"] + 1).max(at.t) - at.t).min(at.m)
        high = ((end - call["first"]).min(at.t + at.m) - at.t).max(low)
        all_ds = code.at(b.ds, p * self.panel, parts.acc)
        lanes = (call["keys"] - key).min(cols)
        place = (b.batch, head, at.t + low, key, high - low, lanes)
        if self.pairs is None:
            self._tile(code, call, b, at, p, low, place, ahead)
            return
        seen = code.call(self.pairs.seen, call.pointer, b.mask, *place)
        with code.either(Int(code, seen).ne(0)) as (yes, no):
            with yes:
                self._tile(code, call, b, at, p, low, place, ahead)
            with no:
                parts.zero(code, all_ds, at.m.round_up(parts.rows) * cols)

    def _tile(self, code: Code, call: Record, b: _Task, at: _Span, p: Int, low: Int,
              place: tuple[Int, ...], ahead: Ahead) -> None:  # fmt: skip
        """Weights, the cotangents of scores, and what they add to dk and dv."""
        parts, h, (_, _, first, key, m, lanes) = self.parts, call["features"], place
        cols, step = parts.cols, self._query_step(call)
        all_ds = code.at(b.ds, p * self.panel, parts.acc)
        weights, ds = (code.at(x, low * cols, parts.acc) for x in (b.weights, all_ds))
        # Queries before this one see no key of the last lanes.
        late = (key + (cols - parts.lanes) - call["last"] + 1 - first).max(0).min(m)
        for x, y, to in ((b.q, b.kt, weights), (b.ct, b.vt, ds)):
            panel = code.at(y, p * parts.panel(cols, h), parts.acc)
            for start, stop, early in ((code.i64(0), late, True), (late, m, False)):
                a = code.at(x, (low + start) * cols, parts.acc)
                c = code.at(to, start * cols, parts.acc)
                self.tiles.along(code, stop - start, h, a, step, panel, c, ahead, early=early)
        # dq is computed for whole tiles of rows.
        parts.zero(code, all_ds, low * cols)
        rest = at.m.round_up(self.tiles.tall) - low - m
        parts.zero(code, code.at(all_ds, (low + m) * cols, parts.acc), rest * cols)
        if self.pairs is not None:
            code.call(self.pairs.logits, call.pointer, weights, b.bias, b.mask, *place)
        known = (code.at(x, low, parts.acc) for x in (b.top, b.log_sum, b.delta))
        code.call(self.weigh, call.pointer, weights, ds, *known, m, first, key, b.keys, late)
        if self.add is not None:
            with code.when(call["dbias"].ne(0)):
                code.call(self.add, call.pointer, ds, *place)

        def seen(i: int, rows: int) -> tuple[Int, Int]:
            """The queries of the block that see some keys of the panel."""
            start = (key + i - call["last"] + 1 - first).max(0)
            return start, (key + (i + rows - 1) - call["first"] + 1 - first).min(m)

        size = self.rows.size(call)
        for x, y, to in ((b.ct, weights, b.dv), (b.q, ds, b.dk)):
            sums = code.at(to, p * (size * cols), parts.acc)
            x = code.at(x, low * cols, parts.acc)
            self.tiles.across(code, lanes, h, y, seen, x, step, sums, ahead)

    def _weigh(self) -> ir.Function:
        """void(call, weights, ds, top, log_sum, delta, m, t, s, keys, late): scores (with pairs,
        logits) become weights, and the cotangents of weights those of scores. Queries before number
        `late` see no key of the last lanes."""
        code = Code(self.parts.module, "weigh", [PTR] * 6 + [I64] * 5)
        pointer, weights, ds, tops, log_sums, delta, m, t, s, keys, late = code.args
        call, parts = Record(code, CALL, pointer), self.parts
        cols, lanes, b = parts.cols, parts.lanes, code.b
        base2, scale = parts.value(1 / math.log(2)), parts.scale(code, call)
        places = [parts.counting(code, s, v) for v in range(parts.tile.vectors)]

        def of_row(p: ir.Value, i: Int) -> ir.Value:
            return code.splat(code.load(code.at(p, i, parts.acc), parts.acc), lanes)

        def row(i: Int, hidden: bool, few: bool = False) -> None:
            top, log_sum, less = (of_row(p, i) for p in (tops, log_sums, delta))
            log_sum = b.fneg(log_sum)
            if hidden:
                low, high = (parts.number(code, x) for x in parts.seen(code, call, t + i, keys))
            if few:
                for x in (weights, ds):
                    parts.store(code, parts.value(0.0), x, i * cols + (cols - lanes))
            for v, place in enumerate(places[:-1] if few else places):
                at = i * cols + v * lanes
                logit = parts.load(code, weights, at)
                if self.pairs is None:
                    logit = b.fmul(logit, scale)
                # Rounded as it was forward: scores may be as large as numbers go.
                x = parts.exp2(code, parts.fma(code, b.fsub(logit, top), base2, log_sum))
                if hidden:
                    inside = b.and_(b.icmp_signed(">=", place, low),
                                    b.icmp_signed("<", place, high))  # fmt: skip
                    x = b.select(inside, x, parts.value(0.0))
                parts.store(code, x, weights, at)
                y = b.fmul(x, b.fsub(parts.load(code, ds, at), less))
                if hidden:
                    y = b.select(inside, y, parts.value(0.0))
                if self.pairs is not None:
                    nothing = b.fcmp_ordered("==", logit, parts.value(-math.inf))
                    y = b.select(nothing, parts.value(0.0), y)
                parts.store(code, y, ds, at)

        # The queries that see all keys of the panel, which those before and behind don't.
        end = (s + cols <= keys).select((s - call["first"] + 1 - t).max(0).min(m), 0)
        start = (s + cols - call["last"] - t).max(0).min(end)
        with code.range(start, end) as i:
            row(i, False)
        first = late.min(start) + (late - end).max(0)
        for low, high, few in ((code.i64(0), first, True), (first, start + m - end, False)):
            with code.range(low, high) as i:
                row((i < start).select(i, i - start + end), True, few)
        code.ret()
        return code.function
