"""The loop IR's scalar ops as one text each, for both sides: a kernel of a thread an element, and a
function that loops over them on the host."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import llvmlite.binding as llvm
import ml_dtypes
import numpy as np

from funcgrad.backends.llvm.emit import ops
from funcgrad.backends.llvm.emit.text import (
    BFLOAT16,
    BOOL,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    Definitions,
    Function,
    memory_type,
    value_type,
)
from funcgrad.backends.llvm.vecmath.functions import NAMES
from funcgrad.backends.loops.ir import ARITHMETIC, BITS, MATH, PREDICATES

INTEGERS = [np.dtype(f"{kind}{bits}") for kind in ("int", "uint") for bits in (8, 16, 32, 64)]
NARROW = [FLOAT16, BFLOAT16]
ALL = [BOOL, *INTEGERS, *NARROW, FLOAT32, FLOAT64]
_EXTRA = {"rsqrt": 1, "logistic": 1, "erf": 1, "erfc": 1, "erf_inv": 1, "lgamma": 1, "digamma": 1,
          "exact_fmod": 2}  # fmt: skip
_ARITY = ARITHMETIC | BITS | MATH | PREDICATES | _EXTRA
_TID = "llvm.nvvm.read.ptx.sreg.tid.x", "llvm.nvvm.read.ptx.sreg.ctaid.x"
THREADS = 256


class Scalar(NamedTuple):
    """An op on operands of a dtype, and its result's."""

    op: str
    dtype: np.dtype
    out: np.dtype
    arity: int

    @property
    def name(self) -> str:
        """The kernel's."""
        to = f"_{self.out.name}" if self.op in ("convert", "bitcast") else ""
        return f"{self.op}_{self.dtype.name}{to}"

    def apply(self, f: Function, args: Sequence[str]) -> str:
        """The op's instructions; its result."""
        if self.op in _EXTRA:
            return f.math(self.op.removeprefix("exact_"), value_type(self.dtype), *args)
        return ops.apply(f, self.op, self.out, [self.dtype] * self.arity, args)


def scalars() -> Iterator[Scalar]:
    """Each op on each dtype that it has instructions for, conversions and bit casts with them."""
    for op, arity in _ARITY.items():
        for dtype in [BOOL, *INTEGERS, FLOAT32, FLOAT64]:
            made = Scalar(op, dtype, BOOL if op in PREDICATES else dtype, arity)
            if _is_there(made):
                yield made
    for source in ALL:
        for to in ALL:
            if source != to:
                yield Scalar("convert", source, to, 1)
            if source.itemsize == to.itemsize and BOOL not in (source, to) and source != to:
                yield Scalar("bitcast", source, to, 1)


def _is_there(scalar: Scalar) -> bool:
    if (scalar.op in MATH or scalar.op in _EXTRA) and scalar.dtype not in (FLOAT32, FLOAT64):
        return False
    if (scalar.op, scalar.dtype) in (
        ("lgamma", FLOAT64), ("exact_fmod", FLOAT64), ("power", BOOL),
    ):  # fmt: skip
        return False  # the C library's; no op of the loop IR
    module = Definitions()
    try:
        llvm.parse_assembly(module.text([host_loop(module, scalar)])).verify()
    except (AssertionError, KeyError, ArithmeticError, ValueError, RuntimeError):
        return False
    return True


def _body(f: Function, scalar: Scalar, index: str, space: str) -> None:
    memory, args = memory_type(scalar.dtype), []
    for i in range(scalar.arity):
        at = f.let(f"getelementptr {memory}, ptr{space} %p{i}, i64 {index}")
        x = f.let(f"load {memory}, ptr{space} {at}")
        args.append(f.let(f"icmp ne i8 {x}, 0") if scalar.dtype == BOOL else x)
    y, to = scalar.apply(f, args), memory_type(scalar.out)
    if scalar.out == BOOL:
        y = f.let(f"zext i1 {y} to i8")
    at = f.let(f"getelementptr {to}, ptr{space} %out, i64 {index}")
    f.do(f"store {to} {y}, ptr{space} {at}")


def kernel(module: Definitions, scalar: Scalar) -> str:
    """The kernel `name(p0, …, out, n)` of elements 0 … n - 1."""
    f, space = Function(module), " addrspace(1)"
    _guard(f, "%n")
    _body(f, scalar, "%i", space)
    f.do("br label %done")
    f.start("done")
    f.do("ret void")
    params = "".join(f"ptr{space} noalias readonly %p{i}, " for i in range(scalar.arity))
    head = f"define ptx_kernel void @{scalar.name}({params}ptr{space} noalias %out, i32 %n)"
    return f.text(head + " nounwind")


def _guard(f: Function, count: str) -> None:
    for name in _TID:
        f.module.declare(name, "i32", [])
    tid, block = (f.let(f"call i32 @{name}()") for name in _TID)
    flat = f.let(f"add i32 {f.let(f'mul i32 {block}, {THREADS}')}, {tid}")
    f.do(f"%i = zext i32 {flat} to i64")
    inside = f.let(f"icmp ult i32 {flat}, {count}")
    f.do(f"br i1 {inside}, label %go, label %done")
    f.start("go")


def host_loop(module: Definitions, scalar: Scalar) -> str:
    """The function `name(p0, …, out, n)` of the same on the host."""
    f = Function(module)
    f.do("br label %loop")
    f.start("loop")
    f.do("%i = phi i64 [0, %entry], [%next, %loop]")
    _body(f, scalar, "%i", "")
    f.do("%next = add nuw i64 %i, 1")
    f.do(f"br i1 {f.let('icmp ult i64 %next, %n')}, label %loop, label %done")
    f.start("done")
    f.do("ret void")
    params = "".join(f"ptr noalias %p{i}, " for i in range(scalar.arity))
    return f.text(f"define void @{scalar.name}({params}ptr noalias %out, i64 %n)")


def checksum_scalars() -> list[Scalar]:
    """The functions of one float32 whose results at all 2³² inputs are summed up."""
    names = ("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan",
             "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "arcsinh", "arccosh",
             "arctanh", "cbrt", "sqrt", "rsqrt", "logistic", "erf", "erfc", "erf_inv", "lgamma",
             "digamma")  # fmt: skip
    return [Scalar(n, FLOAT32, FLOAT32, 1) for n in names if n in NAMES or n == "sqrt"]


def _bits_of(f: Function, scalar: Scalar, bits: str) -> str:
    """A result's bits as i64, all NaN alike, at the input of these bits (i32)."""
    y = scalar.apply(f, [f.let(f"bitcast i32 {bits} to float")])
    raw = f.let(f"bitcast float {y} to i32")
    is_nan = f.let(f"fcmp uno float {y}, {y}")
    return f.let(f"zext i32 {f.let(f'select i1 {is_nan}, i32 2143289344, i32 {raw}')} to i64")


def checksum_kernel(module: Definitions, scalar: Scalar, each: int) -> str:
    """`sum_name(totals, first)`: a thread adds up `each` consecutive results into totals[0]."""
    f = Function(module)
    for name in _TID:
        module.declare(name, "i32", [])
    tid, block = (f.let(f"call i32 @{name}()") for name in _TID)
    flat = f.let(f"add i32 {f.let(f'mul i32 {block}, {THREADS}')}, {tid}")
    f.do(f"%start = add i32 %first, {f.let(f'mul i32 {flat}, {each}')}")
    f.do("br label %loop")
    f.start("loop")
    f.do("%k = phi i32 [0, %entry], [%next, %loop]")
    f.do("%total = phi i64 [0, %entry], [%sum, %loop]")
    f.do(f"%sum = add i64 %total, {_bits_of(f, scalar, f.let('add i32 %start, %k'))}")
    f.do("%next = add i32 %k, 1")
    f.do(f"br i1 {f.let(f'icmp ult i32 %next, {each}')}, label %loop, label %done")
    f.start("done")
    f.let("atomicrmw add ptr addrspace(1) %totals, i64 %sum monotonic")
    f.do("ret void")
    head = f"define ptx_kernel void @sum_{scalar.name}(ptr addrspace(1) %totals, i32 %first)"
    return f.text(head)


def checksum_host(module: Definitions, scalar: Scalar) -> str:
    """`sum_name(first, n)`: the same of n results on the host."""
    f = Function(module)
    f.do("br label %loop")
    f.start("loop")
    f.do("%k = phi i32 [0, %entry], [%next, %loop]")
    f.do("%total = phi i64 [0, %entry], [%sum, %loop]")
    f.do(f"%sum = add i64 %total, {_bits_of(f, scalar, f.let('add i32 %first, %k'))}")
    f.do("%next = add i32 %k, 1")
    f.do(f"br i1 {f.let('icmp ult i32 %next, %n')}, label %loop, label %done")
    f.start("done")
    f.do("ret i64 %sum")
    return f.text(f"define i64 @sum_{scalar.name}(i32 %first, i32 %n)")


def device_text(text: str) -> str:
    """A module's text whose own names PTX can have: no dots, nothing weak."""
    text = re.sub(r'@"?(?!llvm\.)([\w.]+)"?', lambda m: "@" + m[1].replace(".", "_"), text)
    return re.sub(r"\b(weak_odr|linkonce_odr|weak|linkonce)( hidden)?\b", "internal", text)


def inputs(scalar: Scalar, count: int) -> list[np.ndarray]:
    """Operands: pairs of special values first, then random bits; NaN and infinities among them."""
    rng = np.random.default_rng(sum(map(ord, scalar.name)))
    made = []
    for which in range(scalar.arity):
        special = _specials(scalar.dtype)
        n = len(special)
        if scalar.dtype == BOOL:
            bits = rng.integers(0, 2, count).astype(np.uint8)
        else:
            raw = rng.integers(0, 256, count * scalar.dtype.itemsize, dtype=np.uint8)
            bits = raw.view(f"u{scalar.dtype.itemsize}")
        x = bits.view(bool if scalar.dtype == BOOL else scalar.dtype).copy()
        pairs = special[np.arange(n * n) // n] if which == 0 else special[np.arange(n * n) % n]
        x[: min(len(pairs), count)] = pairs[:count]
        made.append(x)
    if scalar.op == "convert" and scalar.dtype.kind in "fV" and scalar.out in INTEGERS:
        made[0] = _within(made[0], scalar.out)
    return made


def _within(x: np.ndarray, to: np.dtype) -> np.ndarray:
    """Floats whose conversion is defined: those that lie within the integer's range."""
    limits = np.iinfo(to)
    with np.errstate(invalid="ignore"):  # signalling NaN
        wide = x.astype(np.float64)
    inside = np.isfinite(wide) & (wide > float(limits.min) - 1) & (wide < float(limits.max) * 0.99)
    return np.where(inside, x, x.dtype.type(3))


def _specials(dtype: np.dtype) -> np.ndarray:
    if dtype == BOOL:
        return np.array([False, True])
    if dtype in INTEGERS:
        limits = np.iinfo(dtype)
        low, high = int(limits.min), int(limits.max)
        below = [-1, -2, -3] if dtype.kind == "i" else []
        return np.array([0, 1, 2, 3, 7, high, high - 1, low, low + 1, high // 2, *below], dtype)
    info = ml_dtypes.finfo(dtype)
    tiny, least = float(info.smallest_normal), float(info.smallest_subnormal)
    most = float(info.max)
    positive = [0.0, least, 3 * least, tiny, 2 * tiny, 1e-3, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, np.pi,
                7.75, 10.0, 88.5, 100.0, 1e4, most / 2, most, np.inf]  # fmt: skip
    return np.array([*positive, *(-v for v in positive), np.nan]).astype(dtype)
