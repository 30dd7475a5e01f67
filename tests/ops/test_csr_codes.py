"""Products with rows of 8 and 4 bits: compiled as they mean, and what they don't take."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.errors import DTypeError, ShapeError
from funcgrad.ops.csr import NAN, csr_matmul_p
from funcgrad.ops.csr_codes import csr_matmul_codes_p


def operands(rng, bits, columns, lines=12):
    counts = rng.integers(0, 9, 40)
    ends = np.cumsum(counts).astype("int32")
    indices = rng.integers(-1, lines + 1, ends[-1]).astype("int32")
    codes = rng.integers(-127, 128, (lines, columns)).astype("int8")
    if bits == 4:
        codes = rng.integers(0, 256, (lines, -(-columns // 2))).astype("uint8")
    data, scales = (rng.normal(size=n).astype("float32") for n in (len(indices), lines))
    return data, indices, ends - counts.astype("int32"), ends, codes, scales


def dense_of(codes, scales, bits, columns):
    if bits == 4:
        codes = np.stack([codes & 15, codes >> 4], axis=2).astype("int8") - 8
        codes = codes.reshape(len(codes), -1)[:, :columns]
    return codes * scales[:, None]


def test_compiled_as_it_means(rng):
    """Several of them, with columns that fill vectors and don't, are one step with others."""
    kinds = [(8, 21), (4, 21), (4, 2), (8, 130), (4, 64)]
    given = [operands(rng, *kind) for kind in kinds]

    def f(given):
        outs = []
        for (data, *rest), (bits, columns) in zip(given, kinds, strict=True):
            few = {"bits": bits, "columns": columns, "missing": NAN}
            for x in (data, fnp.ones(data.shape)):
                outs.append(csr_matmul_codes_p.bind(x, *rest, **few))
        data, *places, codes, _ = given[0]
        return [*outs, csr_matmul_p.bind(data, *places, codes)]

    compiled = fg.jit(f)
    found, meant = compiled(given), f(given)
    for i, (a, b) in enumerate(zip(found, meant, strict=True)):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-3, err_msg=str(i))
    for i, ((data, *places, codes, scales), kind) in enumerate(zip(given, kinds, strict=True)):
        dense = dense_of(codes, scales, *kind)
        for out, x in ((meant[2 * i], data), (meant[2 * i + 1], np.ones_like(data))):
            want = csr_matmul_p.bind(x, *places, dense, missing=NAN)
            np.testing.assert_allclose(out, want, rtol=1e-4, atol=1e-3)
    text = compiled.lower(given).as_text("loops")
    assert text.count("host csr_matmuls") == 1


def test_derivatives_and_many(rng):
    """Those of the product with the dense matrix; mapped over codes and scales, and over places."""
    data, *places, codes, scales = operands(rng, 4, 5)
    few = {"bits": 4, "columns": 5}
    loss = lambda *x: fnp.sum(csr_matmul_codes_p.bind(x[0], *places, codes, x[1], **few) ** 2)
    wide = dense_of(codes, np.ones_like(scales), **few)
    dense = lambda *x: fnp.sum(csr_matmul_p.bind(x[0], *places, wide * x[1][:, None]) ** 2)
    for got, want in zip(
        fg.jit(fg.grad(loss, (0, 1)))(data, scales), fg.grad(dense, (0, 1))(data, scales),
        strict=True,
    ):  # fmt: skip
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-2)
    f = lambda *x: csr_matmul_codes_p.bind(*x, **few, missing=NAN)
    args = (data, *places, codes, scales)
    several = fg.jit(fg.vmap(f, (None, None, None, None, 0, None)))(
        *args[:4], np.stack([codes, codes ^ 3]), scales
    )
    np.testing.assert_allclose(several[1], f(*args[:4], codes ^ 3, scales), rtol=1e-4, atol=1e-3)
    moved = np.stack([places[0], places[0][::-1]])
    several = fg.vmap(f, (None, 0, None, None, None, None))(data, moved, *args[2:])
    np.testing.assert_allclose(several[1], f(data, moved[1], *args[2:]), rtol=1e-4, atol=1e-3)


def test_wrong_operands(rng):
    data, *places, codes, scales = operands(rng, 8, 4)
    few = {"bits": 8, "columns": 4}
    with pytest.raises(ShapeError, match="csr_matmul_codes: 5 columns of 8 bits aren't"):
        csr_matmul_codes_p.bind(data, *places, codes, scales, bits=8, columns=5)
    with pytest.raises(DTypeError, match="need codes .k, bytes. of int8 and scales .k,."):
        csr_matmul_codes_p.bind(data, *places, codes.astype("uint8"), scales, **few)
    with pytest.raises(DTypeError, match="need codes .* and scales .k,. of the dtype of data"):
        csr_matmul_codes_p.bind(data, *places, codes, scales.astype("float64"), **few)
