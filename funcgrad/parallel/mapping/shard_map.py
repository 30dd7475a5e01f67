"""shard_map: a function of the parts of arrays that each device of a mesh holds.

The function is traced once, with the shapes of parts, under the mesh's axis names. What varies from
device to device is followed through it, so that results which the specs call equal on all devices
are known to be, and derivatives are those of the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from funcgrad import tree
from funcgrad.core import context
from funcgrad.core.aval import ShapedArray
from funcgrad.core.backend import explicit, spmd
from funcgrad.core.display.tracebacks import boundary
from funcgrad.core.ir import Jaxpr
from funcgrad.core.sharding import Cuts, Mesh, NamedSharding, PartitionSpec
from funcgrad.core.staging import stage
from funcgrad.core.trace import Tracer, aval_of
from funcgrad.errors import ShardingError
from funcgrad.ops.collective.varying import assume_invariant_p
from funcgrad.parallel.mapping.primitive import alone, cut_axes, inside, local_aval, shard_map_p
from funcgrad.parallel.mapping.varying import annotate
from funcgrad.parallel.mapping.varying_pass import listed, with_excess
from funcgrad.parallel.programs.passes import gathers_once
from funcgrad.transforms.arguments import (
    FlatFunction,
    avals_of,
    check_leaves,
    leaf_names,
    name_of,
    wraps,
)


def shard_map(
    f: Callable | None = None,
    *,
    mesh: Mesh | None = None,
    in_specs: Any = ...,
    out_specs: Any,
    axis_names: Iterable[str] | None = None,
    check_vma: bool = True,
) -> Callable:
    """`f` run by each device of a mesh on its parts of the arguments.

    in_specs: how arguments are cut, a `PartitionSpec` or a pytree of them whose structure is a
    prefix of the tuple of arguments; what a spec doesn't name, each device gets whole. Over a mesh
    whose axes are Explicit it may be left out: arguments' types say it. out_specs likewise: how the
    devices' results are put together; what a spec doesn't name must be the same on all devices.
    mesh: by default that of the context (`set_mesh`), or of the arguments. axis_names: the mesh
    axes over which f sees parts and may use collectives (all by default); over the others, arrays
    stay whole for f and the compiler cuts them. Works as a decorator, too.

    With check_vma, results that may differ between devices, though their spec says they don't, are
    an error while tracing; without it, the user vouches for it.

    >>> import funcgrad as fg, funcgrad.numpy as fnp
    >>> from funcgrad.parallel import P, make_mesh
    >>> from funcgrad.parallel import shard_map
    >>> mesh = make_mesh((4,), "data")
    >>> total = shard_map(
    ...     lambda x: fg.lax.psum(fnp.sum(x), "data"), mesh=mesh, in_specs=P("data"), out_specs=P()
    ... )
    >>> float(total(fnp.arange(8.0)))
    28.0
    """
    if f is None:
        return lambda g: shard_map(
            g, mesh=mesh, in_specs=in_specs, out_specs=out_specs, axis_names=axis_names,
            check_vma=check_vma,
        )  # fmt: skip
    if not callable(f):
        raise TypeError(f"shard_map: the first argument must be a function, got {f!r}")
    if mesh is not None and not isinstance(mesh, Mesh):
        raise TypeError(f"shard_map of {name_of(f)}: mesh must be a Mesh, got {mesh!r}")
    names = None if axis_names is None else frozenset(axis_names)
    specs = _Specs(tuple(in_specs) if isinstance(in_specs, list) else in_specs, out_specs)
    programs: dict[Any, _Program] = {}

    @wraps(f, "shard_map")
    @boundary
    def mapped(*args: Any) -> Any:
        check_leaves("shard_map", f, args, {})
        leaves, in_tree = tree.flatten((args, {}))
        here = mesh or context.current().mesh or _mesh_of(f, leaves)
        given = specs if in_specs is not ... else _Specs(_inferred(f, here, args), out_specs)
        types = tuple((a.shape, a.dtype, a.weak_type) for a in avals_of(leaves))
        key = (here, in_tree, types, tuple(tree.leaves(given.ins)), context.current().static_key())
        program = programs.get(key)
        if program is None:
            program = _trace(f, args, given, here, names, check_vma)
            # A program that captured a tracer is good for this call only.
            if not any(isinstance(c, Tracer) for c in program.consts):
                programs[key] = program
        return program.out_tree.unflatten(_call(program, [*program.consts, *leaves], f))

    return mapped


class _Specs(NamedTuple):
    """What the user says of arguments and results."""

    ins: Any
    outs: Any


class _Program(NamedTuple):
    """A traced call: the parameters of `shard_map_p`, the arrays it captured, its result's
    structure."""

    params: dict
    consts: list
    out_tree: Any


def _mesh_of(f: Callable, leaves: Sequence[Any]) -> Mesh:
    found = {s.mesh for x in leaves if isinstance(s := getattr(x, "sharding", None), NamedSharding)}
    if len(found) != 1:
        raise ShardingError(
            f"shard_map of {name_of(f)}: mesh= is needed, as the arguments are on "
            f"{'no mesh' if not found else 'several: ' + ', '.join(map(str, found))}"
        )
    return found.pop()


def _inferred(f: Callable, mesh: Mesh, args: tuple) -> Any:
    """How arguments are cut, as their types say."""
    what = f"shard_map of {name_of(f)}"
    if mesh.auto_axes:
        raise ShardingError(
            f"{what}: in_specs= is needed: it follows from the arguments over Explicit axes alone, "
            f"and {listed(mesh.auto_axes)} of {mesh} isn't (make_mesh(..., axis_types=))"
        )

    def spec(x: Any) -> PartitionSpec:
        found = explicit().sharding_of(x)
        if found is None and isinstance(x, Tracer):
            raise ShardingError(f"{what}: in_specs= is needed: how {x.aval} is cut isn't known")
        return PartitionSpec() if found is None else found.spec

    return tree.map(spec, args)


def _call(program: _Program, operands: list, f: Callable) -> list:
    ctx = context.current()
    if ctx.trace is context.ROOT.trace and not any(isinstance(x, Tracer) for x in operands):
        jaxpr = alone(avals_of(operands), program.params)
        cut = [getattr(x, "sharding", None) for x in operands]
        shardings = [s if isinstance(s, NamedSharding) else None for s in cut]
        name = f"shard_map({name_of(f)})"
        run = spmd().executable(jaxpr, shardings, (False,) * len(operands), name)
        return run(operands)
    return shard_map_p.bind(*operands, **program.params)


# ---- tracing


def _trace(
    f: Callable, args: tuple, specs: _Specs, mesh: Mesh, names: frozenset | None, check: bool
) -> _Program:
    what = f"shard_map of {name_of(f)}"
    manual = _manual(what, mesh, names)
    leaves, in_tree = tree.flatten((args, {}))
    arguments = leaf_names(f, args, {})
    in_specs = _flat_specs(f"{what}: in_specs", specs.ins, args, arguments)
    avals = avals_of(leaves)
    in_cuts = [
        _cuts(what, f"argument {name}", aval, spec, mesh, manual)
        for name, aval, spec in zip(arguments, avals, in_specs, strict=True)
    ]
    local = [local_aval(a, mesh, c) for a, c in zip(avals, in_cuts, strict=True)]
    flat = FlatFunction("shard_map", f, in_tree)
    with inside(mesh, manual, check):
        traced, consts = stage(flat, local, f"shard_map({name_of(f)})", arguments)
        jaxpr = gathers_once(traced)
        captured = [((),) * aval_of(c).ndim for c in consts]
        cuts = (*captured, *in_cuts)
        results, out_cuts = _out_cuts(what, flat.out_tree, jaxpr, specs.outs, mesh, manual)
        body = _checked(what, jaxpr, cuts, out_cuts, results, manual, check)
    params = {"jaxpr": body, "mesh": mesh, "in_cuts": cuts, "out_cuts": tuple(out_cuts),
              "manual": manual}  # fmt: skip
    return _Program(params, consts, flat.out_tree)


def _manual(what: str, mesh: Mesh, names: frozenset | None) -> tuple[str, ...]:
    """The mesh axes that the function sees, in the mesh's order."""
    taken = frozenset(context.current().manual)
    if names is None:
        # A shard_map inside of another one is over the axes that are left.
        names = frozenset(mesh.axis_names) - taken
    if names & taken:
        raise ShardingError(
            f"{what}: the mesh axis {listed(names & taken)} is that of a shard_map around it; "
            f"axis_names may be of {listed(frozenset(mesh.axis_names) - taken) or 'none'}"
        )
    unknown = names - frozenset(mesh.axis_names)
    if unknown or not names:
        raise ShardingError(
            f"{what}: axis_names must be axes of {mesh}, got {listed(names) or 'none'}"
        )
    return tuple(a for a in mesh.axis_names if a in names)


def _flat_specs(what: str, specs: Any, described: tuple, names: Sequence[str]) -> list:
    """A spec for each leaf of the arguments."""
    if isinstance(specs, tuple) and len(specs) != len(described):
        raise ShardingError(
            f"{what} has {len(specs)} entries, but the function was called with {len(described)} "
            "arguments"
        )
    each = tree.flatten_axes(what, tree.structure(described), specs)
    for name, spec in zip(names, each, strict=True):
        _check_spec(what, f"argument {name}", spec)
    return each


def _check_spec(what: str, described: str, spec: Any) -> None:
    if not isinstance(spec, PartitionSpec):
        raise TypeError(
            f"{what}: the spec of {described} must be a PartitionSpec (P() for a whole array), got "
            f"{spec!r}"
        )


def _cuts(
    what: str, described: str, aval: ShapedArray, spec: PartitionSpec, mesh: Mesh,
    manual: Sequence[str], result: bool = False,
) -> Cuts:  # fmt: skip
    """A spec written out, after checks that it fits its array."""
    if len(spec) > aval.ndim:
        raise ShardingError(
            f"{what}: {described} of shape {aval.shape} has {aval.ndim} axes, but its spec {spec} "
            f"has {len(spec)} entries"
        )
    named = spec.axes()
    for a in named:
        if a not in manual:
            why = "no axis of it" if a not in mesh.axis_names else "not among axis_names"
            raise ShardingError(
                f"{what}: the spec {spec} of {described} names {a!r}, which is {why}: {mesh}"
            )
    if len(set(named)) != len(named):
        raise ShardingError(f"{what}: the spec {spec} of {described} names a mesh axis twice")
    cuts = spec.cuts(aval.ndim)
    for i, (n, axes) in enumerate(zip(aval.shape, cuts, strict=True)):
        parts = mesh.extent(axes)
        if n % parts and not result:
            over = " × ".join(f"{a!r} ({mesh.shape[a]})" for a in axes)
            raise ShardingError(
                f"{what}: axis {i} of {described}, of size {n}, can't be cut into {parts} equal "
                f"parts over the mesh axis {over}: shape {aval.shape}, {spec}. Pad it to a "
                f"multiple of {parts}, cut another axis, or pass it whole"
            )
    return cuts


def _out_cuts(
    what: str, out_tree: Any, jaxpr: Jaxpr, specs: Any, mesh: Mesh, manual: Sequence[str]
) -> tuple[list[str], list[Cuts]]:
    """The results' names for errors, and how they are put together."""
    each = tree.flatten_axes(f"{what}: out_specs", out_tree, specs)
    placeholder = out_tree.unflatten(range(len(each)))
    names = [f"result{tree.keystr(path)}" for path, _ in tree.leaves_with_path(placeholder)]
    cuts = []
    for name, aval, spec in zip(names, jaxpr.out_avals, each, strict=True):
        _check_spec(f"{what}: out_specs", f"the {name}", spec)
        cuts.append(_cuts(what, f"the {name}", aval, spec, mesh, manual, result=True))
    return names, cuts


def _checked(
    what: str, jaxpr: Jaxpr, in_cuts: Sequence[Cuts], out_cuts: Sequence[Cuts],
    results: Sequence[str], manual: Sequence[str], check: bool,
) -> Jaxpr:  # fmt: skip
    """The body annotated with what varies; what the specs of results say is verified, or
    believed."""
    ins = [cut_axes(c) for c in in_cuts]
    outs = [cut_axes(c) for c in out_cuts]
    found = annotate(jaxpr, ins, manual, outs)
    over = [v - o for v, o in zip(found.varying, outs, strict=True)]
    if not any(over):
        return found.jaxpr
    if check:
        i = next(i for i, axes in enumerate(over) if axes)
        spec = PartitionSpec.of(out_cuts[i])
        raise ShardingError(
            f"{what}: the {results[i]}, {jaxpr.out_avals[i]} on each device, varies over the mesh "
            f"axis {listed(over[i])}, but its out_spec {spec} says it is the same along it. Make "
            f"it so (psum or pmean over {listed(over[i])}), or name the axis in out_specs to put "
            "the devices' results side by side; check_vma=False turns this check off"
        )
    return annotate(with_excess(jaxpr, over, manual, assume_invariant_p), ins, manual, outs).jaxpr
