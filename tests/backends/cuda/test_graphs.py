"""Programs as graphs: found by addresses, updated as a whole, given up; none of what waits."""

import numpy as np
import pytest

import funcgrad.numpy as fnp
from funcgrad import lax
from funcgrad.backends.cuda.devices.device import CudaError, Driver
from funcgrad.backends.cuda.devices.memory import DeviceBuffer
from funcgrad.backends.cuda.graphs import MOST
from tests.backends.cuda.simulated import numbers, softmax
from tests.backends.cuda.stand_in import on_fake


def layers(x):
    """A product and two kernels, in a loop."""
    return lax.fori_loop(0, 3, lambda i, v: softmax(v @ x), x) + 1


def test_replayed_from_the_second_call_on(fake, gpu):
    x = numbers(8, 8)
    program = on_fake(layers, fake, gpu, x)
    given = DeviceBuffer.of(gpu, x)
    want = program([given])[0].get()
    launched = fake.fake_launches()
    for _ in range(4):
        np.testing.assert_array_equal(program([given])[0].get(), want)
    assert fake.fake_launches() == launched  # by graphs since then
    assert fake.fake_replays() == 4
    assert program.graphs.captures <= 2  # of the results' addresses, which come again


def test_arrays_that_move_update_graphs(fake, gpu):
    x = numbers(8, 8)
    program = on_fake(layers, fake, gpu, x)
    results = []
    for i in range(MOST + 4):
        results.append((i, program([DeviceBuffer.of(gpu, x + i)])[0]))  # all are kept
    for i, y in results:
        np.testing.assert_allclose(y.get(), np.asarray(layers(fnp.asarray(x + i))), rtol=1e-5)
    assert program.graphs.captures == MOST + 3
    assert program.graphs.updates == 3
    assert fake.fake_graphs() == MOST


@pytest.mark.parametrize("f", [
    lambda x: fnp.linalg.eigvalsh(x @ x.T),
    lambda x: lax.while_loop(lambda v: v.sum() < 1e3, lambda v: v * v + 1, x),
], ids=["a step of the host", "a loop on a flag"])  # fmt: skip
def test_what_waits_is_no_graph(f, fake, gpu):
    x = numbers(8, 8)
    program = on_fake(f, fake, gpu, x)
    first = program([x])[0]
    for _ in range(2):
        np.testing.assert_array_equal(program([x])[0], first)
    assert program.loaded.waits
    assert not fake.fake_replays()


def test_errors_of_a_capture_and_of_a_replay(fake, gpu):
    x = numbers(8, 8)
    program = on_fake(layers, fake, gpu, x)
    program([x])
    fake.fake_break(719)
    with pytest.raises(CudaError, match="CUDA_ERROR_LAUNCH_FAILED"):
        program([x])
    fake.fake_break(0)
    want = program([x])[0]
    assert fake.fake_graphs() in (0, 1)
    np.testing.assert_array_equal(program([x])[0], want)


def test_a_capture_without_a_second_stream_keeps_none(fake, gpu, monkeypatch):
    x, ended = numbers(8, 8), []
    program = on_fake(layers, fake, gpu, x)
    want, make, end = program([x])[0], Driver.another_stream, Driver.end_stream
    made = []

    def first_alone(self):
        if made:
            raise CudaError("cuStreamCreate: CUDA_ERROR_OUT_OF_MEMORY")
        made.append(make(self))
        return made[-1]

    def noted(self, stream):
        ended.append(stream)
        end(self, stream)

    monkeypatch.setattr(Driver, "another_stream", first_alone)
    monkeypatch.setattr(Driver, "end_stream", noted)
    np.testing.assert_array_equal(program([x])[0], want)
    assert made == ended


def test_what_others_start_during_a_capture_is_no_part_of_it(fake, gpu, monkeypatch):
    x = numbers(8, 8)
    program = on_fake(layers, fake, gpu, x)
    want, run, others = program([x])[0], program.loaded.run, []

    def interrupted(*args):
        others.append(DeviceBuffer.of(gpu, x).get())
        run(*args)

    with monkeypatch.context() as patched:
        patched.setattr(program.loaded, "run", interrupted)
        for _ in range(2):
            np.testing.assert_array_equal(program([x])[0], want)
    assert program.graphs.captures
    assert fake.fake_replays() == 2
    np.testing.assert_array_equal(others[0], x)


def test_programs_that_end_give_graphs_and_memory_back(fake, gpu):
    x = numbers(8, 8)
    program = on_fake(layers, fake, gpu, x)
    for _ in range(3):
        program([x])
    assert gpu.pool.summary()["in use"]
    del program
    assert fake.fake_graphs() == 0
    assert gpu.pool.summary()["in use"] == 0
