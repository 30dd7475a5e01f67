"""LLVM's IR as text: types, values, functions and modules, which `builder` fills.

Names are llvmlite's, which keeps an object for each instruction and writes it at the end; here an
instruction is a line from the start, which takes a fifth of the time. All pointers are opaque.
LLVM's parser and verifier check what is written.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, ClassVar

# ---- types


class Type:
    """A type; equal ones are the same object. Called with a value of Python's, its constant."""

    text: str
    intrinsic_name: str
    element: Type  # of vectors and arrays, with their count
    count: int
    elements: Sequence[Type]  # of structs
    null = "zeroinitializer"
    _made: ClassVar[dict[tuple, Type]] = {}

    def __new__(cls, *parts: Any) -> Any:
        known = Type._made.get((cls, *parts))
        if known is None:
            known = super().__new__(cls)
            known._set(*parts)
            known = Type._made.setdefault((cls, *parts), known)
        return known

    def _set(self, *parts: Any) -> None:
        pass

    def __str__(self) -> str:
        return self.text

    def __call__(self, value: Any) -> Constant:
        return Constant(self, value)

    def word(self, value: Any) -> str:
        """A constant of this type in a text."""
        parts = [x if isinstance(x, Constant) else self.element(x) for x in value]
        return ", ".join(f"{x.type.text} {x.word}" for x in parts)


class VoidType(Type):
    """No value."""

    text = "void"


class PointerType(Type):
    """An address."""

    text, intrinsic_name, null = "ptr", "p0", "null"


class IntType(Type):
    """An integer of some bits."""

    null = "0"

    def _set(self, width: int) -> None:
        self.width, self.text = width, f"i{width}"
        self.intrinsic_name = self.text

    def word(self, value: int) -> str:
        """Its digits."""
        return str(int(value))


class _Float(Type):
    null, _format = "0.0", "d"

    def word(self, value: float) -> str:
        """The bits of the double that has this type's value."""
        (value,) = struct.unpack(self._format, struct.pack(self._format, value))
        return f"0x{int.from_bytes(struct.pack('>d', value), 'big'):x}"


class HalfType(_Float):
    """float16."""

    text, intrinsic_name, _format = "half", "f16", "e"


class BFloatType(_Float):
    """bfloat16, which has no constants here."""

    text, intrinsic_name = "bfloat", "bf16"


class FloatType(_Float):
    """float32."""

    text, intrinsic_name, _format = "float", "f32", "f"


class DoubleType(_Float):
    """float64."""

    text, intrinsic_name = "double", "f64"


class VectorType(Type):
    """Lanes of one type."""

    def _set(self, element: Type, count: int) -> None:
        self.element, self.count, self.text = element, count, f"<{count} x {element.text}>"
        self.intrinsic_name = f"v{count}{element.intrinsic_name}"

    def word(self, value: Sequence) -> str:
        """Its lanes' constants."""
        return f"<{super().word(value)}>"


class ArrayType(Type):
    """Elements of one type in memory."""

    def _set(self, element: Type, count: int) -> None:
        self.element, self.count, self.text = element, count, f"[{count} x {element.text}]"

    def word(self, value: Sequence) -> str:
        """Its elements' constants."""
        return f"[{super().word(value)}]"


class StructType(Type):
    """Some values of different types."""

    def _set(self, *elements: Type) -> None:
        self.elements, self.text = elements, f"{{ {', '.join(map(str, elements))} }}"


class FunctionType:
    """What a function takes and gives."""

    def __init__(self, result: Type, args: Sequence[Type], var_arg: bool = False):
        self.return_type, self.args, self.var_arg = result, tuple(args), var_arg


I1, I32, I64 = (IntType(bits) for bits in (1, 32, 64))
BYTE, PTR, VOID = IntType(8), PointerType(), VoidType()

# ---- values


class Value:
    """A value: its type, and how the text names it."""

    __slots__ = ("type", "word")

    def __init__(self, type_: Type, word: str):
        self.type, self.word = type_, word

    def __str__(self) -> str:
        return f"{self.type.text} {self.word}"


class Constant(Value):
    """A constant of a number, of a sequence for vectors and arrays, or None for zero."""

    __slots__ = ("constant",)

    def __init__(self, type_: Type, constant: Any):
        self.type, self.constant = type_, constant
        self.word = type_.null if constant is None else type_.word(constant)


class Data(Constant):
    """Bytes in memory, written as a string: a table is read sooner so than number by number."""

    __slots__ = ()

    def __init__(self, data: bytes):
        self.type, self.constant = ArrayType(BYTE, len(data)), data
        self.word = 'c"' + (f"\\{data.hex(chr(92))}" if data else "") + '"'


class Undefined(Constant):
    """Any value of a type."""

    __slots__ = ()

    def __init__(self, type_: Type):
        self.type, self.constant, self.word = type_, None, "undef"


class Phi(Value):
    """The value that belongs to the block where control comes from."""

    __slots__ = ("_incoming", "_lines", "_place")

    def __init__(self, type_: Type, word: str, lines: list[str]):
        super().__init__(type_, word)
        self._incoming: list[str] = []
        self._lines, self._place = lines, len(lines)
        lines.append("")

    def add_incoming(self, value: Value, block: Block) -> None:
        """Its value after a block."""
        self._incoming.append(f"[{value.word}, %{block.name}]")
        all_of_it = ", ".join(self._incoming)
        self._lines[self._place] = f"  {self.word} = phi {self.type.text} {all_of_it}"


class Argument(Value):
    """What a function is given."""

    __slots__ = ("attributes",)

    def __init__(self, type_: Type, word: str):
        super().__init__(type_, word)
        self.attributes = ""

    def add_attribute(self, name: str) -> None:
        """Promise something of it."""
        self.attributes += f" {name}"


class Called(Value):
    """A function by its address, or an instruction of an assembler: what it takes and gives."""

    __slots__ = ("function_type",)

    def __init__(self, address: Value, kind: FunctionType):
        super().__init__(PTR, address.word)
        self.function_type = kind


def assembler(kind: FunctionType, text: str, constraint: str) -> Called:
    """Assembler's code that is called as a function is."""
    return Called(Value(PTR, f'asm "{text}", "{constraint}"'), kind)


# ---- what a module holds


class GlobalVariable(Value):
    """Memory of a module: its own if it has an initializer, else another's. `align` is in bytes,
    and the type's if it is 0."""

    def __init__(self, module: Module, type_: Type, name: str):
        super().__init__(PTR, f"@{name}")
        self.value_type, self.name, self.linkage = type_, name, ""
        self.initializer: Constant | None = None
        self.global_constant, self.align = False, 0
        module.add(self)

    def definition(self) -> str:
        """Its text in the module."""
        external = [] if self.initializer is not None else ["external"]
        begins = [self.linkage] if self.linkage else external
        kind = "constant" if self.global_constant else "global"
        ends = [] if self.initializer is None else [self.initializer.word]
        text = " ".join([self.word, "=", *begins, kind, self.value_type.text, *ends])
        return text + (f", align {self.align}\n" if self.align else "\n")


class Block:
    """Instructions without a jump between them; `end`: the one that leaves."""

    __slots__ = ("end", "function", "lines", "name")

    def __init__(self, function: Function, name: str):
        self.function, self.name = function, name
        self.lines: list[str] = []
        self.end = ""


class Function(Value):
    """A function of a module, another's if it has no blocks; `attributes`: LLVM's words for it."""

    def __init__(self, module: Module, kind: FunctionType, name: str):
        super().__init__(PTR, f"@{name}")
        self.module, self.function_type, self.name, self.linkage = module, kind, name, ""
        self.attributes: set[str] = set()
        self.args = tuple(Argument(t, f"%a{i}") for i, t in enumerate(kind.args))
        self.blocks: list[Block] = []
        self.count = 0
        module.add(self)

    def append_basic_block(self, name: str = "b") -> Block:
        """A new block behind the others."""
        self.blocks.append(Block(self, f"{name}.{len(self.blocks)}"))
        return self.blocks[-1]

    def definition(self) -> str:
        """Its text in the module."""
        kind = self.function_type
        args = [f"{a.type.text}{a.attributes} {a.word}" for a in self.args]
        given = ", ".join([*args, "..."] if kind.var_arg else args)
        begins = ["define", *self.linkage.split()] if self.blocks else ["declare"]
        called = f"{kind.return_type.text} {self.word}({given})"
        head = " ".join([*begins, called, *sorted(self.attributes)])
        if not self.blocks:
            return f"{head}\n"
        lines = [f"{head} {{"]
        for block in self.blocks:
            lines += [f"{block.name}:", *block.lines, block.end]
        return "\n".join([*lines, "}\n"])


class Module:
    """Functions and memory, by their names in `globals`.

    scalar: whether nothing becomes vectors, as on a GPU
    """

    def __init__(self, name: str = "", scalar: bool = False):
        self.name = name
        self.scalar = scalar
        self.globals: dict[str, Any] = {}
        self._metadata: list[str] = []

    def add(self, value: Function | GlobalVariable) -> None:
        """A function or memory with a name that is new."""
        assert value.name not in self.globals, value.name
        self.globals[value.name] = value

    def add_metadata(self, values: Sequence[Value | str]) -> str:
        """The name of a list of constants."""
        text = f"!{{{', '.join(map(str, values))}}}"
        if text not in self._metadata:
            self._metadata.append(text)
        return f"!{self._metadata.index(text)}"

    def intrinsic(self, name: str, result: Type, args: Sequence[Type]) -> Function:
        """A function that LLVM knows, for the type of its first argument."""
        name = f"llvm.{name}.{args[0].intrinsic_name}"
        return self.globals.get(name) or Function(self, FunctionType(result, args), name)

    def __str__(self) -> str:
        ends = [f"!{i} = {text}" for i, text in enumerate(self._metadata)]
        return "\n".join([*(x.definition() for x in self.globals.values()), *ends])
