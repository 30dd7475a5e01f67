"""The C++ header: the bits of jit, states that go round, and errors that name what was asked for.

And pkg-config, which finds what a program is compiled and linked with.
"""

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import export

CXX = shutil.which("g++") or shutil.which("clang++")
pytestmark = pytest.mark.skipif(CXX is None, reason="needs a C++ compiler")
MAIN = Path(__file__).with_name("main.cpp")
STRICT = ["-std=c++17", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wsign-conversion",
          "-Wshadow", "-Werror"]  # fmt: skip

X, N = np.linspace(-1, 1, 12, dtype="float32").reshape(3, 4), np.arange(3, dtype="int32")


def step(x, n):
    return fnp.sin(x) * 2, (x.T @ n.astype("float32"), n + 1)


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    exported = export.export(fg.jit(step))(X, N)
    return export.aot(exported, tmp_path_factory.mktemp("lib"), name="net")


def run(folder, library, *flags):
    """What the test's program prints."""
    program = folder / "main"
    subprocess.run([CXX, *STRICT, *flags, str(MAIN), f"-I{library.header.parent}",
                    str(library.library), f"-Wl,-rpath,{library.library.parent}", "-o",
                    str(program)], check=True)  # fmt: skip
    (folder / "in0.bin").write_bytes(X.tobytes())
    (folder / "in1.bin").write_bytes(N.tobytes())
    done = subprocess.run([program, folder], check=True, capture_output=True, text=True)
    return done.stdout.splitlines()


def test_a_function_in_cpp(tmp_path, library):
    total, *faults = run(tmp_path, library, "-O1", "-fsanitize=address,undefined")
    wanted = fg.tree.leaves(fg.jit(step)(X, N))
    for i, w in enumerate(map(np.asarray, wanted)):
        assert (tmp_path / f"out0_{i}.bin").read_bytes() == w.tobytes()
    assert float(total) == pytest.approx(float(fg.jit(step)(wanted[0], N)[0].sum()), rel=1e-4)
    assert faults == [
        "1 net: there is no input y",
        "1 net: there is no output 7",
        "1 net: x is of float32, not of float64",
        "1 net: x is of another type than output1",
        "3 net: weights must be the file net.safetensors, aligned to 64 bytes",
    ]


def test_pages_of_16_kilobytes_map_a_library(library):
    if shutil.which("readelf") is None:
        pytest.skip("needs readelf")
    told = subprocess.run(["readelf", "-lW", library.library], check=True, capture_output=True,
                          text=True)  # fmt: skip
    loads = [line.split()[-1] for line in told.stdout.splitlines() if line.split()[:1] == ["LOAD"]]
    assert set(loads) == {"0x4000"}


@pytest.mark.skipif(shutil.which("pkg-config") is None, reason="needs pkg-config")
def test_pkg_config_finds_a_library(library):
    folder = library.header.parent
    done = subprocess.run(["pkg-config", f"--with-path={folder}", "--cflags", "--libs", "net"],
                          check=True, capture_output=True, text=True)  # fmt: skip
    assert done.stdout.split() == [f"-I{folder}", f"-L{folder}", "-lnet"]
