"""Arrays as the bytes of a safetensors file, and back.

Data begin at a multiple of 64 bytes, the widest dtypes first, so that each array lies where its
dtype wants it when the file is mapped. dtypes that safetensors has no name for go in as others of
the same bytes; the program says what they are.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from funcgrad import dtypes
from funcgrad.core.aval import ShapedArray
from funcgrad.errors import FormatError
from funcgrad.io.checkpoints.files import STORED, is_size, stored_shape

_LENGTH = struct.Struct("<Q")
_ALIGNMENT = 64


def tensors_to_bytes(arrays: Mapping[str, np.ndarray]) -> bytes:
    """A safetensors file of named arrays.

    >>> blob = tensors_to_bytes({"w": np.zeros(3, "float32")})
    >>> tensors_from_bytes(blob, {"w": ShapedArray((3,), "float32")})["w"]
    array([0., 0., 0.], dtype=float32)
    """
    order = sorted(arrays, key=lambda name: -arrays[name].dtype.itemsize)
    entries, parts, at = {}, [], 0
    for name in order:
        x = np.asarray(arrays[name])
        dtype = dtypes.canonical(x.dtype)
        data = np.ascontiguousarray(x, dtype).tobytes()
        entries[name] = {
            "dtype": STORED[dtype],
            "shape": stored_shape(x.shape, dtype),
            "data_offsets": [at, at + len(data)],
        }
        parts.append(data)
        at += len(data)
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-(_LENGTH.size + len(text)) % _ALIGNMENT)
    return b"".join([_LENGTH.pack(len(text)), text, *parts])


def tensors_from_bytes(blob: Any, types: Mapping[str, ShapedArray]) -> dict[str, np.ndarray]:
    """The arrays of a safetensors file, which are of these types, as views of its bytes.

    Raises FormatError where the file has other arrays, or is none.
    """
    entries, start = _header(blob)
    if entries.keys() != types.keys():
        odd = sorted(entries.keys() ^ types.keys())[:3]
        raise FormatError(f"the arrays of the file and of its program differ: {odd}")
    found = {}
    for name, aval in types.items():
        dtype = aval.dtype
        want = {"dtype": STORED.get(dtype), "shape": stored_shape(aval.shape, dtype)}
        begin, end = _offsets(entries[name], name)
        given = {key: entries[name].get(key) for key in want}
        if given != want or end - begin != aval.size * dtype.itemsize:
            raise FormatError(f"the array {name!r} is {given}, its program takes {want}")
        data = memoryview(blob)[start + begin : start + end]
        if len(data) != end - begin:
            raise FormatError(f"the array {name!r} reaches beyond the end of the file")
        array = np.frombuffer(data, dtype).reshape(aval.shape)
        if dtype == dtypes.BOOL and np.frombuffer(data, np.uint8).max(initial=0) > 1:
            raise FormatError(f"the array {name!r} holds bytes that are no booleans")
        array.flags.writeable = False
        found[name] = array
    return found


def _header(blob: Any) -> tuple[dict[str, dict], int]:
    if len(blob) < _LENGTH.size:
        raise FormatError("the file of arrays is too short")
    n = _LENGTH.unpack(blob[: _LENGTH.size])[0]
    if n > len(blob) - _LENGTH.size:
        raise FormatError(f"a header of {n} bytes doesn't fit the file of arrays")
    try:
        entries = json.loads(bytes(blob[_LENGTH.size : _LENGTH.size + n]))
    except (ValueError, RecursionError) as e:
        raise FormatError(f"the header of the file of arrays is no JSON: {e}") from None
    if type(entries) is not dict or any(type(e) is not dict for e in entries.values()):
        raise FormatError("the header of the file of arrays is none of safetensors")
    entries.pop("__metadata__", None)
    return entries, _LENGTH.size + n


def _offsets(entry: dict, name: str) -> tuple[int, int]:
    offsets = entry.get("data_offsets")
    if type(offsets) is list and len(offsets) == 2 and all(map(is_size, offsets)):
        begin, end = offsets
        if begin <= end < 1 << 62:
            return begin, end
    raise FormatError(f"the array {name!r} has no place in the file")
