"""cuDNN by ctypes: a convolution's descriptors and algorithm, made when a program is built.

These are the three functions that cuDNN has had since its beginning. Its graph API replaces them,
at a dozen kinds of descriptors and a choice of engines by their numbers: more than a stand-in can
show to be right. Enumerations are those of cudnn_ops.h and cudnn_cnn.h of cuDNN 9. Algorithms whose
bits vary from call to call aren't taken.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ctypes import byref, c_double, c_float, c_int, c_size_t, c_void_p
from weakref import finalize

from funcgrad.backends.cuda.devices.device import CudaError
from funcgrad.backends.cuda.libraries.convolutions import Convolution, Sized
from funcgrad.backends.cuda.libraries.library import Library, Owned
from funcgrad.backends.llvm.emit.text import BFLOAT16, FLOAT16, FLOAT32, FLOAT64

WORKSPACE = 256 << 20  # bytes that an algorithm may use
NAMES = {"forward": "Forward", "data": "BackwardData", "filter": "BackwardFilter"}
# cudnnDataType_t; cudnnMathType_t: TensorFloat-32 where there is hardware for it, tensor cores, and
# neither of both
_KINDS = {FLOAT32: 0, FLOAT64: 1, FLOAT16: 2, BFLOAT16: 9}
_FAST, _TENSOR, _EXACT = 0, 1, 3
_FLIPPED, _STRAIGHT = 0, 1  # cudnnConvolutionMode_t
_MOST = 8  # algorithms that are asked for: more than any function has


class _Found(ctypes.Structure):
    """cudnnConvolutionFwdAlgoPerf_t, and those of both gradients."""

    _fields_ = (
        ("algorithm", c_int), ("status", c_int), ("time", c_float), ("memory", c_size_t),
        ("repeats", c_int), ("math", c_int), ("reserved", c_int * 3),
    )  # fmt: skip


class Call:
    """A convolution that native code may call.

    words: alpha, the descriptors of first and second and of the convolution, the algorithm, beta,
        the result's descriptor, in the order of `cudnnConvolutionForward`'s arguments
    workspace: the bytes that it uses
    """

    def __init__(self, dnn: Dnn, c: Convolution):
        self.dnn, self.convolution = dnn, c
        number = c_double if c.dtype == FLOAT64 else c_float
        self._alpha, self._beta = number(1), number(0)
        filters = {"forward": 1, "data": 0, "filter": 2}[c.kind]
        self._arrays = [
            self._filter(x) if i == filters else self._tensor(x)
            for i, x in enumerate((c.first, c.second, c.result))
        ]
        self._how = self._convolution()
        algorithm, self.workspace = self._chosen()
        first, second, result = (x.word for x in self._arrays)
        at = ctypes.addressof
        self.words = (
            at(self._alpha), first, second, self._how.word, algorithm, at(self._beta), result, 0,
        )  # fmt: skip

    def _tensor(self, x: Sized) -> Owned:
        made, kind = self.dnn.owned("Tensor"), c_int(_KINDS[self.convolution.dtype])
        self.dnn.call("cudnnSetTensorNdDescriptor", made.handle, kind, c_int(len(x.sizes)),
                      _ints(x.sizes), _ints(x.strides))  # fmt: skip
        return made

    def _filter(self, x: Sized) -> Owned:
        made, c = self.dnn.owned("Filter"), self.convolution
        self.dnn.call("cudnnSetFilterNdDescriptor", made.handle, c_int(_KINDS[c.dtype]),
                      c_int(c.last), c_int(len(x.sizes)), _ints(x.sizes))  # fmt: skip
        return made

    def _convolution(self) -> Owned:
        made, c = self.dnn.owned("Convolution"), self.convolution
        sums = FLOAT64 if c.dtype == FLOAT64 else FLOAT32
        self.dnn.call(
            "cudnnSetConvolutionNdDescriptor", made.handle, c_int(len(c.padding)),
            _ints(c.padding), _ints(c.strides), _ints(c.dilation),
            c_int(_FLIPPED if c.flipped else _STRAIGHT), c_int(_KINDS[sums]),
        )  # fmt: skip
        self.dnn.call("cudnnSetConvolutionGroupCount", made.handle, c_int(c.groups))
        math = _EXACT if c.dtype == FLOAT32 and not c.tf32 else _FAST
        self._compute(made, _TENSOR if c.dtype in (FLOAT16, BFLOAT16) else math)
        return made

    def _compute(self, how: Owned, math: int) -> None:
        self.dnn.call("cudnnSetConvolutionMathType", how.handle, c_int(math))

    def _chosen(self) -> tuple[int, int]:
        """The algorithm that the heuristics propose first, of those whose bits don't vary and whose
        memory is small enough; and its memory."""
        c, name, given = self.convolution, NAMES[self.convolution.kind], c_int()
        found = (_Found * _MOST)()
        first, second, result = (x.handle for x in self._arrays)
        arrays = self.dnn.handle, first, second, self._how.handle, result
        self.dnn.call(f"cudnnGetConvolution{name}Algorithm_v7", *arrays, c_int(_MOST), byref(given),
                      found)  # fmt: skip
        for proposal in found[: given.value]:
            if proposal.status or not proposal.repeats:
                continue
            if c.tf32 or c.dtype != FLOAT32:
                self._compute(self._how, proposal.math)
            size = c_size_t()
            asked = getattr(self.dnn.lib, f"cudnnGetConvolution{name}WorkspaceSize")
            failed = asked(*arrays, c_int(proposal.algorithm), byref(size))
            if not failed and size.value <= WORKSPACE:
                return proposal.algorithm, size.value
        raise CudaError(f"cuDNN has no algorithm for {c}")


class Dnn(Library):
    """The library, with a handle that asks for algorithms. Who calls convolutions has one alone.

    spare: handles that nobody has any more
    """

    title, wheel, files = "cuDNN", "nvidia-cudnn-cu13", ("libcudnn.so.9",)
    create, destroy, tells = "cudnnCreate", "cudnnDestroy", "cudnnGetErrorString"

    def __init__(self, stream: c_void_p, path: str | None = None):
        super().__init__(path)
        self.stream = stream
        self.spare: list[c_void_p] = []
        self.call("cudnnSetStream", self.handle, stream)
        self._lock = threading.Lock()  # a handle is for one thread at a time

    def bind(self, c: Convolution) -> Call:
        """A convolution's descriptors and algorithm.

        Raises CudaError if the library has none for it.
        """
        with self._lock:
            return Call(self, c)

    def takes(self, c: Convolution) -> bool:
        """Whether the library has an algorithm for a convolution."""
        try:
            self.bind(c)
        except CudaError:
            return False
        return True

    def owned(self, kind: str) -> Owned:
        """A new descriptor."""
        return Owned(self, f"cudnnCreate{kind}Descriptor", f"cudnnDestroy{kind}Descriptor")


class Handle:
    """A handle of one who calls convolutions, in one thread at a time: the next one's with its last
    reference, and ended with the library.

    Raises CudaError if the library can't make one.
    """

    def __init__(self, dnn: Dnn):
        self.dnn = dnn
        try:
            self.handle = dnn.spare.pop()
        except IndexError:
            self.handle = dnn.new_handle()
        # Finalizers may run within anything, a capture too: this one calls nothing.
        finalize(self, dnn.spare.append, self.handle).atexit = False

    @contextmanager
    def on(self, stream: c_void_p) -> Iterator[int]:
        """A block in which calls go to a stream. Gives the handle, for native code."""
        self.dnn.call("cudnnSetStream", self.handle, stream)
        try:
            yield int(self.handle.value or 0)
        finally:
            # The other stream may end. A failure here would hide that of the block.
            self.dnn.lib.cudnnSetStream(self.handle, self.dnn.stream)


def _ints(numbers: Sequence[int]) -> ctypes.Array:
    return (c_int * len(numbers))(*numbers)
