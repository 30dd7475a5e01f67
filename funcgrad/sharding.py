"""Meshes and shardings, by the names of `jax.sharding`; see `funcgrad.parallel`.

>>> import funcgrad as fg, funcgrad.numpy as fnp
>>> isinstance(fnp.zeros(2).sharding, fg.sharding.Sharding)
True
"""

from funcgrad.core.settings import get_abstract_mesh, get_mesh, set_mesh
from funcgrad.core.sharding import (
    AbstractMesh,
    AxisType,
    Mesh,
    NamedSharding,
    PartitionSpec,
    SingleDeviceSharding,
)
from funcgrad.parallel.arrays import reshard
from funcgrad.parallel.axis_types import auto_axes, explicit_axes

__all__ = [
    "AbstractMesh", "AxisType", "Mesh", "NamedSharding", "PartitionSpec", "Sharding",
    "SingleDeviceSharding", "auto_axes", "explicit_axes", "get_abstract_mesh",
    "get_mesh", "reshard", "set_mesh",
]  # fmt: skip

Sharding = NamedSharding | SingleDeviceSharding
