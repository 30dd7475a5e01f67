"""What a stage's forward pass leaves to its backward pass, as little as can be.

Residuals wait in slots, into which they are copied and from which they are taken: more traffic than
to compute anew what is elementwise in values that wait anyway (`tape.residuals`). So also for what
loops over layers leave: the loop that leaves it and the one that reads it are made lean together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from funcgrad.core.dce import dce_eqns
from funcgrad.core.ir import Atom, Eqn, Jaxpr, Var
from funcgrad.core.rewriting import makers, uses
from funcgrad.transforms.control.scan import scan_p
from funcgrad.transforms.tape.residuals import fewer_residuals


def lean(forward: Jaxpr, linear: Jaxpr, n_results: int) -> tuple[Jaxpr, Jaxpr]:
    """The same two programs with less between them: the first inputs of `linear` are what
    `forward` gives behind its results.

    >>> import funcgrad as fg, funcgrad.numpy as fnp
    >>> forward = fg.make_jaxpr(lambda x: (fnp.sin(x), fnp.cos(x)))(1.0).jaxpr
    >>> linear = fg.make_jaxpr(lambda r, ct: (r * ct,))(1.0, 1.0).jaxpr
    >>> lean(forward, linear, 1)[1]
    { lambda ; a:f32[] b:f32[] . let
        c:f32[] = cos a
        d:f32[] = mul c b
      in (d,) }
    """
    for reader in [e for e in linear.eqns if e.prim is scan_p]:
        forward, linear = _lean_loops(forward, linear, n_results, reader)
    return fewer_residuals(forward, linear, n_results)


class _Loops(NamedTuple):
    """A loop that leaves residuals, one that reads them, and which: at which of the first one's
    results, which of the second one's operands."""

    maker: Eqn
    reader: Eqn
    left: list[int]
    read: list[int]


def _lean_loops(forward: Jaxpr, linear: Jaxpr, n_results: int, reader: Eqn) -> tuple[Jaxpr, Jaxpr]:
    """Both programs, with less between one loop of the second, and the one whose turns it reads."""
    residuals = forward.outs[n_results:]
    given = dict(zip(linear.ins[: len(residuals)], residuals, strict=True))
    loops = _paired(forward, linear, n_results, reader, given)
    if loops is None:
        return forward, linear
    fresh, maker, atoms, lean_reader = _bodies(loops)
    dropped = {reader.ins[i] for i in loops.read}
    kept = {v: a for v, a in given.items() if v not in dropped}
    first = [maker if e is loops.maker else e for e in forward.eqns]
    second = [lean_reader if e is reader else e for e in linear.eqns]
    outs = [*forward.outs[:n_results], *kept.values(), *atoms]
    ins = [*kept, *fresh, *linear.ins[len(residuals) :]]
    return Jaxpr(forward.ins, first, outs), Jaxpr(ins, second, linear.outs)


def _paired(
    forward: Jaxpr, linear: Jaxpr, n_results: int, reader: Eqn, given: dict[Var, Atom]
) -> _Loops | None:
    """What a loop reads of another one, turn by turn, and nobody else does."""
    made, used, read_by = makers(forward), uses(forward), uses(linear)
    p, results = reader.params, set(forward.outs[:n_results])
    found: dict[int, list[tuple[int, int]]] = {}
    for i in range(p["n_consts"] + p["n_carry"], len(reader.ins)):
        v = reader.ins[i]
        atom = given.get(v)  # type: ignore[arg-type]
        if atom not in made or atom in results or len(read_by[v]) > 1:  # type: ignore[index]
            continue
        maker = forward.eqns[made[atom]]
        same = maker.prim is scan_p and all(maker.params[k] == p[k] for k in ("length", "reverse"))
        j = maker.outs.index(atom)
        alone = used[atom] == [len(forward.eqns)]
        if same and alone and j >= maker.params["n_carry"]:
            found.setdefault(made[atom], []).append((j, i))
    if len(found) != 1:
        return None
    ((number, pairs),) = found.items()
    return _Loops(forward.eqns[number], reader, [j for j, _ in pairs], [i for _, i in pairs])


def _bodies(loops: _Loops) -> tuple[list[Var], Eqn, list[Atom], Eqn]:
    """New inputs of the second program, the loop that leaves residuals, these, and the loop that
    reads them as the new inputs."""
    maker, reader = loops.maker, loops.reader
    f, g = maker.params["jaxpr"], reader.params["jaxpr"]
    others = [j for j in range(len(f.outs)) if j not in loops.left]
    rest = [i for i in range(len(g.ins)) if i not in loops.read]
    first = Jaxpr(f.ins, f.eqns, [f.outs[j] for j in [*others, *loops.left]])
    second = Jaxpr([g.ins[i] for i in [*loops.read, *rest]], g.eqns, g.outs)
    first, second = fewer_residuals(first, second, len(others))
    kept = first.outs[len(others) :]
    n_consts, start = maker.params["n_consts"], maker.params["n_consts"] + maker.params["n_carry"]
    place = {v: i for i, v in enumerate(f.ins) if not n_consts <= i < start}
    emitted = [v for v in kept if v not in place]
    outs = [*first.outs[: len(others)], *emitted]
    body = Jaxpr(f.ins, dce_eqns(first.eqns, outs), outs)
    stacked = {
        v: Var(v.aval.update(shape=(maker.params["length"], *v.aval.shape))) for v in emitted
    }
    new_maker = maker.replace(
        outs=(*(maker.outs[j] for j in others), *stacked.values()),
        params={**maker.params, "jaxpr": body},
    )
    atoms = [maker.ins[place[v]] if v in place else stacked[v] for v in kept]
    fresh = [Var(a.aval) for a in atoms]
    constant = [v in place and place[v] < n_consts for v in kept]
    return fresh, new_maker, atoms, _reader(reader, second, rest, fresh, constant)


def _reader(
    reader: Eqn, body: Jaxpr, rest: Sequence[int], fresh: Sequence[Var], constant: Sequence[bool]
) -> Eqn:
    """The loop whose body takes what is kept first: what is the same in all turns as constants,
    all else as what it goes over."""
    n, n_consts = len(fresh), reader.params["n_consts"]
    own = dict(zip(rest, body.ins[n:], strict=True))
    consts = [(reader.ins[i], own[i]) for i in rest if i < n_consts]
    others = [(reader.ins[i], own[i]) for i in rest if i >= n_consts]
    new = list(zip(fresh, body.ins[:n], strict=True))
    consts += [pair for pair, same in zip(new, constant, strict=True) if same]
    pairs = [
        *consts,
        *others,
        *(pair for pair, same in zip(new, constant, strict=True) if not same),
    ]
    jaxpr = Jaxpr([v for _, v in pairs], body.eqns, body.outs)
    params = {**reader.params, "n_consts": len(consts), "jaxpr": jaxpr}
    return reader.replace(ins=tuple(a for a, _ in pairs), params=params)
