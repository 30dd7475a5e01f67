"""Products and what follows them in bands of rows: which do, where they live, and the same bits."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.backends.llvm.build import assemble
from funcgrad.backends.llvm.cpu import CPU
from funcgrad.backends.llvm.drafts import bands
from funcgrad.backends.plain.interpret import run as run_program
from funcgrad.backends.plan import plan
from funcgrad.backends.program import GemmStep, KernelStep, LoopStep, walk
from funcgrad.transforms.passes.simplify import simplify
from tests.backends.checks import floats


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """What is small is taken in bands, too."""
    monkeypatch.setattr(bands, "LEAST_PASSED", 1)
    monkeypatch.setattr(bands, "LEAST_ROWS", 32)
    monkeypatch.setattr(bands, "BAND_BYTES", 1 << 16)


def planned(fun, *arrays, donated=None):
    jaxpr = fg.make_jaxpr(fun)(*arrays).jaxpr
    return plan(simplify(jaxpr), donated or [False] * len(arrays), "test", CPU)


def loops(program):
    return [s for s in walk(program.steps) if isinstance(s, LoopStep) and s.parallel]


def whole(fun, *arrays, donated=None):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bands, "LEAST_PASSED", 1 << 62)
        program = planned(fun, *arrays, donated=donated)
    assert not loops(program)
    return program


def results(program, arrays):
    given = [np.array(a) for a in arrays]
    return [np.asarray(x).copy() for x in assemble(program)(given)]


def check(fun, *arrays, donated=None, count=1):
    """The plan, which has so many loops, and natively gives the bits of the plan without them."""
    program = planned(fun, *arrays, donated=donated)
    assert len(loops(program)) == count, program
    wanted = results(whole(fun, *arrays, donated=donated), arrays)
    meant = run_program(program, [np.array(a) for a in arrays])
    for got, same, near in zip(results(program, arrays), wanted, meant, strict=True):
        assert got.dtype == same.dtype
        np.testing.assert_array_equal(got, same)
        np.testing.assert_allclose(near, same, rtol=1e-4, atol=1e-4)
    return program


def layer(x, w, b):
    return fnp.maximum(x @ w + b, 0)


def network(x, w, b, v, c):
    return layer(x, w, b) @ v + c


LAYER = floats(512, 16), floats(16, 24, seed=1), floats(24, seed=2)
NETWORK = (*LAYER, floats(24, 8, seed=3), floats(8, seed=4))


def test_text():
    text = str(planned(network, *NETWORK))
    assert text.startswith(
        "program test(f32[512,16], f32[16,24], f32[24], f32[24,8], f32[8]) -> (f32[512,8]), "
        "arena 0 bytes\n"
        "  parallel t0 < 4, band 12288 bytes:\n"
        "    gemm float32 128x24x16: band[24, 1] = input0+8192*t0[16, 1] @ input1[24, 1]\n"
        "    max_1 band, input2, band\n"
        "    gemm float32 128x8x24: output0+4096*t0[8, 1] = band[24, 1] @ input3[8, 1]\n"
        "    add_1 output0+4096*t0, input4, output0+4096*t0\n"
    )


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("rows", [512, 500, 1111])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_bits(threads, rows, dtype):
    before = fg.num_threads()
    fg.set_num_threads(threads)
    try:
        given = floats(rows, 16, dtype=dtype), *(x.astype(dtype) for x in NETWORK[1:])
        program = check(network, *given, count=1 if rows == 512 else 2)
        assert program.arena_bytes == 0
    finally:
        fg.set_num_threads(before)


@pytest.mark.parametrize(
    "consume",
    [
        lambda y: fg.nn.softmax(y),
        lambda y: (y - y.mean(-1, keepdims=True)) / fnp.sqrt(y.var(-1, keepdims=True) + 1e-3),
        lambda y: y.sum(-1),
        lambda y: y[:, ::-1] * 2,
        lambda y: fnp.cumsum(y, 1),
        lambda y: y.astype("bfloat16"),
        lambda y: y > 0,
        lambda y: fnp.where(y > 0, y, fnp.nan),
        lambda y: y[:, 3:7] + 1,
    ],
    ids=["softmax", "norm", "sum", "reversed", "cumsum", "bfloat16", "bool", "nan", "some"],
)
def test_consumers(consume):
    program = planned(lambda x, w: consume(x @ w), *LAYER[:2])
    if loops(program):
        check(lambda x, w: consume(x @ w), *LAYER[:2])
    else:
        assert any(isinstance(s, GemmStep) for s in program.steps)


def test_softmax_and_norm_are_taken():
    for consume in (fg.nn.softmax, lambda y: y - y.mean(-1, keepdims=True), fnp.tanh):
        check(lambda x, w, consume=consume: consume(x @ w), *LAYER[:2])


def test_gathers():
    """What of a product is read, only running tells; of another array, it doesn't matter."""
    x, w, _ = LAYER
    i = np.array([3, 0, 3], np.int32)
    check(lambda x, w, i: fnp.take(fnp.tanh(x @ w), i, axis=1) * 2, x, w, i, count=0)
    check(lambda x, w, i: fnp.take(x @ w, i, axis=0) * 2, x, w, i, count=0)
    check(
        lambda x, w, b, i: fnp.tanh(x @ w) + fnp.take(b, i % 24),
        *LAYER,
        np.arange(24, dtype=np.int32),
    )


def test_steps_between_go_first():
    x, w, b = LAYER

    def fun(x, w, b):
        y = x @ w
        first = fnp.exp(b).sum()
        return fnp.tanh(y) * first

    program = check(fun, x, w, b)
    assert [type(s) for s in program.steps] == [KernelStep, LoopStep]


def test_a_product_of_other_rows_is_no_step_of_the_group():
    x, w, _ = LAYER
    few, v = floats(6, 16, seed=5), floats(128, 8, seed=6)

    def between(x, w, few):
        y, other = x @ w, few @ w
        return fnp.tanh(y), other

    program = check(between, x, w, few)
    assert [type(s) for s in program.steps] == [GemmStep, LoopStep]
    # Gradients of weights are such products where rows are few.
    gradient = fg.grad(lambda w, v, x: fnp.sum(fnp.tanh(fnp.tanh(x @ w.T) @ v)), argnums=(0, 1, 2))
    given = floats(128, 16, seed=7), v, x[:128]
    check(gradient, *given, count=len(loops(planned(gradient, *given))))


def test_operands_at_any_strides():
    x, w, b = LAYER
    check(lambda x, w, b: layer(x.T, w.T, b), x.T.copy(), w.T.copy(), b)
    check(lambda x, w, b: layer(x[:, ::2], w[8:], b), x, w, b)
    check(lambda x, w, b: layer(x[::-1], w, b), x, w, b)
    check(lambda x, w, b: layer(x[100:400], w, b[0]), x, w, b, count=2)


@pytest.mark.parametrize("rows", [(4, 128), (2, 2, 128)])
def test_several_axes_of_rows(rows):
    x, w, b = LAYER
    check(layer, x.reshape(*rows, 16), w, b)
    check(lambda x, w: fg.nn.softmax(x @ w), x.reshape(*rows, 16), w)


def test_residual_and_scale():
    x, w, b = LAYER
    w = w[:, :16].copy()
    check(lambda x, w, b: x + b * fnp.tanh(x @ w), x, w, b[:16])
    # The residual dies in the group: what is written takes its place, or not, but never too early.
    check(lambda x, w: (x + 1) * fnp.tanh(x @ w), x, w, donated=[True, False])
    check(lambda x, w: x * fnp.tanh(x @ w), x, w, donated=[True, False])


def test_donated_operand_is_read_to_the_end():
    x = floats(512, 16)
    check(lambda x, w: fnp.tanh(x @ w), x, floats(16, 16), donated=[True, False])
    check(lambda x, w: (fnp.tanh(x @ w), x * 2), x, floats(16, 16), donated=[True, False])


def test_what_others_read_stays():
    x, w, b = LAYER

    def both(x, w, b):
        y = x @ w
        return y, fnp.exp(y + b)

    check(both, x, w, b)
    check(lambda x, w, b: [fnp.exp(x @ w), (fnp.exp(x @ w) * b).sum(0)], x, w, b)
    gradient = fg.grad(lambda x, w, b: fnp.sum(layer(x, w, b) ** 2), argnums=(0, 1, 2))
    check(gradient, x, w, b)


def test_memory_is_for_a_band_a_thread():
    program = planned(network, *NETWORK)
    (loop,) = loops(program)
    assert (program.arena_bytes, loop.band) == (0, 128 * 24 * 4)
    assert whole(network, *NETWORK).arena_bytes == 512 * 24 * 4
    # What is written last lies in the result from the beginning.
    (loop,) = loops(planned(layer, *LAYER))
    assert loop.band == 0


@pytest.mark.parametrize(
    "fun",
    [
        lambda x, w: (x @ w).sum(0),
        lambda x, w: fnp.roll(x @ w, 1, 0),
        lambda x, w: (x @ w)[::-1] * 2,
        lambda x, w: fnp.tanh(x @ w).T @ x,
        lambda x, w: (x @ w) * fnp.arange(512, dtype=np.float32)[:, None],
        lambda x, w: fnp.sort(x @ w, axis=0),
        lambda x, w: fnp.tanh(x.astype("bfloat16") @ w.astype("bfloat16")),
        lambda x, w: fnp.tanh(fnp.tile(x, (1, 16)) @ fnp.tile(w, (16, 1))),
        lambda x, w: fnp.tanh(x[:64] @ w),
        lambda x, w: fnp.tanh(x.reshape(2, 256, 16) @ fnp.stack([w, w + 1])),
        lambda x, w: x @ w,
        lambda x, w: fnp.tanh(x[:0] @ w),
        lambda x, w: fnp.tanh(x @ w[:, :0]),
        lambda x, w: fnp.tanh(x[:, :0] @ w[:0]),
    ],
)
def test_whole(fun):
    """What needs other rows, knows its row, adds long sums or is small stays as it was."""
    program = planned(fun, *LAYER[:2])
    for loop in loops(program):
        # The elementwise part of it at most.
        assert all(isinstance(s, GemmStep | KernelStep) for s in loop.body)
    check(fun, *LAYER[:2], count=len(loops(program)))


def test_inside_loops_and_branches():
    x, w, b = LAYER
    w, b = w[:, :16].copy(), b[:16].copy()

    def repeated(x, w, b):
        return fg.lax.fori_loop(0, 3, lambda i, x: layer(x, w, b * i), x)

    def scanned(x, ws, b):
        return fg.lax.scan(lambda x, w: (layer(x, w, b), fnp.tanh(x @ w)), x, ws)

    def chosen(x, w, b):
        return fg.lax.cond(b[0] > 0, layer, lambda x, w, b: fnp.tanh(x @ w), x, w, b)

    for fun, given in (
        (repeated, (x, w, b)),
        (scanned, (x, np.stack([w, w + 1, w - 1]), b)),
        (chosen, (x, w, abs(b))),
        (chosen, (x, w, -abs(b))),
    ):
        program = planned(fun, *given)
        assert loops(program), program
        check(fun, *given, count=len(loops(program)))


def test_after_a_loop():
    """The counter of a loop that is over isn't given to the tasks."""
    x, w, b = LAYER
    w, b = w[:, :16].copy(), b[:16].copy()

    def fun(x, w, b):
        x = fg.lax.fori_loop(0, 5, lambda i, x: fnp.sin(x).at[i].add(1), x)
        return fg.lax.cond(b[0] > 0, lambda: layer(x, w, b), lambda: layer(x, w, -b))

    check(fun, x, w, b, count=len(loops(planned(fun, x, w, b))))


@pytest.mark.parametrize("rows", range(200, 900, 61))
def test_last_bands_have_some_rows(rows):
    program = planned(layer, floats(rows, 16), *LAYER[1:])
    found = [
        (s.length, next(x.m for x in s.body if isinstance(x, GemmStep))) for s in loops(program)
    ]
    if found:
        assert sum(n * m for n, m in found) == rows
        assert min(m for _, m in found) >= bands.LEAST_ROWS


def test_large_programs_by_themselves(monkeypatch):
    """As shipped: a tall product is taken in bands, one in the caches or of long sums is not."""
    monkeypatch.undo()
    shapes = [((65536, 64), (64, 64)), ((4096, 64), (64, 64)), ((8192, 512), (512, 512))]
    counts = []
    for x, w in shapes:
        given = np.broadcast_to(np.float32(0), x), np.broadcast_to(np.float32(0), w)
        counts.append(len(loops(planned(lambda x, w: fnp.tanh(x @ w), *given))))
    assert counts == [1, 0, 0]


def test_random_chains():
    """Chains of products and row steps, with results from the middle, at any widths."""
    steps = [fnp.tanh, fg.nn.softmax, lambda y: y * 2, lambda y: y - y.mean(-1, keepdims=True)]
    taken = 0
    for seed in range(12):
        rng = np.random.default_rng(seed)
        widths = rng.choice([1, 3, 8, 16, 33, 64, 130], 3)
        chosen = rng.integers(len(steps), size=2)

        def fun(x, *ws, chosen=chosen, more=bool(seed % 2)):
            found = []
            for i, w in zip(chosen, ws, strict=True):
                y = x @ w
                x = steps[i](y)
                found += [y] if more else []
            return [x, *found]

        sizes = zip([640, *widths[:-1]], widths, strict=True)
        given = [floats(*s, seed=seed) for s in sizes]
        program = planned(fun, *given)
        taken += bool(loops(program))
        check(fun, *given, count=len(loops(program)))
    assert taken >= 4


def test_task_of_one_thread_at_a_time_shares_nothing():
    """Bands of several calls at once, each in its thread, have memory of their own."""
    run = assemble(planned(network, *NETWORK))
    (wanted,) = run(list(NETWORK))
    with ThreadPoolExecutor(4) as pool:
        for (got,) in pool.map(lambda _: run(list(NETWORK)), range(40)):
            np.testing.assert_array_equal(got, wanted)
