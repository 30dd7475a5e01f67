"""A builder of functions of LLVM's IR: each method writes an instruction as a line of text.

Methods are llvmlite's by their names and arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TypeVar

from funcgrad.backends.llvm.native.ir import (
    I1,
    I32,
    PTR,
    VOID,
    Block,
    Called,
    Constant,
    Function,
    Module,
    Phi,
    StructType,
    Type,
    Value,
    VectorType,
)

_F = TypeVar("_F", bound=Callable)


def _named(write: _F, op: str) -> _F:
    write.__doc__ = f"LLVM's {op}."
    return write


def _binary(op: str) -> Callable[[IRBuilder, Value, Value], Value]:
    def write(self: IRBuilder, x: Value, y: Value) -> Value:
        return self.new(x.type, f"{op} {x.type.text} {x.word}, {y.word}")

    return _named(write, op)


def _conversion(op: str) -> Callable[[IRBuilder, Value, Type], Value]:
    def write(self: IRBuilder, x: Value, to: Type) -> Value:
        return x if x.type is to else self.new(to, f"{op} {x.type.text} {x.word} to {to.text}")

    return _named(write, op)


_SIGNS = {"==": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"}


def _comparison(op: str, prefix: str) -> Callable[[IRBuilder, str, Value, Value], Value]:
    words = {sign: prefix + word for sign, word in _SIGNS.items()} | {"uno": "uno", "ord": "ord"}
    if op == "icmp":
        words |= {"==": "eq", "!=": "ne"}

    def write(self: IRBuilder, sign: str, x: Value, y: Value) -> Value:
        of = x.type
        to = VectorType(I1, of.count) if isinstance(of, VectorType) else I1
        return self.new(to, f"{op} {words[sign]} {of.text} {x.word}, {y.word}")

    return _named(write, op)


# How often a branch goes each way.
_RARELY = ('!"branch_weights"', *map(I32, (1, 99)))


class IRBuilder:
    """Writes instructions at the end of a block."""

    def __init__(self, block: Block):
        self.block = block

    add, sub, mul = _binary("add"), _binary("sub"), _binary("mul")
    udiv, urem, sdiv, srem = map(_binary, ("udiv", "urem", "sdiv", "srem"))
    fadd, fsub, fmul, fdiv = map(_binary, ("fadd", "fsub", "fmul", "fdiv"))
    and_, or_, xor = _binary("and"), _binary("or"), _binary("xor")
    shl, lshr, ashr = _binary("shl"), _binary("lshr"), _binary("ashr")
    trunc, zext, sext = map(_conversion, ("trunc", "zext", "sext"))
    fptrunc, fpext, bitcast = map(_conversion, ("fptrunc", "fpext", "bitcast"))
    sitofp, uitofp, fptosi, fptoui = map(_conversion, ("sitofp", "uitofp", "fptosi", "fptoui"))
    ptrtoint, inttoptr = _conversion("ptrtoint"), _conversion("inttoptr")
    icmp_signed, icmp_unsigned = _comparison("icmp", "s"), _comparison("icmp", "u")
    fcmp_ordered, fcmp_unordered = _comparison("fcmp", "o"), _comparison("fcmp", "u")

    @property
    def function(self) -> Function:
        """The function that is written."""
        return self.block.function

    @property
    def module(self) -> Module:
        """The module of the function."""
        return self.block.function.module

    def new(self, type_: Type, text: str) -> Value:
        """The value of an instruction."""
        function = self.block.function
        function.count += 1
        word = f"%v{function.count}"
        self.block.lines.append(f"  {word} = {text}")
        return Value(type_, word)

    def do(self, text: str) -> None:
        """An instruction without a value."""
        self.block.lines.append(f"  {text}")

    # ---- values

    def not_(self, x: Value) -> Value:
        """All bits turned."""
        ones = [-1] * x.type.count if isinstance(x.type, VectorType) else -1
        return self.xor(x, Constant(x.type, ones))

    def fneg(self, x: Value) -> Value:
        """The number with the other sign."""
        return self.new(x.type, f"fneg {x}")

    def select(self, condition: Value, yes: Value, no: Value) -> Value:
        """One of two values."""
        return self.new(yes.type, f"select {condition}, {yes}, {no}")

    def cttz(self, x: Value, never_zero: Value) -> Value:
        """How many zeros a number's bits end with."""
        return self.call(self.module.intrinsic("cttz", x.type, [x.type, I1]), [x, never_zero])

    def extract_element(self, vector: Value, index: Value) -> Value:
        """A lane."""
        return self.new(vector.type.element, f"extractelement {vector}, {index}")

    def insert_element(self, vector: Value, value: Value, index: Value) -> Value:
        """The vector with another lane."""
        return self.new(vector.type, f"insertelement {vector}, {value}, {index}")

    def shuffle_vector(self, x: Value, y: Value, mask: Value) -> Value:
        """Lanes of two vectors."""
        to = VectorType(x.type.element, mask.type.count)
        return self.new(to, f"shufflevector {x}, {y}, {mask}")

    def extract_value(self, x: Value, index: int) -> Value:
        """An element of a struct."""
        return self.new(x.type.elements[index], f"extractvalue {x}, {index}")

    def call(self, function: Function | Called, args: Sequence[Value]) -> Value:
        """The result of a function."""
        kind = function.function_type
        result = kind.return_type
        takes = f" ({', '.join(map(str, kind.args))}, ...)" if kind.var_arg else ""
        text = f"call {result.text}{takes} {function.word}({', '.join(map(str, args))})"
        if result is not VOID:
            return self.new(result, text)
        self.do(text)
        return Value(VOID, "")

    def phi(self, type_: Type) -> Phi:
        """The value that belongs to the block where control comes from."""
        self.function.count += 1
        return Phi(type_, f"%v{self.function.count}", self.block.lines)

    # ---- memory

    def alloca(self, type_: Type, count: Value | None = None, align: int = 0) -> Value:
        """Memory until the function ends."""
        of = f", {count}" if count is not None else ""
        aligned = f", align {align}" if align else ""
        return self.new(PTR, f"alloca {type_.text}{of}{aligned}")

    def gep(
        self, pointer: Value, indices: Sequence[Value], source_etype: Type, inbounds: bool = False
    ) -> Value:
        """The address of an element."""
        places = ", ".join(map(str, indices))
        inside = "inbounds " if inbounds else ""
        text = f"getelementptr {inside}{source_etype.text}, ptr {pointer.word}, {places}"
        return self.new(PTR, text)

    def load(self, pointer: Value, typ: Type, align: int | None = None) -> Value:
        """What is at an address."""
        aligned = f", align {align}" if align else ""
        return self.new(typ, f"load {typ.text}, ptr {pointer.word}{aligned}")

    def load_atomic(self, pointer: Value, ordering: str, align: int, typ: Type) -> Value:
        """What is at an address that others write to."""
        return self.new(typ, f"load atomic {typ.text}, {pointer} {ordering}, align {align}")

    def store(
        self, value: Value, pointer: Value, align: int | None = None, metadata: str = ""
    ) -> None:
        """Write a value to an address."""
        aligned = f", align {align}" if align else ""
        more = f", {metadata}" if metadata else ""
        self.do(f"store {value.type.text} {value.word}, ptr {pointer.word}{aligned}{more}")

    def atomic_rmw(self, op: str, pointer: Value, value: Value, ordering: str) -> Value:
        """What was at an address, where an operation's result is written at once."""
        return self.new(value.type, f"atomicrmw {op} {pointer}, {value} {ordering}")

    def cmpxchg(self, pointer: Value, old: Value, new: Value, ordering: str, failing: str) -> Value:
        """What was at an address, where *new* is written if it was *old*; and whether it was."""
        to = StructType(new.type, I1)
        return self.new(to, f"cmpxchg {pointer}, {old}, {new} {ordering} {failing}")

    def fence(self, ordering: str) -> None:
        """An order of reads and writes."""
        self.do(f"fence {ordering}")

    # ---- control

    def position_at_end(self, block: Block) -> None:
        """Go on there, before what leaves the block."""
        self.block = block

    def append_basic_block(self, name: str = "b") -> Block:
        """A new block of the function."""
        return self.function.append_basic_block(name)

    def _leave(self, text: str) -> None:
        assert not self.block.end, (self.block.name, self.block.end, text)
        self.block.end = f"  {text}"

    def branch(self, block: Block) -> None:
        """Go to a block."""
        self._leave(f"br label %{block.name}")

    def cbranch(self, condition: Value, yes: Block, no: Block, metadata: str = "") -> None:
        """Go to one of two blocks."""
        more = f", {metadata}" if metadata else ""
        self._leave(f"br i1 {condition.word}, label %{yes.name}, label %{no.name}{more}")

    def switch(self, value: Value, default: Block, cases: Sequence[tuple[int, Block]]) -> None:
        """Go to the block that belongs to a number."""
        of = " ".join(f"{value.type(i)}, label %{b.name}" for i, b in cases)
        self._leave(f"switch {value}, label %{default.name} [{of}]")

    def ret(self, value: Value) -> None:
        """End the function with its result."""
        self._leave(f"ret {value}")

    def ret_void(self) -> None:
        """End the function."""
        self._leave("ret void")

    def unreachable(self) -> None:
        """Control never comes here."""
        self._leave("unreachable")

    @contextmanager
    def if_then(self, condition: Value, rarely: bool = False) -> Iterator[None]:
        """What is written in the block runs if the condition holds."""
        yes, after = self.append_basic_block("if"), self.append_basic_block("endif")
        weights = f"!prof {self.module.add_metadata(_RARELY)}" if rarely else ""
        self.cbranch(condition, yes, after, weights)
        with self._part(yes, after):
            yield
        self.block = after

    @contextmanager
    def if_else(
        self, condition: Value
    ) -> Iterator[tuple[AbstractContextManager, AbstractContextManager]]:
        """Two contexts: what is written in the first runs if the condition holds."""
        yes, no, after = map(self.append_basic_block, ("if", "else", "endif"))
        self.cbranch(condition, yes, no)
        yield self._part(yes, after), self._part(no, after)
        self.block = after

    @contextmanager
    def _part(self, block: Block, after: Block) -> Iterator[None]:
        self.block = block
        yield
        if not self.block.end:
            self.branch(after)
