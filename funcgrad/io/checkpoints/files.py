"""Files of shards: safetensors, with a checksum of each block of their bytes.

Checksums are of blocks, so that a device that needs a part of a file checks that part alone. Files
are written and read here, not by the safetensors library: checksums are then taken of the very
bytes that are written and used, its NumPy side has no float8, int4 or complex128, and a file that
shrinks or fails under a memory map would kill the process where a read raises.
"""

from __future__ import annotations

import json
import math
import os
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from funcgrad import dtypes
from funcgrad.errors import CheckpointError

BLOCK = 1 << 20
_CHUNK = 16 * BLOCK
_HELD = 4
_LENGTH = struct.Struct("<Q")
_MAX_HEADER = 100_000_000  # the limit of the safetensors library

_STANDARD = {
    "bool": "BOOL", "int8": "I8", "int16": "I16", "int32": "I32", "int64": "I64",
    "uint8": "U8", "uint16": "U16", "uint32": "U32", "uint64": "U64",
    "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "complex64": "C64",
}  # fmt: skip
# What safetensors has no name for goes in as something else of the same bytes.
_DISGUISED = {
    "float8_e4m3fnuz": "U8", "float8_e5m2fnuz": "U8", "float8_e4m3b11fnuz": "U8",
    "float8_e3m4": "U8", "float8_e4m3": "U8", "int4": "I8", "uint4": "U8", "complex128": "F64",
}  # fmt: skip
STORED = {dtypes.canonical(d): s for d, s in (_STANDARD | _DISGUISED).items()}
_BYTES_OF = {dtypes.canonical(d): dtypes.canonical(d) for d in _STANDARD | _DISGUISED}
_BYTES_OF |= {np.dtype(dtypes.int4): np.dtype(np.int8), np.dtype(dtypes.uint4): np.dtype(np.uint8)}


@dataclass(frozen=True)
class ShardFile:
    """What the manifest says of a file: its name, its length, and the CRC-32 of each block."""

    name: str
    nbytes: int
    crc32: tuple[int, ...]
    block: int


class _Checksums:
    """CRC-32 of each block of a stream of bytes."""

    def __init__(self) -> None:
        self.total = 0
        self._done: list[int] = []
        self._crc = 0

    def add(self, data: memoryview) -> None:
        """Take the next bytes, which don't cross the end of a block."""
        self._crc = zlib.crc32(data, self._crc)
        self.total += len(data)
        if self.total % BLOCK == 0 and len(data):
            self._done.append(self._crc)
            self._crc = 0

    def finish(self) -> tuple[int, ...]:
        """The checksums of all blocks, the last of which may be short."""
        return tuple(self._done + ([self._crc] if self.total % BLOCK else []))


def stored_shape(shape: Sequence[int], dtype: np.dtype) -> list[int]:
    """The shape under which an array stands in a file: complex128 is pairs of float64."""
    return [*shape, 2] if dtype == np.complex128 else list(shape)


def _raw_bytes(x: np.ndarray) -> memoryview:
    """The bytes of an array as they stand in a file."""
    dtype = dtypes.canonical(x.dtype)
    flat = np.ascontiguousarray(x, _BYTES_OF[dtype]).reshape(-1)
    return flat.view(np.uint8).data if flat.size else memoryview(b"")


def _header(tensors: Sequence[tuple[str, np.ndarray]]) -> bytes:
    entries: dict[str, Any] = {"__metadata__": {"format": "funcgrad shard"}}
    at = 0
    for name, x in tensors:
        dtype = dtypes.canonical(x.dtype)
        end = at + x.size * _BYTES_OF[dtype].itemsize
        entries[name] = {
            "dtype": STORED[dtype],
            "shape": stored_shape(x.shape, dtype),
            "data_offsets": [at, end],
        }
        at = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > _MAX_HEADER:
        raise CheckpointError(f"{len(tensors)} tensors have a header of {len(text)} bytes")
    return _LENGTH.pack(len(text)) + text


def write_shard(path: Path, tensors: Sequence[tuple[str, np.ndarray]]) -> ShardFile:
    """Write a safetensors file of named arrays to the disk; what the manifest says of it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_shard(Path(folder, "a.safetensors"), [("x", np.zeros(3, "int8"))]).nbytes
    107
    """
    sums = _Checksums()
    with open(path, "xb") as file:
        for data in _streams(tensors):
            at = 0
            while at < len(data):
                part = data[at : at + BLOCK - sums.total % BLOCK]
                file.write(part)
                sums.add(part)
                at += len(part)
        file.flush()
        os.fsync(file.fileno())
    return ShardFile(path.name, sums.total, sums.finish(), BLOCK)


def _streams(tensors: Sequence[tuple[str, np.ndarray]]) -> Iterator[memoryview]:
    yield memoryview(_header(tensors))
    for _, x in tensors:
        yield _raw_bytes(x)


class ShardReader:
    """Reads parts of a file of shards, after a check of the blocks that hold them.

    Raises CheckpointError, which names the file and what was found, where the file is missing, of
    another length, or differs from its checksums.
    """

    def __init__(self, folder: Path, record: ShardFile):
        self._record = record
        self._path = folder / record.name
        self._held: tuple[int, memoryview] = (0, memoryview(b""))
        try:
            self._file = os.open(self._path, os.O_RDONLY)
        except OSError as e:
            raise CheckpointError(
                f"{self._path}: the manifest names this file, but it can't be opened: {e.strerror}"
            ) from e
        try:
            length = os.fstat(self._file).st_size
            if length != record.nbytes:
                kind = "truncated" if length < record.nbytes else "too long"
                raise self._error(f"{kind}: it has {length} bytes, the manifest {record.nbytes}")
            self._tensors = self._read_header()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _error(self, what: str) -> CheckpointError:
        return CheckpointError(f"{self._path}: {what}")

    def check_all(self) -> None:
        """Check every byte of the file."""
        for at in range(0, self._record.nbytes, _CHUNK):
            self._read(at, min(at + _CHUNK, self._record.nbytes))

    def read(
        self, name: str, dtype: np.dtype, shape: Sequence[int], lo: Sequence[int], out: np.ndarray
    ) -> None:
        """Copy the part of a tensor that begins at `lo` into all of `out`.

        dtype, shape: what the manifest says of the tensor
        """
        entry = self._tensors.get(name)
        want = (STORED[dtype], stored_shape(shape, dtype))
        if entry is None:
            raise self._error(f"it has no tensor {name!r}, which the manifest places there")
        if (entry["dtype"], entry["shape"]) != want:
            raise self._error(
                f"{name!r} is {entry['dtype']} of shape {entry['shape']}, the manifest says "
                f"{want[0]} of shape {want[1]}"
            )
        if out.ndim == 0:
            out, shape, lo = out.reshape(1), (1,), (0,)
        if out.size:
            self._copy(out, self._data + entry["data_offsets"][0], tuple(shape), tuple(lo))

    def _copy(self, out: np.ndarray, at: int, shape: tuple[int, ...], lo: tuple[int, ...]) -> None:
        """Copy a part of the array of `shape` whose bytes begin at `at`, some rows at a time."""
        stored = _BYTES_OF[out.dtype]
        row = math.prod(shape[1:]) * stored.itemsize
        if row > _CHUNK:
            for i in range(len(out)):
                self._copy(out[i], at + (lo[0] + i) * row, shape[1:], lo[1:])
            return
        inner = tuple(slice(a, a + n) for a, n in zip(lo[1:], out.shape[1:], strict=True))
        step = max(1, _CHUNK // row)
        for i in range(0, len(out), step):
            n = min(step, len(out) - i)
            begin = at + (lo[0] + i) * row
            part = np.frombuffer(self._read(begin, begin + n * row), stored)
            out[i : i + n] = part.reshape(n, *shape[1:])[(slice(None), *inner)]

    def _read(self, lo: int, hi: int) -> memoryview:
        """Bytes lo to hi of the file, from checked blocks, of which the last few are kept."""
        start, held = self._held
        if not (start <= lo and hi <= start + len(held)):
            block = self._record.block
            begin = lo // block * block
            end = min(-(-hi // block) * block, self._record.nbytes)
            known = held[begin - start :] if start <= begin < start + len(held) else held[:0]
            new = self._checked(begin + len(known), end)
            start, held = begin, memoryview(b"".join((known, new))) if known else new
            if len(held) <= _HELD * block:  # with many small tensors
                self._held = start, held
        return held[lo - start : hi - start]

    def _checked(self, start: int, end: int) -> memoryview:
        buffer = memoryview(bytearray(end - start))
        got = 0
        while got < len(buffer):
            try:
                n = os.preadv(self._file, [buffer[got:]], start + got)
            except OSError as e:
                raise self._error(f"can't be read at byte {start + got}: {e.strerror}") from e
            if not n:
                raise self._error(f"ends at byte {start + got} of {self._record.nbytes}")
            got += n
        block = self._record.block
        for at in range(start, end, block):
            found = zlib.crc32(buffer[at - start : at - start + block])
            needed = self._record.crc32[at // block]
            if found != needed:
                raise self._error(
                    f"corrupt between bytes {at} and {min(at + block, end)}: the checksum is "
                    f"{found:08x}, the manifest says {needed:08x}"
                )
        return buffer

    def _read_header(self) -> dict[str, dict]:
        """The tensors by name; sets where their data begin."""
        length = self._record.nbytes
        if length < _LENGTH.size:
            raise self._error(f"{length} bytes are too few for a safetensors file")
        n = _LENGTH.unpack(self._read(0, _LENGTH.size))[0]
        if n > min(_MAX_HEADER, length - _LENGTH.size):
            raise self._error(f"a header of {n} bytes doesn't fit the file of {length}")
        self._data = _LENGTH.size + n
        try:
            found = json.loads(bytes(self._read(_LENGTH.size, self._data)))
            entries = {name: e for name, e in found.items() if name != "__metadata__"}
            ok = all(self._is_entry(e) for e in entries.values())
        except (ValueError, AttributeError, RecursionError):
            ok = False
        if not ok:
            raise self._error("its header is none of safetensors")
        return entries

    def _is_entry(self, entry: Any) -> bool:
        if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
            return False
        sizes = [d.itemsize // (2 if d == np.complex128 else 1) for d, s in STORED.items()
                 if s == entry["dtype"]]  # fmt: skip
        numbers = [entry["shape"], entry["data_offsets"]]
        if not sizes or not all(isinstance(x, list) and all(map(is_size, x)) for x in numbers):
            return False
        nbytes = math.prod(entry["shape"]) * sizes[0]
        offsets = entry["data_offsets"]
        return (
            len(offsets) == 2
            and offsets[1] - offsets[0] == nbytes
            and self._data + offsets[1] <= self._record.nbytes
        )


def is_size(x: Any) -> bool:
    """Whether a value from a JSON text is a size: an integer of at least 0.

    >>> is_size(3), is_size(True), is_size(-1)
    (True, False, False)
    """
    return type(x) is int and x >= 0


def volume(lo: Iterable[int], hi: Iterable[int]) -> int:
    """The number of elements between two corners; 0 where they cross.

    >>> volume((0, 1), (2, 4))
    6
    """
    return math.prod(max(0, b - a) for a, b in zip(lo, hi, strict=True))
