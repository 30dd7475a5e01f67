"""checkpoint: compute again in the backward pass instead of keeping intermediate values.

A call of a program marked so saves only its inputs, and what a policy names; in the linear program
the rest is computed again (Griewank & Walther, "Evaluating Derivatives", chapter 12).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from funcgrad import tree
from funcgrad.core.dims import mapping
from funcgrad.core.display.tracebacks import boundary
from funcgrad.core.ir import Eqn, Jaxpr, call_types, interpret
from funcgrad.core.primitive import NoRule, Primitive
from funcgrad.core.staging import stage
from funcgrad.core.types import Cotangents, Operand, Param, Tree
from funcgrad.ops.barrier import barrier_p, name_p
from funcgrad.transforms.arguments import (
    FlatFunction,
    avals_of,
    check_leaves,
    leaf_names,
    name_of,
    split_static,
    wraps,
)
from funcgrad.transforms.autodiff.partial_eval import Split, partial_eval_jaxpr
from funcgrad.transforms.control import calls
from funcgrad.transforms.control.jit_primitive import jit_p
from funcgrad.transforms.passes.simplify import inline_calls

Policy = Callable[..., bool]


def checkpoint(
    fun: Callable | None = None,
    *,
    policy: Policy | None = None,
    static_argnums: int | Sequence[int] = (),
    prevent_cse: bool = True,
) -> Callable:
    """`fun`, but differentiating it keeps only its arguments and recomputes the rest.

    policy: a function (primitive, *avals, **params) → bool of the operations whose results are
    kept anyway; see `checkpoint_policies`. static_argnums: arguments that aren't arrays.
    prevent_cse: keep the second computation apart from the first; without it a compiler may merge
    them, and the memory is not saved.

    >>> import funcgrad as fg, funcgrad.numpy as fnp
    >>> f = fg.checkpoint(lambda x: fnp.sin(fnp.sin(x)))
    >>> print(fg.grad(f)(1.0))
    0.36003...
    """
    if fun is None:
        return lambda f: checkpoint(
            f, policy=policy, static_argnums=static_argnums, prevent_cse=prevent_cse
        )

    @wraps(fun, "checkpoint")
    @boundary
    def checkpointed(*args: Any, **kwargs: Any) -> Tree:
        call, dynamic, fixed = split_static("checkpoint", fun, static_argnums, args)
        check_leaves("checkpoint", fun, args, kwargs, fixed)
        leaves, in_tree = tree.flatten((dynamic, kwargs))
        flat = FlatFunction("checkpoint", call, in_tree)
        names = leaf_names(fun, args, kwargs, fixed)
        jaxpr, consts = stage(flat, avals_of(leaves), f"checkpoint({name_of(fun)})", names)
        outs = checkpoint_p.bind(
            *consts, *leaves, jaxpr=jaxpr, policy=policy, prevent_cse=prevent_cse
        )
        return flat.unflatten(outs)

    return checkpointed


remat = checkpoint  # JAX's other name


def checkpoint_name(x: Tree, name: str) -> Tree:
    """x (a pytree), its arrays marked with a name that checkpoint policies know.

    >>> import funcgrad as fg
    >>> fg.checkpoint_name(1.0, "hidden")
    Array(1., dtype=float32, weak_type=True)
    """
    return tree.map(lambda leaf: name_p.bind(leaf, name=name), x)


@dataclass(frozen=True)
class NamePolicy:
    """Keeps values by the names that `checkpoint_name` marks them with: those "named" so, those
    "named otherwise", or all that are "not named" so."""

    kind: str
    names: tuple[str, ...]

    def __call__(self, prim: Primitive, *avals: Any, **params: Any) -> bool:
        marked = prim is name_p
        if self.kind == "named otherwise":
            return marked and params["name"] not in self.names
        return (marked and params["name"] in self.names) == (self.kind == "named")


@dataclass(frozen=True)
class EitherPolicy:
    """Keeps what either of two policies keeps."""

    first: Policy
    second: Policy

    def __call__(self, prim: Primitive, *avals: Any, **params: Any) -> bool:
        return self.first(prim, *avals, **params) or self.second(prim, *avals, **params)


class checkpoint_policies:
    """Which intermediate values `checkpoint` keeps; pass one as its `policy`.

    >>> import funcgrad as fg
    >>> policy = fg.checkpoint_policies.save_only_these_names("hidden")
    """

    @staticmethod
    def everything_saveable(prim: Primitive, *avals: Any, **params: Param) -> bool:
        """Keep all: no recomputation."""
        return True

    @staticmethod
    def nothing_saveable(prim: Primitive, *avals: Any, **params: Param) -> bool:
        """Keep nothing but the arguments: the default."""
        return False

    @staticmethod
    def dots_saveable(prim: Primitive, *avals: Any, **params: Param) -> bool:
        """Keep the results of matrix products and convolutions."""
        return prim.contraction

    @staticmethod
    def dots_with_no_batch_dims_saveable(prim: Primitive, *avals: Any, **params: Param) -> bool:
        """Keep the results of matrix products without batch axes."""
        if not prim.contraction:
            return False
        (lhs, rhs), (out,) = (dims := mapping(prim, avals, params)).ins, dims.outs
        # The axes that a convolution slides along match none.
        return not dims.whole and "." not in (*lhs, *rhs) and not {*lhs} & {*rhs} & {*out}

    @staticmethod
    def save_only_these_names(*names: str) -> Policy:
        """Keep values that `checkpoint_name` marked with one of these names."""
        return NamePolicy("named", names)

    @staticmethod
    def save_any_names_but_these(*names: str) -> Policy:
        """Keep values that `checkpoint_name` marked, but with these names."""
        return NamePolicy("named otherwise", names)

    @staticmethod
    def save_anything_except_these_names(*names: str) -> Policy:
        """Keep all but values that `checkpoint_name` marked with one of these names."""
        return NamePolicy("not named", names)

    @staticmethod
    def save_and_offload_only_these_names(
        *, names_which_can_be_saved: Sequence[str], names_which_can_be_offloaded: Sequence[str],
        offload_src: str, offload_dst: str,
    ) -> Policy:  # fmt: skip
        """Keep values with these names. There is one memory: what would be offloaded is kept."""
        names = (*names_which_can_be_saved, *names_which_can_be_offloaded)
        return checkpoint_policies.save_only_these_names(*names)

    @staticmethod
    def offload_dot_with_no_batch_dims(offload_src: str, offload_dst: str) -> Policy:
        """As `dots_with_no_batch_dims_saveable`: there is one memory."""
        return checkpoint_policies.dots_with_no_batch_dims_saveable

    @staticmethod
    def save_from_both_policies(first: Policy, second: Policy) -> Policy:
        """Keep what either policy keeps."""
        return EitherPolicy(first, second)

    checkpoint_dots = dots_saveable
    checkpoint_dots_with_no_batch_dims = dots_with_no_batch_dims_saveable


# ---- rules


def _call(**params: Param) -> calls.Run:
    return lambda jaxpr, args: checkpoint_p.bind(*args, jaxpr=jaxpr, **params)


def _transpose(ct: Cotangents, *args: Operand, jaxpr: Jaxpr, **params: Param) -> list:
    def run(backward: Jaxpr, values: list, cts: list) -> list:
        if params["prevent_cse"] and values:
            values = barrier_p.bind(*values)
        return _call(**params)(backward, [*values, *cts])

    return calls.pull_back(jaxpr, ct, args, run)


def _partial(unknown: Sequence[bool], eqn: Eqn) -> Split:
    jaxpr = eqn.params["jaxpr"]
    policy = checkpoint_policies.nothing_saveable
    if eqn.params["policy"] is not None:
        # What a compiled function computes is up to the policy too.
        policy, jaxpr = eqn.params["policy"], inline_calls(jaxpr, lambda prim: prim is jit_p)

    def saveable(e: Eqn) -> bool:
        return policy(e.prim, *(a.aval for a in e.ins), **e.params)

    return calls.split(unknown, eqn, partial_eval_jaxpr(jaxpr, unknown, saveable=saveable))


checkpoint_p = Primitive(
    name="checkpoint",
    abstract=lambda *avals, jaxpr, **rest: call_types("checkpoint", jaxpr, avals),
    impl=lambda xp, *values, jaxpr, **rest: interpret(jaxpr, xp, *values),
    jvp=lambda primals, tangents, *, jaxpr, **params: calls.push_forward(
        jaxpr, primals, tangents, _call(**params)
    ),
    transpose=_transpose,
    batch=lambda axis, args, dims, *, jaxpr, **params: calls.over_lanes(
        jaxpr, axis, args, dims, _call(**params)
    ),
    dims=NoRule("partitioning looks into the program"),
    partial=_partial,
    dce=calls.dce,
    multiple=True,
    call=True,
)
