"""What does something with each step of a planned program: a method for each class of steps."""

from __future__ import annotations

from collections.abc import Sequence

from funcgrad.backends.program import (
    AttentionStep,
    CondStep,
    CopyStep,
    ExchangeStep,
    GemmStep,
    HostStep,
    KernelStep,
    LaneStep,
    LoopStep,
    Step,
    WhileStep,
)


class Walker:
    """Goes through steps in order, and hands each to the method of its class.

    A target has a method for each class of steps that it plans. Those of branches and loops walk
    over the steps within, as often as the target wants it.
    """

    def steps(self, steps: Sequence[Step]) -> None:
        """Steps in order."""
        for s in steps:
            self.step(s)

    def step(self, s: Step) -> None:
        """One step."""
        getattr(self, _METHODS[type(s)])(s)

    def kernel(self, s: KernelStep) -> None:
        """Loops."""
        raise AssertionError(s)

    def gemm(self, s: GemmStep) -> None:
        """A product of matrices."""
        raise AssertionError(s)

    def attention(self, s: AttentionStep) -> None:
        """Attention, forward or backward."""
        raise AssertionError(s)

    def host(self, s: HostStep) -> None:
        """An operation that has no loops."""
        raise AssertionError(s)

    def exchange(self, s: ExchangeStep) -> None:
        """Devices give each other what they have."""
        raise AssertionError(s)

    def lane(self, s: LaneStep) -> None:
        """The device's number in a communicator."""
        raise AssertionError(s)

    def copy(self, s: CopyStep) -> None:
        """Bytes from one place to another."""
        raise AssertionError(s)

    def cond(self, s: CondStep) -> None:
        """The branch that is chosen."""
        raise AssertionError(s)

    def loop(self, s: LoopStep) -> None:
        """Steps, so many times."""
        raise AssertionError(s)

    def while_(self, s: WhileStep) -> None:
        """Steps, while a condition holds."""
        raise AssertionError(s)


_METHODS: dict[type, str] = {
    KernelStep: "kernel",
    GemmStep: "gemm",
    AttentionStep: "attention",
    HostStep: "host",
    ExchangeStep: "exchange",
    LaneStep: "lane",
    CopyStep: "copy",
    CondStep: "cond",
    LoopStep: "loop",
    WhileStep: "while_",
}
