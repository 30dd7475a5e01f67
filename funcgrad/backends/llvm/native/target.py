"""What code is generated for: the host's processor, or a named level of it.

Asking LLVM for the host means loading LLVM, so the answer is kept on disk (`objects`) for the same
processor and the same LLVM: a process that finds all of its code there never loads it.
"""

from __future__ import annotations

import functools
import os
import sys

import llvmlite
from llvmlite.utils import get_library_name

from funcgrad.backends.late import Late
from funcgrad.backends.llvm.native import objects
from funcgrad.backends.llvm.native.caches import FIXED, Caches, host_sizes
from funcgrad.backends.llvm.native.foreign import FOREIGN
from funcgrad.backends.llvm.native.foreign import named as foreign
from funcgrad.core.record import Record, replace

libllvm = Late("funcgrad.backends.llvm.native.libllvm")

# What the levels of x86-64 add to each other, as its ABI defines them.
LEVELS = {
    "x86-64": (),
    "x86-64-v2": ("cx16", "popcnt", "sahf", "sse3", "sse4.1", "sse4.2", "ssse3"),
    "x86-64-v3": ("avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "xsave"),
    "x86-64-v4": ("avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl"),
}

# How features end that stand for vectors of 512 bits alone, as others go wrong (see `_sound`).
NO_SHORT = ",-avx512vl"

# Bytes that one program may hope for of a third cache that dozens of cores share.
MESH_BYTES = 1 << 25

# What is kept on disk of a target.
_KEPT = ("triple", "cpu", "features", "runs_here")

# What tells processors apart in the system's description of one.
_CPU_FACTS = ("vendor_id", "cpu family", "model", "model name", "stepping", "flags")


class Target(Record):
    """What code is generated for: an LLVM triple, a cpu name, a feature string, sizes of caches.

    runs_here: whether this process may run the code

    >>> Target.host().generic().features
    ''
    """

    triple: str
    cpu: str
    features: str
    caches: Caches = FIXED
    runs_here: bool = True

    @staticmethod
    def host() -> Target:
        """The processor that runs this process, with all its features and its caches.

        >>> Target.host() == Target.host()
        True
        """
        triple, cpu, features = libllvm.host()
        if features.get("avx512f"):
            # LLVM models some processors as preferring 256-bit vectors; every one that has
            # AVX-512 gains from full registers in long loops.
            features["prefer-256-bit"] = False
        return _with_caches(Target(triple, cpu, _sound(features)), "host")

    @staticmethod
    def named(name: str) -> Target:
        """A target by name: "host", "generic", a level of x86-64 such as "x86-64-v3", or one whose
        code is written alone, such as "aarch64-linux" (`foreign`) or "x86-64-v3-linux".

        All but the host have caches of fixed sizes (`Caches.fixed`).

        Raises ValueError for any other name, and for a level that this processor doesn't reach:
        its code would end the process.

        >>> Target.named("generic") == Target.host().generic()
        True
        """
        if name in FOREIGN:
            return _with_caches(Target(*foreign(name), runs_here=False), name)
        if name.removesuffix("-linux") in LEVELS and name.endswith("-linux"):
            triple, level = foreign("x86-64-linux")[0], name.removesuffix("-linux")
            features = _sound(dict.fromkeys(_features_of(level), True))
            return _with_caches(Target(triple, level, features, runs_here=False), name)
        host = Target.host()
        if name in ("host", "generic"):
            return host if name == "host" else host.generic()
        if name not in LEVELS or not host.triple.startswith("x86_64"):
            known = ["host", "generic", *(LEVELS if host.triple.startswith("x86_64") else ())]
            known += FOREIGN
            raise ValueError(f"FUNCGRAD_TARGET must be one of {', '.join(known)}, got {name!r}")
        _, _, features = libllvm.host()
        wanted = dict.fromkeys(_features_of(name), True)
        if lacking := [feature for feature in wanted if not features.get(feature)]:
            raise ValueError(
                f"FUNCGRAD_TARGET={name}: this processor ({host.cpu}) has no {', '.join(lacking)}"
            )
        return _with_caches(Target(host.triple, name, _sound(wanted)), name)

    def generic(self) -> Target:
        """The oldest processor of the same architecture: code that runs on all of them.

        >>> Target("x86_64-unknown-linux-gnu", "znver5", "+avx512f").generic().cpu
        'x86-64'
        """
        cpu = "x86-64" if self.triple.startswith("x86_64") else "generic"
        return Target(self.triple, cpu, "")

    def has(self, feature: str) -> bool:
        """Whether the target has an LLVM feature, such as "avx2" or "neon".

        >>> Target("x86_64-unknown-linux-gnu", "znver5", "+avx512f,-neon").has("avx512f")
        True
        """
        return f"+{feature}" in self.features.split(",")

    @property
    def converts_halves(self) -> bool:
        """Whether it has instructions that convert float16 to float32 and back.

        >>> Target("x86_64-unknown-linux-gnu", "x86-64", "").converts_halves
        False
        """
        return self.has("f16c") or self.triple.startswith(("aarch64", "arm64"))

    @property
    def vector_bits(self) -> int:
        """Width of the vector registers: 512 with AVX-512, 256 with AVX, else 128.

        >>> Target("x86_64-unknown-linux-gnu", "znver3", "+avx,+avx2").vector_bits
        256
        """
        return 512 if self.has("avx512f") else 256 if self.has("avx") else 128

    @property
    def follows_strides(self) -> bool:
        """Whether lines that are read a page or more apart come as soon as such that follow each
        other: of processors with AVX-512, AMD's fetch both ahead, Intel's no strides beyond 2 KB.

        >>> Target("x86_64-unknown-linux-gnu", "sapphirerapids", "+avx512f").follows_strides
        False
        """
        return self.vector_bits < 512 or self.cpu.startswith("znver")

    @property
    def multiplies_pairs(self) -> bool:
        """Whether pairs of bfloat16 are multiplied sooner by their instruction than as float32: it
        does two products, in AMD's processors as soon as others one, in Intel's in four times that.

        >>> Target("x86_64-unknown-linux-gnu", "znver4", "+avx512f,+avx512bf16").multiplies_pairs
        True
        """
        return self.has("avx512bf16") and self.cpu.startswith("znver")

    @property
    def stream_bytes(self) -> int:
        """The size from which on an array is written past the caches, which can't hold it until
        somebody reads it; 0 for never.

        Intel's third caches are told as those of all cores, which others use as well, and are
        little faster than memory: of these no more counts than one of AMD's has.

        >>> Target("x86_64-unknown-linux-gnu", "znver3", "").stream_bytes
        16777216
        """
        l3 = self.caches.l3 if self.follows_strides else min(self.caches.l3, MESH_BYTES)
        return l3 // 2 if self.triple.startswith("x86_64") else 0


@functools.cache
def default_target() -> Target:
    """What programs are compiled for: FUNCGRAD_TARGET from the environment, else this processor.

    Raises ValueError as `Target.named` does.

    >>> default_target() is default_target()
    True
    """
    name, key = _asked_for()
    kept = objects.load(key) if key else None
    if kept is not None:
        return _with_caches(Target(**kept[0]), name)
    target = Target.named(name)
    if key:
        objects.save(key, {f: getattr(target, f) for f in _KEPT}, b"")
    return target


def needs_llvm() -> bool:
    """Whether `default_target` has to load LLVM, as it never ran here, or too long ago.

    >>> needs_llvm() in (True, False)
    True
    """
    _, key = _asked_for()
    return not (key and objects.exists(key))


@functools.cache
def _asked_for() -> tuple[str, str]:
    """The target's name, and of its file; "" for none."""
    name, cpu = os.environ.get("FUNCGRAD_TARGET") or "host", _cpu_text()
    return name, objects.digest(
        f"target|{name}|{llvm_version()}|{sys.platform}|{cpu}"
    ) if cpu else ""


@functools.cache
def llvm_version() -> str:
    """What tells one build of LLVM from another, without loading it.

    >>> llvm_version() == llvm_version()
    True
    """
    try:
        size = os.stat(library_path()).st_size
    except OSError:
        size = 0
    return f"{llvmlite.__version__} {size}"


def library_path() -> str:
    """Where the shared library is that holds LLVM.

    >>> os.path.isabs(library_path())
    True
    """
    return os.path.join(os.path.dirname(llvmlite.__file__), "binding", get_library_name())


def _features_of(level: str) -> list[str]:
    """What a level of x86-64 has."""
    levels = list(LEVELS)
    return [f for each in levels[: levels.index(level) + 1] for f in LEVELS[each]]


def _with_caches(target: Target, name: str) -> Target:
    told = host_sizes() if name == "host" else {}
    return replace(target, caches=Caches.fixed(target.vector_bits == 512).told(told))


def _cpu_text() -> str:
    """What the system says of the first processor, "" if that isn't enough to know it."""
    try:
        with open("/proc/cpuinfo", "rb") as file:
            lines = file.read(8192).decode("utf-8", "replace").split("\n\n")[0].splitlines()
    except OSError:
        return ""
    pairs = [line.partition(":") for line in lines]
    facts = {name.strip(): value.strip() for name, _, value in pairs}
    known = [facts.get(name, "") for name in _CPU_FACTS]
    return "|".join(known) if all(known) else ""


def _sound(features: dict[str, bool]) -> str:
    """Features as LLVM reads them, without those that it generates wrong code for."""
    last = ""
    if features.get("avx512vl") and libllvm.version() >= (22,):
        # LLVM 22 folds the extraction of sign masks of short vectors to instructions that can't
        # name the upper 16 registers, which then read others (llvm-project issue 191304).
        # Without this feature, short vectors stay out of those. Last: what implies it goes too.
        # Code that reads or writes parts of short vectors needs it (`compiler.compiled`).
        del features["avx512vl"]
        last = NO_SHORT
    return ",".join(f"{'+' if has else '-'}{f}" for f, has in sorted(features.items())) + last
