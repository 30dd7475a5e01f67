"""Calls of functions that have their own derivative rules, as traces see them.

A call offers what each trace may want: run the function, differentiate it by its rule, batch it
(function and rule alike), or stage it as one equation that still carries the rule. A rule for the
vjp enters a linear program as `custom_vjp_tangent`: run backwards it is the user's rule; run
forwards it is the jvp of the function itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from funcgrad import tree
from funcgrad.core.aval import Linear, ShapedArray, Zero, with_zeros
from funcgrad.core.closed import with_constants
from funcgrad.core.ir import Jaxpr, call_types, eval_jaxpr, interpret, sub_jaxprs
from funcgrad.core.primitive import NoRule, Primitive
from funcgrad.core.rewriting import Each
from funcgrad.core.staging import JaxprTrace, stage
from funcgrad.core.trace import Tracer, aval_of
from funcgrad.core.types import (
    ArrayModule,
    BatchDims,
    Cotangent,
    Cotangents,
    Operand,
    Operands,
    Param,
    Params,
    PlainArray,
    Tangents,
    Tree,
    Value,
    Values,
)
from funcgrad.errors import DifferentiationError
from funcgrad.ops.base import batch_front, instantiate, move_axis, sum_p
from funcgrad.transforms.autodiff.jvp import jvp_flat, jvp_jaxpr
from funcgrad.transforms.autodiff.transpose import backward_pass
from funcgrad.transforms.batching.batching import batch_flat, batch_jaxpr
from funcgrad.transforms.batching.trace import BatchAxis
from funcgrad.transforms.control.jit_primitive import call_jaxpr

Flat = Callable[..., list]


class JVPCall:
    """A call of a `custom_jvp` function: `jvp(primals, tangents)` gives results and tangents.

    transpose(args, cts) → a cotangent (or None) for each argument: for a function that is linear in
    the arguments given as `Linear`, and isn't to be transposed op by op.
    """

    def __init__(
        self,
        name: str,
        fun: Flat,
        jvp: Callable,
        symbolic_zeros: bool,
        transpose: Callable | None = None,
    ):
        self.name = name
        self.fun = fun
        self.jvp = jvp
        self.symbolic_zeros = symbolic_zeros
        self.transpose = transpose

    def differentiate(self, primals: Values, tangents: Tangents) -> tuple[list, list]:
        """Results and tangents by the user's rule."""
        if not self.symbolic_zeros:
            tangents = [instantiate(t) for t in tangents]
        return self.jvp(primals, tangents)

    def batched(self, axis: BatchAxis, dims: BatchDims) -> JVPCall:
        """The same call over a batch: function and rule are mapped, results batched at axis 0."""

        def jvp(primals: Values, tangents: Tangents) -> tuple[list, list]:
            n = len(primals)
            given = [t for t in tangents if type(t) is not Zero]
            given_dims = [d for d, t in zip(dims, tangents, strict=True) if type(t) is not Zero]

            def both(*flat: Any) -> list:
                rest = iter(flat[n:])
                lanes = [
                    Zero(aval_of(p).tangent()) if type(t) is Zero else next(rest)
                    for p, t in zip(flat[:n], tangents, strict=True)
                ]
                outs, outs_t = self.jvp(flat[:n], lanes)
                return [*outs, *(instantiate(t) for t in outs_t)]

            outs = map_flat(both, axis, [*primals, *given], [*dims, *given_dims])
            half = len(outs) // 2
            return outs[:half], outs[half:]

        fun = mapped(self.fun, axis, dims)
        transpose = self.transpose and batched_transpose(self.transpose, axis, dims)
        return JVPCall(self.name, fun, jvp, self.symbolic_zeros, transpose)

    def rewritten(self, each: Each) -> JVPCall:
        """The same call, the programs of function and rules rewritten."""
        fun, jvp = through(each, self.fun), through(each, self.jvp)
        transpose = self.transpose and through(each, self.transpose)
        return JVPCall(self.name, fun, jvp, self.symbolic_zeros, transpose)

    def stage(self, trace: JaxprTrace, args: Values) -> list:
        """Record the call as an equation."""
        return _stage(custom_jvp_call_p, self, trace, args)

    def __repr__(self) -> str:
        return self.name


class VJPCall:
    """A call of a `custom_vjp` function.

    fwd(primals, perturbed) → (results, residuals); bwd(residuals, cotangents) → a cotangent or Zero
    for each primal. forward: whether forward mode may differentiate `fun` itself. refs: whether
    mutable arrays are among the user's arguments, which the rules then share.
    """

    def __init__(
        self, name: str, fun: Flat, fwd: Callable, bwd: Callable, forward: bool = True,
        refs: bool = False,
    ):  # fmt: skip
        self.refs = refs
        self.name = name
        self.fun = fun
        self.fwd = fwd
        self.bwd = bwd
        self.forward = forward

    def differentiate(self, primals: Values, tangents: Tangents) -> tuple[list, list]:
        """Results by the forward rule; tangents as an equation that can be run both ways."""
        perturbed = [type(t) is not Zero for t in tangents]
        outs, residuals = self.fwd(primals, perturbed)
        avals = [aval_of(p) for p in primals]
        given = [t for t in tangents if type(t) is not Zero]
        out_tangents = custom_vjp_tangent_p.bind(
            *primals,
            *residuals,
            *given,
            jaxpr=_Forward(self, avals, perturbed, len(residuals)),
            bwd=self.bwd,
            perturbed=tuple(perturbed),
            out_avals=tuple(aval_of(o).tangent() for o in outs),
            name=self.name,
        )
        return outs, out_tangents

    def batched(self, axis: BatchAxis, dims: BatchDims) -> VJPCall:
        """The same call over a batch: function and rules are mapped, results batched at axis 0."""

        def fwd(primals: Values, perturbed: Sequence[bool]) -> tuple[list, list]:
            count = 0

            def both(*lane: Any) -> list:
                nonlocal count
                outs, residuals = self.fwd(lane, perturbed)
                count = len(outs)
                return [*outs, *residuals]

            flat = map_flat(both, axis, primals, dims)
            return flat[:count], flat[count:]

        bwd = batched_bwd(self.bwd, axis, dims)
        return VJPCall(self.name, mapped(self.fun, axis, dims), fwd, bwd, self.forward, self.refs)

    def rewritten(self, each: Each) -> VJPCall:
        """The same call, the programs of function and rules rewritten."""

        def fwd(primals: Values, perturbed: Sequence[bool]) -> tuple[list, list]:
            return through(each, lambda *args: self.fwd(args, perturbed))(*primals)

        fun, bwd = through(each, self.fun), through(each, self.bwd)
        return VJPCall(self.name, fun, fwd, bwd, self.forward, self.refs)

    def stage(self, trace: JaxprTrace, args: Values) -> list:
        """Record the call as an equation."""
        return _stage(custom_vjp_call_p, self, trace, args)

    def __repr__(self) -> str:
        return self.name


class _Forward:
    """The program primals, residuals, tangents → tangents of `fun`, made when it is wanted."""

    def __init__(self, call: VJPCall, avals: list, perturbed: list[bool], n_residuals: int):
        self.call = call
        self.avals = avals
        self.perturbed = perturbed
        self.n_residuals = n_residuals

    def __call__(self, in_avals: Sequence[ShapedArray]) -> Jaxpr:
        call, n = self.call, len(self.avals)
        if not call.forward:
            raise DifferentiationError(
                f"forward-mode differentiation of {call.name}, which has a custom vjp and forbids "
                "a jvp (defvjp(..., jvp=False)); use reverse mode, or give it a custom jvp"
            )

        def fun(*flat: Any) -> list:
            tangents = with_zeros(flat[n + self.n_residuals :], self.perturbed, self.avals)
            _, outs_t = jvp_flat(call.fun, flat[:n], tangents)
            return [instantiate(t) for t in outs_t]

        jaxpr, consts = stage(fun, in_avals, f"jvp of {call.name}")
        if any(isinstance(c, Tracer) for c in consts):
            raise captured_error(call.name)
        return with_constants(jaxpr, consts)

    def __repr__(self) -> str:
        return f"jvp({self.call.name})"


def captured_error(name: str) -> DifferentiationError:
    """The error for a custom rule's function that closes over a transformed value."""
    return DifferentiationError(
        f"{name} has a custom derivative rule and closes over a value that is being "
        "differentiated, mapped or traced outside it, which the rule can't see; pass the value as "
        "an argument (funcgrad.closure_convert makes captured values arguments)"
    )


def through(each: Each, fun: Callable) -> Callable:
    """A function of lists of arrays whose program is rewritten when it is called. What stands for
    no array, among arguments and results, stays."""

    def rewritten(*args: Any) -> Tree:
        leaves, structure = tree.flatten(args)
        given = [x for x in leaves if not isinstance(x, Zero | Linear)]
        found: Any = None

        def flat(*values: Any) -> list:
            nonlocal found
            rest = iter(values)
            mixed = [x if isinstance(x, Zero | Linear) else next(rest) for x in leaves]
            found = tree.flatten(fun(*structure.unflatten(mixed)))
            return [x for x in found[0] if type(x) is not Zero]

        jaxpr, consts = stage(flat, [aval_of(x) for x in given], "a function with rules")
        outs = iter(eval_jaxpr(each(jaxpr), *consts, *given))
        return found[1].unflatten([x if type(x) is Zero else next(outs) for x in found[0]])

    return rewritten


def map_flat(fun: Flat, axis: BatchAxis, args: Values, dims: BatchDims) -> list:
    """Map a flat function, with the batch axis first in all results."""
    outs, out_dims = batch_flat(fun, axis, args, dims)
    return [batch_front(o, d, axis.size) for o, d in zip(outs, out_dims, strict=True)]


def mapped(fun: Flat, axis: BatchAxis, dims: BatchDims) -> Flat:
    """A flat function mapped over a batch."""
    return lambda *args: map_flat(fun, axis, args, dims)


def batched_transpose(transpose: Callable, axis: BatchAxis, dims: BatchDims) -> Callable:
    """A transpose rule over a batch; cotangents of arguments that are the same for all lanes are
    summed over them."""

    def batched(args: Operands, cts: Cotangents) -> list:
        linear = [type(a) is Linear for a in args]
        known = [(a, d) for a, d in zip(args, dims, strict=True) if type(a) is not Linear]

        def lane(*flat: Any) -> list:
            values = iter(flat)
            lanes = [
                Linear(a.aval if d is None else _without(a.aval, d)) if m else next(values)
                for a, d, m in zip(args, dims, linear, strict=True)
            ]
            found = transpose(lanes, list(values))
            wanted = zip(found, lanes, strict=True)
            return [
                instantiate(Zero(a.aval) if c is None else c)
                for c, a in wanted
                if type(a) is Linear
            ]

        given = [*known, *((instantiate(c), 0) for c in cts)]
        outs = iter(map_flat(lane, axis, [x for x, _ in given], [d for _, d in given]))
        return [_to_lanes(next(outs), d) if m else None for m, d in zip(linear, dims, strict=True)]

    return batched


def _to_lanes(ct: Cotangent, dim: int | None) -> Value:
    """A cotangent batched at axis 0 as that of an argument batched at `dim`."""
    return sum_p.bind(ct, axes=(0,)) if dim is None else move_axis(ct, 0, dim)


def batched_bwd(bwd: Callable, axis: BatchAxis, dims: BatchDims) -> Callable:
    """A backward rule over residuals and cotangents batched at axis 0; cotangents of primals that
    are the same for all lanes are summed over them."""

    def batched(residuals: Values, cts: Cotangents) -> list:
        n = len(residuals)
        given = [c for c in cts if type(c) is not Zero]
        mask: list[Any] = []

        def lane(*flat: Any) -> list:
            rest = iter(flat[n:])
            lanes = [
                Zero(c.aval.update(shape=c.aval.shape[1:])) if type(c) is Zero else next(rest)
                for c in cts
            ]
            found = bwd(flat[:n], lanes)
            mask.extend(found)
            return [c for c in found if type(c) is not Zero]

        outs = iter(map_flat(lane, axis, [*residuals, *given], [0] * (n + len(given))))
        result = []
        for c, d in zip(mask, dims, strict=True):
            if type(c) is Zero:
                shape = c.aval.shape
                wide = shape if d is None else (*shape[:d], axis.size, *shape[d:])
                result.append(Zero(c.aval.update(shape=wide)))
            else:
                result.append(_to_lanes(next(outs), d))
        return result

    return batched


# ---- staged calls


def _stage(prim: Primitive, call: JVPCall | VJPCall, trace: JaxprTrace, args: Values) -> list:
    jaxpr, consts = stage(call.fun, [aval_of(a) for a in args], call.name)
    params = {"jaxpr": jaxpr, "call": call, "n_consts": len(consts)}
    return trace.process(prim, (*consts, *args), params)


def _call_jvp(
    primals: Values, tangents: Tangents, *, jaxpr: Jaxpr, call: JVPCall | VJPCall, n_consts: int
) -> tuple[list, list]:
    if any(type(t) is not Zero for t in tangents[:n_consts]):
        raise captured_error(call.name)
    return call.differentiate(primals[n_consts:], tangents[n_consts:])


def _call_batch(prim: Callable[[], Primitive]) -> Callable:
    def rule(axis: BatchAxis, args: Values, dims: BatchDims, *, jaxpr: Jaxpr,
             call: JVPCall | VJPCall, n_consts: int) -> tuple:  # fmt: skip
        batched, _ = batch_jaxpr(jaxpr, axis, dims, force=True)
        inner = call.batched(axis, dims[n_consts:])
        outs = prim().bind(*args, jaxpr=batched, call=inner, n_consts=n_consts)
        return outs, [0] * len(outs)

    return rule


def _call_transpose(
    ct: Cotangents, *args: Operand, jaxpr: Jaxpr, call: JVPCall | VJPCall, n_consts: int
) -> list:
    transpose = getattr(call, "transpose", None)
    if transpose is None or any(type(a) is Linear for a in args[:n_consts]):
        return backward_pass(jaxpr, args, ct)
    return [None] * n_consts + transpose(args[n_consts:], ct)


def _staged_call(name: str) -> Primitive:
    def this() -> Primitive:
        return made

    made = Primitive(
        name=name,
        abstract=lambda *avals, jaxpr, call, n_consts: call_types(name, jaxpr, avals),
        impl=lambda xp, *values, jaxpr, call, n_consts: interpret(jaxpr, xp, *values),
        jvp=_call_jvp,
        transpose=_call_transpose,
        batch=_call_batch(this),
        dims=NoRule("partitioning looks into the program"),
        programs=lambda each, *, jaxpr, call, n_consts: {
            "jaxpr": each(jaxpr),
            "call": call.rewritten(each),
            "n_consts": n_consts,
        },
        multiple=True,
        call=True,
    )
    return made


def rules_share_refs(jaxpr: Jaxpr) -> bool:
    """Whether a program calls a function with rules of its own to which mutable arrays were given:
    of such a program there are no derivatives apart from who holds these."""
    return jaxpr.derive("rules share refs", lambda: _share_refs(jaxpr))


def _share_refs(jaxpr: Jaxpr) -> bool:
    calls = (eqn.params.get("call") for eqn in jaxpr.eqns)
    return any(getattr(call, "refs", False) for call in calls) or any(
        rules_share_refs(inner) for eqn in jaxpr.eqns for inner in sub_jaxprs(eqn)
    )


custom_jvp_call_p = _staged_call("custom_jvp_call")
custom_vjp_call_p = _staged_call("custom_vjp_call")


# ---- the tangent of a custom_vjp call: primals, residuals, tangents → tangents of the results


def _tangent_program(jaxpr: Jaxpr | Callable, avals: Sequence[ShapedArray]) -> Jaxpr:
    return jaxpr if isinstance(jaxpr, Jaxpr) else jaxpr(avals)


def _tangent_impl(
    xp: ArrayModule, *values: PlainArray, jaxpr: Jaxpr | Callable, **params: Param
) -> list:
    avals = [ShapedArray(v.shape, v.dtype) for v in values]
    return interpret(_tangent_program(jaxpr, avals), xp, *values)


def _tangent_jvp(
    primals: Values, tangents: Tangents, *, jaxpr: Jaxpr | Callable, **params: Param
) -> tuple[list, list]:
    program = _tangent_program(jaxpr, [aval_of(p) for p in primals])
    nonzero = [type(t) is not Zero for t in tangents]
    both, _ = jvp_jaxpr(program, nonzero, instantiate_out=True)
    given = [t for t in tangents if type(t) is not Zero]
    outs = call_jaxpr(both, [*primals, *given], f"jvp({params['name']})")
    n = len(program.outs)
    return outs[:n], outs[n:]


def _tangent_transpose(ct: Cotangents, *args: Operand, jaxpr: Jaxpr | Callable, bwd: Callable,
                       perturbed: Sequence[bool], out_avals: Sequence[ShapedArray],
                       name: str) -> list:  # fmt: skip
    n = len(perturbed)
    first_tangent = len(args) - sum(perturbed)
    if any(type(a) is Linear for a in args[:first_tangent]):
        raise captured_error(name)
    found = bwd(args[n:first_tangent], ct)
    wanted = [c for c, p in zip(found, perturbed, strict=True) if p]
    return [None] * first_tangent + wanted


def _tangent_batch(axis: BatchAxis, args: Values, dims: BatchDims, *, jaxpr: Jaxpr | Callable,
                   bwd: Callable, perturbed: Sequence[bool], out_avals: Sequence[ShapedArray],
                   name: str) -> tuple:  # fmt: skip
    avals = [
        aval_of(a) if d is None else _without(aval_of(a), d)
        for a, d in zip(args, dims, strict=True)
    ]
    n, first = len(perturbed), len(args) - sum(perturbed)
    # The rule's residuals come batched at axis 0, so that it is mapped in one way only.
    moved = [
        batch_front(a, d, axis.size) if n <= i < first else a
        for i, (a, d) in enumerate(zip(args, dims, strict=True))
    ]
    dims = [0 if n <= i < first else d for i, d in enumerate(dims)]
    batched, _ = batch_jaxpr(_tangent_program(jaxpr, avals), axis, dims, force=True)
    tangent_dims = iter(dims[first:])
    by_primal = [next(tangent_dims) if p else None for p in perturbed]
    outs = custom_vjp_tangent_p.bind(
        *moved,
        jaxpr=batched,
        bwd=batched_bwd(bwd, axis, by_primal),
        perturbed=perturbed,
        out_avals=tuple(a.update(shape=(axis.size, *a.shape)) for a in out_avals),
        name=name,
    )
    return outs, [0] * len(outs)


def _without(aval: ShapedArray, dim: int) -> ShapedArray:
    return aval.update(shape=aval.shape[:dim] + aval.shape[dim + 1 :])


def _tangent_programs(
    each: Each, *, jaxpr: Jaxpr | Callable, bwd: Callable, **rest: Param
) -> Params:
    def rewritten(avals: Sequence[ShapedArray]) -> Jaxpr:
        return each(_tangent_program(jaxpr, avals))

    program = each(jaxpr) if isinstance(jaxpr, Jaxpr) else rewritten
    return {"jaxpr": program, "bwd": through(each, bwd), **rest}


custom_vjp_tangent_p = Primitive(
    name="custom_vjp_tangent",
    abstract=lambda *avals, out_avals, **params: list(out_avals),
    impl=_tangent_impl,
    jvp=_tangent_jvp,
    transpose=_tangent_transpose,
    batch=_tangent_batch,
    dims=NoRule("partitioning looks into the program"),
    programs=_tangent_programs,
    multiple=True,
    call=True,
)
