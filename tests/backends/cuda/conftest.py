"""Stand-ins of NVIDIA's libraries, which have their signatures, on the host's memory."""

import ctypes
import gc
import subprocess
from pathlib import Path

import pytest

from funcgrad.backends.cuda.devices.device import Driver
from funcgrad.backends.cuda.devices.gpu import Gpu

FAKES = ("fake_cuda.c", "fake_cublaslt.c", "fake_cudnn.c", "fake_nccl.c")


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    """A library that is the driver's, cuBLASLt, cuDNN and NCCL at once."""
    path = tmp_path_factory.mktemp("fake") / "libcuda_fake.so"
    sources = [Path(__file__).with_name(name) for name in FAKES]
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-O1", "-o", path, *sources, "-lm", "-lpthread"],
        check=True,
        text=True,
    )
    return str(path)


@pytest.fixture
def fake(library, tmp_path, monkeypatch):
    """The stand-in's own functions; all that a test took is given back in its end."""
    monkeypatch.setenv("FUNCGRAD_CACHE_DIR", str(tmp_path / "cache"))
    lib = ctypes.CDLL(library)
    lib.fake_set.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_size_t]
    lib.fake_set(13000, 1, 1 << 30)
    yield lib

    def left():
        memory = lib.fake_live(), lib.fake_modules(), lib.fake_graphs()
        return [*memory, lib.lt_alive(), lib.dnn_alive(), lib.nccl_alive()]

    if any(left()):
        gc.collect()
    assert left() == [0] * 6


@pytest.fixture
def gpu(fake, library):
    """A GPU of the stand-in."""
    made = Gpu(Driver(library=library), library, cudnn=library)
    yield made
    if made.pool.summary()["in use"]:
        gc.collect()
    for name in ("lt", "dnn"):
        made.__dict__.pop(name, None)
    made.pool.release()
