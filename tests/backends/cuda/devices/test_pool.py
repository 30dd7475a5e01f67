"""Memory that is kept for the next who asks, and given back where the driver has no more."""

import pytest

from funcgrad.backends.cuda.devices.device import CudaError, OutOfDeviceMemory
from funcgrad.backends.cuda.devices.pool import rounded


def test_blocks_come_again(fake, gpu):
    block = gpu.pool.take(1000)
    address = block.address
    assert gpu.pool.summary() == {"in use": 1024, "kept": 0, "peak": 1024}
    del block
    assert gpu.pool.summary() == {"in use": 0, "kept": 1024, "peak": 1024}
    assert gpu.pool.take(1024).address == address
    assert fake.fake_live() == 1


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


def test_sizes():
    for n in (0, 1, 511, 513, 100_000, 10**9 + 1):
        assert n <= rounded(n) <= n * 9 // 8 + 512
        assert rounded(rounded(n)) == rounded(n)
