"""Recipes: what other stacks build as wrappers of models are trees of shardings here.

Each function gives a `NamedSharding` for each leaf of a tree; `device_put(tree, shardings)` and
`jit(..., out_shardings=…)` do the rest. With a batch cut over "data":

- DDP: everything `replicated`.
- ZeRO-1: the optimizer's state `fsdp`, parameters `replicated`; ZeRO-2: gradients too, by
  `with_sharding_constraint`; ZeRO-3 (FSDP): parameters and state `fsdp`.
- HSDP: `fsdp` over one axis of a mesh ("replica", "shard"), the batch cut over both.
- Tensor parallelism: `by_path` with a rule for each kind of weight; `fsdp(…, given=…)` on top.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from typing import Any

from funcgrad import tree
from funcgrad.core.sharding import Mesh, NamedSharding, P, PartitionSpec
from funcgrad.core.trace import aval_of
from funcgrad.errors import ShardingError

# Below as many elements a leaf is not worth a collective: norms, biases, scalars.
MIN_SIZE = 2048


def replicated(x: Any, mesh: Mesh) -> Any:
    """For each leaf of x: whole on every device.

    >>> import funcgrad as fg, funcgrad.numpy as fnp
    >>> from funcgrad.parallel import replicated
    >>> replicated({"w": fnp.ones((4, 4))}, fg.make_mesh(2, "data"))["w"].spec
    P()
    """
    return tree.map(lambda _: NamedSharding(mesh, P()), x)


def fsdp(
    x: Any,
    mesh: Mesh,
    axis: str | tuple[str, ...] = "data",
    *,
    min_size: int = MIN_SIZE,
    given: Any = None,
) -> Any:
    """For each leaf of x: cut over a mesh axis along its longest axis that this divides.

    Leaves of fewer than `min_size` elements, and those that no axis of theirs can be cut, stay as
    they are. Programs gather such an array anew wherever they need it (`regather`), so that only a
    part of it stays on a device.

    axis: the mesh axis, or several at once
    given: shardings of x that are cut already, over other mesh axes (tensor parallelism)

    >>> import funcgrad as fg, funcgrad.numpy as fnp
    >>> from funcgrad.parallel import fsdp
    >>> params = {"w": fnp.ones((64, 256)), "b": fnp.ones(256)}
    >>> [s.spec for s in fg.tree.leaves(fsdp(params, fg.make_mesh(4, "data")))]
    [P(), P(None, 'data')]
    """
    over = (axis,) if isinstance(axis, str) else tuple(axis)
    for a in over:
        if a not in mesh.axis_names:
            raise ShardingError(f"fsdp: axis={a!r} is no axis of {mesh}")

    def cut(leaf: Any, base: NamedSharding | None) -> NamedSharding:
        return _cut_further(aval_of(leaf).shape, mesh, over, min_size, base)

    if given is None:
        return tree.map(lambda leaf: cut(leaf, None), x)
    return tree.map(cut, x, given)


def _cut_further(
    shape: tuple[int, ...],
    mesh: Mesh,
    over: tuple[str, ...],
    min_size: int,
    base: NamedSharding | None,
) -> NamedSharding:
    cuts = list((base.spec if base is not None else P()).cuts(len(shape)))
    parts, size = mesh.extent(over), 1
    for n in shape:
        size *= n
    free = [i for i, n in enumerate(shape) if not cuts[i] and n % parts == 0 and n > 0]
    if size < min_size or not free:
        return base if base is not None else NamedSharding(mesh, P())
    longest = max(free, key=lambda i: shape[i])
    cuts[longest] = over
    return NamedSharding(mesh, PartitionSpec.of(tuple(cuts)), regather=True)


def by_path(x: Any, mesh: Mesh, rules: Mapping[str, PartitionSpec]) -> Any:
    """For each leaf of x: the spec of the first rule whose pattern fits its key path, or whole.

    rules: patterns as of `fnmatch` over key paths (`['blocks'][0]['up']`; `*up*` matches it)

    >>> import funcgrad as fg, funcgrad.numpy as fnp
    >>> from funcgrad.parallel import by_path
    >>> params = {"up": fnp.ones((4, 8)), "down": fnp.ones((8, 4))}
    >>> rules = {"*up*": fg.P(None, "tp"), "*down*": fg.P("tp", None)}
    >>> [s.spec for s in fg.tree.leaves(by_path(params, fg.make_mesh(2, "tp"), rules))]
    [P('tp', None), P(None, 'tp')]
    """

    def find(path: Any, leaf: Any) -> NamedSharding:
        name = tree.keystr(path)
        for pattern, spec in rules.items():
            # Brackets are part of key paths, not sets of characters.
            if fnmatch.fnmatchcase(name, pattern.replace("[", "[[]")):
                sharding = NamedSharding(mesh, spec)
                sharding.cuts(aval_of(leaf).shape, f"by_path: the array{name}")
                return sharding
        return NamedSharding(mesh, P())

    return tree.map_with_path(find, x)
