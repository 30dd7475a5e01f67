"""Cosine and sine transforms: against their sums, inverses, axes, lengths, transforms."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.scipy import fft

TYPES = [1, 2, 3, 4]


def matrix(kind: str, type: int, n: int) -> np.ndarray:
    """The transform as a matrix, by its definition."""
    k, j = np.arange(n)[:, None], np.arange(n)[None]
    weight = np.full(n, 2.0)
    if kind == "dct":
        angle = {1: k * j / (n - 1), 2: k * (j + 0.5) / n, 3: (k + 0.5) * j / n,
                 4: (k + 0.5) * (j + 0.5) / n}  # fmt: skip
        weight[{1: [0, -1], 3: [0]}.get(type, [])] = 1
        return np.cos(np.pi * angle[type]) * weight
    angle = {1: (k + 1) * (j + 1) / (n + 1), 2: (k + 1) * (j + 0.5) / n,
             3: (k + 0.5) * (j + 1) / n, 4: (k + 0.5) * (j + 0.5) / n}  # fmt: skip
    weight[[-1] if type == 3 else []] = 1
    return np.sin(np.pi * angle[type]) * weight


@pytest.mark.parametrize("kind", ["dct", "dst"])
@pytest.mark.parametrize("type", TYPES)
@pytest.mark.parametrize("n", [2, 3, 7, 8])
def test_is_the_sum_that_defines_it(kind, type, n, rng):
    x = rng.standard_normal((2, n))
    found = getattr(fft, kind)(x, type)
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, x @ matrix(kind, type, n).T, atol=1e-12)


@pytest.mark.parametrize("kind", ["dct", "dst"])
@pytest.mark.parametrize("type", TYPES)
@pytest.mark.parametrize("norm", [None, "backward", "forward", "ortho"])
def test_inverses_and_orthogonality(kind, type, norm, rng):
    x = rng.standard_normal((4, 5))
    there, back = getattr(fft, kind), getattr(fft, f"i{kind}")
    np.testing.assert_allclose(back(there(x, type, norm=norm), type, norm=norm), x, atol=1e-12)
    more, back = getattr(fft, f"{kind}n"), getattr(fft, f"i{kind}n")
    np.testing.assert_allclose(back(more(x, type, norm=norm), type, norm=norm), x, atol=1e-12)
    if norm == "ortho":
        q = np.asarray(there(np.eye(5), type, norm=norm))
        np.testing.assert_allclose(q @ q.T, np.eye(5), atol=1e-12)


def test_orthogonalize_says_only_what_becomes_of_the_ends(rng):
    x = rng.standard_normal(5)
    plain = np.asarray(fft.dct(x, norm="ortho", orthogonalize=False))
    np.testing.assert_allclose(plain, np.asarray(fft.dct(x)) / np.sqrt(10), atol=1e-12)
    whole = np.asarray(fft.dct(x, orthogonalize=True))
    np.testing.assert_allclose(whole[1:], np.asarray(fft.dct(x))[1:], atol=1e-12)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64", "complex128"])
def test_keeps_the_dtype(dtype, rng):
    x = np.asarray(rng.standard_normal((3, 4)), dtype)
    if dtype.startswith("complex"):
        x = x * np.asarray(1 + 2j, dtype)
    out = fft.dct(x, axis=0)
    assert out.dtype == dtype
    wide = matrix("dct", 2, 3) @ x
    np.testing.assert_allclose(out, wide, rtol=3e-3 if dtype == "float16" else 1e-5, atol=1e-2)
    assert fft.dct(np.arange(4)).dtype == np.float32


def test_lengths_cut_and_fill():
    x = np.arange(1.0, 11).reshape(2, 5)
    np.testing.assert_allclose(fft.dct(x, n=3), fft.dct(x[:, :3]))
    np.testing.assert_allclose(fft.dct(x, n=7), fft.dct(np.pad(x, [(0, 0), (0, 2)])))
    np.testing.assert_allclose(fft.dctn(x, s=(7,)), fft.dct(x, n=7), rtol=1e-6)
    both = fft.dct(fft.dct(x, n=3, axis=0), n=4, axis=1)
    np.testing.assert_allclose(fft.dctn(x, s=(3, 4), axes=(0, 1)), both, atol=1e-12)
    np.testing.assert_array_equal(fft.dctn(x, axes=[]), x)


@pytest.mark.parametrize("kind", ["dct", "dst"])
@pytest.mark.parametrize("type", TYPES)
def test_transforms(kind, type, rng):
    f = getattr(fft, kind)
    x = rng.standard_normal((3, 5))
    m = matrix(kind, type, 5)
    np.testing.assert_allclose(fg.jit(lambda x: f(x, type))(x), x @ m.T, atol=1e-12)
    np.testing.assert_allclose(fg.vmap(lambda x: f(x, type), 1, 1)(x.T), m @ x.T, atol=1e-12)
    np.testing.assert_allclose(fg.jacrev(lambda x: f(x, type))(x[0]), m, atol=1e-12)
    np.testing.assert_allclose(fg.jacfwd(lambda x: f(x, type))(x[0]), m, atol=1e-12)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda x: fft.dct(x, 5), "dct: type must be 1, 2, 3 or 4, got 5"),
        (lambda x: fft.dct(x, norm="l2"), "dct: norm must be .* got 'l2'"),
        (lambda x: fft.dct(x, n=0), "dct: lengths must be positive, got 0"),
        (lambda x: fft.dct(x, axis=2), "dct: axis 2 is out of range"),
        (lambda x: fft.dctn(x, s=(2, 3, 4)), r"s must have at most x.ndim \(2\) elements, got 3"),
        (lambda x: fft.idctn(x, s=(2,), axes=(0, 1)), "idctn: s .* must have a length for each"),
        (lambda x: fft.dct(x[:, :1], 1), "dct: type 1 needs at least 2 samples"),
    ],
)
def test_errors_say_what_was_wrong(call, words):
    with pytest.raises(ValueError, match=words):
        call(fnp.ones((2, 3)))


def test_numpys_names_are_numpys():
    assert fft.rfft is fnp.fft.rfft
