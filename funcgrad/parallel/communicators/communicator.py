"""Communicators: what joins devices. Five exchanges, a barrier, a rank and a size.

Compiled programs call a communicator by the native context at its `address` (its words, and those
of a descriptor: `backends.rewrites.exchanges`); Python calls the methods, on buffers of one type.
In both, the devices' blocks lie along the first axis. All ranks make the same calls in the same
order.
"""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cache, cached_property
from typing import Any, Generic, TypeVar

import numpy as np

from funcgrad.backends.llvm.native.engine import engine
from funcgrad.backends.llvm.runtime import run_code
from funcgrad.backends.rewrites.exchanges import (
    DESCRIPTOR,
    DTYPES,
    KINDS,
    OPS,
    SIZE,
    exchange_arrays,
)
from funcgrad.core.buffers import Buffer
from funcgrad.errors import CollectiveError, ShapeError

Pairs = Sequence[tuple[int, int]]
B = TypeVar("B", bound=Buffer)


class Communicator(ABC, Generic[B]):
    """Devices with ranks 0 … size-1, and what they exchange.

    Arrays are C-contiguous, of the same shape and dtype on all ranks. On the host sums are made in
    the order of ranks, so all ranks get the same bits; those of narrow floats in float32.

    buffer: the type of the arrays: NumPy's, unless it says otherwise
    """

    buffer: type = np.ndarray
    rank: int
    size: int

    @abstractmethod
    def all_reduce(self, x: B, op: str = "sum") -> B:
        """The sum ("max", "min") of all ranks' x, on all ranks."""

    @abstractmethod
    def all_gather(self, x: B) -> B:
        """All ranks' x, stacked along a new first axis, on all ranks."""

    @abstractmethod
    def reduce_scatter(self, x: B, op: str = "sum") -> B:
        """Row `rank` of the sum of all ranks' x, which have a row for each rank."""

    @abstractmethod
    def all_to_all(self, x: B) -> B:
        """Row j of rank i's x becomes row i of rank j's result."""

    @abstractmethod
    def permute(self, x: B, perm: Pairs) -> B:
        """x sent along pairs (from, to) of ranks; zeros for who receives nothing."""

    @abstractmethod
    def barrier(self) -> None:
        """Wait for all ranks."""

    @property
    @abstractmethod
    def address(self) -> int:
        """The address of the native context, which lives as long as the communicator."""

    @abstractmethod
    def failure(self, what: str) -> BaseException:
        """The exception for a native exchange that has just failed; `what` describes it."""

    def check_rows(self, what: str, x: B) -> None:
        """Raise ShapeError unless an array has a row for each rank."""
        if not x.ndim or x.shape[0] != self.size:
            raise ShapeError(
                f"{what} among {self.size} ranks needs an array with {self.size} rows, got shape "
                f"{x.shape}"
            )

    def __repr__(self) -> str:
        return f"{type(self).__name__}(rank={self.rank}, size={self.size})"


# An exchange by a communicator whose context has a function of Python behind its size.
_BACK = f"""
declare i32 @fg_call_back(ptr, ptr, ptr)
define i32 @fg_exchange_back(ptr %context, ptr %descriptor) {{
  %at = getelementptr ptr, ptr %context, i64 {SIZE + 1}
  %function = load ptr, ptr %at
  %status = call i32 @fg_call_back(ptr %function, ptr %context, ptr %descriptor)
  ret i32 %status
}}
"""


@cache
def _back() -> int:
    run_code.bind(engine())
    return engine().compile(_BACK, level=0).address("fg_exchange_back")


class PythonCommunicator(Communicator[B]):
    """A communicator whose methods are Python: native programs of the host call them back, with
    NumPy's arrays."""

    def __init__(self, rank: int, size: int):
        self.rank, self.size = rank, size

    @cached_property
    def _words(self) -> Any:
        self._function = self._call  # the object whose address native code has
        words = [_back()] * len(KINDS)
        words += [self.rank, self.size, id(self._function)]
        return (ctypes.c_int64 * len(words))(*words)

    @property
    def address(self) -> int:
        """The address of the native context."""
        return ctypes.addressof(self._words)

    def failure(self, what: str) -> BaseException:
        """An exception for a failure without one: what a method raises is raised as it is."""
        return CollectiveError(f"{what} failed on rank {self.rank}")

    def _call(self, context: int, descriptor: int) -> None:
        words = (ctypes.c_int64 * len(DESCRIPTOR)).from_address(descriptor)
        run_descriptor(self, dict(zip(DESCRIPTOR, words, strict=True)))


def run_descriptor(comm: Communicator[Any], words: dict[str, int]) -> None:
    """Do by a communicator's Python methods what a native descriptor asks for."""
    kind, dtype, n = KINDS[words["kind"]], DTYPES[words["dtype"]], comm.size
    rows = {"all_gather": (1, n), "reduce_scatter": (n, 1), "all_to_all": (n, n)}
    before, after = rows.get(kind, (1, 1))
    source = _memory(words["source"], before * words["count"], dtype)
    if kind in ("reduce_scatter", "all_to_all"):
        source = source.reshape(n, words["count"])
    perm: tuple = ()
    if kind == "permute" and words["perm"]:
        targets = (ctypes.c_int64 * (2 * n)).from_address(words["perm"])
        perm = tuple((i, targets[2 * i]) for i in range(n) if targets[2 * i] >= 0)
    out = exchange_arrays(comm, kind, OPS[words["op"]], perm, source)
    _memory(words["to"], after * words["count"], dtype)[...] = out.reshape(-1)


def _memory(address: int, count: int, dtype: np.dtype) -> np.ndarray:
    """The array at an address."""
    raw = (ctypes.c_char * (count * dtype.itemsize)).from_address(address)
    return np.ndarray(count, dtype, memoryview(raw))


class SelfCommunicator(PythonCommunicator[np.ndarray]):
    """One device alone.

    >>> SelfCommunicator().all_gather(np.ones(2))
    array([[1., 1.]])
    """

    def __init__(self) -> None:
        super().__init__(0, 1)

    def all_reduce(self, x: np.ndarray, op: str = "sum") -> np.ndarray:
        """x itself."""
        return np.array(x)

    def all_gather(self, x: np.ndarray) -> np.ndarray:
        """x as the only row."""
        return np.array(x)[None]

    def reduce_scatter(self, x: np.ndarray, op: str = "sum") -> np.ndarray:
        """The only row of x."""
        self.check_rows("reduce_scatter", x)
        return np.array(x[0])

    def all_to_all(self, x: np.ndarray) -> np.ndarray:
        """x itself."""
        self.check_rows("all_to_all", x)
        return np.array(x)

    def permute(self, x: np.ndarray, perm: Pairs) -> np.ndarray:
        """x, or zeros if `perm` is empty."""
        return np.array(x) if list(perm) else np.zeros_like(x)

    def barrier(self) -> None:
        """Nothing to wait for."""
