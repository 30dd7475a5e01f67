"""How a kernel's points are spread over threads: its kind, and the shape of its launch.

- points: a thread takes a point, or as many neighbours as make 16 bytes
- columns: what a point does for each element of rows, one row after the other, threads do for an
  element each: totals that a point has for its columns become registers
- rows: a team, of a warp or of a block, takes a point: parallel loops are shared among its threads

Sizes are what an H200 liked best (docs/cuda.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from funcgrad.backends.loops.ir import (
    Buffer,
    Kernel,
    Load,
    Loop,
    Op,
    Stmt,
    Store,
    Value,
    While,
    walk,
)
from funcgrad.core.record import Record

WARP = 32
THREADS = 128  # of a block whose threads don't need each other
VECTOR_BYTES = 16
SHARED_BYTES = 48 << 10  # of a block, without asking for more
LOCAL_BYTES = 256  # of a thread's own memory, which should be registers


class Schedule(Record):
    """kind: "points", "columns" or "rows"

    team: the threads that share a point; block: those of a block; grid: how many blocks there are
    vector: the points a thread takes
    workspace: bytes of memory, for each team, that don't fit where they should be
    """

    kind: str
    team: int
    block: int
    grid: int
    vector: int = 1
    workspace: int = 0

    @property
    def waits(self) -> bool:
        """Whether threads wait for each other."""
        return self.kind == "rows"


def schedule(kernel: Kernel) -> Schedule:
    """How a kernel runs."""
    width = columns_of(kernel)
    if width:
        return _of_threads("columns", kernel.points * width)
    scratch = sum(b.size * b.dtype.itemsize for b in kernel.buffers if b.role == "scratch")
    widest = max((s.size for s in shared_loops(kernel.body)), default=0)
    if widest >= WARP or scratch > LOCAL_BYTES:
        return _of_teams(kernel, widest, scratch)
    vector = _vector(kernel)
    return _of_threads("points", kernel.points // vector, vector)


def _of_threads(kind: str, count: int, vector: int = 1) -> Schedule:
    return Schedule(kind, 1, THREADS, -(-count // THREADS), vector)


def _of_teams(kernel: Kernel, widest: int, scratch: int) -> Schedule:
    team = WARP if widest <= 1024 else 128 if widest < 4096 else 256
    block = max(team, THREADS)
    teams = block // team
    fits = teams * scratch <= SHARED_BYTES - 256
    if not fits and team == WARP and scratch <= SHARED_BYTES - 256:
        block, teams, fits = WARP, 1, True
    grid = -(-kernel.points // teams)
    return Schedule("rows", team, block, grid, 1, 0 if fits else scratch)


def shared_loops(body: Sequence[Stmt]) -> Iterator[Loop]:
    """The parallel loops that are in no other one."""
    for s in body:
        if isinstance(s, Loop) and is_shared(s):
            yield s
        elif isinstance(s, Loop):
            yield from shared_loops(s.body)
        elif isinstance(s, While):
            yield from shared_loops((*s.test, *s.body))


def is_shared(s: Loop) -> bool:
    """Whether a team's threads may share a loop's turns."""
    return s.parallel and all(c.combine is not None for c in s.carries)


def _vector(kernel: Kernel) -> int:
    """How many neighbours a thread takes: 16 bytes of the widest that is written."""
    if not kernel.axes or any(isinstance(s, Loop | While) for s in kernel.body):
        return 1
    if any(isinstance(s, Load | Store) and s.guard is not None for s in kernel.body):
        return 1
    itemsize = max(
        (s.buffer.dtype.itemsize for s in kernel.body if isinstance(s, Store)), default=8
    )
    count = VECTOR_BYTES // itemsize
    while count > 1 and kernel.axes[-1].size % count:
        count //= 2
    return max(count, 1)


def columns_of(kernel: Kernel) -> int:
    """The elements of the rows of a kernel that may be scheduled as columns, or 0.

    All of its outer work is then in parallel loops of that size without carries, and each reads
    and writes only its own element of scratch memory.
    """
    loops = list(shared_loops(kernel.body))
    sizes = {s.size for s in loops}
    in_turns = any(isinstance(s, Loop) and s not in loops for s in kernel.body)
    if len(sizes) != 1 or not in_turns or any(s.carries for s in loops) or kernel.in_place:
        return 0
    for s in _around(kernel.body):
        plain = isinstance(s, Op | Load) or (isinstance(s, Loop) and not s.carries)
        if not plain or (isinstance(s, Load) and s.buffer.role != "in"):
            return 0
    own = all(_is_own(s, loop.axis) for loop in loops for s in walk(loop.body))
    return sizes.pop() if own else 0


def _around(body: Sequence[Stmt]) -> Iterator[Stmt]:
    """The statements around shared loops."""
    for s in body:
        if isinstance(s, Loop) and is_shared(s):
            continue
        yield s
        if isinstance(s, Loop):
            yield from _around(s.body)
        elif isinstance(s, While):
            yield from _around((*s.test, *s.body))


def _is_own(s: Stmt, axis: Value) -> bool:
    if not isinstance(s, Load | Store):
        return True
    if s.buffer.role == "scratch":
        return s.index.const == 0 and s.index.terms == ((1, axis),)
    return s.buffer.role != "inout" and not (isinstance(s, Load) and s.buffer.role == "out")


def scratch_of(kernel: Kernel) -> list[Buffer]:
    """A kernel's scratch memory."""
    return [b for b in kernel.buffers if b.role == "scratch"]
