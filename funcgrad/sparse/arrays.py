"""The two formats: arrays of which only some elements are stored, as pytrees of plain arrays.

`BCOO` has the indices of each stored element, `BCSR` a matrix' elements row by row. Both have batch
axes in front, over which data and indices vary, and dense axes behind, which are stored whole.
Sizes of batch and dense axes are those of the arrays, so that `vmap`, `scan` and `shard_map` may
take leading axes away. An index out of bounds marks padding; what has equal indices is added up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import dtypes, tree
from funcgrad.core.trace import Tracer
from funcgrad.errors import ArgumentError, DTypeError, OutOfBoundsError, ShapeError
from funcgrad.ops.arguments import shape_of
from funcgrad.sparse import display


class JAXSparse:
    """Base of the sparse formats: what is said of their shapes, and how they are shown.

    >>> from funcgrad import sparse
    >>> isinstance(sparse.eye(3), sparse.JAXSparse)
    True
    """

    data: Any
    # NumPy's operators, and those of dense arrays, leave it to ours.
    __array_ufunc__ = None
    __array_priority__ = 200
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, indices_sorted: bool, unique_indices: bool):
        self.indices_sorted = bool(indices_sorted)
        self.unique_indices = bool(unique_indices)

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of elements along each axis, stored or not."""
        raise NotImplementedError

    @property
    def nse(self) -> int:
        """How many elements are stored, of each batch."""
        raise NotImplementedError

    @property
    def n_batch(self) -> int:
        """The number of batch axes, in front."""
        raise NotImplementedError

    @property
    def n_sparse(self) -> int:
        """The number of sparse axes, behind those of batches."""
        raise NotImplementedError

    @property
    def n_dense(self) -> int:
        """The number of dense axes, which come last."""
        return len(self.data.shape) - 1 - self.n_batch

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the elements."""
        return self.data.dtype

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements, stored or not."""
        return math.prod(self.shape)

    def tree_flatten(self) -> tuple[tuple, tuple]:
        """The arrays, and what else there is to know."""
        raise NotImplementedError

    def block_until_ready(self) -> Any:
        """The array itself, when its parts are computed."""
        for part in self.tree_flatten()[0]:
            part.block_until_ready()
        return self

    def __len__(self) -> int:
        return self.shape[0]

    def __bool__(self) -> bool:
        raise TypeError(f"the truth value of a {type(self).__name__} is ambiguous")

    def __repr__(self) -> str:
        name = type(self).__name__
        try:
            text = f"{self.dtype}{list(self.shape)}, nse={self.nse}"
            text += f", n_batch={self.n_batch}" if self.n_batch else ""
            text += f", n_dense={self.n_dense}" if self.n_dense else ""
        except (AttributeError, TypeError, IndexError, ValueError):
            return f"{name}(<invalid>)"
        text = f"{name}({text})"
        return f"{type(self.data).__name__}[{text}]" if isinstance(self.data, Tracer) else text

    def _repr_html_(self) -> str:
        return display.sparse_html(self)


def _batches(what: str, n_batch: int, *arrays: Any) -> tuple[int, ...]:
    """The sizes of the batch axes that arrays have in common, where some may have 1."""
    if n_batch < 0:
        raise ShapeError(
            f"{what}: its arrays lack an axis. vmap, scan and others map over batch axes alone: "
            "make some with update_layout(n_batch=...)"
        )
    return tuple(np.broadcast_shapes(*(x.shape[:n_batch] for x in arrays)))


@tree.register_pytree_node_class
class BCOO(JAXSparse):
    """An array of which some elements are stored, each with its indices.

    args: (data, indices), where data is (*batch, nse, *dense) and indices are integers of shape
    (*batch, nse, n_sparse); batch axes of either may have size 1, for all. shape: of the array,
    (*batch, *sparse, *dense). indices_sorted, unique_indices: promises that indices of each batch
    are in lexicographic order, and are there once.

    Elements with an index out of bounds are none: padding, as `nse` is part of the type. Elements
    with equal indices are added up. Operators are those of dense arrays: what would be dense is
    refused by a `SparseEfficiencyError`.

    Raises ShapeError where shapes don't fit, DTypeError for indices that are no integers, and,
    where indices are known, OutOfBoundsError for negative ones.

    >>> from funcgrad import sparse
    >>> indices = fnp.array([[0, 0], [1, 2]])
    >>> m = sparse.BCOO((fnp.array([1.0, 5.0]), indices), shape=(2, 3))
    >>> m
    BCOO(float32[2, 3], nse=2)
    >>> m.todense()
    Array([[1., 0., 0.],
           [0., 0., 5.]], dtype=float32)
    >>> m @ fnp.ones(3)
    Array([1., 5.], dtype=float32)
    """

    def __init__(
        self,
        args: tuple[Any, Any],
        *,
        shape: Sequence[int],
        indices_sorted: bool = False,
        unique_indices: bool = False,
    ):
        super().__init__(indices_sorted, unique_indices)
        self.data, self.indices = _parts("BCOO", args, ("data", "indices"))
        shape = shape_of("BCOO", shape)
        if self.indices.ndim < 2:
            raise ShapeError(
                "BCOO: indices must be (*batch, nse, n_sparse), got the shape "
                f"{self.indices.shape}; a vector's are indices[:, None]"
            )
        _need_integers("BCOO", indices=self.indices)
        self.sparse_shape = shape[self.n_batch : self.n_batch + self.n_sparse]
        wanted = self.n_batch + self.n_sparse + self.n_dense
        fits = self.n_dense >= 0 and self.data.shape[self.n_batch] == self.nse
        dense = self.data.shape[self.n_batch + 1 :]
        if not fits or wanted != len(shape) or dense != shape[len(shape) - self.n_dense :]:
            raise ShapeError(
                f"BCOO: data {self.data.shape} and indices {self.indices.shape} don't make an "
                f"array of shape {shape}: need data (*batch, nse, *dense) and indices (*batch, "
                "nse, n_sparse) for a shape (*batch, *sparse, *dense)"
            )
        self.data = _with_batches("BCOO", self.data, shape[: self.n_batch], self.indices)
        _need_not_negative("BCOO", "indices", self.indices)

    @classmethod
    def of(
        cls, data: Any, indices: Any, sparse_shape: Sequence[int], indices_sorted: bool = False,
        unique_indices: bool = False,
    ) -> BCOO:  # fmt: skip
        """The array of parts that fit, with the sizes of its sparse axes."""
        return cls.tree_unflatten(
            (tuple(sparse_shape), indices_sorted, unique_indices), (data, indices)
        )

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of elements along each axis, stored or not."""
        n = self.n_batch
        batch = _batches("BCOO", n, self.data, self.indices)
        return (*batch, *self.sparse_shape, *self.data.shape[n + 1 :])

    @property
    def nse(self) -> int:
        """How many elements are stored, of each batch."""
        return self.indices.shape[-2]

    @property
    def n_batch(self) -> int:
        """The number of batch axes, in front."""
        return len(self.indices.shape) - 2

    @property
    def n_sparse(self) -> int:
        """The number of sparse axes, behind those of batches."""
        return self.indices.shape[-1]

    def tree_flatten(self) -> tuple[tuple, tuple]:
        """The data and the indices, and what is static."""
        static = (self.sparse_shape, self.indices_sorted, self.unique_indices)
        return (self.data, self.indices), static

    def tree_flatten_with_keys(self) -> tuple[list, tuple]:
        """As `tree_flatten`, with names."""
        children, static = self.tree_flatten()
        names = map(tree.GetAttrKey, ("data", "indices"))
        return list(zip(names, children, strict=True)), static

    @classmethod
    def tree_unflatten(cls, static: tuple, children: Any) -> BCOO:
        """The array of these parts, whatever they are."""
        new = object.__new__(cls)
        new.data, new.indices = children
        new.sparse_shape, new.indices_sorted, new.unique_indices = static
        return new


@tree.register_pytree_node_class
class BCSR(JAXSparse):
    """Matrices of which some elements are stored, row by row.

    args: (data, indices, indptr), where data is (*batch, nse, *dense), indices (*batch, nse) has
    columns, and row i's elements are those at indptr[i] … indptr[i + 1] - 1, of integers (*batch,
    rows + 1). shape: (*batch, rows, columns, *dense). What follows indptr[-1] is padding; all else
    is as in `BCOO`. Products with dense matrices and vectors are compiled row by row.

    >>> from funcgrad import sparse
    >>> m = sparse.BCSR.fromdense(fnp.array([[1.0, 0.0, 2.0], [0.0, 0.0, 3.0]]))
    >>> m.indices, m.indptr
    (Array([0, 2, 2], dtype=int32), Array([0, 2, 3], dtype=int32))
    >>> m @ fnp.ones(3)
    Array([3., 3.], dtype=float32)
    """

    def __init__(
        self,
        args: tuple[Any, Any, Any],
        *,
        shape: Sequence[int],
        indices_sorted: bool = False,
        unique_indices: bool = False,
    ):
        super().__init__(indices_sorted, unique_indices)
        self.data, self.indices, self.indptr = _parts("BCSR", args, ("data", "indices", "indptr"))
        shape = shape_of("BCSR", shape)
        _need_integers("BCSR", indices=self.indices, indptr=self.indptr)
        n = self.indices.ndim - 1
        fits = n >= 0 and self.indptr.ndim == n + 1 and self.data.ndim > n
        fits = fits and self.data.shape[n] == self.indices.shape[n]
        if (
            not fits
            or len(shape) != self.data.ndim + 1
            or shape[n + 2 :] != self.data.shape[n + 1 :]
        ):
            raise ShapeError(
                f"BCSR: data {self.data.shape}, indices {self.indices.shape} and indptr "
                f"{self.indptr.shape} don't make an array of shape {shape}: need data (*batch, "
                "nse, *dense), indices (*batch, nse) and indptr (*batch, rows + 1)"
            )
        if self.indptr.shape[n] != shape[n] + 1:
            raise ShapeError(
                f"BCSR: indptr must have rows + 1 = {shape[n] + 1} elements for the shape {shape}, "
                f"got {self.indptr.shape[n]}"
            )
        self.columns = shape[n + 1]
        self.data = _with_batches("BCSR", self.data, shape[:n], self.indices, self.indptr)
        _need_not_negative("BCSR", "indices", self.indices)
        _need_bounds(self.indptr, self.nse)

    @classmethod
    def of(
        cls, data: Any, indices: Any, indptr: Any, columns: int, indices_sorted: bool = False,
        unique_indices: bool = False,
    ) -> BCSR:  # fmt: skip
        """The matrices of parts that fit."""
        return cls.tree_unflatten(
            (columns, indices_sorted, unique_indices), (data, indices, indptr)
        )

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of elements along each axis, stored or not."""
        n = self.n_batch
        batch = _batches("BCSR", n, self.data, self.indices, self.indptr)
        return (*batch, self.indptr.shape[n] - 1, self.columns, *self.data.shape[n + 1 :])

    @property
    def nse(self) -> int:
        """How many elements are stored, of each batch."""
        return self.indices.shape[-1]

    @property
    def n_batch(self) -> int:
        """The number of batch axes, in front."""
        return len(self.indices.shape) - 1

    @property
    def n_sparse(self) -> int:
        """The number of sparse axes, which is 2."""
        return 2

    def tree_flatten(self) -> tuple[tuple, tuple]:
        """The data, the columns and where rows begin, and what is static."""
        static = (self.columns, self.indices_sorted, self.unique_indices)
        return (self.data, self.indices, self.indptr), static

    def tree_flatten_with_keys(self) -> tuple[list, tuple]:
        """As `tree_flatten`, with names."""
        children, static = self.tree_flatten()
        names = map(tree.GetAttrKey, ("data", "indices", "indptr"))
        return list(zip(names, children, strict=True)), static

    @classmethod
    def tree_unflatten(cls, static: tuple, children: Any) -> BCSR:
        """The matrices of these parts, whatever they are."""
        new = object.__new__(cls)
        new.data, new.indices, new.indptr = children
        new.columns, new.indices_sorted, new.unique_indices = static
        return new


def is_sparse(x: Any) -> bool:
    """Whether x is an array of one of the formats.

    >>> is_sparse(fnp.ones(3))
    False
    """
    return isinstance(x, JAXSparse)


# ---- what users give


def _parts(what: str, args: Any, names: tuple[str, ...]) -> list:
    if not isinstance(args, tuple | list) or len(args) != len(names):
        raise ArgumentError(f"{what}: need ({', '.join(names)}), got {args!r:.80}")
    return [fnp.asarray(x) for x in args]


def _need_integers(what: str, **arrays: Any) -> None:
    for name, x in arrays.items():
        if not dtypes.is_integer(x.dtype):
            raise DTypeError(f"{what}: {name} must be integers, got {x.aval}")


def _with_batches(what: str, data: Any, batch: tuple[int, ...], *others: Any) -> Any:
    """The data, with all of the batch axes' sizes if none of the other arrays has them."""
    n = len(batch)
    for x in (data, *others):
        if any(size not in (1, full) for size, full in zip(x.shape[:n], batch, strict=True)):
            raise ShapeError(
                f"{what}: batch axes of data and indices must have the sizes {batch} or 1, got "
                f"{x.shape[:n]}"
            )
    if _batches(what, n, data, *others) == batch:
        return data
    return fnp.broadcast_to(data, (*batch, *data.shape[n:]))


def known(x: Any) -> np.ndarray | None:
    """The values of an array; None where they aren't known.

    >>> known(fnp.arange(2))
    array([0, 1], dtype=int32)
    """
    found = x.concrete() if isinstance(x, Tracer) else x
    return None if found is None else np.asarray(found)


def _need_not_negative(what: str, name: str, x: Any) -> None:
    values = known(x)
    if values is not None and values.size and values.min() < 0:
        raise OutOfBoundsError(
            f"{what}: {name} must not be negative, got {int(values.min())}; count from the start, "
            "and pad with indices behind the end"
        )


def _need_bounds(indptr: Any, nse: int) -> None:
    values = known(indptr)
    if values is None or not values.size:
        return
    if (values < 0).any() or (values > nse).any() or (np.diff(values) < 0).any():
        raise OutOfBoundsError(
            f"BCSR: indptr must ascend from 0 to at most nse = {nse}, got {values!s:.80}"
        )
