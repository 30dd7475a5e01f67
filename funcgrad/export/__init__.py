"""Functions that leave Python: programs in files, to load years later or on another machine.

`export(fg.jit(f))(*args)` traces a function and gives an `Exported`: it can be called, transformed,
and saved. The names are those of `jax.export`.

>>> from funcgrad import export
>>> f = export.export(fg.jit(lambda x: fnp.sum(x**2)))(fg.ShapeDtypeStruct((3,), "float32"))
>>> fg.grad(export.deserialize(f.serialize()).call)(fnp.ones(3))
Array([2., 2., 2.], dtype=float32)

- `exported`: `export`, `Exported`, `load`, `deserialize`
- `tracing`: from a traced function to what its file holds
- `content`: what a file holds
- `signature`: what is known without the programs
- `symbolic`: sizes with names
- `unify`: one program of those for several sizes
- `samples`: arguments and results to check a function by
- `constants`: weights laid out as products read them
- `rows`: whether rows are independent, so that one program does for any number of them
- `program`: programs as JSON
- `tensors`: arrays as safetensors
- `archive`: the file itself
- `native`: `aot`: functions as C libraries
- `onnx`: `to_onnx`, `from_onnx`: functions as ONNX models, and models as functions
"""

from funcgrad.export.exported import Exported, deserialize, export, load
from funcgrad.export.native.library import CLibrary, aot
from funcgrad.export.onnx import from_onnx, to_onnx
from funcgrad.export.program.trees import (
    register_namedtuple_serialization,
    register_pytree_node_serialization,
)
from funcgrad.export.samples import Sample
from funcgrad.export.symbolic import (
    SymbolicScope,
    is_symbolic_dim,
    symbolic_args_specs,
    symbolic_shape,
)

__all__ = [
    "CLibrary",
    "Exported",
    "Sample",
    "SymbolicScope",
    "aot",
    "deserialize",
    "export",
    "from_onnx",
    "is_symbolic_dim",
    "load",
    "register_namedtuple_serialization",
    "register_pytree_node_serialization",
    "symbolic_args_specs",
    "symbolic_shape",
    "to_onnx",
]
