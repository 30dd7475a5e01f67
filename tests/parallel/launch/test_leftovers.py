"""Names in /dev/shm: only those that came with a job, and that nobody holds, are swept."""

import mmap
import os
import secrets
import subprocess
import sys

import pytest

from funcgrad.parallel.launch import leftovers
from funcgrad.parallel.launch.leftovers import names, processes, sweep, unheld

pytestmark = pytest.mark.skipif(not leftovers.FOLDER.is_dir(), reason="no /dev/shm here")


@pytest.fixture
def make(tmp_path, monkeypatch):
    """Makes a file in what stands for /dev/shm: there other jobs' supervisors would sweep it, and
    tests of other jobs take it for something that these have left."""
    monkeypatch.setattr(leftovers, "FOLDER", tmp_path)

    def named(pattern="mpich_shm_{}_0"):
        path = tmp_path / pattern.format(secrets.token_hex(8))
        path.write_bytes(bytes(4096))
        return path

    return named


def test_what_a_dead_job_leaves_is_swept(make):
    old = make()
    before = names(), processes()
    new, other = make(), make("ucx_shm_posix_{}")
    assert {new.name, other.name} <= set(sweep(*before))
    assert not new.exists()
    assert not other.exists()
    assert old.exists()


def test_only_names_of_mpi_libraries_are(make):
    before = names(), processes()
    mine = [make("something_{}"), make("mpich_shm_{}"), make("mpich_shm_{}_0.bak")]
    assert not {p.name for p in mine} & set(sweep(*before))
    assert all(p.exists() for p in mine)


def test_files_of_other_users_are_not_ours(make, monkeypatch):
    path = make()
    monkeypatch.setattr(leftovers.os, "geteuid", lambda: os.getuid() + 1)
    assert path.name not in names()


HOLD = """
import mmap, os, sys
f = open(sys.argv[1], "r+b")
if sys.argv[2] == "map":
    m = mmap.mmap(f.fileno(), 4096)
    f.close()
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("how", ["open", "map"])
def test_what_a_living_process_holds_stays(make, how, monkeypatch):
    monkeypatch.setattr(leftovers, "PATIENCE", 0.3)
    before = names(), processes()
    path = make()
    command = [sys.executable, "-c", HOLD, str(path), how]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"held\n"
        assert path.name not in sweep(*before)
        assert path.exists()
        holder.kill()
    assert path.name in sweep(*before)
    assert not path.exists()


def test_what_this_process_holds(make):
    path = make()
    older = processes() - {str(os.getpid())}
    assert unheld({path.name}, older) == {path.name}
    with open(path, "r+b") as f, mmap.mmap(f.fileno(), 4096):
        assert not unheld({path.name}, older)


def test_nothing_is_swept_where_processes_cannot_be_looked_into(make, monkeypatch):
    def denied(process):
        raise PermissionError(process)

    monkeypatch.setattr(leftovers, "_held_by", denied)
    older = processes()
    monkeypatch.setattr(leftovers, "processes", lambda: older)  # others begin at any moment
    name = make().name
    assert not unheld({name})
    assert unheld({name}, older) == {name}


def test_there_is_a_second_look_however_long_the_first_one_takes(make, monkeypatch):
    monkeypatch.setattr(leftovers, "PATIENCE", -1.0)
    before = names(), processes()
    path = make()
    assert sweep(*before) == [path.name]
