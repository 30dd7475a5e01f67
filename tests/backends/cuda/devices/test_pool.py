"""Memory that is kept for the next who asks, and given back where the driver has no more."""

import numpy as np
import pytest

import funcgrad.numpy as fnp
from funcgrad.backends.cuda.devices.device import CudaError, Driver, OutOfDeviceMemory
from funcgrad.backends.cuda.devices.memory import DeviceBuffer
from funcgrad.backends.cuda.devices.pool import rounded
from funcgrad.backends.cuda.simulate import Simulator
from tests.backends.cuda.simulated import numbers, softmax
from tests.backends.cuda.stand_in import on_fake


def test_blocks_come_again(fake, gpu):
    block = gpu.pool.take(1000)
    address = block.address
    assert gpu.pool.summary() == {"in use": 1024, "kept": 0, "peak": 1024}
    del block
    assert gpu.pool.summary() == {"in use": 0, "kept": 1024, "peak": 1024}
    assert gpu.pool.take(1024).address == address
    assert fake.fake_live() == 1


def test_what_comes_back_after_the_event_waits_for_another(fake, gpu, monkeypatch):
    blocks, record = [gpu.pool.take(512) for _ in range(2)], Driver.record

    def meanwhile(self, stream=None):
        event = record(self, stream)
        blocks.clear()  # as another thread may, after its last use
        return event

    blocks.pop()
    monkeypatch.setattr(Driver, "record", meanwhile)
    kept = gpu.pool.take(512)
    assert len(gpu.pool.returned) == 1
    assert gpu.pool.take(512).free is not kept.free


def test_what_is_kept_is_given_back_for_another_size(fake, gpu):
    fake.fake_set(13000, 1, 4096)
    block = gpu.pool.take(4096)
    with pytest.raises(OutOfDeviceMemory, match="CUDA_ERROR_OUT_OF_MEMORY"):
        gpu.pool.take(512)
    del block
    assert gpu.pool.take(512).size == 512


def test_memory_is_given_back_in_its_own_context(fake, gpu):
    block = gpu.pool.take(1)
    fake.fake_leave()  # another library made its context current
    del block
    gpu.pool.release()
    assert fake.fake_live() == 0


def test_other_contexts_are_told(fake, gpu):
    fake.fake_leave()
    with pytest.raises(CudaError, match="cuStreamSynchronize: CUDA_ERROR_INVALID_CONTEXT"):
        gpu.driver.synchronize()
    gpu.driver.enter()


@pytest.mark.parametrize("which", [1, 2])
@pytest.mark.parametrize("planted", [False, True])
def test_arguments_go_to_the_device_beside_programs(which, planted, fake, gpu, monkeypatch):
    """Their memory was another's, of whom what was started may still read."""
    x = numbers(9, 50)
    program = on_fake(softmax, fake, gpu, x)
    (y,) = program([DeviceBuffer.of(gpu, x)])
    wait = Driver.wait
    fake.fake_lazy(which)
    with monkeypatch.context() as patched:
        if planted:
            patched.setattr(
                Driver, "wait", lambda self, s, e: None if s is self.copies else wait(self, s, e)
            )
        results = [program([DeviceBuffer.of(gpu, x * i)])[0] for i in range(5)]
    del y
    right = [np.allclose(y.get(), softmax(fnp.asarray(x * i))) for i, y in enumerate(results)]
    assert all(right) != (planted and which == 1)
    fake.fake_lazy(0)


def test_results_are_read_while_later_programs_run(fake, gpu, monkeypatch):
    x, done, launch = numbers(9, 50), [], Simulator.launch

    def counted(self, *args):
        done.append(args)
        launch(self, *args)

    monkeypatch.setattr(Simulator, "launch", counted)
    program = on_fake(softmax, fake, gpu, x)
    fake.fake_lazy(1)
    given = DeviceBuffer.of(gpu, x)
    first, second = (program([given])[0] for _ in range(2))
    assert not done
    first.get()
    assert len(done) == 1
    second.get()
    assert len(done) == 2
    fake.fake_lazy(0)


def test_events_come_again(fake, gpu):
    x = numbers(9, 50)
    program = on_fake(softmax, fake, gpu, x)
    for _ in range(3):
        program([DeviceBuffer.of(gpu, x)])
    made = fake.fake_events()
    for _ in range(20):
        program([DeviceBuffer.of(gpu, x)])
    assert fake.fake_events() == made


def test_sizes():
    for n in (0, 1, 511, 513, 100_000, 10**9 + 1):
        assert n <= rounded(n) <= n * 9 // 8 + 512
        assert rounded(rounded(n)) == rounded(n)
