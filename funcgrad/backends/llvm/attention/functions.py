"""Attention as generated code: one function a dtype and op serves all shapes and strides.

It takes a pointer to the i64 words of `parts.CALL`; `words` and `pointers` say what they
are for a step of a program.
"""

from __future__ import annotations

import ctypes
import functools
import struct

from funcgrad.backends.llvm.attention.backward import Backward
from funcgrad.backends.llvm.attention.forward import Forward
from funcgrad.backends.llvm.attention.joint import Joint
from funcgrad.backends.llvm.attention.parts import AXES, CALL, FAR, PAIR_AXES, Attention
from funcgrad.backends.llvm.gemm.pack import FORMATS
from funcgrad.backends.llvm.gemm.packers import provide_packers
from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.engine import Engine, Library, engine
from funcgrad.backends.llvm.native.sources import generator
from funcgrad.backends.llvm.runtime import pool, scratch
from funcgrad.backends.program import AttentionStep, Ref

# Operands and results of each op.
_NAMES = {
    "attention": (("q", "k", "v"), ("out",)),
    "attention_backward": (("q", "k", "v", "out", "ct"), ("dq", "dk", "dv")),
    "attention_joint": (("q", "k", "v", "ct"), ("out", "dq", "dk", "dv")),
}


@functools.cache
def install(
    dtype: str, op: str = "attention", pairs: bool = False, target: Engine | None = None
) -> int:
    """Compile the function of a dtype and op, bind its symbol, and return its address.

    pairs: the one that knows biases and masks

    >>> install("float32") == install("float32")
    True
    """
    target, name = target or engine(), symbol(dtype, op, pairs)
    library = _library(dtype, op, pairs, target)
    target.bind(name, library)
    return library.address(name)


@functools.cache
def _library(dtype: str, op: str, pairs: bool, target: Engine) -> Library:
    pool.bind(target)
    scratch.bind(target)
    provide_packers(target, dtype)
    name = symbol(dtype, op, pairs)

    def write() -> ir.Module:
        module = ir.Module("attention")
        parts = Attention(module, FORMATS[dtype], target.target)
        if op == "attention_joint":
            Joint(parts, name)
        else:
            (Forward if op == "attention" else Backward)(parts, name, pairs)
        return module

    key = f"{name} {generator('attention.functions')}"
    return target.compile(write, level=1, key=key)


def symbol(dtype: str, op: str = "attention", pairs: bool = False) -> str:
    """Name of the function that `install` compiles."""
    return f"fg_{op}{'_pairs' * pairs}_{dtype}"


def room(step: AttentionStep, target: Engine | None = None) -> int:
    """The bytes of scratch memory that a step takes, with as many threads as there are now."""
    pairs, target = bool(step.pairs), target or engine()
    library = _library(step.dtype.name, step.op, pairs, target)
    address = library.address(f"{symbol(step.dtype.name, step.op, pairs)}_room")
    packed = (ctypes.c_int64 * len(CALL))(*words(step))
    return int(ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(address)(ctypes.addressof(packed)))


def words(step: AttentionStep) -> list[int]:
    """The words of `CALL` that a step knows; addresses are 0."""
    found: dict[str, int] = dict(step.sizes._asdict())
    (scale,) = struct.unpack("<q", struct.pack("<d", step.scale))
    found |= {
        "scale": scale,
        "first": -FAR if step.before is None else -step.before,
        "last": FAR if step.after is None else step.after + 1,
        "block": step.cut.block,
        "ranges": step.cut.ranges,
        "shared_batch": step.cut.shared[0],
        "shared_heads": step.cut.shared[1],
        "dbias_size": step.dbias_size,
    }
    for name, x in _arrays(step).items():
        found |= {f"{name}_{axis}": n for axis, n in zip(AXES, x.strides, strict=True)}
    for name, x in step.pairs.items():
        found |= {f"{name}_{axis}": n for axis, n in zip(PAIR_AXES, x.strides, strict=True)}
    return [found.get(name, 0) for name in CALL]


def pointers(step: AttentionStep) -> dict[str, Ref]:
    """What lies at the addresses among the words."""
    found = {name: x.ref for name, x in (_arrays(step) | step.pairs).items()}
    found |= dict(zip(("query_lengths", "key_lengths"), step.lengths, strict=False))
    found |= {"stats": step.stats} if step.stats is not None else {}
    scratch = step.cut.scratch
    return found | ({"scratch": scratch} if scratch is not None else {})


def _arrays(step: AttentionStep) -> dict:
    names, results = _NAMES[step.op]
    ins = dict(zip(names, step.ins, strict=True))
    return ins | dict(zip(results, step.outs, strict=True))
