"""Training steps of whole convolutional networks, each written once as a list of layers."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from benchmarks.case import Case, draw, integers, normal
from benchmarks.cases.reductions import cross_entropy
from benchmarks.cases.training import momentum, state_of, step
from benchmarks.libraries import training

# A layer is a tuple of the name of an interpreter's method and numbers; parts are lists of layers.
EPSILON = 1e-5


def cases(full: bool) -> Iterator[Case]:
    """Of each kind of network that is often trained from nothing, one; SGD with momentum."""
    c = (16, 32, 64) if full else (2, 3, 4)
    yield _case("ResNet-20, 64×3×32×32", _resnet(c), (64, 3, 32, 32) if full else (2, 3, 8, 8))
    c = (16, 24, 32, 64, 96) if full else (2, 3, 4, 4, 5)
    yield _case(
        "MobileNetV2, 16×3×64×64", _mobilenet(c), (16, 3, 64, 64) if full else (2, 3, 16, 16)
    )
    c = (32, 64, 128) if full else (2, 3, 4)
    yield _case("U-Net, 4×3×64×64", _unet(c), (4, 3, 64, 64) if full else (2, 3, 8, 8))
    c = (32, 64, 128, 256) if full else (2, 3, 4, 5)
    yield _case("VAE, 64×3×64×64", _autoencoder(c), (64 if full else 2, 3, 64, 64))


def _case(name: str, net: list, shape: tuple[int, ...]) -> Case:
    more = [integers(0, 10, shape[0])] if net[-1][0] == "dense" else []
    return Case(
        "nets",
        name,
        draw(lambda rng: state_of(_params(rng, net), 1), normal(*shape), *more),
        step(partial(_loss, net), partial(momentum, rate=1e-3)),
        torch_make=training(partial(_torch_loss, net), "SGD", lr=1e-3, momentum=0.9, foreach=True),
        state=True,
        torch_long=True,
        flops=6.0 * shape[0] * _macs(net, shape[-1])[0],
        tolerance=1e-3,
    )


# ---- networks


def _conv(i: int, o: int, size: int = 3, stride: int = 1, groups: int = 1) -> list:
    return [("conv", i, o, size, stride, size // 2, groups), ("norm", o), ("relu",)]


def _resnet(c: tuple[int, ...]) -> list:
    """He et al., 2016: three residual blocks of each width."""
    net = _conv(3, c[0])
    for k, (a, b) in enumerate(zip((c[0], *c), c, strict=False)):
        for block in range(3):
            i, stride = (b, 1) if block else (a, 2 if k else 1)
            short = [("conv", i, b, 1, stride, 0, 1), ("norm", b)] if i != b else []
            net += [("sum", [*_conv(i, b, 3, stride), *_conv(b, b)[:2]], short), ("relu",)]
    return [*net, ("means",), ("dense", c[-1], 10)]


def _mobilenet(c: tuple[int, ...]) -> list:
    """Sandler et al., 2018: a depthwise convolution between two of single places."""
    net = [*_conv(3, c[0], stride=2)]
    for a, b in zip((c[0], *c), c, strict=False):
        for i, stride in ((a, 1 if a == b else 2), (b, 1)):
            wide = 4 * i
            body = [*_conv(i, wide, 1), *_conv(wide, wide, 3, stride, wide), *_conv(wide, b, 1)[:2]]
            net += [("sum", body, [])] if i == b and stride == 1 else body
    return [*net, ("means",), ("dense", c[-1], 10)]


def _unet(c: tuple[int, ...]) -> list:
    """Ronneberger et al., 2015: what goes down comes up beside what stayed."""
    a, b, d = c
    deep = [("pool",), *_conv(b, d), *_conv(d, d), ("up", d, b, 2, 2, 0)]
    net = [("pool",), *_conv(a, b), ("beside", deep), *_conv(2 * b, b), ("up", b, a, 2, 2, 0)]
    return [*_conv(3, a), ("beside", net), *_conv(2 * a, a), ("conv", a, 3, 1, 1, 0, 1)]


def _autoencoder(c: tuple[int, ...]) -> list:
    """Ha and Schmidhuber, 2018, without the noise: images of 64×64 to a vector and back."""
    net: list = []
    for i, o in zip((3, *c), c, strict=False):
        net += [("conv", i, o, 4, 2, 0, 1), ("relu",)]
    net += [("conv", c[-1], 4 * c[-1], 2, 1, 0, 1)]
    for i, o, size in ((4 * c[3], c[2], 5), (c[2], c[1], 5), (c[1], c[0], 6)):
        net += [("up", i, o, size, 2, 0), ("relu",)]
    return [*net, ("up", c[0], 3, 6, 2, 0)]


# ---- their parameters, and the two interpreters


def _params(rng: np.random.Generator, net: list) -> list[np.ndarray]:
    found: list[np.ndarray] = []
    for name, *sizes in net:
        if name in ("sum", "beside"):
            found += [p for part in sizes for p in _params(rng, part)]
        elif name == "norm":
            found += [np.ones(sizes[0], np.float32), np.zeros(sizes[0], np.float32)]
        elif name in ("conv", "up", "dense"):
            found.append(_weights(rng, name, *sizes))
    return found


def _weights(rng, name, i, o, size=1, stride=1, padding=0, groups=1):
    shape = {
        "conv": (o, i // groups, size, size),
        "up": (i, o, size, size),
        "dense": (i, o),
    }[name]
    inputs = i // groups * (size // stride if name == "up" else size) ** 2
    return normal(*shape)(rng) * np.float32(inputs**-0.5)


def _macs(net: list, size: int) -> tuple[int, int]:
    """Multiplications of an image of size × size; and the result's size."""
    total = 0
    for name, *sizes in net:
        if name == "sum":
            total += _macs(sizes[1], size)[0]
            inner, size = _macs(sizes[0], size)
            total += inner
        elif name == "beside":
            total += _macs(sizes[0], size)[0]
        elif name == "pool":
            size //= 2
        elif name == "conv":
            i, o, window, stride, padding, groups = sizes
            size = (size + 2 * padding - window) // stride + 1
            total += size**2 * o * i // groups * window**2
        elif name == "up":
            i, o, window, stride, padding = sizes
            total += size**2 * o * i * window**2
            size = (size - 1) * stride + window - 2 * padding
    return total, size


def _run(ops: Any, net: list, params: Iterator, x: Any) -> Any:
    for name, *sizes in net:
        if name == "sum":
            body = _run(ops, sizes[0], params, x)
            x = body + _run(ops, sizes[1], params, x)
        elif name == "beside":
            x = ops.beside(x, _run(ops, sizes[0], params, x))
        elif name == "norm":
            x = ops.norm(x, next(params), next(params))
        elif name in ("conv", "up"):
            x = getattr(ops, name)(x, next(params), *sizes[3:])
        else:
            x = x @ next(params) if name == "dense" else getattr(ops, name)(x)
    return x


def _loss(net, lib, params, x, *labels):
    y = _run(_Functional(lib), net, iter(params), x)
    return cross_entropy(lib, y, *labels) if labels else lib.np.mean((y - x) ** 2)


def _torch_loss(net, t, params, x, *labels):
    y = _run(_Torch(t), net, iter(params), x)
    return t.nn.functional.cross_entropy(y, *labels) if labels else ((y - x) ** 2).mean()


class _Functional:
    """The layers for funcgrad and JAX."""

    def __init__(self, lib: Any):
        self.lib, self.relu = lib, lib.nn.relu

    def conv(self, x, w, stride, padding, groups):
        return self.lib.lax.conv_general_dilated(
            x, w, (stride, stride), [(padding, padding)] * 2, feature_group_count=groups
        )

    def up(self, x, w, stride, padding):
        """A transposed convolution, with PyTorch's order of the kernel's axes."""
        w = self.lib.np.flip(self.lib.np.swapaxes(w, 0, 1), (2, 3))
        around = [(w.shape[2] - 1 - padding,) * 2] * 2
        return self.lib.lax.conv_general_dilated(
            x, w, (1, 1), around, lhs_dilation=(stride, stride)
        )

    def norm(self, x, scale, shift):
        """Batch normalization by the batch's own moments."""
        x = x - self.lib.np.mean(x, axis=(0, 2, 3), keepdims=True)
        variance = self.lib.np.mean(x * x, axis=(0, 2, 3), keepdims=True)
        x = x * self.lib.lax.rsqrt(variance + EPSILON)
        return x * scale[:, None, None] + shift[:, None, None]

    def pool(self, x):
        lax = self.lib.lax
        return lax.reduce_window(x, -self.lib.np.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")

    def means(self, x):
        return self.lib.np.mean(x, axis=(2, 3))

    def beside(self, x, y):
        return self.lib.np.concatenate([x, y], axis=1)


class _Torch:
    """The layers for PyTorch."""

    def __init__(self, t: Any):
        self.t, self.relu, self.fun = t, t.relu, t.nn.functional

    def conv(self, x, w, stride, padding, groups):
        return self.fun.conv2d(x, w, None, stride, padding, 1, groups)

    def up(self, x, w, stride, padding):
        return self.fun.conv_transpose2d(x, w, None, stride, padding)

    def norm(self, x, scale, shift):
        return self.fun.batch_norm(x, None, None, scale, shift, True, 0.1, EPSILON)

    def pool(self, x):
        return self.fun.max_pool2d(x, 2)

    def means(self, x):
        return self.t.mean(x, (2, 3))

    def beside(self, x, y):
        return self.t.cat([x, y], 1)
