"""A thin layer over the builder of IR in which generators of GEMM code are readable.

`Code` writes one function. Integers (i64) are wrapped as `Int`, which has Python's operators;
loops and conditions are `with` blocks whose variables live in stack slots, which LLVM turns into
registers.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.builder import IRBuilder
from funcgrad.core import record

I1, I32, I64, BYTE = ir.I1, ir.I32, ir.I64, ir.BYTE
PTR, VOID, BFLOAT = ir.PTR, ir.VOID, ir.BFloatType()
# What code calls: a function, or what gives the code its address.
Callee: TypeAlias = "ir.Function | ir.Called | Callable[[Code], ir.Called]"


class Int:
    """An i64 value with operators; plain Python integers mix with it.

    What is known as the code is written, and what adds or multiplies by nothing, isn't written:
    most offsets in unrolled code are.
    """

    def __init__(self, code: Code, value: ir.Value):
        self.code, self.value = code, value

    def _op(self, name: str, other: Any, swap: bool = False) -> Int:
        pair = (self.value, self.code.i64(other).value)
        x, y = pair[::-1] if swap else pair
        known = _folded(name, x, y)
        return Int(self.code, getattr(self.code.b, name)(x, y) if known is None else known)

    def _compare(self, sign: str, other: Any) -> Bool:
        value = self.code.b.icmp_signed(sign, self.value, self.code.i64(other).value)
        return Bool(self.code, value)

    def __add__(self, other: Any) -> Int:
        return self._op("add", other)

    def __sub__(self, other: Any) -> Int:
        return self._op("sub", other)

    def __mul__(self, other: Any) -> Int:
        return self._op("mul", other)

    def __floordiv__(self, other: Any) -> Int:
        return self._op("udiv", other)

    def __mod__(self, other: Any) -> Int:
        return self._op("urem", other)

    def __and__(self, other: Any) -> Int:
        return self._op("and_", other)

    def __rsub__(self, other: Any) -> Int:
        return self._op("sub", other, swap=True)

    __radd__, __rmul__ = __add__, __mul__

    def __lt__(self, other: Any) -> Bool:
        return self._compare("<", other)

    def __le__(self, other: Any) -> Bool:
        return self._compare("<=", other)

    def __gt__(self, other: Any) -> Bool:
        return self._compare(">", other)

    def __ge__(self, other: Any) -> Bool:
        return self._compare(">=", other)

    def eq(self, other: Any) -> Bool:
        """Whether they are equal (== is Python's, of the objects)."""
        return self._compare("==", other)

    def ne(self, other: Any) -> Bool:
        """Whether they differ."""
        return self._compare("!=", other)

    def min(self, other: Any) -> Int:
        """The lesser of the two."""
        return (self < other).select(self, other)

    def max(self, other: Any) -> Int:
        """The greater of the two."""
        return (self > other).select(self, other)

    def ceil_div(self, n: Any) -> Int:
        """The quotient rounded up; neither may be negative."""
        return (self + n - 1) // n

    def round_up(self, n: Any) -> Int:
        """The least multiple of `n` that is no less."""
        return self.ceil_div(n) * n


class Bool:
    """An i1 value with &, | and ~."""

    def __init__(self, code: Code, value: ir.Value):
        self.code, self.value = code, value

    def __and__(self, other: Bool) -> Bool:
        return Bool(self.code, self.code.b.and_(self.value, other.value))

    def __or__(self, other: Bool) -> Bool:
        return Bool(self.code, self.code.b.or_(self.value, other.value))

    def __invert__(self) -> Bool:
        return Bool(self.code, self.code.b.not_(self.value))

    def select(self, yes: Any, no: Any) -> Int:
        """One of two integers."""
        yes, no = self.code.i64(yes), self.code.i64(no)
        return Int(self.code, self.code.b.select(self.value, yes.value, no.value))

    def pick(self, yes: ir.Value, no: ir.Value) -> ir.Value:
        """One of two values of any type."""
        return self.code.b.select(self.value, yes, no)


class Variable(record.Record, frozen=False):
    """A stack slot."""

    code: Code
    type: ir.Type
    slot: ir.Value

    def get(self) -> ir.Value:
        """What is in the slot."""
        return self.code.b.load(self.slot, typ=self.type)

    def set(self, value: Any) -> None:
        """Put a value into the slot."""
        self.code.b.store(value.value if isinstance(value, Int) else value, self.slot)


class Code:
    """One function being written; `args` are its arguments, i64 ones as `Int`."""

    def __init__(
        self,
        module: ir.Module,
        name: str,
        arg_types: Sequence[ir.Type],
        public: bool = False,
        result: ir.Type = VOID,
    ):
        self.module = module
        self.function = ir.Function(module, ir.FunctionType(result, arg_types), name)
        self.function.attributes.add("nounwind")
        self.function.linkage = "external" if public else "internal"
        self._entry = self.function.append_basic_block("entry")
        self.b = IRBuilder(self._entry)
        body = self.b.append_basic_block("body")
        self.b.branch(body)
        self.b.position_at_end(body)
        self.args: list[Any] = [Int(self, a) if a.type == I64 else a for a in self.function.args]

    def i64(self, value: Any) -> Int:
        """An integer as a value of this code."""
        if isinstance(value, Int):
            return value
        return Int(self, I64(value) if isinstance(value, int) else value)

    def variable(self, type_: ir.Type, initial: Any = None, count: int | None = None) -> Variable:
        """A slot in the function's frame, set to *initial* here."""
        here = self.b.block
        self.b.position_at_end(self._entry)
        slot = allocate(self.b, type_, count)
        self.b.position_at_end(here)
        var = Variable(self, type_, slot)
        if initial is not None:
            var.set(initial)
        return var

    @contextmanager
    def range(
        self, start: Any, stop: Any, step: Any = 1, until: Variable | None = None
    ) -> Iterator[Int]:
        """for i in range(start, stop, step), step > 0; until: an i1 that ends it, once it is on."""
        index = self.variable(I64, self.i64(start))
        with self.loop() as (test, done):
            i = Int(self, index.get())
            more = i < stop if until is None else (i < stop) & ~Bool(self, until.get())
            self.b.cbranch(more.value, test, done)
            self.b.position_at_end(test)
            yield i
            index.set(i + step)

    @contextmanager
    def loop(self) -> Iterator[tuple[ir.Block, ir.Block]]:
        """Repeats the block; it must itself branch to (go on, leave)."""
        head = self.b.append_basic_block("loop")
        test = self.b.append_basic_block("turn")
        done = self.b.append_basic_block("done")
        self.b.branch(head)
        self.b.position_at_end(head)
        yield test, done
        self.b.branch(head)
        self.b.position_at_end(done)

    @contextmanager
    def when(self, condition: Bool) -> Iterator[None]:
        """What is written in the block runs if the condition holds."""
        with self.b.if_then(condition.value):
            yield

    @contextmanager
    def either(self, condition: Bool) -> Iterator[tuple[Any, Any]]:
        """Two contexts: the first runs if the condition holds, the second if not."""
        with self.b.if_else(condition.value) as pair:
            yield pair

    def ret(self, value: Any = None) -> None:
        """End the function, with its result if it has one."""
        if value is None:
            self.b.ret_void()
        else:
            self.b.ret(value.value if isinstance(value, Int) else value)

    def call(self, function: Callee, *args: Any) -> Any:
        """The result of a function; plain integers become i64 where it takes these."""
        if not isinstance(function, ir.Function | ir.Called):
            function = function(self)
        values = []
        for a, kind in zip(args, function.function_type.args, strict=True):
            values.append(self.i64(a).value if kind == I64 else a)
        return self.b.call(function, values)

    def at(self, pointer: ir.Value, index: Any, type_: ir.Type) -> ir.Value:
        """Address of pointer[index] for elements of a type."""
        place = self.i64(index).value
        return pointer if _is(place, 0) else self.b.gep(pointer, [place], source_etype=type_)

    def load(self, pointer: ir.Value, type_: ir.Type, align: int | None = None) -> Any:
        """What is at an address: an `Int` if it is an i64."""
        value = self.b.load(pointer, typ=type_, align=align)
        return Int(self, value) if type_ == I64 else value

    def store(self, value: Any, pointer: ir.Value, align: int | None = None) -> None:
        """Write a value to an address."""
        self.b.store(value.value if isinstance(value, Int) else value, pointer, align)

    def some(self, mask: ir.Value) -> ir.Value:
        """Whether a lane of a mask is on."""
        bits = ir.IntType(mask.type.count)
        return self.b.icmp_unsigned("!=", self.b.bitcast(mask, bits), bits(0))

    def splat(self, value: ir.Value, lanes: int) -> ir.Value:
        """A vector with the value in all lanes."""
        nothing = undefined(ir.VectorType(value.type, lanes))
        one = self.b.insert_element(nothing, value, I32(0))
        return self.b.shuffle_vector(one, nothing, zero_of(ir.VectorType(I32, lanes)))

    def part(self, x: ir.Value, first: int, count: int) -> ir.Value:
        """Some lanes of a vector, as a vector."""
        index = ir.Constant(ir.VectorType(I32, count), list(range(first, first + count)))
        return self.b.shuffle_vector(x, undefined(x.type), index)

    def lane_sum(self, x: ir.Value) -> ir.Value:
        """The sum of a vector's lanes, by halves."""
        add = self.b.add if isinstance(x.type.element, ir.IntType) else self.b.fadd
        lanes = x.type.count
        while lanes > 1:
            lanes //= 2
            x = add(self.part(x, 0, lanes), self.part(x, lanes, lanes))
        return self.b.extract_element(x, I32(0))

    def first_lanes(self, count: Any, lanes: int) -> ir.Value:
        """Mask <lanes x i1> whose first *count* lanes are on (all, if count is larger)."""
        vec = ir.VectorType(I32, lanes)
        limit = self.i64(count).max(0).min(lanes)
        spread = self.splat(self.b.trunc(limit.value, I32), lanes)
        return self.b.icmp_signed("<", ir.Constant(vec, list(range(lanes))), spread)

    def masked_load(self, pointer: ir.Value, mask: ir.Value, vec: ir.VectorType) -> ir.Value:
        """The lanes that are on; the others are zero and their memory is not touched."""
        kind = ir.FunctionType(vec, [PTR, I32, mask.type, vec])
        f = self._intrinsic(f"llvm.masked.load.{vec.intrinsic_name}.p0", kind)
        return self.b.call(f, [pointer, I32(1), mask, zero_of(vec)])

    def masked_store(self, value: ir.Value, pointer: ir.Value, mask: ir.Value) -> None:
        """Write the lanes that are on; the memory of the others is not touched."""
        kind = ir.FunctionType(VOID, [value.type, PTR, I32, mask.type])
        f = self._intrinsic(f"llvm.masked.store.{value.type.intrinsic_name}.p0", kind)
        self.b.call(f, [value, pointer, I32(1), mask])

    def copy_word(self, to: ir.Value, source: ir.Value, size: int) -> None:
        """Copy an element through a general register: volatile, lest LLVM gathers several in a
        vector, where sums take all registers of these."""
        self.copy(to, source, size, volatile=True)

    def copy(self, to: ir.Value, source: ir.Value, size: int, volatile: bool = False) -> None:
        """Copy so many bytes."""
        bit = ir.IntType(1)
        kind = ir.FunctionType(VOID, [PTR, PTR, I64, bit])
        f = self._intrinsic("llvm.memcpy.p0.p0.i64", kind)
        self.b.call(f, [to, source, I64(size), bit(int(volatile))])

    def prefetch(self, pointer: ir.Value, write: bool = False, first: bool = False) -> None:
        """Hint that memory will be read (or written) soon; any address is allowed.

        first: whether it is to come to the first cache, and not only to the second
        """
        kind = ir.FunctionType(VOID, [PTR, I32, I32, I32])
        f = self._intrinsic("llvm.prefetch.p0", kind)
        self.b.call(f, [pointer, I32(int(write)), I32(3 if first else 2), I32(1)])

    def intrinsic(self, name: str, *args: ir.Value) -> ir.Value:
        """llvm.name.<type> of arguments of one type, which is the result's too."""
        kind = args[0].type
        return self.b.call(self.module.intrinsic(name, kind, [kind] * len(args)), args)

    def _intrinsic(self, name: str, kind: ir.FunctionType) -> ir.Function:
        return declare(self.module, name, kind)


class Record:
    """Named i64 words or pointers behind a pointer."""

    def __init__(self, code: Code, fields: tuple[str, ...], pointer: ir.Value):
        self.code, self.fields, self.pointer = code, fields, pointer

    def place(self, name: str) -> ir.Value:
        """Where a word is."""
        return self.code.at(self.pointer, self.fields.index(name), I64)

    def __getitem__(self, name: str) -> Int:
        return self.code.load(self.place(name), I64)

    def pointer_at(self, name: str) -> ir.Value:
        """A word that holds a pointer."""
        return self.code.load(self.place(name), PTR)

    def __setitem__(self, name: str, value: Int | ir.Value | int) -> None:
        self.code.store(I64(value) if isinstance(value, int) else value, self.place(name))


class Functions:
    """Functions of a module, each written when it is first asked for."""

    def __init__(self) -> None:
        self._made: dict[str, ir.Function] = {}

    def once(self, name: str, write: Callable[[str], ir.Function]) -> ir.Function:
        """The function of a name; calls are cheap, compiling is not."""
        if name not in self._made:
            self._made[name] = write(name)
            self._made[name].attributes.add("noinline")
        return self._made[name]


def allocate(builder: IRBuilder, type_: ir.Type, count: int | None = None) -> ir.Value:
    """Memory until the function ends, for a value or for some."""
    return builder.alloca(type_, None if count is None else I64(count))


def declare(module: ir.Module, name: str, kind: ir.FunctionType) -> ir.Function:
    """The function *name* of a module, declared at its first use."""
    return module.globals.get(name) or ir.Function(module, kind, name)


def of_shape(x: ir.Value, element: ir.Type) -> ir.Type:
    """The type with as many lanes as x has."""
    return ir.VectorType(element, x.type.count) if isinstance(x.type, ir.VectorType) else element


def zero_of(kind: ir.Type) -> ir.Constant:
    """Zero of a type."""
    return ir.Constant(kind, None)


def undefined(kind: ir.Type) -> ir.Constant:
    """Any value of a type."""
    return ir.Undefined(kind)


def _is(x: ir.Value, number: int) -> bool:
    """Whether a value is this constant."""
    return isinstance(x, ir.Constant) and x.constant == number


def _folded(name: str, x: ir.Value, y: ir.Value) -> ir.Value | None:
    """The value of an i64 operation that needs no instruction, None if it needs one."""
    if isinstance(x, ir.Constant) and isinstance(y, ir.Constant):
        a, b = x.constant, y.constant
        if name in _FOLDS and abs(total := _FOLDS[name](a, b)) < 1 << 62:
            return I64(total)
    if name == "mul" and (_is(x, 0) or _is(y, 0)):
        return I64(0)
    unit = 1 if name in ("mul", "udiv") else 0
    if name in ("add", "mul") and _is(x, unit):
        return y
    return x if name in ("add", "sub", "mul", "udiv") and _is(y, unit) else None


_FOLDS: dict[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
}
