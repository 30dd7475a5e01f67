"""Many devices by annotation: meshes, shardings, per-device programs, collectives.

>>> import funcgrad.numpy as fnp
>>> from funcgrad.parallel import NamedSharding, P, make_mesh
>>> NamedSharding(make_mesh((2,), "data"), P("data")).shard_shape((4, 3))
(2, 3)

- `meshes`: the devices there are, and meshes of them
- `arrays`: arrays onto meshes, and from one sharding to another
- `axis_types`: functions in which mesh axes are of another type
- `planning`: sizes of a mesh's axes for a model, on paper, and why
- `pipelines`: layers over devices: a pipeline of stages through which microbatches flow
- `steps`: gradients of several microbatches reduced once; steps between two exchanges
- `recipes`: what other stacks build as wrappers of models, as trees of shardings
- `communicators`: what joins devices: exchanges over memory and MPI, and who watches them
- `products`: matrix products with their gather or scatter, round a ring
- `attention`: attention of sequences that are cut: rings of keys, heads for places
- `experts`: mixtures of experts, spread over devices
- `programs`: per-device programs and passes over them
- `mapping`: functions of parts: `shard_map`, and what varies from device to device
- `partitioner`: from a program of whole arrays to the one that each device runs
- `runtimes`: devices in lockstep in one process, or ranks of a job
- `launch`: how a job ends, and what it leaves behind
- `run`: `python -m funcgrad.parallel.run`: a failure on one rank ends all
- `supervise`: `python -m funcgrad.parallel.supervise`: a job is started again when it fails
- `show`: sharded arrays for people
"""

from funcgrad.core.places.sharded import ShardedArray
from funcgrad.core.sharding import (
    AbstractMesh,
    AxisType,
    Device,
    Mesh,
    NamedSharding,
    P,
    PartitionSpec,
)
from funcgrad.parallel.arrays import (
    device_put,
    make_array_from_callback,
    make_array_from_process_local_data,
    make_array_from_single_device_arrays,
    reshard,
    with_sharding_constraint,
)
from funcgrad.parallel.attention.ring import ring_attention
from funcgrad.parallel.attention.ulysses import hybrid_attention, ulysses_attention
from funcgrad.parallel.attention.ways import sequence_attention
from funcgrad.parallel.attention.zigzag import unzigzag, zigzag
from funcgrad.parallel.experts.moe import expert_mlp, moe
from funcgrad.parallel.experts.routing import MoeStats, moe_bias_update
from funcgrad.parallel.launch.hooks import install as _install
from funcgrad.parallel.mapping.pmap import pmap
from funcgrad.parallel.mapping.shard_map import shard_map
from funcgrad.parallel.mapping.smap import smap
from funcgrad.parallel.meshes import (
    default_backend,
    default_device,
    device_count,
    devices,
    local_device_count,
    local_devices,
    make_mesh,
    print_environment_info,
    process_count,
    process_index,
    process_indices,
    virtual_devices,
)
from funcgrad.parallel.partitioner.analysis import Analysis
from funcgrad.parallel.pipelines.packing import PackedStages, pack_stages
from funcgrad.parallel.pipelines.run import pipeline
from funcgrad.parallel.pipelines.train import pipeline_value_and_grad
from funcgrad.parallel.planning import Cluster, ModelShape, Plan, plan
from funcgrad.parallel.products import all_gather_matmul, matmul_reduce_scatter, tensor_products
from funcgrad.parallel.recipes import by_path, fsdp, replicated
from funcgrad.parallel.show import visualize_sharding
from funcgrad.parallel.steps import LocalState, LocalSteps, accumulate_gradients, local_steps

_install()

__all__ = [
    "AbstractMesh", "Analysis", "AxisType", "Device", "Mesh", "NamedSharding", "P",
    "PartitionSpec", "ShardedArray",
    "by_path", "fsdp", "replicated",
    "device_put", "make_array_from_callback", "make_array_from_process_local_data",
    "make_array_from_single_device_arrays", "pmap", "reshard", "shard_map", "smap",
    "visualize_sharding",
    "with_sharding_constraint",
    "all_gather_matmul", "matmul_reduce_scatter", "tensor_products",
    "MoeStats", "expert_mlp", "moe", "moe_bias_update",
    "hybrid_attention", "ring_attention", "sequence_attention", "ulysses_attention",
    "unzigzag", "zigzag",
    "default_backend", "default_device", "device_count", "devices",
    "local_device_count", "local_devices", "make_mesh", "print_environment_info", "process_count",
    "process_index", "process_indices", "virtual_devices",
    "Cluster", "LocalState", "LocalSteps", "ModelShape", "PackedStages", "Plan",
    "accumulate_gradients", "local_steps", "pack_stages", "pipeline", "pipeline_value_and_grad",
    "plan",
]  # fmt: skip
