"""Whether all ranks compile the same program: else they would wait for each other forever."""

from __future__ import annotations

import hashlib
import re

import numpy as np

from funcgrad.core.ir import Jaxpr
from funcgrad.errors import CollectiveError
from funcgrad.parallel.communicators.communicator import Communicator


def program_text(jaxpr: Jaxpr) -> str:
    """A program's text without what differs between processes though the programs are the same:
    the addresses of Python objects in it.

    >>> import funcgrad as fg
    >>> program_text(fg.make_jaxpr(lambda x: x + 1)(1.0).jaxpr).splitlines()[1].strip()
    'b:f32[] = add a 1.0:f32[]'
    """
    return re.sub(r" at 0x[0-9a-f]+", "", repr(jaxpr))


def check_same_program(comm: Communicator[np.ndarray], text: str, name: str = "program") -> None:
    """Raise CollectiveError, on all ranks, unless they all give the same text.

    The error has the first line that differs, and the ranks. One exchange of 32 bytes if all is
    well.

    >>> from funcgrad.parallel.communicators.communicator import SelfCommunicator
    >>> check_same_program(SelfCommunicator(), "a = add b c")
    """
    digest = np.frombuffer(hashlib.sha256(text.encode()).digest(), np.uint8)
    digests = comm.all_gather(digest)
    if (digests == digest).all() and (digests == digests[0]).all():
        return
    texts = [t.split("\n") for t in _gather_texts(comm, text)]
    length = max(map(len, texts))
    padded = [t + ["(nothing)"] * (length - len(t)) for t in texts]
    line = next(i for i in range(length) if len({t[i] for t in padded}) > 1)
    found: dict[str, list[int]] = {}
    for rank, lines in enumerate(padded):
        found.setdefault(lines[line], []).append(rank)
    parts = [
        f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}: {what.strip()!r}"
        for what, ranks in found.items()
    ]
    raise CollectiveError(
        f"the ranks don't run the same {name}; they first differ in line {line + 1}: "
        f"{'; '.join(parts)}. Every rank must trace the same functions with arguments of the same "
        "types, in the same order; what depends on the rank must be data"
    )


def _gather_texts(comm: Communicator[np.ndarray], text: str) -> list[str]:
    own = np.frombuffer(text.encode(), np.uint8)
    sizes = comm.all_gather(np.array([own.size], np.int64))[:, 0]
    room = np.zeros(int(sizes.max()), np.uint8)
    room[: own.size] = own
    rows = comm.all_gather(room)
    return [bytes(row[:n]).decode() for row, n in zip(rows, sizes, strict=True)]
