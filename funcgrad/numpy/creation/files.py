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
    """Write an array to a .npy file, which NumPy can read.

    >>> import io
    >>> file = io.BytesIO()
    >>> fnp.save(file, fnp.arange(2))
    """
    np.save(_file("save", file), np.asarray(array(arr)), allow_pickle=allow_pickle)


def savez(file: Any, *args: Any, **kwds: Any) -> None:
    """Write several arrays to a .npz file, which NumPy can read, under their names.

    >>> import io
    >>> fnp.savez(io.BytesIO(), x=fnp.arange(2))
    """
    named: dict[str, Any] = {k: np.asarray(v) for k, v in kwds.items()}
    np.savez(_file("savez", file), *map(np.asarray, args), **named)


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
        return array(found)
    with found:
        return {name: array(found[name]) for name in found.files}


def fromiter(iterable: Any, dtype: Any, count: int = -1) -> Array:
    """A vector of the numbers that an iterator gives.

    >>> fnp.fromiter((i * i for i in range(4)), int)
    Array([0, 1, 4, 9], dtype=int32)
    """
    count = integer("count", count)
    values = items_of("iterable", iterable if count < 0 else islice(iterable, count))
    return array(values, dtype)
