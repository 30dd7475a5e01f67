"""What every test starts from: fixed random numbers, caches of its own, hardware that is there."""

import importlib.util
import os
import random
import shutil
import sys
import tempfile
import zlib
from collections import defaultdict
from pathlib import Path

import hypothesis
import numpy as np
import pytest

from funcgrad.backends.cuda.devices.device import missing as missing_gpu
from funcgrad.core import context
from tests.parallel.ranks import Pools, missing

hypothesis.settings.register_profile(
    "ci",
    deadline=None,
    derandomize=True,
    max_examples=40,
    print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.register_profile(
    "thorough", hypothesis.settings.get_profile("ci"), derandomize=False, max_examples=2000
)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_addoption(parser):
    parser.addoption("--slow", action="store_true", help="all rows, and tests that take minutes")
    parser.addoption(
        "--more", action="store_true",
        help="what a run leaves out by default and that isn't slow: long tests, and further rows",
    )  # fmt: skip
    parser.addoption(
        "--all-cuts", default="", metavar="K/N",
        help="ops on meshes: part K of N of all combinations of the operands' cuts",
    )  # fmt: skip
    parser.addoption("--peers", action="store_true", help="collect tests/peers (make test-peers)")


def pytest_ignore_collect(collection_path, config):
    """Tests against large libraries run in an environment of their own."""
    if collection_path.name == "peers" and not config.getoption("--peers"):
        return True
    return None


def pytest_configure(config):
    """Nothing that a test run compiles, draws or executes is left in the user's home; the workers
    of a run share what they compile."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        return
    home = tempfile.TemporaryDirectory(prefix="funcgrad-tests-", ignore_cleanup_errors=True)
    config.add_cleanup(home.cleanup)
    user_cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    # Matplotlib's cache is only its list of fonts, which takes seconds to build.
    os.environ.setdefault("MPLCONFIGDIR", str(user_cache / "matplotlib"))
    os.environ.setdefault("MPLBACKEND", "Agg")
    os.environ.setdefault("FUNCGRAD_TRACEBACK_FILTERING", "off")  # a failing test shows all
    os.environ["XDG_CACHE_HOME"] = str(Path(home.name, "cache"))
    os.environ["IPYTHONDIR"] = str(Path(home.name, "ipython"))


def missing_cupy() -> str | None:
    """Why tests marked cupy can't run here, or None."""
    if importlib.util.find_spec("cupy") is None:
        return "CuPy is not installed (pip install funcgrad[cupy])"
    return missing_gpu()


def missing_mpi() -> str | None:
    """Why tests marked mpi can't run here, or None."""
    if importlib.util.find_spec("mpi4py") is None:
        return "mpi4py is not installed (pip install funcgrad[mpi])"
    search = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    if shutil.which("mpiexec", path=search) is None:
        return "no mpiexec beside Python or on PATH (pip install mpich)"
    return None


def by_test(items) -> dict[str, list]:
    """The rows of each test, in an order that their names give them: which rows are left out is
    the same on every run, and all values of all parameters come up."""
    rows = defaultdict(list)
    for item in items:
        rows[item.nodeid.partition("[")[0]].append(item)
    for each in rows.values():
        each.sort(key=lambda item: zlib.crc32(item.nodeid.encode()))
    return rows


def sampled(items) -> set[str]:
    """The rows to leave out of tests marked sampled(k): of each all but one in k."""
    left = set()
    for rows in by_test(items).values():
        if mark := rows[0].get_closest_marker("sampled"):
            left.update(item.nodeid for item in rows[-(-len(rows) // mark.args[0]) :])
    return left


def further(items) -> set[str]:
    """What `make test` leaves to `make test-more`: tests marked long, and of those with many rows
    all but some."""
    left = set()
    for rows in by_test(items).values():
        long = rows[0].get_closest_marker("long")
        left.update(item.nodeid for item in rows[0 if long else 4 + len(rows) // 10 :])
    return left


def skip_what_is_missing(config, items) -> set[str]:
    """Marks tests that can't run here; where none of them was asked for (-m gpu), one row of each:
    the other rows, which are returned, would only say the same."""
    missing = {"gpu": missing_gpu(), "cupy": missing_cupy(), "mpi": missing_mpi()}
    if not config.getoption("--slow"):
        missing["slow"] = "takes minutes: run with --slow"
    rows = defaultdict(list)
    for item in items:
        for marker, reason in missing.items():
            if reason and item.get_closest_marker(marker):
                rows[item.nodeid.partition("[")[0], reason].append(item)
                break
    left = set()
    for (_, reason), (shown, *others) in rows.items():
        if config.getoption("markexpr"):
            for item in others:
                item.add_marker(pytest.mark.skip(reason=reason))
        elif others:
            reason += f" (and {len(others)} rows more)"
            left.update(item.nodeid for item in others)
        shown.add_marker(pytest.mark.skip(reason=reason))
    return left


def left_out(config, items) -> set[str]:
    """The tests that the command line doesn't ask for."""
    asked = config.args
    if config.getoption("--slow") or any("[" in arg for arg in asked):
        return set()
    left = sampled(items)
    if config.getoption("markexpr") or any(".py" in arg for arg in asked):
        return left
    rest = [item for item in items if item.nodeid not in left]
    # Those beside other libraries have a run of their own.
    more = further([item for item in rest if not item.nodeid.startswith("tests/peers")])
    return {item.nodeid for item in items} - more if config.getoption("--more") else left | more


def pytest_collection_modifyitems(config, items):
    left = left_out(config, items)
    left |= skip_what_is_missing(config, [item for item in items if item.nodeid not in left])
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in left])
    items[:] = [item for item in items if item.nodeid not in left]


@pytest.fixture
def seed(request) -> int:
    """A number that belongs to this test alone and is the same on every run."""
    return zlib.crc32(request.node.nodeid.encode())


@pytest.fixture
def rng(seed) -> np.random.Generator:
    """NumPy's generator, seeded by the test's name."""
    return np.random.default_rng(seed)


@pytest.fixture(autouse=True)
def reproducible(request, seed):
    """What a test draws and learns doesn't depend on the tests that ran before it in its process,
    which are others in each run. NaN and infinity are results here, not accidents."""
    random.seed(seed)
    np.random.seed(seed)
    for shared in vars(request.module).values():
        if isinstance(shared, np.random.Generator):
            shared.bit_generator.state = np.random.default_rng(seed).bit_generator.state
    # What is known of types is forgotten where it becomes too much: not in the midst of a test.
    if len(context.ROOT.types) > context.MOST_TYPES // 2:
        context.ROOT.types.clear()
    with np.errstate(all="ignore"):
        yield


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
