"""Libraries for several levels of x86-64: the highest that is reached, or one by name."""

import ctypes
import platform
import shutil
import subprocess

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import export, nn
from funcgrad.backends.llvm.native.target import LEVELS, Target
from funcgrad.errors import ArgumentError
from tests.export.native.test_library import CC, aligned

pytestmark = pytest.mark.skipif(
    CC is None or platform.machine() != "x86_64" or shutil.which("ld") is None,
    reason="needs x86-64 and a C compiler",
)
X = np.linspace(-2, 2, 96, dtype="float32").reshape(6, 16)
OK, BAD_ARGUMENT, _, _, BAD_PROCESSOR = range(5)


def fun(x):
    # (Conversions to float16 are calls to functions that all levels have, in their own ways.)
    return nn.softmax(x), x.astype("float64").astype("float16"), fnp.argsort(x.reshape(-1))


@pytest.fixture(scope="module")
def exported():
    return export.export(fg.jit(fun))(X)


@pytest.fixture(scope="module")
def library(exported, tmp_path_factory):
    folder = tmp_path_factory.mktemp("lib")
    made = export.aot(exported, folder, name="net", target="x86-64-v4+v2+v3", kind="static")
    loaded = folder / "libnet.so"
    subprocess.run([CC, "-shared", "-o", loaded, "-Wl,--whole-archive", made.library,
                    "-Wl,--no-whole-archive", "-lm"], check=True)  # fmt: skip
    return ctypes.CDLL(str(loaded)), made.arena_bytes


def reached():
    """The levels of the library that this processor reaches."""
    for level in ("x86-64-v2", "x86-64-v3", "x86-64-v4"):
        try:
            Target.named(level)
        except ValueError:
            return
        yield level


def initialized(lib):
    lib.net_level.restype = lib.net_message.restype = ctypes.c_char_p
    context = ctypes.create_string_buffer(256)
    return context, lib.net_init(context, ctypes.c_size_t(256), None, ctypes.c_size_t(0))


def test_the_highest_level_is_chosen(library):
    context, status = initialized(library[0])
    assert status == OK
    assert library[0].net_level(context).decode() == list(reached())[-1]


def test_all_levels_compute_the_same(library, exported):
    lib, arena_bytes = library
    context, _ = initialized(lib)
    kept, arena = aligned(arena_bytes)
    for level in reached():
        assert lib.net_set_level(context, level.encode()) == OK
        assert lib.net_level(context).decode() == level
        outs = [np.zeros(a.shape, a.dtype) for a in exported.out_avals]
        status = lib.net_run(
            context, (ctypes.c_void_p * 1)(X.ctypes.data),
            (ctypes.c_void_p * 3)(*(y.ctypes.data for y in outs)), ctypes.c_void_p(arena),
            ctypes.c_size_t(arena_bytes),
        )  # fmt: skip
        assert status == OK, lib.net_message(context)
        for got, want in zip(outs, exported.call(X), strict=True):
            rtol = 2e-3 if got.dtype == "float16" else 1e-6
            np.testing.assert_allclose(got, np.asarray(want), rtol=rtol, atol=rtol, err_msg=level)
    del kept


def test_levels_that_are_not_there_are_statuses(library):
    lib, _ = library
    context, _ = initialized(lib)
    assert lib.net_set_level(context, b"x86-64-v9") == BAD_ARGUMENT
    assert lib.net_message(context) == b"net: the library has no code for the level"
    assert lib.net_set_level(context, None) == BAD_ARGUMENT
    assert lib.net_set_level(ctypes.create_string_buffer(256), b"x86-64-v2") == BAD_ARGUMENT
    if "x86-64-v4" not in reached():
        assert lib.net_set_level(context, b"x86-64-v4") == BAD_PROCESSOR
        assert lib.net_level(context).decode() == list(reached())[-1]


def test_a_processor_below_all_levels_is_a_status(tmp_path):
    if "x86-64-v4" in reached():
        pytest.skip("this processor reaches all levels")
    made = export.aot(export.export(fg.jit(fnp.negative))(X), tmp_path, name="net",
                      target="x86-64-v4")  # fmt: skip
    lib = ctypes.CDLL(str(made.library))
    context, status = initialized(lib)
    assert status == BAD_PROCESSOR
    assert b"lacks instructions of x86-64-v4" in lib.net_message(context)


@pytest.mark.parametrize("target", ["x86-64-v2+v2", "x86-64-v2+v5", "host+v3", "x86-64-v2+", "+"])
def test_levels_that_nobody_knows(tmp_path, exported, target):
    with pytest.raises(ArgumentError, match="target must be one of .* or some levels of x86-64"):
        export.aot(exported, tmp_path, target=target)


def test_levels_are_ordered():
    assert list(LEVELS) == ["x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4"]
