"""What a pipeline knows of its stages: programs of weights and of messages between ranks.

Stages that are alike are one function of weights. Unlike ones are a choice by the stage's number,
of functions whose weights, messages and residuals are packed, so that all have the same types.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from funcgrad import lax, tree
from funcgrad.core.aval import ShapedArray
from funcgrad.core.ir import Jaxpr, eval_jaxpr
from funcgrad.core.sharding import Mesh
from funcgrad.core.staging import stage_closed
from funcgrad.core.trace import aval_of
from funcgrad.errors import ShapeError, TreeError
from funcgrad.parallel.pipelines.derivatives import Passes, differentiable, passes
from funcgrad.parallel.pipelines.layout import Layout, check_stage, lay_out
from funcgrad.parallel.pipelines.packing import PackedStages, Packing, packed
from funcgrad.parallel.pipelines.schedules import Schedule
from funcgrad.transforms.arguments import name_of
from funcgrad.transforms.jit.make_jaxpr import eval_shape, struct
from funcgrad.tree import PyTreeDef

Stages = Callable | Sequence[Callable]


class Kind(NamedTuple):
    """A pytree's structure, and the types of its leaves."""

    structure: PyTreeDef
    avals: Sequence[ShapedArray]

    @property
    def rows(self) -> int:
        """How many rows there are: of the first leaf that has an axis."""
        return next((t.shape[0] for t in self.avals if t.shape), 0)

    @staticmethod
    def of(x: Any) -> Kind:
        """The kind of a pytree of arrays, or of types."""
        leaves, structure = tree.flatten(x)
        return Kind(structure, [aval_of(v).strong() for v in leaves])

    @property
    def placeholder(self) -> Any:
        """A pytree that stands for one of the kind."""
        return self.structure.unflatten(map(struct, self.avals))


class Alike(NamedTuple):
    """Stages that are one function of their weights and activations."""

    what: str
    fun: Callable
    weights: Kind
    activations: Kind

    @property
    def numbered(self) -> bool:
        """Whether a stage's number comes before its weights."""
        return False

    @property
    def types(self) -> list[ShapedArray]:
        """The types of a message."""
        return list(self.activations.avals)

    def enter(self, leaves: Sequence[Any]) -> list:
        """What the first stage takes, as a message."""
        return list(leaves)

    def result(self, message: Sequence[Any]) -> Any:
        """What the last stage gives."""
        return self.activations.structure.unflatten(message)

    def apply(self, *flat: Any) -> list:
        """A stage's weights and a message → a message."""
        n = self.weights.structure.num_leaves
        own = self.weights.structure.unflatten(flat[:n])
        activations = self.activations.structure.unflatten(flat[n:])
        got = self.fun(own, activations)
        check_stage(self.what, self.fun, got, activations)
        return tree.leaves(got)

    def passes(self) -> Passes:
        """The programs of a stage."""
        return passes(self.apply, self.weights.avals, self.types, name_of(self.fun))


class Unlike:
    """Stages that are a function each; a stage's number comes before its weights, which are packed.

    takes: what the first one takes
    """

    numbered: bool = True

    def __init__(self, functions: Sequence[Callable], own: PackedStages, takes: Kind):
        self.functions, self.own, self.weights = functions, own.stages, own.packing
        self.kinds = [takes]
        for fun, params in zip(functions, own.stages, strict=True):
            given = [Kind(*params).placeholder, self.kinds[-1].placeholder]
            self.kinds.append(Kind.of(eval_shape(fun, *given)))
        self.messages = Packing.of([k.avals for k in self.kinds], takes.rows)

    @property
    def types(self) -> list[ShapedArray]:
        """The types of a message."""
        return self.messages.types

    def enter(self, leaves: Sequence[Any]) -> list:
        """What the first stage takes, as a message."""
        return self.messages.pack(leaves)

    def result(self, message: Sequence[Any]) -> Any:
        """What the last stage gives."""
        return self._unpacked(message, self.kinds[-1])

    def _unpacked(self, message: Sequence[Any], kind: Kind) -> Any:
        return kind.structure.unflatten(self.messages.unpack(message, kind.avals))

    def apply(self, number: Any, *flat: Any) -> list:
        """A stage's number, its weights and a message → a message."""
        return lax.switch(number, [partial(self._one, i, *flat) for i in range(len(self.own))])

    def _one(self, i: int, *flat: Any) -> list:
        """Stage i of its weights and a message."""
        own, n = self.own[i], len(self.weights.columns)
        rows = [x[None] for x in flat[:n]]
        params = own.structure.unflatten(self.weights.unpack(rows, own.avals))
        got = self.functions[i](params, self._unpacked(flat[n:], self.kinds[i]))
        return self.messages.pack(tree.leaves(got))

    def passes(self) -> Passes:
        """The programs of a stage: each a choice of the stages' own, with packed residuals."""
        weights = [t.update(shape=t.shape[1:]) for t in self.weights.types]
        each = [
            passes(partial(self._one, i), weights, self.types, name_of(f))
            for i, f in enumerate(self.functions)
        ]
        return _joined(each, weights, self.types, self.messages.rows)


def stages_of(
    what: str, layout: Layout, stage: Stages, own: Any, weights: Kind, takes: Kind
) -> Alike | Unlike:
    """The stages of a pipeline.

    own: the parameters as they were given, or packed; weights: those of one stage; takes: what the
    first stage takes
    """
    if callable(stage):
        return Alike(what, layout.stage(stage), weights, takes)
    return Unlike(stage, own, takes)


def checked_stages(what: str, stage: Stages) -> None:
    """Raise TypeError unless these are functions."""
    if callable(stage):
        return
    if not isinstance(stage, list | tuple):
        raise TypeError(f"{what}: stage must be a function, got {stage!r}; or a list of functions")
    if not stage:
        raise TypeError(f"{what}: stage must be a function, or a list of functions, got none")
    for i, fun in enumerate(stage):
        if not callable(fun):
            raise TypeError(f"{what}: stage[{i}] must be a function, got {fun!r}")


def packed_params(what: str, stage: Stages, params: Any) -> Any:
    """The parameters of unlike stages, packed; those of stages that are alike as they are."""
    if callable(stage):
        return params
    if isinstance(params, PackedStages):
        n = len(params.stages)
    elif isinstance(params, list | tuple):
        n = len(params)
    else:
        raise TreeError(
            f"{what}: of a list of stages, params must be a list or tuple with a pytree for each, "
            f"or what pack_stages gives; got {type(params).__name__}"
        )
    if n != len(stage):
        raise ShapeError(f"{what}: {len(stage)} stages are given, and the params of {n}")
    return params if isinstance(params, PackedStages) else packed(f"{what}: params", params)


def unpacked_params(given: Any, found: Any) -> Any:
    """What has the form of parameters, in that in which they were given."""
    if not isinstance(found, PackedStages) or isinstance(given, PackedStages):
        return found
    return type(given)(found.unpack())


def laid_out(
    what: str, stage: Stages, params: Any, mesh: Mesh, axis: str, microbatches: int,
    schedule: str | Schedule,
) -> Layout:  # fmt: skip
    """`lay_out`, where unlike stages must be as many as the schedule has."""
    rows = params.arrays if isinstance(params, PackedStages) else params
    layout = lay_out(what, rows, mesh, axis, microbatches, schedule)
    if not callable(stage) and layout.group != 1:
        raise ShapeError(
            f"{what}: {len(stage)} stages are given, but the schedule "
            f"{layout.schedule.name!r} has {layout.schedule.stages}: join functions that follow "
            "each other on a rank"
        )
    return layout


# ---- the programs of unlike stages as one


def _joined(
    each: Sequence[Passes], weights: Sequence[ShapedArray], types: Sequence[ShapedArray], rows: int
) -> Passes:
    """Programs of a number, weights and packed values that do what those of a stage do."""
    varies = tuple(map(differentiable, types))
    cts = [t for t, v in zip(types, varies, strict=True) if v]
    saved, kept = (Packing.of(kinds, rows) for kinds in zip(*map(_left, each), strict=True))
    starts = np.cumsum([0, *(len(p.fixed) for p in each)])
    fixed = [x for p in each for x in p.fixed]
    n, n_types, n_cts = len(weights), len(types), len(cts)
    avals = [*map(_aval, fixed), ShapedArray((), np.dtype(np.int32)), *weights]

    def program(one: Callable[..., list], more: Sequence[ShapedArray], name: str) -> Jaxpr:
        def chosen(*flat: Any) -> list:
            captured, number = flat[: len(fixed)], flat[len(fixed)]
            rest = flat[len(fixed) + 1 :]

            def branch(i: int) -> list:
                p = each[i]
                head = [*captured[starts[i] : starts[i + 1]], *rest[:n]]
                return one(p, head, rest[n:])

            return lax.switch(number, [partial(branch, i) for i in range(len(each))])

        return stage_closed(chosen, [*avals, *more], f"the {name} of unlike stages")

    def given(p: Passes, results: Sequence[Any]) -> list:
        return [c for c, v in zip(results, _of_floats(p.results_vary, varies), strict=True) if v]

    def forward(p: Passes, head: list, message: Sequence[Any]) -> list:
        outs = eval_jaxpr(p.forward, *head, *message)
        return [*outs[:n_types], *saved.pack(outs[n_types:])]

    def backward(p: Passes, head: list, rest: Sequence[Any]) -> list:
        left = saved.unpack(rest[: len(rest) - n_cts], p.saved)
        return eval_jaxpr(p.backward, *head, *left, *given(p, rest[len(rest) - n_cts :]))

    def inputs_half(p: Passes, head: list, rest: Sequence[Any]) -> list:
        left = saved.unpack(rest[: len(rest) - n_cts], p.saved)
        outs = eval_jaxpr(p.inputs_half, *head, *left, *given(p, rest[len(rest) - n_cts :]))
        soon = p.late.count(False)
        # What is there early waits with the rest: W then gives the cotangents of all weights.
        return [*outs[soon : soon + n_cts], *kept.pack([*outs[:soon], *outs[soon + n_cts :]])]

    def weights_half(p: Passes, head: list, rest: Sequence[Any]) -> list:
        left = saved.unpack(rest[: len(saved.columns)], p.saved)
        soon, more = _split(kept.unpack(rest[len(saved.columns) :], _left(p)[1]), p)
        early, late = iter(soon), iter(eval_jaxpr(p.weights_half, *head, *left, *more))
        return [next(late) if is_late else next(early) for is_late in p.late]

    return Passes(
        program(forward, types, "forward pass"),
        program(backward, [*saved.types, *cts], "backward pass"),
        program(inputs_half, [*saved.types, *cts], "inputs' half"),
        program(weights_half, [*saved.types, *kept.types], "weights' half"),
        tuple(saved.types), tuple(kept.types), (True,) * n, varies, tuple(fixed),
    )  # fmt: skip


def _aval(x: Any) -> ShapedArray:
    return aval_of(x).strong()


def _left(p: Passes) -> tuple[Sequence[ShapedArray], Sequence[ShapedArray]]:
    """What F leaves, and what I leaves, with the cotangents of weights that it makes itself."""
    soon = [v.aval.strong() for v in p.inputs_half.outs[: p.late.count(False)]]
    return p.saved, [*soon, *p.kept]


def _split(values: Sequence[Any], p: Passes) -> tuple[Sequence[Any], Sequence[Any]]:
    soon = p.late.count(False)
    return values[:soon], values[soon:]


def _of_floats(results: Sequence[bool], floats: Sequence[bool]) -> list[bool]:
    """Of the results that are floats, which vary."""
    return [r for r, is_float in zip(results, floats, strict=True) if is_float]
