"""Steps that keep updates or parameters within bounds: by element, by norm, without NaN."""

from __future__ import annotations

from typing import Any, NamedTuple

import funcgrad.numpy as fnp
from funcgrad import tree
from funcgrad.optim.base import (
    GradientTransformation,
    abs_square,
    global_norm,
    stateless,
    wide,
    with_parameters,
)
from funcgrad.optim.moments import each_wide


def clip(max_delta: float) -> GradientTransformation:
    """Clip each element of the updates to [-max_delta, max_delta].

    >>> from funcgrad import optim
    >>> print(optim.clip(1.0).update(5.0, optim.EmptyState())[0])
    1.0
    """
    return stateless(
        lambda updates, params: tree.map(lambda u: fnp.clip(u, -max_delta, max_delta), updates)
    )


def clip_by_global_norm(max_norm: float) -> GradientTransformation:
    """Scale all updates down together where their joint norm exceeds max_norm.

    Source: Pascanu et al., "On the difficulty of training recurrent neural networks", 2013.

    >>> from funcgrad import optim
    >>> out, _ = optim.clip_by_global_norm(1.0).update([3.0, 4.0], optim.EmptyState())
    >>> print(out[0], out[1])
    0.6 0.8
    """

    def clipped(updates: Any, params: Any) -> Any:
        norm = global_norm(updates)
        # max_norm / max_norm = 1 leaves small updates exactly as they are.
        factor = max_norm / fnp.maximum(norm, max_norm)
        return tree.map(lambda u: u * fnp.asarray(factor, fnp.asarray(u).dtype), updates)

    return stateless(clipped)


def clip_by_block_rms(threshold: float) -> GradientTransformation:
    """Scale each leaf's update down where its root mean square exceeds the threshold.

    Source: Shazeer & Stern, "Adafactor", 2018.

    >>> from funcgrad import optim
    >>> print(optim.clip_by_block_rms(1.0).update(fnp.array([3.0, 3.0]), optim.EmptyState())[0])
    [1. 1.]
    """

    def clipped(dtype: Any, u: Any) -> Any:
        return u / fnp.maximum(1.0, root_mean_square(u) / threshold)

    return stateless(lambda updates, params: each_wide(clipped, updates))


def root_mean_square(x: Any) -> Any:
    """The root of the mean of |x|², 0 where there is nothing.

    >>> print(root_mean_square(fnp.array([3.0, -3.0])))
    3.0
    """
    return fnp.sqrt(fnp.mean(abs_square(x))) if fnp.size(x) else fnp.zeros((), fnp.real(x).dtype)


def adaptive_grad_clip(
    clipping: float, eps: float = 1e-3, axis: int | tuple[int, ...] | None = None
) -> GradientTransformation:
    """Scale updates down where a unit's norm exceeds `clipping` times that of its parameters.

    A unit is what goes into one output: a whole vector, a column of a matrix, all but the last axis
    of a convolution's kernel; or what lies along `axis`. eps: the least norm of parameters.
    Source: Brock et al., "High-Performance Large-Scale Image Recognition Without Normalization",
    2021.

    >>> from funcgrad import optim
    >>> step = optim.adaptive_grad_clip(0.1)
    >>> print(step.update(fnp.array([3.0, 4.0]), step.init(None), fnp.array([0.6, 0.8]))[0])
    [0.06 0.08]
    """

    def clipped(dtype: Any, u: Any, p: Any) -> Any:
        norm = _unit_norm(u, axis)
        most = clipping * fnp.maximum(_unit_norm(p, axis), eps)
        return fnp.where(norm < most, u, u * (most / fnp.maximum(norm, 1e-6)))

    return with_parameters("adaptive_grad_clip", lambda updates, p: each_wide(clipped, updates, p))


def _unit_norm(x: Any, axis: int | tuple[int, ...] | None) -> Any:
    """The norm of each unit of a leaf, with its axes kept."""
    over: Any = axis
    if axis is None and sum(n > 1 for n in x.shape) > 1:
        if x.ndim > 5:
            raise ValueError(
                f"adaptive_grad_clip: a leaf of shape {x.shape} has no units by itself; "
                "say along which axes their norms are, by axis="
            )
        over = 0 if x.ndim < 4 else tuple(range(x.ndim - 1))
    return fnp.sqrt(fnp.sum(abs_square(x), axis=over, keepdims=True))


class ZeroNansState(NamedTuple):
    """For each leaf, whether its last update had a NaN."""

    found_nan: Any


def zero_nans() -> GradientTransformation:
    """0 in place of NaN; the state says which leaves had one.

    >>> from funcgrad import optim
    >>> step = optim.zero_nans()
    >>> out, state = step.update(fnp.array([1.0, fnp.nan]), step.init(fnp.zeros(2)))
    >>> print(out, state.found_nan)
    [1. 0.] True
    """

    def init(params: Any) -> ZeroNansState:
        return ZeroNansState(tree.map(lambda p: fnp.zeros((), bool), params))

    def update(updates: Any, state: ZeroNansState, params: Any = None) -> tuple:
        found = tree.map(lambda u: fnp.any(fnp.isnan(u)), updates)
        return tree.map(lambda u: fnp.where(fnp.isnan(u), 0, u), updates), ZeroNansState(found)

    return GradientTransformation(init, update)


def keep_params_nonnegative() -> GradientTransformation:
    """Updates that bring no parameter below 0: the last step of a chain.

    >>> from funcgrad import optim
    >>> step = optim.keep_params_nonnegative()
    >>> print(step.update(fnp.array([-3.0, -1.0]), step.init(None), fnp.array([2.0, 2.0]))[0])
    [-2. -1.]
    """

    def kept(updates: Any, params: Any) -> Any:
        return tree.map(lambda u, p: fnp.where(p + u < 0, -p, u), updates, params)

    return with_parameters("keep_params_nonnegative", kept)


def centralize() -> GradientTransformation:
    """Subtract from each row of a matrix (each slice of the first axis) its mean.

    Source: Yong et al., "Gradient Centralization", 2020.

    >>> from funcgrad import optim
    >>> print(optim.centralize().update(fnp.array([[1.0, 3.0]]), optim.EmptyState())[0])
    [[-1.  1.]]
    """

    def centered(u: Any) -> Any:
        u = fnp.asarray(u)
        return u if u.ndim < 2 else u - fnp.mean(u, tuple(range(1, u.ndim)), keepdims=True)

    return stateless(lambda updates, params: tree.map(centered, updates))


def scale_by_sign() -> GradientTransformation:
    """The sign of each element of the updates.

    >>> from funcgrad import optim
    >>> print(optim.scale_by_sign().update(fnp.array([2.0, -3.0]), optim.EmptyState())[0])
    [ 1. -1.]
    """
    return stateless(lambda updates, params: tree.map(fnp.sign, updates))


def normalize_by_update_norm(
    scale_factor: float = 1.0, eps: float = 1e-6
) -> GradientTransformation:
    """Divide all updates by their joint norm (+ eps), times scale_factor.

    >>> from funcgrad import optim
    >>> out, _ = optim.normalize_by_update_norm(eps=0.0).update([3.0, 4.0], optim.EmptyState())
    >>> print(out[0], out[1])
    0.6 0.8
    """

    def normalized(updates: Any, params: Any) -> Any:
        factor = scale_factor / (global_norm(updates) + eps)
        return tree.map(lambda u: u * fnp.asarray(factor, fnp.asarray(u).dtype), updates)

    return stateless(normalized)


def scale_by_param_block_norm(min_scale: float = 1e-3) -> GradientTransformation:
    """Multiply each leaf's update by the norm of its parameters, at least min_scale.

    >>> from funcgrad import optim
    >>> step = optim.scale_by_param_block_norm()
    >>> print(step.update(2.0, step.init(None), fnp.array(3.0))[0])
    6.0
    """
    return with_parameters(
        "scale_by_param_block_norm",
        lambda updates, params: each_wide(
            lambda dtype, u, p: u * fnp.maximum(_norm(p), min_scale), updates, params
        ),
    )


def scale_by_param_block_rms(min_scale: float = 1e-3) -> GradientTransformation:
    """Multiply each leaf's update by the root mean square of its parameters, at least min_scale.

    >>> from funcgrad import optim
    >>> step = optim.scale_by_param_block_rms()
    >>> print(step.update(2.0, step.init(None), fnp.array(3.0))[0])
    6.0
    """
    return with_parameters(
        "scale_by_param_block_rms",
        lambda updates, params: each_wide(
            lambda dtype, u, p: u * fnp.maximum(root_mean_square(p), min_scale), updates, params
        ),
    )


def scale_by_trust_ratio(
    min_norm: float = 0.0, trust_coefficient: float = 1.0, eps: float = 0.0
) -> GradientTransformation:
    """Multiply each leaf's update u by trust_coefficient·‖p‖/(‖u‖ + eps), by 1 where a norm is 0.

    min_norm: the least value of both norms.
    Source: You et al., "Large Batch Optimization for Deep Learning" (LAMB), 2020.

    >>> from funcgrad import optim
    >>> step = optim.scale_by_trust_ratio()
    >>> print(step.update(fnp.array([3.0, 4.0]), step.init(None), fnp.array([0.6, 0.8]))[0])
    [0.6 0.8]
    """

    def scaled(dtype: Any, u: Any, p: Any) -> Any:
        size, length = fnp.maximum(_norm(p), min_norm), fnp.maximum(_norm(u), min_norm)
        none = (size == 0) | (length == 0)
        ratio = trust_coefficient * size / fnp.where(none, 1.0, length + eps)
        return u * fnp.where(none, 1.0, ratio)

    return with_parameters(
        "scale_by_trust_ratio", lambda updates, params: each_wide(scaled, updates, params)
    )


def _norm(x: Any) -> Any:
    return fnp.linalg.norm(fnp.ravel(wide(x)))
