"""Rows abreast: reductions of several rows in one loop, with the bits of each row alone."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.backends.llvm.emit.abreast import abreast
from funcgrad.backends.llvm.emit.split import Piece, Range, split
from funcgrad.backends.loops.interpret import run
from funcgrad.backends.loops.ir import Buffer, Load, Loop, walk
from tests.backends.llvm.kernels_run import F32, F64, at, kernel

L1 = 1 << 15


def product(m, n, dtype=F32, shared=True, step=1, in_place=()):
    """out[i] = in2[i] + Σ in0[i, j] · in1[j], or with in1[i, j] where no row is shared."""
    a = Buffer("in0", dtype, m * n * step, "in")
    v = Buffer("in1", dtype, n if shared else m * n, "in")
    w, out = Buffer("in2", dtype, m, "in"), Buffer("out", dtype, m, "out")

    def write(b, i):
        start = b.load(w, at((1, i)))

        def turn(j, total):
            x = b.load(a, at((n * step, i), (step, j)))
            y = b.load(v, at((0 if shared else n, i), (1, j)))
            return [b.op("add", dtype, total, b.op("multiply", dtype, x, y))]

        (total,) = b.loop(n, turn, [start], combine=["add"], parallel=True)
        b.store(out, at((1, i)), total)

    return kernel([a, v, w, out], [m], write, in_place)


def sizes(pieces):
    return [p.kernel.axes[0].size for p in pieces]


@pytest.mark.parametrize(("bits", "rows"), [(128, 4), (256, 4), (512, 8)])
@pytest.mark.parametrize("more", [0, 1, 3])
def test_does_the_same(bits, rows, more):
    # A cache of 64 bytes, for the interpreter's sake.
    m, n = 64 * rows + more, 9
    whole = product(m, n)
    pieces = abreast(Piece(whole, (0, 1, 2, 3)), bits, 64)
    assert sizes(pieces) == ([64, more] if more else [64])
    (loop,) = (s for s in pieces[0].kernel.body if isinstance(s, Loop))
    # The shared row is read once.
    assert sum(isinstance(s, Load) for s in walk(loop.body)) == rows + 1
    r = np.random.default_rng(m)
    ins = [r.integers(-9, 9, b.size).astype(F32) for b in whole.params[:3]]
    wanted, got = np.zeros(m, F32), np.zeros(m, F32)
    run(whole, [*ins, wanted])
    for piece in pieces:
        run(piece.kernel, [*ins, got])
    np.testing.assert_array_equal(got, wanted)


def test_what_stays():
    def stays(k, l1=L1):
        piece = Piece(k, tuple(range(4)))
        found = abreast(piece, 512, l1)
        return len(found) == 1 and found[0] is piece

    assert not stays(product(512, 4096))
    assert not stays(product(512, 2048, F64))
    assert stays(product(512, 4095))
    assert stays(product(511, 4096))
    assert stays(product(512, 4096), 1 << 16)
    assert not stays(product(512, 1024, shared=False))
    assert not stays(product(512, 512, F64, shared=False))
    assert stays(product(512, 1023, shared=False))
    assert stays(product(512, 4096, step=2))
    assert stays(product(512, 4096, in_place=((3, 2),)))


def test_parts_of_rows():
    # Few long rows are cut into parts that threads share; rows go abreast in each part.
    first, _ = split(product(7, 1 << 20))[0]
    (part,) = first.ranges.values()
    pieces = abreast(first, 128, L1)
    assert [p.kernel.points for p in pieces] == [first.kernel.axes[0].size * k for k in (1, 3)]
    assert [list(p.ranges.values()) for p in pieces] == [[part], [part]]
    assert all(s in walk(p.kernel.body) for p in pieces for s in p.ranges)
    assert isinstance(part, Range)


BODIES = {
    "product": lambda a, v: a @ v,
    "products": lambda a, v: fnp.sum(a * v, axis=-1),
    "distances": lambda a, v: 2 * fnp.sum(abs(a - v), axis=-1) + a[:, 0],
    "maxima": lambda a, v: fnp.max(a + v, axis=-1),
    "own sums": lambda a, v: fnp.sum(a, axis=-1) - v[0],
    "own maxima": lambda a, v: fnp.max(a, axis=-1) * v[1],
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", [4096, 5003])
@pytest.mark.parametrize("name", BODIES)
def test_bits_are_those_of_each_row_alone(name, n, dtype, threads):
    f, r = BODIES[name], np.random.default_rng(n)
    a, v = (r.standard_normal(s).astype(dtype) for s in ((517, n), (n,)))
    a[3, 5], a[510, 7], a[514, n - 1], a[100, 1] = np.nan, np.inf, -np.inf, np.nan
    # Fewer rows aren't taken abreast.
    alone = np.concatenate([np.asarray(fg.jit(f)(x, v)) for x in np.split(a, [110, 220, 330, 440])])
    with np.errstate(invalid="ignore"):
        wanted = np.asarray(f(a.astype("float64"), v.astype("float64")))
    np.testing.assert_allclose(alone, wanted, rtol=1e-4, atol=1e-3)
    for count in (1, 2, 3):
        threads(count)
        np.testing.assert_array_equal(np.asarray(fg.jit(f)(a, v)), alone)


@pytest.mark.parametrize("m", [1, 5, 7])
def test_few_long_rows(m):
    r = np.random.default_rng(m)
    a, v = (r.integers(-3, 3, s).astype("float32") for s in ((m, 300_001), (300_001,)))
    got = fg.jit(BODIES["products"])(a, v)
    np.testing.assert_array_equal(np.asarray(got), (a.astype("float64") @ v).astype("float32"))


def test_batches():
    # Rows of two axes, whose vectors differ from batch to batch; and pairs of rows.
    r = np.random.default_rng(0)
    a, v = r.standard_normal((3, 259, 4099)), r.standard_normal((3, 4099))
    got = fg.jit(lambda a, v: fnp.sum(a * v[:, None], axis=-1))(a, v)
    np.testing.assert_allclose(np.asarray(got), np.einsum("bij,bj->bi", a, v), rtol=1e-9, atol=1e-9)
    x, y = a[0, :33], a[1, :41]
    got = fg.jit(lambda x, y: fnp.sum(abs(x[:, None] - y), axis=-1))(x, y)
    wanted = np.stack([np.abs(p - y).sum(1) for p in x])
    np.testing.assert_allclose(np.asarray(got), wanted, rtol=1e-12)
