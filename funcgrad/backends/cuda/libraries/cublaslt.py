"""cuBLASLt by ctypes: a product's descriptors and algorithm, made when a program is built.

What a call needs is then a list of words, which stay where they are as long as the `Call` lives, so
that native code calls `cublasLtMatmul` without Python. Enumerations are those of cublasLt.h and
library_types.h. A status that isn't success is an error by its name.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_float, c_int, c_int32, c_int64, c_size_t, c_uint64

import numpy as np

from funcgrad.backends.cuda.devices.device import CudaError
from funcgrad.backends.cuda.libraries.library import Library, Owned
from funcgrad.backends.cuda.libraries.products import EIGHTS, Operand, Product
from funcgrad.backends.llvm.emit.text import BFLOAT16, FLOAT16, FLOAT32, FLOAT64

WORKSPACE = 32 << 20  # bytes that an algorithm may use

# cudaDataType of operands and results; cublasComputeType_t by that of the sums
_COMPLEX64, _COMPLEX128 = np.dtype(np.complex64), np.dtype(np.complex128)
_KINDS = {
    FLOAT32: 0, FLOAT64: 1, FLOAT16: 2, _COMPLEX64: 4, _COMPLEX128: 5, BFLOAT16: 14,
    **dict(zip(EIGHTS, (28, 29), strict=True)),
}  # fmt: skip
_COMPUTE = {FLOAT32: 68, _COMPLEX64: 68, FLOAT64: 70, _COMPLEX128: 70}
_TENSOR_FLOAT = 77  # of sums in float32, whose terms may be rounded to TensorFloat-32
_NOTHING, _WITH_BIAS, _EPILOGUES = 1, 4, {"": 0, "relu": 2, "gelu": 32}
# Attributes of a product, of a layout, of a preference
_TRANSA, _TRANSB, _EPILOGUE, _BIAS_KIND = 3, 4, 7, 26
ADDRESSES = {"bias": 8, "first scale": 17, "second scale": 18}
_COUNT, _BATCH = 5, 6
_MOST_WORKSPACE, _ALIGNMENTS = 1, (5, 6, 7, 8)


class _Found(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t, whose first field is the algorithm."""

    _fields_ = (
        ("algorithm", c_uint64 * 8), ("workspace", c_size_t), ("state", c_int),
        ("waves", c_float), ("reserved", c_int * 4),
    )  # fmt: skip


class Call:
    """A product that native code may call.

    words: the handle, the descriptor, alpha, the layouts of first and second, beta, the result's
        layout, the algorithm: addresses, in the order of `cublasLtMatmul`'s arguments
    workspace: the bytes that it uses
    """

    def __init__(self, lt: Lt, p: Product):
        self.lt = lt
        self.product = p
        number = ctypes.c_double if p.compute in (FLOAT64, _COMPLEX128) else c_float
        # Two parts, of which those of real numbers read one.
        self._alpha, self._beta, self._found = (number * 2)(1), (number * 2)(), _Found()
        fast = p.tf32 and p.compute == FLOAT32
        sums = _TENSOR_FLOAT if fast else _COMPUTE[p.compute]
        self._desc = lt.owned("MatmulDesc", c_int(sums), c_int(_KINDS[p.compute]))
        biased = _WITH_BIAS * (p.tail.bias is not None)
        settings = {
            _TRANSA: int(p.first.turned), _TRANSB: int(p.second.turned),
            _EPILOGUE: _EPILOGUES[p.tail.activation] | biased or _NOTHING,
        }  # fmt: skip
        if biased:
            settings[_BIAS_KIND] = _KINDS[p.result.dtype]
        for which, setting in settings.items():
            value = c_int32(setting)
            lt.call("cublasLtMatmulDescSetAttribute", self._desc.handle, c_int(which),
                    byref(value), c_size_t(ctypes.sizeof(value)))  # fmt: skip
        self._layouts = [
            self._layout(p.first, p.m, p.k),
            self._layout(p.second, p.k, p.n),
            self._layout(p.result, p.m, p.n),
        ]
        self._ask()
        self.workspace = int(self._found.workspace)
        at = ctypes.addressof
        first, second, result = (x.word for x in self._layouts)
        self.words = (
            int(lt.handle.value or 0), self._desc.word, at(self._alpha), first, second,
            at(self._beta), result, at(self._found),
        )  # fmt: skip

    def _layout(self, x: Operand, rows: int, columns: int) -> Owned:
        if x.turned:
            rows, columns = columns, rows
        sizes = c_uint64(rows), c_uint64(columns), c_int64(x.leading)
        made = self.lt.owned("MatrixLayout", c_int(_KINDS[x.dtype]), *sizes)
        if self.product.count > 1:
            for which, value in ((_COUNT, c_int32(self.product.count)), (_BATCH, c_int64(x.batch))):
                self.lt.call("cublasLtMatrixLayoutSetAttribute", made.handle, c_int(which),
                             byref(value), c_size_t(ctypes.sizeof(value)))  # fmt: skip
        return made

    def _ask(self) -> None:
        """Let the heuristics propose an algorithm for operands that are aligned as they are."""
        lt, p, given = self.lt, self.product, c_int()
        preference = lt.owned("MatmulPreference")
        first, second, result = p.alignments
        limits = zip(_ALIGNMENTS, (first, second, result, result), strict=True)
        settings = [(_MOST_WORKSPACE, c_uint64(WORKSPACE)),
                    *((which, ctypes.c_uint32(n)) for which, n in limits)]  # fmt: skip
        for which, value in settings:
            lt.call("cublasLtMatmulPreferenceSetAttribute", preference.handle, c_int(which),
                    byref(value), c_size_t(ctypes.sizeof(value)))  # fmt: skip
        a, b, c = (x.handle for x in self._layouts)
        lt.call("cublasLtMatmulAlgoGetHeuristic", lt.handle, self._desc.handle, a, b, c, c,
                preference.handle, c_int(1), byref(self._found), byref(given))  # fmt: skip
        if not given.value or self._found.state:
            raise CudaError(f"cuBLASLt has no algorithm for {_sizes(p)}")


class Lt(Library):
    """The library, and its handle for the device whose context is current."""

    title, wheel, files = "cuBLASLt", "nvidia-cublas", ("libcublasLt.so.13", "libcublasLt.so.12")
    create, destroy, tells = "cublasLtCreate", "cublasLtDestroy", "cublasLtGetStatusName"

    def bind(self, p: Product) -> Call:
        """A product's descriptors and algorithm.

        Raises CudaError if the library has none for it.
        """
        return Call(self, p)

    def owned(self, kind: str, *args: object) -> Owned:
        """A new descriptor."""
        return Owned(self, f"cublasLt{kind}Create", f"cublasLt{kind}Destroy", *args)


def _sizes(p: Product) -> str:
    return f"{p.count} products {p.m}x{p.n}x{p.k} of {p.first.dtype.name} to {p.result.dtype.name}"
