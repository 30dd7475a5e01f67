"""A sorting network in generated code: words of 32 bits, without branches that depend on them.

A bitonic sort: level k merges sequences of 2^(k-1) elements, of which every second one descends, by
comparing elements whose numbers differ in bit k-1, then k-2, down to 0. A block of vectors stays in
registers for as long as it is compared with no other. There the lowest bits of an element's number
say which vector it is in, and the highest ones which lane: most comparisons are of low bits, and
those of vectors with each other take the fewest instructions. Loops over blocks are all there is
besides, so that the code is short and lengths are free.
"""

from __future__ import annotations

from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.code import I32, I64, PTR, Code, Int, declare

_BITS = 4  # of the number of a lane
LANES = 1 << _BITS
_VECTOR = ir.VectorType(I32, LANES)


def emit_network(module: ir.Module, name: str, vectors: int = 16) -> ir.Function:
    """Write void name(ptr words, i64 count), which sorts words, aligned to 64 bytes, in place.

    count: a power of two, as many as `vectors` have or more
    vectors: of a block (2, 4, 8 or 16), as registers have room for

    >>> print(emit_network(ir.Module("sort"), "network").name)
    network
    """
    block = vectors * LANES
    sort, merge = (_block(module, f"{name}_{what}", vectors, what) for what in ("sort", "merge"))
    code = Code(module, name, [PTR, I64])
    code.function.attributes.add("noinline")
    words, count = code.args
    with code.range(0, count, block) as i:
        code.call(sort, code.at(words, i, I32), _turned(code, i, block))
    # Sequences of `size` become sequences twice as long, half of which descend.
    size = code.variable(I64, I64(block))
    with code.loop() as (go_on, leave):
        long = Int(code, size.get())
        code.b.cbranch((long < count).value, go_on, leave)
        code.b.position_at_end(go_on)
        size.set(long * 2)
        step = code.variable(I64, long)
        with code.loop() as (more, done):
            near = Int(code, step.get())
            code.b.cbranch((near >= block).value, more, done)
            code.b.position_at_end(more)
            step.set(near // 2)
            with code.range(0, count // 2, LANES) as i:
                # Of each 2 · near elements the first half.
                at = i + (i - (i & (near - 1)))
                _vectors(code, words, at, near, long * 2)
        with code.range(0, count, block) as i:
            code.call(merge, code.at(words, i, I32), _turned(code, i, long * 2))
    code.ret()
    return code.function


def padded(code: Code, n: Int, block: int) -> Int:
    """How many words a network of blocks of so many words sorts for n."""
    flag = ir.IntType(1)
    ctlz = declare(code.module, "llvm.ctlz.i64", ir.FunctionType(I64, [I64, flag]))
    zeros = code.b.call(ctlz, [(n.max(block) - 1).value, flag(0)])
    return Int(code, code.b.shl(I64(1), (64 - Int(code, zeros)).value))


def _turned(code: Code, i: Int, size: Int | int) -> ir.Value:
    """All bits, if sequences of `size` words descend from the i-th on."""
    return code.b.sext((i & size).ne(0).value, I32)


def _vectors(code: Code, words: ir.Value, i: Int, step: Int, size: Int) -> None:
    """Compare two vectors; the less one goes behind in sequences that descend."""
    places = [code.at(words, at, I32) for at in (i, i + step)]
    x, y = (code.load(p, _VECTOR, 64) for p in places)
    down = (i & size).ne(0)
    low, high = down.pick(places[1], places[0]), down.pick(places[0], places[1])
    code.store(code.intrinsic("umin", x, y), low, 64)
    code.store(code.intrinsic("umax", x, y), high, 64)


def _block(module: ir.Module, name: str, vectors: int, what: str) -> ir.Function:
    """void name(ptr words, i32 turn): "sort" a block of words, or "merge" one that ascends and then
    descends. All bits are turned over by `turn` meanwhile."""
    code = Code(module, name, [PTR, I32])
    code.function.attributes.add("noinline")
    words, turn = code.args
    places = [code.at(words, i * LANES, I32) for i in range(vectors)]
    turns = code.splat(turn, LANES)
    block = _Block(code, [code.b.xor(code.load(p, _VECTOR, 64), turns) for p in places])
    if what == "sort":
        block.sort()
    else:
        block.merge()
    for x, place in zip(block.vectors, places, strict=True):
        code.store(code.b.xor(x, turns), place, 64)
    code.ret()
    return code.function


class _Block:
    """Vectors, and the bits of their elements' numbers: `low` ones of a vector's number, then those
    of a lane's. In memory a lane's bits are the low ones."""

    def __init__(self, code: Code, vectors: list[ir.Value]):
        self.code, self.vectors = code, vectors
        self.low = len(vectors).bit_length() - 1

    def sort(self) -> None:
        bits = self.low + _BITS
        turned = [0] * LANES
        for level in range(1, bits + 1):
            lane = level - self.low
            if lane >= 0:
                turn = [-(i >> lane & 1) for i in range(LANES)]
                self._turn([a ^ b for a, b in zip(turn, turned, strict=True)])
                turned = turn
            for bit in reversed(range(level)):
                self._compare(bit, level)
        self._zip()

    def merge(self) -> None:
        for bit in reversed(range(self.low)):
            self._vectors(bit, self.low)
        self._unzip()
        for bit in reversed(range(_BITS)):
            self._compare(bit, self.low + _BITS)
        self._zip()

    def _turn(self, lanes: list[int]) -> None:
        turn = ir.Constant(_VECTOR, [x & 0xFFFFFFFF for x in lanes])
        self.vectors = [self.code.b.xor(x, turn) for x in self.vectors]

    def _compare(self, bit: int, level: int) -> None:
        """Elements whose numbers differ in a bit; the lesser one goes behind where bit `level` of a
        vector's number is set."""
        if bit < self.low:
            self._vectors(bit, level)
        else:
            self.vectors = [_lanes(self.code, x, bit - self.low) for x in self.vectors]

    def _vectors(self, bit: int, level: int) -> None:
        for i in range(len(self.vectors)):
            j = i | 1 << bit
            if i != j:
                low, high = (j, i) if i >> level & 1 else (i, j)
                pair = self.vectors[i], self.vectors[j]
                self.vectors[low] = self.code.intrinsic("umin", *pair)
                self.vectors[high] = self.code.intrinsic("umax", *pair)

    def _zip(self) -> None:
        """From the order of numbers that is here to that in memory."""
        half = LANES // 2
        both = [[h + i + j for i in range(half) for j in (0, LANES)] for h in (0, half)]
        for bit in reversed(range(self.low)):
            self._shuffle(bit, both)

    def _unzip(self) -> None:
        for bit in range(self.low):
            self._shuffle(bit, [[2 * i + h for i in range(LANES)] for h in (0, 1)])

    def _shuffle(self, bit: int, masks: list[list[int]]) -> None:
        """Of two vectors whose numbers differ in a bit make two, with these of both's lanes."""
        for i in range(len(self.vectors)):
            j = i | 1 << bit
            if i != j:
                pair = self.vectors[i], self.vectors[j]
                for k, mask in zip((i, j), masks, strict=True):
                    self.vectors[k] = self.code.b.shuffle_vector(*pair, ir.Constant(_VECTOR, mask))


def _lanes(code: Code, x: ir.Value, bit: int) -> ir.Value:
    """Compare lanes whose numbers differ in a bit."""
    lanes = range(LANES)
    other = code.b.shuffle_vector(x, x, ir.Constant(_VECTOR, [i ^ 1 << bit for i in lanes]))
    mask = ir.Constant(ir.VectorType(ir.IntType(1), LANES), [i >> bit & 1 ^ 1 for i in lanes])
    return code.b.select(mask, code.intrinsic("umin", x, other), code.intrinsic("umax", x, other))
