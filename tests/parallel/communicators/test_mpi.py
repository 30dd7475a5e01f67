"""Communicators over MPI, against numpy; programs on ranks, against virtual lanes."""

import re
import subprocess
import sys

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.parallel.communicators import mpi
from tests.parallel import jobs
from tests.parallel.ranks import RankError, Traces, environment, mpiexec

pytestmark = pytest.mark.mpi

DTYPES = ["bool", "int8", "uint16", "int32", "uint64", "bfloat16", "float16", "float32", "float64",
          "complex64", "complex128", "float8_e5m2", "int4"]  # fmt: skip
SIZES = [1, 3, 700]


def test_ranks_of_one_node_share_memory(ranks):
    assert ranks(2).run("tests.parallel.jobs:where") == [
        (0, 2, "SharedCommunicator"),
        (1, 2, "SharedCommunicator"),
    ]


def test_shared_memory(ranks):
    ranks(4).run("tests.parallel.jobs:communicators_against_numpy", DTYPES, SIZES)


def test_shared_memory_in_chunks(ranks):
    ranks(4).run("tests.parallel.jobs:small_slots", ["bfloat16", "float64"], [1, 2500])


def test_mpi_alone(ranks):
    pool = ranks(4, FUNCGRAD_TRANSPORT="mpi")
    pool.run("tests.parallel.jobs:communicators_against_numpy", DTYPES[::2], [3, 700], False)
    pool.run("tests.parallel.jobs:chunks_of_mpi", ["int8", "float16", "float64"], [1, 2, 1000])
    pool.stop()


@pytest.mark.long
def test_several_nodes(ranks):
    pool = ranks(4, FUNCGRAD_RANKS_PER_NODE="2")
    assert pool.run("tests.parallel.jobs:where")[0][2] == "NodesCommunicator"
    job = "tests.parallel.jobs:communicators_against_numpy"
    pool.run(job, ["float16", "float32"], [1, 3, 70_000], False)
    pool.stop()


@pytest.mark.parametrize("name", jobs.PROGRAMS)
def test_programs(ranks, name):
    dtype = "float32"
    got = ranks(4).run("tests.parallel.jobs:program", name, dtype, "llvm")
    fun = jobs.PROGRAMS[name]
    mapped = fg.vmap(fg.vmap(fun, axis_name="j"), axis_name="i")(fnp.asarray(jobs.lanes(dtype)))
    for i, want in enumerate(mapped):
        want = np.asarray(want).reshape(4, *want.shape[2:])
        np.testing.assert_allclose(np.stack([g[i] for g in got]), want, rtol=1e-5, atol=1e-4)


def test_programs_op_by_op(ranks):
    native = ranks(4).run("tests.parallel.jobs:program", "loops", "float64", "llvm")
    plain = ranks(4).run("tests.parallel.jobs:program", "loops", "float64", "numpy")
    for a, b in zip(native, plain, strict=True):
        for x, y in zip(a, b, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-12)


def test_ranks_that_disagree_all_learn_it(ranks):
    pool = ranks(4)
    for text in pool.run("tests.parallel.jobs:disagree"):
        here = r"rank 0: #(\d+) all_reduce sum float32\[3\]; rank 1: #\1 all_gather float32\[3\]; "
        assert re.search(here, text), text
    pool.stop()


def test_a_failed_job_tells_why_and_the_pool_goes_on(ranks):
    pool = ranks(2)
    with pytest.raises(RankError, match="rank 1:(.|\n)*as the test wants it"):
        pool.run("tests.parallel.jobs:raises_on", 1)
    with pytest.raises(RankError, match="has ended"):
        pool.run("tests.parallel.jobs:dies_on", 1)
    assert len(pool.run("tests.parallel.jobs:where")) == 2


def test_groups():
    assert mpi.groups_of((2, 3), [0]) == [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1)]
    assert mpi.groups_of((2, 2), [1, 0]) == [(0, 0), (0, 2), (0, 1), (0, 3)]


def test_axes_that_are_none():
    with pytest.raises(ValueError, match="the mesh has the axes"):
        mpi.communicator({"a": 1}, ("b",))


def run_python(code, *launcher, **env):
    command = [*launcher, sys.executable, "-c", code]
    return subprocess.run(command, env=environment(**env), capture_output=True, text=True,
                          timeout=240, check=False)  # fmt: skip


def test_a_launcher_of_another_mpi_is_named(ranks):
    code = "from funcgrad.parallel.communicators import mpi; mpi.mpi()"
    run = run_python(code, OMPI_COMM_WORLD_SIZE="4", OMPI_COMM_WORLD_RANK="0")
    assert "the launcher started 4 ranks (OMPI_COMM_WORLD_SIZE), but mpi4py sees 1" in run.stderr


def test_a_missing_mpi4py_says_what_to_install():
    code = (
        "import sys; sys.modules['mpi4py'] = None\n"
        "from funcgrad.parallel.communicators import mpi; mpi.communicator({'i': 2}, ('i',))"
    )
    run = run_python(code)
    assert "ranks need mpi4py and an MPI library: pip install 'funcgrad[mpi]'" in run.stderr


def test_without_mpi_a_launched_process_is_on_its_own(ranks):
    """The import says nothing; who needs the ranks learns why there are none."""
    code = (
        "import sys; sys.modules['mpi4py'] = None\n"
        "import funcgrad as fg, numpy as np\n"
        "print(fg.devices()[1], fg.jit(lambda x: x + 1)(np.ones(())))\n"
        "from funcgrad.parallel.communicators import mpi; mpi.world()"
    )
    run = run_python(code, PMI_SIZE="2", PMI_RANK="0")
    assert run.stdout == "Device(id=1, process_index=1, kind='rank') 2.0\n"
    assert "ranks need mpi4py and an MPI library" in run.stderr


def test_nothing_is_left_in_shared_memory(ranks):
    code = (
        "import os, signal\n"
        "from funcgrad.parallel.communicators import mpi\n"
        "w = mpi.world(); mpi.communicator({'i': 2}, ('i',)).barrier()\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    traces = Traces()
    run_python(code, mpiexec(), "-n", "2")
    assert not traces.left()


def test_nothing_is_left_by_ranks_that_only_save(ranks, tmp_path):
    code = (
        "import os, signal\n"
        "from funcgrad.io.checkpoints import Checkpointer\n"
        f"Checkpointer({str(tmp_path)!r})\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    traces = Traces()
    run_python(code, mpiexec(), "-n", "2")
    assert not traces.left()
