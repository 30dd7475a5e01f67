import ctypes
import os
import stat
import subprocess
import sys

import pytest

from funcgrad.backends.llvm.native import objects
from funcgrad.backends.llvm.native.engine import Engine
from funcgrad.backends.llvm.native.target import Target


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FUNCGRAD_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_round_trip_and_damage(folder):
    assert objects.load("k") is None
    objects.save("k", {"names": ["f"], "at": 12}, b"code\nmore")
    assert objects.load("k") == ({"names": ["f"], "at": 12}, b"code\nmore")
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
    assert stat.S_IMODE(os.stat(folder / "k").st_mode) == 0o600
    whole = (folder / "k").read_bytes()
    (folder / "l").write_bytes(whole)
    assert objects.load("l") is None, "a file of another name"
    for cut in range(len(whole)):
        (folder / "k").write_bytes(whole[:cut])
        assert objects.load("k") is None
    for damaged in (
        b"\n" + whole,
        whole + b"\n",
        whole.replace(b"code", b"kode"),
        whole.replace(b"names", b"games"),
        b"{}\n" + whole.split(b"\n", 1)[1],
    ):
        (folder / "k").write_bytes(damaged)
        assert objects.load("k") is None


def test_many_write_one_file(folder):
    """Processes that write and read the same entry see all of it or none of it."""
    program = (
        "from funcgrad.backends.llvm.native import objects\n"
        "for i in range(200):\n"
        "    objects.save('k', {'n': 1}, b'c' * 10_000)\n"
        "    assert objects.load('k') == ({'n': 1}, b'c' * 10_000)\n"
    )
    runs = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(3)]
    assert [run.wait() for run in runs] == [0, 0, 0]
    assert [path.name for path in folder.iterdir()] == ["k"]


MAKERS = """
import sys, time
from funcgrad.backends.llvm.native import objects
with objects.first('k'):
    if objects.load('k') is None:
        print('made', flush=True)
        time.sleep(float(sys.argv[1]))
        objects.save('k', {}, b'code')
"""
locks = pytest.mark.skipif(objects.fcntl is None, reason="has no locks of files")


def makers(count, seconds):
    command = [sys.executable, "-c", MAKERS, str(seconds)]
    return [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(count)]


@locks
def test_one_process_makes_what_all_need(folder):
    runs = makers(3, 1.0)
    assert sorted(run.communicate()[0] for run in runs) == ["", "", "made\n"]
    assert [path.name for path in folder.iterdir()] == ["k"]


@locks
def test_who_dies_holds_nobody_up(folder):
    (dead,) = makers(1, 60.0)
    assert dead.stdout.readline() == "made\n"
    dead.kill()
    dead.communicate()
    assert makers(1, 0.0)[0].communicate()[0] == "made\n"
    assert objects.load("k") is not None


@locks
def test_who_takes_too_long_holds_nobody_up(folder, monkeypatch):
    monkeypatch.setattr(objects, "_PATIENCE", 0.05)
    with objects.first("k"), objects.first("k"), objects.first("l"):
        objects.save("k", {}, b"code")
    assert [path.name for path in folder.iterdir()] == ["k"]


@pytest.mark.skipif(sys.platform == "win32", reason="has no owners and modes")
def test_directory_open_to_others_is_not_used(folder):
    objects.save("k", {}, b"code")
    folder.chmod(0o777)
    assert objects.load("k") is None
    objects.save("l", {}, b"code")
    assert not (folder / "l").exists()


def test_can_be_turned_off_and_survives_a_bad_place(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    for place in ("", str(tmp_path / "file" / "cache")):
        monkeypatch.setenv("FUNCGRAD_CACHE_DIR", place)
        objects.save("k", {}, b"code")
        assert objects.load("k") is None


@pytest.mark.parametrize("variable", ["FUNCGRAD_CACHE_DIR", "XDG_CACHE_HOME", "HOME"])
@pytest.mark.parametrize("home", ["~", "~nobody-of-this-name", None])
def test_a_home_is_looked_up_and_no_folder_is_called_so(monkeypatch, tmp_path, variable, home):
    (tmp_path / "home").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for name in ("FUNCGRAD_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    if variable == "HOME":
        monkeypatch.setenv("HOME", home or str(tmp_path / "home"))
    else:
        monkeypatch.setenv(variable, f"{home or tmp_path / 'home'}/a folder")
    objects.save("k", {}, b"code")
    known = home is None or (home == "~" and variable != "HOME")
    assert (objects.load("k") is not None) == known
    assert len(list((tmp_path / "home").rglob("k"))) == known
    assert not list((tmp_path / "here").iterdir())


def test_what_was_used_longest_ago_goes(folder, monkeypatch):
    monkeypatch.setattr(objects, "MOST_FILES", 8)
    for i in range(9):
        objects.save(f"k{i}", {}, b"")
        os.utime(folder / f"k{i}", (i, i))
    objects.save("last", {}, b"")
    assert len(list(folder.iterdir())) <= 8
    assert objects.load("last")
    assert objects.load("k0") is None


def test_what_is_read_stays(folder, monkeypatch):
    monkeypatch.setattr(objects, "MOST_FILES", 8)
    for i in range(8):
        objects.save(f"k{i}", {"number": i}, b"code")
        os.utime(folder / f"k{i}", (i, i))
    assert objects.load("k0") == ({"number": 0}, b"code")
    recent = (folder / "k0").stat().st_mtime_ns
    assert objects.load("k0")
    assert (folder / "k0").stat().st_mtime_ns == recent
    objects.save("last", {}, b"")
    assert objects.load("k0")
    assert objects.load("last")
    assert objects.load("k1") is None


def test_engine_takes_objects_from_disk(folder):
    def write():
        calls.append(1)
        return "define i64 @answer() { ret i64 42 }"

    calls = []
    for _ in range(2):
        library = Engine(Target.host()).compile(write, key="answer 1")
        assert library.address("answer")
    assert calls == [1]
    assert "ret i64 42" in library.llvm_text
    Engine(Target.host()).compile(write, key="answer 2")
    Engine(Target.host().generic()).compile(write, key="answer 2")
    assert len(calls) == 4


def test_code_calls_the_newest_of_what_it_needs(folder):
    """A text is the same when a routine that it calls by name has become another one."""
    text = "declare i32 @answer() define i32 @ask() { %x = call i32 @answer() ret i32 %x }"

    def ask(library):
        return ctypes.CFUNCTYPE(ctypes.c_int32)(library.address("ask"))()

    for value in (1, 2):
        target = Engine(Target.host())
        answer = target.compile(f"define i32 @answer() {{ ret i32 {value} }}")
        target.bind("answer", answer)
        library = target.compile(text, links={})
        assert ask(library) == value
        again = Engine(Target.host()).load(library.name)
        assert ask(again) == value
        assert {x.name for x in again.uses} == {answer.name}

        # The same of what is asked for only when it is needed.
        lazy = Engine(Target.host())
        lazy.provide("answer", lambda lazy=lazy, value=value: lazy.compile(
            f"define i32 @answer() {{ ret i32 {value} }}"
        ))  # fmt: skip
        assert ask(lazy.compile(f"{text} ; lazy", links={})) == value
