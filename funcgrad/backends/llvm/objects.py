"""Object code kept on disk, so that a program that ran before starts without compiling.

Files lie in FUNCGRAD_CACHE_DIR, or in the user's cache directory; an empty FUNCGRAD_CACHE_DIR
means none. As their content is executed, a directory that others may write to is not used. Whatever
goes wrong with a file, the caller just compiles.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import tempfile
from pathlib import Path

MOST_FILES = 4096


@functools.cache
def generator(prefix: str) -> str:
    """A digest of the files that generate code, `prefix`*.py, which stands for what they write.

    >>> len(generator("gemm"))
    64
    """
    folder = Path(__file__).parent
    digest = hashlib.sha256()
    names = {*folder.glob(f"{prefix}*.py"), folder / "gemm_build.py", folder / "engine.py"}
    for path in sorted(names):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def exists(key: str) -> bool:
    """Whether there is an entry for a key, good or not.

    >>> exists("0" * 64)
    False
    """
    folder = _folder()
    return folder is not None and (folder / key).exists()


def load(key: str) -> tuple[bytes, list[str], list[str]] | None:
    """Object code, names it defines and names it declares; None if there is none for the key.

    >>> load("0" * 64) is None
    True
    """
    folder = _folder()
    if folder is None:
        return None
    try:
        head, code = (folder / key).read_bytes().split(b"\n", 1)
        entry = json.loads(head)
    except (OSError, ValueError):
        return None
    if not isinstance(entry, dict) or entry.get("sha256") != hashlib.sha256(code).hexdigest():
        return None
    return code, entry["defined"], entry["declared"]


def save(key: str, code: bytes, defined: list[str], declared: list[str]) -> None:
    """Keep object code under a key; when there are too many files, the oldest half goes.

    >>> save("example", b"code", [], [])
    """
    folder = _folder(create=True)
    if folder is None:
        return
    entry = {
        "defined": defined,
        "declared": declared,
        "sha256": hashlib.sha256(code).hexdigest(),
    }
    with contextlib.suppress(OSError):
        handle, name = tempfile.mkstemp(dir=folder)
        with os.fdopen(handle, "wb") as file:
            file.write(json.dumps(entry).encode() + b"\n" + code)
        os.replace(name, folder / key)
        _prune(folder)


def _folder(create: bool = False) -> Path | None:
    setting = os.environ.get("FUNCGRAD_CACHE_DIR")
    if setting == "":
        return None
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    folder = Path(setting or os.path.join(base, "funcgrad"))
    try:
        if create:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except OSError:
        return None
    if hasattr(os, "getuid") and (status.st_uid != os.getuid() or status.st_mode & 0o022):
        return None
    return folder


def _prune(folder: Path) -> None:
    if len(os.listdir(folder)) <= MOST_FILES:
        return
    by_age = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime)
    for path in by_age[: MOST_FILES // 2]:
        path.unlink(missing_ok=True)
