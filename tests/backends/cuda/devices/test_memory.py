"""Arrays on a GPU, by the stand-in of its driver: there, back, through programs, freed."""

import ctypes
import gc

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.backends.cuda.device_program import CudaBackend
from funcgrad.backends.cuda.devices import interchange, memory
from funcgrad.backends.cuda.devices.device import CudaError, Driver
from funcgrad.backends.cuda.devices.memory import DeviceBuffer
from funcgrad.core import backend, buffers
from funcgrad.core.sharding import Device
from tests.backends.cuda.simulated import numbers, softmax
from tests.backends.cuda.stand_in import on_fake

HERE = Device(0, kind="cuda")


@pytest.fixture
def there(monkeypatch, fake, gpu):
    """A memory and a backend of the stand-in, during a test."""
    for module, name in ((buffers, "_by_type"), (buffers, "_by_kind"), (backend, "_BACKENDS")):
        monkeypatch.setattr(module, name, dict(getattr(module, name)))
    buffers.register_memory(memory.CudaMemory(lambda number: gpu))
    backend._BACKENDS["cuda"] = lambda: CudaBackend(lambda: gpu)
    yield fake
    gc.collect()


def test_there_and_back(there):
    x = fg.device_put(numbers(3, 5), HERE)
    assert x.device == HERE
    np.testing.assert_array_equal(x, numbers(3, 5))
    np.testing.assert_array_equal(fg.device_put(x, Device(0)), numbers(3, 5))


def test_results_stay_where_operands_are(there, gpu):
    x = numbers(9, 50)
    launched = on_fake(softmax, there, gpu, x)  # which says what launches do
    y = fg.jit(lambda x: softmax(x))(fg.device_put(x, HERE))  # which no cache keeps
    assert y.device == HERE
    np.testing.assert_allclose(y, softmax(x), rtol=2e-5)
    assert launched.loaded.functions.handles


def test_what_a_function_captured_goes_there_once(there, gpu, monkeypatch):
    sent, upload = [], Driver.upload

    def counted(self, address, array, free):
        sent.append(array.shape)
        upload(self, address, array, free)

    monkeypatch.setattr(Driver, "upload", counted)
    w, x = fnp.asarray(numbers(5, 5)), fg.device_put(numbers(3, 5), HERE)
    started = on_fake(lambda x, w: softmax(x @ w), there, gpu, numbers(3, 5), w)
    f = fg.jit(lambda x: softmax(x @ w))
    for _ in range(3):
        np.testing.assert_allclose(f(x), softmax(numbers(3, 5) @ w), rtol=2e-5)
    assert sent == [(3, 5), (5, 5)]
    assert started


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


def test_other_libraries_see_the_memory(there, gpu):
    x = fg.device_put(numbers(3, 5), HERE)
    seen = x.__cuda_array_interface__
    assert (seen["shape"], seen["typestr"], seen["version"]) == ((3, 5), "<f4", 3)
    assert seen["data"] == (x.buffer.address, False)
    assert seen["stream"] == gpu.driver.stream.value
    assert x.__dlpack_device__() == (2, 0)


@pytest.mark.parametrize("way", ["dlpack", "interface"])
def test_what_others_may_write_to_is_read_after_all_of_the_stream(way, fake, gpu):
    x = numbers(9, 50)
    program = on_fake(softmax, fake, gpu, x)
    (y,) = program([DeviceBuffer.of(gpu, x)])
    assert y.ready is not None
    given = y.__dlpack__(stream=-1) if way == "dlpack" else y.__cuda_array_interface__
    assert y.ready is None
    np.testing.assert_allclose(y.get(), softmax(fnp.asarray(x)), rtol=1e-5)
    del given


def test_capsules_keep_memory_until_they_are_taken_or_dropped(there, gpu):
    x = fg.device_put(numbers(3, 5), HERE)
    capsule = x.__dlpack__()
    assert "dltensor" in repr(capsule)
    del x
    assert gpu.pool.summary()["in use"]
    del capsule
    assert not gpu.pool.summary()["in use"]
    y = fg.device_put(np.zeros(2, "float8_e5m2"), HERE)
    with pytest.raises(BufferError, match="DLPack has no float8_e5m2"):
        y.__dlpack__()


def test_a_capsule_that_is_taken_is_the_takers(there, gpu):
    x = fg.device_put(numbers(3, 5), HERE)
    capsule = x.__dlpack__(stream=-1)
    api = ctypes.pythonapi
    at = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
        ("PyCapsule_GetPointer", api)
    )(capsule, b"dltensor")
    rename = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)
    rename(("PyCapsule_SetName", api))(capsule, b"used_dltensor")
    tensor = interchange._Tensor.from_address(at)
    assert [tensor.shape[i] for i in range(tensor.ndim)] == [3, 5]
    assert (tensor.data, tensor.code, tensor.bits) == (x.buffer.address, 2, 32)
    del x, capsule
    assert gpu.pool.summary()["in use"]
    interchange._DELETER(tensor.deleter)(tensor)
    assert not gpu.pool.summary()["in use"]


class Other:
    """An array of another library: a GPU's, exported by DLPack."""

    def __init__(self, x, **changes):
        self.x, self.changes, self.streams = x, changes, []

    def __dlpack_device__(self):
        return self.changes.get("device", (2, 0))

    def __dlpack__(self, *, stream=None):
        self.streams.append(stream)
        made = self.x.__dlpack__(stream=-1)
        tensor = interchange._Tensor.from_address(interchange._inside(made, b"dltensor"))
        for name, value in self.changes.items():
            if name != "device":
                setattr(tensor, name, value)
        return made


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "complex64", "bool", "int8", "uint16"])
def test_arrays_of_other_libraries_are_taken_without_a_copy(dtype, there, gpu):
    x = fg.device_put(fnp.asarray(numbers(3, 5)).astype(dtype), HERE)
    other = Other(x)
    y = fnp.from_dlpack(other)
    assert (y.device, y.dtype, other.streams) == (HERE, x.dtype, [gpu.driver.stream.value])
    assert y.buffer.address == x.buffer.address
    assert fnp.from_dlpack(other, copy=True).buffer.address != x.buffer.address
    want = np.asarray(x)
    del x, other
    np.testing.assert_array_equal(y, want)
    del y
    assert not gpu.pool.summary()["in use"]  # it was given back


def test_memory_of_others_isnt_written_to(there, gpu):
    x = fg.device_put(numbers(3, 5), HERE)
    y = fnp.from_dlpack(Other(x))
    launched = on_fake(lambda x: x + 1, there, gpu, numbers(3, 5), donated=[True])
    out = launched([y.buffer])[0]
    assert out.address != x.buffer.address
    np.testing.assert_array_equal(x, numbers(3, 5))
    np.testing.assert_array_equal(out.get(), numbers(3, 5) + 1)


@pytest.mark.parametrize(("changes", "words"), [
    ({"bits": 128, "code": 2}, "no dtype here has DLPack's code 2 with 128 bits, 1 at a time"),
    ({"bits": 4, "code": 0}, "code 0 with 4 bits"),
    ({"lanes": 4}, "32 bits, 4 at a time"),
    ({"strides": (ctypes.c_int64 * 2)(1, 3)}, "contiguous.*shape .3, 5. with strides .1, 3."),
])  # fmt: skip
def test_arrays_that_cant_be_taken(changes, words, there, gpu):
    x = fg.device_put(numbers(3, 5), HERE)
    with pytest.raises(BufferError, match=f"from_dlpack: .*{words}"):
        fnp.from_dlpack(Other(x, **changes))
