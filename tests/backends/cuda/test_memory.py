"""Arrays on a GPU, by the stand-in of its driver: there, back, through programs, freed."""

import gc

import numpy as np
import pytest

import funcgrad as fg
from funcgrad.backends.cuda import memory
from funcgrad.backends.cuda.device import CudaError
from funcgrad.backends.cuda.device_program import CudaBackend
from funcgrad.core import backend, buffers
from funcgrad.core.sharding import Device
from funcgrad.errors import ShardingError
from tests.backends.cuda.simulated import numbers, softmax
from tests.backends.cuda.stand_in import on_fake

HERE = Device(0, kind="cuda")


@pytest.fixture
def there(monkeypatch, fake, gpu):
    """A memory and a backend of the stand-in, during a test."""
    for module, name in ((buffers, "_by_type"), (buffers, "_by_kind"), (backend, "_BACKENDS")):
        monkeypatch.setattr(module, name, dict(getattr(module, name)))
    buffers.register_memory(memory.CudaMemory(lambda: gpu))
    backend._BACKENDS["cuda"] = lambda: CudaBackend(lambda: gpu)
    yield fake
    gc.collect()


def test_there_and_back(there):
    x = fg.device_put(numbers(3, 5), HERE)
    assert x.device == HERE
    np.testing.assert_array_equal(x, numbers(3, 5))
    np.testing.assert_array_equal(fg.device_put(x, Device(0)), numbers(3, 5))
    with pytest.raises(ShardingError, match="add: arrays on Device.*cuda.* have no functions"):
        x + 1
    with pytest.raises(CudaError, match="device_put: Device.id=1.*first GPU alone"):
        fg.device_put(x, Device(1, kind="cuda"))


def test_results_stay_where_operands_are(there, gpu):
    x = numbers(9, 50)
    launched = on_fake(softmax, there, gpu, x)  # which says what launches do
    y = fg.jit(lambda x: softmax(x))(fg.device_put(x, HERE))  # which no cache keeps
    assert y.device == HERE
    np.testing.assert_allclose(y, softmax(x), rtol=2e-5)
    assert launched.loaded.functions.handles


def test_devices_by_name():
    assert memory.device_named("device_put", "cpu") == Device(0)
    with pytest.raises(ValueError, match="device_put: a device is 'cpu', .* got 'x'"):
        fg.device_put(1.0, "x")
    with pytest.raises(ValueError, match="devices: backend must be 'cpu', .* got 'x'"):
        fg.devices("x")


@pytest.mark.skipif(memory.count() > 0, reason="there is a GPU")
def test_without_a_gpu():
    assert fg.devices("cuda") == ()
    with pytest.raises(CudaError, match="device_put: 'cuda:0': (no NVIDIA driver|.*no GPU)"):
        fg.device_put(1.0, "cuda:0")
