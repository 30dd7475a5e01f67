"""The operators and methods of both formats: functions of this package, attached to the classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import funcgrad.numpy as fnp
from funcgrad.core.array import Array
from funcgrad.core.trace import Tracer
from funcgrad.errors import ArgumentError
from funcgrad.ops.arguments import canonical_axes, integers
from funcgrad.sparse import compressed, elementwise, layout, structure
from funcgrad.sparse.arrays import BCOO, BCSR, JAXSparse, is_sparse
from funcgrad.sparse.products import as_bcoo, matmul

_DENSE = (Array, Tracer, np.ndarray, np.generic, bool, int, float, complex)


def _operator(function: Callable, reflected: bool = False) -> Callable:
    def method(self: Any, other: Any) -> Any:
        if not is_sparse(other) and not isinstance(other, _DENSE):
            if hasattr(other, "tocoo"):
                raise ArgumentError(
                    f"an operator of {self} and a matrix of scipy.sparse: convert that with "
                    "from_scipy_sparse"
                )
            return NotImplemented
        return function(other, self) if reflected else function(self, other)

    return method


_BINARY = {
    "matmul": matmul,
    "mul": elementwise.multiply,
    "add": elementwise.add,
    "sub": elementwise.subtract,
    "truediv": elementwise.divide,
}
_COMPARED = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}

# ---- methods of both


def _todense(self: Any) -> Any:
    """The dense array.

    >>> from funcgrad import sparse
    >>> sparse.eye(1).todense()
    Array([[1.]], dtype=float32)
    """
    return compressed.bcsr_todense(self) if isinstance(self, BCSR) else layout.bcoo_todense(self)


def _as_was(self: Any, mat: BCOO) -> Any:
    """A result in the format of the array that it was made of, where that has it."""
    return compressed.bcsr_from_bcoo(mat) if isinstance(self, BCSR) else mat


def _transpose(self: Any, axes: Any = None) -> Any:
    """The array with its axes permuted, reversed by default; see `bcoo_transpose`."""
    order = range(self.ndim)[::-1] if axes is None else integers("transpose", "axes", axes)
    return _as_was(self, structure.bcoo_transpose(as_bcoo(self), permutation=tuple(order)))


def _sum(self: Any, axis: Any = None) -> Any:
    """The sums along axes, as a sparse `BCOO`; over all of them a dense scalar."""
    axes = range(self.ndim) if axis is None else axis
    axes = canonical_axes("sum", (axes,) if isinstance(axes, int) else tuple(axes), self.ndim)
    out = structure.bcoo_reduce_sum(as_bcoo(self), axes=axes)
    return out if out.ndim else fnp.sum(out.data)


def _reshape(self: Any, *shape: Any) -> Any:
    """The elements, in row-major order, as an array of another shape; see `bcoo_reshape`."""
    sizes = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
    sizes = list(integers("reshape", "shape", sizes))
    if sizes.count(-1) == 1:
        rest = int(np.prod([n for n in sizes if n != -1]))
        sizes[sizes.index(-1)] = self.size // rest if rest else 0
    return structure.bcoo_reshape(as_bcoo(self), new_sizes=sizes)


def _getitem(self: Any, idx: Any) -> BCOO:
    return structure.getitem(as_bcoo(self), idx)


def _iterate(self: Any) -> Any:
    return (self[i] for i in range(self.shape[0]))


def _to_scipy(self: Any) -> Any:
    """A matrix of scipy.sparse, in its format of coordinates or of rows.

    >>> from funcgrad import sparse
    >>> sparse.eye(2).to_scipy_sparse().toarray().tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    return layout.to_scipy(as_bcoo(self), "csr" if isinstance(self, BCSR) else "coo")


# ---- of each


def _fromdense(
    cls: Any, mat: Any, *, nse: int | None = None, index_dtype: Any = np.int32, n_dense: int = 0,
    n_batch: int = 0,
) -> Any:  # fmt: skip
    """The elements of a dense array that aren't zero; see `bcoo_fromdense`."""
    make: Callable = layout.bcoo_fromdense if cls is BCOO else compressed.bcsr_fromdense
    return make(mat, nse=nse, n_batch=n_batch, n_dense=n_dense, index_dtype=index_dtype)


def _from_scipy(
    cls: Any, mat: Any, *, index_dtype: Any = None, n_dense: int = 0, n_batch: int = 0
) -> Any:
    """The elements of a matrix of scipy.sparse."""
    kind = np.int32 if index_dtype is None else index_dtype
    if n_dense or n_batch:
        raise ArgumentError("from_scipy_sparse: SciPy's matrices have no batch or dense axes")
    return layout.from_scipy(mat, kind) if cls is BCOO else compressed.from_scipy(mat, kind)


def _sum_duplicates(self: Any, nse: int | None = None, remove_zeros: bool = True) -> Any:
    """The array with elements of equal indices added up, sorted; see `bcoo_sum_duplicates`.

    remove_zeros: without those that are zero then, as far as `nse` is not given.
    """
    total = layout.bcoo_eliminate_zeros if remove_zeros else layout.bcoo_sum_duplicates
    return _as_was(self, total(as_bcoo(self), nse=nse))


def _update_layout(
    self: BCOO, *, n_batch: int | None = None, n_dense: int | None = None,
    on_inefficient: str | None = "error",
) -> BCOO:  # fmt: skip
    """The same array with other numbers of batch and dense axes; see `bcoo_update_layout`."""
    return layout.bcoo_update_layout(
        self, n_batch=n_batch, n_dense=n_dense, on_inefficient=on_inefficient
    )


def attach() -> None:
    """Set operators and methods of both classes, once, at import."""
    both: dict[str, Any] = {
        "todense": _todense, "transpose": _transpose, "sum": _sum, "reshape": _reshape,
        "astype": elementwise.astype, "to_scipy_sparse": _to_scipy,
        "sum_duplicates": _sum_duplicates, "T": property(_transpose, doc="The axes reversed."),
        "__getitem__": _getitem, "__iter__": _iterate, "__pow__": elementwise.power,
        "__neg__": _of_elements(fnp.negative, linear=True), "__pos__": lambda self: self,
        "__abs__": _of_elements(fnp.abs, linear=False),
        "fromdense": classmethod(_fromdense), "from_scipy_sparse": classmethod(_from_scipy),
    }  # fmt: skip
    for name, function in _BINARY.items():
        both |= {f"__{name}__": _operator(function), f"__r{name}__": _operator(function, True)}
    for name, symbol in _COMPARED.items():
        both[f"__{name}__"] = _comparison(symbol)
    for name, method in both.items():
        setattr(JAXSparse, name, method)
    BCOO.sort_indices = layout.bcoo_sort_indices  # type: ignore[attr-defined]
    BCOO.update_layout = _update_layout  # type: ignore[attr-defined]
    BCSR.to_bcoo = compressed.bcsr_to_bcoo  # type: ignore[attr-defined]
    BCSR.from_bcoo = staticmethod(compressed.bcsr_from_bcoo)  # type: ignore[attr-defined]


def _of_elements(fun: Callable, linear: bool) -> Callable:
    """The operator that is a function of each element."""
    return lambda self: elementwise.on_data(self, fun, linear)


def _comparison(symbol: str) -> Callable:
    """The comparison that says why there is none."""
    return lambda self, other: elementwise.compared(self, other, symbol)
