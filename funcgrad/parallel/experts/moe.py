"""A mixture of experts, on one device or with experts spread over many.

Tokens go to the devices of their experts and come back, by two all-to-alls; there, each expert's
rows lie together and are multiplied by its matrices in one grouped product (Lepikhin et al.,
"GShard", 2020; Gale et al., "MegaBlocks", 2022).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import dtypes, lax, nn, tree
from funcgrad.core.types import AxisName
from funcgrad.errors import ArgumentError, DTypeError, ShapeError
from funcgrad.parallel.attention.arguments import size_of
from funcgrad.parallel.experts.dispatch import bins_of, emptied, filled
from funcgrad.parallel.experts.routing import MoeStats, Routes, over_devices, route

# apply(experts, rows, sizes) → rows: what experts do with their rows
Apply = Callable[[Any, Any, Any], Any]


def expert_mlp(
    experts: Any, rows: Any, sizes: Any, activation: Callable[[Any], Any] = nn.silu
) -> Any:
    """Two layers for each expert: activation(rows · up) · down; with a gate,
    (activation(rows · gate) ⊙ rows · up) · down.

    experts: {"up": (E, D, F), "down": (E, F, D)}, perhaps "gate": (E, D, F); rows: (R, D), of
    which the first sizes[0] are those of the first expert, and so on; sizes: int32 (E,). Rows
    behind them give 0.

    >>> from funcgrad.parallel import expert_mlp
    >>> experts = {"up": fnp.ones((2, 3, 4)), "down": fnp.ones((2, 4, 3))}
    >>> expert_mlp(experts, fnp.ones((4, 3)), fnp.array([1, 2])).shape
    (4, 3)
    """
    hidden = lax.ragged_dot(rows, experts["up"], sizes)
    if "gate" in experts:
        hidden = activation(lax.ragged_dot(rows, experts["gate"], sizes)) * hidden
    else:
        hidden = activation(hidden)
    return lax.ragged_dot(hidden, experts["down"], sizes)


def moe(
    x: Any,
    router: Any,
    experts: Any,
    *,
    axis: AxisName | None = "ep",
    top_k: int,
    capacity_factor: float | None = None,
    score: str = "softmax",
    bias: Any = None,
    normalize: bool = False,
    apply: Apply = expert_mlp,
) -> tuple[Any, MoeStats]:
    """(y, stats): each token's sum of gate · expert(token) over its `top_k` experts.

    x: (…, D), this device's tokens; router: (D, E), the same on all devices; experts: a pytree
    whose leaves have the experts as first axis, and `apply(experts, rows, sizes)` what they do with
    rows grouped by expert, as `expert_mlp`. axis: a mesh axis of n devices, inside `shard_map`, of
    which device i has experts i·E/n … and tokens of its own; None: all is on this device. y: as x.

    Scores are in float32, softmax over experts or a sigmoid for each. Of score + bias (E,) the
    greatest are chosen, among equal ones the first; gates are the scores alone, with `normalize`
    divided by their sum. `moe_bias_update` moves the bias, `stats` (`MoeStats`) has the loads, and
    losses that do the same.

    capacity_factor: an expert takes ⌈capacity_factor · T·k / E⌉ choices of each device's T tokens,
    in the order of tokens; what is beyond is dropped: it adds 0. None: nothing is; then a device
    needs room for all that the others might send, n · T·k rows, but computes only what came.

    Two all-to-alls of rows are sent, and, where nothing is dropped, one of counts. Raises
    ShardingError where the axis is none of a `shard_map` around it, ShapeError, DTypeError and
    ArgumentError where arguments don't fit.

    >>> from funcgrad.parallel import moe
    >>> keys = random.split(random.key(0), 4)
    >>> x, router = random.normal(keys[0], (6, 4)), random.normal(keys[1], (4, 3))
    >>> experts = {
    ...     "up": random.normal(keys[2], (3, 4, 8)),
    ...     "down": random.normal(keys[3], (3, 8, 4)),
    ... }
    >>> y, stats = moe(x, router, experts, axis=None, top_k=2)
    >>> y.shape, int(stats.load.sum()), int(stats.dropped)
    ((6, 4), 12, 0)
    """
    x, router = fnp.asarray(x), fnp.asarray(router)
    devices = 1 if axis is None else size_of("moe", "axis", axis)
    _check(x, router, experts, devices, top_k, capacity_factor, score, bias)
    tokens = x.reshape(-1, x.shape[-1])
    routes = route(tokens, router, top_k, score, bias, normalize, axis)
    key = routes.experts.reshape(-1)
    order = fnp.argsort(key, stable=True).astype(np.int32)
    if capacity_factor is None:
        y, dropped = _dropless(tokens, key, order, routes, experts, axis, devices, apply)
    else:
        share = Fraction(capacity_factor).limit_denominator(10**6)
        size = math.ceil(share * key.size / router.shape[1])
        y, dropped = _capped(tokens, key, order, routes, experts, axis, size, apply)
    load, dropped = (over_devices(axis, n)[0] for n in (routes.counts, dropped))
    stats = MoeStats(load, dropped, routes.balance_loss, routes.z_loss)
    return y.astype(x.dtype).reshape(x.shape), stats


# ---- both ways to send tokens


def _capped(
    tokens: Any, key: Any, order: Any, routes: Routes, experts: Any, axis: AxisName | None,
    size: int, apply: Apply,
) -> tuple[Any, Any]:  # fmt: skip
    """A bin is an expert's."""
    n, d = routes.counts.shape[0], tokens.shape[1]
    bins = bins_of(key, order, n, size)
    rows = _exchange(filled(bins, tokens, routes.gates.shape[1]), axis)
    own = tree.leaves(experts)[0].shape[0]
    # From (device, expert, place) to (expert, device, place), and back.
    grouped = fnp.swapaxes(rows.reshape(n // own, own, size, d), 0, 1)
    sizes = fnp.full(own, n // own * size, np.int32)
    out = apply(experts, grouped.reshape(-1, d), sizes)
    out = fnp.swapaxes(out.reshape(own, n // own, size, -1), 0, 1)
    back = _exchange(out.reshape(n, size, -1), axis)
    dropped = fnp.sum(fnp.maximum(bins.counts - size, 0))
    return emptied(bins, back, routes.gates), dropped


def _dropless(
    tokens: Any, key: Any, order: Any, routes: Routes, experts: Any, axis: AxisName | None,
    devices: int, apply: Apply,
) -> tuple[Any, Any]:  # fmt: skip
    """A bin is a device's, with room for all choices; in it, rows are in the order of experts."""
    own = tree.leaves(experts)[0].shape[0]
    bins = bins_of(key // own, order, devices, key.size)
    rows = _exchange(filled(bins, tokens, routes.gates.shape[1]), axis)
    counts = _exchange(routes.counts.reshape(devices, own), axis)
    # The expert of each row that came; rows that are none come last.
    ends = fnp.cumsum(counts, axis=1)
    places = fnp.arange(key.size, dtype=np.int32)
    expert = fnp.sum(places[None, :, None] >= ends[:, None, :], axis=2).reshape(-1)
    by_expert = fnp.argsort(expert, stable=True)
    flat = rows.reshape(-1, rows.shape[2])
    out = apply(experts, flat[by_expert], fnp.sum(counts, axis=0).astype(np.int32))
    back = out[fnp.argsort(by_expert)].reshape(devices, key.size, -1)
    return emptied(bins, _exchange(back, axis), routes.gates), fnp.int32(0)


def _exchange(x: Any, axis: AxisName | None) -> Any:
    """Each device's part of the first axis to that device."""
    return x if axis is None else lax.all_to_all(x, axis, 0, 0, tiled=True)


# ---- checks


def _check(
    x: Any, router: Any, experts: Any, devices: int, top_k: int, capacity_factor: float | None,
    score: str, bias: Any,
) -> None:  # fmt: skip
    if not dtypes.is_float(x.dtype):
        raise DTypeError(f"moe: x must be of floats, got {x.dtype}")
    if x.ndim < 1 or router.ndim != 2 or router.shape[0] != x.shape[-1]:
        raise ShapeError(f"moe: need x (…, D) and router (D, E), got {x.shape} and {router.shape}")
    n = router.shape[1]
    counts = {leaf.shape[0] if leaf.ndim else 0 for leaf in map(fnp.asarray, tree.leaves(experts))}
    if counts != {n // devices} or n % devices:
        raise ShapeError(
            f"moe: each leaf of experts must have this device's E/n = {n}/{devices} experts as its "
            f"first axis, for router {router.shape} and {devices} devices along the axis; got "
            f"leaves of {sorted(counts)} experts"
        )
    if not isinstance(top_k, int | np.integer) or not 1 <= top_k <= n:
        raise ArgumentError(f"moe: top_k must be of 1 … {n}, the number of experts, got {top_k!r}")
    if capacity_factor is not None and not 0 < capacity_factor < math.inf:
        raise ArgumentError(
            f"moe: capacity_factor must be positive, or None to drop nothing; got {capacity_factor}"
        )
    if score not in ("softmax", "sigmoid"):
        raise ArgumentError(f"moe: score must be 'softmax' or 'sigmoid', got {score!r}")
    if bias is not None and fnp.asarray(bias).shape != (n,):
        raise ShapeError(f"moe: bias must be of shape ({n},), got {fnp.asarray(bias).shape}")
