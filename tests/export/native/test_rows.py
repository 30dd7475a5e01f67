"""Libraries for any number of rows: one program's code, and the results of all sizes."""

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import export, nn
from funcgrad.errors import ExportError
from tests.export.native.test_cpp import STRICT

CXX = shutil.which("g++") or shutil.which("clang++")
W = np.linspace(-1, 1, 64, dtype="float32").reshape(16, 4)
X = np.random.default_rng(0).normal(size=(200, 16)).astype("float32")
TABLE = np.arange(10, dtype="float32")


def model(x, scale):
    """Functions of many kinds, and a result without rows."""
    chosen = fnp.asarray(TABLE)[fnp.argmax(x, axis=1) % 10]
    return nn.softmax(nn.gelu(x @ W) * scale), {"mean": fnp.mean(x, axis=1), "row": chosen}, -scale


@pytest.fixture(scope="module")
def exported():
    shape = export.symbolic_shape("b, 16", constraints=["b <= 300"])
    x, scale = fg.ShapeDtypeStruct(shape, "float32"), fg.ShapeDtypeStruct((), "float32")
    return export.deserialize(export.export(fg.jit(model))(x, scale).serialize())


@pytest.mark.skipif(CXX is None, reason="needs a C++ compiler")
def test_one_library_computes_any_number_of_rows(tmp_path, exported):
    made = export.aot(exported, tmp_path, name="net")
    assert made.arena_bytes < 1 << 20  # a run was measured, whatever sizes are allowed
    subprocess.run(
        [CXX, *STRICT, "-fsanitize=address,undefined", "-fno-sanitize-recover=all",
         str(Path(__file__).with_name("rows.cpp")), f"-I{tmp_path}", str(made.library),
         f"-Wl,-rpath,{tmp_path}", "-o", str(tmp_path / "main")], check=True,
    )  # fmt: skip
    (tmp_path / "x.bin").write_bytes(X.tobytes())
    done = subprocess.run([tmp_path / "main", tmp_path], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines() == [
        "net: there is no size of the name",
        "net: the size has to be at least 1, and below 2^40",
        "net: net_set_size has to say what a size is",
        "net: the size has to be: b <= 300",
    ]
    for rows in (3, 71, 73, 1, 200):
        wanted = fg.tree.leaves(fg.jit(model)(X[:rows], np.float32(2)))
        for i, want in enumerate(map(np.asarray, wanted)):
            got = np.fromfile(tmp_path / f"{rows}_{i}.bin", want.dtype).reshape(want.shape)
            np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-7, err_msg=f"{rows} {i}")


def test_rows_that_depend_on_each_other_are_refused_before_anything_is_written(tmp_path):
    x = fg.ShapeDtypeStruct(export.symbolic_shape("b, 16"), "float32")
    e = export.export(fg.jit(lambda x: x - fnp.mean(x, 0)))(x)
    words = r"export.aot of .*rows depend on each other.* at test_rows.py:\d+ .*specialize"
    with pytest.raises(ExportError, match=words):
        export.aot(e, tmp_path, name="net")
    assert list(tmp_path.iterdir()) == []
