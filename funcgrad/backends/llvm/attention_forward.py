"""Attention forward: blocks of queries, each with running maxima and sums over blocks of keys.

Scores are made transposed, [key][query], so that a query is a lane: maximum and sum of a row need
no shuffles, and weights are at once a packed operand of the next product. (Milakov and Gimelshein,
"Online normalizer calculation for softmax", 2018; Dao, "FlashAttention-2", 2023.)
"""

from __future__ import annotations

import math
from typing import NamedTuple

from llvmlite import ir

from funcgrad.backends.llvm.attention_pairs import Pairs
from funcgrad.backends.llvm.attention_parts import CALL, Attention
from funcgrad.backends.llvm.gemm_build import I64, PTR, Code, Int
from funcgrad.backends.llvm.gemm_job import Record

# Tiles of scores at a time: with one panel's sums they stay in the first-level cache, and sequences
# of 128 take one turn.
TILES = 10


class _Block(NamedTuple):
    """A task's place and memory."""

    batch: Int
    head: Int
    start: Int
    stop: Int
    queries: Int  # how many of the batch's item count
    keys: Int
    panels: ir.Value  # the queries, packed
    sums: ir.Value  # unnormalized results, [panel][feature][query]
    state: ir.Value  # for each panel maxima, then totals
    k: ir.Value
    v: ir.Value
    scores: ir.Value
    bias: ir.Value
    mask: ir.Value


class Forward:
    """Writes `function`: void(ptr call); pairs: with a bias or mask or both."""

    def __init__(self, parts: Attention, symbol: str, pairs: bool):
        self.parts, self.module = parts, parts.module
        self.pairs = Pairs(parts, "query") if pairs else None
        self.softmax = self._softmax()
        task = self._task()
        code = Code(self.module, symbol, [PTR], public=True)
        call = Record(code, CALL, code.args[0])
        tasks = call["batch"] * call["heads"] * call["queries"].ceil_div(call["block"])
        parts.loop(code, task, code.args[0], tasks)
        code.ret()
        self.function = code.function

    def _task(self) -> ir.Function:
        """Tasks [begin, end): a block of queries of a head."""
        code = Code(self.module, "forward_task", [PTR, I64, I64])
        call = Record(code, CALL, code.args[0])
        parts = self.parts
        h, block, cols = call["features"], call["block"], parts.cols
        blocks, key_block = call["queries"].ceil_div(block), parts.rows * TILES
        count = block // cols
        q_step, k_step = parts.panel(cols, h), parts.panel(parts.rows, h)
        v_step, sums_step = parts.panel(parts.rows, code.i64(key_block)), h.round_up(parts.rows)
        sizes = [
            count * q_step, count * sums_step * cols, count * (2 * cols),
            k_step * TILES, v_step * h.ceil_div(parts.rows), code.i64(key_block * cols),
            *[self.pairs.room(code, key_block) if self.pairs else code.i64(0)] * 2,
        ]  # fmt: skip
        memory, places = parts.memory(code, sizes)
        with code.range(code.args[1], code.args[2]) as i:
            # The last queries see the most keys where later ones are hidden: they begin.
            start = (blocks - 1 - i % blocks) * block
            rest = i // blocks
            batch, head = rest // call["heads"], rest % call["heads"]
            queries, keys = parts.limits(code, call, batch)
            stop = (start + block).min(call["queries"])
            b = _Block(batch, head, start, stop, queries, keys, *places)
            self._block(code, call, b, q_step, k_step, v_step, sums_step)
        code.call(parts.give, memory)
        code.ret()
        return code.function

    def _block(self, code: Code, call: Record, b: _Block, q_step: Int, k_step: Int, v_step: Int,
               sums_step: Int) -> None:  # fmt: skip
        parts, cols, h = self.parts, self.parts.cols, call["features"]
        count = (b.stop - b.start).ceil_div(cols)
        place = (b.batch, b.start, b.head)
        q = parts.pointer(code, call, "q", place)
        code.call(parts.pack_columns, b.panels, q, b.stop - b.start, h, call["q_place"],
                  call["q_feature"], q_step)  # fmt: skip
        parts.zero(code, b.sums, count * sums_step * cols)
        with code.range(0, count) as p:
            state = code.at(b.state, p * (2 * cols), parts.acc)
            for v in range(parts.tile.vectors):
                parts.store(code, parts.value(-math.inf), state, v * parts.lanes)
                parts.store(code, parts.value(0.0), state, cols + v * parts.lanes)
        key_head = b.head // (call["heads"] // call["key_heads"])
        low, _ = parts.seen(code, call, b.start, b.keys)
        _, high = parts.seen(code, call, b.stop.min(b.queries) - 1, b.keys)
        high = (b.start < b.queries).select(high, low)
        key_block = parts.rows * TILES
        with code.range(low, high, key_block) as s:
            n = (high - s).min(key_block)
            where = (b.batch, s, key_head)
            k, v = (parts.pointer(code, call, x, where) for x in "kv")
            code.call(parts.pack_rows, b.k, k, n, h, call["k_place"], call["k_feature"], k_step)
            code.call(parts.pack_rows, b.v, v, h, n, call["v_feature"], call["v_place"], v_step)
            with code.range(0, count) as p:
                self._panel(code, call, b, p, s, n, (q_step, k_step, v_step, sums_step))
        with code.range(0, count) as p:
            self._finish(code, call, b, p, sums_step)

    def _panel(self, code: Code, call: Record, b: _Block, p: Int, s: Int, n: Int,
               steps: tuple[Int, Int, Int, Int]) -> None:  # fmt: skip
        """A panel of queries with a block of keys: those from the first to the last that one of
        the queries sees."""
        parts, cols, rows = self.parts, self.parts.cols, self.parts.rows
        q_step, k_step, v_step, sums_step = steps
        t = b.start + p * cols
        last = (t + cols).min(b.stop).min(b.queries) - 1
        low, full_high = parts.seen(code, call, t, b.keys)
        full_low, high = parts.seen(code, call, last, b.keys)
        low, high = (low - s).max(0) // rows * rows, (high - s).min(n)
        m, first = high - low, s + low
        some = (low < high) & (t <= last)
        place = (b.batch, b.head, t, first, m, (b.stop - t).min(cols))
        if self.pairs is not None:
            seen = code.variable(I64, I64(0))
            with code.when(some):
                seen.set(code.call(self.pairs.seen, code.args[0], b.mask, *place))
            some = Int(code, seen.get()).ne(0)
        with code.when(some):
            a = code.at(b.k, low // rows * k_step, parts.acc)
            panel = code.at(b.panels, p * q_step, parts.acc)
            parts.product(code, m, call["features"], a, k_step, panel, b.scores, add=False)
            if self.pairs is not None:
                code.call(self.pairs.logits, code.args[0], b.scores, b.bias, b.mask, *place)
            whole = (full_low <= first) & (full_high >= first + m) & (t + cols <= b.queries)
            state = code.at(b.state, p * (2 * cols), parts.acc)
            sums = code.at(b.sums, p * sums_step * cols, parts.acc)
            flag = whole.select(1, 0)
            code.call(self.softmax, code.args[0], b.scores, state, sums, m, t, first,
                      b.queries, b.keys, flag)  # fmt: skip
            a = code.at(b.v, low * rows, parts.acc)
            parts.product(code, call["features"], m, a, v_step, b.scores, sums, add=True)

    def _softmax(self) -> ir.Function:
        """void(call, scores, state, sums, n, t, s, queries, keys, whole): scores of n keys from s
        on become weights; maxima, totals and sums of the panel follow."""
        types = [PTR, PTR, PTR, PTR, *([I64] * 6)]
        code = Code(self.module, "softmax", types)
        pointer, scores, state, sums, n, t, s, queries, keys, whole = code.args
        call = Record(code, CALL, pointer)
        parts, cols, lanes = self.parts, self.parts.cols, self.parts.lanes
        vectors = range(parts.tile.vectors)
        with code.when(whole.eq(0)):
            self._hide(code, call, scores, n, t, s, queries, keys)
        old = [parts.load(code, state, v * lanes) for v in vectors]
        top = [code.variable(parts.vec, x) for x in old]
        with code.range(0, n) as j:
            for v in vectors:
                x = parts.load(code, scores, j * cols + v * lanes)
                top[v].set(parts.largest(code, x, top[v].get()))
        base2, zero = 1 / math.log(2), parts.value(0.0)
        scale = parts.value(base2) if self.pairs else parts.scale(code, call, base2)
        shift: list[ir.Value] = []
        factor, total = [], []

        def weight(x: ir.Value, v: int) -> ir.Value:
            # Biases may be as large as numbers go: differences come first.
            if self.pairs:
                return parts.exp2(code, code.b.fmul(code.b.fsub(x, shift[v]), scale))
            return parts.exp2(code, parts.fma(code, x, scale, code.b.fneg(shift[v])))

        for v in vectors:
            new = top[v].get()
            parts.store(code, new, state, v * lanes)
            # A panel's queries that have seen no key yet: any shift will do.
            none = code.b.fcmp_ordered("==", new, parts.value(-math.inf))
            new = code.b.select(none, zero, new)
            shift.append(new if self.pairs else code.b.fmul(new, scale))
            factor.append(weight(old[v], v))
            total.append(code.variable(parts.vec, zero))
        with code.range(0, n) as j:
            for v in vectors:
                x = weight(parts.load(code, scores, j * cols + v * lanes), v)
                parts.store(code, x, scores, j * cols + v * lanes)
                total[v].set(code.b.fadd(total[v].get(), x))
        for v in vectors:
            before = parts.load(code, state, cols + v * lanes)
            after = parts.fma(code, before, factor[v], total[v].get())
            parts.store(code, after, state, cols + v * lanes)
        with code.range(0, call["features"]) as i:
            for v in vectors:
                x = parts.load(code, sums, i * cols + v * lanes)
                parts.store(code, code.b.fmul(x, factor[v]), sums, i * cols + v * lanes)
        code.ret()
        return code.function

    def _hide(self, code: Code, call: Record, scores: ir.Value, n: Int, t: Int, s: Int,
              queries: Int, keys: Int) -> None:  # fmt: skip
        """-inf where a query (a lane) doesn't see a key (a row)."""
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
        with code.range(0, n) as j:
            key = parts.number(code, s + j)
            for v in range(parts.tile.vectors):
                inside = b.and_(b.icmp_signed(">=", key, low_lanes[v]),
                                b.icmp_signed("<", key, high_lanes[v]))  # fmt: skip
                at = j * parts.cols + v * parts.lanes
                x = b.select(inside, parts.load(code, scores, at), parts.value(-math.inf))
                parts.store(code, x, scores, at)

    def _finish(self, code: Code, call: Record, b: _Block, p: Int, sums_step: Int) -> None:
        """Results and statistics of a panel; queries without keys give 0, and +inf and 0."""
        parts, cols, lanes = self.parts, self.parts.cols, self.parts.lanes
        state = code.at(b.state, p * (2 * cols), parts.acc)
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
            parts.store(code, log_sum, b.scores, v * lanes)
        out = parts.pointer(code, call, "out", (b.batch, t, b.head))
        code.call(parts.write_turned(), code.at(b.sums, p * sums_step * cols, parts.acc),
                  code.at(state, cols, parts.acc), out, n, call["features"], call["out_place"],
                  call["out_feature"])  # fmt: skip
        row = (b.batch * call["heads"] + b.head) * 2 * call["queries"] + t
        for start, source in ((row, state), (row + call["queries"], b.scores)):
            to = code.at(call.pointer_at("stats"), start, parts.acc)
            with code.range(0, n) as j:
                x = code.load(code.at(source, j, parts.acc), parts.acc)
                code.store(x, code.at(to, j, parts.acc))
