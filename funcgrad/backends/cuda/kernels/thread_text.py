"""What a thread does, as LLVM text: the words that kernels of tiles have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from funcgrad.backends.cuda.schedule import Schedule
from funcgrad.backends.llvm.emit.text import Definitions, Function
from funcgrad.backends.loops.ir import Kernel


class ThreadText:
    """The text of a kernel's thread.

    numbers: of the parameters, by their names
    globals: definitions of memory
    """

    def __init__(self, kernel: Kernel, name: str):
        self.name = name
        self.numbers = {b.name: i for i, b in enumerate(kernel.params)}
        self.module = Definitions(scalar=True)
        self.f = Function(self.module)
        self.globals: list[str] = []

    def run(self, plan: Schedule) -> str:
        """The kernel's function."""
        raise NotImplementedError

    def op(self, name: str, a: str, b: str | int, kind: str = "i32") -> str:
        """An instruction on two integers."""
        return self.f.let(f"{name} {kind} {a}, {b}")

    def fop(self, name: str, a: str, b: str) -> str:
        """An instruction on two floats."""
        return self.f.let(f"{name} float {a}, {b}")

    def wide(self, a: str) -> str:
        """An integer that isn't negative, as an i64."""
        return self.f.let(f"zext nneg i32 {a} to i64")

    def loop(
        self, start: str, end: str, states: Mapping[str, str],
        turn: Callable[[], dict[str, str]], counter: str = "j", step: int = 1,
        kind: str = "float",
    ) -> None:  # fmt: skip
        """Turns of a counter, %j, from start on, before end; the states, known as %name, are
        floats."""
        f, before = self.f, self.f.block
        head, tile, done = f.name("head"), f.name("tile"), f.name("done")
        f.do(f"br label %{head}")
        f.start(head)
        at = len(f.lines)
        f.do(f"br i1 {f.let(f'icmp slt i32 %{counter}, {end}')}, label %{tile}, label %{done}")
        f.start(tile)
        after = turn()
        later = self.op("add", f"%{counter}", step)
        f.do(f"br label %{head}")
        phis = [f"  %{counter} = phi i32 [{start}, %{before}], [{later}, %{f.block}]"]
        phis += [f"  %{k} = phi {kind} [{first}, %{before}], [{after[k]}, %{f.block}]"
                 for k, first in states.items()]  # fmt: skip
        f.lines[at:at] = phis
        f.start(done)

    def when(self, condition: str, body: Callable[[], object]) -> None:
        """What is done if a condition holds."""
        f, inside, after = self.f, self.f.name("inside"), self.f.name("after")
        f.do(f"br i1 {condition}, label %{inside}, label %{after}")
        f.start(inside)
        body()
        f.do(f"br label %{after}")
        f.start(after)
