"""funcgrad: a functional array library. Write NumPy; differentiate, batch, compile, distribute it.

>>> import funcgrad as fg
>>> import funcgrad.numpy as fnp
>>> fg.grad(lambda x: fnp.sum(x**2))(fnp.array([1.0, 2.0, 3.0]))
Array([2., 4., 6.], dtype=float32)
"""

import importlib
from typing import TYPE_CHECKING, Any

from funcgrad import debug, dtypes, errors, flatten_util, lax, numpy, ops, tree
from funcgrad.core.array import Array
from funcgrad.core.aval import ShapeDtypeStruct
from funcgrad.core.caches import clear_caches
from funcgrad.core.settings import debug_nans, default_dtype, disable_jit, named_scope
from funcgrad.transforms.batching.vmap import vmap
from funcgrad.transforms.callbacks import io_callback, pure_callback
from funcgrad.transforms.derivatives.checkpoint import (
    checkpoint,
    checkpoint_name,
    checkpoint_policies,
)
from funcgrad.transforms.derivatives.custom import closure_convert, custom_jvp, custom_vjp
from funcgrad.transforms.derivatives.grad import (
    grad,
    jvp,
    linear_transpose,
    linearize,
    value_and_grad,
    vjp,
)
from funcgrad.transforms.derivatives.jacobian import hessian, jacfwd, jacrev
from funcgrad.transforms.host import block_until_ready, device_get
from funcgrad.transforms.jit.jit import jit
from funcgrad.transforms.jit.make_jaxpr import eval_shape, make_jaxpr

if TYPE_CHECKING:
    from funcgrad import experimental, image, io, nn, optim, parallel, random, scipy
    from funcgrad.backends.llvm.runtime.memory import memory_summary, release_memory
    from funcgrad.backends.llvm.runtime.pool import num_threads, set_num_threads
    from funcgrad.parallel import (
        NamedSharding,
        P,
        device_put,
        devices,
        make_mesh,
        virtual_devices,
    )

__all__ = [
    # arrays and what is known of them
    "Array", "ShapeDtypeStruct", "block_until_ready", "device_get",
    # compilation
    "jit", "clear_caches", "make_jaxpr", "eval_shape", "disable_jit", "named_scope",
    "num_threads", "set_num_threads", "memory_summary", "release_memory",
    # derivatives
    "grad", "value_and_grad", "jvp", "vjp", "linearize", "linear_transpose",
    "jacfwd", "jacrev", "hessian",
    "custom_jvp", "custom_vjp", "closure_convert",
    "checkpoint", "checkpoint_name", "checkpoint_policies",
    # batching
    "vmap",
    # the host, and looking inside
    "pure_callback", "io_callback", "debug", "debug_nans",
    # dtypes
    "default_dtype", "dtypes",
    # many devices (more of them in funcgrad.parallel)
    "P", "NamedSharding", "device_put", "devices", "make_mesh", "virtual_devices",
    # subpackages
    "errors", "experimental", "flatten_util", "image", "io", "lax", "nn", "numpy", "ops", "optim",
    "parallel", "random", "scipy", "tree",
]  # fmt: skip


# Loaded when first asked for, so that `import funcgrad` stays quick: subpackages, and names with
# the modules that have them.
_PACKAGES = ("experimental", "image", "io", "nn", "optim", "parallel", "random", "scipy")
_NAMES = {
    "NamedSharding": "parallel",
    "P": "parallel",
    "device_put": "parallel",
    "devices": "parallel",
    "make_mesh": "parallel",
    "memory_summary": "backends.llvm.runtime.memory",
    "num_threads": "backends.llvm.runtime.pool",
    "release_memory": "backends.llvm.runtime.memory",
    "set_num_threads": "backends.llvm.runtime.pool",
    "virtual_devices": "parallel",
}


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return importlib.import_module(f"funcgrad.{name}")
    if name in _NAMES:
        return getattr(importlib.import_module(f"funcgrad.{_NAMES[name]}"), name)
    raise AttributeError(f"module 'funcgrad' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_PACKAGES, *_NAMES})
