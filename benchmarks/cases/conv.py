"""Convolutions, forward alone, and forward with both gradients."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from benchmarks.case import Case, draw, normal
from benchmarks.libraries import gradients


@dataclass(frozen=True)
class Shape:
    """A convolution of (batch, channels, height, width) by (out, channels / groups, h, w)."""

    name: str
    image: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: int = 1
    pad: int = 0
    groups: int = 1
    transposed: bool = False


FULL = (
    Shape("3×3, 32×64×32×32", (32, 64, 32, 32), (64, 64, 3, 3), pad=1),
    Shape("1×1, 32×256×14×14", (32, 256, 14, 14), (256, 256, 1, 1)),
    Shape("3×3 strided, 32×64×32×32", (32, 64, 32, 32), (128, 64, 3, 3), stride=2, pad=1),
    Shape("7×7 strided, 4×3×224×224", (4, 3, 224, 224), (64, 3, 7, 7), stride=2, pad=3),
    Shape("depthwise 3×3, 32×128×28×28", (32, 128, 28, 28), (128, 1, 3, 3), pad=1, groups=128),
    Shape("transposed 4×4, 16×64×16×16", (16, 64, 16, 16), (64, 64, 4, 4), 2, 1, transposed=True),
    Shape("5 in one dimension, 16×64×4096", (16, 64, 4096), (64, 64, 5), pad=2),
    Shape("3×3, 128×64×8×8", (128, 64, 8, 8), (64, 64, 3, 3), pad=1),
    Shape("3×3, 16×512×4×4", (16, 512, 4, 4), (512, 512, 3, 3), pad=1),
)
TINY = (
    Shape(FULL[0].name, (2, 3, 5, 6), (4, 3, 3, 3), pad=1),
    Shape(FULL[1].name, (2, 3, 5, 6), (4, 3, 1, 1)),
    Shape(FULL[2].name, (2, 3, 6, 6), (4, 3, 3, 3), stride=2, pad=1),
    Shape(FULL[3].name, (1, 3, 12, 12), (4, 3, 7, 7), stride=2, pad=3),
    Shape(FULL[4].name, (2, 4, 5, 5), (4, 1, 3, 3), pad=1, groups=4),
    Shape(FULL[5].name, (2, 3, 4, 4), (3, 3, 4, 4), 2, 1, transposed=True),
    Shape(FULL[6].name, (2, 3, 9), (4, 3, 5), pad=2),
    Shape(FULL[7].name, (7, 3, 2, 2), (4, 3, 3, 3), pad=1),
    Shape(FULL[8].name, (2, 5, 4, 4), (5, 5, 3, 3), pad=1),
)


def cases(full: bool) -> Iterator[Case]:
    """Each shape forward, and forward and backward."""
    for shape in FULL if full else TINY:
        out = _out(shape)
        places = (
            np.prod(shape.image) / shape.image[1] if shape.transposed else np.prod(out) / out[1]
        )
        flops = 2.0 * places * np.prod(shape.kernel)
        forward = draw(normal(*shape.image), normal(*shape.kernel))
        both = draw(normal(*shape.image), normal(*shape.kernel), normal(*out))
        yield Case(
            "conv", shape.name, forward, _forward(shape), torch=_torch_forward(shape), flops=flops
        )
        yield Case(
            "conv backward",
            shape.name,
            both,
            _backward(shape),
            flops=3 * flops,
            torch_make=gradients(_torch_loss(shape), 0, 1),
        )
    size = (32, 32, 32, 64, 64) if full else (2, 5, 6, 3, 4)
    yield _channels_last(*size)


def _out(shape: Shape) -> tuple[int, ...]:
    batch, _, *image = shape.image
    out, _, *kernel = shape.kernel
    if shape.transposed:
        sizes = [
            (n - 1) * shape.stride - 2 * shape.pad + k for n, k in zip(image, kernel, strict=True)
        ]
        return (batch, shape.kernel[1], *sizes)
    sizes = [
        (n + 2 * shape.pad - k) // shape.stride + 1 for n, k in zip(image, kernel, strict=True)
    ]
    return (batch, out, *sizes)


def _forward(shape: Shape):
    rank = len(shape.kernel) - 2
    pads = [(shape.pad, shape.pad)] * rank

    def conv(lib, x, w):
        if not shape.transposed:
            return lib.lax.conv_general_dilated(
                x, w, (shape.stride,) * rank, pads, feature_group_count=shape.groups
            )
        # PyTorch's convention: the weights of the convolution whose gradient this is.
        w = lib.np.swapaxes(w, 0, 1)[..., ::-1, ::-1]
        pads_of_image = [(k - 1 - shape.pad,) * 2 for k in shape.kernel[2:]]
        return lib.lax.conv_general_dilated(
            x, w, (1,) * rank, pads_of_image, lhs_dilation=(shape.stride,) * rank
        )

    return conv


def _torch_forward(shape: Shape):
    rank = len(shape.kernel) - 2
    name = f"conv{'_transpose' if shape.transposed else ''}{rank}d"

    def conv(t, x, w):
        function = getattr(t.nn.functional, name)
        return function(x, w, stride=shape.stride, padding=shape.pad, groups=shape.groups)

    return conv


def _backward(shape: Shape):
    conv = _forward(shape)

    def both(lib, x, w, seed):
        def loss(x, w):
            return lib.np.sum(conv(lib, x, w) * seed)

        return lib.value_and_grad(loss, argnums=(0, 1))(x, w)

    return both


def _torch_loss(shape: Shape):
    conv = _torch_forward(shape)
    return lambda t, x, w, seed: t.sum(conv(t, x, w) * seed)


def _channels_last(batch, height, width, channels, out) -> Case:
    def conv(lib, x, w):
        return lib.lax.conv_general_dilated(
            x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    def torch_conv(t, x, w):
        # A view in PyTorch's words of the same memory.
        y = t.nn.functional.conv2d(x.permute(0, 3, 1, 2), w.permute(3, 2, 0, 1), padding=1)
        return y.permute(0, 2, 3, 1)

    return Case(
        "conv",
        "3×3 channels last, 32×32×32×64",
        draw(normal(batch, height, width, channels), normal(3, 3, channels, out)),
        conv,
        torch=torch_conv,
        flops=2.0 * batch * height * width * 9 * channels * out,
    )
