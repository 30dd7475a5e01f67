"""The file of a program: a zip archive of stored entries, each at a multiple of 64 bytes.

`manifest.json` says which version of the format it is and the SHA-256 of each other entry; it is
checked by the archive's own CRC. As nothing is compressed, what is read is as large as the file.
docs/export.md describes the format.
"""

from __future__ import annotations

import hashlib
import io
import json
import struct
import zipfile
from collections.abc import Mapping
from typing import Any

from funcgrad.errors import FormatError

FORMAT = "funcgrad program"
# (major, minor): a reader reads its own major, of any minor that asks for no newer reader.
VERSION = (1, 0)
READER_NEEDED = (1, 0)
MANIFEST = "manifest.json"
ENTRIES = ("program.json", "weights.safetensors", "samples.safetensors")

_ALIGNMENT = 64
_LOCAL_HEADER = 30
_PADDING = struct.Struct("<HH")
_PADDING_ID = 0xFA67  # of the extra field that only fills up
_ZIP64 = 1 << 31  # entries this long have another extra field, of 20 bytes
_MOST_MANIFEST = 1 << 20


def pack(entries: Mapping[str, bytes]) -> bytes:
    """The archive of these entries, the same bytes for the same entries.

    >>> unpack(pack({"program.json": b"{}"}))["program.json"]
    b'{}'
    """
    listed = {
        name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        for name, data in entries.items()
    }
    manifest = {
        "format": FORMAT, "version": list(VERSION), "reader_needed": list(READER_NEEDED),
        "entries": listed,
    }  # fmt: skip
    text = json.dumps(manifest, indent=1).encode()
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, data in {MANIFEST: text, **entries}.items():
            info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            large = len(data) >= _ZIP64
            start = file.tell() + _LOCAL_HEADER + len(name) + 20 * large + _PADDING.size
            zeros = -start % _ALIGNMENT
            info.extra = _PADDING.pack(_PADDING_ID, zeros) + bytes(zeros)
            with archive.open(info, "w", force_zip64=large) as entry:
                entry.write(data)
    return file.getvalue()


def unpack(blob: bytes) -> dict[str, bytes]:
    """The entries of an archive, all of which are as the manifest says.

    Raises FormatError for anything else.
    """
    try:
        found = _read(blob)
    except FormatError:
        raise
    except Exception as e:  # zipfile raises many classes for what is no archive
        raise FormatError(
            f"this is no {FORMAT}, or it is damaged: {type(e).__name__}: {e}"
        ) from None
    manifest = _manifest(found.pop(MANIFEST, b""))
    if found.keys() != manifest.keys():
        odd = sorted(found.keys() ^ manifest.keys())[:3]
        raise FormatError(f"the archive and its manifest differ in the entries {odd}")
    for name, data in found.items():
        if manifest[name] != {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}:
            raise FormatError(f"{name} is damaged: it differs from its checksum in the manifest")
    return found


def _read(blob: bytes) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    with zipfile.ZipFile(io.BytesIO(blob)) as archive:
        for info in archive.infolist():
            name = info.filename
            if name in found or name not in (MANIFEST, *ENTRIES):
                raise FormatError(f"the archive has an entry {name[:80]!r} that doesn't belong")
            if info.compress_type != zipfile.ZIP_STORED or info.file_size > len(blob):
                raise FormatError(f"{name} isn't stored as it is")
            found[name] = archive.read(info)
    return found


def _manifest(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text) if len(text) < _MOST_MANIFEST else None
    except (ValueError, RecursionError):
        found = None
    if type(found) is not dict or found.get("format") != FORMAT:
        raise FormatError(f"this is no {FORMAT}: its {MANIFEST} doesn't say so")
    version: Any = found.get("version")
    needed: Any = found.get("reader_needed")
    if not (_is_version(version) and _is_version(needed) and type(found.get("entries")) is dict):
        raise FormatError(f"the {MANIFEST} lacks a version, or its entries")
    if needed[0] != VERSION[0] or tuple(needed) > VERSION:
        raise FormatError(
            f"the file has version {_dotted(version)} of the format and needs a reader of "
            f"{_dotted(needed)}; this funcgrad reads {_dotted(VERSION)}"
        )
    return found["entries"]


def _is_version(x: Any) -> bool:
    return type(x) is list and len(x) == 2 and all(type(n) is int and n >= 0 for n in x)


def _dotted(version: Any) -> str:
    return ".".join(map(str, version))
