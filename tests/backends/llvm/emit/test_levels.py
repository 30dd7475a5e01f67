"""Loops around kernels' bodies: tiles, parts for threads, rows."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.backends.llvm.emit.schedule import schedule
from funcgrad.backends.loops.ir import Buffer
from tests.backends.checks import floats
from tests.backends.llvm.kernels_run import F32, F64, at, check, kernel

SHAPES = [(1, 1), (3, 17), (16, 1000), (400, 1025), (1025, 3), (5, 0), (0, 5), (70, 64)]


def transpose(m, n, dtype=F32):
    x, o = Buffer("x", dtype, m * n, "in"), Buffer("o", dtype, m * n, "out")
    return kernel(
        [x, o],
        [n, m],
        lambda b, i, j: b.store(o, at((m, i), (1, j)), b.load(x, at((1, i), (n, j)))),
    )


@pytest.mark.parametrize(("m", "n"), SHAPES)
@pytest.mark.parametrize("dtype", [np.dtype("int8"), F32, F64], ids=str)
def test_transpose(m, n, dtype):
    check(transpose(m, n, dtype), np.arange(m * n).astype(dtype))


@pytest.mark.parametrize("sizes", [(2, 300_000), (300_000, 2), (1000, 700), (700_001,)])
def test_parts_for_threads_cover_all_points(threads, sizes):
    threads(3)
    n = int(np.prod(sizes))
    row, o = Buffer("x", F32, sizes[-1], "in"), Buffer("o", F32, n, "out")

    def write(b, *axes):
        steps = np.cumprod([1, *sizes[:0:-1]])[::-1]
        here = at(*zip(map(int, steps), axes, strict=True))
        b.store(o, here, b.op("sqrt", F32, b.load(row, at((1, axes[-1])))))

    k = kernel([row, o], sizes, write)
    assert schedule(k).lead > 0
    check(k, np.arange(sizes[-1]).astype(F32))


@pytest.mark.parametrize("width", [8, 16, 24, 32])
def test_short_rows_are_not_gathered(width):
    x = fnp.ones((1000, 3 * width))
    for fun in (lambda x: x[:, :width] + 1, lambda x: x + fnp.sum(x, 1, keepdims=True)):
        assert "gather" not in fg.jit(fun).lower(x).as_text("llvm")


@pytest.mark.parametrize("colours", [3, 4, 7])
def test_colours_are_innermost(colours):
    """However many operands have an element a colour: else memory would be read in strides."""
    n = 1000 * colours
    x, o = Buffer("x", F32, n, "in"), Buffer("o", F32, n, "out")
    mean, scale = (Buffer(name, F32, colours, "in") for name in ("mean", "scale"))

    def body(b, i, c):
        moved = b.op("subtract", F32, b.load(x, at((colours, i), (1, c))), b.load(mean, at((1, c))))
        value = b.op("multiply", F32, moved, b.load(scale, at((1, c))))
        b.store(o, at((colours, i), (1, c)), value)

    k = kernel([x, mean, scale, o], [1000, colours], body)
    assert [level.size for level in schedule(k).levels] == [1000, colours]
    check(k, floats(n), floats(colours), floats(colours))
