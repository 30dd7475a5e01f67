"""Attention forward and backward in one: where a cotangent is there before the result is.

An item is a key head of the batch: it has all keys, takes its queries in blocks, and keeps a
block's scores against all keys. They become weights, which give the result and, still there, the
cotangents: six products of all pairs where the two passes have seven, and one exponential for two.
As in the backward pass, keys are lanes, and the sums of dk and dv are the item's own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from funcgrad.backends.llvm.attention.ahead import Ahead
from funcgrad.backends.llvm.attention.parts import CALL, Attention
from funcgrad.backends.llvm.attention.rows import Rows
from funcgrad.backends.llvm.attention.tiles import Tiles
from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.code import I32, I64, PTR, Code, Int, Record

_Row = Callable[[Int, list[ir.Value] | None], None]


class _Task(NamedTuple):
    """A task's place, and its memory."""

    batch: Int
    key_head: Int
    queries: Int  # how many count
    keys: Int
    kt: ir.Value  # keys as columns, values as columns
    vt: ir.Value
    k: ir.Value  # keys as rows, values as rows
    v: ir.Value
    dk: ir.Value  # sums, [key][feature]
    dv: ir.Value
    q: ir.Value  # queries as rows, cotangents as rows, of a block
    ct: ir.Value
    scores: ir.Value  # [panel][query][key]; then exponentials, then the cotangents of scores
    weights: ir.Value  # [query][key] of a panel: the weights' cotangents; then weights
    sums: ir.Value  # [query][feature]: of the result, then of dq
    tops: ir.Value  # of each query a vector
    totals: ir.Value
    shift: ir.Value  # of each query a number
    inverse: ir.Value


class _Block(NamedTuple):
    """Queries [t, t + m) of a head, and the panels of keys that one of them sees."""

    head: Int
    t: Int
    m: Int
    low: Int
    high: Int


class _Seen(NamedTuple):
    """Queries [low, low + m) of a block, which see keys of a panel, whose first one is `key`."""

    low: Int
    m: Int
    key: Int
    late: Int  # so many of them see no key of the last lanes


class Joint:
    """Writes `function`: void(ptr call)."""

    def __init__(self, parts: Attention, symbol: str):
        self.parts, self.rows, self.tiles = parts, Rows(parts), Tiles(parts)
        self.block = self.rows.block
        # How far panels of scores are apart: tiles write rows behind the last.
        self.panel = (self.block + parts.rows + parts.lanes) * parts.cols
        self.top, self.settle = self._top(), self._settle()
        self.exponents, self.invert, self.weigh = self._exponents(), self._invert(), self._weigh()
        task = self._task()
        code = Code(parts.module, symbol, [PTR], public=True)
        call = Record(code, CALL, code.args[0])
        parts.loop(code, task, code.args[0], self._items(call))
        code.ret()
        self.function = code.function
        parts.room(f"{symbol}_room", self._sizes, self._items)

    def _items(self, call: Record) -> Int:
        return call["batch"] * call["key_heads"]

    def _sizes(self, code: Code, call: Record) -> list[Int]:
        """Of the places in a task's memory, as `_Task` has them."""
        parts = self.parts
        h, keys, cols, size = call["features"], call["keys"], parts.cols, self.rows.size(call)
        panels, h_panels, block = keys.ceil_div(cols), h.ceil_div(cols), code.i64(self.block)
        columns, by_row = parts.panel(cols, h) * panels, parts.panel(cols, keys) * h_panels
        sums, queries = size * keys.round_up(cols), self.tiles.step(block) * h_panels
        scores, rows = code.i64(self.panel), code.i64(self.block + parts.rows)
        return [
            columns, columns, by_row, by_row, sums, sums, queries, queries,
            scores * panels, scores, rows * size,
            block * parts.lanes, block * parts.lanes, block, block,
        ]  # fmt: skip

    def _task(self) -> ir.Function:
        """Takes items: a key head each."""
        parts = self.parts
        code, call = parts.task("joint_task")
        memory, places = parts.memory(code, self._sizes(code, call))
        ahead = Ahead(parts, code, call, 6)
        with parts.items(code) as (i, after):
            batch, key_head = i // call["key_heads"], i % call["key_heads"]
            b = _Task(batch, key_head, *parts.limits(code, call, batch), *places)
            self._item(code, call, b, after, ahead)
        code.call(parts.give, memory)
        code.ret()
        return code.function

    def _item(self, code: Code, call: Record, b: _Task, after: Int, ahead: Ahead) -> None:
        """All queries of a key head."""
        parts, h, keys, cols = self.parts, call["features"], call["keys"], self.parts.cols
        where, row_step = (b.batch, code.i64(0), b.key_head), parts.panel(cols, keys)
        for name, by_column, by_row in (("k", b.kt, b.k), ("v", b.vt, b.v)):
            p = parts.pointer(code, call, name, where)
            apart, step = call[f"{name}_place"], call[f"{name}_feature"]
            code.call(parts.pack_columns, by_column, p, keys, h, apart, step, parts.panel(cols, h))
            code.call(parts.pack_columns, by_row, p, h, keys, step, apart, row_step)
        for sums in (b.dk, b.dv):
            parts.zero(code, sums, keys.round_up(cols) * self.rows.size(call))
        group = call["heads"] // call["key_heads"]
        with code.range(0, group) as g, code.range(0, call["queries"], self.block) as t:
            m = (call["queries"] - t).min(self.block)
            low, _ = parts.seen(code, call, t, b.keys)
            _, high = parts.seen(code, call, (t + m).min(b.queries) - 1, b.keys)
            high = (t < b.queries).select(high, low)
            head = b.key_head * group + g
            self._soon(code, call, b, head, t, after, ahead)
            low, high = low // cols, high.ceil_div(cols)
            self._queries(code, call, b, _Block(head, t, m, low, high.max(low)), ahead)
        self.tiles.write_keys(code, call, b, code.i64(0), keys)

    def _soon(self, code: Code, call: Record, b: _Task, head: Int, t: Int, after: Int,
              ahead: Ahead) -> None:  # fmt: skip
        """Results' places for a block of queries, and what is needed after it: the next one, or an
        item's keys and values."""
        parts, group = self.parts, call["heads"] // call["key_heads"]
        next_t = t + self.block
        more = next_t < call["queries"]
        there = more | (head + 1 < (b.key_head + 1) * group)
        ahead.begin()
        for i, name in enumerate(("out", "dq")):
            ahead.add(i, name, (b.batch, t, head), (call["queries"] - t).min(self.block))
        x, t = more.select(head, head + 1), more.select(next_t, 0)
        count = there.select((call["queries"] - t).min(self.block), 0)
        for i, name in enumerate(("q", "ct"), 2):
            ahead.add(i, name, (b.batch, t, x), count)
        next_item = ~there & (after < self._items(call))
        batch, key_head = after // call["key_heads"], after % call["key_heads"]
        for i, name in enumerate("kv", 4):
            where = (batch, code.i64(0), key_head)
            ahead.add(i, name, where, next_item.select(call["keys"], 0))
        ahead.spread(call["keys"].ceil_div(parts.cols) * (2 * self.block // parts.rows))

    def _queries(self, code: Code, call: Record, b: _Task, at: _Block, ahead: Ahead) -> None:
        """A block of queries with all keys that one of them sees."""
        parts, h, size, cols = self.parts, call["features"], self.rows.size(call), self.parts.cols
        acc, end = parts.acc, at.t + at.m
        for name, to in (("q", b.q), ("ct", b.ct)):
            place = parts.pointer(code, call, name, (b.batch, at.t, at.head))
            code.call(parts.pack_columns, to, place, h, at.m, call[f"{name}_feature"],
                      call[f"{name}_place"], self._query_step(code))  # fmt: skip
        with code.range(0, at.m * parts.lanes, parts.lanes) as i:
            parts.store(code, parts.value(-math.inf), b.tops, i)
            parts.store(code, parts.value(0.0), b.totals, i)
        with code.range(at.low, at.high) as p:
            self._scores(code, call, b, at, p, ahead)
        code.call(self.settle, b.tops, b.shift, at.m)
        with code.range(at.low, at.high) as p:
            seen = self._seen(call, b, at, p)
            scores = code.at(b.scores, p * self.panel + seen.low * cols, acc)
            totals = code.at(b.totals, seen.low * parts.lanes, acc)
            shift = code.at(b.shift, seen.low, acc)
            code.call(self.exponents, call.pointer, scores, shift, totals, seen.m)
        code.call(self.invert, b.totals, b.inverse, at.m)
        self._along_keys(code, call, b, at, b.v, ahead)
        out = parts.pointer(code, call, "out", (b.batch, at.t, at.head))
        code.call(self.tiles.write_rows(), b.sums, size, b.inverse, out, at.m, h,
                  call["out_place"], call["out_feature"])  # fmt: skip
        code.call(self.rows.delta, call.pointer, b.batch, at.head, at.t, end)
        deltas = self.rows.deltas(code, call, b.batch, at.head, at.t)
        with code.range(at.low, at.high) as p:
            self._panel(code, call, b, at, p, deltas, ahead)
        self._along_keys(code, call, b, at, b.k, ahead)
        first = code.at(b.sums, 0 - at.t * size, acc)
        code.call(self.rows.finish, call.pointer, first, b.batch, at.head, at.t, end)

    def _query_step(self, code: Code) -> Int:
        """How far panels of queries are apart."""
        return self.tiles.step(code.i64(self.block))

    def _seen(self, call: Record, b: _Task, at: _Block, p: Int) -> _Seen:
        parts, cols = self.parts, self.parts.cols
        key, stop = p * cols, (at.t + at.m).min(b.queries)
        end = (key + cols).min(b.keys)
        low = ((key - call["last"] + 1).max(at.t) - at.t).min(at.m)
        m = ((end - call["first"]).min(stop) - at.t).max(low) - low
        late = key + (cols - parts.lanes) - call["last"] + 1 - (at.t + low)
        return _Seen(low, m, key, late.max(0).min(m))

    def _product(self, code: Code, call: Record, seen: _Seen, rows: ir.Value, columns: ir.Value,
                 to: ir.Value, ahead: Ahead) -> None:  # fmt: skip
        """Rows of the block's, those that see keys of a panel, times the panel's columns."""
        cols, step, acc = self.parts.cols, self._query_step(code), self.parts.acc
        for start, stop, early in ((code.i64(0), seen.late, True), (seen.late, seen.m, False)):
            a = code.at(rows, (seen.low + start) * cols, acc)
            c = code.at(to, start * cols, acc)
            self.tiles.along(code, stop - start, call["features"], a, step, columns, c, ahead,
                             early=early)  # fmt: skip

    def _scores(self, code: Code, call: Record, b: _Task, at: _Block, p: Int,
                ahead: Ahead) -> None:  # fmt: skip
        """A panel's scores, and what is the largest yet; 0 for queries that see none of it."""
        parts, h, cols = self.parts, call["features"], self.parts.cols
        seen = self._seen(call, b, at, p)
        panel = code.at(b.scores, p * self.panel, parts.acc)
        scores = code.at(panel, seen.low * cols, parts.acc)
        columns = code.at(b.kt, p * parts.panel(cols, h), parts.acc)
        self._product(code, call, seen, b.q, columns, scores, ahead)
        # Sums of a query's row are computed for whole tiles of rows.
        parts.zero(code, panel, seen.low * cols)
        behind = seen.low + seen.m
        rest = at.m.round_up(self.tiles.tall) - behind
        parts.zero(code, code.at(panel, behind * cols, parts.acc), rest * cols)
        tops = code.at(b.tops, seen.low * parts.lanes, parts.acc)
        code.call(self.top, call.pointer, scores, tops, seen.m, at.t + seen.low, seen.key, b.keys)

    def _along_keys(self, code: Code, call: Record, b: _Task, at: _Block, x: ir.Value,
                    ahead: Ahead) -> None:  # fmt: skip
        """sums = what lies in `scores` times rows of x."""
        parts, rows, cols, acc = self.parts, self.tiles.tall, self.parts.cols, self.parts.acc
        size, step = self.rows.size(call), parts.panel(cols, call["keys"])
        parts.zero(code, b.sums, at.m.round_up(rows) * size)
        with code.range(0, at.m, rows) as i:
            first, _ = parts.seen(code, call, at.t + i, b.keys)
            _, last = parts.seen(code, call, at.t + (i + rows).min(at.m) - 1, b.keys)
            start = (first // cols).max(at.low)
            count = last.min(at.high * cols) - start * cols
            with code.when(count > 0):
                c = code.at(b.sums, i * size, acc)
                a = code.at(b.scores, start * self.panel + i * cols, acc)
                y = code.at(x, start * (cols * cols), acc)
                self.tiles.along_all(code, (at.m - i).min(rows), count, a, code.i64(self.panel), y,
                                     step, c, call["features"], ahead)  # fmt: skip

    def _panel(self, code: Code, call: Record, b: _Task, at: _Block, p: Int, deltas: ir.Value,
               ahead: Ahead) -> None:  # fmt: skip
        """Weights of a panel, the cotangents of its scores, and what they add to dk and dv."""
        parts, h, cols, acc = self.parts, call["features"], self.parts.cols, self.parts.acc
        seen, size = self._seen(call, b, at, p), self.rows.size(call)
        first = at.t + seen.low
        columns = code.at(b.vt, p * parts.panel(cols, h), acc)
        self._product(code, call, seen, b.ct, columns, b.weights, ahead)
        ds = code.at(b.scores, p * self.panel + seen.low * cols, acc)
        inverse, delta = (code.at(x, seen.low, acc) for x in (b.inverse, deltas))
        code.call(self.weigh, call.pointer, ds, b.weights, inverse, delta, seen.m, first,
                  seen.key, b.keys)  # fmt: skip

        def of_keys(i: int, rows: int) -> tuple[Int, Int]:
            """The queries of the block that see some keys of the panel."""
            start = (seen.key + i - call["last"] + 1 - first).max(0)
            return start, (seen.key + (i + rows - 1) - call["first"] + 1 - first).min(seen.m)

        lanes = (call["keys"] - seen.key).min(cols)
        for x, y, to in ((b.ct, b.weights, b.dv), (b.q, ds, b.dk)):
            sums = code.at(to, p * (size * cols), acc)
            x = code.at(x, seen.low * cols, acc)
            self.tiles.across(code, lanes, h, y, of_keys, x, self._query_step(code), sums, ahead)

    # ---- functions of some rows

    def _each_row(self, code: Code, call: Record, sizes: Sequence[Int], row: _Row) -> None:
        """row(i, inside) for each, where inside is None or says which lanes see which keys.

        sizes: m, t, s, keys: so many rows from query t on; a panel from key s on, of so many keys
        """
        (m, t, s, keys), parts, b = sizes, self.parts, code.b
        cols = parts.cols
        places = [parts.counting(code, s, v) for v in range(parts.tile.vectors)]
        # The queries that see all keys of the panel, which those before and behind don't.
        end = (s + cols <= keys).select((s - call["first"] + 1 - t).max(0).min(m), 0)
        start = (s + cols - call["last"] - t).max(0).min(end)
        with code.range(start, end) as i:
            row(i, None)
        with code.range(0, start + m - end) as i:
            i = (i < start).select(i, i - start + end)
            low, high = (parts.number(code, x) for x in parts.seen(code, call, t + i, keys))
            row(i, [b.and_(b.icmp_signed(">=", place, low), b.icmp_signed("<", place, high))
                    for place in places])  # fmt: skip

    def _top(self) -> ir.Function:
        """void(call, scores, tops, m, t, s, keys): scores of hidden keys become -inf, and
        tops the largest."""
        code = Code(self.parts.module, "joint_top", [PTR] * 3 + [I64] * 4)
        pointer, scores, tops, *sizes = code.args
        call, parts = Record(code, CALL, pointer), self.parts

        def row(i: Int, inside: list[ir.Value] | None) -> None:
            top = parts.load(code, tops, i * parts.lanes)
            for v in range(parts.tile.vectors):
                at = i * parts.cols + v * parts.lanes
                x = parts.load(code, scores, at)
                if inside is not None:
                    x = code.b.select(inside[v], x, parts.value(-math.inf))
                    parts.store(code, x, scores, at)
                top = parts.largest(code, x, top)
            parts.store(code, top, tops, i * parts.lanes)

        self._each_row(code, call, sizes, row)
        code.ret()
        return code.function

    def _settle(self) -> ir.Function:
        """void(tops, shift, m): what is taken from each query's scores."""
        code = Code(self.parts.module, "joint_settle", [PTR] * 2 + [I64])
        tops, shift, m = code.args
        parts = self.parts
        zero = ir.Constant(parts.acc, 0.0)
        with code.range(0, m) as i:
            x, count = parts.load(code, tops, i * parts.lanes), parts.lanes
            while count > 1:
                count //= 2
                x = parts.largest(code, code.part(x, 0, count), code.part(x, count, count))
            top = code.b.extract_element(x, I32(0))
            # Queries that see no key: any shift will do.
            none = code.b.fcmp_ordered("==", top, ir.Constant(parts.acc, -math.inf))
            top = code.b.select(none, zero, top)
            code.store(top, code.at(shift, i, parts.acc))
        code.ret()
        return code.function

    def _exponents(self) -> ir.Function:
        """void(call, scores, shift, totals, m): scores become exponentials, added to totals."""
        code = Code(self.parts.module, "joint_exponents", [PTR] * 4 + [I64])
        pointer, scores, shift, totals, m = code.args
        call, parts = Record(code, CALL, pointer), self.parts
        scale = parts.scale(code, call, 1 / math.log(2))
        with code.range(0, m) as i:
            less = code.load(code.at(shift, i, parts.acc), parts.acc)
            less = code.splat(less, parts.lanes)
            total = parts.load(code, totals, i * parts.lanes)
            for v in range(parts.tile.vectors):
                at = i * parts.cols + v * parts.lanes
                # Scores may be as large as numbers go: differences come first.
                x = code.b.fsub(parts.load(code, scores, at), less)
                x = parts.exp2(code, x, scale)
                parts.store(code, x, scores, at)
                total = code.b.fadd(total, x)
            parts.store(code, total, totals, i * parts.lanes)
        code.ret()
        return code.function

    def _invert(self) -> ir.Function:
        """void(totals, inverse, m): the factors that make exponentials weights; 0 without keys."""
        code = Code(self.parts.module, "joint_invert", [PTR] * 2 + [I64])
        totals, inverse, m = code.args
        parts = self.parts
        zero, one = (ir.Constant(parts.acc, x) for x in (0.0, 1.0))
        with code.range(0, m) as i:
            total = code.lane_sum(parts.load(code, totals, i * parts.lanes))
            none = code.b.fcmp_ordered("==", total, zero)
            x = code.b.select(none, zero, code.b.fdiv(one, total))
            code.store(x, code.at(inverse, i, parts.acc))
        code.ret()
        return code.function

    def _weigh(self) -> ir.Function:
        """void(call, ds, weights, inverse, delta, m, t, s, keys): exponentials in ds become
        the cotangents of scores, and what was the weights' cotangents the weights."""
        code = Code(self.parts.module, "joint_weigh", [PTR] * 5 + [I64] * 4)
        pointer, ds, weights, inverse, delta, *sizes = code.args
        call, parts = Record(code, CALL, pointer), self.parts

        def row(i: Int, inside: list[ir.Value] | None) -> None:
            factor, less = (
                code.splat(code.load(code.at(p, i, parts.acc), parts.acc), parts.lanes)
                for p in (inverse, delta)
            )
            for v in range(parts.tile.vectors):
                at = i * parts.cols + v * parts.lanes
                x = code.b.fmul(parts.load(code, ds, at), factor)
                y = code.b.fmul(x, code.b.fsub(parts.load(code, weights, at), less))
                parts.store(code, x, weights, at)
                if inside is not None:
                    y = code.b.select(inside[v], y, parts.value(0.0))
                parts.store(code, y, ds, at)

        self._each_row(code, call, sizes, row)
        code.ret()
        return code.function
