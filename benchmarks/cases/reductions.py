"""Reductions over all, rows and columns; and row kernels, which read their reduction's operand."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from benchmarks.case import Case, draw, integers, normal
from benchmarks.libraries import gradients


def cases(full: bool) -> Iterator[Case]:
    """Reductions, then softmax, norms and cross entropy with their gradients."""
    case = partial(Case, "reductions", numpy=True)
    for name, size in {"1M": 1 << 20, "16M": 1 << 24}.items():
        n = size if full else 100 + len(name)
        yield case(
            f"sum(a*a), {name}",
            draw(normal(n)),
            lambda lib, a: lib.np.sum(a * a),
            torch=lambda t, a: t.sum(a * a),
        )
    matrix = draw(normal(4096, 4096) if full else normal(9, 12))
    for name, axis in {"rows": 1, "columns": 0}.items():
        yield case(
            f"sum of {name}, 4096²",
            matrix,
            _sum(axis),
            torch=lambda t, a, axis=axis: t.sum(a, axis),
        )
        yield case(
            f"max of {name}, 4096²",
            matrix,
            _max(axis),
            torch=lambda t, a, axis=axis: t.amax(a, axis),
        )
        yield case(
            f"argmax of {name}, 4096²",
            matrix,
            _argmax(axis),
            torch=lambda t, a, axis=axis: t.argmax(a, axis),
        )
        yield case(
            f"mean and variance of {name}, 4096²",
            matrix,
            _moments(axis),
            torch=lambda t, a, axis=axis: t.var_mean(a, axis, correction=0)[::-1],
            tolerance=1e-3,
        )
    yield case(
        "sum of the middle axis, 256×256×256",
        draw(normal(*[256 if full else 6] * 3)),
        _sum(1),
        torch=lambda t, a: t.sum(a, 1),
    )
    yield case(
        "argmax of rows, 100000×10",
        draw(normal(*(100_000, 10) if full else (9, 3))),
        _argmax(1),
        torch=lambda t, a: t.argmax(a, 1),
    )
    yield from _row_cases(full)


def _sum(axis):
    return lambda lib, a: lib.np.sum(a, axis=axis)


def _max(axis):
    return lambda lib, a: lib.np.max(a, axis=axis)


def _argmax(axis):
    return lambda lib, a: lib.np.argmax(a, axis=axis)


def _moments(axis):
    return lambda lib, a: (lib.np.mean(a, axis=axis), lib.np.var(a, axis=axis))


# ---- row kernels


def _row_cases(full: bool) -> Iterator[Case]:
    case = partial(Case, "rows")
    rows, width = (4096, 1024) if full else (6, 16)
    x = normal(rows, width)
    yield case(
        "softmax, 4096×1024",
        draw(x),
        lambda lib, x: lib.nn.softmax(x),
        torch=lambda t, x: t.softmax(x, -1),
    )
    yield case(
        "softmax, 100000×10",
        draw(normal(*(100_000, 10) if full else (9, 3))),
        lambda lib, x: lib.nn.softmax(x),
        torch=lambda t, x: t.softmax(x, -1),
    )
    yield case(
        "softmax, 16×262144",
        draw(normal(*((16, 1 << 18) if full else (2, 64)))),
        lambda lib, x: lib.nn.softmax(x),
        torch=lambda t, x: t.softmax(x, -1),
    )
    yield case(
        "softmax of columns, 4096×1024",
        draw(x),
        lambda lib, x: lib.nn.softmax(x, axis=0),
        torch=lambda t, x: t.softmax(x, 0),
    )
    yield case(
        "log of the sum of exponentials, 4096×1024",
        draw(x),
        lambda lib, x: lib.nn.logsumexp(x, axis=-1),
        torch=lambda t, x: t.logsumexp(x, -1),
    )
    weights = draw(x, normal(width), normal(width))
    yield case("layer norm, 4096×1024", weights, layer_norm, torch=torch_layer_norm, numpy=True)
    yield case(
        "RMS norm, 4096×1024",
        draw(x, normal(width)),
        _rms_norm,
        numpy=True,
        torch=lambda t, x, w: t.nn.functional.rms_norm(x, (x.shape[-1],), w, 1e-5),
    )
    yield case(
        "layer norm forward and backward, 4096×1024",
        draw(x, normal(width), normal(width), x),
        _layer_norm_grad,
        torch_make=gradients(_torch_layer_norm_loss, 0, 1, 2),
    )
    yield case(
        "cross entropy forward and backward, 4096×1024",
        draw(x, integers(0, width, rows)),
        _cross_entropy_grad,
        torch_long=True,
        torch_make=gradients(lambda t, x, y: t.nn.functional.cross_entropy(x, y), 0),
    )


def layer_norm(lib, x, scale, shift):
    """Layer norm over the last axis."""
    np = lib.np
    mean = np.mean(x, axis=-1, keepdims=True)
    variance = np.mean((x - mean) ** 2, axis=-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + 1e-5) * scale + shift


def torch_layer_norm(t, x, scale, shift):
    """Layer norm over the last axis."""
    return t.nn.functional.layer_norm(x, (x.shape[-1],), scale, shift, 1e-5)


def _rms_norm(lib, x, scale):
    np = lib.np
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + 1e-5) * scale


def _layer_norm_grad(lib, x, scale, shift, seed):
    def loss(x, scale, shift):
        return lib.np.sum(layer_norm(lib, x, scale, shift) * seed)

    return lib.value_and_grad(loss, argnums=(0, 1, 2))(x, scale, shift)


def _torch_layer_norm_loss(t, x, scale, shift, seed):
    return t.sum(torch_layer_norm(t, x, scale, shift) * seed)


def cross_entropy(lib, logits, labels):
    """The mean negative log probability of the labels."""
    picked = lib.np.take_along_axis(lib.nn.log_softmax(logits), labels[..., None], axis=-1)
    return -lib.np.mean(picked)


def _cross_entropy_grad(lib, x, labels):
    return lib.value_and_grad(lambda x: cross_entropy(lib, x, labels))(x)
