"""Checkpoints of sharded arrays: each process writes its own shards, any mesh loads them.

A checkpoint is a folder: a safetensors file a process and a JSON manifest. It is written aside and
announced by one rename, so a crash at any moment leaves the previous one whole.
"""

from __future__ import annotations

import json
import operator
import os
import sys
import threading
import uuid
import warnings
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from funcgrad.core.shapes import ShapeDtypeStruct
from funcgrad.errors import CheckpointError
from funcgrad.io.checkpoints.folders import Aside, discard, find, step_folder, steps_in, sweep
from funcgrad.io.checkpoints.loading import Source, load_tree
from funcgrad.io.checkpoints.saving import Processes, Save, take
from funcgrad.parallel.communicators.mpi import first_of
from funcgrad.parallel.meshes import launched

__all__ = ["Checkpointer", "Contents", "Processes", "Saving", "contents", "load", "save"]

TIMEOUT = 600.0


class Saving:
    """A save that was begun. `wait` for it: only then it is known to be complete."""

    def __init__(self, job: Callable[[], None], path: Path):
        self.path = path
        self._state: dict[str, Any] = {
            "path": path,
            "error": None,
            "seen": False,
            "forsaken": False,
        }
        # No daemon: a program that ends in the meantime still completes its last save.
        self._thread = threading.Thread(
            target=_run, args=(job, self._state), name=f"saving {path.name}"
        )
        self._thread.start()
        # Runs when the program ends, too.
        weakref.finalize(self, _forsake, self._state)

    def done(self) -> bool:
        """Whether the save has ended, well or not."""
        return not self._thread.is_alive()

    def wait(self) -> Path:
        """Wait until all processes' parts are on the disk; the folder of the checkpoint.

        Raises CheckpointError, with the process and the reason, where the save failed.
        """
        self._thread.join()
        error, self._state["seen"] = self._state["error"], True
        if error is not None:
            raise error
        return self.path


def _run(job: Callable[[], None], state: dict[str, Any]) -> None:
    try:
        job()
    except BaseException as e:
        state["error"] = e
        if state["forsaken"]:
            _forsake(state)


def _forsake(state: dict[str, Any]) -> None:
    """Nobody can wait any more: say an error that nobody has seen."""
    state["forsaken"] = True
    if state["error"] is not None and not state["seen"]:
        state["seen"] = True
        print(f"{state['path']} was not saved: {state['error']}", file=sys.stderr)


def here() -> Processes:
    """The processes of this job. All of them call this together, under MPI."""
    session, job = uuid.uuid4().hex, launched()
    if job is None:
        return Processes(0, 1, session)
    return Processes(job[0], job[1], first_of(session))


def save(
    path: str | os.PathLike,
    tree: Any,
    *,
    step: int | None = None,
    metadata: Any = None,
    asynchronous: bool = False,
    timeout: float = TIMEOUT,
    processes: Processes | None = None,
) -> Saving:
    """Save a pytree of arrays and plain values as the checkpoint `path`.

    step: save as the folder `step_<step>` inside `path` instead
    metadata: anything that JSON can hold, for `contents`
    asynchronous: return at once, and write on a thread. Arrays are held, not copied; donating them
        meanwhile is safe (that call then works on a copy). NumPy arrays are copied
    timeout: how long to wait for other processes while none of them writes anything
    processes: who saves together, by default all processes of the MPI job

    A checkpoint of that name is replaced, once the new one is complete. In a job of several
    processes all call this, in the same order. Of a sharded array each process writes what it is
    the first to hold; plain arrays and values must be the same everywhere.

    Raises TypeError for a leaf that can't be saved, CheckpointError where writing fails.

    >>> import funcgrad.numpy as fnp, os, tempfile
    >>> from funcgrad.io.checkpoints import checkpoint
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     saving = checkpoint.save(f"{folder}/model", {"w": fnp.ones(3), "epoch": 2})
    ...     print(sorted(os.listdir(saving.wait())))
    ['manifest.json', 'manifest.sha256', 'shard_00000.safetensors']
    """
    who = processes or here()
    base = _base(path, step)
    options = (step, metadata, timeout)
    return _start("save", base, tree, options, asynchronous, who, who.session, lambda: None)


def _base(path: str | os.PathLike, step: int | None) -> Path:
    folder = Path(path).absolute()
    return folder if step is None else step_folder(folder, _step("save", step))


def _step(what: str, step: Any) -> int:
    try:
        n = operator.index(step)
    except TypeError:
        n = -1
    if n < 0:
        raise ValueError(f"{what}: step must be an integer of at least 0, got {step!r}")
    return n


def _start(
    what: str,
    base: Path,
    tree: Any,
    options: tuple[int | None, Any, float],
    asynchronous: bool,
    who: Processes,
    identity: str,
    after: Callable[[], None],
) -> Saving:
    step, metadata, timeout = options
    try:
        metadata = json.loads(json.dumps(metadata, allow_nan=False))  # as it is now
    except (TypeError, ValueError, RecursionError) as e:
        raise TypeError(f"{what}: metadata must be what JSON can hold: {e}") from None
    aside = Aside(base, identity)
    aside.check()
    snapshot = take(what, tree, who, copy=asynchronous)
    job = Save(aside, snapshot, who, None if step is None else int(step), metadata, timeout)

    def run() -> None:
        job.run()
        if who.index == 0:
            try:
                after()
            except OSError as e:
                raise CheckpointError(f"{base} is saved, but old ones stay: {e}") from e

    saving = Saving(run, base)
    if not asynchronous:
        saving.wait()
    return saving


def load(
    path: str | os.PathLike, like: Any, *, step: int | None = None, partial: bool = False
) -> Any:
    """The tree of a checkpoint, in the structure of `like`.

    path: a checkpoint, or a folder of steps
    like: a tree with the same key paths. Where it has an array or a `ShapeDtypeStruct` with a
        `NamedSharding`, the result is cut so, whatever the sharding was when it was saved: each
        device reads only what it needs. Others become plain arrays (NumPy arrays where `like` has
        those), and plain values what was saved. Values in `like` don't matter
    step: which step of a folder of steps; by default the last one
    partial: leave out what was saved beside the leaves of `like`

    Whatever is read is checked against its checksum. Raises FileNotFoundError where there is no
    checkpoint, CheckpointError where it is damaged, with the file, or where key paths, shapes or
    dtypes differ from those of `like`, with the path.

    >>> import funcgrad as fg, funcgrad.numpy as fnp, tempfile
    >>> from funcgrad.io.checkpoints import checkpoint
    >>> cut = fg.NamedSharding(fg.make_mesh((2,), "data"), fg.P("data"))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = checkpoint.save(folder, {"w": fnp.arange(4)}, step=1)
    ...     like = {"w": fg.ShapeDtypeStruct((4,), "int32", sharding=cut)}
    ...     checkpoint.load(folder, like)["w"].sharding.spec
    P('data')
    """
    with _opened("load", Path(path).absolute(), step) as source:
        return load_tree("load", source, like, partial)


def _existing(what: str, path: Path, step: int | None) -> Path:
    """The folder of the checkpoint that is asked for."""
    steps = None
    if step is None:
        found = find(path)
        if found is None and (steps := steps_in(path)):
            found = find(step_folder(path, steps[-1]))
    else:
        found = find(step_folder(path, _step(what, step)))
    if found is not None:
        return found
    wanted = "is no checkpoint and has none" if step is None else f"has no step {step}"
    there = steps_in(path)
    known = f"; it has the steps {there}" if there else ""
    raise FileNotFoundError(f"{what}: {path} {wanted}{known}")


def _opened(what: str, path: Path, step: int | None) -> Source:
    folder = _existing(what, path, step)
    try:
        return Source(folder)
    except CheckpointError:
        if folder.exists():
            raise
        return Source(_existing(what, path, step))  # it was just given its name


@dataclass(frozen=True)
class Contents:
    """What a checkpoint holds: for each key path a `ShapeDtypeStruct` or a plain value."""

    step: int | None
    processes: int
    metadata: Any
    leaves: Mapping[str, ShapeDtypeStruct | bool | int | float | str]


def contents(path: str | os.PathLike, *, step: int | None = None) -> Contents:
    """What a checkpoint holds, read from its manifest alone.

    path, step, errors: as of `load`

    >>> import funcgrad.numpy as fnp, tempfile
    >>> from funcgrad.io.checkpoints import checkpoint
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = checkpoint.save(f"{folder}/a", {"w": fnp.ones(3)}, metadata={"run": 7})
    ...     found = checkpoint.contents(f"{folder}/a")
    >>> found.metadata, found.leaves
    ({'run': 7}, {"['w']": ShapeDtypeStruct(shape=(3,), dtype=float32)})
    """
    with _opened("contents", Path(path).absolute(), step) as source:
        m = source.manifest
    leaves = {path: leaf.describe() for path, leaf in m.leaves.items()}
    return Contents(m.step, m.processes, m.metadata, leaves)


class Checkpointer:
    """The checkpoints of a training run: saved in the background, the last ones kept.

    folder: holds a folder for each step
    keep: how many of the last steps stay; None: all
    asynchronous, timeout, processes: as of `save`

    To make one cleans up what dead saves left there. In a job of several processes all make one,
    and call its methods in the same order.

    >>> import funcgrad.numpy as fnp, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with Checkpointer(folder, keep=2) as checkpoints:
    ...         for step in range(3):
    ...             checkpoints.save(step, {"w": step * fnp.ones(2)})
    ...     checkpoints.steps(), checkpoints.restore({"w": fnp.zeros(2)})["w"]
    ([1, 2], Array([2., 2.], dtype=float32))
    """

    def __init__(
        self,
        folder: str | os.PathLike,
        keep: int | None = 3,
        *,
        asynchronous: bool = True,
        timeout: float = TIMEOUT,
        processes: Processes | None = None,
    ):
        if keep is not None and (not isinstance(keep, int) or keep < 1):
            raise ValueError(f"Checkpointer: keep must be at least 1, or None, got {keep!r}")
        self.folder = Path(folder).absolute()
        self._keep, self._asynchronous, self._timeout = keep, asynchronous, timeout
        self._processes = processes or here()
        self._count = 0
        self._saving: Saving | None = None
        if self._processes.index == 0:
            sweep(self.folder)

    def save(self, step: int, tree: Any, *, metadata: Any = None) -> None:
        """Save a tree as a step, after the previous save is complete.

        Raises CheckpointError where that failed, and what `save` raises.
        """
        step = _step("Checkpointer.save", step)
        self.wait()
        self._count += 1
        base, who = step_folder(self.folder, step), self._processes
        self._saving = _start(
            "Checkpointer.save",
            base,
            tree,
            (step, metadata, self._timeout),
            self._asynchronous,
            who,
            f"{who.session}-{self._count}",
            lambda: self._prune(step),
        )

    def _prune(self, saved: int) -> None:
        if self._keep is None:
            return
        for step in self.steps()[: -self._keep]:
            if step != saved:
                discard(step_folder(self.folder, step))

    def wait(self) -> None:
        """Wait until the last save is complete; raises CheckpointError where it failed."""
        saving, self._saving = self._saving, None
        if saving is not None:
            saving.wait()

    def steps(self) -> list[int]:
        """The steps of which there is a complete checkpoint, in order."""
        return steps_in(self.folder)

    def latest(self) -> int | None:
        """The last step of which there is a complete checkpoint, None if there is none."""
        steps = self.steps()
        return steps[-1] if steps else None

    def contents(self, step: int | None = None) -> Contents:
        """What a step (by default the last one) holds, with its metadata."""
        return contents(self.folder, step=step)

    def restore(
        self, like: Any, step: int | None = None, *, partial: bool = False, fallback: bool = False
    ) -> Any:
        """The tree of a step, by default of the last one, as `load` gives it.

        fallback: where the last step is damaged, warn and take the one before. Each process then
            reads every byte of a step to check it, so that all take the same
        """
        self.wait()
        if fallback and step is None:
            step = self._last_whole()
        with _opened("Checkpointer.restore", self.folder, step) as source:
            return load_tree("Checkpointer.restore", source, like, partial)

    def _last_whole(self) -> int | None:
        """The last step that is whole, None if there is none at all."""
        damage: list[str] = []
        for step in reversed(self.steps()):
            try:
                with _opened("Checkpointer.restore", self.folder, step) as source:
                    source.check_all()
                return step
            except CheckpointError as e:
                damage.append(str(e))
                warnings.warn(f"Checkpointer.restore: passing over step {step}: {e}", stacklevel=3)
        if damage:
            raise CheckpointError(f"{self.folder} has no whole checkpoint: {'; '.join(damage)}")
        return None

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(self, kind: Any, *exc: object) -> None:
        # After an error the other processes may be gone; waiting for them would hide it.
        if kind is None or self._processes.count == 1:
            self.wait()
