"""Saving: what each process takes hold of, what it writes, and how all agree that it is done.

Processes meet in the folder alone, by files: `shard_00001.done` says that process 1 has brought its
file to the disk and what is in it, `shard_00001.failed` why it could not. Process 0 waits for all,
writes the manifest and gives the folder its name; the others wait for that. So nothing here calls
MPI, and it can run on a thread beside a program that does.
"""

from __future__ import annotations

import json
import os
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from funcgrad import dtypes, tree
from funcgrad.core.array import Array
from funcgrad.core.places.device_array import DeviceArray
from funcgrad.core.trace import Tracer
from funcgrad.errors import CheckpointError, DTypeError
from funcgrad.io.checkpoints.files import STORED, ShardFile, write_shard
from funcgrad.io.checkpoints.folders import (
    Aside,
    discard,
    find,
    sweep,
    sync_folder,
    write_durably,
)
from funcgrad.io.checkpoints.manifest import (
    MANIFEST,
    SUM,
    Leaf,
    Manifest,
    Part,
    Piece,
    TensorLeaf,
    ValueLeaf,
    joined,
    manifest_texts,
    read_manifest,
)

_FAILED = "failed"
_SMALL = 1 << 16


@dataclass(frozen=True)
class Processes:
    """Who saves together.

    index, count: this process's number, and how many there are
    session: a text of 32 hexadecimal digits that is the same for all of them, and for no others
    """

    index: int
    count: int
    session: str


@dataclass(frozen=True)
class Snapshot:
    """What this process saves of a tree: all leaves, and the arrays of its own pieces.

    Arrays are held, not copied. To donate one in the meantime is safe: a compiled function that
    finds a donated buffer held by someone else works on a copy.
    """

    leaves: tuple[Leaf, ...]
    tensors: tuple[tuple[str, np.ndarray], ...]
    digests: dict[str, int]


def take(what: str, state: Any, processes: Processes, copy: bool) -> Snapshot:
    """Take hold of a tree.

    what: the operation, for errors
    copy: of NumPy arrays, which their owner may write to
    Raises TypeError with the path of a leaf that can't be saved.
    """
    file = _shard_name(processes.index)
    leaves: dict[str, Leaf] = {}
    tensors: list[tuple[str, np.ndarray]] = []
    digests = {}
    for keys, x in tree.leaves_with_path(state):
        path = tree.keystr(keys)
        if path in leaves:
            raise TypeError(f"{what}: two leaves of the tree have the same key path {path}")
        leaf, shards = _leaf(what, path, x)
        if isinstance(leaf, TensorLeaf):
            pieces = []
            for start, data in shards:
                stop = tuple(a + n for a, n in zip(start, data.shape, strict=True))
                name = path if data.shape == leaf.shape else _piece_name(path, start, stop)
                pieces.append(Piece(file, name, start, stop))
                if copy and isinstance(x, np.ndarray):
                    data = data.copy()
                tensors.append((name, data))
            if not _is_cut(x) and processes.count > 1:
                if tensors[-1][1].nbytes <= _SMALL:
                    digests[path] = zlib.crc32(tensors[-1][1].tobytes())
                if processes.index:  # all have it, the first one writes it
                    tensors.pop()
                    pieces.pop()
            leaf = replace(leaf, pieces=tuple(pieces))
        leaves[path] = leaf
    return Snapshot(tuple(leaves.values()), tuple(tensors), digests)


def _leaf(
    what: str, path: str, x: Any
) -> tuple[Leaf, Iterator[tuple[tuple[int, ...], np.ndarray]]]:
    """A leaf, and the pieces of it that this process writes: where they begin, their elements."""
    at = path or "the tree itself"
    if type(x) in (bool, int, float, str):
        try:
            ValueLeaf(path, x).to_json()
        except ValueError as e:
            raise TypeError(f"{what}: {at} can't be saved: {e}") from None
        return ValueLeaf(path, x), iter(())
    if isinstance(x, Tracer):
        raise TypeError(f"{what}: {at} is traced; save outside the transformed function")
    if not _is_cut(x) and not isinstance(x, np.ndarray | np.generic | Array):
        raise TypeError(
            f"{what}: {at} is a {type(x).__name__}; what can be saved are arrays, and values of "
            "the types bool, int, float, str and None"
        )
    try:
        dtype = dtypes.canonical(x.dtype)
    except DTypeError:
        dtype = x.dtype
    if dtype not in STORED:
        raise DTypeError(f"{what}: {at} has dtype {dtype}, which can't be saved")
    leaf = TensorLeaf(path, tuple(x.shape), dtype, bool(getattr(x, "weak_type", False)))
    if _is_cut(x):
        return leaf, _own_shards(x)
    whole = x.value if isinstance(x, Array) else np.asarray(x)
    return leaf, iter([((0,) * len(leaf.shape), whole)])


def _is_cut(x: Any) -> bool:
    """Whether an array is in parts on several devices."""
    return type(x) not in (Array, DeviceArray) and hasattr(type(x), "addressable_shards")


def _own_shards(x: Any) -> Iterator[tuple[tuple[int, ...], np.ndarray]]:
    for shard in x.addressable_shards:
        if shard.replica_id == 0:
            yield tuple(s.start or 0 for s in shard.index), np.asarray(shard.data)


def _shard_name(process: int) -> str:
    return f"shard_{process:05d}.safetensors"


def _piece_name(path: str, start: tuple[int, ...], stop: tuple[int, ...]) -> str:
    ranges = ",".join(f"{a}:{b}" for a, b in zip(start, stop, strict=True))
    return f"{path}@{ranges}"


@dataclass(frozen=True)
class Save:
    """One save of this process: what is saved, and where to."""

    aside: Aside
    snapshot: Snapshot
    processes: Processes
    step: int | None
    metadata: Any
    timeout: float

    def run(self) -> None:
        """Write this process's part and wait until the checkpoint is announced."""
        try:
            if self.processes.index == 0:
                self._lead()
            else:
                self._follow()
        except OSError as e:
            raise CheckpointError(f"saving {self.aside.base} failed: {e}") from e

    def _lead(self) -> None:
        self.aside.check()
        sweep(self.aside.base.parent, self.aside.base.name)
        self.aside.make()
        try:
            parts = [self._write_part()]
            parts += [self._part_of(k) for k in range(1, self.processes.count)]
            files, leaves = joined(parts)
            manifest = Manifest(
                self.aside.identity, self.step, len(parts), self.metadata, files, leaves
            )
            self._write_manifest(manifest)
            self.aside.publish()
        except BaseException as e:
            self._give_up(e)
            raise

    def _write_part(self) -> Part:
        snapshot = self.snapshot
        file: ShardFile | None = None
        if snapshot.tensors:
            path = self.aside.path / _shard_name(self.processes.index)
            file = write_shard(path, snapshot.tensors)
            sync_folder(self.aside.path)
        return Part(snapshot.leaves, file, snapshot.digests)

    def _write_manifest(self, manifest: Manifest) -> None:
        path = self.aside.path
        text, checksum = manifest_texts(manifest)
        for k in range(1, self.processes.count):
            self._note(k, "done").unlink()
        write_durably(path / SUM, checksum)
        write_durably(path / MANIFEST, text)  # the last: with it the checkpoint is complete

    def _give_up(self, error: BaseException) -> None:
        """Leave nothing behind but, for other processes, the reason."""
        path = self.aside.path
        self.aside.release()
        if self.processes.count == 1:
            discard(path)
            return
        try:
            # The manifest first: what is incomplete must not look complete. Notes that others may
            # be writing just now stay until the next sweep.
            (path / MANIFEST).unlink(missing_ok=True)
            for file in path.glob("*.safetensors"):
                file.unlink(missing_ok=True)
            write_durably(path / _FAILED, str(error).encode())
        except OSError:
            discard(path)

    def _follow(self) -> None:
        process = self.processes.index
        self._wait(self.aside.path.is_dir, "process 0 to begin")
        try:
            part = json.dumps(self._write_part().to_json()).encode()
            write_durably(self._note(process, "done"), part)
        except OSError as e:
            self._announced()  # raises if process 0 gave up, and deleted what is here
            self._report(e)
            raise
        self._wait(self._announced, "process 0 to announce the checkpoint")

    def _report(self, error: OSError) -> None:
        """Tell process 0, if that can be written."""
        try:
            (self.aside.path / _shard_name(self.processes.index)).unlink(missing_ok=True)
            write_durably(self._note(self.processes.index, _FAILED), str(error).encode())
        except OSError:
            pass

    def _announced(self) -> bool:
        """Whether the checkpoint is complete; raises where process 0 gave up."""
        failed = self.aside.path / _FAILED
        if failed.exists():
            reason = failed.read_text(errors="replace")
            raise CheckpointError(f"saving {self.aside.base} failed in process 0: {reason}")
        if self.aside.path.exists():
            return False
        found = find(self.aside.base)
        if found is None or read_manifest(found).id != self.aside.identity:
            raise CheckpointError(
                f"{self.aside.base} was not saved: process 0 gave up, and {self.aside.path} is gone"
            )
        return True

    def _part_of(self, process: int) -> Part:
        done, failed = self._note(process, "done"), self._note(process, _FAILED)
        self._wait(lambda: done.exists() or failed.exists(), f"process {process} to write its part")
        if failed.exists():
            reason = failed.read_text(errors="replace")
            raise CheckpointError(f"saving {self.aside.base} failed in process {process}: {reason}")
        return Part.parse(json.loads(done.read_bytes()))

    def _note(self, process: int, kind: str) -> Path:
        return self.aside.path / f"shard_{process:05d}.{kind}"

    def _wait(self, ready: Callable[[], bool], what: str) -> None:
        """Wait until something is so, for as long as the folder still grows."""
        size, since, pause = -1, time.monotonic(), 0.001
        while not ready():
            now = _bytes_in(self.aside.path)
            if now != size:
                size, since = now, time.monotonic()
            if time.monotonic() - since > self.timeout:
                raise CheckpointError(
                    f"saving {self.aside.base}: process {self.processes.index} has waited for "
                    f"{what} for {self.timeout:g} seconds in which nothing was written"
                )
            time.sleep(pause)
            pause = min(2 * pause, 0.1)


def _bytes_in(folder: Path) -> int:
    total = 0
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                total += entry.stat().st_size + 1
    except OSError:  # not there yet, or gone already
        pass
    return total
