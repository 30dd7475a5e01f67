"""Two GPUs of one process, on the stand-in, whose memory is its context's alone."""

import gc

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.backends.cuda.device_program import CudaBackend
from funcgrad.backends.cuda.devices import memory
from funcgrad.backends.cuda.devices.device import CudaError, Driver, OutOfDeviceMemory
from funcgrad.backends.cuda.devices.gpu import Gpu
from funcgrad.core import backend, buffers
from funcgrad.core.sharding import Device
from funcgrad.errors import ShardingError
from tests.backends.cuda.simulated import numbers, softmax
from tests.backends.cuda.stand_in import on_fake

HERE, THERE = (Device(i, kind="cuda") for i in range(2))


@pytest.fixture
def gpus(monkeypatch, fake, gpu, library):
    """Both, as arrays and programs find them during a test."""
    fake.fake_set(13000, 2, 1 << 30)
    both = [gpu, Gpu(Driver(1, library=library), library)]
    for module, name in ((buffers, "_by_type"), (buffers, "_by_kind"), (backend, "_BACKENDS")):
        monkeypatch.setattr(module, name, dict(getattr(module, name)))
    buffers.register_memory(memory.CudaMemory(both.__getitem__))
    backend._BACKENDS["cuda"] = lambda: CudaBackend(lambda: gpu)
    yield both
    gc.collect()
    both[1].__dict__.pop("lt", None)
    both[1].pool.release()


def f(x):
    return softmax(x @ x.T) + 1


def test_programs_run_where_their_arguments_are(fake, gpus):
    x = numbers(9, 50)
    program = on_fake(f, fake, gpus[0], x)  # which says what launches do
    jitted = fg.jit(lambda x: f(x))
    for device in (THERE, HERE, THERE, THERE):
        y = jitted(fg.device_put(x, device))
        assert y.device == device
        np.testing.assert_allclose(y, f(x), rtol=2e-5)
    there = memory.DeviceBuffer.of(gpus[1], x)
    for _ in range(3):  # by a graph of its own
        (y,) = program.on_device([there])
        assert y.gpu is gpus[1]
    assert program.on(gpus[1]).graphs.captures
    assert program.on(gpus[1]) is program.on(gpus[1])


def test_from_one_to_the_other(gpus):
    x = fg.device_put(numbers(3, 5), THERE)
    assert x.__dlpack_device__() == (2, 1)
    y = fg.device_put(x, HERE)
    assert (x.device, y.device) == (THERE, HERE)
    np.testing.assert_array_equal(y, numbers(3, 5))
    with pytest.raises(ShardingError, match=r"different devices, .*id=1.*id=0"):
        x + y
    z = fnp.from_dlpack(x)
    assert z.device == THERE
    assert z.buffer.address == x.buffer.address


@pytest.mark.parametrize(("which", "reach"), [(0, False), (1, True), (2, True)])
def test_copies_from_one_to_the_other_pass_the_host_by(which, reach, fake, gpus, monkeypatch):
    x = numbers(9, 50)
    program = on_fake(lambda x: x * 2, fake, gpus[0], x)
    fake.fake_peers(reach)
    fake.fake_lazy(which)

    def doubled(x):
        gpus[0].driver.enter()
        return program.on_device([memory.DeviceBuffer.of(gpus[0], x)])[0]

    on_host = memory.DeviceBuffer.get
    monkeypatch.delattr(memory.DeviceBuffer, "get")
    found = []
    for i in range(4):  # memory of both goes from one array to the next
        y = doubled(x + i)
        there = memory.CudaMemory(gpus.__getitem__).put(y, THERE)
        del y
        doubled(x)
        found += program.on_device([there])
        del there
    assert fake.fake_peer_copies() == 4
    for i, y in enumerate(found):
        assert y.gpu is gpus[1]
        np.testing.assert_array_equal(on_host(y), 4 * (x + i))
    fake.fake_lazy(0)


def test_a_copy_to_the_same_gpu_is_made_there(fake, gpus):
    x = fg.device_put(numbers(3, 5), HERE)
    y = memory.CudaMemory(gpus.__getitem__).put(x.buffer, HERE)
    assert y.address != x.buffer.address
    np.testing.assert_array_equal(y.get(), x)
    assert not fake.fake_peer_copies()


def test_copies_that_cant_be_made_name_both(fake, gpus):
    x = fg.device_put(numbers(30, 50), HERE)
    words = r"device_put: a copy of float32\[30,50\] from cuda:0 to cuda:1: "
    fake.fake_set(13000, 2, 100)
    with pytest.raises(OutOfDeviceMemory, match=words + "cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY"):
        fg.device_put(x, THERE)
    fake.fake_set(13000, 2, 1 << 30)
    fake.fake_break(719)
    with pytest.raises(CudaError, match=words + ".*CUDA_ERROR_LAUNCH_FAILED"):
        fg.device_put(x, THERE)
    fake.fake_break(0)


def test_what_is_given_back_leaves_the_device_as_it_was(fake, gpus):
    x = fg.device_put(numbers(3, 5), HERE)
    y = fg.device_put(numbers(3, 5), THERE)
    gpus[0].driver.enter()
    del y
    gpus[1].pool.release()  # as finalizers do
    np.testing.assert_array_equal(x.buffer.get(), numbers(3, 5))
    (gpus[0].driver.get(np.empty((3, 5), np.float32), x.buffer.address))
    assert gpus[1].pool.summary()["kept"] == 0


def test_a_gpu_that_isnt_there(library):
    with pytest.raises(CudaError, match="cuDeviceGet"):
        Driver(7, library=library)
