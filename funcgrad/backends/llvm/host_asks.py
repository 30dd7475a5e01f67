"""How a host function asks for signals, so that Ctrl-C ends a long program.

It asks by `fg_poll` (`runtime.run_code`), which mostly looks at a clock: after each step that is
long, and in loops once their turns have done as much, by estimates of operations and bytes. What
is over in a moment doesn't ask. Steps aren't interrupted, but for kernels that are loops of a
program: these ask by themselves, by the same words.
"""

from __future__ import annotations

from funcgrad.backends.llvm.emit.text import Function
from funcgrad.backends.llvm.runtime.run_code import POLL_WORDS, STOP
from funcgrad.backends.measure import measure
from funcgrad.backends.program import CondStep, LoopStep, Step, WhileStep

# What a program does, in operations and bytes, before it asks; what a turn of a loop counts for at
# least, and how much a loop does altogether that asks at all.
ASK_WORK, TURN_WORK, LONG_WORK = 1_000_000, 1_000, 10_000_000


def new_words() -> list[str]:
    """What makes the words `%words` in a function's frame, as lines of its entry."""
    kind = f"[{POLL_WORDS} x i64]"
    return [f"  %words = alloca {kind}, align 64", f"  store {kind} zeroinitializer, ptr %words"]


class Asks:
    """What the function in hand has done since it last asked; `head` is how it begins. One that
    gives no status, as a task of threads, doesn't ask."""

    def __init__(self, f: Function, head: str):
        self.f = f
        self.never = " i32 @" not in head
        self.given = self.never or "%words" in head
        self.work = 0.0

    def words(self) -> str:
        """The words by which the function asks, or which it was given."""
        if not self.given:
            self.f.entry += new_words()
            self.given = True
        return "%words"

    def after(self, s: Step) -> None:
        """Count a step that was written, but for loops and branches: theirs are."""
        if not isinstance(s, CondStep | WhileStep) and (not isinstance(s, LoopStep) or s.parallel):
            cost = measure([s])
            self.work += cost.flops + cost.moved
        if self.work > ASK_WORK:
            self.ask()

    def ask(self) -> None:
        """Ask whether a signal has ended the program."""
        self.work = 0.0
        if not self.never:
            self.f.module.declare("fg_poll", "i32", ["ptr"])
            self.fail_if(self.f.call("fg_poll", "i32", ["ptr"], [self.words()]))

    def stop(self) -> None:
        """End the program if a step that asked was told to stop."""
        if not self.never:
            at = self.f.let(f"getelementptr i64, ptr {self.words()}, i64 {STOP}")
            self.fail_if(self.f.let(f"load i64, ptr {at}"), "i64")

    def fail_if(self, status: str, kind: str = "i32") -> None:
        """End the program with an exception of Python, if there is one."""
        failed, after = self.f.let(f"icmp ne {kind} {status}, 0"), self.f.name("after")
        self.f.do(f"br i1 {failed}, label %failed, label %{after}")
        self.f.start(after)

    def turn_ends(self, turns: float) -> None:
        """At the end of a turn of a loop, of which there are so many: ask once enough were."""
        work = max(TURN_WORK, int(self.work))
        if self.never or turns * work < LONG_WORK:
            self.work = turns * work
            return
        f, place = self.f, "%spent"
        if f"  {place} = alloca i64" not in f.entry:
            f.entry += [f"  {place} = alloca i64", f"  store i64 0, ptr {place}"]
        before = f.let(f"load i64, ptr {place}")
        spent = f.let(f"add i64 {before}, {work}")
        f.do(f"store i64 {spent}, ptr {place}")
        due, asked, on = f.let(f"icmp ugt i64 {spent}, {ASK_WORK}"), f.name("ask"), f.name("on")
        f.do(f"br i1 {due}, label %{asked}, label %{on}")
        f.start(asked)
        f.do(f"store i64 0, ptr {place}")
        self.ask()
        f.do(f"br label %{on}")
        f.start(on)
