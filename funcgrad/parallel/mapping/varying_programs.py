"""What varies in programs within programs: calls, custom rules, branches, loops, transposes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from funcgrad import dtypes
from funcgrad.core import context
from funcgrad.core.ir import Atom, Eqn, Jaxpr, sub_jaxprs
from funcgrad.core.primitive import NoRule, Primitive
from funcgrad.errors import DifferentiationError, ShardingError
from funcgrad.ops.collective.varying import psum_invariant_p
from funcgrad.parallel.mapping.varying_pass import (
    NONE,
    Annotated,
    Axes,
    Pass,
    join,
    listed,
    with_excess,
)
from funcgrad.transforms.control.bodies import split_list
from funcgrad.transforms.derivatives.pullback import transposed


def _hoisted(
    p: Pass,
    atoms: Sequence[Atom],
    run: Callable[[list[Axes]], Annotated],
    free: Sequence[bool],
    turns: int = 0,
) -> tuple[list[Axes], Annotated]:
    """How a program's inputs should vary, and what `run` gives for that.

    Inputs that the program itself would make vary do so before it, where no result then varies
    over more: outside of a loop, and once for all the programs that need it. Of a loop of so many
    turns also those of which it computes what it would make vary, if that is no smaller in all.
    """
    held = [p.of(a) for a in atoms]
    found = run(held)

    def wanted(i: int) -> Axes:
        axes, size = found.behind[i]
        more = axes if turns and size * turns >= atoms[i].aval.size else NONE
        return (found.widened[i] | more) - held[i]

    def may(i: int) -> bool:
        return free[i] and dtypes.is_inexact(atoms[i].aval.dtype)

    def attempt(chosen: Sequence[int]) -> bool:
        nonlocal held, found
        more = [h | (wanted(i) if i in chosen else NONE) for i, h in enumerate(held)]
        tried = run(more)
        if tried.varying != found.varying:
            return False
        held, found = more, tried
        return True

    while True:
        chosen = [i for i in range(len(held)) if wanted(i) and may(i)]
        if not chosen:
            return held, found
        if not attempt(chosen) and not any(attempt([i]) for i in chosen):
            return held, found


def call(p: Pass, eqn: Eqn) -> None:
    """A call of one program: jit, checkpoint, custom rules, a `shard_map` over other axes."""
    jaxpr = eqn.params["jaxpr"]
    held, sub = _hoisted(p, eqn.ins, lambda v: p.annotate(jaxpr, v), [True] * len(eqn.ins))
    ins = [p.widen(a, v) for a, v in zip(eqn.ins, held, strict=True)]
    p.vary(eqn, sub.varying, ins, jaxpr=sub.jaxpr)


def custom_jvp(p: Pass, eqn: Eqn) -> None:
    """A rule for the transpose (of a linear solve) takes all operands together."""
    if getattr(eqn.params["call"], "transpose", None) is None:
        call(p, eqn)
        return
    axes = join(map(p.of, eqn.ins))
    sub = p.annotate(eqn.params["jaxpr"], [axes] * len(eqn.ins), [axes] * len(eqn.outs))
    p.vary(eqn, sub.varying, [p.widen(a, axes) for a in eqn.ins], jaxpr=sub.jaxpr)


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


def custom_vjp_tangent(p: Pass, eqn: Eqn) -> None:
    """The tangent of a function with a backward rule, whose cotangents are summed over the axes
    over which they vary beyond their primals."""
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
        axes = join(map(p.of, eqn.ins))
        p.vary(eqn, [axes] * len(eqn.outs), [p.read(a) for a in eqn.ins], bwd=bwd)
        return
    sub = p.annotate(program, [p.of(a) for a in eqn.ins])
    p.vary(eqn, sub.varying, [p.read(a) for a in eqn.ins], jaxpr=sub.jaxpr, bwd=bwd)


def pullback(p: Pass, eqn: Eqn) -> None:
    """A transpose that waited: the linear program is annotated, and transposed now."""
    jaxpr, n_linear = eqn.params["jaxpr"], eqn.params["n_linear"]
    n = len(jaxpr.ins) - n_linear
    held = [p.of(a) for a in eqn.ins]
    likes = [held[i] for i in eqn.params["likes"]]
    forward = p.annotate(jaxpr, [*held[:n], *likes])
    for ct, out in zip(held[n:], forward.varying, strict=True):
        if ct - out:
            raise ShardingError(
                f"vjp inside shard_map: a cotangent varies over the mesh axis {listed(ct - out)}, "
                "but the result it belongs to is the same along it; psum or pmean the cotangent, "
                "or pvary the result"
            )
    backward = transposed(forward.jaxpr, n_linear)
    found = p.annotate(backward, held)
    over = [v - like for v, like in zip(found.varying, likes, strict=True)]
    if any(over):  # a user's backward rule
        backward = with_excess(backward, over, context.current().axes, psum_invariant_p)
    found = p.annotate(backward, held, likes)
    p.put(eqn, found)


def cond(p: Pass, eqn: Eqn) -> None:
    """Branches: results vary over what any branch makes of them, and over what the choice does."""
    branches = eqn.params["branches"]
    index, ops = eqn.ins[0], eqn.ins[1:]
    # Devices that take different branches may not meet inside: what a branch would make vary over
    # those axes (whose transpose is a sum) does so before.
    apart = p.of(index)

    def run(varying: list[Axes]) -> Annotated:
        varying = [v | apart for v in varying]
        outs = [p.annotate(b, varying).varying for b in branches]
        union = [join(o) | apart for o in zip(*outs, strict=True)]
        first, *others = [p.annotate(b, varying, union) for b in branches]
        widened = [join(w) for w in zip(first.widened, *(o.widened for o in others), strict=True)]
        return first._replace(widened=widened)

    held, found = _hoisted(p, ops, run, [True] * len(ops))
    held = [v | apart for v in held]
    each = tuple(p.annotate(b, held, found.varying).jaxpr for b in branches)
    _check_meeting("cond", "index" if len(branches) > 2 else "predicate", apart, each)
    ins = [p.widen(a, v) for a, v in zip(ops, held, strict=True)]
    p.vary(eqn, found.varying, [p.read(index), *ins], branches=each)


def scan(p: Pass, eqn: Eqn) -> None:
    """A loop: what it carries varies from the start over all axes that a turn adds."""
    jaxpr, n_consts, n_carry = (eqn.params[k] for k in ("jaxpr", "n_consts", "n_carry"))
    n_ys = len(eqn.outs) - n_carry

    def run(varying: list[Axes]) -> Annotated:
        consts, carry, xs = split_list(varying, n_consts, n_carry)

        def step(c: list[Axes]) -> list[Axes]:
            return p.annotate(jaxpr, [*consts, *c, *xs]).varying[:n_carry]

        carry = _grown(step, carry)
        body = p.annotate(jaxpr, [*consts, *carry, *xs], [*carry, *[NONE] * n_ys])
        return body

    free = [n_consts > i or i >= n_consts + n_carry for i in range(len(eqn.ins))]
    held, body = _hoisted(p, eqn.ins, run, free, eqn.params["length"])
    held[n_consts : n_consts + n_carry] = body.varying[:n_carry]
    ins = [p.widen(a, v) for a, v in zip(eqn.ins, held, strict=True)]
    p.vary(eqn, body.varying, ins, jaxpr=body.jaxpr)


def _grown(step: Callable[[list[Axes]], list[Axes]], start: Sequence[Axes]) -> list[Axes]:
    """The least axes that contain `start` and what `step` gives for them."""
    axes = list(start)
    while True:
        more = [a | b for a, b in zip(axes, step(axes), strict=True)]
        if more == axes:
            return axes
        axes = more


def while_loop(p: Pass, eqn: Eqn) -> None:
    """As `scan`; what it carries also varies over the axes over which the condition does."""
    n_cond, n_body = eqn.params["n_cond"], eqn.params["n_body"]
    test, body = eqn.params["cond_jaxpr"], eqn.params["body_jaxpr"]
    cond_v, body_v, carry = split_list([p.of(a) for a in eqn.ins], n_cond, n_body)

    def apart(c: list[Axes]) -> Axes:
        return p.annotate(test, [*cond_v, *c]).varying[0]

    def step(c: list[Axes]) -> list[Axes]:
        # Devices that leave the loop at different times hold different values.
        until = apart(c)
        return [v | until for v in p.annotate(body, [*body_v, *c]).varying]

    carry = _grown(step, carry)
    new_test = p.annotate(test, [*cond_v, *carry]).jaxpr
    new_body = p.annotate(body, [*body_v, *carry], carry).jaxpr
    _check_meeting("while_loop", "condition", apart(carry), [new_test, new_body])
    held = [*cond_v, *body_v, *carry]
    ins = [p.widen(a, v) for a, v in zip(eqn.ins, held, strict=True)]
    p.vary(eqn, carry, ins, cond_jaxpr=new_test, body_jaxpr=new_body)


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


def settle(p: Pass, eqn: Eqn) -> None:
    """A cotangent summed over the axes over which it varies beyond its primal."""
    if eqn.params["manual"] != p.manual:
        p.vary(eqn, [p.of(eqn.ins[0])], [p.read(eqn.ins[0])])
        return
    x, axes = p.read(eqn.ins[0]), p.of(eqn.ins[0])
    excess = axes - eqn.params["over"]
    if excess:
        x = p.add(psum_invariant_p, [x], x.aval, axis_name=p.ordered(excess))
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
        if eqn.prim.collective:
            found.append((eqn.prim.name, eqn.params["axis_name"]))
        for sub in sub_jaxprs(eqn):
            found += collectives(sub)
    return found
