"""Sizes of caches: what the system tells, what is believed of it, and where it counts."""

import pytest

from funcgrad.backends.llvm.emit.schedule import schedule
from funcgrad.backends.llvm.native import caches, target
from funcgrad.backends.llvm.native.caches import Caches, linux_sizes
from funcgrad.backends.llvm.native.engine import Engine
from funcgrad.backends.llvm.native.target import Target
from funcgrad.backends.loops.ir import Buffer
from funcgrad.core.record import replace
from tests.backends.llvm.kernels_run import F32, at, kernel


def told(folder, *rows):
    for i, (level, kind, size, shared) in enumerate(rows):
        entry = folder / f"index{i}"
        entry.mkdir()
        names = ("level", "type", "size", "shared_cpu_list")
        for name, value in zip(names, (level, kind, size, shared), strict=True):
            (entry / name).write_text(f"{value}\n")
    return linux_sizes(folder)


@pytest.mark.parametrize(
    ("rows", "wanted"),
    [
        ([], {}),
        (
            [(1, "Data", "48K", "0,64"), (1, "Instruction", "32K", "0,64"),
             (2, "Unified", "2048K", "0,64"), (3, "Unified", "105M", "0-127")],
            {1: 48 << 10, 2: 2 << 20, 3: 105 << 20},
        ),
        # Four cores share the second cache.
        ([(1, "Data", "64K", "0"), (2, "Unified", "4096K", "0-3")], {1: 64 << 10, 2: 1 << 20}),
        ([(1, "Data", "much", "0"), (2, "Unified", "1M", "?")], {}),
        ([(2, "Unified", "1048576", "0")], {2: 1 << 20}),
    ],
)  # fmt: skip
def test_what_linux_tells(rows, wanted, tmp_path):
    assert told(tmp_path, *rows) == wanted


def test_files_may_be_missing(tmp_path):
    (tmp_path / "index0").mkdir()
    assert linux_sizes(tmp_path) == {}


def test_what_is_not_credible_is_not_believed():
    fixed = Caches()
    assert fixed.told({}) == fixed
    assert fixed.told({1: 0, 2: 1 << 40, 3: 17}) == fixed
    assert fixed.told({1: 1 << 17}) == replace(fixed, l1=1 << 17, l3=1 << 20)
    assert fixed.told({2: 1 << 22}) == replace(fixed, l2=1 << 22, l3=1 << 22)
    assert fixed.told({2: 1 << 22, 3: 1 << 30}) == replace(fixed, l2=1 << 22, l3=1 << 30)


def test_targets(monkeypatch):
    """The host's are what is told, all others fixed; they are part of the key of code on disk."""
    monkeypatch.setattr(target, "host_sizes", lambda: {1: 1 << 16, 2: 1 << 21, 3: 1 << 26})
    host, generic = Target.host(), Target.named("generic")
    assert host.caches == Caches(1 << 16, 1 << 21, 1 << 26)
    assert generic.caches == host.generic().caches == Caches()
    if host.triple.startswith("x86_64"):
        assert Target.named("x86-64").caches == Caches()
    monkeypatch.setattr(target, "host_sizes", dict)
    other = Target.host()
    assert other.caches == Caches.fixed(host.has("avx512f"))
    assert Engine(host).salt != Engine(other).salt


def test_a_target_that_is_kept_has_the_caches_that_are_told_now(monkeypatch, tmp_path):
    monkeypatch.setenv("FUNCGRAD_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("FUNCGRAD_TARGET", raising=False)
    monkeypatch.setattr(target, "_asked_for", target._asked_for.__wrapped__)
    for size in (1 << 21, 1 << 22):
        monkeypatch.setattr(target, "host_sizes", lambda size=size: {2: size, 3: 1 << 26})
        assert target.default_target.__wrapped__().caches.l2 == size


def test_on_this_machine():
    sizes = caches.host_sizes()
    assert all(isinstance(v, int) and v > 0 for v in sizes.values())


def test_blocks_fit():
    """A block of points has as many as the first cache holds."""
    m, n = 5000, 30
    x, o = Buffer("x", F32, m * n, "in"), Buffer("o", F32, m * n, "out")

    def write(b, i):
        b.loop(n, lambda j: b.store(o, at((m, j), (1, i)), b.load(x, at((m, j), (1, i)))),
               parallel=True)  # fmt: skip

    made = kernel([x, o], [m], write)
    small, large = (schedule(made, l1=size).levels[-1].tile for size in (1 << 12, 1 << 20))
    assert (small, large) == (256, 1024)


def test_of_a_third_cache_of_many_cores_little_counts():
    """What is written past it: AMD's, told as those of a few cores, count as they are."""
    large = Caches(l3=260 << 20)
    intel = Target("x86_64-unknown-linux-gnu", "sapphirerapids", "+avx512f", large)
    assert intel.stream_bytes == 1 << 24
    assert replace(intel, cpu="znver4").stream_bytes == 130 << 20
    assert replace(intel, caches=Caches(l3=8 << 20)).stream_bytes == 4 << 20
    assert replace(intel, triple="aarch64-unknown-linux-gnu").stream_bytes == 0
