"""Many devices by annotation: meshes, shardings, per-device programs, collectives.

>>> import funcgrad.numpy as fnp
>>> from funcgrad.parallel import NamedSharding, P, make_mesh
>>> NamedSharding(make_mesh((2,), "data"), P("data")).shard_shape((4, 3))
(2, 3)
"""

from funcgrad.core.sharding import (
    AbstractMesh,
    Device,
    Mesh,
    NamedSharding,
    P,
    PartitionSpec,
)
from funcgrad.parallel.devices import (
    devices,
    make_mesh,
    process_count,
    process_index,
    virtual_devices,
)

__all__ = [
    "AbstractMesh", "Device", "Mesh", "NamedSharding", "P", "PartitionSpec",
    "devices", "make_mesh", "process_count", "process_index", "virtual_devices",
]  # fmt: skip
