"""The manifest of a checkpoint: which leaves it holds, and in which pieces of which files.

It is JSON, read back with every field checked, and nothing of it is ever evaluated. Beside it lies
its own checksum, as `sha256sum -c` reads it. docs/checkpoints.md describes the format.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from funcgrad import dtypes
from funcgrad.core.shapes import ShapeDtypeStruct
from funcgrad.errors import CheckpointError
from funcgrad.io.checkpoints.files import STORED, ShardFile, is_size, volume

FORMAT, VERSION = "funcgrad checkpoint", 1
MANIFEST, SUM = "manifest.json", "manifest.sha256"
_FILE_NAME = re.compile(r"shard_\d{5,}\.safetensors")
_EXACT = 2**53  # integers above are no numbers to most readers of JSON

Plain = bool | int | float | str


@dataclass(frozen=True)
class Piece:
    """A part of an array, elements start to stop along each axis: a tensor of a file."""

    file: str
    tensor: str
    start: tuple[int, ...]
    stop: tuple[int, ...]


@dataclass(frozen=True)
class TensorLeaf:
    """An array: its type and its pieces, which cover it without overlap."""

    path: str
    shape: tuple[int, ...]
    dtype: np.dtype
    weak_type: bool
    pieces: tuple[Piece, ...] = ()

    def kind(self) -> str:
        """What the leaf is, in words."""
        return f"{self.dtype.name} of shape {self.shape}"

    def describe(self) -> ShapeDtypeStruct:
        """The leaf without its value."""
        return ShapeDtypeStruct(self.shape, self.dtype, weak_type=self.weak_type)

    def to_json(self) -> dict:
        """The leaf as the manifest has it."""
        pieces = [
            {"file": p.file, "tensor": p.tensor, "start": list(p.start), "stop": list(p.stop)}
            for p in self.pieces
        ]
        return {
            "path": self.path, "dtype": self.dtype.name, "stored": STORED[self.dtype],
            "shape": list(self.shape), "weak_type": self.weak_type, "pieces": pieces,
        }  # fmt: skip


@dataclass(frozen=True)
class ValueLeaf:
    """A plain value: bool, int, float or str."""

    path: str
    value: Plain

    def kind(self) -> str:
        """What the leaf is, in words."""
        return f"a Python {type(self.value).__name__}"

    def describe(self) -> Plain:
        """The value."""
        return self.value

    def to_json(self) -> dict:
        """The leaf as the manifest has it: as a text where a JSON number would not be exact."""
        value: Any = self.value
        if (type(value) is float and not math.isfinite(value)) or (
            type(value) is int and abs(value) >= _EXACT
        ):
            value = str(value)
        return {"path": self.path, "type": type(self.value).__name__, "value": value}


Leaf = TensorLeaf | ValueLeaf


@dataclass(frozen=True)
class Manifest:
    """What one checkpoint holds."""

    id: str
    step: int | None
    processes: int
    metadata: Any
    files: Mapping[str, ShardFile]
    leaves: Mapping[str, Leaf] = field(repr=False)

    def to_json(self) -> dict:
        """The manifest as JSON's types."""
        return {
            "format": FORMAT, "version": VERSION, "id": self.id, "step": self.step,
            "processes": self.processes, "metadata": self.metadata,
            "files": [file_to_json(f) for f in self.files.values()],
            "leaves": [leaf.to_json() for leaf in self.leaves.values()],
        }  # fmt: skip


def file_to_json(f: ShardFile) -> dict:
    """The record of a file as the manifest has it."""
    sums = [f"{c:08x}" for c in f.crc32]
    return {"name": f.name, "bytes": f.nbytes, "block_bytes": f.block, "crc32": sums}


def manifest_texts(manifest: Manifest) -> tuple[bytes, bytes]:
    """The bytes of the manifest and of the file with its checksum."""
    lines = []
    for name, value in manifest.to_json().items():
        if name in ("files", "leaves"):  # a line for each
            each = ",\n  ".join(json.dumps(x) for x in value)
            lines.append(f'"{name}": [\n  {each}\n ]')
        else:
            lines.append(f'"{name}": {json.dumps(value, allow_nan=False)}')
    text = ("{" + ",\n ".join(lines) + "}\n").encode()
    return text, f"{hashlib.sha256(text).hexdigest()}  {MANIFEST}\n".encode()


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a checkpoint.

    Raises CheckpointError, which names the file, where it is missing, differs from its checksum, or
    says something that can't be.
    """
    path = folder / MANIFEST
    text, recorded = _read(path), _read(folder / SUM).decode("ascii", "replace")
    found = hashlib.sha256(text).hexdigest()
    if recorded != f"{found}  {MANIFEST}\n":
        raise CheckpointError(
            f"{path}: corrupt: its SHA-256 is {found}, {folder / SUM} says {recorded.strip()!r}"
        )
    try:
        return parse_manifest(json.loads(text))
    except CheckpointError as e:
        raise CheckpointError(f"{path}: {e}") from None
    except (ValueError, RecursionError) as e:
        raise CheckpointError(f"{path}: no JSON: {e}") from e


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as e:
        raise CheckpointError(f"{path}: can't be read: {e.strerror}") from e


def parse_manifest(found: Any) -> Manifest:
    """The manifest from JSON's types, each field checked."""
    top = _Fields(found, "the manifest")
    if top("format", lambda x: True) != FORMAT:
        raise CheckpointError(f"no manifest of a checkpoint: format is {found['format']!r}")
    version = top("version", is_size)
    if version != VERSION:
        raise CheckpointError(f"format version {version}; this funcgrad reads {VERSION}")
    records = [parse_file(f) for f in top("files", _is_list)]
    files = {f.name: f for f in records}
    leaves = [parse_leaf(leaf) for leaf in top("leaves", _is_list)]
    by_path = {leaf.path: leaf for leaf in leaves}
    if len(files) != len(records) or len(by_path) != len(leaves):
        raise CheckpointError("the manifest names a file or a leaf twice")
    for leaf in leaves:
        if isinstance(leaf, TensorLeaf):
            check_pieces(leaf)
            for piece in leaf.pieces:
                if piece.file not in files:
                    raise CheckpointError(f"{leaf.path} is in {piece.file}, which isn't listed")
    return Manifest(
        top("id", _is_text),
        top("step", lambda x: x is None or is_size(x)),
        top("processes", is_size),
        top("metadata", lambda x: True),
        files,
        by_path,
    )


class _Fields:
    """The fields of a JSON object, each with a check."""

    def __init__(self, found: Any, what: str):
        if not isinstance(found, dict):
            raise CheckpointError(f"{what} must be a JSON object, found {_short(found)}")
        self._found, self._what = found, what

    def __contains__(self, name: str) -> bool:
        return name in self._found

    def __call__(self, name: str, ok: Callable[[Any], bool]) -> Any:
        if name not in self._found:
            raise CheckpointError(f"{self._what} lacks the field {name!r}")
        value = self._found[name]
        if not ok(value):
            raise CheckpointError(f"the field {name!r} of {self._what} can't be {_short(value)}")
        return value


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "…"


def _is_list(x: Any) -> bool:
    return isinstance(x, list)


def _is_text(x: Any) -> bool:
    return isinstance(x, str)


def _is_sizes(x: Any) -> bool:
    return isinstance(x, list) and all(map(is_size, x))


def parse_file(found: Any) -> ShardFile:
    """The record of a file from JSON's types."""
    fields = _Fields(found, "a file")
    name = fields("name", lambda x: _is_text(x) and bool(_FILE_NAME.fullmatch(x)))
    nbytes = fields("bytes", is_size)
    block = fields("block_bytes", lambda x: is_size(x) and x > 0)
    texts = fields("crc32", lambda x: _is_list(x) and all(map(_is_crc, x)))
    if len(texts) != -(-nbytes // block):
        raise CheckpointError(f"{name} of {nbytes} bytes has {len(texts)} checksums")
    return ShardFile(name, nbytes, tuple(int(t, 16) for t in texts), block)


def _is_crc(x: Any) -> bool:
    return _is_text(x) and bool(re.fullmatch("[0-9a-f]{8}", x))


def parse_leaf(found: Any) -> Leaf:
    """A leaf from JSON's types."""
    path = _Fields(found, "a leaf")("path", _is_text)
    fields = _Fields(found, f"the leaf {path or 'at the top'}")
    if "type" in fields:
        return ValueLeaf(path, _parse_value(fields))
    dtype = fields("dtype", lambda x: _is_text(x) and x in {d.name for d in STORED})
    shape = tuple(fields("shape", _is_sizes))
    pieces = []
    for piece in fields("pieces", _is_list):
        each = _Fields(piece, f"a piece of {path or 'the leaf at the top'}")
        start, stop = each("start", _is_sizes), each("stop", _is_sizes)
        file, tensor = each("file", _is_text), each("tensor", _is_text)
        pieces.append(Piece(file, tensor, tuple(start), tuple(stop)))
    weak = fields("weak_type", lambda x: isinstance(x, bool))
    return TensorLeaf(path, shape, dtypes.canonical(dtype), weak, tuple(pieces))


def _parse_value(fields: _Fields) -> Plain:
    kind = fields("type", lambda x: x in ("bool", "int", "float", "str"))
    if kind == "bool":
        return fields("value", lambda x: isinstance(x, bool))
    if kind == "str":
        return fields("value", _is_text)
    value = fields("value", lambda x: type(x) in (int, float, str))
    try:
        return int(value) if kind == "int" else float(value)
    except (ValueError, OverflowError):
        raise CheckpointError(f"{_short(value)} is no {kind}") from None


def check_pieces(leaf: TensorLeaf) -> None:
    """Raise where pieces of an array lie outside it, overlap, or leave a gap."""
    rank, name = len(leaf.shape), leaf.path or "the leaf at the top"
    for p in leaf.pieces:
        corners = len(p.start) == len(p.stop) == rank
        if not corners or not all(
            a <= b <= n for a, b, n in zip(p.start, p.stop, leaf.shape, strict=True)
        ):
            raise CheckpointError(
                f"a piece of {name} from {p.start} to {p.stop} lies outside shape {leaf.shape}"
            )
    covered = sum(volume(p.start, p.stop) for p in leaf.pieces)
    if covered != math.prod(leaf.shape):
        raise CheckpointError(
            f"the pieces of {name} hold {covered} elements of {math.prod(leaf.shape)}"
        )
    # With the volumes equal, pieces that are apart leave no gap. Sorted along the axis that is cut
    # most, a piece can overlap only those that begin before it ends.
    pieces = [p for p in leaf.pieces if volume(p.start, p.stop)]
    axis = max(range(rank), key=lambda a: len({p.start[a] for p in pieces}), default=None)
    if axis is not None:
        pieces.sort(key=lambda p: p.start[axis])
    for i, p in enumerate(pieces):
        for q in islice(pieces, i + 1, None):
            if axis is not None and q.start[axis] >= p.stop[axis]:
                break
            if overlap(p.start, p.stop, q.start, q.stop):
                raise CheckpointError(f"pieces of {name} overlap: {_range(p)} and {_range(q)}")


def _range(p: Piece) -> str:
    return f"{p.start} to {p.stop} in {p.file}"


def overlap(
    a0: Sequence[int], a1: Sequence[int], b0: Sequence[int], b1: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """The corners of what two boxes share, None where they share no element.

    >>> overlap((0, 0), (2, 2), (1, 0), (3, 1))
    ((1, 0), (2, 1))
    """
    lo, hi = tuple(map(max, a0, b0)), tuple(map(min, a1, b1))
    return (lo, hi) if volume(lo, hi) else None


@dataclass(frozen=True)
class Part:
    """What one process has of a checkpoint: all leaves, of arrays its own pieces, and its file."""

    leaves: tuple[Leaf, ...]
    file: ShardFile | None
    digests: Mapping[str, int] = field(default_factory=dict)  # of small arrays that all have

    def to_json(self) -> dict:
        """The part as JSON's types."""
        return {
            "leaves": [leaf.to_json() for leaf in self.leaves],
            "file": None if self.file is None else file_to_json(self.file),
            "digests": dict(self.digests),
        }

    @staticmethod
    def parse(found: Any) -> Part:
        """The part from JSON's types."""
        fields = _Fields(found, "a process's part")
        file = fields("file", lambda x: True)
        digests = fields("digests", lambda x: isinstance(x, dict))
        leaves = tuple(parse_leaf(leaf) for leaf in fields("leaves", _is_list))
        return Part(leaves, None if file is None else parse_file(file), digests)


def joined(parts: Sequence[Part]) -> tuple[dict[str, ShardFile], dict[str, Leaf]]:
    """The files and leaves of all processes together.

    Raises CheckpointError, with the key path, where processes save different trees, or where no
    process has a piece of an array.
    """
    first = parts[0]
    for i, other in enumerate(parts[1:], 1):
        _check_same(first, other, i)
    leaves: dict[str, Leaf] = {}
    for place, leaf in enumerate(first.leaves):
        if isinstance(leaf, TensorLeaf):
            pieces = _pieces_of(place, parts)
            leaf = TensorLeaf(leaf.path, leaf.shape, leaf.dtype, leaf.weak_type, pieces)
            check_pieces(leaf)
        leaves[leaf.path] = leaf
    return {p.file.name: p.file for p in parts if p.file is not None}, leaves


def _pieces_of(place: int, parts: Iterable[Part]) -> tuple[Piece, ...]:
    each = [p.leaves[place] for p in parts]
    return tuple(q for leaf in each if isinstance(leaf, TensorLeaf) for q in leaf.pieces)


def _check_same(first: Part, other: Part, process: int) -> None:
    differ = f"processes 0 and {process} save different trees: "
    for a, b in zip(first.leaves, other.leaves, strict=False):
        if a.path != b.path:
            raise CheckpointError(f"{differ}{a.path!r} in one, {b.path!r} in the other")
        if a.kind() != b.kind():
            raise CheckpointError(f"{differ}{a.path} is {a.kind()}, and {b.kind()}")
        values = isinstance(a, ValueLeaf) and isinstance(b, ValueLeaf)
        if (values and a.to_json() != b.to_json()) or (
            first.digests.get(a.path) != other.digests.get(a.path)
        ):
            raise CheckpointError(
                f"{a.path} differs between processes 0 and {process}, and only one value can be "
                "saved: gather what each process has into one array"
            )
    if len(first.leaves) != len(other.leaves):
        raise CheckpointError(f"{differ}{len(first.leaves)} leaves, and {len(other.leaves)} leaves")
