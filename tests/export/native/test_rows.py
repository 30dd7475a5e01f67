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
    subprocess.run(
        [CXX, *STRICT, "-fsanitize=address,undefined", "-fno-sanitize-recover=all",
         str(Path(__file__).with_name("rows.cpp")), f"-I{tmp_path}", str(made.library),
         f"-Wl,-rpath,{tmp_path}", "-o", str(tmp_path / "main")], check=True,
    )  # fmt: skip
    (tmp_path / "x.bin").write_bytes(X.tobytes())
    done = subprocess.run([tmp_path / "main", tmp_path], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines() == [
        "net: there is no size of the name",
        "net: the size has to be at least 1",
        "net: net_set_size has to say what a size is",
        "net: the size has to be: b <= 300",
    ]
    for rows in (3, 71, 73, 1, 200):
        wanted = fg.tree.leaves(fg.jit(model)(X[:rows], np.float32(2)))
        for i, want in enumerate(map(np.asarray, wanted)):
            got = np.fromfile(tmp_path / f"{rows}_{i}.bin", want.dtype).reshape(want.shape)
            np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-7, err_msg=f"{rows} {i}")


INDEPENDENT = {
    "a sort in rows": lambda x: fnp.sort(x, axis=1),
    "a loop": lambda x: fg.lax.fori_loop(0, 3, lambda i, c: c * 2 + x, x),
    "attention": lambda x: nn.dot_product_attention(*[x.reshape(-1, 4, 2, 2)] * 3),
    "products of matrices": lambda x: x[:, :, None] @ x[:, None],
    "a constant beside": lambda x: fnp.concatenate([x, fnp.ones((x.shape[0], 1))], 1),
}
DEPENDENT = {
    "a sum over rows": (lambda x: fnp.sum(x, 0), r"rows depend .* \(psum\)"),
    "a mean": (lambda x: x - fnp.mean(x, 0), r"rows depend on each other"),
    "numbers of rows": (lambda x: x + fnp.arange(x.shape[0])[:, None], r"\(axis_index\)"),
    "the size": (lambda x: x * x.shape[0], "in a row depends on the size b"),
    "a branch": (lambda x: fg.lax.cond(x.sum() > 0, fnp.sin, fnp.cos, x), "rows depend"),
    "running sums": (lambda x: fnp.cumsum(x, 0), "depend"),
    "the last row": (lambda x: x[-1:] + x, "depend"),
    "rows in another place": (lambda x: x.T, "b isn't the first size of result 0"),
    "all in one": (lambda x: x.reshape(-1), r"b isn't the first size of result 0, f32\[16\*b\]"),
    "a result that reads nothing": (lambda x: fnp.ones(x.shape), "aren't computed row by row"),
}


def exported_at_b(f, spec="b, 16"):
    return export.export(fg.jit(f))(fg.ShapeDtypeStruct(export.symbolic_shape(spec), "float32"))


@pytest.mark.parametrize("case", INDEPENDENT)
def test_functions_whose_rows_are_independent(case):
    e = exported_at_b(INDEPENDENT[case])
    assert e.row_size == "b"
    x = X[:5]
    rows = [np.asarray(e.rows(1).call(x[i : i + 1])) for i in range(5)]
    np.testing.assert_allclose(np.concatenate(rows), e.call(x), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("case", DEPENDENT)
def test_functions_whose_rows_are_not(tmp_path, case):
    f, why = DEPENDENT[case]
    e = exported_at_b(f)
    assert e.row_size is None
    with pytest.raises(ExportError, match=rf"export.aot of .*{why}.*specialize"):
        export.aot(e, tmp_path, name="net")
    assert list(tmp_path.iterdir()) == []


def test_several_names_count_no_rows():
    e = exported_at_b(fnp.sin, "b, n")
    assert e.row_size is None
    with pytest.raises(ExportError, match=r"its sizes have 2 names, \['b', 'n'\]"):
        e.rows(1)
    plain = export.export(fg.jit(fnp.sin))(X)
    assert plain.row_size is None
    assert not plain.is_symbolic
    with pytest.raises(ExportError, match="have 0 names"):
        plain.rows(1)
