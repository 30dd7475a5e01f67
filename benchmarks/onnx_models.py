"""Inference of exported models: ours against ONNX Runtime, on the same files.

    python -m benchmarks.onnx_models     # ratios, ONNX Runtime's time / ours; needs onnxruntime

Each model is written by `to_onnx`, read by `from_onnx`, and exported with its weights, as the file
has them; what is called is `Exported.call`. Rounds are interleaved, with as many threads for both
(FUNCGRAD_NUM_THREADS), and every result is checked against the other's.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax, nn
from funcgrad.export import export, from_onnx, to_onnx

ROUNDS, SECONDS = 15, 0.05
# Seconds. ONNX Runtime's threads spin for some 50 ms after their work, which is another's time.
REST = 0.1
RNG = np.random.default_rng(0)
NHWC = ("NHWC", "HWIO", "NHWC")
Model = tuple[Callable, tuple]  # f(params, *inputs), and all of these


def normal(*shape: int) -> np.ndarray:
    """Normal numbers, those of matrices and kernels divided by the root of what is summed."""
    x = RNG.standard_normal(shape).astype("f4")
    return x / np.float32(np.prod(shape[:-1]) ** 0.5) if len(shape) > 1 else x


def inputs(*shape: int) -> np.ndarray:
    """Normal numbers."""
    return RNG.standard_normal(shape).astype("f4")


def mlp() -> Model:
    params = [normal(256, 1024), normal(1024, 1024), normal(1024, 64)]

    def f(params: Any, x: Any) -> Any:
        for w in params[:-1]:
            x = nn.gelu(x @ w)
        return nn.softmax(x @ params[-1])

    return f, (params, inputs(32, 256))


def conv(x: Any, w: Any, stride: int = 1, groups: int = 1) -> Any:
    """A convolution whose channels come last."""
    return lax.conv_general_dilated(
        x, w, (stride, stride), "SAME", dimension_numbers=NHWC, feature_group_count=groups
    )


def cnn() -> Model:
    params = [normal(3, 3, 3, 32), normal(3, 3, 32, 64), normal(3, 3, 64, 128), normal(128, 10)]

    def f(params: Any, x: Any) -> Any:
        for w in params[:-1]:
            x = nn.relu(conv(x, w, 2))
        return x.mean((1, 2)) @ params[-1]

    return f, (params, inputs(4, 64, 64, 3))


def resnet() -> Model:
    params = [(normal(3, 3, 64, 64), normal(64), normal(3, 3, 64, 64)) for _ in range(3)]

    def f(params: Any, x: Any) -> Any:
        for a, b, c in params:
            x = nn.relu(x + conv(nn.relu(conv(x, a) + b), c))
        return x.mean((1, 2))

    return f, (params, inputs(2, 28, 28, 64))


def separable() -> Model:
    params = [(normal(3, 3, 1, 64), normal(1, 1, 64, 64)) for _ in range(3)]

    def f(params: Any, x: Any) -> Any:
        for a, b in params:
            x = nn.relu(conv(nn.relu(conv(x, a, groups=64)), b))
        return x

    return f, (params, inputs(2, 32, 32, 64))


def transformer() -> Model:
    width, heads = 256, 8
    sizes = (width, 3 * width), (width, width), (width, 4 * width), (4 * width, width), (width,)

    def norm(x: Any, scale: Any) -> Any:
        x = x - x.mean(-1, keepdims=True)
        return x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * scale

    def f(params: Any, x: Any) -> Any:
        for qkv, out, up, down, scale in params:
            parts = fnp.split(norm(x, scale) @ qkv, 3, axis=-1)
            q, k, v = (p.reshape(*p.shape[:2], heads, -1) for p in parts)
            x = x + nn.dot_product_attention(q, k, v, is_causal=True).reshape(x.shape) @ out
            x = x + nn.gelu(norm(x, scale) @ up) @ down
        return x

    return f, ([[normal(*s) for s in sizes] for _ in range(2)], inputs(2, 128, width))


def lstm() -> Model:
    params = normal(64, 512), normal(128, 512)

    def f(params: Any, xs: Any) -> Any:
        def turn(state: Any, x: Any) -> Any:
            h, c = state
            i, o, g, z = fnp.split(x @ params[0] + h @ params[1], 4, axis=-1)
            c = nn.sigmoid(g) * c + nn.sigmoid(i) * fnp.tanh(z)
            return (nn.sigmoid(o) * fnp.tanh(c), c), None

        zero = fnp.zeros((xs.shape[1], 128))
        return lax.scan(turn, (zero, zero), xs)[0][0]

    return f, (params, inputs(64, 8, 64))


def dlrm() -> Model:
    params = {"tables": [normal(1000, 32) for _ in range(8)], "bottom": normal(13, 32),
              "top": [normal(68, 128), normal(128, 1)]}  # fmt: skip
    i, j = np.tril_indices(9, -1)

    def f(params: Any, dense: Any, ids: Any) -> Any:
        first = nn.relu(dense @ params["bottom"])
        x = fnp.stack([first, *(t[ids[:, k]] for k, t in enumerate(params["tables"]))], 1)
        x = fnp.concatenate([first, fnp.matmul(x, fnp.swapaxes(x, 1, 2))[:, i, j]], 1)
        return nn.sigmoid(nn.relu(x @ params["top"][0]) @ params["top"][1])

    return f, (params, inputs(256, 13), RNG.integers(0, 1000, (256, 8)).astype("i4"))


def normalized() -> Model:
    def f(scale: Any, x: Any) -> Any:
        x = nn.softmax(x * scale)
        x = x - x.mean(-1, keepdims=True)
        return fnp.tanh(x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5))

    return f, (normal(1024), inputs(256, 1024))


MODELS = (mlp, cnn, resnet, separable, transformer, lstm, dlrm, normalized)


def timed(call: Callable) -> float:
    """The time of a call, of as many as take a while, after a rest."""
    time.sleep(REST)
    call()
    count, start = 0, time.perf_counter()
    while (passed := time.perf_counter() - start) < SECONDS:
        call()
        count += 1
    return passed / count


def ratio(made: Callable[[], Model], folder: str) -> float:
    """ONNX Runtime's time by ours, the median of interleaved rounds."""
    import onnxruntime

    f, args = made()
    path = os.path.join(folder, f"{made.__name__}.onnx")
    to_onnx(f, path, *args, stored_argnums=0)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = fg.num_threads()
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    given = dict(zip([i.name for i in session.get_inputs()], args[1:], strict=True))
    read, params = from_onnx(path)
    xs = [fnp.asarray(x) for x in args[1:]]
    call = export(fg.jit(lambda *xs: read(params, *xs)))(*xs).call
    ours, theirs = (lambda: np.asarray(call(*xs))), (lambda: session.run(None, given))
    wanted, got = theirs()[0], ours()
    if np.abs(got - wanted).max() > 1e-4 * np.abs(wanted).max():
        raise SystemExit(f"{made.__name__}: results differ")
    return statistics.median(timed(theirs) / timed(ours) for _ in range(ROUNDS))


def main() -> None:
    """Print the ratio of each model, and their geometric mean."""
    with tempfile.TemporaryDirectory() as folder:
        found = {m.__name__: ratio(m, folder) for m in MODELS}
    for name, value in found.items():
        print(f"{name:12} {value:5.2f}")
    print(f"{'geometric':12} {statistics.geometric_mean(found.values()):5.2f}")


if __name__ == "__main__":
    main()
