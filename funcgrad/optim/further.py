"""Optimizers for large batches, for little memory, and relatives of Adam: chains of steps."""

from __future__ import annotations

from typing import Any

import numpy as np

from funcgrad.optim.adaptive import (
    scale_by_adadelta,
    scale_by_adamax,
    scale_by_adan,
    scale_by_amsgrad,
    scale_by_belief,
    scale_by_factored_rms,
    scale_by_radam,
    scale_by_yogi,
)
from funcgrad.optim.base import GradientTransformationExtraArgs, chain, identity
from funcgrad.optim.conditions import add_noise
from funcgrad.optim.constraints import (
    clip_by_block_rms,
    scale_by_param_block_rms,
    scale_by_sign,
    scale_by_trust_ratio,
)
from funcgrad.optim.masking import masked
from funcgrad.optim.updates import (
    ScalarOrSchedule,
    add_decayed_weights,
    ema,
    scale,
    scale_by_adam,
    scale_by_learning_rate,
    trace,
)


def lamb(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-6,
    eps_root: float = 0.0,
    weight_decay: float = 0.0,
    mask: Any = None,
) -> GradientTransformationExtraArgs:
    """LAMB, for large batches: AdamW with each leaf's step as long as its parameters.

    Source: You et al., "Large Batch Optimization for Deep Learning", 2020.

    >>> from funcgrad import optim
    >>> opt = optim.lamb(0.1)
    >>> print(f"{opt.update(2.0, opt.init(5.0), 5.0)[0]:.4f}")
    -0.5000
    """
    return chain(
        scale_by_adam(b1, b2, eps, eps_root),
        add_decayed_weights(weight_decay, mask),
        scale_by_trust_ratio(),
        scale_by_learning_rate(learning_rate),
    )


def lars(
    learning_rate: ScalarOrSchedule,
    weight_decay: float = 0.0,
    weight_decay_mask: Any = True,
    trust_coefficient: float = 1e-3,
    eps: float = 0.0,
    trust_ratio_mask: Any = True,
    momentum: float = 0.9,
    nesterov: bool = False,
) -> GradientTransformationExtraArgs:
    """LARS, for large batches: momentum of steps as long as their parameters.

    weight_decay_mask, trust_ratio_mask: which leaves decay, and which are scaled.
    Source: You et al., "Large Batch Training of Convolutional Networks", 2017.

    >>> from funcgrad import optim
    >>> opt = optim.lars(0.1, trust_coefficient=1.0)
    >>> print(f"{opt.update(2.0, opt.init(5.0), 5.0)[0]:.4f}")
    -0.5000
    """
    return chain(
        add_decayed_weights(weight_decay, weight_decay_mask),
        masked(
            scale_by_trust_ratio(trust_coefficient=trust_coefficient, eps=eps), trust_ratio_mask
        ),
        scale_by_learning_rate(learning_rate),
        trace(momentum, nesterov),
    )


def adabelief(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-16,
    eps_root: float = 1e-16,
    *,
    nesterov: bool = False,
) -> GradientTransformationExtraArgs:
    """AdaBelief (Zhuang et al., 2020); see `scale_by_belief`.

    >>> from funcgrad import optim
    >>> opt = optim.adabelief(0.1, b1=0.5, b2=0.0)
    >>> print(f"{opt.update(2.0, opt.init(1.0))[0]:.4f}")
    -0.2000
    """
    return chain(
        scale_by_belief(b1, b2, eps, eps_root, nesterov=nesterov),
        scale_by_learning_rate(learning_rate),
    )


def adadelta(
    learning_rate: ScalarOrSchedule | None = None,
    rho: float = 0.9,
    eps: float = 1e-6,
    weight_decay: float = 0.0,
    weight_decay_mask: Any = None,
) -> GradientTransformationExtraArgs:
    """Adadelta (Zeiler, 2012); see `scale_by_adadelta`.

    >>> from funcgrad import optim
    >>> opt = optim.adadelta(1.0, eps=1.0)
    >>> print(f"{opt.update(3.0, opt.init(1.0), 1.0)[0]:.4f}")
    -2.1764
    """
    return chain(
        add_decayed_weights(weight_decay, weight_decay_mask),
        scale_by_adadelta(rho, eps),
        scale_by_learning_rate(learning_rate),
    )


def adafactor(
    learning_rate: ScalarOrSchedule | None = None,
    min_dim_size_to_factor: int = 128,
    decay_rate: float = 0.8,
    decay_offset: int = 0,
    multiply_by_parameter_scale: bool = True,
    clipping_threshold: float | None = 1.0,
    momentum: float | None = None,
    dtype_momentum: Any = np.float32,
    weight_decay_rate: float | None = None,
    eps: float = 1e-30,
    factored: bool = True,
    weight_decay_mask: Any = None,
) -> GradientTransformationExtraArgs:
    """Adafactor: second moments by rows and columns, so that the state is small.

    multiply_by_parameter_scale: steps relative to the root mean square of a leaf's parameters.
    clipping_threshold: the largest root mean square of a leaf's step before that, or None.
    Source: Shazeer & Stern, "Adafactor", 2018; see `scale_by_factored_rms`.

    >>> from funcgrad import optim
    >>> opt = optim.adafactor(0.1)
    >>> print(f"{opt.update(2.0, opt.init(5.0), 5.0)[0]:.4f}")
    -0.5000
    """
    skip = identity()
    return chain(
        scale_by_factored_rms(factored, decay_rate, decay_offset, min_dim_size_to_factor, eps),
        skip if clipping_threshold is None else clip_by_block_rms(clipping_threshold),
        scale_by_learning_rate(learning_rate, flip_sign=False),
        scale_by_param_block_rms() if multiply_by_parameter_scale else skip,
        skip if momentum is None else ema(momentum, False, dtype_momentum),
        skip
        if weight_decay_rate is None
        else add_decayed_weights(weight_decay_rate, weight_decay_mask),
        scale(-1.0),
    )


def adamax(
    learning_rate: ScalarOrSchedule, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8
) -> GradientTransformationExtraArgs:
    """AdaMax (Kingma & Ba, 2015); see `scale_by_adamax`.

    >>> from funcgrad import optim
    >>> opt = optim.adamax(0.1)
    >>> print(f"{opt.update(2.0, opt.init(1.0))[0]:.4f}")
    -0.1000
    """
    return chain(scale_by_adamax(b1, b2, eps), scale_by_learning_rate(learning_rate))


def adamaxw(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 1e-4,
    mask: Any = None,
) -> GradientTransformationExtraArgs:
    """AdaMax with decoupled weight decay; see `adamw`.

    >>> from funcgrad import optim
    >>> opt = optim.adamaxw(0.1, weight_decay=0.0)
    >>> print(f"{opt.update(2.0, opt.init(1.0), 1.0)[0]:.4f}")
    -0.1000
    """
    return chain(
        scale_by_adamax(b1, b2, eps),
        add_decayed_weights(weight_decay, mask),
        scale_by_learning_rate(learning_rate),
    )


def adan(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.98,
    b2: float = 0.92,
    b3: float = 0.99,
    eps: float = 1e-8,
    eps_root: float = 1e-8,
    weight_decay: float = 0.0,
    mask: Any = None,
) -> GradientTransformationExtraArgs:
    """Adan (Xie et al., 2022); see `scale_by_adan`.

    >>> from funcgrad import optim
    >>> opt = optim.adan(0.1)
    >>> print(f"{opt.update(2.0, opt.init(1.0), 1.0)[0]:.4f}")
    -0.1000
    """
    return chain(
        scale_by_adan(b1, b2, b3, eps, eps_root),
        add_decayed_weights(weight_decay, mask),
        scale_by_learning_rate(learning_rate),
    )


def amsgrad(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    mu_dtype: Any = None,
    bias_correction_mu: bool = True,
    bias_correction_nu: bool = True,
) -> GradientTransformationExtraArgs:
    """AMSGrad (Reddi et al., 2018); see `scale_by_amsgrad`.

    >>> from funcgrad import optim
    >>> opt = optim.amsgrad(0.1)
    >>> print(f"{opt.update(2.0, opt.init(1.0))[0]:.4f}")
    -0.1000
    """
    return chain(
        scale_by_amsgrad(b1, b2, eps, eps_root, mu_dtype, bias_correction_mu, bias_correction_nu),
        scale_by_learning_rate(learning_rate),
    )


def radam(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    threshold: float = 5.0,
    *,
    nesterov: bool = False,
) -> GradientTransformationExtraArgs:
    """Rectified Adam (Liu et al., 2020); see `scale_by_radam`.

    >>> from funcgrad import optim
    >>> opt = optim.radam(0.1)
    >>> print(f"{opt.update(2.0, opt.init(1.0))[0]:.4f}")
    -0.2000
    """
    return chain(
        scale_by_radam(b1, b2, eps, eps_root, threshold, nesterov=nesterov),
        scale_by_learning_rate(learning_rate),
    )


def yogi(
    learning_rate: ScalarOrSchedule, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-3
) -> GradientTransformationExtraArgs:
    """Yogi (Zaheer et al., 2018); see `scale_by_yogi`.

    >>> from funcgrad import optim
    >>> opt = optim.yogi(0.1)
    >>> print(f"{opt.update(2.0, opt.init(1.0))[0]:.3f}")
    -0.100
    """
    return chain(scale_by_yogi(b1, b2, eps), scale_by_learning_rate(learning_rate))


def sign_sgd(learning_rate: ScalarOrSchedule) -> GradientTransformationExtraArgs:
    """Steps of one length in each element, by the gradient's sign (Bernstein et al., 2018).

    >>> from funcgrad import optim
    >>> print(optim.sign_sgd(0.1).update(2.0, optim.sign_sgd(0.1).init(1.0))[0])
    -0.1
    """
    return chain(scale_by_sign(), scale_by_learning_rate(learning_rate))


def signum(
    learning_rate: ScalarOrSchedule, beta: float = 0.9, accumulator_dtype: Any = None
) -> GradientTransformationExtraArgs:
    """Steps by the sign of the gradients' decaying mean (Bernstein et al., 2018).

    >>> from funcgrad import optim
    >>> print(optim.signum(0.1).update(2.0, optim.signum(0.1).init(1.0))[0])
    -0.1
    """
    return chain(
        ema(beta, False, accumulator_dtype),
        scale_by_sign(),
        scale_by_learning_rate(learning_rate),
    )


def noisy_sgd(
    learning_rate: ScalarOrSchedule, eta: float = 0.01, gamma: float = 0.55, key: Any = 0
) -> GradientTransformationExtraArgs:
    """Gradient descent with noise of falling variance (Neelakantan et al., 2015); see `add_noise`.

    >>> from funcgrad import optim
    >>> opt = optim.noisy_sgd(0.1, eta=0.0)
    >>> print(opt.update(2.0, opt.init(1.0))[0])
    -0.2
    """
    return chain(add_noise(eta, gamma, key), scale_by_learning_rate(learning_rate))
