"""Damaged files of weights: an error of their format, or arrays, in bounded memory."""

import contextlib
import io
import struct
import tracemalloc
import zipfile

import numpy as np
import pytest
from safetensors.numpy import save

from funcgrad.errors import FormatError
from funcgrad.io.weights import load_gguf, load_pt, load_safetensors
from tests.io.weights.test_gguf import gguf, text

MOST = 64 << 20  # bytes, beside a file of some hundred


def pt():
    """What torch.save writes of [1.5, "a", {}], a zip of a pickle."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("x/data.pkl", b"\x80\x02]q\x00(G?\xf8\0\0\0\0\0\0X\1\0\0\0a}q\1e.")
        archive.writestr("x/version", "3")
        archive.writestr("x/data/0", bytes(64))
    return made.getvalue()


def gguf_file():
    entries = text("a") + struct.pack("<IIQ2i", 9, 5, 2, 1, 2)
    return gguf([("blk.w", (2, 32), 8, b"\1" * 68), ("n", (3,), 0, bytes(12))], entries, 1)


FORMATS = {
    "gguf": (load_gguf, gguf_file),
    "pt": (load_pt, pt),
    "safetensors": (load_safetensors, lambda: save({"a.w": np.ones((2, 3)), "b": np.arange(5)})),
}


def damaged(whole, rng):
    """A file that was cut, or had bytes changed, put in, taken out, or swapped."""
    data = bytearray(whole)
    for _ in range(rng.integers(1, 5)):
        at, way = int(rng.integers(len(data) + 1)), rng.integers(5)
        if way == 0:
            data = data[: max(at, 1)]
        elif way == 1:
            data[at:at] = rng.bytes(int(rng.integers(1, 9)))
        elif way == 2:
            del data[at : at + int(rng.integers(1, 9))]
        elif at < len(data):
            data[at] = 255 if way == 3 else int(rng.integers(256))
        data = data or bytearray(b"x")
    return bytes(data)


COUNTS = pytest.mark.parametrize("count", [100, pytest.param(10_000, marks=pytest.mark.slow)])


def reads_damaged(load, whole, count, path, errors=FormatError):
    """A reader makes something of each of so many damaged files, or raises one of its errors."""
    rng = np.random.default_rng(count)
    path.write_bytes(whole)
    load(path)
    tracemalloc.start()
    try:
        for _ in range(count):
            path.write_bytes(damaged(whole, rng))
            with contextlib.suppress(errors), np.errstate(all="ignore"):
                load(path)
        assert tracemalloc.get_traced_memory()[1] < MOST
    finally:
        tracemalloc.stop()


@COUNTS
@pytest.mark.parametrize("kind", FORMATS)
def test_damaged_files_are_format_errors_in_bounded_memory(kind, count, tmp_path):
    load, make = FORMATS[kind]
    reads_damaged(load, make(), count, tmp_path / "damaged")
