"""Programs through the driver's functions, on a stand-in whose launches the simulator runs.

The functions have the driver's signatures, so that layouts of arguments, lifetimes and errors are
those that a GPU's driver would see.
"""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax
from funcgrad.backends.cuda.devices import device
from funcgrad.backends.cuda.devices.device import CudaError, Driver, OutOfDeviceMemory
from funcgrad.backends.cuda.devices.gpu import Gpu
from funcgrad.backends.cuda.devices.memory import DeviceBuffer
from funcgrad.transforms.jit.jit import jit
from tests.backends.cuda.simulated import layer_norm, numbers, softmax
from tests.backends.cuda.stand_in import on_fake


def mixed(x):
    """Kernels, a product, a sort, a loop on a flag."""
    y = fnp.sort(softmax(x @ x.T), axis=1)
    return lax.while_loop(lambda v: v.sum() < 40, lambda v: layer_norm(v) ** 2 + v, y)


def branches(x):
    """A scan, a branch, an array of the program's own."""
    total, rows = lax.scan(lambda c, r: (c + r, softmax(c * r)), x[0], x)
    return lax.cond(total[0] > 3, lambda v: v + 1, lambda v: v - rows[0], total)


@pytest.mark.parametrize("f", [softmax, mixed, branches, lambda x: fnp.cumsum(x * 2, 0)])
def test_programs(f, fake, gpu):
    x = numbers(9, 50)
    program = on_fake(f, fake, gpu, x)
    for _ in range(3):
        np.testing.assert_allclose(program([x])[0], fg.jit(f)(x), rtol=3e-5, atol=1e-6)
    assert fake.fake_modules() == len(program.loaded.functions.handles)


def test_without_a_library_products_are_kernels(fake, library):
    gpu = Gpu(Driver(library=library), None)
    x = numbers(9, 50)
    program = on_fake(lambda x: softmax(x @ x.T), fake, gpu, x)
    np.testing.assert_allclose(program([x])[0], softmax(x @ x.T), rtol=3e-5, atol=1e-6)
    assert "product" in program.as_text("loops")


def test_results_on_the_device_and_donation(fake, gpu):
    x = numbers(64, 8)
    program = on_fake(lambda x: x * 2, fake, gpu, x, donated=[True])
    given = DeviceBuffer.of(gpu, x)
    (y,) = program([given])
    assert (type(y), y.block) == (DeviceBuffer, given.block)
    np.testing.assert_array_equal(y.get(), x * 2)
    np.testing.assert_array_equal(program([x])[0], x * 2)


def test_memory_that_is_short_is_told_with_the_largest_arrays(fake, gpu):
    x = numbers(9, 50)
    program = on_fake(lambda x: softmax(x @ x.T).sum(), fake, gpu, x)
    fake.fake_set(13000, 1, 100)
    said = r"memory doesn't suffice \(cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY\): .*argument 0"
    with pytest.raises(OutOfDeviceMemory, match=said):
        program([x])
    fake.fake_set(13000, 1, 1 << 30)
    assert np.isfinite(program([x])[0])  # it was an error of that call alone


def test_what_is_kept_to_be_quick_is_given_up_for_who_needs_it(fake, gpu):
    x = numbers(64, 64)
    program = on_fake(lambda x: softmax(x @ x.T) @ x, fake, gpu, x)
    for _ in range(3):
        want = program([x])[0]
    assert program.graphs.temporary
    fake.fake_set(13000, 1, 2 << 20)
    large = gpu.take(2 << 20)
    assert not program.graphs.temporary
    fake.fake_set(13000, 1, 3 << 20)
    np.testing.assert_array_equal(program([x])[0], want)
    assert large.size == 2 << 20


def test_a_broken_device_is_told_with_the_programs(fake, gpu):
    program = on_fake(softmax, fake, gpu, numbers(9, 50))
    fake.fake_break(719)
    with pytest.raises(CudaError, match="CUDA_ERROR_LAUNCH_FAILED.*can't use the GPU any more"):
        program([numbers(9, 50)])
    fake.fake_break(0)
    (y,) = program([DeviceBuffer.of(gpu, numbers(9, 50))])
    fake.fake_break(719)  # the launch itself went well
    with pytest.raises(CudaError, match=r"of a program since the GPU was waited for \(softmax\)"):
        y.get()
    fake.fake_break(0)


def test_exceptions_of_the_host_pass_native_code(fake, gpu):
    def refuse(x):
        raise KeyError("no")

    def f(x):
        return fg.pure_callback(refuse, fg.ShapeDtypeStruct((3,), "float32"), x) + 1

    program = on_fake(f, fake, gpu, numbers(3))
    with pytest.raises(KeyError, match="no"):
        program([numbers(3)])
    with pytest.raises(KeyError, match="no"):
        program([numbers(3)])


def test_what_is_missing(fake, library):
    assert device.missing("libnothing.so") == "no NVIDIA driver (libnothing.so) on this machine"
    fake.fake_set(13000, 0, 1)
    assert device.missing(library) == "the NVIDIA driver finds no GPU"
    fake.fake_set(11040, 1, 1)
    with pytest.raises(CudaError, match=r"driver is for CUDA 11\.4; 12\.0 or newer is needed"):
        Driver(library=library)


@pytest.mark.skipif(device.count() > 0, reason="there is a GPU")
def test_without_a_gpu():
    assert fg.devices("cuda") == ()
    with pytest.raises(CudaError, match=r"backend 'cuda': (no NVIDIA driver|.*no GPU)"):
        jit(lambda x: x + 1, backend="cuda")(1.0)
