"""Embedding tables: arrays of rows, rows of 8 or 4 bits with a scale each, and how they are read.

Narrow rows are read as they are kept and computed with in float32. A row that isn't there is an
error where ids are known; in compiled programs it is NaN, never another row.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import dtypes, tree
from funcgrad.core.trace import aval_of
from funcgrad.errors import ArgumentError, DTypeError, OutOfBoundsError, ShapeError
from funcgrad.ops.indexing.plan import known
from funcgrad.quantization.formats import pack, unpack

BITS = {"int8": 8, "int4": 4}  # of an element, by the name of such a table's dtype


def row_bytes(dtype: str, width: float) -> float:
    """The bytes of a row, with its scale where it has one; dtype: a name, of floats or of `BITS`.

    >>> row_bytes("bfloat16", 5), row_bytes("int4", 5)
    (10, 7)
    """
    if dtype in BITS:
        return -(-width * BITS[dtype] // 8) + 4
    return width * dtypes.canonical(dtype).itemsize


@tree.register_pytree_node_class
class QuantizedTable:
    """Rows of integers of 8 or 4 bits, and the scale (rows,) of each; for serving.

    values: int8 (rows, dim), or with bits=4 uint8 (rows, ⌈dim / 2⌉), two columns to a byte, the
    first in the low bits, 8 added to each; dim: needed where it is odd, with 4 bits.

    >>> from funcgrad import recsys
    >>> table = recsys.quantize_rows(fnp.array([[0.5, -1.0], [0.0, 254.0]]))
    >>> table.values, table.scales[1]
    (Array([[  64, -127],
            [   0,  127]], dtype=int8), Array(2., dtype=float32))
    """

    values: Any
    scales: Any
    bits: int
    dim: int

    def __init__(self, values: Any, scales: Any, bits: int = 8, dim: int | None = None):
        name = "recsys.QuantizedTable"
        self.values, self.scales = fnp.asarray(values), fnp.asarray(scales)
        if self.values.ndim != 2 or self.scales.shape != self.values.shape[:1]:
            raise ShapeError(
                f"{name}: need values (rows, dim) and scales (rows,), got "
                f"{aval_of(self.values)} and {aval_of(self.scales)}"
            )
        if not dtypes.is_integer(self.values.dtype):
            raise DTypeError(f"{name}: values must be integers, got {aval_of(self.values)}")
        _check_bits(name, bits)
        if bits == 4 and self.values.dtype != "uint8":
            raise DTypeError(
                f"{name}: values of 4 bits must be packed in uint8, got {aval_of(self.values)}"
            )
        width = self.values.shape[1]
        self.bits, self.dim = bits, width * 8 // bits if dim is None else dim
        if -(-self.dim * bits // 8) != width:
            raise ShapeError(f"{name}: {dim} columns of {bits} bits aren't {width} bytes")

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, dim)."""
        return self.values.shape[0], self.dim

    def tree_flatten(self) -> tuple:
        """For `tree`: both arrays."""
        return (self.values, self.scales), (self.bits, self.dim)

    def tree_flatten_with_keys(self) -> tuple:
        """For `tree`: both arrays with their names."""
        keys = map(tree.GetAttrKey, ("values", "scales"))
        return list(zip(keys, (self.values, self.scales), strict=True)), (self.bits, self.dim)

    @classmethod
    def tree_unflatten(cls, static: tuple[int, int], children: Any) -> QuantizedTable:
        """For `tree`: nothing is checked, as children may be anything."""
        new = object.__new__(cls)
        new.bits, new.dim = static
        new.values, new.scales = children
        return new

    def columns(self, first: int, width: int) -> QuantizedTable:
        """Some of its columns; with 4 bits the first is even, as two of them share a byte."""
        bytes_of = slice(first * self.bits // 8, -(-(first + width) * self.bits // 8))
        parts = self.values[:, bytes_of], self.scales
        return QuantizedTable.tree_unflatten((self.bits, width), parts)

    def codes(self, ids: Any) -> Any:
        """(n, dim) int8: the integers of (n,) rows, 0 where there is no such row."""
        if self.bits == 8:
            return self.values.at[ids].get(mode="fill", fill_value=0)
        packed = self.values.at[ids].get(mode="fill", fill_value=0x88)
        return unpack(packed, 4, -1)[..., : self.dim].astype("int8") - fnp.int8(8)


def quantize_rows(table: Any, bits: int = 8) -> QuantizedTable:
    """A table (rows, dim) in 8 or 4 bits, each row scaled so that its largest element is ±127 or
    ±7.

    An element is off by at most half of its row's scale.

    >>> from funcgrad import recsys
    >>> recsys.quantize_rows(fnp.array([[1.0, 2.0]])).values
    Array([[ 64, 127]], dtype=int8)
    >>> small = recsys.quantize_rows(fnp.array([[3.0, -7.0, 1.0]]), bits=4)
    >>> small.values.shape, recsys.embedding(small, fnp.array([0]))
    ((1, 2), Array([[ 3., -7.,  1.]], dtype=float32))
    """
    _check_bits("recsys.quantize_rows", bits)
    if isinstance(table, QuantizedTable) and table.bits == bits:
        return table
    if isinstance(table, QuantizedTable):
        table = read_rows(table, fnp.arange(table.shape[0], dtype="int32"))
    wide = as_table("recsys.quantize_rows: table", fnp.asarray(table)).astype(fnp.float32)
    most = 2 ** (bits - 1) - 1
    scales = fnp.max(fnp.abs(wide), axis=1, initial=0.0) / most
    values = fnp.round(wide / fnp.where(scales > 0, scales, 1)[:, None]).astype("int8")
    if bits == 4:
        codes = fnp.pad(values, ((0, 0), (0, values.shape[1] % 2)))
        values = pack((codes + fnp.int8(8)).astype("uint8"), 4, -1)
    return QuantizedTable(values, scales, bits, wide.shape[1])


def _check_bits(name: str, bits: int) -> None:
    if bits not in (8, 4):
        raise ArgumentError(f"{name}: bits must be 8 or 4, got {bits}")


def as_table(where: str, table: Any) -> Any:
    """A table as it is looked up: a matrix of floats, or one of few bits."""
    if isinstance(table, QuantizedTable):
        return table
    if not hasattr(table, "shape"):
        raise ArgumentError(f"{where} must be an array (rows, dim), got {type(table).__name__}")
    table = fnp.asarray(table)
    if len(table.shape) != 2:
        raise ShapeError(f"{where} must be (rows, dim), got {aval_of(table)}")
    if not dtypes.is_float(table.dtype):
        raise DTypeError(
            f"{where} must be of floats (or a recsys.QuantizedTable), got {aval_of(table)}"
        )
    return table


def read_rows(table: Any, ids: Any) -> Any:
    """(…, dim): rows of a table, in float32 or wider; NaN where there is no such row."""
    ids = from_zero(ids, table.shape[0])
    if isinstance(table, QuantizedTable):
        rows = table.codes(ids)
        scales = table.scales.at[ids].get(mode="fill", fill_value=fnp.nan)
        return rows.astype(scales.dtype) * scales[..., None]
    rows = table.at[ids].get(mode="fill", fill_value=fnp.nan)
    return rows.astype(fnp.float32) if rows.dtype.itemsize < 4 else rows


def from_zero(ids: Any, rows: int) -> Any:
    """Ids of which negative ones are no rows, where indexing would count them from the end."""
    return fnp.where(ids < 0, fnp.asarray(rows, ids.dtype), ids)


def check_ids(where: str, ids: Any, rows: int, used: Any = None, bags: Any = None) -> None:
    """Known ids are rows of the table. used: which of them count; bags: the bag of each."""
    value = known(ids)
    if value is None:
        return
    bad = (value < 0) | (value >= rows)
    if used is not None:
        mask = known(used)
        if mask is None:
            return
        bad &= mask
    if bad.any():
        at = np.unravel_index(int(np.argmax(bad)), bad.shape)
        place = f"position {at[0]}" if len(at) == 1 else f"position {tuple(map(int, at))}"
        if bags is not None:
            place += f" (bag {known(bags)[at]})"
        raise OutOfBoundsError(f"{where}: id {value[at]} at {place} is none of {rows} rows")
