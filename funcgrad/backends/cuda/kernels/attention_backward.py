"""Attention's backward pass (Dao et al., "FlashAttention", 2022), in two kernels.

Weights p are made anew, by what forward left of each row. With the cotangent ct of the result, and
a row's mean, the sum of ct·out, a logit's cotangent is d = p·(ct·v - mean). `ToQueries` goes
through the keys that 16 queries see and sums d·k, `ToKeys` through the queries, of all heads that
share its head, that see 16 keys, and sums p·ct and d·q. All is summed in float32, in order; p and d
are rounded as operands are.
"""

from __future__ import annotations

import numpy as np

from funcgrad.backends.cuda.kernels import mma
from funcgrad.backends.cuda.kernels.attention import TILE
from funcgrad.backends.cuda.kernels.attention_tiles import LOG2E, Part, Tiles
from funcgrad.backends.cuda.writer import GLOBAL
from funcgrad.backends.llvm.emit.text import FLOAT32, constant

_Rows = list[list[str]]  # as `Tiles.rows_of` has them


class _Backward(Tiles):
    def base(self, query: str, head: str) -> str:
        """What a row's logits are less than where its weights are powers of e."""
        top, log = (self.load_float(self.of_row("stats", query, head, i)) for i in "01")
        return self.fop("fadd", top, log)

    def weight(self, logit: str, base: str) -> str:
        """A weight, by its logit."""
        return mma.exp2(self.f, self.fop("fmul", self.fop("fsub", logit, base), LOG2E))

    def change(self, weight: str, product: str, mean: str) -> str:
        """The cotangent of a logit, by the product of ct and v."""
        return self.fop("fmul", weight, self.fop("fsub", product, mean))

    def write(self, name: str, scale: float) -> None:
        """The sums, scaled, of rows that are there."""
        f, n = self.f, self.step.sizes
        limit = n.keys if name in ("dk", "dv") else n.queries
        times = constant(np.float32(scale), FLOAT32)
        for h, place in enumerate(self.places):

            def store(h: int = h, place: str = place) -> None:
                at = self.at(name, place, self.head)
                for c, part in enumerate(self.totals(name)):
                    two = part[2 * h : 2 * h + 2]
                    if scale != 1:
                        two = [self.fop("fmul", x, times) for x in two]
                    packed = mma.pack(f, self.kind, *two)
                    self.store_pair(name, at, self.op("add", self.pair, 8 * c), packed)

            self.when(f.let(f"icmp ult i32 {place}, {limit}"), store)


class ToQueries(_Backward):
    """Writes the kernel of queries' cotangents, and of a bias's; it leaves `means`."""

    def attend(self) -> None:
        n = self.step.sizes
        self.key_head = self.op("udiv", self.head, n.heads // n.key_heads)
        queries = self.rows_of("q", self.places, self.head)
        cts = self.rows_of("ct", self.places, self.head)
        self.means = self._means(cts)
        self.bases = [self.base(self.least(p, n.queries), self.head) for p in self.places]
        start, end = self.keys_seen(self.first)
        if "dbias" in self.numbers:  # which has elements, zeros, of all pairs
            start, end = "0", str(-(-n.keys // TILE))
        self.loop(start, end, self.zeros("dq"), lambda: self._tile(queries, cts))
        self.write("dq", self.step.scale)

    def _means(self, cts: _Rows) -> list[str]:
        """Of each row the sum of ct·out, which is written, too."""
        f, n, found = self.f, self.step.sizes, []
        outs = self.rows_of("out", self.places, self.head)
        for h, place in enumerate(self.places):
            total = "0.0"
            for x, y in zip(cts, outs, strict=True):
                for i in (h, 2 + h):
                    pairs = zip(self._floats(x[i]), self._floats(y[i]), strict=True)
                    for a, b in pairs:
                        total = self.fop("fadd", total, self.fop("fmul", a, b))
            found.append(mma.over_row(f, total, "add"))

            def store(place: str = place) -> None:
                to = self.of_row("means", place, self.head)
                f.do(f"store float {found[-1]}, ptr{GLOBAL} {to}, align 4")

            self.when(f.let(f"icmp ult i32 {place}, {n.queries}"), store)
        return found

    def _floats(self, word: str) -> list[str]:
        return [mma.unpack(self.f, self.kind, word, i) for i in (0, 1)]

    def _tile(self, queries: _Rows, cts: _Rows) -> dict[str, str]:
        first = self.op("shl", "%j", 4)
        scores = self.products(queries, "k", first, self.key_head)
        changes = self.products(cts, "v", first, self.key_head)
        for c, part in enumerate(scores):
            near = self.op("add", self.op("add", first, 8 * c), self.pair)
            for i, x in enumerate(part):
                place, key = self.places[i // 2], self.op("add", near, i % 2)
                weight = self.weight(self.logit(x, self.head, place, key), self.bases[i // 2])
                changes[c][i] = self.change(weight, changes[c][i], self.means[i // 2])
                if "dbias" in self.numbers:
                    self._store_change(place, key, changes[c][i])
        return self.named("dq", self.mixed(changes, "k", first, self.key_head, self.totals("dq")))

    def _store_change(self, query: str, key: str, value: str) -> None:
        f, n = self.f, self.step.sizes
        inside = [f.let(f"icmp ult i32 {x}, {m}") for x, m in ((query, n.queries), (key, n.keys))]

        def store() -> None:
            at = self.of_pair("dbias", self.head, query, key)
            f.do(f"store float {value}, ptr{GLOBAL} {self.pointer('dbias', at, 'float')}, align 4")

        self.when(f.let(f"and i1 {inside[0]}, {inside[1]}"), store)


class ToKeys(_Backward):
    """Writes the kernel of keys' and values' cotangents, or of one of both: its tiles have keys as
    rows."""

    def attend(self) -> None:
        f, n = self.f, self.step.sizes
        self.changes = "dk" in self.numbers
        keys = self.rows_of("k", self.places, self.head)
        values = self.rows_of("v", self.places, self.head) if self.changes else []
        self.start, end = self._queries_seeing()
        self.turns = f.intrinsic("smax", "i32", self.op("sub", end, self.start), "0")
        group = n.heads // n.key_heads
        self.head_first = self.op("mul", self.head, group)
        every = self.op("mul", self.turns, group)
        ours = [name for name in ("dk", "dv") if name in self.numbers]
        states = {k: x for name in ours for k, x in self.zeros(name).items()}
        self.loop("0", every, states, lambda: self._tile(keys, values))
        for name in ours:
            self.write(name, self.step.scale if name == "dk" else 1.0)

    def _queries_seeing(self) -> tuple[str, str]:
        """The tiles of queries, from the first to before the second, that may see the keys."""
        f, n, s = self.f, self.step.sizes, self.step
        start, stop = "0", str(n.queries)
        if s.after is not None:
            start = f.intrinsic("smax", "i32", self.op("sub", self.first, s.after), "0")
            start = self.op("lshr", start, 4)
        if s.before is not None:
            last = self.op("add", self.first, min(s.before, n.queries) + TILE)
            stop = f.intrinsic("umin", "i32", last, stop)
        return start, self.op("lshr", self.op("add", stop, TILE - 1), 4)

    def _tile(self, keys: _Rows, values: _Rows) -> dict[str, str]:
        n = self.step.sizes
        head, turn = self.head_first, "%j"
        if n.heads != n.key_heads:
            head = self.op("add", head, self.op("udiv", "%j", self.turns))
            turn = self.op("urem", "%j", self.turns)
        first = self.op("shl", self.op("add", self.start, turn), 4)
        weights = self.products(keys, "q", first, head)
        changes = self.products(values, "ct", first, head) if self.changes else weights
        for c, part in enumerate(weights):
            near = self.op("add", self.op("add", first, 8 * c), self.pair)
            for e in (0, 1):
                self._column(part, changes[c], e, head, self.op("add", near, e))
        found: dict[str, str] = {}
        if "dv" in self.numbers:
            found |= self.named("dv", self.mixed(weights, "ct", first, head, self.totals("dv")))
        if self.changes:
            found |= self.named("dk", self.mixed(changes, "q", first, head, self.totals("dk")))
        return found

    def _column(self, part: Part, changes: Part, e: int, head: str, query: str) -> None:
        """A query's products, in place, as weights and changes."""
        row = self.least(query, self.step.sizes.queries)
        base = self.base(row, head)
        mean = self.load_float(self.of_row("means", row, head)) if self.changes else ""
        for i in (e, 2 + e):
            part[i] = self.weight(self.logit(part[i], head, query, self.places[i // 2]), base)
            if self.changes:
                changes[i] = self.change(part[i], changes[i], mean)
