"""Ranks for tests that need processes."""

import pytest

from tests.parallel.ranks import Pools, missing


@pytest.fixture(scope="session")
def _pools():
    pools = Pools()
    yield pools
    pools.stop()


@pytest.fixture
def ranks(_pools):
    """`ranks(4).run("tests.parallel.jobs:function", *args)`: a function's results on 4 ranks."""
    if reason := missing():
        pytest.skip(reason)
    return _pools
