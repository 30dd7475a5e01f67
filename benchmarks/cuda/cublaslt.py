"""cuBLASLt by ctypes: products of row-major matrices with epilogues, and what its heuristics say.

D = A·B of row-major matrices is Dᵀ = Bᵀ·Aᵀ in the column order that the library is made for, so
operands are swapped and nothing is transposed. A bias then runs along D's last axis, as a layer's
does. `order="row"` asks for row order instead. Enumerations are those of cublasLt.h and
library_types.h.
"""

from __future__ import annotations

import ctypes
import glob
import sys
import time
from collections.abc import Sequence
from ctypes import byref, c_float, c_int, c_int32, c_int64, c_size_t, c_uint64, c_void_p
from typing import NamedTuple

import llvmlite.binding as llvm

# Operands' and result's cudaDataType, cublasComputeType_t, the scale's cudaDataType.
KINDS = {
    "float32": (0, 0, 68, 0),
    "tf32": (0, 0, 77, 0),
    "float64": (1, 1, 70, 1),
    "float16": (2, 2, 68, 0),
    "bfloat16": (14, 14, 68, 0),
    "complex64": (4, 4, 68, 4),
    "int8": (3, 10, 72, 10),
    "float8_e4m3": (28, 14, 68, 0),
}
EPILOGUES = {
    "default": 1, "relu": 2, "bias": 4, "relu_bias": 6, "gelu": 32, "gelu_bias": 36,
    "relu_aux": 130, "relu_aux_bias": 134, "gelu_aux": 160, "gelu_aux_bias": 164,
    "drelu": 136, "dgelu": 192, "drelu_bgrad": 152, "dgelu_bgrad": 208,
    "bgrada": 256, "bgradb": 512,
}  # fmt: skip
_TRANSA, _TRANSB, _EPILOGUE, _BIAS, _AUX, _AUX_LD, _A_SCALE, _B_SCALE = 3, 4, 7, 8, 11, 12, 17, 18
_ORDER, _BATCH, _STRIDE = 1, 5, 6

_NAMES = [f"%a{i}" for i in range(16)]
# n calls of cublasLtMatmul, whose 16 arguments are words of 8 bytes, from native code.
_HOST = (
    "define i32 @many(ptr %call, ptr %words, i32 %n) {\nentry:\n"
    + "".join(
        f" %p{i} = getelementptr i64, ptr %words, i64 {i}\n {name} = load i64, ptr %p{i}\n"
        for i, name in enumerate(_NAMES)
    )
    + f""" br label %loop
loop:
 %k = phi i32 [0, %entry], [%next, %loop]
 %r = call i32 %call({", ".join(f"i64 {name}" for name in _NAMES)})
 %next = add i32 %k, 1
 %more = icmp ult i32 %next, %n
 br i1 %more, label %loop, label %done
done:
 ret i32 %r
}}
"""
)


class LtError(RuntimeError):
    """A call that cuBLASLt refused: its name and cublasStatus_t."""


class Found(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algorithm", c_uint64 * 8), ("workspace", c_size_t), ("state", c_int),
        ("waves", c_float), ("reserved", c_int * 4),
    )  # fmt: skip


class Shape(NamedTuple):
    """A product: (m, k)·(k, n), how operands lie, and what follows."""

    kind: str
    m: int
    n: int
    k: int
    batch: int = 1
    a_turned: bool = False
    b_turned: bool = False
    order: str = "column"
    epilogue: str = "default"


class Lt:
    """The library, a handle and a workspace's limit."""

    def __init__(self, workspace: int = 32 << 20) -> None:
        paths = [p for root in sys.path for p in glob.glob(f"{root}/nvidia/**/libcublasLt.so.1*",
                                                           recursive=True)]  # fmt: skip
        self.lib = ctypes.CDLL(paths[0] if paths else "libcublasLt.so.13")
        self.handle, self.workspace = c_void_p(), workspace
        self.check("cublasLtCreate", byref(self.handle))
        self.lib.cublasLtGetVersion.restype = c_size_t
        self.version = self.lib.cublasLtGetVersion()

    def check(self, name: str, *args: object) -> None:
        """Call a function; LtError if it fails."""
        status = getattr(self.lib, name)(*args)
        if status:
            raise LtError(f"{name}: status {status}")

    def _layout(self, kind: int, rows: int, columns: int, shape: Shape) -> c_void_p:
        """A stored row-major (rows, columns) matrix, or a batch of them one after another."""
        made, row = c_void_p(), shape.order == "row"
        sizes = (rows, columns) if row else (columns, rows)
        self.check("cublasLtMatrixLayoutCreate", byref(made), c_int(kind), c_uint64(sizes[0]),
                   c_uint64(sizes[1]), c_int64(columns))  # fmt: skip
        settings = [(_ORDER, c_int32(1))] if row else []
        if shape.batch > 1:
            settings += [(_BATCH, c_int32(shape.batch)), (_STRIDE, c_int64(rows * columns))]
        for which, value in settings:
            self.check("cublasLtMatrixLayoutSetAttribute", made, c_int(which), byref(value),
                       c_size_t(ctypes.sizeof(value)))  # fmt: skip
        return made

    def product(self, shape: Shape, bias: int = 0, aux: int = 0, scales: int = 0) -> Product:
        """A product's descriptors; bias, aux and scales are addresses on the device."""
        operand, result, compute, scale = KINDS[shape.kind]
        desc = c_void_p()
        self.check("cublasLtMatmulDescCreate", byref(desc), c_int(compute), c_int(scale))
        row = shape.order == "row"
        turned = (shape.a_turned, shape.b_turned)
        first, second = turned if row else turned[::-1]
        settings: list[tuple[int, object]] = [
            (_TRANSA, c_int32(first)), (_TRANSB, c_int32(second)),
            (_EPILOGUE, c_int32(EPILOGUES[shape.epilogue])),
        ]  # fmt: skip
        if bias:
            settings.append((_BIAS, c_void_p(bias)))
        if aux:
            settings += [(_AUX, c_void_p(aux)), (_AUX_LD, c_int64(shape.n))]
        if scales:
            settings += [(_A_SCALE, c_void_p(scales)), (_B_SCALE, c_void_p(scales))]
        for which, value in settings:
            self.check("cublasLtMatmulDescSetAttribute", desc, c_int(which), byref(value),
                       c_size_t(ctypes.sizeof(value)))  # type: ignore[arg-type]  # fmt: skip
        a = (shape.k, shape.m) if shape.a_turned else (shape.m, shape.k)
        b = (shape.n, shape.k) if shape.b_turned else (shape.k, shape.n)
        layouts = [self._layout(operand, *a, shape), self._layout(operand, *b, shape)]
        out = self._layout(result, shape.m, shape.n, shape)
        return Product(self, desc, layouts if row else layouts[::-1], out, not row, scale)


class Product:
    """A product that can be run by one of the algorithms that the heuristics propose."""

    def __init__(
        self, lt: Lt, desc: c_void_p, layouts: Sequence[c_void_p], out: c_void_p, swapped: bool,
        scale: int,
    ) -> None:  # fmt: skip
        self.lt, self.desc, self.layouts, self.out, self.swapped = lt, desc, layouts, out, swapped
        number = {1: ctypes.c_double, 10: c_int32}.get(scale, c_float)
        self.one, self.zero = (number * 2)(1), (number * 2)(0)  # complex ones have two parts
        self.found: list[Found] = []

    def ask(self, count: int = 1) -> int:
        """The heuristics' first proposals; how many there are."""
        lt, preference, given = self.lt, c_void_p(), c_int()
        lt.check("cublasLtMatmulPreferenceCreate", byref(preference))
        limit = c_size_t(lt.workspace)
        lt.check("cublasLtMatmulPreferenceSetAttribute", preference, c_int(1), byref(limit),
                 c_size_t(8))  # fmt: skip
        results = (Found * count)()
        lt.check("cublasLtMatmulAlgoGetHeuristic", lt.handle, self.desc, *self.layouts, self.out,
                 self.out, preference, c_int(count), results, byref(given))  # fmt: skip
        lt.check("cublasLtMatmulPreferenceDestroy", preference)
        self.found = list(results[: given.value])
        return given.value

    def arguments(
        self, a: int, b: int, d: int, workspace: int, stream: int, which: int = 0, beta: int = 0
    ) -> tuple:
        """What cublasLtMatmul is called with."""
        first, second = (b, a) if self.swapped else (a, b)
        return (
            self.lt.handle, self.desc, self.one, c_void_p(first), self.layouts[0],
            c_void_p(second), self.layouts[1], self.one if beta else self.zero, c_void_p(d),
            self.out, c_void_p(d), self.out, byref(self.found[which]), c_void_p(workspace),
            c_size_t(self.lt.workspace), c_void_p(stream),
        )  # fmt: skip

    def run(self, *args: int) -> None:
        """Start the product; arguments as of `arguments`."""
        self.lt.check("cublasLtMatmul", *self.arguments(*args))

    def many(self, args: Sequence[object], calls: int) -> float:
        """The host's microseconds a call, of so many from native code, with `arguments`'s."""
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        machine = llvm.Target.from_default_triple().create_target_machine(opt=2)
        engine = llvm.create_mcjit_compiler(llvm.parse_assembly(_HOST), machine)
        engine.finalize_object()
        run = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, ctypes.c_uint)(
            engine.get_function_address("many")
        )
        words = (c_uint64 * len(_NAMES))(*map(_word, args))
        matmul = ctypes.cast(self.lt.lib.cublasLtMatmul, c_void_p)
        start = time.perf_counter()
        status = run(matmul, words, calls)
        taken = 1e6 * (time.perf_counter() - start) / calls
        if status:
            raise LtError(f"cublasLtMatmul: status {status}")
        return taken


def _word(x: object) -> int:
    """An argument's 8 bytes: what a pointer or a size holds, else an address."""
    if isinstance(x, c_void_p | c_size_t):
        return int(x.value or 0)
    return ctypes.addressof(getattr(x, "_obj", x))  # byref keeps what it points to in _obj
