"""From a traced function to what its file holds; of symbolic sizes, from several traces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from funcgrad import tree
from funcgrad.core.ir import Eqn, Jaxpr, Var
from funcgrad.core.shapes import ShapeDtypeStruct
from funcgrad.errors import ExportError
from funcgrad.export.content import Content
from funcgrad.export.program.encode import Encoder
from funcgrad.export.program.trees import tree_to_json
from funcgrad.export.program.values import to_json
from funcgrad.export.signature import Signature
from funcgrad.export.symbolic import Dim, Sizes, SymbolicScope, solve
from funcgrad.export.unify import Differ, Unifier, monomials, points
from funcgrad.ops.sharding import sharding_constraint_p
from funcgrad.transforms.jit.stages import Program, Traced


def content_of(traced: Traced, platforms: tuple[str, ...], order: int) -> Content:
    """What the file of a traced function holds."""
    program, name = traced.program, traced.fun_name
    encoder = Encoder(name, order)
    n = len(program.consts)
    cuts = (program.shardings or (None,) * len(program.donated))[n:]
    captured = tuple(encoder.weight(c) for c in program.consts)
    main = encoder.program(_constrained(program, cuts))
    signature = Signature(
        name=name,
        in_tree=tree_to_json(program.in_tree, f"the arguments of {name}"),
        out_tree=tree_to_json(program.out_tree, f"the result of {name}"),
        in_avals=tuple(program.jaxpr.in_avals[n:]),
        out_avals=tuple(program.jaxpr.out_avals),
        names=tuple(program.names[n:]),
        donated=program.donated[n:],
        shardings=tuple(to_json(cut, encoder) for cut in cuts),
        captured=captured,
        platforms=platforms,
        main=main,
    )
    return Content(signature, encoder.tables(), encoder.weights)


def _constrained(program: Program, cuts: Sequence[Any]) -> Jaxpr:
    """The program, which says itself how its arguments are cut."""
    jaxpr, n = program.jaxpr, len(program.consts)
    if not any(cuts):
        return jaxpr
    ins, eqns = list(jaxpr.ins), []
    for i, cut in enumerate(cuts, n):
        if cut is not None:
            ins[i] = Var(jaxpr.ins[i].aval)
            eqns.append(Eqn(sharding_constraint_p, [ins[i]], [jaxpr.ins[i]], {"sharding": cut}))
    return Jaxpr(ins, [*eqns, *jaxpr.eqns], jaxpr.outs, jaxpr.names)


def symbolic_content(
    trace: Callable[..., Traced], args: tuple, kwargs: dict, write: Callable[[Traced], Content]
) -> Content:
    """What the file of a function of symbolic sizes holds: traced at some sizes, and unified.

    Raises ExportError where a symbol doesn't follow from a call's shapes, or where the function has
    no one program for all sizes.
    """
    leaves, treedef = tree.flatten((args, kwargs))
    dims = [n for x in leaves if isinstance(x, ShapeDtypeStruct) for n in x.shape
            if isinstance(n, Dim)]  # fmt: skip
    scopes = {id(d.scope): d.scope for d in dims}
    if len(scopes) > 1:
        raise ExportError(
            f"export: the sizes {dims} are of different scopes: give symbolic_shape the same scope="
        )
    scope = next(iter(scopes.values())) or SymbolicScope()
    symbols = sorted({name for d in dims for name in d.symbols})
    tried = points(symbols, scope, dims)
    if len(tried) < len(monomials(symbols)):
        raise ExportError(
            f"export: too few sizes of {', '.join(symbols)} meet the constraints {scope}: at least "
            f"{len(monomials(symbols))} that depend on each other by no equation are traced"
        )
    unknown = set(symbols) - solve([(d, d.at(tried[0])) for d in dims]).keys()
    if unknown:
        raise ExportError(
            f"export: {', '.join(sorted(unknown))} doesn't follow from the sizes {dims}: each "
            "symbol needs a size in which it alone is unknown, and of degree one"
        )
    contents = []
    for sizes in tried:
        given, named = treedef.unflatten([_at_sizes(x, sizes) for x in leaves])
        contents.append(write(trace(*given, **named)))
    return _unified(contents, symbols, tried, scope)


def _at_sizes(x: Any, sizes: Sizes) -> Any:
    if not isinstance(x, ShapeDtypeStruct):
        return x
    shape = [n.at(sizes) if isinstance(n, Dim) else n for n in x.shape]
    return ShapeDtypeStruct(shape, x.dtype, weak_type=x.weak_type, sharding=x.sharding)


def _unified(
    contents: Sequence[Content], symbols: Sequence[str], tried: Sequence[Sizes],
    scope: SymbolicScope,
) -> Content:  # fmt: skip
    first = contents[0]
    name = first.signature.name
    for c in contents[1:]:
        same = c.weights.keys() == first.weights.keys() and all(
            x.dtype == first.weights[k].dtype and np.array_equal(x, first.weights[k])
            for k, x in c.weights.items()
        )
        if not same:
            raise ExportError(
                f"export of {name}: it captures arrays that depend on the sizes of its arguments: "
                "compute them inside, with funcgrad.numpy"
            )
    unifier = Unifier(symbols, tried)
    try:
        signature = unifier.join([c.signature.to_json() for c in contents])
        tables = unifier.join([c.tables for c in contents])
    except Differ as e:
        at = f" in {e.where}" if e.where else ""
        raise ExportError(
            f"export of {name}: there is no one program for all sizes{at}: {e.what}. Programs were "
            f"traced at {', '.join(map(str, tried[:3]))}, …; export it for each size that is needed"
        ) from None
    parsed = Signature.parse(signature | {"constraints": list(scope.constraints)})
    return Content(replace(parsed, example=tuple(tried[0].items())), tables, first.weights)
