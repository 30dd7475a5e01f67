"""PyTorch's files of weights: a zip of a pickle and of the bytes of each storage."""

from __future__ import annotations

import os
import struct
import zipfile
from typing import Any

import ml_dtypes
import numpy as np

from funcgrad.errors import FormatError
from funcgrad.io.weights.mapped import Mapped
from funcgrad.io.weights.pickles import Machine

MAX_PICKLE = 1 << 30
MAX_SPREAD = 1 << 24  # elements of an array whose storage has fewer
_TYPES = {
    "Double": "float64", "Float": "float32", "Half": "float16", "Long": "int64", "Int": "int32",
    "Short": "int16", "Char": "int8", "Byte": "uint8", "Bool": "bool",
    "ComplexFloat": "complex64", "ComplexDouble": "complex128",
}  # fmt: skip
_STORAGES = {f"torch.{k}Storage": np.dtype(v) for k, v in _TYPES.items()} | {
    "torch.BFloat16Storage": np.dtype(ml_dtypes.bfloat16),
    "torch.storage.UntypedStorage": np.dtype("uint8"),
}
_DTYPES = {f"torch.{d.name}": d for d in _STORAGES.values()} | {
    "torch.float8_e4m3fn": np.dtype(ml_dtypes.float8_e4m3fn),
    "torch.float8_e5m2": np.dtype(ml_dtypes.float8_e5m2),
    "torch.uint16": np.dtype("uint16"), "torch.uint32": np.dtype("uint32"),
    "torch.uint64": np.dtype("uint64"),
}  # fmt: skip


def load_pt(path: str | os.PathLike) -> Any:
    """What `torch.save` wrote, of containers, numbers, strings and tensors; tensors as arrays.

    Nothing is unpickled: names in the file stand for what a table here says, and others are an
    error. Arrays lie in the mapped file, with the strides that they had, and can't be written to.
    Files in the formats before PyTorch 1.6 are refused. Raises FormatError for all that is no such
    file or needs more than weights do.

    >>> from funcgrad.io.weights import load_pt
    >>> load_pt("weights.pt")
    Traceback (most recent call last):
      ...
    FileNotFoundError: [Errno 2] No such file or directory: 'weights.pt'
    """
    file = Mapped(path, "PyTorch")
    entries = _entries(file)
    pickles = [name for name in entries if name.endswith("/data.pkl")]
    if len(pickles) != 1:
        file.error("it has no data.pkl, or several")
    root = pickles[0].removesuffix("data.pkl")
    start, length = entries[pickles[0]]
    if length > MAX_PICKLE:
        file.error(f"a pickle of {length} bytes is more than weights have")
    big = False
    if f"{root}byteorder" in entries:
        big = bytes(file.slice(*entries[f"{root}byteorder"], "the byte order")) == b"big"
    storages: dict[str, _Storage] = {}

    def storage(told: Any) -> _Storage:
        kind, of, key, _, n = told if type(told) is tuple and len(told) == 5 else (None,) * 5
        dtype = getattr(of, "meaning", None)
        if not (isinstance(dtype, np.dtype) and isinstance(key, str) and isinstance(n, int)):
            kind = None
        if kind != "storage":
            raise FormatError("its pickle refers to something that is no storage")
        assert isinstance(dtype, np.dtype)
        assert isinstance(key, str)
        assert isinstance(n, int)
        if key not in storages:
            name = f"{root}data/{key}"
            if name not in entries:
                raise FormatError(f"the storage {key!r} is missing")
            at, size = entries[name]
            if n < 0 or n * dtype.itemsize > size:
                raise FormatError(f"the storage {key!r} of {n} {dtype} has {size} bytes")
            storages[key] = _Storage(file.slice(at, size, f"storage {key}"), dtype, big)
        return storages[key]

    try:
        return Machine(_NAMES, storage).run(bytes(file.slice(start, length, "the pickle")))
    except FormatError as e:
        file.error(str(e))


def _entries(file: Mapped) -> dict[str, tuple[int, int]]:
    """Where the bytes of each entry of the zip are; none may be compressed."""
    try:
        with zipfile.ZipFile(file.path) as archive:
            infos = archive.infolist()
    except (zipfile.BadZipFile, ValueError, struct.error, NotImplementedError, OSError) as e:
        file.error(f"it is no zip archive ({e}); files in PyTorch's older formats aren't read")
    found: dict[str, tuple[int, int]] = {}
    for info in infos:
        if info.filename in found:
            file.error(f"{info.filename} stands in it twice")
        if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
            file.error(f"{info.filename} is compressed or encrypted, which PyTorch doesn't do")
        head = file.slice(info.header_offset, 30, f"the header of {info.filename}")
        if bytes(head[:4]) != b"PK\x03\x04":
            file.error(f"{info.filename} has no header")
        names, extra = struct.unpack("<HH", head[26:30])
        start = info.header_offset + 30 + names + extra
        file.slice(start, info.file_size, info.filename)
        found[info.filename] = (start, info.file_size)
    return found


class _Storage:
    """Bytes that tensors are views of."""

    def __init__(self, data: memoryview, dtype: np.dtype, big: bool):
        self.data, self.dtype, self.big = data, dtype, big

    def view(self, dtype: np.dtype, offset: int, shape: Any, strides: Any) -> np.ndarray:
        """An array on the bytes, within them. Offset and strides count elements."""
        numbers = [offset, *shape, *strides]
        if len(shape) != len(strides) or any(type(n) is not int or n < 0 for n in numbers):
            raise FormatError(f"a tensor has shape {shape} and strides {strides}")
        if len(shape) > 64:
            raise FormatError(f"a tensor has {len(shape)} axes")
        count, last = 1, offset
        for n, s in zip(shape, strides, strict=True):
            count *= n
            last += (n - 1) * s
        there = len(self.data) // dtype.itemsize
        if count and last >= there:
            raise FormatError(f"a tensor reads element {last} of a storage of {there}")
        if count > max(there, MAX_SPREAD):
            raise FormatError(f"a tensor of {count} elements is of a storage of {there}")
        if not count:
            return np.zeros(shape, dtype)
        flat = np.frombuffer(self.data, np.uint8)[: there * dtype.itemsize].view(dtype)
        steps = [s * dtype.itemsize for s in strides]
        made = np.lib.stride_tricks.as_strided(flat[offset:], shape, steps, writeable=False)
        return made.byteswap() if self.big and dtype.itemsize > 1 else made


def _tensor(storage: Any, offset: Any, size: Any, stride: Any, *rest: Any) -> np.ndarray:
    if not isinstance(storage, _Storage):
        raise FormatError("a tensor has no storage")
    return storage.view(storage.dtype, offset, tuple(size), tuple(stride))


def _tensor_of_dtype(
    storage: Any, offset: Any, size: Any, stride: Any, grad: Any, hooks: Any, dtype: Any, *rest: Any
) -> np.ndarray:
    kind = getattr(dtype, "meaning", None)
    if not isinstance(storage, _Storage) or not isinstance(kind, np.dtype):
        raise FormatError("a tensor has no storage, or no dtype")
    return storage.view(kind, offset, tuple(size), tuple(stride))


def _parameter(data: Any, *rest: Any) -> Any:
    return data


def _dictionary(items: Any = ()) -> dict:
    return dict(items)


def _size(sizes: Any = ()) -> tuple:
    return tuple(sizes)


def _device(*told: Any) -> str:
    return ":".join(map(str, told))


_NAMES: dict[str, Any] = {
    **_STORAGES,
    **_DTYPES,
    "torch._utils._rebuild_tensor": _tensor,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_tensor_v3": _tensor_of_dtype,
    "torch._utils._rebuild_parameter": _parameter,
    "torch.nn.parameter.Parameter": _parameter,
    "torch.Size": _size,
    "torch.device": _device,
    "collections.OrderedDict": _dictionary,
}
