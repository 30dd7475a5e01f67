"""Optimizers: chains of the steps in `updates`."""

from __future__ import annotations

from typing import Any

from funcgrad.optim.adaptive import scale_by_stddev
from funcgrad.optim.base import GradientTransformationExtraArgs, chain, identity
from funcgrad.optim.updates import (
    ScalarOrSchedule,
    add_decayed_weights,
    scale_by_adam,
    scale_by_learning_rate,
    scale_by_lion,
    scale_by_rms,
    scale_by_rss,
    trace,
)


def sgd(
    learning_rate: ScalarOrSchedule,
    momentum: float | None = None,
    nesterov: bool = False,
    accumulator_dtype: Any = None,
) -> GradientTransformationExtraArgs:
    """Stochastic gradient descent, with momentum (kept in accumulator_dtype) if asked for.

    >>> from funcgrad import optim
    >>> opt = optim.sgd(0.1)
    >>> updates, state = opt.update(2.0, opt.init(1.0))
    >>> print(optim.apply_updates(1.0, updates))
    0.8
    """
    moments = identity() if momentum is None else trace(momentum, nesterov, accumulator_dtype)
    return chain(moments, scale_by_learning_rate(learning_rate))


def adam(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    mu_dtype: Any = None,
    nesterov: bool = False,
) -> GradientTransformationExtraArgs:
    """Adam (Kingma & Ba, 2015); see `scale_by_adam`.

    >>> from funcgrad import optim
    >>> opt = optim.adam(0.1)
    >>> print(f"{opt.update(2.0, opt.init(1.0))[0]:.4f}")
    -0.1000
    """
    return chain(
        scale_by_adam(b1, b2, eps, eps_root, mu_dtype, nesterov),
        scale_by_learning_rate(learning_rate),
    )


def adamw(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    mu_dtype: Any = None,
    weight_decay: float = 1e-4,
    mask: Any = None,
    nesterov: bool = False,
) -> GradientTransformationExtraArgs:
    """Adam with decoupled weight decay (Loshchilov & Hutter, 2019).

    mask: a pytree of bools, or a function from parameters to one, of the leaves that decay.

    >>> from funcgrad import optim
    >>> opt = optim.adamw(0.1, weight_decay=0.0)
    >>> print(f"{opt.update(2.0, opt.init(1.0), 1.0)[0]:.4f}")
    -0.1000
    """
    return chain(
        scale_by_adam(b1, b2, eps, eps_root, mu_dtype, nesterov),
        add_decayed_weights(weight_decay, mask),
        scale_by_learning_rate(learning_rate),
    )


def nadam(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    mu_dtype: Any = None,
) -> GradientTransformationExtraArgs:
    """Adam with Nesterov momentum (Dozat, 2016): `adam(…, nesterov=True)`.

    >>> from funcgrad import optim
    >>> opt = optim.nadam(0.1)
    >>> print(f"{opt.update(2.0, opt.init(1.0))[0]:.4f}")
    -0.1474
    """
    return adam(learning_rate, b1, b2, eps, eps_root, mu_dtype, nesterov=True)


def nadamw(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    mu_dtype: Any = None,
    weight_decay: float = 1e-4,
    mask: Any = None,
) -> GradientTransformationExtraArgs:
    """AdamW with Nesterov momentum: `adamw(…, nesterov=True)`.

    >>> from funcgrad import optim
    >>> opt = optim.nadamw(0.1, weight_decay=0.0)
    >>> print(f"{opt.update(2.0, opt.init(1.0), 1.0)[0]:.4f}")
    -0.1474
    """
    return adamw(learning_rate, b1, b2, eps, eps_root, mu_dtype, weight_decay, mask, nesterov=True)


def lion(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.99,
    mu_dtype: Any = None,
    weight_decay: float = 1e-3,
    mask: Any = None,
) -> GradientTransformationExtraArgs:
    """Lion (Chen et al., 2023) with decoupled weight decay.

    >>> from funcgrad import optim
    >>> opt = optim.lion(0.1, weight_decay=0.0)
    >>> print(opt.update(2.0, opt.init(1.0), 1.0)[0])
    -0.1
    """
    return chain(
        scale_by_lion(b1, b2, mu_dtype),
        add_decayed_weights(weight_decay, mask),
        scale_by_learning_rate(learning_rate),
    )


def rmsprop(
    learning_rate: ScalarOrSchedule,
    decay: float = 0.9,
    eps: float = 1e-8,
    initial_scale: float = 0.0,
    eps_in_sqrt: bool = True,
    centered: bool = False,
    momentum: float | None = None,
    nesterov: bool = False,
    bias_correction: bool = False,
) -> GradientTransformationExtraArgs:
    """RMSProp (Tieleman & Hinton, 2012), with momentum of its steps if asked for.

    centered: divide by the standard deviation (`scale_by_stddev`), not by the root mean square.

    >>> from funcgrad import optim
    >>> opt = optim.rmsprop(0.1, decay=0.0)
    >>> print(opt.update(2.0, opt.init(1.0))[0])
    -0.1
    """
    moments = identity() if momentum is None else trace(momentum, nesterov)
    scaled = scale_by_stddev if centered else scale_by_rms
    return chain(
        scaled(decay, eps, initial_scale, eps_in_sqrt, bias_correction),
        scale_by_learning_rate(learning_rate),
        moments,
    )


def adagrad(
    learning_rate: ScalarOrSchedule, initial_accumulator_value: float = 0.1, eps: float = 1e-7
) -> GradientTransformationExtraArgs:
    """Adagrad (Duchi et al., 2011).

    >>> from funcgrad import optim
    >>> opt = optim.adagrad(0.1, 0.0, 0.0)
    >>> print(opt.update(2.0, opt.init(1.0))[0])
    -0.1
    """
    return chain(
        scale_by_rss(initial_accumulator_value, eps), scale_by_learning_rate(learning_rate)
    )
