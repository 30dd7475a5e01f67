"""`pipeline_value_and_grad`: a loss and its gradient by a schedule's table, action by action.

All ranks run one program, a loop over ticks: in each, a rank does the action that its column of the
table says, and its result goes to the rank that needs it. Residuals wait in as many slots as the
schedule keeps at a time. The last stage's F ends with the loss and its derivative, which is a
message to itself; so nothing of the head is kept, and B is the same for all stages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import dtypes, lax, tree
from funcgrad.core.aval import ShapedArray
from funcgrad.core.display.tracebacks import boundary
from funcgrad.core.ir import eval_jaxpr
from funcgrad.core.sharding import Mesh, P
from funcgrad.core.trace import aval_of
from funcgrad.errors import DTypeError, ShapeError, TreeError
from funcgrad.parallel.mapping.shard_map import shard_map
from funcgrad.parallel.pipelines.derivatives import Passes, differentiable, passes
from funcgrad.parallel.pipelines.layout import Layout, into_microbatches
from funcgrad.parallel.pipelines.messages import (
    by_mail,
    exchanged,
    mine,
    rows_of,
    slots,
    stored,
    waiting,
)
from funcgrad.parallel.pipelines.schedules import Schedule
from funcgrad.parallel.pipelines.stages import (
    Kind,
    Stages,
    checked_stages,
    laid_out,
    packed_params,
    stages_of,
    unpacked_params,
)
from funcgrad.parallel.pipelines.ticks import Row, Ticks, make_ticks
from funcgrad.transforms.arguments import name_of
from funcgrad.transforms.jit.make_jaxpr import eval_shape

_WHAT = "pipeline_value_and_grad"


def pipeline_value_and_grad(
    stage: Stages,
    loss: Callable,
    *,
    mesh: Mesh,
    axis: str = "pp",
    microbatches: int,
    schedule: str | Schedule = "1f1b",
    first: Callable | None = None,
    last: Callable | None = None,
    has_aux: bool = False,
) -> Callable:
    """The function of (params, x, targets) that gives the loss of a pipeline and its gradient with
    respect to params, computed as the schedule says: so many activations are kept as it keeps.

    stage, mesh, axis, microbatches, schedule: as of `pipeline`; where stages are a list, gradients
        have the form in which params are given
    loss: loss(result, targets) of a microbatch's result of the last stage and its targets; a
        scalar. What is given back is the mean over microbatches. has_aux: it gives a pair with a
        pytree of floats, and so does the function: (value, their means over microbatches)
    first: first(shared, x) → activations, which is done before the first stage (an embedding)
    last: last(shared, activations) → result, which is done after the last one (a head)

    With `first` or `last`, params is a pair (params of the stages, shared): both functions get the
    whole of `shared`, which all ranks have; what both use (a tied embedding) has the sum of both
    cotangents. Without them params are those of the stages.

    Leaves of params must be floating-point; gradients of narrow ones are summed in float32. Raises
    as `pipeline` does, and TypeError, ShapeError or DTypeError for a loss that is no float.

    >>> from funcgrad.parallel import make_mesh, pipeline_value_and_grad
    >>> def layer(w, h):
    ...     return fnp.tanh(h @ w)
    >>> def loss(y, targets):
    ...     return fnp.mean((y - targets) ** 2)
    >>> mesh = make_mesh(2, "pp")
    >>> f = pipeline_value_and_grad(layer, loss, mesh=mesh, microbatches=4, schedule="zb-h1")
    >>> w, x = fnp.ones((2, 3, 3)) / 3, fnp.ones((8, 3))
    >>> value, grads = fg.jit(f)(w, x, fnp.zeros((8, 3)))
    >>> value, grads.shape
    (ShardedArray(0.412..., dtype=float32, P() on Mesh('pp': 2)), (2, 3, 3))

    Narayanan et al., PipeDream-2BW and Megatron-LM, 2021; Qi et al., Zero Bubble Pipeline
    Parallelism, 2023.
    """
    checked_stages(_WHAT, stage)
    if not callable(loss):
        raise TypeError(f"{_WHAT}: loss must be a function, got {loss!r}")
    pair, functions = (
        first is not None or last is not None,
        _Functions(stage, loss, first, last, has_aux),
    )

    @boundary
    def value_and_grad(params: Any, x: Any, targets: Any) -> tuple[Any, Any]:
        given, shared = _parts(params) if pair else (params, ())
        own = packed_params(_WHAT, stage, given)
        layout = laid_out(_WHAT, stage, own, mesh, axis, microbatches, schedule)
        _check_floats("params of stages" if pair else "params", own)
        _check_floats("shared params", shared)
        both = (("x", x), ("targets", targets))
        batches = [into_microbatches(_WHAT, name, batch, microbatches) for name, batch in both]
        value, grads, more = _on_ranks(functions, layout, mesh, own, shared, batches)
        grads = unpacked_params(given, layout.restored(grads))
        return value, (grads, more) if pair else grads

    return value_and_grad


class _Functions(NamedTuple):
    """What the user gave; first and last may be None."""

    stage: Stages
    loss: Callable
    first: Callable | None
    last: Callable | None
    has_aux: bool


def _on_ranks(
    functions: _Functions, layout: Layout, mesh: Mesh, own: Any, shared: Any, batches: Sequence[Any]
) -> tuple[Any, Any, Any]:
    """The loss and the gradients of the stages, as they are laid out, and of what is shared."""
    ticks, axis = make_ticks(layout.schedule, by_mail(mesh)), layout.axis

    def body(weights: Any, shared: Any, x: Any, targets: Any, rows: Row) -> Any:
        return _Model(layout, ticks, functions, weights, shared, x, targets).run(mine(rows))

    mapped = shard_map(
        body,
        mesh=mesh,
        in_specs=(P(axis), P(), P(), P(), P(axis)),
        out_specs=(P(), P(axis), P()),
        axis_names={axis},
    )
    return mapped(layout.arranged(own), shared, *batches, rows_of(ticks))


def _parts(params: Any) -> tuple[Any, Any]:
    if not isinstance(params, tuple) or len(params) != 2:
        raise TreeError(
            f"{_WHAT}: with first= or last=, params must be a pair (params of the stages, shared), "
            f"got {type(params).__name__}"
        )
    return params


def _check_floats(what: str, params: Any) -> None:
    for path, leaf in tree.leaves_with_path(params):
        if not differentiable(aval_of(leaf)):
            raise DTypeError(
                f"{_WHAT}: {what}{tree.keystr(path)} is {aval_of(leaf)}: only floats have "
                "gradients; let the function capture what is none"
            )


class _State(NamedTuple):
    """What a rank carries from tick to tick."""

    inbox: Any
    saved: Any
    kept: Any
    grads: Any
    shared: Any
    loss: Any


# What an action gives: a message, and the state with its part.
_Done = tuple[list, _State]


def _zeros(types: Sequence[ShapedArray]) -> list:
    return [fnp.zeros(t.shape, t.dtype) for t in types]


def _sums(leaves: Sequence[Any]) -> list:
    """Zeros to which gradients are added: of narrow floats in float32."""
    return [fnp.zeros(aval_of(x).shape, _wide(aval_of(x).dtype)) for x in leaves]


def _wide(dtype: np.dtype) -> np.dtype:
    """The dtype in which values of a dtype are summed."""
    return np.dtype(np.float32) if dtype.itemsize < 4 else dtype


class _Model:
    """A rank's part: its arguments as leaves, and programs for what is done with them."""

    def __init__(
        self, layout: Layout, ticks: Ticks, functions: _Functions,
        weights: Any, shared: Any, x: Any, targets: Any,
    ):  # fmt: skip
        self.layout, self.ticks = layout, ticks
        stage, loss, first, last, self.has_aux = functions
        self.weights, self.weights_tree = tree.flatten(weights)
        self.shared, self.shared_tree = tree.flatten(shared)
        self.x, x_tree = tree.flatten(x)
        self.targets, targets_tree = tree.flatten(targets)
        x_types = [_row(v) for v in self.x]
        own = [aval_of(w).strong() for w in layout.chunk(self.weights, np.int32(0))]
        common = [aval_of(s).strong() for s in self.shared]
        takes = Kind(x_tree, x_types)
        if first is not None:
            given = [kind.placeholder for kind in (Kind(self.shared_tree, common), takes)]
            takes = Kind.of(eval_shape(first, *given))
        self.stages = stages_of(_WHAT, layout, stage, weights, Kind(self.weights_tree, own), takes)
        self.types = types = self.stages.types
        self.head: Passes | None = None
        if first is not None:

            def embed(*flat: Any) -> list:
                out = first(*_unflattened(flat, self.shared_tree, x_tree))
                return self.stages.enter(tree.leaves(out))

            self.head = passes(embed, common, x_types, name_of(first))
        self.stage = self.stages.passes()
        # Whole backward passes leave nothing for W.
        self.kept = self.stage.kept if ticks.kept else ()

        def end(*flat: Any) -> list:
            n = len(common) + len(types)
            shared, targets = _unflattened(
                [*flat[: len(common)], *flat[n:]], self.shared_tree, targets_tree
            )
            result = self.stages.result(flat[len(common) : n])
            result = result if last is None else last(shared, result)
            value, aux = _loss_and_aux(loss, loss(result, targets), self.has_aux)
            leaves, self.aux_tree = tree.flatten(aux)
            return [value, *map(lax.stop_gradient, leaves)]

        target_types = [_row(v) for v in self.targets]
        self.tail = passes(end, common, [*types, *target_types], name_of(loss))
        # What the mean over microbatches is taken of: the loss, and what comes with it.
        self.ends = [v.aval for v in self.tail.forward.outs[: 1 + self.aux_tree.num_leaves]]

    # ---- actions

    def idle(self, state: _State, row: Row) -> _Done:
        """Nothing is done."""
        return _zeros(self.types), state

    def forward(self, state: _State, row: Row) -> _Done:
        """F: a stage's result, or for the last stage the derivative of the loss by it."""
        p, own = self.stage, self.own(row)
        outs = eval_jaxpr(p.forward, *p.fixed, *own, *self.activations(state, row))
        result, saved = outs[: len(self.types)], outs[len(self.types) :]
        message, shared, loss = lax.cond(
            row.last > 0,
            lambda: self.end(state, row, result),
            lambda: (result, state.shared, state.loss),
        )
        rooms = stored(state.saved, saved, row.save)
        return message, state._replace(saved=rooms, shared=shared, loss=loss)

    def own(self, row: Row) -> list:
        """The weights of the stage whose turn it is; before them its number, if it counts."""
        number = [row.stage] if self.stages.numbered else []
        return [*number, *self.layout.chunk(self.weights, row.chunk)]

    def activations(self, state: _State, row: Row) -> list:
        """What a stage takes: a message, or for the first stage the batch."""
        head = self.head

        def begin() -> list:
            x = waiting(self.x, row.microbatch)
            if head is None:
                return self.stages.enter(x)
            outs = eval_jaxpr(head.forward, *head.fixed, *self.shared, *x)
            return outs[: len(self.types)]

        return lax.cond(row.first > 0, begin, lambda: waiting(state.inbox, row.read))

    def end(self, state: _State, row: Row, result: list) -> tuple[list, list, list]:
        """The loss: its derivative by the last stage's result, and the sums."""
        p, n = self.tail, len(self.types)
        targets = waiting(self.targets, row.microbatch)
        outs = eval_jaxpr(p.forward, *p.fixed, *self.shared, *result, *targets)
        ends, saved = outs[: len(self.ends)], outs[len(self.ends) :]
        share = 1 / self.layout.schedule.microbatches
        total = [
            s + (x * fnp.full((), share, x.dtype)).astype(s.dtype)
            for s, x in zip(state.loss, ends, strict=True)
        ]
        if not p.results_vary[0]:
            return _zeros(self.types), state.shared, total
        part = fnp.full((), share, ends[0].dtype)
        cts = eval_jaxpr(p.backward, *p.fixed, *self.shared, *saved, part)
        shared, cts = cts[: len(self.shared)], cts[len(self.shared) :]
        return self.as_message(cts[:n]), _plus(state.shared, shared), total

    def as_message(self, cts: Sequence[Any]) -> list:
        """Cotangents of activations as a message: those of integers are zeros."""
        given = iter(cts)
        return [next(given) if differentiable(t) else fnp.zeros(t.shape, t.dtype)
                for t in self.types]  # fmt: skip

    def cotangents(self, state: _State, row: Row) -> list:
        """The cotangents of a stage's results, as they came."""
        came = waiting(state.inbox, row.read)
        return [c for c, varies in zip(came, self.stage.results_vary, strict=True) if varies]

    def backward(self, state: _State, row: Row) -> _Done:
        """B: cotangents of a stage's weights and inputs."""
        p, own = self.stage, self.own(row)
        saved = waiting(state.saved, row.saved)
        cts = eval_jaxpr(p.backward, *p.fixed, *own, *saved, *self.cotangents(state, row))
        n = len(self.weights)
        weights, inputs = cts[:n], cts[n:]
        grads = self.layout.added(state.grads, row.chunk, weights)
        return self.sent_back(state._replace(grads=grads), row, inputs)

    def inputs(self, state: _State, row: Row) -> _Done:
        """I: cotangents of a stage's inputs, and what comes with them."""
        p, own = self.stage, self.own(row)
        saved = waiting(state.saved, row.saved)
        outs = eval_jaxpr(p.inputs_half, *p.fixed, *own, *saved, *self.cotangents(state, row))
        n, n_kept = p.late.count(False), len(p.kept)
        soon, inputs, kept = outs[:n], outs[n : len(outs) - n_kept], outs[len(outs) - n_kept :]
        grads = self.with_some(state, row, soon, late=False)
        rooms = stored(state.kept, kept, row.keep)
        return self.sent_back(state._replace(grads=grads, kept=rooms), row, inputs)

    def weights_half(self, state: _State, row: Row) -> _Done:
        """W: cotangents of the other weights."""
        p, own = self.stage, self.own(row)
        saved, kept = waiting(state.saved, row.saved), waiting(state.kept, row.kept)
        late = eval_jaxpr(p.weights_half, *p.fixed, *own, *saved, *kept)
        grads = self.with_some(state, row, late, late=True)
        return _zeros(self.types), state._replace(grads=grads)

    def with_some(self, state: _State, row: Row, cts: Sequence[Any], late: bool) -> list:
        """The sums of gradients with cotangents of some weights, the late ones or the others."""
        grads = list(state.grads)
        where = [i for i, is_late in enumerate(self.stage.late) if is_late == late]
        some = self.layout.added([grads[i] for i in where], row.chunk, cts)
        for i, g in zip(where, some, strict=True):
            grads[i] = g
        return grads

    def sent_back(self, state: _State, row: Row, inputs: Sequence[Any]) -> _Done:
        """Cotangents of a stage's inputs to the stage before, or to what is before the first."""
        message, head = self.as_message(inputs), self.head
        if head is None:
            return message, state

        def begin() -> list:
            x = waiting(self.x, row.microbatch)
            outs = eval_jaxpr(head.forward, *head.fixed, *self.shared, *x)
            cts = [c for c, v in zip(message, head.results_vary, strict=True) if v]
            saved = outs[len(self.types) :]
            back = eval_jaxpr(head.backward, *head.fixed, *self.shared, *saved, *cts)
            return _plus(state.shared, back[: len(self.shared)])

        shared = lax.cond(row.first > 0, begin, lambda: state.shared)
        return message, state._replace(shared=shared)

    # ---- all of it

    def run(self, rows: Row) -> tuple[Any, Any, Any]:
        """The loss, the gradients of this rank's weights, and those of what is shared."""
        start = _State(
            slots(self.types, self.ticks.messages), slots(self.stage.saved, self.ticks.saved),
            slots(self.kept, self.ticks.kept), _sums(self.weights), _sums(self.shared),
            [fnp.zeros(t.shape, _wide(t.dtype)) for t in self.ends],
        )  # fmt: skip
        actions = [self.idle, self.forward, self.backward, self.inputs, self.weights_half]
        used = sorted({*map(int, np.unique(self.ticks.table.kind)), 0})
        number = np.zeros(len(actions), np.int32)
        number[used] = range(len(used))

        def tick(state: _State, row: Row) -> tuple[_State, None]:
            def branch(k: int) -> tuple:
                message, done = actions[k](state, row)
                return message, done[1:]

            message, done = lax.switch(
                fnp.take(number, row.kind), [partial(branch, k) for k in used]
            )
            inbox = exchanged(state.inbox, message, self.ticks, row, self.layout.axis)
            return _State(inbox, *done), None

        end, _ = lax.scan(tick, start, rows)
        axis = self.layout.axis
        grads = [g.astype(w.dtype) for g, w in zip(end.grads, self.weights, strict=True)]
        shared = [lax.psum(g, axis).astype(s.dtype)
                  for g, s in zip(end.shared, self.shared, strict=True)]  # fmt: skip
        value, *aux = (
            lax.psum(x, axis).astype(t.dtype) for x, t in zip(end.loss, self.ends, strict=True)
        )
        if self.has_aux:
            value = value, self.aux_tree.unflatten(aux)
        return value, self.weights_tree.unflatten(grads), self.shared_tree.unflatten(shared)


def _row(x: Any) -> ShapedArray:
    """The type of a microbatch."""
    aval = aval_of(x)
    return aval.update(shape=aval.shape[1:]).strong()


def _unflattened(flat: Sequence[Any], *structures: Any) -> list:
    """Flat values as pytrees, one after the other."""
    found, at = [], 0
    for structure in structures:
        found.append(structure.unflatten(flat[at : at + structure.num_leaves]))
        at += structure.num_leaves
    return found


def _plus(sums: Sequence[Any], more: Sequence[Any]) -> list:
    return [s + m.astype(s.dtype) for s, m in zip(sums, more, strict=True)]


def _loss_and_aux(loss: Callable, found: Any, has_aux: bool) -> tuple[Any, Any]:
    """A checked loss, and what comes with it."""
    if not has_aux:
        return _checked_loss(loss, found), ()
    if not isinstance(found, tuple) or len(found) != 2:
        raise TypeError(
            f"{_WHAT}: with has_aux, {name_of(loss)} must return a pair (loss, aux), got "
            f"{type(found).__name__}"
        )
    value, aux = found
    for path, leaf in tree.leaves_with_path(aux):
        if not differentiable(aval_of(leaf)):
            raise DTypeError(
                f"{_WHAT}: aux{tree.keystr(path)} of {name_of(loss)} is {aval_of(leaf)}: only "
                "floats have a mean over microbatches"
            )
    return _checked_loss(loss, value), tree.map(fnp.asarray, aux)


def _checked_loss(loss: Callable, value: Any) -> Any:
    if len(tree.leaves(value)) != 1 or not hasattr(value, "dtype"):
        raise TypeError(f"{_WHAT}: {name_of(loss)} must return a scalar, got {type(value)}")
    aval = aval_of(value)
    if aval.shape:
        raise ShapeError(f"{_WHAT}: {name_of(loss)} must return a scalar, got {aval}")
    if not differentiable(aval) or dtypes.is_complex(aval.dtype):
        raise DTypeError(f"{_WHAT}: {name_of(loss)} must return a real float, got {aval}")
    return value
