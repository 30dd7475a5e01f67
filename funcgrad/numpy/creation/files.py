"""Arrays in files, in NumPy's formats."""

from __future__ import annotations

from itertools import islice
from os import PathLike
from typing import Any

import numpy as np

from funcgrad.core.array import Array
from funcgrad.numpy._util import integer, items_of
from funcgrad.numpy.creation.creation import array


def _file(name: str, file: Any) -> Any:
    if isinstance(file, str | bytes | PathLike) or hasattr(file, "read"):
        return file
    raise TypeError(f"{name}: file must be a path or an open file, got {file!r}")


def save(file: Any, arr: Any, allow_pickle: bool = False) -> None:
    """Write an array to a .npy file, which NumPy can read. Those of ml_dtypes are to NumPy records
    of bytes with one field, whose name is the dtype's; `load` knows them by it.

    >>> import io
    >>> file = io.BytesIO()
    >>> fnp.save(file, fnp.arange(2))
    """
    np.save(_file("save", file), _told(array(arr)), allow_pickle=allow_pickle)


def savez(file: Any, *args: Any, **kwds: Any) -> None:
    """Write several arrays to a .npz file, which NumPy can read, under their names.

    >>> import io
    >>> fnp.savez(io.BytesIO(), x=fnp.arange(2))
    """
    named: dict[str, Any] = {k: _told(v) for k, v in kwds.items()}
    np.savez(_file("savez", file), *map(_told, args), **named)


def load(file: Any, **kwargs: Any) -> Any:
    """The array of a .npy file, or a dict of the arrays of a .npz file.

    >>> import io
    >>> file = io.BytesIO()
    >>> fnp.save(file, fnp.arange(2))
    >>> _ = file.seek(0)
    >>> fnp.load(file)
    Array([0, 1], dtype=int32)
    """
    found = np.load(_file("load", file), **kwargs)
    if isinstance(found, np.ndarray):
        return array(_known(found))
    with found:
        return {name: array(_known(found[name])) for name in found.files}


def _told(values: Any) -> np.ndarray:
    """An array to write: .npy files know no dtypes of ml_dtypes, so a field's name tells theirs."""
    values = np.asarray(values)
    if values.dtype.isbuiltin != 2:  # what NumPy calls dtypes that others registered
        return values
    return values.view([(values.dtype.name, f"V{values.dtype.itemsize}")])


def _known(values: np.ndarray) -> np.ndarray:
    """An array as it was before `_told`."""
    names = values.dtype.names
    if names is None or len(names) != 1 or values.dtype[0].kind != "V":
        return values
    try:
        dtype = np.dtype(names[0])
    except TypeError:
        return values
    fits = dtype.isbuiltin == 2 and dtype.itemsize == values.dtype.itemsize
    return values.view(dtype) if fits else values


def fromiter(iterable: Any, dtype: Any, count: int = -1) -> Array:
    """A vector of the numbers that an iterator gives.

    >>> fnp.fromiter((i * i for i in range(4)), int)
    Array([0, 1, 4, 9], dtype=int32)
    """
    count = integer("count", count)
    values = items_of("iterable", iterable if count < 0 else islice(iterable, count))
    return array(values, dtype)
