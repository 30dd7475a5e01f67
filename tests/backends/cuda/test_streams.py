"""What runs beside kernels: which steps, who waits for whom, and that no wait is missing.

The stand-in does a stream's work as late as it may, so each wait that is left out is seen.
"""

import threading

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax
from funcgrad.backends.cuda import host, streams
from funcgrad.backends.cuda.device_program import DeviceProgram
from funcgrad.backends.cuda.devices.device import Driver
from funcgrad.backends.cuda.devices.gpu import Gpu
from funcgrad.backends.cuda.devices.memory import DeviceBuffer
from funcgrad.backends.cuda.machine import CUDA
from funcgrad.backends.plan import plan
from funcgrad.backends.program import CopyStep, ExchangeStep, LoopStep, Program, Ref
from funcgrad.core import context
from funcgrad.parallel.communicators.nccl import Nccl, NcclCommunicator
from funcgrad.transforms.passes.simplify import simplify
from tests.backends.cuda.simulated import numbers, program_of, softmax
from tests.backends.cuda.stand_in import launches_of, on_fake

LATE = {"kernels late": 1, "others late": 2}
late = pytest.mark.parametrize("which", LATE.values(), ids=LATE.keys())


@pytest.fixture(autouse=True)
def small_copies(monkeypatch):
    """Copies of a few bytes run beside kernels."""
    monkeypatch.setattr(streams, "LEAST_COPY", 16)


# ---- which steps


def test_copies_move_up_to_where_their_operands_are_known():
    def f(x, y):
        return softmax(y) @ y.T, x

    program = program_of(f, numbers(4, 8), numbers(5, 8))
    assert isinstance(program.steps[-1], CopyStep)
    first, *rest = streams.Streams(program).turns(program.steps)
    assert first[:4] == (program.steps[-1], None, 0, True)
    assert first.awaited
    assert [turn.step for turn in rest] == [*program.steps[:-1], None]
    assert rest[-1].after == 0


def test_a_step_waits_for_what_it_needs_alone():
    arena = [Ref("arena", 0, 64 * i) for i in range(4)]
    steps = [
        ExchangeStep("all_reduce", 0, "sum", np.dtype("f4"), 16, 2, at, at) for at in arena[:2]
    ]
    steps += [CopyStep(arena[2], arena[3], 8), CopyStep(arena[0], arena[2], 8)]  # too small
    program = Program("f", (), (), tuple(steps), 256)
    made = streams.Streams(program, frozenset([0])).turns(steps)
    shown = [(t.after, t.move, t.forks, t.awaited) for t in made]
    assert shown == [
        (None, 0, True, True), (None, 1, False, True), (None, None, False, False),
        (0, None, False, False), (1, None, False, False),
    ]  # fmt: skip
    assert made[-1].step is None
    assert all(t.move is None for t in streams.Streams(program).turns(steps))  # the host's


def test_exchanges_with_nothing_beside_stay_where_they_are():
    at = Ref("arena")
    one = ExchangeStep("all_reduce", 0, "sum", np.dtype("f4"), 16, 2, at, at)
    steps = (one, CopyStep(at, Ref("output"), 8))
    made = streams.Streams(Program("f", (), (), steps, 64), frozenset([0]))
    assert not made.exchanges
    assert all(t.move is None for t in made.turns(steps))


def test_memory_of_loops_is_that_of_all_turns():
    moving = Ref("input", 0, 100, ((7, -4),))
    loop = LoopStep(7, 5, (CopyStep(moving, Ref("output"), 4),))
    made = streams.Streams(Program("f", (), (), (loop,), 0))
    places = list(made.places(loop))
    assert [tuple(p)[2:] for p in places] == [(84, 104, False), (0, 4, True)]
    aliased = Program("f", (), (), (loop,), 0, aliases={0: 3})
    assert list(streams.Streams(aliased).places(loop))[1][:2] == ("input", 3)


# ---- copies


def kept(x, y):
    """A copy of x before it is overwritten, and work in between."""
    z = softmax(y) @ y.T
    return x, lax.dynamic_update_slice(x, z, (1, 0)), lax.fori_loop(0, 3, lambda i, v: v @ z, z)


@late
def test_programs_with_copies(which, fake, gpu):
    x, y = numbers(9, 5), numbers(5, 8)
    program = on_fake(kept, fake, gpu, x, y, donated=[False, False])
    assert program.loaded.host.events
    want = [np.asarray(v) for v in kept(fnp.asarray(x), fnp.asarray(y))]
    fake.fake_lazy(which)
    given = [DeviceBuffer.of(gpu, v) for v in (x, y)]
    for _ in range(4):  # by graphs in the end
        for got, w in zip(program(given), want, strict=True):
            np.testing.assert_allclose(got.get(), w, rtol=2e-5)
    assert fake.fake_replays()
    fake.fake_lazy(0)


def without(monkeypatch, number):
    """Let the host function lack one of its waits."""
    count, event = iter(range(100)), host.Host.event

    def some(self, function, *args):
        if function != host.AWAIT or next(count) != number:
            event(self, function, *args)

    monkeypatch.setattr(host.Host, "event", some)


@pytest.mark.parametrize("number", range(2), ids=["at the fork", "for the copy"])
def test_a_wait_that_is_missing_is_found(number, fake, gpu, monkeypatch):
    def f(x, y):
        z = x * 2
        return z, z + 1, softmax(y)

    def copied_twice(x, y):
        z, w, v = f(x, y)
        return z, w, v, z

    x, y = numbers(9, 5), numbers(5, 8)
    without(monkeypatch, number)
    program = on_fake(copied_twice, fake, gpu, x, y)
    assert program.loaded.host.events == 2
    wrong = []
    for which in LATE.values():
        fake.fake_lazy(which)
        got = [v.get() for v in program([DeviceBuffer.of(gpu, v) for v in (x, y)])]
        wrong.append(not np.array_equal(got[3], x * 2))
        fake.fake_lazy(0)
    assert wrong == [number == 0, number == 1]


# ---- exchanges


def reduced(x, w):
    """A sum over devices, and work that doesn't need it."""
    total = lax.psum(x * 2, "i")
    y = lax.fori_loop(0, 2, lambda i, v: softmax(v @ w), w)
    return total + y.sum(), lax.all_gather(y, "i")


@pytest.fixture
def two(fake, library):
    """Two GPUs."""
    fake.fake_set(13000, 2, 1 << 30)
    made = [Gpu(Driver(i, library=library), library) for i in range(2)]
    yield made
    for gpu in made:
        gpu.__dict__.pop("lt", None)
        gpu.pool.release()


def in_threads(f):
    """f(rank) of two ranks."""
    results = [None, None]

    def work(rank):
        results[rank] = f(rank)

    threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    return results


@pytest.mark.parametrize("which", [0, *LATE.values()], ids=["at once", *LATE])
def test_exchanges_run_beside_kernels(which, fake, two, library):
    x, w = numbers(3, 5), numbers(8, 8)
    with context.scoped(axes={"i": 2}):
        jaxpr = simplify(fg.make_jaxpr(reduced)(x, w).jaxpr)
        planned = plan(jaxpr, [False, False], "reduced", CUDA)
    nccl = Nccl(library)
    name = nccl.unique_id()
    comms = in_threads(lambda rank: NcclCommunicator(nccl, two[rank], rank, 2, name))
    programs = []
    for rank in range(2):  # the stand-in compiles in one thread at a time
        first = DeviceProgram(planned, two[rank])
        start = launches_of(fake, first)
        programs.append(first.bind(lambda axes, rank=rank: comms[rank]))
        assert programs[-1].loaded.host.streams.exchanges
        assert not programs[-1].loaded.waits

    def run(rank):
        given = [DeviceBuffer.of(two[rank], v) for v in (x + rank, w)]
        return [[v.get() for v in programs[rank](given)] for _ in range(3)]

    fake.fake_lazy(which)
    y = w
    for _ in range(2):
        y = np.asarray(softmax(fnp.asarray(y @ w)))
    for calls in in_threads(run):
        for total, gathered in calls:
            np.testing.assert_allclose(total, 2 * (2 * x + 1) + y.sum(), rtol=1e-4)
            np.testing.assert_allclose(gathered, [y, y], rtol=1e-4)
    assert fake.fake_replays()
    fake.fake_lazy(0)
    assert start
