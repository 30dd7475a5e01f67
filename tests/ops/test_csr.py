"""What is peculiar to products of matrices stored by rows: their kernel, and wrong operands."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.errors import ArgumentError, DTypeError, ShapeError
from funcgrad.ops.csr import NAN, csr_matmul_p, rows_of


def operands(rng, rows, columns, width, dtype="float32"):
    counts = rng.integers(0, 12, rows)
    ends = np.cumsum(counts).astype(np.int32)
    indices = rng.integers(-1, columns + 1, ends[-1]).astype(np.int32)
    data, dense = (rng.standard_normal(s).astype(dtype) for s in (len(indices), (columns, width)))
    given = data, indices, ends - counts.astype(np.int32), ends, dense
    return [fnp.array(x) for x in given]


@pytest.mark.parametrize("width", [1, 2, 7, 64, 300])
def test_compiled_as_it_means(width, rng):
    given = operands(rng, 200, 50, width)
    compiled = fg.jit(csr_matmul_p.bind)
    np.testing.assert_allclose(compiled(*given), csr_matmul_p.bind(*given), rtol=1e-4, atol=1e-5)
    assert "csr_matmul" in compiled.lower(*given).as_text("loops")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int8"])
def test_narrow_rows_are_read_as_they_are(dtype, rng):
    data, *places, dense = operands(rng, 40, 9, 5)
    narrow = (dense * 9).astype(dtype)
    want = csr_matmul_p.bind(data, *places, narrow.astype("float32"))
    compiled = fg.jit(csr_matmul_p.bind)
    for f in (csr_matmul_p.bind, compiled):
        out = f(data, *places, narrow)
        assert out.dtype == np.float32
        np.testing.assert_allclose(out, want, rtol=1e-4, atol=1e-4)
    assert "csr_matmul" in compiled.lower(data, *places, narrow).as_text("loops")


def test_derivative_of_narrow_rows(rng):
    data, *places, dense = operands(rng, 6, 9, 5)
    loss = lambda data, dense: fnp.sum(csr_matmul_p.bind(data, *places, dense) ** 2)
    narrow = dense.astype("bfloat16")
    got = fg.jit(fg.grad(loss, (0, 1)))(data, narrow)
    want = fg.grad(loss, (0, 1))(data, narrow.astype("float32"))
    assert [g.dtype.name for g in got] == ["float32", "bfloat16"]
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g.astype("float32"), w, rtol=2e-2, atol=2e-2)


def test_what_it_reads_may_be_computed_there(rng):
    data, indices, starts, ends, dense = operands(rng, 20, 8, 3)
    f = lambda data, dense: csr_matmul_p.bind(data * 2, indices, starts, ends, fnp.sin(dense)) + 1
    np.testing.assert_allclose(fg.jit(f)(data, dense), f(data, dense), rtol=1e-5, atol=1e-5)


def test_on_threads_as_on_one(rng):
    given = operands(rng, 3000, 500, 1)
    compiled, before = fg.jit(csr_matmul_p.bind), fg.num_threads()
    try:
        fg.set_num_threads(1)
        one = np.asarray(compiled(*given))
        fg.set_num_threads(3)
        np.testing.assert_array_equal(compiled(*given), one)
    finally:
        fg.set_num_threads(before)


def test_rows_of_entries():
    starts, ends = fnp.array([0, 0, 2, 5]), fnp.array([0, 2, 3, 6])
    assert rows_of(starts, ends, 7).tolist() == [1, 1, 2, 4, 4, 3, 4]
    assert rows_of(starts[:0], ends[:0], 2).tolist() == [0, 0]
    assert rows_of(starts, ends, 0).tolist() == []


def test_wrong_operands():
    data, indices, ends, dense = fnp.ones(2), fnp.array([0, 1]), fnp.array([2]), fnp.ones((2, 1))
    with pytest.raises(ShapeError, match=r"csr_matmul: need data \(nse,\), indices \(nse,\)"):
        csr_matmul_p.bind(data, indices, ends, ends, fnp.ones(2))
    with pytest.raises(DTypeError, match="csr_matmul: indices must be integers"):
        csr_matmul_p.bind(data, data, ends, ends, dense)
    with pytest.raises(DTypeError, match="numbers of one dtype"):
        csr_matmul_p.bind(data, indices, ends, ends, dense.astype("float64"))


def test_rows_of_many_entries_with_some_outside(rng):
    """Compiled, entries are taken a few at a time, as long as all of them are there."""
    counts = np.array([0, 1, 3, 4, 5, 8, 11, 23], "int32")
    ends = np.cumsum(counts).astype("int32")
    columns = rng.integers(0, 9, ends[-1]).astype("int32")
    columns[[2, 9, 21, 30, 54]] = [-1, 9, 99, -7, 2**31 - 1]
    data = rng.normal(size=len(columns)).astype("float32")
    dense = rng.normal(size=(9, 24)).astype("float32")
    args = data, columns, ends - counts, ends, dense
    want = csr_matmul_p.bind(*args)
    np.testing.assert_allclose(fg.jit(csr_matmul_p.bind)(*args), want, rtol=1e-5, atol=1e-6)
    few = data[:3], columns[:3], (ends - counts)[:3], ends[:3], dense
    np.testing.assert_allclose(
        fg.jit(csr_matmul_p.bind)(*few), csr_matmul_p.bind(*few), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("width", [1, 3])
def test_rows_with_missing_columns_are_nan(width, rng):
    data, *places, dense = operands(rng, 60, 9, width)
    f = lambda data, dense: csr_matmul_p.bind(data, *places, dense, missing=NAN)
    kept = np.asarray(csr_matmul_p.bind(data, *places, dense))
    indices, starts, ends = map(np.asarray, places)
    lost = [
        ((indices[a:b] < 0) | (indices[a:b] > 8)).any() for a, b in zip(starts, ends, strict=True)
    ]
    assert 0 < sum(lost) < len(lost)
    want = np.where(np.array(lost)[:, None], np.nan, kept)
    several = fg.vmap(f, in_axes=(0, None))(fnp.stack([data, data]), dense)
    formula = csr_matmul_p.formula(data, *places, dense, missing=NAN)
    for out in (f(data, dense), fg.jit(f)(data, dense), several[1], formula):
        np.testing.assert_allclose(out, want, rtol=1e-4, atol=1e-5)
    # Derivatives pass over what is missing.
    loss = lambda missing: lambda x: fnp.sum(csr_matmul_p.bind(data, *places, x, **missing))
    for grad in (fg.grad, lambda f: fg.jit(fg.grad(f))):
        both = [grad(loss(missing))(dense) for missing in ({"missing": NAN}, {})]
        np.testing.assert_allclose(*both, rtol=1e-5)
    with pytest.raises(ArgumentError, match='missing must be "drop", or of floats "nan"'):
        csr_matmul_p.bind(data, *places, dense, missing="zero")


def test_products_that_do_not_need_each_other_are_one_step(rng):
    """Of other sizes, dtypes and factors, with indices that lie in one array; what needs one of
    them comes after."""
    indices = fnp.array(rng.integers(-1, 10, 90), "int32")
    ends = fnp.array(np.cumsum(rng.integers(0, 5, 17)), "int32")
    starts = fnp.concatenate([fnp.zeros(1, "int32"), ends[:-1]])
    narrow = fnp.array(rng.normal(size=(9, 7)), "bfloat16")
    codes = fnp.array(rng.integers(-9, 9, (6, 21)), "int8")
    wide = fnp.array(rng.normal(size=(10, 130)), "float32")
    data = fnp.array(rng.normal(size=40), "float32")

    def f(indices, data, wide):
        a = csr_matmul_p.bind(fnp.ones(30), indices[:30], starts, ends, narrow, missing=NAN)
        b = csr_matmul_p.bind(data, indices[50:], starts, ends, codes)
        c = csr_matmul_p.bind(fnp.ones(20), indices[30:50], starts, ends, wide + 1)
        long = indices[30:60].astype("int64"), starts.astype("int64"), ends.astype("int64")
        d = csr_matmul_p.bind(fnp.ones(30, "float64"), *long, wide.astype("float64"))
        return a, b, c, d, csr_matmul_p.bind(data, indices[50:], starts, ends, c)

    got, want = fg.jit(f)(indices, data, wide), f(indices, data, wide)
    for x, y in zip(got, want, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4)
    text = fg.jit(f).lower(indices, data, wide).as_text("loops")
    assert text.count("host csr_matmuls") == 3


@pytest.mark.parametrize("bound", ["int32", "int64"])
def test_a_row_of_very_many_entries_is_shared_among_threads(bound, rng):
    """It is summed in parts, which are added in order: the same on any number of threads."""
    counts = np.array([3, 5000, 0, 4097, 70_001, 4096, 2], bound)
    ends = np.cumsum(counts).astype(bound)
    indices = rng.integers(0, 40, ends[-1]).astype("int32")
    lost = indices.copy()
    lost[3 + 4321] = 40  # in the row of 5000
    data = rng.normal(size=len(indices)).astype("float32")
    dense = rng.normal(size=(40, 21)).astype("float32")
    bounds = ends - counts, ends

    def f(data, indices, lost, bounds, dense):
        ones = fnp.ones(data.shape)
        a = csr_matmul_p.bind(data, indices, *bounds, dense)
        b = csr_matmul_p.bind(ones, lost, *bounds, dense.astype("bfloat16"), missing=NAN)
        return a, b, csr_matmul_p.bind(ones, lost, *bounds, dense)

    given = data, indices, lost, bounds, dense
    compiled, before, found = fg.jit(f), fg.num_threads(), {}
    try:
        for threads in (1, 3):
            fg.set_num_threads(threads)
            found[threads] = [np.asarray(x) for x in compiled(*given)]
    finally:
        fg.set_num_threads(before)
    narrow = dense.astype("bfloat16").astype("float64")
    for row, (a, b) in enumerate(zip(*bounds, strict=True)):
        inside = lost[a:b][lost[a:b] < 40]
        want = [
            data[a:b].astype("float64") @ dense[indices[a:b]],
            narrow[inside].sum(0) + (np.nan if row == 1 else 0),
            dense[inside].sum(0, dtype="float64"),
        ]
        for got, w in zip(found[1], want, strict=True):
            np.testing.assert_allclose(got[row], w, rtol=1e-4, atol=1e-2)
    for a, b in zip(found[1], found[3], strict=True):
        np.testing.assert_array_equal(a, b)
    assert compiled.lower(*given).as_text("loops").count("host csr_matmuls") == 1
