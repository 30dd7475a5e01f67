"""Fewer bits, fewer elements: products of int8, weights that are read as codes, a network of int8
convolutions, sparse matrices."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from benchmarks.case import Case, draw, integers, normal


def cases(full: bool) -> Iterator[Case]:
    """Products of int8 are exact in int32; NumPy's text of sparse ones is SciPy's."""
    for n in (512, 1024, 2048):
        yield _product(n, n if full else n // 64)
    for name, m, n in (("4096×4096", 4096, 4096), ("4096×11008", 4096, 11008)):
        m, n = (m, n) if full else (m // 64, n // 64)
        yield _int8_weight(name, m, n)
        yield _int4_weight(name, m, n)
    for batch in (1, 32):
        yield _network(batch, full)
    n = 20000 if full else 300
    yield _sparse("matrix and vector", n, ())
    yield _sparse("matrix and 64 columns", n, (64 if full else 3,))


def int8(*shape: int):
    """Draws int8 of a shape."""
    return integers(-127, 128, *shape, dtype=np.int8)


def _product(name: int, n: int) -> Case:
    return Case(
        "few bits",
        f"int8 product, {name}",
        draw(int8(n, n), int8(n, n)),
        lambda lib, a, b: lib.np.matmul(a, b, preferred_element_type="int32"),
        torch=lambda t, a, b: t._int_mm(a, b),
        numpy=(lambda a, b: a.astype(np.int32) @ b) if n < 100 else False,
        flops=2.0 * n**3,
        int8=True,
    )


# ---- a vector times a weight of codes


def _scales(*shape: int):
    return lambda rng: rng.random(shape, np.float32) / 64


def _int8_weight(name: str, m: int, n: int) -> Case:
    return Case(
        "few bits",
        f"vector and int8 weight, {name}",
        draw(normal(m), int8(m, n), _scales(n)),
        lambda lib, x, codes, scale: (x @ codes.astype("float32")) * scale,
        torch=lambda t, x, codes, scale: (x @ codes.float()) * scale,
        numpy=lambda x, codes, scale: (x @ codes.astype(np.float32)) * scale,
        flops=2.0 * m * n,
        reads=float(m * n + 4 * n),
    )


def _int4_weight(name: str, m: int, n: int) -> Case:
    """Two codes of neighbouring rows are a byte; 32 rows share a scale."""

    def work(np_, x, codes, scale):
        q = np_.stack([codes & 15, codes >> 4], axis=1).reshape(m // 32, 32, n)
        w = (q.astype("float32") - np_.float32(8)) * scale[:, None]
        return x @ w.reshape(m, n)

    return Case(
        "few bits",
        f"vector and int4 weight, {name}",
        draw(normal(m), integers(0, 256, m // 2, n, dtype=np.uint8), _scales(m // 32, n)),
        lambda lib, *arrays: work(lib.np, *arrays),
        numpy=partial(work, np),
        flops=2.0 * m * n,
        reads=m * n / 2 + 4.0 * m * n / 32,
    )


# ---- a network of residual stages, static ranges


def _network(batch: int, full: bool) -> Case:
    widths, size = ((64, 128, 256), 32) if full else ((4, 4, 8), 8)
    macs = 0.0
    for i, (a, b) in enumerate(zip((widths[0], *widths), widths, strict=False)):
        macs += batch * size**2 / 4**i * 9 * (a * b + b * b)
    return Case(
        "few bits",
        f"int8 convolutions, three residual stages, batch {batch}",
        draw(normal(batch, size, size, widths[0]), partial(_kernels, widths)),
        _int8_stages,
        flops=2.0 * macs,
        int8=True,
        tolerance=0.05,  # codes may be rounded the other way
        compared=("jax", "funcgrad"),
    )


def _kernels(widths, rng):
    def one(a, b):
        scale = np.full(b, 1 / (64 * np.sqrt(9 * a)), np.float32)
        return {"codes": int8(3, 3, a, b)(rng), "scale": scale}

    pairs = zip((widths[0], *widths), widths, strict=False)
    return [{"first": one(a, b), "second": one(b, b)} for a, b in pairs]


def _int8_stages(lib, x, stages):
    def conv(x, w, stride=1):
        step = lib.np.float32(4 / 127)
        codes = lib.np.clip(lib.np.round(x / step), -127, 127).astype("int8")
        sums = lib.lax.conv_general_dilated(
            codes, w["codes"], (stride, stride), "SAME",
            dimension_numbers=("NHWC", "HWIO", "NHWC"), preferred_element_type=lib.np.int32,
        )  # fmt: skip
        return sums.astype("float32") * (step * w["scale"])

    for i, p in enumerate(stages):
        x = lib.nn.relu(conv(x, p["first"], 2 if i else 1))
        x = lib.nn.relu(x + conv(x, p["second"]))
    return lib.np.mean(x, axis=(1, 2))


# ---- sparse matrices


def _sparse(name: str, n: int, columns: tuple[int, ...]) -> Case:
    each = n // 100
    rows = partial(np.arange, 0, n * each + 1, each, dtype=np.int32)

    def indices(rng):
        return np.sort(rng.integers(0, n, (n, each), np.int32), axis=1).reshape(-1)

    def product(lib, data, indices, starts, x):
        shape = {"shape": (n, n), "indices_sorted": True}
        return lib.sparse.BCSR((data, indices, starts), **shape) @ x

    def scipy(data, indices, starts, x):
        from scipy.sparse import csr_matrix

        return csr_matrix((data, indices, starts), shape=(n, n)) @ x

    width = columns[0] if columns else 1
    return Case(
        "few bits",
        f"sparse, 99 % zeros, {name}",
        draw(normal(n * each), indices, lambda rng: rows(), normal(n, *columns)),
        product,
        numpy=scipy,
        flops=2.0 * n * each * width,
        reads=8.0 * n * each + 4.0 * n * width,
        # Of one column, a line of a cache has several of its elements.
        gathers=4.0 * n * each * width if columns else 0.0,
        tolerance=1e-3,
    )
