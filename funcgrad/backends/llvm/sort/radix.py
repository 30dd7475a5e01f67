"""Radix sorts in generated code: words, stable, by some of their bits, digit by digit.

Short runs sort by insertion. A digit has 8 bits, so that the places that words move to are few
enough for caches. Middling runs count all digits in one go; long ones are cut into chunks, which
are counted and then moved in parallel, digit after digit.
"""

from __future__ import annotations

from functools import cached_property

from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.code import I32, I64, PTR, VOID, Code, Int, Record, declare

I1, I8 = ir.IntType(1), ir.IntType(8)
INSERTION = 24  # words up to which insertion is fastest
LONG = 1 << 16  # words from which on several threads are worth their while
_DIGIT = 8
_DIGITS = 1 << _DIGIT
_JOB = ("source", "target", "n", "chunk", "shift", "counts")


class Radix:
    """Writes sorts of words by their bits from `shift` to `shift` + `bits` into a module.

    `function` is ptr (ptr words, ptr room, i64 n): it returns where the sorted words are, which is
    one of the two arrays.
    """

    def __init__(self, module: ir.Module, word: ir.IntType, shift: int, bits: int):
        self.module, self.word, self.shift, self.bits = module, word, shift, bits
        self.name = f"radix_{word.width}_{shift}_{bits}"
        loop = ir.FunctionType(VOID, [PTR, PTR, I64, I64])
        self.parallel_for = declare(module, "fg_parallel_for", loop)
        self.take = declare(module, "fg_scratch_take", ir.FunctionType(PTR, [I64]))
        self.give = declare(module, "fg_scratch_give", ir.FunctionType(VOID, [PTR]))

    @cached_property
    def function(self) -> ir.Function:
        """That for any length."""
        insertion, middle, long = self.insertion, self.middle, self.long
        code = Code(self.module, self.name, [PTR, PTR, I64], result=PTR)
        a, room, n = code.args
        with code.when(n <= INSERTION):
            code.call(insertion, a, n)
            code.ret(a)
        with code.when(n < LONG):
            code.ret(code.call(middle, a, room, n))
        code.ret(code.call(long, a, room, n))
        return code.function

    def _key(self, code: Code, word: ir.Value) -> ir.Value:
        """The bits that count, at the bottom; those above are gone."""
        x = code.b.lshr(word, self.word(self.shift)) if self.shift else word
        if self.shift + self.bits < self.word.width:
            x = code.b.and_(x, self.word((1 << self.bits) - 1))
        return x

    @cached_property
    def insertion(self) -> ir.Function:
        """void (ptr words, i64 n), for a few words."""
        code = Code(self.module, f"{self.name}_insertion", [PTR, I64])
        b, (a, n) = code.b, code.args
        with code.range(1, n) as i:
            word = self._load(code, code.at(a, i, self.word))
            key = self._key(code, word)
            place = code.variable(I64, i)
            with code.loop() as (go_on, leave):
                j = Int(code, place.get())
                look = b.append_basic_block("look")
                b.cbranch((j > 0).value, look, leave)
                b.position_at_end(look)
                other = self._load(code, code.at(a, j - 1, self.word))
                b.cbranch(b.icmp_unsigned(">", self._key(code, other), key), go_on, leave)
                b.position_at_end(go_on)
                code.store(other, code.at(a, j, self.word))
                place.set(j - 1)
            code.store(word, code.at(a, place.get(), self.word))
        code.ret()
        return code.function

    def _load(self, code: Code, pointer: ir.Value) -> ir.Value:
        return code.b.load(pointer, typ=self.word)

    def _digit(self, code: Code, word: ir.Value, shift: ir.Value) -> Int:
        digit = code.b.and_(code.b.lshr(word, shift), self.word(_DIGITS - 1))
        if self.word.width < 64:
            digit = code.b.zext(digit, I64)
        return Int(code, digit)

    @cached_property
    def middle(self) -> ir.Function:
        """All digits are counted at once, as moving words doesn't change how many there are."""
        code = Code(self.module, f"{self.name}_middle", [PTR, PTR, I64], result=PTR)
        a, room, n = code.args
        passes, size = self.bits // _DIGIT, _DIGITS
        counts = code.variable(I32, count=passes * size).slot
        clear(code, counts, passes * size * 4)
        with code.range(0, n) as i:
            word = self._load(code, code.at(a, i, self.word))
            for p in range(passes):
                digit = self._digit(code, word, self.word(self.shift + p * _DIGIT))
                grow(code, code.at(counts, digit + p * size, I32))
        source, target = code.variable(PTR, a), code.variable(PTR, room)
        first = self._load(code, a)
        for p in range(passes):
            shift = self.word(self.shift + p * _DIGIT)
            mine = code.at(counts, p * size, I32)
            # Where all have one digit there is nothing to do.
            same = code.load(code.at(mine, self._digit(code, first, shift), I32), I32)
            some = code.b.icmp_unsigned("!=", same, code.b.trunc(n.value, I32))
            with code.b.if_then(some):
                total = code.variable(I32, I32(0))
                with code.range(0, size) as d:
                    at = code.at(mine, d, I32)
                    count = code.load(at, I32)
                    code.store(total.get(), at)
                    total.set(code.b.add(total.get(), count))
                self._move(code, source.get(), target.get(), code.i64(0), n, shift, mine)
                held = source.get()
                source.set(target.get())
                target.set(held)
        code.ret(source.get())
        return code.function

    def _move(
        self, code: Code, source: ir.Value, target: ir.Value, begin: Int, end: Int,
        shift: ir.Value, starts: ir.Value,
    ) -> None:  # fmt: skip
        """Each word to the next place of its digit."""
        with code.range(begin, end) as i:
            word = self._load(code, code.at(source, i, self.word))
            place = grow(code, code.at(starts, self._digit(code, word, shift), I32))
            code.store(word, code.at(target, place, self.word))

    # ---- long runs

    @cached_property
    def long(self) -> ir.Function:
        """For runs that are worth several threads."""
        count, move, place = self._count_task(), self._move_task(), self._places()
        code = Code(self.module, f"{self.name}_long", [PTR, PTR, I64], result=PTR)
        a, room, n = code.args
        code.function.attributes.add("noinline")
        job = Record(code, _JOB, code.variable(I64, count=len(_JOB)).slot)
        chunks = (n // (2 * LONG)).max(2).min(32)
        counts = code.call(self.take, chunks * (4 * _DIGITS))
        job["source"], job["target"], job["n"], job["counts"] = a, room, n, counts
        job["chunk"] = n.ceil_div(chunks)
        for shift in range(self.shift, self.shift + self.bits, _DIGIT):
            job["shift"] = shift
            code.call(self.parallel_for, count, job.pointer, chunks, 1)
            with code.b.if_then(code.call(place, counts, chunks, n)):
                code.call(self.parallel_for, move, job.pointer, chunks, 1)
                held = job["source"]
                job["source"] = job["target"]
                job["target"] = held
        code.call(self.give, counts)
        code.ret(job.pointer_at("source"))
        return code.function

    def _chunks(self, kind: str) -> tuple[Code, Record]:
        code = Code(self.module, f"{self.name}_{kind}", [PTR, I64, I64])
        return code, Record(code, _JOB, code.args[0])

    def _shift(self, code: Code, job: Record) -> ir.Value:
        shift = job["shift"].value
        return shift if self.word.width == 64 else code.b.trunc(shift, self.word)

    def _count_task(self) -> ir.Function:
        code, job = self._chunks("count")
        n, chunk, shift = job["n"], job["chunk"], self._shift(code, job)
        source = job.pointer_at("source")
        with code.range(code.args[1], code.args[2]) as c:
            counts = code.at(job.pointer_at("counts"), c * _DIGITS, I32)
            clear(code, counts, 4 * _DIGITS)
            with code.range(c * chunk, ((c + 1) * chunk).min(n)) as i:
                word = self._load(code, code.at(source, i, self.word))
                grow(code, code.at(counts, self._digit(code, word, shift), I32))
        code.ret()
        return code.function

    def _places(self) -> ir.Function:
        """Counts of chunks become the places of their first words; whether there are two digits."""
        code = Code(self.module, f"{self.name}_places", [PTR, I64, I64], result=I1)
        counts, chunks, n = code.args
        total, most = code.variable(I32, I32(0)), code.variable(I32, I32(0))
        with code.range(0, _DIGITS) as d:
            before = total.get()
            with code.range(0, chunks) as c:
                at = code.at(counts, c * _DIGITS + d, I32)
                count = code.load(at, I32)
                code.store(total.get(), at)
                total.set(code.b.add(total.get(), count))
            most.set(code.intrinsic("umax", most.get(), code.b.sub(total.get(), before)))
        code.ret(code.b.icmp_unsigned("!=", most.get(), code.b.trunc(n.value, I32)))
        return code.function

    def _move_task(self) -> ir.Function:
        code, job = self._chunks("move")
        n, chunk, shift = job["n"], job["chunk"], self._shift(code, job)
        source, target = job.pointer_at("source"), job.pointer_at("target")
        with code.range(code.args[1], code.args[2]) as c:
            starts = code.at(job.pointer_at("counts"), c * _DIGITS, I32)
            begin, end = c * chunk, ((c + 1) * chunk).min(n)
            self._move(code, source, target, begin, end, shift, starts)
        code.ret()
        return code.function


def zext(code: Code, x: ir.Value) -> Int:
    """An i32 as i64."""
    return Int(code, code.b.zext(x, I64))


def clear(code: Code, pointer: ir.Value, nbytes: Int | int) -> None:
    """Zero memory."""
    kind = ir.FunctionType(VOID, [PTR, I8, I64, I1])
    f = declare(code.module, "llvm.memset.p0.i64", kind)
    code.b.call(f, [pointer, I8(0), code.i64(nbytes).value, I1(0)])


def grow(code: Code, pointer: ir.Value) -> Int:
    """Count one more in an i32 in memory; what was there before."""
    held = code.load(pointer, I32)
    code.store(code.b.add(held, I32(1)), pointer)
    return zext(code, held)
