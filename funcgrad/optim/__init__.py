"""Optimizers as transformations of gradients, in Optax's style: an `init` and an `update`; losses.

`chain` composes them; each is a pair of pure functions, so the state is a pytree that compiles,
maps, shards and saves like parameters do.
"""

from funcgrad.optim.base import (
    EmptyState,
    GradientTransformation,
    apply_updates,
    chain,
    global_norm,
    identity,
    masked,
)
from funcgrad.optim.losses import (
    huber_loss,
    l2_loss,
    sigmoid_binary_cross_entropy,
    softmax_cross_entropy,
    softmax_cross_entropy_with_integer_labels,
    squared_error,
)
from funcgrad.optim.optimizers import adagrad, adam, adamw, lion, rmsprop, sgd
from funcgrad.optim.schedules import (
    constant_schedule,
    cosine_decay_schedule,
    exponential_decay,
    join_schedules,
    linear_schedule,
    piecewise_constant_schedule,
    warmup_cosine_decay_schedule,
)
from funcgrad.optim.updates import (
    add_decayed_weights,
    clip,
    clip_by_global_norm,
    scale,
    scale_by_adam,
    scale_by_learning_rate,
    scale_by_lion,
    scale_by_rms,
    scale_by_rss,
    scale_by_schedule,
    set_to_zero,
    trace,
)

__all__ = [
    "EmptyState",
    "GradientTransformation",
    "adagrad",
    "adam",
    "adamw",
    "add_decayed_weights",
    "apply_updates",
    "chain",
    "clip",
    "clip_by_global_norm",
    "constant_schedule",
    "cosine_decay_schedule",
    "exponential_decay",
    "global_norm",
    "huber_loss",
    "identity",
    "join_schedules",
    "l2_loss",
    "linear_schedule",
    "lion",
    "masked",
    "piecewise_constant_schedule",
    "rmsprop",
    "scale",
    "scale_by_adam",
    "scale_by_learning_rate",
    "scale_by_lion",
    "scale_by_rms",
    "scale_by_rss",
    "scale_by_schedule",
    "set_to_zero",
    "sgd",
    "sigmoid_binary_cross_entropy",
    "softmax_cross_entropy",
    "softmax_cross_entropy_with_integer_labels",
    "squared_error",
    "trace",
    "warmup_cosine_decay_schedule",
]
