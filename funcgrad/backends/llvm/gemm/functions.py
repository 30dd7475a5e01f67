"""Matrix products as generated code: one function a pair of formats serves all shapes and strides.

`declare_gemm` and `emit_gemm` let generated code call it, `gemm` is the same on numpy arrays.
The function takes a pointer to the i64 words of `words.CALL`; strides count elements, may be
negative or zero, and there are two batch dimensions.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
from collections.abc import Mapping
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np

from funcgrad.backends.late import Late
from funcgrad.backends.llvm.gemm import micro
from funcgrad.backends.llvm.gemm.driver import PLAIN, Driver, symbol
from funcgrad.backends.llvm.gemm.kernels import Micro
from funcgrad.backends.llvm.gemm.pack import FORMATS
from funcgrad.backends.llvm.gemm.packers import provide_packers
from funcgrad.backends.llvm.gemm.words import CALL
from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.builder import IRBuilder
from funcgrad.backends.llvm.native.code import I64, PTR, VOID, allocate, declare
from funcgrad.backends.llvm.native.engine import Engine, Library, engine
from funcgrad.backends.llvm.native.sources import generator
from funcgrad.backends.llvm.native.target import Target
from funcgrad.backends.llvm.runtime import pool, scratch

gathered = Late("funcgrad.backends.llvm.gemm.gathered")

# Formats of the operands, and those that a product may have; the first is the default.
OUTPUTS = {
    "float32": ("float32",),
    "float64": ("float64",),
    "float16": ("float16", "float32"),
    "bfloat16": ("bfloat16", "float32"),
    "int8": ("int32",),
    "int32": ("int32",),
    "complex64": ("complex64",),
    "complex128": ("complex128",),
}


@functools.cache
def install(dtype: str, out: str, target: Engine | None = None, way: str = "") -> int:
    """Compile the product of a pair of formats, bind its symbol, and return its address.

    *way*: the only one that its calls go, from `route`; a part of the whole is sooner compiled, but
    who calls it places the kernels of the route.
    Raises ValueError for formats that `OUTPUTS` lacks.

    >>> install("float32", "float32") == install("float32", "float32")
    True
    """
    if out not in OUTPUTS.get(dtype, ()):
        raise ValueError(f"gemm: no product of {dtype} into {out}; there are {OUTPUTS}")
    return way_library(dtype, out, target or engine(), way).address(name_of(dtype, out, way))


def way_library(dtype: str, out: str, target: Engine, way: str) -> Library:
    """The code of a product, whose symbol is bound."""
    pool.bind(target)
    scratch.bind(target)
    provide_packers(target, dtype)
    name = name_of(dtype, out, way)

    def write() -> ir.Module:
        made = driver(dtype, out, target.target, way)
        made.write()
        for kernel in made.used:
            micro.provide(target, dtype, kernel)
        return made.module

    sources = ["gemm.functions", *([] if way in PLAIN else ["gemm.gathered"])]
    library = target.compile(write, level=1, key=" ".join([name, *map(generator, sources)]))
    target.bind(name, library)
    return library


def driver(dtype: str, out: str, target: Target, way: str = "", axes: bool = True) -> Driver:
    """What writes the code of a product, or plans it. axes: whether calls may have them.

    >>> driver("float32", "float32", engine().target, "direct").way
    'direct'
    """
    kind = gathered.Gathered if axes and way not in PLAIN else Driver
    return kind(FORMATS[dtype], FORMATS[out], target, way)


def install_kernel(dtype: str, out: str, way: str, kernel: Micro) -> None:
    """Compile a kernel that a way's calls need, and bind it and the place of its address."""
    target = engine()
    library = micro.library(target, dtype, kernel)
    target.bind(micro.symbol(dtype, kernel), library)
    place = micro.place(name_of(dtype, out, way), kernel)
    target.provide(place, partial(way_library, dtype, out, target, way))


def name_of(dtype: str, out: str, way: str = "") -> str:
    """The symbol that `install` binds.

    >>> name_of("float32", "float32", "direct")
    'fg_gemm_float32_float32_direct'
    """
    return symbol(FORMATS[dtype], FORMATS[out], way)


def route(dtype: str, out: str, words: Mapping[str, int]) -> tuple[str, list[Micro]]:
    """The only way that calls of these sizes and strides go, "" if there may be several; and the
    kernels whose addresses it needs (`micro.place`).

    A call that has axes needs `words.inner_words`, too.

    >>> rows = {"a_rs": 4, "a_cs": 1, "b_rs": 4, "b_cs": 1, "c_rs": 4, "c_cs": 1}
    >>> way, kernels = route("float32", "float32", {"m": 4, "n": 4, "k": 4, **rows})
    >>> way in ("at_once", "packed"), len(kernels)
    (True, 1)
    """
    planner = _planner(dtype, out, engine(), bool(words.get("axes")))
    return planner.route({"batch0": 1, "batch1": 1, **words})


@functools.cache
def _planner(dtype: str, out: str, target: Engine, axes: bool) -> Driver:
    """A driver that writes nothing."""
    return driver(dtype, out, target.target, axes=axes)


def declare_gemm(module: ir.Module, dtype: str, out: str | None = None) -> ir.Function:
    """Declare void fg_gemm_<dtype>_<out>(ptr call) in a module that `engine()` compiles.

    >>> declare_gemm(ir.Module("m"), "float32").name
    'fg_gemm_float32_float32'
    """
    out = out or OUTPUTS[dtype][0]
    install(dtype, out)
    name = name_of(dtype, out)
    return declare(module, name, ir.FunctionType(VOID, [PTR]))


def emit_gemm(
    builder: IRBuilder, dtype: str, out: str | None, words: Mapping[str, ir.Value | int]
) -> None:
    """Emit C = A·B (or C += A·B where add ≠ 0) over a batch.

    *words* maps names of `CALL` to i64 values, pointers, or Python integers. batch0 and batch1
    default to 1, other words that are missing to 0.

    >>> module = ir.Module("m")
    >>> f = ir.Function(module, ir.FunctionType(VOID, [PTR, PTR, PTR]), "square_product")
    >>> b = IRBuilder(f.append_basic_block())
    >>> a, x, y = f.args
    >>> rows = {"a_rs": 4, "a_cs": 1, "b_rs": 4, "b_cs": 1, "c_rs": 4, "c_cs": 1}
    >>> emit_gemm(b, "float32", None, {"m": 4, "n": 4, "k": 4, "a": a, "b": x, "c": y, **rows})
    >>> "fg_gemm_float32_float32" in str(module)
    True
    """
    unknown = set(words) - set(CALL)
    if unknown:
        raise ValueError(f"emit_gemm: unknown words {sorted(unknown)}; there are {CALL}")
    function = declare_gemm(builder.module, dtype, out)
    here = builder.block
    builder.position_at_end(builder.function.blocks[0])
    call = allocate(builder, I64, len(CALL))
    builder.position_at_end(here)
    for i, name in enumerate(CALL):
        value = words.get(name, 1 if name.startswith("batch") else 0)
        slot = builder.gep(call, [I64(i)], source_etype=I64)
        builder.store(I64(value) if isinstance(value, int) else value, slot)
    builder.call(function, [call])


def gemm(
    a: np.ndarray, b: np.ndarray, out: np.ndarray | None = None, add: bool = False
) -> np.ndarray:
    """a @ b for arrays of shape (..., m, k) and (..., k, n), whose leading dimensions broadcast.

    *out* receives the product, or is increased by it if *add*; its dtype may be that of the
    operands, or float32 for 16-bit floats, and int32 for int8. Raises ValueError for shapes and
    TypeError for dtypes that do not fit.

    >>> gemm(np.ones((2, 3), np.float32), np.ones((3, 2), np.float32))
    array([[3., 3.],
           [3., 3.]], dtype=float32)
    """
    dtype = a.dtype.name
    if a.dtype != b.dtype or dtype not in OUTPUTS:
        raise TypeError(f"gemm: a is {dtype} and b is {b.dtype.name}; both must be one of "
                        f"{', '.join(OUTPUTS)}")  # fmt: skip
    if a.ndim < 2 or b.ndim < 2 or a.shape[-1] != b.shape[-2]:
        raise ValueError(f"gemm: a has shape {a.shape} and b {b.shape}; needed are (..., m, k) "
                         "and (..., k, n)")  # fmt: skip
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    shape = (*batch, a.shape[-2], b.shape[-1])
    if out is None:
        out = np.empty(shape, _numpy_type(OUTPUTS[dtype][0]))
    elif out.shape != shape or out.dtype.name not in OUTPUTS[dtype]:
        raise ValueError(f"gemm: out is {out.dtype.name}{out.shape}, the product "
                         f"{' or '.join(OUTPUTS[dtype])} of shape {shape}")  # fmt: skip
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(install(dtype, out.dtype.name))
    a, b = np.broadcast_to(a, batch + a.shape[-2:]), np.broadcast_to(b, batch + b.shape[-2:])
    for index in itertools.product(*map(range, batch[:-2])):
        call = _words(a[index], b[index], out[index], add)
        function(ctypes.addressof(call))
    return out


def _words(a: np.ndarray, b: np.ndarray, c: np.ndarray, add: bool) -> Any:
    """The call of arrays with up to two batch dimensions."""
    words = {"m": c.shape[-2], "n": c.shape[-1], "k": a.shape[-1], "add": int(add)}
    sizes = (1, 1, *c.shape[:-2])[-2:]
    words["batch0"], words["batch1"] = sizes
    for name, x in (("a", a), ("b", b), ("c", c)):
        steps = [0, 0, *(s // x.itemsize for s in x.strides)][-4:]
        words[name] = x.ctypes.data
        for field, step in zip(("b0", "b1", "rs", "cs"), steps, strict=True):
            words[f"{name}_{field}"] = step
    return (ctypes.c_int64 * len(CALL))(*(words.get(name, 0) for name in CALL))


def _numpy_type(name: str) -> np.dtype:
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)
