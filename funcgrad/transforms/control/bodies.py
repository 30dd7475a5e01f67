"""What branches and loops share: staging their bodies, and types that must agree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from funcgrad import dtypes, tree
from funcgrad.core import backend, context
from funcgrad.core.array import Array
from funcgrad.core.aval import ShapedArray, promote
from funcgrad.core.ir import Jaxpr, Var, eval_jaxpr
from funcgrad.core.staging import stage, stage_with_refs
from funcgrad.core.trace import aval_of
from funcgrad.core.types import Tree, Value, Values
from funcgrad.errors import ControlFlowError, IRError
from funcgrad.ops.elementwise.convert import convert_element_type, convert_element_type_p
from funcgrad.transforms.arguments import FlatFunction, name_of
from funcgrad.transforms.refs import Body
from funcgrad.tree import PyTreeDef

_T = TypeVar("_T")


def has_explicit_axes() -> bool:
    """Whether types tell how values are cut: under a mesh with Explicit axes, outside of what sees
    each device's part by itself."""
    ctx = context.current()
    return ctx.mesh is not None and bool(ctx.mesh.explicit_axes) and not ctx.manual


def stage_body(
    what: str, fun: Callable, in_tree: PyTreeDef, avals: Sequence[ShapedArray], role: str,
    operands: Values, n_carry: int = 0,
) -> Body:  # fmt: skip
    """The program of a body. Its inputs are cut over Explicit mesh axes as the operands, or their
    rows, are; the first results are a carry, which comes as it goes."""
    flat = FlatFunction(f"{what} {role}", fun, in_tree)
    place = f"the {role} {name_of(fun)} of {what}"
    traced: Callable = flat
    if has_explicit_axes():
        traced = backend.explicit().of_body(place, flat, operands, avals, n_carry)
    jaxpr, consts, written = stage_with_refs(traced, avals, place)
    return Body(jaxpr, consts, flat.out_tree, written)


def as_type(x: Value, aval: ShapedArray) -> Value:
    """x in the dtype of a type and as strong; its shape must fit already."""
    have = aval_of(x)
    if have.dtype == aval.dtype and have.weak_type == aval.weak_type:
        return x
    if isinstance(x, bool | int | float | complex) and not isinstance(x, np.generic):
        return Array(np.asarray(x, aval.dtype), aval.weak_type)
    return convert_element_type(x, aval.dtype)


def as_weak_as(x: Value, aval: ShapedArray) -> Value:
    """A scalar, as weak as the value that it belongs to (a gradient's argument); else x itself."""
    have = aval_of(x)
    if aval.weak_type == have.weak_type or have.dtype != aval.dtype or have.shape:
        return x
    return convert_element_type_p.bind(x, new_dtype=have.dtype, weak_type=aval.weak_type)


def cast_outputs(jaxpr: Jaxpr, avals: Sequence[ShapedArray]) -> Jaxpr:
    """The program with its results converted to these types where they differ."""
    if all(a == b for a, b in zip(jaxpr.out_avals, avals, strict=True)):
        return jaxpr

    def fun(*args: Any) -> list:
        outs = eval_jaxpr(jaxpr, *args)
        return [as_type(o, a) for o, a in zip(outs, avals, strict=True)]

    return stage(fun, jaxpr.in_avals, "a body")[0]


def join_carry(
    what: str, init_tree: PyTreeDef, init: Sequence[ShapedArray], out_tree: PyTreeDef,
    outs: Sequence[ShapedArray], init_value: Tree,
) -> list[ShapedArray]:  # fmt: skip
    """The carry's types after one more step towards a fixed point: weak ones yield.

    Raises `ControlFlowError` showing the difference where the types can't agree.
    """
    if init_tree != out_tree:
        raise ControlFlowError(
            f"{what}: the carry must keep its structure, but it enters the body as {init_tree} and "
            f"leaves it as {out_tree}"
        )
    joined = []
    for a, b in zip(init, outs, strict=True):
        if a.shape != b.shape or (a.dtype != b.dtype and not a.weak_type and not b.weak_type):
            raise _carry_error(what, init_value, init, outs)
        dtype, weak = promote([a, b])
        if not a.weak_type and dtype != a.dtype:
            raise _carry_error(what, init_value, init, outs)
        joined.append(ShapedArray(a.shape, dtype, weak and a.weak_type))
    return joined


def _carry_error(
    what: str, init_value: Tree, init: Sequence[ShapedArray], outs: Sequence[ShapedArray]
) -> ControlFlowError:
    paths = [tree.keystr(path) for path, _ in tree.leaves_with_path(init_value)]
    lines = [
        f"  carry{path} enters as {a}{' (weak)' if a.weak_type else ''} and leaves as {b}"
        for path, a, b in zip(paths, init, outs, strict=True)
        if not a.matches(b)
    ]
    return ControlFlowError(
        f"{what}: the carry must keep its types from one step to the next:\n"
        + "\n".join(lines)
        + "\nConvert the initial value or the body's result, with .astype or a reshape."
    )


def check_pred(what: str, pred: Value, role: str) -> ShapedArray:
    """The type of a condition, checked to be a scalar."""
    aval = aval_of(pred)
    if aval.shape:
        raise ControlFlowError(
            f"{what}: {role} must be a scalar, got {aval}; use fnp.where or lax.select for a "
            "choice by element, or vmap"
        )
    if dtypes.is_complex(aval.dtype):
        raise ControlFlowError(f"{what}: {role} must be a boolean or a number, got {aval}")
    return aval


def permuted(jaxpr: Jaxpr, ins: Sequence[int], outs: Sequence[int] | None = None) -> Jaxpr:
    """The program with inputs (and outputs) in another order: input i is the old input ins[i]."""
    new_outs = jaxpr.outs if outs is None else [jaxpr.outs[i] for i in outs]
    return Jaxpr([jaxpr.ins[i] for i in ins], jaxpr.eqns, new_outs)


def with_unused(
    jaxpr: Jaxpr, before: Sequence[ShapedArray], after: Sequence[ShapedArray] = ()
) -> Jaxpr:
    """The program with inputs added that it ignores."""
    ins = [*(Var(a) for a in before), *jaxpr.ins, *(Var(a) for a in after)]
    return Jaxpr(ins, jaxpr.eqns, jaxpr.outs)


def check_carry(what: str, entering: Sequence[ShapedArray], leaving: Sequence[ShapedArray]) -> None:
    """Raise unless a loop's body gives the carry the types that it takes it in."""
    if len(entering) != len(leaving) or not all(map(ShapedArray.matches, entering, leaving)):
        raise IRError(f"{what}: the carry enters the body as {entering} and leaves as {leaving}")


def split_list(items: Sequence[_T], *sizes: int) -> list[list[_T]]:
    """Consecutive pieces of the given sizes, and the rest.

    >>> split_list([1, 2, 3, 4], 1, 2)
    [[1], [2, 3], [4]]
    """
    pieces, start = [], 0
    for n in sizes:
        pieces.append(list(items[start : start + n]))
        start += n
    return [*pieces, list(items[start:])]


def choose(items: Sequence[_T], mask: Sequence[bool]) -> list[_T]:
    """The items where mask is set.

    >>> choose("abc", [True, False, True])
    ['a', 'c']
    """
    return [x for x, m in zip(items, mask, strict=True) if m]


def drop(items: Sequence[_T], mask: Sequence[bool]) -> list[_T]:
    """The items where mask is not set."""
    return [x for x, m in zip(items, mask, strict=True) if not m]


def fixpoint(step: Callable[[list[bool]], list[bool]], start: Sequence[bool]) -> list[bool]:
    """The smallest mask that contains `start` and what `step` gives for it."""
    mask = list(start)
    while True:
        grown = [a or b for a, b in zip(mask, step(mask), strict=True)]
        if grown == mask:
            return mask
        mask = grown
