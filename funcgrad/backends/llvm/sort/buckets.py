"""Sorts of long rows in generated code by a split into buckets, each then sorted in a cache.

A word's rank is its upper 32 bits (all of a word of 32). What lies between the least rank and the
greatest is cut into equal parts, one a bucket: of (rank - least) · scale, the upper half is the
bucket, and the lower half orders ranks within it. So the upper bits of that, and the place in the
bucket below them, are one word of 32 bits, which a network sorts, and stably so. Ranks that don't
spread are for other sorts; which way it goes depends on values alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.code import I32, I64, PTR, VOID, Code, Int, Record, declare
from funcgrad.backends.llvm.sort.keys import like
from funcgrad.backends.llvm.sort.network import LANES, emit_network, padded
from funcgrad.backends.llvm.sort.radix import Radix, clear, grow, zext

I1 = ir.IntType(1)
_RANKS = ir.VectorType(I32, LANES)
_MEAN = 200  # words of a bucket, so that next to none has more than 256
_MOST = 1024  # words that the network is used for
_TINY = 12  # words up to which insertion is faster
_BUCKETS = 1 << 13
# The part of all words that may be in buckets with more than `_MOST`.
_CROWD = 8
_JOB = ("n", "chunk", "low", "scale", "buckets", "counts", "starts", "words", "room")


class Row:
    """How elements of a row become words, and where sorted ones go: functions of the code, a job
    that has the addresses `arrays`, and the number of an element.

    rank: a vector of so many from there on, if a number of lanes is given; word; write: of a word
    """

    def __init__(
        self, word: ir.IntType, arrays: tuple[str, ...], rank: Callable[..., ir.Value],
        word_at: Callable[..., ir.Value], write: Callable[..., None],
    ):  # fmt: skip
        self.word, self.arrays, self.rank = word, arrays, rank
        self.word_at, self.write = word_at, write


class Buckets:
    """Sorts of a long row by buckets, in parallel; `radix` sorts what the network doesn't.

    block: how many words the network keeps in registers
    """

    def __init__(self, module: ir.Module, row: Row, radix: Radix, block: int):
        self.module, self.row, self.radix, self.word = module, row, radix, row.word
        self.block = block
        self.vector = ir.VectorType(row.word, LANES)
        self.fields = (*row.arrays, *_JOB)
        self.loop = declare(module, "fg_parallel_for", ir.FunctionType(VOID, [PTR, PTR, I64, I64]))
        self.take = declare(module, "fg_scratch_take", ir.FunctionType(PTR, [I64]))
        self.give = declare(module, "fg_scratch_give", ir.FunctionType(VOID, [PTR]))
        self.network = emit_network(module, "buckets_network", block // LANES)
        self.order = self._order()
        self.function = self._function()

    def run(self, code: Code, n: Int, arrays: list[ir.Value], scratch: list[ir.Value]) -> ir.Value:
        """Sort a row of n elements; an i1 that says whether it is sorted, or is too uneven.

        scratch: two blocks of `room(n)` words
        """
        job = Record(code, self.fields, code.variable(I64, count=len(self.fields)).slot)
        for name, array in zip(self.row.arrays, arrays, strict=True):
            job[name] = array
        job["n"] = n
        job["words"], job["room"] = scratch
        return code.call(self.function, job.pointer)

    def _function(self) -> ir.Function:
        bounds, count, places = self._bounds(), self._count(), self._places()
        move, finish = self._move(), self._finish()
        code = Code(self.module, "buckets", [PTR], result=I1)
        code.function.attributes.add("noinline")
        job = Record(code, self.fields, code.args[0])
        n = job["n"]
        chunks = (n // (1 << 17)).max(2).min(32)
        buckets = (n // _MEAN).min(_BUCKETS).round_up(LANES)
        job["buckets"], job["chunk"] = buckets, n.ceil_div(chunks)
        job["counts"] = code.call(self.take, (chunks + 2) * buckets * 4)
        job["starts"] = code.at(job.pointer_at("counts"), chunks * buckets, I32)
        code.call(self.loop, bounds, job.pointer, chunks, 1)
        low, high = code.variable(I32, I32(-1)), code.variable(I32, I32(0))
        with code.range(0, chunks) as c:
            for k, (name, slot) in enumerate((("umin", low), ("umax", high))):
                x = code.load(code.at(job.pointer_at("counts"), 2 * c + k, I32), I32)
                slot.set(code.intrinsic(name, slot.get(), x))
        job["low"] = zext(code, low.get())
        wide = zext(code, high.get()) - zext(code, low.get()) + 1
        job["scale"] = Int(code, code.b.shl(buckets.value, I64(32))) // wide
        code.call(self.loop, count, job.pointer, chunks, 1)
        crowd = Int(code, code.call(places, job.pointer, chunks))
        good = (crowd <= n // _CROWD) | (job["scale"] >= 1 << 32)
        with code.when(good):
            code.call(self.loop, move, job.pointer, chunks, 1)
            code.call(self.loop, finish, job.pointer, buckets, LANES)
        code.call(self.give, job.pointer_at("counts"))
        code.ret(good.value)
        return code.function

    def _task(self, kind: str) -> tuple[Code, Record]:
        code = Code(self.module, f"buckets_{kind}", [PTR, I64, I64])
        return code, Record(code, self.fields, code.args[0])

    def _bounds(self) -> ir.Function:
        """The least rank of each chunk, and the greatest."""
        code, job = self._task("bounds")
        n, chunk = job["n"], job["chunk"]
        with code.range(code.args[1], code.args[2]) as c:
            end = ((c + 1) * chunk).min(n)
            ranks = self.row.rank(code, job, c * chunk, LANES)
            ends = code.variable(_RANKS, ranks), code.variable(_RANKS, ranks)
            with code.range(c * chunk, end, LANES) as i:
                # A chunk has more elements than a vector; some are looked at twice.
                ranks = self.row.rank(code, job, i.min(end - LANES), LANES)
                for name, slot in zip(("umin", "umax"), ends, strict=True):
                    slot.set(code.intrinsic(name, slot.get(), ranks))
            for k, (name, slot) in enumerate(zip(("umin", "umax"), ends, strict=True)):
                kind = ir.FunctionType(I32, [_RANKS])
                reduce = declare(self.module, f"llvm.vector.reduce.{name}.v{LANES}i32", kind)
                x = code.b.call(reduce, [slot.get()])
                code.store(x, code.at(job.pointer_at("counts"), 2 * c + k, I32))
        code.ret()
        return code.function

    def _bucket(self, code: Code, rank: ir.Value, low: Int, scale: Int) -> Int:
        above = zext(code, code.b.sub(rank, code.b.trunc(low.value, I32)))
        return Int(code, code.b.lshr((above * scale).value, I64(32)))

    def _count(self) -> ir.Function:
        """How many elements of each chunk are in each bucket."""
        code, job = self._task("count")
        n, chunk, buckets = job["n"], job["chunk"], job["buckets"]
        low, scale = job["low"], job["scale"]
        with code.range(code.args[1], code.args[2]) as c:
            counts = code.at(job.pointer_at("counts"), c * buckets, I32)
            clear(code, counts, buckets * 4)
            with code.range(c * chunk, ((c + 1) * chunk).min(n)) as i:
                bucket = self._bucket(code, self.row.rank(code, job, i), low, scale)
                grow(code, code.at(counts, bucket, I32))
        code.ret()
        return code.function

    def _places(self) -> ir.Function:
        """Counts become the numbers of a bucket's words in chunks before. Besides: where buckets
        start among the words (at lines of memory), where they end in the result; and the result is
        how many words are in large buckets."""
        code = Code(self.module, "buckets_places", [PTR, I64], result=I64)
        job, chunks = Record(code, self.fields, code.args[0]), code.args[1]
        buckets, counts = job["buckets"], job.pointer_at("counts")
        starts = job.pointer_at("starts")
        with code.range(0, buckets, LANES) as d:
            sums = code.variable(_RANKS, ir.Constant(_RANKS, None))
            with code.range(0, chunks) as c:
                at = code.at(counts, c * buckets + d, I32)
                x = code.load(at, _RANKS, 4)
                code.store(sums.get(), at, 4)
                sums.set(code.b.add(sums.get(), x))
            code.store(sums.get(), code.at(starts, d, I32), 4)
        start, end, crowd = (code.variable(I64, I64(0)) for _ in range(3))
        with code.range(0, buckets) as d:
            at = code.at(starts, d, I32)
            begin, x = Int(code, start.get()), zext(code, code.load(at, I32))
            code.store(code.b.trunc(begin.value, I32), at)
            start.set((begin + x).round_up(LANES))
            end.set(Int(code, end.get()) + x)
            code.store(code.b.trunc(end.get(), I32), code.at(starts, buckets + d, I32))
            crowd.set(Int(code, crowd.get()) + (x > _MOST).select(x, 0))
        code.ret(crowd.get())
        return code.function

    def _move(self) -> ir.Function:
        """Each chunk's words go to their buckets."""
        code, job = self._task("move")
        n, chunk, buckets = job["n"], job["chunk"], job["buckets"]
        low, scale, words = job["low"], job["scale"], job.pointer_at("words")
        with code.range(code.args[1], code.args[2]) as c:
            places = code.at(job.pointer_at("counts"), c * buckets, I32)
            with code.range(0, buckets, LANES) as d:
                at = code.at(places, d, I32)
                start = code.load(code.at(job.pointer_at("starts"), d, I32), _RANKS, 4)
                code.store(code.b.add(code.load(at, _RANKS, 4), start), at, 4)
            with code.range(c * chunk, ((c + 1) * chunk).min(n)) as i:
                word = self.row.word_at(code, job, i)
                bucket = self._bucket(code, self._rank(code, word), low, scale)
                place = grow(code, code.at(places, bucket, I32))
                code.store(word, code.at(words, place, self.word))
        code.ret()
        return code.function

    def _finish(self) -> ir.Function:
        """Buckets in order become elements of the result."""
        code, job = self._task("finish")
        starts, low, scale = job.pointer_at("starts"), job["low"], job["scale"]
        slots, source = code.variable(_RANKS, count=_MOST // LANES).slot, code.variable(PTR)
        ends = code.at(starts, job["buckets"], I32)
        with code.range(code.args[1], code.args[2]) as d:
            before = zext(code, code.load(code.at(ends, (d - 1).max(0), I32), I32))
            begin = d.eq(0).select(0, before)
            n = zext(code, code.load(code.at(ends, d, I32), I32)) - begin
            start = zext(code, code.load(code.at(starts, d, I32), I32))
            words = code.at(job.pointer_at("words"), start, self.word)
            count = padded(code, n, self.block)
            # Above, a bucket has one rank, and its words are in order.
            mixed = scale < 1 << 32
            fits = (n > _TINY) & (n <= _MOST) & mixed
            fits = fits & (count <= scale) if self.word == I64 else fits
            with code.either(fits) as (yes, no):
                with yes:
                    code.call(self.order, words, slots, n, low, scale)
                    with code.range(0, n) as i:
                        x = self._sorted(code, words, slots, count, i)
                        self.row.write(code, job, begin + i, x)
                with no:
                    source.set(words)
                    with code.when((n > 1) & mixed):
                        room = code.at(job.pointer_at("room"), start, self.word)
                        source.set(code.call(self.radix.function, words, room, n))
                    with code.range(0, n) as i:
                        x = code.b.load(code.at(source.get(), i, self.word), typ=self.word)
                        self.row.write(code, job, begin + i, x)
        code.ret()
        return code.function

    def _rank(self, code: Code, word: ir.Value) -> ir.Value:
        if self.word == I32:
            return word
        kind = _RANKS if isinstance(word.type, ir.VectorType) else I32
        return code.b.trunc(code.b.lshr(word, like(word, 32)), kind)

    def _sorted(self, code: Code, words: ir.Value, slots: ir.Value, count: Int, i: Int) -> ir.Value:
        """A word of a bucket by its place in the order that `order` left in the slots."""
        x = code.b.load(code.at(slots, i, I32), typ=I32)
        if self.word == I32:
            return x
        place = zext(code, code.b.and_(x, code.b.trunc((count - 1).value, I32)))
        return code.b.load(code.at(words, place, I64), typ=I64)

    def _order(self) -> ir.Function:
        """void (ptr words, ptr slots, i64 n, i64 low, i64 scale), for the words of a bucket: those
        of 32 bits are in order in the slots then; of others, their places are, as the lowest bits.
        """
        kinds = [PTR, PTR, I64, I64, I64]
        code = Code(self.module, "buckets_order", kinds)
        code.function.attributes.add("noinline")
        b, (words, slots, n, low, scale) = code.b, code.args
        count = padded(code, n, self.block)

        def spread(x: Int) -> ir.Value:
            return code.splat(b.trunc(x.value, I32), LANES)

        lows, scales, places = spread(low), spread(scale), spread(count - 1)
        ones, steps = like(places, -1), ir.Constant(_RANKS, list(range(LANES)))
        with code.range(0, count, LANES) as i:
            there = code.first_lanes(n - i, LANES)
            x = code.masked_load(code.at(words, i, self.word), there, self.vector)
            if self.word == I64:
                x = b.mul(b.sub(self._rank(code, x), lows), scales)
                x = b.or_(b.and_(x, b.xor(places, ones)), b.add(spread(i), steps))
            code.store(b.select(there, x, ones), code.at(slots, i, I32), 64)
        code.call(self.network, slots, count)
        code.ret()
        return code.function


def room(n: Any) -> Any:
    """How many words a row of n needs room for, with what lies between buckets.

    >>> room(80000)
    90000
    """
    return n + n // 8
