"""The op that says how a value is cut over a mesh: an identity that partitioning reads."""

from __future__ import annotations

from typing import Any

from funcgrad import tree
from funcgrad.core import backend, context
from funcgrad.core import dims as dims_
from funcgrad.core.aval import ShapedArray
from funcgrad.core.ir import Jaxpr, sub_jaxprs
from funcgrad.core.primitive import Primitive
from funcgrad.core.sharding import (
    Device,
    Mesh,
    NamedSharding,
    PartitionSpec,
    SingleDeviceSharding,
)
from funcgrad.core.trace import aval_of
from funcgrad.errors import ArgumentError


def _abstract(x: ShapedArray, *, sharding: NamedSharding) -> ShapedArray:
    sharding.cuts(x.shape, f"with_sharding_constraint: {x}")
    return x


def _batch(axis: Any, args: Any, dims: Any, *, sharding: NamedSharding) -> tuple:
    (x,), (d,) = args, dims
    entries = list(sharding.spec.entries)
    if axis.spmd:
        entries += [None] * (d - len(entries))
        entries.insert(d, axis.spmd)
    elif d < len(entries):
        entries.insert(d, None)
    spec = PartitionSpec(*entries)
    return sharding_constraint_p.bind(x, sharding=_with_spec(sharding, spec)), d


def _with_spec(sharding: NamedSharding, spec: PartitionSpec) -> NamedSharding:
    return NamedSharding(sharding.mesh, spec, sharding.regather)


# Its tangents and cotangents are cut as the value is.
sharding_constraint_p: Primitive = Primitive(
    name="sharding_constraint",
    abstract=_abstract,
    impl=lambda xp, x, *, sharding: x,
    jvp=lambda primals, tangents, *, sharding: (
        sharding_constraint_p.bind(*primals, sharding=sharding),
        sharding_constraint_p.bind(*tangents, sharding=sharding),
    ),
    transpose=lambda ct, x, *, sharding: [sharding_constraint_p.bind(ct, sharding=sharding)],
    batch=_batch,
    dims=lambda x, *, sharding: dims_.pointwise(x),
)


def cut_as_said(x: Any, out_sharding: NamedSharding | PartitionSpec | None) -> Any:
    """A function's result, cut as its `out_sharding=` says: a sharding, or a spec of the context's
    mesh."""
    if out_sharding is None:
        return x
    if not isinstance(out_sharding, NamedSharding | PartitionSpec):
        raise ArgumentError(
            "out_sharding must be a NamedSharding, or a PartitionSpec of the mesh that set_mesh "
            f"sets, got {out_sharding!r}"
        )
    return backend.door("devices").reshard(x, out_sharding)


def jaxpr_meshes(jaxpr: Jaxpr) -> frozenset[Mesh]:
    """The meshes that a program's annotations and per-device parts name."""

    def find() -> frozenset[Mesh]:
        found: set[Mesh] = set()
        for eqn in jaxpr.eqns:
            for p in eqn.params.values():
                if isinstance(p, Mesh):
                    found.add(p)
                elif isinstance(p, NamedSharding):
                    found.add(p.mesh)
            for sub in sub_jaxprs(eqn):
                found |= jaxpr_meshes(sub)
        return frozenset(found)

    return jaxpr.derive("meshes", find)


def constrain(what: str, x: Any, shardings: Any) -> Any:
    """x (a pytree of traced values) with constraints: a `NamedSharding`, or a pytree of them whose
    structure is a prefix of x's (None says nothing; specs are of the context's mesh). `what` names
    the shardings in errors."""
    leaves, treedef = tree.flatten(x)
    each = check_shardings(what, x, shardings)
    return treedef.unflatten(
        [
            sharding_constraint_p.bind(v, sharding=s) if isinstance(s, NamedSharding) else v
            for v, s in zip(leaves, each, strict=True)
        ]
    )


def check_shardings(what: str, x: Any, shardings: Any) -> list:
    """A sharding (or None) for each leaf of x, from a prefix of its tree; each fits its leaf."""
    if isinstance(shardings, NamedSharding | SingleDeviceSharding | Device | PartitionSpec | None):
        each = [shardings] * len(tree.leaves(x))
    else:
        each = tree.flatten_axes(f"the shardings of {what}", tree.structure(x), shardings)
    mesh = context.current().mesh
    if mesh is not None:
        each = [NamedSharding(mesh, s) if isinstance(s, PartitionSpec) else s for s in each]
    for (path, leaf), s in zip(tree.leaves_with_path(x), each, strict=True):
        if isinstance(s, NamedSharding):
            s.cuts(aval_of(leaf).shape, f"{what}: the array{tree.keystr(path)}")
        elif not isinstance(s, SingleDeviceSharding | Device | None):
            raise TypeError(
                f"{what}: a sharding must be a NamedSharding (a spec with its mesh), got {s!r}; "
                "write NamedSharding(mesh, P(...)), or set the mesh, with set_mesh(mesh)"
            )
    return each
