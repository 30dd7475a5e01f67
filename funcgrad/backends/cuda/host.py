"""A planned program as one native function of the host: launches, library calls, loops, branches.

`i64 name(ptr bases, ptr table)` gets the device's addresses of inputs, outputs, constants, the
arena and the memory for work, and a table of what is known when a program is loaded: the driver's
functions, the stream, kernels, products. So its text is the same in all processes, and its code
stays on disk. It returns 0, or the number of the step that failed and the status of its call. What
has no code for a GPU is a call back to Python, which copies the step's arrays to the host.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from funcgrad.backends.cuda.libraries.convolutions import Convolution, convolution
from funcgrad.backends.cuda.libraries.cublaslt import ADDRESSES
from funcgrad.backends.cuda.libraries.products import Product, products
from funcgrad.backends.cuda.modules import Launch
from funcgrad.backends.cuda.streams import Streams
from funcgrad.backends.late import Late
from funcgrad.backends.llvm.emit.text import Definitions, Function
from funcgrad.backends.program import (
    CondStep,
    CopyStep,
    ExchangeStep,
    GemmStep,
    HostStep,
    KernelStep,
    LaneStep,
    LoopStep,
    Program,
    Ref,
    Step,
    WhileStep,
    blocks,
)
from funcgrad.backends.walker import Walker

# The table's first words: functions of the driver, of cuBLASLt and of cuDNN, what calls Python, the
# streams, the host's memory for a flag, the bytes of the memory for work, cuDNN's handle.
LAUNCH, COPY, TO_HOST, WAIT, SET_WORD, PRODUCT, SET, CALL_BACK, RECORD, AWAIT, MARK = range(11)
CONVOLVE = {"forward": 11, "data": 12, "filter": 13}
STREAM, BESIDE, FLAG, WORK_BYTES, HANDLE = range(14, 19)
FIRST = 19
COMM_WORDS = 2
EXCHANGE = 1 << 16  # in `Host.names`, what a communicator's number begins at
CALL_WORDS = 8  # of each product and convolution, as `words` of the libraries' calls are
NAME = "fg_host"
exchanges = Late("funcgrad.backends.rewrites.exchanges")


class Host(Walker):
    """A program's host function, and what its table holds after the first words.

    text: of its module
    kernels: the names of kernels, in the order of the table; each communicator has two words after
        them, its rank and its native context; then come events, and the libraries' calls
    calls: these, products and convolutions
    native: the numbers of the communicators that exchange what is on the device
    streams: what runs beside kernels; events: how many that takes
    called: the steps that Python runs, in the order of their numbers
    timed: whether Python is told before and after each step; marked: what the steps are called
    names: of each call that may fail its number in the table, and what a user knows it by
    waits: whether it waits for the device, or calls Python, so that no graph can be made of it
    """

    def __init__(
        self, program: Program, launches: Mapping[int, Launch],
        native: frozenset[int] = frozenset(), *, timed: bool = False,
    ):  # fmt: skip
        self.timed = timed
        self.marked: list[str] = []
        self.calls: list[Product | Convolution] = []
        self.comms = len(program.comms)
        self.streams = Streams(program, native)
        self.events = 1 + self.streams.most if self.streams.most else 0
        self._moves = self._on = 0  # how many moves there were, and which stream is in use
        self.call_numbers: dict[tuple, int] = {}
        self.called: list[HostStep | ExchangeStep] = []
        self.native = native
        self.names: list[tuple[int, str]] = []
        self.waits = False
        self.launches = launches
        spaces = [(name, n) for name, count in _spaces(program) for n in range(count)]
        self.places = {space: i for i, space in enumerate(spaces)}
        used = [launch.name for launch in launches.values()]
        self.numbers = {name: FIRST + i for i, name in enumerate(dict.fromkeys(used))}
        self.kernels = list(self.numbers)
        self.text = self._write(program)

    def _write(self, program: Program) -> str:
        self.f = f = Function(Definitions())
        self.counters: dict[int, str] = {}
        self.words: dict[tuple[str, int], str] = {}
        most = max((launch.args for launch in self.launches.values()), default=0)
        self.values, self.slots = f.alloca("i64", most + 1), f.alloca("ptr", most + 1)
        for i in range(most):
            at = f.let(f"getelementptr i64, ptr {self.values}, i64 {i}")
            slot = f.let(f"getelementptr ptr, ptr {self.slots}, i64 {i}")
            f.do(f"store ptr {at}, ptr {slot}")
        f.do("br label %steps")
        f.start("steps")
        self.steps(program.steps)
        f.do("ret i64 0")
        return f.module.text([f.text(f"define i64 @{NAME}(ptr %bases, ptr %table) nounwind")])

    # ---- words

    def word(self, base: str, number: int, kind: str = "i64") -> str:
        """A word of the bases or of the table, loaded at the function's start."""
        key = f"{base} {kind}", number
        if key not in self.words:
            n = len(self.words)
            self.f.entry += [
                f"  %at{n} = getelementptr i64, ptr %{base}, i64 {number}",
                f"  %word{n} = load {kind}, ptr %at{n}",
            ]
            self.words[key] = f"%word{n}"
        return self.words[key]

    def address(self, ref: Ref) -> str:
        """A ref's address at the present turns of the loops around, an i64."""
        f, base = self.f, self.word("bases", self.places[ref.space, ref.number])
        for counter, stride in ref.strides:
            moved = f.let(f"mul nsw i64 {self.counters[counter]}, {stride}")
            base = f.let(f"add i64 {base}, {moved}")
        return f.let(f"add i64 {base}, {ref.offset}") if ref.offset else base

    def checked(self, what: str, function: int, args: Sequence[str]) -> None:
        """Call a function of the table; return if it fails."""
        called = self.word("table", function, "ptr")
        self.check(function, what, self.f.let(f"call i32 {called}({', '.join(args)})"))

    def check(self, function: int, what: str, status: str) -> None:
        """Return if a status isn't 0."""
        f, number = self.f, len(self.names)
        self.names.append((function, what))
        failed, stop, after = f.let(f"icmp ne i32 {status}, 0"), f.name("stop"), f.name("after")
        f.do(f"br i1 {failed}, label %{stop}, label %{after}")
        f.start(stop)
        wide = f.let(f"zext i32 {status} to i64")
        f.do(f"ret i64 {f.let(f'or i64 {wide}, {number << 32}')}")
        f.start(after)

    @property
    def stream(self) -> str:
        """The stream of the step in hand, as an argument."""
        return f"ptr {self.word('table', self._on or STREAM, 'ptr')}"

    # ---- order

    def steps(self, steps: Sequence[Step]) -> None:
        """A block; at its end all is in order of one stream."""
        first = self._moves
        turns = self.streams.turns(steps)
        self._moves += sum(turn.move is not None for turn in turns)
        for turn in turns:
            if turn.after is not None:
                self.event(AWAIT, STREAM, 1 + first + turn.after)
            if turn.forks:
                self.event(RECORD, STREAM, 0)
                self.event(AWAIT, BESIDE, 0)
            self._on = BESIDE if turn.move is not None else 0
            if turn.step is not None:
                self.step(turn.step)
            self._on = 0
            if turn.awaited and turn.move is not None:
                self.event(RECORD, BESIDE, 1 + first + turn.move)

    def step(self, s: Step) -> None:
        """A step, between two marks where times are wanted."""
        if not self.timed or blocks(s):
            super().step(s)
            return
        mark = [f"i64 {len(self.marked)}", self.stream]
        self.marked.append(self._title(s))
        self.checked("a time", MARK, mark)
        super().step(s)
        self.checked("a time", MARK, mark)

    def _title(self, s: Step) -> str:
        if isinstance(s, KernelStep):
            launch = self.launches.get(id(s.kernel))
            return launch.name if launch else "nothing"
        if isinstance(s, GemmStep):
            return f"product {s.m}x{s.n}x{s.k} of {s.dtype.name}"
        if isinstance(s, ExchangeStep):
            return f"{s.kind} of {s.dtype.name}[{s.count}]"
        if isinstance(s, CopyStep):
            return f"copy of {s.nbytes} bytes"
        return s.prim.name if isinstance(s, HostStep) else "axis_index"

    def event(self, function: int, stream: int, number: int) -> None:
        """Note what a stream has done in an event, or let it wait for one."""
        at = FIRST + len(self.kernels) + COMM_WORDS * self.comms + number
        event, of = (f"ptr {self.word('table', i, 'ptr')}" for i in (at, stream))
        args = [event, of] if function == RECORD else [of, event, "i32 0"]
        self.checked("the order of streams", function, args)

    # ---- steps

    def kernel(self, s: KernelStep) -> None:
        """A launch."""
        launch = self.launches.get(id(s.kernel))
        if launch is None:  # which has no points
            return
        f, plan = self.f, launch.plan
        addresses = [self.address(ref) for ref in s.args]
        if launch.workspace:
            addresses.append(self.word("bases", len(self.places)))
        for i, address in enumerate(addresses):
            at = f.let(f"getelementptr i64, ptr {self.values}, i64 {i}")
            f.do(f"store i64 {address}, ptr {at}")
        function = self.word("table", self.numbers[launch.name], "ptr")
        sizes = [f"i32 {n}" for n in (plan.grid, 1, 1, plan.block, 1, 1, 0)]
        rest = [self.stream, f"ptr {self.slots}", "ptr null"]
        self.checked(launch.name, LAUNCH, [f"ptr {function}", *sizes, *rest])

    def gemm(self, s: GemmStep) -> None:
        """A product by cuBLASLt."""
        for p in products(s) or ():
            self.product(p)

    def product(self, p: Product) -> None:
        """A call of cuBLASLt."""
        at = self.call_words(p)
        words = [f"ptr {self.word('table', at + i, 'ptr')}" for i in range(CALL_WORDS)]
        handle, desc, alpha, x, y, beta, z, algorithm = words
        what = f"a product {p.m}x{p.n}x{p.k}"
        for name, ref in zip(p.attributes, p.tail.refs, strict=True):
            self.f.do(f"store i64 {self.address(ref)}, ptr {self.values}")
            which = f"i32 {ADDRESSES[name]}"
            self.checked(what, SET, [desc, which, f"ptr {self.values}", "i64 8"])
        a, b, c = (f"i64 {self.address(o.ref)}" for o in (p.first, p.second, p.result))
        rest = [algorithm, *self.work, self.stream]
        self.checked(what, PRODUCT, [handle, desc, alpha, a, x, b, y, beta, c, z, c, z, *rest])

    def convolution(self, c: Convolution) -> None:
        """A call of cuDNN."""
        at = self.call_words(c)
        alpha, x, y, how, _, beta, z = (
            f"ptr {self.word('table', at + i, 'ptr')}" for i in range(CALL_WORDS - 1)
        )
        algorithm = self.f.let(f"trunc i64 {self.word('table', at + 4)} to i32")
        handle = f"ptr {self.word('table', HANDLE, 'ptr')}"
        first, second, out = (f"i64 {self.address(o.ref)}" for o in (c.first, c.second, c.result))
        args = [handle, alpha, x, first, y, second, how, f"i32 {algorithm}", *self.work]
        self.checked(str(c), CONVOLVE[c.kind], [*args, beta, z, out])

    def call_words(self, call: Product | Convolution) -> int:
        """Where in the table a library's call has its words; equal ones have the same."""
        number = self.call_numbers.setdefault(call.key, len(self.calls))
        if number == len(self.calls):
            self.calls.append(call)
        before = FIRST + len(self.kernels) + COMM_WORDS * self.comms + self.events
        return before + CALL_WORDS * number

    @property
    def work(self) -> list[str]:
        """The memory for work, and its bytes, as arguments."""
        return [f"i64 {self.word('bases', len(self.places))}",
                f"i64 {self.word('table', WORK_BYTES)}"]  # fmt: skip

    def host(self, s: HostStep) -> None:
        """A convolution by cuDNN, or an operation that Python runs."""
        made = convolution(s)
        if made is not None:  # others have kernels by now
            self.convolution(made)
            return
        self.call_back(s.prim.name, s, [v.ref for v in (*s.ins, *s.outs)])

    def call_back(self, what: str, s: HostStep | ExchangeStep, refs: Sequence[Ref]) -> None:
        """A step that Python runs, given its arrays' addresses."""
        f, number, self.waits = self.f, len(self.called), True
        self.called.append(s)
        views = f.alloca("i64", max(len(refs), 1))
        for i, ref in enumerate(refs):
            at = f.let(f"getelementptr i64, ptr {views}, i64 {i}")
            f.do(f"store i64 {self.address(ref)}, ptr {at}")
        self.checked(what, CALL_BACK, [f"i64 {number}", f"ptr {views}"])

    def copy(self, s: CopyStep) -> None:
        """A copy on the device."""
        if s.source != s.to and s.nbytes:
            to, source = self.address(s.to), self.address(s.source)
            args = [f"i64 {to}", f"i64 {source}", f"i64 {s.nbytes}", self.stream]
            self.checked("a copy", COPY, args)

    # ---- other devices

    def comm(self, number: int, word: int, kind: str) -> str:
        """A word of a communicator."""
        return self.word("table", FIRST + len(self.kernels) + COMM_WORDS * number + word, kind)

    def lane(self, s: LaneStep) -> None:
        """The rank, as an int32 on the device."""
        rank = self.f.let(f"trunc i64 {self.comm(s.comm, 0, 'i64')} to i32")
        args = [f"i64 {self.address(s.to)}", f"i32 {rank}", "i64 1", self.stream]
        self.checked("axis_index", SET_WORD, args)

    def exchange(self, s: ExchangeStep) -> None:
        """What a communicator does with the device's memory, or Python by the host's."""
        if s.comm not in self.native:
            self.call_back(s.kind, s, [s.source, s.to])
            return
        f = self.f
        known = {
            "kind": exchanges.KINDS.index(s.kind), "op": exchanges.OPS.index(s.op),
            "dtype": exchanges.DTYPES.index(s.dtype), "width": s.dtype.itemsize,
            "count": s.count, "source": self.address(s.source), "to": self.address(s.to),
            "perm": f"ptrtoint (ptr {self.permutation(s)} to i64)" if s.perm else 0,
        }  # fmt: skip
        place = f.alloca("i64", len(exchanges.DESCRIPTOR))
        for i, name in enumerate(exchanges.DESCRIPTOR):
            at = f.let(f"getelementptr i64, ptr {place}, i64 {i}")
            f.do(f"store i64 {known[name]}, ptr {at}")
        context = self.comm(s.comm, 1, "ptr")
        at = f.let(f"getelementptr ptr, ptr {context}, i64 {exchanges.KINDS.index(s.kind)}")
        function = f.let(f"load ptr, ptr {at}")
        self.check(
            EXCHANGE + s.comm, f"{s.kind} of {s.dtype.name}[{s.count}]",
            f.let(f"call i32 {function}(ptr {context}, ptr {place})"),
        )  # fmt: skip

    def permutation(self, s: ExchangeStep) -> str:
        """For each rank whom it sends to and whom it receives from, in read-only memory."""
        to, source = dict(s.perm), {b: a for a, b in s.perm}
        words = [w for i in range(s.size) for w in (to.get(i, -1), source.get(i, -1))]
        values, name = ", ".join(f"i64 {w}" for w in words), f"@perm{len(self.names)}"
        self.f.module.needed[name] = f"{name} = private constant [{len(words)} x i64] [{values}]"
        return name

    # ---- control

    def flag(self, ref: Ref, nbytes: int, what: str) -> str:
        """An integer of the device's memory, copied to the host when all before is done."""
        self.waits = True
        place = self.word("table", FLAG, "ptr")
        args = [f"ptr {place}", f"i64 {self.address(ref)}", f"i64 {nbytes}", self.stream]
        self.checked(what, TO_HOST, args)
        self.checked(what, WAIT, [self.stream])
        return self.f.let(f"load i{8 * nbytes}, ptr {place}")

    def cond(self, s: CondStep) -> None:
        """The branch that the flag says."""
        f, after = self.f, self.f.name("after")
        labels = [f.name("branch") for _ in s.branches]
        cases = " ".join(f"i32 {i}, label %{label}" for i, label in enumerate(labels))
        chosen = self.flag(s.index, 4, "cond")
        f.do(f"switch i32 {chosen}, label %{after} [{cases}]")
        for label, branch in zip(labels, s.branches, strict=True):
            f.start(label)
            self.steps(branch)
            f.do(f"br label %{after}")
        f.start(after)

    def loop(self, s: LoopStep) -> None:
        """So many turns."""
        if not s.length:
            return
        f = self.f
        head, before, i = f.name("loop"), f.block, "%" + f.name("t")
        f.do(f"br label %{head}")
        f.start(head)
        place = len(f.lines)
        f.lines.append("")
        self.counters[s.number] = i
        self.steps(s.body)
        step = f.let(f"add nuw nsw i64 {i}, 1")
        f.lines[place] = f"  {i} = phi i64 [0, %{before}], [{step}, %{f.block}]"
        more, after = f.let(f"icmp slt i64 {step}, {s.length}"), f.name("done")
        f.do(f"br i1 {more}, label %{head}, label %{after}")
        f.start(after)

    def while_(self, s: WhileStep) -> None:
        """Turns as long as the flag says so."""
        f = self.f
        head, body, after = f.name("while"), f.name("turn"), f.name("done")
        f.do(f"br label %{head}")
        f.start(head)
        self.steps(s.test)
        more = f.let(f"icmp ne i8 {self.flag(s.condition, 1, 'while_loop')}, 0")
        f.do(f"br i1 {more}, label %{body}, label %{after}")
        f.start(body)
        self.steps(s.body)
        f.do(f"br label %{head}")
        f.start(after)


def _spaces(program: Program) -> Iterator[tuple[str, int]]:
    yield "input", len(program.ins)
    yield "output", len(program.outs)
    yield "constant", len(program.constants)
    yield "arena", 1
