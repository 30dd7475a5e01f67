"""Loading: each device's part of each array, from the pieces that overlap it, whatever the mesh."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from funcgrad import dtypes, tree
from funcgrad.core.array import Array
from funcgrad.core.places.sharded import ShardedArray
from funcgrad.core.shapes import ShapeDtypeStruct
from funcgrad.core.sharding import NamedSharding
from funcgrad.errors import CheckpointError
from funcgrad.io.checkpoints.files import ShardReader
from funcgrad.io.checkpoints.manifest import (
    Leaf,
    Manifest,
    TensorLeaf,
    ValueLeaf,
    overlap,
    read_manifest,
)
from funcgrad.parallel.arrays import make_array_from_callback

_OPEN_FILES = 32


class Source:
    """A checkpoint that is open for reading."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.manifest: Manifest = read_manifest(folder)
        self._readers: OrderedDict[str, ShardReader] = OrderedDict()

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *exc: object) -> None:
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()

    def reader(self, name: str) -> ShardReader:
        """The reader of a file; the ones used last stay open."""
        if name not in self._readers:
            if len(self._readers) >= _OPEN_FILES:
                self._readers.popitem(last=False)[1].close()
            self._readers[name] = ShardReader(self.folder, self.manifest.files[name])
        self._readers.move_to_end(name)
        return self._readers[name]

    def region(self, leaf: TensorLeaf, lo: Sequence[int], hi: Sequence[int]) -> np.ndarray:
        """The elements lo to hi of an array, from the pieces that have some of them."""
        out = np.empty([b - a for a, b in zip(lo, hi, strict=True)], leaf.dtype)
        for p in leaf.pieces:
            shared = overlap(lo, hi, p.start, p.stop)
            if shared is not None:
                a, b = shared
                shape = [y - x for x, y in zip(p.start, p.stop, strict=True)]
                begin = [x - y for x, y in zip(a, p.start, strict=True)]
                place = tuple(slice(x - o, y - o) for x, y, o in zip(a, b, lo, strict=True))
                part: Any = (*place, ...)  # with ... it is a view of 0-d arrays, too
                self.reader(p.file).read(p.tensor, leaf.dtype, shape, begin, out[part])
        return out

    def check_all(self) -> None:
        """Check every byte of every file."""
        for name in self.manifest.files:
            self.reader(name).check_all()


def load_tree(what: str, source: Source, like: Any, partial: bool) -> Any:
    """The saved tree, in the structure of `like`, each array cut as there.

    Raises CheckpointError, with the key path, where the two differ in leaves, shapes or dtypes.
    """
    leaves, treedef = tree.flatten_with_path(like)
    wanted = [(tree.keystr(keys), x) for keys, x in leaves]
    saved = source.manifest.leaves
    missing = [path for path, _ in wanted if path not in saved]
    extra = [] if partial else sorted(set(saved) - {path for path, _ in wanted})
    if missing or extra:
        raise CheckpointError(_difference(what, source.folder, missing, extra))
    for path, x in wanted:
        _check(what, source.folder, path, saved[path], x)
    return treedef.unflatten([_value(source, saved[path], x) for path, x in wanted])


def _difference(what: str, folder: Path, missing: list[str], extra: list[str]) -> str:
    def some(paths: list[str]) -> str:
        more = f" and {len(paths) - 5} more" if len(paths) > 5 else ""
        return ", ".join(p or "the tree itself" for p in paths[:5]) + more

    parts = []
    if missing:
        parts.append(f"lacks {some(missing)}, which `like` has")
    if extra:
        hint = "" if missing else "; partial=True leaves them out"
        parts.append(f"has {some(extra)}, which `like` lacks{hint}")
    return f"{what}: {folder} {', and '.join(parts)}"


def _check(what: str, folder: Path, path: str, saved: Leaf, like: Any) -> None:
    at = path or "the tree itself"
    if type(like) in (bool, int, float, str):
        wanted = f"a Python {type(like).__name__}"
        same = isinstance(saved, ValueLeaf) and type(saved.value) is type(like)
    elif isinstance(like, Array | np.ndarray | np.generic | ShapeDtypeStruct) or (
        hasattr(like, "shape") and hasattr(like, "dtype")
    ):
        dtype = dtypes.canonical(like.dtype)
        wanted = f"{dtype.name} of shape {tuple(like.shape)}"
        same = isinstance(saved, TensorLeaf) and (saved.shape, saved.dtype) == (
            tuple(like.shape),
            dtype,
        )
    else:
        raise TypeError(
            f"{what}: {at} of `like` is a {type(like).__name__}; it takes arrays, "
            "ShapeDtypeStructs, and values of the types bool, int, float, str and None"
        )
    if not same:
        raise CheckpointError(
            f"{what}: {at} is {saved.kind()} in {folder}, `like` has {wanted} there"
        )


def _value(source: Source, saved: Leaf, like: Any) -> Any:
    if isinstance(saved, ValueLeaf):
        return saved.value
    sharding = getattr(like, "sharding", None)
    if isinstance(sharding, NamedSharding):
        return _sharded(source, saved, sharding)
    whole = source.region(saved, (0,) * len(saved.shape), saved.shape)
    if isinstance(like, np.generic):
        return whole[()]
    return whole if isinstance(like, np.ndarray) else Array(whole, saved.weak_type)


def _sharded(source: Source, saved: TensorLeaf, sharding: NamedSharding) -> ShardedArray:
    def part(index: tuple[slice, ...]) -> np.ndarray:
        return source.region(saved, [s.start for s in index], [s.stop for s in index])

    out = make_array_from_callback(saved.shape, sharding, part, saved.dtype)
    if not saved.weak_type:
        return out
    return ShardedArray(out.buffer, out.aval.update(weak_type=True), sharding)
