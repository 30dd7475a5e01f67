"""LLVM at work: text in, object code or a look at the module out.

Loaded when something has to be compiled: what lies on disk is run without LLVM.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from funcgrad.backends.llvm.libllvm import Machine, Module
from funcgrad.backends.llvm.target import Target

_T = TypeVar("_T")

# LLVM's least pipeline takes as long as code generation; these take a tenth of it.
_FEW = ("AlwaysInliner", "SROA", "SimplifyCFG", "InstCombine")

# The attribute of a function that has variants, weak_odr ones, for vectors.
VARIANTS = '"vector-function-abi-variant"'

# Machines that no thread uses just now. A new one works out what its processor can do, which takes
# as long as the code of a small module.
_idle: dict[tuple[Target, int], list[Machine]] = {}


class InvalidIR(ValueError):
    """A module that LLVM's parser or verifier rejects: a bug of whoever wrote the IR.

    >>> issubclass(InvalidIR, ValueError)
    True
    """


def compiled(target: Target, text: str, level: int, what: Callable[[Module], _T]) -> _T:
    """Optimize a module and apply *what* to it.

    Raises InvalidIR if LLVM rejects the text.

    >>> compiled(Target.host(), "define i32 @f() { ret i32 3 }", 3, lambda m: "@f" in str(m))
    True
    """
    with _machine(target, 3 if level else 0) as machine:
        try:
            module = Module(text, machine)
        except ValueError as error:
            raise InvalidIR(str(error)) from None
        with module:
            if level > 1:
                module.optimize(level, vectorize=level == 3)
                if level == 3 and VARIANTS in text:
                    # The vectorizer calls variants of functions: they are put where they're called.
                    module.hide_variants()
                    module.tidy("AlwaysInliner", "SimplifyCFG", "InstCombine", "GlobalDCE")
            elif level:
                module.tidy(*_FEW)
            return what(module)


@contextmanager
def _machine(target: Target, optimize: int) -> Iterator[Machine]:
    """A machine of this thread alone, for the length of a `with`."""
    idle = _idle.setdefault((target, optimize), [])
    try:
        machine = idle.pop()
    except IndexError:
        machine = Machine(target.triple, target.cpu, target.features, optimize)
    try:
        yield machine
    finally:
        idle.append(machine)
