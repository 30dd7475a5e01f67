"""Functions that have a rule of their own for `vmap`, and functions that `vmap` calls in a loop.

A call is an equation with the function's program and the rule. Differentiated forwards, function
and rule are differentiated alike; backwards, what is left is the function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from funcgrad import tree
from funcgrad.core.aval import ShapedArray, Zero, with_zeros
from funcgrad.core.display.tracebacks import boundary
from funcgrad.core.ir import Eqn, Jaxpr, call_types, interpret
from funcgrad.core.primitive import NoRule, Primitive
from funcgrad.core.staging import stage
from funcgrad.core.trace import aval_of
from funcgrad.core.types import BatchDims, Param, Tangents, Tree, Values
from funcgrad.errors import CustomRuleError
from funcgrad.ops.arguments import check_callable
from funcgrad.ops.base import batch_front, instantiate, move_axis
from funcgrad.transforms.arguments import (
    PositionalFunction,
    as_array,
    check_leaves,
    name_of,
    rule_setter,
    wraps,
)
from funcgrad.transforms.autodiff.jvp import jvp_flat, jvp_jaxpr
from funcgrad.transforms.autodiff.partial_eval import Split, partial_eval_jaxpr
from funcgrad.transforms.batching.trace import BatchAxis
from funcgrad.transforms.control import calls
from funcgrad.transforms.control.bodies import choose
from funcgrad.transforms.control.parallel_scan import map as one_by_one

# rule(axis size, which arguments are batched, arguments) → results, and which are batched
FlatRule = Callable[[int, Sequence[bool], Values], tuple[list, list[bool]]]


class custom_vmap:
    """A function whose batching `vmap` takes from the rule that `def_vmap` sets.

    The rule is called `rule(axis_size, in_batched, *args)`, with a list of True or False for each
    array of the arguments, and those that are batched with the batch axis first; it returns the
    results and which of them are batched (of the same structure, or a prefix of it). Under a second
    `vmap` the rule itself is batched; forward mode differentiates function and rule alike. Reverse
    mode differentiates the function: a rule of its own for it is given by a `custom_vjp` around.
    Raises CustomRuleError without a rule, or where it returns something else.

    >>> import funcgrad as fg, funcgrad.numpy as fnp
    >>> from funcgrad.custom_batching import custom_vmap
    >>> @custom_vmap
    ... def add(x, y):
    ...     return x + y
    >>> @add.def_vmap
    ... def rule(axis_size, in_batched, x, y):
    ...     return x * y, True  # not what add does, to see it
    >>> add(2.0, 3.0), fg.vmap(add)(fnp.arange(3), fnp.arange(1, 4))
    (Array(5., dtype=float32, weak_type=True), Array([0, 2, 6], dtype=int32))
    """

    def __init__(self, fun: Callable):
        check_callable("custom_vmap", fun)
        self._fun = fun
        self._rule: Callable | None = None
        wraps(fun, "custom_vmap")(self)
        self.__name__ = name_of(fun)

    def def_vmap(self, vmap_rule: Callable) -> Callable:
        """Sets the rule, and returns it.

        >>> from funcgrad.custom_batching import custom_vmap
        >>> f = custom_vmap(lambda x: x)
        >>> rule = f.def_vmap(lambda axis_size, in_batched, x: (x, in_batched[0]))
        """
        check_callable("custom_vmap.def_vmap", vmap_rule)
        self._rule = vmap_rule
        return vmap_rule

    def __getattr__(self, name: str) -> Callable:
        return rule_setter(self, name)

    @boundary
    def __call__(self, *args: Any) -> Tree:
        if self._rule is None:
            raise CustomRuleError(
                f"custom_vmap function {name_of(self._fun)} has no rule yet: give one with "
                f"@{name_of(self._fun)}.def_vmap"
            )
        check_leaves("custom_vmap", self._fun, args, {})
        flat_args, in_tree = tree.flatten(args)
        leaves = [as_array(x) for x in flat_args]
        flat = PositionalFunction("custom_vmap", self._fun, in_tree)
        jaxpr, captured = stage(flat, [aval_of(x) for x in leaves], f"custom_vmap({self.__name__})")
        rule = _Rule(self.__name__, self._rule, in_tree, flat.out_tree, len(captured))
        outs = custom_vmap_call_p.bind(*captured, *leaves, jaxpr=jaxpr, rule=rule)
        return flat.unflatten(outs)


class _Rule:
    """A user's rule on flat arguments; captured values come before them."""

    def __init__(self, name: str, rule: Callable, in_tree: tree.PyTreeDef,
                 out_tree: tree.PyTreeDef, captured: int):  # fmt: skip
        self.name = name
        self.rule = rule
        self.in_tree = in_tree
        self.out_tree = out_tree
        self.captured = captured

    def __call__(self, size: int, batched: Sequence[bool], args: Values) -> tuple[list, list[bool]]:
        n = self.captured
        if any(batched[:n]):
            raise CustomRuleError(
                f"custom_vmap function {self.name} closes over a value that vmap maps, which its "
                "rule can't see; pass the value as an argument"
            )
        in_batched = list(self.in_tree.unflatten(list(batched[n:])))
        found = self.rule(size, in_batched, *self.in_tree.unflatten(list(args[n:])))
        if not (isinstance(found, tuple) and len(found) == 2):
            raise CustomRuleError(
                f"the rule of custom_vmap function {self.name} must return a pair (results, which "
                f"of them are batched), got {found!r}"
            )
        outs, structure = tree.flatten(found[0])
        if structure != self.out_tree:
            raise CustomRuleError(
                f"the rule of custom_vmap function {self.name} returned {structure}, where the "
                f"function returns {self.out_tree}"
            )
        mask = [bool(b) for b in tree.leaves(tree.broadcast(found[1], found[0]))]
        for out, b in zip(outs, mask, strict=True):
            if b and aval_of(out).shape[:1] != (size,):
                raise CustomRuleError(
                    f"the rule of custom_vmap function {self.name} says that a result of shape "
                    f"{aval_of(out).shape} is batched, but its first axis isn't {size} long"
                )
        return outs, mask

    def __repr__(self) -> str:
        return self.name


class _Differentiated:
    """A rule of primals, then tangents that aren't zero: the rule's results, then tangents."""

    def __init__(self, rule: FlatRule, nonzero: Sequence[bool], out_nonzero: Sequence[bool]):
        self.rule = rule
        self.nonzero = nonzero
        self.out_nonzero = out_nonzero

    def __call__(self, size: int, batched: Sequence[bool], args: Values) -> tuple[list, list[bool]]:
        n = len(self.nonzero)
        tangents = iter(zip(args[n:], batched[n:], strict=True))
        primals: list[Any] = []
        moved: list[Any] = []
        flags = []
        for x, b, differs in zip(args[:n], batched[:n], self.nonzero, strict=True):
            t, tb = next(tangents) if differs else (Zero(aval_of(x).tangent()), b)
            both = b or tb
            primals.append(batch_front(x, 0 if b else None, size) if both else x)
            moved.append(batch_front(t, 0 if tb else None, size) if differs and both else t)
            if not differs and both:
                moved[-1] = Zero(aval_of(primals[-1]).tangent())
            flags.append(both)
        mask: list[bool] = []

        def fun(*xs: Any) -> list:
            nonlocal mask
            outs, mask = self.rule(size, flags, xs)
            return outs

        outs, outs_t = jvp_flat(fun, primals, moved)
        wanted = [instantiate(t) for t in choose(outs_t, self.out_nonzero)]
        return [*outs, *wanted], [*mask, *choose(mask, self.out_nonzero)]

    def __repr__(self) -> str:
        return f"jvp({self.rule})"


def _jvp(primals: Values, tangents: Tangents, *, jaxpr: Jaxpr, rule: FlatRule | None) -> tuple:
    nonzero = [type(t) is not Zero for t in tangents]
    both, mask = jvp_jaxpr(jaxpr, nonzero)
    differentiated = rule and _Differentiated(rule, nonzero, mask)
    args = [*primals, *choose(tangents, nonzero)]
    outs = custom_vmap_call_p.bind(*args, jaxpr=both, rule=differentiated)
    n = len(jaxpr.outs)
    return outs[:n], with_zeros(outs[n:], mask, jaxpr.out_avals)


def _run(jaxpr: Jaxpr, args: Values, cts: Values = ()) -> list:
    return custom_vmap_call_p.bind(*args, *cts, jaxpr=jaxpr, rule=None)


def _batch(
    axis: BatchAxis, args: Values, dims: BatchDims, *, jaxpr: Jaxpr, rule: FlatRule | None
) -> tuple[list, list]:
    if rule is None or all(d is None for d in dims):
        return calls.over_lanes(jaxpr, axis, args, dims, _run)
    front = [x if d is None else move_axis(x, d, 0) for x, d in zip(args, dims, strict=True)]
    outs, mask = rule(axis.size, [d is not None for d in dims], front)
    return outs, [0 if b else None for b in mask]


def _partial(unknown: Sequence[bool], eqn: Eqn) -> Split:
    """Known and unknown parts: of each, its own function, without the rule."""
    plain = eqn.replace(params={**eqn.params, "rule": None})
    return calls.split(unknown, plain, partial_eval_jaxpr(eqn.params["jaxpr"], unknown))


def _abstract(*avals: ShapedArray, jaxpr: Jaxpr, **params: Param) -> list[ShapedArray]:
    return call_types("custom_vmap", jaxpr, avals)


custom_vmap_call_p = Primitive(
    name="custom_vmap_call",
    abstract=_abstract,
    impl=lambda xp, *values, jaxpr, rule: interpret(jaxpr, xp, *values),
    jvp=_jvp,
    transpose=lambda ct, *args, jaxpr, rule: calls.pull_back(jaxpr, ct, args, _run),
    batch=_batch,
    dims=NoRule("partitioning looks into the program"),
    partial=_partial,
    multiple=True,
    call=True,
)


def sequential_vmap(f: Callable) -> custom_vmap:
    """A function that `vmap` calls element by element, as `lax.map` does.

    >>> import funcgrad as fg, funcgrad.numpy as fnp
    >>> from funcgrad.custom_batching import sequential_vmap
    >>> @sequential_vmap
    ... def f(x):
    ...     return x + 1
    >>> fg.vmap(f)(fnp.arange(3))
    Array([1, 2, 3], dtype=int32)
    """
    made = custom_vmap(f)

    @made.def_vmap
    def rule(axis_size: int, in_batched: Tree, *args: Any) -> tuple[Tree, Tree]:
        leaves, structure = tree.flatten(args)
        batched = tree.leaves(in_batched)

        def one(mapped: Values) -> Tree:
            rest = iter(mapped)
            mixed = [next(rest) if b else x for x, b in zip(leaves, batched, strict=True)]
            return f(*structure.unflatten(mixed))

        out = one_by_one(one, choose(leaves, batched))
        return out, tree.map(lambda _: True, out)

    return made
