"""Running statements that generate code on numbers instead, to learn what the code would do.

`Known` stands for `code.Int` and `Bool`, `Trial` for `Code`: what a condition excludes is run
too, as Python can't skip a `with` block, and has no effect on the calls noted, nor on a job, a
dictionary here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any


class Known:
    """An i64 or a truth value that is known.

    >>> bool((Known(3) * 4 < 20) & ~Known(2).eq(1))
    True
    """

    def __init__(self, value: Any):
        self.value: Any = value.value if isinstance(value, Known) else value

    def __bool__(self) -> bool:
        return bool(self.value)

    def __add__(self, other: Any) -> Known:
        return Known(self.value + Known(other).value)

    def __sub__(self, other: Any) -> Known:
        return Known(self.value - Known(other).value)

    def __rsub__(self, other: Any) -> Known:
        return Known(Known(other).value - self.value)

    def __mul__(self, other: Any) -> Known:
        return Known(self.value * Known(other).value)

    __radd__, __rmul__ = __add__, __mul__

    # The generated code divides without signs.

    def __floordiv__(self, other: Any) -> Known:
        return Known(self.value % (1 << 64) // Known(other).value)

    def __mod__(self, other: Any) -> Known:
        return Known(self.value % (1 << 64) % Known(other).value)

    def __lt__(self, other: Any) -> Known:
        return Known(self.value < Known(other).value)

    def __le__(self, other: Any) -> Known:
        return Known(self.value <= Known(other).value)

    def __gt__(self, other: Any) -> Known:
        return Known(self.value > Known(other).value)

    def __ge__(self, other: Any) -> Known:
        return Known(self.value >= Known(other).value)

    def eq(self, other: Any) -> Known:
        """Whether they are equal."""
        return Known(self.value == Known(other).value)

    def ne(self, other: Any) -> Known:
        """Whether they differ."""
        return Known(self.value != Known(other).value)

    def __and__(self, other: Known) -> Known:
        return Known(bool(self) and bool(other))

    def __or__(self, other: Known) -> Known:
        return Known(bool(self) or bool(other))

    def __invert__(self) -> Known:
        return Known(not self)

    def select(self, yes: Any, no: Any) -> Known:
        """One of two numbers, by whether this one isn't 0."""
        return Known(yes if self else no)

    def min(self, other: Any) -> Known:
        """The lesser of the two."""
        return Known(min(self.value, Known(other).value))

    def max(self, other: Any) -> Known:
        """The greater of the two."""
        return Known(max(self.value, Known(other).value))

    def ceil_div(self, n: Any) -> Known:
        """The quotient rounded up."""
        return (self + n - 1) // n

    def round_up(self, n: Any) -> Known:
        """The least multiple of `n` that is no less."""
        return self.ceil_div(n) * n


class Facts(dict[str, Known]):
    """A record whose words are known."""

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, Known(value))


class Trial:
    """Notes the calls that code would make; `job` is what it may set."""

    def __init__(self, job: Facts):
        self.calls: list[Any] = []
        self._job = job

    def i64(self, value: Any) -> Known:
        """An integer as a known one."""
        return Known(value)

    def call(self, function: Any) -> None:
        """Note a call."""
        self.calls.append(function)

    @contextmanager
    def when(self, condition: Any) -> Iterator[None]:
        """Whatever happens inside is undone unless the condition holds."""
        before, calls = dict(self._job), len(self.calls)
        yield
        if not condition:
            self._job.update(before)
            del self.calls[calls:]

    @contextmanager
    def either(
        self, condition: Any
    ) -> Iterator[tuple[AbstractContextManager[None], AbstractContextManager[None]]]:
        """What to do if the condition holds, and what otherwise."""
        yield self.when(condition), self.when(not condition)
