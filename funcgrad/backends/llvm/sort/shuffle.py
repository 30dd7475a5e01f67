"""Sorts of a long array by random words in generated code, which are made as they are needed.

Words of threefry spread evenly, so nothing is counted before: each chunk of the array has room in
each bucket for as many as there may be but for a chance that is hardly met, and moves its words
there as they are made. Buckets then go through a network, as in `buckets`. Where some bucket
has no room, the words are sorted by their digits instead; which way it goes depends on the key and
the number of threads, the result doesn't.
"""

from __future__ import annotations

from collections.abc import Callable

from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.code import I32, I64, PTR, VOID, Code, Int, Record, declare
from funcgrad.backends.llvm.sort.keys import like
from funcgrad.backends.llvm.sort.network import LANES, emit_network, padded
from funcgrad.backends.llvm.sort.radix import Radix, grow, zext
from funcgrad.ops.random import PARITY, ROTATIONS

I1 = ir.IntType(1)
_RANKS = ir.VectorType(I32, LANES)
_WIDE = ir.VectorType(I64, LANES)
_CALL = ("n", "key0", "key1", "x", "out")
_JOB = (*_CALL, "chunks", "chunk", "buckets", "room", "places", "ends", "words")
_MEAN = 200  # words of a bucket, so that next to none has more than 256
_MOST = 512  # words that a bucket may have
_CHUNKS = 8  # at most
_DEVIATIONS = 7  # from the mean of a chunk's words in a bucket that there is room for
# Words that are made before those LANES of them that are moved, and words in a ring.
_BEFORE, _RING = 2 * LANES, 4 * LANES


def emit_shuffle(module: ir.Module, name: str, width: int, block: int) -> None:
    """Write void name(ptr call) for the words `_CALL`: x, of elements of `width` bytes, in the
    order of the random words 0 … n-1 of a key; equal ones as they were. x has 2^16 to 2^26.

    block: of words, as a sorting network has registers for
    """
    _Writer(module, width, block).entry(name)


class _Writer:
    def __init__(self, module: ir.Module, width: int, block: int):
        self.module, self.block, self.kind = module, block, ir.IntType(8 * width)
        self.loop = declare(module, "fg_parallel_for", ir.FunctionType(VOID, [PTR, PTR, I64, I64]))
        self.take = declare(module, "fg_scratch_take", ir.FunctionType(PTR, [I64]))
        self.give = declare(module, "fg_scratch_give", ir.FunctionType(VOID, [PTR]))
        self.network = emit_network(module, "shuffle_network", block // LANES)
        self.radix = Radix(module, I64, 32, 32).function

    def entry(self, name: str) -> None:
        move, ends, finish = self._move(), self._ends(), self._finish()
        digits = self._digits()
        limit = ir.GlobalVariable(self.module, I32, "fg_pool_limit")
        code = Code(self.module, name, [PTR], public=True)
        call = Record(code, _CALL, code.args[0])
        job = Record(code, _JOB, code.variable(I64, count=len(_JOB)).slot)
        for field in _CALL:
            job[field] = call[field]
        n = call["n"]
        threads = Int(code, code.b.sext(code.load(limit, I32), I64)) + 1
        chunks = threads.max(2).min(_CHUNKS)
        buckets = (n // _MEAN).round_up(LANES)
        job["chunks"], job["chunk"] = chunks, n.ceil_div(chunks).round_up(LANES)
        job["buckets"], job["room"] = buckets, self._room(code, n // (chunks * buckets) + 1)
        # Room for what doesn't fit in the last bucket; and words are read by vectors.
        words = self._step(job) * buckets + job["chunk"] + LANES
        job["words"] = code.call(self.take, words * 8)
        job["places"] = code.call(self.take, (chunks + 1) * buckets * 4)
        job["ends"] = code.at(job.pointer_at("places"), chunks * buckets, I32)
        code.call(self.loop, move, job.pointer, chunks, 1)
        with code.either(Int(code, code.call(ends, job.pointer)).ne(0)) as (good, bad):
            with good:
                code.call(self.loop, finish, job.pointer, buckets, LANES)
            with bad:
                code.call(digits, job.pointer)
        code.call(self.give, job.pointer_at("places"))
        code.call(self.give, job.pointer_at("words"))
        code.ret()

    def _room(self, code: Code, mean: Int) -> Int:
        """For how many words a chunk has room in a bucket: some deviations more than the mean, in
        whole lines of memory."""
        double = ir.DoubleType()
        root = code.intrinsic("sqrt", code.b.sitofp((mean * _DEVIATIONS**2).value, double))
        return (mean + Int(code, code.b.fptosi(root, I64)) + 1).round_up(8)

    def _step(self, job: Record) -> Int:
        """The words from bucket to bucket: a line more, or all of them would meet in few of the
        caches' sets."""
        return job["room"] * job["chunks"] + 8

    def _task(self, kind: str) -> tuple[Code, Record]:
        code = Code(self.module, f"shuffle_{kind}", [PTR, I64, I64])
        return code, Record(code, _JOB, code.args[0])

    def _random(self, code: Code, job: Record) -> Callable[[Int], ir.Value]:
        """What makes the ranks of so many elements from one on."""
        b = code.b
        keys = [code.splat(code.load(job.pointer_at(f"key{k}"), I32), LANES) for k in range(2)]
        keys.append(b.xor(b.xor(*keys), like(keys[0], PARITY)))
        steps = ir.Constant(_RANKS, list(range(LANES)))

        def ranks(i: Int) -> ir.Value:
            count = b.add(code.splat(b.trunc(i.value, I32), LANES), steps)
            x, y = keys[0], b.add(count, keys[1])
            for turn in range(5):
                for r in ROTATIONS[turn % 2]:
                    x = b.add(x, y)
                    y = b.xor(code.intrinsic("fshl", y, y, like(y, r)), x)
                x = b.add(x, keys[(turn + 1) % 3])
                y = b.add(y, b.add(keys[(turn + 2) % 3], like(y, turn + 1)))
            return b.xor(x, y)

        return ranks

    def _move(self) -> ir.Function:
        """Each chunk's words go to their buckets: those of some elements while the ranks of later
        ones are computed."""
        code, job = self._task("move")
        b, n, chunk, buckets = code.b, job["n"], job["chunk"], job["buckets"]
        step, words = self._step(job), job.pointer_at("words")
        random = self._random(code, job)
        # That it has 32 bits makes for the faster multiplication.
        scale = b.zext(code.splat(b.trunc(buckets.value, I32), LANES), _WIDE)
        ring = code.variable(_WIDE, count=_RING // LANES).slot
        numbers = code.variable(_RANKS, count=_RING // LANES).slot
        elements = ir.VectorType(self.kind, LANES)
        xs = job.pointer_at("x")

        def make(i: Int, first: Int) -> None:
            rank, at = b.zext(random(i), _WIDE), (i - first) & (_RING - 1)
            bucket = b.lshr(b.mul(rank, scale), like(scale, 32))
            code.store(b.trunc(bucket, _RANKS), code.at(numbers, at, I32), 64)
            here = code.first_lanes(n - i, LANES)
            x = b.zext(code.masked_load(code.at(xs, i, self.kind), here, elements), _WIDE)
            code.store(b.or_(b.shl(rank, like(rank, 32)), x), code.at(ring, at, I64), 64)

        with code.range(code.args[1], code.args[2]) as c:
            places = code.at(job.pointer_at("places"), c * buckets, I32)
            with code.range(0, buckets) as d:
                start = d * step + c * job["room"]
                code.store(b.trunc(start.value, I32), code.at(places, d, I32))

            def slot(at: Int) -> ir.Value:
                """Where the next word goes of the rank at a place of the ring."""
                bucket = zext(code, code.load(code.at(numbers, at, I32), I32))
                return code.at(places, bucket, I32)

            def move(at: Int) -> None:
                place = grow(code, slot(at))
                code.store(code.load(code.at(ring, at, I64), I64), code.at(words, place, I64))

            first = c * chunk
            last = (first + chunk).min(n)
            whole = first + (last - first).max(0) // LANES * LANES
            for before in range(0, _BEFORE, LANES):
                make(first + before, first)
            with code.range(first, whole, LANES) as i:
                make(i + _BEFORE, first)
                at = (i - first) & (_RING - 1)
                ahead = (at + LANES) & (_RING - 1)
                for j in range(LANES):
                    place = zext(code, code.load(slot(ahead + j), I32))
                    code.prefetch(code.at(words, place, I64), write=True)
                for j in range(LANES):
                    move(at + j)
            with code.range(whole, last) as i:
                move((i - first) & (_RING - 1))
        code.ret()
        return code.function

    def _ends(self) -> ir.Function:
        """i64 ends(ptr job): places become numbers of words in a bucket, `ends` where its words end
        in the result; 0 if some don't fit."""
        code = Code(self.module, "shuffle_ends", [PTR], result=I64)
        b, job = code.b, Record(code, _JOB, code.args[0])
        buckets, room, step = job["buckets"], job["room"], self._step(job)
        end, good = code.variable(I64, I64(0)), code.variable(I64, I64(1))

        def need(fits: Int) -> None:
            good.set(Int(code, good.get()) & fits)

        # The network sees a rank's upper bits, and those are enough only beside many buckets.
        most = (buckets >= _MOST).select(_MOST, _MOST // 2)
        with code.range(0, buckets) as d:
            total = code.variable(I64, I64(0))
            with code.range(0, job["chunks"]) as c:
                at = code.at(job.pointer_at("places"), c * buckets + d, I32)
                count = zext(code, code.load(at, I32)) - (d * step + c * room)
                code.store(b.trunc(count.value, I32), at)
                need((count <= room).select(1, 0))
                total.set(Int(code, total.get()) + count)
            need((Int(code, total.get()) <= most).select(1, 0))
            end.set(Int(code, end.get()) + Int(code, total.get()))
            code.store(b.trunc(end.get(), I32), code.at(job.pointer_at("ends"), d, I32))
        code.ret(good.get())
        return code.function

    def _finish(self) -> ir.Function:
        """Buckets in order become elements of the result."""
        code, job = self._task("finish")
        b, buckets, step = code.b, job["buckets"], self._step(job)
        words, ends = job.pointer_at("words"), job.pointer_at("ends")
        scale = code.splat(b.trunc(buckets.value, I32), LANES)
        steps = ir.Constant(_RANKS, list(range(LANES)))
        whole = ir.VectorType(I64, LANES)
        slots, values = (code.variable(_RANKS, count=_MOST // LANES + 2).slot for _ in range(2))
        with code.range(code.args[1], code.args[2]) as d:
            before = zext(code, code.load(code.at(ends, (d - 1).max(0), I32), I32))
            begin = d.eq(0).select(0, before)
            total = zext(code, code.load(code.at(ends, d, I32), I32)) - begin
            count = padded(code, total, self.block)
            mask = code.splat(b.trunc((count - 1).value, I32), LANES)
            self._ask(code, job, (d + 1).min(buckets - 1))
            past = code.variable(I64, I64(0))
            # What is written behind a chunk's words is overwritten by those of the next one.
            with code.range(0, job["chunks"]) as c:
                n = zext(
                    code, code.load(code.at(job.pointer_at("places"), c * buckets + d, I32), I32)
                )
                start, at = d * step + c * job["room"], Int(code, past.get())
                with code.range(0, n, LANES) as i:
                    x = code.load(code.at(words, start + i, I64), whole, 8)
                    code.store(b.trunc(x, _RANKS), code.at(values, at + i, I32), 4)
                    rank = b.mul(b.trunc(b.lshr(x, like(x, 32)), _RANKS), scale)
                    place = b.add(code.splat(b.trunc((at + i).value, I32), LANES), steps)
                    rank = b.or_(b.and_(rank, b.xor(mask, like(mask, -1))), b.and_(place, mask))
                    code.store(rank, code.at(slots, at + i, I32), 4)
                past.set(at + n)
            with code.range(total, count, LANES) as i:
                code.store(ir.Constant(_RANKS, [0xFFFFFFFF] * LANES), code.at(slots, i, I32), 4)
            code.call(self.network, slots, count)
            with code.range(0, total) as i:
                old = zext(code, code.load(code.at(slots, i, I32), I32)) & (count - 1)
                x = code.load(code.at(values, old, I32), I32)
                x = x if self.kind == I32 else b.trunc(x, self.kind)
                code.store(x, code.at(job.pointer_at("out"), begin + i, self.kind))
        code.ret()
        return code.function

    def _held(self, code: Code, job: Record, c: Int, d: Int) -> Int:
        """How many words of a chunk are in a bucket."""
        at = code.at(job.pointer_at("places"), c * job["buckets"] + d, I32)
        return zext(code, code.load(at, I32))

    def _ask(self, code: Code, job: Record, d: Int) -> None:
        """Prefetch a bucket's words: processors expect more of them where there is only room."""
        with code.range(0, job["chunks"]) as c:
            start = d * self._step(job) + c * job["room"]
            with code.range(0, self._held(code, job, c, d), 8) as i:
                code.prefetch(code.at(job.pointer_at("words"), start + i, I64))

    def _digits(self) -> ir.Function:
        """void digits(ptr job): the whole by a radix sort, on one thread but for that."""
        code = Code(self.module, "shuffle_digits", [PTR])
        b, job = code.b, Record(code, _JOB, code.args[0])
        n, random = job["n"], self._random(code, job)
        blocks = [code.call(self.take, (n + LANES) * 8) for _ in range(2)]
        ranks = code.variable(_RANKS)
        with code.range(0, n, LANES) as i:
            ranks.set(random(i))
            with code.range(0, (n - i).min(LANES)) as j:
                rank = zext(code, code.load(code.at(ranks.slot, j, I32), I32))
                x = b.load(code.at(job.pointer_at("x"), i + j, self.kind), typ=self.kind)
                x = b.or_(b.shl(rank.value, I64(32)), b.zext(x, I64))
                code.store(x, code.at(blocks[0], i + j, I64))
        words = code.call(self.radix, *blocks, n)
        with code.range(0, n) as i:
            x = b.trunc(code.b.load(code.at(words, i, I64), typ=I64), self.kind)
            code.store(x, code.at(job.pointer_at("out"), i, self.kind))
        for block in blocks:
            code.call(self.give, block)
        code.ret()
        return code.function
