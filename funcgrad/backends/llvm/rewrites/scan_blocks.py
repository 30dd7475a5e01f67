"""Scans in blocks of turns, where products that could come before the scan would fill memory.

`scans` computes what a scanned row gives times a matrix that stays for all turns at once. Where
that is more than caches hold, it is computed for some turns at a time: a scan of scans, each of
which reads what its block's product left in the cache.
"""

from __future__ import annotations

from funcgrad.backends.llvm.rewrites import panels
from funcgrad.backends.rewrites import scans
from funcgrad.core.ir import Atom, Eqn, Jaxpr, Literal, Var
from funcgrad.ops.shape import reshape_p
from funcgrad.transforms.control.scan import scan_p

# Bytes of the products of a block. Those of fewer turns have too few rows.
BLOCK_BYTES, LEAST_TURNS = 1 << 22, 16


def blocked(scan: Eqn) -> Jaxpr | None:
    """The program of a scan's operands that runs it in blocks; None if nothing gains by that.

    >>> import funcgrad as fg
    >>> x, w = fg.numpy.ones((128, 32, 256)), fg.numpy.ones((256, 1024))
    >>> turn = lambda w: lambda c, row: (fg.numpy.tanh(c + row @ w), None)
    >>> f = lambda x, w: fg.lax.scan(turn(w), fg.numpy.zeros((32, 1024)), x)[0]
    >>> (_, scan) = blocked(fg.make_jaxpr(f)(x, w).eqns[-1]).eqns
    >>> scan.params["length"], [e.prim.name for e in scan.params["jaxpr"].eqns]
    (4, ['dot_general', 'scan'])
    """
    p = scan.params
    key = ("blocked", p["length"], p["reverse"], p["n_consts"], p["n_carry"])
    return p["jaxpr"].derive(key, lambda: _blocked(scan))


def _blocked(scan: Eqn) -> Jaxpr | None:
    turns = _turns(scan.params["length"], scans.large(scan))
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
    block = scans.spread(scan.replace(ins=ins, outs=outs, params=p | {"length": turns}))
    if block is None:
        return None
    before, eqns = _apart(block, n)
    made = [v for e in before for v in e.outs]
    read = {a for e in eqns for a in e.ins} | set(block.outs)
    made = [v for v in made if v in read]
    body = Jaxpr([*block.ins[:n], *made, *block.ins[n:]], eqns, block.outs)
    outer = [Var(a.aval) for a in scan.ins]
    env: dict[Atom, Var] = dict(zip(block.ins[:n], outer[:n], strict=True))
    program = [_renamed(e, env) for e in before]
    operands = [*outer[:n], *(env[v] for v in made), *outer[n:m]]
    for x in outer[m:]:
        shape = (blocks, turns, *x.aval.shape[1:])
        operands.append(Var(x.aval.update(shape=shape)))
        program.append(Eqn(reshape_p, [x], [operands[-1]], {"new_sizes": shape}))
    results, stacks = [Var(v.aval) for v in scan.outs], []
    after = []
    for y in results[p["n_carry"] :]:
        stacks.append(Var(y.aval.update(shape=(blocks, turns, *y.aval.shape[1:]))))
        after.append(Eqn(reshape_p, [stacks[-1]], [y], {"new_sizes": y.aval.shape}))
    params = p | {"jaxpr": body, "length": blocks, "unroll": 1, "n_consts": n + len(made)}
    loop = scan.replace(ins=operands, outs=[*results[: p["n_carry"]], *stacks], params=params)
    return Jaxpr(outer, [*program, loop, *after], results)


def _turns(length: int, nbytes: int) -> int:
    """How many turns a block has that leave so many bytes each: a divisor of the length; 0 for
    none."""
    most = min(BLOCK_BYTES // nbytes, length // 2) if nbytes else 0
    return next((n for n in range(most, LEAST_TURNS - 1, -1) if length % n == 0), 0)


def _apart(block: Jaxpr, n_consts: int) -> tuple[list[Eqn], list[Eqn]]:
    """A block's equations: those of its constants alone, panels of matrices say, and the others."""
    before, eqns = [], []
    stays = set(block.ins[:n_consts])
    for outer in block.eqns:
        parts = panels.panelled(outer) if outer.prim is scan_p else None
        env: dict[Atom, Atom] = {}
        if parts is not None:
            env = dict(zip([*parts.ins, *parts.outs], [*outer.ins, *outer.outs], strict=True))
        for eqn in [outer] if parts is None else parts.eqns:
            ins, outs = ([env.get(a, a) for a in side] for side in (eqn.ins, eqn.outs))
            eqn = eqn.replace(ins=ins, outs=outs)
            if eqn.prim is not scan_p and all(a in stays or type(a) is Literal for a in ins):
                stays.update(eqn.outs)
                before.append(eqn)
            else:
                eqns.append(eqn)
    return before, eqns


def _renamed(eqn: Eqn, env: dict[Atom, Var]) -> Eqn:
    """An equation on other variables, to which it adds its own."""
    outs = [Var(v.aval) for v in eqn.outs]
    ins = [env.get(a, a) for a in eqn.ins]
    env.update(zip(eqn.outs, outs, strict=True))
    return eqn.replace(ins=ins, outs=outs)
