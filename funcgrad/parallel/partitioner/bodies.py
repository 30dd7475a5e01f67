"""Loops, branches and shard_map on parts: their bodies partitioned, their operands brought there.

A loop's carry has one layout as it starts, in each turn, and as it ends. Where a body only adds
parts of sums to it (gradients of microbatches), it stays a part of a sum: it is summed over the
devices once, after the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from funcgrad.core.ir import Atom, Eqn, Jaxpr, Var
from funcgrad.core.primitive import Primitive
from funcgrad.core.staging import stage_closed
from funcgrad.parallel.mapping.primitive import shard_map_p
from funcgrad.parallel.partitioner.reshard import Layout, local_aval, whole
from funcgrad.transforms.control.bodies import split_list
from funcgrad.transforms.control.cond import cond_p
from funcgrad.transforms.control.scan import scan_p
from funcgrad.transforms.control.while_loop import while_p

if TYPE_CHECKING:
    from funcgrad.parallel.partitioner.partition import Partitioner


def perform(run: Partitioner, i: int, eqn: Eqn) -> None:
    """Perform an equation that holds programs."""
    layouts = [Layout(run.plan.tie_cuts(i, t)) for t in run.plan.ties[i]]
    _PERFORM[eqn.prim](run, i, eqn, layouts)


def _stage(
    run: Partitioner, i: int, body: int, ins: Sequence[Layout], outs: Sequence[Layout],
    carried: dict[Var, Atom] | None = None,
) -> tuple[Jaxpr, dict[Var, Layout]]:  # fmt: skip
    """A body on parts, and which of the carries (input → result) might stay parts of sums."""
    plan = run.plan.inner[i][body]
    avals = [local_aval(v.aval, h, run.sizes) for v, h in zip(plan.jaxpr.ins, ins, strict=True)]
    sums: dict[Var, Layout] = {}

    def fun(*parts: Any) -> list:
        inner = type(run)(plan)
        inner.carried = carried or {}
        inner.begin(parts, ins)
        inner.run()
        sums.update(inner.sums)
        return [inner.demand(a, h) for a, h in zip(plan.jaxpr.outs, outs, strict=True)]

    return stage_closed(fun, avals, "a device's part of a loop or a branch"), sums


def _finish(run: Partitioner, eqn: Eqn, layouts: Sequence[Layout], values: Sequence[Any]) -> None:
    for v, h, x in zip(eqn.outs, layouts, values, strict=True):
        run.hold(v, h, x)


def _demand(run: Partitioner, atoms: Sequence[Atom], layouts: Sequence[Layout]) -> list:
    return [run.demand(a, h) for a, h in zip(atoms, layouts, strict=True)]


def _scan(run: Partitioner, i: int, eqn: Eqn, layouts: list[Layout]) -> None:
    p = eqn.params
    n_consts, n_carry, jaxpr = p["n_consts"], p["n_carry"], p["jaxpr"]
    ins, ys = split_list(layouts, len(eqn.ins))
    carry = slice(n_consts, n_consts + n_carry)
    carried = dict(zip(jaxpr.ins[carry], jaxpr.outs, strict=False))
    body, sums = _stage(run, i, 0, ins, [*ins[carry], *ys], carried)
    if sums:
        ins = [sums.get(v, h) for v, h in zip(jaxpr.ins, ins, strict=True)]
        body, _ = _stage(run, i, 0, ins, [*ins[carry], *ys])
    stacked = [Layout(((), *h.cuts)) for h in [*ins[carry.stop :], *ys]]
    n_xs = len(ins) - carry.stop
    values = _demand(run, eqn.ins, [*ins[: carry.stop], *stacked[:n_xs]])
    outs = eqn.prim.bind(*values, **{**p, "jaxpr": body})
    _finish(run, eqn, [*ins[carry], *stacked[n_xs:]], outs)


def _while(run: Partitioner, i: int, eqn: Eqn, layouts: list[Layout]) -> None:
    p = eqn.params
    tests, consts, carry = split_list(layouts, p["n_cond"], p["n_body"])
    test, _ = _stage(run, i, 0, [*tests, *carry], [whole(0)])
    body, _ = _stage(run, i, 1, [*consts, *carry], carry)
    values = _demand(run, eqn.ins, layouts)
    outs = eqn.prim.bind(*values, **{**p, "cond_jaxpr": test, "body_jaxpr": body})
    _finish(run, eqn, carry, outs)


def _cond(run: Partitioner, i: int, eqn: Eqn, layouts: list[Layout]) -> None:
    ins, outs = split_list(layouts, len(eqn.ins) - 1)
    count = len(eqn.params["branches"])
    branches = tuple(_stage(run, i, k, ins, outs)[0] for k in range(count))
    values = _demand(run, eqn.ins, [whole(0), *ins])
    _finish(run, eqn, outs, eqn.prim.bind(*values, branches=branches))


def _shard_map(run: Partitioner, i: int, eqn: Eqn, layouts: list[Layout]) -> None:
    """The body, in place: its values are parts already, over the mesh's manual axes."""
    ties, n = run.plan.ties[i], len(eqn.ins)
    outside = [Layout(t[0].outward(h.cuts)) for t, h in zip(ties[:n], layouts[:n], strict=True)]
    inner = type(run)(run.plan.inner[i][0])
    inner.begin(_demand(run, eqn.ins, outside), layouts[:n])
    inner.run()
    results = [inner.demand(t[0].atom, h) for t, h in zip(ties[n:], layouts[n:], strict=True)]
    found = [Layout(t[1].outward(h.cuts)) for t, h in zip(ties[n:], layouts[n:], strict=True)]
    _finish(run, eqn, found, results)


_PERFORM: dict[Primitive, Callable[[Partitioner, int, Eqn, list[Layout]], None]] = {
    scan_p: _scan,
    while_p: _while,
    cond_p: _cond,
    shard_map_p: _shard_map,
}
