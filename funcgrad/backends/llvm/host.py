"""A planned program as one native function: its steps in order, with native loops and branches.

`i32 name(ptr inputs, ptr outputs, ptr arena, ptr constants, ptr callback, ptr comms)` takes arrays
of pointers and returns 0, or at once FAILED when Python raised an exception (in a step that runs
there, or by a signal, for which long programs ask), EXCHANGE + n when the n-th exchange failed.
Kernels, products and the thread pool are external functions, an exchange calls what a context of
`comms` points at; addresses are computed from the plan's refs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from funcgrad.backends.late import Late
from funcgrad.backends.llvm.emit.kernels import Native, task_symbol
from funcgrad.backends.llvm.emit.text import Definitions, Function
from funcgrad.backends.llvm.host_asks import Asks, new_words
from funcgrad.backends.llvm.host_steps import is_large
from funcgrad.backends.llvm.runtime.run_code import EXCHANGE, FAILED
from funcgrad.backends.loops.ir import Kernel
from funcgrad.backends.program import (
    AttentionStep,
    CondStep,
    CopyStep,
    ExchangeStep,
    Frame,
    GemmStep,
    HostStep,
    KernelStep,
    LaneStep,
    LoopStep,
    Program,
    Ref,
    Step,
    WhileStep,
)
from funcgrad.backends.walker import Walker

if TYPE_CHECKING:
    from funcgrad.backends.llvm.routines.table import Call

exchanges = Late("funcgrad.backends.rewrites.exchanges")
attention = Late("funcgrad.backends.llvm.attention.functions")
copies = Late("funcgrad.backends.llvm.routines.copies")
gemm_steps = Late("funcgrad.backends.llvm.gemm.steps")
routines = Late("funcgrad.backends.llvm.routines.table")

STACK_BYTES = 32_768
# How many steps a function has: those of a long program are several.
_PART = 64
_PARAMETERS = "ptr %inputs, ptr %outputs, ptr %arena, ptr %constants, ptr %callback, ptr %comms"
_GIVEN = ("%inputs", "%outputs", "%arena", "%constants")  # to tasks
_SPACES = {"input": "%inputs", "output": "%outputs", "constant": "%constants"}


def emit_host(program: Program, natives: Mapping[Kernel, Native], name: str) -> str:
    """The module of a program's host function."""
    return _Host(natives).run(program, name)


def _refs(s: Step) -> tuple[Ref, ...]:
    """The addresses of a step of a parallel loop."""
    assert isinstance(s, KernelStep | GemmStep), s
    return s.args if isinstance(s, KernelStep) else (s.a, s.b, s.c)


class _Host(Walker):
    def __init__(self, natives: Mapping[Kernel, Native]):
        self.natives = natives
        self.module = Definitions()
        self.f = Function(self.module)
        self.bases: dict[tuple[str, int], str] = {}
        self.counters: dict[int, str] = {}
        self.slots: dict[str, tuple[str, int]] = {}
        self.asks = Asks(self.f, "")
        self.templates: dict[str, str] = {}
        self.name = ""
        self.tasks: list[str] = []
        self.host_count = 0
        self.exchange_count = 0

    def run(self, program: Program, name: str) -> str:
        """The module. A long program is several functions: LLVM's work grows faster than they."""
        steps, self.name = program.steps, name
        parts = [steps[i : i + _PART] for i in range(0, len(steps), _PART)] or [()]
        if len(parts) == 1:
            whole = self.function(f"define i32 @{name}", steps)
            return self.module.text([*self.tasks, whole])
        given = f"{_PARAMETERS}, ptr %words"
        functions = [
            self.function(f"define internal i32 @{name}_{i}", part, given)
            for i, part in enumerate(parts)
        ]
        lines = [f"define i32 @{name}({_PARAMETERS}) nounwind {{", *new_words()]
        for i in range(len(parts)):
            lines += [
                f"  %status{i} = call i32 @{name}_{i}({given})",
                f"  %failed{i} = icmp ne i32 %status{i}, 0",
                f"  br i1 %failed{i}, label %stop{i}, label %go{i}",
                f"stop{i}:",
                f"  ret i32 %status{i}",
                f"go{i}:",
            ]
        return self.module.text([*self.tasks, *functions, "\n".join([*lines, "  ret i32 0", "}"])])

    def function(self, head: str, steps: Sequence[Step], given: str = _PARAMETERS) -> str:
        """The function of some of the steps."""

        def write() -> None:
            self.steps(steps)
            self.f.do("ret i32 0")
            self.f.start("failed")
            self.f.do(f"ret i32 {FAILED}")

        return self.written(f"{head}({given})", write)

    def written(self, head: str, write: Callable[[], None]) -> str:
        """A function, after which the one in hand goes on."""
        kept = self.f, self.bases, self.counters, self.slots, self.asks
        self.f, self.bases, self.counters, self.slots = Function(self.module), {}, {}, {}
        self.asks = Asks(self.f, head)
        self.f.do("br label %steps")
        jump = self.f.lines.pop()
        self.f.start("steps")
        write()
        self.f.entry += [f"  {p} = alloca [{n} x i64], align 64" for p, n in self.slots.values()]
        self.f.entry.append(jump)
        text = self.f.text(f"{head} noinline nounwind")
        self.f, self.bases, self.counters, self.slots, self.asks = kept
        return text

    # ---- memory

    def base(self, ref: Ref) -> str:
        """The pointer that a ref's space and number stand for, loaded at the function's start."""
        if ref.space in ("arena", "band"):
            return f"%{ref.space}"
        key = (ref.space, ref.number)
        if key not in self.bases:
            n = len(self.bases)
            self.f.entry += [
                f"  %place{n} = getelementptr ptr, ptr {_SPACES[ref.space]}, i64 {ref.number}",
                f"  %base{n} = load ptr, ptr %place{n}",
            ]
            self.bases[key] = f"%base{n}"
        return self.bases[key]

    def address(self, ref: Ref) -> str:
        """A ref's address at the present turns of the loops around."""
        base, offset = self.base(ref), str(ref.offset)
        for counter, stride in ref.strides:
            moved = self.f.let(f"mul nsw i64 {self.counters[counter]}, {stride}")
            offset = moved if offset == "0" else self.f.let(f"add nsw i64 {moved}, {offset}")
        return base if offset == "0" else self.f.let(f"getelementptr i8, ptr {base}, i64 {offset}")

    def slot(self, kind: str, words: int) -> str:
        """Words in the function's frame that all steps of a kind use, one after the other."""
        name, size = self.slots.get(kind, (f"%{kind}", 0))
        self.slots[kind] = (name, max(size, words))
        return name

    def put(self, place: str, words: Sequence[tuple[str, str]]) -> None:
        """Store words (type, value) in a row."""
        for i, (kind, value) in enumerate(words):
            at = self.f.let(f"getelementptr i64, ptr {place}, i64 {i}")
            self.f.do(f"store {kind} {value}, ptr {at}")

    def filled(self, kind: str, words: Sequence[int]) -> str:
        """The slot of a kind, filled with words that are known now."""
        place, template = self.slot(kind, len(words)), self.template(words)
        types = ["ptr", "ptr", "i64", "i1"]
        self.module.declare("llvm.memcpy.p0.p0.i64", "void", types)
        given = [place, template, str(8 * len(words)), "false"]
        self.f.call("llvm.memcpy.p0.p0.i64", "void", types, given)
        return place

    def template(self, words: Sequence[int]) -> str:
        """The constant that holds these words."""
        values = ", ".join(f"i64 {w}" for w in words)
        if values not in self.templates:
            name = self.templates[values] = f"@words{len(self.templates)}"
            text = f"{name} = private constant [{len(words)} x i64] [{values}], align 64"
            self.module.needed[name] = text
        return self.templates[values]

    # ---- steps

    def step(self, s: Step) -> None:
        super().step(s)
        self.asks.after(s)

    def kernel(self, s: KernelStep) -> None:
        native = self.natives[s.kernel]
        if not native.calls:
            return
        pointers = [self.address(a) for a in s.args]
        pointers_of_partials, block = self.partials(native.partials)
        pointers += pointers_of_partials
        for c in native.calls:
            args = [pointers[i] for i in c.params] + [self.asks.words()] * c.asks
            if not c.turns:
                self.module.declare(c.symbol, "void", ["ptr"] * len(args))
                self.f.call(c.symbol, "void", ["ptr"] * len(args), args)
                continue
            task, context = task_symbol(c.symbol), self.slot("context", len(args))
            self.module.declare(task, "void", ["ptr", "i64", "i64"])
            self.put(context, [("ptr", a) for a in args])
            self.share(task, context, c.turns, c.grain, c.asks)
        if block:
            self.f.call("fg_scratch_give", "void", ["ptr"], [block])
        if native.asks:
            self.asks.stop()

    def partials(self, sizes: Sequence[int]) -> tuple[list[str], str]:
        """Memory for partial results: one pointer for each, and the block to give back."""
        places, total = [], 0
        for n in sizes:
            places.append(total)
            total += -(-n // 64) * 64
        if not total:
            return [], ""
        block = ""
        if total <= STACK_BYTES:
            base = self.slot("partials", total // 8)
        else:
            self.module.declare("fg_scratch_take", "ptr", ["i64"])
            self.module.declare("fg_scratch_give", "void", ["ptr"])
            base = block = self.f.call("fg_scratch_take", "ptr", ["i64"], [str(total)])
        return [self.f.let(f"getelementptr i8, ptr {base}, i64 {p}") for p in places], block

    def gemm(self, s: GemmStep) -> None:
        call = gemm_steps.product_call(s)
        self.module.declare(call.symbol, "void", ["ptr"])
        for kernel, place in call.kernels:
            self.placed(kernel, place)
        operands = [*map(self.address, (s.a, s.b)), "null" if s.apart else self.address(s.c)]
        tables, copy = {k: self.template(words) for k, words in call.tables.items()}, ""
        if s.finish is not None:
            name, around, _ = self.turns(s.finish, ", ptr %band")
            tables |= {"finish": f"@{name}", "around": around}
        if s.frame is not None and call.copier:
            at, words = s.frame.operand, tables.pop("frame")
            copy = self.framed(s.frame, call.copier, operands[at], words, s.dtype.itemsize)
            start = s.frame.start * s.dtype.itemsize
            operands[at] = self.f.let(f"getelementptr i8, ptr {copy}, i64 {start}")

        def product(pointers: Sequence[str]) -> None:
            place = self.filled("product", call.words)
            for k, p in {**dict(zip("abc", pointers, strict=True)), **tables}.items():
                at = self.f.let(f"getelementptr i64, ptr {place}, i64 {call.places[k]}")
                self.f.do(f"store ptr {p}, ptr {at}")
            self.f.call(call.symbol, "void", ["ptr"], [place])

        widths = s.dtype.itemsize, s.dtype.itemsize, s.out.itemsize
        self.batch(call.outer, operands, widths, product)
        if copy:
            self.f.call("fg_scratch_give", "void", ["ptr"], [copy])

    def placed(self, function: str, place: str) -> None:
        """Have the address of a function in its place, from the start of the function in hand on.

        All programs that run write the same there: the code of each that is alive is there once.
        """
        line = f"  store atomic ptr @{function}, ptr @{place} monotonic, align 8"
        if line not in self.f.entry:
            self.module.needed[f"@{place}"] = f"@{place} = external global ptr"
            self.module.needed[f"@{function}"] = f"declare void @{function}()"
            self.f.entry.append(line)

    def framed(self, frame: Frame, symbol: str, source: str, words: str, nbytes: int) -> str:
        """A copy of an operand with the zeros around it, in memory that is to be given back."""
        self.module.declare("fg_scratch_take", "ptr", ["i64"])
        self.module.declare("fg_scratch_give", "void", ["ptr"])
        self.module.declare(symbol, "void", ["ptr"] * 3)
        size = frame.planes * math.prod(sum(axis) for axis in frame.axes)
        copy = self.f.call("fg_scratch_take", "ptr", ["i64"], [str(size * nbytes)])
        self.f.call(symbol, "void", ["ptr"] * 3, [copy, source, words])
        return copy

    def attention(self, s: AttentionStep) -> None:
        symbol = attention.symbol(s.dtype.name, s.op, bool(s.pairs))
        self.module.declare(symbol, "void", ["ptr"])
        place = self.filled("attention", attention.words(s))
        pointers = attention.pointers(s)
        for name, ref in pointers.items():
            at = self.f.let(f"getelementptr i64, ptr {place}, i64 {attention.CALL.index(name)}")
            self.f.do(f"store ptr {self.address(ref)}, ptr {at}")
        self.f.call(symbol, "void", ["ptr"], [place])

    def batch(
        self, axes: Sequence, pointers: Sequence[str], widths: Sequence[int], product
    ) -> None:
        """The batch axes that a matrix product doesn't take, as loops."""
        if not axes:
            product(pointers)
            return
        (size, *strides), rest = axes[0], axes[1:]

        def turn(i: str) -> None:
            moved = []
            for p, stride, width in zip(pointers, strides, widths, strict=True):
                offset = self.f.let(f"mul nsw i64 {i}, {stride * width}")
                moved.append(self.f.let(f"getelementptr i8, ptr {p}, i64 {offset}"))
            self.batch(rest, moved, widths, product)

        if size:
            self.count(0, size, turn)

    def host(self, s: HostStep) -> None:
        found = routines.routine(s)
        if found is not None:
            self.routine(s, found)
            return
        number, self.host_count = self.host_count, self.host_count + 1
        views = [self.address(v.ref) for v in (*s.ins, *s.outs)]
        place = self.slot("views", max(1, len(views)))
        self.put(place, [("ptr", v) for v in views])
        types = ["ptr"] * 3
        self.module.declare("fg_call_back", "i32", types)
        given = ["%callback", f"inttoptr (i64 {number} to ptr)", place]
        self.asks.fail_if(self.f.call("fg_call_back", "i32", types, given))

    def routine(self, s: HostStep, call: Call) -> None:
        symbol, words, _ = call
        arrays = [self.address(v.ref) for v in (*s.ins, *s.outs)]
        place = self.filled("routine", [*words, *([0] * len(arrays))])
        at = self.f.let(f"getelementptr i64, ptr {place}, i64 {len(words)}")
        self.put(at, [("ptr", a) for a in arrays])
        self.module.declare(symbol, "void", ["ptr"])
        self.f.call(symbol, "void", ["ptr"], [place])

    def exchange(self, s: ExchangeStep) -> None:
        number, self.exchange_count = self.exchange_count, self.exchange_count + 1
        known = {
            "kind": ("i64", str(exchanges.KINDS.index(s.kind))),
            "op": ("i64", str(exchanges.OPS.index(s.op))),
            "dtype": ("i64", str(exchanges.DTYPES.index(s.dtype))),
            "width": ("i64", str(s.dtype.itemsize)),
            "count": ("i64", str(s.count)),
            "source": ("ptr", self.address(s.source)),
            "to": ("ptr", self.address(s.to)),
            "perm": ("ptr", self.permutation(s) if s.perm else "null"),
        }
        place = self.slot("exchange", len(exchanges.DESCRIPTOR))
        self.put(place, [known[w] for w in exchanges.DESCRIPTOR])
        context = self.word("%comms", s.comm, "ptr")
        function = self.word(context, exchanges.KINDS.index(s.kind), "ptr")
        status = self.f.let(f"call i32 {function}(ptr {context}, ptr {place})")
        failed = self.f.let(f"icmp ne i32 {status}, 0")
        stop, after = self.f.name("stop"), self.f.name("after")
        self.f.do(f"br i1 {failed}, label %{stop}, label %{after}")
        self.f.start(stop)
        self.f.do(f"ret i32 {EXCHANGE + number}")
        self.f.start(after)

    def permutation(self, s: ExchangeStep) -> str:
        """For each rank whom it sends to and whom it receives from, in read-only memory."""
        to, source = dict(s.perm), {b: a for a, b in s.perm}
        words = [w for i in range(s.size) for w in (to.get(i, -1), source.get(i, -1))]
        values = ", ".join(f"i64 {w}" for w in words)
        name = f"@perm{self.exchange_count}"
        self.module.needed[name] = f"{name} = private constant [{len(words)} x i64] [{values}]"
        return name

    def lane(self, s: LaneStep) -> None:
        rank = self.word(self.word("%comms", s.comm, "ptr"), exchanges.RANK, "i64")
        self.f.do(f"store i32 {self.f.let(f'trunc i64 {rank} to i32')}, ptr {self.address(s.to)}")

    def word(self, base: str, i: int, kind: str) -> str:
        """The i-th 64-bit word at an address."""
        at = self.f.let(f"getelementptr i64, ptr {base}, i64 {i}")
        return self.f.let(f"load {kind}, ptr {at}")

    def copy(self, s: CopyStep) -> None:
        if s.source == s.to or not s.nbytes:
            return
        types = ["ptr", "ptr", "i64"]
        given = [self.address(s.to), self.address(s.source), str(s.nbytes)]
        if is_large(s):
            self.module.declare(copies.SYMBOL, "void", types)
            self.f.call(copies.SYMBOL, "void", types, given)
            return
        types, given = [*types, "i1"], [*given, "false"]
        self.module.declare("llvm.memmove.p0.p0.i64", "void", types)
        self.f.call("llvm.memmove.p0.p0.i64", "void", types, given)

    # ---- control

    def count(self, start: int | str, stop: int | str, body) -> None:
        """for i in range(start, stop), not empty: body(i)."""
        f = self.f
        head, before, i = f.name("loop"), f.block, "%" + f.name("t")
        f.do(f"br label %{head}")
        f.start(head)
        place = len(f.lines)
        f.lines.append("")
        body(i)
        step = f.let(f"add nuw nsw i64 {i}, 1")
        f.lines[place] = f"  {i} = phi i64 [{start}, %{before}], [{step}, %{f.block}]"
        more, after = f.let(f"icmp slt i64 {step}, {stop}"), f.name("done")
        f.do(f"br i1 {more}, label %{head}, label %{after}")
        f.start(after)

    def loop(self, s: LoopStep) -> None:
        if s.parallel:
            self.parallel(s)
            return
        before, self.asks.work = self.asks.work, 0.0

        def turn(i: str) -> None:
            self.counters[s.number] = i
            self.steps(s.body)
            self.asks.turn_ends(s.length)

        if s.length:
            self.count(0, s.length, turn)
        self.asks.work += before

    def parallel(self, s: LoopStep) -> None:
        """A loop whose turns threads share."""
        name, around, asks = self.turns(s)
        self.share(name, around, s.length, 1, asks)
        if asks:
            self.asks.stop()

    def turns(self, s: LoopStep, more: str = "") -> tuple[str, str, bool]:
        """The function of a range of a parallel loop's turns, what it is called with, and whether
        it asks for signals. more: parameters behind the range."""
        refs = [r for x in s.body for r in _refs(x)]
        outer = sorted({n for r in refs for n, _ in r.strides} - {s.number})
        asks = any(self.natives[x.kernel].asks for x in s.body if isinstance(x, KernelStep))
        given = [*_GIVEN, self.asks.words()] if asks else _GIVEN
        around = self.slot("around", len(given) + len(outer))
        counters = [("i64", self.counters[n]) for n in outer]
        self.put(around, [*(("ptr", x) for x in given), *counters])
        name = f"{self.name}_task{len(self.tasks)}"
        head = f"define internal void @{name}(ptr %around, i64 %begin, i64 %end{more})"
        self.tasks.append(self.written(head, lambda: self.task(s, given, outer)))
        return name, around, asks

    def share(self, task: str, context: str, turns: int, grain: int, asks: bool) -> None:
        """Have threads run a task; `asks`: which may take long, and asks for signals."""
        symbol, types = "fg_parallel_for", ["ptr", "ptr", "i64", "i64"]
        given = [f"@{task}", context, str(turns), str(grain)]
        if asks:
            symbol, types = "fg_parallel_asking", [*types, "ptr"]
            given.append(self.asks.words())
        self.module.declare(symbol, "void", types)
        self.f.call(symbol, "void", types, given)

    def task(self, s: LoopStep, given: Sequence[str], outer: Sequence[int]) -> None:
        """Turns [begin, end) of a parallel loop, which read these loops' counters."""
        for i, x in enumerate(given):
            self.f.entry += [
                f"  {x}_at = getelementptr i64, ptr %around, i64 {i}",
                f"  {x} = load ptr, ptr {x}_at",
            ]
        for i, n in enumerate(outer):
            self.counters[n] = self.word("%around", len(given) + i, "i64")
        if s.band:
            self.module.declare("fg_scratch_take", "ptr", ["i64"])
            self.module.declare("fg_scratch_give", "void", ["ptr"])
            self.f.do(f"%band = call ptr @fg_scratch_take(i64 {s.band})")

        def turn(i: str) -> None:
            self.counters[s.number] = i
            self.steps(s.body)

        self.count("%begin", "%end", turn)
        if s.band:
            self.f.call("fg_scratch_give", "void", ["ptr"], ["%band"])
        self.f.do("ret void")

    def while_(self, s: WhileStep) -> None:
        f, before, self.asks.work = self.f, self.asks.work, 0.0
        head, turn, after = f.name("while"), f.name("turn"), f.name("done")
        f.do(f"br label %{head}")
        f.start(head)
        self.steps(s.test)
        flag = f.let(f"load i8, ptr {self.address(s.condition)}")
        f.do(f"br i1 {f.let(f'icmp ne i8 {flag}, 0')}, label %{turn}, label %{after}")
        f.start(turn)
        self.steps(s.body)
        self.asks.turn_ends(math.inf)
        f.do(f"br label %{head}")
        f.start(after)
        self.asks.work += before

    def cond(self, s: CondStep) -> None:
        f = self.f
        index = f.let(f"load i32, ptr {self.address(s.index)}")
        labels = [f.name("branch") for _ in s.branches]
        after = f.name("done")
        cases = " ".join(f"i32 {i}, label %{x}" for i, x in enumerate(labels[:-1]))
        f.do(f"switch i32 {index}, label %{labels[-1]} [{cases}]")
        before, most = self.asks.work, 0.0
        for label, branch in zip(labels, s.branches, strict=True):
            f.start(label)
            self.asks.work = before
            self.steps(branch)
            most = max(most, self.asks.work)
            f.do(f"br label %{after}")
        f.start(after)
        self.asks.work = most
