"""Communicators of one node: ranks that share memory.

The memory has no name (`memfd_create`): the first rank makes it, the others open it through /proc
while the first one waits, so nothing is left behind however the processes end. What is done in it
is native (`shared_native`).
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import secrets
from functools import cache
from typing import Any, Protocol

from funcgrad.backends.llvm.native.engine import engine
from funcgrad.backends.llvm.runtime import run_code
from funcgrad.backends.rewrites.exchanges import KINDS
from funcgrad.parallel.communicators import shared_native
from funcgrad.parallel.communicators.native import (
    DISAGREE,
    NativeCommunicator,
    source_key,
    what_text,
)
from funcgrad.parallel.communicators.shared_native import ABORT, LINE, LINE_WORDS, LINES, ODD

# Half a slot: what a rank offers at a time. Large ones mean few waits, which are what costs where
# cores are busy; among many ranks they are smaller, as all of them are read.
SLOT_BYTES, MANY, MANYS_SLOT_BYTES = 1 << 21, 16, 1 << 19
PAGE = 4096
# Turns of waiting before a rank yields, and before it sleeps; less of them where ranks share cores.
SPINS, YIELDS = 2000, 20
CROWDED_SPINS, CROWDED_YIELDS = 30, 50


class Starter(Protocol):
    """How ranks talk before they share memory: a communicator of mpi4py, or as much of one."""

    rank: int
    size: int

    def bcast(self, obj: Any, root: int = 0) -> Any:
        """Rank 0's object."""

    def allgather(self, obj: Any) -> list:
        """Everybody's objects."""


class SharedMemory:
    """Memory that the ranks of a node share, zeroed; OSError on all of them if they can't."""

    def __init__(self, ranks: Starter, nbytes: int):
        token = secrets.token_bytes(16)
        size = -(-(nbytes + len(token)) // PAGE) * PAGE
        handle, error, made = -1, "", None
        if ranks.rank == 0:
            try:
                handle = os.memfd_create("funcgrad")
                os.ftruncate(handle, size)
                os.pwrite(handle, token, size - len(token))
                made = (os.getpid(), handle, token)
            except (AttributeError, OSError) as reason:
                error = str(reason)
        made = ranks.bcast(made, root=0)
        try:
            if made and ranks.rank:
                handle = os.open(f"/proc/{made[0]}/fd/{made[1]}", os.O_RDWR)
            if made and os.pread(handle, len(token), size - len(token)) != made[2]:
                error = "another process answers by its number: the ranks see different processes"
        except OSError as reason:
            error = str(reason)
        errors = [e for e in ranks.allgather(error) if e]
        try:
            if errors:
                raise OSError(f"ranks of one node can't share memory: {errors[0]}")
            self.map = mmap.mmap(handle, size)
        finally:
            if handle >= 0:
                os.close(handle)
        self.map[size - len(token) :] = bytes(len(token))
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.map))


@cache
def shared_functions() -> list[int]:
    """The addresses of the native functions, compiled at first use."""
    target = engine().target
    run_code.bind(engine())
    key = f"shared {source_key(shared_native)}"
    library = engine().compile(lambda: shared_native.shared_module(target), level=2, key=key)
    return [library.address(f"fg_shared_{k}") for k in (*KINDS, "barrier")]


class SharedCommunicator(NativeCommunicator):
    """Ranks of one node.

    ranks: what connects them until they share memory; slot_bytes: what a rank offers at a time
    """

    def __init__(self, ranks: Starter, slot_bytes: int | None = None):
        self.ranks = ranks
        rank, size = ranks.rank, ranks.size
        slot_bytes = slot_bytes or (SLOT_BYTES if size <= MANY else MANYS_SLOT_BYTES)
        slots = -(-(LINES + size * LINE) // PAGE) * PAGE
        self.memory = SharedMemory(ranks, slots + 2 * size * slot_bytes)
        base = self.memory.address
        super().__init__(
            rank, size, shared_functions(), head=base, lines=base + LINES, slots=base + slots,
            slot_bytes=slot_bytes,
        )  # fmt: skip
        self.set_crowded(size > _cores())

    def set_crowded(self, crowded: bool) -> None:
        """Whether ranks share cores: then waiting soon yields."""
        self.set_words(
            spins=CROWDED_SPINS if crowded else SPINS, yields=CROWDED_YIELDS if crowded else YIELDS
        )

    @property
    def aborted(self) -> bool:
        """Whether a rank has failed, after which nothing is exchanged."""
        return self._abort_word().value != 0

    def give_up(self) -> None:
        """Say that this rank has failed: nothing is exchanged any longer."""
        self._abort_word().value = 1

    def _abort_word(self) -> ctypes.c_int32:
        return ctypes.c_int32.from_address(self.word("head") + ABORT)

    def reason(self, status: int) -> str:
        """Why an exchange failed."""
        if status != DISAGREE:
            return super().reason(status)
        lines = []
        at = 1 + ODD * (self.word("sequence") % 2)
        for r in range(self.size):
            words = (ctypes.c_int64 * len(LINE_WORDS)).from_address(self.word("lines") + r * LINE)
            sequence, what, count = words[at : at + ODD]
            lines.append(f"rank {r}: #{sequence} {what_text(what, count)}")
        return f"the ranks disagree on what they exchange: {'; '.join(lines)}"


def _cores() -> int:
    with contextlib.suppress(AttributeError):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
