"""funcgrad: a functional array library. Write NumPy; differentiate, batch, compile, distribute it.

>>> import funcgrad as fg
>>> import funcgrad.numpy as fnp
>>> fg.grad(lambda x: fnp.sum(x**2))(fnp.array([1.0, 2.0, 3.0]))
Array([2., 4., 6.], dtype=float32)
"""

from typing import TYPE_CHECKING

from funcgrad import dtypes, errors, numpy, ops, tree
from funcgrad.core.array import Array
from funcgrad.core.caches import clear_caches
from funcgrad.core.process import lazy as _lazy
from funcgrad.core.refs import Ref
from funcgrad.core.settings import (
    check_tracer_leaks,
    debug_infs,
    debug_nans,
    default_dtype,
    disable_jit,
    enable_x64,
    ensure_compile_time_eval,
    explain_cache_misses,
    log_compiles,
    named_call,
    named_scope,
    numpy_dtype_promotion,
    numpy_rank_promotion,
    set_mesh,
    transfer_guard,
    transfer_guard_device_to_device,
    transfer_guard_device_to_host,
    transfer_guard_host_to_device,
)
from funcgrad.core.shapes import ShapeDtypeStruct
from funcgrad.ops.precision import default_matmul_precision

if TYPE_CHECKING:
    from funcgrad import (
        ad_checkpoint,
        adapters,
        custom_batching,
        custom_derivatives,
        debug,
        dlpack,
        experimental,
        export,
        extend,
        flatten_util,
        image,
        interop,
        io,
        lax,
        monitoring,
        nn,
        optim,
        parallel,
        profiler,
        quantization,
        random,
        recsys,
        ref,
        scipy,
        serve,
        sharding,
        sparse,
        stages,
        test_util,
        tree_util,
        typing,
    )
    from funcgrad.adapters import lora, lora_merge
    from funcgrad.backends.llvm.runtime.memory import memory_summary, release_memory
    from funcgrad.backends.llvm.runtime.pool import num_threads, set_num_threads
    from funcgrad.optim.loss_scale import scaled_value_and_grad
    from funcgrad.parallel import (
        AxisType,
        Device,
        NamedSharding,
        P,
        default_backend,
        default_device,
        device_count,
        device_put,
        devices,
        local_device_count,
        local_devices,
        make_array_from_callback,
        make_array_from_process_local_data,
        make_array_from_single_device_arrays,
        make_mesh,
        pmap,
        print_environment_info,
        process_count,
        process_index,
        process_indices,
        reshard,
        shard_map,
        smap,
        virtual_devices,
    )
    from funcgrad.quantization import qat, quantize
    from funcgrad.transforms.batching.vmap import vmap
    from funcgrad.transforms.callbacks import io_callback, pure_callback
    from funcgrad.transforms.derivatives.checkpoint import (
        checkpoint,
        checkpoint_name,
        checkpoint_policies,
        remat,
    )
    from funcgrad.transforms.derivatives.custom import closure_convert, custom_jvp, custom_vjp
    from funcgrad.transforms.derivatives.forms import custom_gradient, fwd_and_bwd
    from funcgrad.transforms.derivatives.grad import grad, value_and_grad
    from funcgrad.transforms.derivatives.jacobian import hessian, jacfwd, jacobian, jacrev
    from funcgrad.transforms.derivatives.linear import jvp, linear_transpose, linearize, vjp
    from funcgrad.transforms.host import block_until_ready, device_get, effects_barrier, live_arrays
    from funcgrad.transforms.jit.jit import jit
    from funcgrad.transforms.jit.make_jaxpr import eval_shape, make_jaxpr, typeof
    from funcgrad.transforms.key_reuse import debug_key_reuse
    from funcgrad.transforms.precision.autocast import autocast
    from funcgrad.transforms.refs import empty_ref, free_ref, freeze, new_ref

# JAX's other names.
checking_leaks, float0 = check_tracer_leaks, dtypes.float0

__all__ = [
    # arrays and what is known of them
    "Array", "ShapeDtypeStruct", "block_until_ready", "device_get", "effects_barrier", "float0",
    "live_arrays", "typeof",
    # mutable arrays
    "Ref", "new_ref", "empty_ref", "freeze", "free_ref",
    # compilation
    "jit", "clear_caches", "make_jaxpr", "eval_shape", "disable_jit", "ensure_compile_time_eval",
    "named_call", "named_scope",
    "num_threads", "set_num_threads", "memory_summary", "release_memory",
    # derivatives
    "grad", "value_and_grad", "jvp", "vjp", "linearize", "linear_transpose",
    "fwd_and_bwd", "jacfwd", "jacrev", "jacobian", "hessian",
    "custom_gradient", "custom_jvp", "custom_vjp", "closure_convert",
    "checkpoint", "remat", "checkpoint_name", "checkpoint_policies",
    # batching
    "vmap",
    # numbers: mixed precision, adapters, fewer bits
    "autocast", "lora", "lora_merge", "qat", "quantize", "scaled_value_and_grad",
    # the host, and looking inside
    "pure_callback", "io_callback", "check_tracer_leaks", "checking_leaks", "debug",
    "debug_infs", "debug_key_reuse", "debug_nans", "explain_cache_misses", "log_compiles",
    "print_environment_info", "transfer_guard", "transfer_guard_device_to_device",
    "transfer_guard_device_to_host", "transfer_guard_host_to_device",
    # dtypes and shapes
    "default_dtype", "default_matmul_precision", "dtypes", "enable_x64",
    "numpy_dtype_promotion", "numpy_rank_promotion",
    # many devices (more of them in funcgrad.parallel)
    "AxisType", "Device", "P", "NamedSharding", "default_backend", "default_device",
    "device_count", "device_put", "devices", "local_device_count", "local_devices",
    "make_array_from_callback",
    "make_array_from_process_local_data", "make_array_from_single_device_arrays", "make_mesh",
    "pmap", "process_count", "process_index", "process_indices", "reshard", "set_mesh", "shard_map",
    "smap", "virtual_devices",
    # subpackages
    "ad_checkpoint", "adapters", "custom_batching", "custom_derivatives", "dlpack", "errors",
    "experimental", "export", "extend", "flatten_util", "image", "interop", "io", "lax",
    "monitoring", "nn", "numpy", "ops", "optim", "parallel", "profiler", "quantization",
    "random", "recsys", "ref", "scipy", "serve", "sharding", "sparse", "stages", "test_util",
    "tree", "tree_util", "typing",
]  # fmt: skip

# Loaded when first asked for, so that `import funcgrad` stays quick: subpackages, and names by the
# modules that have them.
_PACKAGES = (
    "ad_checkpoint", "adapters", "custom_batching", "custom_derivatives", "debug", "dlpack",
    "experimental", "export", "extend", "flatten_util", "image", "interop", "io", "lax",
    "monitoring", "nn", "optim", "parallel", "profiler", "quantization", "random", "recsys", "ref",
    "scipy", "serve", "sharding", "sparse", "stages", "test_util", "tree_util", "typing",
)  # fmt: skip
_LATER = {
    "adapters": "lora lora_merge",
    "backends.llvm.runtime.memory": "memory_summary release_memory",
    "backends.llvm.runtime.pool": "num_threads set_num_threads",
    "optim.loss_scale": "scaled_value_and_grad",
    "parallel":
        "AxisType Device NamedSharding P default_backend default_device device_count device_put "
        "devices local_device_count local_devices make_array_from_callback "
        "make_array_from_process_local_data make_array_from_single_device_arrays make_mesh pmap "
        "print_environment_info process_count process_index process_indices reshard shard_map "
        "smap virtual_devices",
    "quantization": "qat quantize",
    "transforms.batching.vmap": "vmap",
    "transforms.callbacks": "io_callback pure_callback",
    "transforms.derivatives.checkpoint": "checkpoint checkpoint_name checkpoint_policies remat",
    "transforms.derivatives.custom": "closure_convert custom_jvp custom_vjp",
    "transforms.derivatives.forms": "custom_gradient fwd_and_bwd",
    "transforms.derivatives.grad": "grad value_and_grad",
    "transforms.derivatives.jacobian": "hessian jacfwd jacobian jacrev",
    "transforms.derivatives.linear": "jvp linear_transpose linearize vjp",
    "transforms.host": "block_until_ready device_get effects_barrier live_arrays",
    "transforms.jit.jit": "jit",
    "transforms.jit.make_jaxpr": "eval_shape make_jaxpr typeof",
    "transforms.key_reuse": "debug_key_reuse",
    "transforms.precision.autocast": "autocast",
    "transforms.refs": "empty_ref free_ref freeze new_ref",
    # Where opt_einsum looks for them: in the package that arrays' class is of.
    "numpy": "einsum tensordot transpose",
}  # fmt: skip

__getattr__, __dir__ = _lazy.names(
    __name__, {f"{__name__}.{module}": held for module, held in _LATER.items()}, _PACKAGES
)
