"""Programs with checks as programs that say what failed first.

A checked program gives an integer and the values of messages before its results. The integer is the
place of what failed first among the program's sites, or -1. An equation's sites are in a row, so
that a program within has integers of its own, to which the equation's first site is added.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import lax, tree
from funcgrad.core import context, rewriting, source
from funcgrad.core.aval import ShapedArray
from funcgrad.core.ir import Eqn, Jaxpr, Var, eval_jaxpr, literal_value, sub_jaxprs
from funcgrad.core.primitive import Primitive
from funcgrad.core.staging import stage_closed
from funcgrad.core.trace import aval_of
from funcgrad.errors import ArgumentError, CustomRuleError
from funcgrad.experimental.checkify.automatic import faults
from funcgrad.experimental.checkify.checks import INT32, check_p, user_place
from funcgrad.experimental.checkify.errors import (
    Error,
    ErrorCategory,
    FailedCheckError,
    JaxRuntimeError,
    Site,
    user_checks,
)
from funcgrad.transforms.arguments import as_array, is_arraylike, name_of, wraps
from funcgrad.transforms.control.bodies import split_list
from funcgrad.transforms.control.cond import cond_p
from funcgrad.transforms.control.jit_primitive import call_jaxpr, jit_p
from funcgrad.transforms.control.scan import scan_p
from funcgrad.transforms.control.while_loop import while_p
from funcgrad.transforms.derivatives.checkpoint import checkpoint_p
from funcgrad.transforms.jit.make_jaxpr import make_jaxpr

Categories = frozenset[ErrorCategory]
INT = ShapedArray((), INT32)


class Checked(NamedTuple):
    """A program that gives what failed: [code, *values of messages, *results]; and its sites.

    Without sites it is the program as it was.
    """

    jaxpr: Jaxpr
    sites: tuple[Site, ...]
    payload: tuple[ShapedArray, ...]

    def split(self, outs: Sequence[Any]) -> tuple[Any, list, list]:
        """Of what the program gives: the code, the values, the results."""
        n = 1 + len(self.payload)
        return outs[0], list(outs[1:n]), list(outs[n:])


def checked(jaxpr: Jaxpr, categories: Categories) -> Checked:
    """The checked program, written once for each program and categories."""
    key = ("checked", categories, context.current().static_key())
    return jaxpr.derive(key, lambda: _checked(jaxpr, categories))


def _checked(jaxpr: Jaxpr, categories: Categories) -> Checked:
    run = _Run(categories)

    def fun(*args: Any) -> list:
        outs = run.through(jaxpr, args)
        return [run.code, *run.payload, *outs]

    program = stage_closed(fun, jaxpr.in_avals, "a checked program")
    sites = tuple(run.sites)
    if not sites:
        return Checked(jaxpr, (), ())
    payload = program.out_avals[1 : 1 + sum(s.structure.num_leaves for s in sites)]
    return Checked(program, sites, tuple(payload))


def _strong(aval: ShapedArray) -> ShapedArray:
    return ShapedArray(aval.shape, aval.dtype)


def _shifted(code: Any, by: int) -> Any:
    """A program's code as one of the program around it."""
    return fnp.where(code >= 0, code + INT32.type(by), code)


def _first(code: Any, payload: list, new_code: Any, new_payload: list) -> tuple[Any, list]:
    """Of what failed before and what failed now, the former where there is one."""
    failed = code >= 0
    kept = [fnp.where(failed, a, b) for a, b in zip(payload, new_payload, strict=True)]
    return fnp.where(failed, code, new_code), kept


def _start(payload: Sequence[ShapedArray]) -> list:
    """No failure yet, as what a loop begins with."""
    return [fnp.full((), -1, INT32), *(fnp.zeros(a.shape, a.dtype) for a in payload)]


class _Run:
    """Goes through a program, performs its operations, and notes what fails first."""

    def __init__(self, categories: Categories):
        self.categories = categories
        self.sites: list[Site] = []
        self.code: Any = np.array(-1, INT32)
        self.payload: list = []

    def through(self, jaxpr: Jaxpr, args: Iterable[Any]) -> list:
        """The program's results."""
        env: dict[Any, Any] = dict(zip(jaxpr.ins, args, strict=True))

        def read(atom: Any) -> Any:
            return env[atom] if type(atom) is Var else literal_value(atom)

        outer = source.placed()
        try:
            for eqn in jaxpr.eqns:
                source.set_place(eqn.source or outer)
                scopes = context.current().scopes + eqn.scopes
                with context.scoped(scopes=scopes):
                    outs = self.equation(eqn, [read(a) for a in eqn.ins])
                env.update(zip(eqn.outs, outs, strict=True))
        finally:
            source.set_place(outer)
        return [read(a) for a in jaxpr.outs]

    def equation(self, eqn: Eqn, values: list) -> list:
        """An equation's results."""
        within = _WITHIN.get(eqn.prim, _called if eqn.prim.call else None)
        if within is not None:
            outs = within(self, eqn, values)
            return _performed(eqn, values) if outs is None else outs
        if FailedCheckError in self.categories and _has_check(eqn):
            raise CustomRuleError(
                f"checkify: there is a check in {eqn.prim}, which checkify doesn't look into; use "
                f"checkify within the function that {eqn.prim} gets"
            )
        outs = _performed(eqn, values)
        for fault in faults(eqn, values, outs, self.categories):
            site = Site(fault.category, fault.message, fault.structure, user_place())
            code = fnp.where(fault.pred, INT32.type(0), INT32.type(-1))
            self.join((site,), code, fault.payload)
        return outs

    def join(self, sites: Sequence[Site], code: Any, payload: Iterable[Any]) -> None:
        """Note what failed at these sites, of which code says which."""
        code = _shifted(fnp.asarray(code, INT32), len(self.sites))
        self.code = fnp.where(fnp.asarray(self.code) >= 0, self.code, code)
        self.sites += sites
        self.payload += [fnp.asarray(x, aval_of(x).dtype) for x in payload]

    def enter(self, program: Checked, outs: Sequence[Any]) -> list:
        """The results of a checked program's run, whose failures are noted."""
        code, payload, results = program.split(outs)
        self.join(program.sites, code, payload)
        return results


def _performed(eqn: Eqn, values: list) -> list:
    outs = eqn.prim.bind(*values, **eqn.params)
    return outs if eqn.prim.multiple else [outs]


def _with_programs(eqn: Eqn, each: Callable[[Jaxpr], Jaxpr]) -> Eqn:
    """The equation with its programs rewritten, also those that its op holds elsewhere."""
    if eqn.prim.programs is None:
        return rewriting.with_programs(eqn, each)
    return eqn.replace(params=eqn.prim.programs(each, **eqn.params))


def _without_checks(jaxpr: Jaxpr) -> Jaxpr:
    return rewriting.rewrite(jaxpr, _unchecked)


def _unchecked(eqn: Eqn, values: list) -> list | None:
    return [] if eqn.prim is check_p else None


def _has_check(eqn: Eqn) -> bool:
    return eqn.prim is check_p or any(_has_check(e) for j in sub_jaxprs(eqn) for e in j.eqns)


# ---- ops that hold programs: their results, or None where nothing in them may fail


def _check(run: _Run, eqn: Eqn, values: list) -> list | None:
    code, *payload = values
    if not any(site.category in run.categories for site in eqn.params["sites"]):
        return None
    run.join(eqn.params["sites"], code, payload)
    return []


def _called(run: _Run, eqn: Eqn, values: list) -> list | None:
    """A call. Functions with derivative rules of their own keep these: what fails in them is found
    beside."""
    program = checked(rewriting.called_program(eqn), run.categories)
    if not program.sites:
        return None
    params = eqn.params
    if eqn.prim is jit_p:
        outs = call_jaxpr(program.jaxpr, values, params["name"], params["backend"])
    elif eqn.prim is checkpoint_p:
        outs = checkpoint_p.bind(*values, **{**params, "jaxpr": program.jaxpr})
    else:
        results = _performed(_with_programs(eqn, _without_checks), values)
        run.enter(program, eval_jaxpr(program.jaxpr, *map(lax.stop_gradient, values)))
        return results
    return run.enter(program, outs)


def _cond(run: _Run, eqn: Eqn, values: list) -> list | None:
    index, *operands = values
    branches = [checked(b, run.categories) for b in eqn.params["branches"]]
    sites = tuple(s for b in branches for s in b.sites)
    if not sites:
        return None
    payload = tuple(a for b in branches for a in b.payload)

    def branch(k: int) -> Jaxpr:
        own, ahead = branches[k], branches[:k]
        before = sum(len(b.payload) for b in ahead)

        def fun(*args: Any) -> list:
            outs = eval_jaxpr(own.jaxpr, *args)
            if not own.sites:
                return [*_start(payload), *outs]
            code, found, results = own.split(outs)
            code = _shifted(code, sum(len(b.sites) for b in ahead))
            every = _start(payload)[1:]
            every[before : before + len(found)] = found
            return [code, *every, *results]

        return stage_closed(fun, own.jaxpr.in_avals, "a checked branch")

    every = tuple(branch(k) for k in range(len(branches)))
    outs = cond_p.bind(index, *operands, **{**eqn.params, "branches": every})
    return run.enter(Checked(every[0], sites, payload), outs)


def _scan(run: _Run, eqn: Eqn, values: list) -> list | None:
    params = eqn.params
    body = checked(params["jaxpr"], run.categories)
    if not body.sites:
        return None
    n_consts, n_state = params["n_consts"], 1 + len(body.payload)
    avals = split_list(params["jaxpr"].in_avals, n_consts)
    state = [INT, *map(_strong, body.payload)]

    def turn(*args: Any) -> list:
        consts, (code, *payload), rest = split_list(args, n_consts, n_state)
        now, found, results = body.split(eval_jaxpr(body.jaxpr, *consts, *rest))
        code, payload = _first(code, payload, now, found)
        return [code, *payload, *results]

    program = stage_closed(turn, [*avals[0], *state, *avals[1]], "a checked loop body")
    consts, rest = split_list(values, n_consts)
    params = {**params, "jaxpr": program, "n_carry": params["n_carry"] + n_state}
    outs = scan_p.bind(*consts, *_start(body.payload), *rest, **params)
    return run.enter(body, outs)


def _while(run: _Run, eqn: Eqn, values: list) -> list | None:
    """The condition may fail before the loop, and after each turn."""
    params = eqn.params
    n_cond, n_body = params["n_cond"], params["n_body"]
    test = checked(params["cond_jaxpr"], run.categories)
    body = checked(params["body_jaxpr"], run.categories)
    if not test.sites and not body.sites:
        return None
    cond_consts, body_consts, carry = split_list(values, n_cond, n_body)
    if test.sites:
        run.enter(test, eval_jaxpr(test.jaxpr, *cond_consts, *carry))
    turns = Checked(body.jaxpr, body.sites + test.sites, body.payload + test.payload)
    n_state = 1 + len(turns.payload)

    def turn(*args: Any) -> list:
        conds, consts, (code, *payload), carry = split_list(args, n_cond, n_body, n_state)
        inner = _Run(run.categories)
        outs = eval_jaxpr(body.jaxpr, *consts, *carry)
        carry = inner.enter(body, outs) if body.sites else outs
        if test.sites:
            inner.enter(test, eval_jaxpr(test.jaxpr, *conds, *carry))
        code, payload = _first(code, payload, inner.code, inner.payload)
        return [code, *payload, *carry]

    def again(*args: Any) -> list:
        conds, _, carry = split_list(args, n_cond, n_state)
        outs = eval_jaxpr(test.jaxpr, *conds, *carry)
        return test.split(outs)[2] if test.sites else outs

    conds, rest = split_list(params["cond_jaxpr"].in_avals, n_cond)
    state = [INT, *map(_strong, turns.payload)]
    outs = while_p.bind(
        *cond_consts, *cond_consts, *body_consts, *_start(turns.payload), *carry,
        cond_jaxpr=stage_closed(again, [*conds, *state, *rest], "a condition"),
        body_jaxpr=stage_closed(
            turn, [*conds, *params["body_jaxpr"].in_avals[:n_body], *state, *rest],
            "a checked loop body",
        ),
        n_cond=n_cond, n_body=n_cond + n_body,
    )  # fmt: skip
    return run.enter(turns, outs)


_WITHIN: dict[Primitive, Callable[[_Run, Eqn, list], list | None]] = {
    check_p: _check,
    cond_p: _cond,
    scan_p: _scan,
    while_p: _while,
}

# ---- the transform


def checkify(f: Callable, errors: Any = user_checks) -> Callable:
    """The function that gives (`Error`, f's result), where f has checks, or may do wrong.

    errors: which categories: user_checks (`check`), nan_checks, index_checks, div_checks, or some
    of them joined by `|`: float_checks, automatic_checks, all_checks. What fails first is kept;
    computation goes on. Numbers and arrays among the arguments are traced, as by `jit`.

    The transform composes with `jit`, `grad` and `vmap`, and enters loops and branches. Functions
    that it can't look into (`shard_map` with a `check`) raise CustomRuleError: use it within these.

    >>> from funcgrad.experimental import checkify
    >>> def f(x, i):
    ...     checkify.check(i >= 0, "index needs to be non-negative")
    ...     return fnp.sin(x[i])
    >>> checked = checkify.checkify(f, errors=checkify.all_checks)
    >>> err, _ = fg.jit(checked)(fnp.ones(3), 5)
    >>> print(err.get())
    out-of-bounds indexing for array of shape (3,): index 5 is out of bounds for axis 0 with...
    """
    if not callable(f):
        raise ArgumentError(f"checkify: need a function, got {f!r}")
    try:
        categories = frozenset(errors)
        known = all(isinstance(c, type) and issubclass(c, JaxRuntimeError) for c in categories)
    except TypeError:
        known = False
    if not known:
        raise ArgumentError(
            f"checkify: errors must be sets of checks, such as checkify.user_checks, got {errors!r}"
        )

    @wraps(f, "checkify")
    def checked_fun(*args: Any, **kwargs: Any) -> tuple[Error, Any]:
        leaves, structure = tree.flatten((args, kwargs))
        places = [i for i, x in enumerate(leaves) if is_arraylike(x)]

        def fun(traced: list) -> Any:
            given = list(leaves)
            for i, x in zip(places, traced, strict=True):
                given[i] = x
            own, named = structure.unflatten(given)
            return f(*own, **named)

        fun.__name__ = name_of(f)
        values = [as_array(leaves[i]) for i in places]
        closed, shapes = make_jaxpr(fun, return_shape=True)(values)
        run = _Run(categories)
        outs = run.through(closed.jaxpr, [*closed.consts, *values])
        out = tree.unflatten(tree.structure(shapes), outs)
        return Error(fnp.asarray(run.code), tuple(run.payload), tuple(run.sites)), out

    return checked_fun
