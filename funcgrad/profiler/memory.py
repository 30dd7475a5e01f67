"""Which arrays are in memory, in pprof's format: a gzipped message of protocol buffers.

`pprof` and https://www.speedscope.app read it. Its fields are those of `profile.proto` of
github.com/google/pprof; arrays stand where stacks of calls do: their device, then their type.
"""

from __future__ import annotations

import gzip
import os
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from funcgrad.core.array import Array
from funcgrad.transforms.host import live_arrays


def device_memory_profile(backend: str | None = None) -> bytes:
    """The arrays that are in memory, their number and bytes by device and type: what `pprof` reads.

    backend: only those on such devices, "cpu" or "cuda"

    >>> x = fnp.ones((3, 4))
    >>> profile = fg.profiler.device_memory_profile()
    >>> import gzip
    >>> b"f32[3,4]" in gzip.decompress(profile)
    True
    """
    counts: Counter[tuple[str, str]] = Counter()
    sizes: Counter[tuple[str, str]] = Counter()
    for x in live_arrays(backend):
        key = (_place(x), str(x.aval))
        counts[key] += 1
        sizes[key] += x.nbytes
    return gzip.compress(_profile([(k, counts[k], sizes[k]) for k in counts]))


def save_device_memory_profile(filename: str | os.PathLike, backend: str | None = None) -> None:
    """Write `device_memory_profile` to a file.

    >>> import os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "memory.prof")
    >>> fg.profiler.save_device_memory_profile(path)
    >>> os.path.getsize(path) > 0
    True
    """
    Path(filename).write_bytes(device_memory_profile(backend))


def _place(x: Array) -> str:
    devices = sorted(x.devices(), key=lambda d: d.id)
    return ", ".join(f"{d.platform}:{d.id}" for d in devices)


# ---- protocol buffers


def _profile(found: Iterable[tuple[tuple[str, str], int, int]]) -> bytes:
    """A `Profile` of samples: names from the outermost to the innermost, a count and bytes."""
    texts = {"": 0}
    text = lambda s: texts.setdefault(s, len(texts))  # noqa: E731
    places: dict[str, int] = {}
    message = b""
    for kind, unit in (("allocations", "count"), ("space", "bytes")):
        message += _held(1, _number(1, text(kind)) + _number(2, text(unit)))
    for names, count, size in found:
        # The innermost comes first.
        stack = b"".join(_varint(places.setdefault(n, len(places) + 1)) for n in reversed(names))
        message += _held(2, _held(1, stack) + _held(2, _varint(count) + _varint(size)))
    for name, number in places.items():
        message += _held(4, _number(1, number) + _held(4, _number(1, number)))
        message += _held(5, _number(1, number) + _number(2, text(name)))
    message += b"".join(_held(6, s.encode()) for s in texts)
    return message + _number(9, time.time_ns())


def _varint(n: int) -> bytes:
    out = bytearray()
    while n > 0x7F:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    out.append(n)
    return bytes(out)


def _number(field: int, n: int) -> bytes:
    return _varint(field << 3) + _varint(n)


def _held(field: int, data: bytes) -> bytes:
    """A field of bytes: a text, a message, or packed numbers."""
    return _varint(field << 3 | 2) + _varint(len(data)) + data
