"""Kernels are assembled once: kept on disk, shared by equal ones, told when they are no good."""

import numpy as np
import pytest

from funcgrad.backends.cuda.cubins import Functions
from funcgrad.backends.cuda.devices.device import CudaError
from tests.backends.cuda.simulated import layer_norm, numbers, planned, softmax
from tests.backends.cuda.stand_in import on_fake


def test_kept_on_disk(fake, gpu):
    program = on_fake(lambda x: softmax(layer_norm(x) + 1).sum(0), fake, gpu, numbers(9, 40))
    linked = fake.fake_links()
    assert linked == len(program.loaded.functions.handles) > 1
    again = Functions(program.kernels.launches, gpu.driver)
    assert fake.fake_links() == linked
    assert fake.fake_modules() == 2 * linked
    assert again.handles.keys() == program.loaded.functions.handles.keys()


def test_without_a_folder_they_are_assembled_each_time(fake, gpu, monkeypatch):
    monkeypatch.setenv("FUNCGRAD_CACHE_DIR", "")
    launches = planned(lambda x: x + 1, numbers(4)).kernels.launches
    for i in (1, 2):
        Functions(launches, gpu.driver)
        assert fake.fake_links() == i


def test_equal_kernels_have_one_name():
    names = [
        [launch.name for launch in planned(f, np.ones((4, 40), np.float32)).kernels.launches]
        for f in (softmax, lambda y: softmax(y), layer_norm)
    ]
    assert names[0] == names[1] != names[2]


def test_what_the_driver_refuses_is_told(fake, gpu):
    with pytest.raises(CudaError, match="assembling PTX: CUDA_ERROR_INVALID_PTX: ptxas: no target"):
        gpu.driver.link("nothing")
