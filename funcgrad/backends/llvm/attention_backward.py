"""Attention backward: blocks of keys outside, blocks of queries inside, weights computed anew.

Here keys are lanes. A task has all queries of one range of keys (of a batch's item and key head):
it owns their dk and dv, and adds to sums of dq of its own, which are summed over ranges in the end.
So no two tasks write to one place, and the order of sums depends on shapes alone. (Dao,
"FlashAttention-2", 2023.)
"""

from __future__ import annotations

import math
from typing import NamedTuple

from llvmlite import ir

from funcgrad.backends.llvm.attention_pairs import CHUNK, Pairs
from funcgrad.backends.llvm.attention_parts import CALL, Attention
from funcgrad.backends.llvm.gemm_build import I32, I64, PTR, Bool, Code, Int
from funcgrad.backends.llvm.gemm_job import Record

# Panels of keys and tiles of queries at a time, and how many queries a small task has.
PANELS, TILES, QUERIES = 4, 10, 256
# Queries of up to so many places and heads are packed once for all keys; others with each block.
PACKED = 1 << 14


class _Task(NamedTuple):
    """A task's place, and its memory."""

    batch: Int
    key_head: Int
    queries: Int
    keys: Int
    kt: ir.Value  # keys as columns, values as columns
    vt: ir.Value
    k: ir.Value  # keys as rows
    dk: ir.Value  # sums, [panel][feature][key]
    dv: ir.Value
    q: ir.Value  # queries as rows, cotangents as rows: all (see `PACKED`), or those of a block
    ct: ir.Value
    qt: ir.Value  # queries as columns, cotangents as columns
    ctt: ir.Value
    shift: ir.Value  # of each query; with pairs its largest logit
    delta: ir.Value
    weights: ir.Value  # [query][key] of a panel
    ds: ir.Value  # the cotangents of scores, [panel][query][key]
    log_sum: ir.Value  # with pairs
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
        self.q_block, self.k_block = parts.rows * TILES, parts.cols * PANELS
        self.weigh, self.add = self._weigh(), self.pairs.add() if self.pairs else None
        delta, task, finish = self._delta(), self._task(), self._finish()
        code = Code(parts.module, symbol, [PTR], public=True)
        call = Record(code, CALL, code.args[0])
        items, small = call["batch"] * call["heads"], call["queries"].ceil_div(QUERIES)
        parts.loop(code, delta, code.args[0], items * small)
        tasks = call["batch"] // call["shared_batch"] * (call["key_heads"] // call["shared_heads"])
        if self.pairs is not None:
            clear = self.pairs.clear()
            parts.loop(code, clear, code.args[0], call["dbias_size"].ceil_div(CHUNK))
        parts.loop(code, task, code.args[0], tasks * call["ranges"])
        parts.loop(code, finish, code.args[0], items * small)
        code.ret()
        self.function = code.function

    # ---- memory

    def _sums(self, code: Code, call: Record, number: Int, batch: Int, head: Int) -> ir.Value:
        """The sums of dq of a range and a head: rows of `_row` elements."""
        items = call["batch"] * call["heads"]
        item = (number * call["batch"] + batch) * call["heads"] + head
        rows = call["queries"].round_up(self.parts.rows)
        at = items * call["queries"] + item * rows * self._row(call)
        return code.at(call.pointer_at("scratch"), at, self.parts.acc)

    def _row(self, call: Record) -> Int:
        return call["features"].round_up(self.parts.cols)

    def _packed(self, call: Record) -> tuple[Bool, Int, Int]:
        """Whether all queries of a key head are packed at once, of how many heads they are then,
        and for how many of each there is room: a multiple of a tile's rows."""
        rows, group = self.parts.rows, call["heads"] // call["key_heads"]
        queries = call["queries"].round_up(rows)
        at_once = queries * group <= PACKED
        return at_once, at_once.select(group, 1), at_once.select(queries, self.q_block)

    def _deltas(self, code: Code, call: Record, batch: Int, head: Int, t: Int) -> Int:
        """Where a row's number lies in `scratch`."""
        return (batch * call["heads"] + head) * call["queries"] + t

    def _small_task(self, name: str) -> tuple[Code, Record]:
        """Tasks [begin, end), each of some queries of a head (`_place`)."""
        code = Code(self.parts.module, name, [PTR, I64, I64])
        call = Record(code, CALL, code.args[0])
        return code, call

    def _place(self, call: Record, i: Int) -> tuple[Int, Int, Int, Int]:
        small = call["queries"].ceil_div(QUERIES)
        start, item = i % small * QUERIES, i // small
        stop = (start + QUERIES).min(call["queries"])
        return item // call["heads"], item % call["heads"], start, stop

    def _delta(self) -> ir.Function:
        """Σ out·ct of each row."""
        code, call = self._small_task("delta_task")
        parts, h, lanes = self.parts, call["features"], self.parts.lanes
        storage = parts.fmt.storage
        unit = call["out_feature"].eq(1) & call["ct_feature"].eq(1)
        whole = unit.select(h // lanes * lanes, 0)
        wide = ir.VectorType(storage, lanes)
        with code.range(code.args[1], code.args[2]) as i:
            batch, head, start, stop = self._place(call, i)
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
                at = self._deltas(code, call, batch, head, t)
                code.store(total, code.at(call.pointer_at("scratch"), at, parts.acc))
        code.ret()
        return code.function

    def _finish(self) -> ir.Function:
        """dq = scale · the sums of all ranges."""
        code, call = self._small_task("finish_task")
        parts, h, lanes = self.parts, call["features"], self.parts.lanes
        storage = parts.fmt.storage
        scale = parts.scale(code, call)
        one_scale = code.b.extract_element(scale, I32(0))
        whole = call["dq_feature"].eq(1).select(h // lanes * lanes, 0)
        with code.range(code.args[1], code.args[2]) as i:
            batch, head, start, stop = self._place(call, i)
            first = self._sums(code, call, code.i64(0), batch, head)
            rows = call["queries"].round_up(parts.rows)
            apart = call["batch"] * call["heads"] * rows * self._row(call)
            with code.range(start, stop) as t:
                row = code.at(first, t * self._row(call), parts.acc)
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
        return code.function

    # ---- the task

    def _task(self) -> ir.Function:
        """Tasks [begin, end): a range of keys of a key head."""
        code = Code(self.parts.module, "backward_task", [PTR, I64, I64])
        call = Record(code, CALL, code.args[0])
        parts, h = self.parts, call["features"]
        rows, cols = parts.rows, parts.cols
        h_tiles, h_panels = h.ceil_div(rows), h.ceil_div(cols)
        columns = parts.panel(cols, h) * PANELS
        sums = h.round_up(rows) * (cols * PANELS)
        _, heads, span = self._packed(call)
        across = parts.panel(rows, h) * (span // rows) * heads
        along = parts.panel(rows, span) * h_tiles * heads
        sizes = [
            columns, columns, parts.panel(cols, code.i64(self.k_block)) * h_panels, sums, sums,
            across, across, along, along, code.i64(self.q_block), code.i64(self.q_block),
            code.i64(self.q_block * cols), code.i64(self.q_block * cols * PANELS),
            code.i64(self.q_block),
            *[self.pairs.room(code, self.q_block) if self.pairs else code.i64(0)] * 2,
        ]  # fmt: skip
        memory, places = parts.memory(code, sizes)
        with code.range(code.args[1], code.args[2]) as i:
            number, rest = i % call["ranges"], i // call["ranges"]
            many = call["key_heads"] // call["shared_heads"]
            first = rest // many * call["shared_batch"], rest % many * call["shared_heads"]
            with (
                code.range(first[0], first[0] + call["shared_batch"]) as batch,
                code.range(first[1], first[1] + call["shared_heads"]) as key_head,
            ):
                queries, keys = parts.limits(code, call, batch)
                task = _Task(batch, key_head, queries, keys, *places)
                self._item(code, call, task, number)
        code.call(parts.give, memory)
        code.ret()
        return code.function

    def _item(self, code: Code, call: Record, b: _Task, number: Int) -> None:
        """A range of keys of one key head."""
        parts, group = self.parts, call["heads"] // call["key_heads"]
        size = call["queries"].round_up(parts.rows) * self._row(call)
        with code.range(0, group) as g:
            head = b.key_head * group + g
            parts.zero(code, self._sums(code, call, number, b.batch, head), size)
            with code.when(self._packed(call)[0]):
                self._pack(
                    code, call, self._of_head(code, call, b, g), head, code.i64(0), b.queries
                )
        span = call["keys"].ceil_div(call["ranges"]).round_up(self.k_block)
        start = number * span
        with code.range(start, (start + span).min(call["keys"]), self.k_block) as s:
            n = (call["keys"] - s).min(self.k_block)
            self._keys(code, call, b, number, s, n, group)

    def _keys(self, code: Code, call: Record, b: _Task, number: Int, s: Int, n: Int,
              group: Int) -> None:  # fmt: skip
        """A block of keys with all queries that see one of them."""
        parts, h, cols = self.parts, call["features"], self.parts.cols
        step, k_step = parts.panel(cols, h), parts.panel(cols, code.i64(self.k_block))
        for name, to in (("k", b.kt), ("v", b.vt)):
            p = parts.pointer(code, call, name, (b.batch, s, b.key_head))
            code.call(parts.pack_columns, to, p, n, h, call[f"{name}_place"],
                      call[f"{name}_feature"], step)  # fmt: skip
        p = parts.pointer(code, call, "k", (b.batch, s, b.key_head))
        code.call(parts.pack_columns, b.k, p, h, n, call["k_feature"], call["k_place"], k_step)
        size = h.round_up(parts.rows) * cols
        for sums in (b.dk, b.dv):
            parts.zero(code, sums, size * PANELS)
        # t sees a key from s on where t + last > s, and one before its end where t + first < end.
        end = (s + n).min(b.keys)
        low = (s - call["last"] + 1).max(0) // parts.rows * parts.rows
        high = (end - call["first"]).max(0).min(b.queries)
        high = (s < b.keys).select(high, 0)
        with code.range(0, group) as g, code.range(low, high, self.q_block) as t:
            m = (high - t).min(self.q_block)
            self._queries(code, call, b, number, g, _Span(s, n, t, m))
        self._write(code, call, b, s, n, size)

    def _write(self, code: Code, call: Record, b: _Task, s: Int, n: Int, size: Int) -> None:
        parts, cols = self.parts, self.parts.cols
        scale = parts.scale(code, call)
        factors = b.weights
        with code.range(0, n, cols) as j:
            where = (b.batch, s + j, b.key_head)
            for name, sums, factor in (("dk", b.dk, scale), ("dv", b.dv, parts.value(1.0))):
                for v in range(parts.tile.vectors):
                    parts.store(code, factor, factors, v * parts.lanes)
                source = code.at(sums, j // cols * size, parts.acc)
                to = parts.pointer(code, call, name, where)
                apart, step = call[f"{name}_place"], call[f"{name}_feature"]
                code.call(parts.write_turned(), source, factors, to, (n - j).min(cols),
                          call["features"], apart, step)  # fmt: skip

    def _of_head(self, code: Code, call: Record, b: _Task, g: Int) -> _Task:
        """With the places of the packed queries of head number g of those that share a key head."""
        parts, h, (_, _, span) = self.parts, call["features"], self._packed(call)
        rows = parts.rows
        across = g * (parts.panel(rows, h) * (span // rows))
        along = g * (parts.panel(rows, span) * h.ceil_div(rows))
        at = {"q": across, "ct": across, "qt": along, "ctt": along}
        places = {name: code.at(getattr(b, name), i, parts.acc) for name, i in at.items()}
        return b._replace(**places)

    def _pack(self, code: Code, call: Record, b: _Task, head: Int, t: Int, m: Int) -> None:
        """Queries [t, t + m) of a head, and their cotangents, as rows and as columns."""
        parts, h, (_, _, span) = self.parts, call["features"], self._packed(call)
        across, along = parts.panel(parts.rows, h), parts.panel(parts.rows, span)
        for name, by_row, by_column in (("q", b.q, b.qt), ("ct", b.ct, b.ctt)):
            p = parts.pointer(code, call, name, (b.batch, t, head))
            apart, step = call[f"{name}_place"], call[f"{name}_feature"]
            code.call(parts.pack_rows, by_row, p, m, h, apart, step, across)
            code.call(parts.pack_rows, by_column, p, h, m, step, apart, along)

    def _queries(self, code: Code, call: Record, b: _Task, number: Int, g: Int,
                 at: _Span) -> None:  # fmt: skip
        """A block of queries, of head number g of those that share a key head, with a block of
        keys."""
        parts, h, group = self.parts, call["features"], call["heads"] // call["key_heads"]
        head = b.key_head * group + g
        rows, cols = parts.rows, parts.cols
        at_once, _, _ = self._packed(call)
        b = self._of_head(code, call, b, at_once.select(g, 0))
        with code.when(~at_once):
            self._pack(code, call, b, head, at.t, at.m)
        first, across = at_once.select(at.t, 0), parts.panel(rows, h)
        by_row = (code.at(x, first // rows * across, parts.acc) for x in (b.q, b.ct))
        by_column = (code.at(x, first * rows, parts.acc) for x in (b.qt, b.ctt))
        b = b._replace(**dict(zip(("q", "ct", "qt", "ctt"), (*by_row, *by_column), strict=True)))
        self._rows(code, call, b, head, at)
        low, _ = parts.seen(code, call, at.t, b.keys)
        _, high = parts.seen(code, call, at.t + at.m - 1, b.keys)
        low = (low - at.s).max(0).min(at.n) // cols
        high = (high - at.s).max(0).min(at.n).ceil_div(cols)
        with code.range(low, high) as p:
            self._panel(code, call, b, head, at, p)
        sums = self._sums(code, call, number, b.batch, head)
        row_size, k_step = self._row(call), parts.panel(cols, code.i64(self.k_block))
        # One product along all panels that a tile sees: each would read and write the sums.
        with code.range(0, at.m, rows) as i:
            first, _ = parts.seen(code, call, at.t + i, b.keys)
            _, last = parts.seen(code, call, at.t + (i + rows).min(at.m) - 1, b.keys)
            start = ((first - at.s).max(0) // cols).max(low)
            stop = (last - at.s).max(0).ceil_div(cols).min(high)
            count = at.n.min(stop * cols) - start * cols
            with code.when(start < stop), code.range(0, h, cols) as j:
                c = code.at(sums, (at.t + i) * row_size + j, parts.acc)
                a = code.at(b.ds, (start * self.q_block + i) * cols, parts.acc)
                x = code.at(b.k, j // cols * k_step + start * (cols * cols), parts.acc)
                code.call(parts.across_panels(), count, a, self.q_block * cols, x, c, row_size)

    def _rows(self, code: Code, call: Record, b: _Task, head: Int, at: _Span) -> None:
        """What is known of each query of a block."""
        acc = self.parts.acc
        base2 = ir.Constant(acc, 1 / math.log(2))
        item, queries = b.batch * call["heads"] + head, call["queries"]
        stats = code.at(call.pointer_at("stats"), item * 2 * queries + at.t, acc)
        deltas = code.at(call.pointer_at("scratch"), item * queries + at.t, acc)
        with code.range(0, at.m) as i:
            top, log_sum, delta = (
                code.load(code.at(p, i + apart, acc), acc)
                for p, apart in ((stats, 0), (stats, queries), (deltas, 0))
            )
            if self.pairs is None:
                top = code.b.fmul(code.b.fadd(top, log_sum), base2)
            else:
                code.store(code.b.fmul(log_sum, base2), code.at(b.log_sum, i, acc))
            code.store(top, code.at(b.shift, i, acc))
            code.store(delta, code.at(b.delta, i, acc))

    def _panel(self, code: Code, call: Record, b: _Task, head: Int, at: _Span, p: Int) -> None:
        """A panel of keys with those queries of a block that see one of them."""
        parts, cols = self.parts, self.parts.cols
        key = at.s + p * cols
        end = (key + cols).min(at.s + at.n).min(b.keys)
        low = ((key - call["last"] + 1).max(at.t) - at.t).min(at.m) // parts.rows * parts.rows
        high = ((end - call["first"]).min(at.t + at.m) - at.t).max(low)
        all_ds = code.at(b.ds, p * (self.q_block * cols), parts.acc)
        lanes = (call["keys"] - key).min(cols)
        place = (b.batch, head, at.t + low, key, high - low, lanes)
        if self.pairs is None:
            self._tile(code, call, b, at, p, low, place)
            return
        seen = code.call(self.pairs.seen, code.args[0], b.mask, *place)
        with code.either(Int(code, seen).ne(0)) as (yes, no):
            with yes:
                self._tile(code, call, b, at, p, low, place)
            with no:
                parts.zero(code, all_ds, at.m.round_up(parts.rows) * cols)

    def _tile(self, code: Code, call: Record, b: _Task, at: _Span, p: Int, low: Int,
              place: tuple[Int, ...]) -> None:  # fmt: skip
        """Weights, the cotangents of scores, and what they add to dk and dv."""
        parts, h = self.parts, call["features"]
        rows, cols = parts.rows, parts.cols
        across, columns = parts.panel(rows, h), parts.panel(cols, h)
        along = parts.panel(rows, self._packed(call)[2])
        size = h.round_up(rows) * cols
        _, _, first, key, m, _ = place
        all_ds = code.at(b.ds, p * (self.q_block * cols), parts.acc)
        weights = code.at(b.weights, low * cols, parts.acc)
        ds = code.at(all_ds, low * cols, parts.acc)
        for x, y, to in ((b.q, b.kt, weights), (b.ct, b.vt, ds)):
            tiles = code.at(x, low // rows * across, parts.acc)
            panel = code.at(y, p * columns, parts.acc)
            parts.product(code, m, h, tiles, across, panel, to, add=False)
        # dq is computed for whole tiles of rows.
        parts.zero(code, all_ds, low * cols)
        rest = at.m.round_up(rows) - low - m
        parts.zero(code, code.at(all_ds, (low + m) * cols, parts.acc), rest * cols)
        if self.pairs is not None:
            code.call(self.pairs.logits, code.args[0], weights, b.bias, b.mask, *place)
        whole_low, _ = parts.seen(code, call, first + m - 1, b.keys)
        _, whole_high = parts.seen(code, call, first, b.keys)
        whole = ((whole_low <= key) & (whole_high >= key + cols)).select(1, 0)
        known = (code.at(x, low, parts.acc) for x in (b.shift, b.log_sum, b.delta))
        code.call(self.weigh, code.args[0], weights, ds, *known, m, first, key, b.keys, whole)
        if self.add is not None:
            with code.when(call["dbias"].ne(0)):
                code.call(self.add, code.args[0], ds, *place)
        for x, y, to in ((b.ctt, weights, b.dv), (b.qt, ds, b.dk)):
            tiles = code.at(x, low * rows, parts.acc)
            sums = code.at(to, p * size, parts.acc)
            parts.product(code, h, m, tiles, along, y, sums, add=True)

    def _weigh(self) -> ir.Function:
        """void(call, weights, ds, shift, log_sum, delta, m, t, s, keys, whole): scores become
        weights, and the cotangents of weights those of scores."""
        code = Code(self.parts.module, "weigh", [PTR] * 6 + [I64] * 5)
        pointer, weights, ds, shifts, log_sums, delta, m, t, s, keys, whole = code.args
        call, parts = Record(code, CALL, pointer), self.parts
        cols, lanes, b = parts.cols, parts.lanes, code.b
        base2 = 1 / math.log(2)
        scale = parts.value(base2) if self.pairs else parts.scale(code, call, base2)
        places = [parts.counting(code, s, v) for v in range(parts.tile.vectors)]

        def of_row(p: ir.Value, i: Int) -> ir.Value:
            return code.splat(code.load(code.at(p, i, parts.acc), parts.acc), lanes)

        def row(i: Int, hidden: bool) -> None:
            shift, less = b.fneg(of_row(shifts, i)), of_row(delta, i)
            log_sum = b.fneg(of_row(log_sums, i)) if self.pairs else None
            if hidden:
                low, high = (parts.number(code, x) for x in parts.seen(code, call, t + i, keys))
            for v, place in enumerate(places):
                at = i * cols + v * lanes
                x = logit = parts.load(code, weights, at)
                if log_sum is not None:
                    x = parts.fma(code, b.fadd(x, shift), scale, log_sum)
                else:
                    x = parts.fma(code, x, scale, shift)
                x = parts.exp2(code, x)
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

        with code.either(whole.ne(0)) as (yes, no):
            for branch, hidden in ((yes, False), (no, True)):
                with branch, code.range(0, m) as i:
                    row(i, hidden)
        code.ret()
        return code.function
