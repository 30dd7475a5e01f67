"""Tables larger than memory: rows in files, those in use in a cache that is trained as a table.

What is pushed out of the cache goes to a second file; the first one keeps what `save` saved last.
A save is written aside, announced by one rename, and then put into the first file; if the process
dies meanwhile, that is done when the table is opened again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import dtypes
from funcgrad.errors import ArgumentError, CheckpointError, OutOfBoundsError
from funcgrad.transforms.jit.jit import jit

_DESCRIPTION, _JOURNAL, _STATE = "table.json", "journal.npz", "state.npz"


def create_disk_table(
    folder: str | os.PathLike,
    rows: int,
    columns: Mapping[str, tuple[int, ...]],
    begin: Mapping[str, Callable[[int, int], Any]] | None = None,
    dtype: Any = "float32",
) -> None:
    """Make the files of a table in a new folder.

    columns: by name the shape of what each row has, as {"rows": (16,), "sum": ()} for a table of 16
    columns with row-wise Adagrad's sums; begin: by name a function from the first row and the one
    behind the last to these rows; zeros otherwise, which take no room until they are written.
    dtype: of all, or by name: {"values": "uint8", "scales": "float32"} for rows of 4 bits, of which
    `QuantizedTable(cache["values"], cache["scales"], bits=4)` is looked up.

    >>> import tempfile
    >>> from funcgrad import recsys
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     recsys.create_disk_table(folder + "/ad", 10**6, {"rows": (16,)})
    ...     recsys.DiskTable(folder + "/ad", cache=100).cache["rows"].shape
    (100, 16)
    """
    base = Path(folder)
    if (base / _DESCRIPTION).exists():
        raise CheckpointError(f"recsys.create_disk_table: {base} has a table already")
    if rows < 1 or not columns:
        raise ArgumentError(
            f"recsys.create_disk_table: need rows and columns, got {rows} and {dict(columns)}"
        )
    kinds = dtype if isinstance(dtype, Mapping) else dict.fromkeys(columns, dtype)
    if set(kinds) != set(columns):
        raise ArgumentError(
            f"recsys.create_disk_table: dtypes are for {sorted(kinds)}, columns are "
            f"{sorted(columns)}"
        )
    base.mkdir(parents=True, exist_ok=True)
    for name, shape in columns.items():
        kind = dtypes.canonical(kinds[name])
        made = np.lib.format.open_memmap(base / f"{name}.npy", "w+", kind, (rows, *shape))
        if begin is not None and name in begin:
            for start in range(0, rows, 65536):
                stop = min(start + 65536, rows)
                made[start:stop] = np.asarray(begin[name](start, stop))
        made.flush()
    shapes = {k: list(v) for k, v in columns.items()}
    text = json.dumps({"rows": rows, "columns": shapes}).encode()
    _write(base / _DESCRIPTION, lambda file: file.write(text))


class DiskTable:
    """A table in files and the cache of its rows that are in use, by how often they are.

    cache: by name the (cache, …) arrays, which are trained: `slots` gives the places of ids in
    them, after it has brought their rows in; what is computed is put back by `table.cache = …`.
    hits, misses: how many ids had their rows there, and how many hadn't. An object with state, as
    files are: it isn't a tree.

    Raises CheckpointError for a folder without a table.

    >>> import tempfile
    >>> from funcgrad import recsys
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     recsys.create_disk_table(folder, 1000, {"rows": (2,)})
    ...     table = recsys.DiskTable(folder, cache=4)
    ...     slots = table.slots(np.array([7, 900, 7]))
    ...     table.cache = {"rows": table.cache["rows"].at[slots].add(1.0)}
    ...     table.save()
    ...     recsys.DiskTable(folder, cache=4).read([7, 8])["rows"].tolist()
    [[2.0, 2.0], [0.0, 0.0]]
    """

    def __init__(self, folder: str | os.PathLike, cache: int):
        self.folder = Path(folder)
        try:
            description = json.loads((self.folder / _DESCRIPTION).read_bytes())
        except (OSError, ValueError) as error:
            raise CheckpointError(f"recsys.DiskTable: {folder} has no table: {error}") from None
        if cache < 1:
            raise ArgumentError(f"recsys.DiskTable: cache must be 1 or more rows, got {cache}")
        self.rows = int(description["rows"])
        names = list(description["columns"])
        self._saved = {k: self._open(f"{k}.npy", "r+") for k in names}
        self._recover()
        # What left the cache since the last save: a file with holes, begun anew.
        self._later = {}
        for name, saved in self._saved.items():
            path = self.folder / f"{name}.later.npy"
            self._later[name] = np.lib.format.open_memmap(path, "w+", saved.dtype, saved.shape)
        self._moved = np.zeros(self.rows, bool)
        self.cache = {k: fnp.zeros((cache, *v.shape[1:]), v.dtype) for k, v in self._saved.items()}
        self._ids = np.full(cache, -1, np.int64)
        self._uses = np.zeros(cache, np.int64)
        self._slot: dict[int, int] = {}
        self.hits = self.misses = 0

    def _open(self, name: str, mode: Any) -> np.memmap:
        try:
            return np.lib.format.open_memmap(self.folder / name, mode)
        except (OSError, ValueError) as error:
            raise CheckpointError(f"recsys.DiskTable: {self.folder / name}: {error}") from None

    def slots(self, ids: Any) -> np.ndarray:
        """The places (int32) of ids in the cache, where their rows are now.

        Rows that are least often used go out for those that come in. Raises OutOfBoundsError for
        ids that are no rows, ArgumentError for more different ones than the cache holds.
        """
        ids = self._checked("slots", ids)
        found, inverse, counts = np.unique(ids, return_inverse=True, return_counts=True)
        if len(found) > len(self._ids):
            raise ArgumentError(
                f"recsys.DiskTable.slots: {len(found)} different ids don't fit into a cache of "
                f"{len(self._ids)} rows"
            )
        places = np.array([self._slot.get(i, -1) for i in found.tolist()], np.int64)
        there = places >= 0
        self.hits += int(counts[there].sum())
        self.misses += int(counts[~there].sum())
        places[~there] = self._bring(found[~there], places[there])
        self._uses[places] += counts
        return places[inverse].reshape(ids.shape).astype(np.int32)

    def _bring(self, ids: np.ndarray, needed: np.ndarray) -> np.ndarray:
        """Rows into the cache, over those least used that nobody needs now; their places."""
        if not len(ids):
            return ids
        uses = np.where(self._ids < 0, -1, self._uses)
        uses[needed] = np.iinfo(np.int64).max
        places = np.argsort(uses, kind="stable")[: len(ids)]
        self._push(places)
        rows = self.read(ids)
        self.cache = {k: _put(v, places, rows[k]) for k, v in self.cache.items()}
        self._ids[places], self._uses[places] = ids, 0
        self._slot.update(zip(ids.tolist(), places.tolist(), strict=True))
        return places

    def _push(self, places: np.ndarray) -> None:
        """Rows out of the cache, into the file of later ones."""
        places = places[self._ids[places] >= 0]
        ids = self._ids[places]
        for name, x in self.cache.items():
            self._later[name][ids] = np.asarray(x)[places]
        self._moved[ids] = True
        for i in ids.tolist():
            del self._slot[i]
        self._ids[places] = -1

    def read(self, ids: Any) -> dict[str, np.ndarray]:
        """Rows by name as they are now, whether in the cache or not."""
        ids = self._checked("read", ids)
        out = {}
        for name, saved in self._saved.items():
            rows = saved[ids]
            later = self._moved[ids]
            rows[later] = self._later[name][ids[later]]
            out[name] = rows
        places = np.array([self._slot.get(i, -1) for i in ids.ravel().tolist()], np.int64)
        places = places.reshape(ids.shape)
        for name, x in self.cache.items():
            if (places >= 0).any():
                out[name][places >= 0] = np.asarray(x)[places[places >= 0]]
        return out

    def save(self, state: Mapping[str, Any] | None = None) -> None:
        """Make what is there what will be there after a crash.

        state: arrays by name that belong with the rows (a step's number, a hash's state, dense
        parameters): they are saved with them or not at all, and `state` gives them again.
        """
        changed = np.union1d(np.flatnonzero(self._moved), self._ids[self._ids >= 0])
        arrays: dict[str, Any] = {"ids": changed}
        arrays |= {f"column_{k}": v for k, v in self.read(changed).items()}
        arrays |= {f"state_{k}": np.asarray(v) for k, v in (state or {}).items()}
        _write(self.folder / _JOURNAL, lambda file: np.savez(file, **arrays))
        self._recover()
        self._moved[:] = False

    @property
    def state(self) -> dict[str, np.ndarray]:
        """What was last saved with the rows; nothing before that."""
        path = self.folder / _STATE
        if not path.exists():
            return {}
        with np.load(path, allow_pickle=False) as kept:
            return dict(kept.items())

    def _recover(self) -> None:
        """Put what a finished journal has into the first file; to do so twice changes nothing."""
        path = self.folder / _JOURNAL
        if not path.exists():
            return
        with np.load(path, allow_pickle=False) as journal:
            for name, saved in self._saved.items():
                saved[journal["ids"]] = journal[f"column_{name}"]
                saved.flush()
            begin = len("state_")
            state = {k[begin:]: journal[k] for k in journal.files if k.startswith("state_")}
        _write(self.folder / _STATE, lambda file: np.savez(file, **state))
        path.unlink()
        _sync_folder(self.folder)

    def _checked(self, what: str, ids: Any) -> np.ndarray:
        ids = np.asarray(ids)
        if ids.size and not np.issubdtype(ids.dtype, np.integer):
            raise ArgumentError(f"recsys.DiskTable.{what}: ids must be integers, got {ids.dtype}")
        ids = ids.astype(np.int64)
        bad = (ids < 0) | (ids >= self.rows)
        if bad.any():
            at = int(np.argmax(bad))
            raise OutOfBoundsError(
                f"recsys.DiskTable.{what}: id {ids.ravel()[at]} at position {at} is none of "
                f"{self.rows} rows"
            )
        return ids


@partial(jit, donate_argnums=0)
def _put(x: Any, places: Any, rows: Any) -> Any:
    return x.at[places].set(rows, unique_indices=True)


def _write(path: Path, write: Callable[[Any], Any]) -> None:
    """A file that is there whole or not at all."""
    new = path.with_name(f"{path.name}.new")
    with new.open("wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
