"""GGUF files, as llama.cpp writes them: metadata and tensors, quantized ones as floats."""

from __future__ import annotations

import os
from typing import Any

import ml_dtypes
import numpy as np

from funcgrad.io.weights.blocks import KINDS
from funcgrad.io.weights.mapped import Mapped, Reader, nested
from funcgrad.io.weights.parts import Blocks, Shardings, placed

_PLAIN: dict[int, np.dtype] = {
    0: np.dtype("float32"), 1: np.dtype("float16"), 24: np.dtype("int8"), 25: np.dtype("int16"),
    26: np.dtype("int32"), 27: np.dtype("int64"), 28: np.dtype("float64"),
    30: np.dtype(ml_dtypes.bfloat16),
}  # fmt: skip
_CODES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
MAX_NAME, MAX_DIMS, MAX_NESTED = 1 << 16, 4, 4


def load_gguf(
    path: str | os.PathLike, *, flat: bool = False, shardings: Shardings | None = None
) -> tuple[dict[str, Any], dict]:
    """The tensors of a GGUF file (version 2 or 3), a tree by their dotted names, and its metadata.

    Shapes are NumPy's, the fastest axis last. F32, F16, BF16 and integers lie in the mapped file;
    Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K and Q6_K become float32. With `flat` names stay whole.
    `shardings` is as in `load_safetensors`: a process makes floats of its own parts alone. Raises
    FormatError for what is no such file, or has tensors of other kinds.

    >>> from funcgrad.io.weights import load_gguf
    >>> load_gguf("model.gguf")
    Traceback (most recent call last):
      ...
    FileNotFoundError: [Errno 2] No such file or directory: 'model.gguf'
    """
    file = Mapped(path, "GGUF")
    reader = Reader(file)
    if bytes(reader.take(4, "the first word")) != b"GGUF":
        file.error("it doesn't begin with GGUF")
    version = reader.number("I", "the version")
    if version not in (2, 3):
        file.error(f"its version is {version}; 2 and 3 are read")
    tensors, pairs = reader.number("Q", "a count"), reader.number("Q", "a count")
    # Each takes some bytes, so that no count is believed that can't be.
    if tensors * 24 + pairs * 12 > file.size:
        file.error(f"{tensors} tensors and {pairs} entries don't fit in its {file.size} bytes")
    metadata: dict[str, Any] = {}
    for _ in range(pairs):
        key = _string(reader, MAX_NAME)
        if key in metadata:
            file.error(f"the entry {key} stands twice")
        metadata[key] = _value(reader, reader.number("I", "a type"), 0)
    alignment = metadata.get("general.alignment", 32)
    if type(alignment) is not int or alignment < 1 or alignment % 8:
        file.error(f"its alignment is {alignment}")
    told = [_told(reader) for _ in range(tensors)]
    base = -(-reader.at // alignment) * alignment
    found: dict[str, np.ndarray | Blocks] = {}
    for name, shape, kind, offset in told:
        if name in found:
            file.error(f"the tensor {name} stands twice")
        if offset % alignment:
            file.error(f"the tensor {name} is at {offset}, not aligned to {alignment}")
        found[name] = _tensor(file, name, shape, kind, base + offset)
    arrays = placed(found, shardings)
    return arrays if flat else nested(arrays), metadata


def _string(reader: Reader, most: int | None = None) -> str:
    length = reader.number("Q", "a string's length")
    if most is not None and length > most:
        reader.file.error(f"a name of {length} bytes")
    try:
        return bytes(reader.take(length, "a string")).decode()
    except UnicodeDecodeError as e:
        reader.file.error(f"a string isn't UTF-8: {e}")


def _value(reader: Reader, kind: int, depth: int) -> Any:
    if kind == _STRING:
        return _string(reader)
    if kind in _CODES:
        return reader.number(_CODES[kind], "an entry")
    if kind != _ARRAY or depth >= MAX_NESTED:
        reader.file.error(f"an entry has the type {kind}")
    inner, n = reader.number("I", "a type"), reader.number("Q", "a count")
    if n > reader.file.size:
        reader.file.error(f"an array of {n} entries doesn't fit in it")
    if inner in _CODES:
        dtype = np.dtype(_CODES[inner]).newbyteorder("<")
        data = reader.take(n * dtype.itemsize, "an array")
        return np.frombuffer(data, np.uint8).view(dtype).tolist()
    return [_value(reader, inner, depth + 1) for _ in range(n)]


def _told(reader: Reader) -> tuple[str, list[int], int, int]:
    """Name, shape, kind and place of a tensor."""
    name = _string(reader, MAX_NAME)
    n = reader.number("I", "a number of axes")
    if n > MAX_DIMS:
        reader.file.error(f"the tensor {name} has {n} axes")
    shape = [reader.number("Q", "a size") for _ in range(n)][::-1]
    return name, shape, reader.number("I", "a type"), reader.number("Q", "an offset")


def _tensor(file: Mapped, name: str, shape: list[int], kind: int, at: int) -> np.ndarray | Blocks:
    if kind in _PLAIN:
        return file.array(at, _PLAIN[kind], shape, name)
    if kind not in KINDS:
        read = ", ".join(k[0] for k in KINDS.values())
        file.error(f"the tensor {name} is of kind {kind}; F32, F16, BF16, {read} are read")
    kind_name, numbers, width, meaning = KINDS[kind]
    if not shape or shape[-1] % numbers:
        file.error(f"rows of {name}, {shape}, aren't whole blocks of {kind_name}")
    raw = file.array(at, np.dtype("uint8"), (*shape[:-1], shape[-1] // numbers, width), name)
    return Blocks(tuple(shape), raw, meaning)
