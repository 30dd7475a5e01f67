"""Scans in blocks of turns, where products that could come before the scan would fill memory.

`scans` computes what a scanned row gives times a matrix that stays for all turns at once. Where
that is more than caches hold, it is computed for some turns at a time: a scan of scans, each of
which reads what its block's product left in the cache.
"""

from __future__ import annotations

from typing import Any

from funcgrad.backends.llvm.rewrites import panels
from funcgrad.backends.rewrites import scans
from funcgrad.backends.rewrites.equations import Equations
from funcgrad.backends.target import Turns
from funcgrad.core.ir import Atom, Eqn, Jaxpr, Literal, Var
from funcgrad.core.rewriting import Writer
from funcgrad.transforms.control.scan import scan_p

# Bytes of the products of a block. Those of fewer turns have too few rows.
BLOCK_BYTES, LEAST_TURNS = 1 << 22, 16


def blocked(scan: Eqn, limits: Turns) -> Jaxpr | None:
    """The program of a scan's operands that runs it in blocks; None if nothing gains by that.

    >>> import funcgrad as fg
    >>> x, w = fg.numpy.ones((128, 32, 256)), fg.numpy.ones((256, 1024))
    >>> turn = lambda w: lambda c, row: (fg.numpy.tanh(c + row @ w), None)
    >>> f = lambda x, w: fg.lax.scan(turn(w), fg.numpy.zeros((32, 1024)), x)[0]
    >>> limits = Turns(rows=256, nbytes=1 << 26, few=16, cached=1 << 23)
    >>> (_, scan) = blocked(fg.make_jaxpr(f)(x, w).eqns[-1], limits).eqns
    >>> scan.params["length"], [e.prim.name for e in scan.params["jaxpr"].eqns]
    (4, ['dot_general', 'scan'])
    """
    p = scan.params
    key = ("blocked", limits, p["length"], p["reverse"], p["n_consts"], p["n_carry"])
    return p["jaxpr"].derive(key, lambda: _blocked(scan, limits))


def _blocked(scan: Eqn, limits: Turns) -> Jaxpr | None:
    turns = _turns(scan.params["length"], scans.large(scan, limits))
    if not turns:
        return None
    p = scan.params
    blocks, n, m = p["length"] // turns, p["n_consts"], p["n_consts"] + p["n_carry"]
    rows = [Var(a.aval.update(shape=(turns, *a.aval.shape[1:]))) for a in scan.ins[m:]]
    outs = [Var(v.aval) for v in scan.outs[: p["n_carry"]]]
    outs += [
        Var(v.aval.update(shape=(turns, *v.aval.shape[1:]))) for v in scan.outs[p["n_carry"] :]
    ]
    ins = [*(Var(a.aval) for a in scan.ins[:m]), *rows]
    block = scans.spread(scan.replace(ins=ins, outs=outs, params=p | {"length": turns}), limits)
    if block is None:
        return None
    block = _Opened().write(block)
    before, eqns = _apart(block, n)
    read = {a for e in eqns for a in e.ins} | set(block.outs)
    made = [v for e in before for v in e.outs if v in read]
    body = Jaxpr([*block.ins[:n], *made, *block.ins[n:]], eqns, block.outs)
    outer, flat = [Var(a.aval) for a in scan.ins], Equations()
    constants = flat.called(Jaxpr(block.ins[:n], before, made), outer[:n])
    rows = [flat.reshape_of(x, (blocks, turns, *x.aval.shape[1:])) for x in outer[m:]]
    carried, ys = ([Var(v.aval) for v in scan.outs[: p["n_carry"]]], scan.outs[p["n_carry"] :])
    stacks = [Var(y.aval.update(shape=(blocks, turns, *y.aval.shape[1:]))) for y in ys]
    params = p | {"jaxpr": body, "length": blocks, "unroll": 1, "n_consts": n + len(made)}
    operands = [*outer[:n], *constants, *outer[n:m], *rows]
    flat.append(scan.replace(ins=operands, outs=[*carried, *stacks], params=params))
    whole = [flat.reshape_of(x, y.aval.shape) for x, y in zip(stacks, ys, strict=True)]
    return Jaxpr(outer, flat.eqns, [*carried, *whole])


class _Opened(Writer):
    """The scans of a block, if they read panels, with what lays these out beside them."""

    def equation(self, eqn: Eqn, ins: list) -> None:
        parts = panels.panelled(eqn) if eqn.prim is scan_p else None
        if parts is None:
            self.keep(eqn, ins)
        else:
            self.inline(eqn, ins, parts)


def rewrite(flat: Any, scan: Eqn, ins: list[Atom]) -> list[Atom] | None:
    """A scan in blocks, or whose products are apart or read panels; None if it stays."""
    limits = flat.limits.turns
    parts = blocked(scan, limits) or scans.spread(scan, limits) or panels.panelled(scan)
    return None if parts is None else flat.called(parts, ins)


def _turns(length: int, nbytes: int) -> int:
    """How many turns a block has that leave so many bytes each: a divisor of the length; 0 for
    none."""
    most = min(BLOCK_BYTES // nbytes, length // 2) if nbytes else 0
    return next((n for n in range(most, LEAST_TURNS - 1, -1) if length % n == 0), 0)


def _apart(block: Jaxpr, n_consts: int) -> tuple[list[Eqn], list[Eqn]]:
    """A block's equations: those of its constants alone, panels of matrices say, and the others."""
    before: list[Eqn] = []
    others: list[Eqn] = []
    stays = set(block.ins[:n_consts])
    for eqn in block.eqns:
        if eqn.prim is not scan_p and all(a in stays or type(a) is Literal for a in eqn.ins):
            stays.update(eqn.outs)
            before.append(eqn)
        else:
            others.append(eqn)
    return before, others
