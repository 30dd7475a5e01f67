"""Training steps that send less: gradients of several microbatches reduced once, and steps that
groups of devices make by themselves between two exchanges.

Norms over all gradients (`optim.clip_by_global_norm`) and means of parameters
(`optim.incremental_update`) need nothing of their own: under `jit` they are of the whole arrays,
however these are cut.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import dtypes, lax, tree
from funcgrad.core.display.tracebacks import boundary
from funcgrad.core.sharding import Mesh, NamedSharding, P
from funcgrad.core.trace import aval_of
from funcgrad.errors import DTypeError, ShapeError, ShardingError, TreeError
from funcgrad.optim.base import GradientTransformation, apply_updates
from funcgrad.parallel.arrays import with_sharding_constraint
from funcgrad.parallel.mapping.shard_map import shard_map
from funcgrad.parallel.pipelines.layout import into_microbatches
from funcgrad.transforms.arguments import name_of
from funcgrad.transforms.jit.make_jaxpr import eval_shape


def accumulate_gradients(fun: Callable, microbatches: int) -> Callable:
    """The mean of `fun` over microbatches, one after the other: memory for one of them.

    fun: fun(params, *batch) → a pytree of floats, such as `value_and_grad(loss)` gives. The rows of
        `batch`, along the first axis of each leaf, are cut into microbatches: row i is of the one
        of number i % microbatches, so that a batch that is cut over a mesh axis stays as it is.

    Narrow floats are summed in float32. Where devices have parts of the batch, their sums are
    reduced once, after the last microbatch. If `fun` is a mean over rows, the result is what it
    gives of the whole batch.

    Raises ShapeError for rows that don't divide, DTypeError for results that are no floats.

    >>> from funcgrad.parallel import accumulate_gradients
    >>> loss = lambda w, x, y: fnp.mean((x @ w - y) ** 2)
    >>> step = accumulate_gradients(fg.value_and_grad(loss), 4)
    >>> w, x, y = fnp.ones(3), fnp.ones((8, 3)), fnp.zeros(8)
    >>> value, grads = step(w, x, y)
    >>> print(value, grads)
    9.0 [6. 6. 6.]
    """
    what = f"accumulate_gradients of {name_of(fun)}"
    if not callable(fun):
        raise TypeError(f"accumulate_gradients: the first argument must be a function, got {fun!r}")
    if type(microbatches) is not int or microbatches < 1:
        raise ShapeError(f"{what}: microbatches must be an integer ≥ 1, got {microbatches!r}")

    @boundary
    def accumulated(params: Any, *batch: Any) -> Any:
        rows = into_microbatches(what, "batch", batch, microbatches)
        types = eval_shape(fun, params, *tree.map(lambda x: x[0], rows))
        start = tree.map_with_path(lambda path, t: _zero_sum(what, path, t), types)

        def turn(sums: Any, microbatch: Any) -> tuple[Any, None]:
            found = fun(params, *microbatch)
            return tree.map(lambda s, x: s + x.astype(s.dtype), sums, found), None

        sums, _ = lax.scan(turn, start, rows)
        return tree.map(lambda s, t: (s / microbatches).astype(t.dtype), sums, types)

    return accumulated


def _zero_sum(what: str, path: Any, like: Any) -> Any:
    aval = aval_of(like)
    if not dtypes.is_inexact(aval.dtype):
        raise DTypeError(
            f"{what}: its result{tree.keystr(path)} is {aval}: only floats have a mean"
        )
    return fnp.zeros(aval.shape, np.float32 if aval.dtype.itemsize < 4 else aval.dtype)


# ---- local steps


class LocalState(NamedTuple):
    """What `local_steps` carries: parameters, which all groups begin with; for each group the state
    of its own steps, along a first axis; and the outer optimizer's state."""

    params: Any
    inner: Any
    outer: Any


class LocalSteps(NamedTuple):
    """What `local_steps` gives: init(params, inner) → LocalState, and update(state, batches) →
    (LocalState, results)."""

    init: Callable[[Any, Any], LocalState]
    update: Callable[[LocalState, Any], tuple[LocalState, Any]]


def local_steps(
    step: Callable, outer: GradientTransformation, *, mesh: Mesh, axis: str
) -> LocalSteps:
    """Steps that each group of devices makes by itself, and then one step of all.

    step: step(params, inner, batch) → (params, inner, results), as for one group: an optimizer's
        step, `inner` its state, results a pytree of floats such as the loss
    outer: an optimizer, to which the mean of how far the groups have gone back is a gradient: SGD
        with a learning rate of 1 gives the mean of their parameters; Nesterov's momentum of 0.9 and
        0.7 are usual
    axis: the mesh axis that counts the groups; over the others a group is cut as `step` likes it

    `init(params, inner)` takes a group's first state; all begin with it. `update(state, batches)`
    makes as many steps as the first axis of `batches` has; the second is cut over the groups. What
    goes over `axis` are parameters, once, and results, which are means over groups, along a first
    axis of steps.

    Raises ShardingError where `axis` is none, ShapeError for batches that can't be cut.

    >>> from funcgrad.parallel import local_steps, make_mesh
    >>> def step(w, inner, x):
    ...     value, slope = fg.value_and_grad(lambda w: fnp.mean((w - x) ** 2))(w)
    ...     return w - 0.25 * slope, inner, value
    >>> two = local_steps(step, optim.sgd(1.0), mesh=make_mesh(2, "group"), axis="group")
    >>> state = two.init(fnp.zeros(()), ())
    >>> state, losses = two.update(state, fnp.array([[1.0, 3.0], [1.0, 3.0]]))
    >>> print(state.params, losses)
    1.5 [5.   1.25]

    Douillard et al., DiLoCo, 2023.
    """
    what = f"local_steps of {name_of(step)}"
    groups = _groups(what, step, mesh, axis)
    body = _of_a_group(step, axis)

    def init(params: Any, inner: Any) -> LocalState:
        cut = NamedSharding(mesh, P(axis))

        def each(x: Any) -> Any:
            aval = aval_of(x)
            return with_sharding_constraint(fnp.broadcast_to(x, (groups, *aval.shape)), cut)

        return LocalState(params, tree.map(each, inner), outer.init(params))

    @boundary
    def update(state: LocalState, batches: Any) -> tuple[LocalState, Any]:
        _check_batches(what, batches, groups)
        run = shard_map(
            body,
            mesh=mesh,
            in_specs=(P(), P(axis), P(None, axis)),
            out_specs=(P(), P(axis), P()),
            axis_names={axis},
        )
        back, inner, results = run(state.params, state.inner, batches)
        updates, outer_state = outer.update(back, state.outer, state.params)
        return LocalState(apply_updates(state.params, updates), inner, outer_state), results

    return LocalSteps(init, update)


def _groups(what: str, step: Any, mesh: Any, axis: str) -> int:
    """The number of groups."""
    if not callable(step):
        raise TypeError(f"local_steps: the first argument must be a function, got {step!r}")
    if not isinstance(mesh, Mesh):
        raise TypeError(f"{what}: mesh must be a Mesh, got {mesh!r}")
    if axis not in mesh.axis_names:
        raise ShardingError(f"{what}: axis={axis!r} is no axis of {mesh}")
    return mesh.shape[axis]


def _of_a_group(step: Callable, axis: str) -> Callable:
    """A group's steps, and the mean of how far groups went back."""

    def body(params: Any, inner: Any, batches: Any) -> Any:
        def turn(carry: tuple, batch: Any) -> tuple:
            *carry, results = step(*carry, batch)
            return tuple(carry), results

        # Parameters are a group's own from here on: their gradients aren't summed over groups.
        own = tree.map(lambda x: lax.pvary(x, axis), params)
        start = (own, tree.map(lambda x: x[0], inner))
        (there, inner), results = lax.scan(turn, start, batches)
        back = tree.map(lambda a, b: lax.pmean(a - b, axis), own, there)
        results = tree.map(lambda x: lax.pmean(x, axis), results)
        return back, tree.map(lambda x: x[None], inner), results

    return body


def _check_batches(what: str, batches: Any, groups: int) -> None:
    if not tree.leaves(batches):
        raise TreeError(f"{what}: batches has no leaves: their first axis counts the steps")
    for path, leaf in tree.leaves_with_path(batches):
        shape = aval_of(leaf).shape
        if len(shape) < 2 or shape[1] % groups:
            raise ShapeError(
                f"{what}: batches{tree.keystr(path)} of shape {shape} must have an axis of steps, "
                f"then one of rows that {groups} groups can share evenly"
            )
