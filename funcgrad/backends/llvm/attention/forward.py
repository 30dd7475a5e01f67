"""Attention forward: blocks of queries, each with running maxima and sums over blocks of keys.

Scores are made transposed, [key][query], so that a query is a lane: maximum and sum of a row need
no shuffles. The next product reads weights across their rows. (Milakov and Gimelshein,
"Online normalizer calculation for softmax", 2018; Dao, "FlashAttention-2", 2023.)
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

from funcgrad.backends.llvm.attention.ahead import Ahead
from funcgrad.backends.llvm.attention.pairs import Pairs
from funcgrad.backends.llvm.attention.parts import CALL, Attention
from funcgrad.backends.llvm.attention.tiles import Tiles
from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.code import I64, PTR, Code, Int, Record

# Tiles of scores at a time: with one panel's sums they stay in the first-level cache, and sequences
# of 128 take one turn.
TILES = 10
ABREAST = 4  # keys of which the largest scores are found at a time


class _Place(NamedTuple):
    """Which queries of which head an item is."""

    batch: Int
    head: Int
    start: Int
    stop: Int
    queries: Int  # how many of the batch's item count
    keys: Int
    low: Int  # the keys that one of the queries sees
    high: Int


class _Memory(NamedTuple):
    """A task's memory."""

    panels: ir.Value  # the queries, packed
    sums: ir.Value  # unnormalized results, [query][feature]
    state: ir.Value  # for each panel maxima, then totals
    factors: ir.Value  # of a panel's sums
    k: ir.Value
    v: ir.Value
    scores: ir.Value
    bias: ir.Value
    mask: ir.Value


class _Steps(NamedTuple):
    """How far panels are apart, and rows of sums."""

    q: Int
    k: Int
    row: Int


class Forward:
    """Writes `function`: void(ptr call); pairs: with a bias or mask or both."""

    def __init__(self, parts: Attention, symbol: str, pairs: bool):
        self.parts, self.module = parts, parts.module
        self.pairs = Pairs(parts, "query") if pairs else None
        self.tiles = Tiles(parts)
        self.key_block = parts.rows * TILES
        self.softmax = self._softmax()
        task = self._task()
        code = Code(self.module, symbol, [PTR], public=True)
        call = Record(code, CALL, code.args[0])
        parts.loop(code, task, code.args[0], self._items(call))
        code.ret()
        self.function = code.function
        parts.room(f"{symbol}_room", self._sizes, self._items)

    def _items(self, call: Record) -> Int:
        return call["batch"] * call["heads"] * call["queries"].ceil_div(call["block"])

    def _steps(self, code: Code, call: Record) -> _Steps:
        h, cols = call["features"], self.parts.cols
        q, k = self.parts.panel(cols, h), self.tiles.step(code.i64(self.key_block))
        return _Steps(q, k, h.round_up(cols))

    def _sizes(self, code: Code, call: Record) -> list[Int]:
        """Of the places in a task's memory, as `_Memory` has them."""
        cols, steps = self.parts.cols, self._steps(code, call)
        count, keys = call["block"].ceil_div(cols), steps.k * call["features"].ceil_div(cols)
        pairs = self.pairs.room(code, self.key_block) if self.pairs else code.i64(0)
        return [count * steps.q, count * steps.row * cols, count * (2 * cols), code.i64(cols),
                keys, keys, steps.k, pairs, pairs]  # fmt: skip

    def _task(self) -> ir.Function:
        """Takes items: a block of queries of a head each."""
        parts = self.parts
        code, call = parts.task("forward_task")
        steps = self._steps(code, call)
        memory, places = parts.memory(code, self._sizes(code, call))
        ahead = Ahead(parts, code, call, 5)
        with parts.items(code) as (i, after):
            self._block(code, call, self._place(code, call, i), _Memory(*places), steps, after,
                        ahead)  # fmt: skip
        code.call(parts.give, memory)
        code.ret()
        return code.function

    def _place(self, code: Code, call: Record, i: Int) -> _Place:
        parts, block = self.parts, call["block"]
        blocks = call["queries"].ceil_div(block)
        # The last queries see the most keys where later ones are hidden: they begin.
        start = (blocks - 1 - i % blocks) * block
        rest = i // blocks
        batch, head = rest // call["heads"], rest % call["heads"]
        queries, keys = parts.limits(code, call, batch)
        stop = (start + block).min(call["queries"])
        low, _ = parts.seen(code, call, start, keys)
        _, high = parts.seen(code, call, stop.min(queries) - 1, keys)
        high = (start < queries).select(high, low)
        return _Place(batch, head, start, stop, queries, keys, low, high)

    def _block(self, code: Code, call: Record, b: _Place, to: _Memory, steps: _Steps, after: Int,
               ahead: Ahead) -> None:  # fmt: skip
        parts, cols, h = self.parts, self.parts.cols, call["features"]
        count, key_head = (b.stop - b.start).ceil_div(cols), self._key_head(call, b)
        with code.range(b.low, b.high, self.key_block) as s:
            n = (b.high - s).min(self.key_block)
            where = (b.batch, s, key_head)
            for name, packed in (("k", to.k), ("v", to.v)):
                place = parts.pointer(code, call, name, where)
                code.call(parts.pack_columns, packed, place, h, n, call[f"{name}_feature"],
                          call[f"{name}_place"], steps.k)  # fmt: skip
            self._soon(code, call, b, s, after, ahead)
            # Panels are packed and written one by one: memory has the time of the others' products.
            with code.range(0, count) as p:
                with code.when(s.eq(b.low)):
                    self._begin(code, call, b, to, p, steps)
                self._panel(code, call, b, to, p, s, n, steps, ahead)
                with code.when(s + self.key_block >= b.high):
                    self._finish(code, call, b, to, p, steps.row)
        with code.when(b.low >= b.high), code.range(0, count) as p:
            self._begin(code, call, b, to, p, steps)
            self._finish(code, call, b, to, p, steps.row)

    def _begin(self, code: Code, call: Record, b: _Place, to: _Memory, p: Int,
               steps: _Steps) -> None:  # fmt: skip
        """Packs a panel's queries; it has seen no keys yet."""
        parts, cols = self.parts, self.parts.cols
        t = b.start + p * cols
        q = parts.pointer(code, call, "q", (b.batch, t, b.head))
        panel = code.at(to.panels, p * steps.q, parts.acc)
        code.call(parts.pack_columns, panel, q, (b.stop - t).min(cols), call["features"],
                  call["q_place"], call["q_feature"], steps.q)  # fmt: skip
        size = steps.row * cols
        parts.zero(code, code.at(to.sums, p * size, parts.acc), size)
        state = code.at(to.state, p * (2 * cols), parts.acc)
        for v in range(parts.tile.vectors):
            parts.store(code, parts.value(-math.inf), state, v * parts.lanes)
            parts.store(code, parts.value(0.0), state, cols + v * parts.lanes)

    def _key_head(self, call: Record, b: _Place) -> Int:
        return b.head // (call["heads"] // call["key_heads"])

    def _soon(self, code: Code, call: Record, b: _Place, s: Int, after: Int, ahead: Ahead) -> None:
        """What is needed after a panel of queries: the next ones of an item's first block of keys,
        or the results' places with its last; then the next block, or the next item's first."""
        next_s, cols = s + self.key_block, self.parts.cols
        ahead.begin()
        t = b.start + cols
        ahead.add(0, "q", (b.batch, t, b.head), s.eq(b.low).select(b.stop - t, 0))
        count = (next_s >= b.high).select(b.stop - b.start, 0)
        ahead.add(1, "out", (b.batch, b.start, b.head), count)
        with code.either(next_s < b.high) as (more, last):
            with more:
                for i, name in enumerate("kv", 2):
                    where = (b.batch, next_s, self._key_head(call, b))
                    ahead.add(i, name, where, (b.high - next_s).min(self.key_block))
            with last:
                there = after < self._items(call)
                x = self._place(code, call, there.select(after, 0))
                count = there.select((x.high - x.low).min(self.key_block), 0)
                for i, name in enumerate("kv", 2):
                    ahead.add(i, name, (x.batch, x.low, self._key_head(call, x)), count)
                count = there.select((x.stop - x.start).min(cols), 0)
                ahead.add(4, "q", (x.batch, x.start, x.head), count)
        tiles = call["features"].ceil_div(cols) * -(-cols // self.parts.rows) + TILES
        ahead.spread((b.stop - b.start).ceil_div(cols) * tiles)

    def _panel(self, code: Code, call: Record, b: _Place, to: _Memory, p: Int, s: Int, n: Int,
               steps: _Steps, ahead: Ahead) -> None:  # fmt: skip
        """A panel of queries with a block of keys: those from the first to the last that one of
        the queries sees."""
        parts, cols = self.parts, self.parts.cols
        t = b.start + p * cols
        last = (t + cols).min(b.stop).min(b.queries) - 1
        low, full_high = parts.seen(code, call, t, b.keys)
        full_low, high = parts.seen(code, call, last, b.keys)
        low, high = (low - s).max(0), (high - s).min(n)
        m, first = high - low, s + low
        some = (low < high) & (t <= last)
        place = (b.batch, b.head, t, first, m, (b.stop - t).min(cols))
        if self.pairs is not None:
            seen = code.variable(I64, I64(0))
            with code.when(some):
                seen.set(code.call(self.pairs.seen, call.pointer, to.mask, *place))
            some = Int(code, seen.get()).ne(0)
        with code.when(some):
            # The keys from this one on the first lanes' queries don't see.
            _, early = parts.seen(code, call, t + (parts.lanes - 1), b.keys)
            early = (early - first).max(0).min(m)
            self._scores(code, call, to, p, low, early, m, steps, ahead)
            if self.pairs is not None:
                code.call(self.pairs.logits, call.pointer, to.scores, to.bias, to.mask, *place)
            # Which of these keys all queries of the panel see.
            whole = t + cols <= b.queries
            full_low = (full_low - first).max(0).min(m)
            full_high = whole.select((full_high - first).min(m), 0).max(full_low)
            state = code.at(to.state, p * (2 * cols), parts.acc)
            code.call(self.softmax, call.pointer, to.scores, state, to.factors, m, t, first,
                      b.queries, b.keys, full_low, full_high, early)  # fmt: skip

            def seen_by(i: int, rows: int) -> tuple[Int, Int]:
                low, _ = parts.seen(code, call, t + i, b.keys)
                _, high = parts.seen(code, call, (t + (i + rows)).min(last + 1) - 1, b.keys)
                return (low - first).max(0), (high - first).min(m)

            v = code.at(to.v, low * cols, parts.acc)
            sums = code.at(to.sums, p * steps.row * cols, parts.acc)
            self.tiles.across(code, last + 1 - t, call["features"], to.scores, seen_by, v,
                              steps.k, sums, ahead, to.factors)  # fmt: skip

    def _scores(self, code: Code, call: Record, to: _Memory, p: Int, low: Int, early: Int, m: Int,
                steps: _Steps, ahead: Ahead) -> None:  # fmt: skip
        """Scores of a panel of queries with m keys from number `low` of a block on; those of its
        first lanes from key number `early` on are left out."""
        parts, cols, tiles = self.parts, self.parts.cols, self.tiles
        panel = code.at(to.panels, p * steps.q, parts.acc)
        for start, stop, late in ((code.i64(0), early, False), (early, m, True)):
            a = code.at(to.k, (low + start) * cols, parts.acc)
            scores = code.at(to.scores, start * cols, parts.acc)
            tiles.along(code, stop - start, call["features"], a, steps.k, panel, scores, ahead,
                        late)  # fmt: skip

    def _softmax(self) -> ir.Function:
        """void(call, scores, state, factors, n, t, s, queries, keys, whole, end, early): scores of
        n keys from s on become weights; maxima and totals of the panel follow, and its sums are to
        be multiplied by the factors. All queries see the keys from number `whole` to before `end`,
        the first lanes' none from number `early` on."""
        types = [PTR, PTR, PTR, PTR, *([I64] * 8)]
        code = Code(self.module, "softmax", types)
        pointer, scores, state, factors, n, t, s, queries, keys, whole, end, early = code.args
        call = Record(code, CALL, pointer)
        parts, cols, lanes = self.parts, self.parts.cols, self.parts.lanes
        vectors = range(parts.tile.vectors)
        halves = ((code.i64(0), early, 0), (early, n, 1))
        self._hide(code, call, scores, (whole, end, n), early, t, s, queries, keys)
        old = [parts.load(code, state, v * lanes) for v in vectors]
        top = self._tops(code, scores, old, halves)
        base2, zero = 1 / math.log(2), parts.value(0.0)
        scale = parts.value(base2) if self.pairs else parts.scale(code, call, base2)
        shift: list[ir.Value] = []
        factor, total = [], []

        def weight(x: ir.Value, v: int) -> ir.Value:
            # Scores may be as large as numbers go: differences come first.
            return parts.exp2(code, code.b.fsub(x, shift[v]), scale)

        for v in vectors:
            new = top[v]
            parts.store(code, new, state, v * lanes)
            # A panel's queries that have seen no key yet: any shift will do.
            none = code.b.fcmp_ordered("==", new, parts.value(-math.inf))
            shift.append(code.b.select(none, zero, new))
            factor.append(weight(old[v], v))
            parts.store(code, factor[v], factors, v * lanes)
            total.append(code.variable(parts.vec, zero))
        for start, stop, skipped in halves:
            with code.range(start, stop) as j:
                for v in vectors[skipped:]:
                    x = weight(parts.load(code, scores, j * cols + v * lanes), v)
                    parts.store(code, x, scores, j * cols + v * lanes)
                    total[v].set(code.b.fadd(total[v].get(), x))
                if skipped:
                    parts.store(code, zero, scores, j * cols)
        for v in vectors:
            before = parts.load(code, state, cols + v * lanes)
            after = parts.fma(code, before, factor[v], total[v].get())
            parts.store(code, after, state, cols + v * lanes)
        code.ret()
        return code.function

    def _tops(self, code: Code, scores: ir.Value, old: list[ir.Value],
              halves: Sequence[tuple[Int, Int, int]]) -> list[ir.Value]:  # fmt: skip
        """The largest scores of each lane, and old ones: of several keys at a time, as each waits
        for the one before it. halves: keys, and how many vectors don't count there"""
        parts, cols, lanes = self.parts, self.parts.cols, self.parts.lanes
        top = [[code.variable(parts.vec, x) for x in old] for _ in range(ABREAST)]
        for start, stop, skipped in halves:
            whole = start + (stop - start).max(0) // ABREAST * ABREAST
            for low, high, abreast in ((start, whole, ABREAST), (whole, stop, 1)):
                with code.range(low, high, abreast) as j:
                    for i, v in itertools.product(range(abreast), range(skipped, len(old))):
                        x = parts.load(code, scores, (j + i) * cols + v * lanes)
                        top[i][v].set(parts.largest(code, x, top[i][v].get()))
        found = [x.get() for x in top[0]]
        for others in top[1:]:
            found = [parts.largest(code, y.get(), x) for x, y in zip(found, others, strict=True)]
        return found

    def _hide(self, code: Code, call: Record, scores: ir.Value, seen: tuple[Int, Int, Int],
              early: Int, t: Int, s: Int, queries: Int, keys: Int) -> None:  # fmt: skip
        """-inf where a query (a lane) doesn't see a key (a row). seen: the first key that all
        queries see, the one behind the last of these, and how many keys there are; those from
        `early` on are left as they are in the first lanes"""
        parts, low_lanes, high_lanes = self.parts, [], []
        b = code.b
        zero, end = parts.number(code, code.i64(0)), parts.number(code, keys)
        for v in range(parts.tile.vectors):
            place = parts.counting(code, t, v)
            limit = 1 << 30
            first = parts.number(code, call["first"].max(-limit))
            last = parts.number(code, call["last"].min(limit))
            low, high = b.add(place, first), b.add(place, last)
            high = b.select(b.icmp_signed("<", high, end), high, end)
            there = b.icmp_signed("<", place, parts.number(code, queries))
            low_lanes.append(low)
            high_lanes.append(b.select(there, high, zero))
        whole, behind, n = seen
        both = early.min(whole) + (early - behind).max(0)
        for start, stop, skipped in ((code.i64(0), both, 0), (both, whole + n - behind, 1)):
            with code.range(start, stop) as i:
                j = (i < whole).select(i, i - whole + behind)
                key = parts.number(code, s + j)
                for v in range(skipped, parts.tile.vectors):
                    inside = b.and_(b.icmp_signed(">=", key, low_lanes[v]),
                                    b.icmp_signed("<", key, high_lanes[v]))  # fmt: skip
                    at = j * parts.cols + v * parts.lanes
                    x = b.select(inside, parts.load(code, scores, at), parts.value(-math.inf))
                    parts.store(code, x, scores, at)

    def _finish(self, code: Code, call: Record, b: _Place, to: _Memory, p: Int, row: Int) -> None:
        """Results and statistics of a panel; queries without keys give 0, and +inf and 0."""
        parts, cols, lanes = self.parts, self.parts.cols, self.parts.lanes
        state = code.at(to.state, p * (2 * cols), parts.acc)
        t = b.start + p * cols
        n = (b.stop - t).min(cols)
        scale = parts.value(1.0) if self.pairs else parts.scale(code, call)
        for v in range(parts.tile.vectors):
            top = parts.load(code, state, v * lanes)
            total = parts.load(code, state, cols + v * lanes)
            none = code.b.fcmp_ordered("==", total, parts.value(0.0))
            top = code.b.select(none, parts.value(math.inf), code.b.fmul(top, scale))
            log_sum = code.b.select(none, parts.value(0.0), parts.log(code, total))
            inverse = code.b.fdiv(parts.value(1.0), total)
            inverse = code.b.select(none, parts.value(0.0), inverse)
            parts.store(code, top, state, v * lanes)
            parts.store(code, inverse, state, cols + v * lanes)
            parts.store(code, log_sum, to.scores, v * lanes)
        out = parts.pointer(code, call, "out", (b.batch, t, b.head))
        code.call(self.tiles.write_rows(), code.at(to.sums, p * row * cols, parts.acc), row,
                  code.at(state, cols, parts.acc), out, n, call["features"], call["out_place"],
                  call["out_feature"])  # fmt: skip
        row = (b.batch * call["heads"] + b.head) * 2 * call["queries"] + t
        for start, source in ((row, state), (row + call["queries"], to.scores)):
            stats = code.at(call.pointer_at("stats"), start, parts.acc)
            # Vectors: single elements would fill the queue of stores, which wait for memory.
            with code.either(n.eq(cols)) as (whole, part):
                with whole:
                    for v in range(parts.tile.vectors):
                        parts.store(code, parts.load(code, source, v * lanes), stats, v * lanes)
                with part, code.range(0, n) as j:
                    x = code.load(code.at(source, j, parts.acc), parts.acc)
                    code.store(x, code.at(stats, j, parts.acc))
