"""Object code laid out as it will lie in memory, so that a process can run it without a linker.

`lay_out` makes an image of an ELF object for x86-64: its sections one after the other, what it
refers to within itself resolved. What it imports is read from a table of addresses, calls go
through stubs that jump by it. `Image` maps one: copy, fill the table, make the code executable.
Whatever else an object may contain (other relocations, thread-local data) gives no image.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import struct
from collections.abc import Iterator, Mapping
from typing import Any

_PAGE = 4096
_RELOCATABLE_X86_64 = b"\x01\x00\x3e\x00"
# Kinds and flags of sections, and kinds of relocations, as the ELF standard numbers them.
_PROGBITS, _SYMTAB, _RELA, _NOBITS = 1, 2, 4, 8
_WRITE, _ALLOC, _EXEC, _TLS = 0x1, 0x2, 0x4, 0x400
_ABSOLUTE, _NEAR, _CALL, _TABLE = 1, 2, 4, (9, 41, 42)
_UNDEFINED, _RESERVED = 0, 0xFF00
_GLOBAL, _WEAK = 1, 2
_STUB = struct.Struct("<Hi2x")  # jmp [rip + distance]
_JUMP = 0x25FF


class _Unknown(Exception):
    """An object that can't be an image."""


def lay_out(obj: bytes) -> tuple[dict[str, Any], bytes] | None:
    """An image of an object: facts for `Image`, and its bytes; None if there can be none.

    >>> lay_out(b"no object") is None
    True
    """
    if obj[:6] != b"\x7fELF\x02\x01" or obj[16:20] != _RELOCATABLE_X86_64:
        return None
    try:
        return _Layout(obj).image()
    except _Unknown:
        return None


class _Layout:
    """The sections of an object as they are placed; symbols by their numbers."""

    def __init__(self, obj: bytes):
        self.obj = obj
        (start,) = struct.unpack_from("<Q", obj, 0x28)
        size, n, names = struct.unpack_from("<HHH", obj, 0x3A)
        self.sections = [struct.unpack_from("<IIQQQQIIQQ", obj, start + i * size) for i in range(n)]
        self.names = self.sections[names][4]
        self.places: dict[int, int] = {}
        self.symbols: list[tuple[str, int, int, int]] = []
        self.slots: dict[int, int] = {}
        self.stubs: dict[int, int] = {}

    def image(self) -> tuple[dict[str, Any], bytes]:
        relocations = list(self.relocations())
        self.read_symbols()
        undefined = {s for _, kind, s, _ in relocations if kind == _CALL and self.outside(s)}
        tabled = {s for _, kind, s, _ in relocations if kind in _TABLE} | undefined
        end = self.place(0, lambda flags: flags & _EXEC)
        for s in sorted(undefined):
            self.stubs[s] = end = -(-end // 8) * 8
            end += _STUB.size
        end = self.place(end, lambda flags: not flags & (_EXEC | _WRITE))
        code = -(-end // _PAGE) * _PAGE if end else 0
        end = code
        # Addresses from without first: these are filled in one piece.
        for s in sorted(tabled, key=lambda s: (not self.outside(s), s)):
            self.slots[s] = end
            end += 8
        filled = end
        end = self.place(end, lambda flags: flags & _WRITE, _PROGBITS)
        end = max(self.place(end, lambda flags: flags & _WRITE, _NOBITS), filled)
        data, absolute = self.fill(end, relocations)
        exports = {
            name: self.places[section] + value
            for name, bind, section, value in self.symbols
            if bind in (_GLOBAL, _WEAK) and section in self.places
        }
        named = [(s[0], s[2]) for s in self.symbols if s[0] in exports and s[2] in self.places]
        head = {
            "exports": exports,
            "memory": [name for name, section in named if not self.sections[section][2] & _EXEC],
            "imports": [self.symbols[s][0] for s in self.slots if self.outside(s)],
            "own": [[p, self.value(s)] for s, p in self.slots.items() if not self.outside(s)],
            "absolute": absolute,
            "code": code,
            "size": max(1, -(-end // _PAGE)) * _PAGE,
        }
        return head, data

    def name(self, table: int, offset: int) -> str:
        start = table + offset
        return self.obj[start : self.obj.index(b"\0", start)].decode()

    def loads(self, section: tuple) -> bool:
        """Whether a section is part of the image: frames for unwinding are not."""
        loaded = section[1] in (_PROGBITS, _NOBITS) and section[2] & _ALLOC
        return bool(loaded) and self.name(self.names, section[0]) != ".eh_frame"

    def relocations(self) -> Iterator[tuple[tuple[int, int], int, int, int]]:
        """((section, offset), kind, symbol, addend) of all that is loaded."""
        for _, kind, _, _, start, size, _, target, _, _ in self.sections:
            if kind == _RELA and self.loads(self.sections[target]):
                for at in range(start, start + size, 24):
                    offset, info, addend = struct.unpack_from("<QQq", self.obj, at)
                    yield (target, offset), info & 0xFFFFFFFF, info >> 32, addend

    def read_symbols(self) -> None:
        tables = [s for s in self.sections if s[1] == _SYMTAB]
        if len(tables) != 1 or any(s[2] & _TLS for s in self.sections):
            raise _Unknown
        _, _, _, _, start, size, strings, _, _, _ = tables[0]
        for at in range(start, start + size, 24):
            name, info, _, section, value, _ = struct.unpack_from("<IBBHQQ", self.obj, at)
            text = self.name(self.sections[strings][4], name)
            self.symbols.append((text, info >> 4, section, value))

    def outside(self, symbol: int) -> bool:
        return self.symbols[symbol][2] == _UNDEFINED

    def value(self, symbol: int) -> int:
        """Where a symbol lies in the image."""
        _, _, section, value = self.symbols[symbol]
        if section not in self.places or section >= _RESERVED:
            raise _Unknown
        return self.places[section] + value

    def place(self, end: int, wanted: Any, kind: int | None = None) -> int:
        """Place the sections that are wanted; where they end."""
        for i, section in enumerate(self.sections):
            fits = kind in (None, section[1]) and self.loads(section) and wanted(section[2])
            if fits:
                align = max(1, section[8])
                if align > _PAGE:
                    raise _Unknown
                self.places[i] = end = -(-end // align) * align
                end += section[5]
        return end

    def fill(self, size: int, relocations: list) -> tuple[bytes, list]:
        """The image's bytes, and what is to be increased by its address."""
        data = bytearray(size)
        for i, place in self.places.items():
            _, kind, _, _, start, length, *_ = self.sections[i]
            if kind == _PROGBITS:
                data[place : place + length] = self.obj[start : start + length]
        for s, place in self.stubs.items():
            _STUB.pack_into(data, place, _JUMP, self.slots[s] - (place + 6))
        absolute = []
        for (section, offset), kind, symbol, addend in relocations:
            at = self.places[section] + offset
            if kind == _ABSOLUTE:
                absolute.append([at, self.value(symbol) + addend])
                continue
            if kind in _TABLE:
                to = self.slots[symbol]
            elif kind in (_NEAR, _CALL):
                called = kind == _CALL and symbol in self.stubs
                to = self.stubs[symbol] if called else self.value(symbol)
            else:
                raise _Unknown
            struct.pack_into("<i", data, at, to + addend - at)
        return bytes(data).rstrip(b"\0"), absolute


class Image:
    """An image in memory. `exports`: addresses of what it defines, `memory`: that isn't code."""

    def __init__(self, head: Mapping[str, Any], data: bytes, imports: list[int]):
        size, code = head["size"], head["code"]
        libc = _libc()
        base = libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, _PRIVATE, -1, 0)
        if base in (None, _MAP_FAILED):
            raise MemoryError(f"no room for {size} bytes of compiled code")
        self._base, self._size = base, size
        ctypes.memmove(base, data, len(data))
        ctypes.memmove(base + code, struct.pack(f"<{len(imports)}Q", *imports), 8 * len(imports))
        for at, offset in (*head["own"], *head["absolute"]):
            ctypes.c_uint64.from_address(base + at).value = base + offset
        if code and libc.mprotect(base, code, mmap.PROT_READ | mmap.PROT_EXEC):
            reason = os.strerror(ctypes.get_errno())
            self.close()
            raise RuntimeError(f"the system doesn't let compiled code run: {reason}")
        self.exports = {name: base + offset for name, offset in head["exports"].items()}
        self._own, self._table = head["own"], base + code
        self.memory = {name: self.exports[name] for name in head["memory"]}

    def __getitem__(self, name: str) -> int:
        return self.exports[name]

    def share(self, memory: Mapping[str, int]) -> None:
        """Have it use memory at these addresses for what it exports by these names."""
        moved = {self.exports[name] - self._base: to for name, to in memory.items()}
        for at, offset in self._own:
            if offset in moved:
                ctypes.c_uint64.from_address(self._base + at).value = moved[offset]

    def fill(self, addresses: list[int]) -> None:
        """Let the table of what it imports have other addresses."""
        for i, address in enumerate(addresses):
            ctypes.c_uint64.from_address(self._table + 8 * i).value = address

    def close(self) -> None:
        """Unmap it: nothing may run it any more."""
        base, self._base = self._base, 0
        if base:
            _libc().munmap(base, self._size)


class Turning:
    """What an image exports, at addresses that stay when the code becomes that of another image.

    Functions are jumps by a table. Memory stays where it was: the other image uses it.
    """

    def __init__(self, image: Image):
        self._images = [image]  # all of them: threads may still run the first
        self._names = [name for name in image.exports if name not in image.memory]
        size = 8 * len(self._names)
        code = -(-size // _PAGE) * _PAGE
        stubs = b"".join(_STUB.pack(_JUMP, code - 6) for _ in self._names)
        places = {name: 8 * i for i, name in enumerate(self._names)}
        empty: dict[str, list] = {"own": [], "absolute": [], "memory": []}
        head = {"exports": places, "code": code, "size": 2 * code, **empty}
        self._jumps = Image(head, stubs, [image[name] for name in self._names])
        self.exports = image.memory | self._jumps.exports

    def __getitem__(self, name: str) -> int:
        return self.exports[name]

    def turn(self, image: Image) -> None:
        """Go on with the code of another image of the same module."""
        first = self._images[0]
        self._images.append(image)
        image.share(first.memory)
        # What the module has for its own use may be gone from the other one.
        self._jumps.fill([image.exports.get(name, first[name]) for name in self._names])

    def close(self) -> None:
        """Unmap it all: nothing may run it any more."""
        for image in (self._jumps, *self._images):
            image.close()


def process_address(name: str) -> int:
    """The address of a function or variable of the libraries in this process, 0 if there is none.

    >>> process_address("malloc") != 0, process_address("fg_no_such_function")
    (True, 0)
    """
    try:
        return ctypes.cast(_libc()[name], ctypes.c_void_p).value or 0
    except AttributeError:
        return 0


_PRIVATE = getattr(mmap, "MAP_PRIVATE", 0) | getattr(mmap, "MAP_ANONYMOUS", 0)
_MAP_FAILED = ctypes.c_void_p(-1).value


@functools.cache
def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    pointer, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    libc.mmap.restype = pointer
    libc.mmap.argtypes = [pointer, size, number, number, number, ctypes.c_long]
    libc.munmap.argtypes, libc.mprotect.argtypes = [pointer, size], [pointer, size, number]
    return libc
