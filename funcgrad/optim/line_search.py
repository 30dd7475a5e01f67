"""Line searches: steps that scale an update so that the function falls enough along it.

Their update takes value, grad and value_fn, which `value_and_grad_from_state` saves from being
computed twice. Sources: Nocedal & Wright, "Numerical Optimization", 2006, algorithms 3.1, 3.5 and
3.6; Hager & Zhang, "Algorithm 851: CG_DESCENT", 2006, for the test of steps so small that rounding
hides whether the function falls.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import funcgrad.numpy as fnp
from funcgrad import tree
from funcgrad.lax import cond, while_loop
from funcgrad.optim.base import GradientTransformationExtraArgs
from funcgrad.optim.moments import no_steps, zeros
from funcgrad.transforms.derivatives.grad import value_and_grad


class BacktrackingLinesearchInfo(NamedTuple):
    """How many steps a search tried, and by how much the last one fell short of the decrease."""

    num_linesearch_steps: Any
    decrease_error: Any


class ZoomLinesearchInfo(NamedTuple):
    """How many steps a search tried, and by how much the last one missed its two conditions."""

    num_linesearch_steps: Any
    decrease_error: Any
    curvature_error: Any


class LinesearchState(NamedTuple):
    """The step's length, the function's value and gradient (None unless stored) where it led to."""

    learning_rate: Any
    value: Any
    grad: Any
    info: Any


def tree_vdot(a: Any, b: Any) -> Any:
    """The real part of the inner product of two trees, in the dtype that they promote to.

    >>> print(tree_vdot([1.0, fnp.ones(2)], [2.0, fnp.ones(2)]))
    4.0
    """
    parts = [fnp.real(fnp.vdot(x, y)) for x, y in zip(tree.leaves(a), tree.leaves(b), strict=True)]
    return sum(parts[1:], parts[0]) if parts else fnp.zeros(())


def slope_along(grad: Any, updates: Any) -> Any:
    """The derivative along updates of a function with this gradient, complex or not."""
    return tree_vdot(tree.map(fnp.conj, grad), updates)


def along(params: Any, step: Any, updates: Any) -> Any:
    """params + step·updates, in the parameters' dtypes."""

    def move(p: Any, u: Any) -> Any:
        p = fnp.asarray(p)
        return (p + fnp.asarray(step, p.dtype) * u).astype(p.dtype)

    return tree.map(move, params, updates)


def real_dtype(params: Any) -> Any:
    """The dtype of steps' lengths and values: that of the first parameter's real part."""
    return fnp.real(tree.leaves(params)[0]).dtype


def _unsearched(params: Any, kind: type, stores: bool) -> LinesearchState:
    """The state before the first search, whose kind of information begins with a count."""
    dtype = real_dtype(params)
    one, unknown = fnp.ones((), dtype), fnp.full((), fnp.inf, dtype)
    errors = [unknown] * (len(kind._fields) - 1)  # type: ignore[attr-defined]
    grad = zeros(params) if stores else None
    return LinesearchState(one, unknown, grad, kind(no_steps(), *errors))


def _scaled(step: Any, updates: Any) -> Any:
    return tree.map(lambda u: fnp.asarray(step, fnp.asarray(u).dtype) * u, updates)


def _bound(where: str, value_fn: Callable, extra: dict[str, Any]) -> Callable:
    """The function with the arguments that it takes by name; none may be left."""
    try:
        takes = inspect.signature(value_fn).parameters
    except (TypeError, ValueError):  # some functions don't say
        return partial(value_fn, **extra)
    if any(p.kind is p.VAR_KEYWORD for p in takes.values()):
        return partial(value_fn, **extra)
    left = sorted(extra.keys() - takes.keys())
    if left:
        raise TypeError(f"{where}: value_fn takes no argument {left[0]!r}, only {[*takes]}")
    return partial(value_fn, **extra)


def scale_by_backtracking_linesearch(
    max_backtracking_steps: int,
    slope_rtol: float = 1e-4,
    decrease_factor: float = 0.8,
    increase_factor: float = 1.5,
    max_learning_rate: float = 1.0,
    atol: float = 0.0,
    rtol: float = 0.0,
    store_grad: bool = False,
) -> GradientTransformationExtraArgs:
    """Scale updates by the first of shorter and shorter steps t along which the function falls
    enough: f(p + t·u) ≤ (1 + rtol)·f(p) + slope_rtol·t·⟨u, ∇f⟩ + atol (Armijo).

    update(updates, state, params, value=f(p), grad=∇f(p), value_fn=f, …) passes further arguments
    by name to f. A search begins at increase_factor times the step before, at most
    max_learning_rate. Where no step leads to a finite value, it is 0.

    store_grad: keep the gradient where the step leads to, for `value_and_grad_from_state`.

    >>> from funcgrad import optim
    >>> f = lambda x: fnp.sum(x**2)
    >>> opt = optim.chain(optim.sgd(1.0), optim.scale_by_backtracking_linesearch(15))
    >>> x = fnp.array([1.0, 2.0])
    >>> value, grad = fg.value_and_grad(f)(x)
    >>> out, _ = opt.update(grad, opt.init(x), x, value=value, grad=grad, value_fn=f)
    >>> print(f(optim.apply_updates(x, out)) < value)
    True
    """

    def init(params: Any) -> LinesearchState:
        return _unsearched(params, BacktrackingLinesearchInfo, store_grad)

    def update(
        updates: Any, state: LinesearchState, params: Any, *, value: Any, grad: Any,
        value_fn: Callable, **extra: Any,
    ) -> tuple[Any, LinesearchState]:  # fmt: skip
        fun = _bound("scale_by_backtracking_linesearch", value_fn, extra)
        dtype = state.learning_rate.dtype
        value, slope = fnp.asarray(value, dtype), slope_along(grad, updates).astype(dtype)

        def more(s: tuple) -> Any:
            n, _, error, _ = s
            return ~(error <= atol) & (n <= max_backtracking_steps)

        def turn(s: tuple) -> tuple:
            n, step, _, _ = s
            step = fnp.where(n > 0, decrease_factor * step, step)
            new = fnp.asarray(fun(along(params, step, updates)), dtype)
            error = new - (1 + rtol) * value - step * slope_rtol * slope
            return n + 1, step, fnp.maximum(fnp.where(fnp.isnan(error), fnp.inf, error), 0), new

        first = fnp.minimum(increase_factor * state.learning_rate, max_learning_rate)
        none = fnp.full((), fnp.inf, dtype)
        n, step, error, new = while_loop(more, turn, (no_steps(), first, none, value))
        step = fnp.where(fnp.isinf(error), 0, step)
        at = value_and_grad(fun)(along(params, step, updates))[1] if store_grad else None
        info = BacktrackingLinesearchInfo(n, error)
        return _scaled(step, updates), LinesearchState(step, new, at, info)

    return GradientTransformationExtraArgs(init, update)


class _Point(NamedTuple):
    """A step along the line, with the function's value there and its slope along the line."""

    step: Any
    value: Any
    slope: Any


def _point(step: Any, value: Any, grad: Any, updates: Any, dtype: Any) -> _Point:
    return _Point(step, fnp.asarray(value, dtype), slope_along(grad, updates).astype(dtype))


class _Safe(NamedTuple):
    """The best step so far along which the function falls enough, and where it leads to."""

    step: Any
    value: Any
    grad: Any


class _Search(NamedTuple):
    """A search under way. `low` and `high` enclose a step that will do once `inside`; `other` is
    the end that was left last, for the cubic through three points."""

    count: Any
    now: _Point
    grad: Any
    low: _Point
    high: _Point
    other: _Point
    safe: _Safe
    decrease_error: Any
    curvature_error: Any
    inside: Any
    done: Any
    failed: Any


def _where(test: Any, yes: Any, no: Any) -> Any:
    return tree.map(lambda a, b: fnp.where(test, a, b), yes, no)


def _cubic(a: _Point, b: _Point, c: _Point) -> Any:
    """The minimum of the cubic through three points with the slope of the first."""
    to_b, to_c = b.step - a.step, c.step - a.step
    rise_b, rise_c = b.value - a.value - a.slope * to_b, c.value - a.value - a.slope * to_c
    scale = (to_b * to_c) ** 2 * (to_b - to_c)
    third = (to_c**2 * rise_b - to_b**2 * rise_c) / scale
    second = (to_b**3 * rise_c - to_c**3 * rise_b) / scale
    return a.step + (fnp.sqrt(second * second - 3 * third * a.slope) - second) / (3 * third)


def _quadratic(a: _Point, b: _Point) -> Any:
    """The minimum of the parabola through two points with the slope of the first."""
    to_b = b.step - a.step
    return a.step - a.slope * to_b**2 / (2 * (b.value - a.value - a.slope * to_b))


def _between(s: _Search) -> Any:
    """The next step inside of the interval: by the cubic, else the parabola, else the middle."""
    width = fnp.abs(s.high.step - s.low.step)
    left, right = fnp.minimum(s.low.step, s.high.step), fnp.maximum(s.low.step, s.high.step)

    def well_inside(x: Any, share: float) -> Any:
        return (x > left + share * width) & (x < right - share * width)

    # Numbers that aren't finite, where points coincide, are not inside either.
    cubic, quadratic = _cubic(s.low, s.high, s.other), _quadratic(s.low, s.high)
    middle = (s.low.step + s.high.step) / 2
    rest = fnp.where(well_inside(quadratic, 0.1), quadratic, middle)
    return fnp.where(well_inside(cubic, 0.2), cubic, rest)


def _missed(x: Any) -> Any:
    return fnp.where(fnp.isnan(x), fnp.inf, fnp.maximum(x, 0))


class _Rules(NamedTuple):
    """What a search looks for, and where it ends: the arguments of `scale_by_zoom_linesearch`."""

    most_turns: int
    longest: float | None
    tol: float
    growth: float
    slope_rtol: float
    curv_rtol: float
    approx_dec_rtol: float | None
    precision: float

    def errors(self, start: _Point, now: _Point) -> tuple[Any, Any]:
        """By how much a point misses sufficient decrease, and small curvature; 0 if it doesn't."""
        decrease = now.value - start.value - self.slope_rtol * now.step * start.slope
        if self.approx_dec_rtol is not None:
            flat = now.slope - (2 * self.slope_rtol - 1) * start.slope
            level = now.value - start.value - self.approx_dec_rtol * fnp.abs(start.value)
            decrease = fnp.minimum(fnp.maximum(flat, level), decrease)
        curvature = fnp.abs(now.slope) - self.curv_rtol * fnp.abs(start.slope)
        return _missed(decrease), _missed(curvature)

    def turn(self, line: Callable, start: _Point, guess: Any, s: _Search) -> _Search:
        """One more point of the line, and what it says of where to look."""
        outside = fnp.where(s.count == 0, guess, self.growth * s.now.step)
        at_end = fnp.zeros((), bool)
        if self.longest is not None:
            at_end, outside = outside >= self.longest, fnp.minimum(outside, self.longest)
        now, grad = line(fnp.where(s.inside, _between(s), outside))
        decrease, curvature = self.errors(start, now)
        error = fnp.maximum(decrease, curvature)
        falls = (decrease <= self.tol) & (~s.inside | (now.value < s.safe.value))
        safe = _where(falls, _Safe(now.step, now.value, grad), s.safe)
        # Outside, the step before is the end of the interval that falls; inside, `low` is.
        before = _where(s.inside, s.low, s.now)
        above = (decrease > 0) | ((now.value >= before.value) & (s.inside | (s.count > 0)))
        width = fnp.where(s.inside, s.high.step - s.low.step, 1)
        turned = ~above & (now.slope * width >= 0)
        high = _where(above, now, _where(turned, before, _where(s.inside, s.high, now)))
        low = _where(above | ~(s.inside | turned), before, now)
        left = _where(above | turned, s.high, s.low)
        inside = s.inside | above | turned | (error <= self.tol)
        done = (error <= self.tol) | (~s.inside & at_end & ~inside)
        narrow = fnp.abs(s.high.step - s.low.step) <= self.precision
        ended = (s.count + 1 >= self.most_turns) | (s.inside & narrow & (safe.step > 0))
        other = _where(s.inside, left, low)
        failed = ended & ~done
        return _Search(
            s.count + 1,
            now,
            grad,
            low,
            high,
            other,
            safe,
            decrease,
            curvature,
            inside,
            done,
            failed,
        )


def scale_by_zoom_linesearch(
    max_linesearch_steps: int,
    max_learning_rate: float | None = None,
    tol: float = 0.0,
    increase_factor: float = 2.0,
    slope_rtol: float = 1e-4,
    curv_rtol: float = 0.9,
    approx_dec_rtol: float | None = 1e-6,
    stepsize_precision: float = 1e-5,
    initial_guess_strategy: str = "keep",
) -> GradientTransformationExtraArgs:
    """Scale updates by a step along which the function falls enough and ends flat enough (Wolfe).

    update(updates, state, params, value=f(p), grad=∇f(p), value_fn=f, …) passes further arguments
    by name to f. Steps grow by increase_factor until an interval has one that will do, which then
    is narrowed by cubics and parabolas. Where none is found, the best step that falls is taken.

    slope_rtol, curv_rtol: c₁ and c₂ of the Wolfe conditions; tol: by how much they may be missed
    approx_dec_rtol: the relative rise at which slopes decide whether the function falls, or None
    stepsize_precision: the width of an interval that isn't narrowed any more
    initial_guess_strategy: begin with "one", or "keep" the step before

    >>> from funcgrad import optim
    >>> f = lambda x: fnp.sum(x**2)
    >>> opt = optim.chain(optim.sgd(0.1), optim.scale_by_zoom_linesearch(15))
    >>> x = fnp.array([1.0, 2.0])
    >>> value, grad = fg.value_and_grad(f)(x)
    >>> out, _ = opt.update(grad, opt.init(x), x, value=value, grad=grad, value_fn=f)
    >>> print(f(optim.apply_updates(x, out)) < value)
    True
    """
    _check_strategy(initial_guess_strategy)
    rules = _Rules(
        max_linesearch_steps, max_learning_rate, tol, increase_factor, slope_rtol, curv_rtol,
        approx_dec_rtol, stepsize_precision,
    )  # fmt: skip

    def init(params: Any) -> LinesearchState:
        return _unsearched(params, ZoomLinesearchInfo, True)

    def update(
        updates: Any, state: LinesearchState, params: Any, *, value: Any, grad: Any,
        value_fn: Callable, **extra: Any,
    ) -> tuple[Any, LinesearchState]:  # fmt: skip
        fun = _bound("scale_by_zoom_linesearch", value_fn, extra)
        dtype = state.learning_rate.dtype

        def line(step: Any) -> tuple[_Point, Any]:
            value, grad = value_and_grad(fun)(along(params, step, updates))
            return _point(step, value, grad, updates, dtype), grad

        start = _point(fnp.zeros((), dtype), value, grad, updates, dtype)
        guess = state.learning_rate if initial_guess_strategy == "keep" else fnp.ones((), dtype)
        s = _search(rules, line, start, guess, grad)
        unsafe = ~s.failed | ~((s.safe.step > 0) | fnp.isinf(s.decrease_error))
        step, value, grad = _where(unsafe, _Safe(s.now.step, s.now.value, s.grad), s.safe)
        info = ZoomLinesearchInfo(s.count, s.decrease_error, s.curvature_error)
        return _scaled(step, updates), LinesearchState(step, value, grad, info)

    return GradientTransformationExtraArgs(init, update)


def _check_strategy(given: str) -> None:
    if given not in ("one", "keep"):
        raise ValueError(
            'scale_by_zoom_linesearch: initial_guess_strategy must be "one" or "keep", got '
            f"{given!r}"
        )


def _search(rules: _Rules, line: Callable, start: _Point, guess: Any, grad: Any) -> _Search:
    """The last state of a search from the line's start."""
    no, unknown = fnp.zeros((), bool), fnp.full((), fnp.inf, start.step.dtype)
    safe = _Safe(start.step, start.value, grad)
    first = _Search(
        no_steps(), start, grad, start, start, start, safe, unknown, unknown, no, no, no
    )
    return while_loop(
        lambda s: ~(s.done | s.failed), partial(rules.turn, line, start, guess), first
    )


def tree_get(state: Any, key: str, default: Any = None) -> Any:
    """What an optimizer's state holds under a name, wherever that is: a field, or a key.

    Raises ValueError where several parts have that name.

    >>> from funcgrad import optim
    >>> print(optim.tree_get(optim.adam(0.1).init(fnp.zeros(2)), "count"))
    0
    """
    found = [*_named(state, key)]
    if len(found) > 1:
        raise ValueError(f"optim.tree_get: {len(found)} parts of the state are named {key!r}")
    return found[0] if found else default


def _named(node: Any, key: str) -> Any:
    if isinstance(node, dict):
        items = [*node.items()]
    elif isinstance(node, tuple) and hasattr(node, "_fields"):
        items = [*zip(node._fields, node, strict=True)]
    elif isinstance(node, list | tuple):
        items = [*enumerate(node)]
    else:
        return
    for name, child in items:
        if name == key:
            yield child
        else:
            yield from _named(child, key)


def value_and_grad_from_state(value_fn: Callable) -> Callable[..., tuple[Any, Any]]:
    """`value_and_grad` that takes both from the state of a line search, where they are known.

    Call it as value_and_grad(params, *args, state=state, **kwargs). At the first step, where the
    state knows nothing, it computes them.

    >>> from funcgrad import optim
    >>> f = lambda x: fnp.sum(x**2)
    >>> opt, x = optim.lbfgs(), fnp.array([1.0, 2.0])
    >>> state, value_and_grad = opt.init(x), optim.value_and_grad_from_state(f)
    >>> for _ in range(3):
    ...     value, grad = value_and_grad(x, state=state)
    ...     out, state = opt.update(grad, state, x, value=value, grad=grad, value_fn=f)
    ...     x = optim.apply_updates(x, out)
    >>> print(f(x) < 1e-6)
    True
    """

    def both(params: Any, *args: Any, state: Any, **kwargs: Any) -> tuple[Any, Any]:
        value, grad = tree_get(state, "value"), tree_get(state, "grad")
        if value is None or grad is None:
            raise ValueError(
                "value_and_grad_from_state: the state keeps no value and gradient; use a line "
                "search that does (scale_by_backtracking_linesearch with store_grad=True)"
            )

        def known() -> tuple[Any, Any]:
            return value, grad

        def computed() -> tuple[Any, Any]:
            new, at = value_and_grad(value_fn)(params, *args, **kwargs)
            return fnp.asarray(new, value.dtype), at

        return cond(fnp.isfinite(value), known, computed)

    return both
