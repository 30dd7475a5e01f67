"""cuBLASLt by ctypes: a product's descriptors and algorithm, made when a program is built.

What a call needs is then a list of words, which stay where they are as long as the `Call` lives, so
that native code calls `cublasLtMatmul` without Python. Enumerations are those of cublasLt.h and
library_types.h. A status that isn't success is an error by its name.
"""

from __future__ import annotations

import ctypes
import sys
from ctypes import byref, c_char_p, c_float, c_int, c_int32, c_int64, c_size_t, c_uint64, c_void_p
from pathlib import Path
from weakref import finalize

import numpy as np

from funcgrad.backends.cuda.devices.device import CudaError
from funcgrad.backends.cuda.libraries.products import EIGHTS, Operand, Product
from funcgrad.backends.llvm.emit.text import BFLOAT16, FLOAT16, FLOAT32, FLOAT64

NAMES = ("libcublasLt.so.13", "libcublasLt.so.12")
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
        self._desc = _Owned(lt, "MatmulDesc")
        lt.call("cublasLtMatmulDescCreate", byref(self._desc.handle),
                c_int(_TENSOR_FLOAT if p.tf32 and p.compute == FLOAT32 else _COMPUTE[p.compute]),
                c_int(_KINDS[p.compute]))  # fmt: skip
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
        first, second, result = (int(x.handle.value or 0) for x in self._layouts)
        self.words = (
            int(lt.handle.value or 0), int(self._desc.handle.value or 0), at(self._alpha),
            first, second, at(self._beta), result, at(self._found),
        )  # fmt: skip

    def _layout(self, x: Operand, rows: int, columns: int) -> _Owned:
        if x.turned:
            rows, columns = columns, rows
        made = _Owned(self.lt, "MatrixLayout")
        self.lt.call("cublasLtMatrixLayoutCreate", byref(made.handle), c_int(_KINDS[x.dtype]),
                     c_uint64(rows), c_uint64(columns), c_int64(x.leading))  # fmt: skip
        if self.product.count > 1:
            for which, value in ((_COUNT, c_int32(self.product.count)), (_BATCH, c_int64(x.batch))):
                self.lt.call("cublasLtMatrixLayoutSetAttribute", made.handle, c_int(which),
                             byref(value), c_size_t(ctypes.sizeof(value)))  # fmt: skip
        return made

    def _ask(self) -> None:
        """Let the heuristics propose an algorithm for operands that are aligned as they are."""
        lt, p, given = self.lt, self.product, c_int()
        preference = _Owned(lt, "MatmulPreference")
        lt.call("cublasLtMatmulPreferenceCreate", byref(preference.handle))
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


class Lt:
    """The library, and its handle for the device whose context is current.

    Raises CudaError if there is no library.
    """

    def __init__(self, library: str | None = None):
        name = library or found() or NAMES[0]
        try:
            self.lib = ctypes.CDLL(name)
        except OSError:
            raise CudaError(
                f"no cuBLASLt ({name}) on this machine: pip install nvidia-cublas"
            ) from None
        self.lib.cublasLtGetStatusName.restype = c_char_p
        self.handle = c_void_p()
        self.call("cublasLtCreate", byref(self.handle))
        finalize(self, self.lib.cublasLtDestroy, self.handle).atexit = False

    def call(self, name: str, *args: object) -> None:
        """Call a function of the library.

        Raises CudaError with the status's name if it fails.
        """
        if status := getattr(self.lib, name)(*args):
            raise CudaError(f"{name}: {self.status(status)}")

    def address_of(self, name: str) -> int:
        """Where a function of the library is, for native code."""
        return int(ctypes.cast(getattr(self.lib, name), c_void_p).value or 0)

    def status(self, number: int) -> str:
        """A status's name."""
        text = self.lib.cublasLtGetStatusName(c_int(number))
        return text.decode() if text else f"status {number}"

    def bind(self, p: Product) -> Call:
        """A product's descriptors and algorithm.

        Raises CudaError if the library has none for it.
        """
        return Call(self, p)


class _Owned:
    """A descriptor, destroyed with its last reference."""

    def __init__(self, lt: Lt, kind: str):
        self.handle = c_void_p()
        # The library outlives what it made.
        finalize(self, _destroy, lt, f"cublasLt{kind}Destroy", self.handle).atexit = False


def _destroy(lt: Lt, name: str, handle: c_void_p) -> None:
    if handle:
        getattr(lt.lib, name)(handle)


def found() -> str | None:
    """Where the library is: in a wheel of NVIDIA's, or where the system has it; None if nowhere.

    >>> found() is None or "cublasLt" in found()
    True
    """
    for root in sys.path:
        for path in sorted(Path(root, "nvidia").glob("**/libcublasLt.so.1*")):
            return str(path)
    for name in NAMES:
        try:
            ctypes.CDLL(name)
        except OSError:
            continue
        return name
    return None


def _sizes(p: Product) -> str:
    return f"{p.count} products {p.m}x{p.n}x{p.k} of {p.first.dtype.name} to {p.result.dtype.name}"
