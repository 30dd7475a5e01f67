"""Optimizers as transformations of gradients, in Optax's style: an `init` and an `update`; losses.

`chain` composes them; each is a pair of pure functions, so the state is a pytree that compiles,
maps, shards and saves like parameters do.

- base, masking, conditions, accumulation, inject: what an optimizer is, and what is made of several
- updates, moments, constraints, adaptive: the steps; schedules: their learning rates
- loss_scale, rounding, eight_bit: for float16, for narrow parameters, for less memory
- optimizers, further: chains of steps; quasi_newton, line_search: those that evaluate the function
"""

# ruff: noqa: F401, I001 - the names imported here are the public ones, a line holds many
# fmt: off

from funcgrad.optim.base import (
    EmptyState, GradientTransformation, GradientTransformationExtraArgs, apply_updates, chain,
    global_norm, identity, incremental_update, named_chain, periodic_update, stateless,
    stateless_with_tree_map, with_extra_args_support,
)
from funcgrad.optim.accumulation import (
    ApplyEveryState, LookaheadParams, LookaheadState, MultiSteps, MultiStepsState, apply_every,
    lookahead, skip_large_updates, skip_not_finite,
)
from funcgrad.optim.adaptive import (
    AdadeltaState, AdanState, AmsgradState, FactoredState, StddevState, scale_by_adadelta,
    scale_by_adamax, scale_by_adan, scale_by_amsgrad, scale_by_belief, scale_by_factored_rms,
    scale_by_radam, scale_by_stddev, scale_by_yogi,
)
from funcgrad.optim.conditions import (
    AddNoiseState, ApplyIfFiniteState, ConditionalState, add_noise, apply_if_finite,
    conditionally_mask, conditionally_transform, flatten,
)
from funcgrad.optim.constraints import (
    ZeroNansState, adaptive_grad_clip, centralize, clip, clip_by_block_rms, clip_by_global_norm,
    keep_params_nonnegative, normalize_by_update_norm, scale_by_param_block_norm,
    scale_by_param_block_rms, scale_by_sign, scale_by_trust_ratio, zero_nans,
)
from funcgrad.optim.eight_bit import Adam8bitState, adam8bit, scale_by_adam8bit
from funcgrad.optim.further import (
    adabelief, adadelta, adafactor, adamax, adamaxw, adan, amsgrad, lamb, lars, noisy_sgd, radam,
    sign_sgd, signum, yogi,
)
from funcgrad.optim.inject import InjectHyperparamsState, inject_hyperparams
from funcgrad.optim.quasi_newton import LBFGSState, lbfgs, scale_by_lbfgs
from funcgrad.optim.line_search import (
    BacktrackingLinesearchInfo, LinesearchState, ZoomLinesearchInfo,
    scale_by_backtracking_linesearch, scale_by_zoom_linesearch, tree_get, value_and_grad_from_state,
)
from funcgrad.optim.loss_scale import LossScale, select
from funcgrad.optim.losses import (
    huber_loss, l2_loss, sigmoid_binary_cross_entropy, softmax_cross_entropy,
    softmax_cross_entropy_with_integer_labels, squared_error,
)
from funcgrad.optim.masking import (
    MaskedNode, MaskedState, PartitionState, freeze, masked, multi_transform, partition,
    selective_transform, set_to_zero,
)
from funcgrad.optim.moments import AdamState
from funcgrad.optim.optimizers import adagrad, adam, adamw, lion, nadam, nadamw, rmsprop, sgd
from funcgrad.optim.rounding import (
    RoundedState, adamw_bf16, stochastic_round, stochastically_rounded,
)
from funcgrad.optim.schedules import (
    constant_schedule, cosine_decay_schedule, cosine_onecycle_schedule, exponential_decay,
    join_schedules, linear_onecycle_schedule, linear_schedule, piecewise_constant_schedule,
    piecewise_interpolate_schedule, polynomial_schedule, sgdr_schedule, warmup_constant_schedule,
    warmup_cosine_decay_schedule, warmup_exponential_decay_schedule,
)
from funcgrad.optim.updates import (
    EmaState, LionState, ScheduleState, SecondMomentState, TraceState, add_decayed_weights, ema,
    scale, scale_by_adam, scale_by_learning_rate, scale_by_lion, scale_by_rms, scale_by_rss,
    scale_by_schedule, trace,
)
