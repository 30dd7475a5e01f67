"""Which sharding is best for each table: proposals, improvement, and for few tables all there are.

Every table has some ways to be cut. Proposals put tables, large ones first, where they add the
least to the slowest device; then tables of the slowest device are put anew while that helps. At
last all plans are gone through that could be better, as long as there aren't too many (branch and
bound; states that differ by devices' names alone are one): if that ends, the plan is the best.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from funcgrad.core.sharding import Mesh
from funcgrad.errors import ArgumentError
from funcgrad.recsys.costs import KERNELS, OPTIMIZERS, Bandwidths, Job, Option, as_stats, options
from funcgrad.recsys.layouts import KINDS
from funcgrad.recsys.plans import Plan

VISITS = 20_000  # states that are looked at before the best plan so far is taken
Choice = tuple[Option, tuple[int, ...]]


def plan(
    tables: Mapping[str, Any],
    devices: int | tuple[int, int] | Mesh,
    *,
    memory: float,
    batch: int = 512,
    optimizer: str = "rowwise_adagrad",
    bandwidths: Bandwidths | None = None,
    allowed: Mapping[str, Sequence[str]] | Sequence[str] | None = None,
    kernels: Mapping[str, Sequence[str]] | Sequence[str] = ("fused",),
) -> Plan:
    """Shardings for tables so that no device takes more than its memory and the slowest is fast.

    tables: (rows, dim), arrays or `TableStats` by name; devices: how many, or (nodes, devices of
    each), or a mesh; memory: bytes of a device for tables, the optimizer's state and what is
    exchanged; batch: bags a device has in a step; optimizer: the name of that of the tables;
    bandwidths: of the machine (see `measure_bandwidths`), plain ones by default; allowed: the
    kinds of shardings that tables may have, for all or by name (those not named may have any);
    kernels: how tables may be trained, likewise: "fused", by rows that were read
    (`value_and_sparse_grad`); "dense", by gradients as of other parameters, of tables that are
    whole on each device; "cached", with rows in a file (`DiskTable`). Tables of 8 or 4 bits are
    only read.

    Raises ArgumentError for tables that don't fit into the memory, with the least that they need.

    >>> from funcgrad import recsys
    >>> found = recsys.plan({"user": (100_000, 16), "ad": (10, 16)}, 4, memory=4e6)
    >>> found.shardings["user"].kind, max(found.bytes) <= 4e6
    ('column_wise', True)
    """
    job = _job(devices, batch, optimizer, bandwidths or Bandwidths())
    stats = {k: as_stats(k, t) for k, t in tables.items()}
    for what, given in (("allowed", allowed), ("kernels", kernels)):
        for name in given if isinstance(given, Mapping) else ():
            if name not in stats:
                raise ArgumentError(
                    f"recsys.plan: {what} names {name!r}, the tables are {list(stats)}"
                )
    ways = {}
    for name, table in stats.items():
        kinds = allowed.get(name) if isinstance(allowed, Mapping) else allowed
        how = kernels.get(name, KERNELS) if isinstance(kernels, Mapping) else kernels
        ways[name] = options(name, table, job, list(KINDS) if kinds is None else kinds, how)
    search = _Search(job, float(memory), ways)
    chosen, exact = search.best()
    seconds, taken = search.loads(chosen)
    shardings = {k: chosen[k][0].sharding(chosen[k][1]) for k in stats}
    each = tuple(seconds.tolist()), tuple(taken.tolist())
    trained = {k: chosen[k][0].kernel for k in stats}
    return Plan(shardings, (job.nodes, job.local), float(memory), *each, exact, trained)


def _job(devices: Any, batch: int, optimizer: str, speed: Bandwidths) -> Job:
    if isinstance(devices, Mesh):
        devices = devices.axis_sizes if len(devices.axis_sizes) > 1 else devices.size
    sizes = (1, devices) if isinstance(devices, int) else tuple(devices)
    if len(sizes) != 2 or min(sizes) < 1 or batch < 1:
        raise ArgumentError(
            f"recsys.plan: devices must be a number or (nodes, devices of each), and batch 1 or "
            f"more, got {devices} and {batch}"
        )
    if optimizer not in OPTIMIZERS:
        raise ArgumentError(
            f"recsys.plan: optimizer must be one of {list(OPTIMIZERS)}, got {optimizer!r}"
        )
    return Job(sizes[0], sizes[1], batch, optimizer, speed)


class _Search:
    """The plans of some tables: `ways` has the options of each."""

    def __init__(self, job: Job, memory: float, ways: Mapping[str, list[Option]]):
        self.job, self.memory, self.ways = job, memory, ways
        # Large tables first, as small ones fill gaps.
        self.order = sorted(ways, key=lambda k: -max(o.bytes * o.columns for o in ways[k]))

    # ---- loads of devices

    def members(self, option: Option, places: Sequence[int]) -> list[Any]:
        """For each block of a table, the devices that have a part of it."""
        if option.unit == "all":
            return [slice(None)]
        local = self.job.local
        if option.unit == "node":
            return [slice(p * local, (p + 1) * local) for p in places]
        return list(places)

    def add(self, loads: tuple[np.ndarray, np.ndarray], choice: Choice, sign: int = 1) -> None:
        """Put a table on its devices, or take it away."""
        option, places = choice
        for at in self.members(option, places):
            loads[0][at] += sign * option.seconds
            loads[1][at] += sign * option.bytes

    def empty(self) -> tuple[np.ndarray, np.ndarray]:
        """(seconds, bytes) of devices without tables."""
        return np.zeros(self.job.devices), np.zeros(self.job.devices)

    def loads(self, chosen: Mapping[str, Choice]) -> tuple[np.ndarray, np.ndarray]:
        """(seconds, bytes) of each device."""
        found = self.empty()
        for name in self.order:
            self.add(found, chosen[name])
        return found

    # ---- proposals

    def lightest(self, option: Option, loads: tuple[np.ndarray, np.ndarray]) -> Choice | None:
        """An option on the devices that have the least to do; None where memory lacks."""
        seconds, taken = loads
        room = taken + option.bytes <= self.memory
        if option.unit == "all":
            return (option, ()) if room.all() else None
        by_node = seconds.reshape(self.job.nodes, -1)
        rooms = room.reshape(self.job.nodes, -1)
        if option.unit == "node":
            cost, free = by_node.max(1), rooms.all(1)
        elif option.same_node:
            able = rooms.sum(1) >= option.columns
            if not able.any():
                return None
            node = int(np.argmin(np.where(able, by_node.sum(1), np.inf)))
            cost, free = np.full(self.job.devices, np.inf), room.copy()
            own = slice(node * self.job.local, (node + 1) * self.job.local)
            cost[own] = seconds[own]
            free[: own.start] = free[own.stop :] = False
        else:
            cost, free = seconds, room
        if free.sum() < option.columns:
            return None
        ranked = np.argsort(np.where(free, cost, np.inf), kind="stable")
        return option, tuple(int(i) for i in ranked[: option.columns])

    def put(self, name: str, loads: Any, kinds: Sequence[str] = ()) -> Choice | None:
        """The option of a table that leaves the slowest device fastest."""
        best, found = (np.inf, np.inf), None
        for option in self.ways[name]:
            if kinds and option.kind not in kinds:
                continue
            choice = self.lightest(option, loads)
            if choice is None:
                continue
            self.add(loads, choice)
            cost = float(loads[0].max()), float(loads[0].sum())
            self.add(loads, choice, -1)
            if cost < best:
                best, found = cost, choice
        return found

    def proposal(self, kinds: Sequence[str] = ()) -> dict[str, Choice] | None:
        """One table after the other, of some kinds where that can be."""
        loads, chosen = self.empty(), {}
        for name in self.order:
            choice = self.put(name, loads, kinds) or self.put(name, loads)
            if choice is None:
                return None
            self.add(loads, choice)
            chosen[name] = choice
        return chosen

    def smallest(self) -> dict[str, Choice] | None:
        """A plan for where memory is short: each table as it takes the least of one device."""
        loads, chosen = self.empty(), {}
        for name in self.order:
            ranked = sorted(self.ways[name], key=lambda o: o.bytes)
            found = (self.lightest(o, (loads[1], loads[1])) for o in ranked)
            choice = next((c for c in found if c is not None), None)
            if choice is None:
                return None
            self.add(loads, choice)
            chosen[name] = choice
        return chosen

    def improved(self, chosen: dict[str, Choice]) -> dict[str, Choice]:
        """Tables of the slowest device put anew, one by one, while that helps."""
        loads = self.loads(chosen)
        for _ in range(4 * len(chosen)):
            slowest = int(loads[0].argmax())
            cost = float(loads[0].max())
            for name in self.order:
                old = chosen[name]
                if not self._has(old, slowest):
                    continue
                self.add(loads, old, -1)
                new = self.put(name, loads) or old
                self.add(loads, new)
                if loads[0].max() < cost * (1 - 1e-9):
                    chosen[name] = new
                    break
                self.add(loads, new, -1)
                self.add(loads, old)
            else:
                break
        return chosen

    def _has(self, choice: Choice, device: int) -> bool:
        marks = np.zeros(self.job.devices, bool)
        for at in self.members(*choice):
            marks[at] = True
        return bool(marks[device])

    # ---- all plans

    def best(self) -> tuple[dict[str, Choice], bool]:
        """The best plan found, and whether there is none better."""
        kinds = itertools.combinations_with_replacement(KINDS, 2 if self.job.devices <= 64 else 1)
        proposals = [self.proposal(), *map(self.proposal, kinds), self.smallest()]
        found = [self.improved(p) for p in proposals if p is not None]
        best = min(found, key=lambda c: self.loads(c)[0].max(), default=None)
        walk = _Walk(self, best)
        walk.go(0, self.empty(), {})
        if walk.chosen is None:
            need = sum(min(self._whole(o) for o in ways) for ways in self.ways.values())
            raise ArgumentError(
                f"recsys.plan: no plan was found within {self.memory:.4g} bytes a device; the "
                f"tables need about {need / self.job.devices:.4g} on each of {self.job.devices}"
            )
        return walk.chosen, walk.visits < VISITS

    def _whole(self, option: Option) -> float:
        """The bytes of all parts of a table."""
        among = {"all": self.job.devices, "node": self.job.local, "device": 1}[option.unit]
        return option.bytes * option.columns * among

    def work(self, option: Option) -> float:
        """The seconds of all parts of a table."""
        among = {"all": self.job.devices, "node": self.job.local, "device": 1}[option.unit]
        return option.seconds * option.columns * among

    def choices(self, name: str) -> Iterator[Choice]:
        """Every option of a table on all places where it can be."""
        for option in self.ways[name]:
            if option.unit == "all":
                yield option, ()
                continue
            count = self.job.nodes if option.unit == "node" else self.job.devices
            for places in itertools.combinations(range(count), option.columns):
                nodes = {p // self.job.local for p in places}
                if not option.same_node or len(nodes) == 1:
                    yield option, places


class _Walk:
    """Depth first through all plans, but for those that can't be better than the best so far."""

    def __init__(self, search: _Search, start: dict[str, Choice] | None):
        self.search, self.chosen, self.visits = search, start, 0
        self.cost = np.inf if start is None else float(search.loads(start)[0].max())
        least = [min(map(search.work, search.ways[k])) for k in search.order]
        self.rest = np.append(np.cumsum(least[::-1])[::-1], 0.0)
        self.seen: set[tuple] = set()

    def go(self, depth: int, loads: tuple[np.ndarray, np.ndarray], chosen: dict) -> None:
        """Go on from some tables that have their places."""
        search = self.search
        if depth == len(search.order):
            self.cost, self.chosen = float(loads[0].max()), dict(chosen)
            return
        name = search.order[depth]
        for choice in search.choices(name):
            if self.visits >= VISITS:
                return
            self.visits += 1
            now = loads[0].copy(), loads[1].copy()
            search.add(now, choice)
            bound = max(now[0].max(), (now[0].sum() + self.rest[depth + 1]) / search.job.devices)
            if bound >= self.cost * (1 - 1e-9) or now[1].max() > search.memory:
                continue
            key = self._key(depth, now)
            if key not in self.seen:
                self.seen.add(key)
                self.go(depth + 1, now, {**chosen, name: choice})

    def _key(self, depth: int, loads: tuple[np.ndarray, np.ndarray]) -> tuple:
        """The same for states that differ by the names of devices and nodes alone."""
        pairs = list(zip(loads[0].round(15).tolist(), loads[1].round(3).tolist(), strict=True))
        size = self.search.job.local
        nodes = [tuple(sorted(pairs[i : i + size])) for i in range(0, len(pairs), size)]
        return (depth, *sorted(nodes))
