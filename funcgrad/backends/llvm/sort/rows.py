"""Sorts of rows in generated code: by ranks alone, or as an order that several arrays follow.

A row is n elements at equal distances. Numbers alone become ranks, which are sorted and turned
back. Else a word holds a rank above and a position below (or what goes with a key, where that has
room): words are stable under a radix sort of their upper halves, from the last key to the first, so
that positions end in the order of the keys. Long rows of integers go by buckets, if they spread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.code import I32, I64, PTR, VOID, Code, Int, Record, declare
from funcgrad.backends.llvm.sort.buckets import Buckets, Row, room
from funcgrad.backends.llvm.sort.keys import Keys
from funcgrad.backends.llvm.sort.radix import LONG, Radix

I1 = ir.IntType(1)
# A call: `outer` × `inner` rows of n elements that are `inner` apart, how many of each row are
# wanted, then the arrays.
CALL = ("outer", "n", "inner", "k")
_ROW = ("words", "to", "stride", "by")
_SERIAL = 1 << 14  # elements below which a second thread is no gain
_GRAIN = 1 << 16  # elements of a chunk of a long row
# Rows side by side share lines of memory.
_SIDE = 16


class Rows:
    """What sorts of rows share: memory, parallel loops, radix sorts."""

    def __init__(self, module: ir.Module):
        self.module = module
        self.loop = declare(module, "fg_parallel_for", ir.FunctionType(VOID, [PTR, PTR, I64, I64]))
        self.take = declare(module, "fg_scratch_take", ir.FunctionType(PTR, [I64]))
        self.give = declare(module, "fg_scratch_give", ir.FunctionType(VOID, [PTR]))
        self._sorts: dict[tuple, Radix] = {}

    def radix(self, word: ir.IntType, shift: int, bits: int) -> Radix:
        """The radix sort of words by `bits` of their bits, from `shift` on; written once."""
        key = word.width, shift, bits
        if key not in self._sorts:
            self._sorts[key] = Radix(self.module, word, shift, bits)
        return self._sorts[key]

    def unless_sorted(
        self, keys: Keys, row: Row, block: int
    ) -> Callable[[Code, Record, list[ir.Value], list[ir.Value]], AbstractContextManager[None]]:
        """A context (code, call, arrays, scratch) for what sorts a row if buckets don't: they are
        for long ones of integers side by side.

        block: of words, as a sorting network has registers for; 0 if no row is long
        """
        word = row.word
        buckets = None
        if block and by_buckets(keys):
            radix = self.radix(word, word.width - 32, 32)
            buckets = Buckets(self.module, row, radix, block)

        @contextmanager
        def context(
            code: Code, call: Record, arrays: list[ir.Value], scratch: list[ir.Value]
        ) -> Iterator[None]:
            if buckets is None:
                yield
                return
            n, done = call["n"], code.variable(I1, I1(0))
            with code.when((n >= LONG) & (n < 1 << 31) & call["inner"].eq(1)):
                done.set(buckets.run(code, n, arrays, scratch))
            with code.b.if_then(code.b.not_(done.get())):
                yield

        return context

    def entry(
        self, name: str, arrays: int, row: Callable[[Code, Record, Int, list[ir.Value]], None],
        bytes_of: Callable[[Record], list[Int]],
    ) -> None:  # fmt: skip
        """void name(ptr call): row(code, call, first element, scratch) for each row, in parallel.

        bytes_of: of a call, the bytes of each block of scratch memory that a row needs
        """
        fields = (*CALL, *(f"array{i}" for i in range(arrays)))
        task = Code(self.module, f"{name}_rows", [PTR, I64, I64])
        call = Record(task, fields, task.args[0])
        n, inner = call["n"], call["inner"]
        blocks = [task.call(self.take, size) for size in bytes_of(call)]
        with task.range(task.args[1], task.args[2]) as r:
            row(task, call, r // inner * n * inner + r % inner, blocks)
        for block in blocks:
            task.call(self.give, block)
        task.ret()
        code = Code(self.module, name, [PTR], public=True)
        call = Record(code, fields, code.args[0])
        n, rows = call["n"], call["outer"] * call["inner"]
        with code.when((rows > 0) & (n > 0)):
            grain = (code.i64(_SERIAL) // n).max(1)
            grain = (call["inner"] > 1).select(grain.max(_SIDE), grain)
            with code.either(rows <= grain) as (yes, no):
                with yes:
                    code.call(task.function, call.pointer, 0, rows)
                with no:
                    code.call(self.loop, task.function, call.pointer, rows, grain)
        code.ret()

    def each(self, name: str, body: Callable[[Code, Record, Int], None]) -> Callable[..., None]:
        """A function (code, n, words…) that runs body(code, record, i) for i < n, in parallel where
        there are many."""
        task = Code(self.module, name, [PTR, I64, I64])
        row = Record(task, _ROW, task.args[0])
        with task.range(task.args[1], task.args[2]) as i:
            body(task, row, i)
        task.ret()

        def run(code: Code, n: Int, **words: Int | ir.Value | int) -> None:
            record = Record(code, _ROW, code.variable(I64, count=len(_ROW)).slot)
            for field, value in words.items():
                record[field] = value
            with code.either(n < LONG) as (short, long):
                with short:
                    code.call(task.function, record.pointer, 0, n)
                with long:
                    code.call(self.loop, task.function, record.pointer, n, _GRAIN)

        return run


def emit_keys(module: ir.Module, name: str, keys: Keys, block: int) -> None:
    """Write void name(ptr call) for the arrays x and out: each row of out is that of x, sorted.

    block: of words, as a sorting network has registers for
    """
    rows = Rows(module)
    word, size = keys.word, keys.word.width // 8

    def read(code: Code, r: Record, i: Int) -> None:
        x = code.at(r.pointer_at("to"), i * r["stride"], keys.storage)
        rank = keys.rank(code, _load(code, x, keys.storage), one_zero=False)
        code.store(rank, code.at(r.pointer_at("words"), i, word))

    def write(code: Code, r: Record, i: Int) -> None:
        rank = _load(code, code.at(r.pointer_at("words"), i, word), word)
        to = code.at(r.pointer_at("to"), i * r["stride"], keys.storage)
        code.store(keys.unrank(code, rank), to)

    def rank(code: Code, job: Record, i: Int, lanes: int = 0) -> ir.Value:
        kind = ir.VectorType(keys.storage, lanes) if lanes else keys.storage
        return keys.rank(code, _load(code, code.at(job.pointer_at("x"), i, keys.storage), kind, 4))

    def put(code: Code, job: Record, i: Int, rank: ir.Value) -> None:
        code.store(keys.unrank(code, rank), code.at(job.pointer_at("out"), i, keys.storage))

    reads, writes = rows.each("read", read), rows.each("write", write)
    sort = rows.radix(word, 0, keys.bits).function
    unless_sorted = rows.unless_sorted(keys, Row(word, ("x", "out"), rank, rank, put), block)

    def row(code: Code, call: Record, first: Int, scratch: list[ir.Value]) -> None:
        n, inner = call["n"], call["inner"]
        x, out = (code.at(call.pointer_at(f"array{i}"), first, keys.storage) for i in (0, 1))
        with unless_sorted(code, call, [x, out], scratch):
            reads(code, n, words=scratch[0], to=x, stride=inner)
            words = code.call(sort, *scratch, n)
            writes(code, n, words=words, to=out, stride=inner)

    rows.entry(name, 2, row, lambda call: _blocks(keys, call["n"] * size))


def by_buckets(keys: Keys) -> bool:
    """Whether long rows of these keys may be sorted by buckets: floats don't spread enough."""
    return keys.bits == 32 and not keys.floats


def _blocks(keys: Keys, nbytes: Int) -> list[Int]:
    """The bytes of two blocks for words that take so many."""
    return [room(nbytes) if by_buckets(keys) else nbytes] * 2


def emit_order(
    module: ir.Module, name: str, keys: Sequence[Keys], widths: Sequence[int], block: int
) -> None:
    """Write void name(ptr call) for arrays of elements of `widths` bytes, the first of them `keys`,
    and as many for the results: rows in the order of their keys, equal ones as they were.

    block: as in `emit_keys`
    """
    rows = Rows(module)
    count = len(widths)
    if carries(keys, widths):
        _emit_carried(rows, name, keys[0], widths[1], block)
        return
    stages = [_stage(rows, i, k, part) for i, k in enumerate(keys) for part in parts(k)]
    gathers = {w: _gather(rows, w) for w in sorted(set(widths))}

    def row(code: Code, call: Record, first: Int, scratch: list[ir.Value]) -> None:
        n, inner = call["n"], call["inner"]
        arrays = [
            code.at(call.pointer_at(f"array{i}"), first, ir.IntType(8 * widths[i % count]))
            for i in range(2 * count)
        ]
        words = code.variable(PTR, scratch[0])
        number(code, n, words=scratch[0])
        for i, fill, sort in reversed(stages):
            fill(code, n, words=words.get(), to=arrays[i], stride=inner)
            other = code.b.select(
                code.b.icmp_unsigned("==", words.get(), scratch[0]), scratch[1], scratch[0]
            )
            words.set(code.call(sort, words.get(), other, n))
        for x, out, width in zip(arrays[:count], arrays[count:], widths, strict=True):
            gathers[width](code, n, words=words.get(), to=out, by=x, stride=inner)

    def count_up(code: Code, r: Record, i: Int) -> None:
        code.store(i, code.at(r.pointer_at("words"), i, I64))

    number = rows.each("number", count_up)
    rows.entry(name, 2 * count, row, lambda call: [call["n"] * 8, call["n"] * 8])


def parts(keys: Keys) -> list[tuple[int, int]]:
    """(shift, bits) of the parts of a rank that words have room for, the upper one first."""
    return [(32, 32), (0, 32)] if keys.bits == 64 else [(0, keys.bits)]


def carries(keys: Sequence[Keys], widths: Sequence[int]) -> bool:
    """Whether words have room for all there is: a key that its rank gives back, and one array."""
    return len(widths) == 2 and len(keys) == 1 and not keys[0].floats and max(widths) <= 4


def _stage(rows: Rows, i: int, keys: Keys, part: tuple[int, int]) -> tuple:
    """A part of key number i: how words get it above the position that they hold, and the sort."""
    shift, bits = part

    def fill(code: Code, r: Record, j: Int) -> None:
        at = code.at(r.pointer_at("words"), j, I64)
        place = code.b.and_(_load(code, at, I64), I64((1 << 32) - 1))
        x = code.at(r.pointer_at("to"), Int(code, place) * r["stride"], keys.storage)
        rank = keys.rank(code, _load(code, x, keys.storage))
        if keys.bits == 64:
            rank = code.b.lshr(rank, I64(shift)) if shift else rank
        else:
            rank = code.b.zext(rank, I64)
        code.store(code.b.or_(code.b.shl(rank, I64(32)), place), at)

    return i, rows.each(f"fill{i}_{shift}", fill), rows.radix(I64, 32, bits).function


def _gather(rows: Rows, width: int) -> Callable[..., None]:
    kind = ir.IntType(8 * width)

    def one(code: Code, r: Record, i: Int) -> None:
        word = _load(code, code.at(r.pointer_at("words"), i, I64), I64)
        place = Int(code, code.b.and_(word, I64((1 << 32) - 1))) * r["stride"]
        x = _load(code, code.at(r.pointer_at("by"), place, kind), kind, min(width, 8))
        code.store(x, code.at(r.pointer_at("to"), i * r["stride"], kind), min(width, 8))

    return rows.each(f"gather{width}", one)


def _emit_carried(rows: Rows, name: str, keys: Keys, width: int, block: int) -> None:
    """Words hold a rank and what goes with it."""
    kind = ir.IntType(8 * width)

    def fill(code: Code, r: Record, i: Int) -> None:
        at = i * r["stride"]
        key = _load(code, code.at(r.pointer_at("to"), at, keys.storage), keys.storage)
        x = _load(code, code.at(r.pointer_at("by"), at, kind), kind)
        rank = code.b.shl(code.b.zext(keys.rank(code, key), I64), I64(32))
        code.store(code.b.or_(rank, code.b.zext(x, I64)), code.at(r.pointer_at("words"), i, I64))

    def write(code: Code, r: Record, i: Int) -> None:
        word = _load(code, code.at(r.pointer_at("words"), i, I64), I64)
        at, rank = i * r["stride"], code.b.trunc(code.b.lshr(word, I64(32)), I32)
        code.store(keys.unrank(code, rank), code.at(r.pointer_at("to"), at, keys.storage))
        code.store(code.b.trunc(word, kind), code.at(r.pointer_at("by"), at, kind))

    def rank(code: Code, job: Record, i: Int, lanes: int = 0) -> ir.Value:
        held = ir.VectorType(keys.storage, lanes) if lanes else keys.storage
        at = code.at(job.pointer_at("key"), i, keys.storage)
        return keys.rank(code, _load(code, at, held, 4))

    def word_at(code: Code, job: Record, i: Int) -> ir.Value:
        x = _load(code, code.at(job.pointer_at("x"), i, kind), kind)
        upper = code.b.shl(code.b.zext(rank(code, job, i), I64), I64(32))
        return code.b.or_(upper, code.b.zext(x, I64))

    def put(code: Code, job: Record, i: Int, word: ir.Value) -> None:
        key = keys.unrank(code, code.b.trunc(code.b.lshr(word, I64(32)), I32))
        code.store(key, code.at(job.pointer_at("key_out"), i, keys.storage))
        code.store(code.b.trunc(word, kind), code.at(job.pointer_at("out"), i, kind))

    fills, writes = rows.each("fill", fill), rows.each("write", write)
    sort = rows.radix(I64, 32, keys.bits).function
    names = ("key", "x", "key_out", "out")
    unless_sorted = rows.unless_sorted(keys, Row(I64, names, rank, word_at, put), block)

    def row(code: Code, call: Record, first: Int, scratch: list[ir.Value]) -> None:
        n, inner = call["n"], call["inner"]
        key, x, key_out, out = (
            code.at(call.pointer_at(f"array{i}"), first, keys.storage if i % 2 == 0 else kind)
            for i in range(4)
        )
        with unless_sorted(code, call, [key, x, key_out, out], scratch):
            fills(code, n, words=scratch[0], to=key, by=x, stride=inner)
            words = code.call(sort, *scratch, n)
            writes(code, n, words=words, to=key_out, by=out, stride=inner)

    rows.entry(name, 4, row, lambda call: _blocks(keys, call["n"] * 8))


def _load(code: Code, pointer: ir.Value, kind: ir.Type, align: int | None = None) -> ir.Value:
    return code.b.load(pointer, typ=kind, align=align)
