"""LLVM at work: text in, object code or a look at the module out.

Loaded when something has to be compiled: what lies on disk is run without LLVM.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from funcgrad.backends.llvm.native.libllvm import Machine, Module
from funcgrad.backends.llvm.native.target import NO_SHORT, Target

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
# The greater or less of two vectors, by its name and where it is called.
_EXTREME = re.compile(r"llvm\.(?:maximum|minimum)\.v(\d+)b?f(\d+)")
_OF_EXTREME = re.compile(
    r"^( +(%\S+) = .*call (<\d+ x \w+>) @llvm\.(?:maximum|minimum)\.\w+\(\3 )(%[^ ,]+)",
    re.MULTILINE,
)
# The declaration of the greater or less of two numbers of float64, or of vectors of them.
_EXTREME_DOUBLE = re.compile(
    r'^declare ([^@\n]+) @"?(llvm\.(maximum|minimum)\.(?:v\d+)?f64)"?\([^\n]*$', re.MULTILINE
)
_CALLED = re.compile(r"@(llvm\.(?:masked|vp)\.[\w.]+)")
_FUNCTION = re.compile(r'^define [^\n@]*@("[^"]+"|[-\w.$]+)\(.*?^\}', re.MULTILINE | re.DOTALL)
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


def translated(target: Target, text: str, what: Callable[[Module], _T]) -> _T:
    """As `compiled`, in a fifth of the time: what lies in the frame comes into registers, no more.

    >>> translated(Target.host(), "define i32 @f() { ret i32 3 }", lambda m: "@f" in str(m))
    True
    """
    with _machine(target, 0) as machine, Module(text, machine) as module:
        module.tidy("AlwaysInliner", "SROA")
        return what(module)


def compiled(target: Target, text: str, level: int, what: Callable[[Module], _T]) -> _T:
    """Optimize a module and apply *what* to it.

    Raises InvalidIR if LLVM rejects the text.

    >>> compiled(Target.host(), "define i32 @f() { ret i32 3 }", 3, lambda m: "@f" in str(m))
    True
    """
    if target.triple.startswith("armv7"):
        text = _own_extremes(text)
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
            if level < 3 or not target.features.endswith(NO_SHORT):
                return what(module)
            called = module.symbols()[1]
            made = _apart(str(module)) if any(_is_short(n, _EXTREME) for n in called) else ""
            if not any(map(_is_short, called)) and "freeze" not in made:
                return what(module)
            made = made or str(module)
    return _of_short_masks(target, text, made, what)


def _own_extremes(text: str) -> str:
    """A module whose greater and less of float64 are functions of its own: LLVM 22 ends the process
    where it generates code of them for ARM's 32 bits.

    >>> text = "declare double @llvm.maximum.f64(double, double)"
    >>> print(_own_extremes(text).splitlines()[0])
    define internal double @fg.llvm.maximum.f64(double %x, double %y) alwaysinline nounwind {
    """
    found = {m[2]: (m[1], m[3] == "maximum") for m in _EXTREME_DOUBLE.finditer(text)}
    text = _EXTREME_DOUBLE.sub("", text).lstrip("\n")
    for name, (kind, greatest) in found.items():
        text = re.sub(rf'@"?{re.escape(name)}"?(?=\()', f"@fg.{name}", text)
        text += _extreme_of_doubles(f"fg.{name}", kind, greatest)
    return text


def _extreme_of_doubles(name: str, kind: str, greatest: bool) -> str:
    """The function: NaN for NaNs; of two that are equal, which zeros of both signs are, one whose
    sign is that of both or either."""
    bits, truth = kind.replace("double", "i64"), kind.replace("double", "i1")
    return f"""\
define internal {kind} @{name}({kind} %x, {kind} %y) alwaysinline nounwind {{
  %bits.x = bitcast {kind} %x to {bits}
  %bits.y = bitcast {kind} %y to {bits}
  %bits = {"and" if greatest else "or"} {bits} %bits.x, %bits.y
  %same = bitcast {bits} %bits to {kind}
  %is.same = fcmp oeq {kind} %x, %y
  %is.x = fcmp {"ogt" if greatest else "olt"} {kind} %x, %y
  %is.nan = fcmp uno {kind} %x, %y
  %nan = fadd {kind} %x, %y
  %other = select {truth} %is.x, {kind} %x, {kind} %y
  %number = select {truth} %is.same, {kind} %same, {kind} %other
  %result = select {truth} %is.nan, {kind} %nan, {kind} %number
  ret {kind} %result
}}
"""


def _is_short(name: str, op: re.Pattern = _MASKED) -> bool:
    """Whether a function reads or writes parts of vectors of less than 512 bits.

    Without AVX-512VL these are parts of longer ones, whose masks are made longer by an instruction
    that LLVM takes for a copy where registers for masks are short: the mask that it keeps in memory
    then has other bits above, and as many elements behind the vector are written.
    """
    m = op.match(name)
    return m is not None and int(m[1]) * int(m[2]) < 512


def _apart(made: str) -> str:
    """An optimized module in which no greater or less is stored where its operand was read.

    Without AVX-512VL, LLVM 22 turns that of a short vector and 0 into the store of the elements
    that change, by a mask that isn't one, and ends the process.

    >>> text = "  %m = call <4 x float> @llvm.maximum.v4f32(<4 x float> %x, <4 x float> %y)\\n"
    >>> print(_apart(text + "  store <4 x float> %m, ptr %p"))
      %kept0 = freeze <4 x float> %x
      %m = call <4 x float> @llvm.maximum.v4f32(<4 x float> %kept0, <4 x float> %y)
      store <4 x float> %m, ptr %p
    """
    numbers = itertools.count()

    def apart(m: re.Match) -> str:
        head, result, kind, x = m.groups()
        if f" store {kind} {result}, " not in made:
            return m[0]
        kept = f"%kept{next(numbers)}"
        return f"  {kept} = freeze {kind} {x}\n{head}{kept}"

    return _OF_EXTREME.sub(apart, made)


def _of_short_masks(target: Target, text: str, made: str, what: Callable[[Module], _T]) -> _T:
    """As `compiled`, where the optimized module has short masks: functions that do have AVX-512VL.

    With it, what takes masks out of registers might go wrong, too (see `target`): functions that do
    both are made anew without vectors, or all of the module, if these are its author's.
    """
    functions = {m[1]: m[0] for m in _FUNCTION.finditer(made)}
    short = [n for n, f in functions.items() if any(map(_is_short, _CALLED.findall(f)))]
    taken = [n for n in short if _TAKEN.search(functions[n])]
    if taken:
        scalar = _with_attribute(text, taken, "noimplicitfloat")
        return compiled(target, scalar, 2 if scalar == text else 3, what)
    features = target.features.removesuffix(NO_SHORT) + ",+avx512vl"
    mixed = _with_attribute(made, short, f'"target-features"="{features}"')
    with _machine(target, 3) as machine, Module(mixed, machine) as module:
        return what(module)


def _with_attribute(text: str, functions: Iterable[str], attribute: str) -> str:
    """A module some of whose functions have an attribute."""
    for name in functions:
        head = rf"^(define [^\n]*@{re.escape(name)}\([^\n]*?)(?: #\d+)?(?: ![^\n]*)? \{{$"
        found = re.search(head, text, re.MULTILINE)
        if found and attribute not in found[1]:
            text = f"{text[: found.end(1)]} {attribute}{text[found.end(1) :]}"
    return text


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
