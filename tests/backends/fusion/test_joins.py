"""Concatenations as memory: pieces that are written in place, moved or copied, and those that
stay where they are read."""

import itertools

import ml_dtypes
import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax
from funcgrad.backends.llvm.cpu import CPU
from funcgrad.backends.loops.ir import Load, Store, walk
from funcgrad.backends.plan import plan
from funcgrad.backends.program import CopyStep, ExchangeStep, GemmStep, KernelStep
from funcgrad.backends.program import walk as walk_steps
from funcgrad.core import context
from funcgrad.core.array import raw
from funcgrad.ops.shape import concatenate_p
from tests.backends.checks import check, floats, integers, kernels, same
from tests.backends.rewrites.test_exchanges import device_program

SHAPES = {0: (-1, 5, 3), 1: (4, -1, 3), 2: (3, 5, -1)}


def shaped(axis, n):
    return tuple(n if s < 0 else s for s in SHAPES[axis])


def join(axis=0):
    return lambda *xs: [concatenate_p.bind(*xs, dimension=axis)]


def steps(planned, kind):
    return [s for s in walk_steps(planned.steps) if isinstance(s, kind)]


def guards(planned):
    return [
        s for k in planned.kernels() for s in walk(k.body)
        if isinstance(s, Load | Store) and s.guard is not None
    ]  # fmt: skip


def in_place(planned, place="output0"):
    """Where products write, in elements of float32 from the start of an array."""
    refs = [s.c for s in steps(planned, GemmStep)]
    assert all(str(r).startswith(place) for r in refs)
    return [r.offset // 4 for r in refs]


# ---- exactness


@pytest.mark.parametrize("count", [1, 2, 3, 5, 13, 60])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_arrays_of_many_sizes(axis, count):
    sizes = [i * 7 % 4 for i in range(1, count + 1)]
    arrays = [floats(*shaped(axis, n), seed=i) for i, n in enumerate(sizes)]
    check(join(axis), *arrays, exact=True)

    def computed(*xs):
        pieces = [x if i % 3 else fnp.maximum(x, 0) * 2 for i, x in enumerate(xs)]
        return [concatenate_p.bind(*pieces, dimension=axis) + 1]

    check(computed, *arrays, exact=True)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize(
    "dtype",
    ["bool", "int8", "uint16", "int64", "float16", ml_dtypes.bfloat16, "float64", "complex64"],
    ids=str,
)
def test_dtypes(dtype, axis):
    arrays = [integers(5, 6, seed=i).astype(dtype) for i in range(7)]

    def fun(*xs):
        return [concatenate_p.bind(xs[0] * xs[1], *xs, xs[0].T.reshape(5, 6), dimension=axis)]

    check(fun, *arrays, exact=True)


def test_nothing_to_join():
    check(join(), floats(0, 3), floats(0, 3), exact=True)
    check(join(1), floats(0, 3), floats(0, 2), exact=True)
    check(join(1), floats(4, 0), floats(4, 2), floats(4, 0), exact=True)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_threads_never_change_a_result(threads, count):
    threads(count)
    xs = [floats(257, 64, seed=i) for i in range(13)]
    w = floats(64, 64)

    def fun(axis, xs, w):
        made = [
            xs[0] @ w,
            fnp.tanh(xs[1]),
            xs[2].sum(axis, keepdims=True),
            xs[3].T.reshape(257, 64),
        ]
        pieces = [*made, *xs[4:], xs[5][3:, :] if axis == 0 else xs[5][:, 3:]]
        both = fnp.concatenate(pieces, axis)
        return both, both * 2, fnp.concatenate([p.ravel() for p in pieces])

    for axis in (0, 1):
        got = fg.jit(fun, static_argnums=0)(axis, xs, w)
        wanted = fun(axis, list(map(fnp.asarray, xs)), fnp.asarray(w))
        for g, w_ in zip(got, wanted, strict=True):
            same(raw(g), raw(w_))


# ---- where pieces are written


def test_pieces_are_written_in_place():
    def fun(x, w, y):
        products = [(x @ w).reshape(-1), (w @ x).T.reshape(-1), fnp.einsum("ij,kj->ki", x, w)]
        return [concatenate_p.bind(*(p.reshape(-1) for p in products), fnp.exp(y),
                                   y.sum(keepdims=True), dimension=0)]  # fmt: skip

    planned = check(fun, floats(16, 16), floats(16, 16), floats(40))
    assert in_place(planned) == [0, 256, 512]
    assert not steps(planned, CopyStep)
    assert planned.arena_bytes == 0
    assert not guards(planned)


def test_many_pieces_have_no_guards():
    planned = check(join(), *(floats(5 + i, seed=i) for i in range(49)), exact=True)
    assert len(steps(planned, CopyStep)) == 49
    assert not planned.kernels()
    planned = check(join(1), *(floats(64, 5 + i, seed=i) for i in range(49)), exact=True)
    assert not guards(planned)


def test_products_write_rows_of_a_wider_array():
    def fun(x, *ws):
        return [concatenate_p.bind(*(x @ w for w in ws), dimension=1)]

    planned = check(fun, floats(20, 30), floats(30, 8), floats(30, 12), floats(30, 16))
    assert not planned.kernels()
    assert [s.c_strides for s in steps(planned, GemmStep)] == [(36, 1)] * 3
    assert in_place(planned) == [0, 8, 20]
    assert planned.bytes_moved == 4 * (3 * 20 * 30 + 30 * 36 + 20 * 36)


def test_products_of_batches_write_rows():
    def fun(x, y, z):
        a, b = fnp.einsum("bij,bjk->bki", x, y), fnp.einsum("bij,bkj->bik", y, z)
        return [concatenate_p.bind(a.reshape(3, 2, -1), b.reshape(3, 2, -1), dimension=2)]

    planned = check(fun, floats(3, 10, 20), floats(3, 20, 10), floats(3, 8, 10))
    assert len(steps(planned, GemmStep)) == 2


def test_text_of_a_kernel_that_writes_rows():
    x = floats(4, 70)
    planned = check(lambda x, y: [concatenate_p.bind(fnp.exp(x), y, dimension=1)], x, x)
    assert str(planned) == (
        "program test(f32[4,70], f32[4,70]) -> (f32[4,140]), arena 0 bytes\n"
        "  exp input0, output0\n"
        "  copy input1, output0+280\n\n"
        "kernel exp(in in0: f32[280], out out0: f32[490])\n"
        "  parallel i < 4, j < 70:\n"
        "    v0 = in0[70*i + j]\n"
        "    v1 = exp v0\n"
        "    out0[140*i + j] = v1\n\n"
        "kernel copy(in in0: f32[280], out out0: f32[490])\n"
        "  parallel i < 4, j < 70:\n"
        "    v0 = in0[70*i + j]\n"
        "    out0[140*i + j] = v0"
    )
    assert planned.bytes_moved == 4 * 4 * 280


def test_what_else_is_read_stays_readable():
    def fun(x, w):
        p = x @ w
        both = concatenate_p.bind(p.reshape(-1), fnp.exp(p).reshape(-1), dimension=0)
        wide = concatenate_p.bind(p, fnp.exp(p), p, dimension=1)
        return [both, p * 2, p @ both[:256].reshape(16, 16), wide]

    check(fun, floats(16, 16), floats(16, 16))


def test_pieces_that_are_results_inputs_or_used_twice():
    def fun(x, y):
        e = fnp.exp(x)
        a = concatenate_p.bind(e, x, e, y[3:], dimension=0)
        b = concatenate_p.bind(y, e, a, e * 2, dimension=0)
        return [e, a, b, concatenate_p.bind(b, a, b, dimension=0)]

    check(fun, floats(33), floats(20))


def test_joins_of_joins_are_written_once():
    def fun(*xs):
        inner = [concatenate_p.bind(*xs[i : i + 5], dimension=0) for i in range(0, 25, 5)]
        return [concatenate_p.bind(*inner, dimension=0)]

    planned = check(fun, *(floats(10 + i, seed=i) for i in range(25)), exact=True)
    assert len(steps(planned, CopyStep)) == 25
    assert planned.arena_bytes == 0


def test_few_plain_pieces_are_picked_where_they_are_read():
    def fun(x, y):
        return [fnp.maximum(concatenate_p.bind(x, y, dimension=1), 0)]

    for shape in [(64, 32), (4, 16, 8, 8)]:
        planned = check(fun, floats(*shape), floats(*shape, seed=1), exact=True)
        assert kernels(planned) == 1
        assert planned.arena_bytes == 0


@pytest.mark.parametrize("shape", [(12,), (6, 9), (3, 4, 5)])
def test_functions_made_of_joins(shape):
    def fun(x):
        last = (1,) * (x.ndim - 1)
        return [
            fnp.roll(x, 2), fnp.roll(x, 1, axis=-1), fnp.tile(x, (*last, 3)), fnp.repeat(x, 2, -1),
            fnp.stack([x] * 5), fnp.stack([x, -x, x * x], -1), fnp.append(x, x), fnp.pad(x, 1),
            fnp.hstack([x, x]), fnp.vstack([x, x]), fnp.flip(fnp.concatenate([x, x[:1]])),
        ]  # fmt: skip

    check(fun, floats(*shape), exact=True)


def test_rolls_move_bytes():
    planned = check(lambda x: [fnp.roll(x, 1000)], floats(4000), exact=True)
    assert len(steps(planned, CopyStep)) == 2
    assert not planned.kernels()


# ---- parts of one array


def test_parts_are_index_arithmetic():
    def fun(x, w, *ps):
        parts = fnp.split(x, [256, 512, 600, 700])
        a, b = parts[0].reshape(16, 16), parts[1].reshape(16, 16)
        return [a @ w, w @ b.T, *(p - 0.1 * q for p, q in zip(ps, parts[2:], strict=True))]

    planned = check(fun, floats(1000), floats(16, 16), floats(88), floats(100), floats(300))
    assert planned.arena_bytes == 0
    assert not steps(planned, CopyStep)
    first, second = steps(planned, GemmStep)
    assert str(first.a) == "input0"
    assert "input0+1024" in (str(second.a), str(second.b))


# ---- memory


def test_joins_in_loops():
    xs = floats(7, 4, 4)

    def turn(carry, x):
        a, both = carry
        y = a @ x
        new = concatenate_p.bind(y.reshape(-1), both[:16], fnp.exp(x).reshape(-1), dimension=0)
        pieces = [y.reshape(-1), x.reshape(-1), new[5:], both]
        return (fnp.tanh(y), new), concatenate_p.bind(*pieces, dimension=0)

    def fun(xs):
        (a, both), rows = lax.scan(turn, (xs[0], fnp.zeros(48, "float32")), xs)
        n = fnp.sum(xs > 0)
        _, window = lax.while_loop(
            lambda c: c[0] < n,
            lambda c: (c[0] + 1, concatenate_p.bind(c[1][1:], c[1][:1] + 1, dimension=0)),
            (fnp.int32(0), both),
        )
        branch = lax.cond(
            n > 3,
            lambda a, b: concatenate_p.bind(a.reshape(-1), b, b[::2], dimension=0),
            lambda a, b: concatenate_p.bind(b[1::2], b, (a @ a).reshape(-1), dimension=0),
            a, both,
        )  # fmt: skip
        return [a, both, rows, window, branch, concatenate_p.bind(rows.reshape(-1), window,
                                                                  dimension=0)]  # fmt: skip

    check(fun, xs)


def test_results_of_loops_are_pieces():
    def fun(x):
        carry, rows = lax.scan(lambda c, v: (c * 2 + v, c.sum()), x[0], x)
        y = x.at[1].set(0.5)
        s = fnp.sort(x.reshape(-1))
        return [concatenate_p.bind(carry, rows, y.reshape(-1), s, fnp.cumsum(rows), dimension=0)]

    check(fun, floats(5, 6))


def test_donated_inputs():
    def fun(x, y):
        e = fnp.exp(x)
        return [concatenate_p.bind(e[:30], x[30:] * 2, dimension=0), y + 1,
                concatenate_p.bind(y[20:], y[:20], dimension=0)]  # fmt: skip

    for donated in itertools.product([False, True], repeat=2):
        check(fun, floats(50), floats(50, seed=1), donated=list(donated))


def test_memory_of_a_join_is_free_after_it():
    def fun(x):
        for _ in range(6):
            x = concatenate_p.bind((x @ x).reshape(-1), dimension=0).reshape(32, 32)
            both = concatenate_p.bind((x @ x).reshape(-1), (x @ x.T).reshape(-1), dimension=0)
            x = (both[:1024] - both[1024:]).reshape(32, 32) * 0.01
        return [x]

    planned = check(fun, floats(32, 32) * np.float32(0.1))
    assert planned.arena_bytes <= 4 * 4096


def test_collectives_read_what_was_written_in_place():
    def fun(x, w):
        total = lax.psum(fnp.concatenate([(x @ w).reshape(-1), fnp.exp(x).reshape(-1)]), "d")
        return total[:256].reshape(16, 16) @ w, total[256:] * 2

    with context.scoped(axes={"d": 4}):
        jaxpr = device_program(fun, {"d": 4}, floats(4, 16, 16), floats(4, 16, 16))
        planned = plan(jaxpr, [False] * 2, "test", CPU)
    kinds = [type(s) for s in walk_steps(planned.steps)]
    assert kinds == [GemmStep, KernelStep, ExchangeStep, GemmStep, KernelStep]
    assert planned.arena_bytes == 2 * 4 * 256


@pytest.mark.parametrize("shape", [(20, 30), (20, 30, 8)])
def test_positions_of_a_gather_are_no_array(shape):
    x, i, j = floats(*shape), integers(50, low=-20, high=20), integers(50, low=-30, high=30)
    planned = check(lambda x, i, j: [x[i, j]], x, i, j)
    assert len(planned.steps) == 1


def test_gather_of_a_scalar():
    numbers = lax.GatherDimensionNumbers((), (), ())

    def f(x, i):
        return [lax.gather(fnp.exp(x), 2 * i, numbers, slice_sizes=())]

    check(f, np.float32(1), np.zeros((5, 0), np.int32))
