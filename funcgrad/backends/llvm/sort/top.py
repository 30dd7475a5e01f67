"""The k greatest numbers of rows in generated code.

Most elements are no greater than the least of the k best so far, which vectors of them are compared
with. A few best ones are kept in order, by a quarter of the code. Many are collected behind the k
best, and when there is no room, a radix sort leaves the k best again. A word holds a rank above and
a position below, both turned over where greater ones come first.
"""

from __future__ import annotations

from collections.abc import Callable

from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.code import I32, I64, PTR, Code, Int, Record, Variable
from funcgrad.backends.llvm.sort.keys import Keys
from funcgrad.backends.llvm.sort.rows import Rows

I1 = ir.IntType(1)
LANES = 16
FEW = 16  # how many are kept in order
_ONES = (1 << 32) - 1


def emit_top(module: ir.Module, name: str, keys: Keys, few: bool) -> None:
    """Write void name(ptr call): outer, n, k, then x, the values and their positions (int32); for
    keys of up to 32 bits. few: whether k is up to `FEW`, as it is to be then."""
    _Top(module, name, keys, few)


class _Top:
    def __init__(self, module: ir.Module, name: str, keys: Keys, few: bool):
        self.module, self.keys = module, keys
        rows = Rows(module)
        if not few:
            self.sort = rows.radix(I64, 32, keys.bits).function
        find = self._few() if few else self._many()

        def row(code: Code, call: Record, first: Int, scratch: list[ir.Value]) -> None:
            n, k = call["n"], call["k"]
            x = code.at(call.pointer_at("array0"), first, keys.storage)
            to = first // n * k
            best = code.call(find, x, n, k, *scratch)
            with code.range(0, k) as i:
                word = code.b.load(code.at(best, i, I64), typ=I64)
                place = Int(code, code.b.and_(word, I64(_ONES)))
                value = code.at(call.pointer_at("array1"), to + i, keys.storage)
                code.store(self._load(code, x, place), value)
                place_at = code.at(call.pointer_at("array2"), to + i, I32)
                code.store(code.b.trunc(place.value, I32), place_at)

        def room(call: Record) -> list[Int]:
            if few:
                return [(call["k"] + LANES) * 8]
            size = _room(call["n"], call["k"]) + LANES
            return [size * 8, size * 8]

        rows.entry(name, 3, row, room)

    def _load(self, code: Code, x: ir.Value, i: Int) -> ir.Value:
        return code.b.load(code.at(x, i, self.keys.storage), typ=self.keys.storage)

    def _word(self, code: Code, x: ir.Value, i: Int) -> ir.Value:
        """The word of an element: less for greater numbers, and for earlier ones among equals."""
        rank = self.keys.rank(code, self._load(code, x, i))
        turned = code.b.zext(code.b.xor(rank, I32((1 << self.keys.bits) - 1)), I64)
        return code.b.or_(code.b.shl(turned, I64(32)), i.value)

    def _above(self, code: Code, word: ir.Value) -> ir.Value:
        """The rank above that of a word; the highest one is above itself."""
        turned = code.b.trunc(code.b.lshr(word, I64(32)), I32)
        rank = code.b.xor(turned, I32((1 << self.keys.bits) - 1))
        return code.intrinsic("uadd.sat", rank, I32(1))

    def _scan(
        self, code: Code, x: ir.Value, begin: Int, n: Int, least: Variable,
        found: Callable[[Int], None], after: Callable[[], None],
    ) -> None:  # fmt: skip
        """found(i) for elements from `begin` on whose rank is `least` or higher, some at a time,
        then after()."""
        keys, b = self.keys, code.b
        kind = ir.VectorType(keys.storage, LANES)
        whole = begin + (n - begin) // LANES * LANES
        with code.range(begin, whole, LANES) as i:
            p = code.at(x, i, keys.storage)
            ranks = keys.rank(code, b.load(p, typ=kind, align=keys.bits // 8))
            high = b.icmp_unsigned(">=", ranks, code.splat(least.get(), LANES))
            mask = b.zext(b.bitcast(high, ir.IntType(LANES)), I64)
            with b.if_then(b.icmp_unsigned("!=", mask, I64(0))):
                rest = code.variable(I64, mask)
                with code.loop() as (turn, done):
                    bits = rest.get()
                    b.cbranch(b.icmp_unsigned("!=", bits, I64(0)), turn, done)
                    b.position_at_end(turn)
                    rest.set(b.and_(bits, b.sub(bits, I64(1))))
                    found(i + Int(code, b.cttz(bits, I1(1))))
                after()
        with code.range(whole, n) as i:
            found(i)

    def _few(self) -> ir.Function:
        """ptr few(x, n, k, best): the words of the best ones, in order."""
        code = Code(self.module, "few", [PTR, I64, I64, PTR], result=PTR)
        insert = self._insert()
        x, n, k, best = code.args
        with code.range(0, k) as i:
            code.call(insert, best, i, self._word(code, x, i))
        last = code.at(best, k - 1, I64)
        least = code.variable(I32)

        def found(i: Int) -> None:
            word = self._word(code, x, i)
            with code.b.if_then(code.b.icmp_unsigned("<", word, code.b.load(last, typ=I64))):
                code.call(insert, best, k - 1, word)

        def update() -> None:
            least.set(self._above(code, code.b.load(last, typ=I64)))

        with code.when(k > 0):
            update()
            self._scan(code, x, k, n, least, found, update)
        code.ret(best)
        return code.function

    def _insert(self) -> ir.Function:
        """void insert(words, n, word): a word among n that are in order; they move up for it."""
        code = Code(self.module, "insert", [PTR, I64, I64])
        b, (words, n, word) = code.b, code.args
        place = code.variable(I64, n)
        with code.loop() as (go_on, leave):
            j = Int(code, place.get())
            look = b.append_basic_block("look")
            b.cbranch((j > 0).value, look, leave)
            b.position_at_end(look)
            other = b.load(code.at(words, j - 1, I64), typ=I64)
            b.cbranch(b.icmp_unsigned(">", other, word.value), go_on, leave)
            b.position_at_end(go_on)
            code.store(other, code.at(words, j, I64))
            place.set(j - 1)
        code.store(word, code.at(words, place.get(), I64))
        code.ret()
        return code.function

    def _many(self) -> ir.Function:
        """ptr many(x, n, k, words, room): where the words of the best ones are, in order."""
        code = Code(self.module, "many", [PTR, I64, I64, PTR, PTR], result=PTR)
        x, n, k, first, second = code.args
        words, count, least = (
            code.variable(t, v) for t, v in ((PTR, first), (I64, I64(0)), (I32, I32(0)))
        )

        def found(i: Int) -> None:
            at = Int(code, count.get())
            code.store(self._word(code, x, i), code.at(words.get(), at, I64))
            count.set(at + 1)

        def sort() -> None:
            mine = words.get()
            other = code.b.select(code.b.icmp_unsigned("==", mine, first), second, first)
            words.set(code.call(self.sort, mine, other, count.get()))

        def after() -> None:
            with code.when(Int(code, count.get()) > _room(n, k)):
                sort()
                count.set(k)
                least.set(self._above(code, code.b.load(code.at(words.get(), k - 1, I64), typ=I64)))

        self._scan(code, x, code.i64(0), n, least, found, after)
        sort()
        code.ret(words.get())
        return code.function


def _room(n: Int, k: Int) -> Int:
    """How many words are kept before they are sorted."""
    return (4 * k + 512).min(n)
