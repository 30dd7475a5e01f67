"""Over which mesh axes the values of a per-device program vary, and what derivatives need of it.

`annotate` goes through a program in order. Where an op joins values that vary over different axes,
it puts a `pvary` before those that vary over less; a psum becomes `psum_invariant`, whose result
doesn't vary. Each op's operands then vary alike, and transposing it op by op is right: what is the
same on all devices gets the sum of their cotangents, once. Programs within programs are followed,
loops to a fixed point. To annotate an annotated program again changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from funcgrad import dtypes
from funcgrad.core import context
from funcgrad.core.aval import ShapedArray
from funcgrad.core.ir import Atom, Eqn, Jaxpr, Literal, Var, sub_jaxprs
from funcgrad.core.primitive import NoRule, Primitive
from funcgrad.errors import DifferentiationError, ShardingError
from funcgrad.ops.arithmetic import mul
from funcgrad.ops.collective import axis_index_p, psum_p
from funcgrad.ops.collective_varying import assume_invariant_p, psum_invariant_p, pvary_p
from funcgrad.transforms.control import split_list
from funcgrad.transforms.pullback import transposed

Axes = frozenset[str]
NONE: Axes = frozenset()


class Annotated(NamedTuple):
    """A program with its `pvary`s; over which axes each result varies; and for each input over
    which axes the program makes it vary, so that a caller may do it before."""

    jaxpr: Jaxpr
    varying: list[Axes]
    widened: list[Axes]


def annotate(
    jaxpr: Jaxpr,
    in_varying: Sequence[Axes],
    manual: Iterable[str],
    at_least: Sequence[Axes] | None = None,
) -> Annotated:
    """The program with explicit `pvary`s and `psum_invariant`s; see above.

    in_varying: over which of the `manual` axes each input varies; at_least: over which axes each
    result shall vary. The axes must be named in the context.
    """
    axes = frozenset(manual)
    wanted = tuple(at_least) if at_least is not None else (NONE,) * len(jaxpr.outs)
    sizes = tuple((a, context.current().axes[a]) for a in sorted(axes))
    key = ("varying", tuple(in_varying), sizes, wanted)
    return jaxpr.derive(key, lambda: _Pass(jaxpr, in_varying, axes).finish(wanted))


def _join(sets: Iterable[Axes]) -> Axes:
    return frozenset().union(*sets)


def listed(axes: Iterable[str]) -> str:
    """Axis names for a message."""
    return " and ".join(repr(a) for a in sorted(axes))


class _Pass:
    """One walk through a program. Variables keep their identity; `env` has those replaced."""

    def __init__(self, jaxpr: Jaxpr, in_varying: Sequence[Axes], manual: Axes):
        self.jaxpr = jaxpr
        self.manual = manual
        self.eqns: list[Eqn] = []
        self.env: dict[Var, Atom] = {}
        self.varying: dict[Var, Axes] = dict(zip(jaxpr.ins, in_varying, strict=True))
        self.widened: dict[Var, Axes] = dict.fromkeys(jaxpr.ins, NONE)
        self.wide: dict[tuple[Var, Axes], Var] = {}
        self.place: Eqn | None = None
        for eqn in jaxpr.eqns:
            self.place = eqn
            _RULES.get(eqn.prim.name, _pointwise)(self, eqn)

    def finish(self, at_least: Sequence[Axes]) -> Annotated:
        """The program, its results varying over these axes at least."""
        outs = [
            self.widen(a, self.of(a) | w) for a, w in zip(self.jaxpr.outs, at_least, strict=True)
        ]
        varying = [self.of(a) | w for a, w in zip(self.jaxpr.outs, at_least, strict=True)]
        program = Jaxpr(self.jaxpr.ins, self.eqns, outs, self.jaxpr.names)
        return Annotated(program, varying, [self.widened[v] for v in self.jaxpr.ins])

    # ---- operands

    def read(self, atom: Atom) -> Atom:
        """What stands for an atom of the old program."""
        return self.env.get(atom, atom) if isinstance(atom, Var) else atom

    def of(self, atom: Atom) -> Axes:
        """The axes over which an atom of the old program varies."""
        return self.varying[atom] if isinstance(atom, Var) else NONE

    def widen(self, atom: Atom, axes: Axes) -> Atom:
        """An atom of the old program as one that varies over `axes`.

        Only values that may have cotangents are marked.
        """
        missing = axes - self.of(atom)
        if not missing or isinstance(atom, Literal) or not dtypes.is_inexact(atom.aval.dtype):
            return self.read(atom)
        return self.pvary(atom, missing)

    def pvary(self, atom: Var, missing: Axes) -> Var:
        """An atom marked as varying over more axes: one equation, however often it is wanted."""
        new = self.read(atom)
        if new in self.widened:
            self.widened[new] |= missing  # type: ignore[index]
        key = (new, missing)
        if key not in self.wide:
            self.wide[key] = self.emit(pvary_p, [new], axis_name=self.ordered(missing))
        return self.wide[key]

    def ordered(self, axes: Axes) -> tuple[str, ...]:
        """Axes in the order in which the context names them."""
        return tuple(a for a in context.current().axes if a in axes)

    # ---- equations

    def emit(self, prim: Primitive, ins: Sequence[Atom], **params: Any) -> Var:
        """Append an equation whose result has the type of its first operand."""
        out = Var(ins[0].aval)
        place = self.place
        self.eqns.append(
            Eqn(prim, ins, [out], params, place and place.source, place.scopes if place else ())
        )
        return out

    def keep(self, eqn: Eqn, varying: Sequence[Axes], ins: Sequence[Atom], **params: Any) -> None:
        """Append an equation of the old program, with other operands and parameters."""
        self.varying.update(zip(eqn.outs, varying, strict=True))
        self.eqns.append(eqn.replace(ins=tuple(ins), params={**eqn.params, **params}))

    def alias(self, eqn: Eqn, atom: Atom, varying: Axes) -> None:
        """Let an atom stand for the result of an equation of the old program."""
        self.env[eqn.outs[0]] = atom
        self.varying[eqn.outs[0]] = varying

    def inline(self, eqn: Eqn, found: Annotated) -> None:
        """Put an annotated program in the place of an equation."""
        inner: dict[Var, Atom] = {
            v: self.read(a) for v, a in zip(found.jaxpr.ins, eqn.ins, strict=True)
        }
        for e in found.jaxpr.eqns:
            ins = [inner.get(a, a) if isinstance(a, Var) else a for a in e.ins]
            outs = [Var(v.aval) for v in e.outs]
            inner.update(zip(e.outs, outs, strict=True))
            self.eqns.append(
                e.replace(ins=tuple(ins), outs=tuple(outs), scopes=eqn.scopes + e.scopes)
            )
        for var, atom, axes in zip(eqn.outs, found.jaxpr.outs, found.varying, strict=True):
            self.env[var] = inner.get(atom, atom) if isinstance(atom, Var) else atom
            self.varying[var] = axes


# ---- ops of one device


def _pointwise(p: _Pass, eqn: Eqn) -> None:
    """All operands vary alike, and the results as they do."""
    axes = _join(map(p.of, eqn.ins))
    p.keep(eqn, [axes] * len(eqn.outs), [p.widen(a, axes) for a in eqn.ins])


def _side_by_side(p: _Pass, eqn: Eqn) -> None:
    """Each result varies as the operand in its place."""
    p.keep(eqn, [p.of(a) for a in eqn.ins], [p.read(a) for a in eqn.ins])


# ---- collectives


def _split_axes(p: _Pass, eqn: Eqn) -> tuple[tuple, tuple, tuple]:
    """A reduction's axes: those its operand varies over, the other manual ones, and the rest."""
    names, axes = eqn.params["axis_name"], p.of(eqn.ins[0])
    mine = [n for n in names if n in p.manual]
    return (
        tuple(n for n in mine if n in axes),
        tuple(n for n in mine if n not in axes),
        tuple(n for n in names if n not in p.manual),
    )


def _psum(p: _Pass, eqn: Eqn) -> None:
    over, flat, rest = _split_axes(p, eqn)
    varying = p.of(eqn.ins[0]) - frozenset(over)
    if not flat and not rest and eqn.prim is psum_invariant_p:
        p.keep(eqn, [varying], [p.read(eqn.ins[0])])
        return
    x = p.read(eqn.ins[0])
    if over:
        x = p.emit(psum_invariant_p, [x], axis_name=over)
    if rest:
        x = p.emit(eqn.prim, [x], axis_name=rest)
    if flat:
        # The sum of n equal values needs no exchange.
        n = np.prod([context.current().axes[a] for a in flat], dtype=np.int64)
        if isinstance(x, Literal):
            x = Literal((x.value * n).astype(x.value.dtype), x.aval)
        else:
            factor = np.asarray(n).astype(x.aval.dtype)
            x = p.emit(mul, [x, Literal(factor, ShapedArray((), x.aval.dtype))])
    p.alias(eqn, x, varying)


def _extremum(p: _Pass, eqn: Eqn) -> None:
    over, _, rest = _split_axes(p, eqn)
    x = p.read(eqn.ins[0])
    if over + rest:
        x = p.emit(eqn.prim, [x], axis_name=over + rest)
    p.alias(eqn, x, p.of(eqn.ins[0]) - frozenset(over))


def _exchange(p: _Pass, eqn: Eqn) -> None:
    """Gathers, scatters and permutations: the operand must vary over the axes, the result does."""
    axes = p.of(eqn.ins[0]) | (frozenset(eqn.params["axis_name"]) & p.manual)
    p.keep(eqn, [axes], [p.widen(eqn.ins[0], axes)])


def _axis_index(p: _Pass, eqn: Eqn) -> None:
    p.keep(eqn, [frozenset(eqn.params["axis_name"]) & p.manual], [])


def _pvary(p: _Pass, eqn: Eqn) -> None:
    (atom,), names = eqn.ins, frozenset(eqn.params["axis_name"])
    axes = p.of(atom)
    missing, rest = (names & p.manual) - axes, names - p.manual
    x = p.read(atom)
    if missing:
        x = p.pvary(atom, missing) if isinstance(atom, Var) else atom
    if rest and isinstance(x, Var):
        x = p.emit(pvary_p, [x], axis_name=tuple(n for n in eqn.params["axis_name"] if n in rest))
    p.alias(eqn, x, axes | missing)


def _assume_invariant(p: _Pass, eqn: Eqn) -> None:
    over, _, rest = _split_axes(p, eqn)
    x = p.read(eqn.ins[0])
    if over + rest:
        x = p.emit(assume_invariant_p, [x], axis_name=over + rest)
    p.alias(eqn, x, p.of(eqn.ins[0]) - frozenset(over))


def _settle(p: _Pass, eqn: Eqn) -> None:
    if eqn.params["manual"] != p.manual:
        _side_by_side(p, eqn)
        return
    x, axes = p.read(eqn.ins[0]), p.of(eqn.ins[0])
    excess = axes - eqn.params["over"]
    if excess:
        x = p.emit(psum_invariant_p, [x], axis_name=p.ordered(excess))
    p.alias(eqn, x, axes - excess)


# A cotangent that a user's rule made, of a value that varies over the axes `over` of `manual`:
# where the cotangent turns out to vary over more of them, it is summed over these.
settle_p: Primitive = Primitive(
    name="settle",
    abstract=lambda x, *, over, manual: x,
    impl=lambda xp, x, *, over, manual: x,
    jvp=lambda primals, tangents, **params: (
        settle_p.bind(*primals, **params),
        settle_p.bind(*tangents, **params),
    ),
    transpose=NoRule("annotate replaces it before the program is differentiated again"),
    batch=lambda axis, args, dims, **params: (settle_p.bind(*args, **params), dims[0]),
    dims=NoRule("it is a collective already"),
    doc="Internal.",
)


# ---- programs within programs


def _hoisted(
    p: _Pass, atoms: Sequence[Atom], run: Callable[[list[Axes]], Any], free: Sequence[bool]
) -> tuple[list[Axes], Any]:
    """How a program's inputs should vary, and what `run` (→ .varying, .widened) gives for that.

    Inputs that the program itself would make vary do so before it, where no result then varies
    over more: outside of a loop, and once for all the programs that need it.
    """
    held = [p.of(a) for a in atoms]
    found = run(held)

    def may(i: int) -> bool:
        return free[i] and dtypes.is_inexact(atoms[i].aval.dtype)

    def attempt(chosen: Sequence[int]) -> bool:
        nonlocal held, found
        more = [h | (found.widened[i] if i in chosen else NONE) for i, h in enumerate(held)]
        tried = run(more)
        if tried.varying != found.varying:
            return False
        held, found = more, tried
        return True

    while True:
        chosen = [i for i, w in enumerate(found.widened) if w - held[i] and may(i)]
        if not chosen:
            return held, found
        if not attempt(chosen) and not any(attempt([i]) for i in chosen):
            return held, found


def _call(p: _Pass, eqn: Eqn) -> None:
    """A call of one program: jit, checkpoint, custom rules, a `shard_map` over other axes."""
    jaxpr = eqn.params["jaxpr"]
    held, sub = _hoisted(p, eqn.ins, lambda v: annotate(jaxpr, v, p.manual), [True] * len(eqn.ins))
    ins = [p.widen(a, v) for a, v in zip(eqn.ins, held, strict=True)]
    p.keep(eqn, sub.varying, ins, jaxpr=sub.jaxpr)


def _custom_jvp(p: _Pass, eqn: Eqn) -> None:
    """A rule for the transpose (of a linear solve) takes all operands together."""
    if getattr(eqn.params["call"], "transpose", None) is None:
        _call(p, eqn)
        return
    axes = _join(map(p.of, eqn.ins))
    sub = annotate(eqn.params["jaxpr"], [axes] * len(eqn.ins), p.manual, [axes] * len(eqn.outs))
    p.keep(eqn, sub.varying, [p.widen(a, axes) for a in eqn.ins], jaxpr=sub.jaxpr)


class _Settled:
    """A user's backward rule whose cotangents vary over no more axes than their primals."""

    def __init__(self, bwd: Callable, over: Sequence[Axes], manual: Axes):
        self.bwd = bwd
        self.over = over
        self.manual = manual

    def __call__(self, residuals: Sequence[Any], cts: Sequence[Any]) -> list:
        return [
            settle_p.bind(c, over=over, manual=self.manual) if hasattr(c, "dtype") else c
            for c, over in zip(self.bwd(residuals, cts), self.over, strict=True)
        ]


def _custom_vjp_tangent(p: _Pass, eqn: Eqn) -> None:
    params = eqn.params
    n, count = len(params["perturbed"]), sum(params["perturbed"])
    tangents = iter(eqn.ins[len(eqn.ins) - count :])
    over = [p.of(next(tangents)) if m else NONE for m in params["perturbed"]]
    assert len(over) == n
    bwd = params["bwd"]
    if not isinstance(bwd, _Settled) or bwd.manual != p.manual or bwd.over != over:
        bwd = _Settled(bwd, over, p.manual)
    try:
        program = params["jaxpr"]
        if not isinstance(program, Jaxpr):
            program = program([a.aval for a in eqn.ins])
    except DifferentiationError:  # only the backward rule may be used
        axes = _join(map(p.of, eqn.ins))
        p.keep(eqn, [axes] * len(eqn.outs), [p.read(a) for a in eqn.ins], bwd=bwd)
        return
    sub = annotate(program, [p.of(a) for a in eqn.ins], p.manual)
    p.keep(eqn, sub.varying, [p.read(a) for a in eqn.ins], jaxpr=sub.jaxpr, bwd=bwd)


def _pullback(p: _Pass, eqn: Eqn) -> None:
    """A transpose that waited: the linear program is annotated, and transposed now."""
    jaxpr, n_linear = eqn.params["jaxpr"], eqn.params["n_linear"]
    n = len(jaxpr.ins) - n_linear
    held = [p.of(a) for a in eqn.ins]
    likes = [held[i] for i in eqn.params["likes"]]
    forward = annotate(jaxpr, [*held[:n], *likes], p.manual)
    for ct, out in zip(held[n:], forward.varying, strict=True):
        if ct - out:
            raise ShardingError(
                f"vjp inside shard_map: a cotangent varies over the mesh axis {listed(ct - out)}, "
                "but the result it belongs to is the same along it; psum or pmean the cotangent, "
                "or pvary the result"
            )
    backward = transposed(forward.jaxpr, n_linear)
    found = annotate(backward, held, p.manual)
    over = [v - like for v, like in zip(found.varying, likes, strict=True)]
    if any(over):  # a user's backward rule
        backward = with_excess(backward, over, context.current().axes, psum_invariant_p)
    found = annotate(backward, held, p.manual, likes)
    p.inline(eqn, found)


def with_excess(jaxpr: Jaxpr, over: Sequence[Axes], order: Iterable[str], prim: Primitive) -> Jaxpr:
    """The program with `prim` applied to each result over the axes given for it."""
    eqns, outs = list(jaxpr.eqns), list(jaxpr.outs)
    for i, axes in enumerate(over):
        if axes:
            new = Var(outs[i].aval)
            names = tuple(a for a in order if a in axes)
            eqns.append(Eqn(prim, [outs[i]], [new], {"axis_name": names}))
            outs[i] = new
    return Jaxpr(jaxpr.ins, eqns, outs, jaxpr.names)


def _cond(p: _Pass, eqn: Eqn) -> None:
    branches = eqn.params["branches"]
    index, ops = eqn.ins[0], eqn.ins[1:]
    # Devices that take different branches may not meet inside: what a branch would make vary over
    # those axes (whose transpose is a sum) does so before.
    apart = p.of(index)

    def run(varying: list[Axes]) -> Annotated:
        varying = [v | apart for v in varying]
        outs = [annotate(b, varying, p.manual).varying for b in branches]
        union = [_join(o) | apart for o in zip(*outs, strict=True)]
        each = [annotate(b, varying, p.manual, union) for b in branches]
        widened = [_join(w) for w in zip(*(e.widened for e in each), strict=True)]
        return Annotated(tuple(e.jaxpr for e in each), union, widened)  # type: ignore[arg-type]

    held, sub = _hoisted(p, ops, run, [True] * len(ops))
    for b in sub.jaxpr:  # type: ignore[attr-defined]
        _check_meeting("cond", "index" if len(branches) > 2 else "predicate", apart, [b])
    ins = [p.widen(a, v | apart) for a, v in zip(ops, held, strict=True)]
    p.keep(eqn, sub.varying, [p.read(index), *ins], branches=sub.jaxpr)


def _scan(p: _Pass, eqn: Eqn) -> None:
    jaxpr, n_consts, n_carry = (eqn.params[k] for k in ("jaxpr", "n_consts", "n_carry"))
    n_ys = len(eqn.outs) - n_carry

    def run(varying: list[Axes]) -> Annotated:
        consts, carry, xs = split_list(varying, n_consts, n_carry)

        def step(c: list[Axes]) -> list[Axes]:
            return annotate(jaxpr, [*consts, *c, *xs], p.manual).varying[:n_carry]

        carry = _grown(step, carry)
        body = annotate(jaxpr, [*consts, *carry, *xs], p.manual, [*carry, *[NONE] * n_ys])
        return body

    free = [n_consts > i or i >= n_consts + n_carry for i in range(len(eqn.ins))]
    held, body = _hoisted(p, eqn.ins, run, free)
    held[n_consts : n_consts + n_carry] = body.varying[:n_carry]
    ins = [p.widen(a, v) for a, v in zip(eqn.ins, held, strict=True)]
    p.keep(eqn, body.varying, ins, jaxpr=body.jaxpr)


def _grown(step: Callable[[list[Axes]], list[Axes]], start: Sequence[Axes]) -> list[Axes]:
    """The least axes that contain `start` and what `step` gives for them."""
    axes = list(start)
    while True:
        more = [a | b for a, b in zip(axes, step(axes), strict=True)]
        if more == axes:
            return axes
        axes = more


def _while(p: _Pass, eqn: Eqn) -> None:
    n_cond, n_body = eqn.params["n_cond"], eqn.params["n_body"]
    test, body = eqn.params["cond_jaxpr"], eqn.params["body_jaxpr"]
    cond_v, body_v, carry = split_list([p.of(a) for a in eqn.ins], n_cond, n_body)

    def apart(c: list[Axes]) -> Axes:
        return annotate(test, [*cond_v, *c], p.manual).varying[0]

    def step(c: list[Axes]) -> list[Axes]:
        # Devices that leave the loop at different times hold different values.
        until = apart(c)
        return [v | until for v in annotate(body, [*body_v, *c], p.manual).varying]

    carry = _grown(step, carry)
    new_test = annotate(test, [*cond_v, *carry], p.manual).jaxpr
    new_body = annotate(body, [*body_v, *carry], p.manual, carry).jaxpr
    _check_meeting("while_loop", "condition", apart(carry), [new_test, new_body])
    held = [*cond_v, *body_v, *carry]
    ins = [p.widen(a, v) for a, v in zip(eqn.ins, held, strict=True)]
    p.keep(eqn, carry, ins, cond_jaxpr=new_test, body_jaxpr=new_body)


def _check_meeting(what: str, decides: str, apart: Axes, programs: Iterable[Jaxpr]) -> None:
    """Raise where devices that take different ways would wait for each other."""
    for jaxpr in programs if apart else ():
        for name, axes in collectives(jaxpr):
            if frozenset(axes) & apart:
                raise ShardingError(
                    f"{what}: its {decides} varies over the mesh axis {listed(apart)}, so devices "
                    f"take different ways, but inside is a {name} over {listed(axes)}, for which "
                    f"they would wait for each other. Make the {decides} the same on all of them "
                    f"(psum or pmax it), or move the {name} out"
                )


_SILENT = frozenset({pvary_p, axis_index_p, assume_invariant_p})


def collectives(jaxpr: Jaxpr) -> list[tuple[str, tuple]]:
    """The name and axes of each exchange in a program and the programs within it.

    >>> import funcgrad as fg
    >>> from funcgrad.core.context import named_axis
    >>> with named_axis("i", 2):
    ...     collectives(fg.make_jaxpr(lambda x: fg.lax.psum(x, "i"))(1.0).jaxpr)
    [('psum', ('i',))]
    """
    found = []
    for eqn in jaxpr.eqns:
        if "axis_name" in eqn.params and eqn.prim not in _SILENT:
            found.append((eqn.prim.name, eqn.params["axis_name"]))
        for sub in sub_jaxprs(eqn):
            found += collectives(sub)
    return found


def erase(jaxpr: Jaxpr) -> Jaxpr:
    """The program without the marks of what varies: no more derivatives are taken of it, its
    collectives are the plain ones."""
    return jaxpr.derive("unmarked", lambda: _erase(jaxpr))


def _erase(jaxpr: Jaxpr) -> Jaxpr:
    same: dict[Var, Atom] = {}
    eqns = []
    for eqn in jaxpr.eqns:
        ins = tuple(same.get(a, a) if isinstance(a, Var) else a for a in eqn.ins)
        if eqn.prim in (pvary_p, assume_invariant_p):
            same[eqn.outs[0]] = ins[0]
            continue
        params = {k: _erase_param(v) for k, v in eqn.params.items()}
        prim = psum_p if eqn.prim is psum_invariant_p else eqn.prim
        eqns.append(eqn.replace(prim=prim, ins=ins, params=params))
    outs = [same.get(a, a) if isinstance(a, Var) else a for a in jaxpr.outs]
    return Jaxpr(jaxpr.ins, eqns, outs, jaxpr.names)


def _erase_param(value: Any) -> Any:
    if isinstance(value, Jaxpr):
        return erase(value)
    if isinstance(value, tuple) and any(isinstance(v, Jaxpr) for v in value):
        return tuple(map(_erase_param, value))
    return value


_RULES: dict[str, Callable[[_Pass, Eqn], None]] = {
    "psum": _psum,
    "psum_invariant": _psum,
    "pmax": _extremum,
    "pmin": _extremum,
    "all_gather": _exchange,
    "psum_scatter": _exchange,
    "all_to_all": _exchange,
    "ppermute": _exchange,
    "axis_index": _axis_index,
    "pvary": _pvary,
    "assume_invariant": _assume_invariant,
    "settle": _settle,
    "optimization_barrier": _side_by_side,
    "jit": _call,
    "pullback": _pullback,
    "checkpoint": _call,
    "shard_map": _call,
    "custom_jvp_call": _custom_jvp,
    "custom_vjp_call": _call,
    "custom_vjp_tangent": _custom_vjp_tangent,
    "cond": _cond,
    "scan": _scan,
    "while": _while,
}
