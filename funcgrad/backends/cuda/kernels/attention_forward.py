"""Attention's forward pass: a warp takes 16 queries of a head, and tiles of 16 keys in turn.

Online softmax (Milakov and Gimelshein 2018; Dao et al., "FlashAttention", 2022): a turn's larger
maximum shrinks what earlier turns have summed.
"""

from __future__ import annotations

from collections.abc import Sequence

from funcgrad.backends.cuda.kernels import mma
from funcgrad.backends.cuda.kernels.attention_tiles import LOG2E, LOWEST, Part, Tiles
from funcgrad.backends.cuda.writer import GLOBAL

_INFINITE = "0x7FF0000000000000"


class Forward(Tiles):
    """Writes the kernel of an attention."""

    def attend(self) -> None:
        n = self.step.sizes
        self.key_head = self.op("udiv", self.head, n.heads // n.key_heads)
        queries = self.rows_of("q", self.places, self.head)
        states = {f"m{h}": LOWEST for h in (0, 1)} | {f"l{h}": "0.0" for h in (0, 1)}
        states |= self.zeros("o")
        self.loop(*self.keys_seen(self.first), states, lambda: self._tile(queries))
        self._finish()

    def _tile(self, queries: list[list[str]]) -> dict[str, str]:
        """Sixteen keys; what the states are after them."""
        first = self.op("shl", "%j", 4)
        scores = self.products(queries, "k", first, self.key_head)
        for c, part in enumerate(scores):
            near = self.op("add", self.op("add", first, 8 * c), self.pair)
            for i, x in enumerate(part):
                key = self.op("add", near, i % 2)
                part[i] = self.logit(x, self.head, self.places[i // 2], key)
        after, weights, shrinks = self._softmax(scores)
        totals = [
            [self.fop("fmul", x, shrinks[i // 2]) for i, x in enumerate(part)]
            for part in self.totals("o")
        ]
        return after | self.named("o", self.mixed(weights, "v", first, self.key_head, totals))

    def _softmax(
        self, scores: Sequence[Part]
    ) -> tuple[dict[str, str], list[Part], list[str]]:  # fmt: skip
        """The states after a tile, its weights, and by what earlier results shrink."""
        f, shrinks = self.f, []
        after: dict[str, str] = {}
        weights = [["0.0"] * 4 for _ in scores]
        for h in (0, 1):
            mine = [x for part in scores for x in part[2 * h : 2 * h + 2]]
            top = mine[0]
            for x in mine[1:]:
                top = f.intrinsic("maxnum", "float", top, x)
            top = f.intrinsic("maxnum", "float", f"%m{h}", mma.over_row(f, top, "max"))
            none = f.let(f"fcmp oeq float {top}, {LOWEST}")
            base = f.let(f"select i1 {none}, float 0.0, float {top}")

            def power(x: str, base: str = base) -> str:
                return mma.exp2(f, self.fop("fmul", self.fop("fsub", x, base), LOG2E))

            shrinks.append(power(f"%m{h}"))
            total = self.fop("fmul", f"%l{h}", shrinks[-1])
            for c, part in enumerate(scores):
                for i in (2 * h, 2 * h + 1):
                    weights[c][i] = power(part[i])
                    total = self.fop("fadd", total, weights[c][i])
            after |= {f"m{h}": top, f"l{h}": total}
        return after, weights, shrinks

    def _finish(self) -> None:
        """Write results, and what backward passes normalize by."""
        f, n = self.f, self.step.sizes
        for h, place in enumerate(self.places):
            total = mma.over_row(f, f"%l{h}", "add")
            none = f.let(f"fcmp oeq float {total}, 0.0")
            divisor = f.let(f"select i1 {none}, float 1.0, float {total}")

            def write(
                h: int = h, place: str = place, none: str = none, divisor: str = divisor
            ) -> None:
                at = self.at("out", place, self.head)
                for c in range(n.features // 8):
                    parts = []
                    for i in (2 * h, 2 * h + 1):
                        value = self.fop("fdiv", f"%o{c}_{i}", divisor)
                        parts.append(f.let(f"select i1 {none}, float 0.0, float {value}"))
                    packed = mma.pack(f, self.kind, *parts)
                    self.store_pair("out", at, self.op("add", self.pair, 8 * c), packed)
                top = f.let(f"select i1 {none}, float {_INFINITE}, float %m{h}")
                log = f.let(f"select i1 {none}, float 0.0, float {mma.log(f, divisor)}")
                for which, value in (("0", top), ("1", log)):
                    to = self.of_row("stats", place, self.head, which)
                    f.do(f"store float {value}, ptr{GLOBAL} {to}, align 4")

            self.when(f.let(f"icmp ult i32 {place}, {n.queries}"), write)
