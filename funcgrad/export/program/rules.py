"""Derivative rules of a user's functions, and policies of checkpoints, as programs and data.

A rule is Python code. It is traced once, for the types of the call that has it, and kept as a
program. What rules themselves call has rules in turn; these are kept down to an order, the number
of times that a loaded program can be differentiated where such functions stand. A rule that can't
be traced, or of a higher order, is an error when it is asked for, not another derivative.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from funcgrad import dtypes
from funcgrad.core.aval import Linear, ShapedArray, Zero, with_zeros
from funcgrad.core.closed import with_constants
from funcgrad.core.ir import Eqn, Jaxpr, eval_jaxpr
from funcgrad.core.staging import stage
from funcgrad.core.trace import Tracer
from funcgrad.core.types import Cotangents, Operands, Tangents, Values
from funcgrad.errors import BatchingError, DifferentiationError, ExportError, FormatError
from funcgrad.export.program.values import Held, Json, Tables, Unknown, short, type_to_json
from funcgrad.ops.base import instantiate
from funcgrad.transforms.control.custom_call import JVPCall, VJPCall
from funcgrad.transforms.derivatives.checkpoint import (
    EitherPolicy,
    NamePolicy,
    checkpoint_policies,
)

_POLICIES = {
    name: getattr(checkpoint_policies, name)
    for name in ("everything_saveable", "nothing_saveable", "dots_saveable",
                 "dots_with_no_batch_dims_saveable")
}  # fmt: skip
_NAME_KINDS = ("named", "named otherwise", "not named")


class RuleTables(Tables, Protocol):
    """Where rules are written.

    order, turns: how often what is written now can be differentiated by rules, and transposed
    """

    order: int
    turns: int

    def lower(self, what: str) -> Any:
        """A context in which "order" or "turns" is less by one."""


class Missing:
    """In a rule's place: says why there is none when it is called."""

    def __init__(self, name: str, why: str, error: type[Exception] = DifferentiationError):
        self.name = name
        self.why = why
        self.error = error

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise self.error(f"{self.name}: {self.why}")

    def __repr__(self) -> str:
        return self.name


# ---- writing


def _program(fun: Callable[..., Values], avals: Sequence[ShapedArray], what: str,
             tables: Tables) -> int:  # fmt: skip
    jaxpr, consts = stage(fun, avals, what)
    if any(isinstance(c, Tracer | Linear) for c in consts):
        raise ExportError(f"{what} closes over a value of a transformation around it")
    return tables.program(with_constants(jaxpr, consts))


def _varying(avals: Sequence[ShapedArray]) -> list[bool]:
    return [a.tangent().dtype != dtypes.float0 for a in avals]


def _written(tables: RuleTables, what: str, write: Callable[[], dict]) -> Json:
    """What a rule is in a file: programs, or why there are none."""
    if getattr(tables, what) < 1:
        return {"missing": "it was exported without rules of this order: see rule_order"}
    try:
        with tables.lower(what):
            return write()
    except Exception as e:  # a user's rule may raise anything
        return {"missing": f"its rule couldn't be exported: {type(e).__name__}: {e}"[:400]}


def jvp_call_to_json(eqn: Eqn, tables: RuleTables) -> Json:
    """The parameters of a call of a `custom_jvp` function."""
    call, n_consts = eqn.params["call"], eqn.params["n_consts"]
    avals = [a.aval for a in eqn.ins][n_consts:]
    varies, n = _varying(avals), len(avals)

    def write() -> dict:
        mask: list[bool] = []

        def rule(*flat: Any) -> list:
            tangents = with_zeros(flat[n:], varies, avals)
            outs, outs_t = call.differentiate(list(flat[:n]), tangents)
            mask[:] = [type(t) is not Zero for t in outs_t]
            return [*outs, *(t for t in outs_t if type(t) is not Zero)]

        tangents = [a.tangent() for a, v in zip(avals, varies, strict=True) if v]
        fun = _program(call.fun, avals, call.name, tables)
        jvp = _program(rule, [*avals, *tangents], f"the jvp rule of {call.name}", tables)
        return {"fun": fun, "jvp": jvp, "nonzero": mask}

    transposes = None
    if call.transpose is not None:
        outs = [v.aval for v in eqn.outs]
        transposes = _written(tables, "turns", lambda: _transposes(call, avals, outs, tables))
    return {
        "jaxpr": {"program": tables.program(eqn.params["jaxpr"])},
        "n_consts": n_consts,
        "call": {
            "name": call.name,
            "jvp_rule": _written(tables, "order", write),
            "transposes": transposes,
        },
    }


def _transposes(call: JVPCall, avals: Sequence[ShapedArray], outs: Sequence[ShapedArray],
                tables: Tables) -> dict:  # fmt: skip
    """For each argument the program of its cotangent, if the function is linear in it: of the
    values of all arguments and the results' cotangents."""
    programs: list[int | None] = []
    varies = _varying(outs)
    cts = [a.tangent() for a, v in zip(outs, varies, strict=True) if v]
    for i, aval in enumerate(avals):

        def rule(*flat: Any, i: int = i) -> list:
            args = [*flat[:i], Linear(avals[i]), *flat[i + 1 : len(avals)]]
            given = with_zeros(flat[len(avals) :], varies, outs)
            ct = call.transpose(args, given)[i]  # type: ignore[misc]
            return [] if ct is None else [instantiate(ct)]

        found = None
        if any(_varying([aval])):
            try:
                found = _program(rule, [*avals, *cts], f"the transpose of {call.name}", tables)
            except Exception:  # the function isn't linear in this argument
                found = None
        programs.append(found)
    return {"programs": programs}


def vjp_call_to_json(eqn: Eqn, tables: RuleTables) -> Json:
    """The parameters of a call of a `custom_vjp` function."""
    call, n_consts = eqn.params["call"], eqn.params["n_consts"]
    avals = [a.aval for a in eqn.ins][n_consts:]
    outs = [v.aval for v in eqn.outs]
    varies = _varying(avals)

    def write() -> dict:
        residuals: list[ShapedArray] = []

        def fwd(*flat: Any) -> list:
            values, kept = call.fwd(list(flat), varies)
            return [*values, *kept]

        jaxpr, consts = stage(fwd, avals, f"the forward rule of {call.name}")
        residuals[:] = jaxpr.out_avals[len(outs) :]
        return {
            "fun": _program(call.fun, avals, call.name, tables),
            "fwd": tables.program(with_constants(jaxpr, consts)),
            **_bwd(call.bwd, residuals, outs, call.name, tables),
        }

    rule = _written(tables, "order", write)
    program = {"program": tables.program(eqn.params["jaxpr"])}
    inner = {"name": call.name, "vjp_rule": rule, "forward": call.forward}
    return {"jaxpr": program, "n_consts": n_consts, "call": inner}


def _bwd(bwd: Callable, residuals: Sequence[ShapedArray], outs: Sequence[ShapedArray], name: str,
         tables: Tables) -> dict:  # fmt: skip
    mask: list[bool] = []
    tangents = [a.tangent() for a in outs]
    varies = [a.dtype != dtypes.float0 for a in tangents]
    n = len(residuals)

    def rule(*flat: Any) -> list:
        found = bwd(list(flat[:n]), with_zeros(flat[n:], varies, tangents))
        mask[:] = [type(c) is Zero for c in found]
        return [c for c in found if type(c) is not Zero]

    cts = [a for a, v in zip(tangents, varies, strict=True) if v]
    program = _program(rule, [*residuals, *cts], f"the backward rule of {name}", tables)
    return {"bwd": program, "zeros": mask}


def vjp_tangent_to_json(eqn: Eqn, tables: RuleTables) -> Json:
    """The parameters of the tangent of a call of a `custom_vjp` function."""
    p = eqn.params
    avals, name = [a.aval for a in eqn.ins], p["name"]
    n, first = len(p["perturbed"]), len(avals) - sum(p["perturbed"])

    try:
        made = p["jaxpr"] if isinstance(p["jaxpr"], Jaxpr) else p["jaxpr"](avals)
        forward: Json = {"program": tables.program(made)}
    except DifferentiationError as e:  # it may only be run backwards
        forward = {"missing": str(e)}

    def backward() -> dict:
        return _bwd(p["bwd"], avals[n:first], p["out_avals"], name, tables)

    return {
        "jaxpr": forward,
        "bwd": _written(tables, "order", backward),
        "perturbed": list(p["perturbed"]),
        "out_avals": [{"type": type_to_json(a)} for a in p["out_avals"]],
        "name": name,
    }  # fmt: skip


def vmap_call_to_json(eqn: Eqn, tables: RuleTables) -> Json:
    """The parameters of a call of a `custom_vmap` function. Its rule, which is for batches of all
    sizes, is no program."""
    rule = eqn.params["rule"]
    name = None if rule is None else repr(rule)
    return {"jaxpr": {"program": tables.program(eqn.params["jaxpr"])}, "rule": name}


def policy_to_json(policy: Any) -> Json:
    """A policy of `checkpoint`; Unknown for a user's own function."""
    if policy is None:
        return None
    if isinstance(policy, NamePolicy):
        return {"names": [policy.kind, *policy.names]}
    if isinstance(policy, EitherPolicy):
        return {"either": [policy_to_json(policy.first), policy_to_json(policy.second)]}
    for name, known in _POLICIES.items():
        if policy is known:
            return name
    raise Unknown


# ---- reading


class Rules:
    """Reads rules, and keeps their programs with what these must take and give, to be checked."""

    def __init__(self, held: Held):
        self.held = held
        self.programs: list[Jaxpr] = []

    def _program(self, number: Json, ins: Sequence[ShapedArray]) -> Jaxpr:
        jaxpr = self.held.program(number)
        got = jaxpr.in_avals
        if len(got) != len(ins) or not all(g.matches(w) for g, w in zip(got, ins, strict=True)):
            raise FormatError(f"a rule's program takes {got}, its call has {list(ins)}")
        self.programs.append(jaxpr)
        return jaxpr

    def jvp_call(self, found: Json, avals: Sequence[ShapedArray], outs: Sequence[ShapedArray]
                 ) -> JVPCall:  # fmt: skip
        """The call that `jvp_call_to_json` wrote."""
        name, rule = found["name"], found["jvp_rule"]
        transpose = self._transpose(name, found["transposes"], avals, outs)
        if "missing" in rule:
            missing = Missing(name, rule["missing"])
            return JVPCall(name, missing, missing, True, transpose)
        varies, mask = _varying(avals), rule["nonzero"]
        tangents = [a.tangent() for a, v in zip(avals, varies, strict=True) if v]
        program = self._program(rule["jvp"], [*avals, *tangents])
        out_tangents = [a.tangent() for a, nz in zip(outs, mask, strict=True) if nz]
        _check_results(program, [*outs, *out_tangents])

        def jvp(primals: Values, tangents: Tangents) -> tuple[list, list]:
            given = [instantiate(t) for t, v in zip(tangents, varies, strict=True) if v]
            found = eval_jaxpr(program, *primals, *given)
            return found[: len(outs)], with_zeros(found[len(outs) :], mask, outs)

        return JVPCall(name, self._function(rule["fun"], avals), jvp, True, transpose)

    def _function(self, number: Json, avals: Sequence[ShapedArray]) -> Callable:
        program = self._program(number, avals)
        return lambda *args: eval_jaxpr(program, *args)

    def _transpose(self, name: str, found: Json, avals: Sequence[ShapedArray],
                   outs: Sequence[ShapedArray]) -> Callable | None:  # fmt: skip
        if found is None:
            return None
        if "missing" in found:
            return Missing(name, found["missing"])
        varies = _varying(outs)
        cts = [a.tangent() for a, v in zip(outs, varies, strict=True) if v]
        programs = [
            Missing(name, "it has no transpose for this argument")
            if number is None
            else self._cotangent(number, aval, [*avals, *cts])
            for number, aval in zip(found["programs"], avals, strict=True)
        ]

        def transpose(args: Operands, cts: Cotangents) -> list:
            values = [instantiate(Zero(a.aval)) if type(a) is Linear else a for a in args]
            given = [instantiate(c) for c, v in zip(cts, varies, strict=True) if v]
            return [
                program(*values, *given) if type(a) is Linear else None
                for a, program in zip(args, programs, strict=True)
            ]

        return transpose

    def _cotangent(self, number: Json, aval: ShapedArray, ins: Sequence[ShapedArray]) -> Callable:
        program = self._program(number, ins)
        _check_results(program, [aval] if program.outs else [])
        return lambda *args: next(iter(eval_jaxpr(program, *args)), None)

    def vjp_call(self, found: Json, avals: Sequence[ShapedArray], outs: Sequence[ShapedArray]
                 ) -> VJPCall:  # fmt: skip
        """The call that `vjp_call_to_json` wrote."""
        name, rule, forward = found["name"], found["vjp_rule"], found["forward"] is True
        if "missing" in rule:
            missing = Missing(name, rule["missing"])
            return VJPCall(name, missing, missing, missing, forward)
        program = self._program(rule["fwd"], avals)
        _check_results(program, outs, exactly=False)
        residuals = program.out_avals[len(outs) :]

        def fwd(primals: Values, perturbed: Sequence[bool]) -> tuple[list, list]:
            found = eval_jaxpr(program, *primals)
            return found[: len(outs)], found[len(outs) :]

        fun = self._function(rule["fun"], avals)
        return VJPCall(name, fun, fwd, self.bwd(rule, residuals, outs, avals), forward)

    def bwd(self, rule: Json, residuals: Sequence[ShapedArray], outs: Sequence[ShapedArray],
            primals: Sequence[ShapedArray]) -> Callable:  # fmt: skip
        """The backward rule that `_bwd` wrote."""
        tangents = [a.tangent() for a in outs]
        varies = [a.dtype != dtypes.float0 for a in tangents]
        cts = [a for a, v in zip(tangents, varies, strict=True) if v]
        program, mask = self._program(rule["bwd"], [*residuals, *cts]), rule["zeros"]
        wanted = [a.tangent() for a, zero in zip(primals, mask, strict=True) if not zero]
        _check_results(program, wanted)

        def bwd(residuals: Values, cts: Cotangents) -> list:
            given = [instantiate(c) for c, v in zip(cts, varies, strict=True) if v]
            rest = iter(eval_jaxpr(program, *residuals, *given))
            return [Zero(a.tangent()) if zero else next(rest)
                    for a, zero in zip(primals, mask, strict=True)]  # fmt: skip

        return bwd

    def vjp_tangent(self, found: Json, avals: Sequence[ShapedArray]) -> dict:
        """The parameters that `vjp_tangent_to_json` wrote."""
        perturbed = tuple(p is True for p in found["perturbed"])
        outs = tuple(self.held_type(a) for a in found["out_avals"])
        n, first, name = len(perturbed), len(avals) - sum(perturbed), found["name"]
        if n > first:
            raise FormatError(f"the tangent of {short(name)} has {len(avals)} operands")
        forward, rule = found["jaxpr"], found["bwd"]
        jaxpr: Any = Missing(name, forward["missing"]) if "missing" in forward else None
        if jaxpr is None:
            jaxpr = self._program(forward["program"], avals)
            _check_results(jaxpr, outs)
        bwd: Any = Missing(name, rule["missing"]) if "missing" in rule else None
        bwd = bwd or self.bwd(rule, avals[n:first], outs, avals[:n])
        return {"jaxpr": jaxpr, "bwd": bwd, "perturbed": perturbed, "out_avals": outs, "name": name}

    def held_type(self, found: Json) -> ShapedArray:
        """A type among parameters."""
        aval = self.held.value(found)
        if not isinstance(aval, ShapedArray):
            raise FormatError(f"{short(found)} is no type")
        return aval


def _check_results(jaxpr: Jaxpr, outs: Sequence[ShapedArray], exactly: bool = True) -> None:
    got = jaxpr.out_avals if exactly else jaxpr.out_avals[: len(outs)]
    if len(got) != len(outs) or not all(g.matches(w) for g, w in zip(got, outs, strict=True)):
        raise FormatError(f"a rule's program gives {got}, its call needs {list(outs)}")


def vmap_rule_from_json(found: Json) -> Callable | None:
    """What stands for the rule of a `custom_vmap` function."""
    if found is None:
        return None
    why = "its rule for vmap isn't in the file: apply vmap before the function is exported"
    return Missing(str(found), why, BatchingError)


def policy_from_json(found: Json) -> Any:
    """The policy that JSON says; FormatError where it says none."""
    if found is None:
        return None
    if isinstance(found, str) and found in _POLICIES:
        return _POLICIES[found]
    if isinstance(found, dict) and len(found) == 1:
        ((kind, inner),) = found.items()
        if kind == "names" and inner and inner[0] in _NAME_KINDS:
            return NamePolicy(inner[0], tuple(map(str, inner[1:])))
        if kind == "either" and len(inner) == 2:
            return EitherPolicy(*map(policy_from_json, inner))
    raise FormatError(f"{short(found)} is no policy of a checkpoint")
