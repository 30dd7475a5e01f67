"""Compiled code kept on disk, so that a program that ran before starts without compiling.

Files lie in FUNCGRAD_CACHE_DIR, or in the user's cache directory; an empty FUNCGRAD_CACHE_DIR
means none. As their content is executed, a directory that others may write to is not used. A file
is a digest, facts and bytes; the digest covers the rest and the file's name. Whatever goes wrong
with a file, the caller just compiles. Processes that start together, such as the ranks of a job,
need the same code at the same time: one compiles it, the others wait for its file.
"""

from __future__ import annotations

import contextlib
import marshal
import os
import time
from collections.abc import Iterator
from typing import Any

try:
    import fcntl
except ImportError:  # Windows: each process compiles for itself
    fcntl = None  # type: ignore[assignment]

try:
    # hashlib has the same function, but loads OpenSSL beside, which takes longer than all the rest.
    from _blake2 import blake2b
except ImportError:
    from hashlib import blake2b

MOST_FILES = 4096
_RECENT = 3600  # seconds for which a file counts as just used: a read then needn't say so
_FORMAT = 2  # that all versions of Python read
_SIZE = 8  # bytes that count those of the facts
_PATIENCE = 30.0  # seconds to wait for another process before doing its work, too
_PAUSE = 0.004  # seconds between two looks whether it has ended


def digest(*parts: str | bytes) -> str:
    """A name for some content that nothing else has.

    >>> len(digest("a", b"b")), digest("ab") == digest("a", "b")
    (64, False)
    """
    total = blake2b(digest_size=32)
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        total.update(len(data).to_bytes(8, "little"))
        total.update(data)
    return total.hexdigest()


def enabled() -> bool:
    """Whether files are kept at all: FUNCGRAD_CACHE_DIR isn't empty.

    >>> enabled() == (os.environ.get("FUNCGRAD_CACHE_DIR") != "")
    True
    """
    return os.environ.get("FUNCGRAD_CACHE_DIR") != ""


def exists(key: str) -> bool:
    """Whether there is an entry for a key, good or not.

    >>> exists("0" * 64)
    False
    """
    folder = _folder()
    return folder is not None and os.path.exists(os.path.join(folder, key))


def load(key: str) -> tuple[dict[str, Any], bytes] | None:
    """What was saved under a key; None if there is nothing, or nothing sound.

    >>> load("0" * 64) is None
    True
    """
    folder = _folder()
    if folder is None:
        return None
    path = os.path.join(folder, key)
    try:
        with open(path, "rb") as file:
            content, written = file.read(), os.fstat(file.fileno()).st_mtime
    except OSError:
        return None
    if time.time() - written > _RECENT:
        with contextlib.suppress(OSError):  # others' files may be read, but not touched
            os.utime(path)
    seal, _, rest = content.partition(b"\n")
    if seal != digest(key, rest).encode():
        return None
    size = _SIZE + int.from_bytes(rest[:_SIZE], "little")
    # Python's own format of constants, as nothing reads it sooner.
    return marshal.loads(rest[_SIZE:size]), rest[size:]


@contextlib.contextmanager
def first(key: str) -> Iterator[None]:
    """Makes what is saved under a key, in the block, alone: where another process is at it, waits
    until that one has ended. What it has saved is there then, so look again in the block.

    Who waited holds nobody up: where the file of another machine isn't seen yet, all compile.

    >>> with first("example"):
    ...     save("example", {"answer": 42}, b"code")
    """
    folder = _folder(create=True)
    path = None if folder is None or fcntl is None else os.path.join(folder, f"{key[:32]}.lock")
    try:
        handle = path and os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        handle = None
    if not path or not handle:
        yield
        return
    mine = _taken(handle)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            if mine:
                os.unlink(path)
                fcntl.flock(handle, fcntl.LOCK_UN)  # a fork may have the handle, too
        os.close(handle)


def _taken(handle: int) -> bool:
    """Take the lock of a file that nobody has, or wait until it is free; whether it was taken."""
    end, free = time.monotonic() + _PATIENCE, True
    while time.monotonic() < end:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            free = False
            time.sleep(_PAUSE)
        except OSError:  # a file system without locks
            return False
        else:
            if not free:
                fcntl.flock(handle, fcntl.LOCK_UN)
            return free
    return False


def save(key: str, head: dict[str, Any], body: bytes) -> None:
    """Keep facts and bytes under a key; when there are too many files, the half goes that was used
    longest ago.

    >>> save("example", {"answer": 42}, b"code")
    """
    folder = _folder(create=True)
    if folder is None:
        return
    facts = marshal.dumps(head, _FORMAT)
    rest = len(facts).to_bytes(_SIZE, "little") + facts + body
    # A name of its own until it is whole: others may be writing the same file.
    name = os.path.join(folder, f"{key[:16]}.{os.getpid()}.{os.urandom(8).hex()}")
    try:
        handle = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(digest(key, rest).encode() + b"\n" + rest)
        os.replace(name, os.path.join(folder, key))
        _prune(folder)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(name)


def _folder(create: bool = False) -> str | None:
    setting = os.environ.get("FUNCGRAD_CACHE_DIR")
    if setting == "":
        return None
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join("~", ".cache")
    folder = os.path.expanduser(setting or os.path.join(base, "funcgrad"))
    if folder.startswith("~"):  # nobody's home
        return None
    try:
        if create:
            os.makedirs(os.path.dirname(folder) or ".", exist_ok=True)
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder, 0o700)
        status = os.stat(folder)
    except OSError:
        return None
    if hasattr(os, "getuid") and (status.st_uid != os.getuid() or status.st_mode & 0o022):
        return None
    return folder


def _prune(folder: str) -> None:
    if len(os.listdir(folder)) <= MOST_FILES:
        return
    with os.scandir(folder) as entries:
        by_age = sorted((entry.stat().st_mtime, entry.path) for entry in entries)
    for _, path in by_age[: MOST_FILES // 2]:
        with contextlib.suppress(OSError):
            os.unlink(path)
