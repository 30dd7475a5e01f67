"""A kernel's statements as LLVM text for one thread of a GPU, or of its simulator.

Scalar ops are the CPU's (`llvm.emit.ops`), so elementwise results have its bits; what NVPTX would
compute otherwise is written here. Indices are of 32 bits, as long as arrays have no more elements:
a GPU's integers are. Each access says what it reads of what (`fg_at`), which costs nothing on
hardware.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from funcgrad.backends.cuda import remainders
from funcgrad.backends.llvm.emit import ops
from funcgrad.backends.llvm.emit.text import (
    BOOL,
    Definitions,
    Function,
    constant,
    memory_type,
    value_type,
)
from funcgrad.backends.loops.ir import (
    Buffer,
    Const,
    Index,
    Kernel,
    Load,
    Loop,
    Op,
    Operand,
    Stmt,
    Store,
    Value,
    While,
    walk,
)

GLOBAL, SHARED, LOCAL = " addrspace(1)", " addrspace(3)", ""
_SHIFTS = {"left_shift": "shl", "right_shift": "lshr"}
_OF_REMAINDERS = ("fmod", "remainder", "floor_divide")


class Writer:
    """Writes statements for one thread; a schedule's writer says which point that is.

    aligned: to how many bytes each parameter is
    bases: of each buffer its address and the space that it is in
    """

    def __init__(self, kernel: Kernel, name: str, aligned: Sequence[int]):
        self.kernel = kernel
        self.aligned = aligned
        self.name = name
        self.module = Definitions(scalar=True)
        self.f = Function(self.module)
        self.env: dict[Value, str] = {}
        self.bases: dict[Buffer, tuple[str, str]] = {
            b: (f"%p{i}", GLOBAL) for i, b in enumerate(kernel.params)
        }
        self.axes = {a.value for a in kernel.axes}
        self.axes |= {s.axis for s in walk(kernel.body) if isinstance(s, Loop)}
        self.globals: list[str] = []  # definitions of memory

    # ---- statements

    def body(self, stmts: Sequence[Stmt]) -> None:
        """Statements, one after the other."""
        for s in stmts:
            self.stmt(s)

    def stmt(self, s: Stmt) -> None:
        """One statement."""
        if isinstance(s, Op):
            self.env[s.out] = self.op(s)
        elif isinstance(s, Load):
            self.env[s.out] = self.load(s)
        elif isinstance(s, Store):
            self.store(s)
        elif isinstance(s, While):
            self.write_while(s)
        else:
            self.loop(s)

    def read(self, operand: Operand) -> str:
        """An operand as an LLVM value."""
        if isinstance(operand, Const):
            return constant(operand.value, operand.dtype)
        return self.env[operand]

    def op(self, s: Op) -> str:
        """The value of an op."""
        return self.apply(
            s.name, s.out.dtype, [a.dtype for a in s.args], list(map(self.read, s.args))
        )

    def apply(
        self, name: str, out: np.dtype, dtypes: Sequence[np.dtype], args: Sequence[str]
    ) -> str:
        """The value of an op on operands."""
        f = self.f
        if name in _SHIFTS and dtypes[0].itemsize == 8:
            return self._long_shift(name, dtypes[0], *args)
        start = len(f.lines)
        value = ops.apply(f, name, out, dtypes, args)
        if name in _OF_REMAINDERS and dtypes[0].kind == "f":
            remainders.exact(f, start)
        return value

    def _long_shift(self, name: str, dtype: np.dtype, x: str, n: str) -> str:
        # NVPTX folds a select of the amount away, though its shifts of 64 bits don't clamp.
        f = self.f
        least = f.intrinsic("umin", "i64", n, "63")
        if name == "right_shift" and dtype.kind == "i":
            return f.let(f"ashr i64 {x}, {least}")
        shifted = f.let(f"{_SHIFTS[name]} i64 {x}, {least}")
        return f.let(f"select i1 {f.let(f'icmp ult i64 {n}, 64')}, i64 {shifted}, i64 0")

    def turn(self, s: Loop | While, part: Sequence[Stmt]) -> None:
        """What a loop does in a turn: its body, or its test."""
        self.body(part)

    # ---- memory

    def load(self, s: Load) -> str:
        """The value of a load; 0 where its guard is false."""
        if s.guard is None:
            return self._load(s)
        f, kind = self.f, value_type(s.buffer.dtype)
        found: list[str] = []
        inside, before = self.when(self.read(s.guard), lambda: found.append(self._load(s)))
        zero = constant(0, s.buffer.dtype)
        return f.let(f"phi {kind} [{found[0]}, %{inside}], [{zero}, %{before}]")

    def _load(self, s: Load) -> str:
        kind, (place, space) = memory_type(s.buffer.dtype), self.address(s.buffer, s.index)
        value = self.f.let(f"load {kind}, ptr{space} {place}, align {s.buffer.dtype.itemsize}")
        return self.f.let(f"icmp ne i8 {value}, 0") if s.buffer.dtype == BOOL else value

    def store(self, s: Store) -> None:
        """A store, unless its guard is false."""
        if s.guard is None:
            self._store(s)
        else:
            self.when(self.read(s.guard), lambda: self._store(s))

    def _store(self, s: Store) -> None:
        value, dtype = self.read(s.value), s.buffer.dtype
        if dtype == BOOL:
            value = self.f.let(f"zext i1 {value} to i8")
        place, space = self.address(s.buffer, s.index)
        self.f.do(f"store {memory_type(dtype)} {value}, ptr{space} {place}, align {dtype.itemsize}")

    def address(self, buffer: Buffer, index: Index) -> tuple[str, str]:
        """Where an element is, and in which space."""
        f, (base, space) = self.f, self.bases[buffer]
        if buffer.size >= 1 << 31:
            at = self.index(index, "i64")
        else:
            short = self.index(index, "i32")
            f.do(f"call void @fg_at(i32 {short}, i32 {buffer.size})")
            at = f.let(f"zext nneg i32 {short} to i64") if short.startswith("%") else short
        kind = memory_type(buffer.dtype)
        return f.let(f"getelementptr inbounds {kind}, ptr{space} {base}, i64 {at}"), space

    def index(self, index: Index, kind: str) -> str:
        """An index as an integer of a type; the last of its sums is in range.

        If all of them are, LLVM is told: it then sees which elements are neighbours.
        """
        f, total, dtype = self.f, "", np.dtype("int64" if kind == "i64" else "int32")
        rising = index.const >= 0 and all(c > 0 and v in self.axes for c, v in index.terms)
        how = f"nuw nsw {kind}" if rising else kind
        for c, v in index.terms:
            value = ops.convert(f, self.env[v], v.dtype, dtype)
            if c != 1:
                value = f.let(f"mul {how} {value}, {c}")
            total = f.let(f"add {how} {total}, {value}") if total else value
        if not total:
            return str(index.const)
        return f.let(f"add {how} {total}, {index.const}") if index.const else total

    # ---- control flow

    def when(self, condition: str, body: Callable[[], object]) -> tuple[str, str]:
        """Write a body that runs if a condition holds; the blocks it ends in, and begins after."""
        f, inside, after = self.f, self.f.name("then"), self.f.name("after")
        before = f.block
        f.do(f"br i1 {condition}, label %{inside}, label %{after}")
        f.start(inside)
        body()
        end = f.block
        f.do(f"br label %{after}")
        f.start(after)
        return end, before

    def loop(self, s: Loop) -> None:
        """A loop, turn by turn."""
        values = [self.read(c.start) for c in s.carries]
        self.turns(s, "0", 1, values)

    def turns(self, s: Loop, start: str, step: int, starts: Sequence[str]) -> None:
        """A loop's turns start, start + step, …; carried values are known as `out` after them."""
        f = self.f
        head, inside, after, before = f.name("loop"), f.name("turn"), f.name("done"), f.block
        f.do(f"br label %{head}")
        f.start(head)
        i, place = "%" + f.name("i"), len(f.lines)
        carried = ["%" + f.name("c") for _ in s.carries]
        f.lines += [""] * (1 + len(carried))
        more = f.let(f"icmp ult i32 {i}, {s.size}")
        f.do(f"br i1 {more}, label %{inside}, label %{after}")
        f.start(inside)
        self.env[s.axis] = f.let(f"zext nneg i32 {i} to i64")
        self.env.update((c.inside, v) for c, v in zip(s.carries, carried, strict=True))
        self.turn(s, s.body)
        nexts = [self.read(c.next) for c in s.carries]
        later, latch = f.let(f"add nuw i32 {i}, {step}"), f.block
        f.do(f"br label %{head}")
        kinds = [value_type(c.inside.dtype) for c in s.carries]
        phis = [(i, "i32", start, later), *zip(carried, kinds, starts, nexts, strict=True)]
        for k, (name, kind, first, next_) in enumerate(phis):
            f.lines[place + k] = f"  {name} = phi {kind} [{first}, %{before}], [{next_}, %{latch}]"
        f.start(after)
        self.env.update((c.out, v) for c, v in zip(s.carries, carried, strict=True))

    def write_while(self, s: While) -> None:
        """A loop that goes on as long as its test holds."""
        f = self.f
        head, inside, after, before = f.name("while"), f.name("turn"), f.name("done"), f.block
        starts = [self.read(c.start) for c in s.carries]
        f.do(f"br label %{head}")
        f.start(head)
        place, carried = len(f.lines), ["%" + f.name("c") for _ in s.carries]
        f.lines += [""] * len(carried)
        self.env.update((c.inside, v) for c, v in zip(s.carries, carried, strict=True))
        self.turn(s, s.test)
        f.do(f"br i1 {self.read(s.condition)}, label %{inside}, label %{after}")
        f.start(inside)
        self.turn(s, s.body)
        nexts, latch = [self.read(c.next) for c in s.carries], f.block
        f.do(f"br label %{head}")
        kinds = [value_type(c.inside.dtype) for c in s.carries]
        for k, phi in enumerate(zip(carried, kinds, starts, nexts, strict=True)):
            name, kind, first, later = phi
            f.lines[place + k] = f"  {name} = phi {kind} [{first}, %{before}], [{later}, %{latch}]"
        f.start(after)
        self.env.update((c.out, v) for c, v in zip(s.carries, carried, strict=True))

    # ---- the whole kernel

    def point(self, flat: str) -> None:
        """Let the outer axes be at a point, a row-major number (i32)."""
        f, rest = self.f, flat
        for k, axis in enumerate(reversed(self.kernel.axes)):
            value = rest
            if k + 1 < len(self.kernel.axes):
                value = f.let(f"urem i32 {rest}, {axis.size}")
                rest = f.let(f"udiv i32 {rest}, {axis.size}")
            self.env[axis.value] = f.let(f"zext nneg i32 {value} to i64")

    def finish(self, workspace: bool) -> str:
        """The kernel's function, its memory before it."""
        overlapping = {i for pair in self.kernel.in_place for i in pair}
        params = []
        for i, b in enumerate(self.kernel.params):
            how = "" if i in overlapping else " noalias"
            how += " readonly" if b.role == "in" else ""
            how += f" align {self.aligned[i]}"
            params.append(f"ptr{GLOBAL}{how} %p{i}")
        if workspace:
            params.append(f"ptr{GLOBAL} noalias %workspace")
        self.f.do("ret void")
        head = f"define ptx_kernel void @{self.name}({', '.join(params)}) nounwind"
        return "\n".join([*self.globals, self.f.text(head)])
