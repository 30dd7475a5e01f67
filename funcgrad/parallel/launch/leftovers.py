"""What an MPI library leaves in /dev/shm when a rank is killed while it starts.

MPICH and UCX give shared memory a name until all ranks have opened it. A name is swept only if it
came while a job of ours ran, is this user's, and no process has it open or mapped: who makes one
holds it from then on, so it is no living job's.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection
from pathlib import Path

FOLDER = Path("/dev/shm")
_NAMES = re.compile(r"(mpich_shm_[0-9a-f]+_\d+|ucx_shm_posix_[0-9a-f]+)")
# How long processes may take to vanish after their launcher, and between two looks at a name.
PATIENCE, BETWEEN = 2.0, 0.1


def names() -> set[str]:
    """The names of MPI libraries' shared memory that are there now, of this user.

    >>> isinstance(names(), set)
    True
    """
    found = set()
    for name in _listed(FOLDER):
        if _NAMES.fullmatch(name) and _is_own(FOLDER / name):
            found.add(name)
    return found


def processes() -> set[str]:
    """The numbers of the processes that there are now.

    >>> str(os.getpid()) in processes()
    True
    """
    return set(filter(str.isdigit, _listed(Path("/proc"))))


def unheld(candidates: Collection[str], older: Collection[str] = ()) -> set[str]:
    """Those of the names which no process has open or mapped; none of them where a process of this
    user can't be looked into, unless it is one of `older`, who ran before there were such names."""
    left = set(candidates)
    for pid in processes():
        process = Path("/proc", pid)
        try:
            left -= _held_by(process)
        except PermissionError:
            if pid not in older and _is_own(process):
                return set()
        except OSError:
            # It has just ended.
            continue
        if not left:
            break
    return left


def sweep(before: Collection[str], older: Collection[str]) -> list[str]:
    """Remove what a job has left, now that it has ended: names that no process holds, and that are
    not among `before` (what `names` gave when it started). The names that were removed.

    older: what `processes` gave when the job started

    >>> isinstance(sweep(names(), processes()), list)
    True
    """
    swept: list[str] = []
    end = time.monotonic() + PATIENCE
    seen: set[str] = set()
    looks = 0
    while new := names() - set(before):
        free = unheld(new, older)
        # Twice: a process may hold it that was just being made when we looked.
        for name in sorted(free & seen):
            (FOLDER / name).unlink(missing_ok=True)
            swept.append(name)
        looks += 1
        # On a busy machine one look may take longer than all of the patience.
        if new <= set(swept) or (looks > 1 and time.monotonic() > end):
            break
        seen = free
        time.sleep(BETWEEN)
    return swept


def _listed(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _is_own(path: Path) -> bool:
    try:
        return path.lstat().st_uid == os.geteuid()
    except OSError:
        return False


def _held_by(process: Path) -> set[str]:
    """The names that a process has open or mapped. Files first: what is mapped in between stays
    so when its file is closed."""
    found = set()
    for fd in os.listdir(process / "fd"):
        try:
            found.add(os.readlink(process / "fd" / fd))
        except FileNotFoundError:
            continue
    found.update(re.findall(rf"{FOLDER}/\S+", (process / "maps").read_text()))
    return {path.removeprefix(f"{FOLDER}/") for path in found if path.startswith(f"{FOLDER}/")}
