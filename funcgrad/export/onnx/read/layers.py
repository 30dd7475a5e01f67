"""Convolutions, pools, norms, attention."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from funcgrad import dtypes, lax, nn
from funcgrad import numpy as fnp
from funcgrad.errors import ExportError
from funcgrad.export.onnx.read.elementwise import element_type
from funcgrad.export.onnx.read.graph import Node, known

Pads = list[tuple[int, int]]


# ---- windows


def _pads(node: Node, size: Sequence[int], kernel: Sequence[int], strides: Sequence[int],
          holes: Sequence[int]) -> Pads:  # fmt: skip
    """The border of each spatial axis: given, or as much as keeps n / stride results."""
    rank = len(size)
    auto = node.get("auto_pad", "NOTSET")
    if auto in ("NOTSET", "VALID"):
        flat = node.get("pads") if auto == "NOTSET" else None
        flat = [0] * 2 * rank if flat is None else flat
        return list(zip(flat[:rank], flat[rank:], strict=True))
    out = []
    for n, k, s, d in zip(size, kernel, strides, holes, strict=True):
        total = max((-(-n // s) - 1) * s + (k - 1) * d + 1 - n, 0)
        low = total // 2 if auto == "SAME_UPPER" else total - total // 2
        out.append((low, total - low))
    return out


def convolved(node: Node, x: Any, w: Any, b: Any = None) -> Any:
    """A convolution, channels first, with the node's strides, holes and border."""
    rank = x.ndim - 2
    strides = node.get("strides") or [1] * rank
    holes = node.get("dilations") or [1] * rank
    pads = _pads(node, x.shape[2:], w.shape[2:], strides, holes)
    out = lax.conv_general_dilated(
        x, w, strides, pads, rhs_dilation=holes, feature_group_count=node.get("group", 1)
    )
    return out if b is None else out + fnp.reshape(b, (-1,) + (1,) * rank)


def _conv_transpose(node: Node, x: Any, w: Any, b: Any = None) -> Any:
    rank = x.ndim - 2
    strides = node.get("strides") or [1] * rank
    holes = node.get("dilations") or [1] * rank
    more = node.get("output_padding") or [0] * rank
    groups = node.get("group", 1)
    kernel = w.shape[2:]
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, holes, strict=True)]
    size = x.shape[2:]
    auto = node.get("auto_pad", "NOTSET")
    flat = node.get("pads") or [0] * 2 * rank
    cut = list(zip(flat[:rank], flat[rank:], strict=True))
    wanted = node.get("output_shape")
    if wanted is None and auto in ("SAME_UPPER", "SAME_LOWER"):
        wanted = [n * s for n, s in zip(size, strides, strict=True)]
    if wanted is not None:
        cut = []
        for n, s, r, m, want in zip(size, strides, reach, more, wanted[-rank:], strict=True):
            total = (n - 1) * s + m + r - want
            if total < 0:  # more than there is, behind
                cut.append((0, total))
                continue
            low = total // 2 if auto == "SAME_UPPER" else total - total // 2
            cut.append((low, total - low) if auto != "NOTSET" else (total // 2, total - total // 2))
    c, each = w.shape[:2]
    # Features in groups: in × out of each group become out × in, flipped.
    w = fnp.reshape(w, (groups, c // groups, each, *kernel))
    w = fnp.reshape(fnp.swapaxes(w, 1, 2), (groups * each, c // groups, *kernel))
    w = fnp.flip(w, tuple(range(2, 2 + rank)))
    pads = [(r - 1 - a, r - 1 - z + m) for r, (a, z), m in zip(reach, cut, more, strict=True)]
    out = lax.conv_general_dilated(
        x, w, [1] * rank, pads, lhs_dilation=strides, rhs_dilation=holes,
        feature_group_count=groups,
    )  # fmt: skip
    return out if b is None else out + fnp.reshape(b, (-1,) + (1,) * rank)


def _pool_geometry(node: Node, x: Any) -> tuple:
    rank = x.ndim - 2
    kernel = list(node.get("kernel_shape"))
    strides = node.get("strides") or [1] * rank
    holes = node.get("dilations") or [1] * rank
    pads = _pads(node, x.shape[2:], kernel, strides, holes)
    counted = list(pads)
    if node.get("ceil_mode", 0):
        for i, (low, high) in enumerate(pads):
            reach = (kernel[i] - 1) * holes[i] + 1
            n = x.shape[2 + i] + low + high
            steps = -(-(n - reach) // strides[i])
            if steps * strides[i] >= x.shape[2 + i] + low:  # a window of padding alone
                steps -= 1
            counted[i] = (low, max(high, high + steps * strides[i] + reach - n))
    return kernel, strides, holes, pads, counted


def _windowed(x: Any, init: Any, combine: Callable, geometry: tuple, pads: Pads) -> Any:
    kernel, strides, holes, *_ = geometry
    return lax.reduce_window(
        x, init, combine, (1, 1, *kernel), (1, 1, *strides), [(0, 0), (0, 0), *pads],
        window_dilation=(1, 1, *holes),
    )  # fmt: skip


def _max_pool(node: Node, x: Any) -> Any:
    geometry = _pool_geometry(node, x)
    low = -np.inf if dtypes.is_float(x.dtype) else int(dtypes.iinfo(x.dtype).min)
    init = np.asarray(low, x.dtype)
    out = _windowed(x, init, lax.max, geometry, geometry[4])
    if len(node.outs) < 2 or not node.outs[1]:
        return [out]
    return [out, _places(node, x, geometry, out.shape)]


def _places(node: Node, x: Any, geometry: tuple, shape: Sequence[int]) -> Any:
    """Where each window's maximum is in the whole tensor, in row-major order."""
    kernel, strides, holes, _, pads = geometry
    low = -np.inf if dtypes.is_float(x.dtype) else int(dtypes.iinfo(x.dtype).min)
    wide = [(0, 0), (0, 0), *pads]
    y = fnp.pad(x, wide, constant_values=np.asarray(low, x.dtype))
    size = x.shape[2:]
    order = list(range(len(size)))
    if node.get("storage_order", 0):
        order = order[::-1]
    steps = np.ones(len(size), np.int64)
    for i, j in itertools.pairwise(order[::-1]):
        steps[j] = steps[i] * size[i]
    places = sum(
        (np.arange(n) * int(t)).reshape([-1 if k == i else 1 for k in range(len(size))])
        for i, (n, t) in enumerate(zip(size, steps, strict=True))
    )
    images = np.arange(math.prod(x.shape[:2])).reshape(*x.shape[:2], *[1] * len(size))
    numbers = np.pad(np.broadcast_to(images * math.prod(size) + places, x.shape), wide)
    best = at = None
    for offsets in np.ndindex(*kernel):
        cut: Any = tuple(
            slice(o * d, o * d + (n - 1) * s + 1, s)
            for o, d, n, s in zip(offsets, holes, shape[2:], strides, strict=True)
        )
        value, number = y[(..., *cut)], numbers[(..., *cut)]
        if best is None:
            best, at = value, fnp.asarray(number)
        else:
            better = value > best
            best, at = fnp.where(better, value, best), fnp.where(better, number, at)
    return at


def _average_pool(node: Node, x: Any) -> Any:
    geometry = _pool_geometry(node, x)
    zero = np.zeros((), x.dtype)
    total = _windowed(x, zero, lax.add, geometry, geometry[4])
    ones = np.ones((1, 1, *x.shape[2:]), x.dtype)
    pads, counted = geometry[3], geometry[4]
    if node.get("count_include_pad", 0):
        ones = np.pad(ones, [(0, 0), (0, 0), *pads], constant_values=1)
        counted = [(0, b - p) for (_, b), (_, p) in zip(counted, pads, strict=True)]
    number = _windowed(fnp.asarray(ones), zero, lax.add, geometry, counted)
    return (total / number).astype(x.dtype)


def _lp_pool(node: Node, x: Any) -> Any:
    geometry, p = _pool_geometry(node, x), node.get("p", 2)
    powers = fnp.power(fnp.abs(x), p)
    total = _windowed(powers, np.zeros((), x.dtype), lax.add, geometry, geometry[4])
    return fnp.power(total, 1.0 / p).astype(x.dtype)


def _global_lp_pool(node: Node, x: Any) -> Any:
    p, axes = node.get("p", 2), tuple(range(2, x.ndim))
    total = fnp.sum(fnp.power(fnp.abs(x), p), axis=axes, keepdims=True)
    return fnp.power(total, 1.0 / p).astype(x.dtype)


def _global(function: Callable) -> Callable:
    return lambda node, x: function(x, axis=tuple(range(2, x.ndim)), keepdims=True)


# ---- norms


def _batch_norm(node: Node, x: Any, scale: Any, bias: Any, mean: Any, var: Any) -> Any:
    line = (-1,) + (1,) * (x.ndim - 2)
    outs = []
    if node.get("training_mode", 0):
        axes = (0, *range(2, x.ndim))
        keep = node.get("momentum", 0.9)
        now, spread = fnp.mean(x, axis=axes), fnp.var(x, axis=axes)
        outs = [keep * mean + (1 - keep) * now, keep * var + (1 - keep) * spread]
        mean, var = now, spread
    shaped = [fnp.reshape(v, line) for v in (scale, bias, mean, var)]
    y = (x - shaped[2]) / fnp.sqrt(shaped[3] + node.get("epsilon", 1e-5)) * shaped[0] + shaped[1]
    return [y.astype(x.dtype), *outs]


def _standard(x: Any, axes: Sequence[int], eps: float) -> tuple:
    mean = fnp.mean(x, axis=tuple(axes), keepdims=True)
    var = fnp.mean(fnp.square(x - mean), axis=tuple(axes), keepdims=True)
    scale = 1 / fnp.sqrt(var + eps)
    return (x - mean) * scale, mean, scale


def _instance_norm(node: Node, x: Any, scale: Any, bias: Any) -> Any:
    line = (-1,) + (1,) * (x.ndim - 2)
    y, _, _ = _standard(x, range(2, x.ndim), node.get("epsilon", 1e-5))
    return y * fnp.reshape(scale, line) + fnp.reshape(bias, line)


def _layer_norm(node: Node, x: Any, scale: Any, bias: Any = None) -> Any:
    axis = node.get("axis", -1) % x.ndim
    wide = x.astype(element_type(node.get("stash_type", 1)))
    y, mean, inverse = _standard(wide, range(axis, x.ndim), node.get("epsilon", 1e-5))
    y = y.astype(x.dtype) * scale
    return [y if bias is None else y + bias, mean, inverse]


def _rms_norm(node: Node, x: Any, scale: Any) -> Any:
    axis = node.get("axis", -1) % x.ndim
    wide = x.astype(element_type(node.get("stash_type", 1)))
    square = fnp.mean(fnp.square(wide), axis=tuple(range(axis, x.ndim)), keepdims=True)
    y = wide / fnp.sqrt(square + node.get("epsilon", 1e-5))
    return y.astype(x.dtype) * scale


def _group_norm(node: Node, x: Any, scale: Any, bias: Any) -> Any:
    n, _, *size = x.shape
    groups = node.get("num_groups")
    y = fnp.reshape(x, (n, groups, -1))
    y, _, _ = _standard(y, [2], node.get("epsilon", 1e-5))
    if node.opset < 21:  # one number a group
        y = y * fnp.reshape(scale, (1, -1, 1)) + fnp.reshape(bias, (1, -1, 1))
        return fnp.reshape(y, x.shape)
    y = fnp.reshape(y, x.shape)
    line = (-1,) + (1,) * len(size)
    return y * fnp.reshape(scale, line) + fnp.reshape(bias, line)


def _lrn(node: Node, x: Any) -> Any:
    n = node.get("size")
    alpha, beta, bias = node.get("alpha", 1e-4), node.get("beta", 0.75), node.get("bias", 1.0)
    before = (n - 1) // 2
    pads = [(0, 0), (before, n - 1 - before)] + [(0, 0)] * (x.ndim - 2)
    window = (1, n) + (1,) * (x.ndim - 2)
    total = lax.reduce_window(
        fnp.square(x), np.zeros((), x.dtype), lax.add, window, (1,) * x.ndim, pads
    )
    return x / fnp.power(bias + alpha / n * total, beta)


def _lp_norm(node: Node, x: Any) -> Any:
    axis, p = node.get("axis", -1), node.get("p", 2)
    size = fnp.sum(fnp.abs(x), axis, keepdims=True) if p == 1 else fnp.sqrt(
        fnp.sum(fnp.square(x), axis, keepdims=True)
    )  # fmt: skip
    return fnp.where(size == 0, 0, x / fnp.where(size == 0, 1, size)).astype(x.dtype)


def _mean_variance(node: Node, x: Any) -> Any:
    axes = tuple(node.get("axes", [0, 2, 3]))
    mean = fnp.mean(x, axis=axes, keepdims=True)
    var = fnp.mean(fnp.square(x), axis=axes, keepdims=True) - fnp.square(mean)
    return (x - mean) / (fnp.sqrt(var) + 1e-9)


def _dropout(node: Node, x: Any, ratio: Any = None, training: Any = None) -> Any:
    if training is not None and bool(known(training, "training_mode").item()):
        if ratio is not None and float(known(ratio, "ratio").item()) == 0:
            return [x, fnp.ones(x.shape, bool)]
        raise ExportError("from_onnx: a Dropout in training mode draws numbers without a key")
    return [x, fnp.ones(x.shape, bool)]


# ---- attention


def _rotary(node: Node, x: Any, cos: Any, sin: Any, places: Any = None) -> Any:
    flat = x.ndim == 3
    if flat:
        b, s, width = x.shape
        heads = node.get("num_heads")
        x = fnp.swapaxes(fnp.reshape(x, (b, s, heads, width // heads)), 1, 2)
    d = node.get("rotary_embedding_dim", 0) or x.shape[-1]
    kept, x = x[..., d:], x[..., :d]
    if places is not None:
        cos, sin = fnp.take(cos, places, axis=0), fnp.take(sin, places, axis=0)
    cos, sin = fnp.expand_dims(cos, 1), fnp.expand_dims(sin, 1)
    if node.get("interleaved", 0):
        a, b_ = x[..., 0::2], x[..., 1::2]
        turned = fnp.stack([a * cos - b_ * sin, a * sin + b_ * cos], -1)
        turned = fnp.reshape(turned, x.shape)
    else:
        a, b_ = fnp.split(x, 2, axis=-1)
        turned = fnp.concatenate([a * cos - b_ * sin, a * sin + b_ * cos], -1)
    out = fnp.concatenate([turned, kept], -1)
    if flat:
        out = fnp.swapaxes(out, 1, 2)
        out = fnp.reshape(out, (*out.shape[:2], -1))
    return out.astype(x.dtype)


def _attention(
    node: Node, q: Any, k: Any, v: Any, mask: Any = None, past_k: Any = None, past_v: Any = None,
    lengths: Any = None,
) -> Any:  # fmt: skip
    flat = q.ndim == 3
    if flat:

        def heads(x: Any, n: int) -> Any:
            return fnp.swapaxes(fnp.reshape(x, (*x.shape[:2], n, -1)), 1, 2)

        q = heads(q, node.get("q_num_heads"))
        k, v = (heads(x, node.get("kv_num_heads")) for x in (k, v))
    past = 0 if past_k is None else past_k.shape[2]
    k = k if past_k is None else fnp.concatenate([past_k, k], 2)
    v = v if past_v is None else fnp.concatenate([past_v, v], 2)
    present = [k, v]
    groups = q.shape[1] // k.shape[1]
    if groups > 1:
        k, v = fnp.repeat(k, groups, axis=1), fnp.repeat(v, groups, axis=1)
    root = math.sqrt(node.get("scale", 1 / math.sqrt(q.shape[-1])))
    scores = fnp.matmul(q * root, fnp.swapaxes(k, -1, -2) * root).astype(q.dtype)
    bias = _mask(node, q, k, mask, past, lengths)
    cap, when = node.get("softcap", 0.0), node.get("qk_matmul_output_mode", 0)
    capped = cap * fnp.tanh(scores / cap) if cap else scores
    biased = capped if bias is None else capped + bias
    kind = node.get("softmax_precision")
    wide = biased if kind is None else biased.astype(element_type(kind))
    # A row that may read nothing reads nothing.
    some = fnp.max(wide, axis=-1, keepdims=True) > -np.inf
    weights = nn.softmax(fnp.where(some, wide, 0), axis=-1)
    weights = fnp.where(some, weights, 0).astype(q.dtype)
    taps = [scores, capped, biased, weights]
    out = fnp.matmul(weights, v)
    if flat:
        out = fnp.swapaxes(out, 1, 2)
        out = fnp.reshape(out, (*out.shape[:2], -1))
    return [out.astype(q.dtype), *present, taps[when]]


def _mask(node: Node, q: Any, k: Any, mask: Any, past: int, lengths: Any) -> Any:
    bias = None
    rows, columns = q.shape[2], k.shape[2]
    if mask is not None:
        bias = fnp.where(mask, 0, -np.inf).astype(q.dtype) if mask.dtype == np.bool_ else mask
        if mask.shape[-1] < columns:
            pads = [(0, 0)] * (mask.ndim - 1) + [(0, columns - mask.shape[-1])]
            bias = fnp.pad(bias, pads, constant_values=-np.inf)
    places = fnp.arange(columns)
    first = past if lengths is None else fnp.reshape(lengths - rows, (-1, 1, 1, 1))
    own = fnp.arange(rows)[:, None] + first
    left, right = node.get("left_window_size", -1), node.get("right_window_size", -1)
    right = 0 if node.get("is_causal", 0) else right
    allowed = [places <= own + right] if right >= 0 else []
    allowed += [places >= own - left] if left >= 0 else []
    if lengths is not None:
        allowed.append(places < fnp.reshape(lengths, (-1, 1, 1, 1)))
    for ok in allowed:
        more = fnp.where(ok, 0, -np.inf).astype(q.dtype)
        bias = more if bias is None else bias + more
    return bias


RULES: dict[str, Callable] = {
    "Attention": _attention, "AveragePool": _average_pool, "BatchNormalization": _batch_norm,
    "Conv": convolved, "ConvTranspose": _conv_transpose, "Dropout": _dropout,
    "GlobalAveragePool": _global(fnp.mean), "GlobalLpPool": _global_lp_pool,
    "GlobalMaxPool": _global(fnp.max),
    "GroupNormalization": _group_norm, "InstanceNormalization": _instance_norm, "LRN": _lrn,
    "LayerNormalization": _layer_norm, "LpNormalization": _lp_norm, "LpPool": _lp_pool,
    "MaxPool": _max_pool, "MeanVarianceNormalization": _mean_variance,
    "RMSNormalization": _rms_norm, "RotaryEmbedding": _rotary,
}  # fmt: skip
