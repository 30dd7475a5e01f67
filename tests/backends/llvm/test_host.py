"""Host functions: steps, native control flow, and steps that run in Python."""

import threading

import numpy as np
import pytest

from funcgrad.backends.llvm.build import assemble
from funcgrad.backends.llvm.host_steps import host_steps, written_inputs
from funcgrad.backends.llvm.runtime.pool import num_threads, set_num_threads
from funcgrad.backends.loops.ir import Buffer, Const
from funcgrad.backends.plain.interpret import run as run_program
from funcgrad.backends.program import (
    CondStep,
    CopyStep,
    GemmStep,
    HostStep,
    KernelStep,
    LoopStep,
    Program,
    Ref,
    View,
    WhileStep,
)
from funcgrad.core.aval import ShapedArray
from funcgrad.core.primitive import NoRule, Primitive
from tests.backends.llvm.kernels_run import F32, F64, I32, at, kernel

IN, OUT, ARENA = Ref("input"), Ref("output"), Ref("arena")


def prim(impl, effect=False, multiple=False):
    none = NoRule("a test")
    return Primitive(name="test", abstract=None, impl=impl, jvp=none, transpose=none, batch=none,
                     dims=none, effect=effect, multiple=multiple)  # fmt: skip


def adds(n, dtype=F32, by=1):
    """out = in + by."""
    x, o = Buffer("x", dtype, n, "in"), Buffer("o", dtype, n, "out")

    def write(b, i):
        b.store(o, at((1, i)), b.op("add", dtype, b.load(x, at((1, i))), Const(by, dtype)))

    return kernel([x, o], [n], write, ((1, 0),))


def accumulates(n):
    """x += y."""
    x, y = Buffer("x", F32, n, "inout"), Buffer("y", F32, n, "in")
    return kernel([x, y], [n], lambda b, i: b.store(
        x, at((1, i)), b.op("add", F32, b.load(x, at((1, i))), b.load(y, at((1, i))))))  # fmt: skip


def program(ins, outs, steps, arena=0, constants=(), aliases=None):
    return Program("test", tuple(ins), tuple(outs), tuple(steps), arena, tuple(constants),
                   aliases or {})  # fmt: skip


def run(planned, *arrays):
    """The native results, which are those of the interpreter."""
    got = assemble(planned)(list(arrays))
    for g, w in zip(got, run_program(planned, arrays), strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-6)
    return got


def vector(n, dtype=F32):
    return ShapedArray((n,), dtype)


def test_kernels_in_a_row():
    k = adds(5)
    steps = [KernelStep(k, (IN, ARENA)), KernelStep(k, (ARENA, ARENA)), KernelStep(k, (ARENA, OUT))]
    (out,) = run(program([vector(5)], [vector(5)], steps, 64), np.arange(5, dtype=F32))
    np.testing.assert_array_equal(out, np.arange(5) + 3)


def test_constants():
    constant = np.arange(3, dtype=F32)
    steps = [KernelStep(adds(2), (Ref("constant", 0, 4), OUT))]
    (out,) = run(program([], [vector(2)], steps, constants=[constant]))
    np.testing.assert_array_equal(out, [2, 3])


def test_loop_moves_refs():
    """Row i of the result is row i of the input plus the sum of those before."""
    row = Ref("input", 0, 0, ((7, 12),))
    body = (
        KernelStep(accumulates(3), (ARENA, row)),
        CopyStep(ARENA, Ref("output", 0, 0, ((7, 12),)), 12),
    )
    zero = np.zeros(3, F32)
    steps = [CopyStep(Ref("constant"), ARENA, 12), LoopStep(7, 4, body)]
    aval = ShapedArray((4, 3), F32)
    x = np.arange(12, dtype=F32).reshape(4, 3)
    (out,) = run(program([aval], [aval], steps, 64, [zero]), x)
    np.testing.assert_array_equal(out, np.cumsum(x, 0))


def test_nested_loops():
    place = Ref("output", 0, 0, ((1, 24), (2, 8)))
    inner = LoopStep(2, 3, (KernelStep(adds(2), (Ref("input", 0, 0, ((2, 8),)), place)),))
    steps = [LoopStep(1, 2, (inner,)), LoopStep(3, 0, (CopyStep(IN, OUT, 4),))]
    x = np.arange(6, dtype=F32)
    (out,) = run(program([vector(6)], [ShapedArray((2, 6), F32)], steps), x)
    np.testing.assert_array_equal(out, [x + 1, x + 1])


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_parallel_loop(threads):
    """Each turn has a band of memory; turns of the loop around move the refs inside, too."""
    band = Ref("band", 2)
    row = ((1, 4000), (2, 40))
    body = (
        KernelStep(adds(10), (Ref("input", 0, 0, row), band)),
        KernelStep(adds(10, by=2), (band, Ref("output", 0, 0, row))),
    )
    steps = [LoopStep(0, 3, ()), LoopStep(1, 4, (LoopStep(2, 100, body, True, 40),))]
    aval = ShapedArray((4, 100, 10), F32)
    x = np.arange(4000, dtype=F32).reshape(aval.shape)
    before = num_threads()
    set_num_threads(threads)
    try:
        (out,) = run(program([aval], [aval], steps), x)
    finally:
        set_num_threads(before)
    np.testing.assert_array_equal(out, x + 3)


def test_parallel_loops_in_branches():
    """A task gets the counters that it needs; that of another loop may not be there."""
    body = (
        KernelStep(adds(10), (Ref("input", 0, 0, ((2, 40),)), Ref("output", 0, 0, ((2, 40),)))),
    )
    after = LoopStep(2, 20, body, True)
    first = LoopStep(1, 3, (CopyStep(IN, ARENA, 40),))
    cond = CondStep(Ref("input", 1), ((first,), (first, after)))
    avals = [ShapedArray((20, 10), F32), ShapedArray((), I32)]
    planned = program(avals, avals[:1], [cond, after], 64)
    x = np.arange(200, dtype=F32).reshape(20, 10)
    for i in range(2):
        np.testing.assert_array_equal(run(planned, x, np.array(i, I32))[0], x + 1)


@pytest.mark.parametrize("index", [0, 1, 2])
def test_cond(index):
    branches = tuple((KernelStep(adds(2, by=10 * i), (Ref("input", 1), OUT)),) for i in range(3))
    ins = [ShapedArray((), I32), vector(2)]
    planned = program(ins, [vector(2)], [CondStep(IN, branches)])
    (out,) = run(planned, np.array(index, I32), np.zeros(2, F32))
    assert out[0] == 10 * index


def test_while():
    """Doubles until the value is at least 100."""
    x, c = Buffer("x", F32, 1, "in"), Buffer("c", np.dtype(bool), 1, "out")
    test = kernel([x, c], [], lambda b: b.store(
        c, at(), b.op("less", np.dtype(bool), b.load(x, at()), Const(100, F32))))  # fmt: skip
    flag = Ref("arena", 0, 64)
    loop = WhileStep(
        (KernelStep(test, (OUT, flag)),), flag, (CopyStep(OUT, ARENA, 4),
                                                 KernelStep(accumulates(1), (OUT, ARENA)))
    )  # fmt: skip
    scalar = ShapedArray((), F32)
    for start, end in ((1, 128), (100, 100), (3, 192)):
        planned = program([scalar], [scalar], [CopyStep(IN, OUT, 4), loop], 128)
        assert run(planned, np.array(start, F32))[0] == end


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
@pytest.mark.parametrize("batch", [(), (3,), (2, 3), (2, 1, 3), (2, 3, 1, 2)])
def test_gemm(dtype, batch):
    m, n, k = 5, 6, 7
    rng = np.random.default_rng(0)
    a = rng.normal(size=(*batch, m, k)).astype(dtype)
    b = rng.normal(size=(*batch[1:], n, k)).astype(dtype)  # transposed, and without the first axis
    c = np.empty((*batch, m, n), dtype)

    def strides(x, rank):
        own = [s // x.itemsize for s in x.strides[:-2]]
        return [0] * (rank - len(own)) + own

    r = len(batch)
    axes = tuple(zip(batch, strides(a, r), strides(b, r), strides(c, r), strict=True))
    refs = Ref("input", 0), Ref("input", 1), OUT
    step = GemmStep(dtype, dtype, m, n, k, *refs, (k, 1), (1, k), (n, 1), axes)
    avals = [ShapedArray(x.shape, dtype) for x in (a, b, c)]
    (out,) = assemble(program(avals[:2], avals[2:], [step]))([a, b])
    np.testing.assert_allclose(out, a @ np.swapaxes(b, -1, -2), rtol=1e-4, atol=1e-5)


def test_gemm_into_another_type_with_many_batch_axes():
    batch, (m, n, k) = (2, 3, 1, 2), (5, 6, 7)
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-128, 128, (*batch, *s)).astype(np.int8) for s in ((m, k), (k, n)))
    c = np.empty((*batch, m, n), np.int32)
    steps = ([s // x.itemsize for s in x.strides[:-2]] for x in (a, b, c))
    axes = tuple(zip(batch, *steps, strict=True))
    refs = Ref("input", 0), Ref("input", 1), OUT
    step = GemmStep(a.dtype, c.dtype, m, n, k, *refs, (k, 1), (n, 1), (n, 1), axes)
    avals = [ShapedArray(x.shape, x.dtype) for x in (a, b, c)]
    (out,) = assemble(program(avals[:2], avals[2:], [step]))([a, b])
    np.testing.assert_array_equal(out, a.astype(np.int32) @ b.astype(np.int32))


def test_gemm_of_nothing_is_zero():
    step = GemmStep(F32, F32, 2, 3, 0, IN, Ref("input", 1), OUT, (0, 1), (3, 1), (3, 1))
    avals = [ShapedArray(s, F32) for s in ((2, 0), (0, 3), (2, 3))]
    arrays = [np.empty(a.shape, F32) for a in avals[:2]]
    (out,) = assemble(program(avals[:2], avals[2:], [step]))(arrays)
    np.testing.assert_array_equal(out, np.zeros((2, 3)))


# ---- steps in Python


def host(impl, n=3, **options):
    aval = vector(n)
    params = options.pop("params", {})
    return HostStep(prim(impl, **options), params, (View(IN, aval),), (View(OUT, aval),))


def test_host_steps_convert_and_number_through_branches():
    first = HostStep(prim(lambda xp, x: xp.sort(x)), {}, (View(IN, vector(3)),),
                     (View(ARENA, vector(3)),))  # fmt: skip
    second = HostStep(prim(lambda xp, x, by: [x.astype(F64) * by], multiple=True), {"by": 2},
                      (View(ARENA, vector(3)),), (View(OUT, vector(3)),))  # fmt: skip
    index = ShapedArray((), I32)
    steps = [CondStep(Ref("input", 1), ((), (first,))), LoopStep(0, 1, (second,))]
    planned = program([vector(3), index], [vector(3)], steps, 64)
    assert host_steps(planned.steps) == [first, second]
    (out,) = run(planned, np.array([3, 1, 2], F32), np.array(1, I32))
    np.testing.assert_array_equal(out, [2, 4, 6])


def test_exceptions_end_the_program():
    ran = []

    def fail(xp, x):
        raise KeyError("mine")

    steps = [host(lambda xp, x: ran.append(1) or x), host(fail), host(lambda xp, x: ran.append(2))]
    executable = assemble(program([vector(3)], [vector(3)], steps))
    for _ in range(2):
        with pytest.raises(KeyError, match="mine"):
            executable([np.zeros(3, F32)])
    assert ran == [1, 1]


def test_warnings_of_numpy_are_silent_in_host_steps():
    (out,) = run(program([vector(3)], [vector(3)], [host(lambda xp, x: x / 0)]), np.ones(3, F32))
    assert np.isinf(out).all()


def test_effects_get_arrays_they_may_keep():
    kept = []
    step = host(lambda xp, x: kept.append(x) or x, effect=True)
    after = KernelStep(adds(3), (IN, OUT))
    assemble(program([vector(3)], [vector(3)], [step, after]))([np.arange(3, dtype=F32)])
    np.testing.assert_array_equal(kept[0], [0, 1, 2])
    assert kept[0].flags.owndata


def test_host_steps_cannot_write_their_operands():
    def overwrite(xp, x):
        x[0] = 1
        return x

    with pytest.raises(ValueError, match="read-only"):
        assemble(program([vector(3)], [vector(3)], [host(overwrite)]))([np.zeros(3, F32)])


def test_a_program_may_be_called_from_its_own_host_step():
    """And errors of the inner call pass through the outer one."""
    depth = []

    def again(xp, x):
        depth.append(1)
        if len(depth) == 4:
            raise OverflowError("deep")
        return executable([x + 1])[0]

    executable = assemble(program([vector(3)], [vector(3)], [host(again)], 4096))
    with pytest.raises(OverflowError, match="deep"):
        executable([np.zeros(3, F32)])
    assert len(depth) == 4


def test_threads_have_their_own_errors():
    def impl(xp, x):
        if x[0] % 2:
            raise ValueError(f"odd {x[0]:.0f}")
        return x

    executable = assemble(program([vector(3)], [vector(3)], [host(impl)], 1 << 16))
    wrong = []

    def call(i):
        for _ in range(20):
            try:
                result = executable([np.full(3, i, F32)])[0]
                good = not i % 2 and (result == i).all()
            except ValueError as error:
                good = bool(i % 2) and str(error) == f"odd {i}"
            if not good:
                wrong.append(i)

    threads = [threading.Thread(target=call, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_written_inputs():
    k = accumulates(2)
    steps = [KernelStep(k, (Ref("input", 3), Ref("input", 1))),
             LoopStep(0, 2, (CopyStep(IN, Ref("input", 2), 8),))]  # fmt: skip
    assert written_inputs(steps) == {2, 3}
