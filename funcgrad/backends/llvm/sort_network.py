"""A sorting network in generated code: words of 32 bits, without branches that depend on them.

A bitonic sort: level k merges sequences of 2^(k-1) elements, of which every second one descends, by
comparing elements whose indices differ in bit k-1, then k-2, down to 0. Lanes are compared with
those of the same vector, shuffled; vectors with each other. A pair of vectors stays in registers
for as long as it is compared with no other, and loops over pairs are all there is, so that the code
is short and lengths are free.
"""

from __future__ import annotations

from llvmlite import ir

from funcgrad.backends.llvm.gemm_build import I32, I64, PTR, Code, Int

_BITS = 4  # of the number of a lane
LANES = 1 << _BITS
_VECTOR = ir.VectorType(I32, LANES)


def emit_network(module: ir.Module, name: str) -> ir.Function:
    """Write void name(ptr words, i64 count), which sorts words, aligned to 64 bytes, in place.

    count: a power of two, 32 or more

    >>> print(emit_network(ir.Module("sort"), "network").name)
    network
    """
    code = Code(module, name, [PTR, I64])
    code.function.attributes.add("noinline")
    words, count = code.args
    with code.range(0, count, 2 * LANES) as i:
        _pair(code, words, i, 2 * LANES, first=True)
    # Sequences of `size` become sequences twice as long, half of which descend.
    size = code.variable(I64, I64(2 * LANES))
    with code.loop() as (go_on, leave):
        long = Int(code, size.get())
        code.b.cbranch((long < count).value, go_on, leave)
        code.b.position_at_end(go_on)
        size.set(long * 2)
        step = code.variable(I64, long)
        with code.loop() as (more, done):
            near = Int(code, step.get())
            code.b.cbranch((near > LANES).value, more, done)
            code.b.position_at_end(more)
            step.set(near // 2)
            with code.range(0, count // 2, LANES) as i:
                # Of each 2 · near elements the first half.
                at = i + (i - (i & (near - 1)))
                _vectors(code, words, at, near, long * 2)
        with code.range(0, count, 2 * LANES) as i:
            _pair(code, words, i, long * 2, first=False)
    code.ret()
    return code.function


def _vectors(code: Code, words: ir.Value, i: Int, step: Int, size: Int) -> None:
    """Compare two vectors; the less one goes behind in sequences that descend."""
    places = [code.at(words, at, I32) for at in (i, i + step)]
    x, y = (code.load(p, _VECTOR, 64) for p in places)
    down = (i & size).ne(0)
    low, high = down.pick(places[1], places[0]), down.pick(places[0], places[1])
    code.store(code.intrinsic("umin", x, y), low, 64)
    code.store(code.intrinsic("umax", x, y), high, 64)


def _pair(code: Code, words: ir.Value, i: Int, size: Int | int, first: bool) -> None:
    """What sequences of `size` elements need within a pair of vectors; `first`, all from the
    first level on."""
    places = [code.at(words, at, I32) for at in (i, i + LANES)]
    pair = [code.load(p, _VECTOR, 64) for p in places]
    if first:
        for level in range(1, _BITS + 1):
            for bit in reversed(range(level)):
                pair = [_lanes(code, x, bit, level, row) for row, x in enumerate(pair)]
    # Words of sequences that descend are turned over meanwhile.
    down = code.b.sext((i & size).ne(0).value, I32)
    turn = code.splat(down, LANES)
    x, y = (code.b.xor(x, turn) for x in pair)
    pair = [code.intrinsic("umin", x, y), code.intrinsic("umax", x, y)]
    for bit in reversed(range(_BITS)):
        pair = [_lanes(code, x, bit, _BITS + 1, 0) for x in pair]
    for x, place in zip(pair, places, strict=True):
        code.store(code.b.xor(x, turn), place, 64)


def _lanes(code: Code, x: ir.Value, bit: int, level: int, row: int) -> ir.Value:
    """Compare lanes whose numbers differ in a bit; the bit `level` says which way."""
    lanes = range(LANES)
    other = code.b.shuffle_vector(x, x, ir.Constant(_VECTOR, [i ^ 1 << bit for i in lanes]))
    less = [(i >> bit ^ (i + LANES * row) >> level) & 1 ^ 1 for i in lanes]
    mask = ir.Constant(ir.VectorType(ir.IntType(1), LANES), less)
    return code.b.select(mask, code.intrinsic("umin", x, other), code.intrinsic("umax", x, other))
