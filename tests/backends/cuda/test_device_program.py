"""Programs through the driver's functions, on a stand-in whose launches the simulator runs.

The functions have the driver's signatures, so that layouts of arguments, lifetimes and errors are
those that a GPU's driver would see. Tests marked `gpu` ask a real one.
"""

import ctypes
import subprocess
from functools import partial

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax
from funcgrad.backends.cuda import device
from funcgrad.backends.cuda.device import CudaError, Driver
from funcgrad.backends.cuda.device_program import DeviceProgram
from funcgrad.transforms.jit.jit import jit
from tests.backends.cuda.simulated import layer_norm, numbers, planned, softmax
from tests.op_checks import by_row, operands
from tests.op_samples import ROWS
from tests.test_ops_compiled import check_jit

START = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_char_p, ctypes.c_uint, ctypes.c_uint, ctypes.POINTER(ctypes.c_void_p)
)


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    path = tmp_path_factory.mktemp("fake") / "libcuda_fake.so"
    source = __file__.replace("test_device_program.py", "fake_cuda.c")
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", path, source], check=True)
    return str(path)


@pytest.fixture
def fake(library):
    lib = ctypes.CDLL(library)
    lib.fake_set.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_size_t]
    lib.fake_set(13000, 1, 1 << 30)
    yield lib
    assert lib.fake_live() == 0  # all memory was given back


def on_fake(f, fake, library, *args):
    """A function's program on the stand-in, its launches run by the simulator."""
    simulation = planned(f, *args)
    launches = {launch.name: launch for launch in simulation.kernels.launches}

    @START
    def start(name, grid, block, params):
        launch = launches[name.decode()]
        assert (grid, block) == (launch.plan.grid, launch.plan.block)
        slots = [ctypes.c_void_p.from_address(params[i]).value for i in range(launch.args)]
        simulation.simulator.launch(launch, slots)
        return 0

    fake.fake_start(start)
    program = DeviceProgram(simulation.program, Driver(library=library))
    program.start = start  # which lives as long
    return program


def mixed(x):
    """Kernels, a product, a sort, a loop on a flag."""
    y = fnp.sort(softmax(x @ x.T), axis=1)
    return lax.while_loop(lambda v: v.sum() < 40, lambda v: layer_norm(v) ** 2 + v, y)


@pytest.mark.parametrize("f", [softmax, mixed, lambda x: fnp.cumsum(x * 2, 0)])
def test_programs(f, fake, library):
    x = numbers(9, 50)
    program = on_fake(f, fake, library, x)
    for _ in range(2):
        np.testing.assert_allclose(program([x])[0], fg.jit(f)(x), rtol=3e-5, atol=1e-6)
    assert fake.fake_modules() == 1
    del program
    assert fake.fake_modules() == 0


def test_errors_have_their_names(fake, library):
    program = on_fake(softmax, fake, library, numbers(9, 50))
    fake.fake_set(13000, 1, 100)
    with pytest.raises(CudaError, match="cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY"):
        program([numbers(9, 50)])
    fake.fake_set(13000, 1, 1 << 30)
    fake.fake_break()
    with pytest.raises(CudaError, match="CUDA_ERROR_LAUNCH_FAILED"):
        program([numbers(9, 50)])


def test_what_is_missing(fake, library, monkeypatch):
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


@pytest.mark.gpu
@by_row([row for row in ROWS if row.cases_for("jit")])
def test_ops_on_a_gpu(row, rng):
    cases = row.cases_for("jit")
    for dtype in row.dtypes:
        args = [operands(row, c, rng, dtype) for c in cases]
        check_jit(row, cases, args, jit=partial(jit, backend="cuda"))
