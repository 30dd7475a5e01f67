"""Which experts a token goes to, and how loads are kept even.

Scores are computed in float32. A bias may move the choice, but not the gates, so that loads can be
balanced without a loss (Wang et al., "Auxiliary-Loss-Free Load Balancing", 2024); the loss of Fedus
et al., "Switch Transformers", 2021, and the z-loss of Zoph et al., "ST-MoE", 2022, are there, too.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import lax, nn
from funcgrad.core.types import AxisName
from funcgrad.errors import ShapeError


class MoeStats(NamedTuple):
    """What a layer's routing did, over all of its devices' tokens.

    load: int32 (E,), how often each expert was chosen; dropped: int32, how many of these choices
    had no place; balance_loss: E·Σ (share of choices)·(mean score) of the experts, 1 if all are
    even; z_loss: the mean square of logsumexp(logits). Both losses have gradients.
    """

    load: Any
    dropped: Any
    balance_loss: Any
    z_loss: Any


class Routes(NamedTuple):
    """experts: int32 (T, k), the experts of each token; gates: float32 (T, k), how much of each
    one's result it gets; counts: int32 (E,), how often each expert was chosen."""

    experts: Any
    gates: Any
    counts: Any
    balance_loss: Any
    z_loss: Any


def route(
    x: Any, router: Any, top_k: int, score: str, bias: Any, normalize: bool, axis: AxisName | None
) -> Routes:
    """The routes of tokens x (T, D) by a router (D, E)."""
    logits = fnp.matmul(x.astype(np.float32), router.astype(np.float32))
    scores = nn.softmax(logits) if score == "softmax" else nn.sigmoid(logits)
    wanted = lax.stop_gradient(scores)
    if bias is not None:
        wanted = wanted + lax.stop_gradient(fnp.asarray(bias).astype(np.float32))
    experts = lax.top_k(wanted, top_k)[1].astype(np.int32)
    gates = fnp.take_along_axis(scores, experts, axis=1)
    if normalize:
        # Sigmoids of experts that nobody wants may all be 0.
        gates = gates / (fnp.sum(gates, axis=1, keepdims=True) + 1e-20)
    n = logits.shape[1]
    counts = fnp.bincount(experts.reshape(-1), length=n).astype(np.int32)
    shares = scores / fnp.sum(scores, axis=1, keepdims=True)
    mean_share, z_loss = fnp.mean(shares, axis=0), fnp.mean(nn.logsumexp(logits, axis=1) ** 2)
    load, mean_share, z_loss = over_devices(axis, counts, mean_share, z_loss)
    balance_loss = n * fnp.sum(load / fnp.sum(load) * mean_share)
    return Routes(experts, gates, counts, balance_loss, z_loss)


def over_devices(axis: AxisName | None, count: Any, *means: Any) -> list:
    """A count summed and means taken over the devices of an axis, if there is one."""
    if axis is None:
        return [count, *means]
    return [lax.psum(count, axis), *(lax.pmean(m, axis) for m in means)]


def moe_bias_update(bias: Any, load: Any, rate: float = 1e-3) -> Any:
    """The bias of `moe` after a step: larger for experts with less than the mean load.

    bias: (E,); load: (E,), of all devices' tokens, as `MoeStats` has it. Each expert's bias goes
    `rate` up or down, and their mean stays. Raises ShapeError where sizes differ.

    >>> from funcgrad.parallel import moe_bias_update
    >>> moe_bias_update(fnp.zeros(4), fnp.array([9, 1, 1, 1]), rate=0.5)
    Array([-0.75,  0.25,  0.25,  0.25], dtype=float32)
    """
    bias, load = fnp.asarray(bias), fnp.asarray(load).astype(np.float32)
    if bias.ndim != 1 or bias.shape != load.shape:
        raise ShapeError(
            f"moe_bias_update: bias and load must be of one shape (E,), got {bias.shape} and "
            f"{load.shape}"
        )
    change = rate * fnp.sign(fnp.mean(load) - load)
    return bias + (change - fnp.mean(change)).astype(bias.dtype)
