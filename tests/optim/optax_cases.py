"""Optimizers and schedules to compare with Optax's: each is made from Optax or from ours."""

from types import ModuleType

import numpy as np

STEPS = 4
DECAYS = {"w": True, "b": False}
PARAMS = {
    "w": np.array([[0.5, -1.0], [2.0, 0.25], [-0.75, 1.5]]),
    "b": np.array([0.1, -0.2, 3.0, 0.0]),
}


def grads(step: int) -> dict[str, np.ndarray]:
    """Some gradients, the same anywhere."""
    w = np.cos(np.arange(6.0).reshape(3, 2) * 1.7 + step)
    return {"w": w, "b": 3 * np.sin(np.arange(4.0) + 0.6 * step)}


def labels(params):
    return {"w": "matrix", "b": "vector"}


def chained(o: ModuleType):
    return o.chain(
        o.clip_by_global_norm(1.0), o.add_decayed_weights(0.1, DECAYS), o.scale_by_adam(),
        o.scale_by_schedule(o.polynomial_schedule(-0.1, -0.01, 2.0, 3)),
    )  # fmt: skip


def named(o: ModuleType):
    return o.named_chain(("clip", o.clip_by_block_rms(0.5)), ("step", o.sgd(0.1, 0.9)))


def groups(o: ModuleType):
    return o.multi_transform(
        {"matrix": o.adamw(0.1, weight_decay=0.1, mask=DECAYS), "vector": o.sgd(0.2, 0.5)}, labels
    )


def injected(o: ModuleType):
    rate = o.exponential_decay(0.1, 1, 0.5)
    return o.inject_hyperparams(o.adamw)(learning_rate=rate, weight_decay=0.1, b1=0.8)


def steps(o: ModuleType, **kwargs):
    return o.MultiSteps(o.adam(0.1), 2, **kwargs)


def varying(o: ModuleType):
    return o.MultiSteps(o.sgd(0.1, 0.9), lambda n: n + 1)


# name: from optax or funcgrad.optim to an optimizer
OPTIMIZERS = {
    "adabelief": lambda o: o.adabelief(0.1),
    "adabelief_nesterov": lambda o: o.adabelief(0.1, 0.8, 0.9, 1e-8, 1e-10, nesterov=True),
    "adadelta": lambda o: o.adadelta(0.5, weight_decay=0.1, weight_decay_mask=DECAYS),
    "adafactor": lambda o: o.adafactor(0.1, 2),
    "adafactor_whole": lambda o: o.adafactor(0.1, momentum=0.9, weight_decay_rate=0.01, dtype_momentum=None),  # noqa: E501
    "adagrad": lambda o: o.adagrad(0.1),
    "adam": lambda o: o.adam(0.1),
    "adamax": lambda o: o.adamax(0.1),
    "adamaxw": lambda o: o.adamaxw(0.1, weight_decay=0.1, mask=DECAYS),
    "adamw_mask": lambda o: o.adamw(0.1, weight_decay=0.1, mask=DECAYS),
    "adamw_nesterov": lambda o: o.adamw(0.1, weight_decay=0.1, nesterov=True),
    "adan": lambda o: o.adan(0.1, weight_decay=0.1),
    "amsgrad": lambda o: o.amsgrad(0.1),
    "amsgrad_biased": lambda o: o.amsgrad(0.1, 0.8, 0.5, bias_correction_mu=False, bias_correction_nu=False),  # noqa: E501
    "lamb": lambda o: o.lamb(0.1, weight_decay=0.1, mask=DECAYS),
    "lars": lambda o: o.lars(0.1, 0.1, DECAYS, 0.5, 1e-3, DECAYS, nesterov=True),
    "lbfgs_direction": lambda o: o.lbfgs(0.1, memory_size=2, linesearch=None),
    "lion_smooth": lambda o: o.chain(o.scale_by_lion(mode="smooth", smooth_beta=2.0), o.scale(-0.1)),  # noqa: E501
    "lion_refined": lambda o: o.chain(o.scale_by_lion(mode="refined"), o.scale(-0.1)),
    "nadam": lambda o: o.nadam(0.1),
    "nadamw": lambda o: o.nadamw(0.1, weight_decay=0.1),
    "radam": lambda o: o.radam(0.1, b2=0.5),
    "radam_nesterov": lambda o: o.radam(0.1, b2=0.9, threshold=2.0, nesterov=True),
    "rmsprop_centered": lambda o: o.rmsprop(0.1, 0.8, 1e-6, centered=True, momentum=0.9),
    "rmsprop_centered_outside": lambda o: o.rmsprop(0.1, 0.8, 1e-6, initial_scale=0.5, eps_in_sqrt=False, centered=True),  # noqa: E501
    "rmsprop_unbiased": lambda o: o.rmsprop(0.1, bias_correction=True),
    "sign_sgd": lambda o: o.sign_sgd(0.1),
    "signum": lambda o: o.signum(0.1),
    "yogi": lambda o: o.yogi(0.1),
    # steps and combinations
    "adaptive_grad_clip": lambda o: o.adaptive_grad_clip(0.1),
    "adaptive_grad_clip_axis": lambda o: o.adaptive_grad_clip(0.1, axis=0),
    "apply_every": lambda o: o.apply_every(2),
    "apply_if_finite": lambda o: o.apply_if_finite(o.adam(0.1), 2),
    "centralize": lambda o: o.centralize(),
    "chain": chained,
    "conditionally_mask": lambda o: o.conditionally_mask(o.adam(0.1), lambda n: n % 2 == 1),
    "conditionally_transform": lambda o: o.conditionally_transform(o.adam(0.1), lambda n: n > 1),
    "ema": lambda o: o.ema(0.9),
    "ema_biased": lambda o: o.ema(0.9, debias=False),
    "flatten": lambda o: o.flatten(o.chain(o.scale_by_adam(), o.clip_by_block_rms(0.5))),
    "freeze": lambda o: o.chain(o.sgd(0.1), (getattr(o, "transforms", o)).freeze(DECAYS)),
    "inject_hyperparams": injected,
    "keep_params_nonnegative": lambda o: o.chain(o.sgd(1.0), o.keep_params_nonnegative()),
    "masked": lambda o: o.masked(o.adam(0.1), DECAYS),
    "multi_steps": steps,
    "multi_steps_sum": lambda o: steps(o, use_grad_mean=False),
    "multi_steps_schedule": varying,
    "multi_transform": groups,
    "named_chain": named,
    "scale_by_param_block_norm": lambda o: o.scale_by_param_block_norm(),
    "scale_by_param_block_rms": lambda o: o.scale_by_param_block_rms(0.5),
    "scale_by_trust_ratio": lambda o: o.scale_by_trust_ratio(3.0, 0.5, 0.1),
    "weight_decay_schedule": lambda o: o.add_decayed_weights(lambda n: 0.1 / (n + 1)),
}  # fmt: skip

_COSINE = {"init_value": 0.1, "peak_value": 1.0, "warmup_steps": 3, "decay_steps": 8}
COUNTS = [0, 1, 2, 5, 8, 11, 14, 20]
SCHEDULES = {
    "cosine_onecycle": lambda o: o.cosine_onecycle_schedule(12, 1.0),
    "linear_onecycle": lambda o: o.linear_onecycle_schedule(12, 1.0),
    "piecewise_cosine": lambda o: o.piecewise_interpolate_schedule("cosine", 1.0, {3: 0.5, 10: 3.0}),  # noqa: E501
    "piecewise_linear": lambda o: o.piecewise_interpolate_schedule("linear", 1.0, {3: 0.5, 10: 3.0}),  # noqa: E501
    "polynomial": lambda o: o.polynomial_schedule(1.0, 0.1, 2.0, 10, 2),
    "polynomial_none": lambda o: o.polynomial_schedule(1.0, 0.1, 2.0, 0),
    "sgdr": lambda o: o.sgdr_schedule([_COSINE, {**_COSINE, "peak_value": 0.5}]),
    "warmup_exponential": lambda o: o.warmup_exponential_decay_schedule(0.1, 1.0, 3, 4, 0.5, 1, end_value=0.2),  # noqa: E501
}  # fmt: skip


def rosenbrock(x):
    return ((1 - x[:-1]) ** 2 + 100 * (x[1:] - x[:-1] ** 2) ** 2).sum()


START = np.array([-1.2, 1.0, 0.5, 2.0])
# name: an optimizer that evaluates the function
SEARCHES = {
    "lbfgs": lambda o: o.lbfgs(),
    "lbfgs_plain": lambda o: o.lbfgs(memory_size=3, scale_init_precond=False),
    "gradient_zoom": lambda o: o.chain(o.sgd(1.0), o.scale_by_zoom_linesearch(10, 0.5)),
    "gradient_zoom_strict": lambda o: o.chain(o.sgd(0.001), o.scale_by_zoom_linesearch(20, curv_rtol=0.1, approx_dec_rtol=None)),  # noqa: E501
    "gradient_backtracking": lambda o: o.chain(o.sgd(1.0), o.scale_by_backtracking_linesearch(30, store_grad=True)),  # noqa: E501
    "gradient_backtracking_few": lambda o: o.chain(o.sgd(1.0), o.scale_by_backtracking_linesearch(3, store_grad=True)),  # noqa: E501
}  # fmt: skip
SEARCH_STEPS = 8
