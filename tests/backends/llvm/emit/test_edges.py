"""Loops that are cut at the edges of arrays: shifted, padded and joined ones."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.backends.llvm.emit.edges import Edges
from funcgrad.backends.loops.ir import INDEX, Buffer, Const
from tests.backends.checks import floats, integers, program
from tests.backends.llvm.kernels_run import BOOL, F32, at, check, kernel

SHAPES = {
    (1,): "float32", (16,): "int8", (33,): "float16", (70_001,): "float32", (3, 5): "bool",
    (9, 130): "int8", (200, 129): "float64", (6, 17, 31): "float32", (40, 33, 48): "float32",
    (2, 1, 70): "int16",
}  # fmt: skip


def values(shape, dtype):
    return integers(*shape, low=0, high=100).astype(dtype)


def spread(np, x):
    """Neighbours of neighbours, so that edges of two axes meet."""
    for axis in range(x.ndim):
        x = np.maximum(np.roll(x, 2, axis), np.minimum(x, np.roll(x, -1, axis)))
    return x


def padded(np, x):
    """A border of ones, then differences along the last axis."""
    x = np.pad(x, [(1, 2)] * x.ndim, constant_values=1)
    return np.where(x[..., 2:] > x[..., :-2], x[..., 1:-1], x[..., 2:])


def joined(np, x):
    """Four pieces, one of them empty, and a value a row."""
    x = np.concatenate([x[..., -1:], x[..., :0], x, x[..., :3]], axis=-1)
    return np.maximum(x[..., ::-1], x)


def turned(np, x):
    """A transpose, moved, beside one that is not."""
    return np.maximum(np.roll(x.T, 1, -1), np.minimum(x.T, np.roll(x.T, -2, 0)))


def halves(np, x):
    """The halves of rows in the other order, one of them computed."""
    k = x.shape[-1] // 2
    return np.maximum(np.concatenate([x[..., k:], np.minimum(x[..., :k], 3)], axis=-1), x)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("f", [spread, padded, joined, turned, halves])
def test_results(f, shape, threads):
    jitted, x = fg.jit(lambda x: f(fnp, x)), values(shape, SHAPES[shape])
    wanted = f(np, x)
    for n in (1, 3):
        threads(n)
        np.testing.assert_array_equal(np.asarray(jitted(x)), wanted)


@pytest.mark.parametrize("name", ["less", "less_equal", "greater", "greater_equal"])
@pytest.mark.parametrize("size", [7, 100])
def test_each_comparison(name, size):
    """Guarded loads and stores, of the axis moved and turned round, with edges anywhere."""

    def write(bound, step, start):
        def body(b, i):
            turn = b.op("multiply", INDEX, i, Const(step, INDEX))
            moved = b.op("add", INDEX, turn, Const(start, INDEX))
            guard = b.op(name, BOOL, moved, Const(bound, INDEX))
            with b.guarded(guard):
                x = b.load(buffers[0], at((1, i)))
            other = b.op("invert", BOOL, guard)
            b.store(buffers[1], at((1, i)), x)
            with b.guarded(b.op("bitwise_or", BOOL, other, guard)), b.guarded(guard):
                b.store(buffers[2], at((1, i)), b.op("add", F32, x, x))

        return body

    buffers = [Buffer("x", F32, size, "in"), Buffer("y", F32, size, "out"),
               Buffer("z", F32, size, "inout")]  # fmt: skip
    for bound in {0, 16, size // 2, size}:
        for step, start in ((1, -3), (-1, size), (2, 1)):
            k = kernel(buffers, [size], write(bound, step, start))
            check(k, floats(size), floats(size, seed=1))


def edges_of(f, *args):
    """The kernel that a function of arrays is, and its edges for vectors of sixteen elements."""
    (k,) = program(lambda *xs: [f(*xs)], *args)[2].kernels()
    return k, Edges(k, 512)


def test_parts_are_cut_around_vectors():
    k, edges = edges_of(lambda x: fnp.roll(x, 1) + fnp.roll(x, -1), floats(100))
    (axis,) = k.axes
    parts = edges.parts(k.body, axis.value, axis.size)
    assert [low for low, _, _ in parts] == [0, 1, 16, 96, 99]
    assert [high for _, high, _ in parts] == [1, 16, 96, 99, 100]
    assert all(len(known) == 4 for _, _, known in parts)


def test_vectors_have_lanes_for_the_widest_elements():
    chosen = np.arange(41) % 3 > 0
    k, edges = edges_of(lambda x, ok: fnp.where(ok, fnp.roll(x, 1), 0), floats(41), chosen)
    (axis,) = k.axes
    parts = edges.parts(k.body, axis.value, axis.size)
    assert [low for low, _, _ in parts] == [0, 1, 16]


def test_loops_with_many_edges_are_not_cut():
    def f(x):
        return sum(fnp.roll(x, 40 * i + 7) for i in range(6))

    x = floats(1000)
    np.testing.assert_array_equal(np.asarray(fg.jit(f)(x)), np.asarray(f(fnp.asarray(x))))
    k, edges = edges_of(f, x)
    assert edges.parts(k.body, k.axes[0].value, 1000) == [(0, 1000, {})]


def test_a_stencil_is_one_kernel_without_gathers():
    def step(x):
        total = -6 * x
        for axis in range(3):
            total = total + fnp.roll(x, 1, axis) + fnp.roll(x, -1, axis)
        return x + 0.1 * total

    lowered = fg.jit(step).lower(floats(20, 30, 200))
    assert lowered.as_text("loops").count("\nkernel ") == 1
    text = lowered.as_text("llvm")
    assert "gather" not in text
    assert "x float>" in text
