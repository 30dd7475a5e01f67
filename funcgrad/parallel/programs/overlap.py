"""Collectives in two parts, a start and an end, with other work in between.

`collective_start` gives the result as a value that is not to be read before `collective_done` has
passed it on. Where a runtime can't work while it exchanges, `joined` puts the parts together again.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from funcgrad.core.aval import ShapedArray
from funcgrad.core.ir import Eqn, Jaxpr, Var
from funcgrad.core.primitive import NoRule, Primitive
from funcgrad.core.rewriting import Writer, everywhere, makers, uses

_LAST = NoRule("collectives are split in two after all derivatives have been taken")


def _start_abstract(
    x: ShapedArray, *, prim: Primitive, axis_name: tuple, rest: tuple
) -> ShapedArray:
    return prim.abstract(x, axis_name=axis_name, **dict(rest))


def _start_impl(xp: Any, x: Any, *, prim: Primitive, axis_name: tuple, rest: tuple) -> Any:
    return prim.impl(xp, x, axis_name=axis_name, **dict(rest))


def _start_formula(x: Any, *, prim: Primitive, axis_name: tuple, rest: tuple) -> Any:
    """All of it at once, where nothing is gained by waiting elsewhere."""
    return prim.bind(x, axis_name=axis_name, **dict(rest))


def _start_batch(
    axis: Any, args: Sequence[Any], dims: Sequence[Any], *, prim: Primitive, axis_name: tuple,
    rest: tuple,
) -> tuple:  # fmt: skip
    return prim.batched(axis, args, dims, {"axis_name": axis_name, **dict(rest)})


start_p: Primitive = Primitive(
    name="collective_start",
    abstract=_start_abstract,
    impl=_start_impl,
    jvp=_LAST,
    transpose=_LAST,
    batch=_start_batch,
    dims=NoRule("it is a collective already"),
    formula=_start_formula,
)
done_p: Primitive = Primitive(
    name="collective_done",
    abstract=lambda x: x,
    impl=lambda xp, x: x,
    jvp=_LAST,
    transpose=_LAST,
    batch=lambda axis, args, dims: (done_p.bind(*args), dims[0]),
    dims=NoRule("it is a collective already"),
    identity=True,
)


def overlapped(jaxpr: Jaxpr, ahead: int = 1) -> Jaxpr:
    """Each collective split in two: its start, and its end right before the first use.

    Reductions start where they stand. A gather starts before the end of the gather that is `ahead`
    places before it, so that at most so many arrays more are whole than without.
    """
    return everywhere(jaxpr, partial(_overlapped, ahead=ahead))


def _overlapped(jaxpr: Jaxpr, ahead: int) -> Jaxpr:
    made, used = makers(jaxpr), uses(jaxpr)
    starts: dict[int, list[Eqn]] = {}
    ends: dict[int, list[Eqn]] = {}
    split: set[int] = set()
    gathers: list[int] = []
    for i, eqn in enumerate(jaxpr.eqns):
        if not eqn.prim.collective:
            continue
        end = used[eqn.outs[0]][0] if eqn.outs[0] in used else len(jaxpr.eqns)
        start = i
        if eqn.prim.collective == "all_gather":
            known = max(
                (made[a] + 1 for a in eqn.ins if isinstance(a, Var) and a in made), default=0
            )
            if len(gathers) >= ahead:
                start = min(i, max(known, gathers[-ahead]))
            gathers.append(end)
        if start == i and end == i + 1:
            continue
        split.add(i)
        flying = Var(eqn.outs[0].aval)
        rest = tuple((k, v) for k, v in eqn.params.items() if k != "axis_name")
        params = {"prim": eqn.prim, "axis_name": eqn.params["axis_name"], "rest": rest}
        starts.setdefault(start, []).append(
            eqn.replace(prim=start_p, outs=(flying,), params=params)
        )
        ends.setdefault(end, []).append(eqn.replace(prim=done_p, ins=(flying,), params={}))
    eqns: list[Eqn] = []
    for i in range(len(jaxpr.eqns) + 1):
        # What starts here must not wait for what ends here.
        eqns += [*starts.get(i, ()), *ends.get(i, ())]
        if i < len(jaxpr.eqns) and i not in split:
            eqns.append(jaxpr.eqns[i])
    return Jaxpr(jaxpr.ins, eqns, jaxpr.outs, jaxpr.names)


def joined(jaxpr: Jaxpr) -> Jaxpr:
    """The program with whole collectives where they start."""
    return everywhere(jaxpr, lambda j: _Joined().write(j))


class _Joined(Writer):
    def equation(self, eqn: Eqn, ins: list) -> None:
        if eqn.prim is done_p:
            self.define(eqn, ins)
        elif eqn.prim is start_p:
            params = {"axis_name": eqn.params["axis_name"], **dict(eqn.params["rest"])}
            self.keep(eqn, ins, prim=eqn.params["prim"], params=params)
        else:
            self.keep(eqn, ins)
