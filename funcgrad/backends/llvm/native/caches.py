"""The sizes of a processor's caches, as the operating system tells them.

They are part of what code is generated for (`Target`), so that tiles fit, and code that is kept on
disk is used where it was made for. Where nothing is told, and for targets that are named, sizes are
fixed ones: code and the order of its sums are then the same everywhere.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys

from funcgrad.core.record import Record, replace

_LINUX = "/sys/devices/system/cpu/cpu0/cache"
# What a system in a virtual machine tells may be anything: sizes within these limits are believed.
_LIMITS = {1: (1 << 14, 1 << 19), 2: (1 << 17, 1 << 25), 3: (1 << 20, 1 << 31)}


class Caches(Record):
    """Bytes: a core's first cache for data, its share of the second, and the last one, shared.

    >>> Caches().l1
    32768
    """

    l1: int = 1 << 15
    l2: int = 1 << 18
    l3: int = 1 << 25

    @staticmethod
    def fixed(wide: bool) -> Caches:
        """What is assumed of a processor; `wide`: one with registers of 512 bits.

        >>> Caches.fixed(wide=True).l2
        1048576
        """
        return Caches(l2=1 << 20) if wide else Caches()

    def told(self, sizes: dict[int, int]) -> Caches:
        """These sizes, but for those of the levels that are known and credible.

        >>> Caches().told({1: 49152, 2: 3}).l1
        49152
        """
        good = {
            f"l{level}": size
            for level, size in sizes.items()
            if level in _LIMITS and _LIMITS[level][0] <= size <= _LIMITS[level][1]
        }
        known = replace(self, **good)
        # Without a third cache the second one is the last.
        return known if not good or "l3" in good else replace(known, l3=max(known.l2, 1 << 20))


FIXED = Caches()


@functools.cache
def host_sizes() -> dict[int, int]:
    """Bytes by level of this machine's caches, a core's share of the second; {} if unknown.

    >>> set(host_sizes()) <= {1, 2, 3, 4}
    True
    """
    return _macos_sizes() if sys.platform == "darwin" else linux_sizes(_LINUX)


def linux_sizes(folder: str | os.PathLike) -> dict[int, int]:
    """The same, from a folder like /sys/devices/system/cpu/cpu0/cache.

    >>> linux_sizes("/nowhere")
    {}
    """
    sizes, sharing = {}, {}
    try:
        entries = sorted(name for name in os.listdir(folder) if name.startswith("index"))
    except OSError:
        return {}
    for entry in entries:
        try:
            kind, size, shared, level_text = (
                _read(os.path.join(folder, entry, name))
                for name in ("type", "size", "shared_cpu_list", "level")
            )
            if kind not in ("Data", "Unified"):
                continue
            level = int(level_text)
            unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(size[-1:])
            size_bytes = int(size[:-1]) * unit if unit else int(size)
            sizes[level], sharing[level] = size_bytes, _count(shared)
        except (OSError, ValueError):
            continue
    if 2 in sizes:
        # Hardware threads of a core share its first cache as well.
        sizes[2] //= max(1, sharing[2] // sharing.get(1, 1))
    return sizes


def _read(path: str) -> str:
    with open(path, "rb") as file:
        return file.read().decode().strip()


def _count(listed: str) -> int:
    """How many processors a list such as 0-3,8 names."""
    total = 0
    for part in listed.split(","):
        first, _, last = part.partition("-")
        total += int(last or first) - int(first) + 1
    return total


def _macos_sizes() -> dict[int, int]:
    """The same, of the fast cores of a Mac."""
    libc = ctypes.CDLL(None)

    def read(name: str) -> int:
        value, size = ctypes.c_uint64(0), ctypes.c_size_t(8)
        places = ctypes.byref(value), ctypes.byref(size)
        failed = libc.sysctlbyname(name.encode(), *places, None, ctypes.c_size_t(0))
        return 0 if failed else value.value

    def either(name: str) -> int:
        return read(f"hw.perflevel0.{name}") or read(f"hw.{name}")

    sizes = {1: either("l1dcachesize"), 2: either("l2cachesize"), 3: either("l3cachesize")}
    sizes[2] //= max(1, read("hw.perflevel0.cpusperl2"))
    return {level: size for level, size in sizes.items() if size}
