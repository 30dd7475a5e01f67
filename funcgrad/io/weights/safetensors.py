"""Safetensors files, and folders of them, as trees by names."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from funcgrad.errors import FormatError
from funcgrad.io.weights.mapped import Mapped, nested
from funcgrad.io.weights.parts import Shardings, placed

MAX_HEADER = 100_000_000
DTYPES: dict[str, np.dtype] = {
    "BOOL": np.dtype(bool), "U8": np.dtype("uint8"), "I8": np.dtype("int8"),
    "U16": np.dtype("uint16"), "I16": np.dtype("int16"), "U32": np.dtype("uint32"),
    "I32": np.dtype("int32"), "U64": np.dtype("uint64"), "I64": np.dtype("int64"),
    "F16": np.dtype("float16"), "F32": np.dtype("float32"), "F64": np.dtype("float64"),
    "BF16": np.dtype(ml_dtypes.bfloat16), "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2), "C64": np.dtype("complex64"),
}  # fmt: skip


def load_safetensors(
    path: str | os.PathLike, *, flat: bool = False, shardings: Shardings | None = None
) -> dict[str, Any]:
    """The arrays of a safetensors file, or of all in a folder, as a tree by their dotted names.

    A folder may hold an index (`*.index.json`), as those of Hugging Face do: then each array comes
    from the file that it says. Arrays lie in the mapped files and can't be written to. With `flat`
    the names stay whole. Raises FormatError for what is no such file.

    shardings: shardings(name, aval) says how an array is cut, or None for those that stay as they
        are. Each process then reads its own parts alone.

    >>> import os, tempfile
    >>> from safetensors.numpy import save_file
    >>> from funcgrad.io.weights import load_safetensors
    >>> path = os.path.join(tempfile.mkdtemp(), "a.safetensors")
    >>> save_file({"layer.w": np.ones(2, "float32")}, path)
    >>> load_safetensors(path)
    {'layer': {'w': array([1., 1.], dtype=float32)}}
    """
    path = Path(path)
    arrays = placed(_read_folder(path) if path.is_dir() else read_file(path), shardings)
    return arrays if flat else nested(arrays)


def _read_folder(path: Path) -> dict[str, np.ndarray]:
    """The arrays of all files in a folder, by name."""
    files = sorted(path.glob("*.safetensors"))
    if not files:
        raise FormatError(f"the folder {path} holds no safetensors files")
    wanted = _index(path)
    found: dict[str, np.ndarray] = {}
    for file in files:
        for name, value in read_file(file).items():
            if wanted is not None and wanted.get(name) != file.name:
                continue
            if name in found:
                raise FormatError(f"two files in {path} hold an array {name}")
            found[name] = value
    missing = sorted(set(wanted or ()) - set(found))
    if missing:
        raise FormatError(f"the index in {path} names arrays that no file holds: {missing[:5]}")
    return found


def _index(folder: Path) -> dict[str, str] | None:
    indices = sorted(folder.glob("*.index.json"))
    if not indices:
        return None
    try:
        told = json.loads(indices[0].read_bytes())["weight_map"]
    except (ValueError, KeyError, TypeError, RecursionError) as e:
        raise FormatError(f"{indices[0]} is no index of weights: {e}") from None
    if not isinstance(told, dict):
        raise FormatError(f"{indices[0]} is no index of weights: its weight_map is no dictionary")
    return told


def read_file(path: Path) -> dict[str, np.ndarray]:
    """The arrays of one file, by name."""
    file = Mapped(path, "safetensors")
    length = int.from_bytes(file.slice(0, 8, "the header's length"), "little")
    if length > MAX_HEADER:
        file.error(f"a header of {length} bytes is more than the {MAX_HEADER} that are allowed")
    try:
        header = json.loads(bytes(file.slice(8, length, "the header")), object_pairs_hook=_once)
    except (ValueError, RecursionError) as e:
        file.error(f"its header can't be read: {e}")
    if not isinstance(header, dict):
        file.error("its header is no dictionary")
    header.pop("__metadata__", None)
    base, places, found = 8 + length, [], {}
    for name, told in header.items():
        dtype, shape, (start, end) = _entry(file, name, told)
        count = 1
        for n in shape:
            count *= n
        if end - start != count * dtype.itemsize:
            file.error(f"{name} of shape {shape} has {end - start} bytes")
        places.append((start, end, name))
        found[name] = file.array(base + start, dtype, shape, name)
    at = 0
    for start, end, name in sorted(places):
        if start != at:
            file.error(f"{name} begins at {start}, where {at} is the end of what is before")
        at = end
    if base + at != file.size:
        file.error(f"its arrays have {at} bytes, there are {file.size - base}")
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a name stands twice")
    return made


def _entry(file: Mapped, name: str, told: Any) -> tuple[np.dtype, list[int], tuple[int, int]]:
    try:
        dtype, shape, (start, end) = told["dtype"], told["shape"], told["data_offsets"]
    except (KeyError, TypeError, ValueError):
        file.error(f"what it says of {name} is incomplete: {str(told)[:80]}")
    numbers = [*shape, start, end] if isinstance(shape, list) else [None]
    if any(type(n) is not int or n < 0 for n in numbers) or end < start:
        file.error(f"what it says of {name} makes no array: {str(told)[:80]}")
    if not isinstance(dtype, str) or dtype not in DTYPES:
        file.error(f"{name} is of dtype {dtype!r}, which is none of {', '.join(DTYPES)}")
    return DTYPES[dtype], shape, (start, end)
