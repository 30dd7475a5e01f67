"""What tests of backends leave as they found it."""

import pytest

from funcgrad.backends.llvm.runtime import pool


@pytest.fixture(autouse=True)
def restore_threads():
    """The number of threads is that of the process again."""
    before = pool.num_threads()
    yield
    pool.set_num_threads(before)


@pytest.fixture
def threads():
    """threads(n): the test goes on with n threads."""
    return pool.set_num_threads
