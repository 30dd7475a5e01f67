"""How much memory the tasks of a library take: found by a run, in a process of its own.

What tasks take depends on shapes, mostly; and on values where these choose what is run. A run that
needs more than was found ends with a status that says how much.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from funcgrad.export.native.parts import Parts

ROOM = 1 << 30
UNKNOWN = 1 << 24  # bytes, where a run takes too long to be waited for
_SECONDS = 60
LEAST = 1 << 12

# Runs a library on the inputs in a file; prints the bytes that it used.
_RUN = """
import ctypes, mmap, sys
path, name, file, weights, room, levels, counted, rows, *sizes = sys.argv[1:]
lib = ctypes.CDLL(path)
cut = sizes.index("-")
data = memoryview(bytearray(open(file, "rb").read()))
ins, at = [], 0
for n in map(int, sizes[:cut]):
    ins.append(ctypes.create_string_buffer(n + 64))
    start = ctypes.addressof(ins[-1]) + -ctypes.addressof(ins[-1]) % 64
    ctypes.memmove(start, bytes(data[at:at + n]), n)
    ins[-1].start, at = start, at + n
outs = [ctypes.create_string_buffer(int(n) + 64) for n in sizes[cut + 1:]]
kept = open(weights, "rb").read()
held = mmap.mmap(-1, len(kept)); held.write(kept)
arena = mmap.mmap(-1, int(room))
where = lambda m: ctypes.addressof(ctypes.c_char.from_buffer(m))
context = ctypes.create_string_buffer(4096)
call = lambda what: getattr(lib, f"{name}_{what}")
init, run, used, set_level = map(call, ("init", "run", "arena_used", "set_level"))
init.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t]
run.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_size_t]
used.argtypes, used.restype = [ctypes.c_void_p], ctypes.c_size_t
set_level.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
set_size = call("set_size")
set_size.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int64]
c = ctypes.addressof(context)
assert init(c, 4096, where(held), len(kept)) == 0
places = (ctypes.c_void_p * (len(ins) + 1))(*[b.start for b in ins])
results = (ctypes.c_void_p * (len(outs) + 1))(
    *[ctypes.addressof(b) + -ctypes.addressof(b) % 64 for b in outs])
assert not counted or set_size(c, counted.encode(), int(rows)) == 0
most = 0
for level in levels.split():
    assert set_level(c, level.encode()) == 0
    assert run(c, places, results, where(arena), int(room)) == 0
    most = max(most, used(c))
print(most)
"""


def scratch_bytes(library: Path, name: str, weights: Path, parts: Parts, levels: Sequence[str],
                  samples: Sequence[Sequence[np.ndarray]]) -> int:  # fmt: skip
    """Bytes that tasks take: the most of these arguments, of zeros where there are none, and of
    these levels of processors."""
    given = list(samples)
    if parts.size or not samples:  # with rows for the code of each number of them
        rows = sum(code.rows for code in parts.levels[0].codes)
        given.append([
            np.zeros((rows, *a.shape[1:]) if counted else a.shape, a.dtype)
            for a, counted in zip(parts.ins, parts.in_rows, strict=True)
        ])  # fmt: skip
    return max(_used(library, name, weights, parts, levels, args) for args in given)


def _used(library: Path, name: str, weights: Path, parts: Parts, levels: Sequence[str],
          args: Sequence[np.ndarray]) -> int:  # fmt: skip
    file = library.parent / "inputs.bin"
    file.write_bytes(b"".join(np.ascontiguousarray(x).tobytes() for x in args))
    rows = next((len(x) for x, counted in zip(args, parts.in_rows, strict=True) if counted), 1)
    results = [
        a.nbytes * (rows if counted else 1)
        for a, counted in zip(parts.outs, parts.out_rows, strict=True)
    ]
    sizes = [*(str(x.nbytes) for x in args), "-", *map(str, results)]
    facts = [name, file, weights, parts.arena + ROOM, " ".join(levels), parts.size, rows]
    command = [sys.executable, "-c", _RUN, str(library), *map(str, facts), *sizes]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=True)
    except (subprocess.TimeoutExpired, subprocess.CalledProcessError):
        return UNKNOWN
    return max(int(done.stdout) - parts.arena, LEAST)
