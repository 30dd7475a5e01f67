"""Many devices by annotation: meshes, shardings, per-device programs, collectives.

>>> import funcgrad.numpy as fnp
>>> from funcgrad.parallel import NamedSharding, P, make_mesh
>>> NamedSharding(make_mesh((2,), "data"), P("data")).shard_shape((4, 3))
(2, 3)
"""

from funcgrad.core.sharded import ShardedArray
from funcgrad.core.sharding import (
    AbstractMesh,
    Device,
    Mesh,
    NamedSharding,
    P,
    PartitionSpec,
)
from funcgrad.parallel.analysis import Analysis
from funcgrad.parallel.arrays import (
    device_put,
    make_array_from_callback,
    reshard,
    with_sharding_constraint,
)
from funcgrad.parallel.hooks import install as _install
from funcgrad.parallel.meshes import (
    devices,
    make_mesh,
    process_count,
    process_index,
    virtual_devices,
)
from funcgrad.parallel.recipes import by_path, fsdp, replicated
from funcgrad.parallel.shard_map import shard_map
from funcgrad.parallel.show import visualize_sharding

_install()

__all__ = [
    "AbstractMesh", "Analysis", "Device", "Mesh", "NamedSharding", "P", "PartitionSpec",
    "ShardedArray",
    "by_path", "fsdp", "replicated",
    "device_put", "make_array_from_callback", "reshard", "shard_map", "visualize_sharding",
    "with_sharding_constraint",
    "devices", "make_mesh", "process_count", "process_index", "virtual_devices",
]  # fmt: skip
