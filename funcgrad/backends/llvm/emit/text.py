"""LLVM IR as text: types, constants, and a function under construction.

Kernels are written as text rather than with the builder of `native`: it is faster still, and a
kernel's text is its identity for the cache of compiled code.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

from funcgrad.backends.late import Late
from funcgrad.backends.llvm.native import ir

vecmath = Late("funcgrad.backends.llvm.vecmath.functions")

BOOL = np.dtype(bool)
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
FLOAT16, FLOAT32, FLOAT64 = (np.dtype(f"float{n}") for n in (16, 32, 64))

# In memory a bool is a byte. A bfloat16 is held as its bits.
_FLOAT_TYPES = {BFLOAT16: "i16", FLOAT16: "half", FLOAT32: "float", FLOAT64: "double"}

STAYS = '!{!"llvm.loop.unroll.disable"}'  # a hint: the loop is not to be unrolled


def value_type(dtype: np.dtype) -> str:
    """The LLVM type of a scalar in a register.

    >>> value_type(np.dtype("uint8")), value_type(np.dtype(bool))
    ('i8', 'i1')
    """
    if dtype == BOOL:
        return "i1"
    return _FLOAT_TYPES.get(dtype) or f"i{8 * dtype.itemsize}"


def memory_type(dtype: np.dtype) -> str:
    """The LLVM type of a scalar in memory.

    >>> memory_type(np.dtype(bool))
    'i8'
    """
    return "i8" if dtype == BOOL else value_type(dtype)


def constant(value: Any, dtype: np.dtype) -> str:
    """A numpy scalar of a dtype as an LLVM constant.

    >>> constant(np.float32(1.5), np.dtype("float32")), constant(np.uint8(255), np.dtype("uint8"))
    ('0x3FF8000000000000', '255')
    """
    value = np.asarray(value, dtype)
    if dtype == BOOL:
        return "true" if value else "false"
    if dtype == BFLOAT16:
        return str(int(value.view(np.uint16)))
    if dtype == FLOAT16:
        return f"0xH{int(value.view(np.uint16)):04X}"
    if dtype in _FLOAT_TYPES:
        return f"0x{int(value.astype(np.float64).view(np.uint64)):016X}"
    return str(int(value))


def suffix(type_: str) -> str:
    """The type's part in an intrinsic's name.

    >>> suffix("float")
    'f32'
    """
    return {"half": "f16", "float": "f32", "double": "f64"}.get(type_, type_)


def task_of(name: str, params: int) -> str:
    """The function {name}_task(context, begin, end): name(pointers…, begin, end) on the array of
    pointers that is its context.

    >>> print(task_of("f", 0).splitlines()[1])
      call void @f(i64 %begin, i64 %end)
    """
    lines = [f"define void @{name}_task(ptr %context, i64 %begin, i64 %end) nounwind {{"]
    for i in range(params):
        lines.append(f"  %a{i} = getelementptr ptr, ptr %context, i64 {i}")
        lines.append(f"  %p{i} = load ptr, ptr %a{i}")
    args = "".join(f"ptr %p{i}, " for i in range(params))
    lines.append(f"  call void @{name}({args}i64 %begin, i64 %end)")
    return "\n".join([*lines, "  ret void", "}"])


class Definitions:
    """What the functions of a module need beside themselves: declarations, helpers, metadata.

    scalar: whether nothing becomes vectors, as on a GPU
    """

    def __init__(self, scalar: bool = False) -> None:
        self.scalar = scalar
        self.needed: dict[str, str] = {}
        self.metadata: list[str] = []

    def declare(self, name: str, result: str, args: Sequence[str], attributes: str = "") -> None:
        """Declare an external function or an intrinsic."""
        if name not in self.needed:
            line = f"declare {result} @{name}({', '.join(args)}) {attributes}".rstrip()
            self.needed[name] = line

    def node(self, text: str) -> str:
        """A new metadata node; `{self}` in its text is its own name."""
        name = f"!{len(self.metadata)}"
        self.metadata.append(f"{name} = {text.replace('{self}', name)}")
        return name

    def text(self, functions: Sequence[str]) -> str:
        """The module that defines these functions."""
        return "\n\n".join([*functions, *self.needed.values(), "\n".join(self.metadata)]) + "\n"


class Function:
    """A function's instructions, block by block; values are strings such as `%v3` or constants."""

    def __init__(self, module: Definitions):
        self.module = module
        self.lines: list[str] = []
        self.entry: list[str] = []
        self.block = "entry"
        self._count = 0

    def name(self, stem: str = "v") -> str:
        """A fresh name, without its sigil."""
        self._count += 1
        return f"{stem}{self._count}"

    def do(self, text: str) -> None:
        """Append an instruction that has no result."""
        self.lines.append("  " + text)

    def let(self, text: str) -> str:
        """Append an instruction; its result."""
        name = "%" + self.name()
        self.lines.append(f"  {name} = {text}")
        return name

    def start(self, label: str) -> None:
        """Begin a block."""
        self.lines.append(f"{label}:")
        self.block = label

    def alloca(self, type_: str, count: int, align: int = 64) -> str:
        """Memory in the function's frame."""
        name = "%" + self.name("m")
        self.entry.append(f"  {name} = alloca [{count} x {type_}], align {align}")
        return name

    def call(self, name: str, result: str, types: Sequence[str], args: Sequence[str]) -> str:
        """Call a function; its result (an empty string for void)."""
        listed = ", ".join(f"{t} {a}" for t, a in zip(types, args, strict=True))
        if result == "void":
            self.do(f"call void @{name}({listed})")
            return ""
        return self.let(f"call {result} @{name}({listed})")

    def intrinsic(self, name: str, type_: str, *args: str) -> str:
        """llvm.name on arguments of one type, which is the result's."""
        full = f"llvm.{name}.{suffix(type_)}"
        types = [type_] * len(args)
        self.module.declare(full, type_, types)
        return self.call(full, type_, types, args)

    def math(self, name: str, type_: str, *args: str) -> str:
        """An elementary function by NumPy's name: ours, or the C library's."""
        if name in vecmath.NAMES:
            symbol, texts = _vector_math(name, type_, len(args), self.module.scalar)
            self.module.needed.update(texts)
        else:
            symbol = _LIBM.get(name, name) + ("f" if type_ == "float" else "")
            self.module.declare(symbol, type_, [type_] * len(args), "nounwind memory(none)")
        return self.call(symbol, type_, [type_] * len(args), args)

    def text(self, head: str) -> str:
        """The whole function, after its head."""
        return "\n".join([head + " {", "entry:", *self.entry, *self.lines, "}"])


_LIBM = {
    "arcsin": "asin", "arccos": "acos", "arctan": "atan", "arctan2": "atan2", "arcsinh": "asinh",
    "arccosh": "acosh", "arctanh": "atanh", "power": "pow",
}  # fmt: skip


@cache
def _vector_math(name: str, type_: str, arity: int, scalar: bool) -> tuple[str, dict[str, str]]:
    """The symbol of an elementary function, and the texts that define it and what it calls."""
    module = ir.Module(scalar=scalar)
    kind = ir.FloatType() if type_ == "float" else ir.DoubleType()
    symbol = vecmath.function(module, name, kind, arity).name
    return symbol, {name: v.definition().strip() for name, v in module.globals.items()}
