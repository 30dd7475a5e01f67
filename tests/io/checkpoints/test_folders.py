"""A save may end at any moment: the checkpoint before it, or the new one, is whole and is found."""

import os
import resource
import signal
import sys
import threading
import time

import numpy as np
import pytest

import funcgrad.numpy as fnp
from funcgrad.errors import CheckpointError
from funcgrad.io.checkpoints import folders
from funcgrad.io.checkpoints import saving as checkpoint_save
from funcgrad.io.checkpoints.checkpoint import Checkpointer, contents, load, save

# From 3.12 on Python warns of a fork beside threads, of which BLAS has some; no child calls it.
pytestmark = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")

DISK_EVENTS = ("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "fcntl.flock")


def tree_at(step, size=500):
    return {"step": step, "x": np.full(size, float(step)), "y": np.arange(size) + step}


def in_child(work):
    """Run work() in a forked process; how it ended: an exit code, or minus a signal."""
    pid = os.fork()
    if not pid:
        try:
            work()
            os._exit(0)
        except BaseException:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def die_at(n, folder):
    """From now on, kill this process before its event number n that changes a folder."""
    seen = 0

    def hook(event, args):
        nonlocal seen
        if event in DISK_EVENTS and (event == "fcntl.flock" or str(folder) in str(args[0])):
            seen += 1
            if seen >= n:  # threads may count at once
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def assert_whole(found):
    assert_equal = np.testing.assert_array_equal
    for k, v in tree_at(found["step"]).items():
        assert_equal(found[k], v)


def leftovers(folder):
    """What is there beside complete checkpoints."""
    return [p.name for p in folder.iterdir() if "." in p.name]


def test_killed_at_every_step_of_replacing_a_checkpoint(tmp_path):
    for n in range(1, 100):
        folder = tmp_path / str(n)
        path = folder / "c"
        save(path, tree_at(1))

        def work(n=n, folder=folder, path=path):
            die_at(n, folder)
            save(path, tree_at(2))

        ended = in_child(work)
        assert ended in (0, -signal.SIGKILL)
        found = load(path, tree_at(0))  # as it lies there
        assert found["step"] in (1, 2)
        assert_whole(found)
        folders.sweep(folder, "c")
        after = load(path, tree_at(0))
        assert after["step"] == found["step"]
        assert_whole(after)
        assert not leftovers(folder)
        if ended == 0:
            break
    assert n > 20
    assert load(path, tree_at(0))["step"] == 2


def test_killed_at_every_step_of_a_run(tmp_path):
    for n in range(1, 1000, 2):
        folder = tmp_path / str(n)
        folder.mkdir()

        def work(n=n, folder=folder):
            die_at(n, folder)
            with Checkpointer(folder, keep=1) as c:
                for step in (1, 2, 3):
                    c.save(step, tree_at(step))

        ended = in_child(work)
        before = [p.name for p in folder.iterdir()]
        c = Checkpointer(folder, keep=1)
        assert not leftovers(folder), before
        if c.latest() is not None:
            assert_whole(c.restore(tree_at(0)))
        if ended == 0:
            break
    assert n > 40
    assert c.steps() == [3]


def test_killed_at_random_moments(tmp_path, rng):
    """A writer that says which steps are complete is killed while it writes the next ones."""
    for i in range(20):
        folder = tmp_path / str(i)
        reader, writer = os.pipe()
        pid = os.fork()
        if not pid:
            c = Checkpointer(folder, keep=2)
            for step in range(10_000):
                c.save(step, tree_at(step, 100_000))
                c.wait()
                os.write(writer, b"%d\n" % step)
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as said:
            said.readline()
            time.sleep(rng.uniform(0, 0.03))
            os.kill(pid, signal.SIGKILL)
            last = int((["0", *said.read().split()])[-1])
        os.waitpid(pid, 0)
        c = Checkpointer(folder)
        assert c.latest() in (last, last + 1)
        assert not leftovers(folder)
        found = c.restore(tree_at(0, 100_000))
        assert found["step"] == c.latest()
        assert np.array_equal(found["y"], np.arange(100_000) + c.latest())


def test_sweeps_and_saves_at_once(tmp_path):
    """A sweep may come before a new folder has its lock; the save begins again."""
    done = threading.Event()

    def clean():
        while not done.is_set():
            folders.sweep(tmp_path)

    thread = threading.Thread(target=clean)
    thread.start()
    with Checkpointer(tmp_path) as c:
        for step in range(30):
            c.save(step, tree_at(step))
    done.set()
    thread.join()
    assert c.steps() == [27, 28, 29]
    assert not leftovers(tmp_path)


def test_live_saves_and_strange_names_are_left_alone(tmp_path, monkeypatch):
    begun, go = threading.Event(), threading.Event()
    write = checkpoint_save.write_shard

    def late(*args):
        begun.set()
        assert go.wait(240)
        return write(*args)

    names = ["step_000001.tmp", "other.tmp-" + "0" * 32, "step_1.dead-x", "notes.old-1"]
    for name in names:
        (tmp_path / name).mkdir()
    monkeypatch.setattr(checkpoint_save, "write_shard", late)
    first = Checkpointer(tmp_path)
    first.save(1, tree_at(1))
    assert begun.wait(240)
    second = Checkpointer(tmp_path)
    assert second.latest() is None
    go.set()
    first.wait()
    assert second.latest() == 1
    assert all((tmp_path / name).exists() for name in names)


def test_a_disk_that_is_full(tmp_path):
    """Stood in for by a limit of the size of files."""
    c = Checkpointer(tmp_path)
    c.save(1, tree_at(1))
    c.wait()
    _, hard = limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
        c.save(2, {"x": fnp.ones(1 << 20)})
        with pytest.raises(CheckpointError, match="step_000002 failed: .*File too large"):
            c.wait()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [p.name for p in tmp_path.iterdir()] == ["step_000001"]
    assert_whole(c.restore(tree_at(0)))
    c.save(2, tree_at(2))
    c.wait()
    assert c.latest() == 2


def test_a_folder_that_can_not_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="c.* Not a directory"):
        save(tmp_path / "file" / "c", 1)


def test_a_file_that_is_gone_while_it_is_read(tmp_path):
    folder = save(tmp_path / "c", tree_at(1)).wait()
    assert contents(tmp_path / "c").leaves["['step']"] == 1
    (folder / "shard_00000.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"can't be opened: No such file"):
        load(folder, tree_at(0))


def test_a_program_that_ends_completes_its_save(tmp_path):
    def work():
        save(tmp_path / "c", tree_at(1), asynchronous=True)
        for thread in threading.enumerate():  # what Python does when it ends
            if thread is not threading.current_thread() and not thread.daemon:
                thread.join()

    assert in_child(work) == 0
    assert_whole(load(tmp_path / "c", tree_at(0)))
