"""Arrays onto meshes and from one sharding to another."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from funcgrad import tree
from funcgrad.backends.late import Late
from funcgrad.core import context
from funcgrad.core.array import Array, raw
from funcgrad.core.aval import ShapedArray
from funcgrad.core.places.device_array import on_device
from funcgrad.core.places.sharded import ShardedArray
from funcgrad.core.places.transfers import explicitly
from funcgrad.core.sharding import NamedSharding
from funcgrad.core.trace import Tracer, aval_of
from funcgrad.errors import ShapeError, ShardingError
from funcgrad.ops.sharding import check_shardings, sharding_constraint_p
from funcgrad.parallel.meshes import process_index
from funcgrad.parallel.runtimes.spmd import put, runtime
from funcgrad.transforms.arguments import as_array

cuda = Late("funcgrad.backends.cuda.devices.memory")


def device_put(x: Any, device: Any = None) -> Any:
    """x (a pytree) on devices: cut over a mesh by a `NamedSharding`, or whole, on a `Device`; where
    `device` is None, as it is.

    device: a sharding or a device, or a pytree of these whose structure is a prefix of x's; a text
        names a device: "cpu", "cuda:0"
    Raises ShardingError where a mesh axis doesn't divide the array's, and CudaError, which says
    what is missing, for a GPU that isn't there. Under a transformation it says how the value is to
    be cut, as `with_sharding_constraint` does.

    >>> import funcgrad as fg, funcgrad.numpy as fnp
    >>> mesh = fg.make_mesh((2,), "data")
    >>> fg.device_put(fnp.arange(4), fg.NamedSharding(mesh, fg.P("data")))
    ShardedArray([0, 1, 2, 3], dtype=int32, P('data') on Mesh('data': 2))
    """
    if isinstance(device, str):
        device = cuda.device_named("device_put", device)
    with explicitly():
        return _map("device_put", _put, x, device)


def reshard(x: Any, sharding: Any) -> Any:
    """x (a pytree) cut anew, by the smallest collective that does it.

    >>> import funcgrad as fg, funcgrad.numpy as fnp
    >>> from funcgrad.parallel import reshard
    >>> mesh = fg.make_mesh((2,), "data")
    >>> x = fg.device_put(fnp.arange(4.0), fg.NamedSharding(mesh, fg.P("data")))
    >>> reshard(x, fg.NamedSharding(mesh, fg.P())).is_fully_replicated
    True
    """
    with explicitly():
        return _map("reshard", _put, x, sharding)


def with_sharding_constraint(x: Any, shardings: Any) -> Any:
    """x (a pytree), of which a program under `jit` is told how it is to be cut there.

    shardings: a `NamedSharding`, or a pytree of them (None: nothing is said) whose structure is a
        prefix of x's. Its derivative and batched forms say the same of their values.

    >>> import funcgrad as fg, funcgrad.numpy as fnp
    >>> from funcgrad.parallel import with_sharding_constraint
    >>> cut = fg.NamedSharding(fg.make_mesh((2,), "data"), fg.P("data"))
    >>> fg.jit(lambda x: with_sharding_constraint(x * 2, cut))(fnp.ones(4)).sharding.spec
    P('data')
    """
    return _map("with_sharding_constraint", _constrain, x, shardings)


def _map(what: str, one: Callable, x: Any, shardings: Any) -> Any:
    leaves, treedef = tree.flatten(x)
    each = check_shardings(what, x, shardings)
    return treedef.unflatten([one(v, s) for v, s in zip(leaves, each, strict=True)])


def _traced(x: Any) -> bool:
    return isinstance(x, Tracer) or context.current().trace is not context.ROOT.trace


def _constrain(x: Any, sharding: Any) -> Any:
    if not isinstance(sharding, NamedSharding):
        return x
    if _traced(x):
        return sharding_constraint_p.bind(x, sharding=sharding)
    return _put(x, sharding)


def _put(x: Any, sharding: Any) -> Any:
    if _traced(x):
        return _constrain(x, sharding)
    if not isinstance(sharding, NamedSharding):
        x, device = as_array(x), getattr(sharding, "device", sharding)
        return on_device(x, device) if device is not None and isinstance(x, Array) else x
    if type(x) is not ShardedArray:
        return put(x, sharding)
    if x.sharding == sharding:
        return x
    if x.sharding.mesh.same_grid(sharding.mesh):
        return sharding_constraint_p.bind(x, sharding=sharding)
    return put(x.value, sharding)


def make_array_from_callback(
    shape: Sequence[int],
    sharding: NamedSharding,
    data_callback: Callable[[tuple[slice, ...]], Any],
    dtype: Any = None,
) -> ShardedArray:
    """An array of which each process makes only its own parts.

    data_callback(index) gives the part that stands at `index`, a tuple of slices; it is called once
    for each part that this process holds.

    >>> import funcgrad as fg, numpy as np
    >>> from funcgrad.parallel import make_array_from_callback
    >>> data = np.arange(8.0, dtype="float32")
    >>> cut = fg.NamedSharding(fg.make_mesh((2,), "data"), fg.P("data"))
    >>> make_array_from_callback((8,), cut, lambda index: data[index]).shape
    (8,)
    """
    shape = tuple(int(n) for n in shape)
    sharding.cuts(shape, "make_array_from_callback: the array")
    made: list[ShapedArray] = []

    def part(index: tuple[slice, ...]) -> np.ndarray:
        piece = np.asarray(raw(as_array(data_callback(index))), dtype=dtype)
        want = tuple(s.stop - s.start for s in index)
        if piece.shape != want:
            raise ShapeError(
                f"make_array_from_callback: the part at {index} must have shape {want}, the "
                f"callback gave {piece.shape}"
            )
        made.append(aval_of(piece))
        return piece

    kept = runtime(sharding.mesh).make(shape, sharding, part)
    return ShardedArray(kept, ShapedArray(shape, made[0].dtype), sharding)


def make_array_from_single_device_arrays(
    shape: Sequence[int], sharding: NamedSharding, arrays: Sequence[Any], *, dtype: Any = None
) -> ShardedArray:
    """An array of the parts that this process's devices hold, in the order of the mesh.

    >>> import funcgrad as fg, funcgrad.numpy as fnp
    >>> from funcgrad.parallel import make_array_from_single_device_arrays
    >>> cut = fg.NamedSharding(fg.make_mesh((2,), "data"), fg.P("data"))
    >>> print(make_array_from_single_device_arrays((4,), cut, [fnp.zeros(2), fnp.ones(2)]))
    [0. 0. 1. 1.]
    """
    found = sharding.devices_indices_map(shape)
    mine = [index for d, index in found.items() if d.process_index == process_index()]
    if len(arrays) != len(mine):
        raise ShardingError(
            f"make_array_from_single_device_arrays: this process has {len(mine)} devices of the "
            f"mesh, so that many arrays are needed, got {len(arrays)}"
        )
    parts = {_bounds(index): a for index, a in zip(mine, arrays, strict=True)}
    return make_array_from_callback(shape, sharding, lambda i: parts[_bounds(i)], dtype)


def make_array_from_process_local_data(
    sharding: NamedSharding, local_data: Any, global_shape: Sequence[int] | None = None
) -> ShardedArray:
    """An array of which each process gives the part that its devices hold, as one array.

    global_shape: the whole's; by default what follows from the part's, if along each axis all
        processes have equally much. An axis of which the part has all may be given as a whole by
        each process.

    >>> import funcgrad as fg, funcgrad.numpy as fnp
    >>> from funcgrad.parallel import make_array_from_process_local_data
    >>> cut = fg.NamedSharding(fg.make_mesh((2,), "data"), fg.P("data"))
    >>> make_array_from_process_local_data(cut, fnp.arange(4.0)).shape
    (4,)
    """
    local = np.asarray(raw(as_array(local_data)))
    blocks = [max(math.prod(sharding.mesh.shape[a] for a in axes), 1)
              for axes in sharding.spec.cuts(local.ndim)]  # fmt: skip
    # Of as many elements as there are blocks, a device has one: which blocks are this process's?
    places = sharding.devices_indices_map(tuple(blocks))
    mine = [index for d, index in places.items() if d.process_index == process_index()]
    covered = [len({(i[k].start, i[k].stop) for i in mine}) for k in range(local.ndim)]
    whole = tuple(n * b // c for n, b, c in zip(local.shape, blocks, covered, strict=True))
    if global_shape is not None and tuple(global_shape) not in (whole, local.shape):
        raise ShapeError(
            f"make_array_from_process_local_data: local_data of shape {local.shape} is a part of "
            f"an array of shape {whole}, or a whole one, but global_shape is {tuple(global_shape)}"
        )
    shape = whole if global_shape is None else tuple(global_shape)
    first = [min((i[k].start or 0) for i in mine) for k in range(local.ndim)]
    starts = [f * n // b for f, n, b in zip(first, shape, blocks, strict=True)]
    if shape == local.shape:
        starts = [0] * local.ndim

    def part(index: tuple[slice, ...]) -> np.ndarray:
        moved = [slice(i.start - s, i.stop - s) for i, s in zip(index, starts, strict=True)]
        return local[tuple(moved)]

    return make_array_from_callback(shape, sharding, part)


def _bounds(index: tuple[slice, ...]) -> tuple:
    return tuple((i.start, i.stop) for i in index)
