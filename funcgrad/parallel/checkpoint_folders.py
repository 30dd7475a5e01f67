"""Folders of checkpoints: written aside, announced by one rename, never half there.

`NAME.tmp-<id>` is being written, under a lock that dies with its process; with its manifest in
place it is complete, and is renamed to `NAME`. A folder that was there before is first renamed to
`NAME.old-<id>`, so that at each moment one of the three is complete. `NAME.dead-<id>` is being
deleted.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from funcgrad.errors import CheckpointError
from funcgrad.parallel.checkpoint_manifest import MANIFEST, SUM, read_manifest

LOCK = ".lock"
_BARE_SECONDS = 24 * 3600
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
    for _ in range(2):  # a folder may be renamed between two looks
        if (base / MANIFEST).is_file():
            return base
        for kind in ("tmp", "old"):
            for path in _aside(base.parent, base.name, kind):
                if _is_complete(path):
                    return path
    return None


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except FileNotFoundError:
        return []
    except OSError as e:
        raise CheckpointError(f"{folder}: can't be listed: {e.strerror}") from e


def _aside(parent: Path, base: str | None = None, kind: str = "") -> Iterator[Path]:
    """The folders aside of a name (None: of any step)."""
    for name in _names(parent):
        match = _ASIDE.fullmatch(name)
        if (
            match
            and (match["base"] == base if base else _STEP.fullmatch(match["base"]))
            and kind in ("", match["kind"])
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
        if base.is_symlink() or (base.exists() and not base.is_dir()):
            raise CheckpointError(f"{base} exists and is no folder: nothing is written over it")
        if base.exists() and not (base / MANIFEST).is_file() and _names(base):
            raise CheckpointError(
                f"{base} exists and is no checkpoint (it has no {MANIFEST}): nothing is written "
                "over it. Save elsewhere, or give a step, which makes a folder inside it"
            )

    def make(self) -> None:
        """Make the folder; it has its lock before anyone can see it free."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.mkdir()
        new = self.path / (LOCK + ".new")
        self._lock = os.open(new, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
        # Without locks (some network file systems) the folder is never taken for a dead one.
        with contextlib.suppress(OSError):
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            new.rename(self.path / LOCK)

    def publish(self) -> None:
        """Give the complete folder its name, in place of what had it."""
        sync_folder(self.path)
        while True:
            try:
                os.rename(self.path, self.base)
                break
            except OSError:
                if not self.base.exists() or not self.path.exists():
                    raise
            self.check()
            with contextlib.suppress(FileNotFoundError):
                os.rename(self.base, self.base.with_name(f"{self.base.name}.old-{self.identity}"))
        sync_folder(self.base.parent)
        for name in (LOCK, LOCK + ".new"):
            (self.base / name).unlink(missing_ok=True)
        self.release()
        old = self.base.with_name(f"{self.base.name}.old-{self.identity}")
        if old.exists():
            discard(old)

    def release(self) -> None:
        """Let the lock go, for children that inherited it too."""
        if self._lock >= 0:
            with contextlib.suppress(OSError):
                fcntl.flock(self._lock, fcntl.LOCK_UN)
            os.close(self._lock)
            self._lock = -1


def discard(path: Path) -> None:
    """Delete a folder, which from the first moment on is no checkpoint any more."""
    aside = _ASIDE.fullmatch(path.name)
    if aside is None or aside["kind"] != "dead":
        name = aside["base"] if aside else path.name
        dead = path.with_name(f"{name}.dead-{os.urandom(16).hex()}")
        try:
            path.rename(dead)
        except FileNotFoundError:  # someone else was quicker
            return
        path = dead
    shutil.rmtree(path, ignore_errors=True)


def sweep(parent: Path, base: str | None = None) -> None:
    """Delete what dead saves of a name (None: of any step) left, and finish those that were
    complete but had not got their name."""
    for path in _aside(parent, base):
        match = _ASIDE.fullmatch(path.name)
        assert match is not None
        kind, final = match["kind"], parent / match["base"]
        if kind == "dead":
            discard(path)
        elif kind == "old":
            _settle(path, final)
        else:
            lock = _lock_of_dead(path)
            if lock is not None:
                try:
                    _settle(path, final)
                finally:
                    os.close(lock)


def _settle(path: Path, final: Path) -> None:
    """A complete folder gets its name if no checkpoint has it; everything else is deleted."""
    if (final / MANIFEST).is_file() or not _is_complete(path):
        discard(path)
        return
    with contextlib.suppress(OSError):  # the name belongs to something else
        path.rename(final)
        (final / LOCK).unlink(missing_ok=True)


def _lock_of_dead(path: Path) -> int | None:
    """The lock of a folder whose owner is dead; None where the owner lives, or may."""
    try:
        # A save that died before it had its lock, or where there are none, shows by its age alone.
        bare = not (path / LOCK).exists() and time.time() - path.stat().st_mtime > _BARE_SECONDS
        lock = os.open(path / LOCK, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if bare else 0), 0o644)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        return None
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
