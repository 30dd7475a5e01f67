"""Primitives: the vocabulary of programs. An op is one statement and nothing is added to it later.

A `Primitive` carries all its rules; absence is spelled `NoRule("why")`, and the reason is what the
user reads. Families (`funcgrad.ops`) derive most rules from one formula.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

from funcgrad.core import context
from funcgrad.core.types import (
    BatchDims,
    Cotangent,
    Cotangents,
    Operands,
    Param,
    Result,
    Tangents,
    Value,
    Values,
)
from funcgrad.errors import BatchingError, DifferentiationError, FuncgradError


@dataclass(frozen=True)
class NoRule:
    """The spelled-out absence of a rule, with the reason and what to do instead.

    >>> NoRule("the result is an integer").why
    'the result is an integer'
    """

    why: str

    def raise_for(self, prim: Primitive, what: str, error: type[FuncgradError]) -> None:
        """Raise `error` naming the primitive, the missing rule and the reason."""
        raise error(f"{prim.name} has no {what} rule: {self.why}")


Rule = Callable[..., Any]
_LIBRARY = __name__.partition(".")[0]


def exact(value: Param) -> Hashable:
    """What stands for a parameter in keys: equal ones mean the same, where 1 == 1.0 == True and
    0.0 == -0.0 need not, and NaN is the same as itself.

    >>> exact((1, 0.0)) == exact((1, -0.0)), exact(1) == exact(True), exact((1,)) == exact((1,))
    (False, False, True)
    """
    kind = type(value)
    if kind is tuple:
        kinds = tuple(map(type, value))
        if float in kinds or tuple in kinds:
            return tuple([exact(v) for v in value])
        return kinds, value
    return kind, value.hex() if kind is float else value


def exact_params(params: Mapping[str, Param]) -> tuple:
    """Parameters in keys; see `exact`."""
    return tuple([(name, exact(value)) for name, value in params.items()])


def _as_given(*args: Value, **params: Param) -> tuple[tuple, dict]:
    """What an op is applied to, as it is given: `prepare` of ops that take nothing else."""
    return args, params


@dataclass(frozen=True, eq=False, kw_only=True)
class Primitive:
    """One operation: all its rules, and all that others ask of it. Nobody asks for its name.

    abstract(*avals, **params) → aval, or a list of avals where `multiple` is set
    impl(xp, *arrays, **params) → the meaning (a list of arrays where `multiple` is set), on arrays
        of the module `xp`: numpy, or CuPy but for collectives and for types that it doesn't have
    jvp(primals, tangents, **params) → (out, tangent_out); tangents may be `Zero`, also the result
    transpose(ct, *args, **params) → a cotangent (or None) for each argument; arguments to transpose
        are given as `Linear`, the others as values; ct is a list where `multiple` is set
    batch(axis, args, dims, **params) → (out, out_dim): `axis` has .name and .size; dims are ints or
        None; lists where `multiple` is set
    dims(*avals, **params) → the einsum-like mapping of axes, "i k, k j -> i j"; see `core.dims`
    partial(unknown, eqn) → how an equation with both known and unknown operands splits in two, a
        `transforms.autodiff.partial_eval.Split` (only for ops that hold programs; others are not
        split)
    dce(used, eqn) → the equation without what its unused results need (for the same ops); its
        outputs are the used ones
    programs(each, **params) → the parameters with each program rewritten by `each` (only for ops
        that hold programs elsewhere than as a `Jaxpr` or a tuple of such in their parameters)
    prepare(*args, **params) → (args, params) as the rules want them, from what callers may write
    simplify(eqn, made_by) → what gives an equation's result with less to do: an atom, an equation,
        or None (`ops.identities`); made_by: the equations that make variables
    view(x, **params) → for an op that only moves its operand's elements, where those of the result
        come from, as `core.views` says
    blocks(shapes, **params) → the parameters that change where a device has blocks of the results,
        of these shapes
    formula(*args, **params) → the result as made by other ops, for compilers that don't know the op

    multiple: there is a list of results
    elementwise: the op maps scalars to scalars, so that compilers may trace `impl` on symbols
    reduction: "sum", "prod", "max", "min", "and", "or" or "xor": the op combines what its operand
        has along the parameter `axes`
    contraction: the op sums products of its two operands' elements
    linear: the op is linear in all of its operands together
    collective: what devices along the parameter `axis_name` do together: "all_reduce",
        "all_gather", "reduce_scatter", "all_to_all" or "permute"
    effect: the op is run for what it does, in program order, and is never dropped
    call: the op calls the program in its parameter `jaxpr` (or that this function gives for the
        operands' types), which may take the call's place
    identity: the results are the operands, to derivatives too if there is a transpose rule. It is a
        mark that transformations read; where `multiple`, a barrier: what reads its results is not
        merged with what reads its operands. Backends see none
    repeated: what is done twice is meant to be (so as not to be kept in between), and not merged
    passes: how many passes over memory the op takes without `jit`, which its compilation saves:
        2 where NumPy does it on one thread and not by vectors, so that it pays alone. Of
        elementwise ops it is 1, of views 0. None: a program with it is not compiled
    strided: compiled code reads operands, and writes cotangents, where they lie in larger arrays
    """

    name: str
    abstract: Rule
    impl: Rule
    jvp: Rule | NoRule
    transpose: Rule | NoRule
    batch: Rule | NoRule
    dims: Rule | NoRule
    partial: Rule | None = None
    dce: Rule | None = None
    programs: Rule | None = None
    prepare: Rule = field(default=_as_given)
    simplify: Rule | None = None
    view: Rule | None = None
    blocks: Rule | None = None
    formula: Rule | None = None
    multiple: bool = False
    elementwise: bool = False
    reduction: str = ""
    contraction: bool = False
    linear: bool = False
    collective: str = ""
    effect: bool = False
    call: bool = False
    identity: bool = False
    repeated: bool = False
    passes: int | None = None
    strided: bool = False
    doc: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "__name__", self.name)
        if self.passes is None and (self.elementwise or self.view is not None):
            object.__setattr__(self, "passes", 0 if self.view is not None else 1)
        if self.doc:
            object.__setattr__(self, "__doc__", self.doc)

    def __call__(self, *args: Value, **params: Param) -> Result:
        """Apply the op to arrays, tracers or scalars under the current trace."""
        args, params = self.prepare(*args, **params)
        return context.current().trace.process(self, args, params)

    @property
    def multiple_results(self) -> bool:
        """Whether there is a list of results, under JAX's name."""
        return self.multiple

    def bind(self, *args: Value, **params: Param) -> Result:
        """Apply the op to operands that are already as the rules want them."""
        return context.current().trace.process(self, args, params)

    def __repr__(self) -> str:
        return self.name

    def __copy__(self) -> Primitive:
        return self

    def __deepcopy__(self, memo: dict) -> Primitive:
        return self

    def __reduce__(self) -> str:
        # As functions are pickled: by a module and a name in it. That is the library's, else one
        # that others can import: what is run as a program may have imported an op by name.
        ranks = {_LIBRARY: 0, "__main__": 2, "__mp_main__": 2}
        modules = list(sys.modules.items())
        for module, held in sorted(modules, key=lambda m: ranks.get(m[0].partition(".")[0], 1)):
            found = [key for key, x in list(getattr(held, "__dict__", {}).items()) if x is self]
            if found:
                object.__setattr__(self, "__module__", module)
                return found[0]
        raise pickle.PicklingError(
            f"the primitive {self.name} can't be pickled: no module holds it under a name"
        )

    def differentiate(
        self, primals: Values, tangents: Tangents, params: dict
    ) -> tuple[Result, Result]:
        """Apply the jvp rule, or say why there is none."""
        if isinstance(self.jvp, NoRule):
            self.jvp.raise_for(self, "differentiation", DifferentiationError)
        return self.jvp(primals, tangents, **params)  # type: ignore[operator]

    def transposed(self, ct: Cotangent, args: Operands, params: dict) -> Cotangents:
        """Apply the transpose rule, or say why there is none."""
        if isinstance(self.transpose, NoRule):
            self.transpose.raise_for(self, "transpose", DifferentiationError)
        return self.transpose(ct, *args, **params)  # type: ignore[operator]

    def batched(self, axis: object, args: Values, dims: BatchDims, params: dict) -> tuple:
        """Apply the batching rule, or say why there is none."""
        if isinstance(self.batch, NoRule):
            self.batch.raise_for(self, "batching", BatchingError)
        return self.batch(axis, args, dims, **params)  # type: ignore[operator]
