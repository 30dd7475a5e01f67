"""Processors that code is written for and doesn't run on here: LLVM's triple, cpu and features.

Each is the least that its name promises: aarch64 has NEON, armv7 NEON and fused products (VFPv4),
riscv64 is RV64GC, wasm32 has vectors of 128 bits (all engines since 2021).
"""

from __future__ import annotations

_X86_64 = ("x86_64", "x86-64", "")
_AARCH64 = ("aarch64", "generic", "+neon,+fp-armv8")
_APPLE = ("arm64", "apple-a12", "+neon,+fp-armv8")

# For each name the architecture, cpu and features, and the system as triples name it.
FOREIGN = {
    "x86-64-linux": (*_X86_64, "unknown-linux-gnu"),
    "x86-64-macos": (*_X86_64, "apple-macosx11.0.0"),
    "x86-64-windows": (*_X86_64, "pc-windows-gnu"),
    "aarch64-linux": (*_AARCH64, "unknown-linux-gnu"),
    "aarch64-android": (*_AARCH64, "unknown-linux-android21"),
    "aarch64-windows": (*_AARCH64, "pc-windows-gnu"),
    "aarch64-macos": (*_APPLE, "apple-macosx11.0.0"),
    "aarch64-ios": (*_APPLE, "apple-ios13.0.0"),
    "armv7-linux": ("armv7", "generic", "+neon,+vfp4", "unknown-linux-gnueabihf"),
    "riscv64-linux": ("riscv64", "generic-rv64", "+m,+a,+f,+d,+c", "unknown-linux-gnu"),
    "wasm32": ("wasm32", "generic", "+simd128", "unknown-wasi"),
}


def named(name: str) -> tuple[str, str, str]:
    """The triple, cpu and features of a name in `FOREIGN`.

    >>> named("aarch64-linux")[0]
    'aarch64-unknown-linux-gnu'
    """
    arch, cpu, features, system = FOREIGN[name]
    return f"{arch}-{system}", cpu, features
