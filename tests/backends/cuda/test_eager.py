"""Operations on a GPU's arrays one by one, on the stand-in: values, places, what is kept."""

import copy
import gc

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.backends.cuda import device_program, eager
from funcgrad.backends.cuda.device_program import CudaBackend, DeviceProgram
from funcgrad.backends.cuda.devices import memory
from funcgrad.core import backend, buffers
from funcgrad.core.sharding import Device
from funcgrad.errors import NonFiniteError
from tests.backends.cuda.simulated import numbers
from tests.backends.cuda.stand_in import launches_of

HERE = Device(0, kind="cuda")


@pytest.fixture
def made(monkeypatch, fake, gpu):
    """The names of the programs that are made during a test, on the stand-in."""
    for module, name in ((buffers, "_by_type"), (buffers, "_by_kind"), (backend, "_BACKENDS")):
        monkeypatch.setattr(module, name, dict(getattr(module, name)))
    there = memory.CudaMemory(lambda number: gpu)
    buffers.register_memory(there)
    backend._BACKENDS["cuda"] = lambda: CudaBackend(lambda: gpu)
    names, starts = [], []

    class Run(DeviceProgram):
        def on_device(self, values):
            # The stand-in knows the kernels of one program at a time.
            starts.append(launches_of(fake, self))
            return super().on_device(values)

    def program(planned, *args, **kwargs):
        names.append(planned.name)
        return Run(planned, *args, **kwargs)

    for module in (eager, device_program):
        monkeypatch.setattr(module, "DeviceProgram", program)
    yield names
    there._operations.clear()
    gc.collect()


def test_operations(made):
    x = fg.device_put(numbers(3, 5), HERE)
    y = fnp.sin(x) + 1
    assert y.device == HERE
    np.testing.assert_array_equal(y, np.asarray(fg.jit(lambda v: fnp.sin(v) + 1)(numbers(3, 5))))
    assert made == ["sin", "add"]
    again = fnp.sin(y) + 2
    assert made == ["sin", "add"]  # of other values the same programs
    np.testing.assert_allclose(again, np.sin(np.asarray(y)) + 2, rtol=1e-6)
    np.testing.assert_array_equal([np.asarray(row) for row in x], numbers(3, 5))


def test_several_results_and_steps_of_the_host(made):
    x = fg.device_put(numbers(4, 4), HERE)
    w, v = fnp.linalg.eigh(x @ x.T)
    assert (w.device, v.device) == (HERE, HERE)
    a = numbers(4, 4)
    np.testing.assert_allclose(w, np.linalg.eigvalsh(a @ a.T), rtol=1e-4, atol=1e-5)


def test_gradients(made):
    x = fg.device_put(numbers(3, 5), HERE)
    found = fg.grad(lambda v: (fnp.tanh(v) ** 2).sum())(x)
    assert found.device == HERE
    want = fg.grad(lambda v: (fnp.tanh(v) ** 2).sum())(fnp.asarray(numbers(3, 5)))
    np.testing.assert_allclose(found, want, rtol=1e-6, atol=1e-6)


def test_parameters_that_differ_in_their_sign_alone(made, gpu):
    operations = eager.Operations(gpu)
    keys = {eager._exact(x) for x in (0.0, -0.0, False, 0, np.float32(0), np.float32(-0.0))}
    assert len(keys) == 6
    assert not operations._kept


def test_no_more_programs_than_are_kept(made, monkeypatch):
    monkeypatch.setattr(eager, "MOST", 2)
    for n in (1, 2, 3, 1):
        fnp.negative(fg.device_put(np.ones(n, np.float32), HERE))
    assert made == ["neg"] * 4


def test_copies_are_others(made):
    x = fg.device_put(numbers(3), HERE)
    y = copy.deepcopy(x)
    assert y.device == HERE
    assert y.buffer.address != x.buffer.address
    np.testing.assert_array_equal(x, y)


def test_nans_are_found(made):
    x = fg.device_put(-np.ones(2, np.float32), HERE)
    with fg.debug_nans(True), pytest.raises(NonFiniteError, match="log produced NaN"):
        fnp.log(x)


@pytest.mark.gpu
def test_operations_on_a_gpu():
    x = numbers(33, 129)
    there = fg.device_put(x, "cuda:0")
    got = [fnp.tanh(there) + 1, fnp.from_dlpack(there), there[3:, ::2], fnp.where(there > 0, x, 1)]
    want = fg.jit(lambda x: [fnp.tanh(x) + 1, x, x[3:, ::2], fnp.where(x > 0, x, 1)])(x)
    for g, w in zip(got, want, strict=True):
        assert g.device == HERE
        np.testing.assert_array_equal(g, w)
    np.testing.assert_allclose(there.sum(0), x.sum(0), rtol=1e-5, atol=1e-5)
