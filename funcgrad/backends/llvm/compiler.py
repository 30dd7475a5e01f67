"""LLVM at work: text in, object code or a look at the module out.

Loaded when something has to be compiled: what lies on disk is run without LLVM.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from funcgrad.backends.llvm.libllvm import Machine, Module
from funcgrad.backends.llvm.target import NO_SHORT, Target
from funcgrad.core.record import replace

_T = TypeVar("_T")

# LLVM's least pipeline takes as long as code generation; these take a tenth of it.
_FEW = ("AlwaysInliner", "SROA", "SimplifyCFG", "InstCombine")

# The attribute of a function that has variants, weak_odr ones, for vectors.
VARIANTS = '"vector-function-abi-variant"'

# What reads or writes lanes of vectors by masks, and what takes masks out of their registers.
_MASKED = re.compile(
    r"llvm\.(?:masked\.(?:load|store|gather|scatter|expandload|compressstore)|vp\.\w+)"
    r"\.(?:\w+\.)*?v(\d+)(?:p|b?f|i)(\d+)"
)
_TAKEN = re.compile(
    r"(?:bitcast|extractelement|store) <\d+ x i1>|llvm\.vector\.reduce\.\w+\.v\d+i1\b"
)

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
            others = level == 3 and target.features.endswith(NO_SHORT) and _short_masks(module)
            if not others:
                return what(module)
            if not _TAKEN.search(str(module)):
                features = target.features.removesuffix(NO_SHORT) + ",+avx512vl"
                with _machine(replace(target, features=features), 3) as short:
                    module.machine = short
                    return what(module)
    # With AVX-512VL that might go wrong, too (see `target`): there shall be no such vectors.
    return compiled(target, text, 2, what)


def _short_masks(module: Module) -> bool:
    """Whether a module reads or writes parts of vectors of less than 512 bits.

    Without AVX-512VL these are parts of longer ones, whose masks are made longer by an instruction
    that LLVM takes for a copy where registers for masks are short: the mask that it keeps in memory
    then has other bits above, and as many elements behind the vector are written.
    """
    found = map(_MASKED.match, module.symbols()[1])
    return any(m and int(m[1]) * int(m[2]) < 512 for m in found)


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
