"""First calls of small functions, one for each family of routines: compilation with its result."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks.case import Case, draw, integers, normal

Work = Callable[..., Any]


def cases(full: bool) -> Iterator[Case]:
    """Each in a new process with no cache; `processes` says where the clock starts."""
    n = 64 if full else 6
    square, rows = normal(n, n), integers(0, n, 100)
    unary: dict[str, Work] = {
        "elementwise": lambda lib, x: lib.np.sin(x) * 2 + 1,
        "sum": lambda lib, x: lib.np.sum(x, 0),
        "softmax": lambda lib, x: lib.nn.softmax(x),
        "running sum": lambda lib, x: lib.np.cumsum(x, 0),
        "scan": _scan,
        "sort": lambda lib, x: lib.np.sort(x),
        "argsort": lambda lib, x: lib.np.argsort(x),
        "top-k": lambda lib, x: lib.lax.top_k(x, 5),
        "FFT": lambda lib, x: abs(lib.np.fft.fft(x)),
        "product": lambda lib, x: x @ x,
        "batch of products": lambda lib, x: x[None] @ (x[None] + lib.np.ones((8, 1, 1), "float32")),
        "gradient of a layer": _layer,
        "QR": lambda lib, x: abs(lib.np.linalg.qr(x)[1]),
        "singular values": lambda lib, x: lib.np.linalg.svd(x)[1],
    }
    for name, work in unary.items():
        yield _case(name, work, square)
    definite: dict[str, Work] = {
        "Cholesky": lambda lib, a: lib.np.linalg.cholesky(a),
        "solve": lambda lib, a: lib.np.linalg.solve(a, a[:, 0] + 1),
        "inverse": lambda lib, a: lib.np.linalg.inv(a),
        "determinant": lambda lib, a: lib.np.linalg.slogdet(a)[1],
        "eigenvalues": lambda lib, a: lib.np.linalg.eigh(a)[0],
    }
    for name, work in definite.items():
        yield _case(name, work, lambda rng: _definite(n, rng))
    yield _case("gather", lambda lib, x, i: x[i], square, rows)
    yield _case("scatter-add", lambda lib, x, i: x.at[i].add(1), square, rows)
    yield _case(
        "random numbers", lambda lib, x: x + lib.random.normal(lib.random.key(0), x.shape), square
    )
    yield _case(
        "permutation", lambda lib, x: lib.random.permutation(lib.random.key(0), x), normal(1000)
    )
    yield _case("attention", _attention, normal(2, n, 4, 16))
    yield _case("convolution", _convolution, normal(2, 3, 16, 16), normal(8, 3, 3, 3))


def _case(name: str, work: Work, *inputs: Callable[[np.random.Generator], np.ndarray]) -> Case:
    return Case("first calls", f"{name}, cold", draw(*inputs), work, measure="cold", tolerance=1e-3)


def _scan(lib: Any, x: Any) -> Any:
    return lib.lax.scan(lambda c, t: (lib.np.tanh(c + t), c), lib.np.zeros_like(x[0]), x)


def _layer(lib: Any, x: Any) -> Any:
    return lib.grad(lambda w: lib.np.mean(lib.np.tanh(x @ w) ** 2))(x)


def _attention(lib: Any, x: Any) -> Any:
    return lib.nn.dot_product_attention(x, x, x)


def _convolution(lib: Any, x: Any, k: Any) -> Any:
    return lib.lax.conv_general_dilated(x, k, (1, 1), "SAME")


def _definite(n: int, rng: np.random.Generator) -> np.ndarray:
    a = rng.standard_normal((n, n))
    return (a @ a.T + n * np.eye(n)).astype(np.float32)
