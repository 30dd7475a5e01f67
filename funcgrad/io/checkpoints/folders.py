"""Folders of checkpoints: written aside, announced by one rename, never half there.

`NAME.tmp-<id>` is being written, under a lock that dies with its process; with its manifest in
place it is complete, and is renamed to `NAME`. A folder that was there before is first renamed to
`NAME.old-<id>`, so that at each moment one of the three is complete. `NAME.dead-<id>` is being
deleted.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from funcgrad.errors import CheckpointError
from funcgrad.io.checkpoints.manifest import MANIFEST, SUM, read_manifest

LOCK = ".lock"
_STEP = re.compile(r"step_(\d{6,})")
_ASIDE = re.compile(r"(?P<base>.+)\.(?P<kind>tmp|old|dead)-[0-9a-f]{32}(-\d+)?")


def step_folder(folder: Path, step: int) -> Path:
    """The folder of a step.

    >>> step_folder(Path("run"), 100).as_posix()
    'run/step_000100'
    """
    return folder / f"step_{step:06d}"


def steps_in(folder: Path) -> list[int]:
    """The steps of which a complete checkpoint is in a folder, in order."""
    found = set()
    for name in _names(folder):
        aside = _ASIDE.fullmatch(name)
        match = _STEP.fullmatch(aside["base"] if aside else name)
        if (
            match
            and step_folder(folder, int(match[1])).name == match[0]
            and find(folder / match[0])
        ):
            found.add(int(match[1]))
    return sorted(found)


def find(base: Path) -> Path | None:
    """The folder with the complete checkpoint of this name, None if there is none.

    That is the name itself, but for the moment in which it is replaced.
    """
    looks, before = 0, None
    while looks < 5:  # folders may be renamed between two looks, and again and again
        if (base / MANIFEST).is_file():
            return base
        there = [p for kind in ("tmp", "old") for p in _aside(base.parent, base.name, kind)]
        for path in there:
            if _is_complete(path):
                return path
        looks, before = looks + 1 if there == before else 1, there
    return None


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except FileNotFoundError:
        return []
    except OSError as e:
        raise CheckpointError(f"{folder}: can't be listed: {e.strerror}") from e


def _aside(parent: Path, base: str | None, kind: str) -> Iterator[Path]:
    """The folders aside of a name (None: of any step)."""
    for name in _names(parent):
        match = _ASIDE.fullmatch(name)
        if (
            match
            and (match["base"] == base if base else _STEP.fullmatch(match["base"]))
            and match["kind"] == kind
        ):
            yield parent / name


def _is_complete(path: Path) -> bool:
    if not (path / MANIFEST).is_file() or not (path / SUM).is_file():
        return False
    try:
        read_manifest(path)
    except CheckpointError:
        return False
    return True


class Aside:
    """The folder in which a checkpoint is written. Process 0 makes it and holds its lock."""

    def __init__(self, base: Path, identity: str):
        self.base, self.identity = base, identity
        self.path = base.with_name(f"{base.name}.tmp-{identity}")
        self._lock = -1

    def check(self) -> None:
        """Raise where the name belongs to something that is no checkpoint: it would be lost."""
        base = self.base
        try:  # one look each, as other savers may be renaming
            is_folder = stat.S_ISDIR(os.lstat(base).st_mode)
        except OSError:
            return
        if not is_folder:
            raise CheckpointError(f"{base} exists and is no folder: nothing is written over it")
        if (names := _names(base)) and MANIFEST not in names:
            raise CheckpointError(
                f"{base} exists and is no checkpoint (it has no {MANIFEST}): nothing is written "
                "over it. Save elsewhere, or give a step, which makes a folder inside it"
            )

    def make(self) -> None:
        """Make the folder and take its lock; again, where a sweep came between the two."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            with contextlib.suppress(FileExistsError):
                self.path.mkdir()
            with contextlib.suppress(FileNotFoundError, BlockingIOError):
                self._lock = _take_lock(self.path)
                return

    def publish(self) -> None:
        """Give the complete folder its name, in place of what had it."""
        sync_folder(self.path)
        replaced: list[Path] = []
        while True:
            try:
                os.rename(self.path, self.base)
                break
            except OSError as e:
                if e.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                    raise
            self.check()
            replaced.append(_unused(self.base, "old"))
            with contextlib.suppress(FileNotFoundError):
                os.rename(self.base, replaced[-1])
        sync_folder(self.base.parent)
        (self.base / LOCK).unlink(missing_ok=True)
        self.release()
        for old in replaced:
            discard(old)

    def release(self) -> None:
        """Let the lock go, for children that inherited it too."""
        if self._lock >= 0:
            with contextlib.suppress(OSError):
                fcntl.flock(self._lock, fcntl.LOCK_UN)
            os.close(self._lock)
            self._lock = -1


def _unused(base: Path, kind: str) -> Path:
    return base.with_name(f"{base.name}.{kind}-{os.urandom(16).hex()}")


def discard(path: Path) -> None:
    """Delete a folder, which from the first moment on is no checkpoint any more."""
    aside = _ASIDE.fullmatch(path.name)
    if aside is None or aside["kind"] != "dead":
        dead = _unused(path.with_name(aside["base"]) if aside else path, "dead")
        try:
            path.rename(dead)
        except FileNotFoundError:  # someone else was quicker
            return
        path = dead
    shutil.rmtree(path, ignore_errors=True)


def sweep(parent: Path, base: str | None = None) -> None:
    """Delete what dead saves of a name (None: of any step) left, and finish those that were
    complete but had not got their name."""
    for path in _aside(parent, base, "tmp"):  # before what they replace
        try:
            lock = _take_lock(path)
        except OSError:  # its owner lives, or may
            continue
        try:
            _settle(path)
        finally:
            os.close(lock)
    for path in _aside(parent, base, "old"):
        _settle(path)
    for path in _aside(parent, base, "dead"):
        discard(path)


def _settle(path: Path) -> None:
    """A complete folder gets its name if no checkpoint has it; everything else is deleted."""
    match = _ASIDE.fullmatch(path.name)
    assert match is not None
    final = path.with_name(match["base"])
    if (final / MANIFEST).is_file() or not _is_complete(path):
        discard(path)
        return
    with contextlib.suppress(OSError):  # the name belongs to something else
        path.rename(final)
        (final / LOCK).unlink(missing_ok=True)


def _take_lock(path: Path) -> int:
    """The lock of a folder, which lasts as long as this process, or until it is closed.

    Raises BlockingIOError where someone else has it, FileNotFoundError where the folder is gone.
    """
    lock = os.open(path / LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        there = os.stat(path / LOCK)
        if there.st_ino != os.fstat(lock).st_ino:
            raise BlockingIOError
    except BaseException:
        os.close(lock)
        raise
    return lock


def sync_folder(path: Path) -> None:
    """Bring the names in a folder to the disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_durably(path: Path, data: bytes) -> None:
    """Write a small file to the disk; it appears with all its bytes."""
    new = path.with_name(path.name + ".new")
    with open(new, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    new.rename(path)
